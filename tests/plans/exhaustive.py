"""Every program of the zoo, every mesh, every tactic and several found plans. About an hour.

    pytest tests/plans/exhaustive.py -n 2

A tactic that does not apply to a program (no experts, no sequence) is skipped and says so.
"""

from __future__ import annotations

from typing import Any

import pytest

import shardwright as sw
from tests.plans.runs import DEVICES, MESHES, PROGRAMS, plan_for, schedules
from tests.plans.test_zoo import check

SEARCHES: dict[str, dict[str, Any]] = {
    **{name: {"device": name} for name in DEVICES},
    "another seed": {"seed": 1},
    "little memory": {"memory_share": 0.4},
}


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_found(program: str, mesh: str, search: str) -> None:
    try:
        plan = plan_for(program, MESHES[mesh], seconds=0.5, **SEARCHES[search])
    except sw.ShardwrightError as error:
        if "no plan fits" in str(error):
            pytest.skip(str(error))
        raise
    check(program, plan)


CASES = [
    (program, mesh, tactic)
    for program in PROGRAMS
    for mesh, axes in MESHES.items()
    for tactic in schedules(axes)
]


@pytest.mark.parametrize("program, mesh, tactic", CASES)
def test_written(program: str, mesh: str, tactic: str) -> None:
    try:
        plan = plan_for(program, MESHES[mesh], tactics=schedules(MESHES[mesh])[tactic])
    except sw.ShardwrightError as error:
        if "does not apply" in str(error):
            pytest.skip(str(error))
        raise
    check(program, plan)
