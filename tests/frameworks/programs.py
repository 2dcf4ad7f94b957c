"""The table of framework programs: add a function that returns (fn, args) to a module below."""

from collections.abc import Callable

from tests.frameworks import (
    equinox_programs,
    flax_programs,
    haiku_programs,
    keras_programs,
    optax_programs,
)
from tests.frameworks.shapes import Program

PROGRAMS: dict[str, Callable[[], Program]] = {
    f"{module.__name__.rsplit('.', 1)[1].removesuffix('_programs')}:{name}": make
    for module in (
        flax_programs,
        equinox_programs,
        haiku_programs,
        optax_programs,
        keras_programs,
    )
    for name, make in vars(module).items()
    if callable(make) and getattr(make, "__annotations__", {}).get("return") is Program
    if not name.startswith("_")
}
