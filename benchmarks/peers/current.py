"""One way of one case under the current JAX: `python -m benchmarks.peers.current ASKED REPLY`.

A process of its own, so that a compiler that runs out of memory or of time costs one row.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

import shardwright as sw
from benchmarks.peers.cases import CASES, Case, program
from benchmarks.peers.judged import judge
from benchmarks.peers.ways import NONE, OURS, SPECS, tactics_of
from shardwright.referee.targets import Compiled, OutOfMemory, compile_for, parse_target
from shardwright.referee.verify import compile_plan


def planned(case: Case, expert: str | None, found: dict[str, Any]) -> sw.Plan:
    """Our plan, or an expert's schedule as one; the seconds it took go into `found`."""
    example, start, cpu = program(case), time.perf_counter(), time.process_time()
    plan = sw.partition(
        example.fn, *example.args, mesh=dict(case.mesh), device=case.device, cache=False,
        donate_argnums=example.donate_argnums, tactics=tactics_of(expert) if expert else None,
        memory=None if expert is None else sys.maxsize,  # the compiler says whether it fits
    )  # fmt: skip
    found["planning_s"] = time.perf_counter() - start
    found["planning_cpu_s"] = time.process_time() - cpu
    return plan


def with_specs(case: Case, inputs: list[Any], outputs: list[Any]) -> Compiled:
    """Plain jax.jit with these specs on the leaves of arguments and results."""
    example = program(case)
    results = jax.eval_shape(example.fn, *example.args)

    def build(mesh: jax.sharding.Mesh) -> Any:
        def tree(specs: list[Any], like: Any) -> Any:
            leaves = [NamedSharding(mesh, PartitionSpec(*map(_axes, spec))) for spec in specs]
            return jax.tree.unflatten(jax.tree.structure(like), leaves)

        return jax.jit(
            example.fn, in_shardings=tree(inputs, example.args),
            out_shardings=tree(outputs, results), donate_argnums=example.donate_argnums,
        )  # fmt: skip

    return compile_for(parse_target(case.target), build, example.args, mesh=case.mesh)


def _axes(dim: Any) -> Any:
    return tuple(dim) if isinstance(dim, list) else dim


def specs_of(plan: sw.Plan) -> tuple[list[Any], list[Any]]:
    """The specs of a plan's arguments and results, leaf by leaf."""
    mesh = jax.sharding.AbstractMesh(plan.mesh.sizes, plan.mesh.names)
    trees = plan.in_shardings(mesh), plan.out_shardings(mesh)
    inputs, outputs = ([list(s.spec) for s in jax.tree.leaves(tree)] for tree in trees)
    return inputs, outputs


def compiled_way(case: Case, way: str, specs: Any, found: dict[str, Any]) -> Compiled:
    """What the compiler makes of one way; planning and what was predicted go into `found`."""
    if way == NONE:
        example = program(case)
        trees = example.args, jax.eval_shape(example.fn, *example.args)
        inputs, outputs = ([[]] * len(jax.tree.leaves(tree)) for tree in trees)
        return with_specs(case, inputs, outputs)
    if specs is not None:
        return with_specs(case, specs["inputs"], specs["outputs"])
    plan = planned(case, None if way == OURS else way.removesuffix(SPECS), found)
    found |= _predicted(plan)
    start = time.perf_counter()
    compiled = (
        with_specs(case, *specs_of(plan)) if way.endswith(SPECS)
        else compile_plan(plan, case.target)
    )  # fmt: skip
    found["compiling_s"] = time.perf_counter() - start
    return compiled


def row(name: str, way: str, specs: Any) -> dict[str, Any]:
    """What is known of one way afterwards, as plain data; `specs` are those that a peer chose."""
    case, found = CASES[name], dict[str, Any]()
    try:
        return judge(case, compiled_way(case, way, specs, found)) | found
    except OutOfMemory as error:
        return found | {"out_of_memory": str(error)}
    except sw.ShardwrightError as error:
        return found | {"error": str(error).splitlines()[0]}


def _predicted(plan: sw.Plan) -> dict[str, Any]:
    cost = plan.cost
    return {
        "predicted": {
            "step_s": cost.step_s, "compute_s": cost.compute_s, "link_s": cost.link_s,
            "exposed_s": cost.exposed_s, "peak_bytes": cost.peak_bytes,
        },
        "decisions": {
            axis: [f"{claim.group}" for claim in claims] for axis, claims in plan.decisions.items()
        },
        "certificate": str(plan.certificate.kind),
    }  # fmt: skip


if __name__ == "__main__":
    asked, reply = json.loads(sys.argv[1]), Path(sys.argv[2])
    reply.write_text(json.dumps(row(asked["case"], asked["way"], asked["specs"])))
