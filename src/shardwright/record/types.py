"""The record of a plan: all that is saved, compared and shown, as values.

The stages' own values where they have one (Mesh, Device, Cost, Collective, Breakdown,
Certificate), rows of names and numbers where a stage's value holds a program. A plan file has
these fields (plain.py says how), and what must agree between them is checked in consistency.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from shardwright.cost.breakdown import Breakdown
from shardwright.cost.cost import Cost
from shardwright.cost.devices import Device
from shardwright.cost.timeline import Timeline
from shardwright.mesh import Mesh
from shardwright.record.plain import Within
from shardwright.search.exact import Certificate
from shardwright.spmd.ir import Collective

Axis = Annotated[str, "an axis name"]
Index = Annotated[int, Within(0, 2**40)]  # of a value, op, group or color
Position = Annotated[int, Within(-1000, 1000)]  # of an argument; negative ones count from the end
Spec = tuple[tuple[Axis, ...], ...]  # axes per dim
ArgumentKind = Literal["parameters", "optimiser state", "inputs"]
Pinned = dict[Index, tuple[tuple[Index, ...], ...]]  # {value: axes per dim}


@dataclass(frozen=True, slots=True)
class Call:
    """How the function is called."""

    arguments: tuple[str, ...]  # names of the positional arguments
    static: tuple[Position, ...]
    donated: tuple[Position, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user asked for, next to the mesh and the device."""

    static_argnums: tuple[Position, ...] = ()
    donate_argnums: tuple[Position, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)  # {label: a dim of its group}
    tactics: tuple[str, ...] = ()
    memory: int | None = None  # bytes per device; None: all that the device has
    timeout: float | None = None  # wall-clock seconds of search
    seed: int = 0
    default_device: bool = False  # nobody said which device to plan for
    tie: bool = False  # results are stored like the arguments they become; older files do not say


@dataclass(frozen=True, slots=True)
class Claim:
    """One entry of an axis' list: spmd.decisions.Entry, by the label of its group."""

    group: str
    bits: Annotated[int, Within(0, 2**62)]
    scope: Annotated[int, Within(0, 1), "0 or 1"]


@dataclass(frozen=True, slots=True)
class Override:
    """One layout that is stored otherwise than the lists say."""

    value: Index  # the first of its values
    placement: tuple[Annotated[int, Within(-1, 2**20)], ...]  # the atom that each axis splits
    stored: str  # f32[8/4,16]
    values: int  # how many
    what: tuple[str, ...]  # arguments, or ops and lines


@dataclass(frozen=True, slots=True)
class GroupRow:
    """Dims that are split alike."""

    label: str
    role: str  # batch, sequence, data, residual, hidden or experts
    sizes: tuple[int, ...]
    dims: tuple[str, ...]  # some of its dims, as argument paths
    colors: int
    argument_bytes: int
    activation_bytes: int
    bits: int  # groups of conflict sets that its resolution decides
    # The resolution that splits a sequence by its queries; of older files -1.
    query_bits: Annotated[int, Within(-1, 2**62)] = -1


@dataclass(frozen=True, slots=True)
class ArrayRow:
    """Large intermediates of one line that are stored alike."""

    source: str  # the user's line
    op: str  # that makes it
    type: str
    spec: Spec
    count: int


@dataclass(frozen=True, slots=True)
class Improvement:
    """A better plan than any before it, while the search ran."""

    stage: str
    evaluations: int  # plans priced until then
    step_s: float


@dataclass(frozen=True, slots=True)
class SearchRow:
    """What the search did."""

    evaluations: int
    how: tuple[str, ...]  # what each stage did
    interrupted: bool  # by the user
    timed_out: bool  # by the wall clock (Asked.timeout)
    pins_in_code: int  # shardings in the user's code that are followed
    history: tuple[Improvement, ...] = ()


@dataclass(frozen=True, slots=True)
class MeshRow:
    """One mesh shape that was compared."""

    mesh: dict[Axis, int]
    searched: bool  # or only screened
    why: str  # it is not possible
    step_s: float | None
    peak_bytes: int | None

    def __str__(self) -> str:
        return " x ".join(f"{axis}={size}" for axis, size in self.mesh.items())


@dataclass(frozen=True, slots=True)
class VariantRow:
    """Another row of the comparison that a plan came out of as the best."""

    name: str  # the variant, its mesh and device
    step_s: float  # for as many tokens or examples as this plan's step takes
    peak_bytes: int
    fits: bool


@dataclass(frozen=True, slots=True)
class Replicated:
    """A large argument that every device holds all of."""

    path: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """A plan as a value."""

    shardwright: str  # the version that made it
    program: str
    fingerprint: str
    ops: int
    matrix_flops: float  # of dots and convolutions, on all devices, recomputation left out
    call: Call | None  # None: files of version 1 do not say
    arguments: dict[str, str]  # {path: type}
    kinds: dict[str, ArgumentKind]  # {path: what it is to the program}; older files do not say
    weakly_typed: tuple[str, ...]  # arguments that were Python numbers
    results: dict[str, str]
    mesh: Mesh
    device: Device
    asked: Asked
    unshared: tuple[tuple[Index, Index], ...]  # (group, color) with a decision of its own
    pinned: Pinned  # what the user's code stores somewhere, whatever the lists say
    decisions: dict[Axis, tuple[Claim, ...]]  # in order of claim
    overrides: tuple[Override, ...]
    specs: dict[str, Spec]
    result_specs: dict[str, Spec]
    cost: Cost
    collectives: tuple[Collective, ...]  # most seconds first
    memory: Breakdown
    timeline: Timeline
    arrays: tuple[ArrayRow, ...]  # intermediates, largest first
    groups: tuple[GroupRow, ...]
    opaque: dict[str, int]  # {primitive without a rule: ops}
    replicated: tuple[Replicated, ...]
    certificate: Certificate
    baselines: dict[str, Cost | str]  # {tactic: its cost, or why it does not apply}
    search: SearchRow
    meshes: tuple[MeshRow, ...]
    notes: tuple[str, ...]  # what was assumed, what could not be followed
    variants: tuple[VariantRow, ...] = ()  # what it was compared with; older files do not say

    @property
    def limit_bytes(self) -> int:
        """The memory the plan had to fit in: what the user gave, or what the device has."""
        return self.device.usable_bytes if self.asked.memory is None else self.asked.memory
