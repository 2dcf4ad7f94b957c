"""Dead code: what neither a result nor an effect of the function needs."""

from __future__ import annotations

from dataclasses import replace

from shardwright.program.ties import CARRIES
from shardwright.program.types import LITERAL, NO_OP, TOP, Op, Program


def drop_dead(program: Program) -> None:
    """Drops ops that nothing needs and values that nothing names, and renumbers both."""
    program.ops = live_ops(program)
    _drop_regions(program)
    top = program.regions[TOP]
    named = {*top.inputs, *top.outputs}
    for op in program.ops:
        named.update(op.operands, op.results)
    place = [LITERAL] * (len(program.values) + 1)  # the last entry stands for literals
    live = [v for v in program.values if v.index in named]
    for i, value in enumerate(live):
        place[value.index] = i
        value.index = i
    op_place = {op.index: i for i, op in enumerate(program.ops)}
    for op in program.ops:
        op.index = op_place[op.index]
        op.operands = tuple([place[v] for v in op.operands])
        op.results = tuple([place[v] for v in op.results])
    for value in live:
        value.op = op_place.get(value.op, NO_OP)
    for region in program.regions:
        region.op = op_place.get(region.op, NO_OP)
        region.inputs = tuple(place[v] for v in region.inputs)
        region.outputs = tuple(place[v] for v in region.outputs)
    program.pins = [replace(p, value=place[p.value]) for p in program.pins if place[p.value] >= 0]
    program.values = live
    count = len(program.consts)
    program.consts, program.inputs = top.inputs[:count], top.inputs[count:]
    program.outputs = top.outputs


def _drop_regions(program: Program) -> None:
    """Drops the bodies of loops and branches that are gone, and renumbers the others."""
    used = {TOP, *(r for op in program.ops for r in op.body)}
    if len(used) == len(program.regions):
        return
    program.regions = [r for r in program.regions if r.index in used]
    place = {r.index: i for i, r in enumerate(program.regions)}
    for region in program.regions:
        region.index, region.parent = place[region.index], place[region.parent]
    for op in program.ops:
        op.region, op.body = place[op.region], tuple([place[r] for r in op.body])


def live_ops(program: Program) -> list[Op]:
    """The ops that a result or an effect needs; of a loop that is needed all that it carries."""
    regions = program.regions
    needed = [False] * (len(program.values) + 1)  # the last entry stands for literals
    for v in program.outputs:
        needed[v] = True
    untied = _untied_results(program)
    running: set[int] = {NO_OP}  # loops and branches that are needed, and the function itself
    kept: list[Op] = []
    before = 0
    while len(running) > before:  # what the next trip of a loop needs stands behind its use
        before = len(running)
        kept = []
        for op in reversed(program.ops):
            home = regions[op.body[0]].op if op.body else NO_OP  # the loop or branch of a tie
            effect = not op.tie and op.eqn.effects
            live = effect or op.index in running
            for v in (*op.results, *untied.get(op.index, ())):
                live = live or needed[v]
            if not live and not (op.tie in CARRIES and home in running):
                continue
            kept.append(op)
            running.add(home)
            if effect:
                running.update(region.op for region in program.around(op.region))
            for v in op.operands:
                needed[v] = True
        for r in regions:
            if r.kind == "while_cond" and r.op in running:
                for v in r.outputs:
                    needed[v] = True
    kept.reverse()
    return kept


def _untied_results(program: Program) -> dict[int, list[int]]:
    """{branch: its results that are literals in every branch}: no tie leads to what decides."""
    found: dict[int, list[int]] = {}
    for value in program.values:
        if value.op != NO_OP and value.index not in program.ops[value.op].results:
            found.setdefault(value.op, []).append(value.index)
    return found
