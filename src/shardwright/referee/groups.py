"""Mesh axes recovered from the device groups of a compiled collective.

Groups hold logical device numbers: device i of the mesh in row-major order, whatever its hardware
id. XLA prints them in three ways, and pairs for a permute:

    {{0,1},{2,3}}                                    listed
    [4,2]<=[2,4]T(1,0)                               iota: arange, reshape, transpose, reshape
    mesh['axis_0'=4,'axis_1'=2] {'axis_0'}           axes of a mesh of the compiler's own
    mesh[...], device_ids=([2,2,2]T(0,2,1)) {'axis_1':(2)2}       reordered; a sub-axis
    source_target_pairs={{0,1},{1,0}}                permute
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import prod

import numpy as np

from shardwright.referee.hlo import integers

_LISTED = re.compile(r"replica_groups=\{((?:\{[\d,\s]*\},?\s*)*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"replica_groups=mesh\[([^\]]*)\]"
    r"(?:,\s*device_ids=\(([^()]*(?:\([^()]*\)[^()]*)?)\))?"
    r"\s*\{([^}]*)\}"
)
_DEVICE_IOTA = re.compile(r"(?:\[[\d,]+\]<=)?\[([\d,]+)\](?:T\(([\d,]+)\))?")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\s*\d+\},?\s*)*)\}")
_AXIS = re.compile(r"'?([^'=,:\s]+)'?(?:=(\d+))?(?::\((\d+)\)(\d+))?'?")

Groups = list[tuple[int, ...]]


def groups_of(attributes: str, device_count: int) -> Groups | None:
    """The device groups in an instruction's attributes; None when it names none."""
    if found := _IOTA.search(attributes):
        return _rows(_iota(found[1], found[2], found[3]))
    if found := _MESH.search(attributes):
        return _mesh_groups(found[1], found[2], found[3])
    if found := _LISTED.search(attributes):
        listed = [integers(group) for group in re.findall(r"\{([\d,\s]*)\}", found[1])]
        return listed or [tuple(range(device_count))]  # no groups: one group of everybody
    return None


def axes_of(attributes: str, mesh: Mapping[str, int]) -> tuple[str, ...] | None:
    """The mesh axes a collective runs over, in mesh order; None when no set of axes fits."""
    if found := _PAIRS.search(attributes):
        return _axes_of_pairs(
            [integers(pair) for pair in re.findall(r"\{([^}]*)\}", found[1])], mesh
        )
    groups = groups_of(attributes, prod(mesh.values()))
    return None if groups is None else axes_of_groups(groups, mesh)


def axes_of_groups(groups: Groups, mesh: Mapping[str, int]) -> tuple[str, ...] | None:
    """The axes whose product makes exactly these groups.

    >>> axes_of_groups([(0, 2), (1, 3)], {"data": 2, "model": 2})
    ('data',)
    """
    devices = np.arange(prod(mesh.values())).reshape(tuple(mesh.values()))
    if not groups or max(map(max, groups)) >= devices.size:
        return None
    varying = _varying(groups[0], mesh)
    rest = [i for i in range(len(mesh)) if i not in varying]
    size = prod(devices.shape[i] for i in varying)
    expected = devices.transpose(*rest, *varying).reshape(-1, size)
    same = {frozenset(group) for group in groups} == {frozenset(row) for row in expected.tolist()}
    return _names(varying, mesh) if same else None


def _axes_of_pairs(pairs: Groups, mesh: Mapping[str, int]) -> tuple[str, ...] | None:
    """The axes along which any source differs from its target."""
    if any(device >= prod(mesh.values()) for pair in pairs for device in pair):
        return None
    return _names({axis for pair in pairs for axis in _varying(pair, mesh)}, mesh)


def _varying(devices: Iterable[int], mesh: Mapping[str, int]) -> list[int]:
    """The positions of the axes along which these devices differ."""
    coordinates = np.stack(np.unravel_index(list(devices), tuple(mesh.values())))
    return [i for i, line in enumerate(coordinates) if len(set(line.tolist())) > 1]


def _names(positions: Iterable[int], mesh: Mapping[str, int]) -> tuple[str, ...]:
    names = list(mesh)
    return tuple(names[i] for i in sorted(positions))


def _iota(shape: str | None, reshape: str, transpose: str | None) -> np.ndarray:
    dims = integers(reshape)
    devices = np.arange(prod(dims)).reshape(dims)
    if transpose:
        devices = devices.transpose(integers(transpose))
    return devices.reshape(integers(shape) if shape else -1)


def _mesh_groups(axes: str, device_ids: str | None, grouped: str) -> Groups:
    """Groups over axes (or sub-axes `'x':(before)size` of axes) of the compiler's own mesh."""
    sizes = {m[1]: int(m[2]) for m in _AXIS.finditer(axes) if m[2]}
    devices = np.arange(prod(sizes.values()))
    if device_ids:
        iota = _DEVICE_IOTA.fullmatch(device_ids.strip())
        devices = _iota(None, iota[1], iota[2]) if iota else np.array(integers(device_ids))
    sub_axes: list[tuple[str, int, int]] = []  # (axis, first factor's product before it, size)
    for name, size in sizes.items():
        cuts = {1, size}
        for m in _AXIS.finditer(grouped):
            if m[1] == name and m[3]:
                cuts |= {int(m[3]), int(m[3]) * int(m[4])}
        ordered = sorted(cuts)
        sub_axes += [(name, low, high // low) for low, high in pairwise(ordered)]
    wanted: list[int] = []
    for m in _AXIS.finditer(grouped):
        low, high = (int(m[3]), int(m[3]) * int(m[4])) if m[3] else (1, sizes[m[1]])
        wanted += [
            i for i, (name, at, _) in enumerate(sub_axes) if name == m[1] and low <= at < high
        ]
    rest = [i for i in range(len(sub_axes)) if i not in wanted]
    shaped = devices.reshape([size for _, _, size in sub_axes]).transpose(*rest, *wanted)
    return _rows(shaped.reshape(-1, prod(sub_axes[i][2] for i in wanted)))


def _rows(table: np.ndarray) -> Groups:
    return [tuple(row) for row in table.reshape(table.shape[0], -1).tolist()]
