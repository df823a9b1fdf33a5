# SPDX-License-Identifier: MIT
"""What a kernel interface says, in one form for every witness: layouts and constants.

npukit's own classes, a kernel's BTF, a compiler and a stored snapshot are all turned into an
``Interface``; ``compare`` then says where two of them disagree.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Field:
    """A member of a structure or union.

    ``type`` is "u32", "s64", "char", "bool", "float", "pointer", "enum TAG", "struct TAG" or
    "union TAG", without a tag where the type has none. ``offset`` is in bytes from the start of the
    structure that holds the member, ``size`` in bytes of one element, ``dims`` the dimensions of an
    array (0: flexible). A bit-field of ``bits`` bits starts ``bit`` bits after ``offset``. A member
    of a structure type has that structure's ``members``; an anonymous one has the name "".
    """

    name: str
    type: str
    offset: int
    size: int
    dims: tuple[int, ...] = ()
    bits: int = 0
    bit: int = 0
    members: tuple[Field, ...] = ()

    @property
    def count(self) -> int:
        """Elements, over all dimensions."""
        return math.prod(self.dims)

    @property
    def end(self) -> int:
        """Offset of the first byte behind the member."""
        if self.bits:
            return self.offset + (self.bit + self.bits + 7) // 8
        return self.offset + self.size * self.count


@dataclass(frozen=True, slots=True)
class Layout:
    """A structure or union: its C tag, ``kind`` ("struct" or "union"), bytes and members."""

    name: str
    kind: str
    size: int
    fields: tuple[Field, ...]

    def flat(self) -> dict[str, Field]:
        """Members by name; those of anonymous members stand in their place."""
        return _flat(self.fields)


def _flat(fields: Iterable[Field]) -> dict[str, Field]:
    return {member.name: member for member in _hoist(fields, 0)}


def _hoist(fields: Iterable[Field], base: int) -> Iterator[Field]:
    for member in fields:
        # The kernel's __DECLARE_FLEX_ARRAY puts an empty structure before the array.
        if member.size == 0 and not member.dims and not member.members:
            continue
        if member.name:
            yield member if base == 0 else _moved(member, base)
        else:
            yield from _hoist(member.members, base + member.offset)


def _moved(member: Field, base: int) -> Field:
    return Field(
        member.name,
        member.type,
        member.offset + base,
        member.size,
        member.dims,
        member.bits,
        member.bit,
        member.members,
    )


@dataclass(slots=True)
class Interface:
    """What one source says. A tag may be defined more than once, as in a whole kernel."""

    layouts: dict[str, tuple[Layout, ...]] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.layouts) + len(self.constants)


@dataclass(frozen=True, slots=True)
class Difference:
    """``subject`` (a tag, TAG.FIELD or constant) has a ``what`` on which the two disagree."""

    subject: str
    what: str
    ours: int | str | None
    theirs: int | str | None

    def __str__(self) -> str:
        theirs = "absent" if self.theirs is None else self.theirs
        ours = "absent" if self.ours is None else self.ours
        return f"{self.subject}: {self.what} is {theirs}, npukit says {ours}"


@dataclass(slots=True)
class Comparison:
    """The outcome: ``facts`` that agree, ``differences``, and names that only one side knows."""

    facts: int = 0
    differences: list[Difference] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    """Names that npukit has and the witness does not speak of."""
    unknown: list[str] = field(default_factory=list)
    """Names that the witness has and npukit does not."""


def compare(ours: Interface, theirs: Interface, *, exact_dims: bool = True) -> Comparison:
    """Where ``theirs`` disagrees with ``ours``.

    With ``exact_dims=False`` only the number of elements of an array must agree: BTF as pahole
    writes it flattens [4][8] to [32].
    """
    result = Comparison()
    for tag, mine in ours.layouts.items():
        candidates = theirs.layouts.get(tag)
        if not candidates:
            result.absent.append(tag)
            continue
        # Two files of a kernel may use one tag for different things: the nearest one is meant.
        pairs = [(_layouts(own, its, exact_dims)) for own in mine for its in candidates]
        differences = min(pairs, key=len)
        result.differences += differences
        if not differences:
            result.facts += 1 + len(mine[0].flat())
    for name, value in ours.constants.items():
        if name not in theirs.constants:
            result.absent.append(name)
        elif _same_number(value, theirs.constants[name]):
            result.facts += 1
        else:
            result.differences.append(
                Difference(name, "value", hex(value), hex(theirs.constants[name]))
            )
    result.unknown += [tag for tag in theirs.layouts if tag not in ours.layouts]
    result.unknown += [name for name in theirs.constants if name not in ours.constants]
    return result


def _same_number(one: int, other: int) -> bool:
    """Equal, or the same 32 or 64 bits read once with and once without a sign."""
    bits = 32 if min(one, other) >= -(1 << 31) and max(one, other) < 1 << 32 else 64
    return (one - other) % (1 << bits) == 0


def _layouts(ours: Layout, theirs: Layout, exact_dims: bool) -> list[Difference]:
    differences = []
    if ours.kind != theirs.kind:
        differences.append(Difference(ours.name, "kind", ours.kind, theirs.kind))
    if ours.size != theirs.size:
        differences.append(Difference(ours.name, "size", ours.size, theirs.size))
    return differences + _fields(ours.name, ours.fields, theirs.fields, exact_dims)


def _fields(
    prefix: str, ours: tuple[Field, ...], theirs: tuple[Field, ...], exact_dims: bool
) -> list[Difference]:
    mine, its = _flat(ours), _flat(theirs)
    differences = [
        Difference(
            f"{prefix}.{name}",
            "offset",
            mine[name].offset if name in mine else None,
            its[name].offset if name in its else None,
        )
        for name in [*mine, *its]
        if (name in mine) != (name in its)
    ]
    for name in mine:
        if name not in its:
            continue
        differences += [
            Difference(f"{prefix}.{name}", what, own, other)
            for what, own, other in _facts(mine[name], its[name], exact_dims)
            if own != other
        ]
        if mine[name].members and its[name].members:
            differences += _fields(
                f"{prefix}.{name}", mine[name].members, its[name].members, exact_dims
            )
    return differences


def _facts(
    ours: Field, theirs: Field, exact_dims: bool
) -> Iterator[tuple[str, int | str, int | str]]:
    if ours.bits or theirs.bits:
        # Where the storage unit of a bit-field starts is a matter of taste; its first bit is not.
        yield "first bit", 8 * ours.offset + ours.bit, 8 * theirs.offset + theirs.bit
        yield "bits", ours.bits, theirs.bits
        return
    yield "offset", ours.offset, theirs.offset
    yield "element size", ours.size, theirs.size
    if exact_dims:
        yield "dimensions", _brackets(ours.dims), _brackets(theirs.dims)
    else:
        yield "elements", ours.count, theirs.count
    signs = {"u": "unsigned", "s": "signed"}
    one, other = (_sign(member.type) for member in (ours, theirs))
    if one and other:
        yield "type", signs[one], signs[other]


def _sign(type: str) -> str:
    """ "s" or "u"; "" for what has no sign of its own. A C char's depends on the machine."""
    return type[0] if type[1:].isdigit() and type[1:] != "8" else ""


def _brackets(dims: tuple[int, ...]) -> str:
    return "".join(f"[{dim}]" for dim in dims) or "none"


# What npukit itself says


def of_module(names: Mapping[str, Any]) -> Interface:
    """What an ABI module (its ``vars()``, or a version's view of it) says.

    Public structures, unions and integers are taken; what starts with an underscore is the module's
    own.
    """
    result = Interface()
    for name, value in names.items():
        if is_layout(name, value):
            result.layouts[name] = (of_class(value),)
        elif isinstance(value, int) and not isinstance(value, bool) and not name.startswith("_"):
            result.constants[name] = int(value)
    return result


def is_layout(name: str, value: Any) -> bool:
    """Whether a name of an ABI module is a structure or union of the header."""
    return (
        not name.startswith("_")
        and isinstance(value, type)
        and issubclass(value, ctypes.Structure | ctypes.Union)
        and hasattr(value, "_size_")
    )


def of_class(cls: Any) -> Layout:
    """The layout of a ctypes structure or union."""
    kind = "union" if issubclass(cls, ctypes.Union) else "struct"
    return Layout(cls.__name__, kind, ctypes.sizeof(cls), _members(cls))


def _members(cls: Any) -> tuple[Field, ...]:
    anonymous = getattr(cls, "_anonymous_", ())
    members = []
    for name, ctype, *width in cls._fields_:
        descriptor = getattr(cls, name)
        dims = []
        while issubclass(ctype, ctypes.Array):
            dims.append(ctype._length_)
            ctype = ctype._type_
        inner = issubclass(ctype, ctypes.Structure | ctypes.Union)
        members.append(
            Field(
                "" if name in anonymous else name,
                type_text(ctype),
                descriptor.offset,
                ctypes.sizeof(ctype),
                tuple(dims),
                width[0] if width else 0,
                # For a bit-field ctypes packs (bits << 16 | first bit) into the size.
                descriptor.size & 0xFFFF if width else 0,
                _members(ctype) if inner else (),
            )
        )
    return tuple(members)


def type_text(ctype: Any) -> str:
    """A ctypes type as Field.type has it; a class of the module's own (_name) has no tag."""
    if issubclass(ctype, ctypes.Structure | ctypes.Union):
        kind = "union" if issubclass(ctype, ctypes.Union) else "struct"
        tag = ctype.__name__
        return kind if tag.startswith("_") else f"{kind} {tag}"
    code = ctype._type_
    if code == "c":
        return "char"
    if code == "?":
        return "bool"
    if code in "fdg":
        return "float"
    if code in "PzZO":
        return "pointer"
    sign = "s" if code.islower() else "u"
    return f"{sign}{8 * ctypes.sizeof(ctype)}"
