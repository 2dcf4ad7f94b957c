"""The worked example of docs/extending.md runs as it is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from shardwright.errors import ShardwrightError
from shardwright.rules.registry import USER_RULES
from shardwright.rules.user import rule

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


def test_the_worked_example(capsys: pytest.CaptureFixture[str]) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S))
    namespace: dict[str, Any] = {}
    before = dict(USER_RULES)
    try:
        exec(compile(code, str(PAGE), "exec"), namespace)
        rules = {op.name: str(op.rule) for op in namespace["program"].ops}
    finally:
        USER_RULES.clear()
        USER_RULES.update(before)
    assert rules["gated_matmul"].endswith("need_replication={k}")
    assert rules["ffi_call"] == ("([i,j,k],[k])->([i,j,k]) {i=8,j=16,k=64} need_replication={k}")
    assert rules["pallas_call"] == "([i,j],[j])->([i,j]) {i=128,j=64}"
    assert "gated_matmul" in capsys.readouterr().out


def test_the_error_it_shows() -> None:
    shown = re.findall(r"```\n(rule of.*?)```", PAGE.read_text(), re.S)[0].splitlines()
    before = dict(USER_RULES)
    try:
        apply = rule("gated_matmul", "b s d, d f -> b s f")
        with pytest.raises(ShardwrightError) as error:
            apply(_gated())
    finally:
        USER_RULES.clear()
        USER_RULES.update(before)
    assert str(error.value).splitlines()[:2] == shown[:2]


def _gated() -> Any:
    from shardwright.rules import OpShape, TensorShape

    shapes = [TensorShape(s, "float32") for s in [(8, 16, 32), (32, 64), (8, 16), (8, 16, 64)]]
    return OpShape("gated_matmul", tuple(shapes[:3]), tuple(shapes[3:]), {})
