"""Compile, and perhaps run, a StableHLO program on this process's own host devices.

Started by `shardwright.referee.host_child` as `python -m shardwright.referee.child REQUEST REPLY`
with the device count in XLA_FLAGS, because a process can choose that number only before JAX starts.
"""

from __future__ import annotations

import pickle
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax

from shardwright import _jax
from shardwright.referee.compiled import read_memory


@dataclass(frozen=True)
class Request:
    """What the parent asks for: a program, and inputs for each time it should run."""

    module: bytes  # StableHLO bytecode
    device_count: int
    propagate: tuple[list[bool], list[bool]]  # whose sharding XLA may choose: arguments, results
    runs: list[list[Any]] = field(default_factory=list)  # host arrays that it takes, per run
    output_shapes: list[tuple[int, ...]] = field(default_factory=list)  # global shapes


@dataclass(frozen=True)
class Reply:
    """What the child found."""

    hlo: str
    memory: dict[str, int]
    outputs: list[list[Any]] = field(default_factory=list)  # of each run


def answer(request: Request) -> Reply:
    """The Reply to a Request, computed on this process's devices."""
    devices = jax.devices()[: request.device_count]
    executable = _jax.compile_stablehlo(request.module, devices, request.propagate)
    outputs = [executable.run(inputs, request.output_shapes) for inputs in request.runs]
    return Reply(executable.as_text(), asdict(read_memory(executable)), outputs)


def main(request_path: str, reply_path: str) -> int:
    """The exit code after answering the request in one file with a reply in another."""
    request = pickle.loads(Path(request_path).read_bytes())
    Path(reply_path).write_bytes(pickle.dumps(answer(Request(**request)).__dict__))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
