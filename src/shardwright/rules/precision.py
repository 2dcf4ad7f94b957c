"""How exactly a dot is computed, as the word that devices have a rate for."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

DEFAULT = "default"
_EXACTNESS = (lax.Precision.DEFAULT, lax.Precision.HIGH, lax.Precision.HIGHEST)
_TYPE = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64"}


def precision_of(given: Any) -> str:
    """The precision in a word: "default", "high", "highest", or a dot algorithm's own name.

    `given` is the `precision` of a traced dot or convolution. JAX has put the setting
    `jax_default_matmul_precision` there already. Of two operands the more exact one counts: GPUs
    compute so, TPUs take fewer passes (3 rather than 6 when only one operand is "highest").
    """
    if given is None:
        return DEFAULT
    if isinstance(given, lax.DotAlgorithm):  # a tuple; spelled as JAX spells its presets
        types = (given.lhs_precision_type, given.rhs_precision_type, given.accumulation_type)
        passes = given.num_primitive_operations
        return "_".join(map(_type_name, types)) + (f"_X{passes}" if passes > 1 else "")
    if isinstance(given, tuple):
        return max(given, key=_EXACTNESS.index).name.lower()
    return DEFAULT if given.name == "DEFAULT" else str(given.name)


def _type_name(dtype: Any) -> str:
    name = np.dtype(dtype).name
    return "ANY_F8" if name.startswith("float8") else _TYPE.get(name, name.upper())
