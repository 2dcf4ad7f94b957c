"""The Program: ops in execution order, values, nested regions.

Invariants (checked by tests/program/invariants.py)
- `ops` lists every op, those of nested regions too, in execution order;
- an operand is a literal, or a value defined before it in its region or one around it;
- a region op (scan, while, cond, shard_map) is followed by its entry ties, its bodies' ops and its
  exit ties; a tie is an op whose rule says which outer dims are which body dims; a cond reads what
  it branches on, the other operands of region ops are those of their entry ties;
- every result of the function is a literal or the result of a `return` tie;
- every value has one definition: an input, a constant, an op, or a tie of its region. Where a
  loop or branch takes or gives a literal there is no tie: the value stands for that literal.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from math import prod
from typing import Any

import jax

from shardwright import _jax
from shardwright.program.interpret import Key
from shardwright.program.source import user_frame
from shardwright.program.ties import LEAVES_TRIP, Kind, Tie
from shardwright.rules.rule import PASS, Rule, TensorShape

LITERAL = -1  # an operand that is a literal of the jaxpr, and no value
TOP = 0  # the region of the function itself


class Number(int):
    """A literal operand that knows its number, while the program is built."""

    number: Any

    def __new__(cls, number: Any) -> Number:
        literal = super().__new__(cls, LITERAL)
        literal.number = number
        return literal


NO_REMAT = 0  # the remat body of an op that stands in none
NO_CALL = 0  # the function with its own derivatives of an op that stands in none
NO_OP = -1  # what makes an argument or a constant


@dataclass(slots=True, eq=False)
class Value:
    """One array: shape, dtype and where it comes from."""

    index: int
    type: TensorShape
    op: int  # the op that defines it; NO_OP for inputs and constants
    path: str | None = None  # argument path, for inputs

    @property
    def shape(self) -> tuple[int, ...]:
        """The global shape."""
        return self.type.shape

    @property
    def dtype(self) -> Any:
        """The dtype of its elements."""
        return self.type.dtype

    @property
    def bytes(self) -> int:
        """Bytes of the whole array."""
        return itemsize(self.type.dtype) * int(prod(self.type.shape))

    def __str__(self) -> str:
        return f"%{self.index}:{format_type(self.type)}"


@dataclass(slots=True, eq=False)
class Op:
    """One primitive applied to values."""

    index: int
    key: Key  # the same whenever the function is traced, and of no other op
    name: str
    operands: tuple[int, ...]  # value indices, or LITERAL
    results: tuple[int, ...]
    rule: Rule
    _: KW_ONLY
    region: int
    remat: int  # which remat body it stands in; NO_REMAT
    custom: int  # which function with derivatives of its own it stands in; NO_CALL
    transposed: bool  # stands in a backward pass
    eqn: Any  # the JAX equation
    caller: Any  # the equation in the user's code when JAX's own code wrote eqn
    body: tuple[int, ...] = ()  # the regions of a loop or branch, or those that a tie leads into
    tie: Tie | None = None  # what it joins, if it computes nothing
    sorted_by: Key | None = None  # the sort of rows that it keeps on a device

    @property
    def is_region(self) -> bool:
        """Whether this is a loop or branch itself."""
        return bool(self.body) and not self.tie

    @property
    def arrays(self) -> list[int]:
        """The operands that are values: no literals."""
        return [v for v in self.operands if v != LITERAL]

    @property
    def position(self) -> int:
        """Which operand or result of the loop, branch or function a tie joins."""
        position = self.key[-1]
        assert isinstance(position, int)
        return position

    @property
    def operand_region(self) -> int:
        """The region in which its operands are moved; what leaves a trip is moved in every trip."""
        return self.body[0] if self.tie in LEAVES_TRIP else self.region

    @property
    def result_region(self) -> int:
        """The region in which its results are moved; an entry of a stack is moved in every trip."""
        return self.body[0] if self.tie is Tie.SCAN_XS else self.region

    @property
    def source(self) -> _jax.Frame | None:
        """The user's line that wrote this op."""
        eqn = self.caller or self.eqn
        return user_frame(eqn.source_info) if eqn is not None else None


@dataclass(slots=True)
class Region:
    """The body of a scan, while, cond or shard_map; region 0 is the function itself."""

    index: int
    kind: Kind
    parent: int
    trips: int  # times it runs for one run of its parent
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    op: int = NO_OP
    manual: tuple[str, ...] = ()  # of a shard_map: the mesh axes that are its own
    mesh: tuple[tuple[str, int], ...] = ()  # of a shard_map: all axes, with their sizes
    partial: bool = False  # of a shard_map: other axes stay automatic


@dataclass(frozen=True, slots=True)
class UserPin:
    """A sharding in the user's code, or of an argument."""

    value: int
    sharding: Any
    by: str  # "with_sharding_constraint", "reshard", "out_sharding", "shard_map"; pins.ARGUMENT


@dataclass(slots=True, weakref_slot=True)
class Program:
    """A traced JAX function."""

    name: str
    values: list[Value]
    ops: list[Op]
    regions: list[Region]
    inputs: tuple[int, ...]  # one value per argument leaf
    consts: tuple[int, ...]  # arrays the function closes over
    outputs: tuple[int, ...]  # one value (or LITERAL) per result leaf
    output_paths: tuple[str, ...]
    donated: frozenset[int]  # inputs the caller gives up
    aliases: dict[int, int]  # output position -> donated input value whose buffer it takes
    updates: dict[int, int]  # output position -> input value that it is stored like; aliases too
    pins: list[UserPin]
    signature: Any = None  # program.arguments.Signature
    _uses: Any = field(default=None, repr=False)
    _constants: Any = field(default=None, repr=False)
    # Sort, where there are grouped dots -> why devices do not sort their own rows.
    unsorted: dict[Key, str] = field(default_factory=dict)

    @property
    def opaque(self) -> Counter[str]:
        """How often each primitive without a rule occurs."""
        return Counter(op.name for op in self.ops if op.rule.opaque)

    def uses(self) -> list[list[int]]:
        """For each value, the ops that read it."""
        if self._uses is None:
            uses: list[list[int]] = [[] for _ in self.values]
            for op in self.ops:
                for value in dict.fromkeys(op.arrays):
                    uses[value].append(op.index)
            self._uses = uses
        return self._uses

    def around(self, region: int) -> Iterator[Region]:
        """A region and those around it, innermost first, without the function itself."""
        while region != TOP:
            yield self.regions[region]
            region = self.regions[region].parent

    def trips(self, region: int) -> int:
        """How often a region runs in one step."""
        return prod(r.trips for r in self.around(region))

    def where(self, value: int) -> str:
        """A value's argument path, or the user's line that computes it."""
        v = self.values[value]
        while v.path is None and v.op != NO_OP:
            op = self.ops[v.op]
            source = op.source
            if source is not None:
                return str(source)
            if not op.operands or op.operands[0] == LITERAL:
                break
            v = self.values[op.operands[0]]  # a return: where its value comes from
        return v.path or "constant"

    def constant_subgraphs(self) -> list[bool]:
        """[values] whether each is a constant subgraph: computed from literals alone, as a mask.

        Every device can compute the shard that it needs: compilers rematerialise such values at
        each use, so they never move.
        """
        if self._constants is None:
            steps = [0] * len(self.values)  # 1 + ops from literals to the value; 0: not constant
            for op in self.ops:
                before = [1 if v == LITERAL else steps[v] for v in op.operands]
                if op.tie or not op.rule.fusible or len(op.results) != 1 or 0 in before:
                    continue
                if max(before, default=1) <= LONGEST_RECIPE and point_by_point(op.rule):
                    steps[op.results[0]] = 1 + max(before, default=1)
            self._constants = [n > 0 for n in steps]
        return self._constants

    def origin(self, value: int) -> int:
        """The argument behind a value that is only a view or copy of it, else the value."""
        at = value
        while self.values[at].path is None and self.values[at].op != NO_OP:
            op = self.ops[self.values[at].op]
            if len(op.arrays) != 1 or not (op.rule.work == 0 and op.rule.fusible):
                return value
            (at,) = op.arrays
        return at if self.values[at].path is not None else value

    def __str__(self) -> str:
        from shardwright.program.printing import format_program

        return format_program(self)


def is_backward(program: Program, op: Op) -> bool:
    """Whether an op, or a loop around it, belongs to a backward pass."""
    return op.transposed or any(program.ops[r.op].transposed for r in program.around(op.region))


LONGEST_RECIPE = 16  # ops in a row; a longer constant subgraph is computed once and stored


def point_by_point(rule: Rule) -> bool:
    """Whether each shard of the result needs only that shard of the operands, or dims of size 1."""
    if any(kind != PASS for kind in rule.kinds):
        return False
    for dims in rule.operands:
        split = [dim for dim in dims if dim]
        if split != [dim for dim in rule.results[0] if dim in split]:
            return False
    return True


def itemsize(dtype: Any) -> int:
    """Bytes of one element; XLA has a bool where JAX has the tangent of an integer."""
    return 1 if dtype == jax.dtypes.float0 else int(getattr(dtype, "itemsize", 4))


_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}
_SIZED = re.compile(r"[a-z]+(?=\d)")


def format_type(type_: Any) -> str:
    """f32[8,16]; f32<host>[8] in the host's memory; f0[8]: tangents of integers hold nothing."""
    if type_.dtype == jax.dtypes.float0:
        return f"f0[{','.join(map(str, type_.shape))}]"
    name = _SIZED.sub(lambda m: _SHORT.get(m[0], m[0]), str(type_.dtype), count=1)
    host = isinstance(type_, TensorShape) and type_.host
    return f"{name}{'<host>' * host}[{','.join(map(str, type_.shape))}]"
