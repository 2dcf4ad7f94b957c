"""Pallas kernels: rules read from grids, and kernels that run on shards."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import shardwright as sw
from shardwright.rules.registry import USER_RULES
from shardwright.rules.rule import REPLICATE, factor_names
from tests.plans.runs import DEVICES

MESH = {"data": 4, "model": 2}
M, K, N, BLOCK = 128, 32, 64, 16
X, W = (jax.random.normal(jax.random.key(i), s) for i, s in enumerate([(M, K), (K, N)]))


def call(kernel: Any, out: tuple[int, ...], grid: Any, into: Any, result: Any, **more: Any) -> Any:
    """A kernel in interpret mode."""
    return pl.pallas_call(
        kernel, out_shape=jax.ShapeDtypeStruct(out, jnp.float32), grid=grid, in_specs=into,
        out_specs=result, interpret=True, **more,
    )  # fmt: skip


ROWS = pl.BlockSpec((BLOCK, K), lambda i, j: (i, 0))
COLUMNS = pl.BlockSpec((K, BLOCK), lambda i, j: (0, j))
TILES = pl.BlockSpec((BLOCK, BLOCK), lambda i, j: (i, j))
GRID = (M // BLOCK, N // BLOCK)


def multiply(x: Any, w: Any, o: Any) -> None:
    o[...] = x[...] @ w[...]


def masked(x: Any, w: Any, o: Any) -> None:
    """Asks where it is along the rows, and not along the columns."""
    o[...] = x[...] @ w[...] * pl.program_id(0)


def masked_inside(x: Any, w: Any, o: Any) -> None:
    """Asks where it is in a branch, where no device can be told."""
    o[...] = x[...] @ w[...]

    @pl.when(jnp.sum(x[...]) > 0)
    def _() -> None:
        o[...] = o[...] * pl.program_id(0)


def accumulate(x: Any, w: Any, o: Any) -> None:
    """Adds over the last grid dim, which the result does not have."""

    @pl.when(pl.program_id(2) == 0)
    def _start() -> None:
        o[...] = jnp.zeros_like(o)

    o[...] += x[...] @ w[...]


def through_scratch(x: Any, w: Any, o: Any, scratch: Any) -> None:
    scratch[...] = x[...] @ w[...]
    o[...] = scratch[...]


def matmul(x: jax.Array, w: jax.Array) -> jax.Array:
    return call(multiply, (M, N), GRID, [ROWS, COLUMNS], TILES)(x, w)


def matmul_masked(x: jax.Array, w: jax.Array) -> jax.Array:
    return call(masked, (M, N), GRID, [ROWS, COLUMNS], TILES)(x, w)


def matmul_in_steps(x: jax.Array, w: jax.Array) -> jax.Array:
    into = [
        pl.BlockSpec((BLOCK, BLOCK), lambda i, j, k: (i, k)),
        pl.BlockSpec((BLOCK, BLOCK), lambda i, j, k: (k, j)),
    ]
    result = pl.BlockSpec((BLOCK, BLOCK), lambda i, j, k: (i, j))
    return call(accumulate, (M, N), (*GRID, K // BLOCK), into, result)(x, w)


def matmul_with_scratch(x: jax.Array, w: jax.Array, semantics: Any = None) -> jax.Array:
    params = None if semantics is None else pltpu.CompilerParams(dimension_semantics=semantics)
    scratch = [pltpu.VMEM((BLOCK, BLOCK), jnp.float32)]
    return call(
        through_scratch, (M, N), GRID, [ROWS, COLUMNS], TILES, scratch_shapes=scratch,
        compiler_params=params,
    )(x, w)  # fmt: skip


def batched(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.vmap(matmul, (0, None))(jnp.stack([x] * 8), w)


def reversed_rows(x: jax.Array, w: jax.Array) -> jax.Array:
    into = pl.BlockSpec((BLOCK, K), lambda i, j: (M // BLOCK - 1 - i, 0))
    return call(multiply, (M, N), GRID, [into, COLUMNS], TILES)(x, w)


def forwards(i: Any) -> tuple[Any, int]:
    return i, 0


def from_the_last(i: Any) -> tuple[Any, int]:
    return M // BLOCK - 1 - i, 0


def backwards(x: jax.Array, w: jax.Array) -> jax.Array:
    """Steps along rows only, which it writes from the last to the first."""
    rows, result = pl.BlockSpec((BLOCK, K), forwards), pl.BlockSpec((BLOCK, N), from_the_last)
    whole = pl.BlockSpec((K, N), lambda i: (0, 0))
    return call(multiply, (M, N), GRID[:1], [rows, whole], result)(x, w)


def read_backwards(x: jax.Array, w: jax.Array) -> jax.Array:
    """Steps along rows only, which it reads from the last to the first."""
    rows, result = pl.BlockSpec((BLOCK, K), from_the_last), pl.BlockSpec((BLOCK, N), forwards)
    whole = pl.BlockSpec((K, N), lambda i: (0, 0))
    return call(multiply, (M, N), GRID[:1], [rows, whole], result)(x, w)


def looked_up(x: jax.Array, w: jax.Array) -> jax.Array:
    """Which rows a step reads is data, a table that is there before the first step."""

    def kernel(table: Any, x: Any, w: Any, o: Any) -> None:
        o[...] = x[...] @ w[...] + table[pl.program_id(0)] + pl.num_programs(0)

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1, grid=GRID,
        in_specs=[
            pl.BlockSpec((BLOCK, K), lambda i, j, table: (table[i], 0)),
            pl.BlockSpec((K, BLOCK), lambda i, j, table: (0, j)),
        ],
        out_specs=pl.BlockSpec((BLOCK, BLOCK), lambda i, j, table: (i, j)),
    )  # fmt: skip
    out = jax.ShapeDtypeStruct((M, N), jnp.float32)
    table = jnp.array([3, 3, 0, 7, 6, 1, 2, 5], jnp.int32)
    return pl.pallas_call(kernel, out_shape=out, grid_spec=grid, interpret=True)(table, x, w)


def masked_in_batch(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.vmap(matmul_masked, (0, None))(jnp.stack([x, 2 * x]), w)


def added_onto(x: jax.Array, w: jax.Array) -> jax.Array:
    """Writes its result where its first operand was, and asks where it is."""

    def kernel(y: Any, x: Any, w: Any, o: Any) -> None:
        o[...] = y[...] + x[...] @ w[...] * (1 + pl.program_id(1))

    onto = call(kernel, (M, N), GRID, [TILES, ROWS, COLUMNS], TILES, input_output_aliases={0: 0})
    return onto(jnp.sin(x[:, :1] * w[:1]), x, w)


GRID_DIMS = "i=8,j=16,k=32,l=32,m=4,n=16,o=16,p=16"
# function: its rule, or None for an opaque one
RULES = {
    matmul: f"([ij,k],[l,mn])->([io,mp]) {{{GRID_DIMS}}} need_replication={{j,k,l,n,o,p}}",
    matmul_masked: f"([ij,k],[l,mn])->([io,mp]) {{{GRID_DIMS}}} need_replication={{j,k,l,n,o,p}}",
    matmul_in_steps: "([ij,kl],[km,no])->([ip,nq])"
    " {i=8,j=16,k=2,l=16,m=16,n=4,o=16,p=16,q=16} need_replication={j,k,l,m,o,p,q}",
    reversed_rows: "([i,j],[k,lm])->([no,lp])"  # every device has all rows of the first operand
    " {i=128,j=32,k=32,l=4,m=16,n=8,o=16,p=16} need_replication={i,j,k,m,o,p}",
    read_backwards: "([i,j],[k,l])->([mn,o])"
    " {i=128,j=32,k=32,l=64,m=8,n=16,o=64} need_replication={i,j,k,l,n,o}",
    backwards: None,
}


@pytest.mark.parametrize("fn", RULES, ids=lambda fn: fn.__name__)
def test_the_rule_is_read_from_the_grid(fn: Any) -> None:
    (op,) = [op for op in sw.trace(fn, X, W).ops if op.name == "pallas_call"]
    assert op.rule.opaque == (RULES[fn] is None)
    if not op.rule.opaque:
        assert str(op.rule) == RULES[fn]
        flops = op.rule.work
        for size in op.rule.sizes:
            flops *= size
        assert flops == 2 * M * K * N


@pytest.mark.parametrize(
    ("semantics", "splits"), [(None, ""), (("parallel", "arbitrary"), "i")], ids=str
)
def test_steps_that_share_scratch_memory_are_split_where_declared_parallel(
    semantics: Any, splits: str
) -> None:
    traced = sw.trace(lambda x, w: matmul_with_scratch(x, w, semantics), X, W)
    (rule,) = [op.rule for op in traced.ops if op.name == "pallas_call"]
    names, kinds = factor_names(rule), rule.kinds
    assert [names[f] for f, kind in enumerate(kinds) if kind != REPLICATE] == list(splits)


# Each device has all rows of the first operand of these, wherever it is in the rows of the result.
WHOLE_ROWS = (reversed_rows, read_backwards, looked_up)


@pytest.mark.parametrize(
    "fn",
    [
        matmul, matmul_masked, matmul_in_steps, reversed_rows, read_backwards, looked_up,
        masked_in_batch, added_onto, batched,
    ],
)  # fmt: skip
def test_kernels_run_on_shards(fn: Any) -> None:
    """Nothing moves where rows and columns are split as the arguments are.

    A kernel that asks where it is, or computes which block it reads, is told its place.
    """
    pins = [sw.Pin("w", 1, "model"), *[sw.Pin("x", 0, "data")] * (fn not in WHOLE_ROWS)]
    plan = sw.partition(fn, X, W, mesh=MESH, device=DEVICES["balanced"], tactics=pins)
    assert plan.record.opaque == {}
    (row,) = [row for row in plan.ir().rows if row.name == "pallas_call"]
    assert {axis for axis, _ in row.claims} >= ({"data"} if fn is read_backwards else {"model"})
    assert len(row.claims) == 2
    found = plan.verify(run=True)
    assert found.ok, found
    assert found.numbers_agree
    if fn not in (batched, masked_in_batch, read_backwards):
        assert not plan.collectives


def summed_blocks(x: jax.Array, blocks: jax.Array, count: jax.Array) -> jax.Array:
    """Of each row of x the sum of the first `count` of these blocks: the grid depends on data."""

    def kernel(blocks: Any, x: Any, o: Any) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _start() -> None:
            o[...] = jnp.zeros_like(o)

        o[...] += x[...]

    return pl.pallas_call(
        kernel, out_shape=jax.ShapeDtypeStruct((len(x), BLOCK), x.dtype), interpret=True,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1, grid=(len(x), count),
            in_specs=[pl.BlockSpec((1, BLOCK), lambda i, j, blocks: (i, blocks[j]))],
            out_specs=pl.BlockSpec((1, BLOCK), lambda i, j, blocks: (i, 0)),
        ),
    )(blocks, x)  # fmt: skip


def test_a_grid_that_depends_on_data_is_split_along_its_other_dims() -> None:
    """As splash attention of tokamax has it: a step for each block that the mask leaves."""
    x = jax.random.normal(jax.random.key(0), (16, 8 * BLOCK))
    blocks = jnp.array([3, 1, 0, 6], jnp.int32)
    plan = sw.partition(
        summed_blocks, x, blocks, jnp.int32(3), mesh=MESH, tactics=[sw.Pin("x", 0, "data")]
    )
    assert plan.record.opaque == {}
    (row,) = [row for row in plan.ir().rows if row.name == "pallas_call"]
    assert dict(row.claims)["data"] == "j"
    run = plan.jit(summed_blocks)
    for count in (1, 3, 4):
        want = x.reshape(16, 8, BLOCK)[:, blocks[:count]].sum(1)
        np.testing.assert_allclose(run(x, blocks, jnp.int32(count)), want, rtol=1e-5, atol=1e-6)


def test_an_opaque_kernel_is_counted_and_runs() -> None:
    """The plan says why it is whole, where it stands and which line would open it."""
    plan = sw.partition(backwards, X, W, mesh=MESH)
    assert plan.record.opaque == {"pallas_call": 1}
    (note,) = [note for note in plan.record.notes if "multiply" in note]
    assert "test_pallas.py" in note
    assert "no grid dim may be split: 0 decides which block a step writes" in note
    assert 'sw.rule("multiply", "a b, c d -> e f")' in note
    assert plan.verify(run=True).numbers_agree


WHY_WHOLE = {
    "its grid depends on data": lambda x, w, n: call(multiply, (M, N), (n,), [ALL, ALL_W], ALL_O)(
        x, w
    ),
    "0 is not in every result, 1 is not in every result": lambda x, w, n: call(
        accumulated, (K, N), GRID, [ROWS, COLUMNS], pl.BlockSpec((K, N), lambda i, j: (0, 0))
    )(x, w),
    "0 is where the kernel asks for its program_id in a branch": lambda x, w, n: call(
        masked_inside, (M, N), GRID[:1], [pl.BlockSpec((BLOCK, K), lambda i: (i, 0)), ALL_W],
        pl.BlockSpec((BLOCK, N), lambda i: (i, 0)),
    )(x, w),
    "0 is not declared parallel, and steps share": lambda x, w, n: call(
        through_scratch, (M, N), GRID[:1], [pl.BlockSpec((BLOCK, K), lambda i: (i, 0)), ALL_W],
        pl.BlockSpec((BLOCK, N), lambda i: (i, 0)),
        scratch_shapes=[pltpu.VMEM((BLOCK, N), jnp.float32)],
    )(x, w),
}  # fmt: skip
ALL, ALL_W, ALL_O = (
    pl.BlockSpec(shape, lambda i: (0, 0)) for shape in ((M, K), (K, N), (M, N))
)  # fmt: skip


def accumulated(x: Any, w: Any, o: Any) -> None:
    o[...] = jnp.zeros_like(o)


@pytest.mark.parametrize("why", WHY_WHOLE)
def test_why_a_kernel_is_whole(why: str) -> None:
    traced = sw.trace(WHY_WHOLE[why], X, W, jnp.int32(3))
    (rule,) = [op.rule for op in traced.ops if op.name == "pallas_call"]
    assert rule.opaque and why in rule.why


@pytest.fixture
def users_rule() -> Any:
    before = dict(USER_RULES)
    yield lambda text, **more: sw.rule("multiply", text, unit="matrix", **more)
    USER_RULES.clear()
    USER_RULES.update(before)


def test_a_kernel_with_a_rule_of_the_users_runs_on_shards(users_rule: Any) -> None:
    """Its author knows that columns go together, whatever is done to the rows."""
    users_rule("m k, k n -> m n", replicate="m k")
    plan = sw.partition(reversed_rows, X, W, mesh={"data": 4}, tactics=[sw.Pin("w", 1, "data")])
    assert plan.verify(run=True).numbers_agree and not plan.collectives


def test_a_block_that_no_shard_has(users_rule: Any) -> None:
    users_rule("m k, k n -> m n", replicate="m k")
    plan = sw.partition(backwards, X, W, mesh=MESH, tactics=[sw.Pin("w", 1, "model")])
    with pytest.raises(sw.ShardwrightError) as error:
        plan.jit(backwards)(X, W)
    assert "splits dim 1 of operand 1: no block of 64 fits in its shards of" in str(error.value)
    assert "test_pallas.py" in str(error.value) and "replicate=" in str(error.value)
