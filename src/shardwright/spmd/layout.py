"""A layout: what matters about a value for its sharding, and what one device then holds.

A placement is, for each mesh axis, the atom of the value that the axis splits, or REPLICATED. Atoms
are numbered over all dims of the value, major to minor. Several axes on one atom are sub-axes in
mesh order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shardwright.spmd.decisions import Placement
from shardwright.spmd.division import can_divide, local_size

REPLICATED = -1  # an axis over which a value is replicated: it splits none of its atoms
NO_BIT = -1  # an atom that no conflict touches


class Atom(NamedTuple):
    """One splittable factor of a dim; a dim that no reshape cuts is one atom."""

    dim: int
    place: int  # among the atoms of its dim, major first
    size: int
    group: int
    bit: int  # the bit of its group's resolution that picks among conflicting atoms, or NO_BIT
    side: int  # the value of that bit that picks this one


class Layout(NamedTuple):
    """What matters about a value for its sharding: values with equal layouts share one."""

    atoms: tuple[Atom, ...]
    itemsize: int
    units: int  # 0 where some dim has size 0, else 1: elements that no atom counts
    border: bool  # an argument, constant or result: JAX wants even shards
    update: bool  # never feeds a contraction: may claim in scope UPDATES
    pinned: Placement | None = None  # its placement whatever the lists say
    rematerialised: bool = False  # a constant subgraph: computed per shard at each use, never moved
    closed: tuple[int, ...] = ()  # axes of the shard_maps around it: it is a shard over them
    summed: bool = False  # added up over the trips of a loop: refinement may replicate it alone

    @property
    def geometry(self) -> Layout:
        """What matters for how shards move: the layout without groups and pins."""
        atoms = tuple([a._replace(group=0, bit=NO_BIT, side=0) for a in self.atoms])
        return self._replace(atoms=atoms, update=False, pinned=None, closed=(), summed=False)

    def pads(self, atom: int) -> bool:
        """Whether an axis may split the atom unevenly: inside a program, if it is a whole dim."""
        dim = self.atoms[atom].dim
        return not self.border and sum(a.dim == dim for a in self.atoms) == 1

    def shards(self, placement: Placement, axis_sizes: Sequence[int]) -> list[int]:
        """[atoms] the number of shards of each; axes that the placement lacks split nothing."""
        shards = [1] * len(self.atoms)
        for atom, n in zip(placement, axis_sizes, strict=False):
            if atom != REPLICATED:
                shards[atom] *= n
        return shards

    def can_split(self, atom: int, shards: Sequence[int], n: int) -> bool:
        """Whether an axis of n devices can split an atom further, given the shards of all atoms.

        Only a prefix of a compound dim can be split: atoms on its major side have local size 1.
        """
        a = self.atoms[atom]
        return (
            self.units > 0
            and can_divide(a.size, shards[atom], n, pads=self.pads(atom))
            and all(self.atoms[k].size == shards[k] for k in range(atom - a.place, atom))
        )

    def can_store(self, placement: Placement, axis_sizes: Sequence[int]) -> bool:
        """Whether each axis can split its atom, given what the axes before it split."""
        shards = [1] * len(self.atoms)
        for axis, (atom, n) in enumerate(zip(placement, axis_sizes, strict=True)):
            if atom != REPLICATED:
                if axis in self.closed or not self.can_split(atom, shards, n):
                    return False
                shards[atom] *= n
        return True

    def local_bytes(self, placement: Placement, axis_sizes: Sequence[int]) -> int:
        """Bytes of one device's shard."""
        total = self.itemsize * self.units
        for a, shards in zip(self.atoms, self.shards(placement, axis_sizes), strict=True):
            total *= local_size(a.size, shards)
        return total
