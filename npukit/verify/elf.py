# SPDX-License-Identifier: MIT
"""Sections, symbols and relocations of a kernel object, for all that npukit asks of ELF.

The form of headers is pyelftools'. Its section objects are not used: they follow what a file says
without bound, and make a Python object of each symbol, which takes a second for a large driver.
Only 64-bit little-endian files are read, and every place and count is checked against the file.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from .errors import FormatError

_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_HEADER_SIZE = 64
"""Of the file's header, and of each section's."""
_MAX_SECTIONS = 1 << 14
_MAX_SYMBOLS = 1 << 17
_MAX_RELOCATIONS = 1 << 20
_MAX_NAME = 1024

STT_OBJECT = 1
STT_FUNC = 2
_SHN_LORESERVE = 0xFF00
"""Section numbers from here on are no sections."""

_ABSOLUTE_64 = {62: 1, 183: 257}
"""Machine (EM_X86_64, EM_AARCH64) and its relocation for a 64-bit address."""


class Symbol(NamedTuple):
    name: str
    type: int
    section: int
    value: int
    """Offset in the section, in a relocatable file."""
    size: int


class Elf:
    """An ELF file in memory. FormatError when it is none, or when pyelftools is not installed."""

    def __init__(self, data: bytes, *, path: str = "ELF") -> None:
        self.path = path
        self._data = data
        if data[:6] != b"\x7fELF\x02\x01":
            raise FormatError("not a 64-bit little-endian ELF file", path=path)
        if len(data) < _HEADER_SIZE:
            raise self._fail("cut short in its header")
        try:
            from elftools.elf.structs import ELFStructs
        except ImportError:
            raise FormatError(
                "reading ELF needs pyelftools: pip install 'npukit[abi]'", path=path
            ) from None
        structs = ELFStructs(little_endian=True, elfclass=64)
        structs.create_basic_structs()
        header = structs.Elf_Ehdr.parse(data[:_HEADER_SIZE])
        self.machine: int = struct.unpack_from("<H", data, 18)[0]
        structs.create_advanced_structs(header["e_type"], header["e_machine"])
        start, size, count = header["e_shoff"], header["e_shentsize"], header["e_shnum"]
        if size != _HEADER_SIZE or not 0 < count < _MAX_SECTIONS:
            raise self._fail(f"{count} section headers of {size} bytes")
        if start + size * count > len(data):
            raise self._fail("its section headers end behind the file")
        self._headers: list[Any] = [
            structs.Elf_Shdr.parse(data[place : place + size])
            for place in range(start, start + size * count, size)
        ]
        titles = header["e_shstrndx"]
        self._names = [self._text(titles, each["sh_name"]) for each in self._headers]
        self._addresses: dict[int, dict[int, tuple[int, int]]] = {}

    def _fail(self, message: str) -> FormatError:
        return FormatError(f"corrupt ELF: {message}", path=self.path)

    def section(self, name: str) -> bytes | None:
        """The bytes of the first section of that name; None when there is none."""
        return self._bytes(self._names.index(name)) if name in self._names else None

    def _range(self, index: int) -> tuple[int, int]:
        """Where a section begins and ends in the file."""
        if not 0 <= index < len(self._headers):
            raise self._fail(f"section {index} of {len(self._headers)}")
        header = self._headers[index]
        start = header["sh_offset"]
        end = start + (0 if header["sh_type"] == "SHT_NOBITS" else header["sh_size"])
        if end > len(self._data):
            raise self._fail(f"section {index} ends behind the file")
        return start, end

    def _bytes(self, index: int) -> bytes:
        start, end = self._range(index)
        return self._data[start:end]

    def _text(self, index: int, offset: int) -> str:
        """The C string at ``offset`` of a section."""
        start, end = self._range(index)
        place = start + offset
        found = self._data.find(b"\0", place, min(end, place + _MAX_NAME)) if place < end else -1
        if found < 0:
            raise self._fail(f"no string at byte {offset} of section {index}")
        return self._data[place:found].decode("utf-8", "replace")

    def _linked(self, type: str) -> list[int]:
        return [index for index, header in enumerate(self._headers) if header["sh_type"] == type]

    def symbols(self) -> list[Symbol]:
        """All symbols of .symtab, in order, the null symbol included; none in a stripped file."""
        tables = self._linked("SHT_SYMTAB")
        if not tables:
            return []
        table, names = self._bytes(tables[0]), self._headers[tables[0]]["sh_link"]
        if len(table) % _SYMBOL.size or len(table) // _SYMBOL.size > _MAX_SYMBOLS:
            raise self._fail(f"a symbol table of {len(table)} bytes")
        return [
            Symbol(self._text(names, name), info & 0xF, section, value, size)
            for name, info, _, section, value, size in _SYMBOL.iter_unpack(table)
        ]

    def addresses(self, section: int) -> dict[int, tuple[int, int]]:
        """Where ``section`` holds addresses: offset to (symbol number, addend)."""
        if section not in self._addresses:
            self._addresses[section] = self._relocations(section)
        return self._addresses[section]

    def _relocations(self, section: int) -> dict[int, tuple[int, int]]:
        wanted = _ABSOLUTE_64.get(self.machine)
        if wanted is None:
            raise FormatError(f"relocations of ELF machine {self.machine}", path=self.path)
        tables = [i for i in self._linked("SHT_RELA") if self._headers[i]["sh_info"] == section]
        found: dict[int, tuple[int, int]] = {}
        # There is one table of a section; a second could only be there to be read for long.
        for table in map(self._bytes, tables[:1]):
            count = len(table) // _RELOCATION.size
            if len(table) % _RELOCATION.size or count > _MAX_RELOCATIONS:
                raise self._fail(f"a relocation table of {len(table)} bytes")
            for offset, info, addend in _RELOCATION.iter_unpack(table):
                if info & 0xFFFFFFFF == wanted:
                    found[offset] = (info >> 32, addend)
        return found

    def bytes_of(self, symbol: Symbol) -> bytes:
        """The bytes of an object in this file."""
        start, end = self._range(self._section_of(symbol))
        if start + symbol.value + symbol.size > end:
            raise self._fail(f"{symbol.name} ends behind its section")
        return self._data[start + symbol.value : start + symbol.value + symbol.size]

    def string_at(self, symbol: Symbol, addend: int) -> str:
        """The C string ``addend`` bytes behind ``symbol``."""
        section = self._section_of(symbol)
        if symbol.value + addend < 0:
            raise self._fail(f"a string {-addend} bytes before {symbol.name or 'its section'}")
        return self._text(section, symbol.value + addend)

    def _section_of(self, symbol: Symbol) -> int:
        if not 0 < symbol.section < _SHN_LORESERVE:
            raise self._fail(f"{symbol.name or 'a symbol'} is not in a section")
        return symbol.section
