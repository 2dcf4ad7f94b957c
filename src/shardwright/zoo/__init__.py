"""Model programs used by the demo, the benchmarks and the tests.

>>> from shardwright import zoo
>>> example = zoo.programs("tiny")["transformer_train"]
>>> state, batch = zoo.materialize(example)
>>> state, loss = jax.jit(example.fn, donate_argnums=example.donate_argnums)(state, batch)

Each model is a module with a frozen `Config`, a dict of `PRESETS`, `init(config, key)`, forward
functions, and ready-made examples: `train(config)`, `infer(config)`, `decode(config)`, ...
"""

from .catalog import programs
from .example import Example, materialize

__all__ = ["Example", "materialize", "programs"]
