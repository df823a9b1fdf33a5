# SPDX-License-Identifier: MIT
"""A structure as text, in the manner of pahole: offsets, sizes, holes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from npukit.ioctl import Pointer

from .interface import Field, Layout, is_layout, of_class, type_text
from .snapshot import Version
from .subjects import SUBJECTS
from .witnesses import names_of

_WIDTH = 44


def classes(driver: str, version: Version | None = None) -> dict[str, Any]:
    """The structures and unions of an interface, by their C tags; None: the newest version.

    AbiMismatch when that version does not have the interface.
    """
    names = names_of(SUBJECTS[driver], version)
    return {tag: value for tag, value in names.items() if is_layout(tag, value)}


def named(classes: dict[str, Any], tag: str) -> Any:
    """One of them; ValueError that names those there are."""
    if tag not in classes:
        raise ValueError(f"no structure {tag!r}; there are {', '.join(classes)}")
    return classes[tag]


def text(cls: Any) -> str:
    """A ctypes structure or union of npukit.abi, with what its pointers point to."""
    return layout_text(of_class(cls), getattr(cls, "_pointers_", {}))


def layout_text(layout: Layout, pointers: dict[str, Pointer] | None = None) -> str:
    """A layout: each line a member, its offset and size in bytes."""
    lines = [f"{layout.kind} {layout.name} {{"]
    lines += _members(layout.fields, layout.kind, layout.size, 0, 1, pointers or {})
    flat = layout.flat()
    lines.append(f"    /* size: {layout.size}, members: {len(flat)} */")
    return "\n".join([*lines, "};"])


def _members(
    fields: Iterable[Field],
    kind: str,
    size: int,
    base: int,
    depth: int,
    pointers: dict[str, Pointer],
) -> Iterator[str]:
    indent = "    " * depth
    end = 0
    for member in fields:
        if kind == "struct" and member.offset > end:
            yield f"{indent}/* {member.offset - end} bytes hole */"
        yield from _member(member, base + member.offset, depth, pointers)
        end = max(end, member.end)
    if size > end:
        yield f"{indent}/* {size - end} bytes padding */"


def _member(member: Field, offset: int, depth: int, pointers: dict[str, Pointer]) -> Iterator[str]:
    indent = "    " * depth
    dims = "".join(f"[{dim or ''}]" for dim in member.dims)
    width = f":{member.bits}" if member.bits else ""
    name = f"{member.name}{dims}{width}"
    place = f"/* {offset:5} {member.size * member.count:5} */"
    if member.bits:
        place = f"/* {offset:5}:{member.bit:<3} */"
    if member.members and " " not in member.type:
        yield f"{indent}{member.type} {{"
        yield from _members(member.members, member.type, member.size, offset, depth + 1, pointers)
        closing = f"{indent}}} {name}".rstrip() + ";"
        yield f"{closing:{_WIDTH}} {place}"
        return
    declaration = f"{indent}{member.type:8} {name};"
    target = pointers.get(member.name)
    note = f" -> {_target(target)}" if target else ""
    yield f"{declaration:{_WIDTH}} {place}{note}"


def _target(pointer: Pointer) -> str:
    name = type_text(pointer.target)
    count = f"[{pointer.count}]" if pointer.count else ""
    stride = f", {pointer.stride} bytes each" if pointer.stride else ""
    return f"{name}{count}{stride} ({pointer.direction})"
