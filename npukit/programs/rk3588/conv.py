# SPDX-License-Identifier: MIT
"""Convolutions as TFLite means them or in float16.

An operation is made from shapes and quantizations, without a device:

    op = conv2d(56, 56, weights, bias, inputs, weights_quantization, outputs, activation="relu6")
    program = op.program([input_dma], constants_dma, output_dma)

``op.inputs`` and ``op.output`` say how the tensors lie in memory, ``op.constants`` is the image of
weights and bias. ``execute(device, op, x)`` does all of it on an open device, on all of its cores.

With x', w', z' the stored int8 (see quantize) a convolution computes, in int32,

    acc  = sum over the window of x' * (w' - w_zero')     padding counts as x_zero'
    bias' = bias - x_zero' * sum(w' - w_zero')
    y'   = clip(round_even((acc + bias' [+ addend]) * scale >> shift) + y_zero')

w' - w_zero' may need 9 bits, so the NPU multiplies by w' and adds -w_zero' times the sum of the
window (OW_OP). The registers are those of Mesa's rocket driver, except where docs/rk3588.md says;
in float16 those that the vendor's runtime was seen to write. How an operation is cut into tasks is
in tiling.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npukit.ioctl import ProgramError

from .encodings import (
    ALTERNATE,
    COMBINED,
    LONGEST_BURST,
    OPERANDS,
    PRECISIONS,
    TO_MEMORY,
    Algorithm,
    ConvMode,
    OperandUse,
    kernel_group,
)
from .matmul import DCOMP_AMOUNTS, MAX_GRAINS, write_plain_input
from .operation import Divided, Operation, check_addresses, execute
from .program import Assembler, Program
from .quantize import PerChannel, Quantization
from .registers import CNA, CORE, DPU, DPU_RDMA
from .scheme import float_scheme, integer_scheme, pack_constants
from .stages import Finish, write_finish, write_operand, write_output, write_zeros
from .tensor import ATOM, Tensor, align
from .tiling import Region, Shape, Tile, axes

__all__ = [
    "Convolution",
    "Operation",
    "Tensor",
    "conv2d",
    "depthwise_conv2d",
    "execute",
    "fully_connected",
]

Array = npt.NDArray[Any]

_GRAINS = 51
"""Mesa's FEATURE_GRAINS is this and the stride."""
_GRAIN_BYTES = 65536


@dataclass(frozen=True, slots=True, eq=False)
class Convolution(Divided):
    """What ``conv2d``, ``depthwise_conv2d`` and ``fully_connected`` make.

    ``inputs``: the image, then any addend.
    """

    inputs: tuple[Tensor, ...]
    output: Tensor
    shape: Shape
    weight_zero: int
    """Stored."""
    constants: npt.NDArray[np.uint8]
    """The weights as the NPU fetches them and, at ``bias_offset``, the operands of channels."""
    bias_offset: int | None
    """An int32 for each channel, or in groups of 8 with factors; a float32 in fp16. None: none."""
    factor_shift: int | None
    """Of BS, where sums are multiplied with a factor for each channel; else None."""
    slopes: bool
    """These factors are for negative sums alone."""
    finish: Finish
    scale_error: float
    """How far, in steps of the output, a result may be off before its last rounding because the
    factors from sums to results have a limited number of bits; in fp16, 0."""

    def tiles(self) -> list[Tile]:
        """The tasks of ``program``."""
        return self.shape.tiles(self.shape.whole)

    def programs(
        self, inputs: Sequence[int], constants: int, output: int, cores: int
    ) -> list[Program]:
        """At most ``cores`` chains that together do what ``program`` does, in any order."""
        check_addresses(self, inputs, constants, output)
        return [
            Program.join(
                [self._task(tile, inputs, constants, output) for tile in self.shape.tiles(part)]
            )
            for part in self.shape.parts(cores)
        ]

    @property
    def _half(self) -> bool:
        return self.output.quantization is None

    @property
    def _mode(self) -> ConvMode:
        return ConvMode.DEPTHWISE if self.shape.depthwise else ConvMode.DIRECT

    def _task(self, tile: Tile, inputs: Sequence[int], constants: int, output: int) -> Program:
        """One task. Without operands from memory DPU_RDMA is left alone, as by the vendor."""
        region = tile.region
        rows, columns, channels = len(region.rows), len(region.columns), region.channels
        depthwise, half, finish = self.shape.depthwise, self._half, self.finish
        fused = finish.operand is not None
        rdma = fused or self.bias_offset is not None

        asm = Assembler()
        asm.write(DPU.S_POINTER, **ALTERNATE)
        self._write_cna(asm, tile, inputs[0], constants)
        precision = self.output.precision
        asm.write(CORE.MISC_CFG, PROC_PRECISION=precision, DW_EN=depthwise, QD_EN=not half)
        asm.write(CORE.DATAOUT_SIZE_0, DATAOUT_HEIGHT=rows - 1, DATAOUT_WIDTH=columns - 1)
        asm.write(CORE.DATAOUT_SIZE_1, DATAOUT_CHANNEL=len(channels) - 1)
        write_zeros(asm, CORE.CLIP_TRUNCATE, CORE.UNDOC_3030)

        surface, atoms = channels.start // self.output.lanes, self.shape.group // self.output.lanes
        place = surface * self.output.area + region.rows.start * self.output.width
        offset = (place + region.columns.start) * ATOM
        asm.write(
            DPU.FEATURE_MODE_CFG,
            BURST_LEN=LONGEST_BURST,
            OUTPUT_MODE=TO_MEMORY,
            CONV_MODE=self._mode,
        )
        write_output(
            asm,
            self.output,
            rows,
            output + offset,
            atoms,
            self.factor_shift or 0,
            columns=columns,
            channels=channels,
            slope_shift=finish.slope.shift if finish.slope else 0,
        )
        self._write_bs(asm)
        write_finish(asm, finish)
        if rdma:
            self._write_rdma(asm, tile, inputs, constants, offset)
        blocks = ("CNA", "CORE", "DPU", *(("DPU_RDMA",) if rdma else ()))
        return asm.finish(*blocks, unproven=self._unproven(tile))

    def _write_bs(self, asm: Assembler) -> None:
        """Biases, factors of channels, and the clamp unless an addend comes before it."""
        finish, biased = self.finish, self.bias_offset is not None
        fused, scaled = finish.operand is not None, self.factor_shift is not None
        clamp = {"BS_RELU_BYPASS": 1} if fused else finish.fields("BS")
        asm.write(
            DPU.BS_CFG,
            BS_ALU_ALGO=Algorithm.ADD if biased else 0,
            BS_ALU_SRC=biased,
            BS_MUL_PRELU=self.slopes,
            BS_MUL_BYPASS=not scaled,
            BS_ALU_BYPASS=not biased,
            BS_BYPASS=not biased and (fused or not finish.relu),
            **clamp,
        )
        asm.write(DPU.BS_ALU_CFG)
        asm.write(DPU.BS_MUL_CFG, BS_MUL_SHIFT_VALUE=self.factor_shift or 0, BS_MUL_SRC=scaled)
        limit = None if fused else finish.highest
        asm.write(DPU.BS_RELUX_CMP_VALUE, BS_RELUX_CMP_DAT=limit or 0)
        asm.write(DPU.BS_OW_OP, OW_OP=-self.weight_zero)

    def _write_rdma(
        self, asm: Assembler, tile: Tile, inputs: Sequence[int], constants: int, offset: int
    ) -> None:
        """Operands of channels, and of elements where there is an addend.

        Of int8, MRDMA reads the even surfaces of the addend and ERDMA the odd ones, as Mesa has it.
        """
        region, output = tile.region, self.output
        fused = self.finish.operand is not None
        combined = fused and not self._half
        asm.write(DPU_RDMA.RDMA_S_POINTER, **ALTERNATE)
        operands, use = 0, OperandUse.NONE
        if self.bias_offset is not None:
            use = OperandUse.ADD if self.factor_shift is None else OperandUse.ALL
            size = 4 if use == OperandUse.ADD else OPERANDS.itemsize // 8
            operands = constants + self.bias_offset + size * region.channels.start
        asm.write(DPU_RDMA.RDMA_BRDMA_CFG, BRDMA_DATA_USE=use)
        asm.write(DPU_RDMA.RDMA_BS_BASE_ADDR, BS_BASE_ADDR=operands)
        asm.write(
            DPU_RDMA.RDMA_FEATURE_MODE_CFG,
            IN_PRECISION=output.precision,
            BURST_LEN=LONGEST_BURST,
            COMB_USE=COMBINED if combined else 0,
            PROC_PRECISION=output.precision,
            MRDMA_DISABLE=not combined,
            CONV_MODE=self._mode,
        )
        addend = inputs[1] + offset if fused else 0
        pixels = len(region.rows) * len(region.columns)
        notch = (2 if combined else 1) * output.area - pixels
        asm.write(DPU_RDMA.RDMA_SRC_BASE_ADDR, SRC_BASE_ADDR=addend if combined else 0)
        asm.write(DPU_RDMA.RDMA_SURF_NOTCH, SURF_NOTCH_ADDR=notch if combined else 0)
        write_operand(
            asm,
            output,
            len(region.rows),
            address=addend + (output.area * ATOM if combined else 0) if fused else None,
            surface=output.area,
            notch=notch,
            columns=len(region.columns),
            channels=region.channels,
        )

    def _write_cna(self, asm: Assembler, tile: Tile, features: int, weights: int) -> None:
        image, shape, region = self.inputs[0], self.shape, tile.region
        rows, pad_top = shape.rows.seen(region.rows)
        columns, pad_left = shape.seen_columns(region)
        width, height, channels = len(columns), len(rows), shape.input_channels(region)
        first = region.channels.start if shape.depthwise else 0
        kernels = 1 if shape.depthwise else len(region.channels)
        place = first // image.lanes * image.area + rows.start * image.width + columns.start
        asm.write(
            CNA.CONV_CON1,
            PROC_PRECISION=image.precision,
            IN_PRECISION=image.precision,
            CONV_MODE=self._mode,
        )
        grains = self._grains(height, tile) if self._half else _GRAINS + shape.rows.stride
        asm.write(CNA.CONV_CON2, FEATURE_GRAINS=grains)
        asm.write(
            CNA.CONV_CON3,
            ATROUS_Y_DILATION=shape.rows.dilation - 1,
            ATROUS_X_DILATION=shape.columns.dilation - 1,
            CONV_Y_STRIDE=shape.rows.stride,
            CONV_X_STRIDE=shape.columns.stride,
        )
        asm.write(CNA.DATA_SIZE0, DATAIN_WIDTH=width, DATAIN_HEIGHT=height)
        real = min(first + channels, image.channels) - first
        asm.write(CNA.DATA_SIZE1, DATAIN_CHANNEL_REAL=real - 1, DATAIN_CHANNEL=channels)
        asm.write(CNA.DATA_SIZE2, DATAOUT_WIDTH=len(region.columns))
        asm.write(CNA.DATA_SIZE3, DATAOUT_ATOMICS=len(region.columns) * len(region.rows))
        asm.write(CNA.WEIGHT_SIZE0, WEIGHT_BYTES=shape.weight_bytes(region))
        asm.write(CNA.WEIGHT_SIZE1, WEIGHT_BYTES_PER_KERNEL=shape.kernel_bytes(region))
        asm.write(
            CNA.WEIGHT_SIZE2,
            WEIGHT_WIDTH=shape.columns.kernel,
            WEIGHT_HEIGHT=shape.rows.kernel,
            WEIGHT_KERNELS=kernels,
        )
        asm.write(
            CNA.CBUF_CON0,
            WEIGHT_REUSE=tile.reuse,
            WEIGHT_BANK=tile.weight_banks,
            DATA_BANK=tile.data_banks,
        )
        asm.write(CNA.CBUF_CON1, DATA_ENTRIES=shape.entries(region))
        write_plain_input(asm)
        asm.write(CNA.PAD_CON0, PAD_LEFT=pad_left, PAD_TOP=pad_top)
        asm.write(CNA.FEATURE_DATA_ADDR, FEATURE_BASE_ADDR=features + place * ATOM)
        asm.write(CNA.DMA_CON0, WEIGHT_BURST_LEN=LONGEST_BURST, DATA_BURST_LEN=LONGEST_BURST)
        asm.write(CNA.DMA_CON1, LINE_STRIDE=4 * image.width)
        asm.write(CNA.DMA_CON2, SURF_STRIDE=image.area - 4 * width)
        asm.write(CNA.FC_DATA_SIZE0, DMA_WIDTH=width, DMA_HEIGHT=height)
        asm.write(CNA.FC_DATA_SIZE1, DMA_CHANNEL=channels)
        skipped = 0
        if region.channels.start:
            before = range(region.channels.start)
            skipped = shape.weight_bytes(Region(region.rows, region.columns, before))
        asm.write(CNA.DCOMP_ADDR0, DECOMPRESS_ADDR0=weights + skipped)
        # The byte twice: some channels of a depthwise convolution take the second one (measured).
        pad = image.zero * 256 + (image.zero & 0xFF)
        asm.write(CNA.PAD_CON1, PAD_VALUE=pad)
        write_zeros(
            asm,
            CNA.FC_CON0,
            CNA.FC_CON1,
            CNA.FC_CON2,
            CNA.DCOMP_CTRL,
            CNA.DCOMP_REGNUM,
            *DCOMP_AMOUNTS,
            CNA.CVT_CON5,
        )

    def _grains(self, height: int, tile: Tile) -> int:
        """FEATURE_GRAINS in fp16: rows in 64 KiB and one more, enough for a window and a step.

        That is what the vendor's runtime was seen to write, but for one stream of seven.
        """
        window, stride = self.shape.rows.window, self.shape.rows.stride
        held = _GRAIN_BYTES // self.shape.row_bytes(tile.region) + 1
        return min(max(min(height + window, held), stride + window + 1), MAX_GRAINS)

    def _unproven(self, tile: Tile) -> Iterator[str]:
        image, shape, half = self.inputs[0], self.shape, self._half
        rows, columns = shape.rows, shape.columns
        if not half and (image.height != image.width or rows.kernel != columns.kernel):
            yield "an int8 image or kernel is not square"
        if shape.channels // image.lanes % 4 == 3:
            yield "three atoms are left over in DATA_ENTRIES"
        if len(rows.seen(tile.region.rows)[0]) < 4:
            yield "a task has fewer than 4 input rows"
        if len(tile.region.columns) < columns.out:
            yield "a task has part of the columns"
        if rows.dilation > 1 or columns.dilation > 1:
            yield "a dilated kernel"
        if self.finish.relu:
            yield f"{'fp16' if half else 'int8'} sums are clamped in the DPU"
        if self.finish.operand is not None:
            yield "an addend in fp16" if half else "the scale of an addend is by formula"
        if self.slopes or self.finish.slope is not None:
            yield "factors of negative sums alone"
        if half and self.bias_offset is not None:
            yield "biases in fp16"
        if half and shape.depthwise:
            yield "a depthwise convolution in fp16"
        if half and shape.channels % 32:
            yield "fp16 channels are not a multiple of 32"


# ---- Making operations --------------------------------------------------------------------------

_Quantizations = tuple[Quantization | None, Quantization | PerChannel | None, Quantization | None]
_Geometry = tuple[
    int | tuple[int, int], str | tuple[int, int, int, int], int | tuple[int, int]
]  # stride, padding, dilation
_Fused = tuple[str, npt.ArrayLike | None, Quantization | bool | None]  # activation, alpha, addend


def _make(
    size: tuple[int, int],
    weights: Array,
    bias: Array | None,
    quantizations: _Quantizations,
    geometry: _Geometry,
    fused: _Fused,
    depthwise: bool,
) -> Convolution:
    height, width = size
    activation, alpha, addend = fused
    weights = np.asarray(weights)
    if weights.ndim != 4 or not weights.size or (depthwise and len(weights) != 1):
        shape = "(1, height, width, channels)" if depthwise else "(out, height, width, in)"
        raise ProgramError(message=f"weights {weights.shape}: {shape} are needed")
    if min(height, width) < 1:
        raise ProgramError(message=f"an image of {height} x {width} pixels")
    in_channels = weights.shape[3]
    out_channels = in_channels if depthwise else len(weights)
    rows, columns = axes(size, weights.shape[1:3], *geometry)
    given = None if bias is None else np.asarray(bias)
    alphas = _alphas(activation, alpha, out_channels)
    if alphas is not None:
        if addend is not None:
            raise ProgramError(message="prelu cannot follow an addend: EW adds behind BS and BN")
        activation = "none"

    inputs, kind, outputs = quantizations
    half = inputs is None and kind is None and outputs is None
    if half:
        if addend not in (None, True):
            raise ProgramError(message="the addend of a float16 convolution is float16: True")
        if given is not None and (given.shape != (out_channels,) or given.dtype.kind != "f"):
            raise ProgramError(
                message=f"bias {given.dtype}{given.shape}: {out_channels} floats are needed"
            )
        scheme = float_scheme(weights, given, activation, alphas, addend is not None)
    elif inputs is None or kind is None or outputs is None:
        raise ProgramError(
            message="quantizations of inputs, weights and outputs are needed, or none for float16"
        )
    else:
        if isinstance(addend, bool):
            raise ProgramError(message="a quantized addend needs its Quantization")
        if given is not None and (given.shape != (out_channels,) or given.dtype.kind not in "iu"):
            raise ProgramError(
                message=f"bias {given.dtype}{given.shape}: {out_channels} integers are needed"
            )
        if isinstance(kind, PerChannel) and len(kind.scales) != out_channels:
            raise ProgramError(
                message=f"{len(kind.scales)} scales of weights for {out_channels} channels"
            )
        scheme = integer_scheme(
            weights, given, (inputs, kind, outputs), activation, alphas, addend, depthwise
        )

    itemsize = scheme.weights.dtype.itemsize
    lanes = ATOM // itemsize
    group = kernel_group(PRECISIONS[scheme.weights.dtype], depthwise)
    written = align(out_channels, group)
    read = align(in_channels, group if depthwise else lanes)
    constants, bias_offset = pack_constants(scheme, written, group, depthwise)
    image = Tensor(height, width, in_channels, inputs, read // lanes)
    output = Tensor(rows.out, columns.out, out_channels, outputs, written // lanes)
    tensors: tuple[Tensor, ...] = (image,)
    if addend is not None:
        kind_of_addend = None if isinstance(addend, bool) else addend
        tensors = (
            image,
            Tensor(rows.out, columns.out, out_channels, kind_of_addend, written // lanes),
        )
    op = Convolution(
        tensors,
        output,
        Shape(rows, columns, read, written, group, depthwise, itemsize, addend is not None),
        scheme.zero,
        constants,
        bias_offset,
        scheme.factor_shift,
        scheme.slopes,
        scheme.finish,
        scheme.scale_error,
    )
    # So that what some register cannot hold is refused here.
    op.program([0] * len(tensors), 0, 0)
    return op


def _alphas(activation: str, alpha: npt.ArrayLike | None, channels: int) -> Array | None:
    if activation != "prelu":
        if alpha is not None:
            raise ProgramError(message=f"an alpha for the activation {activation!r}")
        return None
    values = np.asarray(alpha, np.float64) if alpha is not None else np.zeros(0)
    if values.shape not in ((), (channels,)) or not np.isfinite(values).all():
        raise ProgramError(
            message=f"alpha {values.shape}: prelu needs one finite number or {channels}"
        )
    return np.broadcast_to(values, (channels,))


def conv2d(
    height: int,
    width: int,
    weights: Array,
    bias: Array | None,
    inputs: Quantization | None = None,
    weights_quantization: Quantization | PerChannel | None = None,
    outputs: Quantization | None = None,
    *,
    stride: int | tuple[int, int] = 1,
    padding: str | tuple[int, int, int, int] = "same",
    dilation: int | tuple[int, int] = 1,
    activation: str = "none",
    alpha: npt.ArrayLike | None = None,
    addend: Quantization | bool | None = None,
) -> Convolution:
    """A convolution of an image (height, width, in) with ``weights`` (out, kh, kw, in).

    Quantized, ``weights`` are of ``weights_quantization``'s dtype and ``bias`` (out,) of int32 in
    steps of in_scale * w_scale, the channel's own with ``PerChannel``. Without quantizations all
    tensors are float16, and ``bias`` is of floats. ``padding`` is "same" or "valid" as in TFLite,
    or (top, bottom, left, right).

    ``addend``: a second tensor of the output's shape is added, before ``activation`` and the one
    rounding. It has this quantization, or is float16 (True). For a uint8 or int8 tensor whose
    weights have one scale, addend_scale / (in_scale * w_scale) has to be below 2**15.

    ``activation``: "none", "relu", "relu6", or "prelu", which multiplies what is negative by
    ``alpha``, one number or one for each channel.

    ProgramError: what no task can do; the text says which limit.
    """
    quantizations = (inputs, weights_quantization, outputs)
    geometry, fused = (stride, padding, dilation), (activation, alpha, addend)
    return _make((height, width), weights, bias, quantizations, geometry, fused, False)


def depthwise_conv2d(
    height: int,
    width: int,
    weights: Array,
    bias: Array | None,
    inputs: Quantization | None = None,
    weights_quantization: Quantization | PerChannel | None = None,
    outputs: Quantization | None = None,
    *,
    stride: int | tuple[int, int] = 1,
    padding: str | tuple[int, int, int, int] = "same",
    dilation: int | tuple[int, int] = 1,
    activation: str = "none",
    alpha: npt.ArrayLike | None = None,
    addend: Quantization | bool | None = None,
) -> Convolution:
    """Each channel with its own kernel: ``weights`` (1, kh, kw, channels). Else as ``conv2d``."""
    quantizations = (inputs, weights_quantization, outputs)
    geometry, fused = (stride, padding, dilation), (activation, alpha, addend)
    return _make((height, width), weights, bias, quantizations, geometry, fused, True)


def fully_connected(
    batch: int,
    weights: Array,
    bias: Array | None,
    inputs: Quantization | None = None,
    weights_quantization: Quantization | PerChannel | None = None,
    outputs: Quantization | None = None,
    *,
    activation: str = "none",
    alpha: npt.ArrayLike | None = None,
    addend: Quantization | bool | None = None,
) -> Convolution:
    """``batch`` rows of ``in`` numbers times ``weights`` (out, in), and ``bias`` (out,).

    The tensors have the shapes (batch, 1, in) and (batch, 1, out): it is a convolution of an image
    of one column. Else as ``conv2d``.
    """
    weights = np.asarray(weights)
    if weights.ndim != 2:
        raise ProgramError(message=f"weights {weights.shape}: (out, in) are needed")
    return conv2d(
        batch,
        1,
        weights[:, None, None],
        bias,
        inputs,
        weights_quantization,
        outputs,
        activation=activation,
        alpha=alpha,
        addend=addend,
    )
