"""Published rows are read whatever their codebases call things; predictions are plausible."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.measured import (
    HERE,
    PLAUSIBLE_MFU,
    Row,
    device_of,
    mesh_of,
    model_of,
    read_rows,
    replay,
)
from benchmarks.measured_models import DOTS, KEEPS, QKV, Remat

UNMEASURED = HERE / "unmeasured.csv"


def row(**changes: str) -> Row:
    """The first published row, changed."""
    return Row(dict(read_rows()[0].fields) | changes)


@pytest.mark.parametrize(
    "said, remat",
    [
        ("full", Remat()), ("Full (uniform, 1)", Remat()), ("none", Remat(None)),
        ("recipe default", Remat(None)), ("selective, per op", KEEPS["every second dot"]),
        ("minimal_flash", Remat((*DOTS, "context"))), ("minimal_offloaded", Remat((), DOTS)),
        ("save_qkv_proj", Remat(QKV)),
        (
            "custom: layer input, q,k,v,out_proj offloaded to host; rest recomputed",
            Remat((), ("input", *QKV, "out")),
        ),
        (
            "custom: decoder_layer_input=offload, out_proj=device, mlpwo=remat",
            Remat(("out",), ("input",)),
        ),
        ("custom: context saved; layer input offloaded", Remat(("context",), ("input",))),
    ],
)  # fmt: skip
def test_what_is_rematerialised(said: str, remat: Remat) -> None:
    assert model_of(row(remat=said)).keeps == remat


def test_a_policy_that_nobody_knows() -> None:
    with pytest.raises(ValueError, match="no policy of rematerialisation is called 'some'"):
        model_of(row(remat="some"))


@pytest.mark.parametrize(
    "chips, mesh, axes, tactics",
    [
        ("128", "replicate=16 x shard=8", {"data": 16, "fsdp": 8}, "DataParallel FSDP"),
        ("64", "tp=8, pp=2", {"data": 4, "tensor": 8}, "DataParallel Megatron"),
        ("16", "data=16, expert=16", {"expert": 16}, "ExpertParallel"),
        ("64", "data=64, expert=8", {"data": 8, "expert": 8}, "DataParallel ExpertParallel"),
        ("256", "tensor=8 x context=4 x fsdp=8", {"fsdp": 8, "context": 4, "tensor": 8},
         "FSDP ContextParallel Megatron"),
        ("1", "", {"data": 1}, "DataParallel"),
    ],
)  # fmt: skip
def test_meshes(chips: str, mesh: str, axes: dict[str, int], tactics: str) -> None:
    found, how = mesh_of(row(chips=chips, mesh=mesh))
    assert found.shape == axes
    assert " ".join(type(tactic).__name__ for tactic in how) == tactics


def test_a_mesh_of_other_chips() -> None:
    with pytest.raises(ValueError, match="the mesh does not have 8 chips"):
        mesh_of(row(chips="8", mesh="fsdp=16"))


@pytest.mark.parametrize(
    "said, name",
    [
        ("H100", "h100"), ("h100 SXM 80GB", "h100"), ("h100 (96 GB HBM2e 2.4 TB/s)", "h100-96"),
        ("a100 80GB", "a100-80"), ("tpu v5p", "tpu-v5p"), ("NVIDIA GB200", "gb200"),
    ],
)  # fmt: skip
def test_hardware(said: str, name: str) -> None:
    assert row(hardware=said).device == device_of(row(hardware=said)).name == name


@pytest.mark.parametrize(
    "said, dtype",
    [("bf16", ""), ("FP8-CS", "f8"), ("float8, torch.compile", "f8"), ("int8 (f32 weights)", "s8")],
)
def test_precision(said: str, dtype: str) -> None:
    assert model_of(row(precision=said)).narrow == dtype


@pytest.mark.parametrize(
    "changes, field, value",
    [
        ({"model": "some-moe (64 experts, top-6)"}, "experts", 64),
        ({"model": "small (tied)"}, "tied", True),
        ({"n_kv_heads": ""}, "kv_heads", 32),
        ({"global_batch": "", "per_device_batch": "3", "chips": "8"}, "batch", 24),
        ({"layers": "32.0"}, "layers", 32),
    ],
)
def test_models(changes: dict[str, str], field: str, value: Any) -> None:
    assert getattr(model_of(row(**changes)), field) == value


def test_a_pipeline_waits() -> None:
    """(p - 1) / (microbatches x parts of a stage): 3 / (16 x 5)."""
    mesh = "data=2, tensor=4, pipeline=4, virtual 5, microbatch 2"
    one = row(chips="32", mesh=mesh, global_batch="64")
    assert one.stages == 4 and one.bubble == pytest.approx(3 / (16 * 5))


def test_all_rows_are_read() -> None:
    for one in [*read_rows(), *read_rows(UNMEASURED)]:
        model, (mesh, _) = model_of(one), mesh_of(one)
        assert mesh.size * one.stages == int(one["chips"])
        assert model.parameters == pytest.approx(float(one["params"]), rel=0.25)
        device_of(one)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mpt-1b", "mpt-7b, 8 x h100", "llama3.1-8b", "qwen3"])
def test_predictions_are_plausible(name: str) -> None:
    """`python -m benchmarks.measured --rows benchmarks/unmeasured.csv` has all rows."""
    low, high = PLAUSIBLE_MFU
    for one in read_rows(UNMEASURED):
        if one.name.startswith(name):
            assert low <= replay(one).mfu <= high
