# SPDX-License-Identifier: MIT
"""Interfaces of DSP modules: what the parser takes, what it refuses, how calls are packed."""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npukit.programs.hexagon import idl, marshal

EVERYTHING = """
/* a comment
   of two lines */
typedef sequence<octet> blob;  // another
interface every : remote_handle64 {
    typedef long number;
    long nothing();
    long all(in octet a, in short b, in unsigned short c, in number d, in unsigned long e,
             in long long f, in unsigned long long g, in float h, in double i, in boolean j,
             in string k, in blob l, rout blob m, inrout long n, inrout sequence<float> o,
             rout uint16 p, rout double q, rout string r);
};
"""


def method(text: str, name: str = "m") -> idl.Method:
    return idl.parse(f"interface i {{ long {name}({text}); }};").methods[name]


def test_methods_are_numbered_behind_open_and_close() -> None:
    every = idl.parse(EVERYTHING)
    assert (every.name, every.handle64) == ("every", True)
    assert [m.number for m in every.methods.values()] == [2, 3]
    assert every.by_number[2].parameters == ()
    plain = idl.parse("interface p { long first(); long second(in long a); };")
    assert [m.number for m in plain.methods.values()] == [0, 1]
    assert str(plain.methods["second"]) == "long second(in long a)"


def test_uris_follow_qaic() -> None:
    echo = idl.load("echo.idl")
    assert echo.uri() == ("file:///libecho_skel.so?echo_skel_handle_invoke&_modver=1.0&_dom=cdsp")
    plain = idl.parse("interface p { long first(); };")
    assert plain.uri("adsp").startswith("file:///libp_skel.so?p_skel_invoke&")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: 'interface' is expected"),
        ("interface x {\n  int f();\n};", "line 2: a method returns long, not 'int'"),
        ("interface x {\n\n long f(out long a); };", "line 3: in, rout or inrout"),
        ("interface x { long f(in quad a); };", "no type 'quad'"),
        ("interface x { long f(in sequence<string> a); };", "a sequence of string"),
        ("interface x { long f(in sequence<sequence<octet> > a); };", "a sequence of sequence"),
        ("interface x { long f(inrout string a); };", "inrout string"),
        ("interface x { long f(); long f(); };", "declared twice"),
        ("interface x { long f(in long); };", "a name is expected"),
        ("interface x { long f() };", "';' is expected"),
        ("interface x { long f();", "'}' is expected, not 'the end'"),
        ("interface x { } ; interface y { };", "nothing is expected after"),
        ("interface x : base { };", "'remote_handle64' is expected"),
    ],
)
def test_what_is_no_idl_names_its_line(text: str, message: str) -> None:
    with pytest.raises(idl.IdlError, match=message.replace("(", r"\(")):
        idl.parse(text)


# Layouts written down by hand from qaic's rule, as the reverse-engineered calls of the vendor's
# own interfaces have them.
def test_remotectl_open_is_laid_out_as_the_vendors_is() -> None:
    open_ = method("in string name, rout long handle, rout sequence<char> dlerror, rout long nErr")
    ins, outs = marshal.pack_call(open_, ["file:///x", 255])
    assert [bytes(each) for each in ins] == [struct.pack("<II", 10, 255), b"file:///x\0"]
    assert outs == [8, 255]
    answer = [struct.pack("<ii", 77, -1), b"why\0".ljust(255, b"\0")]
    handle, text, error = marshal.unpack_results(open_, ["file:///x", 255], answer)
    assert (handle, text[:4], error) == (77, b"why\0", -1)


def test_fread_is_laid_out_as_the_vendors_is() -> None:
    fread = method("in long sin, rout sequence<octet> buf, rout long read, rout long eof")
    ins, outs = marshal.pack_call(fread, [5, 100])
    assert ([bytes(each) for each in ins], outs) == ([struct.pack("<iI", 5, 100)], [8, 100])


def test_a_64_bit_number_is_aligned() -> None:
    request_map64 = method(
        "in long heapid, in uint32 ion_flags, in uint32 rflags, in uint64 vin, in int64 len, "
        "rout uint64 vapps, rout uint64 vadsp"
    )
    ins, outs = marshal.pack_call(request_map64, [1, 2, 3, 4, 5])
    assert bytes(ins[0]) == struct.pack("<iIIxxxxQq", 1, 2, 3, 4, 5)
    assert outs == [16]


def test_a_method_above_30_leads_with_its_number() -> None:
    methods = "".join(f"long m{n}();" for n in range(31))
    std = idl.parse(f"interface s {{ {methods} long stat(in string name, rout uint64 size); }};")
    stat = std.methods["stat"]
    assert stat.number == 31
    ins, outs = marshal.pack_call(stat, ["ab"])
    assert [bytes(each) for each in ins] == [struct.pack("<II", 31, 3), b"ab\0"]
    assert outs == [8]
    assert marshal.unpack_call(stat, ins, [bytearray(8)])[0] == ["ab"]


def test_absent_primitives_have_no_buffer() -> None:
    nothing = method("")
    assert marshal.pack_call(nothing, []) == ([], [])
    only_out = method("rout long a")
    assert marshal.pack_call(only_out, []) == ([], [4])


VALUES: dict[str, Any] = {
    "octet": st.integers(0, 255),
    "short": st.integers(-(1 << 15), (1 << 15) - 1),
    "long": st.integers(-(1 << 31), (1 << 31) - 1),
    "uint32": st.integers(0, (1 << 32) - 1),
    "long long": st.integers(-(1 << 63), (1 << 63) - 1),
    "double": st.floats(allow_nan=False),
    "float": st.floats(width=32, allow_nan=False),
    "string": st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
    "sequence<octet>": st.binary(max_size=40),
    "sequence<short>": st.lists(st.integers(-99, 99), max_size=9),
}
NUMBERS = [name for name in VALUES if "<" not in name and name != "string"]


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, list[Any], list[Any]]:
    """(parameters, what goes in, what comes out) of a method."""
    texts, given, out = [], [], []
    for index in range(draw(st.integers(0, 8))):
        direction = draw(st.sampled_from(["in", "rout", "inrout"]))
        names = list(VALUES) if direction == "in" else [*NUMBERS, "sequence<octet>"]
        name = draw(st.sampled_from(names))
        value = draw(VALUES[name])
        texts.append(f"{direction} {name} p{index}")
        if direction != "rout":
            given.append(value)
        elif name == "sequence<octet>":
            given.append(len(value))
        if direction != "in":
            same = direction == "inrout" and name == "sequence<octet>"
            out.append(value if same or direction == "rout" else draw(VALUES[name]))
    return ", ".join(texts), given, out


@given(calls())
def test_both_sides_of_a_call_agree(call: tuple[str, list[Any], list[Any]]) -> None:
    text, given, out = call
    one = method(text)
    ins, outs = marshal.pack_call(one, given)
    seen, _capacities = marshal.unpack_call(
        one, [bytes(memoryview(data)) for data in ins], [bytearray(size) for size in outs]
    )
    for mine, theirs in zip(given, seen, strict=True):
        assert list(theirs) == list(mine) if isinstance(mine, list) else theirs == mine
    filled = marshal.pack_results(one, out)
    assert [len(data) for data in filled] == outs
    assert list(marshal.unpack_results(one, given, filled)) == out


@pytest.mark.parametrize(
    ("text", "arguments", "error", "message"),
    [
        ("in octet a", [256], ValueError, "in octet a: 256 does not fit"),
        ("in long a", ["x"], ValueError, "in long a: 'x' does not fit"),
        ("in long a", [], TypeError, "0 arguments given, 1: a"),
        ("in string a", [b"x"], ValueError, "is no string"),
        ("in sequence<long> a", [b"abc"], ValueError, "3 bytes are no whole number of items"),
        ("in sequence<long> a", [[0.5]], ValueError, "float64 values for integers"),
        ("in sequence<octet> a", [[300]], ValueError, "300"),
        ("rout sequence<octet> a", [-1], ValueError, "a capacity of -1"),
    ],
)
def test_values_that_do_not_fit_are_refused(
    text: str, arguments: list[Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        marshal.pack_call(method(text), arguments)


def test_a_call_that_lies_about_its_lengths_is_refused() -> None:
    one = method("in sequence<octet> a")
    for ins in ([], [b"\1\0\0\0"], [b"\2\0\0\0", b"x"], [b"\1\0"]):
        with pytest.raises(ValueError, match=r"primitives|items"):
            marshal.unpack_call(one, ins, [])
    with pytest.raises(ValueError, match="7 bytes of primitives, not 8"):
        marshal.unpack_results(method("rout long long a"), [], [bytes(7)])


def test_arrays_travel_with_their_type() -> None:
    one = method("in sequence<float> a, rout sequence<float> b")
    ins, outs = marshal.pack_call(one, [np.arange(3), 3])
    assert (bytes(ins[0]), outs) == (struct.pack("<II", 3, 3), [12])
    (back,) = marshal.unpack_results(one, [None, 3], [memoryview(ins[1]).cast("B")])
    assert back.dtype == np.float32
    assert back.tolist() == [0, 1, 2]
