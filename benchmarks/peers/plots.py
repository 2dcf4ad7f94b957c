"""SVG pictures of docs/peers.md: plain functions of numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

COLORS = ("#1b7f79", "#d99000", "#2e5fa3", "#a3303f", "#7a3e9d")
WIDTH, MARGIN, LEFT = 760, 36, 170
ROW, BAR = 34, 11  # height of a case, of one of its bars


def _open(height: float) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="white"/>',
    ]


def _legend(names: Sequence[str], y: float) -> list[str]:
    step = (WIDTH - LEFT) / max(1, len(names))
    return [
        f'<rect x="{LEFT + i * step:.0f}" y="{y - 9:.0f}" width="10" height="10" '
        f'fill="{COLORS[i]}"/>'
        f'<text x="{LEFT + i * step + 15:.0f}" y="{y:.0f}">{escape(name)}</text>'
        for i, name in enumerate(names)
    ]


def bars(rows: Mapping[str, Sequence[float | None]], names: Sequence[str]) -> str:
    """Horizontal bars on a logarithmic axis from 0.5 x on, several per row."""
    height = 2 * MARGIN + ROW * len(rows)
    high = max([2.0, *(v for values in rows.values() for v in values if v)])

    def x(value: float) -> float:
        share = math.log(max(value, 0.5) / 0.5) / math.log(high * 1.3 / 0.5)
        return LEFT + share * (WIDTH - LEFT - MARGIN)

    parts = [*_open(height), *_legend(names, 20)]
    for i, (name, values) in enumerate(rows.items()):
        y = MARGIN + i * ROW
        parts.append(f'<text x="{LEFT - 8}" y="{y + 17}" text-anchor="end">{escape(name)}</text>')
        for j, value in enumerate(values):
            if value is not None:
                parts.append(
                    f'<rect x="{x(0.5):.1f}" y="{y + 2 + j * (BAR + 2)}" height="{BAR}" '
                    f'width="{x(value) - x(0.5):.1f}" fill="{COLORS[j]}"/>'
                    f'<text x="{x(value) + 4:.1f}" y="{y + 12 + j * (BAR + 2)}" '
                    f'font-size="10">{value:.2f}</text>'
                )
    parts.append(
        f'<line x1="{x(1.0):.1f}" x2="{x(1.0):.1f}" y1="{MARGIN}" y2="{height - MARGIN}" '
        'stroke="#000" stroke-dasharray="3 3"/>'
        f'<text x="{x(1.0):.1f}" y="{height - 14}" text-anchor="middle">'
        "1: as fast as they are</text></svg>"
    )
    return "\n".join(parts) + "\n"


def lines(series: Mapping[str, Mapping[float, float]], below: str) -> str:
    """Lines of a share (0 to 1) over a logarithmic count; names in " (FSDP)" are dashed."""
    height = 360
    points = [x for values in series.values() for x in values] or [1.0, 2.0]
    low, high = math.log(min(points)), math.log(max(points) * 1.05)
    top = max([0.1, *(y for values in series.values() for y in values.values())]) * 1.1

    def at(x: float, y: float) -> str:
        across = LEFT / 2 + (math.log(x) - low) / (high - low) * (WIDTH - LEFT / 2 - MARGIN)
        return f"{across:.1f},{height - MARGIN - y / top * (height - 3 * MARGIN):.1f}"

    solid = [name for name in series if not name.endswith(" (FSDP)")]
    parts = [*_open(height), *_legend(solid, 20)]
    for x in sorted(set(points)):
        across = at(x, 0).split(",")[0]
        parts.append(
            f'<text x="{across}" y="{height - MARGIN + 16}" text-anchor="middle">{x:g}</text>'
        )
    for tenth in range(int(top * 10) + 1):
        down = at(min(points), tenth / 10).split(",")[1]
        parts.append(
            f'<line x1="{LEFT / 2}" x2="{WIDTH - MARGIN}" y1="{down}" y2="{down}" stroke="#ddd"/>'
            f'<text x="{LEFT / 2 - 8}" y="{down}" text-anchor="end">{tenth * 10}%</text>'
        )
    for name, values in series.items():
        color = COLORS[solid.index(name.removesuffix(" (FSDP)"))]
        dash = ' stroke-dasharray="5 4"' if name not in solid else ""
        path = " ".join(at(x, y) for x, y in sorted(values.items()))
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dash}/>'
        )
    parts.append(
        f'<text x="{WIDTH / 2}" y="{height - 4}" text-anchor="middle">{escape(below)}</text></svg>'
    )
    return "\n".join(parts) + "\n"
