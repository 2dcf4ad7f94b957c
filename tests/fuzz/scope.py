"""What a random program is made of: values with types, a table of ops, lines of Python.

A program is written as Python source, one line after the other. A row of the table looks at the
values of a scope and returns text: an expression, perhaps after the definitions it needs.

    @row("sort", weight=2)
    def _sort(s: Scope) -> str:
        x = s.pick("fi")
        return f"jnp.sort({x}, axis={s.dim(x)})"
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import jax
import jax.ad_checkpoint
import jax.custom_batching
import jax.numpy as jnp
import numpy as np
from jax import lax

NAMESPACE = {"jax": jax, "jnp": jnp, "lax": lax, "np": np}
MAX_ELEMENTS = 1 << 14  # of one value
TRIES = 40  # rows tried for one line

# kind of a dtype: f floats, i integers, b booleans, c complex numbers, n fp8 and half a byte
KINDS = {"float32": "f", "bfloat16": "f", "float16": "f", "int32": "i", "uint32": "i", "int8": "i",
         "uint8": "i", "bool": "b", "complex64": "c", "float64": "f", "int64": "i",
         "uint64": "i", "complex128": "c", "float8_e4m3fn": "n", "float8_e5m2": "n", "int4": "n",
         "uint4": "n"}  # fmt: skip


class NoOperand(Exception):
    """No value of the scope suits a row."""


class Value(NamedTuple):
    """A name that lines may use; prints as that name."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return self.name

    @property
    def kind(self) -> str:
        return KINDS.get(self.dtype, "?")

    @property
    def size(self) -> int:
        return prod(self.shape)


class Argument(NamedTuple):
    """An argument and what it is filled with: normal floats, integers from `low` up to `high`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    low: int = 0
    high: int = 2


@dataclass
class Scope:
    """The values that a line may read, and how it makes new ones."""

    rng: np.random.Generator
    sizes: tuple[int, ...]  # of dims: few, so that values meet
    arguments: list[Argument]
    values: list[Value]
    lines: list[str] = field(default_factory=list)
    counter: list[int] = field(default_factory=lambda: [0])  # names are unique in a program
    depth: int = 0  # of nested bodies
    float_dtype: str = "float32"
    max_elements: int = MAX_ELEMENTS
    max_depth: int = 2
    seed: int = 0  # says which rows there are

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def one(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def integer(self, low: int, high: int) -> int:
        """From `low` to `high`, both included."""
        return int(self.rng.integers(low, high + 1))

    def name(self, letter: str = "v") -> str:
        self.counter[0] += 1
        return f"{letter}{self.counter[0]}"

    def pick(
        self, kinds: str = "f", rank: tuple[int, int] = (1, 9), where: Any = lambda v: v.size > 0
    ) -> Value:
        """One of the values of these kinds, a recent one rather than an old one."""
        found = [
            v for v in self.values
            if v.kind in kinds and rank[0] <= len(v.shape) <= rank[1] and where(v)
        ]  # fmt: skip
        if not found:
            raise NoOperand
        back = min(int(self.rng.geometric(0.35)) - 1, len(found) - 1)
        return found[-1 - back]

    def like(self, value: Value) -> Value:
        """A value of the same shape and dtype; a new argument if there is none."""
        found = [v for v in self.values if v[1:] == value[1:] and v.name != value.name]
        if not found or self.chance(0.2):
            return self.argument(value.shape, value.dtype)
        return found[int(self.rng.integers(len(found)))]

    def dim(self, value: Value) -> int:
        if not value.shape:
            raise NoOperand
        return int(self.rng.integers(len(value.shape)))

    def size(self) -> int:
        return self.one(*self.sizes)

    def argument(
        self, shape: tuple[int, ...], dtype: str | None = None, low: int = 0, high: int = 2
    ) -> Value:
        """A new argument of the whole program."""
        dtype = dtype or self.float_dtype
        if prod(shape) > self.max_elements:
            raise NoOperand
        letter = "i" if KINDS.get(dtype) == "i" else "x"
        made = Argument(self.name(letter), tuple(int(n) for n in shape), dtype, low, high)
        self.arguments.append(made)
        value = Value(*made[:3])
        self.values.insert(0, value)
        return value

    def indices(self, shape: tuple[int, ...], size: int) -> str:
        """Integers that index a dim: an argument in range, at the borders or out of range, or
        computed."""
        known = [v for v in self.values if v.kind == "i" and v.shape == shape]
        if known and self.chance(0.5):
            v = known[int(self.rng.integers(len(known)))]
            text = f"{v}.astype(jnp.int32)" if v.dtype != "int32" else str(v)
            return f"({text} % {size})" if self.chance(0.5) and size else text
        low, high = self.one((0, size), (0, size), (-1, size + 1), (-size, 2 * size))
        wide = jax.config.jax_enable_x64 and self.chance(0.5)
        return str(self.argument(shape, "int64" if wide else "int32", low, max(high, low + 1)))

    def inner(self, values: list[Value]) -> Scope:
        """A scope of a body with parameters; it still sees what is around it."""
        outside = self.values if self.chance(0.6) else []
        return Scope(
            self.rng, self.sizes, self.arguments, [*outside, *values], [], self.counter,
            self.depth + 1, self.float_dtype, self.max_elements, self.max_depth, self.seed,
        )  # fmt: skip


Build = Callable[[Scope], str]


class Row(NamedTuple):
    """One entry of the table: what it is called, how often it is drawn, what it writes."""

    name: str
    weight: float
    build: Build
    since: int = 0  # the first seed that draws it: programs of earlier ones stay what they were


TABLE: list[Row] = []


def row(name: str, weight: float = 1.0, *, since: int = 0) -> Callable[[Build], Build]:
    """Adds a row to the table."""

    def add(build: Build) -> Build:
        assert all(r.name != name for r in TABLE), name
        TABLE.append(Row(name, weight, build, since))
        return build

    return add


def rows_of(seed: int) -> list[Row]:
    """The part of the table that a seed's program is written with."""
    return [row for row in TABLE if row.since <= seed]


def indent(text: str) -> str:
    return "\n".join("    " + line for line in text.split("\n"))


def types_of(text: str, result: str, values: list[Value]) -> Any:
    """The types of an expression that follows some lines, given the values they read."""
    code = compile(f"{text}\nresult_ = {result}" if text else f"result_ = {result}", "fuzz", "exec")

    def run(env: dict[str, Any]) -> Any:
        space = {**NAMESPACE, **env}
        exec(code, space)
        return space["result_"]

    env = {v.name: jax.ShapeDtypeStruct(v.shape, jnp.dtype(v.dtype)) for v in values}
    return jax.eval_shape(run, env)


def add_line(scope: Scope, text: str) -> None:
    """Writes `name = expression` for a row's text and adds the value it defines."""
    *before, expression = text.split("\n")
    found = types_of("\n".join(before), expression, scope.values)
    members = found if isinstance(found, tuple | list) else [found]
    types = [(tuple(t.shape), str(t.dtype)) for t in members]
    if any(prod(shape) > scope.max_elements for shape, _ in types):
        raise NoOperand
    names = [scope.name() for _ in types]
    scope.lines += [*before, f"{', '.join(names)} = {expression}"]
    scope.values += [Value(n, *t) for n, t in zip(names, types, strict=True)]


def grow(scope: Scope, count: int, skipped: list[str] | None = None) -> None:
    """Adds lines to a scope, each by a row of the table."""
    rows = rows_of(scope.seed)
    weights = np.array([r.weight for r in rows])
    for _ in range(count):
        for _ in range(TRIES):
            drawn = rows[int(scope.rng.choice(len(rows), p=weights / weights.sum()))]
            kept = len(scope.arguments), len(scope.values)
            try:
                add_line(scope, drawn.build(scope))
                break
            except NoOperand:
                pass
            except (
                AttributeError,
                TypeError,
                ValueError,
                IndexError,
                NotImplementedError,
            ) as error:
                if skipped is not None:  # JAX has no such call for these types
                    skipped.append(f"{drawn.name}: {error!r:.300}")
            _forget(scope, *kept)


def _forget(scope: Scope, arguments: int, values: int) -> None:
    """Takes back the arguments that a row asked for before it failed."""
    gone = {a.name for a in scope.arguments[arguments:]}
    del scope.arguments[arguments:]
    scope.values[:] = [v for v in scope.values if v.name not in gone]
