# SPDX-License-Identifier: MIT
"""Registers of the AI Engine array (AIE2, AIE2P) by name, and the descriptors of its DMAs.

An address is column << 25 | row << 20 | offset. Row 0 holds the shim tiles, which reach the host's
memory; then come the memory tiles, then the compute tiles. Text names a register as
``mem(0,1).DMA_BD3_0``: kind, column, row, name; what has no name is shown by its offset.

Source: the register database of AMD's aie-rt (xaiemlgbl_params.h), whose names are kept.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from npukit.ioctl import ProgramError

COLUMN_SHIFT, ROW_SHIFT = 25, 20
OFFSET_MASK = (1 << ROW_SHIFT) - 1

SHIM, MEM, CORE = "shim", "mem", "core"
KINDS = (SHIM, MEM, CORE)

S2MM, MM2S = 0, 1
"""Directions of a DMA channel: stream to memory, and back."""
DIRECTIONS = ("S2MM", "MM2S")


@dataclass(frozen=True, slots=True)
class Dma:
    """Where the DMA of a kind of tile has its registers."""

    bd_base: int
    bd_count: int
    bd_words: int
    channels: int
    control: tuple[int, int]
    """Of channel 0, for each direction; a channel's pair of registers has 8 bytes."""
    status: tuple[int, int]
    queue_name: str
    lock_base: int
    lock_count: int

    def bd(self, index: int) -> int:
        """Offset of a buffer descriptor."""
        return self.bd_base + 0x20 * index

    def queue(self, direction: int, channel: int) -> int:
        """Offset of a channel's task queue."""
        return self.control[direction] + 8 * channel + 4

    def lock(self, index: int) -> int:
        return self.lock_base + 0x10 * index

    def reaches(self, channel: int, bd: int) -> bool:
        """Whether a channel can run a descriptor. Of the memory tile's, the lower half belongs to
        the even channels, the upper half to the odd ones."""
        half = self.bd_count // 2
        return 0 <= bd < self.bd_count and (self.channels == 2 or bd // half == channel % 2)


DMAS: dict[str, Dma] = {
    SHIM: Dma(0x1D000, 16, 8, 2, (0x1D200, 0x1D210), (0x1D220, 0x1D228), "TASK_QUEUE", 0x14000, 16),
    MEM: Dma(0xA0000, 48, 8, 6, (0xA0600, 0xA0630), (0xA0660, 0xA0680), "START_QUEUE", 0xC0000, 64),
    CORE: Dma(
        0x1D000, 16, 6, 2, (0x1DE00, 0x1DE10), (0x1DF00, 0x1DF10), "START_QUEUE", 0x1F000, 16
    ),
}

QUEUE_TOKEN = 1 << 31
QUEUE_REPEAT_SHIFT = 16


@dataclass(frozen=True, slots=True)
class Switch:
    """A tile's stream switch: its ports in the order in which they are numbered."""

    master_base: int
    slave_base: int
    masters: tuple[str, ...]
    slaves: tuple[str, ...]


def _ports(*groups: tuple[str, int]) -> tuple[str, ...]:
    return tuple(
        f"{name}{index}" if count else name
        for name, count in groups
        for index in range(max(count, 1))
    )


SWITCHES: dict[str, Switch] = {
    SHIM: Switch(
        0x3F000,
        0x3F100,
        _ports(("TILE_CTRL", 0), ("FIFO", 1), ("SOUTH", 6), ("WEST", 4), ("NORTH", 6), ("EAST", 4)),
        _ports(
            ("TILE_CTRL", 0),
            ("FIFO", 1),
            ("SOUTH", 8),
            ("WEST", 4),
            ("NORTH", 4),
            ("EAST", 4),
            ("TRACE", 0),
        ),
    ),
    MEM: Switch(
        0xB0000,
        0xB0100,
        _ports(("DMA", 6), ("TILE_CTRL", 0), ("SOUTH", 4), ("NORTH", 6)),
        _ports(("DMA", 6), ("TILE_CTRL", 0), ("SOUTH", 6), ("NORTH", 4), ("TRACE", 0)),
    ),
    CORE: Switch(
        0x3F000,
        0x3F100,
        _ports(
            ("AIE_CORE", 1),
            ("DMA", 2),
            ("TILE_CTRL", 0),
            ("FIFO", 1),
            ("SOUTH", 4),
            ("WEST", 4),
            ("NORTH", 6),
            ("EAST", 4),
        ),
        _ports(
            ("AIE_CORE", 1),
            ("DMA", 2),
            ("TILE_CTRL", 0),
            ("FIFO", 1),
            ("SOUTH", 6),
            ("WEST", 4),
            ("NORTH", 4),
            ("EAST", 4),
            ("AIE_TRACE", 0),
            ("MEM_TRACE", 0),
        ),
    ),
}

PORT_ENABLE = 1 << 31
PORT_PACKET = 1 << 30

MUX_CONFIG, DEMUX_CONFIG = 0x1F000, 0x1F004
"""Of a shim tile: which of its southern stream ports belong to the DMA (value 1 in two bits)."""
MUX_DMA = {3: (0, 10), 7: (1, 14)}
"""Slave port SOUTH -> (MM2S channel that can feed it, its field's lowest bit in MUX_CONFIG)."""
DEMUX_DMA = {2: (0, 4), 3: (1, 6)}
"""Master port SOUTH -> (S2MM channel that it can feed, its field's lowest bit in DEMUX_CONFIG)."""

_PLAIN = {
    SHIM: {"MUX_CONFIG": MUX_CONFIG, "DEMUX_CONFIG": DEMUX_CONFIG, "TILE_CONTROL": 0x36030},
    MEM: {"TILE_CONTROL": 0x96030},
    CORE: {"CORE_CONTROL": 0x32000, "CORE_STATUS": 0x32004, "TILE_CONTROL": 0x36030},
}


def _slave_name(port: str) -> str:
    """As AMD writes it: a slave's number stands behind an underscore, but for the core's."""
    return port if port.startswith("AIE_CORE") else re.sub(r"(\d+)$", r"_\1", port)


def _named(kind: str) -> Iterator[tuple[str, int]]:
    dma, switch = DMAS[kind], SWITCHES[kind]
    for index in range(dma.bd_count):
        for word in range(dma.bd_words):
            yield f"DMA_BD{index}_{word}", dma.bd(index) + 4 * word
    for direction, name in enumerate(DIRECTIONS):
        for channel in range(dma.channels):
            queue = dma.queue(direction, channel)
            yield f"DMA_{name}_{channel}_CTRL", queue - 4
            yield f"DMA_{name}_{channel}_{dma.queue_name}", queue
            yield f"DMA_{name}_STATUS_{channel}", dma.status[direction] + 4 * channel
    for index in range(dma.lock_count):
        yield f"LOCK{index}_VALUE", dma.lock(index)
    for index, port in enumerate(switch.masters):
        yield f"STREAM_SWITCH_MASTER_CONFIG_{port}", switch.master_base + 4 * index
    for index, port in enumerate(switch.slaves):
        yield f"STREAM_SWITCH_SLAVE_CONFIG_{_slave_name(port)}", switch.slave_base + 4 * index
    yield from _PLAIN[kind].items()


OFFSETS: dict[str, dict[str, int]] = {kind: dict(_named(kind)) for kind in KINDS}
"""Kind of tile -> name -> offset."""
NAMES: dict[str, dict[int, str]] = {
    kind: {offset: name for name, offset in names.items()} for kind, names in OFFSETS.items()
}


def address(column: int, row: int, offset: int) -> int:
    """The 32-bit address of a register. ProgramError when a part does not fit."""
    if not (0 <= column < 128 and 0 <= row < 32 and 0 <= offset <= OFFSET_MASK):
        raise ProgramError(message=f"no tile ({column},{row}) has an offset {offset:#x}")
    return column << COLUMN_SHIFT | row << ROW_SHIFT | offset


def split(register: int) -> tuple[int, int, int]:
    """(column, row, offset)."""
    return register >> COLUMN_SHIFT, register >> ROW_SHIFT & 31, register & OFFSET_MASK


def tile_kind(row: int, memtile_rows: int = 1) -> str:
    """What stands in a row."""
    return SHIM if row == 0 else MEM if row <= memtile_rows else CORE


def name_of(register: int, memtile_rows: int = 1) -> str:
    """``kind(column,row).NAME`` of a 32-bit address."""
    column, row, offset = split(register)
    kind = tile_kind(row, memtile_rows)
    return f"{kind}({column},{row}).{NAMES[kind].get(offset) or hex(offset)}"


_NAME = re.compile(r"(shim|mem|core)\((\d{1,3}),(\d{1,2})\)\.(\w+)$")


def parse_name(text: str, memtile_rows: int = 1) -> int:
    """The address that ``name_of`` would show as ``text``. ProgramError when there is none."""
    match = _NAME.match(text)
    if match is None:
        raise ProgramError(message=f"{text!r} is no register: kind(column,row).NAME is")
    kind, column, row, name = match[1], int(match[2]), int(match[3]), match[4]
    if kind != tile_kind(row, memtile_rows):
        raise ProgramError(
            message=f"{text}: row {row} holds {tile_kind(row, memtile_rows)} tiles, "
            f"with {memtile_rows} rows of memory tiles"
        )
    offset = OFFSETS[kind].get(name)
    if offset is None:
        try:
            offset = int(name, 16) if name.startswith("0x") else -1
        except ValueError:
            offset = -1
        if offset < 0:
            raise ProgramError(message=f"a {kind} tile has no register {name}")
    return address(column, row, offset)


def register(column: int, row: int, name: str, memtile_rows: int = 1) -> int:
    """The address of a named register of a tile."""
    return parse_name(f"{tile_kind(row, memtile_rows)}({column},{row}).{name}", memtile_rows)


# Buffer descriptors.


@dataclass(frozen=True, slots=True)
class Field:
    """A field within a descriptor. ``bias``: the hardware holds the value less that."""

    word: int
    low: int
    width: int
    bias: int = 0


@dataclass(frozen=True, slots=True)
class BdLayout:
    """The fields of a tile kind's buffer descriptor."""

    words: int
    fields: dict[str, Field]
    dimensions: tuple[tuple[Field, Field | None], ...]
    """(step, wrap), the fastest first; the last has no wrap."""


_SHIM_LAYOUT = BdLayout(
    8,
    {
        "length": Field(0, 0, 32),
        "packet": Field(2, 30, 1),
        "burst": Field(4, 30, 2),
        "iteration_step": Field(6, 0, 20, 1),
        "iteration_wrap": Field(6, 20, 6, 1),
        "iteration_current": Field(6, 26, 6),
        "valid": Field(7, 25, 1),
        "use_next": Field(7, 26, 1),
        "next": Field(7, 27, 4),
        "acquire": Field(7, 0, 4),
        "acquire_value": Field(7, 5, 7),
        "acquire_enable": Field(7, 12, 1),
        "release": Field(7, 13, 4),
        "release_value": Field(7, 18, 7),
        "suppress_tlast": Field(7, 31, 1),
    },
    (
        (Field(3, 0, 20, 1), Field(3, 20, 10)),
        (Field(4, 0, 20, 1), Field(4, 20, 10)),
        (Field(5, 0, 20, 1), None),
    ),
)
_MEM_LAYOUT = BdLayout(
    8,
    {
        "length": Field(0, 0, 17),
        "packet": Field(0, 31, 1),
        "base": Field(1, 0, 19),
        "use_next": Field(1, 19, 1),
        "next": Field(1, 20, 6),
        "zero_before_0": Field(1, 26, 6),
        "zero_before_1": Field(3, 27, 5),
        "zero_before_2": Field(4, 27, 4),
        "compression": Field(4, 31, 1),
        "zero_after_0": Field(5, 17, 6),
        "zero_after_1": Field(5, 23, 5),
        "zero_after_2": Field(5, 28, 4),
        "suppress_tlast": Field(2, 31, 1),
        "iteration_step": Field(6, 0, 17, 1),
        "iteration_wrap": Field(6, 17, 6, 1),
        "iteration_current": Field(6, 23, 6),
        "valid": Field(7, 31, 1),
        "acquire": Field(7, 0, 8),
        "acquire_value": Field(7, 8, 7),
        "acquire_enable": Field(7, 15, 1),
        "release": Field(7, 16, 8),
        "release_value": Field(7, 24, 7),
    },
    (
        (Field(2, 0, 17, 1), Field(2, 17, 10)),
        (Field(3, 0, 17, 1), Field(3, 17, 10)),
        (Field(4, 0, 17, 1), Field(4, 17, 10)),
        (Field(5, 0, 17, 1), None),
    ),
)
_CORE_LAYOUT = BdLayout(
    6,
    {
        "length": Field(0, 0, 14),
        "base": Field(0, 14, 14),
        "packet": Field(1, 30, 1),
        "compression": Field(1, 31, 1),
        "iteration_step": Field(4, 0, 13, 1),
        "iteration_wrap": Field(4, 13, 6, 1),
        "iteration_current": Field(4, 19, 6),
        "valid": Field(5, 25, 1),
        "use_next": Field(5, 26, 1),
        "next": Field(5, 27, 4),
        "acquire": Field(5, 0, 4),
        "acquire_value": Field(5, 5, 7),
        "acquire_enable": Field(5, 12, 1),
        "release": Field(5, 13, 4),
        "release_value": Field(5, 18, 7),
        "suppress_tlast": Field(5, 31, 1),
    },
    (
        (Field(2, 0, 13, 1), Field(3, 13, 8)),
        (Field(2, 13, 13, 1), Field(3, 21, 8)),
        (Field(3, 0, 13, 1), None),
    ),
)
LAYOUTS = {SHIM: _SHIM_LAYOUT, MEM: _MEM_LAYOUT, CORE: _CORE_LAYOUT}

LOCAL_LOCK = 64
"""A memory tile's descriptor names its own locks from 64 on; below are the western neighbour's."""
LOCAL_MEMORY_WORD = 0x80000 // 4
"""And its own memory from here on."""


@dataclass(frozen=True, slots=True)
class BufferDescriptor:
    """What a DMA moves: ``length`` words of 32 bits from ``base`` on, in up to four dimensions.

    ``dimensions`` are (size, step), fastest first, as in nested loops: step in words, size in
    steps, 0 in the last one (it goes on until ``length`` words are moved). Each run of the
    descriptor begins ``iteration_step`` words further on, and anew after ``iteration_wrap`` runs.

    A negative acquire value waits until the lock is at least that high and takes it away; another
    waits for the very value. ``release_value`` 0 releases nothing.
    """

    length: int
    base: int = 0
    """Of shim tiles a byte address, else a word address (see LOCAL_MEMORY_WORD)."""
    dimensions: tuple[tuple[int, int], ...] = ()
    iteration_step: int = 1
    iteration_wrap: int = 1
    iteration_current: int = 0
    next: int | None = None
    acquire: tuple[int, int] | None = None
    """(lock, value)."""
    release: tuple[int, int] = (0, 0)
    valid: bool = True
    unmodelled: tuple[str, ...] = ()
    """Set fields that are decoded but have no meaning here: packets, compression, padding."""

    def encode(self, kind: str) -> list[int]:
        """The words for a tile of ``kind``. ProgramError names the field that does not fit."""
        layout = LAYOUTS[kind]
        words = [0] * layout.words

        def put(name: str, place: Field, value: int) -> None:
            raw = value - place.bias
            if not 0 <= raw < 1 << place.width:
                raise ProgramError(
                    message=f"a {kind} descriptor's {name} = {value}: the field has {place.width} "
                    f"bits{', less one' if place.bias else ''}"
                )
            words[place.word] |= raw << place.low

        fields = layout.fields
        put("length", fields["length"], self.length)
        for name in ("iteration_step", "iteration_wrap", "iteration_current"):
            put(name, fields[name], getattr(self, name))
        put("valid", fields["valid"], int(self.valid))
        if kind == SHIM:
            if self.base % 4 or not 0 <= self.base < 1 << 48:
                raise ProgramError(message=f"a shim descriptor's base {self.base:#x}")
            words[1], words[2] = self.base & 0xFFFFFFFF, self.base >> 32
        else:
            put("base", fields["base"], self.base)
        if self.next is not None:
            put("next", fields["next"], self.next)
            put("use_next", fields["use_next"], 1)
        if self.acquire is not None:
            put("acquire", fields["acquire"], self.acquire[0])
            put("acquire_value", fields["acquire_value"], _seven_bits(self.acquire[1]))
            put("acquire_enable", fields["acquire_enable"], 1)
        put("release", fields["release"], self.release[0])
        put("release_value", fields["release_value"], _seven_bits(self.release[1]))
        if len(self.dimensions) > len(layout.dimensions):
            raise ProgramError(message=f"a {kind} DMA has {len(layout.dimensions)} dimensions")
        for index, (place, wrap) in enumerate(layout.dimensions):
            size, step = self.dimensions[index] if index < len(self.dimensions) else (0, 1)
            put(f"step {index}", place, step)
            if wrap is not None:
                put(f"size {index}", wrap, size)
            elif size:
                raise ProgramError(message="the last dimension's size is 0: length ends it")
        return words

    @classmethod
    def decode(cls, kind: str, words: Sequence[int]) -> Self:
        """From the words of a tile of ``kind``; ProgramError when there are too few."""
        layout = LAYOUTS[kind]
        if len(words) < layout.words:
            raise ProgramError(message=f"a {kind} descriptor has {layout.words} words")

        def get(place: Field) -> int:
            return (words[place.word] >> place.low & (1 << place.width) - 1) + place.bias

        values = {name: get(place) for name, place in layout.fields.items()}
        base = values.get("base", 0)
        if kind == SHIM:
            base = words[1] & 0xFFFFFFFC | (words[2] & 0xFFFF) << 32
        dimensions = [
            (get(wrap) if wrap is not None else 0, get(step)) for step, wrap in layout.dimensions
        ]
        while dimensions and dimensions[-1] == (0, 1):
            dimensions.pop()
        acquire = (values["acquire"], _signed(values["acquire_value"]))
        odd = ("packet", "compression", *(name for name in values if name.startswith("zero_")))
        return cls(
            length=values["length"],
            base=base,
            dimensions=tuple(dimensions),
            iteration_step=values["iteration_step"],
            iteration_wrap=values["iteration_wrap"],
            iteration_current=values["iteration_current"],
            next=values["next"] if values["use_next"] else None,
            acquire=acquire if values["acquire_enable"] else None,
            release=(values["release"], _signed(values["release_value"])),
            valid=bool(values["valid"]),
            unmodelled=tuple(name for name in odd if values.get(name)),
        )

    def describe(self) -> str:
        """One line for people."""
        parts = [f"{self.length} words"]
        if self.base:
            parts.append(f"at {self.base:#x}")
        if self.dimensions:
            loops = " ".join(f"{size or '*'}x{step}" for size, step in self.dimensions)
            parts.append(f"as {loops}")
        if self.iteration_wrap > 1 or self.iteration_step > 1:
            parts.append(f"each run +{self.iteration_step}, {self.iteration_wrap} runs")
        if self.acquire is not None:
            parts.append(f"acquire lock {self.acquire[0]} by {self.acquire[1]}")
        if self.release[1]:
            parts.append(f"release lock {self.release[0]} by {self.release[1]}")
        if self.next is not None:
            parts.append(f"then BD {self.next}")
        if not self.valid:
            parts.append("not valid")
        return ", ".join([*parts, *self.unmodelled])


def _seven_bits(value: int) -> int:
    if not -64 <= value < 64:
        raise ProgramError(message=f"a lock value {value} does not fit in 7 signed bits")
    return value & 0x7F


def _signed(value: int) -> int:
    return value - 128 if value & 0x40 else value


@functools.cache
def place_of(kind: str, offset: int) -> tuple[str, int, int]:
    """What an offset belongs to: ("bd", index, word), ("S2MM" or "MM2S" queue, channel, 0),
    ("lock", index, 0), ("master" or "slave", port, 0) or ("", 0, 0)."""
    dma, switch = DMAS[kind], SWITCHES[kind]
    index, rest = divmod(offset - dma.bd_base, 0x20)
    if 0 <= index < dma.bd_count and rest % 4 == 0 and rest // 4 < dma.bd_words:
        return "bd", index, rest // 4
    for direction, name in enumerate(DIRECTIONS):
        for channel in range(dma.channels):
            if offset == dma.queue(direction, channel):
                return name, channel, 0
    index, rest = divmod(offset - dma.lock_base, 0x10)
    if 0 <= index < dma.lock_count and rest == 0:
        return "lock", index, 0
    for what, base, ports in (
        ("master", switch.master_base, switch.masters),
        ("slave", switch.slave_base, switch.slaves),
    ):
        index, rest = divmod(offset - base, 4)
        if 0 <= index < len(ports) and rest == 0:
            return what, index, 0
    return "", 0, 0
