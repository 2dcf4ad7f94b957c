"""What the compiler says of one way to run a case: the same judge for everybody.

Compute is the TPU compiler's cycle estimate (for GPUs, where it writes none, a roofline of its
instructions), links are our formulas on the collectives it emitted, exposed is what its schedule,
replayed, leaves of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from benchmarks.peers.cases import Case
from shardwright.cost.devices import device
from shardwright.cost.links import Network
from shardwright.mesh import Mesh
from shardwright.referee.compiled import CompiledMemory
from shardwright.referee.targets import Compiled, parse_target
from shardwright.referee.verify import replayed


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One step of a compiled program on one device."""

    compute_s: float
    link_s: float
    exposed_s: float
    peak_bytes: int
    sent_bytes: float  # on links

    @property
    def step_s(self) -> float:
        """As scheduled: compute, and the links that it does not hide."""
        return self.compute_s + self.exposed_s

    @property
    def serial_s(self) -> float:
        """Nothing beside anything: compute and all links."""
        return self.compute_s + self.link_s


def judge(case: Case, compiled: Compiled) -> dict[str, Any]:
    """The judgement of what a compiler made, as plain data."""
    chip = device(case.device)
    seconds = replayed(compiled, chip, Network(Mesh.of(dict(case.mesh)), chip))
    assert seconds is not None, f"{case.target} has no schedule"
    found = Judged(
        compute_s=seconds.compute_s, link_s=seconds.link_s, exposed_s=seconds.exposed_s,
        peak_bytes=compiled.memory.peak_bytes,
        sent_bytes=sum(sent_bytes(row, case.mesh) for row in compiled.collectives),
    )  # fmt: skip
    return {**asdict(found), "step_s": found.step_s, "serial_s": found.serial_s}


def sent_bytes(row: Any, mesh: Mapping[str, int]) -> float:
    """The bytes one device sends per step for a row, on rings over its axes.

    Comparable where counts are not: a compiler may turn one reduce-scatter into permutes.
    """
    n = prod(mesh[axis] for axis in row.axes) if row.axes else prod(mesh.values())
    per_byte = {"all-reduce": 2 * (n - 1) / n, "collective-permute": 1.0}
    return row.count * row.bytes * per_byte.get(row.kind, (n - 1) / n)


def compiled_elsewhere(case: Case, hlo: str, memory: dict[str, int]) -> Compiled:
    """A program that another version's compiler wrote, to be judged here."""
    argument, output, alias, temp = (memory[k] for k in ("argument", "output", "alias", "temp"))
    return Compiled(
        target=parse_target(case.target), mesh=dict(case.mesh), hlo=hlo, stderr="",
        memory=CompiledMemory(
            argument_bytes=argument, output_bytes=output, alias_bytes=alias, temp_bytes=temp,
        ),
    )  # fmt: skip
