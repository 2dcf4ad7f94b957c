"""Commands that look at a function: plan, analyze."""

from __future__ import annotations

from typing import Any

import click

from shardwright import api
from shardwright.cli.input import find_call, parse_bytes, parse_mesh, parse_tactic
from shardwright.cli.options import call_options, json_option, plan_options, target_argument
from shardwright.cli.output import (
    INTERRUPTED,
    STDOUT,
    say,
    say_json,
    search_progress,
    working,
    write,
)
from shardwright.record.files import record_text
from shardwright.record.plain import encode


@click.command()
@target_argument
@call_options
@plan_options
def plan(
    target: str, arguments: str, donate: tuple[int, ...], static: tuple[int, ...], **given: Any
) -> None:
    """Plan one step of a function, or of zoo:NAME."""
    call = find_call(target, arguments)
    with working("tracing", quiet=given["quiet"]) as update:
        made = api.partition(
            call.fn, *call.args, mesh=parse_mesh(given["mesh"]), devices=given["devices"],
            device=given["device"], memory=parse_bytes(given["memory"]),
            seconds=given["seconds"], timeout=given["timeout"], seed=given["seed"],
            tactics=[parse_tactic(t) for t in given["tactics"]] or None,
            progress=search_progress(update), donate_argnums=donate or call.donated,
            static_argnums=static, cache=given["cache"],
        )  # fmt: skip
    files = (given["save"], given["html"])
    if given["save"] == STDOUT:
        write(STDOUT, record_text(made.record))
    elif given["save"]:
        made.save(given["save"])
    if given["html"]:
        write(given["html"], made.to_html())
    if given["as_json"]:
        say_json(encode(made.record))
    elif not given["quiet"] and STDOUT not in files:
        say(made.explain() if given["explain"] else str(made))
    if made.record.search.interrupted:  # the best so far is there, and scripts are told
        click.get_current_context().exit(INTERRUPTED)


@click.command()
@target_argument
@call_options
@json_option
def analyze(
    target: str, arguments: str, donate: tuple[int, ...], static: tuple[int, ...], as_json: bool
) -> None:
    """What can be decided about a function. One row per group of dims that are split alike."""
    call = find_call(target, arguments)
    found = api.analyze(
        call.fn, *call.args, donate_argnums=donate or call.donated, static_argnums=static
    )
    if not as_json:
        say(str(found))
        return
    say_json([
        {
            "group": g.label, "sizes": g.sizes, "dims": g.dims, "colors": len(g.colors),
            "argument_bytes": g.argument_bytes, "activation_bytes": g.activation_bytes,
            "conflict_sets": len(g.conflict_sets),
        }
        for g in found.groups
    ])  # fmt: skip
