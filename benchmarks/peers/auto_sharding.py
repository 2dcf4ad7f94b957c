"""XLA's auto_sharding as it last shipped: `python -m benchmarks.peers.auto_sharding CASE FOLDER`.

Runs under jax[tpu]==0.6.2. Arguments and results are AUTO(mesh) on a TPU topology without TPUs;
what it chose and what it compiled is left in FOLDER: reply.json and program.hlo.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "true"}

import jax
from jax._src.sharding_impls import AUTO
from jax.experimental import mesh_utils, topologies

from benchmarks.peers.cases import CASES, Case, only_the_zoo, program


def mesh_of(case: Case) -> jax.sharding.Mesh:
    """The mesh of a case on the topology it is judged on, laid as jax.make_mesh does."""
    _, topology = case.target.split(":", 1)
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    grid = mesh_utils.create_device_mesh(
        tuple(case.mesh.values()), devices=devices, allow_split_physical_axes=True
    )
    return jax.sharding.Mesh(grid, tuple(case.mesh))


def spec_of(sharding: Any) -> list[Any]:
    """A NamedSharding's spec as plain data: per dim an axis, several, or none."""
    return [list(dim) if isinstance(dim, tuple) else dim for dim in sharding.spec]


def main(name: str, folder: Path) -> None:
    """Compiles one case and writes what came of it."""
    only_the_zoo()
    case = CASES[name]
    example, mesh = program(case), mesh_of(case)
    args, start = example.args, time.perf_counter()
    jitted = jax.jit(
        example.fn, in_shardings=AUTO(mesh), out_shardings=AUTO(mesh),
        donate_argnums=example.donate_argnums,
    )  # fmt: skip
    with mesh:
        compiled = jitted.lower(*args).compile()
    seconds, memory = time.perf_counter() - start, compiled.memory_analysis()
    (folder / "program.hlo").write_text(compiled.as_text())
    reply = {
        "seconds": seconds,
        "cpu_s": time.process_time(),
        "memory": {
            key: getattr(memory, f"{key}_size_in_bytes")
            for key in ("argument", "output", "alias", "temp")
        },
        "inputs": [spec_of(s) for s in jax.tree.leaves(compiled.input_shardings)],
        "outputs": [spec_of(s) for s in jax.tree.leaves(compiled.output_shardings)],
    }
    (folder / "reply.json").write_text(json.dumps(reply))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
