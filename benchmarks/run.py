"""Runs every benchmark: each module of this folder that has a `main(argv)`.

python benchmarks/run.py [name ...]
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def names() -> list[str]:
    """The modules of this folder, in alphabetical order."""
    return sorted(p.stem for p in HERE.glob("*.py") if p.stem not in ("run", "__init__"))


def main(wanted: list[str]) -> int:
    """Runs the wanted benchmarks, or all; returns 1 when a name is unknown or a target missed."""
    sys.path.insert(0, str(HERE.parent))
    unknown = [name for name in wanted if name not in names()]
    if unknown:
        print(f"unknown benchmark {', '.join(unknown)}; there are {', '.join(names())}")
        return 1
    missed = 0
    for name in wanted or names():
        module = importlib.import_module(f"benchmarks.{name}")
        run = getattr(module, "main", None)
        if run is None:
            continue
        print(f"=== {name}: {(module.__doc__ or '').splitlines()[0]}", flush=True)
        start = time.perf_counter()
        missed |= run([])
        print(f"--- {time.perf_counter() - start:.0f} s\n", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
