# SPDX-License-Identifier: MIT
"""A second interpreter of RK3588 register commands, in numpy and without any of the C code.

It takes a stream of one convolution as true, computes in int64 or float64, and says where each
element of the output has to be. Only the address model and the layouts are here; what makes a
stream illegal is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npukit.programs.rk3588.registers import REGISTERS, find

from .rk3588_dpu_reference import Dpu, saturate, shift_right, wrap

ATOM = 16
INPUTS = {0: np.dtype(np.int8), 1: np.dtype(np.int16), 2: np.dtype(np.float16)}
MAIN = {
    0: np.dtype(np.int8),
    1: np.dtype(np.int16),
    2: np.dtype(np.float16),
    4: np.dtype(np.int32),
}
OUTPUTS = {
    0: np.dtype(np.int8),
    1: np.dtype(np.int16),
    2: np.dtype(np.float16),
    4: np.dtype(np.int32),
    5: np.dtype(np.float32),
}


class Memory:
    """Arrays of bytes at addresses."""

    def __init__(self) -> None:
        self.mappings: list[tuple[int, npt.NDArray[np.uint8]]] = []

    def add(self, iova: int, data: npt.NDArray[np.uint8]) -> None:
        self.mappings.append((iova, data))

    def read(self, addresses: npt.NDArray[np.int64], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """The elements at each of the addresses; IndexError when one is not mapped."""
        size = dtype.itemsize
        places = addresses.reshape(-1, 1) + np.arange(size)
        out = np.zeros(places.shape, np.uint8)
        found = np.zeros(places.shape, bool)
        for iova, data in self.mappings:
            here = (places >= iova) & (places < iova + len(data))
            out[here] = data[places[here] - iova]
            found |= here
        if not found.all():
            raise IndexError(hex(int(places[~found].min())))
        return out.view(dtype).reshape(addresses.shape)


@dataclass
class Expected:
    """``values``, ``magnitudes`` (sums of absolute products) and ``addresses`` are [y][x][channel].

    ``terms`` is how many products make a sum. ``zeros`` are addresses of bytes that have to be
    zero: what fills up the last atom.
    """

    values: npt.NDArray[Any]
    magnitudes: npt.NDArray[Any]
    addresses: npt.NDArray[np.int64]
    dtype: np.dtype[Any]
    terms: int
    zeros: npt.NDArray[np.int64]


class Registers:
    def __init__(self, words: Iterable[int]) -> None:
        self.values: dict[int, int] = dict.fromkeys(REGISTERS, 0)
        self.enable = 0
        for word in words:
            target, value, offset = word >> 48, word >> 16 & 0xFFFFFFFF, word & 0xFFFF
            if target == 0x0081:
                self.enable = value
            if target & 1 and target not in (0x0041, 0x0081):
                self.values[offset] = value

    def __call__(self, name: str) -> int:
        register, _, field = name.rpartition(".")
        found = find(register)
        return found.fields[field].get(self.values[found.offset])


def _read_pixels(get: Registers, memory: Memory, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Channel-last input of one to four channels: converted, in the first of an atom's channels."""
    width, height = get("CNA.FC_DATA_SIZE0.DMA_WIDTH"), get("CNA.DATA_SIZE0.DATAIN_HEIGHT")
    channels = get("CNA.CONV_CON1.ARGB_IN") - 7
    convert = not get("CNA.CVT_CON0.CVT_BYPASS")
    if convert and not get("CNA.CVT_CON0.DATA_SIGN"):
        dtype = np.dtype(np.uint8)
    y, x, c = np.ogrid[:height, :width, :channels]
    base = get("CNA.FEATURE_DATA_ADDR.FEATURE_BASE_ADDR")
    pixels = y * get("CNA.DMA_CON1.LINE_STRIDE") + x
    raw = memory.read(base + (pixels * channels + c) * dtype.itemsize, dtype)
    out = np.zeros((height, width, ATOM // dtype.itemsize), np.float64)
    if dtype.kind != "f":
        out = out.astype(np.int64)
    out[..., :channels] = raw
    for i in range(channels if convert else 0):
        scale = get(f"CNA.CVT_CON{i + 1}.CVT_SCALE{i}")
        scale -= (scale & 0x8000) << 1
        offset, count = (
            get(f"CNA.CVT_CON{i + 1}.CVT_OFFSET{i}"),
            get(f"CNA.CVT_CON0.CVT_TRUNCATE_{i}"),
        )
        away = bool(get("CNA.CVT_CON0.ROUND_TYPE"))
        if get("CNA.CVT_CON0.CVT_TYPE"):
            values = shift_right((out[..., i] + offset) * scale, count, away=away)
        else:
            values = shift_right(out[..., i] * scale, count, away=away) + offset
        out[..., i] = saturate(values, 8)
    return out


def _read_features(get: Registers, memory: Memory, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if get("CNA.CONV_CON1.ARGB_IN"):
        return _read_pixels(get, memory, dtype)
    width, height = get("CNA.DATA_SIZE0.DATAIN_WIDTH"), get("CNA.DATA_SIZE0.DATAIN_HEIGHT")
    channels = get("CNA.DATA_SIZE1.DATAIN_CHANNEL")
    line, surface = get("CNA.DMA_CON1.LINE_STRIDE"), get("CNA.DMA_CON2.SURF_STRIDE")
    if get("CNA.CONV_CON1.GROUP_LINE_OFF"):
        row_pitch, surface_pitch = line, surface + width
    else:
        row_pitch, surface_pitch = line // 4, surface + 4 * width
    lanes = ATOM // dtype.itemsize
    y, x, c = np.ogrid[:height, :width, :channels]
    atoms = c // lanes * surface_pitch + y * row_pitch + x
    base = get("CNA.FEATURE_DATA_ADDR.FEATURE_BASE_ADDR")
    return memory.read(base + ATOM * atoms + c % lanes * dtype.itemsize, dtype)


def _read_weights(get: Registers, memory: Memory, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """[kernel][ky][kx][channel], from kernel groups, channel groups, ky, kx, kernel, channel."""
    kernels = get("CNA.WEIGHT_SIZE2.WEIGHT_KERNELS")
    kh, kw = get("CNA.WEIGHT_SIZE2.WEIGHT_HEIGHT"), get("CNA.WEIGHT_SIZE2.WEIGHT_WIDTH")
    channels = get("CNA.DATA_SIZE1.DATAIN_CHANNEL")
    group = 32 if dtype.itemsize == 1 else 16
    o, ky, kx, c = np.ogrid[:kernels, :kh, :kw, :channels]
    peers = np.minimum(group, kernels - o // group * group)
    run = np.minimum(32, channels - c // 32 * 32)
    elements = o // group * group * (kh * kw * channels) + c // 32 * 32 * (kh * kw) * peers
    elements = elements + ((ky * kw + kx) * peers + o % group) * run + c % 32
    base = get("CNA.DCOMP_ADDR0.DECOMPRESS_ADDR0")
    return memory.read(base + elements * dtype.itemsize, dtype)


def _read_depthwise_weights(
    get: Registers, memory: Memory, dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """[channel][ky][kx], from groups of 64 bytes of channels, ky, kx, channel."""
    kh, kw = get("CNA.WEIGHT_SIZE2.WEIGHT_HEIGHT"), get("CNA.WEIGHT_SIZE2.WEIGHT_WIDTH")
    channels = get("CNA.DATA_SIZE1.DATAIN_CHANNEL")
    c, ky, kx = np.ogrid[:channels, :kh, :kw]
    group = 64 // dtype.itemsize
    peers = np.minimum(group, channels - c // group * group)
    base = get("CNA.DCOMP_ADDR0.DECOMPRESS_ADDR0")
    places = c // group * group * (kh * kw) + (ky * kw + kx) * peers + c % group
    return memory.read(base + places * dtype.itemsize, dtype)


def _pad_value(get: Registers, dtype: np.dtype[Any]) -> Any:
    value = get("CNA.PAD_CON1.PAD_VALUE") & 0xFFFF
    if dtype.itemsize == 1:
        return np.array([value & 0xFF], np.uint8).view(np.int8)[0]
    return np.array([value], np.uint16).view(dtype)[0]


def convolve(
    features: npt.NDArray[Any],
    weights: npt.NDArray[Any],
    strides: tuple[int, int],
    pads: tuple[int, int],
    size: tuple[int, int],
    pad: Any,
    dilation: tuple[int, int] = (1, 1),
) -> npt.NDArray[Any]:
    """Plain convolution: features [y][x][c], weights [o][ky][kx][c]; pads are (top, left)."""
    (sy, sx), (top, left), (height, width), (step_y, step_x) = strides, pads, size, dilation
    _, kh, kw, channels = weights.shape
    rows = (height - 1) * sy + (kh - 1) * step_y + 1
    columns = (width - 1) * sx + (kw - 1) * step_x + 1
    padded = np.full((rows, columns, channels), pad, features.dtype)
    kept = features[: max(rows - top, 0), : max(columns - left, 0)]
    padded[top : top + kept.shape[0], left : left + kept.shape[1]] = kept
    out = np.zeros((height, width, weights.shape[0]), features.dtype)
    for ky in range(kh):
        for kx in range(kw):
            y, x = ky * step_y, kx * step_x
            taps = padded[y : y + height * sy : sy, x : x + width * sx : sx][:height, :width]
            out += taps @ weights[:, ky, kx].T
    return out


def window_sums(
    features: npt.NDArray[Any],
    taps: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, int],
    size: tuple[int, int],
    pad: Any,
    dilation: tuple[int, int],
) -> npt.NDArray[Any]:
    """Sums over the windows, of each channel: [y][x][c]."""
    return np.concatenate(
        [
            convolve(features[..., c : c + 1], np.ones((1, *taps, 1), features.dtype), strides,
                     pads, size, pad, dilation)
            for c in range(features.shape[2])
        ],
        axis=2,
    )  # fmt: skip


def _convolved(get: Registers, memory: Memory, dpu: Dpu) -> tuple[Any, Any, int]:
    """What CORE hands over, the magnitudes, and how many products make a sum."""
    dtype = INPUTS[get("CNA.CONV_CON1.IN_PRECISION")]
    wide = np.float64 if dtype.kind == "f" else np.int64
    features = _read_features(get, memory, dtype).astype(wide)
    depthwise = get("CNA.CONV_CON1.CONV_MODE") == 3
    strides = get("CNA.CONV_CON3.CONV_Y_STRIDE"), get("CNA.CONV_CON3.CONV_X_STRIDE")
    pads = get("CNA.PAD_CON0.PAD_TOP"), get("CNA.PAD_CON0.PAD_LEFT")
    taps = get("CNA.WEIGHT_SIZE2.WEIGHT_HEIGHT"), get("CNA.WEIGHT_SIZE2.WEIGHT_WIDTH")
    pad = wide(_pad_value(get, dtype))
    control = "CNA.CONV_CON3.ATROUS_"
    dilation = get(f"{control}Y_DILATION") + 1, get(f"{control}X_DILATION") + 1
    size = get("DPU.DATA_CUBE_HEIGHT.HEIGHT") + 1, get("DPU.DATA_CUBE_WIDTH.WIDTH") + 1
    if get("CNA.CONV_CON1.DECONV"):
        control = "CNA.CONV_CON3.DECONV_"
        y, x = get(f"{control}Y_STRIDE") + 1, get(f"{control}X_STRIDE") + 1
        height, width, channels = features.shape
        spread = np.full(((height - 1) * y + 1, (width - 1) * x + 1, channels), pad)
        spread[::y, ::x] = features
        features = spread

    values = np.zeros((*size, dpu.channels), wide)
    magnitudes = np.zeros((*size, dpu.channels), wide)
    if depthwise:
        weights = _read_depthwise_weights(get, memory, dtype).astype(wide)
        kernels = len(weights)
        for c in range(kernels):
            one, kernel = features[..., c : c + 1], weights[c][None, ..., None]
            values[..., c : c + 1] = convolve(one, kernel, strides, pads, size, pad, dilation)
            magnitudes[..., c : c + 1] = convolve(
                abs(one), abs(kernel), strides, pads, size, abs(pad), dilation
            )
    else:
        weights = _read_weights(get, memory, dtype).astype(wide)
        kernels = len(weights)
        values[..., :kernels] = convolve(features, weights, strides, pads, size, pad, dilation)
        magnitudes[..., :kernels] = convolve(
            abs(features), abs(weights), strides, pads, size, abs(pad), dilation
        )
    factor = np.broadcast_to(dpu.window_factor(), (dpu.channels,))
    if factor.any():
        sums = window_sums(features, taps, strides, pads, size, pad, dilation)
        if not depthwise:
            sums = sums.sum(axis=2, keepdims=True)
        values[..., :kernels] += factor[:kernels] * sums
    if dtype.kind != "f":
        if dtype.itemsize == 1:
            values = wrap(values)
        clip = "CORE.CLIP_TRUNCATE"
        away = bool(get(f"{clip}.ROUND_TYPE"))
        values = saturate(shift_right(values, get(f"{clip}.CLIP_TRUNCATE"), away=away), 32)
    return values, magnitudes, weights[0].size


def _read_flying(get: Registers, memory: Memory, channels: int) -> npt.NDArray[Any]:
    """What MRDMA reads."""
    dtype = MAIN[get("DPU.DATA_FORMAT.IN_PRECISION")]
    height = get("DPU.DATA_CUBE_HEIGHT.HEIGHT") + 1
    width = get("DPU.DATA_CUBE_WIDTH.WIDTH") + 1
    lanes = ATOM // dtype.itemsize
    y, x, c = np.ogrid[:height, :width, :channels]
    pitch = width * height + get("DPU_RDMA.RDMA_SURF_NOTCH.SURF_NOTCH_ADDR")
    atoms = c // lanes * pitch + y * width + x
    base = get("DPU_RDMA.RDMA_SRC_BASE_ADDR.SRC_BASE_ADDR")
    values = memory.read(base + ATOM * atoms + c % lanes * dtype.itemsize, dtype)
    return values.astype(np.float64 if dtype.kind == "f" else np.int64)


def _pooled(get: Registers, memory: Memory) -> Expected:
    dtype = {0: np.dtype(np.int8), 2: np.dtype(np.float16)}[get("PPU.DATA_FORMAT.PROC_PRECISION")]
    floats = dtype.kind == "f"
    wide = np.float64 if floats else np.int64
    height, width, channels = (
        get(f"PPU.DATA_CUBE_IN_{name}.CUBE_IN_{name}") + 1
        for name in ("HEIGHT", "WIDTH", "CHANNEL")
    )
    rows, columns = (
        get(f"PPU.DATA_CUBE_OUT_{name}.CUBE_OUT_{name}") + 1 for name in ("HEIGHT", "WIDTH")
    )
    kernel = "PPU.POOLING_KERNEL_CFG.KERNEL_"
    kh, kw = get(f"{kernel}HEIGHT") + 1, get(f"{kernel}WIDTH") + 1
    sy, sx = get(f"{kernel}STRIDE_HEIGHT") + 1, get(f"{kernel}STRIDE_WIDTH") + 1
    top, left = (get(f"PPU.POOLING_PADDING_CFG.PAD_{side}") for side in ("TOP", "LEFT"))
    lanes = ATOM // dtype.itemsize
    y, x, c = np.ogrid[:height, :width, :channels]
    atoms = c // lanes * get("PPU_RDMA.RDMA_SRC_SURF_STRIDE.SRC_SURF_STRIDE") + x
    atoms = atoms + y * get("PPU_RDMA.RDMA_SRC_LINE_STRIDE.SRC_LINE_STRIDE")
    base = get("PPU_RDMA.RDMA_SRC_BASE_ADDR.SRC_BASE_ADDR")
    source = memory.read(base + ATOM * atoms + c % lanes * dtype.itemsize, dtype).astype(wide)

    method = get("PPU.OPERATION_MODE_CFG.POOLING_METHOD")
    bits = get("PPU.PADDING_VALUE_1_CFG.PAD_VALUE_0")
    if method:  # maxima and minima leave padding out: what never wins
        worst = np.inf if floats else np.iinfo(wide).max
        pad = -worst if method == 1 else worst
    elif floats:
        pad = wide(np.array([bits & 0xFFFF], np.uint16).view(np.float16)[0])
    else:
        pad = wide((bits & 0xFF ^ 0x80) - 0x80)
    padded = np.full((rows * sy + kh, columns * sx + kw, channels), pad, wide)
    kept = source[: len(padded) - top, : padded.shape[1] - left]
    padded[top : top + kept.shape[0], left : left + kept.shape[1]] = kept
    windows = np.stack(
        [
            padded[dy : dy + rows * sy : sy, dx : dx + columns * sx : sx][:rows, :columns]
            for dy in range(kh)
            for dx in range(kw)
        ]
    )
    x_part, y_part = (
        get(f"PPU.RECIP_KERNEL_{name}.RECIP_KERNEL_{name}") for name in ("WIDTH", "HEIGHT")
    )
    magnitudes = np.zeros(windows.shape[1:])
    if method:
        values = windows.max(axis=0) if method == 1 else windows.min(axis=0)
    elif floats:
        factor = np.array([x_part, y_part], np.uint16).view(np.float16).astype(wide).prod() / 2**32
        values, magnitudes = windows.sum(axis=0) * factor, np.abs(windows).sum(axis=0) * factor
    else:
        values = saturate(shift_right(windows.sum(axis=0) * x_part * y_part, 32), 8)

    y, x, c = np.ogrid[:rows, :columns, :channels]
    atoms = c // lanes * get("PPU.DST_SURF_STRIDE.DST_SURF_STRIDE") + x
    atoms = atoms + y * (columns + get("PPU.OPERATION_MODE_CFG.NOTCH_ADDR"))
    base = ATOM * get("PPU.DST_BASE_ADDR.DST_BASE_ADDR")
    return Expected(
        values=values,
        magnitudes=magnitudes,
        addresses=base + ATOM * atoms + c % lanes * dtype.itemsize,
        dtype=dtype,
        terms=kh * kw + 4,
        zeros=np.zeros(0, np.int64),
    )


def expect(words: Sequence[int], memory: Memory) -> Expected:
    """What a stream of one convolution, of the DPU alone or of the PPU has to leave in memory."""
    get = Registers(words)
    if get.enable == 0x60:
        return _pooled(get, memory)
    out_dtype = OUTPUTS[get("DPU.DATA_FORMAT.OUT_PRECISION")]
    height = get("DPU.DATA_CUBE_HEIGHT.HEIGHT") + 1
    width = get("DPU.DATA_CUBE_WIDTH.WIDTH") + 1
    channels = get("DPU.DATA_CUBE_CHANNEL.CHANNEL") + 1
    dpu = Dpu(get, memory.read, channels, floats=get("DPU.DATA_FORMAT.PROC_PRECISION") == 2)
    if get("DPU.FEATURE_MODE_CFG.FLYING_MODE"):
        values, terms = _read_flying(get, memory, channels), 0
        magnitudes = np.abs(values)
    else:
        values, magnitudes, terms = _convolved(get, memory, dpu)
    values, magnitudes = dpu.process(values, magnitudes, 8 * out_dtype.itemsize)

    lanes = ATOM // out_dtype.itemsize
    filled = -(-channels // lanes) * lanes
    y, x, c = np.ogrid[:height, :width, :filled]
    atoms = c // lanes * get("DPU.DST_SURF_STRIDE.DST_SURF_STRIDE") + x
    atoms = atoms + y * (width + get("DPU.DATA_CUBE_NOTCH_ADDR.NOTCH_ADDR_0"))
    base = get("DPU.DST_BASE_ADDR.DST_BASE_ADDR")
    addresses = base + ATOM * atoms + c % lanes * out_dtype.itemsize
    tail = addresses[..., channels:].reshape(-1, 1) + np.arange(out_dtype.itemsize)
    return Expected(
        values=values,
        magnitudes=magnitudes,
        addresses=addresses[..., :channels],
        dtype=out_dtype,
        terms=terms + 4,
        zeros=tail.reshape(-1),
    )


def check(expected: Expected, actual: npt.NDArray[Any]) -> None:
    """AssertionError unless ``actual`` is right: int32 exactly, fp16 and fp32 within the bound.

    The bound: half a unit in the last place of the output format at the true value, plus
    terms * 2^-24 * (sum of absolute products) for the order of an fp32 sum.
    """
    if expected.dtype.kind == "i":
        np.testing.assert_array_equal(actual, expected.values.astype(expected.dtype))
        return
    # Infinities and NaN, where a pad value or an operand brings them in.
    special = ~np.isfinite(expected.values)
    np.testing.assert_array_equal(actual[special], expected.values[special])
    true, got = expected.values[~special], actual[~special].astype(np.float64)
    slack = expected.terms * 2.0**-24 * expected.magnitudes[~special]
    digits, least = (10, -24) if expected.dtype.itemsize == 2 else (23, -149)
    half_ulp = np.ldexp(0.5, np.maximum(np.frexp(true)[1] - 1 - digits, least))
    # Beyond the largest number by half of its last place, infinity is the nearest.
    largest = float(np.finfo(expected.dtype).max)
    limit = largest + np.ldexp(0.5, np.frexp(largest)[1] - 1 - digits)
    infinite = np.isinf(got)
    assert (np.abs(true) + slack >= limit)[infinite].all()
    assert (np.sign(true) == np.sign(got))[infinite].all()
    error = np.abs(got - true)[~infinite]
    assert (error <= (half_ulp + slack)[~infinite]).all(), error.max()
