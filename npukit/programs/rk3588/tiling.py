# SPDX-License-Identifier: MIT
"""How a convolution is cut: into parts for cores, and into tasks whose data fit the CBUF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from npukit.ioctl import ProgramError

from .encodings import BANK_BYTES, CBUF_BANKS, CBUF_UNIT
from .matmul import MAX_HEIGHT, MAX_KERNELS
from .registers import CNA, DPU
from .tensor import ATOM, align

MAX_WIDTH = (1 << CNA.DATA_SIZE0.fields["DATAIN_WIDTH"].width) - 1
"""Columns that a task may read or write."""
MAX_NOTCH = (1 << DPU.DATA_CUBE_NOTCH_ADDR.fields["NOTCH_ADDR_0"].width) - 1
"""Columns of the output that a task of several rows may leave to others."""

_ENTRY_BYTES = 128


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction of a convolution: sizes of image, output and kernel, and how they go along."""

    size: int
    out: int
    kernel: int
    stride: int
    dilation: int
    pad: int
    """Before the image."""

    @property
    def window(self) -> int:
        """Pixels from a kernel's first tap to its last."""
        return (self.kernel - 1) * self.dilation + 1

    def seen(self, outputs: range) -> tuple[range, int]:
        """The pixels of the image that ``outputs`` need, and the padding before them."""
        start = outputs.start * self.stride - self.pad
        end = (outputs.stop - 1) * self.stride - self.pad + self.window
        return range(max(start, 0), min(end, self.size)), max(-start, 0)

    def fitting(self, outputs: range, pixels: int) -> list[range]:
        """``outputs`` in parts that need at most ``pixels`` each, which hold a window."""
        parts, start = [], outputs.start
        while len(self.seen(range(start, outputs.stop))[0]) > pixels:
            pad = max(self.pad - start * self.stride, 0)
            count = (pixels + pad - self.window) // self.stride + 1
            parts.append(range(start, start + count))
            start += count
        return [*parts, range(start, outputs.stop)]


def pair(value: int | tuple[int, int], name: str) -> tuple[int, int]:
    """``value``, or twice the number that it is; ProgramError unless both are 1 or more."""
    pair = (value, value) if isinstance(value, int) else value
    if len(pair) != 2 or min(pair) < 1:
        raise ProgramError(message=f"{name} {value}: two numbers of 1 or more are needed")
    return pair


def _axis(
    name: str, size: int, kernel: int, stride: int, dilation: int, padding: str | tuple[int, int]
) -> Axis:
    """One direction; ``padding`` is "same", "valid" or (before, behind)."""
    window = (kernel - 1) * dilation + 1
    if padding == "same":
        out = -(-size // stride)
        return Axis(
            size, out, kernel, stride, dilation, max((out - 1) * stride + window - size, 0) // 2
        )
    before, behind = (0, 0) if isinstance(padding, str) else padding
    if max(before, behind) >= window:
        raise ProgramError(
            message=f"padding {before}, {behind} of the {name} is not below the kernel, which "
            f"spans {window}"
        )
    padded = size + before + behind
    if padded < window:
        raise ProgramError(
            message=f"a kernel that spans {window} exceeds the padded image, {padded} in {name}"
        )
    return Axis(size, (padded - window) // stride + 1, kernel, stride, dilation, before)


def axes(
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: int | tuple[int, int],
    padding: str | tuple[int, int, int, int],
    dilation: int | tuple[int, int],
) -> tuple[Axis, Axis]:
    strides, dilations = pair(stride, "stride"), pair(dilation, "dilation")
    pads: tuple[str | tuple[int, int], str | tuple[int, int]]
    if isinstance(padding, str) and padding in ("same", "valid"):
        pads = padding, padding
    elif not isinstance(padding, tuple) or len(padding) != 4 or min(padding) < 0:
        raise ProgramError(
            message=f'padding {padding!r}: "same", "valid" or (top, bottom, left, right) is needed'
        )
    else:
        pads = padding[:2], padding[2:]
    return (
        _axis("height", size[0], kernel[0], strides[0], dilations[0], pads[0]),
        _axis("width", size[1], kernel[1], strides[1], dilations[1], pads[1]),
    )


@dataclass(frozen=True, slots=True)
class Region:
    """Part of an output. ``channels`` are whole groups, those that are only filled up included."""

    rows: range
    columns: range
    channels: range


@dataclass(frozen=True, slots=True)
class Tile:
    """One task: its part of the output, the CBUF banks, and whether the weights are there."""

    region: Region
    data_banks: int
    weight_banks: int
    reuse: bool


@dataclass(frozen=True, slots=True)
class Shape:
    """What matters of a convolution for cutting it."""

    rows: Axis
    columns: Axis
    channels: int
    """Of the input, as stored: whole atoms."""
    kernels: int
    """Of the output, as stored: whole groups."""
    group: int
    """Channels that CORE hands over at once."""
    depthwise: bool
    itemsize: int
    single_rows: bool = False
    """Tasks that do not span the columns have one row: operands have no pitch of lines."""

    @property
    def whole(self) -> Region:
        return Region(range(self.rows.out), range(self.columns.out), range(self.kernels))

    def input_channels(self, region: Region) -> int:
        return len(region.channels) if self.depthwise else self.channels

    def kernel_bytes(self, region: Region) -> int:
        return self.rows.kernel * self.columns.kernel * self.input_channels(region) * self.itemsize

    def weight_bytes(self, region: Region) -> int:
        return self.kernel_bytes(region) * (1 if self.depthwise else len(region.channels))

    def seen_columns(self, region: Region) -> tuple[range, int]:
        """As ``Axis.seen``, but lines are read to their ends when the output has all columns."""
        if len(region.columns) == self.columns.out:
            return range(self.columns.size), self.columns.pad
        return self.columns.seen(region.columns)

    def entries(self, region: Region) -> int:
        """CNA.DATA_ENTRIES: units of 64 bytes (4 atoms of a pixel) that a row fills in the CBUF.

        Three atoms that are left take a whole unit, as in NVDLA (calc_entries_per_slice); the
        vendor's value for 40 columns of 40 channels agrees.
        """
        width = len(self.seen_columns(region)[0])
        units, left = divmod(self.input_channels(region) * self.itemsize // ATOM, 4)
        return units * width + (width if left == 3 else -(-left * width // 4))

    def row_bytes(self, region: Region) -> int:
        """Of a row of features in the CBUF."""
        return align(CBUF_UNIT * self.entries(region), _ENTRY_BYTES)

    # ---- Parts for cores ------------------------------------------------------------------------

    def parts(self, cores: int) -> list[Region]:
        """At most ``cores`` parts of about one size.

        Every core fetches the weights when rows or columns are shared, and the features when
        kernels are: what is smaller is fetched again. A depthwise convolution shares neither with
        channels, but its weights are small, and groups of channels are a coarse measure.
        """
        ways = [
            ("rows", self.rows.out, 1),
            ("columns", self.columns.out, 1),
            ("channels", self.kernels // self.group, self.group),
        ]
        features = self.row_bytes(self.whole) * self.rows.size
        if not self.depthwise and self.weight_bytes(self.whole) > features:
            ways.insert(0, ways.pop())
        enough = (way for way in ways if way[1] >= cores)
        name, count, step = next(enough, None) or max(ways, key=lambda way: way[1])
        return [
            replace(self.whole, **{name: range(part.start * step, part.stop * step)})
            for part in shares(range(count), cores)
        ]

    # ---- Tasks ----------------------------------------------------------------------------------

    def tiles(self, region: Region) -> list[Tile]:
        """The tasks that make ``region``, one after the other on one core.

        All columns at once where a window of rows fits the CBUF beside a kernel. Else columns are
        halved until it does, and on while less is read; so are groups of depthwise channels.

        ProgramError: not even a column of one group fits.
        """
        chunk = min(len(region.channels), MAX_KERNELS)
        best = self._cut(region, chunk, 1)
        if best:
            return best
        for size in dict.fromkeys((chunk, self.group if self.depthwise else chunk)):
            count = 1
            while count < 2 * len(region.columns):
                way = self._cut(region, size, min(count, len(region.columns)))
                if way and best and self._traffic(way) >= self._traffic(best):
                    break
                best = way or best
                count *= 2
        if best:
            return best
        first = range(region.channels.start, region.channels.start + self.group)
        least = replace(region, columns=region.columns[:1], channels=first)
        raise ProgramError(
            message=f"a window of {self.rows.window} rows of {self.row_bytes(least)} bytes and a "
            f"kernel of {self.kernel_bytes(least)} bytes do not fit the {CBUF_BANKS} CBUF banks "
            "together"
        )

    def _cut(self, region: Region, chunk: int, count: int) -> list[Tile]:
        """The tasks for ``chunk`` channels and a part of ``count`` of the columns at a time.

        None at all when a window does not fit.
        """
        tiles: list[Tile] = []
        for start in range(region.channels.start, region.channels.stop, chunk):
            channels = range(start, min(start + chunk, region.channels.stop))
            for columns in shares(region.columns, count):
                part = Region(region.rows, columns, channels)
                banks = self._banks(part)
                if banks is None:
                    return []
                data, weights, pixels = banks
                rows = self.rows.fitting(part.rows, pixels)
                others = self.columns.out - len(columns)
                if others > (0 if self.single_rows else MAX_NOTCH):
                    rows = [range(row, row + 1) for row in part.rows]
                fits = self.weight_bytes(part) <= weights * BANK_BYTES
                for each in rows:
                    last = tiles[-1] if tiles else None
                    kept = last and (last.region.channels, last.data_banks) == (channels, data)
                    tiles.append(Tile(replace(part, rows=each), data, weights, bool(kept and fits)))
        return tiles

    def _banks(self, region: Region) -> tuple[int, int, int] | None:
        """CBUF banks of features and of weights, and the input rows that a task may have.

        Weights are kept whole where they fit (for int8 in one bank more than they need, as Mesa,
        the vendor's fp16 in no more). Else they are streamed, and features have the fewest banks
        that make the fewest tasks: what Mesa and the vendor were seen to do.

        None when no split holds a window and a kernel.
        """
        height = len(self.rows.seen(region.rows)[0])
        width = len(self.seen_columns(region)[0])
        if max(width, len(region.columns)) > MAX_WIDTH:
            return None
        rows = [
            min(data * BANK_BYTES // self.row_bytes(region), MAX_HEIGHT)
            for data in range(CBUF_BANKS)
        ]
        least = min(self.rows.window, height)
        spare = 1 if self.itemsize == 1 else 0
        data = CBUF_BANKS - spare - -(-self.weight_bytes(region) // BANK_BYTES)
        if data <= spare or rows[data] < least:
            most = CBUF_BANKS - -(-self.kernel_bytes(region) // BANK_BYTES)
            streamed = [data for data in range(1, most + 1) if rows[data] >= least]
            if not streamed:
                return None
            data = min(streamed, key=lambda n: len(self.rows.fitting(region.rows, rows[n])))
        pixels = rows[data]
        if height <= pixels:
            data = -(-height * self.row_bytes(region) // BANK_BYTES)
        return data, CBUF_BANKS - data, pixels

    def _traffic(self, tiles: Sequence[Tile]) -> int:
        """Bytes that the tasks read into the CBUF."""
        return sum(
            len(self.rows.seen(tile.region.rows)[0]) * self.row_bytes(tile.region)
            + (0 if tile.reuse else self.weight_bytes(tile.region))
            for tile in tiles
        )


def shares(whole: range, parts: int) -> list[range]:
    """``whole`` in at most ``parts`` parts, none of which is empty."""
    count, parts = len(whole), min(parts, len(whole))
    return [whole[i * count // parts : (i + 1) * count // parts] for i in range(parts)]
