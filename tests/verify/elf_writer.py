# SPDX-License-Identifier: MIT
"""A writer of relocatable ELF files, as far as a kernel module needs it."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from npukit.verify.elf import STT_FUNC, STT_OBJECT

X86_64, AARCH64 = 62, 183
ABSOLUTE_64 = {X86_64: 1, AARCH64: 257}
_PROGBITS, _SYMTAB, _STRTAB, _RELA = 1, 2, 3, 4
_SECTION = 3

Symbol = tuple[str, int, str, int, int]
"""Name, type, section, value, size."""


def elf(
    sections: Mapping[str, bytes],
    symbols: Sequence[Symbol] = (),
    relocations: Mapping[str, Sequence[tuple[int, int, int]]] | None = None,
    machine: int = X86_64,
) -> bytes:
    """An object of ``sections``. A relocation of a section is (offset, symbol number, addend);
    symbol 0 is the null symbol, those given count from 1."""
    order = ["", *sections]
    names, table = bytearray(b"\0"), bytearray(24)
    for name, kind, section, value, size in symbols:
        table += struct.pack(
            "<IBBHQQ", len(names) if name else 0, kind, 0, order.index(section), value, size
        )
        names += name.encode() + b"\0"
    parts: list[tuple[str, int, bytes, int, int, int]] = [
        (name, _PROGBITS, data, 0, 0, 0) for name, data in sections.items()
    ]
    symtab = len(parts) + 1
    parts.append((".symtab", _SYMTAB, bytes(table), symtab + 1, 1, 24))
    parts.append((".strtab", _STRTAB, bytes(names), 0, 0, 0))
    for section, entries in (relocations or {}).items():
        data = b"".join(
            struct.pack("<QQq", offset, number << 32 | ABSOLUTE_64[machine], addend)
            for offset, number, addend in entries
        )
        parts.append((f".rela{section}", _RELA, data, symtab, order.index(section), 24))
    titles = b"\0"
    offsets = []
    for title in [*(part[0] for part in parts), ".shstrtab"]:
        offsets.append(len(titles))
        titles += title.encode() + b"\0"
    parts.append((".shstrtab", _STRTAB, titles, 0, 0, 0))
    body, headers = b"", bytes(64)
    for where, (_, kind, data, link, info, entry) in zip(offsets, parts, strict=True):
        body += bytes(-len(body) % 8)
        headers += struct.pack(
            "<IIQQQQIIQQ", where, kind, 0, 0, 64 + len(body), len(data), link, info, 8, entry
        )
        body += data
    body += bytes(-len(body) % 8)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack(
        "<HHIQQQIHHHHHH", 1, machine, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64,
        len(parts) + 1, len(parts),
    )  # fmt: skip
    return header + body + headers


def driver(
    requests: Sequence[tuple[int, str, int] | None],
    *,
    machine: int = X86_64,
    more: Mapping[str, bytes] | None = None,
) -> bytes:
    """A DRM driver's module: its request table has a (number, name, flags) or a hole for each.

    Handlers are taken in turn from global symbols and from the section of static functions.
    """
    strings, entries, relocations = b"", b"", []
    symbols: list[Symbol] = [
        ("", _SECTION, ".rodata.str1.1", 0, 0),
        ("", _SECTION, ".text", 0, 0),
        ("toy_drm_ioctls", STT_OBJECT, ".rodata", 8, 24 * len(requests)),
    ]
    for index, request in enumerate(requests):
        start = 8 + 24 * index
        if request is None:
            entries += bytes(24)
            continue
        number, name, flags = request
        entries += struct.pack("<IIQQ", number, flags, 0, 0)
        symbols.append((f"toy_{index}_ioctl", STT_FUNC, ".text", 16 * index, 16))
        handler = (len(symbols), 0) if index % 2 else (2, 16 * index)
        relocations += [(start + 8, *handler), (start + 16, 1, len(strings))]
        strings += name.encode() + b"\0"
    sections = {
        ".text": bytes(16 * len(requests)),
        ".rodata": bytes(8) + entries,
        ".rodata.str1.1": strings,
        ".modinfo": b"license=GPL\0vermagic=7.3.4-toy SMP mod_unload\0",
        **(more or {}),
    }
    return elf(sections, symbols, {".rodata": relocations}, machine)
