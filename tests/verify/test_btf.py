# SPDX-License-Identifier: MIT
"""The BTF reader, on BTF made here: every kind, split, and broken in every way."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verify.btf_writer import BtfWriter, kernel

from npukit.verify import FormatError
from npukit.verify.btf import DECL_TAG, ENUM, ENUM64, STRUCT, TYPEDEF, UNION, Btf


def everything() -> tuple[BtfWriter, dict[str, int]]:
    """A kernel with one structure of every kind of member."""
    w, ids = kernel()
    inner = w.struct("", 8, [("left", ids["uint"], 0), ("right", ids["uint"], 32)])
    either = w.union("", 8, [("whole", ids["u64"], 0), ("", inner, 0)])
    w.struct(
        "everything",
        456,
        [
            ("", either, 0),
            ("number", ids["tagged"], 64),
            ("flag", ids["bool"], 96),
            ("letter", ids["char"], 104),
            ("pointer", ids["ptr"], 128),
            ("real", ids["double"], 192),
            ("name", ids["char32"], 256),
            ("grid", ids["grid"], 512),
            ("colour", ids["colour"], 2560),
            ("wide", ids["wide"], 2624),
            ("named", either, 2688),
            ("tail", ids["tail"], 2752),
        ],
    )
    return w, ids


def test_every_kind_of_member() -> None:
    types = Btf(everything()[0].build())
    layout = types.layout(types.find("everything")[0])
    assert (layout.name, layout.kind, layout.size) == ("everything", "struct", 456)
    shown = {
        name: (member.type, member.offset, member.size, member.dims)
        for name, member in layout.flat().items()
    }
    assert shown == {
        "whole": ("u64", 0, 8, ()),
        "left": ("u32", 0, 4, ()),
        "right": ("u32", 4, 4, ()),
        "number": ("u32", 8, 4, ()),
        "flag": ("bool", 12, 1, ()),
        "letter": ("char", 13, 1, ()),
        "pointer": ("pointer", 16, 8, ()),
        "real": ("float", 24, 8, ()),
        "name": ("char", 32, 1, (32,)),
        "grid": ("u64", 64, 8, (4, 8)),
        "colour": ("enum colour", 320, 4, ()),
        "wide": ("enum wide", 328, 8, ()),
        "named": ("union", 336, 8, ()),
        "tail": ("u32", 344, 4, (0,)),
    }
    assert [inner.name for inner in layout.flat()["named"].members] == ["whole", ""]


def test_bit_fields_of_both_encodings() -> None:
    w, ids = kernel()
    # With the flag, the offset's upper byte is the width.
    w.struct(
        "flagged",
        8,
        [
            ("low", ids["uint"], 3 << 24),
            ("high", ids["uint"], 29 << 24 | 3),
            ("all", ids["int"], 32),
        ],
        flag=True,
    )
    # Before the flag, an integer of its own carried the width, and possibly an offset.
    narrow = w.add(1, "unsigned int", 4, [3 << 16 | 5])
    w.struct("old", 8, [("plain", ids["uint"], 0), ("narrow", narrow, 40)])
    types = Btf(w.build())
    flagged = types.layout(types.find("flagged")[0]).flat()
    assert [(f.offset, f.bit, f.bits) for f in flagged.values()] == [
        (0, 0, 3),
        (0, 3, 29),
        (4, 0, 0),
    ]
    old = types.layout(types.find("old")[0]).flat()
    # 40 + 3 bits: bit 11 of the word at byte 4.
    assert [(f.offset, f.bit, f.bits) for f in old.values()] == [(0, 0, 0), (4, 11, 5)]


def test_enumerations() -> None:
    types = Btf(kernel()[0].build())
    values = {
        name: types.enumerators(types.find(name, (ENUM, ENUM64))[0])
        for name in ("colour", "temperature", "wide", "deep")
    }
    assert values == {
        "colour": {"RED": 0, "GREEN": 1},
        "temperature": {"COLD": -5, "WARM": 20},
        "wide": {"TOP": 1 << 63, "ONE": 1},
        "deep": {"BOTTOM": -(1 << 40)},
    }


def test_split_btf_goes_on_where_its_base_ends() -> None:
    base, ids = everything()
    module = BtfWriter(base)
    word = module.add(TYPEDEF, "word", ids["__u32"])
    # "number" is a string of the base, "mine" of the module.
    module.struct("driver_submit", 8, [("number", word, 0), ("mine", ids["int"], 32)])
    # The same tag as in the base, for another thing: the module's counts.
    module.struct("everything", 4, [("number", word, 0)])
    module.enum("driver_flags", {"DRIVER_A": 1, "DRIVER_B": 2})
    kernel_types = Btf(base.build())
    types = Btf(module.build(), kernel_types)
    assert types.total == kernel_types.total + 4
    submit = types.layout(types.find("driver_submit")[0])
    assert [(f.name, f.type) for f in submit.fields] == [("number", "u32"), ("mine", "s32")]
    said = types.interface(["everything", "driver_submit", "nowhere"], ["DRIVER_A", "DRIVER_B"])
    assert {tag: layouts[0].size for tag, layouts in said.layouts.items()} == {
        "everything": 4,
        "driver_submit": 8,
    }
    assert said.constants == {"DRIVER_A": 1, "DRIVER_B": 2}


def test_base_is_asked_for_what_the_module_lacks() -> None:
    base, ids = everything()
    module = BtfWriter(base)
    module.struct("driver_submit", 4, [("x", ids["int"], 0)])
    types = Btf(module.build(), Btf(base.build()))
    assert types.find("everything") == []
    assert types.interface(["everything"], []).layouts["everything"][0].size == 456


def test_one_tag_with_two_meanings_gives_both() -> None:
    w, ids = kernel()
    w.struct("twice", 4, [("a", ids["int"], 0)])
    w.struct("twice", 8, [("a", ids["u64"], 0)])
    said = Btf(w.build()).interface(["twice"], [])
    assert [layout.size for layout in said.layouts["twice"]] == [4, 8]


def test_enumerations_of_others_are_not_taken() -> None:
    w, ids = kernel()
    w.struct("mine", 4, [("x", ids["int"], 0)])
    w.enum("mine_too", {"MINE_A": 1, "MINE_NEW": 2, "MINE_B": 3})
    w.enum("power_of_another_driver", {"POWER_LOW": 7, "POWER_UNKNOWN": 8, "POWER_ODD": 9})
    types = Btf(w.build())
    wanted = ["POWER_LOW", "POWER_HIGH", "MINE_A", "MINE_B"]
    assert types.interface(["mine"], wanted).constants == {"MINE_A": 1, "MINE_NEW": 2, "MINE_B": 3}
    # Without one of its structures, nothing else that looks like the driver's is.
    assert types.interface(["yours"], wanted).constants == {}


def test_a_younger_kind_is_stepped_over_when_its_size_is_told() -> None:
    w, ids = kernel()
    w.add(20, "younger", 0, [1, 2, 3], vlen=1)
    w.struct("behind", 4, [("x", ids["int"], 0)])
    with pytest.raises(FormatError, match="unknown kind 20"):
        Btf(w.build())
    table = b"".join(bytes((0, 0, 0, 0)) for _ in range(20)) + bytes((4, 8, 0, 0))
    types = Btf(w.build(layout=table))
    assert types.layout(types.find("behind")[0]).size == 4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "shorter than a header"),
        (b"\x7fELF" + bytes(40), "not BTF"),
        (b"\xeb\x9f\x01" + bytes(40), "big-endian"),
        (struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 99, 0, 0, 0, 0), "header of 99 bytes"),
        (struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, 4, 0, 0), "type section"),
        (struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, 0, 0, 4), "string section"),
        (struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, 2, 0, 0) + bytes(4), "32-bit words"),
        (struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, 0, 0, 2) + b"ab", "NUL"),
        (struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, 4, 4, 0) + bytes(4), "behind its section"),
    ],
)
def test_a_broken_frame_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        Btf(data)


def test_circles_and_endless_nests_are_refused() -> None:
    w, _ = kernel()
    loop = w.add(TYPEDEF, "loop", w.next)
    w.struct("round", 4, [("x", loop, 0)])
    w.struct("", 8, [("", w.next, 0)])  # contains itself
    w.struct("nest", 8, [("", w.next - 1, 0)])
    array = w.array(w.next, 1, 2)
    w.struct("arrays", 8, [("x", array, 0)])
    w.struct("void", 8, [("x", 0, 0)])
    w.struct("beyond", 8, [("x", 10_000, 0)])
    w.struct("function", 8, [("x", 17, 0)])
    # 255 members, each of which has 255 anonymous members, and so on: 255^5 in all.
    bomb = w.struct("", 1, [("x", 1, 0)])
    for _ in range(5):
        bomb = w.struct("", 1, [("", bomb, 0)] * 255)
    w.struct("bomb", 1, [("", bomb, 0)])
    types = Btf(w.build())
    for tag in ("round", "nest", "arrays", "void", "beyond", "function", "bomb"):
        with pytest.raises(FormatError, match="corrupt BTF"):
            types.interface([tag], [])


def test_a_name_without_end_is_refused() -> None:
    w, ids = kernel()
    w.struct("x" * 5000, 4, [("y", ids["int"], 0)])
    with pytest.raises(FormatError, match="string"):
        Btf(w.build()).find("y")


def ask_everything(data: bytes, base: bytes) -> None:
    """Read all that there is; FormatError is the only way to fail."""
    with suppress(FormatError):
        types = Btf(data, Btf(base))
        types.interface(["everything", "driver"], ["RED", "GREEN", "D1"])
        for number in range(types._first_id, types.total):
            kind = types._type(number).kind
            if kind in (STRUCT, UNION):
                types.layout(number).flat()
            elif kind in (ENUM, ENUM64):
                types.enumerators(number)


def test_every_flipped_byte_is_read_or_refused() -> None:
    base, ids = kernel()
    module = BtfWriter(base)
    inner = module.struct("", 4, [("a", ids["int"], 0)])
    module.struct("driver", 44, [("", inner, 0), ("name", ids["char32"], 32)])
    module.enum("driver_enum", {"D1": 1, "D2": 2})
    module.add(DECL_TAG, "tag", inner, [0])
    whole, below = module.build(), base.build()
    for place in range(len(whole)):
        for flip in (0x01, 0x80, 0xFF):
            broken = bytearray(whole)
            broken[place] ^= flip
            ask_everything(bytes(broken), below)
    for end in range(len(whole)):
        ask_everything(whole[:end], below)


@settings(max_examples=200)
@given(st.binary(max_size=400))
def test_any_bytes_behind_a_header_are_read_or_refused(body: bytes) -> None:
    below = kernel()[0].build()
    cut = len(body) // 8 * 4
    header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, cut, cut, len(body) - cut + 1)
    ask_everything(header + body + b"\0", below)
