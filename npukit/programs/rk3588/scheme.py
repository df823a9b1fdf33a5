# SPDX-License-Identifier: MIT
"""The numbers of a convolution: how the DPU is told to scale sums, and the image of constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npukit import _fast
from npukit.ioctl import ProgramError

from .encodings import OPERANDS
from .quantize import (
    MAX_SHIFT,
    SCALE_BITS,
    FixedPoint,
    PerChannel,
    Quantization,
    channel_factors,
    conv_factor,
    fixed_point,
)
from .stages import Finish
from .tensor import align

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Scheme:
    """The arithmetic of a convolution: what is packed, and what the DPU is told."""

    weights: Array
    """Stored."""
    zero: int
    biases: Array | None
    """int64, the zero point's share included; or float32."""
    factors: Array | None
    """int16: of channels, or of negative sums."""
    factor_shift: int | None
    slopes: bool
    finish: Finish
    scale_error: float


def float_scheme(
    weights: Array, bias: Array | None, activation: str, alpha: Array | None, fused: bool
) -> Scheme:
    """In float16; ``fused``: there is an addend. ProgramError: other weights, several alphas."""
    if weights.dtype != np.float16:
        raise ProgramError(
            message=f"weights of {weights.dtype} without quantizations: float16 are needed"
        )
    slope = None
    if alpha is not None:
        if np.ptp(alpha):
            raise ProgramError(message="in float16 prelu has one alpha for all channels")
        slope = float(alpha[0])
    biases = None if bias is None else bias.astype(np.float32)
    finish = Finish.make_half(activation, fused, slope)
    return Scheme(weights, 0, biases, None, None, False, finish, 0.0)


def integer_scheme(
    weights: Array,
    bias: Array | None,
    quantizations: tuple[Quantization, Quantization | PerChannel, Quantization],
    activation: str,
    alpha: Array | None,
    addend: Quantization | None,
    depthwise: bool,
) -> Scheme:
    """Of int8 and uint8; ``alpha`` has a number for each channel.

    ProgramError: what no fixed-point number, 32 bits or the stages of the DPU can hold.
    """
    inputs, kind, outputs = quantizations
    stored = kind.store(weights)
    zero = kind.stored_zero_point
    centred = stored.astype(np.int64) - zero
    axes = (0, 1, 2) if depthwise else (1, 2, 3)
    biases = -centred.sum(axis=axes) * inputs.stored_zero_point
    largest = np.abs(centred).sum(axis=axes) * 255
    if bias is not None:
        biases += bias.astype(np.int64)
        largest += np.abs(bias.astype(np.int64))
    if biases.min() < -(1 << 31) or biases.max() >= 1 << 31:
        raise ProgramError(message="a bias exceeds 32 bits with the zero point's share")

    factors = shift = slope = operand = None
    slopes = alpha
    if alpha is not None and alpha[0] > 0 and not np.ptp(alpha):
        # BN has one positive factor for all channels, BS one of either sign for each.
        slope, slopes = fixed_point(float(alpha[0])), None
    step, out_step = (float(np.float32(q.scale)) for q in (inputs, outputs))
    zero_of_addend = addend.stored_zero_point if addend else 0
    if isinstance(kind, PerChannel):
        if slopes is not None:
            raise ProgramError(
                message="prelu has one positive alpha where weights have a scale for each channel"
            )
        real = step * np.array(kind.scales, np.float32).astype(np.float64) / out_step
        added = float(np.float32(addend.scale)) / out_step if addend else 0.0
        scales = channel_factors(real, added)
        factors, shift = np.array(scales.multipliers, np.int16), scales.shift
        last = FixedPoint(1, scales.rest)
        operand = fixed_point(added * 2.0**scales.rest) if addend else None
        used = factors * 2.0 ** -(scales.shift + scales.rest)
        rounding = 2.0 ** -(scales.rest + 1)
    else:
        last = conv_factor(inputs, kind, outputs)
        product = np.float32(inputs.scale) * np.float32(kind.scale)
        if addend:
            operand = fixed_point(float(np.float32(addend.scale) / product))
        real = np.full(len(biases), step * float(np.float32(kind.scale)) / out_step)
        used = np.full(len(biases), last.scale * 2.0**-last.shift)
        rounding = 0.0
        if slopes is not None:
            factors, shift = _slope_factors(slopes)
    finish = Finish.make(last, outputs, activation, operand, zero_of_addend, slope)
    error = float((np.abs(used - real) * np.minimum(255 / real, largest)).max()) + rounding
    return Scheme(stored, zero, biases, factors, shift, slopes is not None, finish, error)


def _slope_factors(slopes: Array) -> tuple[npt.NDArray[np.int16], int]:
    """int16 and a shift: the nearest to ``slopes``, but for one that would round up to 2**15."""
    largest = float(np.abs(slopes).max())
    shift = SCALE_BITS - int(np.frexp(largest)[1])
    if not 0 <= shift <= MAX_SHIFT:
        raise ProgramError(
            message=f"alphas up to {largest:g} need a shift of {shift}; 0 to {MAX_SHIFT} exist"
        )
    scaled = np.rint(np.ldexp(slopes, shift))
    return np.clip(scaled, -(1 << 15), (1 << 15) - 1).astype(np.int16), shift


def pack_constants(
    scheme: Scheme, channels: int, group: int, depthwise: bool
) -> tuple[npt.NDArray[np.uint8], int | None]:
    """Weights in groups, the operands of ``channels`` behind them, and where these are."""
    pack = _pack_depthwise if depthwise else _pack_direct
    packed = pack(scheme.weights, group, scheme.zero).reshape(-1).view(np.uint8)
    operands = np.zeros(0, np.uint8)
    if scheme.biases is not None:
        kind = np.float32 if scheme.biases.dtype.kind == "f" else np.int32
        biases = np.zeros(channels, kind)
        biases[: len(scheme.biases)] = scheme.biases
        operands = biases.view(np.uint8)
        if scheme.factors is not None:
            factors = np.zeros(channels, np.int16)
            factors[: len(scheme.factors)] = scheme.factors
            groups = np.zeros(channels // 8, OPERANDS)
            groups["add"], groups["factor"] = biases.reshape(-1, 8), factors.reshape(-1, 8)
            operands = groups.view(np.uint8)
    offset = align(len(packed), 64)
    constants = np.zeros(offset + len(operands), np.uint8)
    constants[: len(packed)] = packed
    constants[offset:] = operands
    constants.setflags(write=False)
    return constants, offset if len(operands) else None


def _pack_direct(stored: Array, group: int, zero: int) -> Array:
    full = np.zeros((align(len(stored), group), *stored.shape[1:]), stored.dtype)
    full[: len(stored)] = stored
    return _fast.pack_weights(full, zero)


def _pack_depthwise(stored: Array, group: int, zero: int) -> Array:
    """Groups of channels; in each the taps, in each tap the channels."""
    taps = stored.reshape(-1, stored.shape[3])
    full = np.full((len(taps), align(taps.shape[1], group)), zero, stored.dtype)
    full[:, : taps.shape[1]] = taps
    groups = full.reshape(len(taps), -1, group)
    return np.ascontiguousarray(groups.transpose(1, 0, 2))
