# SPDX-License-Identifier: MIT
"""A writer of BTF, base or split, for every kind of type."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from npukit.verify import btf

Member = tuple[str, int, int]
"""Name, type number, offset in bits (or that and a width in the upper byte)."""


class BtfWriter:
    """Types are added one by one; each method returns the new type's number."""

    def __init__(self, base: BtfWriter | None = None) -> None:
        self.base = base
        self.types = b""
        # A module's strings go on where the base's end; only the base's begin with "".
        self.strings = b"" if base else b"\0"
        self.first = base.next if base else 1
        self.next = self.first

    @property
    def end_of_strings(self) -> int:
        return (self.base.end_of_strings if self.base else 0) + len(self.strings)

    def text(self, name: str) -> int:
        """Offset of a name; one that the base has is used from there, as pahole does."""
        if not name:
            return 0
        stored = b"\0" + name.encode() + b"\0"
        if self.base and stored in self.base.strings:
            return self.base.strings.index(stored) + 1
        offset = self.end_of_strings
        self.strings += stored[1:]
        return offset

    def add(
        self,
        kind: int,
        name: str = "",
        value: int = 0,
        extra: Sequence[int] = (),
        *,
        vlen: int = 0,
        flag: bool = False,
    ) -> int:
        info = kind << 24 | vlen | flag << 31
        words = (self.text(name), info, value, *(word & 0xFFFFFFFF for word in extra))
        self.types += struct.pack(f"<{len(words)}I", *words)
        self.next += 1
        return self.next - 1

    def int(self, name: str, size: int, *, signed: bool = False, bool: bool = False) -> int:
        return self.add(btf.INT, name, size, [(bool << 2 | signed) << 24 | 8 * size])

    def ptr(self, target: int = 0) -> int:
        return self.add(btf.PTR, "", target)

    def array(self, element: int, index: int, count: int) -> int:
        return self.add(btf.ARRAY, "", 0, [element, index, count])

    def struct(
        self, name: str, size: int, members: Sequence[Member], *, flag: bool = False, kind: int = 4
    ) -> int:
        words = [word for member in members for word in (self.text(member[0]), *member[1:])]
        return self.add(kind, name, size, words, vlen=len(members), flag=flag)

    def union(self, name: str, size: int, members: Sequence[Member]) -> int:
        return self.struct(name, size, members, kind=btf.UNION)

    def enum(self, name: str, values: dict[str, int], *, signed: bool = False) -> int:
        words = [word for key, value in values.items() for word in (self.text(key), value)]
        return self.add(btf.ENUM, name, 4, words, vlen=len(values), flag=signed)

    def enum64(self, name: str, values: dict[str, int], *, signed: bool = False) -> int:
        words = [
            word for key, value in values.items() for word in (self.text(key), value, value >> 32)
        ]
        return self.add(btf.ENUM64, name, 8, words, vlen=len(values), flag=signed)

    def build(self, *, layout: bytes | None = None) -> bytes:
        """The section. ``layout`` is the table of kinds' sizes that newer kernels add."""
        length = 24 if layout is None else 32
        parts = (0, len(self.types), len(self.types), len(self.strings))
        header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, length, *parts)
        body = self.types + self.strings
        if layout is not None:
            padding = -len(body) % 4
            body += bytes(padding)
            header += struct.pack("<II", len(body), len(layout))
        return header + body + (layout or b"")


def kernel() -> tuple[BtfWriter, dict[str, int]]:
    """A kernel with every kind of type; and the numbers of some."""
    w = BtfWriter()
    ids = {
        "u8": w.int("unsigned char", 1),
        "char": w.int("char", 1, signed=True),
        "int": w.int("int", 4, signed=True),
        "uint": w.int("unsigned int", 4),
        "u64": w.int("long long unsigned int", 8),
        "bool": w.int("_Bool", 1, bool=True),
    }
    ids["__u32"] = w.add(btf.TYPEDEF, "__u32", ids["uint"])
    ids["const"] = w.add(btf.CONST, "", ids["__u32"])
    ids["volatile"] = w.add(btf.VOLATILE, "", ids["const"])
    ids["restrict"] = w.add(btf.RESTRICT, "", ids["volatile"])
    ids["tagged"] = w.add(btf.TYPE_TAG, "user", ids["restrict"])
    ids["ptr"] = w.ptr(ids["const"])
    ids["double"] = w.add(btf.FLOAT, "double", 8)
    ids["fwd"] = w.add(btf.FWD, "elsewhere")
    ids["fwd ptr"] = w.ptr(ids["fwd"])
    ids["proto"] = w.add(btf.FUNC_PROTO, "", ids["int"], [0, ids["ptr"]], vlen=1)
    w.add(btf.FUNC, "function", ids["proto"], vlen=1)
    ids["var"] = w.add(btf.VAR, "variable", ids["int"], [1])
    w.add(btf.DATASEC, ".data", 4, [ids["var"], 0, 4], vlen=1)
    w.add(btf.DECL_TAG, "tag", ids["var"], [-1])
    ids["char32"] = w.array(ids["char"], ids["uint"], 32)
    ids["row"] = w.array(ids["u64"], ids["uint"], 8)
    ids["grid"] = w.array(ids["row"], ids["uint"], 4)
    ids["tail"] = w.array(ids["__u32"], ids["uint"], 0)
    ids["colour"] = w.enum("colour", {"RED": 0, "GREEN": 1})
    ids["signed"] = w.enum("temperature", {"COLD": -5, "WARM": 20}, signed=True)
    ids["wide"] = w.enum64("wide", {"TOP": 1 << 63, "ONE": 1})
    w.enum64("deep", {"BOTTOM": -(1 << 40)}, signed=True)
    return w, ids
