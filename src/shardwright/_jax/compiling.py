"""Compiling a lowered program, here or in another process, and running what was compiled."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import compiler, dispatch
from jax._src.interpreters import mlir, pxla
from jax._src.lax import linalg
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir
from jax._src.sharding_impls import GSPMDSharding


class Portable(NamedTuple):
    """A lowered program that another process can compile."""

    module: bytes  # StableHLO bytecode, with shardings, donation and source lines
    propagate: tuple[list[bool], list[bool]]  # whose sharding XLA may choose: arguments, results
    options: dict[str, Any]  # what jax.jit was told to tell the compiler


def portable(lowered: Any) -> Portable:
    """A lowered program for another process."""
    module = mlir.module_to_bytecode(lowered.compiler_ir("stablehlo"))
    return Portable(module, *_compiling(lowered))


def _compiling(lowered: Any) -> tuple[tuple[list[bool], list[bool]], dict[str, Any]]:
    """(whose sharding XLA may choose, options of the compiler) of a lowered program."""
    args = lowered._lowering.compile_args
    into, out = pxla.get_prop_to_input_output(
        args["in_shardings"], args["out_shardings"], len(args["ordered_effects"])
    )
    return (list(into), list(out)), dict(lowered._lowering._compiler_options_kvs)


def kept_arguments(lowered: Any) -> list[int]:
    """The positions of the flat arguments that the lowered program still takes (used ones)."""
    return sorted(lowered._lowering.compile_args["kept_var_idx"])


def calls_back(lowered: Any) -> bool:
    """Whether a lowered program calls Python of this process (callbacks, debug prints)."""
    compile_args = lowered._lowering.compile_args
    return bool(compile_args["host_callbacks"] or compile_args["keepalive"])


# What any process with JAX can compile for a host: calls of XLA's own, of JAX's and of LAPACK.
_COMMON_CALLS = (
    "Sharding", "SPMD", "xla.", "xla_", "mhlo.", "annotate_device_placement", "TopK", "lapack_",
)  # fmt: skip


def lowered_for_hosts(traced: Any) -> Any:
    """A traced function lowered for hosts, on a mesh without devices; None where it needs them."""
    if dispatch.jaxpr_has_prim_requiring_devices(traced.jaxpr.jaxpr):
        return None  # custom_partitioning, some callbacks
    return traced.lower(lowering_platforms=("cpu",))


def own_calls(lowered: Any) -> list[str]:
    """The custom calls of a lowered program that another process may not know."""
    found: list[str] = []

    def note(op: Any) -> Any:
        if op.name == "stablehlo.custom_call":
            found.append(ir.StringAttr(op.attributes["call_target_name"]).value)
        return ir.WalkResult.ADVANCE

    lowered.compiler_ir("stablehlo").operation.walk(note)
    return sorted({name for name in found if not name.startswith(_COMMON_CALLS)})


def compile_portable(program: Portable, devices: list[Any]) -> Executable:
    """The executable of a program for devices that this process knows."""
    if b"lapack_" in program.module:  # JAX looks its functions up when it lowers a call
        linalg.initialize_lapack()
    with mlir.make_ir_context():
        module = ir.Module.parse(program.module)
        return _compile(devices[0].client, module, devices, program.propagate, program.options, [])


def devices_lowered_for(lowered: Any) -> list[Any]:
    """The devices that a lowered program is for, in the order of its mesh."""
    return list(lowered._lowering._device_list)


def compile_afresh(lowered: Any) -> Executable:
    """The executable of a lowered program, compiled again even if JAX has it in a cache.

    A cached program prints no warnings, and the warnings are wanted.
    """
    lowering = lowered._lowering
    return _compile(
        lowering.compile_args["backend"],
        lowering.stablehlo(),
        devices_lowered_for(lowered),
        *_compiling(lowered),
        lowering.compile_args["host_callbacks"],
    )


def _compile(
    backend: Any,
    module: Any,
    devices: list[Any],
    propagate: tuple[list[bool], list[bool]],
    options: dict[str, Any],
    host_callbacks: list[Any],
) -> Executable:
    """The executable that a backend makes of a module, for these devices."""
    compile_options = pxla.create_compile_options(
        module, False, *propagate, backend, np.array(devices, object), options
    )
    loaded = compiler.backend_compile_and_load(
        backend, module, _device_list(devices), compile_options, host_callbacks
    )
    return Executable(loaded, devices)


def _device_list(devices: list[Any]) -> Any:
    return xla_client.DeviceList(tuple(devices))


class Executable:
    """A compiled StableHLO program that can be read and run."""

    def __init__(self, loaded: Any, devices: list[Any]) -> None:
        self._loaded = loaded
        self._devices = devices

    def as_text(self) -> str:
        """The optimised HLO, printed as jax.stages.Compiled.as_text() does."""
        return "\n\n".join(module.to_string() for module in self._loaded.hlo_modules())

    def memory_analysis(self) -> Any:
        """The compiler's memory statistics for one device."""
        return self._loaded.get_compiled_memory_stats()

    def run(self, arrays: list[Any], shapes: list[tuple[int, ...]]) -> list[Any]:
        """Host arrays of the results, given host arrays and the results' global shapes."""
        into, out = pxla.get_op_sharding_from_executable(self._loaded)
        placed = [jax.device_put(array, self._sharding(into, i)) for i, array in enumerate(arrays)]
        results = self._loaded.execute_sharded(placed).disassemble_into_single_device_arrays()
        return [
            np.asarray(
                jax.make_array_from_single_device_arrays(shape, self._sharding(out, i), shards)
            )
            for i, (shape, shards) in enumerate(zip(shapes, results, strict=True))
        ]

    def _sharding(self, op_shardings: Any, i: int) -> Any:
        """The i-th sharding; XLA lists none for one device and one for a uniform tuple."""
        devices = _device_list(self._devices)
        if len(self._devices) == 1 or not op_shardings:
            return GSPMDSharding.get_replicated(devices)
        return GSPMDSharding(devices, op_shardings[i if len(op_shardings) > 1 else 0])
