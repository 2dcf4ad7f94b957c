"""Rows that are sorted by their group, multiplied by their group's weights, and put back.

In what order such rows stand between the sort and the way back is seen by no one: a mixture of
experts treats every token by itself. So each device may sort its own, with the same results, and
what is gathered and scattered on the way stays on the device. This holds only if nothing in
between looks at the order of the rows, which is what is proven here, op by op, of all values that
come from a sort:

- *ordered* values have the sort's order along a dim: entry j is that of row p(j);
- *placed* values have the order of before, and say where in the sort's order a row is;
- all others are the same in whatever order the rows are sorted.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from shardwright.program.contents import Content, Contents, Numbers
from shardwright.program.dead import live_ops
from shardwright.program.group_sizes import counts_keys
from shardwright.program.types import LITERAL, NO_REMAT, Op, Program
from shardwright.rules.grouped import GROUPED_DOTS
from shardwright.rules.own_rows import groups_by_rows, indexes_own, sorts_own
from shardwright.rules.rule import PASS, Dim, Rule

_SUMS = ("add", "max", "min", "mul", "and", "or")
_COMBINING = ("scatter-add", "scatter-max", "scatter-min", "scatter-mul")
# A factor that is passed through means something else in these: entries are told by their place.
_BY_PLACE = ("dynamic_slice", "dynamic_update_slice", "pallas_call", "rng_bit_generator")


class _Tag(NamedTuple):
    """What a value that comes from the sort is."""

    ordered: bool  # otherwise placed
    dim: int
    # What is in it, if that is known: of ordered rows in the order before the sort, of placed ones
    # by the place that they have.
    of: Any = None


class _Seen(Exception):
    """An op looks at the order of the rows."""


def let_devices_sort_their_own(program: Program) -> None:
    """Gives the ops between a sort and the way back rules that stay on a device, where proven.

    Where it is not, the sort's rule says why.
    """
    if not any(op.name in GROUPED_DOTS for op in program.ops):
        return
    live = {op.index for op in live_ops(program)}
    uses: list[list[int]] = [[] for _ in program.values]
    for index in sorted(live):
        for v in {v for v in program.ops[index].operands if v != LITERAL}:
            uses[v].append(index)
    made: dict[Any, Rule] = {}  # ops that are alike keep one rule
    numbers = Numbers()
    for op in program.ops:
        if op.name == "sort" and op.index in live and op.rule.own is None:
            walk = _Walk(program, uses, op, numbers)
            try:
                walk.run()
            except _Seen as seen:
                program.unsorted[op.key] = str(seen)
                continue
            if walk.dots:
                for change in walk.changes:
                    _apply(change, op, made)


class _Change(NamedTuple):
    """A new rule of an op, made from the one that it has, and perhaps another operand."""

    op: Op
    make: Callable[..., Rule]
    args: tuple[Any, ...]
    groups: int | None = None  # the value that says of each row in which group it is


def _apply(change: _Change, sort: Op, made: dict[Any, Rule]) -> None:
    op = change.op
    key = (id(op.rule), change.make, change.args)
    if key not in made:
        made[key] = change.make(op.rule, *change.args)
    op.rule, op.sorted_by = made[key], sort.key
    if change.groups is not None:
        op.operands = (*op.operands[:2], change.groups)


class _Walk:
    """From one sort on: what each value is."""

    def __init__(self, program: Program, uses: list[list[int]], sort: Op, numbers: Numbers) -> None:
        self.program, self.uses, self.sort, self.numbers = program, uses, sort, numbers
        self.contents = Contents(program, numbers)
        self.counts: dict[int, bool] = {}  # group sizes that were looked at
        self.tags: dict[int, _Tag] = {}
        self.changes: list[_Change] = []
        self.dots = False

    def run(self) -> None:
        """Raises _Seen at the first op that looks at the order."""
        self.start()
        next_, followed = [self.sort.index], set()
        while next_:
            op = self.program.ops[heappop(next_)]
            if op is not self.sort:
                self.visit(op)
            for v in op.results:
                if v in self.tags and v not in followed:
                    followed.add(v)
                    for use in self.uses[v]:
                        if use not in next_:
                            heappush(next_, use)

    def start(self) -> None:
        """The sort itself."""
        sort = self.sort
        keys = sort.operands[0]
        if sort.eqn.params["num_keys"] != 1 or keys == LITERAL or LITERAL in sort.operands:
            raise _Seen("they are sorted by several keys")
        type_ = self.program.values[keys].type
        if len(type_.shape) != 1 or not np.issubdtype(type_.dtype, np.integer):
            raise _Seen("they are not sorted by one row of integers")
        if any(region.mesh for region in self.program.around(sort.region)):
            raise _Seen("in a shard_map")
        if self.program.values[keys].shape[0] < 2:
            raise _Seen("there is one row")
        ((rows,),) = sort.rule.operands[0]
        self.changes.append(_Change(sort, sorts_own, (rows,)))
        self.tags[sort.results[0]] = _Tag(True, 0)
        for v, result in zip(sort.operands[1:], sort.results[1:], strict=True):
            content = self.contents.of(v)
            known = content.entries if content is not None and content.dim == 0 else None
            self.tags[result] = _Tag(True, 0, known)

    @property
    def count(self) -> int:
        """How many rows are sorted."""
        return self.program.values[self.sort.results[0]].shape[0]

    def visit(self, op: Op) -> None:
        """What the results of an op are of which some operands come from the sort."""
        if op.tie or op.is_region or op.region != self.sort.region:
            if op.name == "return":
                raise _Seen("they are returned in that order")
            raise _Seen("they leave the body of a loop or branch in that order")
        if op.rule.opaque or op.name in _BY_PLACE:
            raise self.seen(op)
        if op.name == "sort":
            self.sort_back(op)
        elif op.name == "gather":
            self.gather(op)
        elif op.name == "scatter" or op.name in _COMBINING:
            self.scatter(op)
        elif op.name in GROUPED_DOTS:
            self.multiply(op)
        elif not self.known(op):
            self.pass_on(op)

    def seen(self, op: Op) -> _Seen:
        """That this op looks at the order."""
        return _Seen(f"{op.name} at {op.source} looks at their order")

    def tag(self, value: int) -> _Tag | None:
        return self.tags.get(value)

    def rows_of(self, op: Op, factors: Dim) -> int:
        """The one factor of a dim of rows."""
        if len(factors) != 1:
            raise self.seen(op)
        return factors[0]

    def each(self, tag: _Tag, op: Op, dim: int | None) -> int:
        """How many rows in a row index one entry of a dim of an array, in order; 0: they do not."""
        size = 0 if dim is None else self.program.values[op.operands[0]].shape[dim]
        if tag.of is None or size == 0 or self.count % size:
            return 0
        each = self.count // size
        return each if self.numbers.counts_up(tag.of, each) else 0

    # Ops that arrange -------------------------------------------------------------------------

    def sort_back(self, op: Op) -> None:
        """Rows sorted by where they were: the way back, or the places of the rows."""
        first = self.tag(op.operands[0])
        if first is None or not first.ordered or first.of is None:
            raise self.seen(op)
        if not self.numbers.counts_up(first.of, 1):  # neither the sort's order nor its inverse
            raise self.seen(op)
        for v, result in zip(op.operands[1:], op.results[1:], strict=True):
            tag, content = self.tag(v), self.contents.of(v)
            if tag is not None and not tag.ordered:
                raise self.seen(op)
            if tag is None and content is not None and content.dim == 0:
                self.tags[result] = _Tag(False, 0, content.entries)
            elif tag is None and not self.contents.same_along(v, 0):
                raise self.seen(op)
        ((rows,),) = op.rule.operands[0]
        self.changes.append(_Change(op, sorts_own, (rows,)))

    def gather(self, op: Op) -> None:
        array, indices = (self.tag(v) for v in op.operands)
        if indices is None:
            self.pass_on(op)
            return
        found = _indexed(op, indices.dim, op.eqn.params["slice_sizes"])
        rows = self.rows_of(op, op.rule.operands[1][indices.dim])
        if (rows,) not in op.rule.results[0]:
            raise self.seen(op)
        dim = op.rule.results[0].index((rows,))
        each = self.each(indices, op, found)
        if indices.ordered and array is None:
            content = self.contents.of(op.operands[0])
            if each and content is not None and content.dim == found:
                content = Content(self.numbers.picked(content.entries, indices.of), dim)
            self.tags[op.results[0]] = _Tag(True, dim, _along(content, dim))
        elif each == 1 and array is not None and array.dim == found:
            if array.ordered == indices.ordered:
                raise self.seen(op)
            if indices.ordered:  # placed rows in order: what is known by place
                self.contents.known[op.results[0]] = Content(array.of, dim)
        else:
            raise self.seen(op)
        if each:
            self.changes.append(_Change(op, indexes_own, ((0,), found, rows, each)))

    def scatter(self, op: Op) -> None:
        array, indices, updates = (self.tag(v) for v in op.operands)
        if indices is None:
            self.pass_on(op)
            return
        if array is not None or (updates is not None and updates.ordered != indices.ordered):
            raise self.seen(op)
        found = _indexed(op, indices.dim, None)
        rows = self.rows_of(op, op.rule.operands[1][indices.dim])
        each = self.each(indices, op, found)
        if (rows,) not in op.rule.operands[2]:
            raise self.seen(op)
        at = op.rule.operands[2].index((rows,))
        if updates is not None and updates.dim != at:
            raise self.seen(op)
        content = self.contents.of(op.operands[2])
        if indices.ordered:
            if op.name == "scatter" and each != 1:
                raise self.seen(op)  # the last one stays, whichever that is
            if updates is None and not self.contents.same_along(op.operands[2], at):
                if op.name != "scatter" or content is None or content.dim != at:
                    raise self.seen(op)
                assert found is not None
                self.tags[op.results[0]] = _Tag(False, found, content.entries)
        else:
            if each != 1 or updates is not None or found is None:
                raise self.seen(op)
            if not self.contents.same_along(op.operands[0], found):
                raise self.seen(op)
            self.tags[op.results[0]] = _Tag(
                True, found, _along(content, at) if op.name == "scatter" else None
            )
        if each:
            self.changes.append(_Change(op, indexes_own, ((0, 3), found, rows, each)))

    def multiply(self, op: Op) -> None:
        """A grouped dot of the ordered rows, if they are in the groups that they are sorted by."""
        self.dots = True
        tag = self.tag(op.operands[0])
        if tag is None or not tag.ordered or len(op.operands) != 3:
            raise self.seen(op)
        if self.sort.remat not in (NO_REMAT, op.remat):  # lowering keeps its body as it is
            raise _Seen("they are sorted in another jax.checkpoint than multiplied")
        groups = self.program.values[op.operands[2]].shape
        if len(groups) != 1 or not self.counted(op.operands[2], groups[0]):
            raise _Seen(
                "the group sizes are not known to count what they are sorted by, as"
                " jnp.bincount(experts, length=number of experts) does"
            )
        rows = op.rule.operands[0][tag.dim]
        if any(op.rule.kinds[f] == "replicate" for f in rows[:1]):
            raise self.seen(op)
        self.follow(op, rows)
        self.changes.append(_Change(op, groups_by_rows, (tag.dim,), self.sort.results[0]))

    def counted(self, sizes: int, groups: int) -> bool:
        """Whether group sizes count what the rows are sorted by."""
        if sizes not in self.counts:
            self.counts[sizes] = counts_keys(self.program, self.sort, sizes, groups, self.numbers)
        return self.counts[sizes]

    # Ops that compute -------------------------------------------------------------------------

    def known(self, op: Op) -> bool:
        """Whether the result of an op is known, or is that of one operand."""
        if len(op.results) != 1:
            return False
        (result,) = op.results
        contents = self.contents.operands(op)
        if op.name == "select_n" and contents[0] is not None and len(op.operands) == 3:
            which = np.asarray(contents[0].entries)
            if self.numbers.all_equal(which):  # all are picked from one of the two
                at = 1 + int(which.flat[0])
                picked = op.operands[at]
                self.contents.known[result] = contents[at]
                if picked in self.tags:
                    self.tags[result] = self.tags[picked]
                return True
        tags = [self.tags[v] for v in op.operands if v in self.tags]
        if len({tag.ordered for tag in tags}) > 1 or any(tag.of is None for tag in tags):
            return False
        entries, dims = [], set()
        for v, slot, content in zip(op.operands, op.rule.operands, contents, strict=True):
            tag = self.tag(v) if v != LITERAL else None
            if tag is None and (content is None or content.dim is not None):
                return False
            entries.append(tag.of if tag else content.entries if content else None)
            if tag:
                dims.add(slot[tag.dim])
        out = self.numbers.computed(op, entries) if len(dims) == 1 else None
        if out is None or next(iter(dims)) not in op.rule.results[0]:
            return False
        if self.numbers.all_equal(out):  # the same wherever the rows stand
            self.contents.known[result] = Content(out.flat[0])
        else:
            dim = op.rule.results[0].index(next(iter(dims)))
            self.tags[result] = _Tag(tags[0].ordered, dim, out)
        return True

    def pass_on(self, op: Op) -> None:
        """An op that treats every row alike, or sums over all of them."""
        tags = [(n, self.tags[v]) for n, v in enumerate(op.operands) if v in self.tags]
        if not all(tag.ordered for _, tag in tags):
            raise self.seen(op)
        dims = {op.rule.operands[n][tag.dim] for n, tag in tags}
        if len(dims) != 1:
            raise self.seen(op)
        self.follow(op, next(iter(dims)))

    def follow(self, op: Op, rows: Dim) -> None:
        """Results of an op whose ordered operands have these factors where the rows are."""
        for v, slot in zip(op.operands, op.rule.operands, strict=True):
            if v == LITERAL:
                continue
            tag = self.tag(v)
            at = slot.index(rows) if rows in slot else None
            if tag is not None and (not tag.ordered or tag.dim != at):
                raise self.seen(op)
            if tag is None and at is not None and not self.contents.same_along(v, at):
                raise self.seen(op)
            if any(set(rows) & set(dim) and dim != rows for dim in slot):
                raise self.seen(op)
        kinds = {op.rule.kinds[f] for f in (rows[:1] if op.name in GROUPED_DOTS else rows)}
        for v, slot in zip(op.results, op.rule.results, strict=True):
            if rows in slot and kinds == {PASS}:
                self.tags[v] = _Tag(True, slot.index(rows))
            elif any(set(rows) & set(dim) for dim in slot) or not kinds <= {*_SUMS}:
                raise self.seen(op)


def _along(content: Content | None, dim: int) -> Any:
    return content.entries if content is not None and content.dim == dim else None


def _indexed(op: Op, rows: int, slices: Any) -> int | None:
    """The dim of the first operand that indices [rows, 1] pick single entries of."""
    numbers = op.eqn.params["dimension_numbers"]
    gather = slices is not None
    dims = numbers.start_index_map if gather else numbers.scatter_dims_to_operand_dims
    batching = numbers.operand_batching_dims
    if len(dims) != 1 or batching or rows != 0 or len(op.rule.operands[1]) != 2:
        return None
    (dim,) = dims
    single = slices[dim] == 1 if gather else dim in numbers.inserted_window_dims
    return int(dim) if single and op.rule.operands[0][dim] else None
