"""Draws the pictures of docs/ideas.md: python docs/pictures/draw.py"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
COLORS = {"B": "#d1495b", "D": "#00798c", "F": "#edae49", "E": "#66a182", "S": "#8d6a9f"}
INK, PAPER, FAINT = "#2b2b2b", "#fbfaf7", "#c9c5bb"


def text(x: float, y: float, words: str, *, size: int = 14, color: str = INK, bold: bool = False,
         anchor: str = "middle") -> str:  # fmt: skip
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{color}" text-anchor="{anchor}"'
        f' font-family="system-ui, sans-serif"{weight}>{words}</text>'
    )


def line(x1: float, y1: float, x2: float, y2: float, color: str, width: float = 1.5) -> str:
    return (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{color}" stroke-width="{width}"/>'
    )


def matrix(x: float, y: float, name: str, rows: str, columns: str, *, split: dict[str, int]) -> str:
    """A matrix whose edges have the colors of its dims; `split` cuts a dim into parts."""
    w = h = 90
    out = [f'<rect x="{x}" y="{y}" width="{w}" height="{h}" fill="white" stroke="{FAINT}"/>']
    for i in range(1, split.get(rows, 1)):
        out.append(line(x, y + h * i / split[rows], x + w, y + h * i / split[rows], FAINT))
    for i in range(1, split.get(columns, 1)):
        out.append(line(x + w * i / split[columns], y, x + w * i / split[columns], y + h, FAINT))
    out.append(line(x, y, x, y + h, COLORS[rows], 6))
    out.append(line(x, y, x + w, y, COLORS[columns], 6))
    out.append(text(x - 14, y + h / 2 + 5, rows, color=COLORS[rows], bold=True))
    out.append(text(x + w / 2, y - 9, columns, color=COLORS[columns], bold=True))
    halo = 'stroke="white" stroke-width="6" paint-order="stroke" '  # readable on lines
    out.append(text(x + w / 2, y + h / 2 + 5, name).replace("<text ", f"<text {halo}"))
    return "".join(out)


def picture(name: str, width: int, height: int, title: str, *parts: str) -> None:
    (HERE / f"{name}.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>{title}</title>"
        f'<rect width="{width}" height="{height}" rx="10" fill="{PAPER}"/>{"".join(parts)}</svg>\n'
    )


def mlp(y: float, listed: str = "") -> str:
    """y = (x w1) w2, each matrix split by the first listed dim that it has."""
    names = [("x", "B", "D"), ("w1", "D", "F"), ("h", "B", "F"), ("w2", "F", "E"), ("y", "B", "E")]
    rows = []
    for x, name in zip([60, 210, 380, 530, 690], names, strict=True):
        first = next((dim for dim in listed if dim in name[1:]), None)
        rows.append(matrix(x, y, *name, split={first: 4} if first else {}))
    signs = [(172, "x"), (338, "="), (492, "x"), (650, "=")]
    return "".join(rows) + "".join(text(x, y + 50, s, size=20) for x, s in signs)


picture(
    "colors", 830, 200, "The dims of a two-layer MLP have four colors",
    mlp(50),
    text(415, 180, "four colors: the batch B, the input D, the hidden F, the output E", size=15),
)  # fmt: skip

picture(
    "conflict", 830, 210, "Attention scores have the sequence twice",
    matrix(80, 60, "queries", "S", "D", split={}), text(212, 112, "x", size=20),
    matrix(260, 60, "keys", "D", "S", split={}), text(388, 112, "=", size=20),
    matrix(440, 60, "scores", "S", "S", split={}),
    text(690, 85, "one color, twice:", size=15),
    text(690, 110, "an axis may split the rows", size=15),
    text(690, 135, "or the columns, not both", size=15),
    text(415, 190, "a conflict: one resolution bit chooses the side, for the whole layer", size=15),
)  # fmt: skip

LAYERS = "".join(
    f'<rect x="{60 + 190 * i}" y="60" width="150" height="70" rx="8" fill="white"'
    f' stroke="{FAINT}"/>'
    + text(135 + 190 * i, 88, f"layer {i + 1}")
    + "".join(
        f'<circle cx="{105 + 190 * i + 30 * j}" cy="110" r="7" fill="{COLORS[c]}"/>'
        for j, c in enumerate("DFS")
    )
    for i in range(4)
)
picture(
    "groups", 830, 190, "Repeated layers share their decisions",
    LAYERS, text(415, 40, "80 layers have 80 hidden dims, each a color of its own", size=15),
    text(415, 170, "but one structure: one group, one decision, whatever the depth", size=15),
)  # fmt: skip

picture(
    "claims", 830, 390, "Two lists for one axis, and what they split",
    text(30, 28, "data: [B]    data parallel: whatever has the batch is split, weights are whole",
         size=15, anchor="start"),
    mlp(60, "B"),
    text(30, 218, "data: [B, F]    first listed wins: x, h and y take B; the weights have none and"
         " take F", size=15, anchor="start"),
    mlp(250, "BF"),
    text(415, 375, "stored by F, needed whole by the product: the weights are gathered (FSDP)",
         size=15),
)  # fmt: skip
