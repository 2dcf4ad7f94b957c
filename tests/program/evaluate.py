"""A Program run op by op, for tests: JAX itself is the referee of what a Program says.

The interpreter uses only what a Program states (ops, operands, regions, ties, literals of the
equations), so a value that is wired wrongly, dropped or renumbered shows as a wrong result.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwright import _jax
from shardwright.program.arguments import sign
from shardwright.program.build import build
from shardwright.program.tracing import trace_jaxpr
from shardwright.program.types import LITERAL, TOP, Op, Program, Region
from tests.program.invariants import check


def assert_same_results(fn: Any, *args: Any, **kwargs: Any) -> Program:
    """The Program of a call, after it passed the checker and gave what the call gives."""
    signature = sign(fn, args, kwargs)
    leaves = signature.leaves(args, kwargs)
    closed = trace_jaxpr(fn, signature, leaves)
    program = build(closed, signature)
    check(program)
    got = signature.output.build(_Run(program, closed).results(leaves))
    wanted = fn(*args, **kwargs)
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(_plain(g), _plain(w), rtol=1e-5, atol=1e-6)
    return program


def _plain(x: Any) -> Any:
    if hasattr(x, "dtype") and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    x = np.asarray(x)
    return x if x.dtype.kind in "biufc" else x.astype(np.float32)


def inner_jaxprs(eqn: Any) -> list[Any]:
    """The jaxprs among an equation's parameters."""
    found = [
        p for param in eqn.params.values() for p in (param if isinstance(param, tuple) else [param])
    ]
    return [p for p in found if hasattr(p, "eqns")]


def all_constants(jaxpr: Any, consts: Any) -> dict[int, Any]:
    """The arrays that a jaxpr and those inside it close over, each once, as met."""
    found: dict[int, Any] = {id(c): c for c in consts}
    for eqn in jaxpr.eqns:
        for inner in inner_jaxprs(eqn):
            found |= all_constants(*_jax.open_jaxpr(inner))
    return found


def passed_literals(jaxpr: Any, known: dict[Any, Any]) -> dict[Any, Any]:
    """Variables of inlined calls that stand for a number of the caller."""
    for eqn in jaxpr.eqns:
        for inner in inner_jaxprs(eqn):
            opened, _ = _jax.open_jaxpr(inner)
            if len(opened.invars) == len(eqn.invars):
                for var, given in zip(opened.invars, eqn.invars, strict=True):
                    if isinstance(given, _jax.Literal):
                        known[var] = given
                    elif given in known:
                        known[var] = known[given]
            passed_literals(opened, known)
    return known


class _Run:
    def __init__(self, program: Program, closed: Any) -> None:
        self.program, self.closed = program, closed
        self.env: dict[int, Any] = {}
        self.numbers = passed_literals(closed.jaxpr, {})
        self.inside: list[list[Op]] = [[] for _ in program.regions]
        for op in program.ops:
            self.inside[op.region].append(op)

    def results(self, leaves: list[Any]) -> list[Any]:
        consts = all_constants(self.closed.jaxpr, self.closed.consts)
        self.env |= dict(zip(self.program.consts, consts.values(), strict=True))
        self.env |= dict(zip(self.program.inputs, leaves, strict=True))
        self.run(TOP)
        return [
            var.val if v == LITERAL else self.env[v]
            for v, var in zip(self.program.outputs, self.closed.jaxpr.outvars, strict=True)
        ]

    def run(self, region: int) -> None:
        for op in self.inside[region]:
            if op.is_region:
                getattr(self, f"run_{op.name}")(op, *(self.program.regions[r] for r in op.body))
            elif op.name == "return":
                self.env[op.results[0]] = self.env[op.operands[0]]
            elif not op.tie:
                results = _jax.bind(op.eqn, self.operands(op))
                self.env |= dict(zip(op.results, results, strict=True))

    def operands(self, op: Op) -> list[Any]:
        """Values by number; literals from the equation."""
        return [
            self.number(var) if v == LITERAL else self.env[v]
            for v, var in zip(op.operands, op.eqn.invars, strict=True)
        ]

    def number(self, var: Any) -> Any:
        var = var if isinstance(var, _jax.Literal) else self.numbers[var]
        return jnp.asarray(var.val, var.aval.dtype)

    def ties(self, region: Region, *names: str) -> list[Op]:
        return [
            op for op in self.inside[region.parent] if op.name in names and region.index in op.body
        ]

    def enter(self, region: Region, *names: str) -> None:
        """Gives a body's inputs the values of the operands they are tied to."""
        for tie in self.ties(region, *names):
            for inner in set(tie.results) & set(region.inputs):
                self.env[inner] = self.env[tie.operands[0]]

    def literals(self, region: Region, given: list[Any]) -> None:
        """Inputs that the loop or branch takes as numbers have no tie."""
        for inner, var in zip(region.inputs, given, strict=True):
            if inner != LITERAL and (isinstance(var, _jax.Literal) or var in self.numbers):
                self.env[inner] = self.number(var)

    def carry_on(self, region: Region, *names: str) -> None:
        """What a carry's exit tie reads becomes the body's input again."""
        ties = self.ties(region, *names)
        new = [self.env[tie.operands[0]] for tie in ties]
        for tie, value in zip(ties, new, strict=True):
            self.env[tie.operands[-1]] = value

    def run_scan(self, op: Op, body: Region) -> None:
        self.literals(body, op.eqn.invars)
        self.enter(body, "scan.const", "scan.init")
        stacks: dict[int, list[Any]] = {tie.results[0]: [] for tie in self.ties(body, "scan.ys")}
        steps = range(body.trips)
        for t in reversed(steps) if op.eqn.params["reverse"] else steps:
            for tie in self.ties(body, "scan.xs"):
                self.env[tie.results[0]] = self.env[tie.operands[0]][t]
            self.run(body.index)
            for tie in self.ties(body, "scan.ys"):
                stacks[tie.results[0]].append(self.env[tie.operands[0]])
            self.carry_on(body, "scan.carry")
        for tie in self.ties(body, "scan.carry"):
            self.env[tie.results[0]] = self.env[tie.operands[-1]]
        for result, items in stacks.items():
            ordered = items[::-1] if op.eqn.params["reverse"] else items
            self.env[result] = jnp.stack(ordered)

    def run_while(self, op: Op, test: Region, body: Region) -> None:
        n_test, n_body = op.eqn.params["cond_nconsts"], op.eqn.params["body_nconsts"]
        given = op.eqn.invars
        self.literals(test, [*given[:n_test], *given[n_test + n_body :]])
        self.literals(body, given[n_test:])
        self.enter(test, "while.const", "while.init")
        self.enter(body, "while.const", "while.init")
        while True:
            self.run(test.index)
            if not self.env[test.outputs[0]]:
                break
            self.run(body.index)
            self.carry_on(body, "while.carry")
            for mine, theirs in zip(body.inputs[n_body:], test.inputs[n_test:], strict=True):
                if mine != LITERAL and theirs != LITERAL:
                    self.env[theirs] = self.env[mine]
        for tie in self.ties(body, "while.carry"):
            self.env[tie.results[0]] = self.env[tie.operands[-1]]

    def run_cond(self, op: Op, *branches: Region) -> None:
        on = (
            self.number(op.eqn.invars[0]) if op.operands[0] == LITERAL else self.env[op.operands[0]]
        )
        taken = branches[int(jnp.clip(on, 0, len(branches) - 1))]
        self.literals(taken, op.eqn.invars[1:])
        self.enter(taken, "cond.operand")
        self.run(taken.index)
        jaxpr, _ = _jax.open_jaxpr(op.eqn.params["branches"][op.body.index(taken.index)])
        for tie in self.ties(taken, "cond.result"):
            position = next(
                i
                for i, _ in enumerate(jaxpr.outvars)
                if any(self.program.regions[r].outputs[i] in tie.operands for r in op.body)
            )
            inner = taken.outputs[position]
            value = self.number(jaxpr.outvars[position]) if inner == LITERAL else self.env[inner]
            self.env[tie.results[0]] = value
