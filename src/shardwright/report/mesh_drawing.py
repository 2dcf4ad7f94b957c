"""A mesh drawn with what each device holds of one array.

Axes over which the array is replicated are folded into one cell ("x16"); a long axis is folded into
blocks of neighbours. Of two axes the longer goes across; of four, two go down and two across.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

from shardwright.mesh import Mesh
from shardwright.record.types import Spec

MOST_CELLS = 256  # of one drawing
CELL, GAP, GROUP = 22, 3, 9  # of a cell, between cells, between groups of cells
HUES = 12  # colours: one per position along the first axis
WEAKEST = 0.4  # of a colour's strength, which the position along the other axes gives


@dataclass(frozen=True, slots=True)
class Cell:
    """Devices that hold one shard, or several neighbours' shards where an axis is folded."""

    x: int
    y: int
    hue: int
    strength: float
    text: str  # data 0-3, model 1: 4 devices hold dim 0 1/4, dim 1 2/2


@dataclass(frozen=True, slots=True)
class Drawing:
    """The cells, and what stands along the sides."""

    cells: tuple[Cell, ...]
    width: int
    height: int
    down: str
    across: str
    folded: str  # axes over which it is replicated


def draw_mesh(mesh: Mesh, spec: Spec) -> Drawing:
    """The drawing of one array's shards; of no axis in the spec one cell holds all devices."""
    sizes = mesh.shape
    used = [name for name in mesh.names if any(name in on for on in spec)]
    free = [name for name in mesh.names if name not in used and sizes[name] > 1]
    blocks = _blocks([sizes[name] for name in used])
    down, across = used[0::2], used[1::2]
    if math.prod(sizes[a] for a in down) > math.prod(sizes[a] for a in across):
        down, across = across, down  # wide reads better than high
    of = dict(zip(used, blocks, strict=True))
    rows = list(product(*[range(of[a]) for a in down]))
    columns = list(product(*[range(of[a]) for a in across]))
    copies = math.prod(sizes[a] for a in free)
    cells = []
    for r, row in enumerate(rows):
        for c, column in enumerate(columns):
            places = dict(zip((*down, *across), (*row, *column), strict=True))
            at = {axis: places[axis] for axis in used}
            cells.append(Cell(
                _place(c, [of[a] for a in across]), _place(r, [of[a] for a in down]),
                *_colour(at, used, of), _text(at, of, sizes, spec, copies),
            ))  # fmt: skip
    width = _place(len(columns) - 1, [of[a] for a in across]) + CELL
    height = _place(len(rows) - 1, [of[a] for a in down]) + CELL
    return Drawing(
        tuple(cells), width, height, _named(down, sizes, " x "), _named(across, sizes, " x "),
        _named(free, sizes, ", "),
    )  # fmt: skip


def _named(axes: list[str], sizes: dict[str, int], between: str) -> str:
    return between.join(f"{axis}={sizes[axis]}" for axis in axes)


def _blocks(sizes: list[int]) -> list[int]:
    """How many blocks each axis is drawn in: all of it, or halved until there are few cells."""
    blocks = list(sizes)
    while math.prod(blocks) > MOST_CELLS:
        longest = max(range(len(blocks)), key=lambda i: blocks[i])
        smaller = next(n for n in range(blocks[longest] - 1, 0, -1) if sizes[longest] % n == 0)
        blocks[longest] = smaller
    return blocks


def _place(index: int, inner: list[int]) -> int:
    """Where a row or column stands; groups of the inner axis keep some distance."""
    group = inner[-1] if len(inner) > 1 else 0
    return index * (CELL + GAP) + (index // group * GROUP if group else 0)


def _colour(at: dict[str, int], used: list[str], blocks: dict[str, int]) -> tuple[int, float]:
    """(hue by the position along the first axis, strength by that along the others)"""
    first, *others = used or [""]
    place, count = 0, 1
    for axis in others:
        place, count = place * blocks[axis] + at[axis], count * blocks[axis]
    strength = 1.0 - (1.0 - WEAKEST) * place / max(count - 1, 1)
    return at.get(first, 0) % HUES, round(strength, 3)


def _text(
    at: dict[str, int], blocks: dict[str, int], sizes: dict[str, int], spec: Spec, copies: int
) -> str:
    """Which devices they are, and which part of each dim they hold."""
    where, count = [], copies
    for axis, block in at.items():
        width = sizes[axis] // blocks[axis]
        first, count = block * width, count * width
        where.append(f"{axis} {first}" if width == 1 else f"{axis} {first}-{first + width - 1}")
    parts = []
    for dim, on in enumerate(spec):
        if not on:
            continue
        first, last, shards = 0, 0, 1
        for axis in on:  # major to minor
            width = sizes[axis] // blocks[axis]
            first = first * sizes[axis] + at[axis] * width
            last = last * sizes[axis] + at[axis] * width + width - 1
            shards *= sizes[axis]
        part = f"{first + 1}" if first == last else f"{first + 1}-{last + 1}"
        parts.append(f"part {part} of {shards} of dim {dim}")
    held = ", ".join(parts) or "all of it"
    many = f"{count} devices hold" if count > 1 else "1 device holds"
    return f"{', '.join(where) or 'every device'}: {many} {held}"
