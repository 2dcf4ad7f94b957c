"""Names: one node per (value, dim) and per (op, factor), joined where an op says they meet.

Ops are handled a rule at a time: all ops with the same rule have the same pattern of edges, so
the edges of a 30,000-op program are a few hundred array expressions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.program.types import LITERAL, Program
from shardwright.rules.rule import Rule


@dataclass(frozen=True, slots=True)
class Names:
    """Nodes, and which of them are one dim by plain (uncompounded) edges."""

    value_start: np.ndarray  # [values + 1] first node of each value
    op_start: np.ndarray  # [ops + 1] first node of each op; nodes of ops follow those of values
    sizes: np.ndarray  # [nodes] int64
    component: np.ndarray  # [nodes] int32: the class of each node
    compounds: list[tuple[int, tuple[int, ...]]]  # (class of a dim, classes of its factors)
    soft: np.ndarray  # [n, 2] classes joined by a factor that changes size (slice, pad, conv)


@dataclass(frozen=True, slots=True)
class OpBatch:
    """All ops that share one rule."""

    rule: Rule
    ops: np.ndarray  # [n] op indices
    slots: np.ndarray  # [n, operands + results] value indices, or LITERAL


def batch_ops(program: Program) -> list[OpBatch]:
    """The ops of a program, gathered by rule."""
    by_rule: dict[int, list[int]] = {}
    for op in program.ops:
        by_rule.setdefault(id(op.rule), []).append(op.index)
    batches = []
    for indices in by_rule.values():
        ops = [program.ops[i] for i in indices]
        width = len(ops[0].operands) + len(ops[0].results)
        slots = np.array([op.operands + op.results for op in ops], np.int64)
        batches.append(OpBatch(ops[0].rule, np.array(indices), slots.reshape(len(ops), width)))
    return batches


def name_nodes(program: Program, batches: list[OpBatch]) -> Names:
    """The names of a program, numbered, and joined where they meet in an op."""
    ranks = np.array([len(v.type.shape) for v in program.values], np.int64)
    value_start = np.concatenate([[0], np.cumsum(ranks)])
    factors = np.zeros(len(program.ops), np.int64)
    for batch in batches:
        factors[batch.ops] = len(batch.rule.sizes)
    op_start = value_start[-1] + np.concatenate([[0], np.cumsum(factors)])
    sizes = np.ones(op_start[-1], np.int64)
    flat = [size for v in program.values for size in v.type.shape]
    sizes[: len(flat)] = flat

    none = np.zeros((0, 2), np.int64)
    edges, soft = [none], [none]  # [n, 2] each
    compound: list[tuple[np.ndarray, list[np.ndarray]]] = []
    for batch in batches:
        base = op_start[batch.ops]
        for f, size in enumerate(batch.rule.sizes):
            sizes[base + f] = size
        for slot, dims in enumerate(batch.rule.slots):
            values = batch.slots[:, slot]
            real = values != LITERAL
            first = value_start[values[real]]
            for d, dim in enumerate(dims):
                if len(dim) == 1:
                    pairs = np.stack([first + d, base[real] + dim[0]], 1)
                    same = sizes[pairs[:, 0]] == sizes[pairs[:, 1]]
                    edges.append(pairs[same])
                    soft.append(pairs[~same])
                elif dim:
                    compound.append((first + d, [base[real] + f for f in dim]))
    for position, source in program.updates.items():
        value = program.outputs[position]
        every = np.arange(ranks[value])
        edges.append(np.stack([value_start[value] + every, value_start[source] + every], 1))

    component = components(len(sizes), np.concatenate(edges))
    equations = {
        (int(dim), tuple(int(p) for p in of_dim))
        for nodes, factors_ in compound
        for dim, *of_dim in zip(component[nodes], *(component[f] for f in factors_), strict=True)
    }
    loose = np.unique(component[np.concatenate(soft)], axis=0)
    return Names(value_start, op_start, sizes, component, sorted(equations), loose)


def components(count: int, edges: np.ndarray) -> np.ndarray:
    """[count] the connected component of each node, given the edges [E, 2]."""
    from scipy.sparse import coo_matrix  # a seventh of the time that importing us would take
    from scipy.sparse.csgraph import connected_components

    graph = coo_matrix((np.ones(len(edges), np.int8), edges.T), shape=(count, count))
    labels: np.ndarray = connected_components(graph, directed=False)[1]
    return labels
