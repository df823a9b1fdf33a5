# SPDX-License-Identifier: MIT
"""Packing beside memcpy of as many bytes, which no packing can beat, and numpy's transpose."""

import ctypes

import numpy as np
import pytest

from npukit import _fast

SHAPES = [(64, 56, 56), (256, 56, 56), (64, 112, 112), (128, 64, 64)]
ROWS = [(512, 512), (1024, 1024)]
int8_shapes = pytest.mark.parametrize("shape", SHAPES, ids=str, scope="class")
matrices = pytest.mark.parametrize("shape", ROWS, ids=str, scope="class")
AT_LEAST_HALF = 2.0


def memcpy(benchmark, c_library, size):
    src, dst = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    count = 10
    benchmark.extra_info.update(ops=count, label="baseline: memcpy")
    benchmark(
        c_library.baseline_memcpy,
        ctypes.c_void_p(dst.ctypes.data),
        ctypes.c_void_p(src.ctypes.data),
        ctypes.c_size_t(size),
        ctypes.c_long(count),
    )


@int8_shapes
class TestNc1hwc2:
    @pytest.fixture(autouse=True)
    def group(self, benchmark, shape):
        benchmark.group = f"int8 {shape} to NC1HWC2 and back"

    def test_baseline(self, benchmark, c_library, shape):
        memcpy(benchmark, c_library, int(np.prod(shape)))

    def test_pack(self, benchmark, shape):
        src = np.ones(shape, np.int8)
        out = np.zeros(src.size, np.int8)
        benchmark.extra_info.update(label="pack_nc1hwc2", limit_ratio=AT_LEAST_HALF)
        benchmark(_fast.pack_nc1hwc2, src, 0, out)

    def test_unpack(self, benchmark, shape):
        c, h, w = shape
        src = np.ones((c // 16, h, w, 16), np.int8)
        out = np.zeros(src.size, np.int8)
        benchmark.extra_info.update(label="unpack_nc1hwc2")
        benchmark(_fast.unpack_nc1hwc2, src, c, out)

    def test_numpy(self, benchmark, shape):
        c, h, w = shape
        src = np.ones((c // 16, 16, h, w), np.int8)
        out = np.zeros((c // 16, h, w, 16), np.int8)
        benchmark.extra_info.update(label="numpy.copyto of a transpose")
        benchmark(np.copyto, out, src.transpose(0, 2, 3, 1))


@pytest.mark.benchmark(group="float16 (64, 56, 56) to NC1HWC2")
class TestNc1hwc2Float16:
    shape = (64, 56, 56)

    def test_baseline(self, benchmark, c_library):
        memcpy(benchmark, c_library, 2 * int(np.prod(self.shape)))

    def test_pack(self, benchmark):
        src = np.ones(self.shape, np.float16)
        out = np.zeros(src.size, np.float16)
        benchmark.extra_info.update(label="pack_nc1hwc2")
        benchmark(_fast.pack_nc1hwc2, src, 0, out)

    def test_numpy(self, benchmark):
        c, h, w = self.shape
        src = np.ones((c // 8, 8, h, w), np.float16)
        out = np.zeros((c // 8, h, w, 8), np.float16)
        benchmark.extra_info.update(label="numpy.copyto of a transpose")
        benchmark(np.copyto, out, src.transpose(0, 2, 3, 1))


@matrices
class TestMatmulOperands:
    @pytest.fixture(autouse=True)
    def group(self, benchmark, shape):
        benchmark.group = f"int8 {shape} as features and weights of a matmul"

    def test_baseline(self, benchmark, c_library, shape):
        memcpy(benchmark, c_library, int(np.prod(shape)))

    def test_pack_nhwc(self, benchmark, shape):
        src, out = np.ones(shape, np.int8), np.zeros(np.prod(shape), np.int8)
        benchmark.extra_info.update(label="pack_nhwc")
        benchmark(_fast.pack_nhwc, src, 0, out)

    def test_unpack_nhwc(self, benchmark, shape):
        m, k = shape
        src, out = np.ones((k // 16, m, 16), np.int8), np.zeros(m * k, np.int8)
        benchmark.extra_info.update(label="unpack_nhwc")
        benchmark(_fast.unpack_nhwc, src, k, out)

    def test_pack_weights(self, benchmark, shape):
        src, out = np.ones(shape, np.int8), np.zeros(np.prod(shape), np.int8)
        benchmark.extra_info.update(label="pack_weights")
        benchmark(_fast.pack_weights, src, 0, out)

    def test_numpy(self, benchmark, shape):
        m, k = shape
        src, out = np.ones((m, k // 16, 16), np.int8), np.zeros((k // 16, m, 16), np.int8)
        benchmark.extra_info.update(label="numpy.copyto of pack_nhwc's transpose")
        benchmark(np.copyto, out, src.transpose(1, 0, 2))
