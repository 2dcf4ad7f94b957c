"""What a process that compiles in another one sends to it, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shardwright._jax.compiling import Portable
from shardwright.referee.compiled import CompiledMemory


@dataclass(frozen=True)
class Request:
    """What the parent asks for: a program, and inputs for each time it should run."""

    program: Portable
    target: str  # as parse_target() reads it
    devices: list[int]  # ids among the target's, in the order of the mesh
    runs: list[list[Any]] = field(default_factory=list)  # host arrays that it takes, per run
    output_shapes: list[tuple[int, ...]] = field(default_factory=list)  # global shapes


@dataclass(frozen=True)
class Reply:
    """What a compiler made of a program, or why it made nothing."""

    hlo: str = ""
    memory: CompiledMemory | None = None
    outputs: list[list[Any]] = field(default_factory=list)  # of each run
    failed: str = ""  # "compile", or "read": what was compiled has no text here
    said: str = ""  # by what failed
