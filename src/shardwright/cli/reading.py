"""Commands that read saved plans: show, explain, report, trace, diff."""

from __future__ import annotations

from typing import Any

import click

from shardwright.cli.limits import judged, told
from shardwright.cli.options import file_option, json_option, limit_options, plan_argument
from shardwright.cli.output import STDOUT, say, say_json, write
from shardwright.errors import ShardwrightError
from shardwright.plan import load
from shardwright.record.plain import encode
from shardwright.report import questions
from shardwright.report.words import human_bytes

WHERE = "Where to write; - is standard output."


@click.command()
@plan_argument
@click.option("--python", is_flag=True, help="Print a module that needs no Shardwright.")
@json_option
def show(path: str, python: bool, as_json: bool) -> None:
    """Print a saved plan."""
    saved = load(path)
    if python:
        click.echo(saved.to_python(), nl=False)
    elif as_json:
        say_json(encode(saved.record))
    else:
        say(str(saved))


@click.command()
@plan_argument
@click.option("--why-not", metavar="TACTIC", help="Why not this, e.g. 'FSDP(data)'?")
@click.option(
    "--collective",
    type=click.IntRange(min=1),
    metavar="N",
    help="What is the collective that takes Nth most time there for?",
)
@click.option("--tensor", metavar="PATH", help="How is this argument or result stored, and why?")
@json_option
def explain(
    path: str, why_not: str | None, collective: int | None, tensor: str | None, as_json: bool
) -> None:  # fmt: skip
    """Why a saved plan splits the program as it does, in words."""
    saved, answers = load(path), []
    if why_not is not None:
        answers.append(questions.why_not(saved.record, why_not))
    if collective is not None:
        answers.append(questions.about_collective(saved.record, collective))
    if tensor is not None:
        answers.append(questions.about_array(saved.record, tensor))
    if not answers:
        text = saved.explain()
        say_json({"text": text}) if as_json else say(text)
    elif as_json:
        say_json(answers[0] if len(answers) == 1 else answers)
    else:
        say("\n\n".join(answer["text"] for answer in answers))


@click.command()
@plan_argument
@click.argument("other", metavar="[OTHER.json]", required=False, type=click.Path(dir_okay=False))
@file_option("-o", "--output", default="plan.html", show_default=True, help=WHERE)
@json_option
def report(path: str, other: str | None, output: str, as_json: bool) -> None:  # fmt: skip
    """Write a saved plan as a page, or two side by side."""
    page = load(path).to_html(beside=load(other) if other else None)
    if as_json and output == STDOUT:
        raise ShardwrightError("the page goes to standard output", try_="--output plan.html")
    write(output, page)
    if as_json:
        say_json({"written": output, "bytes": len(page.encode())})
    elif output != STDOUT:
        say(f"wrote {output}, {human_bytes(len(page.encode()))}: open it in a browser")


@click.command()
@plan_argument
@file_option("-o", "--output", help=WHERE)
@click.option(
    "--against",
    metavar="PROFILE",
    type=click.Path(),
    help="A trace.json.gz of jax.profiler.trace, or its folder: where do they differ?",
)
@json_option
def trace(path: str, output: str | None, against: str | None, as_json: bool) -> None:  # fmt: skip
    """The predicted step as a Chrome trace, for Perfetto; beside a measured one."""
    from shardwright.referee.profile import read_profile
    from shardwright.report.against import compare_profile, format_against

    saved = load(path)
    if output is None and against is None:
        raise ShardwrightError("where to?", try_="--output step.json, or --against PROFILE")
    if output == STDOUT:
        say_json(saved.to_trace(against=against))
        return
    if output is not None:
        saved.trace(output, against=against)
    if against is not None:
        profile = read_profile(against)
        record = saved.record
        if as_json:
            say_json(compare_profile(record, profile))
        else:
            say(format_against(record, profile))
    elif as_json:
        say_json({"written": output})
    else:
        say(f"wrote {output}: open it at ui.perfetto.dev")


@click.command()
@click.argument("old", metavar="A.json", type=click.Path(dir_okay=False))
@click.argument("new", metavar="B.json", type=click.Path(dir_okay=False))
@limit_options
@json_option
def diff(old: str, new: str, as_json: bool, **limits: Any) -> None:
    """What plan B does differently from plan A.

    Exit code 1 when they differ; with limits only when one of those is passed.
    """
    text, broken, failed = judged(load(old), load(new), **limits)
    if as_json:
        say_json({"differ": bool(text), "failed": failed, "broken": broken, "text": text})
    elif lines := told(text, broken):
        say("\n".join(lines))
    if failed:
        raise click.exceptions.Exit(1)
