"""The plan cache: what was planned once is looked up, not searched for again.

A plan is kept in a file of the user's cache folder that is named by a hash of all that decides it
(`deciding`): the program, the mesh, the device's data, the options, and Shardwright's own code. So
there is nothing to invalidate: a plan of another version has another name. Files are written whole
and then moved into place: processes that plan the same thing at once write the same file.

The environment variable SHARDWRIGHT_CACHE names another folder; when empty, nothing is kept.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path

from shardwright._version import __version__
from shardwright.errors import ShardwrightError
from shardwright.mesh import Mesh
from shardwright.options import Options
from shardwright.program.fingerprint import content
from shardwright.program.types import Program
from shardwright.record.files import UNFINISHED, read_record, write_record
from shardwright.record.plain import encode
from shardwright.record.types import PlanRecord

FOLDER = "SHARDWRIGHT_CACHE"
MOST_PLANS = 512  # files that are kept, those used last; one of a large program takes 0.4 MB
WRITING_S = 3600.0  # a file takes milliseconds to write: an older unfinished one is nobody's
# Options that decide nothing, or that `meshes` and "device" say better.
_ELSEWHERE = ("mesh", "devices", "device", "progress", "cache", "tactics")


def folder() -> Path | None:
    """Where plans are kept; None where the user wants none kept."""
    given = os.environ.get(FOLDER)
    if given is not None:
        return Path(given) if given else None
    home = Path.home() if "HOME" in os.environ or sys.platform == "win32" else None
    places = {
        "win32": os.environ.get("LOCALAPPDATA"),
        "darwin": home and home / "Library" / "Caches",
    }
    place = places.get(sys.platform) or os.environ.get("XDG_CACHE_HOME") or (
        home and home / ".cache"
    )  # fmt: skip
    return Path(place) / "shardwright" / "plans" if place else None


def wanted(options: Options) -> bool:
    """Whether a plan with these options may be looked up.

    A user's own tactic may change, and so may plans and functions that parameters are shared with.
    """
    own = [t for t in options.tactics or () if not type(t).__module__.startswith("shardwright.")]
    return options.cache and not own and not options.share and folder() is not None


def deciding(program: Program, meshes: Sequence[Mesh], options: Options) -> dict[str, str]:
    """All that decides a plan, by what it is: {"program": a hash, "mesh": ..., "device": ...}"""
    asked = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in _ELSEWHERE}
    asked["tactics"] = None if options.tactics is None else list(map(repr, options.tactics))
    asked["share"] = list(map(str, options.share))
    return {
        "shardwright": f"{__version__} {_own_code()}",
        "program": content(program),
        "mesh": json.dumps(encode(list(meshes))),
        "device": json.dumps(encode(options.device)),
        "options": json.dumps(encode(asked), default=repr),
    }


def key_of(decides: Mapping[str, str]) -> str:
    """The name of the plan that these decide."""
    return hashlib.blake2b(json.dumps(decides).encode(), digest_size=20).hexdigest()


@functools.cache
def _own_code() -> str:
    """A hash of Shardwright's own files: one that was edited may plan otherwise."""
    digest, package = hashlib.blake2b(digest_size=8), Path(__file__).parent
    for path in sorted((*package.rglob("*.py"), *package.rglob("*.toml"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def find(key: str) -> PlanRecord | None:
    """The plan of that name; None if there is none that can be read."""
    place = folder()
    assert place is not None  # `wanted` has been asked
    path = place / f"{key}.json"
    try:
        record = read_record(path)
    except ShardwrightError:  # not there, or damaged: it is planned, and written, again
        return None
    with suppress(OSError):
        os.utime(path)  # used just now
    return record


def keep(key: str, record: PlanRecord) -> PlanRecord:
    """Writes a plan, and gives it back: with a note when that cannot be done.

    A search that was ended early, by the user or the clock, is not kept.
    """
    place = folder()
    assert place is not None
    if record.search.interrupted or record.search.timed_out:
        return record
    try:
        place.mkdir(parents=True, exist_ok=True)
        write_record(record, place / f"{key}.json")
        _drop_oldest(place)
    except (OSError, ShardwrightError) as error:
        why = error.what if isinstance(error, ShardwrightError) else str(error)
        note = f"the plan is not cached: {why} (cache=False, or {FOLDER}=folder)"
        return replace(record, notes=(*record.notes, note))
    return record


def _drop_oldest(place: Path) -> None:
    """Removes the plans that were not used for longest, and what killed processes half wrote.

    Another process may do the same.
    """
    used = _times(place, "*.json")
    for path in sorted(used, key=lambda path: used[path])[:-MOST_PLANS]:
        path.unlink(missing_ok=True)
    for path, written in _times(place, UNFINISHED + "*").items():
        if written < time.time() - WRITING_S:
            path.unlink(missing_ok=True)


def _times(place: Path, pattern: str) -> dict[Path, float]:
    """When each of these files was written or used last."""
    times = {}
    for path in place.glob(pattern):
        with suppress(OSError):
            times[path] = path.stat().st_mtime
    return times
