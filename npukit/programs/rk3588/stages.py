# SPDX-License-Identifier: MIT
"""What the DPU does with values on their way to memory, in registers that many operations share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npukit.ioctl import ProgramError

from .encodings import Algorithm, OperandMode, OperandSize
from .program import Assembler
from .quantize import ACTIVATIONS, FixedPoint, Quantization, highest_sum
from .registers import DPU, DPU_RDMA, Register
from .tensor import Tensor

EW_OPERANDS = tuple(getattr(DPU, f"EW_OP_VALUE_{index}") for index in range(8))
LUT_REGISTERS = tuple(register for register in DPU.registers() if register.name.startswith("LUT_"))
_COMBINE: dict[str, dict[str, int]] = {
    "add": {"EW_ALU_ALGO": Algorithm.ADD},
    "maximum": {"EW_ALU_ALGO": Algorithm.MAX},
    "minimum": {"EW_ALU_ALGO": Algorithm.MIN},
    "multiply": {"EW_OP_TYPE": 1},
    "prelu": {"EW_OP_TYPE": 1, "EW_MUL_PRELU": 1},
}


@dataclass(frozen=True, slots=True)
class Finish:
    """What the DPU does with sums: a slope below zero, an operand, a clamp, a conversion."""

    factor: FixedPoint
    zero_point: int
    relu: bool
    highest: int | None
    """Where sums are clamped, if they are; in fp16, the bits of that number as a float32."""
    operand: FixedPoint | None = None
    operand_zero: int = 0
    slope: FixedPoint | None = None
    """What negative sums are multiplied with (BN); in fp16, ``scale`` is the bits of a float16."""
    half: bool = False
    """All in fp16, and no conversion but to that."""
    combine: str = "add"
    """With an operand: "add", "multiply", "maximum", "minimum", or "prelu" (what is negative is
    multiplied)."""
    channelwise: bool = False
    """The operand has an element for each channel."""

    @classmethod
    def make(
        cls,
        factor: FixedPoint,
        outputs: Quantization,
        activation: str,
        operand: FixedPoint | None = None,
        operand_zero: int = 0,
        slope: FixedPoint | None = None,
        combine: str = "add",
        channelwise: bool = False,
    ) -> Finish:
        zero = outputs.stored_zero_point
        low, high = outputs.limits(activation)
        highest = highest_sum(factor, zero, high) if high < 127 else None
        relu = low > -128 or highest is not None
        return cls(
            factor,
            zero,
            relu,
            highest,
            operand,
            operand_zero,
            slope,
            combine=combine,
            channelwise=channelwise,
        )

    @classmethod
    def make_half(
        cls,
        activation: str,
        operand: bool = False,
        slope: float | None = None,
        combine: str = "add",
        channelwise: bool = False,
    ) -> Finish:
        """In fp16; ``operand``: there is one."""
        one = FixedPoint(1, 0)
        if activation not in ACTIVATIONS:
            raise ProgramError(
                message=f"no activation {activation!r}; there are {', '.join(ACTIVATIONS)}"
            )
        return cls(
            one,
            0,
            activation != "none",
            int(np.float32(6).view(np.uint32)) if activation == "relu6" else None,
            one if operand else None,
            0,
            None if slope is None else FixedPoint(int(np.float16(slope).view(np.int16)), 0),
            True,
            combine,
            channelwise,
        )

    def fields(self, stage: str) -> dict[str, int]:
        """The clamp's fields in the configuration register of ``stage`` (BS or EW)."""
        return {
            f"{stage}_RELU_BYPASS": not self.relu,
            f"{stage}_RELUX_EN": self.highest is not None,
        }


def _operand_mode(channelwise: bool) -> OperandMode:
    return OperandMode.CHANNEL if channelwise else OperandMode.ELEMENT


def write_bypass(asm: Assembler, stage: str) -> None:
    """Switch BS or BN off; its operands are for the caller to write."""
    fields = ("RELU_BYPASS", "MUL_BYPASS", "ALU_BYPASS", "BYPASS")
    asm.write(getattr(DPU, f"{stage}_CFG"), **{f"{stage}_{field}": 1 for field in fields})


def write_idle_ew(asm: Assembler) -> None:
    """Switch EW off, operands included."""
    asm.write(
        DPU.EW_CFG,
        EW_RELU_BYPASS=1,
        EW_OP_CVT_BYPASS=1,
        EW_LUT_BYPASS=1,
        EW_OP_BYPASS=1,
        EW_BYPASS=1,
    )
    asm.write(DPU.EW_CVT_OFFSET_VALUE)
    asm.write(DPU.EW_CVT_SCALE_VALUE, EW_OP_CVT_SCALE=1)
    asm.write(DPU.EW_RELUX_CMP_VALUE)


def write_zeros(asm: Assembler, *registers: Register) -> None:
    """Registers keep what an earlier program left in them."""
    for register in registers:
        asm.write(register)


def write_output(
    asm: Assembler,
    tensor: Tensor,
    rows: int,
    address: int,
    atoms: int,
    negative_shift: int = 0,
    *,
    columns: int | None = None,
    channels: range | None = None,
    slope_shift: int = 0,
) -> None:
    """Where the DPU writes ``rows`` rows of ``columns`` (None: all) and ``channels`` (None: all).

    ``address`` is that of the first element; ``atoms`` of a pixel come in a row.
    """
    width = tensor.width if columns is None else columns
    channels = range(tensor.surfaces * tensor.lanes) if channels is None else channels
    count, real = len(channels), min(channels.stop, tensor.channels) - channels.start
    half = tensor.quantization is None
    size_e = atoms - 1
    asm.write(
        DPU.DATA_FORMAT,
        OUT_PRECISION=tensor.precision,
        IN_PRECISION=tensor.precision,
        PROC_PRECISION=tensor.precision,
        BS_MUL_SHIFT_VALUE_NEG=negative_shift,
        BN_MUL_SHIFT_VALUE_NEG=slope_shift,
    )
    asm.write(DPU.DST_BASE_ADDR, DST_BASE_ADDR=address)
    asm.write(DPU.DST_SURF_STRIDE, DST_SURF_STRIDE=tensor.area)
    asm.write(DPU.DATA_CUBE_WIDTH, WIDTH=width - 1)
    asm.write(DPU.DATA_CUBE_HEIGHT, HEIGHT=rows - 1)
    notch = tensor.width - width if rows > 1 else 0
    asm.write(DPU.DATA_CUBE_NOTCH_ADDR, NOTCH_ADDR_1=notch, NOTCH_ADDR_0=notch)
    asm.write(DPU.DATA_CUBE_CHANNEL, ORIG_CHANNEL=real - 1, CHANNEL=count - 1)
    # Sums of windows, which OD_BYPASS leaves out, are for zero points.
    asm.write(DPU.BS_OW_CFG, SIZE_E_2=size_e, SIZE_E_1=size_e, SIZE_E_0=size_e, OD_BYPASS=half)
    asm.write(DPU.WDMA_SIZE_0, CHANNEL_WDMA=count - 1)
    asm.write(DPU.WDMA_SIZE_1, HEIGHT_WDMA=rows - 1, WIDTH_WDMA=width - 1)
    asm.write(DPU.SURFACE_ADD, SURF_ADD=tensor.area * atoms)
    write_zeros(asm, DPU.OFFSET_PEND, DPU.UNDOC_40C4)


def write_finish(asm: Assembler, finish: Finish, *, bn_factor: int | None = None) -> None:
    """BN, EW, output conversion, and a lookup table that is not used.

    ``bn_factor``: what BN multiplies all values with, instead of a slope below zero.
    """
    slope, operand = finish.slope, finish.operand
    if bn_factor is not None:
        asm.write(DPU.BN_CFG, BN_RELU_BYPASS=1, BN_ALU_BYPASS=1)
        asm.write(DPU.BN_MUL_CFG, BN_MUL_OPERAND=bn_factor)
    elif slope is None:
        write_bypass(asm, "BN")
        asm.write(DPU.BN_MUL_CFG)
    else:
        asm.write(DPU.BN_CFG, BN_RELU_BYPASS=1, BN_MUL_PRELU=1, BN_ALU_BYPASS=1)
        asm.write(DPU.BN_MUL_CFG, BN_MUL_OPERAND=slope.scale, BN_MUL_SHIFT_VALUE=slope.shift)
    write_zeros(asm, DPU.BN_ALU_CFG, DPU.BN_RELUX_CMP_VALUE)
    if operand is None:
        write_idle_ew(asm)
    else:
        asm.write(
            DPU.EW_CFG,
            EW_CVT_TYPE=1,
            EW_DATA_MODE=_operand_mode(finish.channelwise),
            EDATA_SIZE=OperandSize.BITS_16 if finish.half else OperandSize.BITS_8,
            # In fp16 the converter is needed but for products (measured, rocket-userspace).
            EW_OP_CVT_BYPASS=finish.half and "EW_OP_TYPE" in _COMBINE[finish.combine],
            EW_LUT_BYPASS=1,
            EW_OP_SRC=1,
            **_COMBINE[finish.combine],
            **finish.fields("EW"),
        )
        asm.write(DPU.EW_CVT_OFFSET_VALUE, EW_OP_CVT_OFFSET=-finish.operand_zero)
        asm.write(
            DPU.EW_CVT_SCALE_VALUE, EW_OP_CVT_SHIFT=operand.shift, EW_OP_CVT_SCALE=operand.scale
        )
        asm.write(DPU.EW_RELUX_CMP_VALUE, EW_RELUX_CMP_DAT=finish.highest or 0)
    asm.write(DPU.OUT_CVT_OFFSET, OUT_CVT_OFFSET=finish.zero_point)
    asm.write(DPU.OUT_CVT_SCALE, FP32TOFP16_EN=finish.half, OUT_CVT_SCALE=finish.factor.scale)
    asm.write(DPU.OUT_CVT_SHIFT, OUT_CVT_SHIFT=finish.factor.shift)
    write_zeros(
        asm,
        *EW_OPERANDS,
        *LUT_REGISTERS,
    )


def write_operand(
    asm: Assembler,
    tensor: Tensor,
    rows: int,
    address: int | None,
    surface: int,
    notch: int,
    *,
    columns: int | None = None,
    channels: range | None = None,
    channelwise: bool = False,
) -> None:
    """ERDMA reads a tensor of the output's shape, or part of it, at ``address``, or nothing.

    ``channelwise``: one pixel of it, for all. Then ``surface`` is 1 and ``notch`` 0.
    """
    width = tensor.width if columns is None else columns
    count = tensor.surfaces * tensor.lanes if channels is None else len(channels)
    asm.write(DPU_RDMA.RDMA_DATA_CUBE_WIDTH, WIDTH=width - 1)
    asm.write(DPU_RDMA.RDMA_DATA_CUBE_HEIGHT, HEIGHT=rows - 1)
    asm.write(DPU_RDMA.RDMA_DATA_CUBE_CHANNEL, CHANNEL=count - 1)
    if address is None:
        asm.write(DPU_RDMA.RDMA_ERDMA_CFG, ERDMA_DISABLE=1)
        address = surface = notch = 0
    else:
        asm.write(
            DPU_RDMA.RDMA_ERDMA_CFG,
            ERDMA_DATA_MODE=_operand_mode(channelwise),
            ERDMA_DATA_SIZE=OperandSize.BITS_8 if tensor.quantization else OperandSize.BITS_16,
        )
    asm.write(DPU_RDMA.RDMA_EW_BASE_ADDR, EW_BASE_ADDR=address)
    asm.write(DPU_RDMA.RDMA_EW_SURF_STRIDE, EW_SURF_STRIDE=surface)
    asm.write(DPU_RDMA.RDMA_EW_SURF_NOTCH, EW_SURF_NOTCH=notch)
    asm.write(DPU_RDMA.RDMA_WEIGHT, E_WEIGHT=1, N_WEIGHT=1, B_WEIGHT=1, M_WEIGHT=1)
    write_zeros(
        asm,
        DPU_RDMA.RDMA_NRDMA_CFG,
        DPU_RDMA.RDMA_BN_BASE_ADDR,
        DPU_RDMA.RDMA_SRC_DMA_CFG,
        DPU_RDMA.RDMA_PAD_CFG,
    )
