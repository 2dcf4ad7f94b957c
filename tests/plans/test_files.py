"""Plan files: the same bytes for the same seed, a round trip, and what changed said exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardwright as sw
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
    assert (record["version"], record["shardwright"]) == (2, sw.__version__)
    assert list(record["specs"]) == ["x", "w"]  # in the order of the arguments
    assert record["specs"]["w"] == [[], ["model"]]
    assert text.endswith("}\n") and max(map(len, text.splitlines())) < 400


def test_diff_says_what_moved() -> None:
    other = make(tactics=[sw.Pin("x", 0, "model"), sw.Pin("w", 1, "data")])
    text = make().diff(other)
    assert "data" in text and "model" in text and "x" in text


CHILD = """
import sys
from tests.plans.runs import plan_for
plan_for(sys.argv[1], {"data": 4, "model": 2}, seconds=0.3).save(sys.argv[2])
"""


@pytest.mark.parametrize("program", ["moe_forward"])
def test_same_seed_same_bytes(program: str, tmp_path: Path) -> None:
    """Two processes whose sets and dicts are hashed differently write the same file."""
    files = []
    for hash_seed in ("1", "2"):
        files.append(tmp_path / f"{hash_seed}.json")
        env = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run(
            [sys.executable, "-c", CHILD, program, str(files[-1])], env=env, check=True, timeout=240
        )
    assert files[0].read_bytes() == files[1].read_bytes()


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
            r"written by a newer Shardwright 7.1 \(plan version 99, this one reads up to 2\)",
        ),
        ('{"version": 99}', r"written by a newer Shardwright \(plan version 99"),
        ('{"version": 1}', "is not a plan: it has no 'program'"),
    ],
)
def test_bad_files(content: str | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(sw.ShardwrightError, match=says):
        sw.load(path)


@pytest.mark.parametrize(
    "key, value",
    [("specs", 3), ("cost", [3]), ("mesh", {"axes": 4}), ("collectives", [{}]), ("device", None)],
)
def test_damaged_files(key: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(make().record | {key: value}))
    with pytest.raises(sw.ShardwrightError, match=r"plan.json is damaged: "):
        sw.load(path)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(sw.ShardwrightError, match=r"cannot write a plan to .*: No such file"):
        make().save(tmp_path / "nowhere" / "plan.json")
    with pytest.raises(sw.ShardwrightError, match=r"cannot write a plan to .*: Is a directory"):
        make().save(tmp_path)
    (tmp_path / "link.json").symlink_to(tmp_path / "plan.json")
    make().save(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert sorted(f.name for f in tmp_path.iterdir()) == ["link.json", "plan.json"]


def test_a_file_of_version_1(tmp_path: Path) -> None:
    """It has no `call`: it runs as ever, and to_python() says what it lacks."""
    plan = make()
    new = ("call", "notes", "numbers", "shardwright")
    record = {k: v for k, v in plan.record.items() if k not in new} | {"version": 1}
    (tmp_path / "plan.json").write_text(json.dumps(record))
    old = sw.load(tmp_path / "plan.json")
    assert str(old) == str(plan) and plan.diff(old) == ""
    np.testing.assert_allclose(old.jit(matmul)(X, W), matmul(X, W), rtol=1e-6)
    with pytest.raises(sw.ShardwrightError) as error:
        old.to_python()
    assert str(error.value) == (
        "the file of this plan does not say how matmul is called: it is of version 1\n"
        "  try     plan.bind(fn, *args).to_python(), or plan again and save"
    )
    assert old.bind(matmul, X, W).to_python() == plan.to_python()
    (tmp_path / "plan.json").write_text(json.dumps(record | {"overrides": {"3": [-1, 0]}}))
    with pytest.raises(sw.ShardwrightError, match="layouts had other numbers"):
        sw.load(tmp_path / "plan.json")


def test_decisions_that_mean_something_else(tmp_path: Path) -> None:
    """A file of a version that numbers layouts otherwise is refused, not run in another way."""
    record = make().record
    one = {"value": 1, "placement": [0, -1], "stored": "", "values": 1, "what": []}
    for overrides in ([one], [one | {"value": 99}], {"1": [0, -1]}):
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
    "load of no path": (lambda: sw.load(3.5), "cannot read a plan from 3.5"),
    "memory": (lambda: make(memory="16GB"), "a positive number of bytes, got '16GB'"),
    "no memory": (lambda: make(memory=0), "memory must be a positive number of bytes, got 0"),
    "not a memory": (lambda: make(memory=float("nan")), "number of bytes, got nan"),
    "seconds": (lambda: make(seconds=-1), "seconds must be a number of seconds, got -1"),
    "seed": (lambda: make(seed="a"), "seed must be an integer, got 'a'"),
    "negative seed": (lambda: make(seed=-1), "seed must be an integer from 0 on, got -1"),
    "overlap": (lambda: make(overlap=3), "overlap must be a part of 1, got 3"),
    "labels": (lambda: make(labels=["a"]), "labels must map a label to a dim"),
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
