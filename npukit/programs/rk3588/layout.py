# SPDX-License-Identifier: MIT
"""Parts of tensors: by an offset where that is enough, else by copies of the DPU alone.

A tensor is [surfaces][height][width][16 bytes], so some channels of it, from a multiple of 16 (or
of 8, in float16) on, are a tensor at an offset. ``part`` gives it: what a program writes there is
concatenated, and what one reads there is cut out, with no task at all. (A convolution writes whole
groups of 32 channels, a depthwise one of 64: it has to come before what lies behind its part.)

Rows and columns are not dense, and need ``concat``, ``slice_`` or ``pad``: copies of bytes, in
flying mode, exact for every type. Lanes cannot be moved: channels start at a multiple of 16 (8).
Where they do not, let the weights of the next convolution have gaps instead.

MRDMA reads dense lines, with any distance between surfaces. So columns of an image are read as
that many surfaces of a line each: a task for each surface, or for each row, whichever are fewer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from npukit.ioctl import ProgramError

from .elementwise import dpu_tensor, write_main
from .operation import WithoutConstants, check_addresses
from .program import Assembler, Program
from .quantize import FixedPoint, Quantization
from .registers import DPU, DPU_RDMA
from .stages import Finish, write_bypass, write_finish, write_operand, write_output, write_zeros
from .tensor import ATOM, Tensor
from .tiling import shares

_BYTES = Quantization(1.0, 0, "int8")
"""What is copied, whatever it stands for."""
_MAX_SURFACES = (1 << DPU.DATA_CUBE_CHANNEL.fields["CHANNEL"].width) // ATOM


def part(
    tensor: Tensor, *, rows: range | None = None, channels: range | None = None
) -> tuple[Tensor, int]:
    """The tensor that some of ``tensor``'s ``channels`` are, and its offset in bytes.

    ``rows`` can be had of a tensor of one surface. ProgramError: channels that do not start at a
    multiple of 16 (float16: 8), or rows of several surfaces, which have to be copied.
    """
    channels = _checked(range(tensor.channels) if channels is None else channels, tensor.channels)
    rows = _checked(range(tensor.height) if rows is None else rows, tensor.height)
    surface = _surface(channels.start, tensor.lanes)
    surfaces = -(-channels.stop // tensor.lanes) - surface
    if surfaces > 1 and len(rows) != tensor.height:
        raise ProgramError(
            message=f"{len(rows)} of {tensor.height} rows of {surfaces} surfaces do not lie "
            "together; copy them (slice_)"
        )
    found = Tensor(len(rows), tensor.width, len(channels), tensor.quantization, surfaces)
    return found, (surface * tensor.area + rows.start * tensor.width) * ATOM


def _checked(chosen: range, size: int) -> range:
    if chosen.step != 1 or not chosen or chosen.start < 0 or chosen.stop > size:
        raise ProgramError(message=f"{chosen} of {size}: some that follow each other are needed")
    return chosen


def _surface(channel: int, lanes: int) -> int:
    if channel % lanes:
        raise ProgramError(
            message=f"channel {channel} is not a multiple of {lanes}, where a surface starts; the "
            "DPU cannot move lanes. Give the channels before it to whole surfaces"
        )
    return channel // lanes


@dataclass(frozen=True, slots=True)
class _Piece:
    """A box of one input that becomes a box of the output; places are (surface, row, column)."""

    index: int
    source: tuple[int, int, int]
    target: tuple[int, int, int]
    extent: tuple[int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Copy(WithoutConstants):
    """What ``concat``, ``slice_`` and ``pad`` make."""

    inputs: tuple[Tensor, ...]
    output: Tensor
    pieces: tuple[_Piece, ...]
    fill: int | None
    """The byte that all of the output gets first."""

    def programs(
        self, inputs: Sequence[int], constants: int, output: int, cores: int
    ) -> list[Program]:
        """As of ``Divisible``; one, if the output is filled first."""
        check_addresses(self, inputs, constants, output)
        tasks = [task for piece in self.pieces for task in self._copy(piece, inputs, output)]
        if self.fill is not None:
            return [Program.join([*self._fill(output), *tasks])]
        return [
            Program.join([tasks[i] for i in indices])
            for indices in shares(range(len(tasks)), cores)
        ]

    def _copy(self, piece: _Piece, inputs: Sequence[int], output: int) -> Iterator[Program]:
        source, target = self.inputs[piece.index], self.output
        surfaces, rows, columns = piece.extent
        start = inputs[piece.index] + _offset(source, *piece.source)
        end = output + _offset(target, *piece.target)
        if columns == source.width:
            yield from _box(start, source.area, end, target, piece.extent)
        elif surfaces <= rows:
            for surface in range(surfaces):
                # Rows are taken for surfaces of one line.
                line = Tensor(1, target.width, ATOM, _BYTES, 1)
                steps = surface * source.area * ATOM, surface * target.area * ATOM
                extent = rows, 1, columns
                yield from _box(start + steps[0], source.width, end + steps[1], line, extent)
        else:
            for row in range(rows):
                steps = row * source.width * ATOM, row * target.width * ATOM
                extent = surfaces, 1, columns
                yield from _box(start + steps[0], source.area, end + steps[1], target, extent)

    def _fill(self, output: int) -> Iterator[Program]:
        """In place: all bytes times 0, and the offset of the output conversion."""
        shape = self.output.surfaces, self.output.height, self.output.width
        zero = Finish(FixedPoint(0, 0), self.fill or 0, False, None)
        yield from _box(output, self.output.area, output, self.output, shape, zero)


def _offset(tensor: Tensor, surface: int, row: int, column: int) -> int:
    return (surface * tensor.area + row * tensor.width + column) * ATOM


_AS_IT_IS = Finish(FixedPoint(1, 0), 0, False, None)


def _box(
    source: int,
    source_area: int,
    target: int,
    target_like: Tensor,
    extent: tuple[int, int, int],
    finish: Finish = _AS_IT_IS,
) -> Iterator[Program]:
    """Tasks for (surfaces, rows, columns), whose rows are dense in the source.

    ``source_area`` atoms lie between its surfaces; the target's lie as those of ``target_like``.
    """
    surfaces, rows, columns = extent
    for first in range(0, surfaces, _MAX_SURFACES):
        count = min(_MAX_SURFACES, surfaces - first)
        asm = Assembler()
        notch = source_area - rows * columns
        write_main(asm, source + first * source_area * ATOM, notch)
        channels = range(count * ATOM)
        like = Tensor(target_like.height, target_like.width, len(channels), _BYTES, count)
        address = target + first * like.area * ATOM
        write_output(asm, like, rows, address, 1, columns=columns, channels=channels)
        write_bypass(asm, "BS")
        write_zeros(asm, DPU.BS_ALU_CFG, DPU.BS_MUL_CFG, DPU.BS_RELUX_CMP_VALUE, DPU.BS_OW_OP)
        write_finish(asm, finish)
        write_zeros(asm, DPU_RDMA.RDMA_BRDMA_CFG, DPU_RDMA.RDMA_BS_BASE_ADDR)
        write_operand(asm, like, rows, None, 0, 0, columns=columns, channels=channels)
        yield asm.finish("DPU", "DPU_RDMA", unproven=["a copy by the DPU alone in int8"])


# ---- Making operations --------------------------------------------------------------------------


def _make(
    inputs: Sequence[Tensor], output: Tensor, pieces: Sequence[_Piece], fill: int | None = None
) -> Copy:
    op = Copy(tuple(inputs), output, tuple(pieces), fill)
    # So that what some register cannot hold is refused here.
    op.program([0] * len(op.inputs), 0, 0)
    return op


def concat(
    shapes: Sequence[tuple[int, int, int]], quantization: Quantization | None, axis: int = 2
) -> Copy:
    """Tensors of one quantization (None: float16) one behind the other, along ``axis``.

    ``shapes`` are (height, width, channels), ``axis`` 0 to 2. Of channels, all tensors but the last
    have a multiple of 16 (float16: 8); with ``part`` they need no copy. What has another
    quantization is brought to this one by ``activation.rescale``.

    ProgramError: sizes that differ, channels that cannot be placed, what no task can do.
    """
    if axis not in (0, 1, 2) or not shapes:
        raise ProgramError(message=f"{len(shapes)} tensors along axis {axis}: 1 or more, 0 to 2")
    inputs = [dpu_tensor(*shape, quantization) for shape in shapes]
    others = [index for index in range(3) if index != axis]
    for shape in shapes:
        if any(shape[index] != shapes[0][index] for index in others):
            raise ProgramError(message=f"{shape} does not fit {shapes[0]} along axis {axis}")
    size = list(shapes[0])
    size[axis] = sum(shape[axis] for shape in shapes)
    output = dpu_tensor(size[0], size[1], size[2], quantization)
    pieces = []
    place = 0
    for index, tensor in enumerate(inputs):
        target = [0, 0, 0]
        if axis == 2:
            target[0] = _surface(place, tensor.lanes)
        else:
            target[axis + 1] = place
        extent = tensor.surfaces, tensor.height, tensor.width
        pieces.append(_Piece(index, (0, 0, 0), (target[0], target[1], target[2]), extent))
        place += shapes[index][axis]
    return _make(inputs, output, pieces)


def slice_(
    height: int,
    width: int,
    channels: int,
    quantization: Quantization | None,
    *,
    rows: range | None = None,
    columns: range | None = None,
    of_channels: range | None = None,
) -> Copy:
    """A box of a tensor (None: all of a direction), as a tensor of its own.

    ``of_channels`` start at a multiple of 16 (float16: 8). Where ``part`` gives the same no copy is
    needed. ProgramError: a range that is empty, has steps or leaves the tensor, and other limits.
    """
    source = dpu_tensor(height, width, channels, quantization)
    rows = _checked(range(height) if rows is None else rows, height)
    columns = _checked(range(width) if columns is None else columns, width)
    of_channels = _checked(range(channels) if of_channels is None else of_channels, channels)
    surface = _surface(of_channels.start, source.lanes)
    output = dpu_tensor(len(rows), len(columns), len(of_channels), quantization)
    extent = output.surfaces, output.height, output.width
    piece = _Piece(0, (surface, rows.start, columns.start), (0, 0, 0), extent)
    return _make([source], output, [piece])


def pad(
    height: int,
    width: int,
    channels: int,
    quantization: Quantization | None,
    padding: tuple[int, int, int, int],
    value: int | None = None,
) -> Copy:
    """A tensor with rows and columns around it: (top, bottom, left, right).

    They hold ``value``, an integer of the quantization's dtype; None: the real number 0, which in
    float16 is the only one. (Convolutions and poolings pad by themselves.)

    ProgramError: a value that is none, and what no task can do.
    """
    source = dpu_tensor(height, width, channels, quantization)
    top, bottom, left, right = padding
    if min(padding) < 0:
        raise ProgramError(message=f"padding {padding}: four numbers of 0 or more are needed")
    output = dpu_tensor(height + top + bottom, width + left + right, channels, quantization)
    fill = source.zero
    if value is not None:
        limits = np.iinfo(quantization.dtype) if quantization else None
        if quantization is None or limits is None or not limits.min <= value <= limits.max:
            raise ProgramError(message=f"padding with {value}, which is no {source.dtype} but 0")
        fill = value - (quantization.zero_point - quantization.stored_zero_point)
    extent = source.surfaces, source.height, source.width
    piece = _Piece(0, (0, 0, 0), (0, top, left), extent)
    return _make([source], output, [piece], fill)
