"""The arguments of a planned function as arrays: placed on devices, made there, loaded in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding
from jax.tree_util import keystr, tree_map_with_path

from shardwright.binding import Bound, call_types, check_arguments, sign_as_asked
from shardwright.errors import ShardwrightError
from shardwright.lowering.jit import sharding
from shardwright.lowering.local import from_local, local_part
from shardwright.lowering.specs import partition_spec
from shardwright.lowering.unchanged import check_types
from shardwright.program.types import format_type
from shardwright.record.types import PlanRecord


def place(
    record: PlanRecord, bound: Bound | None, on: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The arguments of a call on the devices of a mesh; one argument gives one value back."""
    signature = None if bound is None else bound.program.signature
    if signature is None or signature.match(args, kwargs) is None:  # by name, or something else
        signature = sign_as_asked(record, bound.fn if bound else lambda *a, **k: None, args, kwargs)
    leaves = signature.leaves(args, kwargs)
    types, specs = call_types(signature, leaves), record.specs
    if bound is not None:
        check_arguments(record, signature.name, types)
        wanted = [specs[path] for path in signature.paths]
    else:  # the file has no function to say what is called how
        if len(leaves) != len(specs):
            raise ShardwrightError(
                f"the plan has {len(specs)} argument leaves, got {len(leaves)}",
                try_="pass the arguments the plan was made for, all of them and in order",
            )
        check_types(record.arguments, list(types.values()))
        wanted = list(specs.values())
    rows = zip(leaves, wanted, signature.donated, strict=True)
    put = [_put(leaf, NamedSharding(on, partition_spec(s)), own=gone) for leaf, s, gone in rows]
    out, named = signature.call(put)
    if named:
        return out, named
    return out[0] if len(out) == 1 else out


def _put(leaf: Any, place: NamedSharding, *, own: bool) -> Any:
    """A leaf in its sharding, the caller's array itself if it is there and not to be `own`."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)
    if isinstance(leaf, jax.Array) and (own or leaf.sharding != place):
        leaf = jax.numpy.copy(leaf)  # device_put shares buffers that are on their device already
    return jax.device_put(leaf, place)


class Argument(NamedTuple):
    """One positional argument of a planned function; shapes and shardings are trees like it."""

    of: str  # the function
    number: int
    name: str
    shapes: Any
    shardings: Any

    def check_made(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Raises unless `fn(*args)` is such an argument."""
        made, planned = _forms(jax.eval_shape(fn, *args)), _forms(self.shapes)
        if made != planned:
            raise ShardwrightError(
                f"{getattr(fn, '__name__', 'fn')} makes something else than argument {self.number}"
                f" of {self.of} ({self.name})",
                planned=planned, got=made, try_="argnum=..., or plan for what it makes",
            )  # fmt: skip

    def local_part(self) -> Any:
        """Which part of each array this process holds, as slices."""
        return tree_map_with_path(
            lambda path, t, s: local_part(s, t.shape, self.name + keystr(path)),
            self.shapes, self.shardings,
        )  # fmt: skip

    def from_local(self, given: Any) -> Any:
        """Global arrays of which each process gives its part."""
        got: Any = jax.tree.structure(given)
        planned: Any = jax.tree.structure(self.shapes)
        if got != planned:
            raise ShardwrightError(
                f"not what {self.of} takes as {self.name}", planned=planned, got=got,
                try_="argnum=...: which argument it is",
            )  # fmt: skip
        return tree_map_with_path(
            lambda path, x, t, s: from_local(x, s, t.shape, self.name + keystr(path)),
            given, self.shapes, self.shardings,
        )  # fmt: skip


def argument(record: PlanRecord, bound: Bound, argnum: int, on: Any) -> Argument:
    """The positional argument of this number; raises where there is none."""
    program, signature = bound.program, bound.program.signature
    wanted, _ = signature.call([sharding(on, spec) for spec in bound.steps.inputs])
    inputs = [program.values[v].type for v in program.inputs]
    planned, _ = signature.call([jax.ShapeDtypeStruct(t.shape, t.dtype) for t in inputs])
    if not -len(wanted) <= argnum < len(wanted):
        raise ShardwrightError(
            f"{signature.name} has no argument {argnum}", try_=f"argnum from 0 to {len(wanted) - 1}"
        )
    name = signature.arguments[argnum]
    return Argument(record.program, argnum, name, planned[argnum], wanted[argnum])


def _forms(tree: Any) -> Any:
    """The tree with the type of each array in its place."""
    return jax.tree.map(lambda x: format_type(x) if hasattr(x, "dtype") else x, tree)
