"""The plan as a Python file that needs no Shardwright."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.report.facts import Record, mesh_sizes, mesh_text
from shardwright.report.words import spec_text

_INDEX = re.compile(r"\[\d+\]")

SNIPPET = '''"""How {name} is split over {mesh} ({count} devices). Needs only JAX.

Arguments and results are split as planned; what lies between them is left to XLA, which may
choose otherwise than the plan (Shardwright's `plan.jit` also pins the inside).

    mesh = make_mesh()
    args = place(mesh, *args)            # arrays on their devices
    step = jit({name}, mesh, *args)
    results = step(*args)
"""

import re

import jax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

AXES = {axes!r}
ARGUMENTS = {arguments!r}  # of {name}, in order
STATIC, DONATED = {static!r}, {donated!r}  # positions of arguments

# By path; [*] stands for any number.
SPECS = {{
{specs}
}}
RESULTS = {{
{results}
}}


def make_mesh(devices=None):
    """The mesh, of all devices or of those given."""
    sizes, types = tuple(AXES.values()), (AxisType.Auto,) * len(AXES)
    return jax.make_mesh(sizes, tuple(AXES), axis_types=types, devices=devices)


def shardings(mesh, specs, root, tree):
    """A tree of NamedSharding like `tree`, whose leaves have paths that begin with `root`."""

    def find(path, _leaf):
        name = root + jax.tree_util.keystr(path)
        spec = specs.get(name)
        if spec is None:
            spec = specs[re.sub(r"\\[\\d+\\]", "[*]", name)]
        return NamedSharding(mesh, spec)

    return jax.tree_util.tree_map_with_path(find, tree)


def in_shardings(mesh, *args):
    """Shardings for jax.jit: one tree per argument that is not static."""
    return tuple(
        shardings(mesh, SPECS, root, arg)
        for i, (root, arg) in enumerate(zip(ARGUMENTS, args, strict=True))
        if i not in STATIC
    )


def place(mesh, *args):
    """The arguments on their devices."""
    arrays = [arg for i, arg in enumerate(args) if i not in STATIC]
    placed = iter(jax.device_put(arrays, list(in_shardings(mesh, *args))))
    return tuple(arg if i in STATIC else next(placed) for i, arg in enumerate(args))


def jit(fn, mesh, *args):
    """`fn` jitted for these arguments (arrays, or their shapes)."""
    known = [arg for i, arg in enumerate(args) if i not in STATIC]

    def call(*arrays):
        rest = iter(arrays)
        return fn(*(arg if i in STATIC else next(rest) for i, arg in enumerate(args)))

    results = shardings(mesh, RESULTS, "result", jax.eval_shape(call, *known))
    return jax.jit(
        fn,
        in_shardings=in_shardings(mesh, *args),
        out_shardings=results,
        static_argnums=STATIC,
        donate_argnums=DONATED,
    )
'''


def to_python(record: Record) -> str:
    """A self-contained module with the mesh, the specs by path, and how to use them."""
    sizes = mesh_sizes(record)
    count = 1
    for size in sizes.values():
        count *= size
    options = record["options"]
    return SNIPPET.format(
        name=record["program"], mesh=mesh_text(record), count=count, axes=sizes,
        arguments=tuple(argument_names(record)), static=tuple(options["static_argnums"]),
        donated=tuple(options["donate_argnums"]), specs=_table(record["specs"]),
        results=_table(record["result_specs"]),
    )  # fmt: skip


def argument_names(record: Record) -> list[str]:
    """The names of the positional arguments, in order; static ones, of which no path tells, as ?"""
    static = set(record["options"]["static_argnums"])
    named = iter(dict.fromkeys(_root(path) for path in record["arguments"]))
    names: list[str] = []
    for name in named:
        while len(names) in static:
            names.append("?")
        names.append(name)
    while len(names) in static:
        names.append("?")
    return names


def _root(path: str) -> str:
    """The argument's name: batch of batch['x'], args[0] of args[0]['x']."""
    found = re.match(r"args\[\d+\]|[^.\[]+", path)
    return found.group(0) if found else path


def starred(specs: Mapping[str, Any]) -> dict[str, Any]:
    """The same by path, with the indices of paths starred where all that match are equal."""
    alike: dict[str, list[str]] = {}
    for path in specs:
        alike.setdefault(_INDEX.sub("[*]", path), []).append(path)
    out: dict[str, Any] = {}
    for star, paths in alike.items():
        if len(paths) > 1 and all(specs[p] == specs[paths[0]] for p in paths):
            out[star] = specs[paths[0]]
        else:
            out.update({p: specs[p] for p in paths})
    return out


def _table(specs: Mapping[str, Sequence[Sequence[str]]]) -> str:
    return "\n".join(f"    {path!r}: {spec_text(spec)}," for path, spec in starred(specs).items())
