"""One plan, several processes: each holds its part of the state, all run the same program.

    python examples/multi_process.py                 # two processes of four host devices each
    python examples/multi_process.py --processes 1   # the same steps in one process

On a cluster start the same program once per host with `--process N --coordinator HOST:PORT`.
Every process asks for the plan; the first one makes it and the others take it. The
state is created where it belongs, trained, written by all processes together through Orbax, and
restored under another plan, whose shardings are all that Orbax needs to know.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DEVICES = 8
MESH = {"data": 4, "model": 2}
STEPS = 3


def main() -> int:
    options = arguments()
    if options.process is None:
        return start_all(options)
    flag = f"--xla_force_host_platform_device_count={DEVICES // options.processes}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    if options.processes > 1:
        jax.distributed.initialize(options.coordinator, options.processes, options.process)
    for line in train(options.directory):
        if jax.process_index() == 0:
            print(line, flush=True)
    if options.processes > 1:
        jax.distributed.shutdown()
    return 0


def train(directory: Path) -> list[str]:
    """What happened, one line each: the losses, and the losses after a restore."""
    import jax
    import numpy as np

    import shardwright as sw
    from shardwright import zoo

    example = zoo.programs("tiny")["transformer_train"]

    def plan_of(name: str, *tactics: Any) -> sw.Plan:
        """The plan of this name: made by the first process, taken by the others, kept as a file."""
        plan = sw.partition(
            example.fn, *example.args, mesh=MESH, device="h100", tactics=tactics,
            donate_argnums=example.donate_argnums,
        )  # fmt: skip
        if jax.process_index() == 0:
            plan.save(directory / f"{name}.json")
        return plan

    fsdp = plan_of("fsdp", sw.FSDP("data"), sw.Megatron("model"))
    megatron = plan_of("megatron", sw.DataParallel("data"), sw.Megatron("model"))

    # Every process computes the same small batch; the plan says which part it keeps.
    _, batch = jax.tree.map(np.asarray, jax.jit(example.make)(jax.random.key(0)))
    state = fsdp.init(lambda key: example.make(key)[0], jax.random.key(0))
    state, batch_here = fsdp.place(state, batch)
    step = fsdp.jit(example.fn)
    lines = [f"processes {jax.process_count()}, devices {jax.device_count()}"]
    for _ in range(STEPS):
        state, loss = step(state, batch_here)
        lines.append(f"loss {float(loss):.6f}")

    state = restore(save(state, directory / "checkpoint"), state, megatron.in_shardings()[0])
    _, batch_here = megatron.place(state, batch)
    step = megatron.jit(example.fn)
    for _ in range(STEPS):
        state, loss = step(state, batch_here)
        lines.append(f"restored loss {float(loss):.6f}")
    return lines


def save(state: Any, path: Path) -> Path:
    """The path of a checkpoint that all processes have written together."""
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path.absolute(), state)
    return path


def restore(path: Path, like: Any, shardings: Any) -> Any:
    """The state of a checkpoint, split as another plan wants it."""
    import jax
    import orbax.checkpoint as ocp

    wanted = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), like, shardings
    )
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path.absolute(), wanted)


def start_all(options: argparse.Namespace) -> int:
    """Starts one child per process on this machine; the worst of their exit codes."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.directory or Path(scratch)
        command = [
            sys.executable, __file__, "--processes", str(options.processes),
            "--coordinator", f"127.0.0.1:{free_port()}", "--directory", str(directory),
        ]  # fmt: skip
        children = [
            subprocess.Popen([*command, "--process", str(n)]) for n in range(options.processes)
        ]
        return max(abs(child.wait()) for child in children)


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--process", type=int, help="which one this is; all are started if absent")
    parser.add_argument("--coordinator", default="127.0.0.1:7777")
    parser.add_argument("--directory", type=Path, help="shared by all processes")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
