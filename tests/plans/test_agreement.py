"""Two real processes: one plans, both take that plan, and where they disagree both stop."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = Path(__file__).with_name("agreement_child.py")
RAN = f"ran {32 * 8 * math.tanh(1.6):.2f}"
RAN_OTHER = f"ran {32 * 8 * math.sin(1.6):.2f}"
SAME = "start all processes with the same code, arguments and options"
ALONE = "; plans that only one process makes: save() there and load() in all"


def stopped(why: str) -> list[str]:
    return [f"process 1 stopped before running step\n  there   {why}\n  try     {SAME}"]


def differs(what: str, planned: str = "step, 4 ops, on data=4 x model=2 of h100") -> list[str]:
    return [
        "process 1 would plan something else than process 0",
        f"differs {what}\n  process 0 {planned}\n  try     {SAME}{ALONE}",
    ]


OTHER = "process 1 would plan something else than process 0"
BROKEN = "broken failed while being traced: ValueError: only here"
FITS = "no plan fits 1e-05 MB per device"
# {case: (what process 0 says, what process 1 says)}: parts of the text, in order
EXPECTED: dict[str, tuple[list[str], list[str]]] = {
    "agree": ([f"searched 1, {RAN}"], [f"searched 0, {RAN}"]),
    "planned when called": ([RAN], [RAN]),
    "other shapes": (stopped(OTHER), differs("program")),
    "another program": (stopped(OTHER), differs("program")),
    "other options": (stopped(OTHER), differs("device, options")),
    "does not trace here": (stopped(BROKEN), [BROKEN]),
    "does not trace there": ([BROKEN], [f"process 0: {BROKEN}"]),
    "nothing fits": ([FITS], [f"process 0: {FITS}", "at peak", "try     memory="]),
    "another plan": (
        ["process 1 is about to run another plan of step than process 0", "differs plan"],
        ["process 0 is about to run another plan of step than process 1", "differs plan"],
    ),
    "another function": (
        stopped("this plan was made for another program than other"),
        ["this plan was made for another program than other"],
    ),
    "agree again": ([RAN], [RAN]),
    "one plans alone": ([RAN], [RAN]),
    "alone, then together": (
        ["process 1 stopped before running other"], ["differs program", ALONE]
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """What happened in each process, {case: text}."""
    folder = tmp_path_factory.mktemp("job")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # a port that nobody listens on
        port = str(free.getsockname()[1])
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    children = [
        subprocess.Popen([sys.executable, str(CHILD), str(process), port, str(folder)], env=env)
        for process in (0, 1)
    ]
    try:
        assert [child.wait(timeout=120) for child in children] == [0, 0]
    finally:
        for child in children:
            child.kill()
    assert (folder / "0.json").read_bytes() == (folder / "1.json").read_bytes()
    return [json.loads((folder / f"said-{n}.json").read_text()) for n in (0, 1)]


@pytest.mark.parametrize("case", EXPECTED)
def test_two_processes(said: list[dict[str, str]], case: str) -> None:
    for process, parts in enumerate(EXPECTED[case]):
        text = said[process][case]
        for part in parts:
            assert part in text, f"process {process}: {text}"
            text = text.partition(part)[2]
