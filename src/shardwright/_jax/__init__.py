"""The only door to JAX internals and version branches.

What tracing and lowering read and make is here; beside it what JAX says when it refuses a function
(refusals.py), the tables that it lowers by (lowerings.py), StableHLO text (stablehlo.py), the
compiler's interfaces (compiling.py) and jobs of several processes (jobs.py).
"""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import product
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import core, source_info_util
from jax._src.interpreters import partial_eval
from jax._src.literals import TypedNdArray

# Versions --------------------------------------------------------------------------------

# The versions whose internals this module knows: pyproject.toml has the same range.
OLDEST, NEWER = (0, 10, 2), (0, 11)


def check_version(version: tuple[int, ...]) -> None:
    """Raises ImportError for a JAX that is too old, warns of one that is newer than tested."""
    name = ".".join(map(str, version))
    if version < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(
            f"shardwright needs JAX {oldest} or newer, this is {name}\n"
            f"  try     pip install 'jax>={oldest},<{NEWER[0]}.{NEWER[1]}'"
        )
    if version >= NEWER:
        warnings.warn(
            f"shardwright is tested with JAX up to {NEWER[0]}.{NEWER[1] - 1}, this is {name}:"
            " primitives that are new in it are computed in full on every device",
            stacklevel=2,
        )


check_version(jax.__version_info__)


# Jaxprs and their equations --------------------------------------------------------------

Literal = core.Literal
ClosedJaxpr = core.ClosedJaxpr


class Frame(NamedTuple):
    """One line of somebody's code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        function = self.function.rpartition("<locals>.")[2]
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line} {function}"


def frames(source_info: Any) -> Iterator[Frame]:
    """The frames outside JAX that wrote an equation, innermost first."""
    for frame in source_info_util.user_frames(source_info.traceback):
        yield Frame(frame.file_name, frame.start_line, frame.function_name)


@lru_cache(maxsize=4096)
def is_recomputed(name_stack: Any) -> bool:
    """Whether jax.checkpoint computes an equation with this name stack a second time."""
    return any(part.name == "rematted_computation" for part in name_stack.stack)


@lru_cache(maxsize=4096)
def is_transposed(name_stack: Any) -> bool:
    """Whether an equation with this name stack belongs to a backward pass."""
    return any(
        isinstance(part, source_info_util.Transform) and part.name == "transpose"
        for part in name_stack.stack
    )


def written_by_jax(jaxpr: Any) -> bool:
    """Whether a called jaxpr is the body of one of JAX's own functions: jnp.where, its kernels."""
    source = (jaxpr.debug_info and jaxpr.debug_info.func_src_info) or ""
    return "/jax/_src/" in source or "/jax/experimental/" in source


def open_jaxpr(jaxpr: Any) -> tuple[Any, list[Any]]:
    """(jaxpr, consts) of a Jaxpr or a ClosedJaxpr."""
    return (jaxpr.jaxpr, list(jaxpr.consts)) if isinstance(jaxpr, ClosedJaxpr) else (jaxpr, [])


def jaxprs_in(eqn: Any) -> list[Any]:
    """The open jaxprs that an equation holds."""
    return list(core.jaxprs_in_params(eqn.params))


def needed_inputs(jaxpr: Any, used: Sequence[bool]) -> list[bool]:
    """Which inputs a jaxpr needs for those of its outputs that are used."""
    return list(partial_eval.dce_jaxpr(open_jaxpr(jaxpr)[0], used)[1])


def scan_counts(eqn: Any) -> tuple[int, int]:
    """(constants, carries) of a scan; the rest of its inputs are scanned over."""
    packed = eqn.params.get("ft_in")  # from JAX 0.11 on
    if packed is None:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carries, _ = packed.unpack()
    return len(consts), len(carries)


def without_refs(closed: Any) -> Any:
    """The jaxpr with mutable references of its own as plain values, as JAX lowers them.

    What nothing reads is dropped first: not all primitives can do without references.
    """
    if any(isinstance(effect, core.InternalMutableArrayEffect) for effect in closed.effects):
        from jax._src.state.discharge import discharge_state

        used = [True] * len(closed.out_avals)
        live, _ = partial_eval.dce_jaxpr(closed.jaxpr, used, instantiate=True)
        return discharge_state(core.ClosedJaxpr(live, closed.consts))
    return closed


def without_consts(closed: Any) -> tuple[Any, list[Any]]:
    """(open jaxpr that takes its constants first, those constants) of a closed jaxpr."""
    return partial_eval.convert_constvars_jaxpr(closed.jaxpr), list(closed.consts)


def retrace(fn: Callable[..., list[Any]], avals: list[Any]) -> Any:
    """The closed jaxpr of `fn`, which returns a list, on arguments of these abstract types."""
    return jax.make_jaxpr(fn)(*[struct(aval) for aval in avals])


_SHARDING_OPS = ("sharding_constraint", "device_put")


def bind(eqn: Any, args: list[Any], **changes: Any) -> list[Any]:
    """Evaluates an equation on these arguments, with some of its parameters replaced.

    The mesh around it is the one that is set here, with automatic axes: shardings that the
    equation was given for its result under a mesh with explicit axes mean nothing there. A
    constraint of the user's is in the plan already; it would take back what the plan splits more.
    """
    if eqn.primitive.name == "reshard" or _only_splits(eqn):
        return list(args)
    if eqn.primitive.name not in _SHARDING_OPS:
        changes |= {p: None for p in ("sharding", "out_sharding") if eqn.params.get(p) is not None}
    params = eqn.primitive.get_bind_params({**eqn.params, **changes})
    stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    around = jax.sharding.get_abstract_mesh()
    with (
        source_info_util.user_context(eqn.source_info.traceback, name_stack=stack),
        eqn.ctx.manager,
        jax.sharding.use_abstract_mesh(around),
    ):
        out = eqn.primitive.bind(*args, **params)
    return list(out) if eqn.primitive.multiple_results else [out]


def _only_splits(eqn: Any) -> bool:
    """Whether an equation is a constraint that says how to split, not which layout or memory."""
    if eqn.primitive.name != "sharding_constraint" or eqn.params["layout"] is not None:
        return False
    return eqn.params["sharding"].memory_kind in (None, "device")


# Arrays and their types ------------------------------------------------------------------


def struct(aval: Any) -> Any:
    """An abstract type as jax.eval_shape gives it."""
    weak, varies = getattr(aval, "weak_type", False), getattr(aval, "manual_axis_type", None)
    if varies is None or varies.empty:
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak)
    around = jax.sharding.NamedSharding(
        jax.sharding.get_abstract_mesh(), jax.sharding.PartitionSpec()
    )
    return jax.ShapeDtypeStruct(  # in a shard_map: over which axes shards may differ
        aval.shape, aval.dtype, weak_type=weak, manual_axis_type=varies, sharding=around
    )


def as_type(number: Any, aval: Any) -> Any:
    """The array of this type with that number; weakly typed if the type is."""
    from jax._src.lax.lax import _convert_element_type

    return _convert_element_type(number, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def bare(array: Any, weak: bool) -> Any:
    """The shape and dtype of an array, without where it is."""
    aval = jax.typeof(array)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak)


def without_mesh(number: Any) -> Any:
    """A number or array of a jaxpr, fit for any mesh: JAX's own remember where they were traced."""
    return number.view() if isinstance(number, TypedNdArray) else number


def on_host(array: Any) -> bool:
    """Whether an array, or an abstract one, is in the memory of the host, `f32<host>[8]`."""
    aval = array if isinstance(array, core.AbstractValue) else jax.typeof(array)
    return getattr(aval, "memory_space", None) is jax.memory.Space.Host


def is_extended(dtype: Any) -> bool:
    """Whether elements are no numbers: random keys."""
    return bool(jax.dtypes.issubdtype(dtype, jax.dtypes.extended))


def key_impl(dtype: Any) -> Any:
    """What makes random keys of this dtype, as jax.random.key takes it."""
    return dtype._impl


# Tracing ---------------------------------------------------------------------------------

_tracing = threading.local()


def trace(jitted: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The jax.stages.Traced of a jitted function: nothing is executed or allocated."""
    _know_cudnn()
    _tracing.here = True
    try:
        return jitted.trace(*args, **kwargs)  # type: ignore[attr-defined]
    finally:
        _tracing.here = False


# The version that cuDNN's attention is traced for where there is none, of jax[cuda12] 0.10.
_CUDNN_VERSION = 91900


@lru_cache(maxsize=1)
def _know_cudnn() -> None:
    """Lets cuDNN's attention be traced, not run, on a machine without cuDNN."""
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    if cudnn.cuda_versions is not None:
        return
    version, capability = cudnn.check_cudnn_version, cudnn.check_compute_capability

    def known_version() -> int:
        return _CUDNN_VERSION if getattr(_tracing, "here", False) else version()

    def known_capability(least: str) -> bool:
        return getattr(_tracing, "here", False) or capability(least)

    cudnn.check_cudnn_version = known_version
    cudnn.check_compute_capability = known_capability


class JitOptions(NamedTuple):
    """What jax.jit was told of the arguments of a function; inferred names too."""

    static_argnums: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()
    donate_argnums: tuple[int, ...] = ()
    donate_argnames: tuple[str, ...] = ()


def jit_options(fn: Any) -> JitOptions:
    """The options of a jitted function; empty for others."""
    info = getattr(fn, "_jit_info", None)
    given = (tuple(getattr(info, name, None) or ()) for name in JitOptions._fields)
    return JitOptions(*given)


# Meshes and shard_maps ------------------------------------------------------------------


def abstract_mesh(
    sizes: tuple[int, ...], names: tuple[str, ...], kind: Any = jax.sharding.AxisType.Auto
) -> Any:
    """A mesh without devices, whose axes are automatic, or all of another kind."""
    return jax.sharding.AbstractMesh(sizes, names, axis_types=(kind,) * len(names))


def is_explicit(around: Any, mesh: Any) -> bool:
    """Whether the mesh around has the axes of `mesh`, some of them explicit."""
    explicit = jax.sharding.AxisType.Explicit
    return explicit in around.axis_types and list(around.shape.items()) == list(mesh.shape.items())


def has_explicit_types(closed: Any) -> bool:
    """Whether a jaxpr was traced under explicit axes: its types say how values are split."""
    explicit = jax.sharding.AxisType.Explicit
    made = (v for eqn in closed.jaxpr.eqns for v in eqn.outvars)
    return any(
        explicit in v.aval.sharding.mesh.axis_types for v in made if hasattr(v.aval, "sharding")
    )


def axes_of_type(mesh: Any, kind: Any) -> set[str]:
    """The axes of a mesh that are automatic, explicit or manual."""
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return {axis for axis, one in kinds if one == kind}


def automatic_axes(mesh: Any) -> set[str]:
    """The axes of a mesh that are not those of a shard_map around."""
    return set(mesh.axis_names) - axes_of_type(mesh, jax.sharding.AxisType.Manual)


class ShardMap(NamedTuple):
    """A shard_map equation; axes of one device are left out."""

    body: Any  # a closed jaxpr, on shards
    mesh: tuple[tuple[str, int], ...]  # (axis, size), in order
    manual: tuple[str, ...]  # the axes that its body names
    partial: bool  # whether other axes stay automatic
    in_specs: tuple[Any, ...]
    out_specs: tuple[Any, ...]


def shard_map_of(eqn: Any) -> ShardMap:
    """What a shard_map equation says."""
    params, mesh = eqn.params, eqn.params["mesh"]
    axes = tuple((axis, size) for axis, size in mesh.shape.items() if size > 1)
    manual = tuple(axis for axis, _ in axes if axis in params["newly_manual_axes"])
    partial = any(axis in automatic_axes(mesh) for axis, _ in axes if axis not in manual)
    body = ClosedJaxpr(params["jaxpr"], ())
    return ShardMap(body, axes, manual, partial, params["in_specs"], params["out_specs"])


def bind_shard_map(eqn: Any, args: list[Any], mesh: Any, run: Callable[..., list[Any]]) -> Any:
    """Evaluates a shard_map equation on these arguments and this mesh, with another body."""
    mapped, params = shard_map_of(eqn), eqn.params
    call = jax.shard_map(
        run, mesh=mesh, in_specs=mapped.in_specs, out_specs=list(mapped.out_specs),
        axis_names=set(params["newly_manual_axes"]), check_vma=params["check_vma"],
    )  # fmt: skip
    stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    with source_info_util.user_context(eqn.source_info.traceback, name_stack=stack):
        return call(*args)


# Kernels ---------------------------------------------------------------------------------


def kernel_name(params: Mapping[str, Any]) -> str | None:
    """The name of the kernel that a pallas_call runs: as given, else its function's."""
    if isinstance(params.get("name"), str):
        return params["name"]
    info = getattr(params.get("jaxpr"), "debug_info", None)
    return getattr(info, "func_name", None)


def asks_for_last_step(kernel: Any, axis: int, steps: int) -> bool:
    """Whether a kernel compares where it is along a grid dim with the last step."""
    return bool(_last_step_tests(kernel, axis, steps))


def with_last_step(kernel: Any, axis: int, steps: int, fewer: int) -> Any:
    """The kernel with fewer steps along a grid dim: what it does in the last one, it does there."""
    tests = _last_step_tests(kernel, axis, steps)
    eqns = [
        eqn.replace(invars=[eqn.invars[0], Literal(fewer - 1, eqn.invars[1].aval)])
        if number in tests else eqn
        for number, eqn in enumerate(kernel.eqns)
    ]  # fmt: skip
    return kernel.replace(eqns=eqns)


def _last_step_tests(kernel: Any, axis: int, steps: int) -> list[int]:
    """The equations of a kernel that compare its index along a grid dim with the last one."""
    here = {
        eqn.outvars[0] for eqn in kernel.eqns
        if eqn.primitive.name == "program_id" and eqn.params["axis"] == axis
    }  # fmt: skip
    return [
        number for number, eqn in enumerate(kernel.eqns)
        if eqn.primitive.name == "eq" and eqn.invars[0] in here
        and isinstance(eqn.invars[1], Literal) and int(eqn.invars[1].val) == steps - 1
    ]  # fmt: skip


# What a rule for Shardy calls any number of leading dims: a number follows.
ANY_DIMS = "…"


def asked_partitioning_rule(
    fn: Callable[..., Any], params: Mapping[str, Any], operands: Any, results: Any
) -> Any:
    """The rule of a custom_partitioning that was given a function for it, asked as JAX asks it."""
    from jax._src import custom_partitioning_sharding_rule as shardy

    mesh = jax.sharding.get_abstract_mesh()
    told = fn(*params["static_args"], mesh, operands, results)
    text, more = told if isinstance(told, list | tuple) and len(told) == 2 else (told, {})
    return shardy.str_to_sdy_sharding_rule(text, **more) if isinstance(text, str) else told


def masked_bias(bias: Any, mask: Any, dtype: Any) -> Any:
    """The bias that cuDNN's attention adds to its scores, with what a mask leaves out."""
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    return cudnn.combine_bias_and_mask(bias, mask, dtype)


def no_cudnn_mask(mask_type: Any) -> Any:
    """The mask type of cuDNN's attention that leaves nothing out."""
    return type(mask_type).NO_MASK


def can_be_told(params: Mapping[str, Any]) -> bool:
    """Whether a kernel may take one more scalar that is there before its first step: on TPUs."""
    given = type(params.get("compiler_params")).__module__
    return not any(gpu in given for gpu in ("triton", "mosaic_gpu"))


def with_place(
    kernel: Any, mapping: Any, dims: Sequence[int], local: Sequence[Sequence[bool]]
) -> tuple[Any, Any]:
    """(kernel, grid mapping) with one more operand in front: int32[dims], a device's first steps.

    The kernel, and block indices of dims that are not `local` ([operands and results][dims]), then
    count along these grid dims from there: as if this device ran all steps.
    """
    from jax._src.pallas import core as pallas
    from jax._src.pallas import primitives
    from jax.experimental.pallas import tpu

    place = tpu.SMEM((len(dims),), jax.numpy.int32).get_ref_aval()
    count = len(mapping.grid)
    own = [g for g in range(count) if g not in mapping.vmapped_dims]

    def first(place: Any, g: int) -> Any:
        return place[dims.index(g)] if g in dims else 0

    def steps(place: Any, *refs: Any) -> list[Any]:
        """What the kernel does, told where it is."""
        axes = [
            pallas.GridAxis(primitives.program_id(axis) + first(place, g), mapping.grid[g])
            for axis, g in enumerate(own)
        ]
        with pallas.grid_env(axes):
            return list(core.eval_jaxpr(kernel, (), *refs))

    def indices(block: Any, counted: Sequence[bool]) -> Callable[..., list[Any]]:
        """The index map of one operand or result, told where it is."""
        of = block.index_map_jaxpr

        def index_map(*args: Any) -> list[Any]:
            here, (place, *refs) = args[:count], args[count:]
            there = [i + first(place, g) for g, i in enumerate(here)]
            near, far = (core.eval_jaxpr(of.jaxpr, of.consts, *at, *refs) for at in (here, there))
            return [a if one else b for a, b, one in zip(near, far, counted, strict=True)]

        return index_map

    avals = (*mapping.index_map_avals[:count], place, *mapping.index_map_avals[count:])
    args, kwargs = mapping.index_map_tree.unflatten(range(mapping.index_map_tree.num_leaves))
    tree = jax.tree.structure(((*args[:count], 0, *args[count:]), kwargs))
    with mapping.trace_env():
        blocks = tuple(
            block.replace(index_map_jaxpr=ClosedJaxpr(
                _open_traced(indices(block, counted), avals, block.index_map_jaxpr.jaxpr), ()
            ))
            for block, counted in zip(mapping.block_mappings, local, strict=True)
        )  # fmt: skip
        told = _open_traced(steps, (place, *(v.aval for v in kernel.invars)), kernel)
    return told, mapping.replace(
        block_mappings=blocks, index_map_avals=avals, index_map_tree=tree,
        num_index_operands=mapping.num_index_operands + 1,
    )  # fmt: skip


def _open_traced(fn: Callable[..., list[Any]], avals: Sequence[Any], like: Any) -> Any:
    """The jaxpr of `fn` on these types, references among them; named as another one is."""
    from jax._src import linear_util

    wrapped = linear_util.wrap_init(fn, debug_info=like.debug_info.with_unknown_names())
    jaxpr, _, consts = partial_eval.trace_to_jaxpr_dynamic(wrapped, list(avals))
    assert not consts, consts
    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)[0]


_TPU_OPS = "jax.experimental.pallas.ops.tpu."
# {function of a library that is one op: (module that has it, operands)}
_LIBRARY = {
    "gmm": ("megablox.gmm", 3), "tgmm": ("megablox.gmm", 3),
    "paged_attention": ("paged_attention.paged_attention_kernel", 5),
    "ragged_paged_attention": ("ragged_paged_attention.kernel", 6),
}  # fmt: skip


def library_call(eqn: Any) -> str | None:
    """The name of a library's function that is one op, though JAX traces its insides; else None.

    Megablox that adds to an array that is there, and pages with scales are not.
    """
    name = eqn.params["name"] if eqn.primitive.name == "jit" else None
    if name not in _LIBRARY:
        return None
    module, operands = _LIBRARY[name]
    source = eqn.params["jaxpr"].jaxpr.debug_info.func_src_info or ""
    path = f"/{(_TPU_OPS + module).replace('.', '/')}.py:"
    extra = len(eqn.invars) - operands
    offset = name in ("gmm", "tgmm") and extra == 1 and eqn.invars[-1].aval.shape == ()
    if path not in source or (extra and not offset):
        return None
    return f"megablox_{name}" if module == "megablox.gmm" else str(name)


def _library(name: str) -> Any:
    """The library's function of this name."""
    return getattr(importlib.import_module(_TPU_OPS + _LIBRARY[name][0]), name)


def call_library(params: Mapping[str, Any], args: Sequence[Any]) -> Any:
    """The result of a library's function, with the static arguments of a call, on other shapes."""
    static = paged_options(params)
    return _library(params["name"])(*args, **static)


def paged_options(params: Mapping[str, Any]) -> dict[str, Any]:
    """The static arguments of a call of paged attention, read from the kernel it was traced to.

    ValueError where the kernel is not the one that they give: the call has others.
    """
    (kernel,) = [
        eqn for eqn in params["jaxpr"].jaxpr.eqns if eqn.primitive.name == "pallas_call"
    ]  # fmt: skip
    mapping = kernel.params["grid_mapping"]
    pages = mapping.scratch_avals[0].shape[1]
    types = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in params["jaxpr"].in_avals]
    caps, scales, windows = _attention_numbers(kernel.params["jaxpr"])
    options = {"pages_per_compute_block": [pages], "attn_logits_soft_cap": caps or [None]}
    if params["name"] == "ragged_paged_attention":
        queries = mapping.block_mappings[0].block_shape[0].block_size
        options = {
            "num_kv_pages_per_block": [pages], "num_queries_per_block": [queries],
            "soft_cap": caps or [None], "sliding_window": [None, *windows],
            "sm_scale": [*scales, 1.0],
        }  # fmt: skip
    fn, was = _library(params["name"]), str(params["jaxpr"])
    for values in product(*options.values()):
        guess = dict(zip(options, values, strict=True))
        traced = jax.make_jaxpr(partial(fn, **guess))(*types)
        if str(traced.eqns[-1].params["jaxpr"]) == was:
            return guess
    raise ValueError("it has options other than the default ones, which its trace does not name")


def _attention_numbers(kernel: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Numbers in a kernel that may be its soft cap, its scale or its window.

    Scores are divided by the cap before their tanh, multiplied by the scale; the window is
    subtracted from the number of a row.
    """
    caps, scales, windows = dict[Any, None](), dict[Any, None](), dict[Any, None]()
    jaxprs = [kernel]
    for jaxpr in jaxprs:
        made = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
        for eqn in jaxpr.eqns:
            jaxprs += jaxprs_in(eqn)
            name, numbers = eqn.primitive.name, {"mul": scales, "sub": windows, "tanh": caps}
            divided = made.get(eqn.invars[0]) if name == "tanh" else eqn
            last = divided.invars[-1] if divided and name in numbers else None
            if isinstance(last, Literal):
                value = np.asarray(last.val).item()
                if isinstance(value, int) == (name == "sub"):
                    numbers[name][value] = None
    return list(caps), list(scales), list(windows)


class Megablox(NamedTuple):
    """The static arguments of a grouped matrix multiplication."""

    tiling: tuple[int, int, int]  # of rows, contraction and columns of `gmm`
    transposed: bool  # the weights are [groups, columns, contraction]
    interpret: Any


def megablox_of(params: Mapping[str, Any]) -> Megablox:
    """The static arguments of a call of megablox, read from the kernel that it was traced to."""
    (kernel,) = [
        eqn for eqn in params["jaxpr"].jaxpr.eqns if eqn.primitive.name == "pallas_call"
    ]  # fmt: skip
    mapping = kernel.params["grid_mapping"]
    rows_and_k, *_, out = [
        [getattr(b, "block_size", 1) for b in m.block_shape] for m in mapping.block_mappings
    ]
    rows, k = rows_and_k
    columns = mapping.block_mappings[1].index_map_jaxpr.jaxpr  # its first grid dim, of gmm
    transposed = params["name"] == "gmm" and columns.outvars[-1] is not columns.invars[0]
    return Megablox((rows, k, out[-1]), transposed, kernel.params["interpret"])


def megablox(params: Mapping[str, Any], args: Sequence[Any], groups: int, offset: Any) -> Any:
    """The product of a call of megablox on other shapes: of so many groups from `offset` on."""
    how, fn = megablox_of(params), _library(params["name"])
    dtype = params["jaxpr"].out_avals[0].dtype
    if params["name"] == "gmm":
        return fn(
            *args, dtype, how.tiling, offset, transpose_rhs=how.transposed,
            interpret=how.interpret,
        )  # fmt: skip
    return fn(*args, dtype, how.tiling, offset, groups, interpret=how.interpret)
