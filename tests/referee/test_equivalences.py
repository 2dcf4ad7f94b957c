"""Predicted against compiled by kind and axes: what is folded, and what is an error."""

from __future__ import annotations

import pytest

from shardwright.referee.equivalences import Key, Traffic, compare_traffic

SIZES = {"data": 4, "model": 2, "one": 1}
D, M, DM = ("data",), ("model",), ("data", "model")
AR, AG, RS, A2A, CP = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
)  # fmt: skip
X = 800.0
SLICED, NEIGHBOUR = "reduced whole, then sliced", "passed from neighbour to neighbour"
OF_SHARDS = "scattered, and its shards reduced"
BY_AXIS, NO_AXES = "one axis after the other", "over groups that are no mesh axes"


def compared(predicted: dict[Key, float], compiled: dict[Key, float], platform: str) -> Traffic:
    tables = ({key: (1.0, size) for key, size in t.items()} for t in (predicted, compiled))
    return compare_traffic(*tables, SIZES, platform)


@pytest.mark.parametrize("platform, predicted, compiled, name", [
    ("cpu", {(RS, D): X}, {(AR, D): X}, SLICED),
    ("cpu", {(RS, D): X, (AR, D): 4.0}, {(AR, D): X + 4.0}, SLICED),
    ("tpu", {(AG, D): X}, {(CP, D): X * 3 / 4}, NEIGHBOUR),
    ("tpu", {(A2A, M): X}, {(CP, M): X / 2}, NEIGHBOUR),
    ("cuda", {(AG, DM): X}, {(AG, D): X / 2, (AG, M): X}, BY_AXIS),
    ("tpu", {(AG, DM): X}, {(AG, D): X, (AG, M): X / 4}, BY_AXIS),
    ("tpu", {(RS, DM): X}, {(RS, D): X, (RS, M): X / 4}, BY_AXIS),
    ("tpu", {(RS, D): X, (RS, M): X / 4}, {(RS, DM): X}, BY_AXIS),
    ("cuda", {(A2A, DM): X}, {(A2A, D): X, (A2A, M): X}, BY_AXIS),
    ("cpu", {(AG, D): X}, {(AG, None): X}, NO_AXES),
    ("cuda", {(AR, DM): X}, {(RS, M): X, (AR, D): X / 2}, OF_SHARDS),
])  # fmt: skip
def test_folded_by_name(
    platform: str, predicted: dict[Key, float], compiled: dict[Key, float], name: str
) -> None:
    found = compared(predicted, compiled, platform)
    assert {fold.name for fold in found.folds} == {name}
    assert found.error == 0.0


@pytest.mark.parametrize("platform, predicted, compiled, missing, extra", [
    # Twice the traffic, and the total is the same.
    ("tpu", {(RS, DM): X}, {(AR, DM): X}, {(RS, DM): X}, {(AR, DM): X}),
    ("cuda", {(RS, D): X}, {(AR, D): X}, {(RS, D): X}, {(AR, D): X}),
    # Errors that offset each other.
    ("cpu", {(AG, D): X, (AG, M): X}, {(AG, D): 2 * X}, {(AG, M): X}, {(AG, D): X}),
    ("cpu", {(AR, D): X}, {(RS, D): X}, {(AR, D): X}, {(RS, D): X}),
    ("cpu", {(RS, D): X}, {(AR, M): X}, {(RS, D): X}, {(AR, M): X}),
    ("tpu", {(AR, DM): X}, {(RS, M): X}, {(AR, DM): X}, {(RS, M): X}),
    # More than an equivalence explains.
    ("cpu", {(RS, D): X}, {(AR, D): 2 * X}, {}, {(AR, D): X}),
    # An all-reduce over two axes in two steps moves more.
    ("tpu", {(AR, DM): X}, {(AR, D): X, (AR, M): X}, {(AR, DM): X}, {(AR, D): X, (AR, M): X}),
])  # fmt: skip
def test_not_the_same(
    platform: str, predicted: dict[Key, float], compiled: dict[Key, float],
    missing: dict[Key, float], extra: dict[Key, float],
) -> None:  # fmt: skip
    found = compared(predicted, compiled, platform)
    assert {(r.kind, r.axes): r.missing_bytes for r in found.rows if r.missing_bytes} == missing
    assert {(r.kind, r.axes): r.extra_bytes for r in found.rows if r.extra_bytes} == extra
    larger = max(sum(predicted.values()), sum(compiled.values()))
    assert found.error == sum([*missing.values(), *extra.values()]) / larger


def test_nothing_moves_over_one_device() -> None:
    found = compared({(AG, ("one",)): X, (AR, ("data", "one")): X}, {(AR, D): X}, "tpu")
    assert [(row.kind, row.axes) for row in found.rows] == [(AR, D)]
    assert found.error == 0.0
