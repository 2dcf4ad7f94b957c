"""The user's own rules: what they mean, and what a wrong one says."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardwright.errors import ShardwrightError
from shardwright.rules import OpShape, TensorShape, lookup
from shardwright.rules.registry import USER_RULES
from shardwright.rules.user import rule

HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Rules of one test are unknown to the next."""
    before = dict(USER_RULES)
    yield
    USER_RULES.clear()
    USER_RULES.update(before)


def op(name: str, /, *shapes: tuple[int, ...], results: int = 1, **params: object) -> OpShape:
    tensors = tuple(TensorShape(shape, "float32") for shape in shapes)
    return OpShape(name, tensors[:-results], tensors[-results:], params)


@pytest.mark.parametrize("text, shapes, options, expected", [
    ("b s d, d f -> b s f", [(2, 4, 8), (8, 6), (2, 4, 6)], {},
     "([i,j,k],[k,l])->([i,j,l]) {i=2,j=4,k=8,l=6} reduction={k}"),
    ("b (h k), h k d -> b d", [(2, 12), (3, 4, 6), (2, 6)], {},
     "([i,jk],[j,k,l])->([i,l]) {i=2,j=3,k=4,l=6} reduction={j,k}"),
    ("b (h k), h -> b h k", [(2, 12), (3,), (2, 3, 4)], {},
     "([i,jk],[j])->([i,j,k]) {i=2,j=3,k=4}"),
    ("b (h k), h -> b", [(2, 12), (3,), (2,)], {},
     "([i,jk],[j])->([i]) {i=2,j=3,k=4} reduction={j,k}"),
    ("b s -> b", [(2, 4), (2,)], {"reduce": {"s": "max"}},
     "([i,j])->([i]) {i=2,j=4} reduction_max={j}"),
    ("b s -> b s", [(2, 4), (2, 4)], {"replicate": "s"},
     "([i,j])->([i,j]) {i=2,j=4} need_replication={j}"),
    ("b s -> b s", [(2, 4), (2, 6)], {"permute": "s"},
     "([i,j])->([i,j]) {i=2,j=6} permutation={j}"),
    ("... d, d -> ... d", [(2, 4, 8), (8,), (2, 4, 8)], {},
     "([i,j,k],[k])->([i,j,k]) {i=2,j=4,k=8}"),
    ("... d, d -> ... d", [(8,), (8,), (8,)], {}, "([i],[i])->([i]) {i=8}"),
    ("b 1, -> b", [(2, 1), (), (2,)], {}, "([i,1],[])->([i]) {i=2}"),
    ("b s -> b s, b", [(2, 4), (2, 4), (2,)], {}, "([i,j])->([i,j],[i]) {i=2,j=4}"),
])  # fmt: skip
def test_rule_strings(text: str, shapes: list[tuple[int, ...]], options: dict[str, object],
                      expected: str) -> None:  # fmt: skip
    rule("mine", text, **options)  # type: ignore[arg-type]
    results = text.split("->")[1].count(",") + 1
    assert str(lookup(op("mine", *shapes, results=results))) == expected


def test_decorator() -> None:
    @rule("mine", unit="matrix", work=2.0)
    def mine(op: OpShape) -> str:
        return "a b -> b a" if op.params["flip"] else "a b -> a b"

    assert str(lookup(op("mine", (2, 4), (4, 2), flip=True))) == "([i,j])->([j,i]) {i=2,j=4}"
    found = lookup(op("mine", (2, 4), (2, 4), flip=False))
    assert (str(found), found.unit, found.work) == ("([i,j])->([i,j]) {i=2,j=4}", "matrix", 2.0)


def test_ffi_targets_and_pallas_kernels_go_by_their_own_name() -> None:
    rule("my_target", "b d -> b d")
    rule("my_kernel", "b d -> b d", replicate="d")
    target = op("ffi_call", (2, 4), (2, 4), target_name="my_target")
    kernel = op("pallas_call", (2, 4), (2, 4), name="my_kernel")
    other = op("pallas_call", (2, 4), (2, 4), name="another")
    assert str(lookup(target)) == "([i,j])->([i,j]) {i=2,j=4}"
    assert str(lookup(kernel)) == "([i,j])->([i,j]) {i=2,j=4} need_replication={j}"
    assert lookup(other).opaque


def line_number() -> int:
    """The line of the caller."""
    return sys._getframe(1).f_lineno


def raised(error: pytest.ExceptionInfo[ShardwrightError]) -> str:
    return re.sub(rf"{HERE}:\d+", f"{HERE}:LINE", str(error.value))


def test_wrong_arity() -> None:
    line = line_number() + 1
    rule("mine", "a b, b c -> a c")
    with pytest.raises(ShardwrightError) as error:
        lookup(op("mine", (2, 4), (2, 4)))
    assert raised(error) == (
        "rule of 'mine' has 2 operands, the op has 1\n"
        "  op      [2, 4] -> [2, 4]\n"
        f'  at      {HERE}:LINE `rule("mine", "a b, b c -> a c")`'
    )
    assert f"{HERE}:{line} " in str(error.value)


def test_wrong_rank() -> None:
    rule("mine", "a b -> a")
    with pytest.raises(ShardwrightError) as error:
        lookup(op("mine", (2, 4, 6), (2,)))
    assert raised(error) == (
        "rule of 'mine': operand 0 has 2 dims in the rule and 3 in the op\n"
        "  op      [2, 4, 6] -> [2]\n"
        f'  at      {HERE}:LINE `rule("mine", "a b -> a")`'
    )


def test_a_factor_of_two_sizes() -> None:
    rule("mine", "a b, b -> a")
    with pytest.raises(ShardwrightError) as error:
        lookup(op("mine", (2, 4), (5,), (2,)))
    assert raised(error) == (
        "rule of 'mine': factor 'b' has two sizes, 4 and 5\n"
        "  op      [2, 4], [5] -> [2]\n"
        f'  at      {HERE}:LINE `rule("mine", "a b, b -> a")`\n'
        "  try     give the dims different factors, or mark the factor as permutation"
    )


def test_a_second_rule() -> None:
    rule("mine", "a -> a")
    with pytest.raises(ShardwrightError) as error:
        rule("mine", "b -> b")
    assert raised(error) == (
        "'mine' has a rule already\n"
        f'  first   {HERE}:LINE `rule("mine", "a -> a")`\n'
        f'  at      {HERE}:LINE `rule("mine", "b -> b")`\n'
        "  try     another name, or replace=True"
    )
    rule("mine", "b -> b", replicate="b", replace=True)
    assert lookup(op("mine", (2,), (2,))).kinds == ("replicate",)


@pytest.mark.parametrize("name, what", [
    ("dot_general", "'dot_general' has a rule already"),
    ("jit", "primitive 'jit' takes no rule: inlined: the ops of its jaxpr take its place"),
])  # fmt: skip
def test_names_that_are_taken(name: str, what: str) -> None:
    with pytest.raises(ShardwrightError) as error:
        rule(name, "a -> a")
    assert error.value.what == what


@pytest.mark.parametrize("text, what", [
    ("a b", "rule string 'a b' needs exactly one '->'"),
    ("a a -> a", "rule string 'a a -> a' has 'a' twice in one tensor"),
    ("(a b -> a", "rule string '(a b -> a' has an open '('"),
    ("a) -> a", "rule string 'a) -> a' has an unexpected ')'"),
    ("a + b -> a", "rule string 'a + b -> a' has an unexpected '+'"),
])  # fmt: skip
def test_rule_strings_that_cannot_be_read(text: str, what: str) -> None:
    with pytest.raises(ShardwrightError) as error:
        rule("mine", text)
    assert error.value.what == what
    assert HERE in error.value.facts["at"]
    assert "mine" not in USER_RULES


@pytest.mark.parametrize("text, shapes, options, what", [
    ("(a b) -> a", [(12,), (5,)], {},
     "rule of 'mine': a dim of size 12 does not divide by 5 to give factor 'b'"),
    ("(a b) -> (b a)", [(12,), (12,)], {}, "rule of 'mine': nothing says how large factor 'a' is"),
    ("a -> a", [(12,), (12,)], {"replicate": "z"}, "rule of 'mine' has no factor 'z'"),
    ("a b -> b", [(2, 4), (4,)], {"reduce": {"a": "median"}},
     "rule of 'mine': 'median' is not a reduction"),
])  # fmt: skip
def test_rules_that_do_not_fit(text: str, shapes: list[tuple[int, ...]],
                               options: dict[str, object], what: str) -> None:  # fmt: skip
    rule("mine", text, **options)  # type: ignore[arg-type]
    with pytest.raises(ShardwrightError) as error:
        lookup(op("mine", *shapes))
    assert error.value.what == what


def test_a_rule_function_that_fails() -> None:
    @rule("mine")
    def mine(op: OpShape) -> str:
        return op.params["missing"]

    @rule("yours")
    def yours(op: OpShape) -> str:
        return 7  # type: ignore[return-value]

    with pytest.raises(ShardwrightError, match="rule of 'mine' failed: KeyError: 'missing'"):
        lookup(op("mine", (2,), (2,)))
    with pytest.raises(ShardwrightError, match="rule of 'yours' returned a int"):
        lookup(op("yours", (2,), (2,)))
