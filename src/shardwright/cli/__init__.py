"""The command line: parse, call, print, return a code. One module per family of commands.

0: done, or equal, or verified, or within the limits; 1: plans differ, a plan does not hold, or a
limit is passed; 2: an error, told on standard error; 130: interrupted.
"""

from __future__ import annotations

from typing import Any

import click

from shardwright import __version__
from shardwright.cli.judging import check, verify
from shardwright.cli.listing import calibrate, devices, rules, zoo
from shardwright.cli.output import INTERRUPTED
from shardwright.cli.planning import analyze, plan
from shardwright.cli.reading import diff, explain, report, show, trace
from shardwright.cli.variants import advice, compare
from shardwright.errors import ShardwrightError

__all__ = ["main"]


class Commands(click.Group):
    """Commands whose ShardwrightErrors are texts on stderr and exit code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        """The command's result; a ShardwrightError becomes its text and the exit code 2."""
        try:
            return super().invoke(ctx)
        except ShardwrightError as error:
            click.echo(f"ShardwrightError: {error}", err=True)
            ctx.exit(2)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Decides how to split a JAX program over a mesh of devices."""


for _command in (
    plan, compare, advice, explain, show, report, trace, diff, check, verify, analyze, devices,
    calibrate, rules, zoo,
):  # fmt: skip
    main.add_command(_command)
