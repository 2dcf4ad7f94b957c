"""Predicted against compiled, as a table."""

from __future__ import annotations

from shardwright.lowering.verify import LINK_TOLERANCE, MEMORY_TOLERANCE, Verification
from shardwright.report.words import columns, human_bytes


def format_verification(verification: Verification) -> str:
    """Collectives by kind and axes, memory, rematerialisations, numbers, verdict."""
    v = verification
    rows = [("", "predicted", "", "compiled", "")]
    keys = sorted({*v.predicted, *v.compiled}, key=lambda key: (key[0], key[1] or ()))
    for key in keys:
        kind, axes = key
        cells = [f"{kind} {'+'.join(axes) if axes is not None else '(unclear axes)'}"]
        for totals in (v.predicted, v.compiled):
            count, size = totals.get(key, (0.0, 0.0))
            cells += [human_bytes(size), f"x{count:g}" if count else ""]
        rows.append(tuple(cells))  # type: ignore[arg-type]
    rows.append(
        ("all collectives", human_bytes(v.predicted_bytes), "", human_bytes(v.compiled_bytes), "")
    )
    rows.append(
        (
            "peak memory",
            human_bytes(v.predicted_peak_bytes),
            "",
            human_bytes(v.compiled_peak_bytes),
            "",
        )
    )
    lines = [
        f"compiled for {'the current devices' if v.target == 'current' else v.target}",
        columns(rows, right=(1, 2, 3, 4)),
        *_findings(v),
    ]
    lines.append("verified: compiled as predicted" if v.ok else "NOT as predicted")
    return "\n".join(lines)


def _findings(v: Verification) -> list[str]:
    """One line per question asked, with its answer."""
    memory = f"{v.memory_error:.1%} apart"
    if v.checks_memory:
        memory += f" (at most {MEMORY_TOLERANCE:.0%})" + _mark(v.memory_error <= MEMORY_TOLERANCE)
    else:
        memory += "; not judged: a host's figure says nothing about an accelerator's"
    lines = [
        f"  bytes moved   {v.link_error:.1%} apart (at most {LINK_TOLERANCE:.0%})"
        + _mark(v.link_error <= LINK_TOLERANCE),
        f"  peak memory   {memory}",
        f"  involuntary full rematerialisations: {v.rematerialisations}"
        + _mark(v.rematerialisations == 0),
    ]
    if v.numbers_agree is not None:
        lines.append(
            f"  results       {'equal to' if v.numbers_agree else 'NOT those of'} the unsharded"
            f" function's, largest relative error {v.largest_error:.1e}" + _mark(v.numbers_agree)
        )
    if v.cycles is not None:
        lines.append(f"  the compiler estimates {v.cycles:,} cycles")
    return lines


def _mark(good: bool) -> str:
    return "" if good else "  <-- fails"
