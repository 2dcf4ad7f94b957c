"""The options of partition() as one value, checked in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardwright.cost.devices import Device
from shardwright.cost.devices import device as find_device
from shardwright.cost.devices import devices as known_devices
from shardwright.errors import ShardwrightError
from shardwright.record.types import Asked, PlanRecord
from shardwright.search import Tactic
from shardwright.several.share import Call, Placed, placed

Positions = int | Sequence[int]
DEFAULT_DEVICE = "tpu-v5e"


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a program is planned; partition() says what each option means."""

    mesh: Any
    device: Device = field(default_factory=lambda: find_device(DEFAULT_DEVICE))
    default_device: bool = False  # nobody has said which
    memory: int | None = None
    tactics: tuple[Tactic, ...] | None = None
    seconds: float | None = None
    timeout: float | None = None
    seed: int = 0
    donate_argnums: Positions = ()
    static_argnums: Positions = ()
    progress: Callable[[Any], None] | None = None
    labels: Mapping[str, str] | None = None
    devices: int | None = None
    unshare: bool = False
    overlap: float | None = None
    tie: bool = True
    share: tuple[Placed | Call, ...] = ()
    cache: bool = True

    @property
    def limit_bytes(self) -> int:
        """The memory that a plan may use, per device."""
        return self.device.usable_bytes if self.memory is None else self.memory

    def asked(self) -> Asked:
        """What a plan keeps of them; the positions have been checked by then."""
        return Asked(
            static_argnums=positions(self.static_argnums),
            donate_argnums=positions(self.donate_argnums),
            labels=dict(self.labels or {}),
            tactics=(*map(str, self.tactics or ()), *(f"Share({one})" for one in self.share)),
            memory=self.memory, timeout=self.timeout, seed=self.seed, tie=self.tie,
            default_device=self.default_device,
        )  # fmt: skip


def positions(argnums: Positions) -> tuple[int, ...]:
    """Positions of arguments as plain integers."""
    return tuple(np.atleast_1d(np.asarray(argnums, np.int64)).tolist())


def read_options(**given: Any) -> Options:
    """The options that a user gave; raises for what would only fail, or mislead, after tracing.

    Whether the mesh, labels and positions fit the program is seen when they are used.
    """
    given |= {name: number(name, given[name]) for name in _NUMBERS if name in given}
    labels, tactics, progress = map(given.get, ("labels", "tactics", "progress"))
    texts = isinstance(labels, Mapping) and all(
        isinstance(text, str) for row in labels.items() for text in row
    )
    if labels is not None and not texts:
        raise ShardwrightError(
            f"labels must map a label to a dim, got {labels!r:.60}",
            try_="""{"d_ff": "state.params['layers'][*]['w1'][1]"}""",
        )
    if progress is not None and not callable(progress):
        raise ShardwrightError(
            f"progress must be a function, got {progress!r:.60}", try_="progress=print"
        )
    if not isinstance(given.get("cache", True), bool):
        raise ShardwrightError(
            f"cache must be True or False, got {given['cache']!r:.60}",
            try_="cache=False, or functools.partial(fn, cache=...) for a parameter of the function",
        )
    tactics = (tactics,) if isinstance(tactics, Tactic) else tactics
    if isinstance(tactics, str) or (tactics is not None and not isinstance(tactics, Iterable)):
        raise ShardwrightError(
            f"not a tactic: {tactics!r:.60}", try_='DataParallel("data"), Search(axes=["model"])'
        )
    given["tactics"] = None if tactics is None else tuple(tactics)
    given["share"] = _shared(given.get("share"))
    if given.get("device") is None:
        found = device_of(given["mesh"])
        given |= {"device": found or DEFAULT_DEVICE, "default_device": found is None}
    given["device"] = find_device(given["device"])
    return Options(**given)


def asked_again(record: PlanRecord) -> dict[str, Any]:
    """The options of partition() that a plan was asked for with, but for its tactics."""
    asked = record.asked
    return {
        "mesh": record.mesh, "device": record.device, "memory": asked.memory, "seed": asked.seed,
        "labels": asked.labels or None, "donate_argnums": asked.donate_argnums,
        "static_argnums": asked.static_argnums, "tie": asked.tie, "overlap": record.cost.overlap,
        "unshare": bool(record.unshared),
    }  # fmt: skip


def _shared(share: Any) -> tuple[Placed | Call, ...]:
    """What `share=` names: where plans have their arrays, and calls to plan for as well."""
    given = share if isinstance(share, list | tuple) else [] if share is None else [share]
    for one in given:
        if not isinstance(one, Call) and not isinstance(getattr(one, "record", None), PlanRecord):
            raise ShardwrightError(
                f"share= takes plans and sw.Calls, one or a list, got {one!r:.60}",
                try_="share=plan, or share=[sw.Call(evaluate, params, batch, weight=0.1)]",
            )
    if len({isinstance(one, Call) for one in given}) > 1:
        raise ShardwrightError(
            "share= has plans, whose parameters have their place, and calls to find one for",
            try_="plan the calls first, and share that plan",
        )
    return tuple(one if isinstance(one, Call) else placed(one.record) for one in given)


def device_of(mesh: Any) -> str | None:
    """The name of the device that a JAX mesh is made of; None without one, or if it is not known.

    Devices of a host stand in for others: they say nothing of what is planned for.
    """
    devices = np.ravel(getattr(mesh, "devices", ()))
    if not len(devices) or getattr(devices[0], "platform", "cpu") == "cpu":
        return None
    kind = devices[0].device_kind.lower().replace(" ", "-")  # TPU v4, NVIDIA A100-SXM4-40GB
    known, words = known_devices(), kind.split("-")
    aliases = {
        name: [a.lower().replace(" ", "-") for a in one.aliases] for name, one in known.items()
    }
    named = [name for name in known if kind in (name, *aliases[name])]
    if devices[0].platform != "tpu":  # makers say more than the name
        named += [name for name in known if name.split("-")[0] in words and name not in named]
    cores = [f"{name}-core" for name in named if f"{name}-core" in known]  # each is a JAX device
    sized = [name for name in named if f"{name.rpartition('-')[2]}gb" in words]
    return next(iter((*cores, *sized, *named)), None)


_ANY = int | float | np.number
# {option: (types that are taken, the type it gets, in words, an example, least, most)}
_NUMBERS: dict[str, tuple[Any, type, str, str, float, float]] = {
    "memory": (_ANY, int, "a positive number of bytes", "16e9", 1, 1e30),
    "seconds": (_ANY, float, "a number of seconds", "10", 0, 1e30),
    "timeout": (_ANY, float, "a number of seconds", "30", 0, 1e30),
    "overlap": (_ANY, float, "a part of 1", "0.5", 0, 1),
    "seed": (int | np.integer, int, "an integer from 0 on", "0", 0, 1e30),
}
_MAY_BE_NONE = ("memory", "seconds", "timeout", "overlap")


def number(name: str, given: Any, *, least: float = 0) -> Any:
    """The option as Python's number, not NumPy's, which no plan file holds; raises for others."""
    if given is None and name in _MAY_BE_NONE:
        return None
    taken, kind, what, example, smallest, most = _NUMBERS[name]
    is_number = isinstance(given, taken) and not isinstance(given, bool)
    if not is_number or not max(least, smallest) <= given <= most:
        raise ShardwrightError(
            f"{name} must be {what}, got {given!r:.60}", try_=f"{name}={example}"
        )
    return kind(given)
