"""One array on the mesh: a picture in a notebook, lines of text elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.record.types import PlanRecord
from shardwright.report.html import array_page, in_a_frame
from shardwright.report.mesh_drawing import CELL, draw_mesh
from shardwright.report.questions import about_array, find_array

MOST_LINES = 8  # of shards, when printed
MARGIN = 150  # pixels of text around the drawing


@dataclass(frozen=True, slots=True, repr=False)
class Picture:
    """Which device has which part of one array; prints as lines, shows as a drawing."""

    record: PlanRecord
    path: str

    def __str__(self) -> str:
        cells = draw_mesh(self.record.mesh, find_array(self.record, self.path)[2]).cells
        lines = [f"  {cell.text}" for cell in cells[:MOST_LINES]]
        more = [f"  ... and {len(cells) - MOST_LINES} more"] if len(cells) > MOST_LINES else []
        return "\n".join([about_array(self.record, self.path)["text"], *lines, *more])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        height = draw_mesh(self.record.mesh, find_array(self.record, self.path)[2]).height
        return in_a_frame(array_page(self.record, self.path), height + CELL + MARGIN)
