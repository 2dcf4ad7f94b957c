"""The referee: XLA compiles one op, sharded as its rule says, and we read what it did.

A factor is split over the mesh axis "x". A dim can only be split contiguously, so the factors to
the left of it in any dim are split completely, each over an axis of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardwright.rules import OpShape, Rule, lookup
from shardwright.rules.examples import Example
from shardwright.rules.rule import PASS, PERMUTE, REPLICATE, factor_name
from tests.rules.isolated import Isolated, isolate

DEVICES = 8
_COLLECTIVE = re.compile(
    r"= (\(?[a-z][^=]*?) (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)"
    r"(-start)?\("
)
_SHAPE = re.compile(r"[a-z]+\d*\[([\d,]*)\]")


@dataclass(frozen=True)
class Collective:
    """One collective of the compiled program."""

    kind: str  # as XLA spells it
    elements: int  # of its result, on one device
    reduction: str = ""  # add, max ... of an all-reduce

    def __str__(self) -> str:
        return f"{self.kind}{':' + self.reduction if self.reduction else ''}({self.elements})"


@dataclass(frozen=True)
class Split:
    """How one factor is tested: every axis of the mesh and where it goes."""

    axes: dict[int, int]  # factor -> parts; the tested one is the last
    factor: int

    def spec(self, slot: Sequence[Sequence[int]], *, whole: Sequence[int] = ()) -> PartitionSpec:
        """The PartitionSpec of an operand or result; `whole` factors stay unsplit."""
        return PartitionSpec(
            *(
                tuple(f"f{f}" for f in dim if f in self.axes and f not in whole) or None
                for dim in slot
            )
        )


def split_of(op: OpShape, rule: Rule, factor: int) -> Split | None:
    """The smallest split that tests a factor, or None when eight devices cannot."""
    before: list[int] = []
    todo = [factor]
    while todo:
        f = todo.pop()
        for slot in rule.slots:
            for dim in slot:
                if f in dim:
                    left = [g for g in dim[: dim.index(f)] if g not in before]
                    before += left
                    todo += left
    if factor in before:
        return None
    axes = {f: rule.sizes[f] for f in before}
    room = DEVICES // math.prod(axes.values())
    # Every dim of the factor must divide: JAX refuses uneven arguments and results. The dims of
    # a permutation factor have sizes of their own.
    sizes = [
        size if dim == (factor,) else rule.sizes[factor]
        for slot, tensor in zip(rule.slots, (*op.operands, *op.results), strict=True)
        for dim, size in zip(slot, tensor.shape, strict=True)
        if factor in dim
    ]
    parts = next((p for p in range(2, room + 1) if all(s % p == 0 for s in sizes)), None)
    if parts is None:
        return None
    return Split({**axes, factor: parts}, factor)


def operands_of(example: Example, isolated: Isolated) -> list[Any]:
    """Random operands, the same in every run."""
    random = np.random.default_rng(0)
    out: list[Any] = []
    for n, tensor in enumerate(isolated.op.operands):
        if n in isolated.literals:
            out.append(jnp.asarray(isolated.literals[n]))
        elif jnp.issubdtype(tensor.dtype, jax.dtypes.prng_key):
            keys = jax.random.split(jax.random.key(7), max(1, math.prod(tensor.shape)))
            out.append(keys.reshape(tensor.shape))
        elif tensor.dtype == jnp.bool_:
            out.append(jnp.asarray(random.integers(0, 2, tensor.shape).astype(bool)))
        elif jnp.issubdtype(tensor.dtype, jnp.integer):
            out.append(jnp.asarray(random.integers(0, 4, tensor.shape), tensor.dtype))
        elif jnp.issubdtype(tensor.dtype, jnp.complexfloating):
            pair = random.uniform(0.1, 0.9, (2, *tensor.shape))
            out.append(jnp.asarray(pair[0] + 1j * pair[1], tensor.dtype))
        else:
            out.append(jnp.asarray(random.uniform(0.1, 0.9, tensor.shape), tensor.dtype))
    return list(example.prepare(*out)) if example.prepare else out


def compile_split(
    isolated: Isolated,
    rule: Rule,
    split: Split,
    *,
    whole_result: Sequence[int] = (),
    devices: Sequence[Any] | None = None,
) -> tuple[Any, list[NamedSharding]]:
    """The compiled op and its operands' shardings; `whole_result` factors are not split there."""
    shape = tuple(split.axes.values())
    used = (devices or jax.devices())[: math.prod(shape)]
    mesh = Mesh(np.array(used).reshape(shape), tuple(f"f{f}" for f in split.axes))
    named = [NamedSharding(mesh, split.spec(slot)) for slot in rule.operands]
    out = [NamedSharding(mesh, split.spec(slot, whole=whole_result)) for slot in rule.results]
    avals = [
        jax.ShapeDtypeStruct(t.shape, t.dtype, sharding=s)
        for t, s in zip(isolated.op.operands, named, strict=True)
    ]
    fn = jax.jit(lambda *a: isolated.bind(*a), in_shardings=named, out_shardings=out)
    return fn.lower(*avals).compile(), named


def collectives_of(hlo: str) -> list[Collective]:
    """Every collective of a compiled program, with what it reduces by."""
    bodies = dict(re.findall(r"^%?([\w.\-]+) \([^\n]*\{\n(.*?)^\}", hlo, re.M | re.S))
    out = []
    for line in hlo.splitlines():
        found = _COLLECTIVE.search(line)
        if not found:
            continue
        counts = [math.prod(int(d) for d in s.split(",") if d) for s in _SHAPE.findall(found[1])]
        elements = max(counts) if found[3] else sum(counts)  # -start names its operand, too
        reduction = ""
        applied = re.search(r"to_apply=%?([\w.\-]+)", line)
        if applied:
            root = re.search(r"ROOT [^=]*= \S+ ([\w\-]+)\(", bodies.get(applied[1], ""))
            reduction = _REDUCTION.get(root[1], root[1]) if root else "?"
        out.append(Collective(found[2], elements, reduction))
    return out


_REDUCTION = {"maximum": "max", "minimum": "min", "multiply": "mul"}


def verdict(op: OpShape, rule: Rule, split: Split, found: Sequence[Collective]) -> str:
    """What the compiled program does that the rule does not claim; empty when they agree."""
    text = ", ".join(map(str, found)) or "no collective"
    kinds = {rule.kinds[f] for f in split.axes} - {PASS}
    if not kinds:
        return text if found else ""
    (kind,) = kinds
    parts = split.axes[split.factor]
    if kind == PERMUTE:  # shards meet, and nobody gets more than the shards it had or makes
        moved = sum(c.elements for c in found)
        local = sum(math.prod(t.shape) for t in (*op.operands, *op.results)) // parts
        exchange = all(c.kind in ("collective-permute", "all-to-all") for c in found)
        return "" if exchange and moved <= local else text
    if kind == REPLICATE:  # a claim that XLA does not need is worth a look, too
        return "" if found else text
    if kind in ("argmax", "argmin"):  # the best value and its index, of every part
        pairs = parts * math.prod(op.results[0].shape)
        claimed = [("all-gather", pairs)] * 2
        return "" if [(c.kind, c.elements) for c in found] == claimed else text
    return "" if [(c.kind, c.reduction) for c in found] == [("all-reduce", kind)] else text


def examine(
    example: Example, *, skip: str = "", devices: Sequence[Any] | None = None
) -> dict[str, str]:
    """For each factor that can be judged, what disagrees ("" = nothing).

    `devices` of a compiler without hardware are compiled for, not run.
    """
    isolated = isolate(example)
    op = isolated.op
    rule = lookup(op)
    operands = operands_of(example, isolated)
    expected = None if devices else jax.jit(isolated.bind)(*operands)
    out: dict[str, str] = {}
    for factor, kind in enumerate(rule.kinds):
        name = factor_name(factor)
        split = split_of(op, rule, factor)
        if name in skip.split():
            continue
        if kind == REPLICATE and (split is None or not on_both_sides(rule, factor)):
            continue  # an operand that is gathered, or a result that is cut: nothing to judge
        if split is None:
            out[name] = "eight devices cannot split it evenly"
            continue
        summed = [f for f in split.axes if rule.kinds[f] not in (PASS, PERMUTE, REPLICATE)]
        try:
            compiled, shardings = compile_split(
                isolated, rule, split, whole_result=summed, devices=devices
            )
        except jax.errors.JaxRuntimeError as error:
            out[name] = "" if kind == REPLICATE else str(error).splitlines()[0]
            continue
        out[name] = verdict(op, rule, split, collectives_of(compiled.as_text()))
        if expected is not None and kind != REPLICATE:
            results = compiled(*map(jax.device_put, operands, shardings))
            if not all(map(same, expected, results)):
                out[name] += " wrong numbers"
    return out


def on_both_sides(rule: Rule, factor: int) -> bool:
    """Whether a factor is in an operand and in a result."""
    sides = (rule.operands, rule.results)
    return all(any(factor in dim for slot in side for dim in slot) for side in sides)


def same(left: Any, right: Any) -> bool:
    """Whether two results are equal up to rounding."""
    if jnp.issubdtype(left.dtype, jax.dtypes.prng_key):
        left, right = jax.random.key_data(left), jax.random.key_data(right)
    a, b = np.asarray(left), np.asarray(right)
    if a.dtype.kind in "biu":
        return bool(np.array_equal(a, b))
    return bool(np.allclose(a.astype(np.complex128), b.astype(np.complex128), 2e-3, 1e-4, True))
