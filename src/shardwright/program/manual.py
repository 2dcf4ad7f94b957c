"""shard_maps of a Program on the mesh of a plan: which axes are theirs, and what they give."""

from __future__ import annotations

from typing import NamedTuple

from shardwright.errors import ShardwrightError
from shardwright.mesh import Mesh
from shardwright.program.ties import ENTRIES, Tie
from shardwright.program.types import Program, Region

Axes = tuple[int, ...]


class ShardMaps(NamedTuple):
    """What shard_maps say of the values of a program."""

    shards: dict[int, Axes]  # value in a body -> the axes of the shard_maps around it
    # Result -> the axes that split each dim, of shard_maps that leave no axis automatic: it is
    # stored as it comes out, and what needs it elsewhere moves it.
    results: dict[int, tuple[Axes, ...]]


def find_shard_maps(program: Program, mesh: Mesh) -> ShardMaps:
    """The shard_maps of a program; raises where one is not written for this mesh."""
    found = ShardMaps({}, {})
    if all(region.kind != "shard_map" for region in program.regions):
        return found
    manual = _manual_axes(program, mesh)
    for op in program.ops:
        region = op.body[0] if op.tie in ENTRIES else op.region
        if manual[region]:
            found.shards.update(dict.fromkeys(op.results, manual[region]))
        if op.tie is Tie.MANUAL_OUT and len(manual[op.body[0]]) == len(mesh.axes):
            axes = [(mesh.names.index(name), factor) for name, factor in op.rule.manual]
            found.results[op.results[0]] = tuple(
                tuple(axis for axis, factor in axes if factor in dim) for dim in op.rule.results[0]
            )
    return found


def _manual_axes(program: Program, mesh: Mesh) -> list[Axes]:
    """[regions] the axes of the shard_maps around, and those of one device, which split nothing."""
    single = [axis for axis, size in enumerate(mesh.sizes) if size == 1]
    manual: list[Axes] = []
    for region in program.regions:
        around = manual[region.parent] if manual else ()
        if region.kind == "shard_map":
            _check_mesh(program, region, mesh)
            own = [mesh.names.index(axis) for axis in region.manual]
            around = tuple(sorted({*around, *own, *single}))
        manual.append(around)
    return manual


def _check_mesh(program: Program, region: Region, mesh: Mesh) -> None:
    """Raises unless a shard_map was written for this mesh, but for axes of one device."""
    if region.mesh == tuple((axis, size) for axis, size in mesh.axes if size > 1):
        return
    written = dict(region.mesh)
    unknown = [axis for axis in region.manual if axis not in mesh.names]
    what = f"a shard_map is over {Mesh(region.mesh)}, the plan's mesh is {mesh}"
    if unknown:
        what = f"a shard_map is over mesh axis {unknown[0]!r}, the plan's mesh is {mesh}"
    raise ShardwrightError(
        what, at=program.ops[region.op].source,
        try_=f"partition(..., mesh={written}), or axes of the plan's mesh in the shard_map,"
        " and no mesh= of its own: it then gets the plan's",
    )  # fmt: skip
