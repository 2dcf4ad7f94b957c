"""What lowering does at an op: small values, applied one after the other (perform.py).

Those on operands come first, then one that computes, then those on results. Those of a loop's or
branch's entry tie act on the operand outside and on the results inside its bodies, those of an
exit tie on operands inside and on the result outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from shardwright.lowering.specs import Spec, Way, format_way
from shardwright.program.interpret import Key
from shardwright.spmd.sums import Order

# (axes, dim) of one reduce-scatter after the other.
Scatters = tuple[tuple[tuple[str, ...], int], ...]


@dataclass(frozen=True, slots=True)
class Unreduced:
    """An array with one leading dim per mesh axis, over which it still has to be summed."""

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    way: Way  # of the sum: as produced, ..., as stored
    scatter: Scatters = ()  # from the first sharding to the second

    @property
    def spec(self) -> Spec:
        """The sharding of this array: the leading dims on their axes, the rest as produced."""
        return (*((axis,) for axis in self.axes), *self.way[0])

    def in_order(self, order: Order) -> Unreduced:
        """The same sums with their dims in another order."""
        way = tuple(tuple(() if d is None else spec[d] for d in order) for spec in self.way)
        scatter = tuple((axes, order.index(dim)) for axes, dim in self.scatter)
        return Unreduced(self.axes, self.sizes, way, scatter)

    def __str__(self) -> str:
        return f"unreduced over {'+'.join(self.axes)}"


# On operands ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Constrain:
    """An operand is led through these shardings; one copy serves all uses in the same place."""

    operand: int  # of an exit tie: the body that gives it
    way: Way
    sends: bool  # whether some of these reshards is a collective, and not only a slice

    def __str__(self) -> str:
        return f"constrain operand {self.operand} to {format_way(self.way)}"


@dataclass(frozen=True, slots=True)
class BeforeLoop:
    """The operand of an entry tie is brought to where the body has it, once before the loop."""

    way: Way

    def __str__(self) -> str:
        return f"before the loop to {format_way(self.way)}"


@dataclass(frozen=True, slots=True)
class StartSum:
    """What a loop adds to is carried unreduced: one device's term starts from the operand."""

    of: Unreduced

    def __str__(self) -> str:
        return f"start sum, {self.of}"


@dataclass(frozen=True, slots=True)
class StayInLoop:
    """What moves in every trip of the loop around is not hoisted, though no operand changes."""

    def __str__(self) -> str:
        return "stay in the loop"


@dataclass(frozen=True, slots=True)
class ClampStarts:
    """The starts of a dynamic slice or gather leave room for it."""

    def __str__(self) -> str:
        return "clamp starts"


# Computing --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compute:
    """The op as it is."""

    def __str__(self) -> str:
        return "compute"


@dataclass(frozen=True, slots=True)
class Rematerialize:
    """The op of a constant subgraph: each use computes it again, in the shards that it needs."""

    dims: tuple[tuple[int | None, ...], ...]  # [operands][dims] the result's dim; None: none

    def __str__(self) -> str:
        return "rematerialize for each use"


@dataclass(frozen=True, slots=True)
class Fill:
    """An op on equal entries: each use fills the shards that it needs with the one number."""

    reduces: bool  # the number is that of the result, otherwise that of the first operand

    def __str__(self) -> str:
        return "fill for each use"


@dataclass(frozen=True, slots=True)
class PickEntries:
    """A slice to one entry, without a stride; along split dims a sum with zeros."""

    dims: tuple[tuple[int, int], ...]  # (dim, its shards)

    def __str__(self) -> str:
        of = f" of dims {', '.join(str(dim) for dim, _ in self.dims)}" if self.dims else ""
        return f"pick entries{of}"


@dataclass(frozen=True, slots=True)
class OnShards:
    """The op on each device's shards, in a shard_map."""

    operands: tuple[Spec, ...]
    results: tuple[Spec, ...]  # before sums are scattered
    # [results] the axes of one reduction after the other
    sums: tuple[tuple[tuple[str, ...], ...], ...] = ()
    scatter: tuple[Scatters, ...] = ()  # [results] sums of which each device keeps a shard

    def __str__(self) -> str:
        several = dict.fromkeys(axes for sums in self.sums for axes in sums)
        total = "".join(f", sum over {'+'.join(axes)}" for axes in several)
        return f"compute in shard_map{total}{', scattered' if any(self.scatter) else ''}"


class Halo(NamedTuple):
    """Rows that neighbours send each other along a split dim of a convolution's image."""

    dim: int
    axes: tuple[str, ...]
    before: int  # rows of the shard before
    after: int  # rows of the shard behind

    def __str__(self) -> str:
        return f"{self.before}+{self.after} rows of dim {self.dim} over {'+'.join(self.axes)}"


@dataclass(frozen=True, slots=True)
class Convolve:
    """A convolution on each device's shards, after neighbours have exchanged rows."""

    operands: tuple[Spec, ...]
    result: Spec
    halos: tuple[Halo, ...]
    sum_over: tuple[str, ...]  # axes

    def __str__(self) -> str:
        halos = "".join(f"exchange {halo}, " for halo in self.halos)
        total = f", sum over {'+'.join(self.sum_over)}" if self.sum_over else ""
        return f"{halos}convolve in shard_map{total}"


@dataclass(frozen=True, slots=True)
class OwnRows:
    """A sort, gather or scatter of rows that each device sorts for itself."""

    operands: tuple[Spec, ...]
    results: tuple[Spec, ...]
    over: tuple[str, ...]  # the axes that split the rows
    blocks: int = 1  # of a sort: the parts of a shard that are sorted, one by one
    dim: int = 0  # of a gather or scatter: the dim of the first operand that is indexed

    def __str__(self) -> str:
        blocks = f", in {self.blocks} blocks" if self.blocks > 1 else ""
        return f"keep to own rows over {'+'.join(self.over) or 'no axis'}{blocks} in shard_map"


@dataclass(frozen=True, slots=True)
class RaggedDot:
    """A grouped dot of each device's rows and groups."""

    operands: tuple[Spec, ...]
    result: Spec
    rows_over: tuple[str, ...]  # axes
    groups_over: tuple[str, ...]  # axes
    sums: tuple[str, ...]  # axes
    row_dims: tuple[int | None, ...]  # the dim of the rows in both operands and the result
    # The sort that says of each row in which group it is, in place of the groups' sizes.
    sorted_by: Key | None = None
    sorts: bool = False  # rows here come in several blocks: they are sorted first
    scatter: Scatters = ()  # of the sums each device keeps a shard
    travels: str = ""  # the axis over which rows go to the devices of their groups, and back

    def __str__(self) -> str:
        parts = {"rows": self.rows_over, "groups": self.groups_over}
        split = ", ".join(f"{what} over {'+'.join(axes)}" for what, axes in parts.items() if axes)
        total = f", sum over {'+'.join(self.sums)}" if self.sums else ""
        first = "sort, " if self.sorts else ""
        first += f"send to groups over {self.travels}, " if self.travels else ""
        total += ", scattered" if self.scatter else ""
        return f"{first}multiply {split or 'whole'} in shard_map{total}"


@dataclass(frozen=True, slots=True)
class PartialSums:
    """The op's partial sums as data: split dims become leading dims of operands and result."""

    result: Unreduced
    dims: tuple[tuple[int | None, ...], ...]  # [operands][axes] the operand's dim that is split
    onto: bool = False  # a scatter-add into the first operand, which is in one term only

    def __str__(self) -> str:
        return f"partial sums, {self.result}"


@dataclass(frozen=True, slots=True)
class PassSums:
    """The op on each of the partial sums; its result's dims are in this order."""

    order: Order

    def __str__(self) -> str:
        return "pass partial sums"


# On results -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reduce:
    """Partial sums are added up over their axes and brought to where the sum is stored."""

    store: Spec

    def __str__(self) -> str:
        return f"reduce, store as {format_way((self.store,))}"


@dataclass(frozen=True, slots=True)
class Store:
    """A result is led through these shardings: as produced, ..., as stored."""

    result: int
    way: Way

    def __str__(self) -> str:
        which = f" result {self.result}" if self.result else ""
        return f"store{which} as {format_way(self.way)}"


Action = (
    Constrain | BeforeLoop | StartSum | StayInLoop | ClampStarts
    | Compute | Rematerialize | Fill | PickEntries | OnShards | Convolve | OwnRows | RaggedDot
    | PartialSums | PassSums
    | Reduce | Store
)  # fmt: skip
Actions = tuple[Action, ...]
ON_RESULTS = (Reduce, Store)

AS_IT_IS: Actions = (Compute(),)  # at an op that nothing needs
