# SPDX-License-Identifier: MIT
"""BTF, the type information that a kernel carries about itself (include/uapi/linux/btf.h).

A module's BTF is split: its type numbers and string offsets go on where those of its base, the
kernel's own BTF, end. Nothing here trusts what it reads: every reference is checked, recursion and
output are bounded, and whatever is wrong is a FormatError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .errors import FormatError
from .interface import Field, Interface, Layout

MAGIC = b"\x9f\xeb\x01"
"""Magic and version of little-endian BTF, which is what x86-64 and AArch64 kernels have."""

(
    VOID,
    INT,
    PTR,
    ARRAY,
    STRUCT,
    UNION,
    ENUM,
    FWD,
    TYPEDEF,
    VOLATILE,
    CONST,
    RESTRICT,
    FUNC,
    FUNC_PROTO,
    VAR,
    DATASEC,
    FLOAT,
    DECL_TAG,
    TYPE_TAG,
    ENUM64,
) = range(20)

_TRANSPARENT = frozenset({TYPEDEF, VOLATILE, CONST, RESTRICT, TYPE_TAG})
_COMPOSITE = frozenset({STRUCT, UNION})
_SINGLE = {INT: 1, ARRAY: 3, VAR: 1, DECL_TAG: 1}
"""Words that follow a type's own three, once."""
_REPEATED = {STRUCT: 3, UNION: 3, ENUM: 2, FUNC_PROTO: 2, DATASEC: 3, ENUM64: 3}
"""Words that follow for each of the type's ``vlen`` elements."""

_HEADER = struct.Struct("<HBBIIIII")
_LAYOUT_HEADER_SIZE = 32
"""A header that long also places a table of the kinds' sizes."""
_KINDS = 128
_UNSIZED = 1 << 40
"""Stands for the size of a kind that nobody told: it leads out of any section."""

_MAX_SECTION = 48 << 20
"""Ten times what the largest kernel has."""
_MAX_HOPS = 64
_MAX_DEPTH = 32
_MAX_MEMBERS = 1 << 16
_MAX_NAME = 1024
"""Twice what the kernel allows a symbol (KSYM_NAME_LEN)."""
_MAX_NAMESAKES = 16
"""Structures of one tag that are looked at."""
_POINTER_SIZE = 8


class _Type(NamedTuple):
    number: int
    position: int
    """Index of its first word among those of its own section."""
    owner: Btf
    kind: int
    vlen: int
    flag: bool
    value: int
    """Size in bytes or type number, as the kind has it."""


class Btf:
    """The types of a kernel, or of a module on top of its ``base``.

    ``data`` is a whole BTF section. FormatError when its frame is broken; a broken type is found
    when it is asked for.
    """

    def __init__(
        self, data: bytes | bytearray | memoryview, base: Btf | None = None, *, path: str = "BTF"
    ) -> None:
        self.path = path
        self.base = base
        data = memoryview(data).toreadonly()
        types, self._strings, kinds = self._sections(data)
        self._words = types.cast("I")
        self._positions: list[int] = []
        self._named: list[int] = []
        self._first_id: int = base.total if base else 1
        self._first_string: int = base._end_of_strings if base else 0
        self._end_of_strings: int = self._first_string + len(self._strings)
        self._walk(kinds)
        self.total: int = self._first_id + len(self._positions)
        """Type numbers so far, base and void included."""
        self._names: dict[str, list[int]] | None = None

    def _fail(self, message: str) -> FormatError:
        return FormatError(f"corrupt BTF: {message}", path=self.path)

    def _sections(self, data: memoryview) -> tuple[memoryview, bytes, memoryview]:
        if len(data) < _HEADER.size:
            raise self._fail(f"{len(data)} bytes are shorter than a header")
        if bytes(data[:2]) == MAGIC[1::-1]:
            raise FormatError("big-endian BTF is not supported", path=self.path)
        if bytes(data[:3]) != MAGIC:
            raise FormatError(f"not BTF: begins with {bytes(data[:4]).hex(' ')}", path=self.path)
        _, _, _, length, type_off, type_len, str_off, str_len = _HEADER.unpack_from(data)
        if not _HEADER.size <= length <= len(data):
            raise self._fail(f"a header of {length} bytes")
        layout_off = layout_len = 0
        if length >= _LAYOUT_HEADER_SIZE:
            layout_off, layout_len = struct.unpack_from("<II", data, _HEADER.size)
        body = data[length:]
        for name, offset, size in (
            ("type", type_off, type_len),
            ("string", str_off, str_len),
            ("layout", layout_off, layout_len),
        ):
            if size > _MAX_SECTION:
                raise self._fail(f"the {name} section has {size} bytes")
            if offset + size > len(body):
                raise self._fail(
                    f"the {name} section, {size} bytes at {offset}, ends behind byte {len(body)}"
                )
        if type_off % 4 or type_len % 4 or layout_off % 4 or layout_len % 4:
            raise self._fail("a section that is not made of 32-bit words")
        strings = bytes(body[str_off : str_off + str_len])
        if strings and strings[-1]:
            raise self._fail("the string section does not end in a NUL")
        return (
            body[type_off : type_off + type_len],
            strings,
            body[layout_off : layout_off + layout_len],
        )

    def _walk(self, kinds: memoryview) -> None:
        """Find where each type starts, which only the sizes of all types before it tell."""
        single = [_UNSIZED] * _KINDS
        repeated = [0] * _KINDS
        for kind in range(1, ENUM64 + 1):
            single[kind] = 3 + _SINGLE.get(kind, 0)
            repeated[kind] = _REPEATED.get(kind, 0)
        # Kinds younger than this file can be stepped over where the kernel tells their sizes.
        for kind in range(ENUM64 + 1, min(len(kinds) // 4, _KINDS)):
            info_size, element_size = kinds[4 * kind], kinds[4 * kind + 1]
            if info_size % 4 or element_size % 4:
                raise self._fail(f"kind {kind} is not made of 32-bit words")
            single[kind] = 3 + info_size // 4
            repeated[kind] = element_size // 4
        words = self._words
        end = len(words)
        positions, named = self._positions, self._named
        note, note_named = positions.append, named.append
        position = 0
        try:
            while position < end:
                info = words[position + 1]
                kind = info >> 24 & 0x7F
                # A struct, union, enum or enum64: what is looked up by name.
                if 4 <= kind <= 6 or kind == 19:
                    note_named(len(positions))
                note(position)
                position += single[kind] + repeated[kind] * (info & 0xFFFFFF)
        except IndexError:
            position = end + 1
        if position >= _UNSIZED:
            raise self._fail(
                f"type {self._first_id + len(positions) - 1} is of the unknown kind {kind}"
            )
        if position != end:
            raise self._fail("the last type ends behind its section")

    # One type

    def _type(self, number: int) -> _Type:
        owner = self
        while number < owner._first_id and owner.base:
            owner = owner.base
        index = number - owner._first_id
        if not 0 <= index < len(owner._positions):
            raise self._fail(f"type {number} of {self.total}")
        position = owner._positions[index]
        info, value = owner._words[position + 1], owner._words[position + 2]
        kind, vlen = info >> 24 & 0x7F, info & 0xFFFFFF
        return _Type(number, position, owner, kind, vlen, bool(info >> 31), value)

    def _string(self, offset: int) -> str:
        owner = self
        while offset < owner._first_string and owner.base:
            owner = owner.base
        start = offset - owner._first_string
        end = owner._strings.find(b"\0", start, start + _MAX_NAME)
        if end < 0:
            raise self._fail(f"string {offset} of {self._end_of_strings}")
        return owner._strings[start:end].decode("utf-8", "replace")

    def _name(self, found: _Type) -> str:
        return found.owner._string(found.owner._words[found.position])

    def _elements(self, found: _Type, width: int) -> Iterator[tuple[int, ...]]:
        words = found.owner._words
        for index in range(found.vlen):
            start = found.position + 3 + index * width
            yield tuple(words[start : start + width])

    def _resolved(self, number: int) -> _Type:
        """The type behind typedefs and qualifiers."""
        for _ in range(_MAX_HOPS):
            found = self._type(number)
            if found.kind not in _TRANSPARENT:
                return found
            number = found.value
        raise self._fail(f"type {number} goes round in circles")

    # By name

    def find(self, name: str, kinds: Iterable[int] = _COMPOSITE) -> list[int]:
        """Numbers of this BTF's own types of that name and those ``kinds``, not its base's."""
        if self._names is None:
            self._names = {}
            for index in self._named:
                offset = self._words[self._positions[index]]
                if offset:
                    spelt = self._string(offset)
                    self._names.setdefault(spelt, []).append(self._first_id + index)
        wanted = frozenset(kinds)
        return [number for number in self._names.get(name, ()) if self._type(number).kind in wanted]

    def layout(self, number: int) -> Layout:
        """The layout of a structure or union."""
        found = self._resolved(number)
        if found.kind not in _COMPOSITE:
            raise self._fail(f"type {number} is no structure")
        budget = [_MAX_MEMBERS]
        kind = "struct" if found.kind == STRUCT else "union"
        return Layout(self._name(found), kind, found.value, self._members(found, 0, budget))

    def enumerators(self, number: int) -> dict[str, int]:
        """Names and values of an enumeration."""
        found = self._resolved(number)
        values: dict[str, int] = {}
        if found.kind == ENUM:
            for name, value in self._elements(found, 2):
                negative = found.flag and value >> 31
                values[found.owner._string(name)] = value - (1 << 32) if negative else value
        elif found.kind == ENUM64:
            for name, low, high in self._elements(found, 3):
                value = high << 32 | low
                negative = found.flag and value >> 63
                values[found.owner._string(name)] = value - (1 << 64) if negative else value
        else:
            raise self._fail(f"type {number} is no enumeration")
        return values

    def interface(self, tags: Iterable[str], constants: Iterable[str]) -> Interface:
        """What this BTF says about these structures and constants, base included.

        Constants are those of enumerations, the only ones that BTF knows. One that has a few names
        in common with ``constants`` by accident is another's: more than half must be named there.
        """
        result = Interface()
        for tag in tags:
            owner: Btf | None = self
            while owner and not (ids := owner.find(tag)):
                owner = owner.base
            if owner:
                result.layouts[tag] = tuple(owner.layout(number) for number in ids[:_MAX_NAMESAKES])
        # A kernel that has none of the structures does not have the driver either.
        wanted = frozenset(constants) if result.layouts else frozenset()
        for number in self._enumerations(wanted):
            values = self.enumerators(number)
            if 2 * len(wanted & values.keys()) > len(values):
                result.constants.update(values)
        return result

    def _enumerations(self, wanted: frozenset[str]) -> Iterator[int]:
        """Numbers of own enumerations whose first or last name is wanted: a kernel has thousands,
        and decoding them all takes longer than everything else."""
        if not wanted:
            return
        words = self._words
        for index in self._named:
            position = self._positions[index]
            kind, vlen = words[position + 1] >> 24 & 0x7F, words[position + 1] & 0xFFFFFF
            if kind in (ENUM, ENUM64) and vlen:
                last = position + 3 + (vlen - 1) * _REPEATED[kind]
                if any(self._string(words[place]) in wanted for place in (position + 3, last)):
                    yield self._first_id + index

    # Members

    def _members(self, found: _Type, depth: int, budget: list[int]) -> tuple[Field, ...]:
        budget[0] -= found.vlen
        if budget[0] < 0 or depth > _MAX_DEPTH:
            raise self._fail(f"type {found.number} does not end")
        return tuple(
            self._member(found.owner._string(name), ctype, where, found.flag, depth, budget)
            for name, ctype, where in self._elements(found, 3)
        )

    def _member(
        self, name: str, ctype: int, where: int, flag: bool, depth: int, budget: list[int]
    ) -> Field:
        # With the flag set the offset shares its word with the width of a bit-field.
        position, bits = (where & 0xFFFFFF, where >> 24) if flag else (where, 0)
        inner, dims = self._element(ctype)
        size, text = self._scalar(inner)
        if inner.kind == INT and not bits:
            # Before the flag existed, an integer type of its own carried offset and width.
            encoding = inner.owner._words[inner.position + 3]
            width, shift = encoding & 0xFF, encoding >> 16 & 0xFF
            if width != 8 * size:
                bits, position = width, position + shift
        members: tuple[Field, ...] = ()
        if inner.kind in _COMPOSITE and not self._name(inner):
            members = self._members(inner, depth + 1, budget)
        if position % 8 and not bits:
            raise self._fail(f"member {name!r} starts inside a byte")
        offset, bit = divmod(position, 8)
        if bits:
            # As C has it: the storage unit, and the bit in it.
            unit = max(size, 1)
            bit += 8 * (offset % unit)
            offset -= offset % unit
        return Field(name, text, offset, size, dims, bits, bit, members)

    def _element(self, number: int) -> tuple[_Type, tuple[int, ...]]:
        """What an array of arrays holds at last, and its dimensions."""
        dims: list[int] = []
        for _ in range(_MAX_HOPS):
            found = self._resolved(number) if number else None
            if found is None:
                raise self._fail("a member without a type")
            if found.kind != ARRAY:
                return found, tuple(dims)
            number, _, length = found.owner._words[found.position + 3 : found.position + 6]
            dims.append(length)
        raise self._fail(f"array {number} does not end")

    def _scalar(self, found: _Type) -> tuple[int, str]:
        """Size in bytes and the text of Field.type."""
        kind, size = found.kind, found.value
        if kind == PTR:
            return _POINTER_SIZE, "pointer"
        if kind == INT:
            encoding = found.owner._words[found.position + 3] >> 24 & 0xF
            if encoding & 4:
                return size, "bool"
            name = self._name(found)
            if name == "char":
                return size, "char"
            return size, f"{'s' if encoding & 1 else 'u'}{8 * size}"
        if kind == FLOAT:
            return size, "float"
        prefix = {STRUCT: "struct", UNION: "union", ENUM: "enum", ENUM64: "enum"}.get(kind)
        if prefix is None:
            raise self._fail(f"type {found.number} of kind {kind} has no size")
        return size, f"{prefix} {self._name(found)}".rstrip()
