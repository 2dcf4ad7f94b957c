"""A quick look at one mesh: the named tactics that the user's schedule allows, refined a little."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.cost.model import CostModel
from shardwright.search.baselines import baselines
from shardwright.search.objective import Budget, Objective
from shardwright.search.refine import refine
from shardwright.search.resolved_tactics import resolve_tactics
from shardwright.search.roles import find_roles
from shardwright.search.space import Space
from shardwright.search.tactics import Context, NotApplicable, Tactic
from shardwright.spmd.decisions import State

QUICK = Budget(evaluations=400)


def screen(
    model: CostModel, memory: int, tactics: Sequence[Tactic] | None, also: Sequence[State] = ()
) -> Objective:
    """The objective after a quick search: its best state, its smallest peak.

    `also` are states of the same schedule to look at, found on another mesh, say. Raises where
    the user's tactics, or the pins in the code, cannot be met on this mesh.
    """
    context = Context(model, find_roles(model.analysis))
    resolved = resolve_tactics(context, tactics)
    objective = Objective(model, memory, overrides=resolved.overrides)
    space = Space(
        model, prefix=resolved.start, axes=resolved.axes, allowed=resolved.allowed,
        overrides=resolved.overrides,
    )  # fmt: skip
    named = baselines(context, resolved.pins, resolved.allowed).values()
    known = [s for s in named if not isinstance(s, NotApplicable)]
    seeds = [s for s in known if resolved.any_strategy or space.contains(s)]
    objective([space.root, *also, *seeds])
    assert objective.best is not None
    refine(space, objective, objective.best, QUICK)
    return objective
