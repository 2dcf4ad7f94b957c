"""Prints, as JSON, Shardy's rule for every example that lowers to one StableHLO op.

Runs in a process of its own: the pass is internal to jaxlib and may abort.
"""

from __future__ import annotations

import json
from typing import Any

import jax
from jaxlib.mlir import ir, passmanager

from shardwright.rules.examples import EXAMPLES, Example
from tests.rules.isolated import isolate

_PIPELINE = "builtin.module(func.func(sdy-populate-op-sharding-rules))"
_NOT_COUNTED = ("stablehlo.constant", "func.return")


def shardy_rule(example: Example) -> str | None:
    """Shardy's rule as text, or None where it sees several ops (or will: chlo is expanded)."""
    isolated = isolate(example)
    shapes = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in isolated.op.operands]
    module: Any = jax.jit(isolated.bind, keep_unused=True).lower(*shapes).compiler_ir("stablehlo")
    with module.context:
        passmanager.PassManager.parse(_PIPELINE).run(module.operation)
        functions = [f for f in module.body.operations if f.operation.name == "func.func"]
        main, *others = functions
        ops = [op for op in main.regions[0].blocks[0] if op.operation.name not in _NOT_COUNTED]
        if others or len(ops) != 1 or not ops[0].operation.name.startswith("stablehlo."):
            return None
        attributes = ops[0].operation.attributes
        if "sdy.sharding_rule" not in attributes:
            return "none"
        return str(ir.Attribute(attributes["sdy.sharding_rule"]))


if __name__ == "__main__":
    print(json.dumps({example.title: shardy_rule(example) for example in EXAMPLES}))
