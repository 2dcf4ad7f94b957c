"""The timeline of a record as a tree: a region holds spans and regions, and runs `trips` times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from shardwright.cost.timeline import Span
from shardwright.program.types import TOP
from shardwright.record.types import PlanRecord


@dataclass(slots=True)
class Node:
    """One region of the program, with what happens in one run of it."""

    region: int
    kind: str
    trips: int
    items: list[Span | Node] = field(default_factory=list)

    @property
    def title(self) -> str:
        """scan x32"""
        return f"{self.kind} x{self.trips}" if self.trips > 1 else self.kind

    def one_run(self, weigh: Callable[[Span], float]) -> float:
        """The sum over all spans of one run; inner regions count their trips."""
        return sum(
            weigh(item) if isinstance(item, Span) else item.trips * item.one_run(weigh)
            for item in self.items
        )


def region_tree(record: PlanRecord) -> Node:
    """The function itself as a node."""
    line = record.timeline
    root = Node(TOP, "function", 1)
    nodes = [root]  # from the function to the region that spans are added to
    for span in line.spans:
        path = [span.region]
        while path[-1] != TOP:
            path.append(line.bodies[path[-1]].parent)
        path.reverse()
        shared = 1
        while shared < min(len(path), len(nodes)) and nodes[shared].region == path[shared]:
            shared += 1
        del nodes[shared:]
        for region in path[shared:]:
            body = line.bodies[region]
            node = Node(region, body.kind, body.trips)
            nodes[-1].items.append(node)
            nodes.append(node)
        nodes[-1].items.append(span)
    return root


def link_s(record: PlanRecord, span: Span) -> float:
    """Seconds that the collectives of one run of a span take."""
    return sum(record.collectives[row].seconds for row in span.moves)
