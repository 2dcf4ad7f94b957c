"""Plan files of older versions, as this version would have written them: plain data to plain data.

A step takes a file of one version to the next, in place. What it does not change it leaves alone:
whether the result is a plan is seen when it is decoded.

1 -> 2: says how the function is called and who wrote the file.
2 -> 3: causes are values, what the user asked for stands in one place.
3 -> 4: the step over time, what arguments are, large intermediates, FLOPs, hidden seconds; the
  latency of a torus is per hop.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from shardwright.record.plain import MOST_TEXT, Damaged

VERSION = 4  # of the files that this Shardwright writes

Plain = dict[str, Any]

_WHAT = r"(?:result of (?P<maker>\S+)|constant|(?P<value>.+?))"
# {kind of a cause: its sentence in a file of version 2}
_SENTENCES = {
    "operand": rf"{_WHAT} is needed by (?P<op>\S+)",
    "halo": r"(?P<op>\S+) reaches over the split of its operand",
    "partial": r"partial sums of (?P<op>\S+), kept as (?P<stored>.+)",
    "sum": r"sum of (?P<terms>\d{1,9}) partial results, kept as (?P<stored>.+)",
    "scan": r"sum over all rounds of a scan, kept as (?P<stored>.+)",
    "returned": r"(?P<value>.+?) is given back as (?P<stored>.+)",
    "stored": rf"{_WHAT}, kept as (?P<stored>.+)",
}


class TooOld(Exception):
    """A file whose content cannot be had in this version's form; its text says why."""


def upgrade(file: Plain, version: int) -> Plain:
    """The content of a file of this version or an older one, in this version's form."""
    for step in _STEPS[version - 1 :]:
        file = step(file)
    return {name: item for name, item in file.items() if name != "version"}


def _to_2(file: Plain) -> Plain:
    if file.get("overrides"):
        raise TooOld("its layouts had other numbers")
    return file | {"overrides": [], "call": file.get("call"), "notes": file.get("notes", [])}


def _to_3(file: Plain) -> Plain:
    """A file of version 2 as one of version 3."""
    options, search = _table(file, "options"), _table(file, "search")
    for row in _rows(file, "groups"):
        row |= {"role": row.get("role", "hidden"), "bits": row.get("bits", 0)}
    for row in _rows(file, "collectives"):
        if isinstance(row.get("cause"), str):
            row["cause"] = read_cause(row["cause"])
    _table(file, "memory").pop("limit_bytes", None)  # which the device says
    return {
        "shardwright": "of another version",
        **{name: item for name, item in file.items() if name not in ("options", "numbers")},
        "weakly_typed": file.get("numbers", []),
        "pinned": options.pop("pinned", {}),
        "unshared": options.pop("unshared", []),
        "asked": options | {"memory": search.pop("memory", None)},
        "search": {"pins_in_code": 0, "timed_out": False} | search,
    }


def _to_4(file: Plain) -> Plain:
    """A file of version 3 as one of version 4, which says less than a new one."""
    baselines = file.get("baselines")
    rows = baselines.values() if isinstance(baselines, dict) else ()
    for cost in [row for row in (file.get("cost"), *rows) if isinstance(row, dict)]:
        numbers = [cost.get(name) for name in ("overlap", "compute_s", "link_s")]
        given = [n for n in numbers if isinstance(n, int | float)]
        if len(given) == len(numbers):  # whether they are numbers is seen when they are decoded
            cost["hidden_s"] = given[0] * min(given[1:])
    said = {"kinds": {}, "matrix_flops": 0.0, "timeline": {"bodies": [], "spans": []}, "arrays": []}
    device = file.get("device")
    if isinstance(device, dict) and device.get("topology") == "torus":
        device["hop_latency_s"] = device.pop("latency_s", 0.0)
    return file | said


_STEPS: tuple[Callable[[Plain], Plain], ...] = (_to_2, _to_3, _to_4)


def _table(file: Plain, name: str) -> Plain:
    """A table of a file that a step is about to change."""
    if not isinstance(file.get(name), dict):
        raise Damaged(f"{name}: expected a table" if name in file else f"it has no {name!r}")
    return file[name]


def _rows(file: Plain, name: str) -> list[Plain]:
    """The rows of a list of tables; whether there are others is seen when they are decoded."""
    rows = file.get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def read_cause(said: str) -> Plain:
    """A cause of version 2, which is a sentence, as the fields of a Cause."""
    for kind, sentence in _SENTENCES.items():
        if found := re.fullmatch(sentence, said[:MOST_TEXT]):
            given = {name: item for name, item in found.groupdict().items() if item}
            return {"kind": kind} | given | {"terms": int(given.get("terms", 0))}
    return {"kind": "other", "value": said}
