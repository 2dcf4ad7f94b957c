"""The environments of peers that need another version of JAX, built under build/peers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.cases import ROOT

# What pip installs; optax as the zoo's models train with it.
REQUIREMENTS = {
    "auto_sharding": ("jax[tpu]==0.6.2", "optax"),
    "parallax": ("google-parallax==0.0.2", "optax"),
}


def python_of(name: str) -> Path:
    """The interpreter of a peer's environment; built when it is not there yet."""
    folder = ROOT / "build" / "peers" / name
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *REQUIREMENTS[name]], check=True)
        (folder / "ready").touch()
    return folder / "bin" / "python"


def versions_of(python: Path | str) -> dict[str, str]:
    """The versions in an environment of what decides a result."""
    names = "('jax', 'jaxlib', 'libtpu', 'jax-cuda12-plugin', 'google-parallax', 'optax')"
    code = (
        "import json, importlib.metadata as m\n"
        f"have = {{d.metadata['Name']: d.version for d in m.distributions()}}\n"
        f"print(json.dumps({{n: have[n] for n in {names} if n in have}}))"
    )
    return json.loads(subprocess.check_output([str(python), "-c", code], text=True))
