# SPDX-License-Identifier: MIT
"""What one task asks for: its registers by field, the memory that it touches, its work.

    view = TaskView(program.state(0), program.tasks[0].enable_mask)
    view(CNA.DATA_SIZE0, "DATAIN_WIDTH")
    view.accesses(), view.macs

The address model is that of docs/rk3588.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .encodings import (
    BYTES,
    CBUF_UNIT,
    COMBINED,
    OPERANDS,
    TO_MEMORY,
    Algorithm,
    ConvMode,
    OperandMode,
    OperandSize,
    OperandUse,
)
from .registers import CNA, DPU, DPU_RDMA, ENABLE_BITS, PPU, PPU_RDMA, Register
from .tensor import ATOM

_OPERAND_BYTES: dict[int, int] = {
    OperandSize.BITS_4: 0,
    OperandSize.BITS_8: 1,
    OperandSize.BITS_16: 2,
    OperandSize.BITS_32: 4,
}
MOST_LINES = 1 << 16
"""Lines of one access that are compared with others, which bounds what a check can take."""


class Access(NamedTuple):
    """Memory that a task reads or writes: ``size`` bytes within ``start`` .. ``end``.

    ``register`` holds the address, ``what`` says whose it is. The bytes are those of surfaces of
    lines, both as (count, pitch in bytes).
    """

    what: str
    register: Register
    start: int
    end: int
    size: int
    write: bool = False
    surfaces: tuple[int, int] = (1, 0)
    lines: tuple[int, int] = (1, 0)

    @property
    def joined(self) -> tuple[tuple[int, int], tuple[int, int], int]:
        """Surfaces, lines and a line's bytes, where lines that follow each other are one."""
        surfaces, lines = self.surfaces, self.lines
        size = self.size // (surfaces[0] * lines[0])
        if abs(lines[1]) == size:
            lines, size = (1, 0), lines[0] * size
        if lines[0] == 1 and abs(surfaces[1]) == size:
            surfaces, size = (1, 0), surfaces[0] * size
        return surfaces, lines, size

    def runs(self) -> tuple[npt.NDArray[np.int64], int]:
        """Where the joined lines start, in order, and their bytes."""
        (surfaces, step), (lines, pitch), size = self.joined
        starts = np.add.outer(abs(step) * np.arange(surfaces), abs(pitch) * np.arange(lines))
        return np.sort(self.start + starts.reshape(-1)), size

    @property
    def pieces(self) -> int:
        """How many joined lines there are."""
        surfaces, lines, _ = self.joined
        return surfaces[0] * lines[0]

    @property
    def folded(self) -> bool:
        """Do some of its lines lie on each other? Of more than MOST_LINES it is not said."""
        (surfaces, step), (lines, pitch), size = self.joined
        surface = (lines - 1) * abs(pitch) + size
        if (lines == 1 or abs(pitch) >= size) and (surfaces == 1 or abs(step) >= surface):
            return False
        return self.pieces <= MOST_LINES and bool((np.diff(self.runs()[0]) < size).any())

    def overlaps(self, other: Access) -> bool:
        """Is there a byte that both touch? Of more than MOST_LINES it is not said."""
        if self.start >= other.end or other.start >= self.end:
            return False
        if max(self.pieces, other.pieces) > MOST_LINES:
            return False
        (mine, size), (theirs, their_size) = self.runs(), other.runs()
        # The first of their lines that ends behind the start of mine.
        first = np.searchsorted(theirs, mine - their_size, side="right")
        inside = first < len(theirs)
        return bool((theirs[first[inside]] < mine[inside] + size).any())


class TaskView:
    """The registers of a task when it starts. ``registers``: offset -> value; others are 0."""

    def __init__(self, registers: Mapping[int, int], enable: int) -> None:
        self.registers = registers
        self.enable = enable
        self.blocks = frozenset(name for name, bit in ENABLE_BITS.items() if enable >> bit & 1)

    def __call__(self, register: Register, field: str) -> int:
        return register.fields[field].get(self.registers.get(register.offset, 0))

    # ---- What it is -----------------------------------------------------------------------------

    @property
    def convolves(self) -> bool:
        return "CNA" in self.blocks

    @property
    def depthwise(self) -> bool:
        return self(CNA.CONV_CON1, "CONV_MODE") == ConvMode.DEPTHWISE

    @property
    def flying(self) -> bool:
        """The DPU takes its main data from memory."""
        return bool(self(DPU.FEATURE_MODE_CFG, "FLYING_MODE"))

    @property
    def divides(self) -> bool:
        """EW divides; fp16 then stays as it is, on the way in and out."""
        config = DPU.EW_CFG
        bypassed = self(config, "EW_BYPASS") or self(config, "EW_OP_BYPASS")
        if bypassed or self(config, "EW_OP_TYPE"):
            return False
        return self(config, "EW_ALU_ALGO") == Algorithm.DIV

    @property
    def channel_last(self) -> int:
        """Channels of an image that is stored pixel by pixel, or 0."""
        kind = self(CNA.CONV_CON1, "ARGB_IN")
        return kind - 7 if 8 <= kind <= 11 else 0

    # ---- Sizes ----------------------------------------------------------------------------------

    @property
    def element(self) -> int:
        """Bytes of a feature or weight."""
        return BYTES.get(self(CNA.CONV_CON1, "IN_PRECISION"), 1)

    @property
    def image(self) -> tuple[int, int, int]:
        """Height, width and channels that the CNA reads."""
        return (
            self(CNA.DATA_SIZE0, "DATAIN_HEIGHT"),
            self(CNA.DATA_SIZE0, "DATAIN_WIDTH"),
            self(CNA.DATA_SIZE1, "DATAIN_CHANNEL"),
        )

    @property
    def kernel(self) -> tuple[int, int, int]:
        """Kernels, height and width; those of a depthwise convolution are one for each channel."""
        kernels = self(CNA.WEIGHT_SIZE2, "WEIGHT_KERNELS")
        return (
            self(CNA.DATA_SIZE1, "DATAIN_CHANNEL") if self.depthwise else kernels,
            self(CNA.WEIGHT_SIZE2, "WEIGHT_HEIGHT"),
            self(CNA.WEIGHT_SIZE2, "WEIGHT_WIDTH"),
        )

    @property
    def window(self) -> tuple[int, int]:
        """Rows and columns from a kernel's first tap to its last, dilation included."""
        _, height, width = self.kernel
        return (
            (height - 1) * (self(CNA.CONV_CON3, "ATROUS_Y_DILATION") + 1) + 1,
            (width - 1) * (self(CNA.CONV_CON3, "ATROUS_X_DILATION") + 1) + 1,
        )

    @property
    def spread(self) -> tuple[int, int]:
        """Rows and columns from a pixel of the input to the next, as a deconvolution sees it."""
        if not self(CNA.CONV_CON1, "DECONV"):
            return 1, 1
        strides = (self(CNA.CONV_CON3, f"DECONV_{axis}_STRIDE") for axis in "YX")
        rows, columns = (stride + 1 for stride in strides)
        return rows, columns

    @property
    def result(self) -> tuple[int, int, int]:
        """Height, width and channels that the DPU, or else the PPU, writes."""
        if "DPU" in self.blocks:
            return (
                self(DPU.DATA_CUBE_HEIGHT, "HEIGHT") + 1,
                self(DPU.DATA_CUBE_WIDTH, "WIDTH") + 1,
                self(DPU.DATA_CUBE_CHANNEL, "CHANNEL") + 1,
            )
        return (
            self(PPU.DATA_CUBE_OUT_HEIGHT, "CUBE_OUT_HEIGHT") + 1,
            self(PPU.DATA_CUBE_OUT_WIDTH, "CUBE_OUT_WIDTH") + 1,
            self(PPU.DATA_CUBE_OUT_CHANNEL, "CUBE_OUT_CHANNEL") + 1,
        )

    @property
    def entries(self) -> int:
        """Units of 64 bytes that a row of features takes in the CBUF."""
        if self.channel_last:
            # Mesa counts pixels there, all of them; a row holds the atoms that are read.
            return -(-self(CNA.FC_DATA_SIZE0, "DMA_WIDTH") * ATOM // CBUF_UNIT)
        return self(CNA.CBUF_CON1, "DATA_ENTRIES")

    @property
    def row_bytes(self) -> int:
        """The same in bytes."""
        return CBUF_UNIT * self.entries

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        if not self.convolves:
            return 0
        height, width, _ = self.result
        kernels, kernel_height, kernel_width = self.kernel
        taps = kernel_height * kernel_width * (1 if self.depthwise else self.image[2])
        return height * width * kernels * taps

    # ---- Memory ---------------------------------------------------------------------------------

    def accesses(self) -> list[Access]:
        """All memory that the task touches but its command words."""
        found: list[Access] = []
        if self.convolves:
            found += self._features()
        if "DPU" in self.blocks:
            found += self._operands()
            found += self._output()
        if "PPU" in self.blocks:
            found += self._pooling()
        return found

    def _features(self) -> Iterator[Access]:
        height, width, channels = self.image
        pixel = ATOM
        surfaces = -(-channels * self.element // ATOM)
        line = self(CNA.DMA_CON1, "LINE_STRIDE")
        off = self(CNA.CONV_CON1, "GROUP_LINE_OFF")
        surface = self(CNA.DMA_CON2, "SURF_STRIDE") + width * (1 if off else 4)
        pitch = line if off else line // 4
        if self.channel_last:
            pixel, surfaces, width = (
                self.channel_last * self.element, 1, self(CNA.FC_DATA_SIZE0, "DMA_WIDTH"),
            )  # fmt: skip
            pitch = line
        if not self(CNA.CBUF_CON0, "DATA_REUSE"):
            yield _cube(
                "features",
                CNA.FEATURE_DATA_ADDR,
                self(CNA.FEATURE_DATA_ADDR, "FEATURE_BASE_ADDR"),
                (surfaces, surface * ATOM),
                (height, pitch * pixel),
                width * pixel,
            )
        if not self(CNA.CBUF_CON0, "WEIGHT_REUSE"):
            start = self(CNA.DCOMP_ADDR0, "DECOMPRESS_ADDR0")
            size = self(CNA.WEIGHT_SIZE0, "WEIGHT_BYTES")
            yield Access("weights", CNA.DCOMP_ADDR0, start, start + size, size)

    def _operands(self) -> Iterator[Access]:
        if "DPU_RDMA" not in self.blocks:
            return
        height, width, channels = self.result
        use = self(DPU_RDMA.RDMA_BRDMA_CFG, "BRDMA_DATA_USE")
        if use:
            start = self(DPU_RDMA.RDMA_BS_BASE_ADDR, "BS_BASE_ADDR")
            size = 4 * channels
            if use != OperandUse.ADD:
                size = -(-channels // 8) * OPERANDS.itemsize
            yield Access(
                "operands of channels", DPU_RDMA.RDMA_BS_BASE_ADDR, start, start + size, size
            )
        if self(DPU_RDMA.RDMA_NRDMA_CFG, "NRDMA_DATA_USE"):
            start, size = self(DPU_RDMA.RDMA_BN_BASE_ADDR, "BN_BASE_ADDR"), 2 * channels
            yield Access(
                "factors of channels", DPU_RDMA.RDMA_BN_BASE_ADDR, start, start + size, size
            )
        config = DPU_RDMA.RDMA_FEATURE_MODE_CFG
        combined = self(config, "COMB_USE") == COMBINED
        operand = _OPERAND_BYTES[self(DPU_RDMA.RDMA_ERDMA_CFG, "ERDMA_DATA_SIZE")]
        main = operand if combined else BYTES.get(self(DPU.DATA_FORMAT, "IN_PRECISION"), 1)
        if not self(config, "MRDMA_DISABLE"):
            surfaces = -(-channels * main // ATOM)
            yield _cube(
                "addend, even surfaces" if combined else "main data",
                DPU_RDMA.RDMA_SRC_BASE_ADDR,
                self(DPU_RDMA.RDMA_SRC_BASE_ADDR, "SRC_BASE_ADDR"),
                (
                    -(-surfaces // 2) if combined else surfaces,
                    ATOM * (height * width + self(DPU_RDMA.RDMA_SURF_NOTCH, "SURF_NOTCH_ADDR")),
                ),
                (height, ATOM * width),
                ATOM * width,
            )
        if not self(DPU_RDMA.RDMA_ERDMA_CFG, "ERDMA_DISABLE") and self(DPU.EW_CFG, "EW_OP_SRC"):
            surfaces = -(-channels * operand // ATOM)
            base = self(DPU_RDMA.RDMA_EW_BASE_ADDR, "EW_BASE_ADDR")
            if self(DPU_RDMA.RDMA_ERDMA_CFG, "ERDMA_DATA_MODE") == OperandMode.CHANNEL:
                size = ATOM * surfaces
                yield Access(
                    "operands of channels (EW)", DPU_RDMA.RDMA_EW_BASE_ADDR, base, base + size, size
                )
            elif surfaces // 2 or not combined:
                notch = self(DPU_RDMA.RDMA_EW_SURF_NOTCH, "EW_SURF_NOTCH")
                yield _cube(
                    "addend, odd surfaces" if combined else "operands of elements",
                    DPU_RDMA.RDMA_EW_BASE_ADDR,
                    base,
                    (surfaces // 2 if combined else surfaces, ATOM * (height * width + notch)),
                    (height, ATOM * width),
                    ATOM * width,
                )

    def _output(self) -> Iterator[Access]:
        if not self(DPU.FEATURE_MODE_CFG, "OUTPUT_MODE") & TO_MEMORY:
            return
        height, width, channels = self.result
        element = BYTES.get(self(DPU.DATA_FORMAT, "OUT_PRECISION"), 1)
        notch = self(DPU.DATA_CUBE_NOTCH_ADDR, "NOTCH_ADDR_0")
        yield _cube(
            "output",
            DPU.DST_BASE_ADDR,
            self(DPU.DST_BASE_ADDR, "DST_BASE_ADDR"),
            (-(-channels * element // ATOM), ATOM * self(DPU.DST_SURF_STRIDE, "DST_SURF_STRIDE")),
            (height, ATOM * (width + notch)),
            ATOM * width,
            write=True,
        )

    def _pooling(self) -> Iterator[Access]:
        element = BYTES.get(self(PPU.DATA_FORMAT, "PROC_PRECISION"), 1)
        width = self(PPU.DATA_CUBE_IN_WIDTH, "CUBE_IN_WIDTH") + 1
        height = self(PPU.DATA_CUBE_IN_HEIGHT, "CUBE_IN_HEIGHT") + 1
        channels = self(PPU.DATA_CUBE_IN_CHANNEL, "CUBE_IN_CHANNEL") + 1
        surfaces = -(-channels * element // ATOM)
        if "PPU_RDMA" in self.blocks:
            yield _cube(
                "pooled image",
                PPU_RDMA.RDMA_SRC_BASE_ADDR,
                self(PPU_RDMA.RDMA_SRC_BASE_ADDR, "SRC_BASE_ADDR"),
                (surfaces, ATOM * self(PPU_RDMA.RDMA_SRC_SURF_STRIDE, "SRC_SURF_STRIDE")),
                (height, ATOM * self(PPU_RDMA.RDMA_SRC_LINE_STRIDE, "SRC_LINE_STRIDE")),
                ATOM * width,
            )
        out_height = self(PPU.DATA_CUBE_OUT_HEIGHT, "CUBE_OUT_HEIGHT") + 1
        out_width = self(PPU.DATA_CUBE_OUT_WIDTH, "CUBE_OUT_WIDTH") + 1
        yield _cube(
            "output of pooling",
            PPU.DST_BASE_ADDR,
            ATOM * self(PPU.DST_BASE_ADDR, "DST_BASE_ADDR"),
            (surfaces, ATOM * self(PPU.DST_SURF_STRIDE, "DST_SURF_STRIDE")),
            (out_height, ATOM * (out_width + self(PPU.OPERATION_MODE_CFG, "NOTCH_ADDR"))),
            ATOM * out_width,
            write=True,
        )


def _cube(
    what: str,
    register: Register,
    base: int,
    surfaces: tuple[int, int],
    lines: tuple[int, int],
    line_bytes: int,
    *,
    write: bool = False,
) -> Access:
    """``surfaces`` and ``lines`` are (count, pitch in bytes); the pitch of a single one is moot."""
    surfaces, lines = ((count, pitch if count > 1 else 0) for count, pitch in (surfaces, lines))
    steps = [max(count - 1, 0) * pitch for count, pitch in (surfaces, lines)]
    start = base + sum(step for step in steps if step < 0)
    end = base + sum(step for step in steps if step > 0) + line_bytes
    size = surfaces[0] * lines[0] * line_bytes
    return Access(what, register, start, end, size, write, surfaces, lines)
