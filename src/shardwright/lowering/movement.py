"""Arrays led through shardings, and where a compiler may not move them earlier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
from jax.sharding import NamedSharding

from shardwright.lowering.actions import Constrain
from shardwright.lowering.slots import Slot
from shardwright.lowering.specs import Spec, Way, partition_spec


class Mover:
    """The mesh, the copies that have been made on it, and the loop around."""

    def __init__(self, mesh: Any) -> None:
        self.mesh = mesh
        self._trip: Any = None  # a traced value that differs between trips of the loop around
        self._shardings: dict[Spec, NamedSharding] = {}
        self._copies: dict[tuple[int, Way, bool], tuple[Any, Any]] = {}

    @contextmanager
    def another_trace(self, changes: Any = None) -> Iterator[None]:
        """Inside a body: of a call, or of a loop whose trips differ in `changes`."""
        outside = self._trip, self._copies
        self._trip, self._copies = changes, {}
        yield
        self._trip, self._copies = outside

    @contextmanager
    def on_shards(self) -> Iterator[None]:
        """Inside a shard_map: only the axes that are not its own split anything."""
        outside = self.mesh, self._shardings
        self.mesh, self._shardings = jax.sharding.get_abstract_mesh(), {}
        with self.another_trace():
            yield
        self.mesh, self._shardings = outside

    @property
    def in_loop(self) -> bool:
        """Whether this is the body of a loop whose trips differ."""
        return self._trip is not None

    def kept_in_loop(self, slots: Sequence[Slot]) -> list[Slot]:
        """Operands that change in every trip, as far as a compiler sees: one behind a barrier."""
        kept = [*slots]
        for i, slot in enumerate(slots):
            if not slot.literal:
                kept[i] = Slot(
                    self._in_trip(slot.array), unreduced=slot.unreduced, stored=slot.stored
                )
                break
        return kept

    def lead(self, array: Any, way: Way) -> Any:
        """The array led through these shardings."""
        for spec in way:
            if not spec:
                continue
            if spec not in self._shardings:
                self._shardings[spec] = NamedSharding(self.mesh, partition_spec(spec))
            array = jax.lax.with_sharding_constraint(array, self._shardings[spec])
        return array

    def as_stored(self, slot: Slot) -> Any:
        """The array of a slot, constrained to the sharding it is stored in."""
        return slot.array if slot.stored is None else self.lead(slot.array, (slot.stored,))

    def constrained(self, slot: Slot, how: Constrain, *, transposed: bool) -> Any:
        """An operand as an op needs it; one copy serves all uses in the same place.

        What is moved for the forward pass is moved again for the backward pass.
        """
        key = (id(slot.array), how.way, transposed)
        if key not in self._copies:
            held = self._made(slot, how.way[-1], {})
            if how.sends:
                held = self._here(held, slot, transposed)
            moved = self.lead(held, how.way)
            self._copies[key] = (slot.array, moved)  # keeps the array, and so its id
        return self._copies[key][1]

    def _here(self, held: Any, slot: Slot, transposed: bool) -> Any:
        """The array behind a barrier, so that a compiler does not hoist its collective."""
        if slot.invariant and self.in_loop:
            return self._in_trip(held)
        return jax.lax.optimization_barrier(held) if transposed else held

    def _in_trip(self, array: Any) -> Any:
        """The array behind a barrier with something that changes in every trip."""
        return jax.lax.optimization_barrier((array, self._trip))[0]

    def _made(self, slot: Slot, spec: Spec, known: dict[tuple[int, Spec], Any]) -> Any:
        """A constant subgraph computed again in this sharding; other arrays as they are."""
        if slot.recipe is None:
            return slot.array
        key = (id(slot.array), spec)
        if key not in known:
            make, operands, dims = slot.recipe
            specs = [tuple(() if d is None else spec[d] for d in row) for row in dims]
            args = [self._made(s, one, known) for s, one in zip(operands, specs, strict=True)]
            known[key] = self.lead(make(args), (spec,))
        return known[key]
