"""What Flax, Equinox and Keras add to pytrees: objects updated in place, boxes, leaves not data.

Modules, optimisers and RNG streams of flax.nnx are references: a step changes them and returns the
loss alone. At the border of a program they are split into a graph and its arrays, inside it they
are merged again, and what the function made of them comes back as results: as nnx.jit does it, by
the same functions.

Modules of Equinox are pytrees, and what is no array in them is static, as under eqx.filter_jit.

Models of Keras are no arguments: their state is passed and returned by `stateless_call`.

None of them is imported here: who passes its objects has imported it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax.tree_util import GetAttrKey, SequenceKey

from shardwright.program.leaves import is_array

TAG = "shardwright"  # of the update contexts of nnx that are opened here
KeyPath = tuple[Any, ...]
Rules = tuple[Any, ...]  # (logical axis, axis of a mesh, or several, or None)


@dataclass(frozen=True)
class Split:
    """An object of nnx, taken apart: a pytree of its arrays."""

    graph: Any
    arrays: Any


_ARRAYS = GetAttrKey("<arrays>")  # the step of a path into a Split
jax.tree_util.register_pytree_with_keys(
    Split,
    lambda split: (((_ARRAYS, split.arrays),), split.graph),
    lambda graph, children: Split(graph, *children),
)


def _nnx() -> Any:
    """flax.nnx if somebody has imported it, else None."""
    return sys.modules.get("flax.nnx")


def _is_reference(node: Any) -> bool:
    """Whether a node is a module, a variable, or another object that nnx updates in place."""
    return isinstance(node, _nnx().Variable) or _nnx().graph.is_graph_node(node)


def _is_node(node: Any) -> bool:
    """Whether a node is not looked into; a State is passed by those who thread it themselves."""
    return _is_reference(node) or isinstance(node, _nnx().State | Split)


def _has(kind: Callable[[Any], bool], tree: Any) -> bool:
    return _nnx() is not None and any(map(kind, jax.tree.leaves(tree, is_leaf=_is_node)))


def without_references(tree: Any) -> Any:
    """The tree with None for each object that nnx updates in place."""
    if _nnx() is None:
        return tree
    return jax.tree.map(lambda x: None if _is_reference(x) else x, tree, is_leaf=_is_node)


def has_split(tree: Any) -> bool:
    """Whether a tree holds objects of nnx that split() has taken apart."""
    return _has(lambda node: isinstance(node, Split), tree)


def updating() -> contextlib.AbstractContextManager[Any]:
    """A context in which write_back() knows the objects that split() was given."""
    return contextlib.nullcontext() if _nnx() is None else _nnx().update_context(TAG)


def _tag() -> str | None:
    """The tag of the update context around, if there is one."""
    try:
        return _nnx().current_update_context(TAG).tag
    except ValueError:
        return None


def split(tree: Any) -> Any:
    """The tree with each object of nnx as its graph and arrays; a shared array is there once."""
    if not _has(_is_reference, tree):
        return tree
    with _nnx().split_context(_tag()) as context:
        return jax.tree.map(
            lambda x: Split(*context.split(x)) if _is_reference(x) else x, tree, is_leaf=_is_node
        )


def merge(tree: Any) -> Any:
    """The inverse of split(), with new objects."""
    return _merge(tree, None, None)


def write_back(tree: Any) -> Any:
    """The inverse of split() with the objects it was given, updated in place."""
    return _merge(tree, TAG, False)


def _merge(tree: Any, tag: str | None, inner: bool | None) -> Any:
    if not has_split(tree):
        return tree
    with _nnx().merge_context(tag, inner) as context:
        return jax.tree.map(
            lambda x: context.merge(x.graph, x.arrays) if isinstance(x, Split) else x,
            tree, is_leaf=_is_node,
        )  # fmt: skip


def run(fn: Callable[[Any], Any], arrays: Any) -> tuple[Any, Any]:
    """(what `fn` leaves behind, the same as split) of a call with arguments that are split.

    That is (arguments, result), with None for each argument that is no object of nnx.
    """
    if not has_split(arrays):
        made = None, fn(arrays)
        return made, split(made)
    with updating():
        call = _merge(arrays, TAG, True)
        result = fn(call)
        left = jax.tree.map(lambda x: x if _is_reference(x) else None, call, is_leaf=_is_node)
        return (left, result), split((left, result))


def plain_function(fn: Any) -> Any:
    """The function inside nnx.jit, which would pass what it does not change through a call."""
    if type(fn).__name__ != "JitWrapped" or not type(fn).__module__.startswith("flax.nnx"):
        return fn
    return fn if fn.in_shardings or fn.out_shardings else fn.fun


def jitted(fn: Any) -> Any:
    """The jitted function of jax inside one of nnx, which keeps the options; or the function."""
    return getattr(fn, "jitted_fn", fn) if type(fn).__module__.startswith("flax.nnx") else fn


def is_filtered(fn: Any) -> bool:
    """Whether a function is jitted by eqx.filter_jit: whatever is no array is static."""
    return type(fn).__name__ == "_JitWrapper" and type(fn).__module__.startswith("equinox.")


def filter_donated(fn: Any, count: int) -> set[int]:
    """The positions among `count` arguments that eqx.filter_jit was told to donate."""
    if not is_filtered(fn):
        return set()
    return {i for i in range(count) if (fn.donate_rest if i else fn.donate_first)}


def data_leaves(tree: Any, *, filtered: bool) -> list[bool]:
    """For each leaf whether it is data; a number in a module of Equinox, or `filtered`, is not."""
    equinox = sys.modules.get("equinox")

    def is_module(node: Any) -> bool:
        return equinox is not None and isinstance(node, equinox.Module)

    return [
        is_array(leaf) and (hasattr(leaf, "dtype") or not (filtered or is_module(node)))
        for node in jax.tree.leaves(tree, is_leaf=is_module)
        for leaf in jax.tree.leaves(node)
    ]


def keras_variables(thing: Any) -> dict[str, Any]:
    """{path: array} of the variables of a model, layer, optimiser or metric of Keras, or of one."""
    if not any(c.__module__.startswith("keras.") for c in type(thing).__mro__):
        return {}
    one = isinstance(thing, sys.modules["keras"].Variable)
    variables = [thing] if one else getattr(thing, "variables", ())
    return {v.path: v.value for v in variables}


def logical_rules() -> Rules:
    """Flax's rules from logical axes to those of a mesh that are set around."""
    spmd = sys.modules.get("flax.core.spmd")
    return () if spmd is None else tuple(spmd.get_logical_axis_rules())


def under_rules(rules: Rules) -> contextlib.AbstractContextManager[Any]:
    """A context in which these rules are set."""
    if not rules:
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[Any]
    context = sys.modules["flax.core.spmd"].logical_axis_rules(rules)
    return context


def named_axes(tree: Any) -> tuple[str, ...]:
    """The axes, logical or of a mesh, that boxes of Flax around arrays name."""
    boxes = (x for x in jax.tree.leaves(tree, is_leaf=_is_box) if _is_box(x))
    names = (n for box in boxes for n in getattr(box, "names", None) or () if isinstance(n, str))
    return tuple(dict.fromkeys(names))


def split_paths(tree: Any, arrays: Any) -> Iterator[KeyPath]:
    """The path of every leaf of split(tree), as it is called in the tree."""
    if not has_split(arrays):
        yield from leaf_paths(arrays)
        return
    called = {tuple(map(_key, path)): path for path in leaf_paths(tree)}
    for path in leaf_paths(arrays):
        at = next((i for i, entry in enumerate(path) if entry is _ARRAYS), None)
        if at is None:
            yield path
            continue
        inner = tuple(map(_key, path[at + 1 :]))
        words = [GetAttrKey(k) if isinstance(k, str) else SequenceKey(k) for k in inner]
        keys = (*map(_key, path[:at]), *inner)
        yield called.get(keys, (*path[:at], *words))


def _key(entry: Any) -> Any:
    """A step of a path without its kind: .w, ['w'] and [0] as "w", "w" and 0."""
    for name in ("key", "idx", "name"):
        if hasattr(entry, name):
            return getattr(entry, name)
    return entry


def leaf_paths(tree: Any) -> Iterator[KeyPath]:
    """The path of every leaf, as a user would write it: through a box, not into it."""
    for path, node in jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_box)[0]:
        if not _is_box(node):
            yield path
            continue
        for inner, _ in jax.tree_util.tree_flatten_with_path(node)[0]:
            opened = bool(inner) and getattr(inner[0], "name", None) == "value"
            yield (*path, *inner[opened:])


def _is_box(node: Any) -> bool:
    """Whether a node is Flax's box around an array: a Variable of nnx, metadata of linen."""
    return any(
        c.__name__ in ("Variable", "AxisMetadata") and c.__module__.startswith("flax.")
        for c in type(node).__mro__
    )
