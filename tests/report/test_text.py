"""print(plan) and explain: the figures are the record's, the pattern has the field's name."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import shardwright as sw
from shardwright.record.types import Asked, Claim, Override, Replicated, SearchRow
from shardwright.report.axes import axis_sentences
from shardwright.report.causes import alike, brief, sentence
from shardwright.report.explain import explain
from shardwright.report.facts import lines_that_move, ranked_baselines
from shardwright.report.pattern import also_known_as, pattern
from shardwright.report.rates import mfu, throughput
from shardwright.report.text import format_plan
from shardwright.report.words import (
    WIDTH,
    change,
    columns,
    human_bytes,
    human_count,
    human_seconds,
    short_path,
    short_source,
    spec_text,
    times,
    type_bytes,
    wrapped,
)  # fmt: skip
from shardwright.search import Certificate
from shardwright.spmd.ir import Cause, totals
from shardwright.zoo import programs
from tests.report.records import MESH, plan_of, record_of

PATTERNS = [
    ("dp", "data parallel over data; nothing over model", "DataParallel(data)"),
    ("fsdp+tp", "data parallel + FSDP over data; tensor parallel over model",
     "FSDP(data) + Megatron(model)"),
    ("dp+tp+sp", "data parallel over data; tensor parallel, then sequence parallel over model",
     "DataParallel(data) + Megatron(model) + SequenceParallel(model)"),
    ("zero", "data parallel + ZeRO-2 over data and model", "ZeRO-2(data) + ZeRO-2(model)"),
    ("cp", "nothing over data; context parallel over model", "ContextParallel(model, query)"),
]  # fmt: skip


@pytest.mark.parametrize("tactics, words, tactic", PATTERNS)
def test_patterns_have_their_names(tactics: str, words: str, tactic: str) -> None:
    record = record_of("transformer_train", tactics)
    assert pattern(record) == words
    assert also_known_as(record) == tactic


def test_experts_are_not_called_tensors() -> None:
    example = programs("tiny")["moe_train"]
    plan = sw.partition(
        example.fn, *example.args, mesh=MESH, device="tpu-v5e",
        tactics=[sw.FSDP("data"), sw.ExpertParallel("model")],
    )  # fmt: skip
    words = "data parallel + FSDP over data; expert parallel, then data parallel over model"
    assert pattern(plan.record) == words


def test_gradients_alone_are_not_called_optimiser_state() -> None:
    """A program without an optimiser has gradients, too."""
    claims = (Claim("w2[0]", bits=0, scope=1),)
    record = record_of("mlp_grad", "dp", decisions={"data": claims, "model": claims})
    assert pattern(record) == "moments and gradients split over data and model"


def test_parameters_apart_from_their_optimiser_state() -> None:
    """train_step(params, opt_state, batch): the argument with most leaves is not the parameters."""
    optimizer = optax.adam(1e-3)

    def train_step(params: Any, opt_state: Any, batch: jax.Array) -> Any:
        loss = lambda p: jnp.mean((jnp.tanh(batch @ p["up"]) @ p["down"]) ** 2)  # noqa: E731
        updates, opt_state = optimizer.update(jax.grad(loss)(params), opt_state)
        return optax.apply_updates(params, updates), opt_state

    params = {"up": jnp.ones((16, 64)), "down": jnp.ones((64, 8))}
    plan = sw.partition(
        train_step, params, optimizer.init(params), jnp.ones((32, 16)), mesh=MESH,
        tactics=[sw.DataParallel("data"), sw.Megatron("model")],
    )  # fmt: skip
    words = "data parallel over data; tensor parallel (up[1]) over model"
    assert pattern(plan.record) == words


SENTENCES = [
    ("dp", ["the batch (data parallel)", "nothing"]),
    ("fsdp+tp", ["the batch, and every weight and moment (FSDP)",
                 "the hidden dims w1[1], wk[1], embedding[0] (tensor parallel)"]),
    ("dp+tp+sp", ["the batch (data parallel)",
                  "the hidden dims w1[1], wk[1], embedding[0] (tensor parallel);"
                  " elsewhere the sequence by queries (sequence parallel)"]),
    ("zero", ["the batch, and moments and gradients (ZeRO-2)"] * 2),
    ("cp", ["nothing", "the sequence by queries (context parallel)"]),
]  # fmt: skip


@pytest.mark.parametrize("tactics, sentences", SENTENCES)
def test_a_sentence_per_axis(tactics: str, sentences: list[str]) -> None:
    found = axis_sentences(record_of("transformer_train", tactics))
    shown = [re.split("; (?:of the|your) tactics", text)[0] for text in found.values()]
    assert (list(found), shown) == (["data", "model"], sentences)


SCREENS = [
    ("transformer_train", "fsdp+tp"), ("transformer_train", "zero"), ("mlp_grad", ""),
    ("transformer_scan_train", "fsdp+tp"), ("moe_train", "dp"), ("transformer_train", "dp+tp+sp"),
]  # fmt: skip


@pytest.mark.parametrize("program, tactics", SCREENS)
def test_the_plan_is_on_one_screen(program: str, tactics: str) -> None:
    record = record_of(program, tactics)
    text = format_plan(record)
    assert len(text.splitlines()) <= 55
    for shown in (text, explain(record)):
        assert [line for line in shown.splitlines() if len(line) > WIDTH] == []
        assert "<locals>" not in shown and "resolution" not in shown and "e+0" not in shown[:800]
    assert "on 8 x tpu-v5e, mesh data=4 x model=2" in text.splitlines()[0]


def test_rates_are_read_off_the_arguments() -> None:
    record = record_of("transformer_train", "fsdp+tp")
    batch, sequence = (int(n) for n in re.findall(r"\d+", record.arguments["batch['tokens']"])[1:])
    assert throughput(record) == (batch * sequence / record.cost.step_s, "tokens")
    peak = record.device.matrix_flops_per_s("bf16") * 8
    assert mfu(record) == pytest.approx(record.matrix_flops / record.cost.step_s / peak)
    assert throughput(record_of("mlp_grad", ""))[1] == "examples"


def test_short_paths_are_taken_back() -> None:
    """What reports print is what a Pin and a label take."""

    def mlp(p: Any, x: jax.Array) -> jax.Array:
        return jax.nn.relu(x @ p["up"]) @ p["down"]

    p = {"up": jnp.ones((8, 16)), "down": jnp.ones((16, 8))}
    options: dict[str, Any] = {"mesh": MESH, "device": "tpu-v5e", "seconds": 0.1}
    short, long = (
        sw.partition(mlp, p, jnp.ones((8, 8)), tactics=[sw.Pin(path, 1, "model")], **options)
        for path in ("p.up", "p['up']")
    )
    assert short.specs() == long.specs() and "model" in str(short.specs()["p['up']"])
    named = sw.analyze(mlp, p, jnp.ones((8, 8)), labels={"ff": "p.up[1]"})
    assert "ff" in [group.label for group in named.groups]


def test_the_figures_are_the_plans() -> None:
    plan = plan_of("transformer_train", "fsdp+tp")
    text, record = str(plan), plan.record
    assert f"step    {human_seconds(plan.cost.step_s)}: compute" in text
    assert human_bytes(plan.cost.peak_bytes) in text
    assert human_bytes(record.limit_bytes) in text
    total = sum(c.count * c.seconds for c in plan.collectives)
    assert f"links, {human_seconds(total)} in all" in text
    assert sum(t.seconds for t in totals(record.collectives).values()) == pytest.approx(total)
    assert sum(line.seconds for line in lines_that_move(record)) == pytest.approx(total)
    assert total == pytest.approx(plan.cost.link_s)


def test_every_tactic_is_counted() -> None:
    record = record_of("transformer_train", "fsdp+tp")
    ranked = ranked_baselines(record)
    named = [n for b in ranked for n in (b.name, *b.also)]
    missing = [n for n, row in record.baselines.items() if isinstance(row, str)]
    assert sorted(named + missing) == sorted(record.baselines)
    assert f"{len(missing)} do not apply" in format_plan(record)


def test_a_faster_tactic_that_fits_is_ruled_out_by_tactics() -> None:
    """Also where a still faster one does not fit."""
    record = record_of("transformer_train", "fsdp+tp")
    mine = record.cost
    record = replace(record, asked=replace(record.asked, memory=mine.peak_bytes), baselines={
        "A": replace(mine, compute_s=mine.compute_s / 4, peak_bytes=2 * mine.peak_bytes),
        "B": replace(mine, compute_s=mine.compute_s / 2),
    })  # fmt: skip
    assert record.asked.tactics
    assert "faster ones are ruled out by your tactics" in " ".join(format_plan(record).split())


def test_tactics_over_memory_are_marked() -> None:
    record = record_of("transformer_train", "fsdp+tp")
    record = replace(record, asked=replace(record.asked, memory=record.cost.peak_bytes))
    marked = [line for line in format_plan(record).splitlines() if "OOM" in line]
    assert any("Megatron(model)" in line for line in marked)  # faster, but larger
    assert "too much" in explain(record)


@pytest.mark.parametrize("changes, words", [
    ({"opaque": {"sort_twice": 3}}, "warning: no rule for sort_twice x3"),
    ({"replicated": (Replicated("state['big'][0]['w']", 2_000_000),)},
     "warning: replicated on every device: state.big[*].w (2.0 MB)"),
    ({"search": SearchRow(1, (), interrupted=True, timed_out=False, pins_in_code=0)},
     "warning: the search was interrupted"),
    ({"search": SearchRow(1, (), interrupted=False, timed_out=True, pins_in_code=0),
      "asked": Asked(timeout=30.0)},
     "warning: the wall clock ended the search (timeout=30): this is the best found"),
    ({"certificate": Certificate.none()}, "proof: none"),
    ({"certificate": Certificate("gap", 2e-4, 0.25, 0)}, "proof: within 25.0% of the optimum"),
    ({"collectives": ()}, "nothing moves between devices"),
    ({"baselines": {}}, "proof: optimal"),
    ({"overrides": (Override(0, (0, -1), "f32[8/4,16]", 1, ("a copy of w",)),)},
     "no proof covers them"),
    ({"overrides": (Override(0, (0, -1), "f32[8/4,16]", 1, ("a copy of w",)),),
      "certificate": Certificate("optimal", math.inf, 0.0, 5)},
     "none\n       in what your tactics leave open fits. The exceptions come on"),
    ({"notes": ("so many words " * 12,)}, "note: " + "so many words " * 5 + "so\n  many words"),
])  # fmt: skip
def test_what_must_be_said_is_said(changes: dict[str, Any], words: str) -> None:
    record = record_of("transformer_train", "fsdp+tp", **changes)
    assert words in format_plan(record)
    assert explain(record)


def test_nothing_split_is_explained() -> None:
    record = record_of("mlp_grad")
    record = replace(record, decisions=dict.fromkeys(MESH, ()))
    assert pattern(record) == "nothing is split"
    for text in (format_plan(record), explain(record)):
        assert "othing is split: every device computes the whole step. It is small," in text
        assert "A larger batch or model would gain" in " ".join(text.split())


def test_explain_names_movements_and_lines() -> None:
    plan = plan_of("transformer_train", "fsdp+tp")
    text = plan.explain()
    for kind, axes in {(c.kind, c.axes) for c in plan.collectives}:
        assert f"{kind} over {'+'.join(axes)}: " in text
    assert re.search(r"transformer\.py:\d+ ", text)
    assert "Your tactics do not allow it" in " ".join(
        text.split()
    )  # with tactics given, others may be faster


@pytest.mark.parametrize("call, text", [
    ((human_seconds, 4.5575), "4.56 s"),
    ((human_seconds, 0.34863), "349 ms"),
    ((human_seconds, 0.99996), "1.00 s"),
    ((human_seconds, 12e-6), "12.0 us"),
    ((human_seconds, 0.0), "0 s"),
    ((change, 1.051, 1.0), "+5.1%"),
    ((change, 1.0003, 1.0), "+0.03%"),
    ((change, 12.5, 1.0), "x12.5"),
    ((times, 64.0), "x64"),
    ((times, 2.5), "x2.5"),
    ((short_path, "state.params['layers'][*]['w1']"), "state.params.layers[*].w1"),
    ((short_source, "a.py:3 make.<locals>.step"), "a.py:3 step"),
    ((human_count, 114036.0), "114k"),
    ((human_count, 1.16e6), "1.2M"),
    ((human_count, 950.0), "950"),
    ((wrapped, "a b (c d) 15 kB"), "a b (c d) 15 kB"),
    ((columns, [("a", "b c")]), "  a  b c"),
    ((spec_text, [["data"], [], ["data", "model"], []]), "P('data', None, ('data', 'model'))"),
])  # fmt: skip
def test_words(call: tuple[Any, ...], text: str) -> None:
    fn, *args = call
    assert fn(*args) == text


@pytest.mark.parametrize("cause, words", [
    (Cause("operand", "mul", "p['layers'][3]['w']"), "p.layers[*].w is needed by mul"),
    (Cause("operand", "mul", maker="sort"), "result of sort is needed by mul"),
    (Cause("operand", "mul", "batch[0]"), "batch[0] is needed by mul"),  # a tuple
    (Cause("partial", "mul", stored="f32[8/4]"), "partial sums of mul, stored as f32[8/4]"),
    (Cause("sum", "add", stored="f32[8]", terms=3), "sum of 3 partial results, stored as f32[8]"),
    (Cause("scan", "add", stored="f32[8]"), "sum over all trips of a scan, stored as f32[8]"),
    (Cause("stored", "exp", maker="exp", stored="f32[8/2]"), "result of exp, stored as f32[8/2]"),
    (Cause("returned", value="result[0]", stored="f32[8/2]"), "result[0] is returned as f32[8/2]"),
    (Cause("halo", "slice"), "slice reaches over the split of its operand"),
])  # fmt: skip
def test_causes_of_all_layers(cause: Cause, words: str) -> None:
    assert short_path(sentence(alike(cause))) == words


@pytest.mark.parametrize("cause, words", [
    (Cause("operand", "dot_general", "p['layers'][3]['w']"), "w"),
    (Cause("partial", "dot_general", stored="f32[8/4]"), "sums"),
    (Cause("sum", "add", stored="f32[8]", terms=3), "3 sums"),
    (Cause("stored", "exp", maker="exp", stored="f32[8/2]"), "result of exp"),
    (Cause("returned", value="result['w']", stored="f32[8/2]"), "returned w"),
])  # fmt: skip
def test_causes_in_a_narrow_table(cause: Cause, words: str) -> None:
    assert brief(cause) == words


def test_what_must_stay_together_does() -> None:
    assert wrapped("one two 15.4 kB", width=13) == "one two\n15.4 kB"
    assert wrapped("FSDP(a) + P(model, query)", width=20) == "FSDP(a) +\nP(model, query)"


@pytest.mark.parametrize("text, size", [
    ("f32[8,4]", 8 * 4 * 4), ("bf16[3]", 6), ("i32[]", 4), ("bool[5]", 5), ("f8_e4m3fn[7]", 7),
    ("u8[2,2]", 4), ("f64[2]", 16), ("i4[6]", 6), ("c64[2]", 16), ("key<fry>[3]", 3 * 8),
    ("f32[0,4]", 0),
])  # fmt: skip
def test_type_bytes(text: str, size: int) -> None:
    assert type_bytes(text) == size
