# SPDX-License-Identifier: MIT
"""TFLite's quantization in the arithmetic of the RK3588's DPU.

A tensor of uint8 or int8 stands for ``scale * (q - zero_point)``. The NPU knows int8 alone: a uint8
tensor is stored as q - 128, its zero point likewise; that is called *stored* below.

The DPU multiplies by a real number m as by ``scale * 2**-shift``, scale a 15-bit integer with its
top bit set. The scale is what Mesa's rocket driver writes: the first 15 bits of m as a float32,
plus one. So it is never too small, and too large by at most one in its last place:

    0 < scale * 2**-shift - m <= m * 2**-14        (m as a float32)

After rounding a result y (in steps of the output) is off by at most 0.5 + |y| * 2**-14: less than
0.516 for an 8-bit output that does not saturate, so it differs by at most 1 from exact arithmetic.

Weights with a scale for each channel (TFLite's per-axis: int8, zero point 0) need a factor m_c for
each. The DPU multiplies each channel's sums by a 16-bit integer of its own, but shifts all of them
alike, twice:

    y = round(round(sum * multiplier_c >> shift) >> rest)

The largest multiplier is in 2**14 .. 2**15 - 1; the others are as much smaller as their factors, so
they have fewer bits. Before the last rounding a result is off by at most

    |y| * 2**-15 * max(m) / m_c + 2**-(rest + 1)          (rest is 20 where the factors allow it)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npukit.ioctl import ProgramError

Array = npt.NDArray[Any]

SCALE_BITS = 15
MAX_SHIFT = 63
"""Of the output conversion; the operand's converter and the multiplier of BS have as many bits."""

ACTIVATIONS = ("none", "relu", "relu6")

_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True, slots=True)
class Quantization:
    """``real = scale * (q - zero_point)`` for a tensor of ``dtype`` "uint8" or "int8".

    ProgramError: another dtype, a scale that is not a positive float32, a zero point outside dtype.
    """

    scale: float
    zero_point: int = 0
    dtype: str = "uint8"

    def __post_init__(self) -> None:
        if self.dtype not in ("uint8", "int8"):
            raise ProgramError(message=f"tensors are uint8 or int8, not {self.dtype}")
        # Written so that a NaN is refused too.
        if not 0 < self.scale <= float(np.finfo(np.float32).max) or not np.float32(self.scale):
            raise ProgramError(message=f"scale {self.scale} is not a positive float32")
        if not -128 <= self.stored_zero_point <= 127:
            raise ProgramError(message=f"zero point {self.zero_point} is not a {self.dtype}")

    @property
    def stored_zero_point(self) -> int:
        """The zero point of the int8 that the NPU sees."""
        return self.zero_point - (128 if self.dtype == "uint8" else 0)

    def store(self, values: Array) -> npt.NDArray[np.int8]:
        """The int8 that stand for ``values``, which are of this dtype; ProgramError if not."""
        if values.dtype != self.dtype:
            raise ProgramError(message=f"{values.dtype} values for a tensor of {self.dtype}")
        stored = np.ascontiguousarray(values).view(np.int8)
        return stored ^ np.int8(-128) if self.dtype == "uint8" else stored

    def load(self, stored: npt.NDArray[np.int8]) -> Array:
        """The inverse of ``store``."""
        if self.dtype == "int8":
            return stored
        return (stored ^ np.int8(-128)).view(np.uint8)

    def limits(self, activation: str = "none") -> tuple[int, int]:
        """Lowest and highest stored value that ``activation`` leaves, as TFLite derives them."""
        if activation not in ACTIVATIONS:
            raise ProgramError(
                message=f"no activation {activation!r}; there are {', '.join(ACTIVATIONS)}"
            )
        low, high, zero = -128, 127, self.stored_zero_point
        if activation != "none":
            low = zero
        if activation == "relu6":
            high = min(high, zero + int(np.floor(np.float32(6) / np.float32(self.scale) + 0.5)))
        return low, high


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """The factor ``scale * 2**-shift``: scale in 2**14 .. 2**15 - 1, shift in 0 .. 63."""

    scale: int
    shift: int

    def __call__(self, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """``values`` (int32 range) times the factor, to the nearest integer, ties to even."""
        product = np.asarray(values, np.int64) * self.scale
        if not self.shift:
            return product
        result: npt.NDArray[np.int64] = product >> self.shift
        rest = product - (result << self.shift)
        half = 1 << (self.shift - 1)
        result += (rest > half) | ((rest == half) & (result & 1 == 1))
        return result


def fixed_point(factor: float) -> FixedPoint:
    """The fixed-point number for a positive ``factor``, which is taken as a float32.

    Mesa's formula, but for a factor whose first 15 bits are all ones: adding one carries into the
    exponent, which Mesa loses (it writes half of the factor, or a scale that reads as negative).

    ProgramError: not positive, 2**15 - 1 or more, or too small for a shift of 63.
    """
    factor = float(np.float32(factor))
    if not 0 < factor < float("inf"):
        raise ProgramError(message=f"factor {factor} is not a positive float32")
    mantissa, exponent = np.frexp(factor)
    scale, shift = int(mantissa * (1 << SCALE_BITS)) + 1, SCALE_BITS - int(exponent)
    if scale == 1 << SCALE_BITS:
        scale, shift = scale >> 1, shift - 1
    if not 0 <= shift <= MAX_SHIFT:
        raise ProgramError(
            message=f"factor {factor:g} needs a shift of {shift}; 0 to {MAX_SHIFT} exist"
        )
    return FixedPoint(scale, shift)


def conv_factor(inputs: Quantization, weights: Quantization, outputs: Quantization) -> FixedPoint:
    """From sums of products to steps of the output: in_scale * w_scale / out_scale, in float32."""
    product = np.float32(inputs.scale) * np.float32(weights.scale)
    return fixed_point(float(product / np.float32(outputs.scale)))


@dataclass(frozen=True, slots=True)
class PerChannel:
    """int8 weights with a scale for each output channel and zero point 0, TFLite's per-axis rule.

    ProgramError: a scale that is not a positive float32.
    """

    scales: tuple[float, ...]

    def __init__(self, scales: npt.ArrayLike) -> None:
        values = tuple(float(scale) for scale in np.asarray(scales).reshape(-1))
        for scale in values:
            Quantization(scale, 0, "int8")
        object.__setattr__(self, "scales", values)

    @property
    def stored_zero_point(self) -> int:
        return 0

    def store(self, values: Array) -> npt.NDArray[np.int8]:
        """As of ``Quantization``."""
        return Quantization(1.0, 0, "int8").store(values)


@dataclass(frozen=True, slots=True)
class ChannelFactors:
    """Factors ``multipliers * 2**-(shift + rest)``, with a rounding after each of the shifts."""

    multipliers: tuple[int, ...]
    shift: int
    rest: int

    def first(self, sums: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """``sums`` (..., channels) times the multipliers, after the first shift; at most int32."""
        result = FixedPoint(1, self.shift)(np.asarray(sums, np.int64) * np.array(self.multipliers))
        return np.clip(result, _INT32.min, _INT32.max)

    def __call__(self, sums: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """``sums`` (..., channels) times the factors."""
        return FixedPoint(1, self.rest)(self.first(sums))


MAX_REST = 20
"""Results up to 2**11 steps of the output fit 32 bits before this shift: more than an int8 has."""


def channel_factors(factors: npt.ArrayLike, addend: float = 0.0) -> ChannelFactors:
    """The fixed-point numbers for positive ``factors``.

    With ``addend``, a factor of what is added between the two shifts, also that fits 15 bits.

    ProgramError: a factor of 2**15 or more, or too small for the shifts.
    """
    real = np.asarray(factors, np.float64)
    if not (real.size and (real > 0).all() and np.isfinite(real).all()):
        raise ProgramError(message=f"factors {real} are not all positive numbers")
    total = SCALE_BITS - int(np.frexp(real.max())[1])
    if np.rint(np.ldexp(real.max(), total)) == 1 << SCALE_BITS:
        total -= 1
    rest = min(MAX_REST, total)
    if addend:
        rest = min(rest, SCALE_BITS - 1 - int(np.frexp(addend)[1]))
    if rest < 0 or total - rest > MAX_SHIFT:
        raise ProgramError(
            message=f"factors up to {real.max():g} (addend {addend:g}) need shifts of "
            f"{total - rest} and {rest}; 0 to {MAX_SHIFT} exist"
        )
    multipliers = np.rint(np.ldexp(real, total)).astype(np.int64)
    return ChannelFactors(tuple(multipliers.tolist()), total - rest, rest)


def requantize(
    sums: npt.ArrayLike,
    factor: FixedPoint,
    zero_point: int,
    limits: tuple[int, int] = (-128, 127),
) -> npt.NDArray[np.int8]:
    """The stored int8 that the DPU makes of ``sums`` (acc + bias, saturated to int32 here).

    clip(round_even(sums * scale >> shift) + zero_point), ``zero_point`` and ``limits`` as stored.
    """
    values = np.clip(np.asarray(sums, np.int64), _INT32.min, _INT32.max)
    return np.clip(factor(values) + zero_point, *limits).astype(np.int8)


def highest_sum(factor: FixedPoint, zero_point: int, limit: int) -> int:
    """The sum at which the DPU has to clamp for ``requantize`` to end at ``limit`` (stored).

    The largest int32 whose result is ``limit``. ProgramError when there is none: a factor above 1
    skips results, and a clamp of sums cannot make one that is skipped.
    """
    low, high = int(_INT32.min), int(_INT32.max)
    while low < high:
        middle = (low + high + 1) // 2
        if int(factor(middle)) + zero_point <= limit:
            low = middle
        else:
            high = middle - 1
    if int(factor(low)) + zero_point != limit and low != _INT32.max:
        raise ProgramError(
            message=f"no sum becomes {limit}, where the activation ends: the factor from sums to "
            f"the output, {factor.scale / 2**factor.shift:g}, is above 1"
        )
    return low
