"""The table of predicted against compiled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.referee.agreement import Agreement
from shardwright.referee.replay import Seconds
from shardwright.referee.verification import Ran, Verification

GOOD = Verification(
    target="cpu:8",
    platform="cpu",
    mesh={"data": 4, "model": 2},
    predicted={
        ("all-reduce", ("data",)): (2.0, 2000.0),
        ("all-gather", ("model",)): (1.0, 500.0),
        ("reduce-scatter", ("model",)): (1.0, 300.0),
    },
    compiled={
        ("all-reduce", ("data",)): (1.0, 2000.0),
        ("all-gather", None): (1.0, 510.0),
        ("all-reduce", ("model",)): (1.0, 300.0),
    },
    predicted_seconds=Seconds(compute_s=60e-6, link_s=20e-6, exposed_s=15e-6),
    compiled_link_s=21e-6,
    seconds=None,
    predicted_peak_bytes=1000,
    compiled_peak_bytes=4000,
    rematerialisations=0,
    runs=(Ran("in range", Agreement(1e-7, True)), Ran("below 0", Agreement(0.0, True))),
)


def test_a_verified_plan_reads_so() -> None:
    assert str(GOOD).splitlines() == [
        "compiled for cpu:8",
        "                             predicted      compiled",
        "  all-gather (unclear axes)        0 B         510 B  x1  10 B not predicted",
        "  all-gather model               500 B  x1       0 B",
        "  all-reduce data               2.0 kB  x2    2.0 kB  x1",
        "  all-reduce model                 0 B         300 B  x1",
        "  reduce-scatter model           300 B  x1       0 B",
        "  all collectives               2.8 kB        2.8 kB",
        "  seconds on links             20.0 us       21.0 us",
        "  peak memory                   1.0 kB        4.0 kB",
        "  300 B of reduce-scatter model compiled as all-reduce model: reduced whole, then sliced",
        "  500 B of all-gather model compiled as all-gather (unclear axes): over groups that are"
        " no mesh axes",
        "  bytes moved   0.4% apart by kind and axes (at most 10%)",
        "  peak memory   75.0% apart with a host's buffers; not judged: an accelerator has others",
        "  involuntary full rematerialisations: 0",
        "  results       equal to the unsharded function's, largest relative error 1.0e-07"
        " (in range, below 0)",
        "verified: compiled as predicted",
    ]


def test_a_schedule_is_shown_beside_what_was_predicted() -> None:
    replayed = Seconds(compute_s=50e-6, link_s=21e-6, exposed_s=18e-6)
    lines = str(replace(GOOD, platform="tpu", seconds=replayed)).splitlines()
    assert [line.split() for line in lines[8:12]] == [
        ["seconds", "on", "links", "20.0", "us", "21.0", "us"],
        ["of", "them", "exposed", "15.0", "us", "18.0", "us"],
        ["compute", "60.0", "us", "50.0", "us"],
        ["step", "as", "scheduled", "75.0", "us", "68.0", "us"],
    ]


RS, AR, BOTH = "reduce-scatter", "all-reduce", ("data", "model")


@pytest.mark.parametrize("changes, words", [
    ({"compiled": {(AR, ("data",)): (1.0, 4000.0)}, "predicted": {(AR, ("data",)): (1.0, 2500.0)}},
     "bytes moved   37.5% apart by kind and axes (at most 10%)  <-- fails"),
    ({"compiled": {(AR, ("data",)): (1.0, 4000.0)}, "predicted": {(AR, ("data",)): (1.0, 2000.0)},
      "narrow_floats": True}, "verify\n    for a TPU or GPU target, or the same program in f32"),
    ({"platform": "tpu", "predicted": {(RS, BOTH): (1.0, 1.2e8)},
      "compiled": {(AR, BOTH): (1.0, 1.2e8)}}, "120.0 MB not predicted"),
    ({"platform": "tpu", "predicted": {(RS, BOTH): (1.0, 1.2e8)},
      "compiled": {(AR, BOTH): (1.0, 1.2e8)}}, "120.0 MB not found"),
    ({"platform": "tpu", "predicted": {}, "compiled": {}},
     "peak memory   75.0% apart (at most 15%)  <-- fails"),
    ({"rematerialisations": 2}, "rematerialisations: 2  <-- fails"),
    ({"runs": (Ran("one beyond", Agreement(0.5, False, 1e-6)),)},
     "NOT those of the unsharded function's, largest relative error 5.0e-01 (one beyond);"
     " one ulp of noise in its arguments changes them by 1.0e-06  <-- fails"),
])  # fmt: skip
def test_what_fails_is_marked(changes: dict[str, object], words: str) -> None:
    text = str(replace(GOOD, **changes))  # type: ignore[arg-type]
    assert words in text
    assert text.endswith("NOT as predicted")


def test_what_does_not_count_is_said_and_does_not_fail() -> None:
    ran = Ran("beyond", Agreement(1.0, False), counts=False, why_not="a.py:3 promises")
    found = replace(GOOD, runs=(*GOOD.runs, ran))
    assert "(beyond); not judged: a.py:3 promises\n" in str(found)
    assert found and found.largest_error == 1e-7
