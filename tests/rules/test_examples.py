"""Every rule prints as expected, and every primitive of JAX is accounted for."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter

import pytest

from shardwright.rules import OPAQUE, RULES, STRUCTURAL, OpShape, Rule, TensorShape, lookup
from shardwright.rules.examples import EXAMPLES, Example
from shardwright.rules.rule import PASS, PERMUTE, REDUCTIONS, REPLICATE
from tests.rules.isolated import isolate

# Modules that register primitives when they are imported.
REGISTERING = (
    "jax.experimental.pallas", "jax.experimental.pallas.tpu", "jax.experimental.pallas.triton",
    "jax.experimental.pallas.mosaic_gpu", "jax.experimental.sparse", "jax.experimental.rnn",
    "jax.experimental.buffer_callback", "jax.experimental.checkify", "jax.experimental.fused",
    "jax.experimental.custom_partitioning", "jax.experimental.multihost_utils",
    "jax.experimental.key_reuse", "jax.experimental.colocated_python", "jax.nn", "jax.scipy",
    "jax.export", "jax.ffi", "jax.experimental.xla_metadata", "jax.experimental.hijax",
    "jax.experimental.scheduling_groups",
)  # fmt: skip

# Rules of primitives that no public function puts into a jaxpr by itself.
NO_EXAMPLE = {
    "from_edtype": "needs an extended dtype of one's own",
    "to_edtype": "needs an extended dtype of one's own",
    "reshard": "needs a mesh with explicit axes",
    "select_and_scatter": "lax offers no way to it; select_and_scatter_add shares the code",
    "stage": "folded while tracing",
    "empty2": "made inside while loops by JAX itself",
    "pallas_call": "read from its grid: tests/lowering/test_pallas.py",
    **dict.fromkeys(
        ("dot_product_attention_fwd_wrapper", "dot_product_attention_bwd_wrapper",
         "scaled_matmul_wrapper"),
        "of cuDNN, for GPUs only: tests/lowering/test_library_kernels.py",
    ),
    **dict.fromkeys(
        ("all_gather", "all_gather_invariant", "all_to_all", "axis_index", "ppermute",
         "pbroadcast", "psum_invariant", "ragged_all_to_all", "reduce_scatter"),
        "only in a shard_map, where tests/plans/test_shard_map.py compiles it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.title)
def test_rule_of_example(example: Example) -> None:
    op = isolate(example).op
    rule = lookup(op)
    assert str(rule) == example.rule
    assert not rule.opaque
    check(rule, op)


def check(rule: Rule, op: OpShape) -> None:
    """The invariants of rule.py."""
    assert len(rule.operands) == len(op.operands)
    assert len(rule.results) == len(op.results)
    for slot, tensor in zip(rule.slots, (*op.operands, *op.results), strict=True):
        assert len(slot) == len(tensor.shape)
        counts = Counter(f for dim in slot for f in dim)
        assert all(count == 1 for count in counts.values())
        for dim, size in zip(slot, tensor.shape, strict=True):
            if not any(rule.kinds[f] == PERMUTE for f in dim):
                assert math.prod(rule.sizes[f] for f in dim) == size
    assert all(size > 1 for size in rule.sizes)
    assert set(rule.kinds) <= {PASS, PERMUTE, REPLICATE, *REDUCTIONS}
    assert all(0 <= n < len(op.operands) for n in rule.linear)
    kept = {f for slot in rule.results for dim in slot for f in dim}
    for f, kind in enumerate(rule.kinds):
        if kind in REDUCTIONS:
            assert f not in kept
        elif kind == PASS and f not in kept:
            assert op.name == "tie"  # a lost factor that is not reduced: only waiting


@pytest.mark.parametrize("dots, flops", [
    ("dot_general f32[4,8] f32[8,6]", 2 * 4 * 8 * 6),
    ("ragged_dot_general f32[8,4] f32[3,4,6] grouped rows", 2 * 8 * 4 * 6),
    ("conv_general_dilated f32[4,8,8,6] f32[3,3,6,10] 3x3 same", 2 * 4 * 8 * 8 * 10 * 6 * 9),
    ("conv_general_dilated f32[4,8,8,6] f32[3,3,6,10] 3x3 stride 2", 2 * 4 * 4 * 4 * 10 * 6 * 9),
    ("conv_general_dilated f32[4,8,8,6] f32[3,3,3,8] two groups", 2 * 4 * 8 * 8 * 8 * 3 * 9),
    ("conv_general_dilated f32[4,8,8,6] f32[3,3,6,10] gradient of the kernel",
     2 * 3 * 3 * 6 * 10 * 4 * 8 * 8),
    ("scatter-add f32[16,6] i32[4,2] f32[4,2,6]", 4 * 2 * 6),
    ("reduce_window_sum f32[4,16] overlapping", 4 * 16 * 3),
])  # fmt: skip
def test_work_times_points_is_the_number_of_operations(dots: str, flops: int) -> None:
    (example,) = (e for e in EXAMPLES if e.title == dots)
    rule = lookup(isolate(example).op)
    assert math.isclose(rule.work * math.prod(rule.sizes), flops)


def test_every_primitive_that_jax_can_lower_is_accounted_for() -> None:
    code = f"""
import importlib
from shardwright._jax import lowerings
for module in {REGISTERING}:
    try:
        importlib.import_module(module)
    except ImportError:  # some need an accelerator's wheel
        continue
print(*lowerings.primitives())
"""  # in a process of its own: other libraries register primitives too
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    known = {*RULES, *STRUCTURAL, *OPAQUE}
    assert sorted(set(done.stdout.split()) - known) == []


def test_no_primitive_is_accounted_for_twice() -> None:
    counts = Counter([*RULES, *STRUCTURAL, *OPAQUE])
    assert [name for name, count in counts.items() if count > 1] == []


def test_every_rule_has_an_example() -> None:
    assert sorted(set(RULES) - {e.primitive for e in EXAMPLES}) == sorted(NO_EXAMPLE)


def test_titles_are_unique() -> None:
    assert len({e.title for e in EXAMPLES}) == len(EXAMPLES)


def test_unknown_primitives_and_odd_parameters_are_opaque() -> None:
    matrix = TensorShape((4, 1), "float32")
    unknown = lookup(OpShape("never_heard_of_it", (matrix,), (matrix,), {}))
    assert str(unknown) == "([i,1])->([j,1]) {i=4,j=4} need_replication={i,j} opaque"
    odd = lookup(OpShape("transpose", (matrix,), (matrix,), {}))  # parameters missing
    assert odd.opaque
