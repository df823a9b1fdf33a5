# SPDX-License-Identifier: MIT
"""Structures and what their pointers point to, read from the memory of whoever made the call."""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from npukit.ioctl import Ioctl, Pointer, Struct, Union, decode

from .meaning import MODULES
from .record import Block, Memory

Read = Callable[[int, int], bytes | None]
"""(address, size) -> the bytes, or None when not all can be read."""

LIMIT = 4 << 20
"""Bytes that are read for one call, so that a wild count costs no more."""
_STRUCT_COST = 256
"""Bytes that a structure counts for at least: it costs more to take apart than to read."""
_STRING = 256
_BEFORE, _AFTER = frozenset({"in", "inout"}), frozenset({"out", "inout"})


@functools.cache
def requests_for(driver: str) -> dict[int, Ioctl]:
    """The requests that a driver's file may be asked, its own first."""
    found: dict[int, Ioctl] = {}
    names = dict.fromkeys((MODULES.get(driver, "drm"), "drm", "dma_buf", "sync_file"))
    for name in names:
        for value in vars(importlib.import_module(f"npukit.abi.{name}")).values():
            if isinstance(value, Ioctl):
                found.setdefault(int(value), value)
    return found


def request_of(driver: str, number: int) -> Ioctl | None:
    """The request that ``number`` is for a driver.

    DRM goes by type and number alone, so a request of another size is found there, too.
    """
    number &= 0xFFFFFFFF
    requests = requests_for(driver)
    if number in requests:
        return requests[number]
    parts = decode(number)
    return next(
        (r for r in requests.values() if parts.type == ord("d") == r.type and r.nr == parts.nr),
        None,
    )


def blocks(block: Block) -> Iterator[Block]:
    """A structure and all that are reached from it."""
    yield block
    for memory in list(block.memory.values()):
        for element in memory.content or ():
            if isinstance(element, Block):
                yield from blocks(element)


@functools.cache
def pointer_names(request: Ioctl | None) -> dict[str, frozenset[str]]:
    """Structure -> the names of its pointers, for all that a request's structure leads to."""
    names: dict[str, frozenset[str]] = {}

    def walk(ctype: Any) -> None:
        if issubclass(ctype, (Struct, Union)) and ctype.__name__ not in names:
            names[ctype.__name__] = frozenset(ctype._pointers_)
            for pointer in ctype._pointers_.values():
                walk(pointer.target)

    if request is not None and request.struct is not None:
        walk(request.struct)
    return names


@functools.cache
def fills(ctype: Any) -> bool:
    """Whether a structure leads to memory that the kernel fills."""
    if not issubclass(ctype, (Struct, Union)):
        return False
    inner = [field[1] for field in ctype._fields_]
    pointers = ctype._pointers_.values()
    return any(p.direction in _AFTER or _leads_out(p, _AFTER) for p in pointers) or any(
        fills(part) for part in inner if isinstance(part, type)
    )


class Follower:
    """Reads the structures of one call, at most ``limit`` bytes of them."""

    def __init__(self, read: Read, limit: int = LIMIT) -> None:
        self._read = read
        self._left = limit

    def sent(self, ctype: Any, data: bytes) -> Block:
        """A structure before the call, with the memory that the kernel reads."""
        return self._block(ctype, data, _BEFORE, None)

    def received(self, ctype: Any, data: bytes, sent: Block | None) -> Block:
        """The structure after the call, with the memory that the kernel fills.

        Counts that came back do not reach past those that were ``sent``.
        """
        return self._block(ctype, data, _AFTER, sent)

    def failed(self, ctype: Any, data: bytes) -> Block:
        """The structure after a call that failed, which fills no memory."""
        return self._block(ctype, data, frozenset(), None)

    def take(self, count: int, size: int, cost: int = 0) -> int:
        """How many of ``count`` elements of ``size`` bytes may still be read."""
        cost = max(size, cost)
        taken = min(count, self._left // cost)
        self._left -= taken * cost
        return taken

    def take_structs(self, count: int, size: int) -> int:
        """The same of structures."""
        return self.take(count, size, _STRUCT_COST)

    def _block(self, ctype: Any, data: bytes, ways: frozenset[str], sent: Block | None) -> Block:
        size = ctypes.sizeof(ctype)
        value = ctype.from_buffer_copy(data[:size].ljust(size, b"\0"))
        if not isinstance(value, (Struct, Union)):
            return Block(ctype.__name__, {"value": value.value})
        memory: dict[str, Memory] = {}
        self._pointers(value, "", ways, sent, memory)
        return Block(ctype.__name__, value.asdict(), memory)

    def _pointers(
        self,
        value: Any,
        prefix: str,
        ways: frozenset[str],
        sent: Block | None,
        memory: dict[str, Memory],
    ) -> None:
        for name, pointer in value._pointers_.items():
            address = getattr(value, name)
            if address and (pointer.direction in ways or _leads_out(pointer, ways)):
                found = self._memory(value, address, pointer, ways, sent)
                if found.count:
                    memory[prefix + name] = found
        for name in value.fields():
            inner = getattr(value, name)
            if isinstance(inner, (Struct, Union)):
                self._pointers(inner, f"{prefix}{name}.", ways, None, memory)

    def _memory(
        self, value: Any, address: int, pointer: Pointer, ways: frozenset[str], sent: Block | None
    ) -> Memory:
        target = pointer.target
        if target is ctypes.c_char and pointer.count is None:
            text = self._string(address)
            return Memory("c_char", address, 1 if text is None else len(text), text)
        count, stride = extent(value, pointer)
        if sent is not None and pointer.count in sent.fields:
            count = min(count, sent.fields[pointer.count])
        size = ctypes.sizeof(target)
        structs = issubclass(target, (Struct, Union))
        if not structs:
            # Elements of which only the size is known are so many octets.
            count, stride = count * stride // size, size
        taken = (self.take_structs if structs else self.take)(count, stride)
        last = min(size, stride)
        data = self._read(address, (taken - 1) * stride + last) if taken else b""
        content: list[Block] | list[int] | bytes | None = data
        if data is not None and structs:
            rows = (data[stride * n : stride * n + last] for n in range(taken))
            content = [self._block(target, row, ways, None) for row in rows]
        elif data is not None and size > 1:
            content = list((target * taken).from_buffer_copy(data))
        return Memory(target.__name__, address, count, content)

    def _string(self, address: int) -> bytes | None:
        """A C string. It may end just before memory that cannot be read."""
        data = b""
        while len(data) < _STRING:
            # A piece never crosses a multiple of its size, so neither does it cross a page.
            piece = self._read(address + len(data), 16 - (address + len(data)) % 16)
            if piece is None:
                return data or None
            data += piece
            if b"\0" in piece:
                break
        return data.partition(b"\0")[0]


def extent(value: Any, pointer: Pointer) -> tuple[int, int]:
    """(number of elements, bytes from one to the next) of what ``pointer`` in ``value`` names."""
    count = 1 if pointer.count is None else max(int(getattr(value, pointer.count)), 0)
    stride = int(getattr(value, pointer.stride)) if pointer.stride else 0
    return count, stride if stride > 0 else ctypes.sizeof(pointer.target)


def _leads_out(pointer: Pointer, ways: frozenset[str]) -> bool:
    """After a call, what the kernel only read is read again for what is filled behind it."""
    inner = getattr(pointer.target, "_pointers_", {})
    return ways is _AFTER and any(
        deeper.direction in ways or _leads_out(deeper, ways) for deeper in inner.values()
    )
