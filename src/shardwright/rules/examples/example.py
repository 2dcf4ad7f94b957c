"""An example: one op of one primitive, written as the public call that puts it into a jaxpr."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shardwright._jax import lowerings


@dataclass(frozen=True)
class Example:
    """One op: `fn` called with arguments as in `args` puts `primitive` into the jaxpr.

    >>> Example("tanh", jnp.tanh, "f32[4,8]", "([i,j])->([i,j]) {i=4,j=8}").title
    'tanh f32[4,8]'
    """

    primitive: str
    fn: Callable[..., Any]
    args: str  # "f32[4,8] i32[3]"; key[4] is an array of typed PRNG keys
    rule: str  # as `str(rule)` prints it
    note: str = ""  # what is special about it
    # Turns random operands into ones that the op accepts (a positive matrix for cholesky).
    prepare: Callable[..., Sequence[Any]] | None = None

    @property
    def title(self) -> str:
        """The primitive, its arguments and the note, in one line."""
        return " ".join(part for part in (self.primitive, self.args, self.note) if part)


def bind(name: str, **params: Any) -> Callable[..., Any]:
    """The primitive itself, for those that no public function names."""
    return lambda *operands: lowerings.primitives()[name].bind(*operands, **params)
