"""Rule strings: "b s (h k), h k d -> b s d" names the factor of every dim.

Spaces separate dims, commas separate tensors, parentheses join factors to one dim (major to
minor), `1` is a dim without factor, `...` stands for any number of leading dims.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shardwright.errors import ShardwrightError
from shardwright.rules.rule import REDUCTIONS, VECTOR, OpShape, Rule, einsum

_TOKEN = re.compile(r"\s*(\(|\)|\.\.\.|1(?!\w)|[A-Za-z_]\w*)")
ELLIPSIS = "..."

Tensor = list[Any]  # a dim is a factor name, a list of them, ELLIPSIS or None


class Pattern(NamedTuple):
    """A parsed rule string."""

    text: str
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]


def parse(text: str) -> Pattern:
    """The pattern that a rule string spells.

    >>> parse("b (h k), h k d -> b d").operands
    (['b', ['h', 'k']], ['h', 'k', 'd'])
    """
    if text.count("->") != 1:
        raise _bad(text, "needs exactly one '->'")
    left, right = (side.strip() for side in text.split("->"))
    operands = tuple(_tensor(text, part) for part in left.split(",")) if left else ()
    return Pattern(text, operands, tuple(_tensor(text, part) for part in right.split(",")))


def _bad(text: str, why: str) -> ShardwrightError:
    return ShardwrightError(
        f"rule string {text!r} {why}", try_='a string like "b s (h k), h k d -> b s d"'
    )


def _tensor(text: str, part: str) -> Tensor:
    """The dims of one tensor."""
    dims: Tensor = []
    group: list[str] | None = None
    at = 0
    part = part.rstrip()
    while at < len(part):
        found = _TOKEN.match(part, at)
        if not found:
            raise _bad(text, f"has an unexpected {part[at:].strip()[0]!r}")
        token, at = found[1], found.end()
        if token == "(" and group is None:
            group = []
        elif token == ")" and group is not None:
            dims.append(group)
            group = None
        elif token in "()" or (group is not None and token == ELLIPSIS):
            raise _bad(text, f"has an unexpected {token!r}")
        elif group is not None:
            group += [] if token == "1" else [token]
        else:
            dims.append(None if token == "1" else token)
    if group is not None:
        raise _bad(text, "has an open '('")
    names = factors([dims])
    for name in names:
        if names.count(name) > 1:
            raise _bad(text, f"has {name!r} twice in one tensor")
    return dims


def factors(tensors: Sequence[Tensor]) -> list[str]:
    """The factor names in order of appearance."""
    out: list[str] = []
    for dims in tensors:
        for dim in dims:
            out += dim if isinstance(dim, list) else [] if dim is None else [dim]
    return out


def apply(
    pattern: Pattern,
    op: OpShape,
    *,
    reduce: Mapping[str, str],
    permute: str = "",
    replicate: str = "",
    unit: str = VECTOR,
    work: float = 1.0,
    sizes: Mapping[str, int] | None = None,
) -> Rule:
    """The rule of an op whose dims the pattern names; sizes come from its shapes or are given."""
    for side, tensors, given in (
        ("operand", op.operands, pattern.operands),
        ("result", op.results, pattern.results),
    ):
        if len(tensors) != len(given):
            raise ShardwrightError(
                f"rule of {op.name!r} has {len(given)} {side}s, the op has {len(tensors)}",
                op=_shapes(op),
            )
    slots = [
        _expand(dims, len(tensor.shape))
        for dims, tensor in zip(
            (*pattern.operands, *pattern.results), (*op.operands, *op.results), strict=True
        )
    ]
    operands, results = slots[: len(op.operands)], slots[len(op.operands) :]
    kept = set(factors(results))
    missing = [name for name in factors(operands) if name not in kept]
    moved, replicated = permute.split(), replicate.split()
    for name in (*reduce, *moved, *replicated):
        if name not in (*factors(operands), *kept):
            known = ", ".join(dict.fromkeys((*factors(operands), *factors(results))))
            raise ShardwrightError(f"rule of {op.name!r} has no factor {name!r}", try_=known)
    for kind in reduce.values():
        if kind not in REDUCTIONS:
            raise ShardwrightError(
                f"rule of {op.name!r}: {kind!r} is not a reduction", try_=", ".join(REDUCTIONS)
            )
    reductions = {name: reduce.get(name, "add") for name in (*missing, *reduce)}
    for name in (*moved, *replicated):
        reductions.pop(name, None)
    try:
        return einsum(
            op, operands, results,
            reduce=reductions, permute=moved, replicate=replicated,
            sizes=sizes or _sizes(op, slots, skip=moved), unit=unit, work=work,
        )  # fmt: skip
    except ShardwrightError as error:
        raise ShardwrightError(error.what, op=_shapes(op), try_=error.facts.get("try")) from error


def _expand(dims: Tensor, rank: int) -> Tensor:
    """The dims with `...` written out, numbered from the right: ...1 is the innermost."""
    if ELLIPSIS not in dims:
        return dims
    at = dims.index(ELLIPSIS)
    more = rank - len(dims) + 1
    return [*dims[:at], *(f"...{n}" for n in range(more, 0, -1)), *dims[at + 1 :]]


def _sizes(op: OpShape, slots: Sequence[Tensor], *, skip: Sequence[str]) -> dict[str, int]:
    """The size of each factor of a compound dim, found from the dims where it stands alone."""
    known: dict[str, int] = {}
    compound: list[tuple[list[str], int]] = []
    for dims, tensor in zip(slots, (*op.operands, *op.results), strict=True):
        for dim, size in zip(dims, tensor.shape, strict=False):  # ranks are checked by einsum
            if isinstance(dim, list):
                compound.append((dim, size))
            elif dim is not None and dim not in skip:
                known.setdefault(dim, size)
    for _ in compound:  # each pass can settle one more
        for names, size in compound:
            unknown = [name for name in names if name not in known]
            if len(unknown) == 1:
                rest = math.prod(known[name] for name in names if name in known)
                if size % rest:
                    raise ShardwrightError(
                        f"rule of {op.name!r}: a dim of size {size} does not divide by {rest}"
                        f" to give factor {unknown[0]!r}"
                    )
                known[unknown[0]] = size // rest
    for names, _size in compound:
        for name in names:
            if name not in known:
                raise ShardwrightError(
                    f"rule of {op.name!r}: nothing says how large factor {name!r} is",
                    try_=f"name {name!r} alone in another tensor",
                )
    return {name: known[name] for names, _ in compound for name in names}


def _shapes(op: OpShape) -> str:
    def side(tensors: Sequence[Any]) -> str:
        return ", ".join(str(list(t.shape)) for t in tensors)

    return f"{side(op.operands)} -> {side(op.results)}"


def line_for(op: OpShape, name: str) -> str:
    """A `sw.rule` line for an op without a rule: every dim a factor of its own, to be joined."""
    letters = iter("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" * 9)

    def side(tensors: Sequence[Any]) -> str:
        rows = [" ".join(next(letters) if n > 1 else "1" for n in t.shape) for t in tensors]
        return ", ".join(rows)

    return f'sw.rule("{name}", "{side(op.operands)} -> {side(op.results)}")'
