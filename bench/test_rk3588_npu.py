# SPDX-License-Identifier: MIT
"""The simulated NPU core beside numpy's float32 matrix product: Npu.run alone, operands packed."""

import numpy as np
import pytest
from sim.rk3588_streams import Conv, array, operands

import npukit
from npukit.programs.rk3588.matmul import matmul
from npukit.sim.rk3588 import Npu

SIZE = 512
REGCMD = 0x1000
WITHIN = 4.0


def rows(dtype: str, out_dtype: str, m: int, first: int = 0) -> Conv:
    """``m`` rows of the product, as a convolution of a column of pixels."""
    features, output = 0x10000000 + first * SIZE * 4, 0x30000000 + first * SIZE * 4
    return Conv(dtype, out_dtype, m, 1, SIZE, SIZE, out=(m, 1), features=features, output=output)


def prepare(convs: list[Conv]) -> tuple[Npu, int]:
    """A core with everything mapped and the convolutions chained; and the words of the first."""
    npu = Npu()
    rng = np.random.default_rng(0)
    for i, conv in enumerate(convs):
        for name, (iova, size) in conv.spans().items():
            if name != "weights" or i == 0:
                npu.map(iova, operands(conv.dtype, size // conv.bytes, rng, exact=True))
        words = conv.words()
        if i + 1 < len(convs):
            words = conv.words(REGCMD + 0x1000 * (i + 1), len(words))
        npu.map(REGCMD + 0x1000 * i, array([*words, 0]))
    return npu, len(words)


@pytest.fixture(autouse=True)
def group(benchmark):
    benchmark.group = f"matrix product {SIZE}x{SIZE}x{SIZE}, simulated RK3588 core"


def test_baseline(benchmark):
    a, b = np.random.default_rng(0).standard_normal((2, SIZE, SIZE), np.float32)
    benchmark.extra_info.update(label="baseline: numpy.matmul, float32")
    benchmark(np.matmul, a, b, out=np.zeros((SIZE, SIZE), np.float32))


def run(benchmark, label: str, convs: list[Conv], **bound: float) -> None:
    npu, count = prepare(convs)
    completion = npu.run(REGCMD, count, len(convs))
    assert completion.error is None, completion.error
    benchmark.extra_info.update(label=label, **bound)
    benchmark(npu.run, REGCMD, count, len(convs))


def test_int8(benchmark):
    run(benchmark, "int8 -> int32", [rows("int8", "int32", SIZE)], limit_ratio=WITHIN)


@pytest.mark.parametrize("out_dtype", ["fp32", "fp16"])
def test_fp16(benchmark, out_dtype):
    # 512 rows would fill 16 of the 12 banks.
    halves = [rows("fp16", out_dtype, SIZE // 2, first) for first in (0, SIZE // 2)]
    run(benchmark, f"fp16 -> {out_dtype}, two tasks", halves)


@pytest.mark.parametrize("driver", ["rknpu", "rocket"])
def test_matmul(benchmark, driver):
    """matmul() end to end: packing, streams, the driver, all cores, unpacking."""
    a, b = np.random.default_rng(0).integers(-128, 128, (2, SIZE, SIZE), np.int8)
    benchmark.extra_info.update(label=f"int8 -> int32, matmul() on sim:{driver}")
    with npukit.open(f"sim:{driver}") as device:
        assert np.array_equal(matmul(device, a, b), a.astype(np.int32) @ b.astype(np.int32))
        benchmark(matmul, device, a, b)
