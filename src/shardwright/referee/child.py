"""Compile, and perhaps run, a StableHLO program in a process of its own.

`shardwright.referee.process` starts it with the files of requests and replies, and a descriptor: a
byte on standard input says that there is a request, one on the descriptor that there is a reply. A
compiler may crash or hang, and takes only this process with it; and a process can choose its
number of host devices only before JAX starts.
"""

from __future__ import annotations

import os
import pickle
import select
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from shardwright._jax import compiling
from shardwright.referee.compiled import read_memory
from shardwright.referee.messages import Reply, Request
from shardwright.referee.topologies import all_devices, parse_target

LOOK_S = 1.0  # how often a child looks whether its parent is still there
IDLE_S = 120.0  # after which a child that is asked nothing ends, and gives its memory back


def compiled(compile_program: Callable[[], compiling.Executable]) -> tuple[Any, Reply]:
    """(the executable or None, what is said of it)."""
    stage = "compile"
    try:
        executable = compile_program()
        stage = "read"
        return executable, Reply(executable.as_text(), read_memory(executable))
    except jax.errors.JaxRuntimeError as error:
        return None, Reply(failed=stage, said=str(error))


def answer(request: Request) -> Reply:
    """The Reply to a Request."""
    by_id = {device.id: device for device in all_devices(parse_target(request.target))}
    devices = [by_id[i] for i in request.devices]
    executable, reply = compiled(lambda: compiling.compile_portable(request.program, devices))
    if executable is None:
        return reply
    outputs = [executable.run(inputs, request.output_shapes) for inputs in request.runs]
    return replace(reply, outputs=outputs)


def end_with_parent(parent: int) -> None:
    """Ends this process when its parent is gone: nobody would read the reply."""
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os._exit(1)


def main(request_path: str, reply_path: str, done: str) -> int:
    """The exit code after answering requests in one file with replies in another."""
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    while select.select([sys.stdin], [], [], IDLE_S)[0] and os.read(sys.stdin.fileno(), 1):
        request = pickle.loads(Path(request_path).read_bytes())
        Path(reply_path).write_bytes(pickle.dumps(answer(request)))
        os.write(int(done), b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
