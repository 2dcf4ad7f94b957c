"""What a pallas_call says of itself: its grid, its blocks, and the work of one step.

Invariants
- a dim whose block index is a grid index, or one divided by a constant, steps along that grid dim;
- every other dim may be read by any step; the grid dims that its block index depends on are in
  `computed`. Where they are split, a device is told its first step: the index is that of all steps;
- a computed block index of a result decides which block a step writes: those grid dims stay whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from shardwright import _jax
from shardwright.rules.rule import Dot, Work


class Block(NamedTuple):
    """How a kernel steps along one dim of an operand or result."""

    size: int
    grid: int | None = None  # the grid dim that is its block index; None: any step may read it all
    group: int = 1  # steps of that grid dim, one after the other, that share a block


class KernelGrid(NamedTuple):
    """The grid of a pallas_call."""

    sizes: tuple[int, ...]
    blocks: tuple[tuple[Block, ...], ...]  # [operands, then results][dims], without index operands
    index_operands: int  # leading operands that every step may read, sizes of the grid first
    computed: frozenset[int]  # grid dims that a computed block index depends on
    decides: frozenset[int]  # of those the ones that decide which block of a result a step writes
    asked: frozenset[int]  # grid dims of which the kernel asks where it is
    untold: frozenset[int]  # of those the ones that it asks where nobody can answer in its place
    parallel: frozenset[int]  # grid dims along which steps hand each other nothing in scratch
    own: tuple[int, ...]  # the grid dims that its author wrote; vmap adds others
    work: Work
    rows: int | None = None  # the grid dim whose steps read their own row of what is prefetched
    of_data: frozenset[int] = frozenset()  # grid dims whose size is data

    @property
    def told(self) -> frozenset[int]:
        """Grid dims that split only where a device is told which of all steps its first one is."""
        return (self.computed | self.asked) - {self.rows}


def kernel_grid(params: Mapping[str, Any]) -> KernelGrid:
    """What grid and index maps say; ValueError where the grid depends on data that is not here."""
    mapping, kernel = params["grid_mapping"], params["jaxpr"]
    of_data = {g for g, size in enumerate(mapping.grid) if not isinstance(size, int)}
    sizes = mapping.grid if not of_data else _most_steps(params)
    indices = [_indices(b, len(sizes)) for b in mapping.block_mappings]
    groups = {
        index.grid: index.group for dims in indices for index in dims if index.group > 1
    }  # fmt: skip
    blocks: list[tuple[Block, ...]] = []
    computed: set[int] = set()
    decides: set[int] = set()
    for b, dims in zip(mapping.block_mappings, indices, strict=True):
        row, depends = [], set[int]()
        for index, size, whole in zip(dims, b.block_shape, b.array_aval.shape, strict=True):
            block = Block(_block_size(size), index.grid, index.group)
            steps = 1 if block.grid is None else sizes[block.grid] // block.group
            covers = steps * block.size == whole and block.group in (1, groups.get(block.grid, 1))
            if block.grid is not None and not covers:  # it steps along a part, or beyond the end
                depends.add(block.grid)
                block = Block(block.size)
            if block.grid in of_data:  # as many blocks as it turns out: any step may read it all
                depends.add(block.grid)
                block = Block(block.size)
            depends |= index.depends
            row.append(block)
        computed |= depends
        decides |= depends if len(blocks) >= mapping.num_inputs else set()
        blocks.append(tuple(row))
    decides |= _shared_buffers(params, blocks)
    own = tuple(g for g in range(len(sizes)) if g not in mapping.vmapped_dims)
    asked, inside = _program_ids(kernel)
    if of_data or not _jax.can_be_told(params):
        inside = asked
        decides |= computed
    return KernelGrid(
        sizes, tuple(blocks), mapping.num_dynamic_grid_bounds + mapping.num_index_operands,
        frozenset(computed), frozenset(decides),
        frozenset(own[axis] for axis in asked), frozenset(own[axis] for axis in inside),
        _parallel(params, own), own, _work(params, indices, sizes), of_data=frozenset(of_data),
    )  # fmt: skip


def _most_steps(params: Mapping[str, Any]) -> tuple[int, ...]:
    """The grid, where one dim depends on data: a step for each entry of what is prefetched.

    Which blocks are computed is told so: those of a mask that are not all zero.
    """
    mapping = params["grid_mapping"]
    told = [v.aval.shape for v in params["jaxpr"].invars[: mapping.num_index_operands]]
    steps = max((shape[-1] for shape in told if shape), default=0)
    if mapping.num_dynamic_grid_bounds != 1 or not steps or params.get("input_output_aliases"):
        raise ValueError("its grid depends on data")
    return tuple(size if isinstance(size, int) else steps for size in mapping.grid)


def _shared_buffers(params: Mapping[str, Any], blocks: list[tuple[Block, ...]]) -> set[int]:
    """The grid dims of results that take the memory of an operand with other blocks."""
    mapping = params["grid_mapping"]
    found: set[int] = set()
    for operand, result in params.get("input_output_aliases") or ():
        before = operand - mapping.num_index_operands
        pair = [blocks[n] for n in (before, mapping.num_inputs + result) if n >= 0]
        if len(set(pair)) > 1:
            found |= {b.grid for row in pair for b in row if b.grid is not None}
    return found


class _Index(NamedTuple):
    """A block index."""

    grid: int | None
    group: int
    depends: frozenset[int]  # of one that is computed: the grid dims that it depends on


def _indices(mapping: Any, grid: int) -> list[_Index]:
    """The block index of each dim of one operand or result."""
    index = mapping.index_map_jaxpr.jaxpr
    number = {var: g for g, var in enumerate(index.invars[:grid])}
    depends: dict[Any, frozenset[int]] = {var: frozenset([g]) for var, g in number.items()}
    shared: dict[Any, tuple[int, int]] = {}  # a grid index divided by a constant
    for eqn in index.eqns:
        arrays = [v for v in eqn.invars if not isinstance(v, _jax.Literal)]
        used = frozenset().union(*[depends.get(v, frozenset()) for v in arrays])
        depends |= dict.fromkeys(eqn.outvars, used)
        by = eqn.invars[-1]
        if eqn.primitive.name == "div" and eqn.invars[0] in number and isinstance(by, _jax.Literal):
            shared[eqn.outvars[0]] = (number[eqn.invars[0]], int(by.val))
    out = []
    for block, at in zip(mapping.block_shape, index.outvars, strict=True):
        plain = type(block).__name__ in ("Blocked", "Squeezed")  # others may overlap
        if isinstance(at, _jax.Literal):
            out.append(_Index(None, 1, frozenset()))
        elif plain and at in number:
            out.append(_Index(number[at], 1, frozenset()))
        elif plain and at in shared:
            out.append(_Index(*shared[at], frozenset()))
        else:
            out.append(_Index(None, 1, depends.get(at, frozenset())))
    return out


def _block_size(block: Any) -> int:
    """Elements of a block along one dim; one that is squeezed away has one."""
    return int(getattr(block, "block_size", 1))


def _parallel(params: Mapping[str, Any], own: tuple[int, ...]) -> frozenset[int]:
    """All grid dims of a kernel without scratch memory, else those of vmap or declared parallel."""
    mapping = params["grid_mapping"]
    if not mapping.scratch_avals:
        return frozenset(range(len(mapping.grid)))
    declared = getattr(params.get("compiler_params"), "dimension_semantics", None) or ()
    batched = set(range(len(mapping.grid))) - set(own)
    if len(declared) == len(mapping.grid):
        own = tuple(range(len(mapping.grid)))
    if len(declared) != len(own):
        return frozenset(batched)
    rows = zip(own, declared, strict=True)
    return frozenset(batched | {g for g, how in rows if "parallel" in str(how).lower()})


def inner_equations(jaxpr: Any, times: float = 1.0) -> Iterator[tuple[Any, float]]:
    """(equation, how often it runs) of a jaxpr and all that it holds; a while loop runs once."""
    for eqn in jaxpr.eqns:
        yield eqn, times
        trips = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        for held in _jax.jaxprs_in(eqn):
            yield from inner_equations(held, times * trips)


def _program_ids(kernel: Any) -> tuple[set[int], set[int]]:
    """The grid dims whose index or size a kernel asks for; those it asks for inside branches."""
    names = ("program_id", "num_programs")
    every = [eqn for eqn, _ in inner_equations(kernel) if eqn.primitive.name in names]
    here = [eqn for eqn in kernel.eqns if eqn.primitive.name == "program_id"]
    inside = [eqn for eqn in every if all(eqn is not other for other in here)]
    return {eqn.params["axis"] for eqn in every}, {eqn.params["axis"] for eqn in inside}


def _work(params: Mapping[str, Any], indices: list[list[_Index]], sizes: tuple[int, ...]) -> Work:
    """The work of all steps: dots and operations in the kernel's code, blocks that are fetched."""
    steps = float(np.prod(sizes, dtype=float))
    dots: dict[Dot, float] = {}
    operations = 0.0
    for eqn, times in inner_equations(params["jaxpr"]):
        if eqn.primitive.name == "dot_general":
            dot = _dot(eqn)
            dots[dot] = dots.get(dot, 0.0) + steps * times * dot.times
        elif not _jax.jaxprs_in(eqn):
            made = sum(np.prod(v.aval.shape, dtype=float) for v in eqn.outvars)
            operations += steps * times * float(made)
    blocks = params["grid_mapping"].block_mappings
    fetched = [_fetched_bytes(b, dims, sizes) for b, dims in zip(blocks, indices, strict=True)]
    chosen = [n for n, dims in zip(fetched, indices, strict=True) if any(i.depends for i in dims)]
    return Work(
        tuple(dot._replace(times=times) for dot, times in dots.items()), operations,
        sum(fetched), sum(chosen),
    )  # fmt: skip


def _dot(eqn: Any) -> Dot:
    """The size of one dot; batch dims are times."""
    (lc, rc), (lb, rb) = eqn.params["dimension_numbers"]
    lhs, rhs = (v.aval for v in eqn.invars[:2])

    def size(shape: tuple[int, ...], dims: Any) -> int:
        return int(np.prod([shape[d] for d in dims], dtype=np.int64))

    rows = [d for d in range(len(lhs.shape)) if d not in (*lc, *lb)]
    columns = [d for d in range(len(rhs.shape)) if d not in (*rc, *rb)]
    return Dot(
        float(size(lhs.shape, lb)), size(lhs.shape, rows), size(rhs.shape, columns),
        size(lhs.shape, lc), str(lhs.dtype),
    )  # fmt: skip


def _fetched_bytes(mapping: Any, indices: list[_Index], sizes: tuple[int, ...]) -> float:
    """Bytes of an array that pass to or from memory: a block does when its index changes."""
    used = {index.grid for index in indices} | {g for index in indices for g in index.depends}
    last = max((g for g in used if g is not None), default=-1)
    group = max((index.group for index in indices if index.grid == last), default=1)
    fetches = float(np.prod(sizes[: last + 1], dtype=float)) / group
    block = float(np.prod([_block_size(b) for b in mapping.block_shape], dtype=float))
    return fetches * block * mapping.array_aval.dtype.itemsize
