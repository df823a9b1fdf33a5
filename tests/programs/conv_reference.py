# SPDX-License-Identifier: MIT
"""What convolutions mean, in numpy's int64 or float64, and running one against that."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from npukit.programs.rk3588.conv import Convolution, conv2d, depthwise_conv2d, execute
from npukit.programs.rk3588.quantize import (
    FixedPoint,
    PerChannel,
    Quantization,
    channel_factors,
    conv_factor,
    fixed_point,
    requantize,
)
from npukit.smoke import fp16_bound

Array = npt.NDArray[Any]

PLAIN = (Quantization(0.02, 3), Quantization(0.005, 140), Quantization(0.3, 100))


def random(
    rng: np.random.Generator, quantization: Quantization | PerChannel, shape: tuple[int, ...]
) -> Array:
    dtype = "int8" if isinstance(quantization, PerChannel) else quantization.dtype
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape, dtype)


def centred(values: Array, quantization: Quantization | PerChannel) -> Array:
    zero = 0 if isinstance(quantization, PerChannel) else quantization.zero_point
    return values.astype(np.int64) - zero


def finish(
    sums: Array, factor: FixedPoint, outputs: Quantization, activation: str = "none"
) -> Array:
    """Values of the output's own dtype, from sums of centred products."""
    offset = 128 if outputs.dtype == "uint8" else 0
    limits = outputs.limits(activation)
    stored = requantize(sums, factor, outputs.zero_point - offset, limits)
    return (stored.astype(np.int64) + offset).astype(outputs.dtype)


def _pads(padding: Any, size: int, window: int, stride: int, axis: int) -> tuple[int, int]:
    if padding == "valid":
        return 0, 0
    if padding == "same":
        total = max((-(-size // stride) - 1) * stride + window - size, 0)
        return total // 2, total - total // 2
    return padding[2 * axis], padding[2 * axis + 1]


def convolve(
    x: Array,
    weights: Array,
    stride: tuple[int, int],
    padding: Any,
    depthwise: bool,
    dilation: tuple[int, int] = (1, 1),
) -> Array:
    """Sums of products of centred values, tap by tap: (out_height, out_width, channels)."""
    kernel = weights.shape[1:3]
    windows = [(kernel[i] - 1) * dilation[i] + 1 for i in (0, 1)]
    pads = [_pads(padding, x.shape[i], windows[i], stride[i], i) for i in (0, 1)]
    x = np.pad(x, (*pads, (0, 0)))
    size = [(x.shape[i] - windows[i]) // stride[i] + 1 for i in (0, 1)]
    total: Any = 0
    for dy in range(kernel[0]):
        for dx in range(kernel[1]):
            seen = x[dy * dilation[0] :: stride[0], dx * dilation[1] :: stride[1]]
            seen = seen[: size[0], : size[1]]
            tap = weights[:, dy, dx]
            total = total + (seen * tap[0] if depthwise else seen @ tap.T)
    return np.asarray(total)


def _slopes(values: Array, alpha: Any) -> Array:
    """Negative sums times alpha: 15 bits of one positive factor, or 16 of one for each channel."""
    factors = np.broadcast_to(np.asarray(alpha, np.float64), values.shape[-1:])
    if (factors == factors[0]).all() and factors[0] > 0:
        product = fixed_point(float(factors[0]))(values)
    else:
        shift = 15 - int(np.frexp(np.abs(factors).max())[1])
        scaled = np.clip(np.rint(factors * 2.0**shift), -32768, 32767).astype(np.int64)
        product = FixedPoint(1, shift)(values * scaled)
    return np.where(values < 0, product, values)


def quantized(
    sums: Array,
    quantizations: tuple[Quantization, Quantization | PerChannel, Quantization],
    activation: str,
    alpha: Any,
    addend: Quantization | None,
    other: Array | None,
) -> Array:
    """The integer formula of docs/rk3588.md, from sums with their biases."""
    inputs, weights, outputs = quantizations
    in_step, out_step = (float(np.float32(q.scale)) for q in (inputs, outputs))
    if isinstance(weights, PerChannel):
        added = float(np.float32(addend.scale)) / out_step if addend else 0.0
        steps = np.array(weights.scales, np.float32).astype(np.float64)
        factors = channel_factors(in_step * steps / out_step, added)
        sums = factors.first(sums)
        factor, of_addend = FixedPoint(1, factors.rest), added * 2.0**factors.rest
    else:
        factor = conv_factor(inputs, weights, outputs)
        product = np.float32(inputs.scale) * np.float32(weights.scale)
        of_addend = float(np.float32(addend.scale) / product) if addend else 0.0
    if activation == "prelu":
        sums, activation = _slopes(sums, alpha), "none"
    if addend is not None:
        assert other is not None
        sums = sums + fixed_point(of_addend)(centred(other, addend))
    return finish(sums, factor, outputs, activation)


def real_distance(
    found: Array,
    op: Convolution,
    sums: Array,
    quantizations: tuple[Quantization, Quantization | PerChannel, Quantization],
    activation: str,
    alpha: Any,
    addend: Quantization | None,
    other: Array | None,
) -> tuple[Array, Array]:
    """How far results are from the real numbers, in steps, and how far they may be."""
    inputs, weights, outputs = quantizations
    in_step, out_step = (float(np.float32(q.scale)) for q in (inputs, outputs))
    scales = weights.scales if isinstance(weights, PerChannel) else weights.scale
    factors = in_step * np.asarray(scales, np.float32).astype(np.float64) / out_step
    real = sums * factors
    bound = np.full(real.shape, 0.5 + op.scale_error)
    unit = float(np.max(factors))
    if isinstance(weights, PerChannel):
        unit = 2.0**-op.finish.factor.shift
    if activation == "prelu":
        alphas = np.asarray(alpha, np.float64)
        largest = np.abs(alphas).max()
        bound *= max(largest, 1)
        bound += np.where(real < 0, np.abs(real) * largest * 2.0**-13, 0) + unit
        real = np.where(real < 0, real * alphas, real)
    if addend is not None:
        assert other is not None
        added = centred(other, addend) * (float(np.float32(addend.scale)) / out_step)
        # op.scale_error is for results that do not saturate; here the sum may come back.
        bound += np.abs(real) * 2.0**-14 + np.abs(added) * 2.0**-12 + unit
        real = real + added
    offset = 128 if outputs.dtype == "uint8" else 0
    low, high = outputs.limits("none" if activation == "prelu" else activation)
    target = np.clip(real + outputs.zero_point, low + offset, high + offset)
    return np.abs(found.astype(np.float64) - target), bound


def check(
    device: Any,
    rng: np.random.Generator,
    shape: tuple[int, int, int],
    kernels: int | None,
    kernel: tuple[int, int],
    quantizations: tuple[Quantization, Quantization | PerChannel, Quantization] | None,
    stride: tuple[int, int] = (1, 1),
    padding: Any = "same",
    activation: str = "none",
    addend: Any = None,
    dilation: tuple[int, int] = (1, 1),
    alpha: Any = None,
    cores: int | None = None,
) -> Convolution:
    """Run one, depthwise when ``kernels`` is None, and compare every element.

    Quantized: equal to the integer formula. Without quantizations: within the bound of fp16.
    """
    height, width, channels = shape
    depthwise = kernels is None
    outs = kernels or channels
    make = depthwise_conv2d if depthwise else conv2d
    geometry: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation}
    options = {**geometry, "activation": activation, "alpha": alpha, "addend": addend}
    weights_shape = (kernels or 1, *kernel, channels)
    if quantizations is None:
        return _check_half(device, rng, shape, weights_shape, make, options, cores)
    inputs, weights_quantization, _ = quantizations
    x = random(rng, inputs, shape)
    weights = random(rng, weights_quantization, weights_shape)
    bias = rng.integers(-5000, 5000, outs, np.int32)
    op = make(height, width, weights, bias, *quantizations, **options)
    arguments = [x]
    other = None
    if addend is not None:
        other = random(rng, addend, op.output.shape)
        arguments.append(other)
    found = execute(device, op, *arguments, cores=cores)
    sums = convolve(
        centred(x, inputs),
        centred(weights, weights_quantization),
        stride,
        padding,
        depthwise,
        dilation,
    )
    sums += bias
    rest = (quantizations, activation, alpha, addend, other)
    expected = quantized(sums, *rest)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    distance, bound = real_distance(found, op, sums, *rest)
    assert (distance <= bound).all(), (distance - bound).max()
    return op


def _check_half(
    device: Any,
    rng: np.random.Generator,
    shape: tuple[int, int, int],
    weights_shape: tuple[int, ...],
    make: Any,
    options: dict[str, Any],
    cores: int | None,
) -> Convolution:
    def draw(*size: int) -> Array:
        return rng.standard_normal(size).astype(np.float16)

    depthwise = make is depthwise_conv2d
    x, weights = draw(*shape), draw(*weights_shape)
    outs = shape[2] if depthwise else weights_shape[0]
    bias = rng.standard_normal(outs).astype(np.float32) if rng.integers(2) else None
    op = make(*shape[:2], weights, bias, **options)
    wide = [values.astype(np.float64) for values in (x, weights)]
    geometry = (options["stride"], options["padding"], depthwise, options["dilation"])
    exact = convolve(*wide, *geometry)
    magnitude = convolve(np.abs(wide[0]), np.abs(wide[1]), *geometry)
    if bias is not None:
        exact, magnitude = exact + bias, magnitude + np.abs(bias)
    arguments = [x]
    if options["addend"]:
        other = draw(*op.output.shape)
        arguments.append(other)
        exact, magnitude = exact + other, magnitude + np.abs(other)
    if options["activation"] in ("relu", "relu6"):
        exact = np.clip(exact, 0, 6 if options["activation"] == "relu6" else None)
    elif options["activation"] == "prelu":
        slope = float(np.float16(options["alpha"]))
        exact = np.where(exact < 0, exact * slope, exact)
        magnitude = magnitude * max(abs(slope), 1)
    found = execute(device, op, *arguments, cores=cores)
    assert found.dtype == np.float16
    assert found.shape == exact.shape
    terms = weights[..., 0].size // len(weights) * (1 if depthwise else shape[2]) + 4
    assert (np.abs(found - exact) <= fp16_bound(exact, magnitude, terms, np.float16)).all()
    return op


def added(
    a: Array,
    b: Array,
    first: Quantization,
    second: Quantization,
    outputs: Quantization,
    activation: str = "none",
) -> Array:
    """The integer formula of a sum of two tensors: both in steps of max(scales) / 2**14."""
    scales = [np.float32(q.scale) for q in (first, second)]
    terms = [
        fixed_point(float(scale / max(scales)) * 2**14)(centred(values, q))
        for scale, values, q in zip(scales, (a, b), (first, second), strict=True)
    ]
    factor = fixed_point(float(max(scales) / np.float32(outputs.scale)) / 2**14)
    return finish(terms[0] + terms[1], factor, outputs, activation)


@st.composite
def quantization(draw: st.DrawFn, low: float, high: float) -> Quantization:
    dtype = draw(st.sampled_from(["uint8", "int8"]))
    limits = np.iinfo(dtype)
    zero = draw(st.integers(int(limits.min), int(limits.max)))
    return Quantization(draw(st.floats(low, high)), zero, dtype)


@st.composite
def geometries(draw: st.DrawFn) -> dict[str, Any]:
    """Shapes, strides, pads and dilations of small convolutions."""
    kernel = (draw(st.integers(1, 5)), draw(st.integers(1, 5)))
    dilation = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    window = [(kernel[i] - 1) * dilation[i] + 1 for i in (0, 1)]
    explicit = st.tuples(
        *(st.integers(0, min(size - 1, 15)) for size in (window[0], window[0], *[window[1]] * 2))
    )
    padding = draw(st.one_of(st.sampled_from(["same", "valid"]), explicit))
    least = (1, 1) if padding == "same" else window
    return {
        "kernel": kernel,
        "padding": padding,
        "dilation": dilation,
        "shape": (
            draw(st.integers(least[0], 14)),
            draw(st.integers(least[1], 14)),
            draw(st.integers(1, 70)),
        ),
        "stride": (draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        "cores": draw(st.integers(1, 3)),
    }
