"""What every model of the zoo offers: a function and the arguments to call it with."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

# For what runs a few times only: compiled quickly rather than well.
QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


@dataclass(frozen=True, kw_only=True)
class Example:
    """A program with its arguments, not yet allocated.

    Invariant: `args` are the shapes of what `make` returns, so an example can be traced at any
    size, and run when it is small.
    """

    name: str
    fn: Callable[..., Any]
    make: Callable[[jax.Array], tuple[Any, ...]]  # PRNG key -> real arguments
    donate_argnums: tuple[int, ...] = ()

    @cached_property
    def args(self) -> tuple[Any, ...]:
        """The arguments as trees of `jax.ShapeDtypeStruct`."""
        return jax.eval_shape(self.make, jax.random.key(0))


def materialize(example: Example, seed: int = 0) -> tuple[Any, ...]:
    """Real arguments for `example`: initialised parameters, random data, indices in range."""
    return jax.jit(example.make, compiler_options=QUICK)(jax.random.key(seed))
