# SPDX-License-Identifier: MIT
"""Convolutions on the simulated devices, against a plain reference in numpy's int64."""

import contextlib
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs.conv_reference import (
    PLAIN,
    Array,
    centred,
    check,
    convolve,
    finish,
    geometries,
    quantization,
    random,
)
from support import no_leak

import npukit
from npukit.ioctl import Fault, FaultyKernel, ProgramError
from npukit.programs.rk3588 import launch
from npukit.programs.rk3588.conv import (
    Operation,
    conv2d,
    depthwise_conv2d,
    execute,
)
from npukit.programs.rk3588.elementwise import add
from npukit.programs.rk3588.quantize import PerChannel, Quantization, conv_factor
from npukit.sim import SimKernel

DEVICES = ["rknpu", "rknpu-misc", "rocket"]


relaxed = settings(max_examples=60)


activations = st.sampled_from(["none", "relu", "relu6"])
addends = st.one_of(st.none(), quantization(0.01, 0.03))
quantizations = st.tuples(
    quantization(0.001, 0.1),
    quantization(0.001, 0.02),
    # Factors below 1, so that relu6 can be had with each of them.
    quantization(0.01, 0.5),
)


@relaxed
@given(
    geometries(),
    st.integers(1, 70) | st.none(),
    st.fixed_dictionaries(
        {"quantizations": quantizations, "activation": activations, "addend": addends}
    ),
    st.integers(0, 2**32),
)
def test_convolutions_are_exact(
    device: Any, geometry: Any, kernels: int | None, numbers: Any, seed: int
) -> None:
    """Depthwise where there is no number of kernels."""
    check(device, np.random.default_rng(seed), kernels=kernels, **geometry, **numbers)


@relaxed
@given(
    geometries(),
    st.integers(1, 70) | st.none(),
    quantizations,
    st.data(),
    st.integers(0, 2**32),
)
def test_slopes_are_exact(
    device: Any, geometry: Any, kernels: int | None, numbers: Any, data: st.DataObject, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    outs = kernels or geometry["shape"][2]
    if data.draw(st.booleans(), label="one for each channel"):
        alpha: Any = rng.uniform(-2, 2, outs)
    else:
        alpha = data.draw(st.floats(-4, 4).filter(lambda value: abs(value) > 1e-6))
    check(
        device,
        rng,
        kernels=kernels,
        quantizations=numbers,
        activation="prelu",
        alpha=alpha,
        **geometry,
    )


@relaxed
@given(
    geometries(),
    st.integers(1, 70) | st.none(),
    st.tuples(quantization(0.001, 0.1), st.floats(0.0005, 0.02), quantization(0.01, 0.5)),
    st.sampled_from([1.0, 30.0, 3000.0]),
    st.sampled_from(["none", "relu", "relu6", "prelu"]),
    addends,
    st.integers(0, 2**32),
)
def test_scales_of_channels_are_exact(
    device: Any,
    geometry: Any,
    kernels: int | None,
    numbers: Any,
    spread: float,
    activation: str,
    addend: Any,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    inputs, largest, outputs = numbers
    outs = kernels or geometry["shape"][2]
    scales = PerChannel(largest * spread ** -rng.uniform(0, 1, outs))
    prelu = activation == "prelu"
    check(
        device,
        rng,
        kernels=kernels,
        quantizations=(inputs, scales, outputs),
        activation=activation,
        alpha=0.2 if prelu else None,
        addend=None if prelu else addend,
        **geometry,
    )


@relaxed
@given(
    geometries(),
    st.integers(1, 40) | st.none(),
    st.sampled_from(["none", "relu", "relu6", "prelu"]),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_float16_is_within_the_bound(
    device: Any, geometry: Any, kernels: int | None, activation: str, addend: bool, seed: int
) -> None:
    prelu = activation == "prelu"
    check(
        device,
        np.random.default_rng(seed),
        kernels=kernels,
        quantizations=None,
        activation=activation,
        alpha=-0.3 if prelu else None,
        addend=True if addend and not prelu else None,
        **geometry,
    )


@pytest.mark.parametrize(
    ("shape", "kernels", "kernel", "stride", "tasks", "reuses"),
    [
        ((14, 14, 512), 512, (1, 1), (1, 1), 2, True),  # whole weights beside 3 banks of features
        ((200, 150, 16), 33, (3, 3), (2, 1), 2, True),
        ((97, 200, 32), 20, (5, 3), (3, 2), 2, True),
        ((40, 60, 64), None, (3, 3), (1, 1), 1, False),
        ((150, 100, 40), None, (3, 5), (2, 2), 3, True),
        ((40, 40, 256), 160, (3, 3), (1, 1), 2, False),  # weights streamed
        ((4, 60, 1040), 20, (3, 3), (1, 1), 1, False),  # weights streamed beside 8 banks
        ((3, 110, 1040), 20, (3, 3), (1, 1), 1, False),  # a window takes more than 7 banks
        ((9, 110, 1040), 20, (3, 3), (1, 1), 7, False),  # and then each row needs a task
        ((2500, 1, 16), 16, (3, 1), (1, 1), 2, True),  # more rows than DATAIN_HEIGHT holds
        ((2, 3, 16384), 4, (1, 1), (1, 1), 1, False),
        ((3, 2047, 5), 6, (1, 31), (1, 7), 1, False),
    ],
)
def test_tiling(
    shape: tuple[int, int, int],
    kernels: int | None,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    tasks: int,
    reuses: bool,
) -> None:
    outputs = Quantization(0.0002 * kernel[0] * kernel[1] * shape[2], 100)
    with npukit.open("sim:rocket", strict=True) as device:
        op = check(
            device,
            np.random.default_rng(3),
            shape,
            kernels,
            kernel,
            (PLAIN[0], PLAIN[1], outputs),
            stride,
            addend=Quantization(0.05, 7),
        )
    program = op.program([0] * 2, 0, 0)
    assert len(program.tasks) == tasks == len(op.tiles())
    assert str(program).count("WEIGHT_REUSE=1") == (tasks - 1 if reuses else 0)


def test_what_is_computed_is_close_to_the_real_convolution() -> None:
    """In floating point, from dequantized tensors: half a step, and the scale's error."""
    rng = np.random.default_rng(4)
    inputs, weights_quantization, outputs = PLAIN
    x = random(rng, inputs, (9, 9, 20))
    weights = random(rng, weights_quantization, (12, 3, 3, 20))
    op = conv2d(9, 9, weights, None, *PLAIN)
    assert op.output.shape == (9, 9, 12)
    real = convolve(
        centred(x, inputs) * inputs.scale,
        centred(weights, weights_quantization) * weights_quantization.scale,
        (1, 1),
        "same",
        False,
    )
    steps = real / outputs.scale + outputs.zero_point
    with npukit.open("sim:rknpu") as device:
        found = execute(device, op, x)
    assert np.abs(found - np.clip(steps, 0, 255)).max() < 0.52


def test_operations_follow_each_other_in_memory(device: Any) -> None:
    """What one writes is what the next one reads, whatever is in channels that do not exist."""
    rng = np.random.default_rng(6)
    inputs, weights_quantization, middle = PLAIN
    weights = random(rng, weights_quantization, (24, 1, 1, 8))
    kernel = random(rng, weights_quantization, (1, 3, 3, 24))
    last = random(rng, weights_quantization, (5, 3, 3, 24))
    ops = [
        conv2d(5, 6, weights, None, *PLAIN),
        depthwise_conv2d(5, 6, kernel, None, middle, weights_quantization, middle),
        conv2d(5, 6, last, None, middle, weights_quantization, middle),
    ]
    x = random(rng, inputs, (5, 6, 8))
    with contextlib.ExitStack() as stack:

        def buffer(size: int, content: Array | None = None) -> Any:
            found = stack.enter_context(device.alloc(size))
            with found.access("w") as memory:
                memory[:] = rng.integers(0, 256, len(memory), np.uint8)
                if content is not None:
                    memory[: content.nbytes] = content.reshape(-1).view(np.uint8)
            return found

        image = ops[0].inputs[0].pack(x)
        image[..., 8:] = rng.integers(-128, 128, image[..., 8:].shape, np.int8)
        sizes = [max(a.output.size, b.inputs[0].size) for a, b in pairwise([*ops, ops[-1]])]
        tensors = [buffer(image.nbytes, image), *map(buffer, sizes)]
        for op, (source, target) in zip(ops, pairwise(tensors), strict=True):
            constants = buffer(len(op.constants), op.constants)
            program = op.program([source.dma_address], constants.dma_address, target.dma_address)
            launch.run(device, [program], [source, constants], [target])
        found = ops[-1].output.unpack(tensors[-1].array()).copy()

    factor = conv_factor(middle, weights_quantization, middle)
    real = centred(weights, weights_quantization)
    y = finish(
        convolve(centred(x, inputs), real, (1, 1), "same", False), conv_factor(*PLAIN), middle
    )
    for values, depthwise in ((kernel, True), (last, False)):
        sums = convolve(
            centred(y, middle), centred(values, weights_quantization), (1, 1), "same", depthwise
        )
        y = finish(sums, factor, middle)
    np.testing.assert_array_equal(found, y)


def weights_of(*shape: int) -> Array:
    """All zero, as real numbers."""
    return np.full(shape, PLAIN[1].zero_point, np.uint8)


@pytest.mark.parametrize(
    ("size", "weights", "options", "rule"),
    [
        ((8, 8), weights_of(4, 3, 3), {}, "are needed"),
        ((8, 8), weights_of(0, 3, 3, 4), {}, "are needed"),
        ((0, 8), weights_of(4, 3, 3, 4), {}, "0 x 8 pixels"),
        ((8, 8), weights_of(4, 3, 3, 4).view(np.int8), {}, "int8 values for a tensor of uint8"),
        ((8, 8), weights_of(4, 3, 3, 4), {"stride": 8}, "CONV_Y_STRIDE = 8"),
        ((8, 8), weights_of(4, 3, 3, 4), {"stride": 0}, "stride 0"),
        ((8, 8), weights_of(4, 3, 3, 4), {"padding": "full"}, "padding 'full'"),
        ((8, 8), weights_of(4, 3, 3, 4), {"padding": (0, 3, 0, 0)}, "not below the kernel"),
        ((2, 8), weights_of(4, 3, 3, 4), {"padding": "valid"}, "exceeds the padded image"),
        ((8, 8), weights_of(4, 3, 3, 4), {"activation": "gelu"}, "gelu"),
        ((8, 8), weights_of(4, 32, 1, 4), {}, "WEIGHT_HEIGHT = 32"),
        ((3, 3), weights_of(2, 31, 31, 400), {}, "do not fit the 12 CBUF banks"),
        ((8, 8), weights_of(4, 3, 3, 4), {"addend": Quantization(9.0)}, "shift of -"),
        ((8, 8), weights_of(4, 3, 3, 4), {"addend": True}, "needs its Quantization"),
        ((8, 8), weights_of(4, 3, 3, 4), {"dilation": (2, 0)}, "dilation"),
        ((4, 8), weights_of(4, 3, 3, 4), {"padding": "valid", "dilation": 2}, "spans 5"),
        ((8, 8), weights_of(4, 3, 3, 4), {"activation": "prelu"}, "one finite number or 4"),
        ((8, 8), weights_of(4, 3, 3, 4), {"activation": "prelu", "alpha": [1, 2]}, "or 4"),
        ((8, 8), weights_of(4, 3, 3, 4), {"activation": "prelu", "alpha": np.nan}, "finite"),
        ((8, 8), weights_of(4, 3, 3, 4), {"activation": "prelu", "alpha": -4e4}, "shift of -1"),
        ((8, 8), weights_of(4, 3, 3, 4), {"activation": "relu", "alpha": 0.1}, "an alpha for"),
        (
            (8, 8),
            weights_of(4, 3, 3, 4),
            {"activation": "prelu", "alpha": 0.1, "addend": Quantization(0.01)},
            "cannot follow an addend",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(
    size: tuple[int, int], weights: Array, options: dict[str, Any], rule: str
) -> None:
    with pytest.raises(ProgramError, match=rule):
        conv2d(*size, weights, None, *PLAIN, **options)


def test_biases_are_checked() -> None:
    weights = np.zeros((4, 1, 1, 4), np.uint8)
    for bias, rule in (
        (np.zeros(3, np.int32), "4 integers"),
        (np.zeros(4, np.float32), "4 integers"),
        (np.full(4, -(2**31)), "exceeds 32 bits"),
    ):
        with pytest.raises(ProgramError, match=rule):
            conv2d(2, 2, weights, bias, *PLAIN)


def test_quantizations_are_given_for_all_or_none() -> None:
    q = Quantization(0.1)
    weights = np.zeros((4, 1, 1, 4), np.int8)
    for quantizations, dtype, rule in (
        ((q, None, q), np.uint8, "or none for float16"),
        ((None, None, None), np.int8, "float16 are needed"),
        ((q, PerChannel([0.1] * 3), q), np.int8, "3 scales of weights for 4"),
        ((q, PerChannel([0.1] * 4), q), np.uint8, "uint8 values"),
    ):
        with pytest.raises(ProgramError, match=rule):
            conv2d(2, 2, weights.astype(dtype), None, *quantizations)
    half = weights.astype(np.float16)
    options: dict[str, Any]
    for options, rule in (
        ({"addend": q}, "is float16: True"),
        ({"activation": "prelu", "alpha": [1, 2, 3, 4]}, "one alpha for all"),
        ({"activation": "tanh"}, "no activation 'tanh'"),
    ):
        with pytest.raises(ProgramError, match=rule):
            conv2d(2, 2, half, None, **options)
    with pytest.raises(ProgramError, match="4 floats"):
        conv2d(2, 2, half, np.zeros(4, np.int32))
    numbers, slopes = (q, PerChannel([0.1] * 4), q), [1, 2, 3, 4]
    with pytest.raises(ProgramError, match="positive alpha"):
        conv2d(2, 2, weights, None, *numbers, activation="prelu", alpha=slopes)


def test_a_channel_too_small_for_its_bits_says_so() -> None:
    """Its multiplier is 0, and what that costs is known."""
    rng = np.random.default_rng(10)
    x = rng.integers(-128, 128, (3, 3, 16), np.int8)
    weights = rng.integers(-127, 128, (4, 1, 1, 16), np.int8)
    q = Quantization(0.1, 0, "int8")
    errors = {}
    for smallest in (0.01, 1e-4, 1e-7):
        op = conv2d(3, 3, weights, None, q, PerChannel([0.01, 0.01, 0.01, smallest]), q)
        errors[smallest] = op.scale_error
        with npukit.open("sim:rknpu", strict=True) as device:
            found = execute(device, op, x)
        real = x.astype(np.int64) @ weights[3, 0, 0].astype(np.int64) * smallest
        assert np.abs(found[..., 3] - real.clip(-128, 127)).max() <= 0.5 + op.scale_error
    assert errors[0.01] < errors[1e-4] < 0.1
    assert errors[1e-7] < 16 * 127 * 255 * 1e-7  # what the largest sum makes of it


def test_depthwise_weights_have_one_kernel_for_a_channel() -> None:
    with pytest.raises(ProgramError, match=r"\(1, height, width, channels\)"):
        depthwise_conv2d(4, 4, weights_of(2, 3, 3, 4), None, *PLAIN)


def test_a_clamp_that_the_npu_cannot_make_is_refused() -> None:
    coarse = (Quantization(1.0, 0), Quantization(7.0, 128), Quantization(2.0, 128))
    with pytest.raises(ProgramError, match="above 1"):
        conv2d(2, 2, weights_of(4, 1, 1, 4), None, *coarse, activation="relu6")


@pytest.mark.parametrize("address", [8, 1 << 32, -16, (1 << 32) - 16])
def test_bad_addresses_are_refused(address: int) -> None:
    q = Quantization(0.1)
    ops: list[Operation] = [
        conv2d(4, 4, weights_of(4, 1, 1, 4), None, *PLAIN, addend=Quantization(0.01)),
        add(4, 4, 4, q, q, q),
    ]
    for op in ops:
        for inputs, output in (([0, address], 0), ([address, 0], 0), ([0, 0], address)):
            with pytest.raises(ProgramError, match="cannot be at"):
                op.program(inputs, 0, output)
        with pytest.raises(ProgramError, match="1 input addresses"):
            op.program([0], 0, 0)


def test_inputs_are_checked_and_nothing_is_left_behind() -> None:
    op = conv2d(4, 5, weights_of(4, 1, 1, 4), None, *PLAIN)
    with no_leak(), npukit.open("sim:rocket") as device:
        for x, rule in (
            (np.zeros((5, 4, 4), np.uint8), "for a tensor of"),
            (np.zeros((4, 5, 4), np.int8), "int8 values"),
        ):
            with pytest.raises(ProgramError, match=rule):
                execute(device, op, x)
        with pytest.raises(ProgramError, match="2 inputs"):
            execute(device, op, np.zeros(1), np.zeros(1))
        execute(device, op, np.zeros((4, 5, 4), np.uint8))
        assert device.buffers() == []


@pytest.mark.parametrize("name", DEVICES)
def test_nothing_is_left_behind_whatever_fails(name: str) -> None:
    op = conv2d(4, 5, weights_of(4, 1, 1, 4), None, *PLAIN, addend=Quantization(0.01))
    x = np.zeros((4, 5, 4), np.uint8)
    counter = FaultyKernel(SimKernel([name]))
    path = counter.kernel.devices[0].paths[0]  # type: ignore[attr-defined]
    with npukit.open(path, counter) as device:
        opening = counter.calls
        expected = execute(device, op, x, x)  # type: ignore[arg-type]
    for step in range(opening, counter.calls):
        with no_leak():
            kernel = FaultyKernel(SimKernel([name]), [Fault(12, after=step)])
            with npukit.open(path, kernel) as device:
                with pytest.raises(OSError, match="memory"):
                    execute(device, op, x, x)  # type: ignore[arg-type]
                assert device.buffers() == []
                assert np.array_equal(execute(device, op, x, x), expected)  # type: ignore[arg-type]


def test_what_no_capture_shows_is_marked_unproven() -> None:
    square = conv2d(8, 8, weights_of(4, 3, 3, 16), None, *PLAIN)
    assert square.program([0], 0, 0).unproven == ()
    odd = conv2d(
        8,
        9,
        weights_of(4, 3, 3, 48),
        None,
        *PLAIN,
        activation="relu",
        addend=Quantization(0.01),
    )
    assert len(odd.program([0, 0], 0, 0).unproven) == 4
    half = weights_of(1, 3, 3, 40).astype(np.float16)
    bare = conv2d(8, 9, np.ones((4, 3, 3, 32), np.float16), None)
    assert bare.program([0], 0, 0).unproven == ()
    deep = depthwise_conv2d(8, 8, half, np.zeros(40, np.float32), dilation=2, addend=True)
    found = deep.program([0, 0], 0, 0).unproven
    assert {"a dilated kernel", "an addend in fp16", "biases in fp16"} < {*found}
    wide = conv2d(3, 3000, weights_of(4, 3, 3, 16), None, *PLAIN, activation="prelu", alpha=0.1)
    found = wide.program([0], 0, 0).unproven
    assert {"a task has part of the columns", "factors of negative sums alone"} < {*found}
