# SPDX-License-Identifier: MIT
"""Functions of single elements, by the DPU and its DMA alone.

    op = sigmoid(8, 8, 64, inputs, outputs)
    program = op.program([input_dma], constants_dma, output_dma)

``relu``, ``relu6``, ``rescale`` and ``prelu`` are stages of the DPU. All other functions are looked
up in its two tables of 513 entries. An int8 or uint8 has 256 values: each has an entry of its own,
so any function is exact (``lookup``). In float16 there is an entry for every step, and a straight
line between two of them.

An RK3588 has been seen (rocket-userspace, in float16) to go wrong at entries that are 0, where
neighbours are equal, and where the sign of the index changes near a negative offset of the output.
So no entry is 0; and for integers no two neighbours are equal, and no index is below 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npukit.ioctl import ProgramError

from .elementwise import UNIT_BITS, dpu_tensor, write_flight
from .encodings import LUT_ENTRIES, OPERANDS, Algorithm, OperandUse
from .launch import Rk3588Device
from .operation import Divided, check_addresses, execute
from .program import Assembler, Program
from .quantize import SCALE_BITS, Quantization, fixed_point
from .registers import DPU, DPU_RDMA
from .stages import EW_OPERANDS, Finish, write_bypass, write_finish, write_operand, write_zeros
from .tensor import ATOM, Tensor, align
from .tiling import shares

Array = npt.NDArray[Any]

_STEP_BITS = 5
"""Of an index, between two entries: what all programs that are known use."""
_STEPS = LUT_ENTRIES - 1
_TABLE_INDEX = _STEPS << _STEP_BITS
_ROUNDED = 6
"""Bits behind the result in an entry for integers."""
_MOST = 32767


# ---- What BS, BN, EW and the output conversion do ------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Clamp:
    """Perhaps zero point and unit, a clamp, and what ``finish`` says: in float16, alphas."""

    finish: Finish
    zero: int | None
    """None: float16, as it is."""

    negative_shifts = (0, 0)

    def write(self, asm: Assembler, constants: int) -> None:
        finish, half = self.finish, self.zero is None
        idle = half and not finish.relu
        asm.write(
            DPU.BS_CFG,
            BS_ALU_ALGO=0 if half else Algorithm.ADD,
            BS_ALU_BYPASS=half,
            BS_MUL_BYPASS=half,
            BS_BYPASS=idle,
            **finish.fields("BS"),
        )
        asm.write(DPU.BS_ALU_CFG, BS_ALU_OPERAND=-(self.zero or 0))
        asm.write(DPU.BS_MUL_CFG, BS_MUL_OPERAND=0 if half else 1 << UNIT_BITS)
        asm.write(DPU.BS_RELUX_CMP_VALUE, BS_RELUX_CMP_DAT=finish.highest or 0)
        write_finish(asm, finish)
        write_zeros(asm, DPU_RDMA.RDMA_BRDMA_CFG, DPU_RDMA.RDMA_BS_BASE_ADDR)


@dataclass(frozen=True, slots=True)
class _Slopes:
    """PReLU with a slope for each channel: BS multiplies what is negative, BN the rest."""

    finish: Finish
    shift: int
    """Of the slopes, to the unit of 2**-bits steps of the input."""
    bits: int

    @property
    def negative_shifts(self) -> tuple[int, int]:
        return self.shift, self.bits

    def write(self, asm: Assembler, constants: int) -> None:
        asm.write(
            DPU.BS_CFG, BS_ALU_ALGO=Algorithm.ADD, BS_ALU_SRC=1, BS_RELU_BYPASS=1, BS_MUL_PRELU=1
        )
        write_zeros(asm, DPU.BS_ALU_CFG, DPU.BS_RELUX_CMP_VALUE)
        asm.write(DPU.BS_MUL_CFG, BS_MUL_SHIFT_VALUE=self.shift, BS_MUL_SRC=1)
        # A negative product is shifted back by as much as it was multiplied with.
        write_finish(asm, self.finish, bn_factor=1 << self.bits)
        asm.write(DPU_RDMA.RDMA_BRDMA_CFG, BRDMA_DATA_USE=OperandUse.ALL)
        asm.write(DPU_RDMA.RDMA_BS_BASE_ADDR, BS_BASE_ADDR=constants)


@dataclass(frozen=True, slots=True, eq=False)
class _Lookup:
    """Two tables: LE below index 0 and LO from there on."""

    tables: npt.NDArray[np.int16]
    """(2, 513)"""
    step_bits: tuple[int, int]
    slope: int
    """Entries by index above LO."""
    offset: int
    shift: int
    """Of the output, which is (entry + offset) * 2**-shift, or of int8 round(entry >> shift) +
    offset."""
    scale: float | None
    """float16: what the element is multiplied with, and then ``bias`` added, to be the index."""
    bias: float

    negative_shifts = (0, 0)

    def write(self, asm: Assembler, constants: int) -> None:
        half = self.scale is not None
        for table, entries in enumerate(self.tables.tolist()):
            asm.write(DPU.LUT_ACCESS_CFG, LUT_ACCESS_TYPE=1, LUT_TABLE_ID=table)
            for entry in entries:
                asm.write(DPU.LUT_ACCESS_DATA, LUT_ACCESS_DATA=entry)
        asm.write(
            DPU.BS_CFG,
            BS_ALU_ALGO=0 if half else Algorithm.ADD,
            BS_RELU_BYPASS=1,
            BS_MUL_BYPASS=half,
            BS_ALU_BYPASS=half,
            BS_BYPASS=half,
        )
        asm.write(DPU.BS_ALU_CFG, BS_ALU_OPERAND=0 if half else int(self.bias))
        asm.write(DPU.BS_MUL_CFG, BS_MUL_OPERAND=0 if half else 1 << _STEP_BITS)
        write_zeros(asm, DPU.BS_RELUX_CMP_VALUE)
        if self.scale is not None:
            asm.write(DPU.BN_CFG, BN_ALU_ALGO=Algorithm.ADD, BN_RELU_BYPASS=1)
            asm.write(DPU.BN_ALU_CFG, BN_ALU_OPERAND=int(np.float32(self.bias).view(np.int32)))
            asm.write(DPU.BN_MUL_CFG, BN_MUL_OPERAND=int(np.float16(self.scale).view(np.int16)))
        else:
            write_bypass(asm, "BN")
            write_zeros(asm, DPU.BN_ALU_CFG, DPU.BN_MUL_CFG)
        write_zeros(asm, DPU.BN_RELUX_CMP_VALUE)
        asm.write(DPU.EW_CFG, EW_RELU_BYPASS=1, EW_OP_CVT_BYPASS=1)
        asm.write(DPU.EW_CVT_SCALE_VALUE, EW_OP_CVT_SCALE=1)
        asm.write(DPU.OUT_CVT_OFFSET, OUT_CVT_OFFSET=self.offset)
        asm.write(DPU.OUT_CVT_SCALE, FP32TOFP16_EN=half, OUT_CVT_SCALE=1)
        if half:
            asm.write(DPU.OUT_CVT_SHIFT, CVT_TYPE=1, MINUS_EXP=self.shift)
        else:
            asm.write(DPU.OUT_CVT_SHIFT, OUT_CVT_SHIFT=self.shift)
        asm.write(DPU.LUT_CFG, LUT_HYBRID_PRIORITY=1, LUT_OFLOW_PRIORITY=1, LUT_LO_LE_MUX=2)
        low, high = self.step_bits
        asm.write(DPU.LUT_INFO, LUT_LO_INDEX_SELECT=high, LUT_LE_INDEX_SELECT=low)
        asm.write(DPU.LUT_LE_START, LUT_LE_START=-(_STEPS << low))
        asm.write(DPU.LUT_LO_END, LUT_LO_END=_STEPS << high)
        asm.write(DPU.LUT_LO_SLOPE_SCALE, LUT_LO_SLOPE_OFLOW_SCALE=self.slope)
        write_zeros(
            asm,
            DPU.EW_CVT_OFFSET_VALUE,
            DPU.EW_RELUX_CMP_VALUE,
            *EW_OPERANDS,
            DPU.LUT_LE_END,
            DPU.LUT_LO_START,
            DPU.LUT_LE_SLOPE_SCALE,
            DPU.LUT_LE_SLOPE_SHIFT,
            DPU.LUT_LO_SLOPE_SHIFT,
            DPU_RDMA.RDMA_BRDMA_CFG,
            DPU_RDMA.RDMA_BS_BASE_ADDR,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Activation(Divided):
    """A function of each element."""

    inputs: tuple[Tensor]
    output: Tensor
    stages: _Clamp | _Slopes | _Lookup
    unproven: tuple[str, ...]
    constants: npt.NDArray[np.uint8]
    """Operands of channels, or nothing."""

    def programs(
        self, inputs: Sequence[int], constants: int, output: int, cores: int
    ) -> list[Program]:
        """As of ``Divisible``: a task for each of at most ``cores`` parts of the rows."""
        check_addresses(self, inputs, constants, output)
        parts = shares(range(self.output.height), cores)
        return [self._task(rows, inputs[0], constants, output) for rows in parts]

    def _task(self, rows: range, source: int, constants: int, output: int) -> Program:
        asm = Assembler()
        places = source, output
        write_flight(asm, self.inputs[0], self.output, rows, places, *self.stages.negative_shifts)
        write_zeros(asm, DPU.BS_OW_OP)
        self.stages.write(asm, constants)
        alphas = isinstance(self.stages, _Clamp) and self.stages.finish.operand is not None
        place = constants if alphas else None
        write_operand(asm, self.output, len(rows), place, int(alphas), 0, channelwise=alphas)
        return asm.finish("DPU", "DPU_RDMA", unproven=self.unproven)


def _make(
    shape: tuple[int, int, int],
    quantizations: tuple[Quantization | None, Quantization | None],
    stages: _Clamp | _Slopes | _Lookup,
    *unproven: str,
    constants: npt.NDArray[np.uint8] | None = None,
) -> Activation:
    tensors = [dpu_tensor(*shape, quantization) for quantization in quantizations]
    constants = np.zeros(0, np.uint8) if constants is None else constants.reshape(-1)
    constants.setflags(write=False)
    op = Activation((tensors[0],), tensors[1], stages, unproven, constants)
    # So that what some register cannot hold is refused here.
    op.program([0], 0, 0)
    return op


def _both(
    inputs: Quantization | None, outputs: Quantization | None
) -> tuple[Quantization, Quantization] | None:
    """None for float16. ProgramError when only one of the two is."""
    if inputs is None and outputs is None:
        return None
    if inputs is None or outputs is None:
        raise ProgramError(message="both of the tensors are float16, or none is")
    return inputs, outputs


# ---- Clamps and slopes --------------------------------------------------------------------------


def _clamp(
    shape: tuple[int, int, int],
    inputs: Quantization | None,
    outputs: Quantization | None,
    activation: str,
) -> Activation:
    both = _both(inputs, outputs)
    if both is None:
        stages = _Clamp(Finish.make_half(activation), None)
        return _make(shape, (None, None), stages, "a clamp of the DPU alone in float16")
    factor = np.float32(both[0].scale) / np.float32(both[1].scale)
    finish = Finish.make(fixed_point(float(factor) / 2**UNIT_BITS), both[1], activation)
    stages = _Clamp(finish, both[0].stored_zero_point)
    return _make(shape, both, stages, "zero points and scales in the DPU alone")


def relu(
    height: int,
    width: int,
    channels: int,
    inputs: Quantization | None = None,
    outputs: Quantization | None = None,
) -> Activation:
    """max(x, 0), brought to ``outputs``; without quantizations, of float16.

    Before it is rounded, a result y in steps of the output is off by at most |y| * 2**-14.
    ProgramError: what no task can do; the text says which limit.
    """
    return _clamp((height, width, channels), inputs, outputs, "relu")


def relu6(
    height: int,
    width: int,
    channels: int,
    inputs: Quantization | None = None,
    outputs: Quantization | None = None,
) -> Activation:
    """min(max(x, 0), 6), as ``relu``."""
    return _clamp((height, width, channels), inputs, outputs, "relu6")


def rescale(
    height: int, width: int, channels: int, inputs: Quantization, outputs: Quantization
) -> Activation:
    """The same numbers in another quantization (TFLite's QUANTIZE of integers), as ``relu``."""
    return _clamp((height, width, channels), inputs, outputs, "none")


def prelu(
    height: int,
    width: int,
    channels: int,
    alpha: npt.ArrayLike,
    inputs: Quantization | None = None,
    outputs: Quantization | None = None,
) -> Activation:
    """x, or below 0 alpha * x: one ``alpha``, or one for each channel.

    In float16 they are rounded to float16. Of integers they are not negative and below 2**15; with
    e = 15 - ceil(log2(max(alpha))) and y in steps of the output, a negative result is off by at
    most |x| * in_scale / out_scale * 2**-(e + 1) + |y| * 2**-14, and half of 2**-min(e, 14) steps
    of the input, before it is rounded.
    """
    shape, both = (height, width, channels), _both(inputs, outputs)
    alphas = np.asarray(alpha, np.float64)
    if alphas.shape not in ((), (channels,)) or not np.isfinite(alphas).all():
        raise ProgramError(message=f"alpha {alphas.shape}: one number, or {channels}, are needed")
    if both is None:
        if np.abs(alphas).max() > float(np.finfo(np.float16).max):
            raise ProgramError(message=f"alpha {np.abs(alphas).max():g} is not a float16")
        if not alphas.ndim:
            stages = _Clamp(Finish.make_half("none", slope=float(alphas)), None)
            return _make(shape, (None, None), stages, "a slope in the DPU alone in float16")
        operands = dpu_tensor(1, 1, channels, None)
        finish = Finish.make_half("none", operand=True, combine="prelu", channelwise=True)
        return _make(
            shape,
            (None, None),
            _Clamp(finish, None),
            "an operand of EW for each channel",
            constants=operands.pack(alphas.reshape(1, 1, -1).astype(np.float16)).view(np.uint8),
        )
    if alphas.min() < 0:
        raise ProgramError(
            message=f"alpha {alphas.min():g}: the DPU tells a negative element by its sign, which "
            "a negative alpha takes away"
        )
    exponent = SCALE_BITS - int(np.frexp(alphas.max())[1])
    if np.rint(np.ldexp(alphas.max(), exponent)) == 1 << SCALE_BITS:
        exponent -= 1
    if exponent < 0:
        raise ProgramError(message=f"alpha {alphas.max():g}: less than 2**15 is needed")
    bits = min(exponent, UNIT_BITS)
    shift = min(exponent - bits, 63)
    slopes = np.zeros(align(channels, ATOM), np.int16)
    slopes[:channels] = np.rint(np.ldexp(alphas, bits + shift))
    groups = np.zeros(len(slopes) // 8, OPERANDS)
    groups["add"] = -both[0].stored_zero_point
    groups["factor"] = slopes.reshape(-1, 8)
    factor = np.float32(both[0].scale) / np.float32(both[1].scale)
    finish = Finish.make(fixed_point(float(factor) / 2**bits), both[1], "none")
    return _make(
        shape,
        both,
        _Slopes(finish, shift, bits),
        "slopes of channels in the DPU alone",
        constants=groups.view(np.uint8),
    )


# ---- Tables -------------------------------------------------------------------------------------


def lookup(
    height: int,
    width: int,
    channels: int,
    inputs: Quantization,
    outputs: Quantization,
    function: Callable[[float], float],
) -> Activation:
    """Any ``function`` of the real numbers that the 256 values of ``inputs`` stand for.

    The results are exact: the nearest of ``outputs``, half a step away from zero, as TFLite fills
    its tables of int8. ProgramError: a result that is not a finite number, and other limits.
    """
    stored = np.arange(-128, 128)
    real = (stored - inputs.stored_zero_point) * float(np.float32(inputs.scale))
    steps = np.array([function(x) for x in real.tolist()]) / float(np.float32(outputs.scale))
    if not np.isfinite(steps).all():
        raise ProgramError(message="the function has no finite result for some of the 256 values")
    nearest = np.where(steps < 0, -np.floor(0.5 - steps), np.floor(steps + 0.5))
    results = np.clip(nearest + outputs.stored_zero_point, -128, 127).astype(np.int64)
    entries = ((results + 128) << _ROUNDED) + 1 + (stored & 1)
    table = np.full(LUT_ENTRIES, 1, np.int16)
    table[1:257] = entries
    stages = _Lookup(
        np.array([np.full(LUT_ENTRIES, 1, np.int16), table]),
        (_STEP_BITS, _STEP_BITS),
        slope=0,
        offset=-128,
        shift=_ROUNDED,
        scale=None,
        bias=129,
    )
    unproven = "lookup tables for integers (measured on an RK3576 alone)"
    return _make((height, width, channels), (inputs, outputs), stages, unproven)


@dataclass(frozen=True, slots=True)
class Curve:
    """How a function lies in the tables for float16."""

    function: Callable[[float], float]
    centre: float
    """Where LO starts."""
    reach: tuple[float, float]
    """What LE covers below it, and LO above. The smaller is a power of two, the other once or twice
    as much."""
    lowest: float
    """Below all results; a multiple of 2**-shift."""
    shift: int
    """Entries are multiples of 2**-shift."""
    rising: bool = False
    """Goes on with a slope of 1 above the tables; else it stays. Below it stays."""


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def _gelu(x: float) -> float:
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def _exp(x: float) -> float:
    return math.exp(min(x, 700.0))


CURVES = {
    "sigmoid": Curve(_sigmoid, 0, (16, 16), 0, 15),
    "tanh": Curve(math.tanh, 0, (8, 8), -1, 14),
    "gelu": Curve(_gelu, 0, (8, 8), -0.25, 11, rising=True),
    "silu": Curve(lambda x: x * _sigmoid(x), 0, (16, 8), -0.5, 11, rising=True),
    "exp": Curve(_exp, -8, (8, 8), 0, 15),
}


def _curve(
    name: str,
    shape: tuple[int, int, int],
    inputs: Quantization | None,
    outputs: Quantization | None,
) -> Activation:
    curve, both = CURVES[name], _both(inputs, outputs)
    if both is not None:
        return lookup(*shape, *both, curve.function)
    low, high = (_STEP_BITS + round(math.log2(reach / min(curve.reach))) for reach in curve.reach)
    scale = _TABLE_INDEX / min(curve.reach)
    entries = np.arange(LUT_ENTRIES)
    points = curve.centre + np.array([(entries - _STEPS) << low, entries << high]) / scale
    real = np.array([[curve.function(x) for x in table] for table in points.tolist()])
    tables = np.clip(np.rint((real - curve.lowest) * 2**curve.shift), 1, _MOST)
    stages = _Lookup(
        tables.astype(np.int16),
        (low, high),
        slope=int(2**curve.shift / scale) if curve.rising else 0,
        offset=int(curve.lowest * 2**curve.shift),
        shift=curve.shift,
        scale=scale,
        # Known programs add -0 where there is nothing to add.
        bias=-curve.centre * scale,
    )
    # Sigmoids have been measured, by these settings; of what is below 0, the results differ.
    unproven = () if name == "sigmoid" else (f"the tables of {name} in float16",)
    return _make(shape, (None, None), stages, *unproven)


def sigmoid(
    height: int,
    width: int,
    channels: int,
    inputs: Quantization | None = None,
    outputs: Quantization | None = None,
) -> Activation:
    """1 / (1 + exp(-x)). Of integers exact, as of ``lookup``.

    In float16 off by at most 0.00006 and half an ulp.
    """
    return _curve("sigmoid", (height, width, channels), inputs, outputs)


def tanh(
    height: int,
    width: int,
    channels: int,
    inputs: Quantization | None = None,
    outputs: Quantization | None = None,
) -> Activation:
    """The hyperbolic tangent, as ``sigmoid``; in float16 off by at most 0.00006 and half an ulp."""
    return _curve("tanh", (height, width, channels), inputs, outputs)


def gelu(
    height: int,
    width: int,
    channels: int,
    inputs: Quantization | None = None,
    outputs: Quantization | None = None,
) -> Activation:
    """x * (1 + erf(x / sqrt(2))) / 2, as ``sigmoid``.

    In float16 off by at most 0.0003 and half an ulp.
    """
    return _curve("gelu", (height, width, channels), inputs, outputs)


def silu(
    height: int,
    width: int,
    channels: int,
    inputs: Quantization | None = None,
    outputs: Quantization | None = None,
) -> Activation:
    """x / (1 + exp(-x)), as ``sigmoid``.

    In float16 off by at most 0.0004 and half an ulp below 8, 0.003 and half an ulp from there on.
    """
    return _curve("silu", (height, width, channels), inputs, outputs)


def exp(
    height: int,
    width: int,
    channels: int,
    inputs: Quantization | None = None,
    outputs: Quantization | None = None,
) -> Activation:
    """exp(x), as ``sigmoid``. In float16 exp(min(x, 0)), off by at most 0.00008 and half an ulp."""
    return _curve("exp", (height, width, channels), inputs, outputs)


# ---- Softmax ------------------------------------------------------------------------------------


def softmax(
    device: Rk3588Device,
    values: Array,
    inputs: Quantization | None = None,
    outputs: Quantization | None = None,
    *,
    beta: float = 1.0,
    timeout: float = 6.0,
) -> Array:
    """exp(beta * x) over the sum of it along the channels, of values (height, width, channels).

    The CPU finds the largest of each pixel's channels, and subtracts it; the NPU computes ``exp``
    in float16; the CPU sums, divides, and rounds to ``outputs``. None: the values are float16. So
    it is not an operation that can follow another in memory.

    An exponential e of x <= 0 is off by at most d = 0.0001 + e * (|x| + 1) * 2**-11, and a result p
    by (d + p * D) / (E - D), with D and E the sums of d and e along the channels, before it is
    rounded. The 0.0001 adds up: with thousands of channels of which none stands out, use the CPU.

    ProgramError: values of another dtype than ``inputs`` says; what ``exp`` and the device raise.
    """
    both = _both(inputs, outputs)
    if values.ndim != 3 or not values.size:
        raise ProgramError(message=f"values {values.shape}: (height, width, channels) are needed")
    if both is not None:
        scale = float(np.float32(both[0].scale)) * beta
        stored = both[0].store(values).astype(np.int32)
        arguments = (stored - stored.max(axis=2, keepdims=True)) * scale
    elif values.dtype == np.float16:
        arguments = values.astype(np.float32)
        arguments = (arguments - arguments.max(axis=2, keepdims=True)) * beta
    else:
        raise ProgramError(message=f"{values.dtype} values without quantizations: float16 needed")
    height, width, channels = values.shape
    clipped = np.maximum(arguments, -1000).astype(np.float16)
    terms = execute(device, exp(height, width, channels), clipped, timeout=timeout)
    wide: Array = terms.astype(np.float32)
    # The lowest entry stands for all that is less than it.
    wide[wide <= 2.0**-15] = 0
    result: Array = wide / wide.sum(axis=2, keepdims=True)
    if both is None:
        return result.astype(np.float16)
    zero = both[1].stored_zero_point
    steps = np.floor(result / np.float32(both[1].scale) + 0.5) + zero
    return both[1].load(np.clip(steps, -128, 127).astype(np.int8))
