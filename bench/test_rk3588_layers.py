# SPDX-License-Identifier: MIT
"""Layers of a MobileNet on the simulated NPU core, in int8, beside numpy in float32.

Npu.run alone, tensors packed; numpy's side copies windows (im2col) and multiplies by BLAS.
"""

from dataclasses import dataclass

import numpy as np
import pytest

from npukit.programs.rk3588.conv import conv2d, depthwise_conv2d
from npukit.programs.rk3588.quantize import Quantization
from npukit.sim.rk3588 import Npu

INPUT, CONSTANTS, OUTPUT, REGCMD = 0x10000000, 0x20000000, 0x30000000, 0x40000000
WITHIN = 6.0


@dataclass(frozen=True)
class Layer:
    size: int
    channels: int
    kernels: int
    kernel: int
    stride: int
    depthwise: bool = False

    @property
    def out(self) -> int:
        return -(-self.size // self.stride)


LAYERS = {
    "3x3, stride 2, 224x224x3 to 112x112x32": Layer(224, 3, 32, 3, 2),
    "depthwise 3x3, 112x112x32": Layer(112, 32, 32, 3, 1, depthwise=True),
    "depthwise 3x3, stride 2, 56x56x128": Layer(56, 128, 128, 3, 2, depthwise=True),
    "1x1, 112x112x32 to 64": Layer(112, 32, 64, 1, 1),
    "1x1, 14x14x512 to 512": Layer(14, 512, 512, 1, 1),
}


@pytest.fixture(scope="class", params=LAYERS, ids=LAYERS)
def layer(request) -> Layer:
    return LAYERS[request.param]


class TestLayer:
    @pytest.fixture(autouse=True)
    def group(self, benchmark, layer):
        name = next(name for name, one in LAYERS.items() if one is layer)
        benchmark.group = f"simulated RK3588 core, {name}"

    def test_baseline(self, benchmark, layer):
        rng = np.random.default_rng(0)
        margin = layer.kernel // 2
        side = layer.size + 2 * margin
        x = rng.standard_normal((side, side, layer.channels), np.float32)
        taps, area = layer.kernel**2, layer.out**2
        deep = layer.channels * (1 if layer.depthwise else taps)
        weights = rng.standard_normal(
            (deep, taps if layer.depthwise else layer.kernels), np.float32
        )

        def convolve():
            shape = (layer.kernel, layer.kernel)
            windows = np.lib.stride_tricks.sliding_window_view(x, shape, (0, 1))
            windows = windows[:: layer.stride, :: layer.stride]
            if layer.depthwise:
                columns = windows.reshape(area, layer.channels, taps)
                y = np.einsum("pct,ct->pc", columns, weights)
            else:
                y = windows.reshape(area, deep) @ weights
            return np.clip(y, 0, 6, out=y)

        benchmark.extra_info.update(label="baseline: numpy, float32, im2col and BLAS")
        benchmark(convolve)

    def test_int8(self, benchmark, layer):
        rng = np.random.default_rng(0)
        one = 1 if layer.depthwise else layer.kernels
        weights = rng.integers(0, 256, (one, layer.kernel, layer.kernel, layer.channels), np.uint8)
        step = Quantization(0.02, 128)
        make = depthwise_conv2d if layer.depthwise else conv2d
        op = make(
            layer.size, layer.size, weights, None, step, step, step, stride=layer.stride,
            activation="relu6",
        )  # fmt: skip
        program = op.program([INPUT], CONSTANTS, OUTPUT).chained(REGCMD)
        npu = Npu()
        npu.map(INPUT, rng.integers(-128, 128, op.inputs[0].size, np.int8))
        npu.map(CONSTANTS, op.constants)
        npu.map(OUTPUT, np.zeros(op.output.size, np.int8))
        npu.map(REGCMD, program.words)
        count, tasks = program.tasks[0].count, len(program.tasks)
        completion = npu.run(REGCMD, count, tasks)
        assert completion.error is None, completion.error
        benchmark.extra_info.update(label="int8 to int8, with bias and relu6", limit_ratio=WITHIN)
        benchmark(npu.run, REGCMD, count, tasks)
