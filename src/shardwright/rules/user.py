"""The user's own rules: for a primitive, an ffi target or a Pallas kernel, by its name."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any

from shardwright.errors import ShardwrightError
from shardwright.rules import notation
from shardwright.rules.registry import RULES, STRUCTURAL, USER_RULES, RuleFn
from shardwright.rules.rule import VECTOR, OpShape, Rule


def rule(
    name: str,
    text: str | None = None,
    *,
    reduce: Mapping[str, str] | None = None,
    permute: str = "",
    replicate: str = "",
    unit: str = VECTOR,
    work: float = 1.0,
    replace: bool = False,
) -> Any:
    """Gives a primitive, an ffi target or a Pallas kernel a rule; returns the rule function.

    `text` names the factor of every dim; factors missing in the results are summed, unless
    `reduce` names another reduction. `permute` and `replicate` list factors (space between).
    Without `text` it decorates a function from an OpShape to a rule string or a Rule.

    >>> rule("my_matmul", "b s d, d f -> b s f", unit="matrix", work=2.0)
    >>> @rule("my_norm")
    ... def _(op):
    ...     return "... d, d -> ... d"
    """
    at = _caller()
    options: dict[str, Any] = {
        "reduce": reduce or {}, "permute": permute, "replicate": replicate,
        "unit": unit, "work": work,
    }  # fmt: skip
    _refuse_taken(name, at, replace)
    if text is not None:
        pattern = _placed(lambda: notation.parse(text), at)
        return _put(name, at, lambda op: notation.apply(pattern, op, **options))

    def decorate(fn: Callable[[OpShape], Rule | str]) -> RuleFn:
        """The user's function as a rule, registered under the name."""

        def apply(op: OpShape) -> Rule:
            """The rule of one op; whatever the function raises or returns otherwise is an error."""
            try:
                found = fn(op)
            except ShardwrightError:
                raise
            except Exception as error:  # the user's function may raise anything
                raise ShardwrightError(
                    f"rule of {name!r} failed: {type(error).__name__}: {error}"
                ) from error
            if isinstance(found, str):
                return notation.apply(notation.parse(found), op, **options)
            if not isinstance(found, Rule):
                raise ShardwrightError(
                    f"rule of {name!r} returned a {type(found).__name__}",
                    try_="return a rule string or a Rule",
                )
            return found

        return _put(name, at, apply)

    return decorate


def _put(name: str, at: str, apply: RuleFn) -> RuleFn:
    """Registers the rule; its errors carry the user's name for it and the user's line."""

    def user_rule(op: OpShape) -> Rule:
        return _placed(lambda: apply(op._replace(name=name)), at)

    user_rule.__qualname__ = at
    USER_RULES[name] = user_rule
    return user_rule


def _placed(step: Callable[[], Any], at: str) -> Any:
    """What `step` returns; its error says where the rule was written."""
    try:
        return step()
    except ShardwrightError as error:
        facts = {key: value for key, value in error.facts.items() if key != "try"}
        raise ShardwrightError(
            error.what, **facts, at=at, try_=error.facts.get("try")
        ) from error.__cause__


def _refuse_taken(name: str, at: str, replace: bool) -> None:
    """Raises ShardwrightError for a primitive that takes no rule, or has one already."""
    if name in STRUCTURAL:
        raise ShardwrightError(
            f"primitive {name!r} takes no rule: {STRUCTURAL[name]}",
            at=at,
            try_="a rule for the primitives inside it",
        )
    if replace or (name not in USER_RULES and name not in RULES):
        return
    first = USER_RULES[name].__qualname__ if name in USER_RULES else RULES[name].__module__
    raise ShardwrightError(
        f"{name!r} has a rule already", first=first, at=at, try_="another name, or replace=True"
    )


def _caller() -> str:
    """file:line of the user's call."""
    frame = traceback.extract_stack(limit=3)[0]
    return f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} `{frame.line}`"
