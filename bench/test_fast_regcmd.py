# SPDX-License-Identifier: MIT
"""100,000 register command words beside a C loop over the same arrays."""

import ctypes

import numpy as np
import pytest

from npukit import _fast

COUNT = 100_000
TARGET = np.full(COUNT, 0x1001, np.uint16)
VALUE = np.arange(COUNT, dtype=np.uint32)
REGISTER = np.full(COUNT, 0x4020, np.uint16)
FIELDS = (TARGET, VALUE, REGISTER)

pytestmark = pytest.mark.benchmark(group="100,000 command words")


def test_baseline(benchmark, c_library):
    words = np.zeros(COUNT, np.uint64)
    addresses = [ctypes.c_void_p(array.ctypes.data) for array in (words, *FIELDS)]
    benchmark.extra_info.update(label="baseline: C loop")
    benchmark(c_library.baseline_encode, *addresses, ctypes.c_size_t(COUNT))


def test_encode_out(benchmark):
    words = np.zeros(COUNT, np.uint64)
    benchmark.extra_info.update(label="encode_regcmds, out given", limit_ratio=1.3)
    benchmark(_fast.encode_regcmds, *FIELDS, words)


def test_encode(benchmark):
    benchmark.extra_info.update(label="encode_regcmds, new array")
    benchmark(_fast.encode_regcmds, *FIELDS)


def test_decode(benchmark):
    words = _fast.encode_regcmds(*FIELDS)
    benchmark.extra_info.update(label="decode_regcmds, new arrays")
    benchmark(_fast.decode_regcmds, words)


def test_numpy(benchmark):
    def shifts():
        return TARGET.astype(np.uint64) << 48 | VALUE.astype(np.uint64) << 16 | REGISTER

    benchmark.extra_info.update(label="numpy shifts")
    benchmark(shifts)
