"""The table of predicted against compiled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.lowering.verify import Verification

GOOD = Verification(
    target="cpu:8",
    predicted={("all-reduce", ("data",)): (2.0, 2000.0), ("all-gather", ("model",)): (1.0, 500.0)},
    compiled={("all-reduce", ("data",)): (1.0, 2000.0), ("all-gather", None): (1.0, 510.0)},
    predicted_peak_bytes=1000,
    compiled_peak_bytes=4000,
    rematerialisations=0,
    largest_error=1e-7,
    numbers_agree=True,
    cycles=12345,
    checks_memory=False,
)


def test_a_verified_plan_reads_so() -> None:
    assert str(GOOD).splitlines() == [
        "compiled for cpu:8",
        "                             predicted      compiled",
        "  all-gather (unclear axes)        0 B         510 B  x1",
        "  all-gather model               500 B  x1       0 B",
        "  all-reduce data               2.0 kB  x2    2.0 kB  x1",
        "  all collectives               2.5 kB        2.5 kB",
        "  peak memory                   1.0 kB        4.0 kB",
        "  bytes moved   0.4% apart (at most 10%)",
        "  peak memory   75.0% apart; not judged: a host's figure says nothing about an"
        " accelerator's",
        "  involuntary full rematerialisations: 0",
        "  results       equal to the unsharded function's, largest relative error 1.0e-07",
        "  the compiler estimates 12,345 cycles",
        "verified: compiled as predicted",
    ]


@pytest.mark.parametrize("changes, words", [
    ({"compiled": {("all-reduce", ("data",)): (1.0, 4000.0)}},
     "bytes moved   37.5% apart (at most 10%)  <-- fails"),
    ({"checks_memory": True}, "peak memory   75.0% apart (at most 15%)  <-- fails"),
    ({"rematerialisations": 2}, "rematerialisations: 2  <-- fails"),
    ({"numbers_agree": False, "largest_error": 0.5}, "NOT those of the unsharded function's"),
])  # fmt: skip
def test_what_fails_is_marked(changes: dict[str, object], words: str) -> None:
    text = str(replace(GOOD, **changes))  # type: ignore[arg-type]
    assert words in text
    assert text.endswith("NOT as predicted")
