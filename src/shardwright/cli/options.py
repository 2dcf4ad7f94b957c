"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from shardwright.cli.input import parse_bytes, parse_mesh, parse_tactic
from shardwright.cli.output import writable
from shardwright.cost.devices import devices as known_devices

Command = Callable[..., Any]


def options(*given: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator, listed in this order."""

    def apply(command: Command) -> Command:
        for option in reversed(given):
            command = option(command)
        return command

    return apply


def file_option(*names: str, help: str, **more: Any) -> Callable[[Command], Command]:
    """An option that names a file to write, or - for standard output."""
    path = click.Path(dir_okay=False, allow_dash=True)
    return click.option(*names, type=path, callback=writable, help=help, **more)


def given(_: Any, __: Any, values: tuple[Any, ...]) -> list[Any] | None:
    """The values of an option that may be there several times; None where it is not there."""
    return list(values) or None


def _devices(_: Any, __: Any, typed: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in known_devices() if name.startswith(typed)]


def _targets(_: Any, __: Any, typed: str) -> list[CompletionItem]:
    """Programs of the zoo; files are the shell's own business."""
    if not typed.startswith("zoo:"):
        return [CompletionItem(typed, type="file"), CompletionItem("zoo:")]
    from shardwright.zoo.catalog import CATALOG

    return [CompletionItem(f"zoo:{name}") for name in CATALOG if f"zoo:{name}".startswith(typed)]


target_argument = click.argument("target", metavar="FILE:FUNCTION", shell_complete=_targets)
plan_argument = click.argument("path", metavar="PLAN.json", type=click.Path(dir_okay=False))
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
cache_option = click.option(
    "--cache/--no-cache", default=True, show_default=True,
    help="Look up plans that were made before, and keep new ones.",
)  # fmt: skip
device_option = click.option("--device", default="tpu-v5e", show_default=True,
                             help="A kind: see `devices`.", shell_complete=_devices)  # fmt: skip
memory_option = click.option(
    "--memory", type=parse_bytes, metavar="TEXT",
    help="Per device, e.g. 16GB; all that it has if not given.",
)  # fmt: skip
tactic_option = click.option("--tactic", "tactics", multiple=True, type=parse_tactic,
                             metavar="TEXT", callback=given,
                             help="What you know, e.g. 'FSDP(data)'.")  # fmt: skip
args_option = click.option(
    "--args", "arguments", default="example_args", show_default=True, metavar="FUNCTION|EXPR",
    help="What gives the arguments; shapes are enough.",
)  # fmt: skip
call_options = options(
    args_option,
    click.option("--donate", "donate_argnums", type=int, multiple=True, metavar="N",
                 help="An argument to donate."),
    click.option("--static", "static_argnums", type=int, multiple=True, metavar="N",
                 help="A static argument."),
)  # fmt: skip
limit_options = options(
    click.option("--max-step", type=click.FloatRange(min=0), metavar="PERCENT",
                 help="Fail only if the predicted step takes this much longer."),
    click.option("--max-memory", type=click.FloatRange(min=0), metavar="PERCENT",
                 help="Fail only if the predicted peak is this much higher."),
    click.option("--same-shardings", is_flag=True,
                 help="Fail if an argument or result is sharded otherwise."),
)  # fmt: skip
plan_options = options(
    click.option("--mesh", required=True, type=parse_mesh, metavar="TEXT",
                 help="data=4,model=4; data=?,model=4; or a number."),
    click.option("--devices", type=int, metavar="N", help="How many, when a size is left open."),
    device_option, memory_option, tactic_option,
    click.option("--seconds", type=click.FloatRange(min=0),
                 help="Roughly how much to search, counted in work."),
    click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS",
                 help="End the search by the clock: another machine may find another plan."),
    click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same plan."),
    cache_option,
    file_option("--save", help="Write the plan as JSON; - is standard output."),
    file_option("--html", help="Write the plan as a page; - is standard output."),
    click.option("--explain", is_flag=True, help="Say why, in words."),
    click.option("--quiet", is_flag=True, help="Print no plan and no progress."),
    json_option,
)  # fmt: skip
