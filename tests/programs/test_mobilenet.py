# SPDX-License-Identifier: MIT
"""examples/mobilenet.py on simulated devices, layer by layer against plain integers in numpy."""

from typing import Any

import mobilenet
import numpy as np
import numpy.typing as npt
import pytest
from mobilenet import Layer
from support import no_leak

import npukit
from npukit.programs.rk3588.quantize import conv_factor

Array = npt.NDArray[Any]


def windows(x: Array, layer: Layer) -> Array:
    """(rows, columns, channels, kernel, kernel) of centred values, padded as TFLite does."""
    kernel, stride = layer.weights.shape[1], layer.stride
    if layer.padding == "same":
        total = max((-(-len(x) // stride) - 1) * stride + kernel - len(x), 0)
        x = np.pad(x, ((total // 2, total - total // 2),) * 2 + ((0, 0),))
    seen = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(0, 1))
    return seen[::stride, ::stride]


def twin(layer: Layer, x: Array) -> Array:
    """int32 sums of products, then one multiplication and rounding; all numbers are exact."""
    centred = x.astype(np.int32) - layer.inputs.zero_point
    seen = windows(centred, layer)
    weights = layer.weights.astype(np.int32) - layer.weights_quantization.zero_point
    if layer.kind == "depthwise":
        sums = np.einsum("yxcij,ijc->yxc", seen, weights[0])
    else:
        rows = seen.transpose(0, 1, 3, 4, 2).reshape(-1, weights[0].size)
        # In doubles, whose 53 bits hold every sum: integers have no BLAS.
        product = rows.astype(np.float64) @ weights.reshape(len(weights), -1).T.astype(np.float64)
        sums = product.reshape(*seen.shape[:2], -1).astype(np.int64)
    sums = sums.astype(np.int64) + layer.bias
    assert np.abs(sums).max() < 2**31
    factor = conv_factor(layer.inputs, layer.weights_quantization, layer.outputs)
    # 31 bits times 15 bits, divided by a power of two: exact; rint takes ties to even.
    steps = np.rint(sums * (factor.scale * 2.0**-factor.shift)) + layer.outputs.zero_point
    low, high = 0, 255
    if layer.activation == "relu6":
        low = layer.outputs.zero_point
        high = min(high, low + round(6 / layer.outputs.scale))
    return np.clip(steps, low, high).astype(np.uint8)


@pytest.fixture(scope="module")
def layers() -> list[Layer]:
    return mobilenet.layers()


@pytest.fixture(scope="module")
def expected(layers: list[Layer]) -> list[Array]:
    """The value behind each layer."""
    values = [mobilenet.image()]
    for layer in layers:
        values.append(twin(layer, values[-1]))
    return values[1:]


def test_it_is_mobilenet(layers: list[Layer], expected: list[Array]) -> None:
    convolutions = [layer for layer in layers if layer.padding == "same"]
    assert len(convolutions) == 28
    assert expected[-1].shape == (1, 1, 1000)
    products = sum(
        layer.weights[0].size * value.size // (value.shape[2] if layer.kind == "depthwise" else 1)
        for layer, value in zip(convolutions, expected, strict=False)
    )
    weights = sum(layer.weights.size for layer in convolutions)
    # The paper (Howard and others, 2017) says 569 million products and 4.2 million weights.
    assert 560e6 < products < 570e6
    assert 4.1e6 < weights < 4.3e6
    for value in expected[:-2]:
        assert len(np.unique(value)) > 200
        assert 0.4 < np.mean(value == 0) < 0.6
        assert 0.005 < np.mean(value == 255) < 0.05
    assert expected[-1].min() > 0
    assert expected[-1].max() < 255
    assert len(np.unique(expected[-1])) > 30


def test_every_layer_on_rknpu(layers: list[Layer], expected: list[Array]) -> None:
    net = mobilenet.network(layers)
    names = [step.output for step in net.steps]
    with (
        no_leak(),
        npukit.open("sim:rknpu", strict=True) as device,
        net.load(device, outputs=names) as model,
    ):
        found = model.run({"image": mobilenet.image()})
        assert list(found) == names
        for name, value in zip(names, expected, strict=True):
            np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize(("path", "cores"), [("sim:rknpu", 1), ("sim:rknpu", 3), ("sim:rocket", 1)])
def test_values_that_share_memory(
    layers: list[Layer], expected: list[Array], path: str, cores: int
) -> None:
    """Run on a first image and then on another: nothing of the first is left."""
    net = mobilenet.network(layers)
    with npukit.open(path, strict=True) as device, net.load(device, cores=cores) as model:
        if path == "sim:rknpu":
            assert f"in {1 if cores == 1 else 29} submission" in repr(model)
            # The two largest neighbours: what the first pointwise convolution reads and writes.
            assert model.plan.size == model.plan.peak == 112 * 112 * (64 + 64)
        first = model.run({"image": mobilenet.image(seed=5)})
        second = model.run({"image": mobilenet.image()})
    assert list(first) == list(second) == [net.steps[-1].output]
    assert not np.array_equal(first[net.outputs[0]], expected[-1])
    np.testing.assert_array_equal(second[net.outputs[0]], expected[-1])
