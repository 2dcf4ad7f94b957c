"""google-parallax's AUTO strategy: `python -m benchmarks.peers.parallax CASE FOLDER`.

Runs in its own environment. It names shardings of arguments and results, and has no cost model;
they are left in FOLDER/reply.json, and compiled by the current JAX as everybody's.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
from parallax.sharding import auto_shard

from benchmarks.peers.cases import CASES, only_the_zoo, program


def specs(tree: Any) -> list[Any]:
    """The specs of a tree's leaves as plain data."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, jax.sharding.PartitionSpec))
    return [list(spec) for spec in leaves]


def main(name: str, folder: Path) -> None:
    """Asks for the shardings of one case and writes them."""
    only_the_zoo()
    case = CASES[name]
    example = program(case)
    args, start = example.args, time.perf_counter()
    mesh = jax.sharding.AbstractMesh(tuple(case.mesh.values()), tuple(case.mesh))
    with jax.sharding.use_abstract_mesh(mesh):
        inputs, outputs = auto_shard.get_shardings(example.fn, *args)
    reply = {
        "seconds": time.perf_counter() - start, "inputs": specs(inputs), "outputs": specs(outputs),
    }  # fmt: skip
    (folder / "reply.json").write_text(json.dumps(reply))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
