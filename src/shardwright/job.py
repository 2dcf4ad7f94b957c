"""One plan for all processes of a job: process 0 plans, the others take its plan, all verify it.

Processes that jax.distributed.initialize() has joined share a small key-value store. Process 0
publishes each plan it makes, in order, and never waits; another process takes the plan of the same
number, after comparing all that decides it. Before a plan first touches the devices of several
processes, all say what they are about to run: where that differs, all stop with the same error.
A process that stops earlier leaves word, so that the others do not wait for it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax

from shardwright._jax.jobs import Job, job
from shardwright.errors import ShardwrightError
from shardwright.record.plain import decode, encode
from shardwright.record.types import PlanRecord

WAIT_S = 1800  # for other processes: they may search, or compile something else, meanwhile
SAME = "start all processes with the same code, arguments and options"
_plans, _meetings = itertools.count(), itertools.count()  # of this process, in order
_STOPPED = "stopped: "


class Proposal(NamedTuple):
    """What this process would plan: what decides it, how to plan it, how to take a plan for it."""

    decides: Mapping[str, str]
    plan: Callable[[], Any]
    take: Callable[[PlanRecord], Any]


def take_plan(mine: Job, propose: Callable[[], Proposal]) -> Any:
    """The plan of process 0: made by it, taken by the others if the same things decide it."""
    key = f"shardwright/plan/{next(_plans)}"
    if mine.process == 0:
        return _make(mine, key, propose)
    proposal: Proposal | Exception
    try:
        proposal = propose()
    except Exception as error:  # raised below, where process 0 did better
        proposal = error
    try:
        said = json.loads(zlib.decompress(mine.wait_bytes(key, WAIT_S)))
    except TimeoutError:
        raise ShardwrightError(
            f"process 0 has made no plan that process {mine.process} could take",
            waited=f"{WAIT_S} s",
            try_="partition() in every process, in the same order; or save() in one and load()",
        ) from None
    if "what" in said:  # all stop here, and nobody will wait
        raise ShardwrightError(f"process 0: {said['what']}", **said["facts"])
    with leaving_word():
        if isinstance(proposal, Exception):
            raise proposal
        record = decode(said["record"], PlanRecord)
        differs = [n for n, mine_ in proposal.decides.items() if mine_ != said["decides"][n]]
        if differs:
            raise _disagreement(mine.process, differs, record)
        return proposal.take(record)


def _make(mine: Job, key: str, propose: Callable[[], Proposal]) -> Any:
    """The plan, published; so is an error."""
    try:
        proposal = propose()
        plan = proposal.plan()
    except ShardwrightError as error:
        _publish(mine, key, {"what": error.what, "facts": error.facts})
        raise
    _publish(mine, key, {"decides": dict(proposal.decides), "record": encode(plan.record)})
    return plan


def _publish(mine: Job, key: str, said: dict[str, Any]) -> None:
    mine.put_bytes(key, zlib.compress(json.dumps(said).encode()))


def _disagreement(process: int, differs: list[str], record: PlanRecord) -> ShardwrightError:
    return ShardwrightError(
        f"process {process} would plan something else than process 0",
        differs=", ".join(differs),
        process_0=f"{record.program}, {record.ops} ops, on {record.mesh} of {record.device.name}",
        try_=f"{SAME}; plans that only one process makes: save() there and load() in all",
    )


@contextmanager
def leaving_word() -> Iterator[None]:
    """Tells the other processes of the job when this one stops with an error inside."""
    try:
        yield
    except Exception as error:
        mine = job()
        if mine is not None:
            why = error.what if isinstance(error, ShardwrightError) else repr(error)
            key = f"shardwright/run/{next(_meetings)}/{mine.process}"
            mine.put_bytes(key, f"{_STOPPED}{why}".encode())
        raise


def meet(mesh: Any, record: PlanRecord, program: Callable[[], str]) -> None:
    """Returns when every process of a mesh is about to run the same plan of the same program.

    `program` gives the fingerprint of what would run here. Raises in all processes when they
    differ. On the devices of one process there is nothing to do.
    """
    mine = job()
    if mine is None or not _spans_processes(mesh):
        return
    plan = hashlib.blake2b(json.dumps(encode(record)).encode(), digest_size=12).hexdigest()
    told = {"plan": plan, "program": program(), "mesh": str(record.mesh)}
    number = next(_meetings)
    mine.put_bytes(f"shardwright/run/{number}/{mine.process}", json.dumps(told).encode())
    for other in range(mine.processes):
        try:
            said = mine.wait_bytes(f"shardwright/run/{number}/{other}", WAIT_S).decode()
        except TimeoutError:
            raise ShardwrightError(
                f"process {other} did not come to run {record.program}",
                waited=f"{WAIT_S} s", try_="the same calls in every process, in the same order",
            ) from None  # fmt: skip
        if said.startswith(_STOPPED):
            raise ShardwrightError(
                f"process {other} stopped before running {record.program}",
                there=said.removeprefix(_STOPPED), try_=SAME,
            )  # fmt: skip
        theirs = json.loads(said)
        differs = [name for name in told if told[name] != theirs[name]]
        if differs:
            raise ShardwrightError(
                f"process {other} is about to run another plan of {record.program} than process"
                f" {mine.process}",
                differs=", ".join(differs),
                try_=f"{SAME}, and one plan file for all",
            )


def _spans_processes(mesh: Any) -> bool:
    if not isinstance(mesh, jax.sharding.Mesh):  # an abstract one: nothing runs
        return False
    return len({device.process_index for device in mesh.devices.flat}) > 1
