"""One plan, several processes: each loads its part of the batch and holds its part of the state.

    python examples/multi_process.py      # two processes of four host devices each

On a cluster start it once per host with `--process N --coordinator HOST:PORT`. The state is created
where it belongs, trained, written by all processes together, and restored under another plan.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DEVICES, MESH, STEPS = 8, {"data": 4, "model": 2}, 3


def train(directory: Path) -> list[str]:
    """What happened, one line each: the losses, and the losses after a restore."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    import shardwright as sw
    from shardwright import zoo

    example = zoo.programs("tiny")["transformer_train"]

    def plan_of(name: str, *tactics: Any) -> sw.Plan:
        """The plan of this name: made by the first process, which keeps a file, taken by all."""
        plan = sw.partition(
            example.fn, *example.args, mesh=MESH, device="h100", tactics=tactics,
            donate_argnums=example.donate_argnums,
        )  # fmt: skip
        if jax.process_index() == 0:
            plan.save(directory / f"{name}.json")
        return plan

    fsdp = plan_of("fsdp", sw.FSDP("data"), sw.Megatron("model"))
    megatron = plan_of("megatron", sw.DataParallel("data"), sw.Megatron("model"))

    _, batch = jax.tree.map(np.asarray, jax.jit(example.make)(jax.random.key(0)))
    # A data loader would read only these rows of it.
    mine = jax.tree.map(lambda x, part: x[part], batch, fsdp.local_part(argnum=1))
    rows = len(jax.tree.leaves(mine)[0])
    lines = [f"processes {jax.process_count()}, devices {jax.device_count()}, rows {rows}"]
    state = fsdp.init(lambda: example.make(jax.random.key(0))[0])
    for plan, what in ((fsdp, "loss"), (megatron, "restored loss")):
        if plan is megatron:
            like, _ = plan.place(*example.args)  # shapes with this plan's shardings
            with ocp.StandardCheckpointer() as checkpoints:
                checkpoints.save(directory.absolute() / "checkpoint", state)
                checkpoints.wait_until_finished()
                state = checkpoints.restore(directory.absolute() / "checkpoint", like)
        step, global_batch = plan.jit(example.fn), plan.local_batch(mine)
        for _ in range(STEPS):
            state, loss = step(state, global_batch)
            lines.append(f"{what} {float(loss):.6f}")
    return lines


def start_all(options: argparse.Namespace) -> int:
    """Starts one child per process on this machine; the worst of their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # a port that nobody listens on
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            sys.executable, __file__, "--processes", str(options.processes),
            "--coordinator", f"127.0.0.1:{port}", "--directory", options.directory or scratch,
        ]  # fmt: skip
        numbers = range(options.processes)
        children = [subprocess.Popen([*command, f"--process={n}"]) for n in numbers]
        return max(abs(child.wait()) for child in children)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--process", type=int, help="which one this is; if absent, all start")
    parser.add_argument("--coordinator", default="127.0.0.1:7777")
    parser.add_argument("--directory", help="shared by all processes")
    options = parser.parse_args()
    if options.process is None:
        sys.exit(start_all(options))
    flag = f"--xla_force_host_platform_device_count={DEVICES // options.processes}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    if options.processes > 1:
        jax.distributed.initialize(options.coordinator, options.processes, options.process)
    print(*train(Path(options.directory)), sep="\n")
