"""Random numbers: counter-based, so every shard draws its own stretch of the same stream."""

from __future__ import annotations

from shardwright.rules.elementwise import elementwise
from shardwright.rules.registry import register
from shardwright.rules.rule import NOTHING, VECTOR, Expanded, OpShape, Rule, einsum

# XLA:CPU: a counter, three words and two tables of four of the key schedule, each as it was and as
# it becomes, and the places of the arrays.
_ROUND_WORDS = 13
_DRAW = 60.0  # operations per number: Threefry's 20 rounds of add, rotate, xor, for two of them


@register("threefry2x32", "threefry4x32", "philox2x32", "philox4x32", "random_fold_in",
          "random_seed")  # fmt: skip
def _per_key(op: OpShape) -> Rule:
    return elementwise(op, work=_DRAW)


@register("random_bits", "random_split")
def _draw(op: OpShape) -> Rule:
    # The shapes of key arrays exclude the key data: [keys] -> [keys, drawn].
    keys = op.dims(0)
    drawn = op.result_dims()[len(keys) :]
    if "rbg" in str(op.operands[0].dtype):  # as rng_bit_generator below
        return einsum(op, [keys], [[*keys, *drawn]], replicate=drawn, work=_DRAW / 4)
    # Rounds are a loop over two words for each number, held as they were and as they become.
    arrays = 4 * 4 / op.results[0].dtype.itemsize
    return einsum(
        op, [keys], [[*keys, *drawn]], work=_DRAW,
        expanded=Expanded(((-1, arrays - 1),), _ROUND_WORDS),
    )  # fmt: skip


@register("random_gamma")
def _gamma(op: OpShape) -> Rule:
    """Rejection sampling, one key per sample: JAX flattens the samples, so only the first dim
    can be split."""
    shape = op.results[0].shape
    labels = list(range(len(shape)))
    first = next((d for d, size in enumerate(shape) if size > 1), 0)
    operands = [labels if len(t.shape) == len(shape) else [] for t in op.operands]
    others = [d for d in labels if d != first]
    return einsum(op, operands, [labels], replicate=others, work=40 * _DRAW)


@register("random_clone")
def _clone(op: OpShape) -> Rule:
    return elementwise(op, unit=NOTHING, work=0.0)


@register("rng_bit_generator")
def _rng_bit_generator(op: OpShape) -> Rule:
    # XLA draws the whole array on every device and slices it: no communication, no speed-up.
    state, drawn = op.dims(0), op.result_dims(1)
    return einsum(op, [state], [state, drawn], replicate=[*state, *drawn], work=_DRAW / 4)


@register("rng_uniform")
def _rng_uniform(op: OpShape) -> Rule:
    return einsum(op, [[] for _ in op.operands], [op.result_dims()], unit=VECTOR, work=_DRAW / 4)


@register("iota_2x32_shape")
def _counters(op: OpShape) -> Rule:
    dims = op.result_dims()
    return einsum(op, [], [dims] * len(op.results), work=2.0, fusible=True)
