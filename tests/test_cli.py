"""The command line: what it prints, where, and its exit codes."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import shardwright as sw
from shardwright.cli import main
from shardwright.cli.input import find_arguments, find_object, parse_bytes, parse_mesh, parse_tactic

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


def test_an_interrupted_search_prints_its_best_and_exits_130(
    train: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(
        importlib.import_module("shardwright.search.search")._Run, "_local_search", interrupt
    )
    result = run("plan", train, *PLAN, "--save", "plan.json")
    assert result.exit_code == 130
    assert "the search was interrupted: this is the best found so far" in result.stdout
    assert json.loads(Path("plan.json").read_text())["search"]["interrupted"] is True
    monkeypatch.setattr("shardwright.api.partition", interrupt)  # before there is anything
    assert run("plan", train, *PLAN).exit_code == 130


SIGNALLED = """
import os, signal, sys
from shardwright.cli import main, planning

def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)

planning.search_progress = lambda update: interrupt
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_signal_during_the_search_exits_130(train: str) -> None:
    """As Ctrl-C in a terminal: a real signal to a real process, while it searches."""
    child = subprocess.run(
        [sys.executable, "-c", SIGNALLED, "plan", train, *PLAN, "--save", "plan.json"],
        capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "SHARDWRIGHT_CACHE": ""},
    )  # fmt: skip
    assert child.returncode == 130, child.stderr
    assert "the search was interrupted: this is the best found so far" in child.stdout
    assert json.loads(Path("plan.json").read_text())["search"]["interrupted"] is True


def test_show_prints_the_same(train: str) -> None:
    printed = run("plan", train, *PLAN, "--save", "plan.json").stdout
    assert run("show", "plan.json").stdout == printed
    assert run("explain", "plan.json").stdout.startswith("What\n")
    assert "def in_shardings(mesh, *args)" in run("show", "plan.json", "--python").stdout
    assert run("report", "plan.json", "-o", "page.html").exit_code == 0
    assert Path("page.html").exists()


# {command on plan.json: a name in the JSON that it prints}
JSON = {
    "show plan.json": "specs", "explain plan.json": "text", "diff plan.json plan.json": "differ",
    "explain plan.json --collective 1": "seconds", "explain plan.json --tensor w": "local",
    "explain plan.json --why-not DataParallel(model)": "applies",
    "report plan.json": "written", "report plan.json plan.json": "written",
    "trace plan.json -o step.json": "written",
    "trace plan.json -o -": "traceEvents",
    "check steps.py:train_step plan.json": "ok", "verify steps.py:train_step plan.json": "ok",
    "analyze steps.py:train_step": "group", "devices": "tpu-v5e", "rules dot_general": "rule",
    "zoo": "preset", "plan steps.py:train_step --mesh 2 --seconds 0.1": "specs",
}  # fmt: skip


@pytest.mark.parametrize("command", JSON)
def test_json_everywhere(train: str, command: str) -> None:
    run("plan", train, *PLAN, "--quiet", "--save", "plan.json")
    result = run(*command.split(), "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    first = printed[0] if isinstance(printed, list) else printed
    assert JSON[command] in first


def test_every_command_prints_json() -> None:
    told = {name for name, command in main.commands.items()
            if any("--json" in option.opts for option in command.params)}  # fmt: skip
    assert told == set(main.commands)


@pytest.mark.parametrize("option, starts", [("--save", "{"), ("--html", "<!doctype html>")])
def test_a_dash_is_standard_output(train: str, option: str, starts: str) -> None:
    result = run("plan", train, *PLAN, option, "-")
    assert result.stdout.startswith(starts)
    assert not Path("-").exists()


@pytest.mark.parametrize("question, words", [
    (["--why-not", "DataParallel(data)"], "It is this plan."),
    (["--why-not", "ExpertParallel(model)"], "does not apply: no expert dim found"),
    (["--collective", "1"], "all-reduce over data: "),
    (["--collective", "1"], "why    partial sums of dot_general"),
    (["--tensor", "x"], "local   f32[32/4,8], 256 B of 1.0 kB"),
    (["--tensor", "x"], "because dim 0 is split over data, like all of x[0]"),
    (["--tensor", "w"], "held    every device holds all of it"),
])  # fmt: skip
def test_single_questions(train: str, question: list[str], words: str) -> None:
    run("plan", train, *PLAN, "--quiet", "--save", "plan.json")
    result = run("explain", "plan.json", *question)
    assert words in result.stdout, result.output


LIMITS = [
    ([], 1), (["--max-step", "0"], 1), (["--max-step", "1000000"], 0), (["--max-memory", "0"], 1),
    (["--max-memory", "900"], 0), (["--same-shardings"], 1),
    (["--max-step", "1000000", "--same-shardings"], 1),
]  # fmt: skip


@pytest.mark.parametrize("limits, code", LIMITS)
def test_limits_for_ci(train: str, limits: list[str], code: int) -> None:
    """A plan that is slower by a third, twice as large and sharded otherwise."""
    run("plan", train, *PLAN, "--quiet", "--save", "old.json")
    new = json.loads(Path("old.json").read_text())
    new["cost"] |= {
        "compute_s": new["cost"]["compute_s"] * 1.5,
        "peak_bytes": 2 * new["cost"]["peak_bytes"],
    }
    new["specs"]["x"] = [["model"], []]
    Path("new.json").write_text(json.dumps(new))
    result = run("diff", "old.json", "new.json", *limits)
    assert result.exit_code == code, result.output
    assert ("limit passed: " in result.stdout) == bool(limits and code)
    assert run("diff", "old.json", "old.json", *limits).exit_code == 0


def test_check_plans_again(train: str) -> None:
    """The same mesh, device and tactics give the same plan; another function another."""
    run("plan", train, *PLAN, "--quiet", "--save", "plan.json")
    same = run("check", train, "plan.json", "--replan", "--max-step", "0", "--same-shardings")
    assert same.exit_code == 0 and "plan.json is for" in same.stdout
    wider = run("check", train, "plan.json", "--args", "wider", "--replan", "--max-memory", "1")
    assert wider.exit_code == 1
    assert "limit passed: peak memory" in wider.stdout
    refused = run("check", train, "plan.json", "--max-step", "5")
    assert refused.exit_code == 2 and "try     --replan too" in refused.stderr


def test_traces_and_profiles(train: str) -> None:
    run("plan", train, *PLAN, "--quiet", "--save", "plan.json")
    assert run("trace", "plan.json", "-o", "step.json").exit_code == 0
    assert json.loads(Path("step.json").read_text())["traceEvents"]
    assert "try     --output step.json" in run("trace", "plan.json").stderr
    assert "holds no *.trace.json.gz" in run("trace", "plan.json", "--against", ".").stderr


def test_shells_complete_targets_and_devices() -> None:
    from click.shell_completion import ShellComplete

    complete = ShellComplete(main, {}, "shardwright", "_SHARDWRIGHT_COMPLETE")
    zoo = complete.get_completions(["plan"], "zoo:llama")
    assert "zoo:llama_scan_train" in [item.value for item in zoo]
    kinds = complete.get_completions(["plan", "x", "--device"], "tpu-v5")
    assert "tpu-v5e" in [item.value for item in kinds]


def test_colour_is_for_terminals_only(train: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from shardwright.cli import output

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, coloured in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr("sys.stdout", stream)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        output.say("train_step on 8 x tpu-v5e\nwarning: over memory")
        output.say_table(("a", "b"), [("1", "[bold]")], right=(0,))
        assert ("\x1b[" in stream.getvalue()) == coloured
        assert "[bold]" in stream.getvalue()  # names are no markup


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
    result = run("plan", "zoo:mlp_grad:tiny", *PLAN)
    assert result.exit_code == 0
    assert "on 8 x tpu-v5e" in result.stdout


def test_lists() -> None:
    assert "llama_scan_train" in run("zoo").stdout
    assert "reduction={j}" in run("rules", "dot_general").stdout
    assert "try     dot_general" in run("rules", "dot_generl").stderr


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
    (["plan", "zoo:llama_trian", "--mesh", "2"], "try     zoo:llama_train"),
    (["explain", "absent.json"], "cannot read a plan from absent.json"),
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


@pytest.mark.slow
def test_the_action_runs_what_the_command_line_has(train: str, tmp_path: Path) -> None:
    """The last step of action.yml, with bash: it passes, and fails beyond a limit."""
    root = Path(__file__).parents[1]
    script = (root / "action.yml").read_text().rpartition("      run: |\n")[2]
    run("plan", train, *PLAN, "--quiet", "--save", "plan.json")
    shim = tmp_path / "bin" / "shardwright"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m shardwright "$@"\n')
    shim.chmod(0o755)
    for given, code in (("example_args", 0), ("wider", 1)):
        env = os.environ | {
            "TARGET": train, "PLAN": "plan.json", "ARGS": given, "MAX_STEP": "", "MAX_MEMORY": "5",
            "SAME": "true", "RUNNER_TEMP": str(tmp_path), "PATH": f"{shim.parent}:/usr/bin:/bin",
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
            "PYTHONPATH": os.pathsep.join([str(root / "src"), *sys.path]),
        }  # fmt: skip
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", script], env=env, capture_output=True, text=True
        )
        assert done.returncode == code, done.stdout + done.stderr
    assert "limit passed: peak memory" in (tmp_path / "summary.md").read_text()
