"""A layout: what matters about a value for how it is stored, and what one device then holds.

A placement is, for each mesh axis, the atom of the value that the axis splits, or WHOLE. Atoms
are numbered over all dims of the value, major to minor. Several axes on one atom split it in
mesh order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shardwright.spmd.decisions import Placement
from shardwright.spmd.division import can_divide, local_size

WHOLE = -1  # an axis that splits no atom of a value
NO_BIT = -1  # an atom that no conflict touches


class Atom(NamedTuple):
    """One splittable piece of a dim."""

    dim: int
    place: int
    size: int
    group: int
    bit: int  # the bit of its group's resolution that decides it, or NO_BIT
    side: int  # the value of that bit for which it claims first


class Layout(NamedTuple):
    """What matters about a value for how it is stored: equal layouts are stored alike."""

    atoms: tuple[Atom, ...]
    itemsize: int
    units: int  # elements that no atom covers (1 but for dims of size 0)
    border: bool  # an argument, constant or result: must divide evenly
    update: bool  # never feeds a contraction: may claim in scope UPDATES
    pinned: Placement | None = None  # stored like this whatever the lists say
    made_up: bool = False  # of numbers in the program alone: any device can make any part of it
    closed: tuple[int, ...] = ()  # axes of the shard_maps around it: it is a shard over them

    @property
    def geometry(self) -> Layout:
        """What matters for how parts move: the groups of the atoms do not."""
        atoms = tuple([a._replace(group=0, bit=NO_BIT, side=0) for a in self.atoms])
        return self._replace(atoms=atoms, update=False, pinned=None, closed=())

    def pads(self, atom: int) -> bool:
        """Whether an axis may split the atom unevenly: inside a program, a dim of its own."""
        dim = self.atoms[atom].dim
        return not self.border and sum(a.dim == dim for a in self.atoms) == 1

    def parts(self, placement: Placement, axis_sizes: Sequence[int]) -> list[int]:
        """[atoms] how many devices share each; axes behind the placement split nothing."""
        parts = [1] * len(self.atoms)
        for atom, n in zip(placement, axis_sizes, strict=False):
            if atom != WHOLE:
                parts[atom] *= n
        return parts

    def can_split(self, atom: int, parts: Sequence[int], n: int) -> bool:
        """Whether n devices can share what each of `parts` devices holds of an atom.

        Only a prefix of a compound dim can be split: all on its major side is split to the end.
        """
        a = self.atoms[atom]
        return (
            self.units > 0
            and can_divide(a.size, parts[atom], n, pads=self.pads(atom))
            and all(self.atoms[k].size == parts[k] for k in range(atom - a.place, atom))
        )

    def can_store(self, placement: Placement, axis_sizes: Sequence[int]) -> bool:
        """Whether each axis can split its atom, given what the axes before it split."""
        parts = [1] * len(self.atoms)
        for axis, (atom, n) in enumerate(zip(placement, axis_sizes, strict=True)):
            if atom != WHOLE:
                if axis in self.closed or not self.can_split(atom, parts, n):
                    return False
                parts[atom] *= n
        return True

    def local_bytes(self, placement: Placement, axis_sizes: Sequence[int]) -> int:
        """Bytes of one device's part."""
        total = self.itemsize * self.units
        for a, parts in zip(self.atoms, self.parts(placement, axis_sizes), strict=True):
            total *= local_size(a.size, parts)
        return total
