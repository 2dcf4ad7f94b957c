"""The TPU compiler, without a TPU, judges the rules as XLA:CPU does in tests/rules."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.rules import RULES
from shardwright.rules.examples import EXAMPLES, Example
from tests.rules.rule_referee import examine
from tests.rules.test_referee import ABORTS, LOOP, NO_SHARDY, NOT_COMPILED

pytestmark = pytest.mark.referee

_OWN_LOOP = "TPU decompositions are loops of JAX's own, which gather small intermediates"
_NOT_2D = "the TPU compiler has no pooling over the two innermost dims"

# {(example, factors): why the TPU compiler and the rule differ}
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("random_gamma key[] f32[4,8]", "i"): LOOP,
    ("philox2x32 u32[4] u32[4] u32[4]", "i"): NO_SHARDY,
    ("philox4x32 u32[4] u32[4] u32[4] u32[4] u32[4] u32[4]", "i"): NO_SHARDY,
    ("conv_general_dilated f32[4,8,8,6] f32[3,3,3,8] two groups", "p"): (
        "channels inside a group split here; XLA:CPU gathers"
    ),
    ("conv_general_dilated f32[4,8,8,4] f32[3,3,1,8] depthwise, two per channel", "l"): (
        "it gathers the image; XLA:CPU does not"
    ),
    ("slice f32[4,8] one entry", "i"): (
        "it first moves the entry to the first part (one collective-permute), then sums"
    ),
    ("concatenate f32[4,7] f32[4,1] one more entry", "j"): "7 entries never divide evenly",
    ("reduce_and bool[4,8]", "j"): "an or of the negations",
    ("argmin f32[4,8]", "i"): "the gather of pairs is an all-reduce of mostly zeros",
    ("select_and_scatter_add f32[4,16]", "i j"): _NOT_2D,
    ("select_and_scatter_add f32[4,16] overlapping", "i"): _NOT_2D,
    ("eigh f32[4,6,6]", "i"): _OWN_LOOP,
    ("svd f32[4,6,6]", "i"): _OWN_LOOP,
    ("lu f32[4,6,6]", "i"): _OWN_LOOP,
}
_DIFFERING = {title: (letters, why) for (title, letters), why in EXCEPTIONS.items()}

# Primitives that JAX does not lower for TPUs, or that need a TPU to compile.
NOT_ON_TPU = ("eig", "hessenberg", "schur", "tridiagonal", "geqp3", "custom_partitioning")


def _worth_it(example: Example) -> bool:
    """Elementwise ops are judged on the host, which is fast; here a compile takes longer."""
    family = RULES[example.primitive].__module__.rsplit(".", 1)[-1]
    refused = example.title in NOT_COMPILED or example.primitive in NOT_ON_TPU
    return family != "elementwise" and not refused


@pytest.fixture(scope="module")
def devices() -> list[Any]:
    pytest.importorskip("libtpu")
    patch = pytest.MonkeyPatch()
    patch.setenv("TPU_SKIP_MDS_QUERY", "1")
    patch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "true")
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4")
    patch.undo()
    return list(topology.devices)


@pytest.mark.parametrize(
    "example", [e for e in EXAMPLES if _worth_it(e)], ids=lambda e: e.title
)  # fmt: skip
def test_the_tpu_compiler_does_what_the_rule_claims(example: Example, devices: list[Any]) -> None:
    skip = ABORTS.get(example.title, "")
    found = {n: text for n, text in examine(example, skip=skip, devices=devices).items() if text}
    allowed, _ = _DIFFERING.get(example.title, ("", ""))
    assert set(found) == set(allowed.split()), f"{example.rule}\n{found}"
