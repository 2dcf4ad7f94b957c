"""What a plan says of itself in sentences: what was assumed, and what it could not follow."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from shardwright.cost.model import CostModel, partitioned
from shardwright.lowering.specs import Spec
from shardwright.program.pins import ARGUMENT, HOST_MEMORY
from shardwright.program.types import LITERAL, Program
from shardwright.record.opaque import opaque_notes, shared_kernel_notes
from shardwright.rules.grouped import GROUPED_DOTS
from shardwright.search import Found
from shardwright.spmd.decisions import Decisions
from shardwright.spmd.ir import reduction_of
from shardwright.spmd.layout import REPLICATED
from shardwright.spmd.sums import find_sums
from shardwright.units import human_bytes


def find_notes(model: CostModel, found: Found, result_specs: dict[str, Spec]) -> Iterator[str]:
    """The notes of a plan, those on links and on the search first."""
    program = model.analysis.program
    yield from model.prices.network.notes()
    yield from found.notes
    yield from _state_notes(model, result_specs)
    yield from _loop_notes(model, found.decisions)
    yield from _logical_notes(program)
    yield from opaque_notes(program, model.mesh)
    yield from _memory_notes(program)
    yield from shared_kernel_notes(program, model.mesh)
    yield from _sorted_rows_notes(program) if model.mesh.size > 1 else ()


def _state_notes(model: CostModel, result_specs: dict[str, Spec]) -> list[str]:
    """What is stored like an argument because it is that argument of the next step, undonated."""
    program, specs = model.analysis.program, list(result_specs.values())
    undonated = program.updates.keys() - program.aliases.keys()
    if not undonated or not program.signature.tie:
        return []
    size = sum(
        program.values[program.outputs[i]].bytes // model.mesh.shards(specs[i]) for i in undonated
    )
    paths = [program.values[program.updates[i]].path or "" for i in sorted(undonated)]
    heads = list(dict.fromkeys(re.split(r"[.\[]", path)[0] for path in paths))
    names = [a for a in program.signature.arguments if a in heads]
    numbers = ", ".join(str(program.signature.arguments.index(name)) for name in names)
    return [
        f"results are stored like the arguments they become in the next step: {', '.join(heads)}"
        " (tie=False lets them differ)",
        f"{', '.join(heads)} and the results like them are in memory at once, {human_bytes(size)}"
        f" per device: donate_argnums=({numbers}) saves that if the old ones are not needed",
    ]


def _loop_notes(model: CostModel, decisions: Decisions) -> Iterator[str]:
    """Where sums over the trips of a loop are reduced: after it, or in every trip."""
    program, given = model.analysis.program, partitioned(model, decisions)
    loops: dict[int, list[int | None]] = {}  # {region: bytes that each would take more; None: none}
    for one in find_sums(program):
        partial = given.computed(one.leaves[0].op)[1].partial
        if one.hoist is None or not partial:
            continue
        reduced, more = reduction_of(given, one), None
        if reduced is None or not reduced.after_loop:
            number = int(model.layouts.of_value[one.hoist.value])
            layout, now = model.layouts.table[number], given.stored[number]
            unsplit = tuple([REPLICATED if a in partial else j for a, j in enumerate(now)])
            sizes = [layout.local_bytes(at, model.mesh.sizes) for at in (unsplit, now)]
            more = sizes[0] - sizes[1]
        loops.setdefault(program.ops[one.hoist.loop.carry].body[0], []).append(more)
    for region, sums in loops.items():
        loop, late = program.regions[region], [more for more in sums if more is not None]
        where = f"the {loop.trips} trips of the loop at {program.ops[loop.op].source}"
        if len(late) < len(sums):
            yield f"{len(sums) - len(late)} sums over {where} are reduced once, after it"
        if late:
            yield (
                f"{len(late)} sums over {where} are reduced in every trip; to reduce them once"
                f" would take {human_bytes(sum(late))} more per device"
            )


def _logical_notes(program: Program) -> Iterator[str]:
    """Axes that Flax's boxes name, and that neither a rule nor the mesh gives a meaning."""
    signature = program.signature
    unknown = [
        name for name in signature.named
        if name not in dict(signature.rules) and name not in signature.planned.axis_names
    ]  # fmt: skip
    if unknown:
        yield (
            f"arguments name the axes {', '.join(unknown)}, for which there is no rule: not"
            " followed (plan under flax.linen.logical_axis_rules(rules))"
        )


def _memory_notes(program: Program) -> Iterator[str]:
    """Arguments and results that the user has in the host's memory, and the plan has not."""
    given = [
        program.values[pin.value].path or "" for pin in program.pins
        if pin.by == ARGUMENT and pin.sharding.memory_kind == HOST_MEMORY
    ]  # fmt: skip
    rows = zip(program.output_paths, program.outputs, strict=True)
    given += [path for path, v in rows if v != LITERAL and program.values[v].type.host]
    if given:
        yield (
            f"{', '.join(given)}: in the host's memory in your program, on the devices in this plan"
            " (jax.device_put before and after the step keeps them there)"
        )


def _sorted_rows_notes(program: Program) -> list[str]:
    """A sentence where a grouped dot multiplies as many rows as an op outside shard_maps sorts."""
    sorts = {
        math.prod(program.values[op.results[0]].shape): op
        for op in reversed(program.ops)  # the first of them, not the one on the way back
        if op.key in program.unsorted and not any(r.mesh for r in program.around(op.region))
    }  # fmt: skip
    for op in program.ops:
        shapes = [program.values[v].shape for v in op.operands[:1] if v != LITERAL]
        found = [sorts[n] for shape in shapes for n in shape if n in sorts]
        if op.name in GROUPED_DOTS and op.sorted_by is None and found:
            return [
                f"the rows of {op.name} at {op.source or found[0].source} are sorted over the whole"
                f" batch at {found[0].source}, so each may come from any device:"
                f" {program.unsorted[found[0].key]}; in a jax.shard_map over the axes of the batch"
                " every device sorts its own (docs/kernels.md, grouped dots)"
            ]
    return []
