"""Asks a child process to compile: one that dies or hangs is an error with its last words.

A child that compiles for a host waits a while for the next request: it takes seconds to start.
"""

from __future__ import annotations

import atexit
import os
import pickle
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Hashable
from contextlib import suppress
from pathlib import Path

from shardwright.errors import ShardwrightError
from shardwright.referee.messages import Reply, Request
from shardwright.referee.topologies import parse_target

# Of one compilation and its runs, unless the user says otherwise; the largest of the zoo take some
# minutes.
TIMEOUT_S = 3600.0
LAST_LINES = 6  # of what a child printed, in an error
COMMAND = (sys.executable, "-m", "shardwright.referee.child")
READ_BY_JAX = ("JAX", "XLA", "TF_", "NPROC", "PYTHON", "LD_")  # variables that JAX and XLA read

Key = tuple[Hashable, ...]
_IDLE: dict[Key, Child] = {}  # the host compiler that waits for another request


def ask(request: Request, timeout: float | None = None) -> tuple[Reply, str]:
    """(the child's reply, what it printed); after `timeout` seconds it is ended."""
    limit_s = TIMEOUT_S if timeout is None else timeout
    environment = _environment(request.target)
    read = [(name, text) for name, text in environment.items() if name.startswith(READ_BY_JAX)]
    key = (COMMAND, *sorted(read))
    child = _IDLE.pop(key, None)
    if child and child.process.poll() is not None:  # nothing was asked of it for long
        child.end()
        child = None
    child = child or Child(environment)
    try:
        reply, said = child.answer(request, limit_s)
    except BaseException:
        child.end()
        raise
    _end_idle()  # one waits, for the next request that is like the last
    if parse_target(request.target).platform == "cpu":
        _IDLE[key] = child
    else:  # compilers of accelerators hold gigabytes
        child.end()
    return reply, said


@atexit.register
def _end_idle() -> None:
    for key in list(_IDLE):
        if child := _IDLE.pop(key, None):
            child.end()


class Child:
    """A process that answers one request after the other, through files in a folder of its own."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="shardwright-")
        self._request, self._reply, self._printed = (
            Path(self._folder.name, name) for name in ("request", "reply", "printed")
        )
        done, says_done = os.pipe()
        self._done = open(done, "rb", buffering=0)  # noqa: SIM115  as long as the child lives
        with self._printed.open("wb") as output:  # a file: it has what was printed before an end
            self.process = subprocess.Popen(
                [*COMMAND, str(self._request), str(self._reply), str(says_done)], env=environment,
                stdin=subprocess.PIPE, stdout=output, stderr=output, pass_fds=(says_done,),
                start_new_session=True,  # with processes of its own: a compiler calls an assembler
            )  # fmt: skip
        os.close(says_done)

    def answer(self, request: Request, limit_s: float) -> tuple[Reply, str]:
        """(the reply, what was printed meanwhile)."""
        before = self._printed.stat().st_size
        self._request.write_bytes(pickle.dumps(request))
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: said below
            self.process.stdin.write(b"\n")
            self.process.stdin.flush()
        in_time = bool(select.select([self._done], [], [], limit_s)[0])
        answered = in_time and self._done.read(1)  # nothing is read where it has ended
        said = self._printed.read_bytes()[before:].decode(errors="replace")
        if not in_time:
            raise ShardwrightError(
                f"the compiler for {request.target} was not done after {limit_s:g} s and was ended",
                said=_last(said),
                try_="timeout= for more seconds, or a smaller program: fewer layers or devices",
            )
        if not answered:
            code = self.process.wait()
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed: {code}"
            raise ShardwrightError(
                f"the process that compiles for {request.target} {how}", said=_last(said)
            )
        reply: Reply = pickle.loads(self._reply.read_bytes())
        return reply, said

    def end(self) -> None:
        """Ends the process and those that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._done.close()
        if self.process.stdin:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
        self._folder.cleanup()


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
