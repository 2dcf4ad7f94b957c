"""States written as text: "B D!" is group B, then group D for updates only; "S'" its other side."""

from __future__ import annotations

from typing import Any

from shardwright.analysis.analysis import Analysis, analyze_program
from shardwright.cost.devices import device
from shardwright.cost.model import CostModel, model_ir
from shardwright.mesh import Mesh
from shardwright.program.tracing import trace
from shardwright.spmd.decisions import EVERYTHING, UPDATES, AxisList, Decisions, Entry
from shardwright.spmd.ir import Ir
from shardwright.zoo import Example

# The dims of the zoo's transformers by the names of their papers: label -> argument dim.
LABELS = {
    "B": "*tokens*[0]", "S": "*tokens*[1]", "V": "*['embedding'][0]", "D": "*['embedding'][1]",
    "H": "*['wq'][1]", "F": "*['w1'][1]",
}  # fmt: skip


def analyze(example: Example, labels: dict[str, str] | None = None) -> Analysis:
    """The analysis of an example, its groups labelled."""
    program = trace(example.fn, *example.args, donate_argnums=example.donate_argnums)
    return analyze_program(program, LABELS if labels is None else labels)


def entry(analysis: Analysis, text: str) -> Entry:
    """The entry that "D", "D!" (updates only) or "S'" (the other side) spells."""
    name = text.rstrip("!'")
    return Entry(
        analysis.group(name).index,
        int("'" in text),
        UPDATES if "!" in text else EVERYTHING,
    )


def decided(analysis: Analysis, *lists: str) -> Decisions:
    """Decisions with one list per mesh axis."""

    def one(text: str) -> AxisList:
        return tuple(entry(analysis, word) for word in text.split())

    return Decisions(tuple(one(text) for text in lists))


def ir_of(analysis: Analysis, mesh: dict[str, int], *lists: str, on: Any = "tpu-v5e") -> Ir:
    """The partitioned program when each axis of the mesh has its list."""
    model = CostModel(analysis, Mesh(mesh), device(on))
    return model_ir(model, decided(analysis, *lists))
