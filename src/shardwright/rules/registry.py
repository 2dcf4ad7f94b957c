"""Which rule belongs to which primitive."""

from __future__ import annotations

from collections.abc import Callable

from shardwright import _jax
from shardwright.errors import ShardwrightError
from shardwright.rules.opaque import OPAQUE
from shardwright.rules.rule import OpShape, Rule, opaque_rule

RuleFn = Callable[[OpShape], Rule]

RULES: dict[str, RuleFn] = {}
LIBRARY_RULES: dict[str, RuleFn] = {}  # of libraries' functions that are one op
# The user's rules: by primitive name, ffi target or Pallas kernel name.
USER_RULES: dict[str, RuleFn] = {}

# Call-like primitives, and the parameter that holds what they call.
CALLS = {
    "jit": "jaxpr", "call": "call_jaxpr", "closed_call": "call_jaxpr", "composite": "jaxpr",
    "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "custom_lin": "call_jaxpr",
    "custom_vmap_call": "call", "linear_call": "callee", "remat_opt": "fwd_jaxpr",
    "xla_metadata_call": "jaxpr", "remat2": "jaxpr",
}  # fmt: skip
_SPARSE = (
    "bcoo_dot_general", "bcoo_dot_general_sampled", "bcoo_extract", "bcoo_fromdense",
    "bcoo_sort_indices", "bcoo_spdot_general", "bcoo_sum_duplicates", "bcoo_todense",
    "bcoo_transpose", "bcsr_dot_general", "bcsr_extract", "bcsr_fromdense", "bcsr_todense",
)  # fmt: skip
# Primitives that hold jaxprs or stand for one: tracing takes them apart, so they need no rule.
STRUCTURAL: dict[str, str] = {
    **dict.fromkeys(CALLS, "inlined: the ops of its jaxpr take its place"),
    "remat_opt": "inlined: the ops of its forward rule take its place",
    "remat2": "inlined, its ops marked as rematerialised",
    "custom_linear_solve": "inlined: the ops of its `solve` take its place",
    "run_state": "inlined: the ops of its body, its references as plain values",
    **dict.fromkeys(_SPARSE, "inlined: the gathers and scatters that JAX lowers it to"),
    "scan": "a region that runs `length` times",
    "while": "two regions, condition and body; trips are estimated unless it counts literals",
    "cond": "one region per branch",
    "pvary": "left out: it only says in the types that shards may differ between devices",
    "shard_map": "a region on shards: its specs split what enters and leaves it",
}

# What a rule function may raise on parameters it was not written for.
_ODD_INPUT = (
    ShardwrightError, AttributeError, IndexError, KeyError, TypeError, ValueError,
    ZeroDivisionError,
)  # fmt: skip


def register(*names: str, table: dict[str, RuleFn] = RULES) -> Callable[[RuleFn], RuleFn]:
    """Makes the decorated function the rule of these primitives; a second rule is an error."""

    def put(fn: RuleFn) -> RuleFn:
        for name in names:
            if name in table:
                raise ShardwrightError(
                    f"primitive {name!r} has a rule already",
                    first=f"{table[name].__module__}.{table[name].__qualname__}",
                    try_="remove one of the two",
                )
            table[name] = fn
        return fn

    return put


# Primitives whose rules say in their errors why an op stays whole.
_SAY_WHY = ("custom_partitioning", "dot_product_attention_fwd_wrapper",
            "dot_product_attention_bwd_wrapper", "pallas_call")  # fmt: skip


def lookup(op: OpShape) -> Rule:
    """The rule of an op: the user's, then ours, otherwise an opaque one; tracing never fails.

    A user's rule that does not fit the op is the user's error and is raised.
    """
    for name in (op.name, *called_names(op)):
        if name in USER_RULES:
            return USER_RULES[name](op)
    rule = RULES.get(op.name) or LIBRARY_RULES.get(op.name)
    if rule is not None:
        try:
            return rule(op)
        except _ODD_INPUT as error:  # opaque ops are counted and reported
            told = op.name in _SAY_WHY or op.name in LIBRARY_RULES
            return opaque_rule(op, str(error) if told else "")
    return opaque_rule(op, OPAQUE.get(op.name, "it has no rule"))


def called_names(op: OpShape) -> list[str]:
    """What an ffi call or a Pallas call runs, by the name its author gave it."""
    if op.name == "ffi_call":
        return [op.params["target_name"]]
    name = _jax.kernel_name(op.params) if op.name == "pallas_call" else None
    return [] if name is None else [name]
