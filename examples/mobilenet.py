# SPDX-License-Identifier: MIT
"""MobileNet v1 in int8, with weights from a seed: load it once, run it on one image after another.

python examples/mobilenet.py [PATH|sim:rknpu|sim:rocket]
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import npukit
from npukit.programs.rk3588.conv import Convolution, conv2d, depthwise_conv2d, fully_connected
from npukit.programs.rk3588.network import Network, Step
from npukit.programs.rk3588.quantize import Quantization

BLOCKS = (
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2),
    (512, 1), (512, 1), (512, 1), (512, 1), (512, 1), (1024, 2), (1024, 1),
)  # fmt: skip
"""Kernels of the pointwise and stride of the depthwise convolution of each block."""
CLASSES = 1000

IMAGE = Quantization(1 / 64, 128)
RELU6 = Quantization(6 / 255, 0)
LOGITS = Quantization(0.1, 128)

SPREAD = 3.0
"""Standard deviation of sums before relu6: half of them are cut at 0 and one in 40 at 6."""
INPUT_VARIANCE = {IMAGE: 256**2 / 12 / 64**2, RELU6: SPREAD**2 * 0.3}
"""Of pixels that are drawn evenly, and about that of what relu6 leaves."""


@dataclass(frozen=True)
class Layer:
    """A convolution; ``weights`` are (out, kh, kw, in), or (1, kh, kw, channels) of a depthwise."""

    kind: str
    size: int
    """Rows and columns of its input."""
    weights: npt.NDArray[np.int8]
    bias: npt.NDArray[np.int32]
    stride: int
    inputs: Quantization
    weights_quantization: Quantization
    outputs: Quantization
    activation: str
    padding: str = "same"

    def operation(self) -> Convolution:
        quantizations = (self.inputs, self.weights_quantization, self.outputs)
        if self.kind == "fully connected":
            return fully_connected(1, self.weights[:, 0, 0], self.bias, *quantizations)
        make = depthwise_conv2d if self.kind == "depthwise" else conv2d
        return make(
            self.size,
            self.size,
            self.weights,
            self.bias,
            *quantizations,
            stride=self.stride,
            padding=self.padding,
            activation=self.activation,
        )


def layers(size: int = 224, width: float = 1.0, seed: int = 0) -> list[Layer]:
    """The 28 convolutions, the last one fully connected, and the mean over all pixels before it.

    Images are (size, size, 3) of uint8; ``width`` multiplies the channels.
    """
    rng = np.random.default_rng(seed)
    found: list[Layer] = []

    def convolution(kind: str, kernels: int, kernel: int, stride: int, channels: int) -> None:
        inputs = found[-1].outputs if found else IMAGE
        last = kind == "fully connected"
        shape = (1 if kind == "depthwise" else kernels, kernel, kernel, channels)
        weights = rng.integers(-127, 128, shape).astype(np.int8)
        taps = kernel * kernel * (1 if kind == "depthwise" else channels)
        scale = SPREAD / np.sqrt(taps * INPUT_VARIANCE[inputs]) / (255 / np.sqrt(12))
        quantization = Quantization(float(scale), 0, "int8")
        # The mean of the products, so that it takes no part in the spread, and something of a bias.
        mean = 0.0 if inputs is IMAGE else 1.2 / inputs.scale
        sums = weights.sum(axis=(0, 1, 2) if kind == "depthwise" else (1, 2, 3), dtype=np.int64)
        noise = rng.normal(0, 0.3, kernels) / (inputs.scale * scale)
        bias = np.round(noise - mean * sums).astype(np.int32)
        outputs, activation = (LOGITS, "none") if last else (RELU6, "relu6")
        found.append(
            Layer(kind, size, weights, bias, stride, inputs, quantization, outputs, activation)
        )

    channels = round(32 * width)
    convolution("direct", channels, 3, 2, 3)
    size = -(-size // 2)
    for kernels, stride in BLOCKS:
        convolution("depthwise", channels, 3, stride, channels)
        size = -(-size // stride)
        convolution("direct", round(kernels * width), 1, 1, channels)
        channels = round(kernels * width)
    # The mean is a depthwise convolution, which both drivers can wait for.
    ones = np.ones((1, size, size, channels), np.int8)
    unit = Quantization(1 / size**2, 0, "int8")
    none = np.zeros(channels, np.int32)
    found.append(Layer("depthwise", size, ones, none, 1, RELU6, unit, RELU6, "none", "valid"))
    size = 1
    convolution("fully connected", CLASSES, 1, 1, channels)
    return found


def network(parts: list[Layer]) -> Network:
    """Values are "image", then "0", "1", ... as the layers make them."""
    names = ["image", *map(str, range(len(parts)))]
    return Network(
        Step(layer.operation(), (names[index],), names[index + 1])
        for index, layer in enumerate(parts)
    )


def image(size: int = 224, seed: int = 1) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (size, size, 3), np.uint8)


def main(path: str) -> None:
    net = network(layers())
    with npukit.open(path) as device, net.load(device) as model:
        print(model)
        for seed in range(3):
            picture = image(seed=seed)
            start = time.perf_counter()
            (logits,) = model.run({"image": picture}).values()
            took = (time.perf_counter() - start) * 1e3
            best: Any = np.argsort(logits.ravel())[::-1][:3]
            print(f"image {seed}: classes {', '.join(map(str, best))} in {took:.0f} ms")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sim:rknpu")
