"""A smaller case with the same kind of finding: python -m tests.fuzz.run --only SEED --shrink

Every step is a change of the syntax tree that usually makes the program smaller: a value becomes
an argument, an expression one of its operands, a loop one call of its body. A change stays if the
program can still be traced and the finding is still there.
"""

from __future__ import annotations

import ast
import copy
import json
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from tests.fuzz.generator import FOUND, PINNED, Case, generate
from tests.fuzz.judge import judge
from tests.fuzz.scope import KINDS, NAMESPACE, Argument

MESHES = ({"x": 2}, {"x": 4}, {"x": 3}, {"x": 8}, {"x": 2, "y": 2}, {"x": 4, "y": 2})
LIMIT_S = 60.0
FATAL = ("died", "hang", "worker crash")


def shrink(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The smallest case reached by changes after which it still fails."""
    going = True
    while going:
        going = False
        for smaller in candidates(case):
            if smaller != case and _traces(smaller) and fails(smaller):
                case, going = smaller, True
                break
    return case


def candidates(case: Case) -> Iterator[Case]:
    """Changed cases, the greatest changes first."""
    tree = ast.parse(case.source)
    yield _tidy(case, tree)
    for changed in (*_without_loss(tree), *_without_statement(tree), *_smaller_trees(tree)):
        yield from _with_and_without_unread(case, changed)
    types = _types_of_lines(case)
    for name, (shape, dtype) in types.items():
        changed = _without_line(tree, name)
        if changed is not None and KINDS.get(dtype):
            extra = Argument(name, shape, dtype, 0, 4)
            more = replace(case, arguments=(*case.arguments, extra))
            yield from _with_and_without_unread(more, changed)
    if case.pins:
        for n in range(len(case.pins)):
            pins = case.pins[:n] + case.pins[n + 1 :]
            yield replace(case, pins=pins, how=PINNED if pins else FOUND)
    if case.donated:
        yield replace(case, donated=())
    for mesh in MESHES if not case.pins else ():
        if (len(mesh), sum(mesh.values())) < (len(case.mesh), sum(case.mesh.values())):
            yield replace(case, mesh=dict(mesh))


def _with_and_without_unread(case: Case, tree: ast.Module) -> Iterator[Case]:
    """Lines that nothing reads may be what the finding is about: JAX traces them."""
    tidy = _tidy(case, tree)
    source = ast.unparse(tree) + "\n"
    yield tidy
    if source != tidy.source:
        yield replace(case, source=source)


def _traces(case: Case) -> bool:
    try:
        warnings.simplefilter("ignore", SyntaxWarning)
        with case.settings():
            jax.eval_shape(case.function(), *case.types())
    except Exception:
        return False
    return True


def _smaller_trees(tree: ast.Module) -> Iterator[ast.Module]:
    """The tree with one node replaced by something smaller."""
    nodes = list(ast.walk(tree))
    for n, node in enumerate(nodes):
        for smaller in _smaller(node):
            yield _replaced(tree, n, smaller)


def _smaller(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load) and len(node.elts) > 1:
        for i in range(len(node.elts)):
            yield ast.Tuple(node.elts[:i] + node.elts[i + 1 :], node.ctx)
    if isinstance(node, ast.Call):
        callee = ast.unparse(node.func)
        if isinstance(node.func, ast.Call) and node.func.args:  # jax.checkpoint(f)(x)
            yield ast.Call(node.func.args[0], node.args, [])
        if callee == "lax.cond":
            for branch in node.args[1:3]:
                yield ast.Call(branch, node.args[3:], [])
        if callee == "lax.switch" and isinstance(node.args[1], ast.List):
            for branch in node.args[1].elts:
                yield ast.Call(branch, node.args[2:], [])
        if callee == "lax.scan":
            first = ast.Subscript(node.args[2], ast.Constant(0), ast.Load())
            yield ast.Call(node.args[0], [node.args[1], first], [])
        if callee == "lax.fori_loop":
            yield ast.Call(node.args[2], [node.args[0], node.args[3]], [])
        yield from (a for a in node.args if not isinstance(a, ast.Constant))
        if isinstance(node.func, ast.Attribute) and not callee.startswith(("jnp.", "lax.", "jax.")):
            yield node.func.value
        if node.keywords:
            yield ast.Call(node.func, node.args, [])
    if isinstance(node, ast.BinOp):
        yield node.left
        yield node.right
    if isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        yield node.operand


def _without_loss(tree: ast.Module) -> Iterator[ast.Module]:
    """The loss itself instead of its gradient, or what the loss is a sum of."""
    copied = copy.deepcopy(tree)
    program, bodies = copied.body[0], _bodies(copied)
    if len(bodies) > 1 and isinstance(program, ast.FunctionDef):
        program.body = bodies[1]
        yield copied


def _without_statement(tree: ast.Module) -> Iterator[ast.Module]:
    """The tree with one statement less; what `a = b` defines is called b."""
    count = sum(len(node.body) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    for number in range(count):
        copied = copy.deepcopy(tree)
        places = [
            (node.body, line)
            for node in ast.walk(copied)
            if isinstance(node, ast.FunctionDef)
            for line in node.body
        ]
        body, line = places[number]
        if isinstance(line, ast.Return):
            continue
        body.remove(line)
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Name):
            old, new = ast.unparse(line.targets[0]), line.value.id
            for node in ast.walk(copied):
                if isinstance(node, ast.Name) and node.id == old:
                    node.id = new
        yield copied


def _replaced(tree: ast.Module, number: int, new: ast.AST) -> ast.Module:
    """A copy of the tree whose node of that number in ast.walk is another."""
    copied = copy.deepcopy(tree)
    old = list(ast.walk(copied))[number]
    new = copy.deepcopy(new)

    class Swap(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            return new if node is old else self.generic_visit(node)

    return ast.fix_missing_locations(Swap().visit(copied))


def _bodies(tree: ast.Module) -> list[list[ast.stmt]]:
    """The statements of the program and of its loss: their values can become arguments."""
    program = next(s for s in tree.body if isinstance(s, ast.FunctionDef))
    inner = [s for s in program.body if isinstance(s, ast.FunctionDef) and s.name == "loss"]
    return [program.body, *(s.body for s in inner)]


def _types_of_lines(case: Case) -> dict[str, tuple[tuple[int, ...], str]]:
    """{name: (shape, dtype)} of the values that lines of the program or its loss define."""
    tree = ast.parse(case.source)
    for body in _bodies(tree):
        for at in range(len(body) - 1, -1, -1):
            line = body[at]
            if isinstance(line, ast.Assign):
                names = [n.id for n in ast.walk(line.targets[0]) if isinstance(n, ast.Name)]
                calls = [f"note_({name!r}, {name})" for name in names]
                body[at + 1 : at + 1] = ast.parse("\n".join(calls)).body
    types: dict[str, tuple[tuple[int, ...], str]] = {}

    def note(name: str, value: Any) -> None:
        if hasattr(value, "dtype"):
            types[name] = (tuple(value.shape), str(value.dtype))

    space = {**NAMESPACE, "note_": note}
    exec(compile(ast.fix_missing_locations(tree), "shrink", "exec"), space)
    with case.settings():
        jax.eval_shape(space["program"], *case.types())
    return types


def _without_line(tree: ast.Module, name: str) -> ast.Module | None:
    """The program with one defined value as a new argument; None if others are defined with it."""
    copied = copy.deepcopy(tree)
    program = next(s for s in copied.body if isinstance(s, ast.FunctionDef))
    for body in _bodies(copied):
        for line in body:
            if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == name:
                body.remove(line)
                program.args.args.append(ast.arg(name))
                return ast.fix_missing_locations(copied)
    return None


def _tidy(case: Case, tree: ast.Module) -> Case:
    """The case without lines and arguments that nothing reads."""
    tree = copy.deepcopy(tree)
    while _drop_unread(tree):
        pass
    program = next(s for s in tree.body if isinstance(s, ast.FunctionDef))
    read = {n.id for s in program.body for n in ast.walk(s) if isinstance(n, ast.Name)}
    loss = [s for s in program.body if isinstance(s, ast.FunctionDef) and s.name == "loss"]
    known = {a.name for a in case.arguments}
    if not loss:
        kept = [a for a in program.args.args if a.arg in read]
        program.args.args = kept
        known = {a.arg for a in kept}
    arguments = {a.name: a for a in case.arguments if a.name in known}
    ordered = tuple(arguments[a.arg] for a in program.args.args if a.arg in arguments)
    names = {a.name for a in ordered}
    pins = tuple(p for p in case.pins if p[0] in names)
    return replace(
        case, source=ast.unparse(tree) + "\n", arguments=ordered, pins=pins,
        how=FOUND if case.how == PINNED and not pins else case.how,
        donated=case.donated if loss else (),
    )  # fmt: skip


def _drop_unread(tree: ast.Module) -> bool:
    """Removes one assignment or function that nothing reads; False when there is none."""
    read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    for node in ast.walk(tree):
        for line in getattr(node, "body", []) if isinstance(node, ast.FunctionDef) else []:
            if isinstance(line, ast.Assign):
                names = {n.id for n in ast.walk(line.targets[0]) if isinstance(n, ast.Name)}
            elif isinstance(line, ast.FunctionDef) and not line.decorator_list:
                names = {line.name}
            else:
                continue
            if not names & read:
                node.body.remove(line)
                return True
    return False


class Child:
    """A process that judges one case after another, started again when a case has ended it."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def kinds(self, case: Case) -> list[str]:
        """Kinds of findings about a case; "died" and "hang" are among them."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.shrink", "--serve"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
        process = self.process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(case.to_dict()) + "\n")
        process.stdin.flush()
        late = threading.Timer(LIMIT_S, process.kill)
        late.start()
        answer = process.stdout.readline()
        late.cancel()
        if answer:
            return answer.strip().split("|")
        self.process = None
        return ["hang"] if process.wait() == -signal.SIGKILL else ["died"]


def serve() -> None:
    """Judges the cases on standard input, one line each; answers likewise."""
    for line in sys.stdin:
        print("|".join(judge(Case.from_dict(json.loads(line))).kinds), flush=True)


def shrunk(case: Case, wanted: str | None = None) -> str:
    """The shrunk case, as text with its findings of the wanted kind, or of the first."""
    child = Child()
    first = child.kinds(case)
    kind = wanted or next((k for k in first if k), "")
    if not kind or kind not in first:
        return f"seed {case.seed} has no finding {wanted or ''}: {first}"
    small = shrink(case, lambda c: kind in child.kinds(c))
    said = [] if kind in FATAL else [f"{k}: {text}" for k, text in judge(small).findings]
    return "\n".join([str(small), f"# {kind}", *said])


def main() -> None:
    """shrink SEED [KIND], or a file with a case instead of the seed."""
    if sys.argv[1] == "--serve":
        serve()
        return
    given, *kind = sys.argv[1:]
    print(shrunk(generate(int(given)) if given.isdigit() else _read(given), *kind))


def _read(path: str) -> Case:
    return Case.from_dict(json.loads(Path(path).read_text()))


if __name__ == "__main__":
    main()
