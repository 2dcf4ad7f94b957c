"""Independent work in child processes where that pays, else one after the other.

A child is a fork: it has the traced programs, which cannot be sent, and sends a value back. Forking
a process with threads is safe only for children that take no lock of those threads: the work must
be Python and NumPy, no JAX. A child that dies, or stands still, leaves its work to the parent.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from select import select
from typing import TypeVar

from shardwright._jax.jobs import job

T = TypeVar("T")

PAYS_S = 1.0  # work that takes less in all is not worth the forks
STUCK_S = 30.0  # without any CPU time: a child that waits for a lock nobody will release
_LOOK_S = 1.0  # how often children are looked at


def run_all(
    tasks: Sequence[Callable[[], T]], processes: int | None = None,
    told: Callable[[int, T], None] = lambda i, result: None,
) -> list[T]:  # fmt: skip
    """What each task returns, in order; `processes` at once, by default one per CPU.

    Tasks do not raise. The first one runs here, and its time says whether forks pay. `told` hears
    of each result when it is there: which task's it is, and what.
    """
    if not tasks:
        return []
    start = time.monotonic()
    done: dict[int, T] = {0: tasks[0]()}
    told(0, done[0])
    rest, count = len(tasks) - 1, _count(processes)
    if count > 1 and rest > 1 and (time.monotonic() - start) * rest > PAYS_S:
        _in_children(tasks, done, count, told)
    for i, task in enumerate(tasks):
        if i not in done:
            done[i] = task()
            told(i, done[i])
    return [done[i] for i in range(len(tasks))]


def _count(processes: int | None) -> int:
    # Elsewhere forks are not safe or not there; gRPC, which joins the processes of a job, does not
    # survive one.
    if not sys.platform.startswith("linux") or job() is not None:
        return 1
    return len(os.sched_getaffinity(0)) if processes is None else processes


@dataclass
class _Child:
    pid: int
    pipe: int  # to read from
    data: bytearray = field(default_factory=bytearray)
    cpu_ticks: int = -1
    since: float = 0.0  # when its CPU time last moved


def _in_children(
    tasks: Sequence[Callable[[], T]], done: dict[int, T], count: int,
    told: Callable[[int, T], None],
) -> None:  # fmt: skip
    """Runs the tasks that are not done in children; those of failed children stay undone."""
    waiting, running = [i for i in range(len(tasks)) if i not in done], dict[int, _Child]()
    try:
        while waiting or running:
            while waiting and len(running) < count:
                i = waiting.pop(0)
                running[i] = _fork(tasks[i])
            readable, _, _ = select([child.pipe for child in running.values()], [], [], _LOOK_S)
            for i, child in list(running.items()):
                if child.pipe in readable:
                    part = os.read(child.pipe, 1 << 20)
                    child.data += part
                    if not part:
                        del running[i]
                        _end(child)
                        with suppress(EOFError, pickle.UnpicklingError):  # it died before its end
                            done[i] = pickle.loads(child.data)
                            told(i, done[i])
                elif _stands_still(child):
                    del running[i]
                    _end(child)
    finally:
        for child in running.values():
            _end(child)


def _fork(task: Callable[[], object]) -> _Child:
    """A child that runs a task and writes what it returns into a pipe."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():  # JAX and Python warn of forks; see the top of this module
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid:
        os.close(writing)
        return _Child(pid, reading, since=time.monotonic())
    code = 1
    try:
        os.close(reading)
        data = pickle.dumps(task())
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(data)
        code = 0
    finally:
        os._exit(code)  # nothing of the parent's is flushed or torn down


def _stands_still(child: _Child) -> bool:
    """Whether a child has had no CPU time for long."""
    try:
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False  # it has ended: its pipe says so next
    ticks, now = int(fields[11]) + int(fields[12]), time.monotonic()  # utime and stime: proc(5)
    if ticks != child.cpu_ticks:
        child.cpu_ticks, child.since = ticks, now
    return now - child.since > STUCK_S


def _end(child: _Child) -> None:
    """Closes what is left of a child."""
    os.close(child.pipe)
    with suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
