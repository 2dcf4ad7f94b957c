"""The command line of comparisons: what users write, read into compare()'s arguments."""

from __future__ import annotations

import ast
from typing import Any

import click

from shardwright.cli.input import find_arguments, find_object, parse_bytes, parse_mesh, parse_tactic
from shardwright.cli.output import say, say_json, working, writable, write
from shardwright.compare import compare as compare_all
from shardwright.errors import ShardwrightError

ARGUMENTS = "example_args"


@click.command()
@click.argument("targets", metavar="FILE:FUNCTION...", nargs=-1, required=True)
@click.option(
    "--args",
    "arguments",
    default=ARGUMENTS,
    show_default=True,
    metavar="FUNCTION|EXPR",
    help="What gives the arguments; shapes are enough.",
)
@click.option(
    "--grid",
    multiple=True,
    metavar="NAME=VALUE,...",
    help="FILE:FUNCTION is a factory: its arguments. Once per argument.",
)
@click.option("--mesh", "meshes", multiple=True, required=True, help="Once per mesh; see `plan`.")
@click.option(
    "--device",
    "devices",
    multiple=True,
    default=("tpu-v5e",),
    show_default=True,
    help="Once per kind of device; see `devices`.",
)
@click.option("--memory", help="Per device, e.g. 16GB; all that it has if not given.")
@click.option("--tactic", "tactics", multiple=True, help="What you know, e.g. 'FSDP(data)'.")
@click.option("--per", type=click.Choice(["token", "example", "step"]), help="What is counted.")
@click.option("--donate", type=int, multiple=True, metavar="N", help="An argument to donate.")
@click.option("--static", type=int, multiple=True, metavar="N", help="A static argument.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    help="Roughly how much to search for each row, counted in work.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same plans.")
@click.option("--processes", type=click.IntRange(min=1), help="How many plan at once.")
@click.option(
    "--cache/--no-cache",
    default=True,
    show_default=True,
    help="Look up plans that were made before.",
)
@click.option("--save", type=click.Path(dir_okay=False), help="Write the best plan as JSON.")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, allow_dash=True),
    callback=writable,
    help="Write the comparison as a page; - is standard output.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def compare(targets: tuple[str, ...], arguments: str, **given: Any) -> None:  # fmt: skip
    """Plan variants on several meshes and devices. Exit code 1 when nothing fits.

    Several functions are variants by name; one factory with --grid is called with every
    combination of its arguments, and returns a function, or a function and its arguments.
    """
    grid = dict(map(_axis, given["grid"]))
    if grid and len(targets) > 1:
        raise ShardwrightError("a grid is of one factory", try_="one FILE:FUNCTION")
    variants: dict[str, Any] = {}
    for target in targets:
        module, fn = find_object(target)
        own = bool(grid) and arguments == ARGUMENTS and not hasattr(module, ARGUMENTS)
        args = () if own else find_arguments(module, arguments)
        variants[target.rpartition(":")[2] if len(targets) > 1 else target] = (fn, args)
    (first, args), *_ = variants.values()
    with working("comparing"):
        found = compare_all(
        *((first, *args) if grid else (variants,)), grid=grid or None,
        mesh=[parse_mesh(text) for text in given["meshes"]], device=list(given["devices"]),
        memory=parse_bytes(given["memory"]), per=given["per"], processes=given["processes"],
        tactics=[parse_tactic(text) for text in given["tactics"]] or None,
        seconds=given["seconds"], seed=given["seed"], cache=given["cache"],
        donate_argnums=given["donate"], static_argnums=given["static"],
    )  # fmt: skip
    if given["save"] and found.best is not None:
        found.best.save(given["save"])
    if given["html"]:
        write(given["html"], found.to_html())
    say_json(found.to_dict()) if given["as_json"] else say(str(found))
    if found.best is None:
        raise click.exceptions.Exit(1)


def _axis(text: str) -> tuple[str, list[Any]]:
    """("batch", [8, 16]) of batch=8,16."""
    name, equals, values = text.partition("=")
    if not name.strip() or not equals or not values.strip():
        raise ShardwrightError(
            f"cannot read grid {text!r:.60}", try_="remat=full,dots or batch=8,16"
        )
    return name.strip(), [_value(one.strip()) for one in values.split(",")]


def _value(text: str) -> Any:
    """A Python literal, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)
