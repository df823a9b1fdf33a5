# SPDX-License-Identifier: MIT
"""Does a record that comes from a file say what records say?

Whoever reads records relies on it: that a structure has the fields of its header, and a call its
arguments.
"""

from __future__ import annotations

import ctypes
from typing import Any

from npukit.ioctl import Struct, Union

from .names import parts, structures
from .record import REGCMD, Block, Memory, Record

_CALLS: dict[str, dict[str, type]] = {
    "open": {"path": str},
    "mmap": {"length": int, "offset": int, "prot": int, "flags": int},
    "munmap": {"address": int},
    "fcntl": {"command": int},
    "poll": {"fds": list},
    "ftruncate": {"length": int},
    "lseek": {"offset": int, "whence": int},
    "memfd_create": {"flags": int},
}
"""Call -> arguments that it has."""
_FREE = {"path": str, "name": str, "fds": list, "timeout": object}
"""Arguments that are no numbers."""


def check(record: Record) -> None:
    """ValueError, which says what is wrong."""
    for name in ("call", "driver", "request", "errno", "hint"):
        _want(name, getattr(record, name), str)
        if not getattr(record, name).isprintable():
            raise ValueError(f"{name} cannot be printed: {getattr(record, name)!r:.40}")
    for name in ("start_ns", "duration_ns", "pid", "thread", "fd", "number", "result"):
        _want(name, getattr(record, name), int)
    _want("arguments", record.arguments, dict)
    for name, value in record.arguments.items():
        _want(name, value, _FREE.get(name, int))
    for name, kind in _CALLS.get(record.call, {}).items():
        _want(f"{name} of {record.call}", record.arguments.get(name), kind)
    for pair in record.arguments.get("fds", ()):
        if not (isinstance(pair, list) and len(pair) == 2 and all(_is_number(n) for n in pair)):
            raise ValueError(f"fds: {pair!r} is no descriptor with its events")
    for block in (record.sent, record.received):
        if block is not None:
            _check_block(block)


def _want(name: str, value: Any, kind: type) -> None:
    if not (_is_number(value) if kind is int else isinstance(value, kind)):
        wanted = {int: "number", str: "text", list: "list"}.get(kind, kind.__name__)
        raise ValueError(f"{name} is no {wanted}: {value!r:.40}")


def _is_number(value: Any) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 64


def _check_block(block: Block) -> None:
    _want("struct", block.struct, str)
    _want("fields", block.fields, dict)
    kinds = structures().get(block.struct, ())
    if kinds and not any(_fits(kind, block.fields) for kind in kinds):
        raise ValueError(f"these are not the fields of {block.struct}")
    if not kinds:
        _check_value(block.fields)
    for name, memory in block.memory.items():
        _check_memory(name, memory)
    for chunk in block.data:
        for what in ("handle", "offset"):
            _want(what, getattr(chunk, what), int)
        _want("digest", chunk.digest, str)
        _want("content", chunk.content or b"", bytes)


def _check_memory(name: str, memory: Memory) -> None:
    _want("type", memory.type, str)
    _want("address", memory.address, int)
    _want("count", memory.count, int)
    content = memory.content
    if isinstance(content, list):
        kind = Block if content and isinstance(content[0], Block) else int
        for element in content:
            _want(f"an element of {name}", element, kind)
            if isinstance(element, Block):
                _check_block(element)
    elif content is not None:
        _want(f"content of {name}", content, bytes)
    if memory.type == REGCMD and content is not None:
        _want(f"content of {name}", content, list)


def _check_value(value: Any) -> None:
    if isinstance(value, dict):
        for inner in value.values():
            _check_value(inner)
    elif isinstance(value, list):
        for inner in value:
            _check_value(inner)
    elif not isinstance(value, bytes):
        _want("a field", value, int)


def _fits(ctype: Any, value: Any) -> bool:
    """Whether a value is what a C type reads as."""
    if issubclass(ctype, (Struct, Union)):
        known = dict(parts(ctype))
        return (
            isinstance(value, dict)
            and value.keys() == known.keys()
            and all(_fits(known[name], inner) for name, inner in value.items())
        )
    if ctype is ctypes.c_char or getattr(ctype, "_type_", None) is ctypes.c_char:
        return isinstance(value, bytes)
    if issubclass(ctype, ctypes.Array):
        # A flexible one has any length.
        return (
            isinstance(value, list)
            and ctype._length_ in (0, len(value))
            and all(_fits(ctype._type_, inner) for inner in value)
        )
    return _is_number(value)
