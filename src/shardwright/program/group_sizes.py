"""Group sizes: whether a value counts how often each group is among the keys rows are sorted by.

As `jnp.bincount(experts, length=number of experts)` does, a segment sum of ones, or a sum of a
one-hot matrix.
"""

from __future__ import annotations

import numpy as np

from shardwright.program.contents import Content, Contents, Numbers, maker, root
from shardwright.program.types import LITERAL, Op, Program


def counts_keys(program: Program, sort: Op, sizes: int, groups: int, numbers: Numbers) -> bool:
    """Whether a value counts how often each number below `groups` is among a sort's keys."""
    op = maker(program, root(program, sizes))
    if op is None:
        return False
    keys = root(program, sort.operands[0])
    in_range = _below(program, keys, groups)
    if op.name == "reduce_sum":
        return in_range and _sums_one_hot(program, op, keys, groups, numbers)
    return op.name == "scatter-add" and _adds_ones(program, sort, op, groups, in_range, numbers)


def _sums_one_hot(program: Program, op: Op, keys: int, groups: int, numbers: Numbers) -> bool:
    """Whether a sum is over all keys of whether each is a group's number."""
    equal = maker(program, root(program, op.operands[0]))
    shape = program.values[op.operands[0]].shape
    left = [d for d in range(len(shape)) if d not in op.eqn.params["axes"]]
    if equal is None or equal.name != "eq" or len(left) != 1:
        return False
    contents = Contents(program, numbers)
    for key, number in (equal.operands, equal.operands[::-1]):
        content = contents.of(number) if number != LITERAL else None
        if content is None or content.dim != left[0] or key == LITERAL:
            continue
        if root(program, key, grow=True) == keys:
            every = np.array_equal(content.entries, np.arange(groups))
            return every and contents.same_along(key, left[0])
    return False


def _adds_ones(
    program: Program, sort: Op, op: Op, groups: int, in_range: bool, numbers: Numbers
) -> bool:
    """Whether a scatter adds one at each key's number, tried on numbers around all groups.

    What is in no group must be known not to be there, or be counted as the sort has it: numbers
    below zero stand before group 0, and are of it; numbers above the last group are of none.
    """
    keys = root(program, sort.operands[0])
    dtype = program.values[keys].dtype
    sample = numbers.once(
        ("keys", groups, str(dtype)), lambda: np.arange(-2, groups + 2).astype(dtype)
    )
    contents = Contents(program, numbers, keys, Content(sample, 0))
    contents.known[sort.results[0]] = Content(sample, 0)
    zero, indices, one = map(contents.of, op.operands)
    if zero is None or one is None or indices is None or (zero.dim, one.dim) != (None, None):
        return False
    if (zero.entries, one.entries) != (0, 1) or np.shape(indices.entries) != sample.shape:
        return False
    told = np.asarray(indices.entries)
    below, inside, above = told[:2], told[2:-2], told[-2:]
    rest = in_range or (bool(np.all(below == 0)) and bool(np.all(above >= groups)))
    return bool(np.array_equal(inside, np.arange(groups))) and rest


def _below(program: Program, keys: int, groups: int) -> bool:
    """Whether all keys are known to be from 0 to less than `groups`: they number that many."""
    op = maker(program, keys)
    if op is None or op.operands[0] == LITERAL:
        return False
    shape = program.values[op.operands[0]].shape
    if op.name in ("top_k", "approx_top_k"):
        axis = op.eqn.params.get("axis", op.eqn.params.get("reduction_dimension", -1))
        return keys == op.results[-1] and bool(shape[axis] <= groups)
    if op.name in ("argmax", "argmin"):
        return all(shape[axis] <= groups for axis in op.eqn.params["axes"])
    return False
