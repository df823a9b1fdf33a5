# SPDX-License-Identifier: MIT
"""Sums, products, maxima and minima of two tensors, by the DPU and its DMA alone.

They have one shape, or the second has one pixel, for all of the first.

The first tensor passes BS (minus its zero point, times a factor), the second the converter of EW;
EW combines them, and the output conversion rounds once:

    a = round((x' - x_zero') * s_a)       b = round((y' - y_zero') * s_b)
    z' = clip(round_even(combine(a, b) * scale >> shift) + z_zero')

In a product s_a = s_b = 1. Else both become multiples of u = max(scales) / 2**14; where all three
quantizations are the same, a maximum or minimum is that of the stored values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from npukit.ioctl import ProgramError

from .encodings import ALTERNATE, LONGEST_BURST, TO_MEMORY, Algorithm, Precision
from .operation import WithoutConstants, check_addresses
from .program import Assembler, Program
from .quantize import FixedPoint, Quantization, fixed_point
from .registers import DPU, DPU_RDMA
from .stages import Finish, write_bypass, write_finish, write_operand, write_output, write_zeros
from .tensor import ATOM, Tensor
from .tiling import shares

UNIT_BITS = 14
"""BS makes multiples of 2**-14 steps; of the larger scale, where there are two."""


def dpu_tensor(height: int, width: int, channels: int, quantization: Quantization | None) -> Tensor:
    """A tensor as operations of the DPU alone take and make it; ProgramError if it is empty."""
    if min(height, width, channels) < 1:
        raise ProgramError(message=f"a tensor of {height} x {width} x {channels}")
    surfaces = -(-channels // (ATOM if quantization else ATOM // 2))
    return Tensor(height, width, channels, quantization, surfaces)


def write_main(asm: Assembler, address: int, notch: int, *, half: bool = False) -> None:
    """The start of a task of the DPU and its RDMA alone: MRDMA reads the elements at ``address``.

    Their lines are dense, and ``notch`` atoms lie between their surfaces; ``half``: float16.
    """
    precision = Precision.FP16 if half else Precision.INT8
    asm.write(DPU.S_POINTER, **ALTERNATE)
    asm.write(DPU_RDMA.RDMA_S_POINTER, **ALTERNATE)
    asm.write(DPU.FEATURE_MODE_CFG, BURST_LEN=LONGEST_BURST, OUTPUT_MODE=TO_MEMORY, FLYING_MODE=1)
    asm.write(
        DPU_RDMA.RDMA_FEATURE_MODE_CFG,
        IN_PRECISION=precision,
        BURST_LEN=LONGEST_BURST,
        PROC_PRECISION=precision,
        MRDMA_FP16TOFP32_EN=half,
        FLYING_MODE=1,
    )
    asm.write(DPU_RDMA.RDMA_SRC_BASE_ADDR, SRC_BASE_ADDR=address)
    asm.write(DPU_RDMA.RDMA_SURF_NOTCH, SURF_NOTCH_ADDR=notch)


def write_flight(
    asm: Assembler,
    source: Tensor,
    output: Tensor,
    rows: range,
    places: tuple[int, int],
    negative_shift: int = 0,
    slope_shift: int = 0,
) -> None:
    """``write_main`` and ``write_output`` for ``rows`` of two tensors of one shape at ``places``.

    The shifts are those of negative products in BS and BN. What BS, BN, EW and the conversions do,
    and what BRDMA and ERDMA read, is for the caller to write.
    """
    offset = rows.start * source.width * ATOM
    notch = source.area - len(rows) * source.width
    write_main(asm, places[0] + offset, notch, half=source.quantization is None)
    write_output(
        asm, output, len(rows), places[1] + offset, 1, negative_shift, slope_shift=slope_shift
    )


@dataclass(frozen=True, slots=True, eq=False)
class Elementwise(WithoutConstants):
    """What ``add``, ``mul``, ``maximum`` and ``minimum`` make."""

    inputs: tuple[Tensor, Tensor]
    output: Tensor
    first: FixedPoint | None
    """From the first tensor's steps to the unit of the result; None: it is taken as it is."""
    finish: Finish

    def programs(
        self, inputs: Sequence[int], constants: int, output: int, cores: int
    ) -> list[Program]:
        """As of ``Divisible``: a task for each of at most ``cores`` parts of the rows."""
        check_addresses(self, inputs, constants, output)
        parts = shares(range(self.output.height), cores)
        return [self._task(rows, inputs, output) for rows in parts]

    def _task(self, rows: range, inputs: Sequence[int], output: int) -> Program:
        source, first = self.inputs[0], self.first
        asm = Assembler()
        shift = first.shift if first else 0
        write_flight(asm, source, self.output, rows, (inputs[0], output), shift)
        if first is None:
            write_bypass(asm, "BS")
            write_zeros(asm, DPU.BS_ALU_CFG, DPU.BS_MUL_CFG)
        else:
            asm.write(DPU.BS_CFG, BS_ALU_ALGO=Algorithm.ADD, BS_RELU_BYPASS=1)
            asm.write(DPU.BS_ALU_CFG, BS_ALU_OPERAND=-source.zero)
            asm.write(DPU.BS_MUL_CFG, BS_MUL_OPERAND=first.scale, BS_MUL_SHIFT_VALUE=shift)
        write_zeros(asm, DPU.BS_RELUX_CMP_VALUE, DPU.BS_OW_OP)
        write_finish(asm, self.finish)
        write_zeros(asm, DPU_RDMA.RDMA_BRDMA_CFG, DPU_RDMA.RDMA_BS_BASE_ADDR)
        area, width, channelwise = self.output.area, self.output.width, self.finish.channelwise
        write_operand(
            asm,
            self.inputs[1],
            len(rows),
            inputs[1] + (0 if channelwise else rows.start * width * ATOM),
            surface=1 if channelwise else area,
            notch=0 if channelwise else area - len(rows) * width,
            columns=width,
            channelwise=channelwise,
        )
        return asm.finish("DPU", "DPU_RDMA", unproven=self._unproven(rows))

    def _unproven(self, rows: range) -> list[str]:
        """Measured on an RK3588: each operation on one row of atoms, converters at 1 and 0."""
        found = []
        if self.output.surfaces > 1 or len(rows) > 1:
            found.append("an operation of the DPU alone on two tensors of several rows or surfaces")
        if self.first is not None:
            found.append("zero points and scales of two tensors in the DPU alone")
        if self.finish.relu:
            found.append("a clamp behind an operation on two tensors")
        if self.finish.channelwise:
            found.append("an operand of EW for each channel")
        return found


Quantizations = tuple[Quantization | None, Quantization | None, Quantization | None]


def _make(
    combine: str,
    shape: tuple[int, int, int],
    quantizations: Quantizations,
    activation: str,
    channelwise: bool,
) -> Elementwise:
    tensors = [dpu_tensor(*shape, quantization) for quantization in quantizations]
    if channelwise:
        tensors[1] = dpu_tensor(1, 1, shape[2], quantizations[1])
    first, second, outputs = quantizations
    operand: FixedPoint | None = None
    if first is None or second is None or outputs is None:
        if any(quantizations):
            raise ProgramError(message="all of the tensors are float16, or none is")
        finish = Finish.make_half(
            activation, operand=True, combine=combine, channelwise=channelwise
        )
    elif combine in ("maximum", "minimum") and first == second == outputs and activation == "none":
        one = FixedPoint(1, 0)
        finish = Finish(one, 0, False, None, one, 0, combine=combine, channelwise=channelwise)
    else:
        scales = [float(np.float32(q.scale)) for q in (first, second, outputs)]
        if combine == "multiply":
            operand = second_factor = FixedPoint(1, 0)
            factor = np.float32(first.scale) * np.float32(second.scale) / np.float32(outputs.scale)
            conversion = fixed_point(float(factor))
        else:
            largest = max(scales[:2])
            operand, second_factor = (
                fixed_point(float(np.float32(scale) / np.float32(largest)) * 2**UNIT_BITS)
                for scale in scales[:2]
            )
            ratio = float(np.float32(largest) / np.float32(outputs.scale))
            conversion = fixed_point(ratio / 2**UNIT_BITS)
        finish = Finish.make(
            conversion,
            outputs,
            activation,
            second_factor,
            second.stored_zero_point,
            combine=combine,
            channelwise=channelwise,
        )
    op = Elementwise((tensors[0], tensors[1]), tensors[2], operand, finish)
    # So that what some register cannot hold is refused here.
    op.program([0, 0], 0, 0)
    return op


def add(
    height: int,
    width: int,
    channels: int,
    first: Quantization | None = None,
    second: Quantization | None = None,
    outputs: Quantization | None = None,
    *,
    activation: str = "none",
    channelwise: bool = False,
) -> Elementwise:
    """The sum of two tensors (height, width, channels); without quantizations, in float16.

    Both become multiples of u = max(scales) / 2**14, are added, and multiplied by u / out_scale.
    With a and b the operands in steps of the output, the result before rounding is off by at most
    (|a| + |b|) * 2**-12 + 2 * u / out_scale. In float16 a sum is rounded once, to nearest even.

    ``activation``: "none", "relu" or "relu6". ``channelwise``: the second tensor is (1, 1,
    channels), and one for all pixels. ProgramError: what no task can do; the text says
    which limit.
    """
    return _make(
        "add", (height, width, channels), (first, second, outputs), activation, channelwise
    )


def mul(
    height: int,
    width: int,
    channels: int,
    first: Quantization | None = None,
    second: Quantization | None = None,
    outputs: Quantization | None = None,
    *,
    activation: str = "none",
    channelwise: bool = False,
) -> Elementwise:
    """The product of two tensors, element by element; else as ``add``.

    Products of integers are exact; a result y, in steps of the output, is off by at most
    |y| * 2**-14 before it is rounded.
    """
    return _make(
        "multiply", (height, width, channels), (first, second, outputs), activation, channelwise
    )


def maximum(
    height: int,
    width: int,
    channels: int,
    first: Quantization | None = None,
    second: Quantization | None = None,
    outputs: Quantization | None = None,
    *,
    channelwise: bool = False,
) -> Elementwise:
    """The larger of two elements. Exact if all quantizations are the same, as TFLite demands.

    Else both are brought to one unit: with y the result in steps of the output, it is off by at
    most |y| * 2**-12 + u / out_scale before it is rounded, u as of ``add``.
    """
    return _make(
        "maximum", (height, width, channels), (first, second, outputs), "none", channelwise
    )


def minimum(
    height: int,
    width: int,
    channels: int,
    first: Quantization | None = None,
    second: Quantization | None = None,
    outputs: Quantization | None = None,
    *,
    channelwise: bool = False,
) -> Elementwise:
    """The smaller of two elements, as ``maximum``."""
    return _make(
        "minimum", (height, width, channels), (first, second, outputs), "none", channelwise
    )
