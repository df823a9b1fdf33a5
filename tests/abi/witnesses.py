# SPDX-License-Identifier: MIT
"""What other sources say of the interfaces, in one form, and how a module is held against it.

A witness maps tags to layouts and names to numbers. A layout is (kind, size, fields), a field is
(name, offset, element size, dimensions, type, members); the type is "u32", "s64", "char" or a tag,
or None where the source does not tell it. An anonymous member has the name None.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from support import SHARED

from npukit import abi
from npukit.abi import (
    amdxdna,
    dma_buf,
    dma_heap,
    drm,
    ethosu,
    fastrpc,
    habanalabs,
    ivpu,
    qaic,
    rocket,
    sync_file,
    udmabuf,
)

HEADERS: dict[str, ModuleType] = {
    "linux/dma-buf.h": dma_buf,
    "linux/dma-heap.h": dma_heap,
    "linux/udmabuf.h": udmabuf,
    "linux/sync_file.h": sync_file,
    "drm/drm.h": drm,
    "drm/rocket_accel.h": rocket,
    "drm/ethosu_accel.h": ethosu,
    "drm/amdxdna_accel.h": amdxdna,
    "drm/ivpu_accel.h": ivpu,
    "drm/qaic_accel.h": qaic,
    "drm/habanalabs_accel.h": habanalabs,
    "misc/fastrpc.h": fastrpc,
}


class Field(NamedTuple):
    name: str | None
    offset: int
    size: int
    dims: tuple[int, ...]
    type: str | None
    members: tuple[Field, ...] = ()


class Layout(NamedTuple):
    kind: str
    size: int
    fields: tuple[Field, ...]


# Another source: the golden tables, made from the headers by a C compiler

_C_TYPES = {
    "char": "char",
    "unsigned char": "u8",
    "signed char": "s8",
    "short unsigned int": "u16",
    "int": "s32",
    "unsigned int": "u32",
    "long unsigned int": "u64",
    "long long unsigned int": "u64",
    "long long int": "s64",
    "pointer": "u64",
}


@cache
def golden(kernel: str) -> dict[str, Any]:
    text = (SHARED / "data/abi" / f"abi-linux-{kernel}.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def golden_numbers(header: Mapping[str, Any]) -> dict[str, int]:
    """Macros and enumerators."""
    numbers = dict(header["macros"])
    for members in header["enums"].values():
        numbers |= members
    return numbers


def golden_layouts(header: Mapping[str, Any], left_out: Callable[[str], bool]) -> dict[str, Layout]:
    wanted = {tag: each for tag, each in header["structs"].items() if not left_out(tag)}
    return {tag: _golden_layout(each) for tag, each in wanted.items()}


def _golden_layout(each: Mapping[str, Any]) -> Layout:
    return Layout(each["kind"], each["size"], _golden_fields(each["fields"]))


def _golden_fields(fields: Iterable[Mapping[str, Any]]) -> tuple[Field, ...]:
    return tuple(_golden_field(field) for field in fields)


def _golden_field(field: Mapping[str, Any]) -> Field:
    c_type = field["type"]
    members: tuple[Field, ...] = ()
    if c_type in ("struct", "union"):
        # The tables tell the members of an anonymous one, but not of a named one without a tag.
        kind = None
        members = _golden_fields(field["anonymous"]["fields"]) if "anonymous" in field else ()
    elif c_type.startswith(("struct ", "union ")):
        kind = c_type.split()[1]
    else:
        kind = _C_TYPES[c_type]
    return Field(
        field["name"], field["offset"], field["elem_size"], tuple(field["dims"]), kind, members
    )


# npukit


def layout(cls: Any) -> Layout:
    kind = "union" if issubclass(cls, ctypes.Union) else "struct"
    return Layout(kind, ctypes.sizeof(cls), _fields(cls))


def _fields(cls: Any) -> tuple[Field, ...]:
    found = []
    for name, ctype in cls._fields_:
        dims = []
        while issubclass(ctype, ctypes.Array):
            dims.append(ctype._length_)
            ctype = ctype._type_
        anonymous = name in cls._anonymous_
        kind: str | None
        members: tuple[Field, ...] = ()
        if issubclass(ctype, ctypes.Structure | ctypes.Union):
            kind = None if ctype.__name__.startswith("_") else ctype.__name__
            members = _fields(ctype) if anonymous else ()
        else:
            kind = _scalar(ctype)
        found.append(
            Field(
                None if anonymous else name,
                getattr(cls, name).offset,
                ctypes.sizeof(ctype),
                tuple(dims),
                kind,
                members,
            )
        )
    return tuple(found)


def _scalar(ctype: Any) -> str:
    if ctype is ctypes.c_char:
        return "char"
    sign = "s" if ctype(-1).value < 0 else "u"
    return f"{sign}{8 * ctypes.sizeof(ctype)}"


def is_layout(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, ctypes.Structure | ctypes.Union)


def layouts_of(names: Mapping[str, Any]) -> dict[str, Layout]:
    return {name: layout(value) for name, value in names.items() if is_layout(value)}


def numbers_of(names: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(value) for name, value in names.items() if isinstance(value, int)}


def modules() -> list[ModuleType]:
    """Every module of npukit.abi that mirrors a header."""
    names = [each.name for each in pkgutil.iter_modules(abi.__path__) if each.name != "versions"]
    return [importlib.import_module(f"npukit.abi.{name}") for name in names]
