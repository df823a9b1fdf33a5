# SPDX-License-Identifier: MIT
import ctypes
from ctypes import c_uint8, c_uint16, c_uint32, c_uint64

import pytest

from npukit.ioctl import Pointer, Struct, Union


class inner(Struct):
    _size_ = 8
    _fields_ = [("first", c_uint32), ("reserved", c_uint32)]


class outer(Struct):
    _size_ = 40
    _fields_ = [
        ("handle", c_uint32),
        ("flags", c_uint32),
        ("data_ptr", c_uint64),
        ("list", inner * 2),
        ("count", c_uint32),
        ("pad", c_uint32),
    ]
    _pointers_ = {"data_ptr": Pointer(inner, count="count")}


def test_a_wrong_size_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="states 12 bytes but is laid out in 16"):

        class wrong(Struct):
            _size_ = 12
            _fields_ = [("a", c_uint64), ("b", c_uint32)]


def test_a_wrong_size_is_refused_when_fields_are_set_later() -> None:
    class later(Struct):
        _size_ = 12

    with pytest.raises(TypeError, match="states 12 bytes but is laid out in 16"):
        later._fields_ = [("a", c_uint64), ("b", c_uint32)]


def test_a_size_must_be_stated() -> None:
    with pytest.raises(TypeError, match=r"_size_ = 4\?"):

        class unstated(Struct):
            _fields_ = [("a", c_uint32)]


def test_a_pointer_must_name_fields_that_exist() -> None:
    with pytest.raises(TypeError, match="no field 'how_many'"):

        class lost(Struct):
            _size_ = 8
            _fields_ = [("address", c_uint64)]
            _pointers_ = {"address": Pointer(c_uint8, count="how_many")}


def test_repr_shows_addresses_and_flags_in_hex_and_no_padding() -> None:
    value = outer(handle=3, flags=0x403, data_ptr=0x1000, count=2)
    assert repr(value) == (
        "outer(handle=3, flags=0x403, data_ptr=0x1000, "
        "list=[inner(first=0), inner(first=0)], count=2)"
    )


def test_asdict_and_equality() -> None:
    one, two = outer(handle=1), outer(handle=1)
    assert one == two
    two.list[1].reserved = 1
    assert one != two
    assert two.asdict()["list"] == [
        {"first": 0, "reserved": 0},
        {"first": 0, "reserved": 1},
    ]
    assert one != inner()


def test_an_unknown_field_or_a_value_that_does_not_fit_is_refused() -> None:
    with pytest.raises(TypeError, match="no field 'handel'"):
        outer(handel=1)
    with pytest.raises(ValueError, match="cannot hold"):
        outer(handle=1 << 32)
    with pytest.raises(ValueError, match="cannot hold"):
        outer(handle=-1)


class arrays(Struct):
    _size_ = 24
    _fields_ = [("handles", c_uint32 * 4), ("digest", c_uint8 * 8)]


def test_the_elements_of_an_array_are_checked_too() -> None:
    value = arrays(handles=(1, 2), digest=bytes(range(8)))
    assert repr(value) == "arrays(handles=[1, 2, 0, 0], digest=<0001020304050607>)"
    assert arrays(handles=[1, 2]).handles[1] == 2
    with pytest.raises(ValueError, match=r"handles\[1\] cannot hold 0x200000000"):
        arrays(handles=(1, 1 << 33))
    with pytest.raises(ValueError, match="handles has 4 elements"):
        arrays(handles=[0] * 5)


class keyword(Struct):
    _size_ = 4
    _fields_ = [("in", c_uint16), ("out", c_uint16)]


def test_a_field_named_like_a_keyword_has_an_alias() -> None:
    value = keyword(out=2)
    value.in_ = 7
    assert getattr(value, "in") == 7
    assert value.asdict() == {"in": 7, "out": 2}
    assert repr(value) == "keyword(in=7, out=2)"


class choice(Union):
    _size_ = 8
    _fields_ = [("address", c_uint64), ("index", c_uint32)]


class anonymous(Struct):
    _size_ = 16
    _anonymous_ = ("u",)
    _fields_ = [("u", choice), ("kind", c_uint32), ("pad", c_uint32)]


def test_the_members_of_an_anonymous_union_stand_in_its_place() -> None:
    value = anonymous(address=0x10, kind=1)
    assert value.index == 0x10
    assert value.fields() == ["address", "index", "kind", "pad"]
    assert repr(value) == "anonymous(address=0x10, index=16, kind=1)"


class tailed(Struct):
    """Rows of something."""

    _size_ = 16
    _tail_ = ("rows", "count")
    _fields_ = [("id", c_uint64), ("count", c_uint32), ("rows", c_uint16 * 0)]


def test_a_flexible_array_begins_where_the_header_puts_it() -> None:
    value = tailed.with_tail(5, id=9)
    assert (value.id, value.count, len(value.rows)) == (9, 5, 5)
    value.rows[:] = [1, 2, 3, 4, 5]
    # The array starts at offset 12, inside the padding that ends the plain structure.
    assert type(value).rows.offset == 12
    assert ctypes.sizeof(value) == 24
    assert bytes(value)[12:22] == b"\1\0\2\0\3\0\4\0\5\0"
    assert value.__doc__ == tailed.__doc__


def test_tails_are_checked() -> None:
    with pytest.raises(TypeError, match="no flexible array"):
        outer.with_tail(1)
    with pytest.raises(ValueError, match="-1 elements"):
        tailed.with_tail(-1)
    with pytest.raises(TypeError, match="does not end in the tail"):

        class unended(Struct):
            _size_ = 4
            _tail_ = ("rows", "count")
            _fields_ = [("count", c_uint32)]
