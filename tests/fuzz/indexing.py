"""Rows that read and write by index: gathers and scatters with all kinds of dimension numbers."""

from __future__ import annotations

from typing import NamedTuple

from tests.fuzz.scope import NoOperand, Scope, row


def _mode(s: Scope) -> str:
    """What an index out of range means."""
    return s.one("mode='clip'", "mode='wrap'", "mode='fill', fill_value=0")


@row("take", 3)
def _take(s: Scope) -> str:
    x = s.pick("fi", (1, 3))
    d = s.dim(x)
    shape = tuple(s.size() for _ in range(s.integer(0, 2)))
    return f"jnp.take({x}, {s.indices(shape, x.shape[d])}, axis={d}, {_mode(s)})"


@row("take_along_axis", 2)
def _take_along_axis(s: Scope) -> str:
    x = s.pick("fi", (1, 3))
    d = s.dim(x)
    shape = list(x.shape)
    shape[d] = s.one(1, x.shape[d], s.size())
    mode = s.one("'clip'", "'fill', fill_value=0")
    index = s.indices(tuple(shape), x.shape[d])
    return f"jnp.take_along_axis({x}, {index}, axis={d}, mode={mode})"


@row("pick_by_row", 2)
def _pick_by_row(s: Scope) -> str:
    """x[arange(B), i]: the batch dim is an index as well."""
    x = s.pick("fi", (2, 3))
    return f"{x}[jnp.arange({x.shape[0]}), {s.indices((x.shape[0],), x.shape[1])}]"


@row("index", 1.5)
def _index(s: Scope) -> str:
    """NumPy's ways to index by arrays, apart and together, before and after slices."""
    x = s.pick("fi", (2, 4))
    n = s.size()
    i, j = s.indices((n,), x.shape[0]), s.indices((n,), x.shape[1])
    ways = [f"{x}[{i}]", f"{x}[:, {j}]", f"{x}[{i}, {j}]", f"{x}[{i}[:, None], {j}[None, :]]"]
    if len(x.shape) > 2:
        ways += [f"{x}[{i}, :, {s.indices((n,), x.shape[2])}]", f"{x}[:, {j}, ::2]"]
    return s.one(*ways)


@row("one_hot", 0.8)
def _one_hot(s: Scope) -> str:
    n = s.size()
    return f"jax.nn.one_hot({s.indices((s.size(),), n)}, {n})"


@row("lookup_rows", 1.5)
def _lookup_rows(s: Scope) -> str:
    """An embedding table: the entries of the table are an argument of their own."""
    table = s.argument((s.size(), s.size()))
    shape = (s.size(),) if s.chance(0.5) else (s.size(), s.size())
    return f"{table}[{s.indices(shape, table.shape[0])}]"


@row("at_rows", 3)
def _at_rows(s: Scope) -> str:
    """x.at[i].set/add/max/mul of rows, or of one entry in each row."""
    x = s.pick("f", (1, 3))
    how = s.one("set", "add", "add", "max", "min", "multiply")
    n = s.size()
    # Which of two updates of one entry is kept is not defined: set only distinct ones.
    if how == "set":
        n = min(n, x.shape[0])
        start = s.indices((), x.shape[0])
        i = f"(({start} + jnp.arange({n})) % {x.shape[0]})"
    else:
        i = s.indices((n,), x.shape[0])
    updates = s.argument((n, *x.shape[1:]), x.dtype)
    mode = s.one("", ", mode='drop'", ", mode='clip'") if how != "set" else ""
    return f"{x}.at[{i}].{how}({updates}{mode})"


@row("at_columns", 1.5)
def _at_columns(s: Scope) -> str:
    x = s.pick("f", (2, 3))
    how = s.one("add", "max", "set")
    ways = [f"{x}.at[jnp.arange({x.shape[0]}), {s.indices((x.shape[0],), x.shape[1])}]"]
    shape: tuple[int, ...] = (x.shape[0], *x.shape[2:])
    if how == "add":
        n = s.size()
        ways.append(f"{x}.at[:, {s.indices((n,), x.shape[1])}]")
        shape = (x.shape[0], n, *x.shape[2:]) if s.chance(0.5) else shape
    which = 1 if len(shape) == len(x.shape) else 0
    return f"{ways[which]}.{how}({s.argument(shape, x.dtype)})"


@row("at_slice", 1)
def _at_slice(s: Scope) -> str:
    x = s.pick("f", (1, 3))
    part = s.one("0", "-1", ":1", "1:", "::2")
    how = s.one("set", "add", "multiply")
    return f"{x}.at[{part}].{how}(0.5)"


@row("segment_sum", 2.5)
def _segment_sum(s: Scope) -> str:
    x = s.pick("f", (1, 3))
    n = s.size()
    how = s.one("sum", "sum", "max", "min")
    segments = s.indices((x.shape[0],), n)
    text = f"jax.ops.segment_{how}({x}, {segments}, num_segments={n})"
    return text if how == "sum" else f"jnp.clip({text}, -2, 2)"  # none is infinite


@row("bincount", 2)
def _bincount(s: Scope) -> str:
    entries, n = s.size(), s.size()
    weights = ""
    if s.chance(0.5):
        x = s.pick("f", (1, 1))
        entries, weights = x.shape[0], f", weights={x}"
    return f"jnp.bincount({s.indices((entries,), n)}{weights}, length={n})"


@row("scatter_add_2d", 1)
def _scatter_add_2d(s: Scope) -> str:
    """Updates at (i, j) pairs, into something made in the program."""
    a, b, n = s.size(), s.size(), s.size()
    x = s.argument((n,))
    i, j = s.indices((n,), a), s.indices((n,), b)
    return f"jnp.zeros(({a}, {b})).at[{i}, {j}].add({x})"


class Window(NamedTuple):
    """Which entries of an operand one index vector names, in any order of dims."""

    batch: tuple[int, ...]  # operand dims that are dims of the indices too
    indexed: tuple[int, ...]  # operand dims that components of an index vector say
    sizes: tuple[int, ...]  # of a slice of the operand
    dropped: tuple[int, ...]  # dims of slices that have size 1 and are left out
    indices: tuple[int, ...]  # shape of all index vectors
    offset: tuple[int, ...]  # where the dims of a slice are in the result
    result: tuple[int, ...]

    @property
    def rows(self) -> tuple[int, ...]:
        """The dims of the indices that walk along batch dims: the first ones."""
        return tuple(range(len(self.batch)))


def _window(s: Scope, shape: tuple[int, ...]) -> Window:
    """Random dimension numbers of a gather, or of the scatter that is its inverse."""
    dims = [int(d) for d in s.rng.permutation(len(shape))]
    batch = tuple(sorted(dims[: s.one(0, 0, 1)])) if len(shape) > 1 else ()
    free = [d for d in dims if d not in batch]
    indexed = tuple(free[: s.integer(1, len(free))])
    sizes = tuple(
        1 if d in batch
        else s.one(1, 1, n, s.integer(1, n)) if d in indexed
        else s.one(n, n, s.integer(1, n))
        for d, n in enumerate(shape)
    )  # fmt: skip
    dropped = tuple(
        d for d, n in enumerate(sizes) if n == 1 and d not in batch and s.chance(0.6)
    )  # fmt: skip
    over = tuple(s.size() for _ in range(s.one(0, 1, 1, 2)))
    rows = (*(shape[d] for d in batch), *over)
    kept = [n for d, n in enumerate(sizes) if d not in (*batch, *dropped)]
    rank = len(rows) + len(kept)
    offset = tuple(sorted(int(d) for d in s.rng.permutation(rank)[: len(kept)]))
    parts, around = iter(kept), iter(rows)
    result = tuple(next(parts) if d in offset else next(around) for d in range(rank))
    return Window(batch, indexed, sizes, dropped, (*rows, len(indexed)), offset, result)


@row("gather", 2)
def _gather(s: Scope) -> str:
    """lax.gather with any dimension numbers."""
    x = s.pick("fi", (1, 3))
    w = _window(s, x.shape)
    i = s.indices(w.indices, max(x.shape[d] for d in w.indexed))
    numbers = (
        f"offset_dims={w.offset}, collapsed_slice_dims={w.dropped}, start_index_map={w.indexed},"
        f" operand_batching_dims={w.batch}, start_indices_batching_dims={w.rows}"
    )
    mode = s.one("mode='clip'", "mode='fill', fill_value=0")
    return f"lax.gather({x}, {i}, lax.GatherDimensionNumbers({numbers}), {w.sizes}, {mode})"


@row("scatter", 2)
def _scatter(s: Scope) -> str:
    """lax.scatter with any dimension numbers, by an op whose order does not matter."""
    x = s.pick("f", (1, 3))
    w = _window(s, x.shape)
    i = s.indices(w.indices, max(x.shape[d] for d in w.indexed))
    numbers = (
        f"update_window_dims={w.offset}, inserted_window_dims={w.dropped},"
        f" scatter_dims_to_operand_dims={w.indexed}, operand_batching_dims={w.batch},"
        f" scatter_indices_batching_dims={w.rows}"
    )
    updates = s.argument(w.result, x.dtype)
    how, mode = s.one("add", "add", "max", "min"), s.one("'clip'", "'drop'")
    return (
        f"lax.scatter_{how}({x}, {i}, {updates}, lax.ScatterDimensionNumbers({numbers}),"
        f" mode={mode})"
    )


@row("searchsorted", 0.6)
def _searchsorted(s: Scope) -> str:
    x = s.pick("f", (1, 2))
    return f"jnp.searchsorted(jnp.linspace(-1, 1, {s.size()}), {x})"


@row("sort", 3)
def _sort(s: Scope) -> str:
    x = s.pick("fi", (1, 3))
    return f"jnp.sort({x}, axis={s.dim(x)})"


@row("argsort", 1)
def _argsort(s: Scope) -> str:
    x = s.pick("fi", (1, 3))
    return f"jnp.argsort({x}, axis={s.dim(x)})"


@row("sort_pairs", 0.7)
def _sort_pairs(s: Scope) -> str:
    x = s.pick("f", (1, 3))
    return f"lax.sort(({x}, {s.like(x)}), dimension={s.dim(x)}, num_keys=1)"


@row("top_k", 1.5)
def _top_k(s: Scope) -> str:
    x = s.pick("f", (1, 3), lambda v: v.shape[-1] > 0)
    return f"lax.top_k({x}, {s.integer(1, min(x.shape[-1], 5))})"


@row("argmax", 2)
def _argmax(s: Scope) -> str:
    x = s.pick("fi", (1, 3))
    return f"jnp.{s.one('argmax', 'argmin')}({x}, axis={s.dim(x)})"


@row("permute", 0.6)
def _permute(s: Scope) -> str:
    """A gather by a permutation that the program computes."""
    x = s.pick("f", (1, 3))
    return f"{x}[jnp.argsort({s.argument((x.shape[0],))})]"


@row("unique_counts", 0.3)
def _unique(s: Scope) -> str:
    i = s.pick("i", (1, 1), lambda v: v.dtype == "int32")
    return f"jnp.unique({i}, size={s.size()}, fill_value=0)"


@row("nonzero", 0.4)
def _nonzero(s: Scope) -> str:
    x = s.pick("f", (1, 1))
    if x.shape[0] < 2:
        raise NoOperand
    return f"jnp.nonzero({x} > 0, size={s.integer(1, x.shape[0])}, fill_value=0)[0]"
