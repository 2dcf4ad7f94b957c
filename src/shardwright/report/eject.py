"""The plan as a Python file that needs no Shardwright."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.analysis.labels import any_index
from shardwright.errors import ShardwrightError
from shardwright.record.types import PlanRecord
from shardwright.report.words import spec_text

_PROSE = re.compile(r"[\w<>. =-]*")  # text that ends no comment and no docstring

# {name}, {fn} and {mesh} are prose and stand bare; everything else is the repr of a value.
SNIPPET = '''"""How {name} is split over {mesh} ({count} devices). Needs only JAX.

Arguments and results are split as planned; what lies between them is left to XLA, which may
choose otherwise than the plan (Shardwright's `plan.jit` also pins the inside).

    mesh = make_mesh()
    args = place(mesh, *args)            # arrays on their devices
    step = jit({fn}, mesh, *args)
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


def named(args, kwargs):
    """The arguments of a call by name; static ones left out."""
    rows = enumerate(zip(ARGUMENTS, args, strict=True))
    return {{name: arg for i, (name, arg) in rows if i not in STATIC}} | kwargs


def unnamed(given, args, kwargs):
    """(args, kwargs) like these with what is given by name; the inverse of `named`."""
    rows = enumerate(zip(ARGUMENTS, args, strict=True))
    again = tuple(arg if i in STATIC else given[name] for i, (name, arg) in rows)
    return again, {{name: given[name] for name in kwargs}}


def find(mesh, specs, path, leaf):
    """The sharding of one leaf of a dict by name; None when it is no array."""
    if not hasattr(leaf, "shape") and not isinstance(leaf, (bool, int, float, complex)):
        return None
    name = path[0].key + jax.tree_util.keystr(path[1:])
    for name in (name, name.removesuffix(".value")):  # Flax keeps arrays in boxes
        for known in (name, re.sub(r"\\[\\d+\\]", "[*]", name)):
            if known in specs:
                return NamedSharding(mesh, specs[known])
    return None


def shardings(mesh, specs, tree):
    """Where the leaves of a dict by name are."""
    return jax.tree_util.tree_map_with_path(lambda *leaf: find(mesh, specs, *leaf), tree)


def in_shardings(mesh, *args):
    """Shardings for jax.jit: one tree per argument that is not static."""
    given = named(args, {{}})
    found = shardings(mesh, SPECS, given)
    return tuple(found[name] for name in given)


def place(mesh, *args, **kwargs):
    """The arguments on their devices; (args, kwargs) if there are keyword arguments."""
    donated = [ARGUMENTS[i] for i in DONATED]

    def put(path, leaf):
        sharding = find(mesh, SPECS, path, leaf)
        if sharding is None:
            return leaf
        if isinstance(leaf, jax.Array) and (path[0].key in donated or leaf.sharding != sharding):
            leaf = jax.numpy.copy(leaf)  # device_put may share buffers: the caller's arrays stay
        return jax.device_put(leaf, sharding)

    placed = jax.tree_util.tree_map_with_path(put, named(args, kwargs))
    args, kwargs = unnamed(placed, args, kwargs)
    return (args, kwargs) if kwargs else args


def jit(fn, mesh, *args, **kwargs):
    """`fn` jitted for calls like this one (with arrays, or with their shapes)."""
    rows, tree = jax.tree_util.tree_flatten_with_path(named(args, kwargs))
    places = [find(mesh, SPECS, path, leaf) for path, leaf in rows]
    donated = [ARGUMENTS[i] for i in DONATED]

    def arrays(args, kwargs):
        leaves = jax.tree_util.tree_leaves(named(args, kwargs))
        return [leaf for leaf, place in zip(leaves, places, strict=True) if place is not None]

    def call(*given):
        given, known = iter(given), zip(rows, places, strict=True)
        leaves = [leaf if place is None else next(given) for (_, leaf), place in known]
        again, more = unnamed(jax.tree_util.tree_unflatten(tree, leaves), args, kwargs)
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):  # its axes may be named inside
            return fn(*again, **more)

    result = jax.eval_shape(call, *arrays(args, kwargs))
    known = zip(rows, places, strict=True)
    owners = [path[0].key for (path, _), place in known if place is not None]
    step = jax.jit(
        call,
        in_shardings=[place for place in places if place is not None],
        out_shardings=shardings(mesh, RESULTS, {{"result": result}})["result"],
        donate_argnums=[i for i, name in enumerate(owners) if name in donated],
    )
    return lambda *args, **kwargs: step(*arrays(args, kwargs))
'''


def to_python(record: PlanRecord) -> str:
    """A self-contained module with the mesh, the specs by path, and how to use them."""
    call, program = record.call, record.program
    if call is None:
        raise ShardwrightError(
            f"the file of this plan does not say how {program} is called: it is of version 1",
            try_="plan.bind(fn, *args).to_python(), or plan again and save",
        )
    updated = [path for path in record.results if not path.startswith("result")]
    if updated:
        raise ShardwrightError(
            f"{program} updates {updated[0]} in place, which jax.jit alone does not",
            try_="plan.jit(fn), or a function that returns what it updates",
        )
    return SNIPPET.format(
        name=_prose(program, "the function"), fn=program if program.isidentifier() else "fn",
        mesh=_prose(str(record.mesh), "the axes below"), count=record.mesh.size,
        axes=record.mesh.shape, arguments=call.arguments, static=call.static,
        donated=call.donated, specs=_table(record.specs), results=_table(record.result_specs),
    )  # fmt: skip


def _prose(text: str, otherwise: str) -> str:
    """A name from the plan where it is only read; another word for one that is not plain."""
    return text if _PROSE.fullmatch(text) else otherwise


def starred(specs: Mapping[str, Any]) -> dict[str, Any]:
    """The same by path, with the indices of paths starred where all that match are equal."""
    alike: dict[str, list[str]] = {}
    for path in specs:
        alike.setdefault(any_index(path), []).append(path)
    out: dict[str, Any] = {}
    for star, paths in alike.items():
        if len(paths) > 1 and all(specs[p] == specs[paths[0]] for p in paths):
            out[star] = specs[paths[0]]
        else:
            out.update({p: specs[p] for p in paths})
    return out


def _table(specs: Mapping[str, Sequence[Sequence[str]]]) -> str:
    return "\n".join(f"    {path!r}: {spec_text(spec)}," for path, spec in starred(specs).items())
