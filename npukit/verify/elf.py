# SPDX-License-Identifier: MIT
"""Sections, symbols and relocations of a kernel object, for all that npukit asks of ELF.

pyelftools finds and names the sections; symbols and relocations are read from their bytes here,
because it makes an object of each, which takes a second for a large driver. Only 64-bit
little-endian files are read. Sizes are checked against the file before pyelftools walks anything.
"""

from __future__ import annotations

import io
import struct
from typing import NamedTuple

from .errors import FormatError

_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_SECTION_HEADER_SIZE = 64
_MAX_SECTIONS = 1 << 14
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
        try:
            from elftools.elf.elffile import ELFFile
        except ImportError:
            raise FormatError(
                "reading ELF needs pyelftools: pip install 'npukit[abi]'", path=path
            ) from None
        if len(data) < _SECTION_HEADER_SIZE:
            raise self._fail("cut short in its header")
        self.machine: int = struct.unpack_from("<H", data, 18)[0]
        # With an entry size of 0 or a count of 2^64 in section 0, a reader would never end.
        entry, count = struct.unpack_from("<HH", data, 58)
        if entry != _SECTION_HEADER_SIZE or not 0 < count < _MAX_SECTIONS:
            raise self._fail(f"{count} section headers of {entry} bytes")
        try:
            sections = list(ELFFile(io.BytesIO(data)).iter_sections())
            self._headers = [section.header for section in sections]
            self._names = [section.name for section in sections]
        except Exception as error:  # pyelftools raises whatever its parser does
            raise self._fail(f"{type(error).__name__} {error}".strip()) from error

    def _fail(self, message: str) -> FormatError:
        return FormatError(f"corrupt ELF: {message}", path=self.path)

    def section(self, name: str) -> bytes | None:
        """The bytes of the first section of that name; None when there is none."""
        if name not in self._names:
            return None
        return self._bytes(self._names.index(name))

    def _bytes(self, index: int) -> bytes:
        if not 0 <= index < len(self._headers):
            raise self._fail(f"section {index} of {len(self._headers)}")
        header = self._headers[index]
        if header["sh_type"] == "SHT_NOBITS":
            return b""
        start, size = header["sh_offset"], header["sh_size"]
        if start + size > len(self._data):
            raise self._fail(f"section {self._names[index]!r} ends behind the file")
        return self._data[start : start + size]

    def _linked(self, type: str) -> list[int]:
        return [index for index, header in enumerate(self._headers) if header["sh_type"] == type]

    def symbols(self) -> list[Symbol]:
        """All symbols of .symtab, in order, the null symbol included; none in a stripped file."""
        tables = self._linked("SHT_SYMTAB")
        if not tables:
            return []
        table = self._bytes(tables[0])
        names = self._bytes(self._headers[tables[0]]["sh_link"])
        if len(table) % _SYMBOL.size:
            raise self._fail("the symbol table does not hold whole symbols")
        return [
            Symbol(self._text(names, name), info & 0xF, section, value, size)
            for name, info, _, section, value, size in _SYMBOL.iter_unpack(table)
        ]

    def _text(self, strings: bytes, offset: int) -> str:
        end = strings.find(b"\0", offset, offset + _MAX_NAME)
        if end < 0:
            raise self._fail(f"no string at byte {offset} of {len(strings)}")
        return strings[offset:end].decode("utf-8", "replace")

    def addresses(self, section: int) -> dict[int, tuple[int, int]]:
        """Where ``section`` holds addresses: offset to (symbol number, addend)."""
        wanted = _ABSOLUTE_64.get(self.machine)
        if wanted is None:
            raise FormatError(f"relocations of ELF machine {self.machine}", path=self.path)
        found: dict[int, tuple[int, int]] = {}
        for index in self._linked("SHT_RELA"):
            if self._headers[index]["sh_info"] != section:
                continue
            table = self._bytes(index)
            if len(table) % _RELOCATION.size:
                raise self._fail("a relocation table that does not hold whole relocations")
            for offset, info, addend in _RELOCATION.iter_unpack(table):
                if info & 0xFFFFFFFF == wanted:
                    found[offset] = (info >> 32, addend)
        return found

    def bytes_of(self, symbol: Symbol) -> bytes:
        """The bytes of an object in this file."""
        if not 0 < symbol.section < _SHN_LORESERVE:
            raise self._fail(f"{symbol.name} is not in a section")
        data = self._bytes(symbol.section)
        if symbol.value + symbol.size > len(data):
            raise self._fail(f"{symbol.name} ends behind its section")
        return data[symbol.value : symbol.value + symbol.size]

    def string_at(self, symbol: Symbol, addend: int) -> str:
        """The C string ``addend`` bytes behind ``symbol``."""
        if not 0 < symbol.section < _SHN_LORESERVE:
            raise self._fail(f"{symbol.name or 'a string'} is not in a section")
        return self._text(self._bytes(symbol.section), symbol.value + addend)
