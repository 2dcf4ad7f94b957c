"""Nothing depends on the order of sets and dicts: processes that hash otherwise say the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHILD = """
import json, sys
from shardwright import zoo
from shardwright.analysis import analyze_program
from shardwright.program import trace
from tests.plans.runs import plan_for

def analysis_of(name):
    example = zoo.programs("tiny")[name]
    program = trace(example.fn, *example.args, donate_argnums=example.donate_argnums)
    analysis = analyze_program(program)
    groups = [(g.label, g.colors, g.conflict_sets, g.dims) for g in analysis.all_groups]
    sets = [(s.color, s.flips) for s in analysis.conflict_sets]
    return f"{analysis}\\n{groups}\\n{analysis.set_group} {sets}"

names = ("transformer_train", "moe_forward", "unet_forward", "resnet_train")
plan = plan_for("moe_forward", {"data": 4, "model": 2}, seconds=0.3)
plan.save(sys.argv[1])
print(json.dumps([analysis_of(name) for name in names]))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Sequence[tuple[list[str], bytes]]:
    """(analyses of four programs, the file of a plan) of two processes."""
    found = []
    for seed in ("1", "2"):
        path = tmp_path_factory.mktemp("plans") / "plan.json"
        env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        child = subprocess.run(
            [sys.executable, "-c", CHILD, str(path)], check=True, capture_output=True, text=True,
            env=env, cwd=ROOT, timeout=240,
        )  # fmt: skip
        found.append((json.loads(child.stdout.splitlines()[-1]), path.read_bytes()))
    return found


@pytest.mark.slow
def test_the_same_groups_and_labels(said: Sequence[tuple[list[str], bytes]]) -> None:
    (one, _), (other, _) = said
    assert one == other
    assert [text.count("groups,") for text in one] == [1, 1, 1, 1]


@pytest.mark.slow
def test_the_same_file(said: Sequence[tuple[list[str], bytes]]) -> None:
    (_, one), (_, other) = said
    assert one == other
