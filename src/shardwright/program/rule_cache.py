"""Types and rules of equations, each made once for all that are alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardwright import _jax
from shardwright.program.interpret import op_name
from shardwright.program.regions import Split
from shardwright.program.ties import CARRIES, Tie
from shardwright.rules.registry import lookup
from shardwright.rules.rule import NOTHING, OpShape, Rule, TensorShape, einsum

NO_CONSTANTS: Mapping[int, Any] = {}


class RuleCache:
    """The types and rules that have been made so far."""

    def __init__(self) -> None:
        self._types: dict[Any, TensorShape] = {}
        self._rules: dict[Any, Rule] = {}

    def type_of(self, aval: Any) -> TensorShape:
        """The shape, dtype and memory of an abstract value."""
        key = (getattr(aval, "shape", ()), getattr(aval, "dtype", None), _jax.on_host(aval))
        type_ = self._types.get(key)
        if type_ is None:
            shape, dtype, host = key
            dtype = dtype or np.dtype(np.float32)
            type_ = self._types[key] = TensorShape(tuple(shape), dtype, host)
        return type_

    def rule(self, eqn: Any, constants: Mapping[int, Any] = NO_CONSTANTS) -> Rule:
        """The rule of an op: that of all ops with its shapes, parameters and known operands."""
        name = op_name(eqn)
        types = tuple([(v.aval.shape, v.aval.dtype, _jax.on_host(v.aval)) for v in eqn.invars])
        try:
            known = tuple((i, id(array)) for i, array in constants.items())
            key = (name, types, tuple(eqn.params.items()), known)
            rule = self._rules.get(key)
        except (TypeError, AttributeError):  # unhashable parameters, tokens
            key, rule = None, None
        if rule is None:
            shape = OpShape(
                name,
                tuple(self.type_of(v.aval) for v in eqn.invars),
                tuple(self.type_of(v.aval) for v in eqn.outvars),
                eqn.params,
                constants,
            )
            rule = lookup(shape)
            if key is not None:
                self._rules[key] = rule
        return rule

    def filled_rule(self, eqn: Any) -> Rule:
        """The rule of an op that fills its result with a number, whatever its operands."""
        result = self.type_of(eqn.outvars[0].aval)
        key = ("filled", len(eqn.invars), result)
        if key not in self._rules:
            numbers = (TensorShape((), result.dtype),) * len(eqn.invars)
            shape = OpShape(eqn.primitive.name, numbers, (result,), {})
            self._rules[key] = einsum(
                shape, [[] for _ in numbers], [shape.result_dims()],
                unit=NOTHING, work=0.0, fusible=True,
            )  # fmt: skip
        return self._rules[key]

    def tie_rule(
        self, tie: Tie, operands: Sequence[TensorShape], results: Sequence[TensorShape],
        split: Split | None,
    ) -> Rule:  # fmt: skip
        """The rule of a tie: operands and results are one array.

        The leading dim of a scan's xs and ys is a factor of its own, and is never split. A carry
        keeps the sharding with which it enters a trip: that operand is the rule's `leader`.
        """
        if split is not None:
            return self._border_rule(tie, operands[0], results[0], split)
        types = (*operands, *results)
        leader = len(operands) - 1 if tie in CARRIES else None
        stacked = {Tie.SCAN_XS: 0, Tie.SCAN_YS: 1}.get(tie)
        key = ("tie", types, stacked, len(operands), leader)
        rule = self._rules.get(key)
        if rule is None:
            same = range(min(len(t.shape) for t in types))
            dims = [["layer", *same] if i == stacked else [*same] for i in range(len(types))]
            rule = self._rules[key] = einsum(
                OpShape(tie.value, tuple(operands), tuple(results), {}),
                dims[: len(operands)], dims[len(operands) :], replicate=["layer"],
                unit=NOTHING, work=0.0, fusible=True, leader=leader,
            )  # fmt: skip
        return rule

    def _border_rule(
        self, tie: Tie, operand: TensorShape, result: TensorShape, split: Split
    ) -> Rule:
        """The rule of a tie of a shard_map: its axes split the global array as its spec says.

        The spec's axes split a shard no further. Dims that the spec does not name are
        the same inside and outside, for axes that stay automatic.
        """
        key = (tie, operand, result, split)
        rule = self._rules.get(key)
        if rule is None:
            same = [split.partial and not axes for axes in split.dims]
            inside = [("same" if yes else "shard", d) for d, yes in enumerate(same)]
            outside = [("same" if yes else "global", d) for d, yes in enumerate(same)]
            dims = [outside, inside] if tie is Tie.MANUAL_IN else [inside, outside]
            on = {axis: outside[d] for d, axes in enumerate(split.dims) for axis in axes}
            rule = self._rules[key] = einsum(
                OpShape(tie.value, (operand,), (result,), {}), dims[:1], dims[1:],
                replicate=[dim for dim in (*inside, *outside) if dim[0] != "same"],
                unit=NOTHING, work=0.0, fusible=True,
                manual={**on, **{axis: None for axis in split.manual if axis not in on}},
            )  # fmt: skip
        return rule
