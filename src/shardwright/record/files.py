"""Plan files: JSON, written whole or not at all, and read as data that anybody may have changed."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from shardwright.errors import ShardwrightError
from shardwright.record.consistency import disagreements
from shardwright.record.migrate import VERSION, TooOld, upgrade
from shardwright.record.plain import Damaged, decode, encode
from shardwright.record.types import PlanRecord

MOST_BYTES = 2**28  # of a plan file; one of ten thousand arguments takes a few megabytes
UNFINISHED = ".plan-"  # how files that are being written are called, until they are whole
ASK = "a file written by plan.save()"


def record_text(record: PlanRecord, path: str | Path = "text") -> str:
    """What a plan's file holds; nothing that could not be read again."""
    plain = encode(record)
    try:
        _decoded(plain)
    except Damaged as wrong:
        raise ShardwrightError(
            f"cannot write a plan to {path}: {wrong}", try_="other names in the program or the mesh"
        ) from None
    return json.dumps({"version": VERSION} | plain, indent=1, allow_nan=False) + "\n"


def write_record(record: PlanRecord, path: str | Path) -> None:
    """Writes a plan's file: whole, or not at all."""
    text = record_text(record, path)
    try:
        target = Path(path).resolve()
        if target.exists() and not target.is_file():  # /dev/stdout
            target.write_text(text, encoding="utf-8")
        else:
            _replace(target, text)
    except (OSError, TypeError, ValueError) as error:
        raise ShardwrightError(
            f"cannot write a plan to {path}: {getattr(error, 'strerror', None) or error}",
            try_="a file in a folder that exists",
        ) from None


def _replace(target: Path, text: str) -> None:
    """Writes a file beside the target, then puts it in its place."""
    beside = target.with_name(UNFINISHED + uuid.uuid4().hex)
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def read_record(path: str | Path) -> PlanRecord:
    """The plan in a file, of this version or an older one."""
    try:
        with Path(path).open("rb") as file:
            content = _parse(file.read(MOST_BYTES + 1))
    except RecursionError:
        raise ShardwrightError(
            f"cannot read a plan from {path}: nested too deeply", try_=ASK
        ) from None
    except (OSError, TypeError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ShardwrightError(f"cannot read a plan from {path}: {why}", try_=ASK) from None
    version = content.get("version") if isinstance(content, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version < 1000:
        raise ShardwrightError(f"{path} is not a plan", try_=ASK)
    if version > VERSION:
        writer = content.get("shardwright")
        by = f" {writer}" if isinstance(writer, str) and writer.isprintable() else ""
        raise ShardwrightError(
            f"{path} was written by a newer Shardwright{by} (plan version {version}, this one"
            f" reads up to {VERSION})",
            try_="pip install -U shardwright",
        )
    try:
        return _decoded(upgrade(content, version))
    except TooOld as why:
        raise ShardwrightError(
            f"{path} was written by an older Shardwright: {why}", try_="plan again"
        ) from None
    except Damaged as wrong:
        raise ShardwrightError(
            f"{path} is damaged: {wrong}", try_="a file as plan.save() wrote it"
        ) from None


def _decoded(plain: dict[str, Any]) -> PlanRecord:
    """The record that plain data stands for; raises Damaged for the first thing that is wrong."""
    record: PlanRecord = decode(plain, PlanRecord)
    for wrong in disagreements(record):
        raise Damaged(wrong)
    return record


def _parse(data: bytes) -> Any:
    if len(data) > MOST_BYTES:
        raise ValueError(f"larger than {MOST_BYTES:,} bytes")
    return json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of two fields with one name a reader would see one and a run the other."""
    out = dict(pairs)
    if len(out) < len(pairs):
        raise ValueError("an object has the same field twice")
    return out


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number")
