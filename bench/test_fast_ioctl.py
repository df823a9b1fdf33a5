# SPDX-License-Identifier: MIT
"""One ioctl that the kernel answers at once (FIONREAD on a pipe): what does the way to it cost?"""

import ctypes
import fcntl
import os
import termios

import numpy as np
import pytest

from npukit import _fast

COUNT = 2000


@pytest.fixture
def reader():
    reader, writer = os.pipe()
    yield reader
    os.close(reader)
    os.close(writer)


def c_loop(benchmark, c_library, fd):
    benchmark.extra_info.update(ops=COUNT, label="baseline: C loop")
    answer = ctypes.c_int()
    request = ctypes.c_ulong(termios.FIONREAD)
    benchmark(c_library.baseline_ioctl, fd, request, ctypes.byref(answer), ctypes.c_long(COUNT))


def loop(call, fd, request, argument):
    for _ in range(COUNT):
        call(fd, request, argument)


@pytest.mark.benchmark(group="ioctl, one by one")
class TestOneByOne:
    def test_baseline(self, benchmark, c_library, reader):
        c_loop(benchmark, c_library, reader)

    @pytest.mark.parametrize("way", ["address", "struct", "array"])
    def test_ours(self, benchmark, reader, way):
        answer = ctypes.c_int()
        argument = {
            "address": ctypes.addressof(answer),
            "struct": answer,
            "array": np.zeros(1, np.int32),
        }[way]
        benchmark.extra_info.update(ops=COUNT, label=f"ioctl, {way}", limit_ratio=2.2)
        benchmark(loop, _fast.ioctl, reader, termios.FIONREAD, argument)

    def test_fcntl(self, benchmark, reader):
        benchmark.extra_info.update(ops=COUNT, label="fcntl.ioctl, bytearray")
        benchmark(loop, fcntl.ioctl, reader, termios.FIONREAD, bytearray(4))


@pytest.mark.benchmark(group="ioctl, a batch of 2000")
class TestBatch:
    def test_baseline(self, benchmark, c_library, reader):
        c_loop(benchmark, c_library, reader)

    def test_ours(self, benchmark, reader):
        answer = ctypes.c_int()
        calls = np.empty((COUNT, 2), np.uint64)
        calls[:] = termios.FIONREAD, ctypes.addressof(answer)
        results = np.empty((COUNT, 2), np.int64)
        benchmark.extra_info.update(ops=COUNT, label="ioctl_many", limit_ratio=1.15)
        benchmark(_fast.ioctl_many, reader, calls, results)
