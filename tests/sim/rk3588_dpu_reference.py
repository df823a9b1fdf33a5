# SPDX-License-Identifier: MIT
"""The DPU's stages in numpy, on whole arrays [y][x][channel], for rk3588_reference.

Integers are int64 and exact. Floats are float64; with each value goes the sum of the magnitudes of
what was added up, from which the bound of an fp32 computation follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Get = Callable[[str], int]
ATOM = 16


def wrap(values: Array) -> Array:
    """To int32, modulo 2^32."""
    return (values + (1 << 31)) % (1 << 32) - (1 << 31)


def wrap_to(value: int, bits: int) -> int:
    """The low ``bits``, signed."""
    low = value & (1 << bits) - 1
    return low - ((low >> bits - 1) << bits)


def saturate(values: Array, bits: int) -> Array:
    return np.clip(values, -(1 << bits - 1), (1 << bits - 1) - 1)


def shift_right(values: Array, count: Array | int, *, away: bool = False) -> Array:
    """Divided by 2^count, to nearest, ties to even or away from zero."""
    count = np.asarray(count, np.int64)
    half = np.where(count > 0, np.int64(1) << np.maximum(count - 1, 0), 0)
    up = (values + half) >> count
    tie = (count > 0) & (((values + half) & ((np.int64(1) << count) - 1)) == 0)
    wrong = (values < 0) if away else (up & 1) == 1
    return up - (tie & wrong)


def look_up(tables: Array, index: Array, select: int, slopes: tuple[int, int, int, int]) -> Array:
    """Integers through the two tables; ``slopes``: scale and shift below LE, then above LO."""
    size = 512 << select
    inside = np.clip(index, -size, size)
    lo = inside >= 0
    position = np.where(lo, inside, inside + size)
    entry = np.minimum(position >> select, 511)
    part = position - (entry << select)
    whole = tables.astype(np.int64)
    left = np.where(lo, whole[1][entry], whole[0][entry])
    right = np.where(lo, whole[1][entry + 1], whole[0][entry + 1])
    between = shift_right(left * ((1 << select) - part) + right * part, select)
    scale, count = np.where(lo, slopes[2], slopes[0]), np.where(lo, slopes[3], slopes[1])
    return saturate(between + shift_right((index - inside) * scale, count), 32)


def as_float(bits: int) -> float:
    return float(np.array([bits & 0xFFFFFFFF], np.uint32).view(np.float32)[0])


def as_half(bits: int) -> float:
    return float(np.array([bits & 0xFFFF], np.uint16).view(np.float16)[0])


class Dpu:
    """The stages as the registers set them. ``read(addresses, dtype)`` reads memory."""

    def __init__(
        self, get: Get, read: Callable[..., Array], channels: int, *, floats: bool
    ) -> None:
        self.get, self.read, self.channels, self.floats = get, read, channels, floats
        self.use = get("DPU_RDMA.RDMA_BRDMA_CFG.BRDMA_DATA_USE")

    def _brdma(self, offset: int, dtype: type[np.generic]) -> Array:
        """An operand of each channel, from groups of eight or (offset 0) one after the other."""
        base = self.get("DPU_RDMA.RDMA_BS_BASE_ADDR.BS_BASE_ADDR")
        c = np.arange(self.channels)
        size = np.dtype(dtype).itemsize
        at = c * size if self.use == 1 else c // 8 * 64 + offset + c % 8 * size
        return self.read(base + at, np.dtype(dtype))

    def window_factor(self) -> Array | int:
        """What the sum of a window is multiplied with."""
        if self.get("DPU.BS_OW_CFG.OD_BYPASS") or self.floats:
            return 0
        if self.get("DPU.BS_OW_CFG.OW_SRC"):
            return self._brdma(32, np.int16).astype(np.int64)
        return self.get("DPU.BS_OW_OP.OW_OP")

    def _operand(self, stage: str, part: str) -> Array | float:
        if self.get(f"DPU.{stage}_{'CFG' if part == 'ALU' else 'MUL_CFG'}.{stage}_{part}_SRC"):
            if stage == "BN":
                base = self.get("DPU_RDMA.RDMA_BN_BASE_ADDR.BN_BASE_ADDR")
                kind = np.dtype(np.float16 if self.floats else np.int16)
                raw = self.read(base + 2 * np.arange(self.channels), kind)
            elif part == "ALU":
                raw = self._brdma(0, np.float32 if self.floats else np.int32)
            else:
                raw = self._brdma(48, np.int16)
            return raw.astype(np.float64 if self.floats else np.int64)
        bits = self.get(f"DPU.{stage}_{part}_CFG.{stage}_{part}_OPERAND")
        if not self.floats:
            return bits
        return as_float(bits) if part == "ALU" else as_half(bits)

    def _clamp(self, stage: str, values: Array) -> Array:
        if self.get(f"DPU.{stage}_CFG.{stage}_RELU_BYPASS"):
            return values
        values = np.maximum(values, 0)
        if self.get(f"DPU.{stage}_CFG.{stage}_RELUX_EN"):
            bits = self.get(f"DPU.{stage}_RELUX_CMP_VALUE.{stage}_RELUX_CMP_DAT")
            values = np.minimum(values, as_float(bits) if self.floats else bits)
        return values

    def _bs_or_bn(self, stage: str, values: Array, magnitudes: Array) -> tuple[Array, Array]:
        get = self.get
        if get(f"DPU.{stage}_CFG.{stage}_BYPASS"):
            return values, magnitudes
        for part in ("ALU", "MUL") if stage == "BS" else ("MUL", "ALU"):
            if get(f"DPU.{stage}_CFG.{stage}_{part}_BYPASS"):
                continue
            operand = self._operand(stage, part)
            if part == "ALU":
                minus = get(f"DPU.{stage}_CFG.{stage}_ALU_ALGO") == 4
                values = values - operand if minus else values + operand
                magnitudes = magnitudes + np.abs(operand)
                continue
            product = values * operand
            if not self.floats:
                up = get(f"DPU.{stage}_MUL_CFG.{stage}_MUL_SHIFT_VALUE")
                down = get(f"DPU.DATA_FORMAT.{stage}_MUL_SHIFT_VALUE_NEG")
                product = shift_right(product, np.where(product < 0, down, up))
            prelu = get(f"DPU.{stage}_CFG.{stage}_MUL_PRELU")
            kept = (values >= 0) if prelu else np.zeros(values.shape, bool)
            magnitudes = np.where(kept, magnitudes, magnitudes * np.abs(operand))
            values = np.where(kept, values, product)
        if not self.floats:
            values = saturate(values, 32)
        return self._clamp(stage, values), magnitudes

    def _element_operands(self, shape: tuple[int, ...]) -> Array:
        """What ERDMA, and MRDMA where they are combined, bring for each element or channel."""
        get = self.get
        height, width, channels = shape
        size = {1: 1, 2: 2, 3: 4}[get("DPU_RDMA.RDMA_ERDMA_CFG.ERDMA_DATA_SIZE")]
        dtype = np.dtype({1: "i1", 2: "f2" if self.floats else "i2", 4: "i4"}[size])
        if self.floats and size == 4:
            dtype = np.dtype("f4")
        lanes = ATOM // size
        if get("DPU_RDMA.RDMA_ERDMA_CFG.ERDMA_DATA_MODE") == 0:
            base = get("DPU_RDMA.RDMA_EW_BASE_ADDR.EW_BASE_ADDR")
            one = self.read(base + np.arange(channels) * size, dtype)
            return np.broadcast_to(one, shape).astype(np.float64 if self.floats else np.int64)
        y, x, c = np.ogrid[:height, :width, :channels]
        surface = c // lanes
        stride = get("DPU_RDMA.RDMA_EW_SURF_STRIDE.EW_SURF_STRIDE")
        first = get("DPU_RDMA.RDMA_EW_BASE_ADDR.EW_BASE_ADDR")
        base = np.full(surface.shape, first)
        if get("DPU_RDMA.RDMA_FEATURE_MODE_CFG.COMB_USE"):
            other = get("DPU_RDMA.RDMA_SRC_BASE_ADDR.SRC_BASE_ADDR")
            base = np.where(surface % 2, base, other)
            surface = surface // 2 * 2
        elements = base + ATOM * (surface * stride + y * width + x) + c % lanes * size
        return self.read(elements, dtype).astype(np.float64 if self.floats else np.int64)

    def _convert(self, values: Array) -> Array:
        get = self.get
        if self.floats or get("DPU.EW_CFG.EW_OP_CVT_BYPASS"):
            return values
        offset = get("DPU.EW_CVT_OFFSET_VALUE.EW_OP_CVT_OFFSET")
        scale = get("DPU.EW_CVT_SCALE_VALUE.EW_OP_CVT_SCALE")
        scale -= (scale & 0x8000) << 1
        count = get("DPU.EW_CVT_SCALE_VALUE.EW_OP_CVT_SHIFT")
        away = bool(get("DPU.EW_CFG.EW_CVT_ROUND"))
        if get("DPU.EW_CFG.EW_CVT_TYPE"):
            return saturate(shift_right((values + offset) * scale, count, away=away), 32)
        return saturate(shift_right(values * scale, count, away=away) + offset, 32)

    def _elementwise(self, values: Array, magnitudes: Array) -> tuple[Array, Array]:
        get = self.get
        if get("DPU.EW_CFG.EW_BYPASS") or get("DPU.EW_CFG.EW_OP_BYPASS"):
            return values, magnitudes
        if get("DPU.EW_CFG.EW_OP_SRC"):
            operand = self._convert(self._element_operands(values.shape))
        else:
            operand = np.full(values.shape, get("DPU.EW_OP_VALUE_0.EW_OPERAND_0"))
        if get("DPU.EW_CFG.EW_OP_TYPE"):
            if not self.floats:
                operand = (operand + 0x8000) % 0x10000 - 0x8000
            product = values * operand
            if not self.floats:
                up = get("DPU.EW_CVT_SCALE_VALUE.EW_TRUNCATE")
                down = get("DPU.DATA_FORMAT.EW_TRUNCATE_NEG")
                product = shift_right(product, np.where(product < 0, down, up))
            kept = (values >= 0) & bool(get("DPU.EW_CFG.EW_MUL_PRELU"))
            magnitudes = np.where(kept, magnitudes, magnitudes * np.abs(operand))
            values = np.where(kept, values, product)
        else:
            algorithm = get("DPU.EW_CFG.EW_ALU_ALGO")
            magnitudes = magnitudes + np.abs(operand)
            values = {
                0: np.maximum(values, operand),
                1: np.minimum(values, operand),
                2: values + operand,
                4: values - operand,
            }[algorithm]
        if not self.floats:
            values = saturate(values, 32)
        return self._clamp("EW", values), magnitudes

    def _out(self, values: Array, bits: int) -> Array:
        get = self.get
        scale = get("DPU.OUT_CVT_SCALE.OUT_CVT_SCALE")
        scale -= (scale & 0x8000) << 1
        away = bool(get("DPU.OUT_CVT_SHIFT.CVT_ROUND"))
        count, offset = (
            get("DPU.OUT_CVT_SHIFT.OUT_CVT_SHIFT"),
            get("DPU.OUT_CVT_OFFSET.OUT_CVT_OFFSET"),
        )
        if get("DPU.OUT_CVT_SHIFT.CVT_TYPE"):
            return saturate(shift_right((values + offset) * scale, count, away=away), bits)
        return saturate(shift_right(values * scale, count, away=away) + offset, bits)

    def process(self, values: Array, magnitudes: Array, bits: int) -> tuple[Array, Array]:
        """All stages; integers come out saturated at ``bits``. Extra channels are OFFSET_PEND."""
        real = self.get("DPU.DATA_CUBE_CHANNEL.ORIG_CHANNEL") + 1
        for stage in ("BS", "BN"):
            values, magnitudes = self._bs_or_bn(stage, values, magnitudes)
        values, magnitudes = self._elementwise(values, magnitudes)
        if not self.floats:
            values = self._out(values, bits)
        values = values.copy()
        pend = self.get("DPU.OFFSET_PEND.OFFSET_PEND")
        values[..., real:] = as_half(pend) if self.floats else wrap_to(pend, bits)
        return values, magnitudes
