"""One seed, one case: a random program, what it is called with, and where it is to run."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.fuzz import (  # noqa: F401  they fill the table
    indexing,
    later,
    nesting,
    numeric,
    shapes,
    slices,
    windows,
)
from tests.fuzz.scope import (
    KINDS,
    NAMESPACE,
    Argument,
    NoOperand,
    Scope,
    Value,
    add_line,
    grow,
    indent,
    rows_of,
)  # fmt: skip

MESHES: tuple[dict[str, int], ...] = (
    {"x": 2}, {"x": 4}, {"x": 8}, {"x": 4, "y": 2}, {"x": 2, "y": 4}, {"x": 2, "y": 2, "z": 2},
    {"x": 3}, {"x": 3, "y": 2}, {"x": 2, "y": 3}, {"x": 6},
)  # fmt: skip
DEVICES = ("balanced", "slow links", "fast links", "h100")
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 13, 16, 18, 24, 29, 30, 32)
LARGE = (32, 48, 64, 96, 100, 128, 192, 256)  # so that what moves exceeds 8 kB
ALONE = 5  # every fifth seed is a program of one line, by each row of the table in turn
NARROW = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
WIDE = 0.08  # of the programs have 64-bit numbers
FOUND, RANDOM, PINNED = "found", "random state", "pinned"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program as source, its arguments, a mesh and what is to be planned."""

    seed: int
    source: str  # defines `program`
    arguments: tuple[Argument, ...]
    mesh: dict[str, int]
    device: str  # of DEVICES
    how: str  # FOUND, RANDOM or PINNED
    pins: tuple[tuple[str, int, str], ...] = ()  # (argument, dim, axis)
    donated: tuple[int, ...] = ()
    x64: bool = False  # whether JAX has 64-bit numbers

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(row: dict[str, Any]) -> Case:
        """The case that to_dict() was asked of, also after JSON made lists of its tuples."""
        arguments = tuple(Argument(a[0], tuple(a[1]), *a[2:]) for a in row["arguments"])
        pins = tuple((n, d, a) for n, d, a in row["pins"])
        return Case(**{**row, "arguments": arguments, "pins": pins, "donated": (*row["donated"],)})

    def widened(self) -> list[Case]:
        """The same program with f32 wherever it has narrower floats, and with f64 for all."""
        wider = [self]
        for narrow, wide, x64 in ((NARROW, "float32", self.x64), (("float32",), "float64", True)):
            case = replace(wider[-1]._with_floats(narrow, wide), x64=x64)
            if case != wider[-1]:
                wider.append(case)
        return wider[1:]

    def _with_floats(self, narrow: Sequence[str], wide: str) -> Case:
        arguments = tuple(
            a._replace(dtype=wide) if a.dtype in narrow else a for a in self.arguments
        )
        source = re.sub("|".join(narrow), wide, self.source)
        return replace(self, source=source, arguments=arguments)

    def settings(self) -> AbstractContextManager[Any]:
        """JAX as the case has it; it is made, planned and run inside."""
        return jax.enable_x64(self.x64)

    def function(self) -> Callable[..., Any]:
        """The program, with its source where tracebacks and plans look for it."""
        file = f"<fuzz {self.seed}>"
        linecache.cache[file] = (len(self.source), None, self.source.splitlines(True), file)
        space = dict(NAMESPACE)
        exec(compile(self.source, file, "exec"), space)
        return space["program"]

    def types(self) -> list[Any]:
        return [jax.ShapeDtypeStruct(a.shape, jnp.dtype(a.dtype)) for a in self.arguments]

    def inputs(self, seed: int = 0) -> list[np.ndarray]:
        """Normal floats, some with ties; integers of their range, its borders more often."""
        rng = np.random.default_rng([self.seed, seed])
        ties = rng.random() < 0.2
        made = []
        for a in self.arguments:
            if KINDS[a.dtype] == "i":
                drawn = rng.integers(a.low, a.high, a.shape)
                border = rng.choice([a.low, a.high - 1, 0], a.shape)
                drawn = np.where(rng.random(a.shape) < 0.3, border, drawn)
            elif KINDS[a.dtype] == "b":
                drawn = rng.random(a.shape) < 0.5
            elif a.dtype in ("int4", "uint4"):
                drawn = rng.integers(-8 if a.dtype == "int4" else 0, 8, a.shape)
            else:
                drawn = 0.6 * rng.standard_normal(a.shape)
                drawn = np.round(drawn * 4) / 4 if ties else drawn
            made.append(np.asarray(drawn).astype(jnp.dtype(a.dtype)))
        return made

    def __str__(self) -> str:
        """The case as a reader needs it to run it again."""
        rows = [
            f"#   {a.name}: {a.dtype}{list(a.shape)}"
            + (f" from {a.low} to {a.high - 1}" if KINDS[a.dtype] == "i" else "")
            for a in self.arguments
        ]
        pins = "".join(f", Pin({n!r}, {d}, {a!r})" for n, d, a in self.pins)
        donated = f", donate_argnums={self.donated}" if self.donated else ""
        wide = ", x64" if self.x64 else ""
        head = f"# seed {self.seed}: mesh {self.mesh}, {self.device}, {self.how}{wide}"
        head += f"{pins}{donated}"
        return "\n".join([head, *rows, self.source])


def generate(seed: int) -> Case:
    """The case of a seed."""
    rng = np.random.default_rng(seed)
    for attempt in range(20):
        try:
            x64 = bool(rng.random() < WIDE)
            with jax.enable_x64(x64):
                return _generate(rng, seed, x64, attempt > 14)
        except (
            AssertionError,  # of JAX, where a derivative has another dtype (640860)
            AttributeError,
            KeyError,  # of JAX, which loses a variable in some derivatives (161783)
            NoOperand,
            ValueError,
            TypeError,
            NotImplementedError,
        ):  # too large, or no gradient
            if attempt == 19:
                raise
    raise AssertionError("unreachable")


def _generate(rng: np.random.Generator, seed: int, x64: bool, again: bool) -> Case:
    """`again`: after many failures, for a row that does not suit small programs."""
    sizes = tuple(int(n) for n in rng.choice(SIZES, 3, replace=False))
    large = rng.random() < 0.6
    if large:
        sizes = (*(int(n) for n in rng.choice(LARGE, 2)), sizes[0])
    if rng.random() < (0.05 if seed >= later.SINCE else 0.02):
        sizes = (*sizes, 0)
    scope = Scope(rng, sizes, [], [], max_elements=1 << (17 if large else 14), seed=seed)
    if seed >= later.SINCE and scope.chance(0.4):
        scope.max_depth = 3
    if rng.random() < 0.1:
        scope.float_dtype = str(rng.choice(["bfloat16", "float16"]))
    elif x64 and rng.random() < 0.7:
        scope.float_dtype = "float64"
    for _ in range(scope.integer(1, 3)):
        scope.argument(tuple(scope.size() for _ in range(scope.one(1, 2, 2, 2, 3))))
    if seed % ALONE == 0 and not again:
        rows = rows_of(seed)
        add_line(scope, rows[seed // ALONE % len(rows)].build(scope))
    else:
        grow(scope, scope.one(1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9))
    results = _unread(scope, [v for v in scope.values if v.name.startswith("v")])
    source, arguments, donated = _write(scope, results)
    mesh = MESHES[int(rng.integers(len(MESHES)))]
    device = str(rng.choice(DEVICES, p=[0.4, 0.15, 0.35, 0.1]))
    how = str(rng.choice([FOUND, RANDOM, PINNED], p=[0.6, 0.22, 0.18]))
    pins = _pins(scope, mesh, arguments) if how == PINNED else ()
    case = Case(
        seed=seed, source=source, arguments=arguments, mesh=mesh, device=device,
        how=how if pins or how != PINNED else FOUND, pins=pins, donated=donated, x64=x64,
    )  # fmt: skip
    jax.eval_shape(case.function(), *case.types())
    return case


def _unread(scope: Scope, values: list[Value]) -> list[Value]:
    """Values that no line reads; they are returned."""
    text = "\n".join(scope.lines)
    found = [v for v in values if len(re.findall(rf"\b{v.name}\b", text)) == 1]
    return found[-4:] or values[-1:]


def _write(scope: Scope, results: list[Value]) -> tuple[str, tuple[Argument, ...], tuple[int, ...]]:
    """(source, arguments, donated): the lines as a program, or as the gradient of one."""
    text = "\n".join(scope.lines)
    used = tuple(a for a in scope.arguments if re.search(rf"\b{a.name}\b", text))
    if not used or not results:
        raise ValueError("nothing is computed")
    names = [a.name for a in used]
    head, lines = f"def program({', '.join(names)}):", [indent(line) for line in scope.lines]
    floats = [v for v in results if v.kind == "f"]
    wanted = [n for n, a in enumerate(used) if KINDS[a.dtype] == "f"]
    if not floats or not wanted or scope.chance(0.45):
        plain = [head, *lines, f"    return {', '.join(v.name for v in results)}"]
        return "\n".join(plain) + "\n", used, ()
    terms = " + ".join(f"jnp.sum(jnp.sin({v})).astype(jnp.float32)" for v in floats)
    argnums = tuple(wanted) if scope.chance(0.6) else (int(scope.rng.choice(wanted)),)
    kind = scope.one("grad", "grad", "grad", "value_and_grad", "step")
    grads = f"jax.{'grad' if kind == 'step' else kind}(loss, {argnums})({', '.join(names)})"
    body = [
        head, f"    def loss({', '.join(names)}):", *(indent(line) for line in lines),
        f"        return {terms}",
    ]  # fmt: skip
    if kind != "step":
        return "\n".join([*body, f"    return {grads}"]) + "\n", used, ()
    moved = ", ".join(f"{names[n]} - 0.1 * g[{i}]" for i, n in enumerate(argnums))
    body += [f"    g = {grads}", f"    return {moved},"]
    return "\n".join(body) + "\n", used, argnums if scope.chance(0.5) else ()


def _pins(
    scope: Scope, mesh: dict[str, int], arguments: tuple[Argument, ...]
) -> tuple[tuple[str, int, str], ...]:
    """One or two pins of argument dims that the axis divides."""
    free = [
        (a.name, d, axis)
        for a in arguments
        for d, n in enumerate(a.shape)
        for axis, size in mesh.items()
        if n and n % size == 0
    ]
    pins: dict[str, tuple[str, int, str]] = {}  # by axis
    for n in scope.rng.permutation(len(free))[: scope.integer(1, 2)]:
        name, d, axis = free[int(n)]
        if all((name, d) != p[:2] for p in pins.values()):
            pins.setdefault(axis, (name, d, axis))
    return tuple(pins.values())
