# SPDX-License-Identifier: MIT
"""npukit._fast.ioctl and ioctl_many against real file descriptors."""

import ctypes
import enum
import errno
import fcntl
import os
import pty
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from npukit import _fast

FIONREAD = termios.FIONREAD
FIONBIO = termios.FIONBIO
NS_GET_NSTYPE = 0xB703  # <linux/nsfs.h>: the answer is the result itself
CLONE_NEWUTS = 0x04000000


@contextmanager
def pipe_holding(data: bytes) -> Iterator[int]:
    """The reading end of a pipe that holds `data`."""
    reader, writer = os.pipe()
    try:
        os.write(writer, data)
        yield reader
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(
    "make", [lambda: ctypes.c_int(-1), lambda: bytearray(4), lambda: np.zeros(1, np.int32)]
)
def test_fills_any_writable_buffer(make):
    buffer = make()
    with pipe_holding(b"four") as fd:
        assert _fast.ioctl(fd, FIONREAD, buffer) == (0, 0)
    assert bytes(memoryview(buffer).cast("B")) == (4).to_bytes(4, "little")


def test_reads_a_read_only_buffer():
    with pipe_holding(b"") as fd:
        assert _fast.ioctl(fd, FIONBIO, (1).to_bytes(4, "little")) == (0, 0)
        assert not os.get_blocking(fd)


def test_takes_the_address_of_a_mapping():
    memory = _fast.mmap(-1, 4, flags=_fast.MAP_PRIVATE | _fast.MAP_ANONYMOUS)
    with pipe_holding(b"abc") as fd:
        assert _fast.ioctl(fd, FIONREAD, memory) == (0, 0)
    assert memoryview(memory)[0] == 3


@pytest.mark.parametrize("kind", [int, np.uint64])
def test_an_integer_is_an_address_or_value(kind):
    count = ctypes.c_int(-1)
    with pipe_holding(b"abc") as fd:
        assert _fast.ioctl(fd, FIONREAD, kind(ctypes.addressof(count))) == (0, 0)
    assert count.value == 3


@pytest.mark.parametrize("bad", [0, None, 1, -1, -(2**63), 2**64 - 1])
def test_a_bad_address_is_the_kernels_affair(bad):
    with pipe_holding(b"") as fd:
        assert _fast.ioctl(fd, FIONREAD, bad) == (-1, errno.EFAULT)


def test_an_int_subclass_is_a_request():
    class Request(enum.IntEnum):
        READABLE = FIONREAD

    count = ctypes.c_int()
    with pipe_holding(b"ab") as fd:
        assert _fast.ioctl(fd, Request.READABLE, count) == (0, 0)
    assert count.value == 2


def test_a_result_other_than_zero_is_no_error():
    fd = os.open("/proc/self/ns/uts", os.O_RDONLY)
    try:
        assert _fast.ioctl(fd, NS_GET_NSTYPE) == (CLONE_NEWUTS, 0)
    finally:
        os.close(fd)


def test_errors_are_returned_and_do_not_stick():
    count = ctypes.c_int()
    assert _fast.ioctl(-1, FIONREAD, count) == (-1, errno.EBADF)
    with pipe_holding(b"") as fd:
        assert _fast.ioctl(fd, 0xFFFFFFFF, count) == (-1, errno.ENOTTY)
        assert _fast.ioctl(fd, FIONREAD, count) == (0, 0)


def test_the_buffer_is_let_go_afterwards():
    buffer = bytearray(4)
    _fast.ioctl(-1, FIONREAD, buffer)
    buffer.append(0)  # BufferError if an export were left


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("0", FIONREAD), TypeError),
        ((0, FIONREAD, "text"), TypeError),
        ((0, FIONREAD, 1.5), TypeError),
        ((0, -1), OverflowError),
        ((0, 2**32), OverflowError),
        ((2**31, FIONREAD), OverflowError),
        ((0, FIONREAD, 2**64), OverflowError),
        ((0, FIONREAD, -(2**63) - 1), OverflowError),
        ((0, FIONREAD, np.zeros((4, 4), np.uint8)[:, 1]), BufferError),
        ((0, FIONREAD, memoryview(bytearray(8))[::2]), BufferError),
        ((0, FIONREAD, np.array([None])), TypeError),
    ],
)
def test_wrong_arguments(arguments, error):
    with pytest.raises(error):
        _fast.ioctl(*arguments)


def calls_of(*rows: tuple[int, int]) -> np.ndarray:
    return np.array(rows, np.uint64).reshape(-1, 2)


def test_many():
    counts = (ctypes.c_int * 3)()
    base = ctypes.addressof(counts)
    calls = calls_of((FIONREAD, base), (0xFFFFFFFF, base + 4), (FIONREAD, base + 8))
    results = np.full((3, 2), 99, np.int64)
    with pipe_holding(b"abc") as fd:
        assert _fast.ioctl_many(fd, calls, results) == 3
    assert results.tolist() == [[0, 0], [-1, errno.ENOTTY], [0, 0]]
    assert list(counts) == [3, 0, 3]


def test_many_may_stop_at_the_first_error():
    count = ctypes.c_int()
    good = (FIONREAD, ctypes.addressof(count))
    results = np.full((4, 2), 99, np.int64)
    with pipe_holding(b"") as fd:
        calls = calls_of(good, (FIONREAD, 1), good, good)
        assert _fast.ioctl_many(fd, calls, results, stop_on_error=True) == 2
    assert results.tolist() == [[0, 0], [-1, errno.EFAULT], [99, 99], [99, 99]]


def test_many_of_none():
    assert _fast.ioctl_many(-1, calls_of(), np.empty((0, 2), np.int64)) == 0


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("calls", "results", "error"),
    [
        (np.zeros((2, 2), np.int64), np.zeros((2, 2), np.int64), TypeError),
        (np.zeros((2, 2), np.uint32), np.zeros((2, 2), np.int64), TypeError),
        (np.zeros((2, 2), np.uint64), np.zeros((2, 2), np.uint64), TypeError),
        (np.zeros((2, 2), np.uint64), [[0, 0]], TypeError),
        (np.zeros(4, np.uint64), np.zeros((2, 2), np.int64), ValueError),
        (np.zeros((2, 3), np.uint64), np.zeros((2, 2), np.int64), ValueError),
        (np.zeros((2, 2), np.uint64), np.zeros((3, 2), np.int64), ValueError),
        (np.zeros((2, 4), np.uint64)[:, ::2], np.zeros((2, 2), np.int64), ValueError),
        (np.zeros((2, 2), ">u8"), np.zeros((2, 2), np.int64), ValueError),
        (np.zeros((2, 2), np.uint64), read_only(np.zeros((2, 2), np.int64)), BufferError),
    ],
)
def test_many_refuses_other_arrays(calls, results, error):
    with pytest.raises(error):
        _fast.ioctl_many(-1, calls, results)


def test_agrees_with_fcntl_on_a_terminal():
    """A larger struct, written and read back, by both ways."""
    master, slave = pty.openpty()
    try:
        ours, theirs = bytearray(8), bytearray(8)
        size = np.array([24, 80, 640, 480], np.uint16)
        assert _fast.ioctl(slave, termios.TIOCSWINSZ, size) == (0, 0)
        assert _fast.ioctl(master, termios.TIOCGWINSZ, ours) == (0, 0)
        fcntl.ioctl(master, termios.TIOCGWINSZ, theirs)
        assert bytes(ours) == bytes(theirs) == size.tobytes()
    finally:
        os.close(master)
        os.close(slave)
