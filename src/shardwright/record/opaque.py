"""What a plan says of ops without a rule: why, where, and the line that would open them."""

from __future__ import annotations

from collections.abc import Callable

from shardwright.mesh import Mesh
from shardwright.program.manual import find_shard_maps
from shardwright.program.types import LITERAL, Op, Program
from shardwright.rules.grouped import GROUPED_DOTS
from shardwright.rules.notation import line_for
from shardwright.rules.registry import called_names
from shardwright.rules.rule import PERMUTE, REPLICATE, OpShape, Rule, TensorShape

TRITON_CALL = "triton_kernel_call"  # of jax_triton
PLAIN_GROUPED = GROUPED_DOTS[:1]  # megablox has tiles, which are blocks
MOST = 5  # notes; the counts of all are in the record


def opaque_notes(program: Program, mesh: Mesh) -> list[str]:
    """One sentence per kind of op without a rule, where there is something to split it over."""
    found: dict[tuple[str, str], list[Op]] = {}
    left = _axes_left(program, mesh)
    for op in program.ops:
        if op.rule.opaque and op.rule.why and left(op) is not None:
            found.setdefault((_name(program, op), op.rule.why), []).append(op)
    return [
        f"{name}{f' x{len(ops)}' if len(ops) > 1 else ''} at {ops[0].source or 'no line'} is"
        f" computed in full on every device: {why}; to split it, {_advice(program, ops[0], name)}"
        for (name, why), ops in list(found.items())[:MOST]
    ]


def _advice(program: Program, op: Op, name: str) -> str:
    no_grid = op.name == "pallas_call" and not op.eqn.params["grid_mapping"].grid
    if no_grid or op.name == TRITON_CALL:  # the call has fixed its grid and shapes of results
        return "call it in a jax.shard_map, where it is called for one device's arrays"
    return f"give dims that go together one name in {line_for(_shape(program, op), name)}"


def shared_kernel_notes(program: Program, mesh: Mesh) -> list[str]:
    """One sentence per kernel or grouped dot that not all devices can share, however it is split.

    In a shard_map those that it leaves to the plan.
    """
    found: dict[str, str] = {}
    axes_left = _axes_left(program, mesh)
    for op in program.ops:
        if (op.rule.kernel is None and op.name not in GROUPED_DOTS) or op.rule.opaque:
            continue
        left = {f: op.rule.sizes[f] for f in _splittable(op.rule)}
        here, devices = axes_left(op), 1
        if here is None:
            continue
        for n in sorted((n for _, n in here.axes if n > 1), reverse=True):
            fits = [f for f, size in left.items() if size % n == 0]
            if fits:
                left[fits[0]] //= n
                devices *= n
        if devices == here.size:
            continue
        name = _name(program, op)
        why = op.rule.why or (_sizes if op.name in PLAIN_GROUPED else _blocks)(program, op, here)
        shared = f"shared by {devices} of {here.size}"
        how = shared if devices > 1 else "computed in full on every device"
        found.setdefault(why, f"{name} at {op.source or 'no line'} is {how}: {why}")
    return list(found.values())[:MOST]


def _axes_left(program: Program, mesh: Mesh) -> Callable[[Op], Mesh | None]:
    """The mesh without the axes of the shard_maps around an op; None where no axis is left."""
    manual = find_shard_maps(program, mesh).shards

    def left(op: Op) -> Mesh | None:
        taken = manual.get(op.results[0], ()) if op.results else ()
        axes = tuple(axis for a, axis in enumerate(mesh.axes) if a not in taken)
        return Mesh(axes) if any(n > 1 for _, n in axes) else None

    return left


def _splittable(rule: Rule) -> list[int]:
    """The factors that devices can share; the gradient of keys is a sum over shared queries."""
    return [f for f, kind in enumerate(rule.kinds) if kind not in (PERMUTE, REPLICATE)]


def _sizes(program: Program, op: Op, mesh: Mesh) -> str:
    """Why no more devices share a grouped dot, and which sizes would let them."""
    sizes = sorted({op.rule.sizes[f] for f in _splittable(op.rule)}, reverse=True)
    return (
        f"the axes of {mesh} do not divide its dims of {', '.join(map(str, sizes))}, and a grouped"
        f" dot pads nothing; rows in a multiple of {mesh.size} would be split"
    )


def _blocks(program: Program, op: Op, mesh: Mesh) -> str:
    """Why no more devices share a kernel, and which blocks would let them."""
    rule = op.rule
    splittable = _splittable(rule)
    if not splittable:
        return "none of its dims can be split"
    f = max(splittable, key=lambda f: rule.sizes[f])
    sizes = [
        program.values[v].shape[d]
        for v, slot in zip((*op.operands, *op.results), rule.slots, strict=True) if v != LITERAL
        for d, dim in enumerate(slot) if f in dim
    ]  # fmt: skip
    size = max(sizes)
    fits = [size // n for _, n in mesh.axes if n > 1 and size % n == 0 and rule.sizes[f] % n]
    better = f"; blocks of {max(fits)} could be" if fits else ""
    blocks = f"{rule.sizes[f]} blocks of {size // rule.sizes[f]}"
    return f"the axes of {mesh} do not divide its {blocks}, which are never cut{better}"


def _shape(program: Program, op: Op) -> OpShape:
    scalar = TensorShape((), None)
    operands = tuple(scalar if v == LITERAL else program.values[v].type for v in op.operands)
    results = tuple(program.values[v].type for v in op.results)
    return OpShape(op.name, operands, results, op.eqn.params)


def _name(program: Program, op: Op) -> str:
    """The name that a rule for the op goes by."""
    names = called_names(_shape(program, op))
    kernel = op.eqn.params.get("name") if op.name == TRITON_CALL else None
    return names[0] if names else kernel or op.name
