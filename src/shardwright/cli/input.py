"""What users write on the command line, read into values: meshes, memory, tactics, functions."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from shardwright import search
from shardwright.errors import ShardwrightError

_UNITS = {"": 1.0, "B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_UNITS |= {"KIB": 2.0**10, "MIB": 2.0**20, "GIB": 2.0**30, "TIB": 2.0**40}
_INTEGER = re.compile(r"[0-9]{1,30}")  # str.isdigit() also takes ², which int() does not read


def parse_mesh(text: str) -> dict[str, int | None] | int:
    """{"data": 4, "model": 4} of data=4,model=4; ? is an open size; a number a device count."""
    if _INTEGER.fullmatch(text.strip()):
        return int(text)
    found: dict[str, int | None] = {}
    for part in text.replace(" x ", ",").split(","):
        name, _, size = part.strip().partition("=")
        name, size = name.strip(), size.strip()
        if not name or name in found or not (_INTEGER.fullmatch(size) or size == "?"):
            raise ShardwrightError(f"cannot read mesh {text!r:.60}", try_="data=4,model=4, or 16")
        found[name] = None if size == "?" else int(size)
    return found


def parse_bytes(text: str) -> int:
    """Bytes of 16GB, 15.5GiB or 16e9."""
    found = re.fullmatch(
        r"((?:[0-9]{1,30}(?:\.[0-9]*)?|\.[0-9]+)(?:E[0-9][0-9]?)?)\s*([A-Z]*)",
        text.strip().upper(),
    )
    if found is None or found[2] not in _UNITS:
        raise ShardwrightError(f"cannot read memory {text!r:.60}", try_="16GB, 15.5GiB or 16e9")
    return int(float(found[1]) * _UNITS[found[2]])


def parse_tactic(text: str) -> Any:
    """The tactic that a baseline's name stands for: FSDP(data), ZeRO-2(data), Search."""
    found = re.fullmatch(r"\s*([A-Za-z]+)(?:-([0-9]))?\s*(?:\((.*)\))?\s*", text)
    names = [n for n in search.__all__ if isinstance(getattr(search, n), type)]
    names = [n for n in names if issubclass(getattr(search, n), search.Tactic) and n != "Tactic"]
    if found is None or found.group(1) not in names:
        raise ShardwrightError(f"unknown tactic {text!r}", try_=", ".join(names))
    name, stage, inner = found.groups()
    given: list[Any] = [part.strip().strip("'\"") for part in (inner or "").split(",")]
    given = [int(part) if _INTEGER.fullmatch(part) else part for part in given if part]
    if stage:
        given.insert(0, int(stage))
    if name == "Search":
        given = [given] if given else []
    elif name == "Limit":  # Limit(axis, label, ...)
        given = [*given[:1], given[1:]]
    elif name == "Pin" and len(given) == 2:  # Pin(label, axis)
        given.insert(1, None)
    tactic = getattr(search, name)
    try:
        return tactic(*given)
    except TypeError:
        wanted = ", ".join(inspect.signature(tactic).parameters)
        raise ShardwrightError(f"cannot read tactic {text!r}", try_=f"{name}({wanted})") from None


class TargetCall(NamedTuple):
    """A function to plan, with the arguments of a call."""

    fn: Any
    args: tuple[Any, ...]
    donated: tuple[int, ...] = ()


def find_call(target: str, arguments: str) -> TargetCall:
    """The call that FILE.py:FUNCTION, package.module:FUNCTION or zoo:NAME stands for."""
    if target.startswith("zoo:"):
        return _zoo_call(target.removeprefix("zoo:"))
    module, fn = find_object(target)
    return TargetCall(fn, find_arguments(module, arguments))


def _zoo_call(name: str) -> TargetCall:
    """A program of the zoo: NAME, or NAME:tiny."""
    from shardwright.zoo import programs  # needs optax, which only the zoo does

    name, _, size = name.partition(":")
    known = programs(size or "full")
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3) or list(known)[:3]
        raise ShardwrightError(
            f"no program {name!r} of size {size or 'full'} in the zoo",
            try_=", ".join(f"zoo:{one}" for one in near) + "; `shardwright zoo` lists all",
        )
    example = known[name]
    return TargetCall(example.fn, example.args, example.donate_argnums)


def find_object(target: str) -> tuple[Any, Any]:
    """(module, object) of FILE.py:NAME or package.module:NAME."""
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise ShardwrightError(f"cannot read {target!r}", try_="train.py:train_step")
    module = _import(where)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = [one for one, item in vars(found).items()
                      if one[0] != "_" and inspect.isfunction(item)]  # fmt: skip
            near = difflib.get_close_matches(part, dir(found), n=3) or public[:6]
            raise ShardwrightError(f"{where} has no {name!r}", try_=", ".join(near) or None)
        found = getattr(found, part)
    return module, found


def _import(where: str) -> Any:
    """The module at a path or of a dotted name; ShardwrightError where it cannot be imported."""
    try:
        if not where.endswith(".py"):
            sys.path.insert(0, "")
            return importlib.import_module(where)
        path = Path(where)
        if not path.is_file():
            raise ShardwrightError(f"no file {where}", try_="a path from the current directory")
        sys.path.insert(0, str(path.parent.resolve()))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module
    except ShardwrightError:
        raise
    except Exception as error:
        _failed(f"cannot import {where}", error, try_="a file like train.py, or a module's name")


def find_arguments(module: Any, text: str) -> tuple[Any, ...]:
    """The arguments: of a function of the module, or an expression over its names."""
    try:
        found = eval(text, vars(module))
        if callable(found):
            found = found()
    except ShardwrightError:
        raise
    except Exception as error:
        _failed(
            f"cannot make the arguments {text!r}", error,
            try_="--args with a function of that file, or an expression over its names",
        )  # fmt: skip
    return tuple(found) if type(found) in (tuple, list) else (found,)


def _failed(what: str, error: Exception, *, try_: str) -> NoReturn:
    """Raises what went wrong in the user's code, and where."""
    ours = ("shardwright/cli", "importlib", "<string>")
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if not any(part in f.filename for part in ours)
    ]
    at = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None
    cause = f"{type(error).__name__}: {error}"
    raise ShardwrightError(what, cause=cause, at=at, try_=try_) from error
