"""Colors: dims that are split alike. Splitting all dims of one color causes no reshard."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.analysis.compound import Atoms
from shardwright.analysis.names import Names, components


@dataclass(frozen=True, slots=True)
class NameTable:
    """Every name with its color; one row per atom of a dim or factor, sizes above 1 only."""

    owner: np.ndarray  # [n] value or op index
    dim: np.ndarray  # [n] dim of the value, or factor of the op
    place: np.ndarray  # [n] which atom of that dim, major first
    atom: np.ndarray  # [n]
    color: np.ndarray  # [n]


@dataclass(frozen=True, slots=True)
class Colors:
    """The colors of a program."""

    count: int
    atom_size: np.ndarray  # [atoms]
    values: NameTable
    ops: NameTable


def find_colors(names: Names) -> Colors:
    """The colors: names joined by plain edges, then reshapes, then size-changing factors."""
    class_count = int(names.component.max()) + 1 if len(names.component) else 0
    class_size = np.ones(class_count, np.int64)
    class_size[names.component] = names.sizes
    atoms = Atoms(class_size.tolist())
    atoms.solve(names.compounds)
    split = {c for dim, factors in names.compounds for c in (dim, *factors)}
    raw = [atoms.of(c) if c in split else (c,) for c in range(class_count)]

    # Atoms get dense numbers in the order of first appearance in the program.
    order = np.full(len(atoms.sizes), -1, np.int64)
    sizes: list[int] = []
    first_node = np.full(class_count, len(names.component), np.int64)
    np.minimum.at(first_node, names.component, np.arange(len(names.component)))
    for c in np.argsort(first_node, kind="stable").tolist():
        for a in raw[c]:
            if order[a] < 0:
                order[a] = len(sizes)
                sizes.append(atoms.sizes[a])
    node_atoms = [tuple(order[list(r)].tolist()) for r in raw]

    links = [  # dims of different size that one factor joins: slices, pads, strided windows
        (node_atoms[a][0], node_atoms[b][0])
        for a, b in names.soft.tolist()
        if len(node_atoms[a]) == 1 and len(node_atoms[b]) == 1
        and _comparable(sizes[node_atoms[a][0]], sizes[node_atoms[b][0]])
    ]  # fmt: skip
    color = components(len(sizes), np.array(links, np.int64).reshape(-1, 2))
    atom_size = np.array(sizes, np.int64)
    # Dense color numbers in program order, over atoms that have something to split.
    seen: dict[int, int] = {}
    atom_color = np.array(
        [seen.setdefault(c, len(seen)) if s > 1 else -1 for c, s in zip(color, sizes, strict=True)],
        np.int64,
    )
    start = names.value_start
    value_table = _table(names, node_atoms, atom_size, atom_color, start, 0)
    op_table = _table(names, node_atoms, atom_size, atom_color, names.op_start, int(start[-1]))
    return Colors(len(seen), atom_size, value_table, op_table)


def _comparable(a: int, b: int) -> bool:
    """Whether dims joined by a size-changing factor get one decision: at most twice the size.

    So do both sides of a stride of 2 or of a cut-off token, but not 3 of 64 pixels in a window.
    """
    return min(a, b) > 1 and max(a, b) <= 2 * min(a, b)


def _table(
    names: Names, node_atoms: list[tuple[int, ...]], atom_size: np.ndarray,
    atom_color: np.ndarray, start: np.ndarray, offset: int,
) -> NameTable:  # fmt: skip
    """One row per atom of the nodes from `offset` on."""
    nodes = np.arange(offset, int(start[-1]))
    owner = np.repeat(np.arange(len(start) - 1), np.diff(start))
    counts = np.array([len(atoms) for atoms in node_atoms], np.int64)  # [classes]
    flat = np.array([atom for atoms in node_atoms for atom in atoms], np.int64)
    classes = names.component[nodes]
    row = np.repeat(np.arange(len(nodes)), counts[classes])  # [atoms of all nodes]
    first = np.cumsum(counts[classes]) - counts[classes]  # [nodes] its first row
    place = np.arange(len(row)) - first[row]
    atom = flat[(np.cumsum(counts) - counts)[classes[row]] + place]
    kept = atom_size[atom] > 1
    row, place, atom = row[kept], place[kept], atom[kept]
    dim = nodes - start[owner]
    return NameTable(owner[row], dim[row], place, atom, atom_color[atom])
