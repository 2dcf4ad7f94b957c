"""Predicted against compiled, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwright.referee.equivalences import Key, Row
from shardwright.referee.verification import LINK_TOLERANCE, MEMORY_TOLERANCE, Ran, Verification
from shardwright.report.words import columns, human_bytes, human_seconds

LEAST_BYTES = 0.5  # less is the rounding of shares


def format_verification(verification: Verification) -> str:
    """Collectives by kind and axes, memory, rematerialisations, numbers, verdict."""
    v = verification
    rows = [("", "predicted", "", "compiled", "", "")]
    for row in v.traffic.rows:
        cells = [_name((row.kind, row.axes))]
        for count, size in (row.predicted, row.compiled):
            cells += [human_bytes(size), f"x{count:g}" if count else ""]
        rows.append((*cells, _apart(row)))  # type: ignore[arg-type]
    pairs = [
        ("all collectives", human_bytes, v.predicted_bytes, v.compiled_bytes),
        ("seconds on links", human_seconds, v.predicted_seconds.link_s, v.compiled_link_s),
        ("peak memory", human_bytes, v.predicted_peak_bytes, v.compiled_peak_bytes),
    ]
    if v.seconds is not None:
        here, there = v.predicted_seconds, v.seconds
        pairs[2:2] = [
            ("of them exposed", human_seconds, here.exposed_s, there.exposed_s),
            ("compute", human_seconds, here.compute_s, there.compute_s),
            ("step as scheduled", human_seconds, here.step_s, there.step_s),
        ]
    rows += [(what, words(here), "", words(there), "", "") for what, words, here, there in pairs]  # type: ignore[operator]
    lines = [
        f"compiled for {'the current devices' if v.target == 'current' else v.target}",
        columns(rows, right=(1, 2, 3, 4)),
        *_findings(v),
    ]
    lines.append("verified: compiled as predicted" if v.ok else "NOT as predicted")
    return "\n".join(lines)


def _name(key: Key) -> str:
    kind, axes = key
    return f"{kind} {'+'.join(axes) if axes is not None else '(unclear axes)'}"


def _apart(row: Row) -> str:
    """What of a row has no counterpart, under no name."""
    parts = [(row.missing_bytes, "not found"), (row.extra_bytes, "not predicted")]
    return ", ".join(f"{human_bytes(size)} {what}" for size, what in parts if size > LEAST_BYTES)


def _findings(v: Verification) -> Iterator[str]:
    """One line per question asked, with its answer."""
    for fold in v.traffic.folds:
        here, there = (" and ".join(map(_name, side)) for side in (fold.predicted, fold.compiled))
        yield f"  {human_bytes(fold.bytes)} of {here} compiled as {there}: {fold.name}"
    yield (
        f"  bytes moved   {v.link_error:.1%} apart by kind and axes"
        f" (at most {LINK_TOLERANCE:.0%})" + _mark(v.link_error <= LINK_TOLERANCE)
    )
    if v.link_error > LINK_TOLERANCE and v.narrow_floats and v.platform == "cpu":
        yield "  XLA:CPU computes floats of 16 bits as f32, and moves up to twice the bytes: verify"
        yield "    for a TPU or GPU target, or the same program in f32"
    memory = f"{v.memory_error:.1%} apart"
    if v.checks_memory:
        memory += f" (at most {MEMORY_TOLERANCE:.0%})" + _mark(v.memory_error <= MEMORY_TOLERANCE)
    else:
        memory += " with a host's buffers; not judged: an accelerator has others"
    yield f"  peak memory   {memory}"
    yield f"  involuntary full rematerialisations: {v.rematerialisations}" + _mark(
        v.rematerialisations == 0
    )
    for text in _agreements(v.runs):
        yield f"  results       {text}"


def _agreements(runs: Sequence[Ran]) -> Iterator[str]:
    """How runs compare with the unsharded function's: what is plainly equal in one sentence."""
    equal = [ran for ran in runs if ran.agreement and ran.agreement.noise is None]
    if equal:
        worst, names = max(ran.agreement.worst for ran in equal), (ran.draw for ran in equal)
        yield f"equal to {_error(worst)} ({', '.join(names)})"
    for ran in runs:
        found = ran.agreement
        if ran in equal:
            continue
        text = f"{'equal to' if found else 'NOT those of'} {_error(found.worst)} ({ran.draw})"
        if found.noise is not None:
            text += f"; one ulp of noise in its arguments changes them by {found.noise:.1e}"
        judged = bool(found) or ran.counts
        yield text + (_mark(bool(found)) if judged else f"; not judged: {ran.why_not}")


def _error(worst: float) -> str:
    return f"the unsharded function's, largest relative error {worst:.1e}"


def _mark(good: bool) -> str:
    return "" if good else "  <-- fails"
