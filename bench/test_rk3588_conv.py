# SPDX-License-Identifier: MIT
"""Convolutions end to end on the simulated driver, beside numpy's float32 im2col and BLAS."""

import numpy as np
import pytest

import npukit
from npukit.programs.rk3588.conv import conv2d, execute
from npukit.programs.rk3588.quantize import PerChannel, Quantization

SIZE, CHANNELS, KERNELS = 56, 64, 128
WITHIN = 6.0
"""What a whole network may take."""

RNG = np.random.default_rng(0)
IMAGE = RNG.integers(-128, 128, (SIZE, SIZE, CHANNELS), np.int8)
WEIGHTS = RNG.integers(-128, 128, (KERNELS, 3, 3, CHANNELS), np.int8)
INPUTS, OUTPUTS = Quantization(0.02, 3, "int8"), Quantization(0.5, 3, "int8")


@pytest.fixture(autouse=True)
def group(benchmark):
    benchmark.group = f"convolution 3x3 of {SIZE}x{SIZE}x{CHANNELS} to {KERNELS}, simulated RK3588"


def test_baseline(benchmark):
    image = IMAGE.astype(np.float32)
    weights = WEIGHTS.astype(np.float32).transpose(0, 3, 1, 2).reshape(KERNELS, -1).T.copy()

    def convolve():
        padded = np.pad(image, ((1, 1), (1, 1), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (0, 1))
        return windows.reshape(SIZE * SIZE, -1) @ weights

    benchmark.extra_info.update(label="baseline: numpy, float32, im2col and BLAS")
    benchmark(convolve)


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("kind", ["int8", "int8, scales of channels", "float16"])
def test_convolution(benchmark, kind, cores):
    image, weights, numbers = IMAGE, WEIGHTS, (INPUTS, Quantization(0.003, 0, "int8"), OUTPUTS)
    if kind == "float16":
        image, weights, numbers = IMAGE.astype(np.float16), WEIGHTS.astype(np.float16), ()
    elif kind != "int8":
        numbers = (INPUTS, PerChannel(RNG.uniform(0.001, 0.003, KERNELS)), OUTPUTS)
    op = conv2d(SIZE, SIZE, weights, None, *numbers)
    bound = {"limit_ratio": WITHIN} if kind != "float16" and cores == 1 else {}
    benchmark.extra_info.update(label=f"{kind}, execute() on {cores} cores of sim:rknpu", **bound)
    with npukit.open("sim:rknpu") as device:
        benchmark(execute, device, op, image, cores=cores)
