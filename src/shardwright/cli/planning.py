"""Commands that look at a function: plan, analyze."""

from __future__ import annotations

from typing import Any

import click

from shardwright import api
from shardwright.cli.input import find_call
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
    target: str, arguments: str, donate_argnums: tuple[int, ...], save: str | None,
    html: str | None, explain: bool, quiet: bool, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Plan one step of a function, or of zoo:NAME."""
    call = find_call(target, arguments)
    with working("tracing", quiet=quiet) as update:
        made = api.partition(
            call.fn, *call.args, **options, donate_argnums=donate_argnums or call.donated,
            progress=search_progress(update),
        )  # fmt: skip
    if save == STDOUT:
        write(STDOUT, record_text(made.record))
    elif save:
        made.save(save)
    if html:
        write(html, made.to_html())
    if as_json:
        say_json(encode(made.record))
    elif not quiet and STDOUT not in (save, html):
        say(made.explain() if explain else str(made))
    if made.record.search.interrupted:  # the best so far is there, and scripts are told
        click.get_current_context().exit(INTERRUPTED)


@click.command()
@target_argument
@call_options
@json_option
def analyze(
    target: str, arguments: str, donate_argnums: tuple[int, ...], as_json: bool, **options: Any
) -> None:
    """What can be decided about a function. One row per group of dims that are split alike."""
    call = find_call(target, arguments)
    donated = donate_argnums or call.donated
    found = api.analyze(call.fn, *call.args, **options, donate_argnums=donated)
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
