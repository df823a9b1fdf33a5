# SPDX-License-Identifier: MIT
"""Maxima and means of windows, by the pooling unit (PPU) and its DMA.

    op = max_pool(112, 112, 64, quantization, 3, stride=2, padding="same")
    program = op.program([input_dma], 0, output_dma)

A window's mean leaves padding out, as TFLite's does. The PPU divides all windows of a task alike
and counts what is padded, so windows that see another number of rows or columns are tasks of
their own, without padding. The PPU multiplies a sum with two reciprocals:

    y' = round_even(sum * (65536 // kh) * (65536 // kw) >> 32)

so that y', before it is rounded, is off by at most |mean'| * (kh + kw - 2) / 65536: 0.06 steps for
the largest window. TFLite rounds half away from zero (uint8: up) and so differs by at most 1.

Mainline's rocket waits for the DPU's interrupt alone (drivers/accel/rocket/rocket_job.c), which a
task of the PPU does not raise: ``launch.run`` refuses it there. Means of whole windows can be had
from the convolution core instead (``unit="core"``), which works on both drivers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from npukit.ioctl import ProgramError

from .conv import Convolution, depthwise_conv2d
from .elementwise import dpu_tensor
from .encodings import ALTERNATE, BYTES, PoolingMethod
from .operation import WithoutConstants, check_addresses
from .program import INT_MASK_PPU, Assembler, Program
from .quantize import Quantization
from .registers import PPU, PPU_RDMA
from .stages import write_zeros
from .tensor import ATOM, Tensor
from .tiling import Axis, axes, pair, shares

_LOWEST = -128 & 0x7FFFF
"""PAD_VALUE_0 is sign-extended to 19 bits (measured on an RK3576)."""
_MINUS_INFINITY = 0xFC00
_ONE = 1 << 16
_MOST_FP16 = 65504.0

_MAX_KERNEL = 1 << PPU.POOLING_KERNEL_CFG.fields["KERNEL_WIDTH"].width
_MAX_STRIDE = 1 << PPU.POOLING_KERNEL_CFG.fields["KERNEL_STRIDE_WIDTH"].width
_MAX_PAD = (1 << PPU.POOLING_PADDING_CFG.fields["PAD_LEFT"].width) - 1
_MAX_SIZE = 1 << PPU.DATA_CUBE_IN_WIDTH.fields["CUBE_IN_WIDTH"].width

LINE_COLUMNS = 128
"""Columns of the output that a task may make. Each further row of windows that an input row is in
halves them. On an RK3576 wider tasks are wrong from column 0 on (measured, rocket-userspace); of an
RK3588 nothing is known, and the unit is the same design."""


@dataclass(frozen=True, slots=True)
class Span:
    """Outputs along one direction whose windows have one size, and what they see of the input."""

    outputs: range
    seen: range
    kernel: int
    stride: int
    before: int
    behind: int
    """Padding."""


@dataclass(frozen=True, slots=True)
class PoolTile:
    """One task."""

    rows: Span
    columns: Span
    surfaces: range


def _span(axis: Axis, outputs: range) -> Span:
    """``outputs`` in one go, padding included."""
    seen, before = axis.seen(outputs)
    stride = axis.stride if len(outputs) > 1 else 1
    end = (outputs.stop - 1) * axis.stride - axis.pad + axis.kernel
    return Span(outputs, seen, axis.kernel, stride, before, max(end - axis.size, 0))


def _whole_spans(axis: Axis) -> list[Span]:
    """All outputs, in runs whose windows leave padding out and have one size."""
    found: list[Span] = []
    for index in range(axis.out):
        seen, _ = axis.seen(range(index, index + 1))
        if found:
            last = found[-1]
            start = last.seen.start + len(last.outputs) * axis.stride
            if len(seen) == last.kernel and seen.start == start:
                outputs = range(last.outputs.start, index + 1)
                found[-1] = Span(
                    outputs, range(last.seen.start, seen.stop), last.kernel, axis.stride, 0, 0
                )
                continue
        found.append(Span(range(index, index + 1), seen, len(seen), 1, 0, 0))
    return found


def _cut(axis: Axis, span: Span, most: int) -> Iterator[Span]:
    """``span`` in parts of at most ``most`` outputs, and of what the registers hold of an input."""
    most = min(most, (_MAX_SIZE - span.kernel) // span.stride + 1)
    for start in range(span.outputs.start, span.outputs.stop, most):
        outputs = range(start, min(start + most, span.outputs.stop))
        if span.before or span.behind:
            yield _span(axis, outputs)
            continue
        first = span.seen.start + (start - span.outputs.start) * span.stride
        seen = range(first, first + (len(outputs) - 1) * span.stride + span.kernel)
        yield Span(outputs, seen, span.kernel, span.stride, 0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Pooling(WithoutConstants):
    """What ``max_pool`` and ``avg_pool`` make."""

    inputs: tuple[Tensor]
    output: Tensor
    rows: Axis
    columns: Axis
    average: bool

    def tiles(self, surfaces: range | None = None) -> list[PoolTile]:
        """The tasks for ``surfaces`` (None: all)."""
        surfaces = range(self.output.surfaces) if surfaces is None else surfaces
        most = _MAX_SIZE // self.output.lanes
        chunks = shares(surfaces, -(-len(surfaces) // most))
        return [
            PoolTile(rows, columns, chunk)
            for whole_rows in self._spans(self.rows)
            for rows in _cut(self.rows, whole_rows, _MAX_SIZE)
            for whole_columns in self._spans(self.columns)
            for columns in _cut(self.columns, whole_columns, _most_columns(rows))
            for chunk in chunks
        ]

    def _spans(self, axis: Axis) -> list[Span]:
        """Windows of one size; of a maximum padding is left to the PPU if it can have as much."""
        whole = _span(axis, range(axis.out))
        if not self.average and max(whole.before, whole.behind) <= _MAX_PAD:
            return [whole]
        return _whole_spans(axis)

    def programs(
        self, inputs: Sequence[int], constants: int, output: int, cores: int
    ) -> list[Program]:
        """As of ``Divisible``: cores share surfaces, or if there is but one, the tasks for it."""
        check_addresses(self, inputs, constants, output)
        parts = [self.tiles(part) for part in shares(range(self.output.surfaces), cores)]
        if len(parts) == 1:
            tiles = parts[0]
            parts = [[tiles[i] for i in part] for part in shares(range(len(tiles)), cores)]
        return [
            Program.join([self._task(tile, inputs[0], output) for tile in part]) for part in parts
        ]

    def _task(self, tile: PoolTile, source: int, destination: int) -> Program:
        image, output, rows, columns = self.inputs[0], self.output, tile.rows, tile.columns
        half = image.quantization is None
        average = self.average and rows.kernel * columns.kernel > 1
        channels = len(tile.surfaces) * image.lanes
        size = {"WIDTH": len(columns.seen), "HEIGHT": len(rows.seen), "CHANNEL": channels}
        out = {"WIDTH": len(columns.outputs), "HEIGHT": len(rows.outputs), "CHANNEL": channels}

        asm = Assembler()
        asm.write(PPU.S_POINTER, **ALTERNATE)
        asm.write(PPU_RDMA.RDMA_S_POINTER, **ALTERNATE)
        for name, value in size.items():
            field = {f"CUBE_IN_{name}": value - 1}
            asm.write(getattr(PPU, f"DATA_CUBE_IN_{name}"), **field)
            asm.write(getattr(PPU_RDMA, f"RDMA_CUBE_IN_{name}"), **field)
        for name, value in out.items():
            asm.write(getattr(PPU, f"DATA_CUBE_OUT_{name}"), **{f"CUBE_OUT_{name}": value - 1})
        asm.write(
            PPU.OPERATION_MODE_CFG,
            NOTCH_ADDR=output.width - len(columns.outputs),
            FLYING_MODE=1,
            POOLING_METHOD=PoolingMethod.AVERAGE if average else PoolingMethod.MAXIMUM,
        )
        asm.write(
            PPU.POOLING_KERNEL_CFG,
            KERNEL_STRIDE_HEIGHT=rows.stride - 1,
            KERNEL_STRIDE_WIDTH=columns.stride - 1,
            KERNEL_HEIGHT=rows.kernel - 1,
            KERNEL_WIDTH=columns.kernel - 1,
        )
        reciprocals = (0, 0)
        if average and half:
            reciprocals = _half_reciprocals(rows.kernel, columns.kernel)
        elif average:
            reciprocals = (_ONE // rows.kernel, _ONE // columns.kernel)
        asm.write(PPU.RECIP_KERNEL_HEIGHT, RECIP_KERNEL_HEIGHT=reciprocals[0])
        asm.write(PPU.RECIP_KERNEL_WIDTH, RECIP_KERNEL_WIDTH=reciprocals[1])
        asm.write(
            PPU.POOLING_PADDING_CFG,
            PAD_BOTTOM=rows.behind,
            PAD_RIGHT=columns.behind,
            PAD_TOP=rows.before,
            PAD_LEFT=columns.before,
        )
        lowest = _MINUS_INFINITY if half else _LOWEST
        asm.write(PPU.PADDING_VALUE_1_CFG, PAD_VALUE_0=lowest)
        write_zeros(asm, PPU.PADDING_VALUE_2_CFG)
        place = tile.surfaces.start * output.area + rows.outputs.start * output.width
        address = destination + (place + columns.outputs.start) * ATOM
        asm.write(PPU.DST_BASE_ADDR, DST_BASE_ADDR=address // ATOM)
        asm.write(PPU.DST_SURF_STRIDE, DST_SURF_STRIDE=output.area)
        asm.write(PPU.DATA_FORMAT, INDEX_ADD=output.area, PROC_PRECISION=image.precision)
        asm.write(PPU.MISC_CTRL, BURST_LEN=3)
        place = tile.surfaces.start * image.area + rows.seen.start * image.width
        address = source + (place + columns.seen.start) * ATOM
        asm.write(PPU_RDMA.RDMA_SRC_BASE_ADDR, SRC_BASE_ADDR=address)
        asm.write(PPU_RDMA.RDMA_SRC_LINE_STRIDE, SRC_LINE_STRIDE=image.width)
        asm.write(PPU_RDMA.RDMA_SRC_SURF_STRIDE, SRC_SURF_STRIDE=image.area)
        asm.write(PPU_RDMA.RDMA_DATA_FORMAT, IN_PRECISION=BYTES[image.precision])
        return asm.finish(
            "PPU", "PPU_RDMA", int_mask=INT_MASK_PPU, unproven=self._unproven(tile, average)
        )

    def _unproven(self, tile: PoolTile, average: bool) -> Iterator[str]:
        """Measured on an RK3588 (rocket-userspace): small dense float16 tensors in one task."""
        rows, columns, output = tile.rows, tile.columns, self.output
        if self.output.quantization is not None:
            yield "pooling of int8 (measured on an RK3576 alone)"
        if len(columns.outputs) != output.width:
            yield "a pooling task of part of the columns"
        elif len(rows.outputs) != output.height:
            yield "a pooling task of part of the rows"
        if average and min(rows.kernel, columns.kernel) == 1:
            yield "a mean of one row or one column"
        if max(rows.kernel, columns.kernel) > 7:
            yield "a pooling window above 7"


def _most_columns(rows: Span) -> int:
    in_flight = min(-(-rows.kernel // rows.stride), len(rows.outputs))
    return max(LINE_COLUMNS >> (in_flight - 1), 1)


def _half_reciprocals(height: int, width: int) -> tuple[int, int]:
    """Bits of two float16 whose product is 2**32 / (height * width), nearly: 65536 / size each.

    65536 itself is no float16, so with a 1 the nearest product of two that are is taken.
    """
    if min(height, width) > 1:
        pair_of = np.array([_ONE / height, _ONE / width], np.float16)
    else:
        first = np.arange(0x7800, 0x7C00, dtype=np.uint16).view(np.float16)  # 2**15 .. 65504
        target = 2.0**32 / (height * width)
        second = np.minimum(target / first.astype(np.float64), _MOST_FP16).astype(np.float16)
        error = np.abs(first.astype(np.float64) * second.astype(np.float64) - target)
        best = int(np.argmin(error))
        pair_of = np.array([first[best], second[best]], np.float16)
    bits = pair_of.view(np.uint16)
    return int(bits[0]), int(bits[1])


# ---- Making operations --------------------------------------------------------------------------


def _make(
    size: tuple[int, int, int],
    quantization: Quantization | None,
    kernel: int | tuple[int, int],
    stride: int | tuple[int, int] | None,
    padding: str | tuple[int, int, int, int],
    average: bool,
) -> Pooling:
    image = dpu_tensor(*size, quantization)
    kernel = pair(kernel, "kernel")
    rows, columns = axes(size[:2], kernel, kernel if stride is None else stride, padding, 1)
    output = dpu_tensor(rows.out, columns.out, size[2], quantization)
    op = Pooling((image,), output, rows, columns, average)
    for axis in (rows, columns):
        largest = max(span.kernel for span in op._spans(axis))
        if largest > _MAX_KERNEL:
            raise ProgramError(
                message=f"a window of {largest}: the PPU has 1 to {_MAX_KERNEL}"
                + (', unit="core" up to 31' if average else "")
            )
        if axis.stride > _MAX_STRIDE and axis.out > 1:
            raise ProgramError(message=f"a stride of {axis.stride}: the PPU has 1 to {_MAX_STRIDE}")
    # So that what some register cannot hold is refused here.
    op.program([0], 0, 0)
    return op


def max_pool(
    height: int,
    width: int,
    channels: int,
    quantization: Quantization | None,
    kernel: int | tuple[int, int],
    *,
    stride: int | tuple[int, int] | None = None,
    padding: str | tuple[int, int, int, int] = "valid",
) -> Pooling:
    """The largest element of each window (``kernel``, by ``stride``: None is the kernel).

    The result has the input's quantization (None: float16), and is exact. ``padding`` as of
    ``conv.conv2d``; it is never the largest.

    ProgramError: what no task can do; the text says which limit.
    """
    size = (height, width, channels)
    return _make(size, quantization, kernel, stride, padding, average=False)


def avg_pool(
    height: int,
    width: int,
    channels: int,
    quantization: Quantization | None,
    kernel: int | tuple[int, int] | None = None,
    *,
    stride: int | tuple[int, int] | None = None,
    padding: str | tuple[int, int, int, int] = "valid",
    unit: str = "ppu",
) -> Pooling | Convolution:
    """The mean of each window, padding left out; ``kernel`` None: of the whole image.

    As ``max_pool``. With ``unit`` "core" it is a depthwise convolution, whose windows have to be
    all of one size: it is rounded once, and off by at most |y' - zero point| * 2**-14 before that.
    """
    size = (height, width, channels)
    kernel = (height, width) if kernel is None else pair(kernel, "kernel")
    if unit == "ppu":
        return _make(size, quantization, kernel, stride, padding, average=True)
    if unit != "core":
        raise ProgramError(message=f'no unit {unit!r}; there are "ppu" and "core"')
    rows, columns = axes(size[:2], kernel, kernel if stride is None else stride, padding, 1)
    for axis in (rows, columns):
        if any(span.kernel != axis.kernel for span in _whole_spans(axis)):
            raise ProgramError(message="windows see padding; the core divides all of them alike")
    # Then none is there, and a window of the whole image needs no stride.
    steps = (
        1 if rows.kernel == height else rows.stride,
        1 if columns.kernel == width else columns.stride,
    )
    count = kernel[0] * kernel[1]
    if quantization is None:
        mean = np.full((1, *kernel, channels), 1 / count, np.float16)
        return depthwise_conv2d(height, width, mean, None, stride=steps, padding="valid")
    ones = np.ones((1, *kernel, channels), np.int8)
    three = (quantization, Quantization(1 / count, 0, "int8"), quantization)
    return depthwise_conv2d(height, width, ones, None, *three, stride=steps, padding="valid")
