"""The matrix products in a compiled program: dots, and the library calls that GPUs make of them.

XLA:GPU hands convolutions to cuDNN always, and dots to cuBLAS where it writes no kernel of its own.
Such a call's result is a tuple: what it computes, and the scratch memory that it may use.
"""

from __future__ import annotations

import re
from math import prod
from typing import NamedTuple

from shardwright.referee.hlo import Computation, Instruction, integers

_SHAPE = re.compile(r"^\(?([a-z]\w*)\[([\d,]*)\]")
_CUBLAS, _CONVOLUTION = "__cublas$", "__cudnn$conv"
# Which array of a convolution (0 and 1: operands, 2: result) is its input, kernel and output.
_ROLES = {"BackwardInput": (2, 1, 0), "BackwardFilter": (0, 2, 1)}
_FORWARD = (0, 1, 2)


class Product(NamedTuple):
    """`batch` products [m, k] x [k, n]."""

    dtype: str
    batch: int
    m: int
    n: int
    k: int


def is_library_call(row: Instruction) -> bool:
    """Whether cuBLAS or cuDNN computes a matrix product here."""
    return _library(row).startswith((_CUBLAS, _CONVOLUTION))


def product_of(computation: Computation, row: Instruction) -> Product | None:
    """The matrix product that an instruction computes; None for anything else."""
    library = _library(row)
    if library.startswith(_CONVOLUTION):
        return _convolution(computation, row, library.removeprefix(_CONVOLUTION))
    if row.opcode == "dot":
        contracted = integers(row.attribute("lhs_contracting_dims") or "")
        batch = integers(row.attribute("lhs_batch_dims") or "")
    elif library.startswith(_CUBLAS):
        contracted = _quoted(row, "lhs_contracting_dimensions")
        batch = _quoted(row, "lhs_batch_dimensions")
    else:
        return None
    arrays = _arrays(computation, row)
    if arrays is None:
        return None
    (dtype, left), _, (_, result) = arrays
    k, b = prod(left[d] for d in contracted), prod(left[d] for d in batch)
    m = prod(left) // max(1, k * b)
    return Product(dtype, b, m, prod(result) // max(1, m * b), k)


def _convolution(computation: Computation, row: Instruction, direction: str) -> Product | None:
    """Every output position and feature is a dot over the window and the input features.

    The gradients of a convolution take as many FLOP: the same sum over the same three arrays.
    """
    arrays, labels = _arrays(computation, row), row.attribute("dim_labels")
    if arrays is None or labels is None:
        return None
    kernel_labels, output_labels = re.split("_|->", labels)[1:]
    _, kernel_at, output_at = _ROLES.get(direction, _FORWARD)
    dtype, (_, kernel), (_, output) = arrays[0][0], arrays[kernel_at], arrays[output_at]
    features = kernel[kernel_labels.index("o")]
    window = prod(kernel) // max(1, features)
    return Product(dtype, 1, prod(output) // output[output_labels.index("f")], features, window)


def _library(row: Instruction) -> str:
    if row.opcode != "custom-call":
        return ""
    return (row.attribute("custom_call_target") or "").strip('"')


def _arrays(computation: Computation, row: Instruction) -> list[tuple[str, tuple[int, ...]]] | None:
    """(dtype, sizes) of the first two operands and of the result; None where one is unknown."""
    operands = [computation.instructions.get(name) for name in row.operands[:2]]
    found = [_SHAPE.match(one.type) for one in (*operands, row) if one is not None]
    if len(found) < 3 or None in found:
        return None
    return [(m[1], integers(m[2])) for m in found if m]


def _quoted(row: Instruction, name: str) -> tuple[int, ...]:
    """Dims in the JSON of a library call: "name":["0","1"]."""
    found = re.search(rf'"{name}":\[([^\]]*)\]', row.attributes)
    return integers(found[1]) if found else ()
