"""Asks a child process to compile: one that dies or hangs is an error with its last words."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

from shardwright.errors import ShardwrightError
from shardwright.referee.messages import Reply, Request
from shardwright.referee.topologies import parse_target

# Of one compilation and its runs, unless the user says otherwise; the largest of the zoo take some
# minutes.
TIMEOUT_S = 3600.0
LAST_LINES = 6  # of what a child printed, in an error
COMMAND = (sys.executable, "-m", "shardwright.referee.child")


def ask(request: Request, timeout: float | None = None) -> tuple[Reply, str]:
    """(the child's reply, what it printed); after `timeout` seconds it is ended."""
    limit_s = TIMEOUT_S if timeout is None else timeout
    with tempfile.TemporaryDirectory(prefix="shardwright-") as folder:
        asked, replied, printed = (Path(folder, n) for n in ("request", "reply", "printed"))
        asked.write_bytes(pickle.dumps(request))
        with printed.open("wb") as output:  # a file: it has what was printed before an end
            code = _run([*COMMAND, str(asked), str(replied)], request.target, output, limit_s)
        said = printed.read_text(errors="replace")
        if code is None:
            raise ShardwrightError(
                f"the compiler for {request.target} was not done after {limit_s:g} s and was ended",
                said=_last(said),
                try_="timeout= for more seconds, or a smaller program: fewer layers or devices",
            )
        if code or not replied.exists():
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed: {code}"
            raise ShardwrightError(
                f"the process that compiles for {request.target} {how}", said=_last(said)
            )
        reply: Reply = pickle.loads(replied.read_bytes())
        return reply, said


def _run(command: list[str], target: str, output: IO[bytes], limit_s: float) -> int | None:
    """The exit code of a command; None when it had to be ended."""
    child = subprocess.Popen(
        command, env=_environment(target), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        start_new_session=True,  # with processes of its own: a compiler calls an assembler
    )  # fmt: skip
    try:
        return child.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _last(text: str) -> str | None:
    """The last lines of what a child printed."""
    return "\n".join(text.strip().splitlines()[-LAST_LINES:]) or None


def _environment(target: str) -> dict[str, str]:
    """The child's environment: a target's host devices, nothing else changed for the compiler."""
    wanted = parse_target(target)
    package_root = str(Path(__file__).resolve().parents[2])
    search = [package_root, *sys.path]  # the same JAX as here, however it was found
    return {
        **os.environ,
        **(_host_devices(wanted.shape[0]) if wanted.platform == "cpu" else {}),
        "JAX_PLATFORMS": "cpu",  # what is compiled for is not here, or is taken
        "JAX_ENABLE_X64": "1",  # inputs keep their width; the program's types are fixed already
        "JAX_ENABLE_COMPILATION_CACHE": "0",  # a cached program prints no warnings
        "PYTHONPATH": os.pathsep.join(filter(None, search)),
        "PYTHONSAFEPATH": "1",  # nothing from the working directory
    }


def _host_devices(count: int) -> dict[str, str]:
    """The variables that make so many host devices, and threads for them."""
    flags = os.environ.get("XLA_FLAGS", "")
    flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", flags)
    return {
        "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count={count}".strip(),
        "NPROC": str(_pool_size(count)),
    }


def _pool_size(device_count: int) -> int:
    """Threads for XLA:CPU's pools, which it sizes by NPROC or else by the cores.

    Every device waits in a thread of a pool until the last one arrives at a collective. On few
    cores there is one thread per device: the last device's compute finds none free, the
    rendezvous starves and XLA aborts the process. Twice the devices leaves threads for compute.
    """
    given = os.environ.get("NPROC", "")
    cores = int(given) if given.isdigit() else os.cpu_count() or 1
    return max(cores, 2 * device_count)
