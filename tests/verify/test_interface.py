# SPDX-License-Identifier: MIT
"""Comparing what two sides say, and what npukit's own classes say."""

from __future__ import annotations

from ctypes import c_char, c_int32, c_int64, c_uint8, c_uint32, c_uint64
from dataclasses import replace

import pytest

from npukit.abi import rocket
from npukit.ioctl import Pointer, Struct, Union
from npukit.verify import Field, Interface, Layout, compare, of_class, of_module
from npukit.verify.show import text


class _parts(Struct):
    _size_ = 8
    _fields_ = [("low", c_uint32), ("high", c_uint32)]


class _value(Union):
    _size_ = 8
    _anonymous_ = ("parts",)
    _fields_ = [("whole", c_uint64), ("parts", _parts)]


class toy(Struct):
    _size_ = 64
    _anonymous_ = ("value",)
    _fields_ = [
        ("count", c_uint32),
        ("value", _value),
        ("grid", c_int64 * 2 * 1),
        ("name", c_char * 4),
        ("mode", c_uint32, 3),
        ("level", c_uint32, 5),
        ("named", _value),
        ("items", c_uint64),
        ("last", c_uint8),
    ]
    _pointers_ = {"items": Pointer(c_uint8, count="count", direction="out")}


TOY = of_class(toy)


def test_a_class_is_read_as_c_lays_it_out() -> None:
    shown = {
        name: (f.type, f.offset, f.size, f.dims, f.bits, f.bit) for name, f in TOY.flat().items()
    }
    assert shown == {
        "count": ("u32", 0, 4, (), 0, 0),
        "whole": ("u64", 8, 8, (), 0, 0),
        "low": ("u32", 8, 4, (), 0, 0),
        "high": ("u32", 12, 4, (), 0, 0),
        "grid": ("s64", 16, 8, (1, 2), 0, 0),
        "name": ("char", 32, 1, (4,), 0, 0),
        "mode": ("u32", 36, 4, (), 3, 0),
        "level": ("u32", 36, 4, (), 5, 3),
        "named": ("union", 40, 8, (), 0, 0),
        "items": ("u64", 48, 8, (), 0, 0),
        "last": ("u8", 56, 1, (), 0, 0),
    }
    assert TOY.flat()["named"].members[0].name == "whole"


def changed(name: str, /, **values: object) -> Layout:
    fields = tuple(replace(f, **values) if f.name == name else f for f in TOY.fields)  # type: ignore[arg-type]
    return replace(TOY, fields=fields)


def says(layout: Layout) -> Interface:
    return Interface({"toy": (layout,)}, {})


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        (replace(TOY, size=72), ["toy: size is 72, npukit says 64"]),
        (replace(TOY, kind="union"), ["toy: kind is union, npukit says struct"]),
        (changed("count", offset=4), ["toy.count: offset is 4, npukit says 0"]),
        (changed("count", size=8), ["toy.count: element size is 8, npukit says 4"]),
        (changed("count", type="s32"), ["toy.count: type is signed, npukit says unsigned"]),
        (changed("count", type="enum colour"), []),
        (changed("items", type="pointer"), []),
        (changed("name", type="u8"), []),
        (changed("name", dims=(8,)), ["toy.name: dimensions is [8], npukit says [4]"]),
        (changed("level", bits=6), ["toy.level: bits is 6, npukit says 5"]),
        (changed("level", offset=37, bit=0), ["toy.level: first bit is 296, npukit says 291"]),
        # The same bit, counted from another storage unit.
        (changed("level", offset=32, bit=35), []),
        (
            changed("items", name="entries"),
            [
                "toy.items: offset is absent, npukit says 48",
                "toy.entries: offset is 48, npukit says absent",
            ],
        ),
    ],
)
def test_each_kind_of_difference(theirs: Layout, expected: list[str]) -> None:
    compared = compare(says(TOY), says(theirs))
    assert [str(difference) for difference in compared.differences] == expected
    assert compared.facts == (0 if expected else 12)


def test_flattened_arrays_need_only_the_same_number() -> None:
    flat = says(changed("grid", dims=(2,)))
    assert compare(says(TOY), flat).differences
    assert not compare(says(TOY), flat, exact_dims=False).differences


def test_differences_inside_of_a_named_member() -> None:
    inner = tuple(replace(f, size=4, type="u32") for f in TOY.flat()["named"].members[:1])
    compared = compare(says(TOY), says(changed("named", members=inner)))
    assert "toy.named.whole: element size is 4, npukit says 8" in map(str, compared.differences)
    assert "toy.named.low: offset is absent, npukit says 0" in map(str, compared.differences)


def test_an_empty_structure_before_a_flexible_array_is_no_member() -> None:
    empty = Field("__empty_items", "struct", 48, 0)
    assert not compare(says(TOY), says(replace(TOY, fields=(*TOY.fields, empty)))).differences


def test_the_nearest_of_several_definitions_is_meant() -> None:
    both = Interface({"toy": (replace(TOY, size=1, fields=()), TOY)}, {})
    assert not compare(says(TOY), both).differences


def test_constants() -> None:
    ours = Interface({}, {"A": 1, "B": 0xFFFFFFFF, "C": -1, "D": 4, "E": 5})
    theirs = Interface({}, {"A": 1, "B": -1, "C": (1 << 64) - 1, "D": 3, "F": 6})
    compared = compare(ours, theirs)
    assert [str(difference) for difference in compared.differences] == [
        "D: value is 0x3, npukit says 0x4"
    ]
    assert (compared.facts, compared.absent, compared.unknown) == (3, ["E"], ["F"])


def test_a_module_is_what_it_shows() -> None:
    said = of_module(vars(rocket))
    assert said.layouts["drm_rocket_job"][0].size == 40
    assert said.constants["DRM_IOCTL_ROCKET_SUBMIT"] == 0x40186441
    assert "c_uint32" not in said.layouts


def test_text_shows_offsets_holes_and_pointers() -> None:
    lines = text(toy).splitlines()
    assert lines[0] == "struct toy {"
    assert "    /* 4 bytes hole */" in lines
    assert [line.split() for line in lines if "grid" in line] == [
        ["s64", "grid[1][2];", "/*", "16", "16", "*/"]
    ]
    assert next(line for line in lines if " items" in line).endswith("-> u8[count] (out)")
    assert "    /* 7 bytes padding */" in lines
    assert lines[-2:] == ["    /* size: 64, members: 11 */", "};"]


def test_sign_of_what_is_compared() -> None:
    class signed(Struct):
        _size_ = 4
        _fields_ = [("x", c_int32)]

    assert of_class(signed).fields[0].type == "s32"
