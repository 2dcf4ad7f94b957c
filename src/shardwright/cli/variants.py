"""The commands that plan several things: comparisons and advice."""

from __future__ import annotations

import ast
from typing import Any

import click

from shardwright.api import partition
from shardwright.cli.input import find_arguments, find_call, find_object, parse_mesh
from shardwright.cli.options import (
    cache_option,
    call_options,
    device_option,
    file_option,
    given,
    json_option,
    memory_option,
    options,
    tactic_option,
    target_argument,
)
from shardwright.cli.output import say, say_json, search_progress, working, writable, write
from shardwright.errors import ShardwrightError
from shardwright.plan import load
from shardwright.several.compare import compare as compare_all

ARGUMENTS = "example_args"
page_option = file_option("--html", help="Write it as a page; - is standard output.")


def _axis(text: str) -> tuple[str, list[Any]]:
    """("batch", [8, 16]) of batch=8,16."""
    name, equals, values = text.partition("=")
    if not name.strip() or not equals or not values.strip():
        raise ShardwrightError(
            f"cannot read grid {text!r:.60}", try_="remat=full,dots or batch=8,16"
        )
    return name.strip(), [_value(one.strip()) for one in values.split(",")]


def _value(text: str) -> Any:
    """A Python literal, or the text itself: None is nothing, none a word like any other."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return {"true": True, "false": False}.get(text, text)


@click.command()
@click.argument("targets", metavar="FILE:FUNCTION...", nargs=-1, required=True)
@call_options
@options(
    click.option("--grid", multiple=True, metavar="NAME=VALUE,...", type=_axis,
                 help="FILE:FUNCTION is a factory: its arguments. Once per argument."),
    click.option("--mesh", multiple=True, required=True, type=parse_mesh, metavar="TEXT",
                 callback=given, help="Once per mesh; see `plan`."),
    click.option("--device", multiple=True, default=("tpu-v5e",), show_default=True,
                 callback=given, help="Once per kind of device; see `devices`."),
    memory_option, tactic_option,
    click.option("--per", type=click.Choice(["token", "example", "step"]), help="What is counted."),
    click.option("--seconds", type=click.FloatRange(min=0),
                 help="Roughly how much to search for each row, counted in work."),
    click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same plans."),
    click.option("--processes", type=click.IntRange(min=1), help="How many plan at once."),
    click.option("--save", type=click.Path(dir_okay=False), callback=writable,
                 help="Write the best plan as JSON."),
)  # fmt: skip
@cache_option
@page_option
@json_option
def compare(
    targets: tuple[str, ...], arguments: str, grid: tuple[Any, ...],
    save: str | None, html: str | None, as_json: bool, **planning: Any,
) -> None:  # fmt: skip
    """Plan variants on several meshes and devices. Exit code 1 when nothing fits.

    Several functions are variants by name; one factory with --grid is called with every
    combination of its arguments, and returns a function, or a function and its arguments.
    """
    if grid and len(targets) > 1:
        raise ShardwrightError("a grid is of one factory", try_="one FILE:FUNCTION")
    variants: dict[str, Any] = {}
    for target in targets:
        module, fn = find_object(target)
        own = bool(grid) and arguments == ARGUMENTS and not hasattr(module, ARGUMENTS)
        args = () if own else find_arguments(module, arguments)
        variants[target.rpartition(":")[2] if len(targets) > 1 else target] = (fn, args)
    (first, args), *_ = variants.values()
    with working("tracing") as update:
        found = compare_all(
            *((first, *args) if grid else (variants,)), grid=dict(grid) or None,
            progress=search_progress(update), **planning,
        )  # fmt: skip
    if save and found.best is not None:
        found.best.save(save)
    _say(found, html, as_json)
    if found.best is None:
        raise click.exceptions.Exit(1)


@click.command()
@target_argument
@call_options
@options(
    click.option("--plan", "path", metavar="PLAN.json", help="A saved plan of the function."),
    click.option("--mesh", type=parse_mesh, metavar="TEXT",
                 help="Without a saved plan: what to plan for; see `plan`."),
    device_option, memory_option,
)  # fmt: skip
@cache_option
@page_option
@json_option
def advice(
    target: str, arguments: str, donate_argnums: tuple[int, ...], path: str | None, mesh: Any,
    html: str | None, as_json: bool, **planning: Any,
) -> None:  # fmt: skip
    """What would save memory or time, with its price: residuals, batch, mesh, devices."""
    call = find_call(target, arguments)
    if (path is None) == (mesh is None):
        raise ShardwrightError("advice is on a plan", try_="--mesh data=4,model=4, or --plan FILE")
    with working("tracing") as update:
        progress = search_progress(update)
        if path is not None:
            plan = load(path).bind(call.fn, *call.args)
        else:
            plan = partition(
                call.fn, *call.args, mesh=mesh, donate_argnums=donate_argnums or call.donated,
                progress=progress, **planning,
            )  # fmt: skip
        found = plan.advice(progress=progress)
    _say(found, html, as_json)


def _say(found: Any, html: str | None, as_json: bool) -> None:
    """Prints a comparison or advice, and writes its page."""
    if html:
        write(html, found.to_html())
    say_json(found.to_dict()) if as_json else say(str(found))
