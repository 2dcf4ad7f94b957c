"""Devices: the data is complete and consistent, users can add their own, errors help."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from shardwright.cost.devices import (
    Device,
    device,
    devices,
    dtype_key,
    load_devices,
    markdown_table,
)
from shardwright.errors import ShardwrightError

ROOT = Path(__file__).parents[2]
TOML = ROOT / "src/shardwright/cost/devices.toml"
ALL = list(devices().values())
PROMISED = {
    "tpu-v3", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-7x", "p100", "v100", "a100-40",
    "a100-80", "h100", "h200", "b200", "gb200", "mi300x", "cpu",
}  # fmt: skip


def test_every_promised_device_is_there() -> None:
    assert set(devices()) >= PROMISED


@pytest.mark.parametrize("hw", ALL, ids=lambda hw: hw.name)
def test_numbers_are_consistent(hw: Device) -> None:
    rate = hw.matrix_flops_per_s
    assert hw.source
    assert rate("f64") <= rate("f32") <= max(rate("bf16"), rate("f16"))
    assert rate("bf16") <= max(rate("f8"), rate("s8"))
    assert rate("f32", precision="highest") <= rate("f32", precision="high") <= rate("f32")
    assert hw.vector_flops_per_s < max(rate("bf16"), rate("f16"))
    assert hw.link_bytes_per_s < hw.memory_bytes_per_s  # a link is slower than memory
    assert 0 < hw.usable_bytes <= hw.memory_bytes
    if hw.topology == "torus":
        assert hw.dcn_bytes_per_s < hw.link_bytes_per_s
    else:
        assert hw.node_bytes_per_s / hw.devices_per_node < hw.link_bytes_per_s


def test_every_number_has_its_source_beside_it() -> None:
    for table in TOML.read_text().split("\n[")[1:]:
        name, *lines = table.splitlines()
        half = "-core]" in name  # half of the chip, said in `source`
        for line in lines:
            field, equals, value = line.partition(" = ")
            nothing = value.strip() in ("0", "1", "1.0")  # no limit, no share, no loss
            if equals and not field.startswith(("#", "aliases", "source", "like", "topology")):
                assert "#" in value or nothing or half, line


# Per chip, as quoted by the JAX scaling book and the cloud's pages.
@pytest.mark.parametrize(
    "name, bf16, memory, memory_rate, link",
    [
        ("tpu-v3", 1.23e14, 32e9, 9.0e11, 1e11),
        ("tpu-v4", 2.75e14, 32e9, 1.2e12, 4.5e10),
        ("tpu-v5e", 1.97e14, 16e9, 8.1e11, 4.5e10),
        ("tpu-v5p", 4.59e14, 96e9, 2.8e12, 9e10),
        ("tpu-v6e", 9.2e14, 32e9, 1.6e12, 9e10),
        ("tpu-7x", 2.307e15, 192e9, 7.37e12, 9e10),
        ("a100", 3.12e14, 80e9, 2.04e12, 3.0e11),
        ("h100", 9.9e14, 80e9, 3.35e12, 4.5e11),
        ("h200", 9.9e14, 141e9, 4.8e12, 4.5e11),
        ("b200", 2.25e15, 192e9, 8e12, 9e11),
        ("gb200", 2.5e15, 192e9, 8e12, 9e11),
        ("mi300x", 1.3e15, 192e9, 5.3e12, 4.48e11),
    ],
)
def test_published_numbers(
    name: str, bf16: float, memory: float, memory_rate: float, link: float
) -> None:
    hw = device(name)
    assert hw.matrix_flops_per_s("bf16") == pytest.approx(bf16, rel=0.01)
    assert memory <= hw.memory_bytes <= memory * 1.024**3 * 1.001  # GB or GiB
    assert hw.memory_bytes_per_s == pytest.approx(memory_rate, rel=0.03)
    assert hw.link_bytes_per_s == pytest.approx(link, rel=0.01)


# What the TPU compiler says is available, in GiB per JAX device (its out-of-memory error).
@pytest.mark.parametrize(
    "name, gib",
    [
        ("tpu-v3-core", 15.48),
        ("tpu-v5e", 15.75),
        ("tpu-v5p", 95.73),
        ("tpu-v6e", 31.24),
        ("tpu-7x-core", 94.74),
    ],
)
def test_usable_memory_is_the_compilers(name: str, gib: float) -> None:
    assert device(name).usable_bytes / 2**30 == pytest.approx(gib, abs=0.01)


@pytest.mark.parametrize("name", ["tpu-v3", "tpu-7x"])
def test_a_core_is_half_a_chip(name: str) -> None:
    chip, core = device(name), device(f"{name}-core")
    for field in ("memory_bytes", "memory_bytes_per_s", "vector_flops_per_s", "link_bytes_per_s"):
        assert getattr(core, field) * 2 == pytest.approx(getattr(chip, field))
    assert core.matrix_flops_per_s("bf16") * 2 == chip.matrix_flops_per_s("bf16")


@pytest.mark.parametrize(
    "name, found",
    [("a100", "a100-80"), ("A100", "a100-80"), ("TPU v5 lite", "tpu-v5e"), ("v5p", "tpu-v5p"),
     ("tpu_v4", "tpu-v4"), ("ironwood", "tpu-7x"), ("host", "cpu")],
)  # fmt: skip
def test_aliases(name: str, found: str) -> None:
    assert device(name).name == found
    assert device(device(name)) is device(name)


def test_aliases_name_one_device() -> None:
    names = [name.lower() for hw in ALL for name in (hw.name, *hw.aliases)]
    assert len(set(names)) == len(names)


def test_unknown_device() -> None:
    with pytest.raises(ShardwrightError) as error:
        device("h10")
    assert str(error.value) == (
        f"unknown device 'h10'\n  known   {', '.join(devices())}\n  try     h100, h100-96"
    )
    with pytest.raises(ShardwrightError, match=r"try     Device\.like"):
        device("quantum annealer")


@pytest.mark.parametrize(
    "dtype, key",
    [
        (jnp.bfloat16, "bf16"),
        (np.float32, "f32"),
        (np.dtype("float16"), "f16"),
        ("float64", "f64"),
        ("float4_e2m1fn", "f4"),
        ("f64", "f64"),
        (jnp.float8_e4m3fn, "f8"),
        (jnp.dtype("float8_e5m2"), "f8"),
        (jnp.int8, "s8"),
        (np.uint8, "s8"),
        (jnp.int4, "s4"),
        (np.bool_, "s8"),
        (np.int32, "int32"),
    ],
)
def test_dtype_key(dtype: object, key: str) -> None:
    assert dtype_key(dtype) == key


@pytest.mark.parametrize(
    "name, dtype, runs_as",
    [
        ("h100", "int32", "f32"),  # unknown: as f32
        ("tpu-v4", "float8_e4m3fn", "bf16"),
        ("tpu-7x", "int8", "bf16"),
        ("h100", "int4", "s8"),
        ("h100", "float4_e2m1fn", "f8"),
        ("tpu-v5e", "float16", "bf16"),
        ("v100", "bfloat16", "f32"),
    ],
)
def test_dtype_fallback(name: str, dtype: str, runs_as: str) -> None:
    assert device(name).matrix_flops_per_s(dtype) == device(name).matrix_flops_per_s(runs_as)


def test_complex_is_four_real() -> None:
    assert device("a100").matrix_flops_per_s("complex64") == 1.56e14 / 4


def test_like() -> None:
    mine = Device.like("h100", name="mine", memory_bytes=96_000_000_000)
    assert (mine.name, mine.memory_bytes, mine.devices_per_node) == ("mine", 96_000_000_000, 8)
    assert mine.aliases == () and mine != device("h100")
    assert device(mine) is mine and len({mine, Device.like(mine)}) <= 2


def test_made_from_scratch() -> None:
    hw = Device(
        name="toy",
        flops_per_s={"bf16": 1e14},
        vector_flops_per_s=1e12,
        memory_bytes=10**9,
        memory_bytes_per_s=1e12,
        link_bytes_per_s=1e10,
    )
    assert hw.matrix_flops_per_s("float32") == 1e14  # the only rate there is
    assert hw.usable_bytes == 10**9


def test_toml(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(
        '[slow]\nlike = "h100"\nnode_bytes_per_s = 1e11\n'
        '[slower]\nlike = "slow"\nlatency_s = 1e-4\n'
    )
    found = load_devices(file)
    assert list(found) == ["slow", "slower"]
    assert found["slower"].node_bytes_per_s == 1e11 and found["slower"].latency_s == 1e-4
    assert found["slower"].memory_bytes == device("h100").memory_bytes


@pytest.mark.parametrize(
    "text, error",
    [
        ("[x]\nmemory_bytes = 1\n", "device 'x' lacks flops_per_s, vector_flops_per_s, "),
        (
            '[x]\nlike = "h100"\nmemory_byte = 1\n',
            "device 'x' has no field 'memory_byte'\n  try     mem",
        ),
        ('[x]\nlike = "h10"\n', "unknown device 'h10'"),
        ("x = 1\n", "'x' is not a table"),
        ("[x\n", "cannot read devices from "),
    ],
)
def test_bad_toml(tmp_path: Path, text: str, error: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(ShardwrightError) as caught:
        load_devices(file)
    assert str(caught.value).startswith(error)


def test_missing_toml(tmp_path: Path) -> None:
    with pytest.raises(ShardwrightError, match="cannot read devices from"):
        load_devices(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "change, text",
    [
        ({"memory_bytes": 0}, "device 'h100' has memory_bytes = 0\n  try     a positive number"),
        ({"flops_per_s": {}}, "device 'h100' has no FLOP rate\n"),
        ({"topology": "star"}, "device 'h100' has topology 'star'\n  try     torus or switch"),
        ({"topology": "torus"}, "device 'h100' is a torus of no dims\n"),
        ({"reserved_bytes": 10**12}, "device 'h100' reserves 1000000000000 bytes\n"),
        ({"memori_bytes": 1}, "device 'h100' has no field 'memori_bytes'\n  try     memory_bytes"),
    ],
)
def test_bad_device(change: dict[str, object], text: str) -> None:
    with pytest.raises(ShardwrightError) as error:
        Device.like("h100", **change)
    assert str(error.value).startswith(text)


def test_the_page_is_fresh() -> None:
    assert markdown_table() in (ROOT / "docs/devices.md").read_text()
