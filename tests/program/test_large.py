"""Nothing is executed or allocated: a model of 400 billion parameters traces."""

import resource
from dataclasses import replace

import jax

from shardwright.program import trace
from shardwright.zoo import transformer
from tests.program.invariants import check


def test_400_billion_parameters_trace_without_memory() -> None:
    """8 layers, each as large as 16 of a 126-layer model of 405 billion."""
    config = replace(
        transformer.PRESETS["llama_70b"],
        layers=8, d_model=65_536, d_ff=212_992, heads=512, kv_heads=64,
    )  # fmt: skip
    example = transformer.train(config)
    state = example.args[0]
    assert sum(x.size for x in jax.tree.leaves(state.params)) > 400e9
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    program = trace(example.fn, *example.args, donate_argnums=0)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    check(program)
    arguments = sum(program.values[v].bytes for v in program.inputs)
    assert arguments > 3 * 4 * 400e9  # parameters and two moments, float32
    assert grown < 1e9
