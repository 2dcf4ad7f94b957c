"""Plan files: the same bytes for the same seed, a round trip, and what changed said exactly."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardwright as sw
from shardwright.cost.timeline import Timeline
from shardwright.record.migrate import VERSION, read_cause
from shardwright.record.plain import encode
from shardwright.spmd.ir import Cause
from tests.plans.runs import DEVICES, MESHES, PROGRAMS, plan_for

X, W = jnp.ones((16, 8)), jnp.ones((8, 32))


def matmul(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def make(**options: Any) -> sw.Plan:
    options = {
        "mesh": {"data": 4, "model": 2}, "device": DEVICES["balanced"],
        "tactics": [sw.Pin("x", 0, "data"), sw.Pin("w", 1, "model")],
    } | options  # fmt: skip
    return sw.partition(matmul, X, W, **options)


def plain(plan: sw.Plan) -> dict[str, Any]:
    """What its file holds."""
    return {"version": VERSION} | encode(plan.record)


def test_round_trip(tmp_path: Path) -> None:
    plan = make()
    plan.save(tmp_path / "plan.json")
    loaded = sw.load(tmp_path / "plan.json")
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "plan.json").read_bytes() == (tmp_path / "again.json").read_bytes()
    assert plan.diff(loaded) == ""
    assert loaded.specs() == plan.specs()
    assert loaded.cost == plan.cost
    assert loaded.collectives == plan.collectives
    assert loaded.certificate == plan.certificate
    assert loaded.baselines == plan.baselines
    assert str(loaded) == str(plan)
    placed = loaded.place(X, W)
    np.testing.assert_allclose(loaded.jit(matmul)(*placed), matmul(X, W), rtol=1e-6)


def test_a_loaded_plan_of_a_train_step_runs(tmp_path: Path) -> None:
    """Labels of groups, overrides and resolutions mean the same after a round trip."""
    plan = plan_for("attention_grad", MESHES["4x2"], device="slow links")
    plan.save(tmp_path / "plan.json")
    loaded = sw.load(tmp_path / "plan.json")
    example = PROGRAMS["attention_grad"]
    bound = loaded.bind(example.fn, *example.args)
    assert bound.specs() == plan.specs()
    assert str(bound.ir()) == str(plan.ir())
    assert bound.in_shardings() == plan.in_shardings()


def test_the_file_is_readable(tmp_path: Path) -> None:
    make().save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    record = json.loads(text)
    assert (record["version"], record["shardwright"]) == (VERSION, sw.__version__)
    assert list(record["specs"]) == ["x", "w"]  # in the order of the arguments
    assert record["specs"]["w"] == [[], ["model"]]
    assert text.endswith("}\n") and max(map(len, text.splitlines())) < 400


def test_diff_says_what_moved() -> None:
    other = make(tactics=[sw.Pin("x", 0, "model"), sw.Pin("w", 1, "data")])
    text = make().diff(other)
    assert "data" in text and "model" in text and "x" in text


# Bad files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content, says",
    [
        (None, "cannot read a plan from"),
        ("{ not json", "cannot read a plan from"),
        ("[1, 2]", "is not a plan"),
        ('{"answer": 42}', "is not a plan"),
        ("\0\xff", "cannot read a plan from"),
        ('{"version": "1"}', "is not a plan\n  try     a file written by"),
        ('{"version": 0}', "is not a plan\n  try     a file written by"),
        (
            '{"version": 99, "shardwright": "7.1"}',
            r"written by a newer Shardwright 7.1 \(plan version 99, this one reads up to 4\)",
        ),
        ('{"version": 99}', r"written by a newer Shardwright \(plan version 99"),
        ('{"version": 1}', "is damaged: it has no 'options'"),
        ('{"version": 2}', "is damaged: it has no 'options'"),
        ('{"version": 3}', "is damaged: it has no 'shardwright'"),
        ('{"version": 4}', "is damaged: it has no 'shardwright'"),
    ],
)
def test_bad_files(content: str | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(sw.ShardwrightError, match=says):
        sw.load(path)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(sw.ShardwrightError, match=r"cannot write a plan to .*: No such file"):
        make().save(tmp_path / "nowhere" / "plan.json")
    with pytest.raises(sw.ShardwrightError, match=r"cannot write a plan to .*: Is a directory"):
        make().save(tmp_path)
    with pytest.raises(sw.ShardwrightError, match=r"cannot write a plan to .*: File name too long"):
        make().save(tmp_path / ("x" * 300))
    with pytest.raises(sw.ShardwrightError, match=r"cannot write a plan to .*: embedded null byte"):
        make().save(tmp_path / "a\0b")
    make().save(tmp_path / ("y" * 255))  # as long as a name may be
    (tmp_path / ("y" * 255)).unlink()
    (tmp_path / "link.json").symlink_to(tmp_path / "plan.json")
    make().save(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert sorted(f.name for f in tmp_path.iterdir()) == ["link.json", "plan.json"]


FILES = Path(__file__).parent / "files"  # plans of matmul, as older versions wrote them


# What files of older versions do not say.
UNSAID: dict[str, Any] = {"kinds": {}, "matrix_flops": 0.0, "timeline": Timeline(), "arrays": ()}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_file_of_an_older_version(version: int, tmp_path: Path) -> None:
    """It says and does what it did, and is written as a file of this version."""
    old = sw.load(FILES / f"version_{version}.json")
    device = dataclasses.replace(  # of which it did not say all
        DEVICES["slow links"],
        hides={},
        host_bytes_per_s=0.0,
        combines={},
        transposes=False,
        reorders=False,
    )
    plan = make(
        mesh=sw.Mesh({"data": 4, "model": 2}, wrap={"data": True}), device=device,
        donate_argnums=1, labels={"batch": "x[0]"}, memory=1e9, seconds=0.1, overlap=0.0,
        tactics=[sw.Pin("x", 0, "data"), sw.Pin("x", 1, "model")],
    )  # fmt: skip
    known = {name: row for name, row in plan.baselines.items() if name in old.baselines}
    search = dataclasses.replace(plan.record.search, history=())
    plan.record = dataclasses.replace(  # the file has a few of them
        plan.record, baselines=known, search=search, **UNSAID
    )
    # A stage was renamed, and seconds of stages are written in another unit.
    here = re.compile(r"test_files.py:\d+|(refinement|local search)(?=: )|(?<=: )[\d.e-]+ [mun]s\b")
    for view in (str, sw.Plan.explain, sw.Plan.to_html):
        assert here.sub("", view(old)) == here.sub("", view(plan))
    assert plan.diff(old) == ""
    (reduced,) = old.collectives
    assert reduced.cause == Cause("partial", "dot_general", stored="f32[16/8,32]")
    np.testing.assert_allclose(old.jit(matmul)(X, jnp.copy(W)), matmul(X, W), rtol=1e-6)
    old.save(tmp_path / "plan.json")
    assert sw.load(tmp_path / "plan.json").record == old.record


def test_a_file_of_version_1_does_not_say_how_the_function_is_called() -> None:
    old = sw.load(FILES / "version_1.json")
    with pytest.raises(sw.ShardwrightError) as error:
        old.to_python()
    assert str(error.value) == (
        "the file of this plan does not say how matmul is called: it is of version 1\n"
        "  try     plan.bind(fn, *args).to_python(), or plan again and save"
    )
    newer = sw.load(FILES / "version_2.json")
    assert old.bind(matmul, X, W).to_python() == newer.to_python()


def test_overrides_of_version_1_are_refused(tmp_path: Path) -> None:
    content = json.loads((FILES / "version_1.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps(content | {"overrides": {"3": [-1, 0]}}))
    with pytest.raises(sw.ShardwrightError, match="layouts had other numbers"):
        sw.load(tmp_path / "plan.json")


@pytest.mark.parametrize("said, cause", [
    ("w1 is needed by dot_general", Cause("operand", "dot_general", "w1")),
    ("result of sort is needed by mul", Cause("operand", "mul", maker="sort")),
    ("constant is needed by add", Cause("operand", "add")),
    ("p['a b'][0] is needed by add", Cause("operand", "add", "p['a b'][0]")),
    ("slice reaches over the split of its operand", Cause("halo", "slice")),
    ("partial sums of dot_general, kept as f32[8/4]",
     Cause("partial", "dot_general", stored="f32[8/4]")),
    ("sum of 3 partial results, kept as f32[8]", Cause("sum", stored="f32[8]", terms=3)),
    ("sum over all rounds of a scan, kept as f32[8]", Cause("scan", stored="f32[8]")),
    ("result[0] is given back as f32[8/2]",
     Cause("returned", value="result[0]", stored="f32[8/2]")),
    ("result of exp, kept as f32[8/2]", Cause("stored", maker="exp", stored="f32[8/2]")),
    ("w, kept as f32[8/2]", Cause("stored", value="w", stored="f32[8/2]")),
    ("because it is there", Cause("other", value="because it is there")),
])  # fmt: skip
def test_causes_of_version_2(said: str, cause: Cause) -> None:
    """They were sentences: each is read, and said again in today's words."""
    assert Cause(**read_cause(said)) == cause
    today = said.replace("kept as", "stored as").replace("given back", "returned")
    assert str(cause) == today.replace("rounds", "trips")


def test_what_was_made_of_a_large_mesh_is_said_everywhere(tmp_path: Path) -> None:
    """4,096 v5e are no slice: the links between slices are priced, and the plan says so."""
    x, w = jax.ShapeDtypeStruct((8192, 4096), "f4"), jax.ShapeDtypeStruct((4096, 4096), "f4")
    large = {"data": 256, "model": 16}

    def gradient(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w)

    plan = sw.partition(gradient, x, w, mesh=large, tactics=[sw.DataParallel("data")], seconds=0.1)
    note = (
        "4,096 devices are 16 slices of 256 (tpu-v5e): axis `data` crosses the data-centre network"
    )
    plan.save(tmp_path / "plan.json")
    again = sw.load(tmp_path / "plan.json")
    assert again.record.notes == (note,)
    for text in (str(again), again.explain(), again.to_html()):
        assert note in " ".join(text.split())
    (reduced,) = [c for c in plan.collectives if c.kind == "all-reduce"]
    across_s = 2 * 4 * 4096 * 4096 * 15 / 16 / (16 * 3.125e9)  # 16 devices of a slice share it
    across_s += 2 * 15 * 5.5e-5  # the steps of a ring of 16 slices
    assert across_s < reduced.seconds < 1.1 * across_s
    judged = sw.check(gradient, x, w, mesh=large, in_shardings=(P("data"), P()), compare=False)
    assert f"note: {note}" in str(judged) and judged.plan.record.notes == (note,)


def test_decisions_that_mean_something_else(tmp_path: Path) -> None:
    """A file of a version that numbers layouts otherwise is refused, not run in another way."""
    record = plain(make())
    one = {"value": 1, "placement": [0, -1], "stored": "", "values": 1, "what": []}
    for overrides in ([one], [one | {"value": 99}]):
        (tmp_path / "plan.json").write_text(json.dumps(record | {"overrides": overrides}))
        with pytest.raises(sw.ShardwrightError, match="mean another sharding here"):
            sw.load(tmp_path / "plan.json").jit(matmul)(X, W)


# Another program than the plan was made for -----------------------------------------------------


def other_ops(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w) + 1


def same_count(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.sin(x @ w)


def renamed(inputs: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(inputs @ w)


CHANGES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "shape": (matmul, (jnp.ones((32, 8)), W), r"x: was f32\[16,8\], is f32\[32,8\]"),
    "dtype": (
        matmul, (X.astype(jnp.bfloat16), W.astype(jnp.bfloat16)),
        r"x: was f32\[16,8\], is bf16\[16,8\]",
    ),
    "name": (renamed, (X, W), r"x: f32\[16,8\] is gone"),
    "more ops": (other_ops, (X, W), r"the computation: was \d+ ops, is \d+"),
    "other ops": (same_count, (X, W), "ops as before, but not the same ones"),
    "no array": (matmul, ("x", W), r"x: f32\[16,8\] is gone"),
    "a number": (matmul, (X, 3.0), r"w: was f32\[8,32\], is f32\[\]"),
    "a tree that it cannot take": (matmul, ({"a": X}, W), r"x\['a'\]: f32\[16,8\] is new"),
    "tree": (lambda x, w: matmul(x["a"], w), ({"a": X}, W), r"x\['a'\]: f32\[16,8\] is new"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("loaded", [False, True])
def test_another_program(change: str, loaded: bool, tmp_path: Path) -> None:
    """The error says what changed, and the arguments are untouched."""
    fn, args, says = CHANGES[change]
    plan = make(donate_argnums=0)
    if loaded:
        plan.save(tmp_path / "plan.json")
        plan = sw.load(tmp_path / "plan.json")
    with pytest.raises(sw.ShardwrightError, match=says):
        plan.jit(fn)(*args)
    arrays = [leaf for leaf in jax.tree.leaves(args) if isinstance(leaf, jax.Array)]
    assert not any(leaf.is_deleted() for leaf in arrays)


FLAG = {"on": False}


def sums_or_product(x: jax.Array, w: jax.Array) -> jax.Array:
    a, b = x @ w, (x + 1) @ w
    return a * b if FLAG["on"] else a + b


def rows_of_windows(x: jax.Array, w: jax.Array) -> jax.Array:
    pads = ((2, 0) if FLAG["on"] else (1, 1),)
    image, kernel = x[:, None, :], w[:3, :8].reshape(8, 1, 3)
    return jax.lax.conv_general_dilated(image, kernel, (1,), pads)


def loops(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 3 if FLAG["on"] else 2, lambda _, y: jnp.sin(y), x @ w)


def precisions(x: jax.Array, w: jax.Array) -> jax.Array:
    dtype = jnp.bfloat16 if FLAG["on"] else jnp.float16
    return (x.astype(dtype) @ w.astype(dtype)).astype(jnp.float32)


def dead_code(x: jax.Array, w: jax.Array) -> jax.Array:
    if FLAG["on"]:
        jnp.sin(x)
    return x @ w


def constrained(x: jax.Array, w: jax.Array) -> jax.Array:
    spec = ("data", None) if FLAG["on"] else ("model", None)
    return jax.lax.with_sharding_constraint(x @ w, jax.sharding.PartitionSpec(*spec))


# {function that reads a flag: what is said once the flag is on}
CHANGED: dict[Callable[..., Any], str] = {
    sums_or_product: r"was     %\d+:f32\[16,32\] = add .*\n  now     %\d+:f32\[16,32\] = mul "
    r"(.*\n)+  at      test_files.py:\d+ sums_or_product",
    rows_of_windows: "was .*conv_general_dilated",
    loops: r"was     scan   \{scan x2\}|was     loops",
    precisions: r"was .*f16.*\n  now .*bf16",
    dead_code: r"was .* = dot_general|was     equations 3",
    constrained: "was     shardings",
}


@pytest.mark.parametrize("fn", CHANGED, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("how", ["call", "lower", "eval_shape", "on call"])
def test_a_function_that_changed_since(fn: Any, how: str, monkeypatch: Any) -> None:
    """A live plan is for what the function was; compiled calls stay what they were, as in JAX."""
    mesh = {"data": 4, "model": 2}
    plan = sw.partition(fn, X, W, mesh=mesh, device=DEVICES["slow links"], seconds=0.1)
    run = plan.jit()
    called = sw.jit(fn, mesh=mesh, device=DEVICES["slow links"], seconds=0.1)
    called.plan(X, W)
    plan.jit()(X, W)
    monkeypatch.setitem(FLAG, "on", True)
    act = {"call": run, "lower": run.lower, "eval_shape": run.eval_shape, "on call": called}[how]
    with pytest.raises(sw.ShardwrightError, match=f"{fn.__name__} has changed since") as error:
        act(X, W)
    assert re.search(CHANGED[fn], str(error.value)), str(error.value)


def test_bind_looks_again_at_a_function_it_knows(monkeypatch: Any) -> None:
    plan = sw.partition(sums_or_product, X, W, mesh={"data": 4}, seconds=0.1)
    assert plan.bind(sums_or_product, X, W).in_shardings() == plan.in_shardings()
    monkeypatch.setitem(FLAG, "on", True)
    with pytest.raises(sw.ShardwrightError, match="ops as before, but not the same ones"):
        plan.bind(sums_or_product, X, W)


def test_a_planned_function_refuses_other_shapes() -> None:
    run = make().jit(matmul)
    run(X, W)
    with pytest.raises(sw.ShardwrightError, match=r"x: was f32\[16,8\], is f32\[24,8\]"):
        run(jnp.ones((24, 8)), W)
    np.testing.assert_allclose(run(X, W), matmul(X, W), rtol=1e-6)  # still what it was


@pytest.mark.parametrize(
    "args, says",
    [
        ((X,), "the plan has 2 argument leaves, got 1|missing a required argument: 'w'"),
        ((X, W, W), "the plan has 2 argument leaves, got 3|too many positional arguments"),
        ((jnp.ones((15, 8)), W), r"x: was f32\[16,8\], is f32\[15,8\]"),
        (({"a": X, "b": X}, W), r"the plan has 2 argument leaves, got 3|x: f32\[16,8\] is gone"),
        ((X, None), r"the plan has 2 argument leaves, got 1|w: f32\[8,32\] is gone"),
    ],
)
@pytest.mark.parametrize("loaded", [False, True])
def test_place_refuses_other_arguments(
    args: tuple[Any, ...], says: str, loaded: bool, tmp_path: Path
) -> None:
    plan = make()
    if loaded:
        plan.save(tmp_path / "plan.json")
        plan = sw.load(tmp_path / "plan.json")
    with pytest.raises(sw.ShardwrightError, match=says):
        plan.place(*args)


def test_place_takes_arguments_by_name_and_shapes() -> None:
    """A shape gets its sharding: what a checkpoint is restored into."""
    plan = make()
    (x,), named = plan.place(X, w=jax.ShapeDtypeStruct(W.shape, W.dtype))
    assert x.sharding.spec == plan.specs()["x"]
    assert isinstance(named["w"], jax.ShapeDtypeStruct)
    assert named["w"].sharding == plan.in_shardings()[1]


BAD_CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "jit of no function": (lambda: make().jit(3), "expected a function to partition, got int: 3"),
    "diff with no plan": (lambda: make().diff("plan.json"), "not from 'plan.json'"),
    "a target that is none": (lambda: make().verify(8), "cannot read target 8"),
    "init of no argument": (lambda: make().init(lambda: X, argnum=2), "matmul has no argument 2"),
    "init of something else": (
        lambda: make().init(lambda: {"a": X}),
        r"makes something else than argument 0 of matmul \(x\)\n  planned f32\[16,8\]\n  got    ",
    ),
    "another part than is held": (
        lambda: make().local_batch(np.ones((4, 8), np.float32), argnum=0),
        r"loads another part of x than it holds\n  loaded  \[4, 8\] of \[16, 8\]",
    ),
    "another tree than is taken": (
        lambda: make().local_batch({"x": X}, argnum=0), r"not what matmul takes as x",
    ),
    "load of no path": (lambda: sw.load(3.5), "cannot read a plan from 3.5"),
    "memory": (lambda: make(memory="16GB"), "a positive number of bytes, got '16GB'"),
    "no memory": (lambda: make(memory=0), "memory must be a positive number of bytes, got 0"),
    "not a memory": (lambda: make(memory=float("nan")), "number of bytes, got nan"),
    "seconds": (lambda: make(seconds=-1), "seconds must be a number of seconds, got -1"),
    "seed": (lambda: make(seed="a"), "seed must be an integer from 0 on, got 'a'"),
    "timeout": (lambda: make(timeout="1"), "timeout must be a number of seconds, got '1'"),
    "negative seed": (lambda: make(seed=-1), "seed must be an integer from 0 on, got -1"),
    "no seed": (lambda: make(seed=None), "seed must be an integer from 0 on, got None"),
    "of jit": (
        lambda: sw.jit(matmul, mesh=8, seconds=-1), "seconds must be a number of seconds, got -1",
    ),
    "overlap": (lambda: make(overlap=3), "overlap must be a part of 1, got 3"),
    "labels": (lambda: make(labels=["a"]), "labels must map a label to a dim"),
    "labels of no text": (lambda: make(labels={"a": 3}), "labels must map a label to a dim"),
    "progress": (lambda: make(progress=5), "progress must be a function, got 5"),
    "devices": (lambda: make(mesh=1_000_000_007), "devices has size 1000000007"),
    "tactics": (lambda: make(tactics="FSDP"), "not a tactic: 'FSDP'"),
    "static and donated": (
        lambda: make(static_argnums=0, donate_argnums=(0, 1)), "argument 0 of matmul is both",
    ),
    "positions": (lambda: make(static_argnums="x"), "static_argnums are positions of arguments"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_calls(case: str) -> None:
    act, says = BAD_CALLS[case]
    with pytest.raises(sw.ShardwrightError, match=says):
        act()


NUMPY: dict[str, dict[str, Any]] = {
    "mesh": {"mesh": {"data": np.int64(4), "model": np.int32(2)}},
    "device count": {"mesh": np.int64(8), "tactics": None},
    "free sizes": {"mesh": {"data": None, "model": 2}, "devices": np.int64(8)},
    "seed": {"seed": np.int64(3)},
    "argnums": {"donate_argnums": np.int64(0)},
    "list of argnums": {"donate_argnums": np.array([0, 1])},
    "overlap": {"overlap": np.float32(0.5)},
    "memory": {"memory": np.float64(1e9), "seconds": np.float32(0.1)},
}


@pytest.mark.parametrize("case", NUMPY)
def test_numbers_of_numpy(case: str, tmp_path: Path) -> None:
    plan = make(**NUMPY[case])
    plan.save(tmp_path / "plan.json")
    assert plan.diff(sw.load(tmp_path / "plan.json").bind(matmul, X, W)) == ""


def test_a_pickle_is_like_a_file() -> None:
    """It holds the decisions: any process may bind them to its function."""
    plan = make(donate_argnums=1)
    again = pickle.loads(pickle.dumps(plan))
    assert plan.diff(again) == "" and again.specs() == plan.specs()
    with pytest.raises(sw.ShardwrightError, match="needs the program this plan was made for"):
        again.ir()
    assert again.bind(matmul, X, W).in_shardings() == plan.in_shardings()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_runs(copied: Callable[[Any], Any]) -> None:
    plan = make()
    again = copied(plan)
    again.record = dataclasses.replace(again.record, program="another")
    assert plan.record.program == "matmul"
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.record.program = "another"  # type: ignore[misc]
    np.testing.assert_allclose(again.jit()(X, W), matmul(X, W), rtol=1e-6)


def update(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return w + x.sum(), x


# {where the caller's own array is: how it gets there from the plan}
OWN: dict[str, Callable[[sw.Plan], Any]] = {
    "on one device": lambda plan: jnp.ones((8, 32)),
    "as planned": lambda plan: jax.device_put(np.ones((8, 32)), plan.in_shardings()[0]),
    "on the host": lambda plan: np.ones((8, 32), np.float32),
}


@pytest.mark.parametrize("where", OWN)
@pytest.mark.parametrize("tactic", [sw.Pin("w", 0, "data"), sw.Replicate("w")], ids=str)
@pytest.mark.parametrize("how", ["live", "loaded", "ejected"])
def test_donation_leaves_the_callers_arrays(
    where: str, tactic: Any, how: str, tmp_path: Path
) -> None:
    """place() shares no buffer with an array of the caller's that the function will consume."""
    plan = sw.partition(
        update, W, X, mesh={"data": 4}, tactics=[tactic], donate_argnums=0, seconds=0.1
    )
    mine, run = OWN[where](plan), plan.jit()
    if how == "ejected":
        module: dict[str, Any] = {}
        exec(plan.to_python(), module)
        mesh = module["make_mesh"](jax.devices()[:4])
        placed = module["place"](mesh, mine, X)
    elif how == "loaded":
        plan.save(tmp_path / "plan.json")
        placed = sw.load(tmp_path / "plan.json").place(mine, X)
    else:
        placed = plan.place(mine, X)
    run(*placed)
    assert placed[0].is_deleted()
    np.testing.assert_array_equal(mine, np.ones((8, 32)))


@pytest.mark.parametrize("where", ["on one device", "replicated"])
@pytest.mark.parametrize("ejected", [False, True])
def test_a_later_donation_leaves_the_callers_arrays(where: str, ejected: bool) -> None:
    """By a jit that the plan knows nothing of, of an argument that has a buffer in its place."""
    plan = sw.partition(
        update, W, X, mesh={"data": 4}, tactics=[sw.Replicate("w"), sw.Pin("x", 0, "data")],
        seconds=0.1,
    )  # fmt: skip
    whole = jax.make_mesh((4,), ("z",), devices=jax.devices()[:4])
    everywhere = jax.sharding.NamedSharding(whole, P())
    there = everywhere if where == "replicated" else jax.devices()[0]
    mine = jax.device_put(np.ones((8, 32)), there)
    if ejected:
        module: dict[str, Any] = {}
        exec(plan.to_python(), module)
        placed = module["place"](module["make_mesh"](jax.devices()[:4]), mine, X)[0]
    else:
        placed = plan.place(mine, X)[0]
    jax.jit(lambda w: w * 2, donate_argnums=0, out_shardings=placed.sharding)(placed)
    assert placed.is_deleted() and not mine.is_deleted()


def test_place_shares_what_is_not_donated() -> None:
    plan = make()
    placed = plan.place(X, W)
    assert all(a is b for a, b in zip(plan.place(*placed), placed, strict=True))


def test_init_counts_static_arguments() -> None:
    def scale(n: int, x: jax.Array) -> jax.Array:
        return x * n

    plan = sw.partition(
        scale, 3, X, static_argnums=0, mesh={"data": 8}, tactics=[sw.Pin("x", 0, "data")]
    )
    assert plan.init(lambda: X, argnum=1).sharding.spec == plan.specs()["x"]


def test_a_loaded_plan_says_what_it_lacks(tmp_path: Path) -> None:
    make().save(tmp_path / "plan.json")
    loaded = sw.load(tmp_path / "plan.json")
    for use in (loaded.ir, loaded.in_shardings, loaded.out_shardings, loaded.verify, loaded.jit):
        with pytest.raises(sw.ShardwrightError, match="needs the program this plan was made for"):
            use()
