# SPDX-License-Identifier: MIT
"""MobileNet v1 in int8 on the simulated device, beside the same network in numpy's float32.

The baseline multiplies matrices (BLAS) after im2col, and where a convolution is depthwise sums up
products tap by tap, which is faster than matrices of one column.
"""

from collections.abc import Callable
from typing import Any

import mobilenet
import numpy as np
import numpy.typing as npt
import pytest
from mobilenet import Layer

import npukit

Floats = npt.NDArray[np.float32]

WITHIN = 6.0


@pytest.fixture(scope="module")
def layers() -> list[Layer]:
    return mobilenet.layers()


@pytest.fixture(autouse=True)
def group(benchmark: Any) -> None:
    benchmark.group = "MobileNet v1, 224x224, from image to logits"


def windows(x: Floats, kernel: int, stride: int) -> Floats:
    """(rows, columns, channels, kernel, kernel), padded as TFLite does, without a copy."""
    total = max((-(-len(x) // stride) - 1) * stride + kernel - len(x), 0)
    x = np.pad(x, ((total // 2, total - total // 2),) * 2 + ((0, 0),))
    seen = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(0, 1))
    return seen[::stride, ::stride]


def real(layer: Layer) -> Callable[[Floats], Floats]:
    """The layer as real numbers; weights are brought to the best layout here."""
    unit = np.float32(layer.weights_quantization.scale)
    weights = layer.weights.astype(np.float32) * unit
    bias = layer.bias.astype(np.float32) * np.float32(layer.inputs.scale) * unit
    kernel, stride = weights.shape[1], layer.stride

    def mean(x: Floats) -> Floats:
        return x.mean((0, 1), keepdims=True)

    def depthwise(x: Floats) -> Floats:
        seen = windows(x, kernel, stride)
        sums = np.broadcast_to(bias, seen.shape[:3]).copy()
        product = np.empty_like(sums)
        for dy in range(kernel):
            for dx in range(kernel):
                sums += np.multiply(seen[..., dy, dx], weights[0, dy, dx], out=product)
        return np.clip(sums, 0, 6, out=sums)

    matrix = np.ascontiguousarray(weights.transpose(1, 2, 3, 0).reshape(-1, len(weights)))

    def direct(x: Floats) -> Floats:
        if kernel == 1:
            rows, shape = x.reshape(-1, x.shape[2]), x.shape
        else:
            seen = windows(x, kernel, stride).transpose(0, 1, 3, 4, 2)
            rows, shape = seen.reshape(-1, len(matrix)), seen.shape
        sums = rows @ matrix
        sums += bias
        if layer.activation == "relu6":
            np.clip(sums, 0, 6, out=sums)
        return sums.reshape(*shape[:2], -1)

    if layer.padding == "valid":
        return mean
    return depthwise if layer.kind == "depthwise" else direct


@pytest.fixture(scope="module")
def network(layers: list[Layer]) -> Callable[[npt.NDArray[np.uint8]], Floats]:
    steps = [real(layer) for layer in layers]

    def run(image: npt.NDArray[np.uint8]) -> Floats:
        zero, scale = np.float32(mobilenet.IMAGE.zero_point), np.float32(mobilenet.IMAGE.scale)
        x = (image - zero) * scale
        for step in steps:
            x = step(x)
        return x

    return run


def test_baseline(benchmark: Any, network: Any) -> None:
    benchmark.extra_info.update(label="baseline: numpy, float32")
    benchmark(network, mobilenet.image())


@pytest.mark.parametrize(("path", "cores"), [("sim:rknpu", 1), ("sim:rknpu", 3), ("sim:rocket", 1)])
def test_simulated(benchmark: Any, layers: Any, network: Any, path: str, cores: int) -> None:
    benchmark.extra_info["label"] = f"int8, {path}, {cores} core{'s' if cores > 1 else ''}"
    if path == "sim:rknpu":
        benchmark.extra_info["limit_ratio"] = WITHIN
    image = mobilenet.image()
    with npukit.open(path) as device, mobilenet.network(layers).load(device, cores=cores) as model:
        (logits,) = benchmark(model.run, {"image": image}).values()
    # The same network, as far as 8 bits go through 28 layers.
    assert np.corrcoef(logits.ravel(), network(image).ravel())[0, 1] > 0.9
