"""Plan files that somebody has changed: refused when read, or every view of them is sound."""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import html.parser
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardwright as sw
from shardwright.record.types import MeshRow, Replicated
from tests.plans.runs import DEVICES
from tests.plans.test_files import FILES, plain

X, W = jnp.ones((16, 8)), jnp.ones((8, 32))
Place = tuple[str | int, ...]


def matmul(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


@pytest.fixture(scope="module")
def plan() -> sw.Plan:
    """A plan with something in every part of its file, and few rows of a kind."""
    made = sw.partition(
        matmul, X, W, mesh=sw.Mesh({"data": 4, "model": 2}, wrap={"data": True}),
        device=DEVICES["slow links"], donate_argnums=1, labels={"batch": "x[0]"},
        tactics=[sw.Pin("x", 0, "data"), sw.Pin("x", 1, "model")],
    )  # fmt: skip
    record = made.record
    assert record.collectives
    fits = [n for n, row in record.baselines.items() if not isinstance(row, str)][:3]
    why = [n for n, row in record.baselines.items() if isinstance(row, str)][:1]
    row = MeshRow({"data": 4, "model": 2}, searched=True, why="", step_s=1e-3, peak_bytes=9)
    made.record = dataclasses.replace(
        record, baselines={name: record.baselines[name] for name in (*fits, *why)},
        meshes=(row, dataclasses.replace(row, mesh={"data": 8})), opaque={"pallas_call": 1},
        notes=("not followed: reshard",), replicated=(Replicated("w", 1024),),
    )  # fmt: skip
    return made


@pytest.fixture(scope="module")
def content(plan: sw.Plan) -> dict[str, Any]:
    """What its file holds."""
    return plain(plan)


def places(value: Any, here: Place = ()) -> Iterator[Place]:
    """Every field and row of a record, inner ones too."""
    if here:
        yield here
    rows = value.items() if isinstance(value, dict) else ()
    for key, inner in enumerate(value) if isinstance(value, list) else rows:
        yield from places(inner, (*here, key))


SCRIPTS = 2  # of a page: its data, and the one that its policy lets run
QUOTES = '"""\nimport os\nos.system("true")\n"""'
REMOVED = object()
VALUES: dict[str, Any] = {
    "removed": REMOVED, "null": None, "number": 3, "negative": -7, "huge": 10**40, "large": 10**29,
    "tiny": 5e-324, "zero": 0, "fraction": 0.5, "true": True, "text": "text", "lines": QUOTES,
    "quotes": "\"\"\"' + f() + '", "tag": "</style><script>f()</script>",
    "attribute": "' onclick='f()' \" onload=\"f()\"", "backslash": "\\", "empty list": [],
    "list": [[["a"]]], "empty table": {}, "table": {"a": {"b": 1}},
}  # fmt: skip
# What bind() reads of a record; to trace the function for each other field would take long.
BOUND = (
    "mesh", "device", "asked", "unshared", "pinned", "decisions", "overrides", "specs",
    "result_specs", "cost", "fingerprint", "arguments", "weakly_typed",
)  # fmt: skip


def changed(record: Any, place: Place, value: Any) -> Any:
    record = copy.deepcopy(record)
    *outer, last = place
    inside = record
    for key in outer:
        inside = inside[key]
    if value is REMOVED:
        del inside[last]
    else:
        inside[last] = value
    return record


def renamed(value: Any, old: str, new: str) -> Any:
    """A record in which a name is another one everywhere."""
    if isinstance(value, dict):
        return {renamed(k, old, new): renamed(v, old, new) for k, v in value.items()}
    if isinstance(value, list):
        return [renamed(v, old, new) for v in value]
    return new if value == old else value


class Tags(html.parser.HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen |= {tag, *(name for name, _ in attrs)}


def shape_of_code(text: str) -> list[str]:
    """What statements and calls a module has; not what its texts and numbers are."""
    body = ast.parse(text).body
    tables = [n for n in body if isinstance(n, ast.Assign)]
    calls = [c for n in tables for c in ast.walk(n) if isinstance(c, ast.Call)]
    assert all(isinstance(c.func, ast.Name) and c.func.id == "P" for c in calls)
    names = [n.id for one in tables for n in ast.walk(one) if isinstance(n, ast.Name)]
    assert set(names) <= {"P", "AXES", "ARGUMENTS", "STATIC", "DONATED", "SPECS", "RESULTS"}
    functions = [n for n in body if not isinstance(n, ast.Assign)]
    return [ast.dump(n) for n in functions[1:]] + [type(n).__name__ for n in body]


def use(plan: sw.Plan, other: sw.Plan) -> None:
    """Everything that can be asked of a plan without its function."""
    str(plan), repr(plan), plan.explain(), plan.diff(other), other.diff(plan)
    plan.cost, plan.collectives, plan.certificate, plan.baselines, plan.memory, plan.decisions
    plan.specs(), plan.result_specs(), plan.mesh, plan.device
    with contextlib.suppress(sw.ShardwrightError):  # of other types than the file says
        plan.place(X, W)
    page = plan.to_html()
    assert not Tags(page).seen & {"onclick", "onload"} and page.lower().count("<script") == SCRIPTS
    if plan.record.call is not None:
        assert shape_of_code(plan.to_python()) == shape_of_code(other.to_python())


def check(record: Any, path: Path, other: sw.Plan, *, bind: bool) -> bool:
    """Whether a changed file is read; if it is, its views are sound."""
    path.write_text(json.dumps(record))
    try:
        plan = sw.load(path)
    except sw.ShardwrightError as error:
        assert "\n  try " in str(error)
        return False
    use(plan, other)
    if bind:
        with contextlib.suppress(sw.ShardwrightError):
            plan.bind(matmul, X, W).in_shardings()
    return True


@pytest.mark.parametrize("value", VALUES)
def test_a_changed_value(
    value: str, plan: sw.Plan, content: dict[str, Any], tmp_path: Path
) -> None:
    read = 0
    for place in places(content):
        record = changed(content, place, VALUES[value])
        try:
            read += check(record, tmp_path / "plan.json", plan, bind=place[0] in BOUND)
        except Exception as error:
            raise AssertionError(f"{value} at {place}") from error
    assert value not in ("lines", "huge", "list", "table") or read == 0


@pytest.mark.parametrize("value", ["removed", "lines", "list", "tag"])
def test_a_changed_file_of_version_2(value: str, tmp_path: Path) -> None:
    """Older files are no way around the checks; what is no longer in a plan is not looked at."""
    content = json.loads((FILES / "version_2.json").read_text())
    other = sw.load(FILES / "version_2.json")
    for place in places(content):
        record = changed(content, place, VALUES[value])
        try:
            read = check(record, tmp_path / "plan.json", other, bind=False)
        except Exception as error:
            raise AssertionError(f"{value} at {place}") from error
        gone = place == ("memory", "limit_bytes")
        assert not read or gone or value not in ("lines", "list"), place


@pytest.mark.parametrize("new", ["quotes", "tag", "attribute", "backslash", "text"])
@pytest.mark.parametrize("old", ["data", "matmul", "x", "DataParallel(data)"])
def test_a_changed_name(
    old: str, new: str, plan: sw.Plan, content: dict[str, Any], tmp_path: Path
) -> None:
    """Names that agree with each other are read: of an axis, the function, an argument, a tactic"""
    record = renamed(content, old, VALUES[new])
    assert check(record, tmp_path / "plan.json", plan, bind=True)


def test_a_live_plan_of_odd_names(plan: sw.Plan) -> None:
    """The module that a plan writes is the same code whatever the function and axes are called."""

    def odd(x: jax.Array) -> jax.Array:
        return x + 1

    odd.__name__ = QUOTES
    made = sw.partition(odd, X, mesh={'"""': 2, "\\": 2}, seconds=0.1)
    assert shape_of_code(made.to_python()) == shape_of_code(plan.to_python())
    with pytest.raises(sw.ShardwrightError, match=r"a mesh axis is called 'a\\nb'"):
        sw.Mesh({"a\nb": 2})


# {what is wrong: (a change, what is said)}
SAID: dict[str, tuple[Place, Any, str]] = {
    "type": (("specs", "x", 0), 3, r"specs\['x'\]\[0\]: expected a list of axis names, got 3"),
    "axis": (("specs", "x", 0), ["pipe"], r"specs\['x'\]: expected axes of data=4 x model=2, got"),
    "axis twice": (("specs", "x"), [["data"], ["data"]], r"specs\['x'\]: an axis is there twice"),
    "uneven": (("arguments", "x"), "f32[15,8]", r"specs\['x'\]\[0\]: data=4 does not divide 15"),
    "rank": (("specs", "x"), [[]], r"a list of axes for each dim of f32\[16,8\], got 1"),
    "no type": (("arguments", "x"), "float", r"expected a type such as f32\[8,16\], got 'float'"),
    "missing": (("cost",), REMOVED, "it has no 'cost'"),
    "missing inside": (("memory", "at"), REMOVED, "memory has no 'at'"),
    "unknown": (("cost", "joules"), 3, "cost has an unknown field 'joules'"),
    "negative": (("cost", "link_s"), -1, r"cost\['link_s'\]: expected a number from 0 to 1e\+30"),
    "huge": (("ops",), 10**50, "ops: expected an integer from 0 to 1e.30, got a larger number"),
    "lines": (("program",), "a\nb", r"program: expected one line of text, got 'a\\nb'"),
    "scope": (("decisions", "data", 0, "scope"), 2, r"\['scope'\]: expected 0 or 1, got 2"),
    "axes decided": (("decisions", "pipe"), [], "decisions are about 'data', 'model', 'pipe'"),
    "device": (("device", "topology"), "ring", "has topology 'ring'"),
    "mesh": (("mesh", "axes", 0, 1), 2**40, "mesh: mesh axis 'data' has size 1099511627776"),
    "mesh of many": (("mesh", "axes"), [["data", 2**15], ["model", 2**15]], "a mesh has size"),
    "proof": (("certificate", "kind"), "sure", "expected 'optimal' or 'gap' or 'none', got 'sure'"),
    "position": (("call", "donated"), [2], r"call\['donated'\]: there is no argument 2"),
    "pinned": (("pinned",), {"0": [[7]]}, "expected numbers of axes of data=4 x model=2"),
    "pinned name": (("pinned",), {"x": [[0]]}, "a name in pinned: expected an integer from 0"),
    "cause": (("collectives", 0, "cause", "kind"), "fate", r"\['cause'\]\['kind'\]: expected '"),
    "time": (("search", "timed_out"), True, r"search\['timed_out'\]: asked\['timeout'\] is null"),
    "weakly typed": (("weakly_typed",), ["y"], "weakly_typed: 'y' is no argument"),
    "kind": (("kinds",), {"y": "inputs"}, "kinds: 'y' is no argument"),
    "region": (("timeline", "spans", 0, "region"), 7, r"\['region'\]: there is no region 7"),
    "parent": (("timeline", "bodies", 0, "parent"), 1, "expected a region before it"),
    "moves": (("timeline", "spans", 0, "moves"), [99], "expected rows of collectives"),
    "memory over time": (("timeline", "spans", 0, "bytes"), [1], "one number per kind of memory"),
}  # fmt: skip


@pytest.mark.parametrize("case", SAID)
def test_what_is_said(case: str, content: dict[str, Any], tmp_path: Path) -> None:
    place, value, says = SAID[case]
    (tmp_path / "plan.json").write_text(json.dumps(changed(content, place, value)))
    with pytest.raises(sw.ShardwrightError, match=rf"plan.json is damaged: .*{says}"):
        sw.load(tmp_path / "plan.json")


# {text that is no plan: what is said}
TEXTS = {
    "deep": ('{"version": 3, "a": ' + "[" * 200_000 + "]" * 200_000 + "}", "nested too deeply"),
    "nan": ('{"version": NaN}', "NaN is not a number"),
    "infinite": ('{"version": -Infinity}', "-Infinity is not a number"),
    "digits": ('{"version": ' + "9" * 5000 + "}", "cannot read a plan"),
    "twice": ('{"version": 2, "version": 1}', "an object has the same field twice"),
    "true": ('{"version": true}', "is not a plan"),
    "a writer of lines": ('{"version": 99, "shardwright": "a\\nb"}', r"a newer Shardwright \(plan"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_texts(case: str, tmp_path: Path) -> None:
    text, says = TEXTS[case]
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(sw.ShardwrightError, match=says):
        sw.load(tmp_path / "plan.json")


# {something that only the program can tell: a change}
MEANINGLESS: dict[str, tuple[Place, Any]] = {
    "un-shared group": (("unshared",), [[99, 0]]),
    "un-shared color": (("unshared",), [[0, 99]]),
    "pinned dims": (("pinned",), {"0": [[0], [0], [1]]}),
    "pinned value": (("pinned",), {"999": [[0]]}),
    "resolution": (("decisions", "data", 0, "bits"), 2**40),
    "group twice": (("decisions", "data"), [{"group": "w[1]", "bits": 0, "scope": 0}] * 2),
    "override": (
        ("overrides",),
        [{"value": 0, "placement": [9, 9], "stored": "", "values": 1, "what": []}],
    ),
    "override of no value": (
        ("overrides",),
        [{"value": 999, "placement": [0, -1], "stored": "", "values": 1, "what": []}],
    ),
    "tile": (("device", "matrix_tile"), [0, 0, 0]),
    "torus": (("device", "torus"), [0]),
    "node": (("device", "node_bytes_per_s"), 0),
    "efficiency": (("device", "matrix_efficiency"), 1e-300),
}


@pytest.mark.parametrize("case", MEANINGLESS)
def test_what_only_the_program_can_tell(
    case: str, plan: sw.Plan, content: dict[str, Any], tmp_path: Path
) -> None:
    """bind() refuses it, or it means nothing for this program and what runs is as planned."""
    record = changed(content, *MEANINGLESS[case])
    (tmp_path / "plan.json").write_text(json.dumps(record))
    try:
        bound = sw.load(tmp_path / "plan.json").bind(matmul, X, W)
    except sw.ShardwrightError:
        return
    assert bound.in_shardings() == plan.in_shardings()
