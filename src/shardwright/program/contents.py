"""What is in arrays of known numbers: indices, masks and fills that no argument has a part in.

Contents vary along one dim at most, so a million rows of a wide array are a million numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from shardwright.program.ties import CONSTS
from shardwright.program.types import LITERAL, NO_OP, Number, Op, Program, point_by_point


class Content(NamedTuple):
    """The entries of an array: one number, or a row of them along a dim."""

    entries: Any  # [] or [size of the dim]
    dim: int | None = None


def _divided(a: Any, b: Any) -> Any:
    """As XLA divides: integers towards zero."""
    if not np.issubdtype(np.asarray(a).dtype, np.integer):
        return np.divide(a, b)
    return np.where(b == 0, -1, np.abs(a) // np.maximum(np.abs(b), 1) * np.sign(a) * np.sign(b))


_COMPUTED: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _divided, "rem": np.fmod,
    "max": np.maximum, "min": np.minimum, "neg": np.negative, "sign": np.sign,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
    "and": np.bitwise_and, "or": np.bitwise_or, "not": np.invert,
    "select_n": lambda which, *cases: np.where(which, cases[-1], cases[0]),
    "clamp": lambda low, x, high: np.clip(x, low, high),
}  # fmt: skip
VIEWS = frozenset((
    "broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "copy", "copy_p",
    "stop_gradient", "convert_element_type", "name", "sharding_constraint",
))  # fmt: skip


class Numbers:
    """Rows of numbers, each made once: layers that are alike have the same ones."""

    def __init__(self) -> None:
        self._made: dict[Any, Any] = {}

    def once(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """What `make` gives, made when it is first asked for."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def iota(self, size: int, dtype: Any) -> Any:
        """0, 1, 2 ..."""
        return self.once(("iota", size, str(dtype)), lambda: np.arange(size).astype(dtype))

    def picked(self, entries: Any, at: Any) -> Any:
        """Entries in another order."""
        return self.once(("picked", _key(entries), _key(at)), lambda: entries[at])

    def repeated(self, entries: Any, before: int, behind: int) -> Any:
        """Each entry so often, and all of that so often."""
        return self.once(
            ("repeated", _key(entries), before, behind),
            lambda: np.tile(np.repeat(entries, behind), before),
        )

    def counts_up(self, entries: Any, each: int) -> bool:
        """Whether a row is 0, 1, 2 ..., each so often."""
        return bool(self.once(
            ("counts up", _key(entries), each),
            lambda: np.array_equal(entries, np.arange(len(entries)) // each),
        ))  # fmt: skip

    def all_equal(self, entries: Any) -> bool:
        """Whether a row has one number only."""
        return bool(self.once(
            ("all equal", _key(entries)),
            lambda: entries.size > 0 and bool(np.all(entries == entries.flat[0])),
        ))  # fmt: skip

    def computed(self, op: Op, operands: Sequence[Any]) -> Any:
        """The entries of an op's result from those of its operands; None: it is not known."""
        made = op.eqn.outvars[0].aval if op.eqn is not None and not op.tie else None
        if made is None or any(entries is None for entries in operands):
            return None
        if op.name not in VIEWS and op.name not in _COMPUTED:
            return None
        if op.name == "select_n" and len(operands) != 3:
            return None
        try:
            dtype = np.dtype(made.dtype)
        except TypeError:  # random keys
            return None

        def make() -> Any:
            if op.name in VIEWS:
                return np.asarray(operands[0]).astype(dtype)
            with np.errstate(all="ignore"):
                return np.asarray(_COMPUTED[op.name](*operands)).astype(dtype)

        name = "view" if op.name in VIEWS else op.name
        return self.once((name, dtype, *map(_key, operands)), make)


def _key(entries: Any) -> Any:
    """A number by its value, a row by its identity: rows are made once, and kept."""
    return id(entries) if np.ndim(entries) else (str(np.asarray(entries).dtype), entries.item())


class Contents:
    """The contents of a program's values, each found when it is asked for."""

    def __init__(
        self, program: Program, numbers: Numbers, views_of: int = LITERAL,
        content: Content | None = None,
    ) -> None:  # fmt: skip
        """All views of one value may be taken to have a given content."""
        self.program, self.numbers = program, numbers
        self._views_of, self._content = views_of, content
        self.known: dict[int, Content | None] = {}

    def of(self, value: int) -> Content | None:
        """What is in a value, if that is known while tracing."""
        if value == LITERAL:
            return Content(np.asarray(value.number)) if isinstance(value, Number) else None
        if value not in self.known:
            self.known[value] = None  # while it is looked at
            self.known[value] = self._found(value)
        return self.known[value]

    def operands(self, op: Op) -> list[Content | None]:
        """What is in the operands of an op."""
        return [self.of(v) for v in op.operands]

    def _found(self, value: int) -> Content | None:
        if self._content is not None and root(self.program, value) == self._views_of:
            return self._content
        made = self.program.values[value].op
        if made == NO_OP:
            return None
        op = self.program.ops[made]
        if op.tie in CONSTS:  # what a loop's body only reads: JAX takes fills and iotas out of it
            return self.of(op.operands[0])
        if op.tie or op.is_region:
            return None
        if op.name == "iota":
            dim = op.eqn.params["dimension"]
            size = self.program.values[value].shape[dim]
            return Content(self.numbers.iota(size, op.eqn.params["dtype"]), dim)
        if op.name not in VIEWS and op.name not in _COMPUTED:
            return None
        return self.combined(op, self.operands(op))

    def combined(self, op: Op, operands: Sequence[Content | None]) -> Content | None:
        """What is in the result of an op on operands of these contents."""
        dims = set()
        entries = []
        for slot, content in zip(op.rule.operands, operands, strict=True):
            if content is None:
                return None
            if content.dim is None:
                entries.append(content.entries)
                continue
            (result,) = op.rule.results
            found = self._spread(op, slot[content.dim], result, content.entries)
            if found is None:
                return None
            dims.add(found.dim)
            entries.append(found.entries)
        if len(dims) > 1:
            return None
        out = self.numbers.computed(op, entries)
        return None if out is None else Content(out, next(iter(dims), None))

    def _spread(self, op: Op, factors: Any, result: Any, entries: Any) -> Content | None:
        """Entries along a dim of these factors where the result has them, merged or not."""
        for dim, merged in enumerate(result):
            if merged == factors:
                return Content(entries, dim)
            if len(factors) == 1 and factors[0] in merged:
                at, sizes = merged.index(factors[0]), op.rule.sizes
                before = math.prod(sizes[f] for f in merged[:at])
                behind = math.prod(sizes[f] for f in merged[at + 1 :])
                return Content(self.numbers.repeated(entries, before, behind), dim)
        return None

    def same_along(self, value: int, dim: int) -> bool:
        """Whether all entries along a dim are the same, whatever they are."""
        if value == LITERAL or self.program.values[value].shape[dim] == 1:
            return True
        content = self.of(value)
        if content is not None:
            return content.dim != dim
        made = self.program.values[value].op
        if made == NO_OP:
            return False
        op = self.program.ops[made]
        if op.tie in CONSTS:
            return self.same_along(op.operands[0], dim)
        if op.tie or len(op.results) != 1 or not op.rule.fusible or not point_by_point(op.rule):
            return False
        factors = op.rule.results[0][dim]
        if op.name == "iota":
            return bool(op.eqn.params["dimension"] != dim)
        return bool(op.operands) and all(
            v == LITERAL or factors not in slot or self.same_along(v, slot.index(factors))
            for v, slot in zip(op.operands, op.rule.operands, strict=True)
        )


def maker(program: Program, value: int) -> Op | None:
    """The op that computes a value."""
    made = program.values[value].op
    return None if made == NO_OP or program.ops[made].tie else program.ops[made]


def root(program: Program, value: int, *, grow: bool = False) -> int:
    """What a value is a view of, with the same entries in the same order; `grow`: repeated, too."""
    while True:
        op = maker(program, value)
        if op is None or op.name not in VIEWS - {"transpose"} or op.operands[0] == LITERAL:
            return value
        before, after = (program.values[v].type for v in (op.operands[0], value))
        counting = before.dtype == bool or np.issubdtype(before.dtype, np.integer)
        if not counting or (not grow and math.prod(before.shape) != math.prod(after.shape)):
            return value
        value = op.operands[0]
