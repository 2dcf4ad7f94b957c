"""Labels come from the program, do not change from run to run, and users can give their own."""

import jax
import jax.numpy as jnp
import pytest

from shardwright import zoo
from shardwright.analysis.analysis import check_labels
from shardwright.analysis.labels import labels_of, patterns, short_label, unique_labels
from shardwright.errors import ShardwrightError
from tests.arrays import f32

from .partitions import analyze

TRAIN = zoo.programs("tiny")["transformer_train"]


@pytest.mark.parametrize(
    "dims, expected",
    [
        ([("w", 0)], ["w[0]"]),
        ([("layers[0]['w1']", 1), ("layers[1]['w1']", 1)], ["layers[*]['w1'][1]"]),
        ([("opt[0].mu[0]", 1), ("opt[0].mu[1]", 1)], ["opt[0].mu[*][1]"]),
        ([("x", 0), ("layers[3]", 0)], ["x[0]", "layers[3][0]"]),
        ([("a[0][1]", 0), ("a[1][0]", 0), ("a[0][1]", 1)], ["a[*][*][0]", "a[0][1][1]"]),
    ],
)
def test_patterns(dims: list[tuple[str, int]], expected: list[str]) -> None:
    assert list(patterns(dims).values()) == expected


@pytest.mark.parametrize(
    "pattern, label",
    [
        ("x[0]", "x[0]"),
        ("state.params['layers'][*]['w1'][1]", "w1[1]"),
        ("state.opt_state[0].mu['w1'][1]", "w1[1]"),
        ("params.layers[*].mlp.kernel[0]", "kernel[0]"),
        ("args[2][0]", "args[2][0]"),
        ("ws[*][1]", "ws[*][1]"),
        ("params['Dense_0']['kernel'][1]", "kernel[1]"),
    ],
)
def test_short_label(pattern: str, label: str) -> None:
    assert short_label(pattern) == label


def test_repeated_labels_are_numbered() -> None:
    assert unique_labels(["w[0]", "x[0]", "w[0]", "w[0]"]) == ["w[0]", "x[0]", "w[0]#2", "w[0]#3"]


def test_equal_labels_are_told_apart_by_the_name_before() -> None:
    patterns = [
        "m.layers[*].linear.kernel[1]", "m.head.kernel[1]", "params['w'][0]", "opt['w'][0]",
        "m.norm.scale[0]", "m.layers[0]['kernel'][1]",
    ]  # fmt: skip
    assert labels_of(patterns) == [
        "linear.kernel[1]", "head.kernel[1]", "w[0]", "w[0]", "norm.scale[0]", "kernel[1]",
    ]  # fmt: skip


def test_users_can_name_a_group() -> None:
    labels = {"d_ff": "state.params['layers'][*]['w1'][1]", "batch": "batch['tokens'][0]"}
    analysis = analyze(TRAIN.fn, *TRAIN.args, donate_argnums=0, labels=labels)
    assert analysis.group("d_ff").size == 128
    assert analysis.group("batch").dims == ("batch['targets'][0]", "batch['tokens'][0]")
    assert len({g.label for g in analysis.all_groups}) == len(analysis.all_groups)


def test_a_label_that_fits_nothing_is_an_error() -> None:
    labels = {"rows": "x[0]", "d_ff": "v[1]"}
    analysis = analyze(lambda x, w: x @ w, f32(4, 8), f32(8, 2), labels=labels)
    with pytest.raises(ShardwrightError) as error:
        check_labels(analysis, labels)
    assert str(error.value) == (
        "the label 'd_ff' fits no dim that can be split: v[1]\n  try     x[0], x[1], w[1]"
    )


def test_a_weight_names_its_group_before_its_moments() -> None:
    """Also when the moments hold more bytes, and when nothing but position tells them apart."""

    def step(params: list[jax.Array], moments: list[jax.Array], x: jax.Array) -> object:
        grads = jax.grad(lambda w: jnp.sum(x @ w).astype(jnp.float32))(params[0])
        return params[0] - grads, 0.9 * moments[0] + grads

    half = jax.ShapeDtypeStruct((8, 4), jnp.bfloat16)
    x = jax.ShapeDtypeStruct((2, 8), jnp.bfloat16)
    analysis = analyze(step, [half], [f32(8, 4)], x)
    assert {g.label for g in analysis.groups} == {"x[0]", "params[0][0]", "params[0][1]"}


def test_a_group_without_arguments_is_named_by_its_line() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return jnp.cumsum(jnp.ones((16, 3)) * 2, axis=0)

    labels = [g.label for g in analyze(fn, f32(2)).all_groups]
    assert labels[0] == "x[0]"
    assert all(label.startswith("test_labels.py:") and " fn" in label for label in labels[1:])
