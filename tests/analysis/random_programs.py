"""Random small programs, and ways to write the same program differently.

A program is a list of instructions in single assignment: inputs are numbered first, then one
number per instruction. The same list can be run in another order, with other argument names,
with calls around its instructions, or with needless transposes: nothing that a planner may see.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

SIZES = (2, 3, 4, 6, 8, 12)
MAX_RANK, MAX_ELEMENTS = 4, 20_000
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Step:
    """One instruction: what it computes from which values."""

    kind: str
    operands: tuple[int, ...]
    how: tuple[int, ...] = ()

    def __call__(self, *xs: Any) -> Any:
        return KINDS[self.kind](*xs, *self.how) if self.how else KINDS[self.kind](*xs)


@dataclass(frozen=True)
class RandomProgram:
    """Input shapes and instructions; what nothing reads is returned."""

    shapes: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]

    def results(self) -> list[int]:
        read = {v for step in self.steps for v in step.operands}
        every = range(len(self.shapes), len(self.shapes) + len(self.steps))
        return [v for v in every if v not in read]

    def arguments(self, names: Sequence[str] | None = None) -> dict[str, jax.ShapeDtypeStruct]:
        names = names or [f"x{i}" for i in range(len(self.shapes))]
        structs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in self.shapes]
        return dict(zip(names, structs, strict=True))

    def function(
        self,
        names: Sequence[str] | None = None,
        order: Sequence[int] | None = None,
        wrap: Callable[[int], Wrap] = lambda step: lambda f: f,
        twist: Callable[[int, Any], Any] = lambda step, x: x,
    ) -> Callable[[dict[str, Any]], list[Any]]:
        """The program as a function of a dict of arrays.

        `order` is the order of the steps, `wrap` goes around each, `twist` around its operands.
        """
        names = names or [f"x{i}" for i in range(len(self.shapes))]

        def fn(x: dict[str, Any]) -> list[Any]:
            env = {i: x[name] for i, name in enumerate(names)}
            for n in order or range(len(self.steps)):
                step = self.steps[n]
                operands = [twist(n, env[v]) for v in step.operands]
                env[len(self.shapes) + n] = wrap(n)(step)(*operands)
            return [env[v] for v in self.results()]

        return fn

    def shuffled(self, rng: random.Random) -> list[int]:
        """The steps in another order that respects who reads whom."""
        left, done, order = list(range(len(self.steps))), set(range(len(self.shapes))), []
        while left:
            ready = [n for n in left if set(self.steps[n].operands) <= done]
            n = rng.choice(ready)
            left.remove(n)
            done.add(len(self.shapes) + n)
            order.append(n)
        return order


def _merge(x: Any, d: int) -> Any:
    return x.reshape(*x.shape[:d], x.shape[d] * x.shape[d + 1], *x.shape[d + 2 :])


def _split(x: Any, d: int, head: int) -> Any:
    return x.reshape(*x.shape[:d], head, x.shape[d] // head, *x.shape[d + 1 :])


KINDS: dict[str, Callable[..., Any]] = {
    "sin": jnp.sin,
    "add": jnp.add,
    "mul": jnp.multiply,
    "dot": lambda x, y, d, e: jnp.tensordot(x, y, axes=((d,), (e,))),
    "sum": lambda x, d: jnp.sum(x, axis=d),
    "max": lambda x, d: jnp.max(x, axis=d),
    "transpose": lambda x, *perm: jnp.transpose(x, perm),
    "merge": _merge,
    "split": _split,
    "broadcast": lambda x, d, size: jnp.broadcast_to(
        jnp.expand_dims(x, d), (*x.shape[:d], size, *x.shape[d:])
    ),
}


def random_program(seed: int, length: int = 12, reshapes: bool = True) -> RandomProgram:
    """A random program; the same seed gives the same program."""
    rng = random.Random(seed)
    shapes = tuple(
        tuple(rng.choice(SIZES) for _ in range(rng.randint(1, 3))) for _ in range(rng.randint(2, 4))
    )
    known = list(shapes)
    steps: list[Step] = []
    while len(steps) < length:
        step = _random_step(rng, known, reshapes)
        if step is None:
            continue
        shape = _shape(step, known)
        if len(shape) <= MAX_RANK and math.prod(shape) <= MAX_ELEMENTS:
            steps.append(step)
            known.append(shape)
    return RandomProgram(shapes, tuple(steps))


def _shape(step: Step, known: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of a step's result."""
    shape, how = known[step.operands[0]], step.how
    if step.kind in ("sum", "max"):
        return shape[: how[0]] + shape[how[0] + 1 :]
    if step.kind == "transpose":
        return tuple(shape[d] for d in how)
    if step.kind == "dot":
        other = known[step.operands[1]]
        return shape[: how[0]] + shape[how[0] + 1 :] + other[: how[1]] + other[how[1] + 1 :]
    if step.kind == "merge":
        d = how[0]
        return (*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :])
    if step.kind == "split":
        d, head = how
        return (*shape[:d], head, shape[d] // head, *shape[d + 1 :])
    if step.kind == "broadcast":
        return (*shape[: how[0]], how[1], *shape[how[0] :])
    return shape


def _random_step(rng: random.Random, known: list[tuple[int, ...]], reshapes: bool) -> Step | None:
    """A step that fits the values so far, or None when the dice do not fit."""
    kinds = [k for k in KINDS if reshapes or k not in ("merge", "split")]
    kind, v = rng.choice(kinds), rng.randrange(len(known))
    shape = known[v]
    d = rng.randrange(len(shape)) if shape else 0
    if kind == "sin":
        return Step(kind, (v,))
    if kind in ("add", "mul"):
        alike = [w for w, other in enumerate(known) if other == shape]
        return Step(kind, (v, rng.choice(alike)))
    if kind == "broadcast":
        return Step(kind, (v,), (rng.randint(0, len(shape)), rng.choice(SIZES)))
    if not shape:
        return None
    if kind in ("sum", "max"):
        return Step(kind, (v,), (d,))
    if kind == "transpose":
        return Step(kind, (v,), tuple(rng.sample(range(len(shape)), len(shape))))
    if kind == "dot":
        fits = [(w, e) for w, s in enumerate(known) for e, n in enumerate(s) if n == shape[d]]
        w, e = rng.choice(fits)
        return Step(kind, (v, w), (d, e))
    if kind == "merge":
        return Step(kind, (v,), (d,)) if d + 1 < len(shape) else None
    heads = [h for h in range(2, shape[d]) if shape[d] % h == 0]
    return Step(kind, (v,), (d, rng.choice(heads))) if heads else None
