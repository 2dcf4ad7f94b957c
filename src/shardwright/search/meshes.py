"""Mesh shapes: given a number of devices, or axes with free sizes, which shape is best."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardwright.cost.cost import Cost
from shardwright.cost.devices import Device
from shardwright.cost.model import CostModel
from shardwright.cost.placing import placed
from shardwright.errors import ShardwrightError
from shardwright.mesh import Mesh, completions, factorisations
from shardwright.search.objective import Progress
from shardwright.search.screen import screen
from shardwright.search.search import Found, search
from shardwright.search.tactics import Tactic

KEPT = 3  # shapes that get a full search


@dataclass(frozen=True, slots=True)
class Shape:
    """One row of the table: a mesh, what the screen or the full search found on it."""

    mesh: Mesh
    cost: Cost | None  # None: it does not fit, or the device has no such slice
    searched: bool = False
    why: str = ""


def candidate_meshes(mesh: Any, device: Device, devices: int | None = None) -> list[Mesh]:
    """The meshes that a user's `mesh` allows: a count, axes with None for free sizes, or one mesh.

    >>> candidate_meshes({"data": None, "model": 4}, device("tpu-v5e"), devices=16)
    """
    if isinstance(mesh, int | np.integer) and not isinstance(mesh, bool):
        mesh = int(mesh)
        _agree(mesh, devices)
        ordered = device.topology == "switch" and mesh > device.devices_per_node > 1
        return factorisations(mesh, ordered=ordered)
    if isinstance(mesh, Mapping) and any(size is None for size in mesh.values()):
        if devices is None:
            raise ShardwrightError(
                "a mesh with free sizes needs a number of devices", mesh=mesh, try_="devices=16"
            )
        return completions(mesh, devices)
    one = Mesh.of(mesh)
    _agree(one.size, devices)
    is_jax = hasattr(mesh, "axis_names")  # its devices are in JAX's order, or in the user's own
    return [placed(one, device)[0] if is_jax else one]


def _agree(size: int, devices: int | None) -> None:
    if devices not in (None, size):
        raise ShardwrightError(
            f"the mesh has {size} devices and devices={devices}", try_="leave one of them out"
        )


def search_meshes(
    meshes: Sequence[Mesh],
    cost_model: Callable[[Mesh], CostModel],
    device: Device,
    *,
    memory: int | None = None,
    tactics: Sequence[Tactic] | None = None,
    seconds: float | None = None,
    timeout: float | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> tuple[CostModel, Found, list[Shape]]:
    """(the model of the best mesh, what was found there, the table of all shapes).

    Every shape is screened with the known strategies and a little refinement, in every way to lay
    its axes on a torus that is left open; the best few shapes get a full search, laid in the best
    way, until `timeout` wall-clock seconds are over.
    """
    options: dict[str, Any] = {
        "memory": memory, "tactics": tactics, "seconds": seconds, "seed": seed,
        "progress": progress, "deadline": None if timeout is None else time.monotonic() + timeout,
    }  # fmt: skip
    rows: list[Shape] = []
    laid: dict[int, list[CostModel]] = {}  # each way of a shape, the most promising first
    screened: dict[int, float] = {}
    failure: ShardwrightError | None = None
    for i, mesh in enumerate(meshes):
        try:
            models = [cost_model(way) for way in placed(mesh, device)]
            limit = device.usable_bytes if memory is None else memory
            if len(meshes) == len(models) == 1:
                laid[i], screened[i] = models, 0.0
                rows.append(Shape(mesh, None))
                continue
            quick = [screen(model, limit, tactics) for model in models]
        except ShardwrightError as error:
            failure = failure or error
            rows.append(Shape(mesh, None, why=error.what))
            continue
        order = sorted(range(len(models)), key=lambda k: quick[k].best_s)
        laid[i], first = [models[k] for k in order], quick[order[0]]
        assert first.best is not None
        screened[i], cost = first.best_s, laid[i][0].cost(first.decisions(first.best))
        fits = cost.peak_bytes <= limit
        rows.append(Shape(mesh, cost if fits else None, why="" if fits else "over memory"))
    best: tuple[float, CostModel, Found] | None = None
    for i in sorted(screened, key=lambda i: (screened[i], i))[:KEPT]:
        try:
            model, found = _search_laid(laid[i], options)
        except ShardwrightError as error:
            failure = failure or error
            rows[i] = replace(rows[i], searched=True, why=error.what)
            continue
        rows[i] = Shape(meshes[i], found.cost, True)
        if best is None or found.cost.step_s < best[0]:
            best = (found.cost.step_s, model, found)
    if best is None:
        raise failure or ShardwrightError(
            "no mesh shape is possible", shapes=", ".join(map(str, meshes)),
            try_="another number of devices, or mesh={...} with the shape of your slice",
        )  # fmt: skip
    return best[1], best[2], rows


def _search_laid(
    models: Sequence[CostModel], options: Mapping[str, Any]
) -> tuple[CostModel, Found]:
    """(the model, what was found): of the first way to lay the axes, or of one better for that."""
    model, found = models[0], search(models[0], **options)
    for other in models[1:]:
        same = other.cost(found.decisions)
        if same.step_s < found.cost.step_s and same.peak_bytes <= found.cost.peak_bytes:
            again = search(other, **options)
            if again.cost.step_s < found.cost.step_s:
                model, found = other, again
    return model, found
