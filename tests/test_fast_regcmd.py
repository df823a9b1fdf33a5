# SPDX-License-Identifier: MIT
"""Register command words against plain Python."""

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npukit import _fast

fields = st.tuples(
    st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFFFF)
)  # fmt: skip


def twin(target: int, value: int, register: int) -> int:
    return target << 48 | value << 16 | register


def columns(rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    target, value, register = zip(*rows, strict=True) if rows else ((), (), ())
    return (
        np.array(target, np.uint16),
        np.array(value, np.uint32),
        np.array(register, np.uint16),
    )


@given(st.lists(fields, max_size=70))
def test_words(rows):
    words = _fast.encode_regcmds(*columns(rows))
    assert words.dtype == np.uint64
    assert words.tolist() == [twin(*row) for row in rows]
    decoded = _fast.decode_regcmds(words)
    assert [field.dtype for field in decoded] == [np.uint16, np.uint32, np.uint16]
    assert list(zip(*(field.tolist() for field in decoded), strict=True)) == rows


@given(st.lists(fields, min_size=1, max_size=20))
def test_other_integers_make_the_same_words(rows):
    wanted = [twin(*row) for row in rows]
    target, value, register = columns(rows)
    lists = [list(column) for column in zip(*rows, strict=True)]
    assert _fast.encode_regcmds(*lists).tolist() == wanted
    assert _fast.encode_regcmds(*(np.array(x, object) for x in lists)).tolist() == wanted
    assert _fast.encode_regcmds(*(np.array(x, np.int64) for x in lists)).tolist() == wanted
    assert _fast.encode_regcmds(*(np.array(x, ">u8") for x in lists)).tolist() == wanted
    strided = np.repeat(value, 2)[::2]
    assert _fast.encode_regcmds(target, strided, register).tolist() == wanted
    assert (
        _fast.encode_regcmds(array("H", lists[0]), value, array("H", lists[2])).tolist() == wanted
    )


def test_a_scalar_stands_for_all():
    registers = np.arange(0, 12, 4, dtype=np.uint16)
    words = _fast.encode_regcmds(0x0201, [1, 2, 3], registers)
    assert words.tolist() == [twin(0x0201, 1, 0), twin(0x0201, 2, 4), twin(0x0201, 3, 8)]
    assert _fast.encode_regcmds(0x0081, np.uint32(0xD), np.array(8)).tolist() == [
        0x00810000000D0008
    ]
    assert _fast.encode_regcmds(1, 2, []).tolist() == []


def test_out():
    memory = bytearray(8 * 3 + 1)
    words = _fast.encode_regcmds(1, [2, 3, 4], 5, out=memoryview(memory)[1:])  # not aligned
    wanted = [twin(1, value, 5) for value in (2, 3, 4)]
    assert words.tolist() == np.frombuffer(memory, np.uint64, offset=1).tolist() == wanted

    target, value, register = bytearray(7), np.zeros(3, np.uint32), None
    decoded = _fast.decode_regcmds(words, (memoryview(target)[1:], value, register))
    assert [field.tolist() for field in decoded] == [[1, 1, 1], [2, 3, 4], [5, 5, 5]]
    assert value.tolist() == [2, 3, 4]
    assert target[1:] == b"\1\0\1\0\1\0"


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview, lambda data: array("Q", data)])
def test_decodes_any_bytes(make):
    data = np.array([twin(0x1001, 0xDEADBEEF, 0x4020)], np.uint64).tobytes()
    target, value, register = _fast.decode_regcmds(make(data))
    assert (target.tolist(), value.tolist(), register.tolist()) == (
        [0x1001],
        [0xDEADBEEF],
        [0x4020],
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([0, 65536], 0, 0), r"target\[1\] = 65536 is not in 0..0xffff"),
        ((-1, 0, 0), r"target\[0\] = -1 "),
        ((np.array([0, -1], np.int8), 0, 0), r"target\[1\] = -1 "),
        ((0, [1, 2, 2**32], 0), r"value\[2\] = 4294967296 is not in 0..0xffffffff"),
        ((0, np.array([2**64 - 1], np.uint64), 0), r"value\[0\] = 18446744073709551615 "),
        ((0, [2**70], 0), r"value\[0\] = 1180591620717411303424 "),
        ((0, [0, -(2**70)], 0), r"value\[1\] = -"),
        ((0, 0, np.array([1, 0x10000], np.uint32)), r"register\[1\] = 65536 "),
        (([1, 2], [1, 2, 3], 0), "2 targets, 3 values, 1 registers"),
        (([1, 2], [1], 0), "lengths differ"),
        ((np.zeros((2, 2), np.uint16), 0, 0), r"target: one dimension at most, not shape \(2, 2\)"),
    ],
)
def test_wrong_fields(arguments, text):
    with pytest.raises(ValueError, match=text):
        _fast.encode_regcmds(*arguments)


@pytest.mark.parametrize(
    "wrong", [1.0, [1.5], "1", None, [None], ["a"], np.array([1.5], object), np.array([True])]
)
def test_no_integers(wrong):
    with pytest.raises(TypeError):
        _fast.encode_regcmds(0, wrong, 0)


def test_wrong_out():
    with pytest.raises(ValueError, match="out holds 8 bytes, not the 16"):
        _fast.encode_regcmds(0, [1, 2], 0, out=bytearray(8))
    with pytest.raises(BufferError):
        _fast.encode_regcmds(0, [1, 2], 0, out=bytes(16))
    memory = np.zeros(4, np.uint32)
    with pytest.raises(ValueError, match="overlaps"):
        _fast.encode_regcmds(0, memory[:2], 0, out=memory)
    with pytest.raises(ValueError, match="overlaps"):
        _fast.decode_regcmds(memory.view(np.uint64), (None, memory[:2], None))
    with pytest.raises(ValueError, match="unpack"):
        _fast.decode_regcmds(memory.view(np.uint64), (None, None))


def test_wrong_words():
    with pytest.raises(TypeError, match="uint64 needed, not uint32"):
        _fast.decode_regcmds(np.zeros(4, np.uint32))
    with pytest.raises(TypeError, match="uint64 needed"):
        _fast.decode_regcmds(np.zeros(4, ">u8"))
    with pytest.raises(ValueError, match="12 bytes are no whole number"):
        _fast.decode_regcmds(bytes(12))
    with pytest.raises(BufferError):
        _fast.decode_regcmds(np.zeros(8, np.uint64)[::2])
    with pytest.raises(TypeError):
        _fast.decode_regcmds([1, 2])
