# SPDX-License-Identifier: MIT
"""Operations on two tensors on the simulated devices, against numpy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from programs.conv_reference import Array, centred, finish, quantization, random

import npukit
from npukit.ioctl import ProgramError
from npukit.programs.rk3588.elementwise import add, maximum, minimum, mul
from npukit.programs.rk3588.operation import Divisible, execute
from npukit.programs.rk3588.quantize import Quantization, fixed_point

MAKERS: dict[str, Any] = {"add": add, "mul": mul, "maximum": maximum, "minimum": minimum}
FUNCTIONS: dict[str, Any] = {
    "add": np.add,
    "mul": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}


relaxed = settings(max_examples=60)
shapes = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 100))
activations = st.sampled_from(["none", "relu", "relu6"])


def in_a_unit(
    name: str,
    values: tuple[Array, Array],
    quantizations: tuple[Quantization, Quantization, Quantization],
    activation: str,
) -> Array:
    """The integer formula for all but products, checked against real numbers on the way."""
    first, second, outputs = quantizations
    scales = [np.float32(q.scale) for q in (first, second)]
    largest = max(scales)
    terms = [
        fixed_point(float(scale / largest) * 2**14)(centred(x, q))
        for scale, x, q in zip(scales, values, (first, second), strict=True)
    ]
    factor = fixed_point(float(largest / np.float32(outputs.scale)) / 2**14)
    total = FUNCTIONS[name](*terms)

    steps = [
        centred(x, q) * (float(scale) / float(np.float32(outputs.scale)))
        for scale, x, q in zip(scales, values, (first, second), strict=True)
    ]
    unit = float(largest) / 2**14 / float(np.float32(outputs.scale))
    right = FUNCTIONS[name](*steps)
    if name == "add":
        bound = (np.abs(steps[0]) + np.abs(steps[1])) * 2**-12 + 2 * unit
    else:
        bound = np.abs(right) * 2**-12 + unit
    assert (np.abs(factor.scale / 2**factor.shift * total - right) <= bound).all()
    return finish(total, factor, outputs, activation)


@relaxed
@given(
    st.sampled_from(["add", "maximum", "minimum"]),
    shapes,
    st.tuples(*[quantization(0.0005, 0.5)] * 3),
    activations,
    st.integers(0, 2**32),
)
@example("add", (2, 3, 4), (Quantization(1e-6), Quantization(1.0), Quantization(1.0)), "none", 1)
def test_sums_and_extrema_are_exact(
    device: Any, name: str, shape: Any, quantizations: Any, activation: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    values = random(rng, quantizations[0], shape), random(rng, quantizations[1], shape)
    options = {"activation": activation} if name == "add" else {}
    found = execute(device, MAKERS[name](*shape, *quantizations, **options), *values)
    expected = in_a_unit(name, values, quantizations, options.get("activation", "none"))
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@relaxed
@given(
    shapes,
    st.tuples(quantization(0.001, 0.1), quantization(0.001, 0.1), quantization(0.02, 0.5)),
    activations,
    st.integers(0, 2**32),
)
def test_products_are_exact(
    device: Any, shape: Any, quantizations: Any, activation: str, seed: int
) -> None:
    first, second, outputs = quantizations
    rng = np.random.default_rng(seed)
    a, b = random(rng, first, shape), random(rng, second, shape)
    found = execute(device, mul(*shape, *quantizations, activation=activation), a, b)
    factor = np.float32(first.scale) * np.float32(second.scale) / np.float32(outputs.scale)
    product = centred(a, first) * centred(b, second)
    expected = finish(product, fixed_point(float(factor)), outputs, activation)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)

    offset = 128 if outputs.dtype == "uint8" else 0
    low, high = (limit + offset for limit in outputs.limits(activation))
    real = product * (float(np.float32(first.scale)) * float(np.float32(second.scale)))
    steps = real / float(np.float32(outputs.scale))
    distance = np.abs(found - np.clip(steps + outputs.zero_point, low, high))
    assert (distance <= 0.5 + np.abs(steps) * 2**-13).all()


@relaxed
@given(
    st.sampled_from(["maximum", "minimum"]),
    shapes,
    quantization(1e-30, 1e30),
    st.integers(0, 2**32),
)
def test_extrema_of_one_quantization_are_those_of_what_is_stored(
    device: Any, name: str, shape: Any, q: Quantization, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a, b = random(rng, q, shape), random(rng, q, shape)
    found = execute(device, MAKERS[name](*shape, q, q, q), a, b)
    np.testing.assert_array_equal(found, FUNCTIONS[name](a, b))


@relaxed
@given(st.sampled_from(list(MAKERS)), shapes, activations, st.integers(0, 2**32))
def test_float16_is_rounded_once(
    device: Any, name: str, shape: Any, activation: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal((2, *shape)) * 2.0 ** rng.integers(-9, 5)).astype(np.float16)
    options = {"activation": activation} if name in ("add", "mul") else {}
    found = execute(device, MAKERS[name](*shape, **options), a, b)
    # float32 holds every product of float16; of a sum it keeps 24 bits, as the NPU.
    right = FUNCTIONS[name](a.astype(np.float32), b.astype(np.float32))
    if options.get("activation", "none") != "none":
        right = np.clip(right, 0, 6 if activation == "relu6" else None)
    np.testing.assert_array_equal(found, right.astype(np.float16))


@relaxed
@given(
    st.sampled_from(list(MAKERS)),
    shapes,
    st.one_of(st.none(), st.tuples(*[quantization(0.02, 0.1)] * 3)),
    st.integers(0, 2**32),
    st.integers(1, 3),
)
def test_one_pixel_for_all(
    device: Any, name: str, shape: Any, quantizations: Any, seed: int, cores: int
) -> None:
    """The same as with a tensor of as many equal pixels."""
    rng = np.random.default_rng(seed)
    if quantizations is None:
        a, b = (rng.standard_normal(s).astype(np.float16) for s in (shape, (1, 1, shape[2])))
    else:
        a = random(rng, quantizations[0], shape)
        b = random(rng, quantizations[1], (1, 1, shape[2]))
    maker, three = MAKERS[name], quantizations or ()
    op = maker(*shape, *three, channelwise=True)
    assert op.inputs[1].shape == (1, 1, shape[2])
    found = execute(device, op, a, b, cores=cores)
    every = np.ascontiguousarray(np.broadcast_to(b, shape))
    np.testing.assert_array_equal(found, execute(device, maker(*shape, *three), a, every))


def test_a_sum_may_be_large() -> None:
    rng = np.random.default_rng(8)
    q = Quantization(0.1, 120)
    a, b = (random(rng, q, (112, 100, 40)) for _ in range(2))
    with npukit.open("sim:rknpu", strict=True) as device:
        found = execute(device, add(112, 100, 40, q, q, Quantization(0.2, 120)), a, b)
    real = (a.astype(np.int64) + b) / 2
    assert np.abs(found - real).max() <= 0.52


@pytest.mark.parametrize("name", ["rknpu", "rocket"])
@pytest.mark.parametrize("cores", [1, 2, 3])
def test_cores_share_the_rows(name: str, cores: int) -> None:
    op = mul(5, 4, 70)
    assert isinstance(op, Divisible)
    assert len(op.programs([0, 0], 0, 0, cores)) == cores
    assert len(mul(1, 4, 70).programs([0, 0], 0, 0, cores)) == 1
    a, b = np.random.default_rng(cores).standard_normal((2, 5, 4, 70)).astype(np.float16)
    with npukit.open(f"sim:{name}", strict=True) as device:
        found = execute(device, op, a, b, cores=cores)
    np.testing.assert_array_equal(found, a * b)


def test_what_cannot_be_done_is_refused() -> None:
    q = Quantization(0.1)
    with pytest.raises(ProgramError, match="0 x 2 x 3"):
        add(0, 2, 3, q, q, q)
    with pytest.raises(ProgramError, match="CHANNEL = 8199"):
        add(1, 1, 8200, q, q, q)
    with pytest.raises(ProgramError, match="HEIGHT = 8192"):
        maximum(8193, 1, 8)
    with pytest.raises(ProgramError, match="needs a shift"):
        add(1, 1, 8, q, q, Quantization(1e30))
    with pytest.raises(ProgramError, match="all of the tensors are float16, or none"):
        mul(1, 1, 8, q, None, q)
    with pytest.raises(ProgramError, match="above 1"):
        mul(1, 1, 8, Quantization(7.0), Quantization(1.0), Quantization(2.0), activation="relu6")
    with pytest.raises(ProgramError, match="gelu"):
        add(1, 1, 8, activation="gelu")
    with pytest.raises(ProgramError, match="cannot be at 0x8"):
        add(1, 1, 8).program([0, 8], 0, 0)


def test_what_was_measured_is_proven() -> None:
    """One row of atoms of float16, or of integers that are not converted."""
    q = Quantization(0.1, 3)
    assert maximum(1, 64, 8).program([0, 0], 0, 0).unproven == ()
    assert maximum(1, 64, 16, q, q, q).program([0, 0], 0, 0).unproven == ()
    assert len(maximum(1, 64, 8, channelwise=True).program([0, 0], 0, 0).unproven) == 1
    assert len(maximum(2, 64, 8).program([0, 0], 0, 0).unproven) == 1
    assert len(maximum(1, 64, 17, q, q, q).program([0, 0], 0, 0).unproven) == 1
    assert len(add(2, 2, 40, q, q, q, activation="relu").program([0, 0], 0, 0).unproven) == 3
