"""The checker passes every program we can find, and sees every invariant that is broken."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from shardwright import zoo
from shardwright.errors import ShardwrightError
from shardwright.program import Program, trace
from tests.frameworks.programs import PROGRAMS
from tests.program.invariants import check
from tests.tiny import analysis_of

ZOO = zoo.programs("tiny")


@pytest.mark.parametrize("name", ZOO)
def test_zoo(name: str) -> None:
    example = ZOO[name]
    program = analysis_of(name).program
    check(program)
    assert not program.opaque
    if example.donate_argnums:
        assert len(program.aliases) == len(program.donated), "all that is donated comes back"


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_frameworks(name: str) -> None:
    fn, args = PROGRAMS[name]()
    check(trace(fn, *args))


def sample() -> Program:
    """Inputs 0, 1; op 0 the scan, 1-2 entry ties, 3-4 its body, 5 its exit tie, 6 sin, 7 return."""

    def fn(x: Any, ws: Any) -> Any:
        return jnp.sin(lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws)[0])

    shape = jax.ShapeDtypeStruct
    program = trace(fn, shape((4, 8), jnp.float32), shape((3, 8, 8), jnp.float32), donate_argnums=0)
    check(program)
    return program


def op(program: Program, name: str) -> Any:
    return next(o for o in program.ops if o.name == name)


def read_early(p: Program) -> None:
    op(p, "dot_general").operands = (op(p, "tanh").results[0], op(p, "dot_general").operands[1])


def read_from_inside(p: Program) -> None:
    op(p, "sin").operands = op(p, "tanh").results


def swap_in_and_out(p: Program) -> None:
    a, b = op(p, "sin"), op(p, "tanh")
    p.ops[a.index], p.ops[b.index] = b, a
    a.index, b.index = b.index, a.index


def define_twice(p: Program) -> None:
    op(p, "sin").results = op(p, "tanh").results


def wrong_rule(p: Program) -> None:
    op(p, "sin").rule = op(p, "dot_general").rule


def wrong_rank(p: Program) -> None:
    op(p, "scan.xs").rule = op(p, "sin").rule


def renumber(p: Program) -> None:
    p.values[3].index = 4


def same_key(p: Program) -> None:
    op(p, "sin").key = op(p, "dot_general").key


def lost_body(p: Program) -> None:
    p.regions[1].op = op(p, "sin").index


def not_returned(p: Program) -> None:
    p.outputs = op(p, "sin").results
    p.regions[0].outputs = p.outputs


def alias_of_nothing(p: Program) -> None:
    p.aliases = {0: p.inputs[1]}


def no_path(p: Program) -> None:
    p.values[p.inputs[0]].path = None


def unmarked_tie(p: Program) -> None:
    op(p, "scan.carry").tie = None


def lost_value(p: Program) -> None:
    op(p, "sin").operands = (len(p.values),)


@pytest.mark.parametrize(
    "damage, what",
    [
        (renumber, "value 3 is numbered 4"),
        (same_key, "a second op with the key (0, 0, 0)"),
        (lost_value, "there is no value 9"),
        (lost_body, "region 1 is not a body of its op"),
        (unmarked_tie, "its body belongs to another op"),
        (swap_in_and_out, "a tie away from its loop or branch"),
        (define_twice, "%6 is defined again"),
        (read_early, "%6 is read before it is defined"),
        (read_from_inside, "%6 belongs to region 1"),
        (wrong_rule, "the rule has another number of operands or results"),
        (wrong_rank, "the rule does not have the rank of %1:f32[3,8,8]"),
        (not_returned, "the result %7 is not returned"),
        (no_path, "the argument %0 has no path"),
        (alias_of_nothing, "result 0 takes the place of %1"),
    ],
)
def test_damage_is_found(damage: Callable[[Program], None], what: str) -> None:
    program = sample()
    damage(program)
    with pytest.raises(ShardwrightError) as error:
        check(program)
    assert error.value.what == f"invalid program 'fn': {what}"


def test_the_error_shows_the_op_and_its_line() -> None:
    program = sample()
    read_early(program)
    with pytest.raises(ShardwrightError) as error:
        check(program)
    assert error.value.facts["op"].startswith("#3 %5:f32[4,8] = dot_general %6 %4")
    assert error.value.facts["at"].startswith("test_invariants.py:")
