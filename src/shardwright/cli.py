"""The command line: parse, call, print, return a code.

0: done, or equal, or verified; 1: plans differ, or a plan does not hold; 2: an error.
"""

from __future__ import annotations

import difflib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from shardwright import __version__, api
from shardwright.cli_input import (
    find_arguments,
    find_object,
    parse_bytes,
    parse_mesh,
    parse_tactic,
)  # fmt: skip
from shardwright.cost.devices import devices as known_devices
from shardwright.errors import ShardwrightError
from shardwright.plan import Plan, load
from shardwright.report.words import columns, human_bytes, human_seconds
from shardwright.search.objective import OVER_MEMORY_S


class Commands(click.Group):
    """Commands whose ShardwrightErrors are texts on stderr and exit code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        """The command's result; a ShardwrightError becomes its text and the exit code 2."""
        try:
            return super().invoke(ctx)
        except ShardwrightError as error:
            click.echo(f"ShardwrightError: {error}", err=True)
            ctx.exit(2)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Decides how to split a JAX program over a mesh of devices."""


# Shared options -----------------------------------------------------------------------------

Command = Callable[..., Any]


def _options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def apply(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return apply


def _file(_: click.Context, __: click.Parameter, path: str | None) -> str | None:
    """A file that can be written as far as one can tell before a long search."""
    if path is not None and not Path(path).parent.is_dir():
        raise ShardwrightError(
            f"cannot write {path}: there is no folder {Path(path).parent}", try_="mkdir first"
        )
    return path


args_option = click.option(
    "--args", "arguments", default="example_args", show_default=True, metavar="FUNCTION|EXPR",
    help="What gives the arguments; shapes are enough.",
)  # fmt: skip
html_option = click.option(
    "--html", type=click.Path(dir_okay=False), callback=_file, help="Write the plan as a page."
)
call_options = _options(
    args_option,
    click.option("--donate", type=int, multiple=True, metavar="N", help="An argument to donate."),
    click.option("--static", type=int, multiple=True, metavar="N", help="A static argument."),
)  # fmt: skip
plan_options = _options(
    click.option("--mesh", required=True, help="data=4,model=4; data=?,model=4; or a number."),
    click.option("--devices", type=int, metavar="N", help="How many, when a size is left open."),
    click.option("--device", default="tpu-v5e", show_default=True, help="A kind: see `devices`."),
    click.option("--memory", help="Per device, e.g. 16GB; all that it has if not given."),
    click.option("--tactic", "tactics", multiple=True, help="What you know, e.g. 'FSDP(data)'."),
    click.option("--seconds", type=click.FloatRange(min=0),
                 help="Roughly how much to search, counted in work."),
    click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS",
                 help="End the search by the clock: another machine may find another plan."),
    click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same plan."),
    click.option("--cache/--no-cache", default=True, show_default=True,
                 help="Look up the plan if it was made before."),
    click.option("--save", type=click.Path(dir_okay=False), callback=_file,
                 help="Write the plan as JSON."),
    html_option,
    click.option("--explain", is_flag=True, help="Say why, in words."),
    click.option("--quiet", is_flag=True, help="Print no plan and no progress."),
)  # fmt: skip


def _progress(quiet: bool) -> Callable[[Any], None] | None:
    """A line on a terminal's stderr, rewritten a few times a second."""
    if quiet or not sys.stderr.isatty():
        return None
    shown = [0.0]

    def show(p: Any) -> None:
        now = time.monotonic()
        if now - shown[0] > 0.2:
            shown[0] = now
            best = human_seconds(p.best_s) if p.best_s < OVER_MEMORY_S else "nothing fits yet"
            line = f"{p.stage}: {p.evaluations} plans priced, best {best}, {p.seconds:.0f} s"
            click.echo(f"\r\x1b[K{line}", nl=False, err=True)

    return show


def _plan(fn: Any, args: tuple[Any, ...], given: dict[str, Any], **calls: Any) -> None:
    """Plans, writes what was asked for, prints."""
    show = _progress(given["quiet"])
    plan = api.partition(
        fn, *args, mesh=parse_mesh(given["mesh"]), devices=given["devices"], device=given["device"],
        memory=parse_bytes(given["memory"]), seconds=given["seconds"], timeout=given["timeout"],
        seed=given["seed"], tactics=[parse_tactic(t) for t in given["tactics"]] or None,
        progress=show, cache=given["cache"], **calls,
    )  # fmt: skip
    if show is not None:
        click.echo("\r\x1b[K", nl=False, err=True)
    if given["save"]:
        plan.save(given["save"])
    if given["html"]:
        _write_page(given["html"], plan)
    if not given["quiet"]:
        click.echo(plan.explain() if given["explain"] else str(plan))


def _write_page(path: str, plan: Plan) -> None:
    try:
        Path(path).write_text(plan.to_html(), encoding="utf-8")
    except OSError as error:
        raise ShardwrightError(f"cannot write {path}: {error.strerror}") from None


# Commands -----------------------------------------------------------------------------------


@main.command()
@click.argument("target", metavar="FILE:FUNCTION")
@call_options
@plan_options
def plan(
    target: str, arguments: str, donate: tuple[int, ...], static: tuple[int, ...], **given: Any
) -> None:
    """Plan one step of a function."""
    module, fn = find_object(target)
    args = find_arguments(module, arguments)
    _plan(fn, args, given, donate_argnums=donate, static_argnums=static)


@main.command()
@click.argument("name")
@click.option("--size", type=click.Choice(["tiny", "full"]), default="full", show_default=True)
@plan_options
def zoo(name: str, size: str, **given: Any) -> None:
    """Plan a model of the zoo, e.g. llama_scan_train."""
    from shardwright.zoo import programs  # needs optax, which only the zoo does

    known = programs(size)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3) or list(known)
        raise ShardwrightError(
            f"no program {name!r} of size {size} in the zoo", try_=", ".join(near)
        )
    example = known[name]
    _plan(example.fn, example.args, given, donate_argnums=example.donate_argnums)


@main.command()
@click.argument("path", metavar="PLAN.json")
@click.option("--explain", is_flag=True, help="Say why, in words.")
@click.option("--python", is_flag=True, help="Print a module that needs no Shardwright.")
@html_option
def show(path: str, explain: bool, python: bool, html: str | None) -> None:
    """Print a saved plan."""
    saved = load(path)
    if html:
        _write_page(html, saved)
    elif python:
        click.echo(saved.to_python(), nl=False)
    else:
        click.echo(saved.explain() if explain else str(saved))


@main.command()
@click.argument("old", metavar="A.json")
@click.argument("new", metavar="B.json")
def diff(old: str, new: str) -> None:
    """What plan B does differently from plan A. Exit code 1 when they differ."""
    text = load(old).diff(load(new))
    if text:
        click.echo(text)
        raise click.exceptions.Exit(1)


@main.command()
@click.argument("target", metavar="FILE:FUNCTION")
@click.argument("path", metavar="PLAN.json")
@args_option
def check(target: str, path: str, arguments: str) -> None:
    """Whether a saved plan still is for this function. Exit code 1 when not."""
    saved = load(path)
    module, fn = find_object(target)
    args = find_arguments(module, arguments)
    try:
        saved.bind(fn, *args)
    except ShardwrightError as error:
        click.echo(str(error))
        raise click.exceptions.Exit(1) from None
    click.echo(f"{path} is for {target}: {saved!r}")


@main.command()
@click.argument("target", metavar="FILE:FUNCTION")
@click.argument("path", metavar="PLAN.json")
@args_option
@click.option(
    "--target", "on", help="cpu:8, tpu:v5e:4x4, cuda:h100:2x8; this machine if not given."
)
@click.option("--run", is_flag=True, help="Also compare results with the unsharded function's.")
def verify(target: str, path: str, arguments: str, on: str | None, run: bool) -> None:
    """Compile a saved plan: predicted against compiled. Exit code 1 when they disagree."""
    saved = load(path)
    module, fn = find_object(target)
    found = saved.bind(fn, *find_arguments(module, arguments)).verify(on, run=run)
    click.echo(str(found))
    if not found:
        raise click.exceptions.Exit(1)


@main.command()
@click.argument("target", metavar="FILE:FUNCTION")
@call_options
def analyze(target: str, arguments: str, donate: tuple[int, ...], static: tuple[int, ...]) -> None:
    """What can be decided about a function. One row per group of dims that are split alike."""
    module, fn = find_object(target)
    args = find_arguments(module, arguments)
    click.echo(str(api.analyze(fn, *args, donate_argnums=donate, static_argnums=static)))


@main.command()
def devices() -> None:
    """The devices that Shardwright knows."""
    rows = [("device", "bf16 FLOP/s", "memory", "memory/s", "link/s", "also called")]
    for name, d in known_devices().items():
        rows.append((
            name, f"{d.matrix_flops_per_s('bf16'):.3g}", human_bytes(d.usable_bytes),
            human_bytes(d.memory_bytes_per_s), human_bytes(d.link_bytes_per_s),
            ", ".join(d.aliases),
        ))  # fmt: skip
    click.echo(columns(rows, right=(1, 2, 3, 4), indent=0))
