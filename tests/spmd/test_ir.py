"""The IR is plain data and prints one line per op."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from shardwright.analysis.analysis import analyze_program
from shardwright.cost.devices import device
from shardwright.cost.model import CostModel, model_ir
from shardwright.errors import ShardwrightError
from shardwright.mesh import Mesh
from shardwright.program.tracing import trace
from shardwright.spmd.ir import Cause
from shardwright.zoo import transformer
from tests.arrays import f32
from tests.spmd.lists import analyze, decided


def mlp(x: Any, w1: Any, w2: Any) -> Any:
    return jnp.tanh(x @ w1) @ w2


def layers(x: Any, ups: Any, downs: Any) -> Any:
    return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w[0]) @ w[1], None), x, (ups, downs))[0]


def merged(x: Any, w: Any) -> Any:
    """Rows of [B, S] are one dim, which stays two atoms: [B*S]."""
    return jnp.tanh(x.reshape(-1, 32) @ w)


def heads(x: Any, w: Any) -> Any:
    """A dim that is split behind the dot is two atoms in the dot already."""
    return jnp.swapaxes(jnp.tanh(x @ w).reshape(8, 16, 4, 8), 1, 2)


MLP = (mlp, [f32(64, 32), f32(32, 128), f32(128, 32)], {"B": "x[0]", "D": "x[1]", "F": "w1[1]"})
SCAN = (
    layers, [f32(64, 64), f32(7, 64, 4096), f32(7, 4096, 64)], {"B": "x[0]", "F": "ups[2]"},
)  # fmt: skip

MERGED = (merged, [f32(8, 16, 32), f32(32, 64)], {"B": "x[0]", "S": "x[1]", "F": "w[1]"})
HEADS = (heads, [f32(8, 16, 32), f32(32, 32)], {"B": "x[0]", "S": "x[1]", "H": "w[1]"})


def ir_of(program: Any, mesh: dict[str, int], *lists: str) -> Any:
    fn, args, labels = program
    analysis = analyze_program(trace(fn, *args), labels)
    return model_ir(CostModel(analysis, Mesh(mesh), device("tpu-v5e")), decided(analysis, *lists))


def without_seconds(text: str) -> str:
    """The IR's text without what depends on the device's numbers."""
    lines = []
    for line in text.splitlines():
        lines.append(
            line.rsplit(",", 1)[0] if line.startswith("total") else line.rsplit("  ", 1)[0]
        )
    return "\n".join([text.splitlines()[0], *lines[1:]])


GOLDEN = [
    (MLP, {"data": 4, "model": 2}, ["B D", "F"], """\
mesh data=4 model=2
  %3:f32[64/4,128/2] = dot_general %0 %1 {data: i, model: k}  all-gather data 8192 B
  %4:f32[64/4,128/2] = tanh %3 {data: i, model: j}
  %5:f32[64/4,32] = dot_general %4 %2 {data: i, model: j}  all-reduce model 2048 B
  %6:f32[64/4,32] = return %5 {data: i}
total all-gather over data: 1 x, 0.008 MB
total all-reduce over model: 1 x, 0.002 MB"""),
    (MLP, {"a": 2, "b": 2, "c": 2, "d": 2}, ["B", "B", "F", "F"], """\
mesh a=2 b=2 c=2 d=2
  %3:f32[64/4,128/4] = dot_general %0 %1 {a: i, b: i, c: k, d: k}
  %4:f32[64/4,128/4] = tanh %3 {a: i, b: i, c: j, d: j}
  %5:f32[64/4,32] = dot_general %4 %2 {a: i, b: i, c: j, d: j}  all-reduce c+d 2048 B
  %6:f32[64/4,32] = return %5 {a: i, b: i}
total all-reduce over c+d: 1 x, 0.002 MB"""),
    (MERGED, {"data": 4, "model": 2}, ["B", "F"], """\
mesh data=4 model=2
  %2:f32[128/4,32] = reshape %0 {data: i}
  %3:f32[128/4,64/2] = dot_general %2 %1 {data: i.0, model: k}
  %4:f32[128/4,64/2] = tanh %3 {data: i.0, model: j}
  %5:f32[128/4,64/2] = return %4 {data: i.0, model: j}"""),
    (MERGED, {"data": 8, "model": 2}, ["B", "S"], """\
mesh data=8 model=2
  %2:f32[128/16,32] = reshape %0 {data: i, model: j}
  %3:f32[128/16,64] = dot_general %2 %1 {data: i.0, model: i.1}
  %4:f32[128/16,64] = tanh %3 {data: i.0, model: i.1}
  %5:f32[128/16,64] = return %4 {data: i.0, model: i.1}"""),
    (HEADS, {"data": 4, "model": 2}, ["B", "H"], """\
mesh data=4 model=2
  %2:f32[8/4,16,32/2] = dot_general %0 %1 {data: i, model: l.0}
  %3:f32[8/4,16,32/2] = tanh %2 {data: i, model: k.0}
  %4:f32[8/4,16,4/2,8] = reshape %3 {data: i, model: k}
  %5:f32[8/4,4/2,16,8] = transpose %4 {data: i, model: k}
  %6:f32[8/4,4/2,16,8] = return %5 {data: i, model: j}"""),
]  # fmt: skip


@pytest.mark.parametrize("program, mesh, lists, text", GOLDEN)
def test_text(program: Any, mesh: dict[str, int], lists: list[str], text: str) -> None:
    assert without_seconds(str(ir_of(program, mesh, *lists))) == text


def test_claims_are_letters_of_the_printed_rule() -> None:
    """A train step with grouped heads, reshapes forth and back, FSDP and Megatron."""
    analysis = analyze(transformer.train(transformer.PRESETS["tiny_llama"], "train"))
    model = CostModel(analysis, Mesh({"data": 2, "model": 2}), device("tpu-v5e"))
    ir = model_ir(model, decided(analysis, "B D", "H F"))
    assert any("." in letter for row in ir.rows for _, letter in row.claims)
    for row in ir.rows:
        rule = str(analysis.program.ops[row.op].rule)
        for _, letter in row.claims:
            assert re.search(rf"[{{,]{letter.partition('.')[0]}=", rule), (letter, rule)


def test_a_body_is_indented_and_counted() -> None:
    lines = str(ir_of(SCAN, {"model": 4}, "F")).splitlines()
    dots = [line for line in lines if "dot_general" in line]
    assert len(dots) == 2 and all(line.startswith("    %") for line in dots)
    assert sum("all-reduce model 16384 B x7" in line for line in dots) == 1
    assert lines[-1].startswith("total all-reduce over model: 7 x, 0.115 MB")


def test_it_is_plain_data() -> None:
    """Rows survive JSON: nothing of JAX is left in them."""
    ir = ir_of(MLP, {"data": 4, "model": 2}, "B D", "F")
    text = json.dumps(dataclasses.asdict(ir))
    assert json.loads(text)["rows"][0]["name"] == "dot_general"


def test_collectives_name_their_cause() -> None:
    ir = ir_of(MLP, {"data": 4, "model": 2}, "B D", "F")
    gather, reduce = ir.collectives
    assert gather.cause == Cause("operand", "dot_general", "w1")
    assert str(gather.cause) == "w1 is needed by dot_general"
    assert reduce.cause == Cause("partial", "dot_general", stored="f32[64/4,32]")
    assert str(reduce.cause) == "partial sums of dot_general, stored as f32[64/4,32]"
    assert all("test_ir.py" in c.source for c in (gather, reduce))


def test_totals_add_up() -> None:
    ir = ir_of(SCAN, {"data": 2, "model": 2}, "B", "F")
    for (kind, axes), (count, size, seconds) in ir.totals().items():
        rows = [c for c in ir.collectives if (c.kind, c.axes) == (kind, axes)]
        assert count == sum(c.count for c in rows)
        assert size == sum(c.count * c.bytes for c in rows)
        assert seconds == pytest.approx(sum(c.count * c.seconds for c in rows))


@pytest.mark.parametrize(
    "mesh, text",
    [
        ((("a", 2), ("a", 2)), "mesh axis 'a' appears 2 times"),
        ({"a": 0}, "mesh axis 'a' has size 0"),
        ({"a": -2}, "mesh axis 'a' has size -2"),
        ({}, "a mesh needs at least one axis"),
    ],
)
def test_bad_meshes(mesh: Any, text: str) -> None:
    with pytest.raises(ShardwrightError, match=text):
        Mesh(mesh)


def test_unknown_device() -> None:
    with pytest.raises(ShardwrightError, match="unknown device 'tpu-v9'"):
        device("tpu-v9")
