"""What never changes colors: names, order, wrappers, transposing twice. Random programs, seeded."""

from __future__ import annotations

import random
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwright import zoo
from shardwright.analysis import Analysis
from shardwright.program.types import LITERAL
from tests.program.evaluate import assert_same_results
from tests.program.invariants import check
from tests.tiny import analysis_of

from .partitions import analyze, dim_atoms, partition
from .random_programs import RandomProgram, Wrap, random_program

SEEDS = st.integers(0, 10**6)
FEW = settings(
    max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def of(program: RandomProgram, **how: Any) -> Analysis:
    names = how.get("names")
    return analyze(program.function(**how), program.arguments(names))


@pytest.mark.slow
@settings(FEW, max_examples=8)
@given(SEEDS)
def test_random_programs_compute_what_jax_computes(seed: int) -> None:
    """The Program stage on the same programs: run op by op, compared with JAX."""
    program = random_program(seed)
    rng = np.random.default_rng(seed)
    given_ = {
        k: rng.uniform(-1, 1, s.shape).astype("float32") for k, s in program.arguments().items()
    }
    assert_same_results(program.function(), given_)


@FEW
@given(SEEDS)
def test_renaming_arguments(seed: int) -> None:
    program = random_program(seed)
    names = [f"a{i}_renamed" for i in range(len(program.shapes))]  # in the same sorted order
    assert partition(of(program)) == partition(of(program, names=names))


@FEW
@given(SEEDS)
def test_reordering_independent_ops(seed: int) -> None:
    program = random_program(seed)
    order = program.shuffled(random.Random(seed + 1))
    assert partition(of(program)) == partition(of(program, order=order))


def custom(f: Any) -> Any:
    """f with a derivative rule of its own."""
    g = jax.custom_vjp(lambda *xs: f(*xs))
    g.defvjp(lambda *xs: (f(*xs), xs), lambda xs, c: xs)
    return g


def some(wrapper: Wrap, seed: int) -> Any:
    chosen = random.Random(seed)
    steps = {n: chosen.random() < 0.5 for n in range(1000)}
    return lambda n: wrapper if steps[n] else lambda f: f


@FEW
@given(SEEDS, st.sampled_from(["jit", "remat", "custom_vjp", "all"]))
def test_wrappers(seed: int, kind: str) -> None:
    wrapper: Wrap = {
        "jit": lambda f: jax.jit(lambda *xs: f(*xs)),
        "remat": lambda f: jax.checkpoint(lambda *xs: f(*xs)),
        "custom_vjp": custom,
        "all": lambda f: jax.jit(jax.checkpoint(custom(f))),
    }[kind]
    program = random_program(seed)
    wrapped = of(program, wrap=some(wrapper, seed))
    check(wrapped.program)
    assert partition(of(program)) == partition(wrapped)


@FEW
@given(SEEDS)
def test_transposing_twice(seed: int) -> None:
    program = random_program(seed)
    rng = random.Random(seed)
    twisted = {n: rng.random() < 0.4 for n in range(len(program.steps))}

    def twist(n: int, x: Any) -> Any:
        return jax.numpy.transpose(jax.numpy.transpose(x)) if twisted[n] else x

    assert partition(of(program)) == partition(of(program, twist=twist))


@FEW
@given(SEEDS, st.integers(2, 4))
def test_copies_multiply_colors_but_not_groups(seed: int, k: int) -> None:
    program = random_program(seed)
    block = program.function()

    def copies(xs: list[Any]) -> list[Any]:
        return [block(x) for x in xs]

    one, many = analyze(copies, [program.arguments()]), analyze(copies, [program.arguments()] * k)
    assert len(many.colors) == k * len(one.colors)
    assert len(many.all_groups) == len(one.all_groups)
    assert len(many.conflict_sets) == k * len(one.conflict_sets)
    assert len(set(many.set_group)) == len(set(one.set_group))
    assert [g.set_aside for g in many.all_groups] == [g.set_aside for g in one.all_groups]


@FEW
@given(SEEDS)
def test_gradients_add_no_color_to_the_arguments(seed: int) -> None:
    """A backward pass joins nothing that the forward pass keeps apart, reshapes left out."""
    program = random_program(seed, reshapes=False)
    block = program.function()

    def loss(x: Any) -> Any:
        return sum(jax.numpy.sum(jax.numpy.sin(y)) for y in block(x))

    forward, backward = (
        [row for row in partition(analyze(f, program.arguments())) if row[0] == "argument"]
        for f in (loss, jax.grad(loss))
    )
    assert forward == backward


def assert_edges_hold(analysis: Analysis) -> None:
    """Every dim has the atoms of the factors it meets, wherever their sizes allow."""
    program, colors = analysis.program, analysis.color_table
    of_factor: dict[tuple[int, int], list[int]] = {}
    for owner, factor, atom in zip(colors.ops.owner, colors.ops.dim, colors.ops.atom, strict=True):
        of_factor.setdefault((int(owner), int(factor)), []).append(int(atom))
    for op in program.ops:
        for v, dims in zip((*op.operands, *op.results), op.rule.slots, strict=True):
            if v == LITERAL:
                continue
            for atoms, size, dim in zip(
                dim_atoms(analysis, v), program.values[v].shape, dims, strict=True
            ):
                theirs = [a for f in dim for a in of_factor.get((op.index, f), [])]
                sizes = [op.rule.sizes[f] for f in dim]
                if dim and int(np.prod(sizes)) == size:
                    mine = [a for a, _ in atoms]
                    shared = [a for a, b in zip(mine, theirs, strict=False) if a == b]
                    whole = mine == theirs
                    assert whole or len(dim) > 1, f"{op.name} %{v}: {mine} {theirs}"
                    assert whole or shared == mine[: len(shared)], "only a common prefix"


@FEW
@given(SEEDS)
def test_the_ends_of_every_edge_share_a_color(seed: int) -> None:
    assert_edges_hold(of(random_program(seed)))


@pytest.mark.parametrize("name", zoo.programs("tiny"))
def test_the_ends_of_every_edge_share_a_color_in_the_zoo(name: str) -> None:
    analysis = analysis_of(name)
    assert_edges_hold(analysis)
    program = analysis.program
    for position, source in program.aliases.items():
        assert dim_atoms(analysis, program.outputs[position]) == dim_atoms(analysis, source)
