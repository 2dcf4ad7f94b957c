"""A GPU is the same GPU to the planner and to its compiler."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shardwright.cost.devices import device
from shardwright.referee import gpu_targets
from shardwright.referee.gpu_targets import GPUS, target_config

TOML = Path(gpu_targets.__file__).with_name("gpus.toml")


def figure(text: str, field: str) -> float:
    (found,) = re.findall(rf"\b{field}: (\S+)", text)
    return float(found)


@pytest.mark.parametrize("chip", GPUS)
def test_configurations_are_complete(chip: str) -> None:
    text = target_config(GPUS[chip])
    assert text.count("{") == text.count("}") and f'name: "{GPUS[chip].name}"' in text


@pytest.mark.parametrize("chip", GPUS)
def test_the_compiler_is_told_what_the_planner_knows(chip: str) -> None:
    gpu, hw, text = GPUS[chip], device(chip), target_config(GPUS[chip])
    assert figure(text, "core_count") == hw.matrix_units
    assert figure(text, "device_memory_size") == hw.memory_bytes
    assert figure(text, "memory_bandwidth") == hw.memory_bytes_per_s
    assert figure(text, "active_links") * gpu.nvlink_bytes_per_s == hw.link_bytes_per_s
    # Two sources for one rate: sheets quote boost clocks that the driver of Blackwell does not.
    rate = hw.matrix_units * figure(text, "fpus_per_core") * figure(text, "clock_rate_ghz") * 1e9
    assert rate == pytest.approx(hw.vector_flops_per_s, rel=0.12)


def test_every_figure_has_its_source_beside_it() -> None:
    for table in TOML.read_text().split("\n[")[1:]:
        _, *lines = filter(None, table.splitlines())
        assert all("# " in line for line in lines), table
