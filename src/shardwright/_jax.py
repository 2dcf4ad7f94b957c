"""The only door to JAX internals and version branches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from jax._src import core, source_info_util

Literal = core.Literal
DropVar = core.DropVar
ClosedJaxpr = core.ClosedJaxpr


class Frame(NamedTuple):
    """One line of somebody's code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line} {self.function}"


def frames(source_info: Any) -> Iterator[Frame]:
    """The frames outside JAX that wrote an equation, innermost first."""
    for frame in source_info_util.user_frames(source_info.traceback):
        yield Frame(frame.file_name, frame.start_line, frame.function_name)


def is_transposed(source_info: Any) -> bool:
    """Whether an equation belongs to a backward pass."""
    return any(
        isinstance(part, source_info_util.Transform) and part.name == "transpose"
        for part in source_info.name_stack.stack
    )


def written_by_jax(jaxpr: Any) -> bool:
    """Whether a called jaxpr is the body of one of JAX's own functions (jnp.where, ...)."""
    info = jaxpr.debug_info
    return info is not None and "/jax/_src/" in (info.func_src_info or "")


def open_jaxpr(jaxpr: Any) -> tuple[Any, list[Any]]:
    """(jaxpr, consts) of a Jaxpr or a ClosedJaxpr."""
    return (jaxpr.jaxpr, list(jaxpr.consts)) if isinstance(jaxpr, ClosedJaxpr) else (jaxpr, [])


def trace(jitted: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The jax.stages.Traced of a jitted function: nothing is executed or allocated."""
    return jitted.trace(*args, **kwargs)  # type: ignore[attr-defined]


def is_jitted(fn: Any) -> bool:
    """Whether a callable came out of jax.jit."""
    return hasattr(fn, "trace") and hasattr(fn, "lower") and isinstance(fn, jax.stages.Wrapped)


def jit_options(fn: Any) -> tuple[tuple[int, ...], tuple[str, ...], tuple[int, ...]]:
    """(static_argnums, static_argnames, donate_argnums) of a jitted function; empty for others."""
    info = getattr(fn, "_jit_info", None)
    if info is None:
        return (), (), ()
    return tuple(info.static_argnums), tuple(info.static_argnames), tuple(info.donate_argnums)


# Compiling for devices of another process: a lowered program travels as StableHLO bytes.


def lower_for(traced: Any, platform: str) -> Any:
    """The jax.stages.Lowered of a traced function whose shardings name an AbstractMesh."""
    return traced.lower(lowering_platforms=(platform,))


def stablehlo_bytes(lowered: Any) -> bytes:
    """A lowered program as StableHLO bytecode, with shardings, donation and source lines."""
    from jax._src.interpreters import mlir

    return mlir.module_to_bytecode(lowered.compiler_ir("stablehlo"))


def kept_arguments(lowered: Any) -> list[int]:
    """The positions of the flat arguments that the lowered program still takes (used ones)."""
    return sorted(lowered._lowering.compile_args["kept_var_idx"])


def calls_back(lowered: Any) -> bool:
    """Whether a lowered program calls Python of this process (callbacks, debug prints)."""
    compile_args = lowered._lowering.compile_args
    return bool(compile_args["host_callbacks"] or compile_args["keepalive"])


def compile_stablehlo(module: bytes, device_count: int) -> Any:
    """The executable of StableHLO bytes on the first devices of this process.

    It has `as_text()`, `memory_analysis()` and `run(arrays, shapes)` (see Executable).
    """
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    devices = jax.devices()[:device_count]
    options = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=device_count,
        device_assignment=[[device.id for device in devices]],
    )
    build = options.executable_build_options
    build.use_spmd_partitioning = device_count > 1
    build.use_shardy_partitioner = True
    with mlir.make_ir_context():
        parsed = ir.Module.parse(module)
        loaded = compiler.backend_compile_and_load(
            devices[0].client, parsed, _device_list(devices), options, []
        )
    return Executable(loaded, devices)


def _device_list(devices: list[Any]) -> Any:
    from jax._src.lib import xla_client

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
        import numpy as np
        from jax._src.interpreters import pxla

        into, out = pxla.get_op_sharding_from_executable(self._loaded)
        placed = [
            jax.device_put(array, self._sharding(into, i)) for i, array in enumerate(arrays)
        ]
        results = self._loaded.execute_sharded(placed).disassemble_into_single_device_arrays()
        return [
            np.asarray(
                jax.make_array_from_single_device_arrays(shape, self._sharding(out, i), shards)
            )
            for i, (shape, shards) in enumerate(zip(shapes, results, strict=True))
        ]

    def _sharding(self, op_shardings: Any, i: int) -> Any:
        """The i-th sharding; XLA lists none for one device and one for a uniform tuple."""
        from jax._src.sharding_impls import GSPMDSharding

        devices = _device_list(self._devices)
        if len(self._devices) == 1 or not op_shardings:
            return GSPMDSharding.get_replicated(devices)
        return GSPMDSharding(devices, op_shardings[i if len(op_shardings) > 1 else 0])


def primitives() -> dict[str, Any]:
    """Every primitive that JAX can lower, by name, from its lowering tables.

    Modules that are not imported have not registered theirs: import them first.
    """
    from jax._src.interpreters import mlir

    tables = [mlir._lowerings, *mlir._platform_specific_lowerings.values()]
    return {primitive.name: primitive for table in tables for primitive in table}
