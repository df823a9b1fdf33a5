# SPDX-License-Identifier: MIT
"""int8 convolutions as TFLite means them, and sums of two tensors.

An operation is made from shapes and quantizations, without a device:

    op = conv2d(56, 56, weights, bias, inputs, weights_quantization, outputs, activation="relu6")
    program = op.program([input_dma], constants_dma, output_dma)

``op.inputs`` and ``op.output`` say how the tensors lie in memory, ``op.constants`` is the image of
weights and bias. ``execute(device, op, x)`` does all of it on an open device.

With x', w', z' the stored int8 (see quantize) a convolution computes, in int32,

    acc  = sum over the window of x' * (w' - w_zero')     padding counts as x_zero'
    bias' = bias - x_zero' * sum(w' - w_zero')
    y'   = clip(round_even((acc + bias' [+ addend]) * scale >> shift) + y_zero')

w' - w_zero' may need 9 bits, so the NPU multiplies by w' and adds -w_zero' times the sum of the
window (OW_OP). The registers are those of Mesa's rocket driver, except where docs/rk3588.md says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npukit import _fast
from npukit.ioctl import ProgramError

from .matmul import BANK_BYTES, CBUF_BANKS, MAX_HEIGHT
from .operation import Operation, check_addresses, execute
from .program import Assembler, Program
from .quantize import FixedPoint, Quantization, conv_factor, fixed_point
from .registers import CNA, CORE, DPU, DPU_RDMA
from .stages import Finish, write_finish, write_operand, write_output, write_zeros
from .tensor import ATOM, CONV_GROUP, DEPTHWISE_GROUP, Tensor, align

__all__ = [
    "Addition",
    "Convolution",
    "Operation",
    "Tensor",
    "add",
    "conv2d",
    "depthwise_conv2d",
    "execute",
]

Array = npt.NDArray[Any]

_ENTRY_BYTES = 128
_GRAINS = 51
"""Mesa's FEATURE_GRAINS is this and the stride."""
_DEPTHWISE = 3
_ADD = 2
_COMBINED = 5


@dataclass(frozen=True, slots=True)
class _Tile:
    """Output rows of one task, and the input rows that they need."""

    out_row: int
    out_rows: int
    in_row: int
    in_rows: int
    pad_top: int


@dataclass(frozen=True, slots=True, eq=False)
class Convolution:
    """What ``conv2d`` and ``depthwise_conv2d`` make. ``inputs``: the image, then any addend."""

    inputs: tuple[Tensor, ...]
    output: Tensor
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pads: tuple[int, int]
    """Rows above and columns to the left."""
    depthwise: bool
    weight_zero: int
    """Stored."""
    kernels: int
    """Whose weights there are: whole groups of 32; 1 when depthwise."""
    constants: npt.NDArray[np.uint8]
    """The weights as the NPU fetches them and, at ``bias_offset``, an int32 for each channel."""
    bias_offset: int
    finish: Finish

    @property
    def _in_channels(self) -> int:
        return self.inputs[0].surfaces * ATOM

    @property
    def _out_channels(self) -> int:
        return self.output.surfaces * ATOM

    @property
    def kernel_bytes(self) -> int:
        return self.kernel[0] * self.kernel[1] * self._in_channels

    @property
    def entries(self) -> int:
        """CNA.DATA_ENTRIES: units of 64 bytes (4 atoms of a pixel) that a row fills in the CBUF.

        Three atoms that are left take a whole unit, as in NVDLA (calc_entries_per_slice); the
        vendor's value for 40 columns of 40 channels agrees.
        """
        width = self.inputs[0].width
        units, left = divmod(self._in_channels // ATOM, 4)
        return units * width + (width if left == 3 else -(-left * width // 4))

    def banks(self) -> tuple[int, int, int]:
        """CBUF banks of features and of weights, and the input rows that a task may have.

        Weights are kept whole where they fit (one bank more than they need, as Mesa); else they
        are streamed through 5 banks. ProgramError when no split holds a window and a kernel.
        """
        image = self.inputs[0]
        row_bytes = align(64 * self.entries, _ENTRY_BYTES)
        full = -(-self.kernels * self.kernel_bytes // BANK_BYTES) + 1
        choices = [CBUF_BANKS - full] if full + 1 < CBUF_BANKS else []
        for data in [*choices, 7, CBUF_BANKS - 1]:
            rows = min(data * BANK_BYTES // row_bytes, MAX_HEIGHT)
            weights = CBUF_BANKS - data
            if rows < min(self.kernel[0], image.height) or self.kernel_bytes > weights * BANK_BYTES:
                continue
            if image.height <= rows:
                data = -(-image.height * row_bytes // BANK_BYTES)
            return data, CBUF_BANKS - data, rows
        raise ProgramError(
            message=f"a window of {self.kernel[0]} rows of {row_bytes} bytes and a kernel of "
            f"{self.kernel_bytes} bytes do not fit the {CBUF_BANKS} CBUF banks together"
        )

    def tiles(self) -> list[_Tile]:
        """The tasks, from top to bottom."""
        image, rows = self.inputs[0], self.banks()[2]
        if image.height <= rows:
            return [_Tile(0, self.output.height, 0, image.height, self.pads[0])]
        found = []
        done = 0
        while done < self.output.height:
            start = done * self.stride[0] - self.pads[0]
            pad, first = max(-start, 0), max(start, 0)
            count = (rows + pad - self.kernel[0]) // self.stride[0] + 1
            count = min(count, self.output.height - done)
            end = start + (count - 1) * self.stride[0] + self.kernel[0]
            found.append(_Tile(done, count, first, min(end, image.height) - first, pad))
            done += count
        return found

    def program(self, inputs: Sequence[int], constants: int, output: int) -> Program:
        """The tasks, a chain, for buffers at these DMA addresses (16-byte aligned, 32 bits).

        ProgramError: an address that is neither, or a shape that some register cannot hold.
        """
        check_addresses(self, inputs, constants, output)
        banks = self.banks()
        fits = self.kernels * self.kernel_bytes <= banks[1] * BANK_BYTES
        return Program.join(
            [
                self._task(tile, banks[:2], bool(index) and fits, inputs, constants, output)
                for index, tile in enumerate(self.tiles())
            ]
        )

    def _task(
        self,
        tile: _Tile,
        banks: tuple[int, int],
        reuse: bool,
        inputs: Sequence[int],
        constants: int,
        output: int,
    ) -> Program:
        asm = Assembler()
        asm.write(DPU.S_POINTER, POINTER_PP_MODE=1, EXECUTER_PP_EN=1, POINTER_PP_EN=1)
        asm.write(DPU_RDMA.RDMA_S_POINTER, POINTER_PP_MODE=1, EXECUTER_PP_EN=1, POINTER_PP_EN=1)
        self._write_cna(asm, tile, banks, reuse, inputs[0], constants)
        asm.write(CORE.MISC_CFG, DW_EN=self.depthwise, QD_EN=1)
        asm.write(
            CORE.DATAOUT_SIZE_0,
            DATAOUT_HEIGHT=tile.out_rows - 1,
            DATAOUT_WIDTH=self.output.width - 1,
        )
        asm.write(CORE.DATAOUT_SIZE_1, DATAOUT_CHANNEL=self._out_channels - 1)
        write_zeros(asm, CORE.CLIP_TRUNCATE, CORE.UNDOC_3030)

        offset = tile.out_row * self.output.width * ATOM
        mode = _DEPTHWISE if self.depthwise else 0
        fused = self.finish.operand is not None
        clamp = {"BS_RELU_BYPASS": 1} if fused else self.finish.fields("BS")
        group = DEPTHWISE_GROUP if self.depthwise else CONV_GROUP
        asm.write(DPU.FEATURE_MODE_CFG, BURST_LEN=15, OUTPUT_MODE=2, CONV_MODE=mode)
        write_output(asm, self.output, tile.out_rows, output + offset, group // ATOM)
        asm.write(DPU.BS_CFG, BS_ALU_ALGO=_ADD, BS_ALU_SRC=1, BS_MUL_BYPASS=1, **clamp)
        write_zeros(asm, DPU.BS_ALU_CFG, DPU.BS_MUL_CFG)
        limit = None if fused else self.finish.highest
        asm.write(DPU.BS_RELUX_CMP_VALUE, BS_RELUX_CMP_DAT=limit or 0)
        asm.write(DPU.BS_OW_OP, OW_OP=-self.weight_zero)
        write_finish(asm, self.finish)

        asm.write(DPU_RDMA.RDMA_BRDMA_CFG, BRDMA_DATA_USE=1)
        asm.write(DPU_RDMA.RDMA_BS_BASE_ADDR, BS_BASE_ADDR=constants + self.bias_offset)
        asm.write(
            DPU_RDMA.RDMA_FEATURE_MODE_CFG,
            BURST_LEN=15,
            COMB_USE=_COMBINED if fused else 0,
            MRDMA_DISABLE=not fused,
            CONV_MODE=mode,
        )
        area = self.output.area
        notch = 2 * area - tile.out_rows * self.output.width
        addend = inputs[1] + offset if fused else 0
        # Mesa's way: MRDMA reads the even surfaces of the addend and ERDMA the odd ones.
        asm.write(DPU_RDMA.RDMA_SRC_BASE_ADDR, SRC_BASE_ADDR=addend)
        asm.write(DPU_RDMA.RDMA_SURF_NOTCH, SURF_NOTCH_ADDR=notch if fused else 0)
        write_operand(
            asm,
            self.output,
            tile.out_rows,
            address=addend + area * ATOM if fused else None,
            surface=area,
            notch=notch,
        )
        return asm.finish("CNA", "CORE", "DPU", "DPU_RDMA", unproven=self._unproven())

    def _write_cna(
        self,
        asm: Assembler,
        tile: _Tile,
        banks: tuple[int, int],
        reuse: bool,
        features: int,
        weights: int,
    ) -> None:
        image, (kernel_height, kernel_width) = self.inputs[0], self.kernel
        width, channels = image.width, self._in_channels
        asm.write(CNA.CONV_CON1, CONV_MODE=_DEPTHWISE if self.depthwise else 0)
        asm.write(CNA.CONV_CON2, FEATURE_GRAINS=_GRAINS + self.stride[0])
        asm.write(CNA.CONV_CON3, CONV_Y_STRIDE=self.stride[0], CONV_X_STRIDE=self.stride[1])
        asm.write(CNA.DATA_SIZE0, DATAIN_WIDTH=width, DATAIN_HEIGHT=tile.in_rows)
        asm.write(CNA.DATA_SIZE1, DATAIN_CHANNEL_REAL=image.channels - 1, DATAIN_CHANNEL=channels)
        asm.write(CNA.DATA_SIZE2, DATAOUT_WIDTH=self.output.width)
        asm.write(CNA.DATA_SIZE3, DATAOUT_ATOMICS=self.output.width * tile.out_rows)
        asm.write(CNA.WEIGHT_SIZE0, WEIGHT_BYTES=self.kernels * self.kernel_bytes)
        asm.write(CNA.WEIGHT_SIZE1, WEIGHT_BYTES_PER_KERNEL=self.kernel_bytes)
        asm.write(
            CNA.WEIGHT_SIZE2,
            WEIGHT_WIDTH=kernel_width,
            WEIGHT_HEIGHT=kernel_height,
            WEIGHT_KERNELS=self.kernels,
        )
        asm.write(CNA.CBUF_CON0, WEIGHT_REUSE=reuse, WEIGHT_BANK=banks[1], DATA_BANK=banks[0])
        asm.write(CNA.CBUF_CON1, DATA_ENTRIES=self.entries)
        asm.write(CNA.CVT_CON0, DATA_SIGN=1, CVT_TYPE=1, CVT_BYPASS=1)
        asm.write(CNA.CVT_CON1, CVT_SCALE0=1)
        asm.write(CNA.CVT_CON2, CVT_SCALE1=1)
        asm.write(CNA.CVT_CON3, CVT_SCALE2=1)
        asm.write(CNA.CVT_CON4, CVT_SCALE3=1)
        asm.write(CNA.PAD_CON0, PAD_LEFT=self.pads[1], PAD_TOP=tile.pad_top)
        asm.write(CNA.FEATURE_DATA_ADDR, FEATURE_BASE_ADDR=features + tile.in_row * width * ATOM)
        asm.write(CNA.DMA_CON0, WEIGHT_BURST_LEN=15, DATA_BURST_LEN=15)
        asm.write(CNA.DMA_CON1, LINE_STRIDE=4 * width)
        asm.write(CNA.DMA_CON2, SURF_STRIDE=width * (image.height - 4))
        asm.write(CNA.FC_DATA_SIZE0, DMA_WIDTH=width, DMA_HEIGHT=tile.in_rows)
        asm.write(CNA.FC_DATA_SIZE1, DMA_CHANNEL=channels)
        asm.write(CNA.DCOMP_ADDR0, DECOMPRESS_ADDR0=weights)
        zero = image.zero
        # The byte twice: some channels of a depthwise convolution take the second one (measured).
        asm.write(CNA.PAD_CON1, PAD_VALUE=zero * 256 + (zero & 0xFF))
        write_zeros(
            asm,
            CNA.FC_CON0,
            CNA.FC_CON1,
            CNA.FC_CON2,
            CNA.DCOMP_CTRL,
            CNA.DCOMP_REGNUM,
            *(getattr(CNA, f"DCOMP_AMOUNT{index}") for index in range(16)),
            CNA.CVT_CON5,
        )

    def _unproven(self) -> Iterator[str]:
        image = self.inputs[0]
        if image.height != image.width or self.kernel[0] != self.kernel[1]:
            yield "an int8 image or kernel is not square"
        if self._in_channels // ATOM % 4 == 3:
            yield "three atoms are left over in DATA_ENTRIES"
        if min(tile.in_rows for tile in self.tiles()) < 4:
            yield "a task has fewer than 4 input rows"
        if self.finish.relu:
            yield "int8 sums are clamped in the DPU"
        if self.finish.operand is not None:
            yield "the scale of an addend is by formula"


@dataclass(frozen=True, slots=True, eq=False)
class Addition:
    """What ``add`` makes: one task of the DPU and its RDMA alone."""

    inputs: tuple[Tensor, Tensor]
    output: Tensor
    first: FixedPoint
    """From the first tensor's steps to the unit of the sum."""
    finish: Finish

    @property
    def constants(self) -> npt.NDArray[np.uint8]:
        """There are none."""
        return np.zeros(0, np.uint8)

    def program(self, inputs: Sequence[int], constants: int, output: int) -> Program:
        """As of ``Convolution``; ``constants`` is not used."""
        check_addresses(self, inputs, constants, output)
        shift = self.first.shift
        asm = Assembler()
        asm.write(DPU.S_POINTER, POINTER_PP_MODE=1, EXECUTER_PP_EN=1, POINTER_PP_EN=1)
        asm.write(DPU_RDMA.RDMA_S_POINTER, POINTER_PP_MODE=1, EXECUTER_PP_EN=1, POINTER_PP_EN=1)
        asm.write(DPU.FEATURE_MODE_CFG, BURST_LEN=15, OUTPUT_MODE=2, FLYING_MODE=1)
        height = self.output.height
        write_output(asm, self.output, height, output, CONV_GROUP // ATOM, shift)
        asm.write(DPU.BS_CFG, BS_ALU_ALGO=_ADD, BS_RELU_BYPASS=1)
        zero = self.inputs[0].zero
        asm.write(DPU.BS_ALU_CFG, BS_ALU_OPERAND=-zero)
        asm.write(DPU.BS_MUL_CFG, BS_MUL_OPERAND=self.first.scale, BS_MUL_SHIFT_VALUE=shift)
        write_zeros(asm, DPU.BS_RELUX_CMP_VALUE, DPU.BS_OW_OP)
        write_finish(asm, self.finish)
        write_zeros(asm, DPU_RDMA.RDMA_BRDMA_CFG, DPU_RDMA.RDMA_BS_BASE_ADDR)
        asm.write(DPU_RDMA.RDMA_FEATURE_MODE_CFG, BURST_LEN=15, FLYING_MODE=1)
        asm.write(DPU_RDMA.RDMA_SRC_BASE_ADDR, SRC_BASE_ADDR=inputs[0])
        write_zeros(asm, DPU_RDMA.RDMA_SURF_NOTCH)
        write_operand(asm, self.output, height, inputs[1], surface=self.output.area, notch=0)
        return asm.finish(
            "DPU", "DPU_RDMA", unproven=["a sum of two int8 tensors with their zero points"]
        )


# ---- Making operations --------------------------------------------------------------------------


def _pair(value: int | tuple[int, int], name: str) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else value
    if len(pair) != 2 or min(pair) < 1:
        raise ProgramError(message=f"{name} {value}: two numbers of 1 or more are needed")
    return pair


def _extent(
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: str | tuple[int, int, int, int],
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Output size and the pads before, both (y, x)."""
    if padding == "same":
        out = [-(-n // s) for n, s in zip(size, stride, strict=True)]
        total = [
            max((o - 1) * s + k - n, 0)
            for n, k, s, o in zip(size, kernel, stride, out, strict=True)
        ]
        return (out[0], out[1]), (total[0] // 2, total[1] // 2)
    if padding == "valid":
        padding = (0, 0, 0, 0)
    if isinstance(padding, str) or len(padding) != 4 or min(padding) < 0:
        raise ProgramError(
            message=f'padding {padding!r}: "same", "valid" or (top, bottom, left, right) is needed'
        )
    top, bottom, left, right = padding
    if max(top, bottom) >= kernel[0] or max(left, right) >= kernel[1]:
        raise ProgramError(message=f"padding {padding} is not below the kernel {kernel}")
    padded = (size[0] + top + bottom, size[1] + left + right)
    if padded[0] < kernel[0] or padded[1] < kernel[1]:
        raise ProgramError(message=f"a kernel {kernel} exceeds the padded image {padded}")
    height, width = ((n - k) // s + 1 for n, k, s in zip(padded, kernel, stride, strict=True))
    return (height, width), (top, left)


def _make(
    height: int,
    width: int,
    weights: Array,
    bias: Array | None,
    quantizations: tuple[Quantization, Quantization, Quantization],
    stride: int | tuple[int, int],
    padding: str | tuple[int, int, int, int],
    activation: str,
    addend: Quantization | None,
    depthwise: bool,
) -> Convolution:
    inputs, weights_quantization, outputs = quantizations
    weights = np.asarray(weights)
    if weights.ndim != 4 or not weights.size or (depthwise and len(weights) != 1):
        shape = "(1, height, width, channels)" if depthwise else "(out, height, width, in)"
        raise ProgramError(message=f"weights {weights.shape}: {shape} are needed")
    if min(height, width) < 1:
        raise ProgramError(message=f"an image of {height} x {width} pixels")
    stored = weights_quantization.store(weights)
    zero = weights_quantization.stored_zero_point
    in_channels = stored.shape[3]
    out_channels = in_channels if depthwise else len(stored)
    kernel, stride = (stored.shape[1], stored.shape[2]), _pair(stride, "stride")
    size, pads = _extent((height, width), kernel, stride, padding)

    centred = stored.astype(np.int64) - zero
    sums = centred.sum(axis=(0, 1, 2) if depthwise else (1, 2, 3))
    given = np.zeros(out_channels, np.int32) if bias is None else np.asarray(bias)
    if given.shape != (out_channels,) or given.dtype.kind not in "iu":
        raise ProgramError(
            message=f"bias {given.dtype}{given.shape}: {out_channels} integers are needed"
        )
    group = DEPTHWISE_GROUP if depthwise else CONV_GROUP
    written = align(out_channels, group)
    operand = np.zeros(written, np.int64)
    operand[:out_channels] = given.astype(np.int64) - sums * inputs.stored_zero_point
    if operand.min() < -(1 << 31) or operand.max() >= 1 << 31:
        raise ProgramError(message="a bias exceeds 32 bits with the zero point's share")
    packed = (_pack_depthwise if depthwise else _pack_direct)(stored, zero)
    bias_offset = align(len(packed), 64)
    constants = np.zeros(bias_offset + 4 * written, np.uint8)
    constants[: len(packed)] = packed.view(np.uint8)
    constants[bias_offset:] = operand.astype(np.int32).view(np.uint8)
    constants.setflags(write=False)

    factor = conv_factor(inputs, weights_quantization, outputs)
    read = align(in_channels, DEPTHWISE_GROUP if depthwise else ATOM)
    image = Tensor(height, width, in_channels, inputs, read // ATOM)
    output = Tensor(*size, out_channels, outputs, written // ATOM)
    tensors: tuple[Tensor, ...] = (image,)
    finish = Finish.make(factor, outputs, activation)
    if addend is not None:
        product = np.float32(inputs.scale) * np.float32(weights_quantization.scale)
        scale = fixed_point(float(np.float32(addend.scale) / product))
        tensors = (image, Tensor(*size, out_channels, addend, written // ATOM))
        finish = Finish.make(factor, outputs, activation, scale, addend.stored_zero_point)
    op = Convolution(
        tensors,
        output,
        kernel,
        stride,
        pads,
        depthwise,
        zero,
        1 if depthwise else written,
        constants,
        bias_offset,
        finish,
    )
    # So that what some register cannot hold is refused here.
    op.program([0] * len(tensors), 0, 0)
    return op


def _pack_direct(stored: npt.NDArray[np.int8], zero: int) -> npt.NDArray[np.int8]:
    full = np.zeros((align(len(stored), CONV_GROUP), *stored.shape[1:]), np.int8)
    full[: len(stored)] = stored
    return _fast.pack_weights(full, zero)


def _pack_depthwise(stored: npt.NDArray[np.int8], zero: int) -> npt.NDArray[np.int8]:
    """Groups of 64 channels; in each the taps, in each tap the channels."""
    taps = stored.reshape(-1, stored.shape[3])
    full = np.full((len(taps), align(taps.shape[1], DEPTHWISE_GROUP)), zero, np.int8)
    full[:, : taps.shape[1]] = taps
    groups = full.reshape(len(taps), -1, DEPTHWISE_GROUP)
    return np.ascontiguousarray(groups.transpose(1, 0, 2)).reshape(-1)


def conv2d(
    height: int,
    width: int,
    weights: Array,
    bias: Array | None,
    inputs: Quantization,
    weights_quantization: Quantization,
    outputs: Quantization,
    *,
    stride: int | tuple[int, int] = 1,
    padding: str | tuple[int, int, int, int] = "same",
    activation: str = "none",
    addend: Quantization | None = None,
) -> Convolution:
    """A convolution of an image (height, width, in) with ``weights`` (out, kh, kw, in).

    ``weights`` are of ``weights_quantization``'s dtype, ``bias`` (out,) of int32 in steps of
    in_scale * w_scale. ``padding`` is "same" or "valid" as in TFLite, or (top, bottom, left,
    right). With ``addend``, a second tensor of the output's shape is added before ``activation``
    ("none", "relu", "relu6") and before the one rounding; its factor addend_scale / (in_scale *
    w_scale) has to be below 2**15.

    ProgramError: what no task can do; the text says which limit.
    """
    quantizations = (inputs, weights_quantization, outputs)
    return _make(
        height, width, weights, bias, quantizations, stride, padding, activation, addend, False
    )


def depthwise_conv2d(
    height: int,
    width: int,
    weights: Array,
    bias: Array | None,
    inputs: Quantization,
    weights_quantization: Quantization,
    outputs: Quantization,
    *,
    stride: int | tuple[int, int] = 1,
    padding: str | tuple[int, int, int, int] = "same",
    activation: str = "none",
    addend: Quantization | None = None,
) -> Convolution:
    """Each channel with its own kernel: ``weights`` (1, kh, kw, channels). Else as ``conv2d``."""
    quantizations = (inputs, weights_quantization, outputs)
    return _make(
        height, width, weights, bias, quantizations, stride, padding, activation, addend, True
    )


def add(
    height: int,
    width: int,
    channels: int,
    first: Quantization,
    second: Quantization,
    outputs: Quantization,
    *,
    activation: str = "none",
) -> Addition:
    """The sum of two tensors (height, width, channels).

    Both become multiples of u = max(scales) / 2**14, are added, and multiplied by u / out_scale.
    With a and b the operands in steps of the output, the result before rounding is off by at most
    (|a| + |b|) * 2**-12 + 2 * u / out_scale.

    ProgramError: what no task can do; the text says which limit.
    """
    if min(height, width, channels) < 1:
        raise ProgramError(message=f"tensors of {height} x {width} x {channels}")
    scales = [np.float32(quantization.scale) for quantization in (first, second)]
    largest = max(scales)
    factors = [fixed_point(float(scale / largest) * 2**14) for scale in scales]
    finish = Finish.make(
        fixed_point(float(largest / np.float32(outputs.scale)) / 2**14),
        outputs,
        activation,
        factors[1],
        second.stored_zero_point,
    )
    surfaces = align(channels, CONV_GROUP) // ATOM
    tensors = [Tensor(height, width, channels, q, surfaces) for q in (first, second, outputs)]
    op = Addition((tensors[0], tensors[1]), tensors[2], factors[0], finish)
    op.program([0, 0], 0, 0)
    return op
