# SPDX-License-Identifier: MIT
"""One call of a program to the kernel, as data, and as a line of JSON.

A record says the same whoever made it. Structures and what they point to are told by the names of
the header; nothing that can be computed from a record is stored in it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TextIO

from npukit.programs.rk3588.text import disassemble_word

VERSION = 1
_HEADER = {"format": "npukit trace", "version": VERSION}

Key = tuple[int, int]
"""A process and a descriptor or an address in it."""

REGCMD = "regcmd"
"""Type of 64-bit register command words."""
PACKET = "ert_packet"
"""Type of the bytes of an ERT packet."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What a pointer points to: ``count`` elements of ``type`` at ``address``.

    ``content`` holds structures, integers, or the bytes of characters and octets. It may end before
    ``count`` does, where that is more than is recorded, and is None where the memory could not be
    read. ``type`` is the tag of a structure, a ctypes name, REGCMD or PACKET; the address of those
    two is one of the device.
    """

    type: str
    address: int
    count: int
    content: list[Block] | list[int] | bytes | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a buffer object that changed: ``digest`` is BLAKE2b-128 of its bytes.

    ``content`` is None where an earlier chunk of this digest had it, or where that was too much.
    """

    handle: int
    offset: int
    digest: str
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """A structure: its C tag, its fields, and what those of them that are pointers point to.

    A pointer within a structure that is itself a field goes by both names: ``inv.pra``. ``data`` is
    what buffer objects hold otherwise than was recorded of them before, zeros at first: what a
    submit was sent with, and what was received when its wait ended.
    """

    struct: str
    fields: dict[str, Any]
    memory: dict[str, Memory] = field(default_factory=dict)
    data: list[Chunk] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Record:
    """One call.

    Times are nanoseconds of CLOCK_MONOTONIC. ``fd`` is the descriptor that the call is about (-1:
    none) and ``driver`` who serves it, under the name that DRM_IOCTL_VERSION gives ("" where it is
    not known). ``arguments`` are those of a call other than ioctl; an ioctl has ``number``, the
    ``request`` ("" where it is not known) and the structure as it was ``sent`` and as it was
    ``received``; the latter is None where nothing changed, and holds the memory that the kernel
    fills. A plain value or a bad pointer stands in ``arguments`` as "arg". ``result`` is what the
    call gave (mmap: the address; poll: how many are ready), ``errno`` a name or "", and ``hint``
    the driver's rule that was broken, where it is known.
    """

    call: str
    start_ns: int
    duration_ns: int
    pid: int
    thread: int
    fd: int
    driver: str
    arguments: dict[str, Any] = field(default_factory=dict)
    number: int = 0
    request: str = ""
    sent: Block | None = None
    received: Block | None = None
    result: int = 0
    errno: str = ""
    hint: str = ""

    @property
    def file(self) -> Key:
        """The process and its descriptor."""
        return self.pid, self.fd

    @property
    def answered(self) -> bool:
        """Whether it is known what the call gave; not where a thread died in it."""
        return self.result != -1 or bool(self.errno)

    @property
    def after(self) -> Block | None:
        """The structure after the call, changed or not."""
        return self.received or self.sent

    def to_json(self) -> str:
        """One line. Fields at their default are left out."""
        data = {}
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            if entry.name in ("sent", "received"):
                value = None if value is None else _block_to_json(value)
            if value not in (None, "", {}) and (value != 0 or entry.name in ("fd", "result")):
                data[entry.name] = value
        return json.dumps(data, separators=(",", ":"), default=_bytes_to_json)

    @classmethod
    def from_json(cls, line: str) -> Record:
        """The record of a line, which check() has not seen. ValueError when it is none."""
        try:
            data = json.loads(line, object_hook=_bytes_from_json)
            for name in ("sent", "received"):
                if name in data:
                    data[name] = _block_from_json(data[name])
            return cls(
                **{"start_ns": 0, "duration_ns": 0, "pid": 0, "thread": 0, "driver": "", **data}
            )
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"no record: {error}") from None


def escaped(text: str) -> str:
    """A path as it can be printed: whatever bytes it has."""
    return text if text.isascii() and text.isprintable() else ascii(text)[1:-1]


def write_header(file: TextIO) -> None:
    """Begin a trace file; a line of each record's JSON follows."""
    file.write(json.dumps(_HEADER) + "\n")


def read_trace(lines: Iterable[str]) -> Iterator[Record]:
    """The records of a trace file. ValueError names the line that is wrong.

    A last line without its end, as a killed program leaves it, is dropped.
    """
    from .check import check  # which knows what a record is

    numbered = enumerate(lines, 1)
    _number, first = next(numbered, (0, ""))
    try:
        header = json.loads(first)
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("format") != _HEADER["format"]:
        raise ValueError("line 1: not a trace of npukit")
    if header.get("version") != VERSION:
        raise ValueError(f"line 1: version {header.get('version')}, not {VERSION}")
    for number, line in numbered:
        if not line.endswith("\n"):
            return
        try:
            record = Record.from_json(line)
            check(record)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        yield record


def _block_to_json(block: Block) -> dict[str, Any]:
    data: dict[str, Any] = {"struct": block.struct, "fields": block.fields}
    if block.memory:
        data["memory"] = {name: _memory_to_json(memory) for name, memory in block.memory.items()}
    if block.data:
        rows = (dataclasses.astuple(chunk) for chunk in block.data)
        data["data"] = [row if row[-1] is not None else row[:-1] for row in rows]
    return data


def _memory_to_json(memory: Memory) -> dict[str, Any]:
    content: Any = memory.content
    data: dict[str, Any] = {
        "type": memory.type,
        "address": memory.address,
        "count": memory.count,
    }
    if memory.type == REGCMD and content is not None:
        # The words are what is read back; the listing is for those who read the file.
        data["listing"] = [disassemble_word(word) for word in content]
        content = [f"{word:#018x}" for word in content]
    elif isinstance(content, list):
        content = [
            _block_to_json(element) if isinstance(element, Block) else element
            for element in content
        ]
    return {**data, "content": content}


def _block_from_json(data: dict[str, Any]) -> Block:
    memory = {name: _memory_from_json(part) for name, part in data.get("memory", {}).items()}
    return Block(data["struct"], data["fields"], memory, [Chunk(*c) for c in data.get("data", ())])


def _memory_from_json(data: dict[str, Any]) -> Memory:
    content = data["content"]
    if data["type"] == REGCMD and content is not None:
        content = [int(word, 16) for word in content]
    elif isinstance(content, list):
        content = [
            _block_from_json(element) if isinstance(element, dict) else element
            for element in content
        ]
    return Memory(data["type"], data["address"], data["count"], content)


def _bytes_to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    raise TypeError(f"{value!r} has no form in JSON")


def _bytes_from_json(data: dict[str, Any]) -> Any:
    return bytes.fromhex(data["hex"]) if data.keys() == {"hex"} else data
