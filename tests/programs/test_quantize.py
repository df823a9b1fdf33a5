# SPDX-License-Identifier: MIT
"""Fixed-point quantization against Python's integers and fractions."""

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import SHARED, needs_shared

from npukit.ioctl import ProgramError
from npukit.programs.rk3588.quantize import (
    ChannelFactors,
    FixedPoint,
    PerChannel,
    Quantization,
    channel_factors,
    conv_factor,
    fixed_point,
    highest_sum,
    requantize,
)
from npukit.programs.rk3588.registers import DPU

INT32 = st.integers(-(2**31), 2**31 - 1)
fixed_points = st.builds(FixedPoint, st.integers(1 << 14, (1 << 15) - 1), st.integers(0, 63))
factors = st.floats(2.0**-47, 2.0**14, width=32)


def exact(value: int, factor: FixedPoint) -> int:
    """Python rounds fractions to the nearest integer, ties to even."""
    return round(Fraction(value * factor.scale, 1 << factor.shift))


@given(st.lists(INT32, min_size=1, max_size=20), fixed_points)
def test_products_are_rounded_to_nearest_even(values: list[int], factor: FixedPoint) -> None:
    assert factor(values).tolist() == [exact(value, factor) for value in values]


def test_ties_go_to_even() -> None:
    factor = FixedPoint(1 << 14, 15)
    assert factor([-5, -3, -1, 1, 3, 5]).tolist() == [-2, -2, 0, 0, 2, 2]
    assert factor(np.arange(4)).tolist() == [0, 0, 1, 2]


@given(factors)
def test_the_factor_is_within_its_bound(real: float) -> None:
    found = fixed_point(real)
    assert 1 << 14 <= found.scale < 1 << 15
    assert 0 <= found.shift <= 63
    error = Fraction(found.scale, 1 << found.shift) - Fraction(real)
    assert 0 < error <= Fraction(real) / (1 << 14)


@given(INT32, factors)
def test_results_are_within_the_bound(value: int, real: float) -> None:
    result = Fraction(value) * Fraction(real)
    bound = Fraction(1, 2) + abs(result) / (1 << 14)
    assert abs(int(fixed_point(real)(value)) - result) <= bound


@given(factors)
def test_the_factor_is_mesas_where_nothing_carries(real: float) -> None:
    bits = int(np.float32(real).view(np.uint32))
    if bits >> 9 & 0x3FFF == 0x3FFF:
        return
    scale = (bits >> 9 & 0x7FFF) + 1
    assert fixed_point(real) == FixedPoint(scale | 1 << 14, 141 - (bits >> 23))


@pytest.mark.parametrize("exponent", [-3, -4])
def test_a_carry_goes_into_the_exponent(exponent: int) -> None:
    real = (2 - 2.0**-20) * 2.0**exponent
    assert fixed_point(real) == FixedPoint(1 << 14, 13 - exponent)


@pytest.mark.parametrize("real", [0.0, -1.0, float("nan"), float("inf"), 32768.0, 2.0**-50, 1e-50])
def test_what_no_fixed_point_holds_is_refused(real: float) -> None:
    with pytest.raises(ProgramError, match="factor"):
        fixed_point(real)


@needs_shared
def test_the_factor_of_every_golden_model() -> None:
    cases: list[dict[str, Any]] = json.loads(
        (SHARED / "data" / "rk3588" / "mesa_rocket.json").read_text()
    )["cases"]
    for case in cases:
        found = conv_factor(*(Quantization(case[f"{name}_scale"]) for name in ("in", "w", "out")))
        for word in (int(word, 16) for job in case["jobs"] for word in job["tasks"][0]["words"]):
            if word & 0xFFFF == DPU.OUT_CVT_SCALE.offset:
                assert word >> 16 & 0xFFFFFFFF == found.scale
            if word & 0xFFFF == DPU.OUT_CVT_SHIFT.offset:
                assert word >> 16 & 0xFFFFFFFF == found.shift


@given(
    st.lists(st.integers(-(2**33), 2**33), min_size=1, max_size=20),
    fixed_points,
    st.integers(-128, 127),
    st.integers(-128, 127),
    st.integers(-128, 127),
)
def test_requantize_is_the_formula(
    sums: list[int], factor: FixedPoint, zero_point: int, a: int, b: int
) -> None:
    low, high = sorted((a, b))
    found = requantize(sums, factor, zero_point, (low, high))
    assert found.dtype == np.int8
    inside = [min(max(value, -(2**31)), 2**31 - 1) for value in sums]
    expected = [min(max(exact(x, factor) + zero_point, low), high) for x in inside]
    assert found.tolist() == expected


@given(
    st.builds(FixedPoint, st.integers(1 << 14, (1 << 15) - 1), st.integers(15, 63)),
    st.integers(-128, 127),
    st.integers(-128, 127),
    st.lists(INT32, min_size=1, max_size=20),
)
def test_a_clamp_of_sums_is_a_clamp_of_results(
    factor: FixedPoint, zero_point: int, limit: int, sums: list[int]
) -> None:
    if limit < zero_point:  # relu6 never ends below its zero point
        limit, zero_point = zero_point, limit
    clamped = np.minimum(sums, highest_sum(factor, zero_point, limit))
    expected = requantize(sums, factor, zero_point, (-128, limit))
    assert np.array_equal(requantize(clamped, factor, zero_point), expected)


def test_a_clamp_that_no_sum_reaches_is_refused() -> None:
    with pytest.raises(ProgramError, match="above 1"):
        highest_sum(FixedPoint(1 << 14, 12), 0, 6)
    assert highest_sum(FixedPoint(1 << 14, 12), 0, 8) == 2


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_tensors_are_stored_as_int8(dtype: str) -> None:
    quantization = Quantization(0.5, 3, dtype)
    values = np.arange(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, dtype=dtype)
    stored = quantization.store(values)
    assert stored.tolist() == list(range(-128, 128))
    assert np.array_equal(quantization.load(stored), values)
    assert quantization.load(stored).dtype == dtype
    zero = quantization.store(np.array([3], dtype))
    assert zero[0] == quantization.stored_zero_point


@pytest.mark.parametrize(
    ("quantization", "activation", "limits"),
    [
        (Quantization(0.1, 128), "none", (-128, 127)),
        (Quantization(0.1, 128), "relu", (0, 127)),
        (Quantization(0.1, 128), "relu6", (0, 60)),
        (Quantization(0.1, 0), "relu6", (-128, -68)),
        (Quantization(6 / 255, 0), "relu6", (-128, 127)),
        (Quantization(4.0, -5, "int8"), "relu6", (-5, -3)),
        (Quantization(1e-6, -5, "int8"), "relu6", (-5, 127)),
    ],
)
def test_limits_of_activations(
    quantization: Quantization, activation: str, limits: tuple[int, int]
) -> None:
    assert quantization.limits(activation) == limits


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ((0.0, 0), "positive"),
        ((float("nan"), 0), "positive"),
        ((1e-60, 0), "positive"),
        ((1e60, 0), "positive"),
        ((1.0, 256), "zero point"),
        ((1.0, -1), "zero point"),
        ((1.0, 128, "int8"), "zero point"),
        ((1.0, 0, "int16"), "uint8 or int8"),
    ],
)
def test_bad_quantizations_are_refused(arguments: tuple[Any, ...], rule: str) -> None:
    with pytest.raises(ProgramError, match=rule):
        Quantization(*arguments)


def test_unknown_activations_and_types_are_refused() -> None:
    with pytest.raises(ProgramError, match="tanh"):
        Quantization(1.0).limits("tanh")
    with pytest.raises(ProgramError, match="int8 values"):
        Quantization(1.0).store(np.zeros(3, np.int8))


channels = st.lists(st.floats(2.0**-40, 2.0**14, width=32), min_size=1, max_size=12)


@given(channels, st.one_of(st.just(0.0), st.floats(2.0**-20, 2.0**13)))
def test_factors_of_channels_are_within_their_bound(real: list[float], addend: float) -> None:
    found = channel_factors(real, addend)
    assert 1 << 14 <= max(found.multipliers) < 1 << 15
    assert 0 <= found.shift <= 63
    assert 0 <= found.rest <= 20
    unit = Fraction(1, 1 << (found.shift + found.rest))
    for factor, multiplier in zip(real, found.multipliers, strict=True):
        # At most half of a multiplier's last place, which is 2**-15 of the largest factor.
        assert abs(multiplier * unit - Fraction(factor)) <= Fraction(max(real)) / (1 << 15)
    if addend:
        # What is added comes in the same unit, by 15 bits.
        assert fixed_point(addend * 2.0**found.rest).shift >= 0


@given(channels, st.data())
def test_results_of_channels_are_within_the_bound(real: list[float], data: st.DataObject) -> None:
    found = channel_factors(real)
    sums = [data.draw(INT32) for _ in real]
    for factor, value, result in zip(real, sums, found(sums).tolist(), strict=True):
        exact = Fraction(value) * Fraction(factor)
        if abs(exact) >= 1 << 31 - found.rest - 1:
            continue  # saturates, and so does any output
        share = Fraction(max(real)) / Fraction(factor) / (1 << 15)
        first = abs(exact) * share + Fraction(1, 2 << found.rest)
        assert abs(result - exact) <= Fraction(1, 2) + first


@given(channels, st.data())
def test_factors_of_channels_round_twice(real: list[float], data: st.DataObject) -> None:
    """The DPU's order of things, by Python's integers."""
    found = channel_factors(real)
    sums = [data.draw(INT32) for _ in real]
    for multiplier, value, result in zip(
        found.multipliers, sums, found(sums).tolist(), strict=True
    ):
        first = round(Fraction(value * multiplier, 1 << found.shift))
        first = min(max(first, -(1 << 31)), (1 << 31) - 1)
        assert result == round(Fraction(first, 1 << found.rest))


def test_a_multiplier_that_rounds_up_moves_the_shift() -> None:
    found = channel_factors([1 - 2.0**-17])
    assert found == ChannelFactors((1 << 14,), 0, 14)


@pytest.mark.parametrize(
    ("real", "addend", "rule"),
    [
        ([], 0.0, "not all positive"),
        ([1.0, 0.0], 0.0, "not all positive"),
        ([1.0, float("nan")], 0.0, "not all positive"),
        ([float("inf")], 0.0, "not all positive"),
        ([32768.0], 0.0, "need shifts of 0 and -1"),
        ([2.0**-70], 0.0, "need shifts of 64 and 20"),
        ([1.0], 32768.0, "need shifts of 16 and -2"),
    ],
)
def test_what_no_factors_of_channels_hold_is_refused(
    real: list[float], addend: float, rule: str
) -> None:
    with pytest.raises(ProgramError, match=rule):
        channel_factors(real, addend)


def test_scales_of_channels_are_checked() -> None:
    weights = PerChannel(np.array([0.5, 0.25]))
    assert weights == PerChannel([0.5, 0.25])
    assert weights.scales == (0.5, 0.25)
    for bad in (0.0, -1.0, float("nan"), 1e-60):
        with pytest.raises(ProgramError, match="positive float32"):
            PerChannel([1.0, bad])
    with pytest.raises(ProgramError, match="uint8 values"):
        weights.store(np.zeros(2, np.uint8))
