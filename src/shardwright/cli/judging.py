"""Commands that hold a saved plan against its function: check, verify."""

from __future__ import annotations

from typing import Any

import click

from shardwright import api
from shardwright.cli.input import TargetCall, find_call, parse_tactic
from shardwright.cli.limits import has_limits, judged, told
from shardwright.cli.options import (
    args_option,
    json_option,
    limit_options,
    plan_argument,
    target_argument,
)
from shardwright.cli.output import say, say_json, search_progress, working
from shardwright.errors import ShardwrightError
from shardwright.options import asked_again
from shardwright.plan import Plan, load
from shardwright.record.plain import encode


@click.command()
@target_argument
@plan_argument
@args_option
@click.option("--replan", is_flag=True, help="Plan again, as the plan was made, and compare.")
@limit_options
@json_option
def check(
    target: str, path: str, arguments: str, replan: bool, as_json: bool, **limits: Any
) -> None:
    """Whether a saved plan still is for this function. Exit code 1 when not.

    With --replan it is planned again with the same mesh, device and tactics: exit code 1 when
    the new plan passes a limit, or differs at all where none is given.
    """
    saved, call = load(path), find_call(target, arguments)
    if has_limits(**limits) and not replan:
        raise ShardwrightError("limits are of a new plan", try_="--replan too")
    if replan:
        changed, broken, failed = judged(saved, _again(saved, call), **limits)
    else:
        changed, broken = "", []
        try:
            saved.bind(call.fn, *call.args)
        except ShardwrightError as error:
            changed = str(error)
        failed = bool(changed)
    if as_json:
        say_json({"ok": not failed, "changed": changed, "broken": broken})
    else:
        lines = told(changed, broken)
        if not failed:
            lines.append(f"{path} is for {target}: {saved!r}")
        say("\n".join(lines))
    if failed:
        raise click.exceptions.Exit(1)


def _again(saved: Plan, call: TargetCall) -> Plan:
    """A new plan of the function, asked for as the saved one was."""
    tactics = [parse_tactic(text) for text in saved.record.asked.tactics]
    with working("planning again") as update:
        return api.partition(
            call.fn, *call.args, **asked_again(saved.record), tactics=tactics or None,
            progress=search_progress(update),
        )  # fmt: skip


@click.command()
@target_argument
@plan_argument
@args_option
@click.option(
    "--target", "on", help="cpu:8, tpu:v5e:4x4, cuda:h100:2x8; this machine if not given."
)
@click.option("--run", is_flag=True, help="Also compare results with the unsharded function's.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End the compiler after so long; an hour if not given.",
)
@json_option
def verify(
    target: str,
    path: str,
    arguments: str,
    on: str | None,
    run: bool,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Compile a saved plan: predicted against compiled. Exit code 1 when they disagree."""
    saved, call = load(path), find_call(target, arguments)
    with working("tracing") as update:
        bound = saved.bind(call.fn, *call.args)
        if update is not None:
            update(f"compiling for {on or 'this machine'}" + " and running" * run)
        found = bound.verify(on, run=run, timeout=timeout)
    if as_json:
        plain = {name: getattr(found, name) for name in _FIGURES}
        plain |= {"ok": found.ok, "collectives": found.traffic.rows, "text": str(found)}
        say_json(encode(plain))
    else:
        say(str(found))
    if not found:
        raise click.exceptions.Exit(1)


_FIGURES = (
    "target", "platform", "predicted_bytes", "compiled_bytes", "link_error",
    "predicted_seconds", "seconds", "compiled_link_s", "predicted_peak_bytes",
    "compiled_peak_bytes", "memory_error",
    "rematerialisations", "largest_error", "numbers_agree",
)  # fmt: skip
