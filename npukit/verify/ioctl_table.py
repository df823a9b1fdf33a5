# SPDX-License-Identifier: MIT
"""The table of requests that a DRM driver's module carries.

``struct drm_ioctl_desc`` (include/drm/drm_ioctl.h) is {u32 cmd, u32 flags, handler, name}.
In a module file both addresses are zero and filled by relocations, which name the handler's symbol
and the place of the name. The index of an entry is the request's number minus DRM_COMMAND_BASE.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from npukit.abi.drm import DRM_IOCTL_BASE
from npukit.ioctl import decode

from .elf import STT_FUNC, STT_OBJECT, Elf, Symbol
from .errors import FormatError

_ENTRY = struct.Struct("<IIQQ")
_HANDLER, _NAME = 8, 16
_MAX_ENTRIES = 256
"""A request number has 8 bits for it."""
_MAX_TABLES = 16

FLAGS = {1 << 0: "AUTH", 1 << 1: "MASTER", 1 << 2: "ROOT_ONLY", 1 << 5: "RENDER_ALLOW"}
"""enum drm_ioctl_flags: who may make the request."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A request as the kernel has it: its ``number``, the macro it was declared by (without the
    prefix DRM_IOCTL_), the ``flags`` that guard it, and its ``handler``'s symbol."""

    number: int
    name: str
    flags: int
    handler: str

    @property
    def guard(self) -> str:
        """The flags in words."""
        return "|".join(word for bit, word in FLAGS.items() if self.flags & bit) or "none"


def tables(elf: Elf) -> dict[str, list[Entry]]:
    """Every DRM request table of a module, by its symbol; holes in a table are left out.

    FormatError when a table is there and cannot be read.
    """
    symbols = elf.symbols()
    # A static handler is addressed by its section, as an offset in it.
    functions = {(s.section, s.value): s.name for s in symbols if s.type == STT_FUNC}
    found: dict[str, list[Entry]] = {}
    for symbol in symbols:
        shaped = symbol.size and symbol.size % _ENTRY.size == 0
        if symbol.type == STT_OBJECT and symbol.name.endswith("ioctls") and shaped:
            if len(found) == _MAX_TABLES:
                raise FormatError(f"corrupt ELF: more than {_MAX_TABLES} tables", path=elf.path)
            found[symbol.name] = _table(elf, symbol, symbols, functions)
    return {name: entries for name, entries in found.items() if entries}


def _table(
    elf: Elf, table: Symbol, symbols: list[Symbol], functions: dict[tuple[int, int], str]
) -> list[Entry]:
    count = table.size // _ENTRY.size
    if count > _MAX_ENTRIES:
        raise FormatError(f"corrupt ELF: {table.name} has {count} entries", path=elf.path)
    addresses = elf.addresses(table.section)
    entries = []
    for index, (number, flags, _, _) in enumerate(_ENTRY.iter_unpack(elf.bytes_of(table))):
        start = table.value + index * _ENTRY.size
        name, handler = addresses.get(start + _NAME), addresses.get(start + _HANDLER)
        if name is None or handler is None:
            if number and decode(number).type == DRM_IOCTL_BASE:
                raise FormatError(f"{table.name}[{index}] lacks its relocations", path=elf.path)
            continue
        for target, _ in (name, handler):
            if target >= len(symbols):
                raise FormatError(
                    f"corrupt ELF: {table.name}[{index}] refers to symbol {target} of "
                    f"{len(symbols)}",
                    path=elf.path,
                )
        text = elf.string_at(symbols[name[0]], name[1])
        called = symbols[handler[0]]
        place = (called.section, called.value + handler[1])
        entries.append(Entry(number, text, flags, called.name or functions.get(place, "")))
    return entries
