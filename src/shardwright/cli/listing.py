"""Commands about what Shardwright knows: devices, rules, zoo; and calibrate, which measures."""

from __future__ import annotations

import difflib

import click

from shardwright.cli.input import parse_mesh
from shardwright.cli.options import json_option
from shardwright.cli.output import say_json, say_table
from shardwright.cost.devices import devices as known_devices
from shardwright.errors import ShardwrightError
from shardwright.record.plain import encode
from shardwright.report.words import human_bytes


@click.command()
@json_option
def devices(as_json: bool) -> None:
    """The devices that Shardwright knows."""
    known = known_devices()
    if as_json:
        say_json({name: encode(device) for name, device in known.items()})
        return
    titles = ("device", "bf16 FLOP/s", "memory", "memory/s", "link/s", "also called")
    rows = [
        (
            name, f"{d.matrix_flops_per_s('bf16'):.3g}", human_bytes(d.usable_bytes),
            human_bytes(d.memory_bytes_per_s), human_bytes(d.link_bytes_per_s),
            ", ".join(d.aliases),
        )
        for name, d in known.items()
    ]  # fmt: skip
    say_table(titles, rows, right=(1, 2, 3, 4))


@click.command()
@click.argument("path", type=click.Path(dir_okay=False))
@click.option("--mesh", required=True, help="data=4,model=2: of the devices that are here.")
@click.option("--like", metavar="DEVICE", help="What gives the rest; by default what is here.")
@click.option("--name", default="calibrated", show_default=True, help="Of the device.")
@json_option
def calibrate(path: str, mesh: str, like: str | None, name: str, as_json: bool) -> None:
    """Measure links, dots and memory of the devices here; write a table for --device PATH."""
    from shardwright.calibrate import calibrate as measure

    found = measure(parse_mesh(mesh), like=like, name=name, path=path)
    if as_json:
        say_json(encode(found))
        return
    rows = [
        ("bf16 dots", f"{found.matrix_flops_per_s('bf16'):.3g} FLOP/s"),
        ("f32 dots", f"{found.matrix_flops_per_s('f32'):.3g} FLOP/s"),
        ("memory", f"{human_bytes(found.memory_bytes_per_s)}/s"),
        ("links", f"{human_bytes(found.link_bytes_per_s)}/s"),
        ("latency", f"{found.latency_s * 1e6:.3g} us"),
    ]
    say_table(("what", "measured"), rows, right=(1,))


@click.command()
@click.argument("primitive", required=False)
@json_option
def rules(primitive: str | None, as_json: bool) -> None:
    """What is known about each primitive of JAX, or about one: its factor rule on examples."""
    from shardwright.rules import OPAQUE, RULES, STRUCTURAL
    from shardwright.rules.examples import EXAMPLES

    names = [*RULES, *OPAQUE, *STRUCTURAL]
    if primitive is not None and primitive not in names:
        near = difflib.get_close_matches(primitive, names, n=3)
        raise ShardwrightError(
            f"no primitive {primitive!r} is known", try_=", ".join(near) or "sw.rule: add its rule"
        )
    rows = [(e.primitive, e.rule, e.note) for e in EXAMPLES if primitive in (None, e.primitive)]
    rows += [
        (name, "computed in full on every device", why)
        for name, why in OPAQUE.items() if primitive in (None, name)
    ]  # fmt: skip
    rows += [
        (name, "taken apart by tracing", how)
        for name, how in STRUCTURAL.items() if primitive in (None, name)
    ]  # fmt: skip
    if as_json:
        say_json([{"primitive": p, "rule": rule, "note": note} for p, rule, note in rows])
    else:
        say_table(("primitive", "rule", "note"), sorted(rows), right=())


@click.command()
@click.option("--size", type=click.Choice(["tiny", "full"]), default="full", show_default=True)
@json_option
def zoo(size: str, as_json: bool) -> None:
    """The models of the zoo. Plan one: shardwright plan zoo:NAME --mesh data=4,model=4"""
    from shardwright.zoo.catalog import CATALOG

    rows = [
        (name, entry.module, entry.full if size == "full" else entry.tiny or "")
        for name, entry in CATALOG.items()
        if size == "full" or entry.tiny is not None
    ]
    if as_json:
        say_json([{"name": n, "model": m, "preset": p} for n, m, p in rows])
    else:
        say_table(("program", "model", "preset"), rows, right=())
