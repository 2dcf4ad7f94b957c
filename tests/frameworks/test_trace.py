"""Programs from other people's libraries trace with no unknown primitive."""

from collections import Counter

import jax
import pytest

import shardwright as sw
from tests.frameworks.programs import PROGRAMS

LEAST = {"flax": 4 + 4, "equinox": 4, "haiku": 4, "optax": 4, "keras": 4}  # flax: linen and nnx


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_unknown_primitive(name: str) -> None:
    fn, args = PROGRAMS[name]()
    program = sw.trace(fn, *args)
    assert program.opaque == Counter()
    results, arguments = jax.tree.leaves(jax.eval_shape(fn, *args)), jax.tree.leaves(args)
    assert len(program.outputs) == len(results)
    assert [program.values[v].shape for v in program.inputs] == [x.shape for x in arguments]
    for value, result in zip(program.outputs, results, strict=True):
        if value >= 0:  # a result may also be a literal
            assert program.values[value].shape == result.shape


@pytest.mark.parametrize("framework, least", LEAST.items())
def test_every_framework_is_represented(framework: str, least: int) -> None:
    assert sum(name.startswith(f"{framework}:") for name in PROGRAMS) >= least
