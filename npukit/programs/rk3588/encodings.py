# SPDX-License-Identifier: MIT
"""What the values of register fields mean, beside the map of the registers themselves.

Source, where nothing else is said: the RK3588 TRM's NPU chapter.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Precision(IntEnum):
    """IN_, PROC_ and OUT_PRECISION of all blocks but PPU_RDMA, which has bytes of an element."""

    INT8 = 0
    INT16 = 1
    FP16 = 2
    BF16 = 3
    INT32 = 4
    FP32 = 5
    INT4 = 6
    TF32 = 7


BYTES: dict[int, int] = {
    Precision.INT8: 1,
    Precision.INT16: 2,
    Precision.FP16: 2,
    Precision.BF16: 2,
    Precision.INT32: 4,
    Precision.FP32: 4,
    Precision.TF32: 4,
}
"""Of an element; int4 has none."""

PRECISIONS = {
    np.dtype(np.int8): Precision.INT8,
    np.dtype(np.float16): Precision.FP16,
    np.dtype(np.int32): Precision.INT32,
    np.dtype(np.float32): Precision.FP32,
}


def kernel_group(precision: int, depthwise: bool = False) -> int:
    """Kernels that CORE works on at once: the channels that it hands to the DPU.

    A group that is not whole does not complete on an RK3588 (measured, rocket-userspace), so
    kernels and channels are filled up.
    """
    return (32 if precision == Precision.INT8 else 16) * (2 if depthwise else 1)


class ConvMode(IntEnum):
    """CONV_MODE of CNA, DPU and DPU_RDMA."""

    DIRECT = 0
    DEPTHWISE = 3


class Algorithm(IntEnum):
    """BS_, BN_ and EW_ALU_ALGO; BS and BN have ADD and MINUS alone."""

    MAX = 0
    MIN = 1
    ADD = 2
    DIV = 3
    MINUS = 4
    ABS = 5
    NEGATIVE = 6
    FLOOR = 7
    CEIL = 8


class OperandUse(IntEnum):
    """BRDMA_DATA_USE: what is read for each channel. Of others the layout is not known."""

    NONE = 0
    ADD = 1
    """An int32 (fp16: float32) for each, one after the other."""
    ALL = 7
    """``OPERANDS``."""


OPERANDS = np.dtype([("add", np.int32, 8), ("window", np.int16, 8), ("factor", np.int16, 8)])
"""BRDMA's operands of 8 channels. On an RK3588 BS makes (sum + add) * factor, held wide under its
shift, and leaves ``window`` alone without OW_SRC (measured, rocket-userspace)."""


class OperandMode(IntEnum):
    """EW_DATA_MODE and ERDMA_DATA_MODE: what there is an operand for."""

    CHANNEL = 0
    ELEMENT = 1


class OperandSize(IntEnum):
    """EDATA_SIZE and ERDMA_DATA_SIZE."""

    BITS_4 = 0
    BITS_8 = 1
    BITS_16 = 2
    BITS_32 = 3


class PoolingMethod(IntEnum):
    AVERAGE = 0
    MAXIMUM = 1
    MINIMUM = 2


TO_MEMORY = 2
"""OUTPUT_MODE of the DPU: a bit of its own."""

COMBINED = 5
"""COMB_USE of DPU_RDMA: MRDMA reads even surfaces of an addend and ERDMA the odd ones (Mesa)."""

LONGEST_BURST = 15
"""Of CNA's, the DPU's and DPU_RDMA's BURST_LEN."""

ALTERNATE = {"POINTER_PP_MODE": 1, "EXECUTER_PP_EN": 1, "POINTER_PP_EN": 1}
"""Of S_POINTER: the two register groups take turns. All drivers and known programs write it."""

LUT_ENTRIES = 513
"""Of each of the DPU's two lookup tables."""

CBUF_BANKS = 12
BANK_BYTES = 32768
CBUF_UNIT = 64
"""Bytes: four atoms of a pixel. DATA_ENTRIES counts these."""
