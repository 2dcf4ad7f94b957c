"""The command line: what it prints, where, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import shardwright as sw
from shardwright.cli import main
from shardwright.cli_input import find_arguments, find_object, parse_bytes, parse_mesh, parse_tactic

TRAIN = """
import jax, jax.numpy as jnp
from types import SimpleNamespace

def train_step(w, x):
    return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)

def other(w, x):
    return w + jnp.sum(x)

def example_args():
    return jax.ShapeDtypeStruct((8, 16), jnp.float32), jax.ShapeDtypeStruct((32, 8), jnp.float32)

def wider():
    return jax.ShapeDtypeStruct((8, 32), jnp.float32), jax.ShapeDtypeStruct((32, 8), jnp.float32)

def broken():
    raise ValueError("no data today")

nested = SimpleNamespace(step=train_step)
"""
PLAN = ["--mesh", "data=4,model=2", "--tactic", "DataParallel(data)"]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps.py").write_text(TRAIN)
    return "steps.py:train_step"


def run(*args: str) -> Result:
    result = CliRunner().invoke(main, list(args))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_plan_prints_saves_and_writes_a_page(train: str) -> None:
    result = run("plan", train, *PLAN, "--save", "plan.json", "--html", "plan.html")
    assert result.exit_code == 0
    assert result.stdout.startswith("train_step on 8 x tpu-v5e, mesh data=4 x model=2\n")
    assert result.stderr == ""
    assert json.loads(Path("plan.json").read_text())["specs"]["x"] == [["data"], []]
    assert Path("plan.html").read_text().startswith("<!doctype html>")


def test_show_prints_the_same(train: str) -> None:
    printed = run("plan", train, *PLAN, "--save", "plan.json").stdout
    assert run("show", "plan.json").stdout == printed
    assert run("show", "plan.json", "--explain").stdout.startswith("What\n")
    assert "def in_shardings(mesh, *args)" in run("show", "plan.json", "--python").stdout
    assert run("show", "plan.json", "--html", "page.html").exit_code == 0
    assert Path("page.html").exists()


def test_names_in_a_file_never_become_code(train: str) -> None:
    run("plan", train, *PLAN, "--save", "plan.json")
    name = json.dumps('"""\nraise SystemExit(7)\n"""')
    Path("evil.json").write_text(Path("plan.json").read_text().replace('"train_step"', name))
    shown = run("show", "evil.json", "--python")
    assert shown.exit_code != 0 or "\nraise" not in shown.stdout


def test_quiet_prints_nothing(train: str) -> None:
    assert run("plan", train, *PLAN, "--quiet", "--save", "plan.json").output == ""


def test_diff_has_an_exit_code(train: str) -> None:
    run("plan", train, *PLAN, "--save", "a.json")
    run("plan", train, *PLAN[:-1], "DataParallel(model)", "--save", "b.json")
    same, different = run("diff", "a.json", "a.json"), run("diff", "a.json", "b.json")
    assert (same.exit_code, same.stdout) == (0, "")
    assert different.exit_code == 1
    assert "decided for data" in different.stdout


@pytest.mark.parametrize("target, args, code, words", [
    ("steps.py:train_step", "example_args", 0, "plan.json is for steps.py:train_step"),
    ("steps.py:nested.step", "example_args()", 0, "plan.json is for"),
    ("steps.py:train_step", "wider", 1, "w: was f32[8,16], is f32[8,32]"),
    ("steps.py:other", "example_args", 1, "this plan was made for another program"),
])  # fmt: skip
def test_check_says_whether_a_plan_still_fits(
    train: str, target: str, args: str, code: int, words: str
) -> None:
    run("plan", train, *PLAN, "--save", "plan.json")
    result = run("check", target, "plan.json", "--args", args)
    assert result.exit_code == code
    assert words in result.output


def test_verify_compiles_on_the_host_devices(train: str) -> None:
    run("plan", train, *PLAN, "--save", "plan.json")
    result = run("verify", train, "plan.json", "--run")
    assert result.exit_code == 0, result.output
    assert "verified: compiled as predicted" in result.stdout


def test_verify_fails_when_the_compiler_disagrees(train: str) -> None:
    run("plan", train, *PLAN, "--save", "plan.json")
    record = json.loads(Path("plan.json").read_text())
    record["collectives"][0]["bytes"] *= 1000
    Path("plan.json").write_text(json.dumps(record))
    result = run("verify", train, "plan.json")
    assert result.exit_code == 1
    assert "NOT as predicted" in result.stdout


def test_analyze_prints_the_groups(train: str) -> None:
    result = run("analyze", train)
    assert result.exit_code == 0
    assert "groups" in result.stdout


def test_devices_lists_all() -> None:
    result = run("devices")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == list(sw.devices())


def test_open_meshes_are_compared(train: str) -> None:
    result = run(
        "plan",
        train,
        "--mesh",
        "data=?,model=?",
        "--devices",
        "8",
        "--seconds",
        "0.2",
        "--timeout",
        "600",
    )
    assert result.exit_code == 0
    assert "mesh shapes\n" in result.stdout
    assert result.stdout.count("chosen") == 1


def test_zoo_plans_a_model() -> None:
    result = run("zoo", "mlp_grad", "--size", "tiny", *PLAN)
    assert result.exit_code == 0
    assert "on 8 x tpu-v5e" in result.stdout


@pytest.mark.parametrize("command, words", [
    (["plan", "nothing.py:f", "--mesh", "2"], "no file nothing.py"),
    (["plan", "steps.py", "--mesh", "2"], "cannot read 'steps.py'"),
    (["plan", "steps.py:train_stp", "--mesh", "2"], "try     train_step"),
    (["plan", "steps.py:train_step", "--mesh", "data=x"], "cannot read mesh 'data=x'"),
    (["plan", "steps.py:train_step", "--mesh", "²"], "cannot read mesh '²'"),
    (["plan", "steps.py:train_step", "--mesh", "data=²"], "cannot read mesh 'data=²'"),
    (["plan", "steps.py:train_step", "--mesh", "1000000007"], "try     at most 1,048,576 devices"),
    (["plan", "steps.py:train_step", "--mesh", "9" * 5000], "cannot read mesh '99"),
    (["plan", "steps.py:train_step", "--mesh", "2", "--memory", "9" * 400], "cannot read memory"),
    (["plan", "steps.py:train_step", *PLAN, "--save", "x" * 300], "File name too long"),
    (["plan", "steps.py:train_step", *PLAN, "--html", "x" * 300], "File name too long"),
    (["plan", "steps.py:train_step", "--mesh", "data=2", "--memory", "much"], "cannot read memory"),
    (["plan", "steps.py:train_step", "--mesh", "data=2", "--device", "abacus"], "abacus"),
    (["plan", "steps.py:train_step", "--mesh", "data=2", "--tactic", "Luck()"], "unknown tactic"),
    (["plan", "steps.py:train_step", "--mesh", "data=2", "--tactic", "ZeRO(data)"],
     "cannot read tactic 'ZeRO(data)'\n  try     ZeRO(stage, axis)"),
    (["plan", "steps.py:train_step", "--mesh", "data=2", "--memory", "1.2.3GB"], "cannot read mem"),
    (["plan", "steps.py:train_step", "--mesh", "data=2", "--save", "no/such.json"],
     "cannot write no/such.json: there is no folder no\n"),
    (["plan", "steps.py:train_step", *PLAN, "--html", "/proc/page.html"],
     "cannot write /proc/page.html: "),
    (["plan", "steps.py:train_step", "--mesh", "data=2", "--args", "broken"], "no data today"),
    (["plan", "steps.py:train_step", "--mesh", "data=2", "--args", "absent"],
     "cause   NameError: name 'absent' is not defined\n  try     --args with a function"),
    (["plan", "no.module:f", "--mesh", "2"], "try     a file like train.py, or a module's name"),
    (["show", "absent.json"], "cannot read a plan from absent.json"),
    (["diff", "steps.py", "steps.py"], "cannot read a plan from steps.py"),
    (["zoo", "llama_trian", "--mesh", "2"], "try     llama_train"),
])  # fmt: skip
def test_errors_are_texts_on_stderr(train: str, command: list[str], words: str) -> None:
    result = run(*command)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("ShardwrightError: ")
    assert words in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", [
    ["plan", "steps.py:train_step", "--mesh", "2", "--seconds", "-1"],
    ["check", "steps.py:train_step", "plan.json", "--static", "0"],  # the plan knows
    ["verify", "steps.py:train_step", "plan.json", "--donate", "0"],
])  # fmt: skip
def test_options_that_would_do_nothing_are_refused(train: str, command: list[str]) -> None:
    result = run(*command)
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: ")


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "shardwright", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"shardwright, version {sw.__version__}\n"


@pytest.mark.parametrize("text, size", [
    ("16GB", 16_000_000_000), ("15.5GiB", int(15.5 * 2**30)), ("16e9", 16_000_000_000),
    ("7", 7), (" .5 kB ", 500),
])  # fmt: skip
def test_bytes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text, mesh", [
    ("data=4,model=2", {"data": 4, "model": 2}), ("data=4 x model=2", {"data": 4, "model": 2}),
    ("16", 16), ("data=?, model=2", {"data": None, "model": 2}),
])  # fmt: skip
def test_meshes(text: str, mesh: object) -> None:
    assert parse_mesh(text) == mesh


@pytest.mark.parametrize("tactic", [
    sw.FSDP("data"), sw.ZeRO(2, "data"), sw.Megatron("model"), sw.ContextParallel("model", "key"),
    sw.Search(), sw.Pin("w1[1]", axis="model"), sw.Pin("w", 0, "data"),
])  # fmt: skip
def test_tactics_are_read_as_they_print(tactic: object) -> None:
    assert parse_tactic("Search" if tactic == sw.Search() else str(tactic)) == tactic


def test_a_limit_lists_its_labels() -> None:
    assert parse_tactic("Limit(model, w1[1], wo[0])") == sw.Limit("model", ["w1[1]", "wo[0]"])


def test_a_named_tuple_is_one_argument(train: str) -> None:
    module, _ = find_object("collections:namedtuple")
    module.pair = module.namedtuple("pair", "a b")(1, 2)
    try:
        assert find_arguments(module, "pair") == (module.pair,)
    finally:
        del module.pair
