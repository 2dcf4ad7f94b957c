"""Un-sharing after the search: let one layer differ from its like where that pays.

Layers of equal structure share a decision, which keeps the space small at any depth. When memory
is the limit it can pay to split only some of them. The first and the last color of each group
are tried: with a decision of their own, dropped from a list, put last, or added to one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from shardwright.analysis.unshare import unshare
from shardwright.cost.model import CostModel
from shardwright.search.objective import Objective
from shardwright.search.refine import LayoutRefinement
from shardwright.search.search import Found
from shardwright.spmd.decisions import Decisions, Entry, Placement, State, decide, decide_all

WORTH = 1e-3  # a layer may differ when that saves this part of the step
MOST = 8  # colors that get a decision of their own


def unshare_where_it_pays(
    model: CostModel, found: Found, memory: int | None
) -> tuple[CostModel, Found, list[tuple[int, int]]]:
    """(model, decisions, un-shared (group, color) pairs), the same when nothing pays."""
    limit = model.device.usable_bytes if memory is None else memory
    pairs: list[tuple[int, int]] = []
    fixed = found.fixed or Decisions(())
    bound = {e.group for entries in fixed.lists for e in entries}
    whole = _values(model, fixed)
    # Overrides name layouts, which un-sharing renumbers: it starts with the user's alone.
    apart = CostModel(
        model.analysis, model.mesh, model.device, overlap=model.overlap, pinned=model.pinned
    )
    state, how = found.plain or found.decisions.lists, list(found.how)
    best_s = apart.cost(decide(state, _overrides(apart, whole))).step_s
    while len(pairs) < MOST:
        step = _best_step(apart, state, limit, bound, whole)
        if step is None or step[0] > best_s * (1 - WORTH):
            break
        best_s, apart, state, pair = step
        pairs.append(pair)
        how.append(f"{apart.analysis.all_groups[-1].label} differs: {best_s * 1e3:.4g} ms")
    held = _overrides(apart, whole)
    objective = Objective(apart, limit, overrides=held)
    overrides, best_s = LayoutRefinement(objective).improve(state, {})
    if not pairs or best_s > found.cost.step_s * (1 - WORTH):
        return model, found, []
    decisions = decide(state, {**overrides, **held})
    better = replace(found, decisions=decisions, cost=apart.cost(decisions), how=tuple(how))
    return apart, better, pairs


def _values(model: CostModel, fixed: Decisions) -> dict[int, Placement]:
    """{value: placement} of what the user's overrides hold."""
    held = dict(fixed.overrides)
    rows = enumerate(model.layouts.of_value.tolist())
    return {v: held[layout] for v, layout in rows if layout in held}


def _overrides(model: CostModel, values: Mapping[int, Placement]) -> dict[int, Placement]:
    """The same, by the layouts of another model."""
    return {int(model.layouts.of_value[v]): placement for v, placement in values.items()}


def _best_step(
    model: CostModel, state: State, limit: int, bound: set[int], whole: Mapping[int, Placement]
) -> tuple[float, CostModel, State, tuple[int, int]] | None:
    """(seconds, model, state, (group, color)) of the best color to give its own decision.

    Groups that the user has `bound` to an axis stay together.
    """
    best: tuple[float, CostModel, State, tuple[int, int]] | None = None
    for group in model.analysis.groups:
        if len(group.colors) < 2 or group.index in bound:
            continue
        for color in dict.fromkeys((group.colors[0], group.colors[-1])):
            apart = CostModel(
                unshare(model.analysis, group.index, color), model.mesh, model.device,
                overlap=model.overlap, pinned=model.pinned,
            )  # fmt: skip
            states = list(variants(state, group.index, len(model.analysis.all_groups)))
            costs = apart.evaluate(decide_all(states, _overrides(apart, whole)))
            fits = [i for i in costs.step_s.argsort().tolist() if costs.peak_bytes[i] <= limit]
            if fits and (best is None or costs.step_s[fits[0]] < best[0]):
                pair = (group.index, color)
                best = (float(costs.step_s[fits[0]]), apart, states[fits[0]], pair)
    return best


def variants(state: State, shared: int, alone: int) -> Iterator[State]:
    """The state with the new group beside the old one, and the ways in which it may differ."""

    def beside(entry: Entry) -> tuple[Entry, ...]:
        return (entry, entry._replace(group=alone)) if entry.group == shared else (entry,)

    together: State = tuple(tuple(x for e in entries for x in beside(e)) for entries in state)
    yield together
    for axis, entries in enumerate(together):
        without = tuple(e for e in entries if e.group != alone)
        mine = [e for e in entries if e.group == alone]
        for other in (without, *((*without, e) for e in mine or [Entry(alone)])):
            yield (*together[:axis], other, *together[axis + 1 :])
        if not mine:
            yield (*together[:axis], (Entry(alone), *without), *together[axis + 1 :])
