"""StableHLO text, parsed: the ops of a module and their attributes, as JAX takes them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import hlo

_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i1": "bool",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "ui8": "uint8",
    "ui16": "uint16", "ui32": "uint32", "ui64": "uint64",
}  # fmt: skip


class Module(NamedTuple):
    """A parsed StableHLO module."""

    functions: dict[str, Any]  # {name: its block}
    context: Any  # what keeps it alive
    module: Any


@lru_cache(maxsize=16)
def parse(text: str) -> Module:
    """The module that a text is."""
    with mlir.make_ir_context() as context:
        module = ir.Module.parse(text)
    operations: list[Any] = list(module.body.operations)
    functions = {f.name.value: f.body.blocks[0] for f in operations}
    return Module(functions, context, module)


class Op:
    """The attributes of a StableHLO op, as JAX takes them."""

    def __init__(self, op: Any) -> None:
        self._op, self._attributes = op.operation, op.operation.attributes

    def number(self, name: str) -> int:
        """An integer attribute."""
        return int(self._attributes[name].value)

    def numbers(self, name: str) -> tuple[int, ...]:
        """A list of integers."""
        return tuple(self._attributes[name])

    def callee(self) -> str:
        """The function that a call names."""
        return str(self._attributes["callee"].value)

    def direction(self) -> str:
        """What a comparison asks: EQ, LT ..."""
        return str(hlo.ComparisonDirectionAttr(self._attributes["comparison_direction"]).value)

    def blocks(self) -> list[Any]:
        """The one block of each of its regions."""
        return [block for region in self._op.regions for block in region.blocks]

    def result_shape(self) -> tuple[int, ...]:
        """The shape of its first result."""
        return tuple(self._op.results[0].type.shape)

    def result_dtype(self) -> Any:
        """The dtype of its first result; NotImplementedError for one that is not in the table."""
        element = str(self._op.results[0].type.element_type)
        if element not in _DTYPES:
            raise NotImplementedError(f"element type {element}")
        return jax.numpy.dtype(_DTYPES[element])

    def constant(self) -> Any:
        """The array of a constant."""
        attribute = ir.DenseElementsAttr(self._attributes["value"])
        dtype, shape = self.result_dtype(), self.result_shape()
        if attribute.is_splat and dtype.kind != "b":
            splat: Any = attribute.get_splat_value()
            return np.full(shape, splat.value, dtype)
        if dtype.kind == "V":
            raise NotImplementedError(f"a constant array of {dtype}")
        return np.array(attribute).astype(dtype).reshape(shape)

    def precision(self) -> Any:
        """Both operands' precision, as lax takes it; None: the default."""
        if "precision_config" not in self._attributes:
            return None
        words = list(map(str, self._attributes["precision_config"]))
        found = [next(p for p in jax.lax.Precision if p.name in word) for word in words]
        return tuple(found) if any(p != jax.lax.Precision.DEFAULT for p in found) else None

    def dot_dimensions(self) -> Any:
        """dimension_numbers of lax.dot_general."""
        d = hlo.DotDimensionNumbers(self._attributes["dot_dimension_numbers"])
        contracting = d.lhs_contracting_dimensions, d.rhs_contracting_dimensions
        return contracting, (d.lhs_batching_dimensions, d.rhs_batching_dimensions)

    def gather_dimensions(self) -> tuple[Any, int]:
        """dimension_numbers of lax.gather, and the dim of the indices' components."""
        d = hlo.GatherDimensionNumbers(self._attributes["dimension_numbers"])
        numbers = jax.lax.GatherDimensionNumbers(
            tuple(d.offset_dims), tuple(d.collapsed_slice_dims), tuple(d.start_index_map),
            tuple(d.operand_batching_dims), tuple(d.start_indices_batching_dims),
        )  # fmt: skip
        return numbers, int(d.index_vector_dim)
