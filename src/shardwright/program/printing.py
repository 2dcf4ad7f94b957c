"""A Program as compact, stable text: one line per op, with its rule."""

from __future__ import annotations

from shardwright.program.types import LITERAL, Op, Program


def format_program(program: Program) -> str:
    """The whole program; nested regions are indented under their op.

    program mlp(x: %0:f32[8,4], w: %1:f32[4,2]) -> (%2)
      %2:f32[8,2] = dot_general %0 %1   ([i,j],[j,k])->([i,k]) {i=8,j=4,k=2} reduction={j}
    """
    donated = dict.fromkeys(program.donated, " donated")
    inputs = ", ".join(
        f"{program.values[i].path}: {program.values[i]}{donated.get(i, '')}" for i in program.inputs
    )
    consts = "".join(f"\n  const {program.values[i]}" for i in program.consts)
    outputs = ", ".join("literal" if i == LITERAL else f"%{i}" for i in program.outputs)
    lines = [f"program {program.name}({inputs}) -> ({outputs}){consts}"]
    depth = [1 + len(list(program.around(region.index))) for region in program.regions]
    lines += ["  " * depth[op.region] + format_op(program, op) for op in program.ops]
    return "\n".join(lines)


def format_op(program: Program, op: Op) -> str:
    """%2:f32[8,2] = dot_general %0 %1   ([i,j],[j,k])->([i,k]) {i=8,j=4,k=2} reduction={j}"""
    if op.is_region:
        bodies = (program.regions[r] for r in op.body)
        about = f"{{{', '.join(f'{body.kind} x{body.trips}' for body in bodies)}}}"
    else:
        about = f"{op.rule}{' remat' * (op.remat > 0)}{' backward' * op.transposed}"
    return f"{format_call(program, op)}   {about}"


def format_call(program: Program, op: Op) -> str:
    """%2:f32[8,2] = dot_general %0 %1"""
    call = " ".join((op.name, *("literal" if i == LITERAL else f"%{i}" for i in op.operands)))
    results = ", ".join(str(program.values[i]) for i in op.results)
    return f"{results} = {call}" if results else call
