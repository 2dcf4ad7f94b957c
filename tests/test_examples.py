"""The examples run on eight host devices and do what they say."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

import shardwright as sw
from examples import char_lm, decode, demo, equinox_regression, moe, nnx_classifier, tiny

EXAMPLES = Path(tiny.__file__).parent
LONG = {"tiny.py"}  # the whole idea: as long as it takes


def test_examples_are_short() -> None:
    for path in EXAMPLES.glob("*.py"):
        assert path.name in LONG or len(path.read_text().splitlines()) < 100, path


@pytest.mark.slow
def test_a_language_model_learns_and_goes_on_under_another_mesh() -> None:
    losses = char_lm.main(steps=12)
    before, after = losses[:12], losses[12:]
    assert before[-1] < before[0] - 0.5
    assert after[0] < before[5]  # the restored model has not forgotten


@pytest.mark.slow
@pytest.mark.parametrize("example", [nnx_classifier, equinox_regression], ids=lambda m: m.__name__)
def test_a_framework_s_model_learns(example) -> None:
    losses = example.main(steps=8)
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.slow
def test_the_small_model_of_the_demo_trains_alike() -> None:
    assert demo.train_small()


@pytest.mark.slow
def test_experts_are_parallel_and_the_losses_equal() -> None:
    assert moe.train_small(steps=2) < 1e-4


@pytest.mark.slow
def test_decoding_writes_the_same_tokens() -> None:
    assert decode.main(tokens=3)


@pytest.mark.slow
def test_tiny_agrees_with_the_real_one(capsys: pytest.CaptureFixture[str]) -> None:
    """It has the same colors, runs, and finds both regimes."""
    tiny.main(batch=1024, width=256, hidden=1024)
    assert "the numbers are equal" in capsys.readouterr().out
    shapes = [(512, 2048), (2048, 512), (4096, 512), (4096, 512)]
    args = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    closed = jax.make_jaxpr(tiny.train_step)(*args)
    ops = [tiny.rule(eqn) for eqn in closed.eqns]
    assert len(set(tiny.find_colors(ops).values())) == len(
        sw.analyze(tiny.train_step, *args).colors
    )
