"""Optimised HLO text as computations and instructions.

A reader, not a compiler: it keeps what a referee asks about (shapes, callees, attributes, source
lines) and leaves the rest of the line unparsed. CPU, GPU and TPU dialects print alike here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_NAME = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_SHAPE = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,<= ]*)\]")
_OPERAND = re.compile(r"%([\w.\-]+)")
_INTEGER = re.compile(r"\d+")

# Types whose width is not the first number in their name.
_ODD_BITS = {"pred": 8, "token": 0, "opaque": 0}


@dataclass(frozen=True)
class Instruction:
    """One line of HLO: `%name = type opcode(operands), attributes`."""

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    arguments: str  # the text between the parentheses: a literal for constants
    attributes: str
    is_root: bool

    def attribute(self, name: str) -> str | None:
        """The text of a `name=value` attribute up to its closing bracket or comma."""
        found = re.search(rf"(?:^|[\s,]){name}=", self.attributes)
        return None if found is None else _balanced(self.attributes, found.end(), stop=",")

    def callees(self, kind: str) -> tuple[str, ...]:
        """The computations that an attribute such as `calls` or `body` names."""
        text = self.attribute(kind)
        return tuple(_OPERAND.findall(text)) if text else ()


@dataclass
class Computation:
    """A named list of instructions in schedule order."""

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)

    @cached_property
    def root(self) -> Instruction:
        """The instruction whose value the computation returns."""
        rows = list(self.instructions.values())
        return next((row for row in rows if row.is_root), rows[-1])

    @cached_property
    def parameters(self) -> dict[str, int]:
        """The position of each parameter by name."""
        return {
            row.name: int(row.arguments)
            for row in self.instructions.values()
            if row.opcode == "parameter"
        }


@dataclass(frozen=True)
class Module:
    """All computations of a compiled program and the source line of each stack frame."""

    computations: dict[str, Computation]
    entry: str
    frames: dict[int, str]  # stack_frame_id -> "file.py:12"

    def computation(self, name: str) -> Computation:
        """The computation of this name; an empty one where the text has none."""
        return self.computations.get(name) or Computation(name)


def parse(text: str) -> Module:
    """The Module written in optimised HLO text (`jax.stages.Compiled.as_text()`)."""
    computations: dict[str, Computation] = {}
    entry, current = "", None
    for line in text.splitlines():
        # A kernel's metadata is written over several lines, the last of which begins with }}.
        if current is not None and line.startswith("}") and not line.startswith("}}"):
            current = None
        elif current is not None:
            if row := _instruction(line):
                current.instructions[row.name] = row
        elif line.endswith("{") and (header := _HEADER.match(line)):
            current = computations[header[2]] = Computation(header[2])
            entry = header[2] if header[1] else entry
    return Module(computations, entry or next(reversed(computations), ""), _frames(text))


def _instruction(line: str) -> Instruction | None:
    """The instruction on a line of HLO text, or None where there is none."""
    start = _NAME.match(line)
    if start is None:
        return None
    type_ = _balanced(line, start.end(), stop=" ")
    rest = start.end() + len(type_) + 1
    open_ = line.find("(", rest)
    if open_ < 0:
        return None
    arguments = _balanced(line, open_ + 1, stop="\n")  # ends at the unmatched parenthesis
    return Instruction(
        name=start[2],
        type=type_,
        opcode=line[rest:open_].strip(),
        operands=tuple(_OPERAND.findall(arguments)),
        arguments=arguments,
        attributes=line[open_ + len(arguments) + 2 :].lstrip(", "),
        is_root=start[1] is not None,
    )


_BRACKETS = {
    stop: re.compile(r'[(){}\[\]]|"(?:[^"\\]|\\.)*"|' + re.escape(stop)) for stop in " ,\n"
}


def _balanced(text: str, start: int, *, stop: str) -> str:
    """The text from `start` to the first `stop` outside brackets and quotes, or to the end."""
    depth = 0
    for mark in _BRACKETS[stop].finditer(text, start):
        token = mark[0]
        if token in "([{":
            depth += 1
        elif token in ")]}":
            depth -= 1
            if depth < 0:
                return text[start : mark.start()]
        elif token == stop and depth == 0:
            return text[start : mark.start()]
    return text[start:]


def _frames(text: str) -> dict[int, str]:
    """The source line behind each stack_frame_id, from the tables above the computations."""
    files = dict(re.findall(r'^(\d+) "([^"]*)"$', _table(text, "FileNames"), re.M))
    locations = {
        number: f"{files.get(file, '?')}:{line}"
        for number, file, line in re.findall(
            r"^(\d+) \{file_name_id=(\d+).*?\bline=(\d+)", _table(text, "FileLocations"), re.M
        )
    }
    frames = re.findall(r"^(\d+) \{file_location_id=(\d+)", _table(text, "StackFrames"), re.M)
    return {int(number): locations.get(place, "") for number, place in frames}


def _table(text: str, title: str) -> str:
    start = text.find(f"\n{title}\n")
    return "" if start < 0 else text[start : text.find("\n\n", start + 1)]


def elements(type_: str) -> list[str]:
    """The members of a tuple type, or the type itself."""
    type_ = re.sub(r"/\*.*?\*/", "", type_).strip()
    if not type_.startswith("("):
        return [type_]
    members, at, end = [], 1, len(type_) - 1
    while at < end:
        member = _balanced(type_, at, stop=",")
        members.append(member.strip())
        at += len(member) + 1
    return members


def size_bytes(type_: str) -> int:
    """The logical bytes of a type, without the padding of tiled layouts; tuples add up."""
    bits = 0
    for dtype, dims in _SHAPE.findall(type_):
        count = 1
        for dim in integers(dims):  # a dynamic dim `<=8` counts its bound
            count *= dim
        bits += -(-count * _width(dtype) // 8) * 8
    return bits // 8


def integers(text: str) -> tuple[int, ...]:
    """The integers in a text, none of them negative."""
    return tuple(map(int, _INTEGER.findall(text)))


def _width(dtype: str) -> int:
    return _ODD_BITS[dtype] if dtype in _ODD_BITS else next(iter(integers(dtype)), 0)
