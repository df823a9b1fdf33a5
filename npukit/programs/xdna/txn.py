# SPDX-License-Identifier: MIT
"""Instruction streams (TXN): what an XDNA NPU's controller executes to run a kernel.

A stream is a header and operations, all of 32-bit words:

    16 bytes: u8 major, minor, generation, rows, columns, memtile_rows; u16 pad; u32 ops; u32 bytes
    version 1.0: an operation is its code (low byte of word 0) and its fields
    version 0.1: an 8-byte head with code, column and row, then its fields and its size

``Transaction`` holds the words of either version; ``Assembler`` builds one; ``disassemble`` and
``assemble`` turn it into text and back to the same bytes; ``read`` takes whatever a file holds.
Text is a line with the header, then one for each operation. Words are hexadecimal, counts and tile
numbers decimal; a semicolon begins a comment:

    txn 1.0 generation=4 rows=6 columns=8 memtile_rows=1
    write shim(0,0).DMA_S2MM_0_TASK_QUEUE 80000001
    blockwrite shim(0,0).DMA_BD0_0 00000400 0 0 0 80000000 0 0 02000000
    maskwrite core(0,2).CORE_CONTROL 1 1        ; value, mask
    ddr_patch shim(0,0).DMA_BD0_1 0 00000000    ; argument, offset in bytes
    tct s2mm 0 0 1 1 0                          ; direction column row columns rows channel
    raw 00000009 00000001                       ; what no other line can say

Sources: AMD's aie-rt (xaie_txn.h, xaie_helper.c); 1.0 was checked against aiebu-dump, 0.1 against a
published stream.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from npukit.ioctl import ProgramError

from . import registers
from .registers import BufferDescriptor

Words = npt.NDArray[np.uint32]
Buffer = bytes | bytearray | memoryview


class Opcode(IntEnum):
    """enum XAie_TxnOpcode."""

    WRITE = 0
    BLOCKWRITE = 1
    BLOCKSET = 2
    MASKWRITE = 3
    MASKPOLL = 4
    NOOP = 5
    PREEMPT = 6
    MASKPOLL_BUSY = 7
    LOADPDI = 8
    LOAD_PM_START = 9
    CREATE_SCRATCHPAD = 10
    UPDATE_STATE_TABLE = 11
    UPDATE_REG = 12
    UPDATE_SCRATCH = 13
    CONFIG_SHIMDMA_BD = 14
    CONFIG_SHIMDMA_DMABUF_BD = 15
    TCT = 0x80
    DDR_PATCH = 0x81
    READ_REGS = 0x82
    RECORD_TIMER = 0x83
    MERGE_SYNC = 0x84
    LOAD_PM_END = 200


def opcode_name(code: int) -> str:
    return Opcode(code).name if code in Opcode._value2member_map_ else f"op {code}"


HEADER_WORDS = 4
GENERATION_AIE2, GENERATION_AIE2P = 3, 4
VERSIONS = ((0, 1), (1, 0))
MAX_BYTES = (1 << 32) - 4


@dataclass(frozen=True, slots=True)
class _Sizes:
    """How long operations are, by code: a number of words, or 0 and where the size is stated."""

    fixed: list[int]
    stated: list[int]
    """Word that holds the size in bytes; 0: no such operation is known."""
    least: list[int]


def _sizes(
    fixed: dict[int, int], stated: dict[int, tuple[int, int]], custom: tuple[int, int]
) -> _Sizes:
    rows = {**dict.fromkeys(range(Opcode.TCT, 256), custom), **stated}
    for code in fixed:
        rows.pop(code, None)
    return _Sizes(
        [fixed.get(code, 0) for code in range(256)],
        [rows.get(code, (0, 0))[0] for code in range(256)],
        [rows.get(code, (0, 0))[1] for code in range(256)],
    )


_SIZES = {
    (1, 0): _sizes(
        {
            Opcode.WRITE: 3,
            Opcode.MASKWRITE: 4,
            Opcode.MASKPOLL: 4,
            Opcode.NOOP: 1,
            Opcode.PREEMPT: 1,
            Opcode.MASKPOLL_BUSY: 4,
            Opcode.LOADPDI: 4,
            Opcode.LOAD_PM_START: 2,
            Opcode.CREATE_SCRATCHPAD: 4,
            Opcode.UPDATE_STATE_TABLE: 2,
            Opcode.UPDATE_REG: 3,
            Opcode.UPDATE_SCRATCH: 1,
            Opcode.LOAD_PM_END: 1,
        },
        {
            Opcode.BLOCKWRITE: (2, 12),
            Opcode.CONFIG_SHIMDMA_BD: (1, 8),
            Opcode.CONFIG_SHIMDMA_DMABUF_BD: (1, 8),
        },
        custom=(1, 8),
    ),
    (0, 1): _sizes(
        {},
        {
            Opcode.WRITE: (5, 24),
            Opcode.BLOCKWRITE: (3, 16),
            Opcode.MASKWRITE: (6, 28),
            Opcode.MASKPOLL: (6, 28),
        },
        custom=(1, 8),
    ),
}


def _bad(text: str) -> ProgramError:
    return ProgramError(message=f"instruction stream: {text}")


@dataclass(frozen=True, slots=True)
class Header:
    """What a stream is for; the array's size is that of the device, not of the partition."""

    version: tuple[int, int] = (1, 0)
    generation: int = GENERATION_AIE2P
    rows: int = 6
    columns: int = 8
    memtile_rows: int = 1
    pad: int = 0

    def encode(self, ops: int, size: int) -> bytes:
        parts = (*self.version, self.generation, self.rows, self.columns, self.memtile_rows)
        if any(not 0 <= part < 256 for part in parts) or self.version not in VERSIONS:
            raise _bad(f"the header {self} does not fit its bytes or is of an unknown version")
        if size > MAX_BYTES:
            raise _bad(f"{size} bytes: the most is {MAX_BYTES}")
        return (
            bytes(parts)
            + self.pad.to_bytes(2, "little")
            + ops.to_bytes(4, "little")
            + size.to_bytes(4, "little")
        )


class Patch(NamedTuple):
    """Where the firmware writes a buffer's address: at ``register``, argument's plus ``plus``."""

    register: int
    argument: int
    plus: int


class Wait(NamedTuple):
    """A TCT: wait for a token of a DMA channel from each tile of a rectangle."""

    direction: int
    column: int
    row: int
    columns: int
    rows: int
    channel: int


class Op(NamedTuple):
    """One operation. ``register``, ``value`` and ``mask`` are None where it has none; ``words`` are
    all its words, ``data`` those of a block write."""

    code: int
    words: Sequence[int]
    register: int | None = None
    value: int | None = None
    mask: int | None = None
    data: Sequence[int] = ()
    patch: Patch | None = None
    wait: Wait | None = None


class Transaction:
    """A whole stream, immutable; ``words`` (uint32) are a read-only view where they could be.

    ProgramError when it does not hold together: sizes, counts, unknown operations.
    """

    __slots__ = ("header", "starts", "words")

    def __init__(self, data: Buffer | Words) -> None:
        raw = memoryview(data)  # type: ignore[arg-type]
        if raw.nbytes % 4 or raw.nbytes < 4 * HEADER_WORDS or not raw.c_contiguous:
            raise _bad(f"{raw.nbytes} bytes: it has words of 4 and a header of 16")
        raw = raw.cast("B")
        self.words: Words = np.frombuffer(raw, "<u4")
        self.words.flags.writeable = False
        head = bytes(raw[:16])
        version = (head[0], head[1])
        if version not in VERSIONS:
            raise _bad(f"version {head[0]}.{head[1]}; known are 0.1 and 1.0")
        generation, rows, columns, memtile_rows = head[2:6]
        pad = int.from_bytes(head[6:8], "little")
        self.header = Header(version, generation, rows, columns, memtile_rows, pad)
        ops, size = int(self.words[2]), int(self.words[3])
        if size != raw.nbytes:
            raise _bad(f"the header states {size} bytes, there are {raw.nbytes}")
        self.starts = _walk(raw.cast("I"), version)
        """Word at which each operation begins."""
        if ops != len(self.starts):
            raise _bad(f"the header states {ops} operations, there are {len(self.starts)}")

    def to_bytes(self) -> bytes:
        return self.words.tobytes()

    def __len__(self) -> int:
        """The number of operations."""
        return len(self.starts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Transaction):
            return NotImplemented
        return np.array_equal(self.words, other.words)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Transaction of {len(self)} operations, {len(self.words)} words>"

    def __str__(self) -> str:
        return disassemble(self)

    def __iter__(self) -> Iterator[Op]:
        """Each operation, decoded."""
        words = self.words.tolist()
        decode = _decode_0_1 if self.header.version == (0, 1) else _decode_1_0
        for start, end in self._spans():
            yield decode(words[start:end])

    def _spans(self) -> Iterator[tuple[int, int]]:
        """First word and end of each operation."""
        return itertools.pairwise([*self.starts, len(self.words)])

    def patches(self) -> list[Patch]:
        """The patch table: which registers get which arguments' addresses."""
        return [op.patch for op in self if op.patch is not None]

    def arguments(self) -> int:
        """How many buffers the stream needs: one more than the highest argument it names."""
        return max((patch.argument + 1 for patch in self.patches()), default=0)


def _walk(words: memoryview, version: tuple[int, int]) -> list[int]:
    """The word at which each operation begins."""
    sizes = _SIZES[version]
    fixed, stated, least = sizes.fixed, sizes.stated, sizes.least
    count = len(words)
    starts: list[int] = []
    here = HEADER_WORDS
    while here < count:
        starts.append(here)
        code = words[here] & 0xFF
        step = fixed[code]
        if not step:
            place = stated[code]
            size = words[here + place] if place and here + place < count else 0
            if size < least[code] or size & 3 or not place:
                raise _bad(
                    f"operation {len(starts) - 1} at byte {4 * here} is {opcode_name(code)}, "
                    "whose size is unknown or makes no sense"
                )
            step = size >> 2
        here += step
    if here != count:
        raise _bad(f"operation {len(starts) - 1} at byte {4 * starts[-1]} is cut off")
    return starts


def _decode_1_0(w: list[int]) -> Op:
    code = w[0] & 0xFF
    if code == Opcode.WRITE:
        return Op(code, w, w[1], w[2])
    if code == Opcode.BLOCKWRITE:
        return Op(code, w, w[1], data=w[3:])
    if code in (Opcode.MASKWRITE, Opcode.MASKPOLL, Opcode.MASKPOLL_BUSY):
        return Op(code, w, w[1], w[2], w[3])
    if code == Opcode.DDR_PATCH and len(w) == 6:
        return Op(code, w, patch=Patch(w[2], w[3] & 0xFF, w[4] | w[5] << 32))
    return _decode_custom(code, w)


def _decode_0_1(w: list[int]) -> Op:
    code = w[0] & 0xFF
    if code == Opcode.WRITE:
        return Op(code, w, w[2], w[4])
    if code == Opcode.BLOCKWRITE:
        return Op(code, w, w[2], data=w[4:])
    if code in (Opcode.MASKWRITE, Opcode.MASKPOLL):
        return Op(code, w, w[2], w[4], w[5])
    return _decode_custom(code, w)


def _decode_custom(code: int, w: list[int]) -> Op:
    if code == Opcode.DDR_PATCH and len(w) == 12:
        return Op(code, w, patch=Patch(w[6], w[8], w[10] | w[11] << 32))
    if code == Opcode.TCT and len(w) >= 4:
        return Op(code, w, wait=_wait(w[2], w[3]))
    return Op(code, w)


def _wait(word: int, config: int) -> Wait:
    return Wait(
        direction=word & 0xFF,
        column=word >> 16 & 0xFF,
        row=word >> 8 & 0xFF,
        columns=config >> 16 & 0xFF,
        rows=config >> 8 & 0xFF,
        channel=config >> 24,
    )


# Building.


def _u32(value: int, what: str) -> int:
    if not 0 <= value < 1 << 32:
        raise _bad(f"{what} {value:#x} does not fit in 32 bits")
    return int(value)


def _fit(value: int, bits: int, what: str) -> int:
    if not 0 <= value < 1 << bits:
        raise _bad(f"{what} {value} does not fit in {bits} bits")
    return int(value)


@dataclass
class Assembler:
    """Collects operations for ``header`` and makes them a Transaction.

    asm = Assembler()
    asm.buffer_descriptor(0, 0, 1, BufferDescriptor(length=256))
    asm.patch(0, 0, 1, argument=0)
    asm.start(0, 0, MM2S, channel=0, bd=1)
    stream = asm.finish()

    Registers are 32-bit addresses, see npukit.programs.xdna.registers. ProgramError for what does
    not fit its field.
    """

    header: Header = field(default_factory=Header)
    _ops: list[list[int]] = field(default_factory=list, init=False, repr=False)

    @property
    def _old(self) -> bool:
        return self.header.version == (0, 1)

    def raw(self, *words: int) -> None:
        """An operation given by its words."""
        if not words:
            raise _bad("an operation without words")
        self._ops.append([_u32(word, "the word") for word in words])

    def _head(self, code: int, register: int) -> list[int]:
        column, row, _ = registers.split(register)
        return [code | column << 8 | row << 16, 0, register, 0]

    def write(self, register: int, value: int) -> None:
        register, value = _u32(register, "the register"), _u32(value, "the value")
        if self._old:
            self._ops.append([*self._head(Opcode.WRITE, register), value, 24])
        else:
            self._ops.append([Opcode.WRITE, register, value])

    def block_write(self, register: int, data: Iterable[int]) -> None:
        """Write consecutive registers."""
        register = _u32(register, "the register")
        words = [_u32(word, "the word") for word in data]
        if self._old:
            head = self._head(Opcode.BLOCKWRITE, register)
            self._ops.append([*head[:3], 16 + 4 * len(words), *words])
        else:
            self._ops.append([Opcode.BLOCKWRITE, register, 12 + 4 * len(words), *words])

    def _masked(self, code: int, register: int, value: int, mask: int) -> None:
        register = _u32(register, "the register")
        value, mask = _u32(value, "the value"), _u32(mask, "the mask")
        if self._old:
            self._ops.append([*self._head(code, register), value, mask, 32, 0])
        else:
            self._ops.append([code, register, value, mask])

    def mask_write(self, register: int, value: int, mask: int) -> None:
        """Replace the bits of ``mask`` by those of ``value``."""
        self._masked(Opcode.MASKWRITE, register, value, mask)

    def mask_poll(self, register: int, value: int, mask: int) -> None:
        """Wait until the register's bits under ``mask`` are ``value``."""
        self._masked(Opcode.MASKPOLL, register, value, mask)

    def mask_poll_busy(self, register: int, value: int, mask: int) -> None:
        self._new_only(Opcode.MASKPOLL_BUSY)
        self._masked(Opcode.MASKPOLL_BUSY, register, value, mask)

    def _new_only(self, code: int) -> None:
        if self._old:
            raise _bad(f"{opcode_name(code)} is not in version 0.1")

    def noop(self) -> None:
        self._new_only(Opcode.NOOP)
        self._ops.append([Opcode.NOOP])

    def preempt(self, level: int) -> None:
        """A point at which the firmware may switch: 1 memory tiles, 2 tiles, 3 registers saved."""
        self._new_only(Opcode.PREEMPT)
        self._ops.append([Opcode.PREEMPT | _fit(level, 8, "the level") << 8])

    def load_pdi(self, pdi: int, size: int, address: int) -> None:
        self._new_only(Opcode.LOADPDI)
        address = _fit(address, 64, "the address")
        self._ops.append(
            [
                Opcode.LOADPDI | _fit(pdi, 16, "the PDI") << 16,
                _u32(size, "the size"),
                address & 0xFFFFFFFF,
                address >> 32,
            ]
        )

    def ddr_patch(self, register: int, argument: int, plus: int = 0, long: bool = False) -> None:
        """Let the firmware write the address of argument ``argument`` plus ``plus`` bytes to
        ``register`` and the next one. ``long`` takes the form of 48 bytes, the only one of 0.1."""
        register, plus = _u32(register, "the register"), _fit(plus, 64, "the offset")
        low, high = plus & 0xFFFFFFFF, plus >> 32
        if long or self._old:
            argument = _u32(argument, "the argument")
            words = [0, 0, 0, 0, register, 0, argument, 0, low, high]
            self._ops.append([Opcode.DDR_PATCH, 48, *words])
        else:
            argument = _fit(argument, 8, "the argument")
            self._ops.append([Opcode.DDR_PATCH, 24, register, argument, low, high])

    def wait(
        self,
        direction: int,
        column: int,
        row: int = 0,
        columns: int = 1,
        rows: int = 1,
        channel: int = 0,
    ) -> None:
        """Wait for a token of the channel from each tile of a rectangle (a TCT)."""
        word = _fit(direction, 8, "the direction")
        word |= _fit(row, 8, "the row") << 8 | _fit(column, 8, "the column") << 16
        config = _fit(rows, 8, "rows") << 8 | _fit(columns, 8, "columns") << 16
        self._ops.append([Opcode.TCT, 16, word, config | _fit(channel, 8, "the channel") << 24])

    # What a DMA needs, in the terms of a tile.

    def _kind(self, row: int) -> str:
        return registers.tile_kind(row, self.header.memtile_rows)

    def buffer_descriptor(self, column: int, row: int, index: int, bd: BufferDescriptor) -> None:
        """Write buffer descriptor ``index`` of a tile."""
        kind = self._kind(row)
        dma = registers.DMAS[kind]
        if not 0 <= index < dma.bd_count:
            raise _bad(f"a {kind} tile has {dma.bd_count} descriptors, not one of number {index}")
        self.block_write(registers.address(column, row, dma.bd(index)), bd.encode(kind))

    def patch(self, column: int, row: int, bd: int, argument: int, plus: int = 0) -> None:
        """Let the firmware set the address of a shim tile's descriptor."""
        dma = registers.DMAS[registers.SHIM]
        self.ddr_patch(registers.address(column, row, dma.bd(bd) + 4), argument, plus)

    def start(
        self,
        column: int,
        row: int,
        direction: int,
        channel: int,
        bd: int,
        repeat: int = 1,
        token: bool = False,
    ) -> None:
        """Queue a task: run descriptor ``bd`` and those it leads to ``repeat`` times, 1 to 256;
        ``token``: tell when done, for ``wait``."""
        kind = self._kind(row)
        dma = registers.DMAS[kind]
        if direction not in (0, 1) or not 0 <= channel < dma.channels:
            raise _bad(f"a {kind} tile has no channel {channel} of direction {direction}")
        if not dma.reaches(channel, bd):
            raise _bad(f"channel {channel} of a {kind} tile cannot run descriptor {bd}")
        value = bd | _fit(repeat - 1, 8, "the repeat count less one") << 16
        self.write(
            registers.address(column, row, dma.queue(direction, channel)),
            value | (registers.QUEUE_TOKEN if token else 0),
        )

    def set_lock(self, column: int, row: int, index: int, value: int) -> None:
        """Give a tile's lock (by its own number, from 0) a value of 6 bits."""
        dma = registers.DMAS[self._kind(row)]
        if not 0 <= index < dma.lock_count:
            raise _bad(f"tile ({column},{row}) has no lock {index}")
        place = registers.address(column, row, dma.lock(index))
        self.write(place, _fit(value, 6, "the lock value"))

    def connect(self, column: int, row: int, source: str, target: str) -> None:
        """Join two ports of a tile's stream switch, ``source`` to ``target``, for every packet.

        Ports are called as in registers.SWITCHES ("SOUTH3", "DMA0"). In a shim tile "DMA0" and
        "DMA1" are the DMA's channels, and the port in front of the DMA is set up as well.
        """
        kind = self._kind(row)
        switch = registers.SWITCHES[kind]
        if kind == registers.SHIM:
            source = self._shim_port(column, source, registers.MUX_DMA, registers.MUX_CONFIG)
            target = self._shim_port(column, target, registers.DEMUX_DMA, registers.DEMUX_CONFIG)
        if source not in switch.slaves or target not in switch.masters:
            raise _bad(f"a {kind} tile's switch cannot join {source} to {target}")
        slave, master = switch.slaves.index(source), switch.masters.index(target)
        self.write(
            registers.address(column, row, switch.slave_base + 4 * slave), registers.PORT_ENABLE
        )
        self.write(
            registers.address(column, row, switch.master_base + 4 * master),
            registers.PORT_ENABLE | slave,
        )

    def _shim_port(
        self, column: int, port: str, dma_ports: dict[int, tuple[int, int]], config: int
    ) -> str:
        for number, (channel, bit) in dma_ports.items():
            if port == f"DMA{channel}":
                self.mask_write(registers.address(column, 0, config), 1 << bit, 3 << bit)
                return f"SOUTH{number}"
        return port

    def finish(self) -> Transaction:
        """All operations so far, as a stream."""
        count = HEADER_WORDS + sum(map(len, self._ops))
        head = np.frombuffer(self.header.encode(len(self._ops), 4 * count), "<u4").tolist()
        words = [*head, *(word for op in self._ops for word in op)]
        return Transaction(np.array(words, "<u4"))


# Text.

_MASKED = {
    int(Opcode.MASKWRITE): "maskwrite",
    int(Opcode.MASKPOLL): "maskpoll",
    int(Opcode.MASKPOLL_BUSY): "maskpoll_busy",
}
_DIRECTION_NAMES = ("s2mm", "mm2s")


def disassemble(stream: Transaction) -> str:
    """The text of a stream; ``assemble`` gives the same bytes back."""
    header = stream.header
    pad = f" pad={header.pad:#x}" if header.pad else ""
    first = (
        f"txn {header.version[0]}.{header.version[1]} generation={header.generation} "
        f"rows={header.rows} columns={header.columns} memtile_rows={header.memtile_rows}{pad}"
    )
    lines = _lines_0_1(stream) if header.version == (0, 1) else _lines_1_0(stream)
    return "\n".join([first, *lines, ""])


class _Names(dict[int, str]):
    """Addresses as names, each made once."""

    def __init__(self, memtile_rows: int) -> None:
        super().__init__()
        self.memtile_rows = memtile_rows

    def __missing__(self, register: int) -> str:
        name = self[register] = registers.name_of(register, self.memtile_rows)
        return name


class _Waits(dict[int, str]):
    """The two words of a TCT as a line; empty where the words hold more than a line can say."""

    def __missing__(self, key: int) -> str:
        word, config = key >> 32, key & 0xFFFFFFFF
        line = ""
        if word >> 24 == 0 and config & 0xFF == 0 and word & 0xFF < 2:
            direction, *rest = _wait(word, config)
            line = f"tct {_DIRECTION_NAMES[direction]} {' '.join(map(str, rest))}"
        self[key] = line
        return line


def _raw(words: list[int]) -> str:
    return f"raw {' '.join([f'{word:08x}' for word in words])} ; {opcode_name(words[0] & 0xFF)}"


_WIDTH = 9
"""Characters of a word and the space behind it."""


def _lines_1_0(stream: Transaction) -> list[str]:
    # A stream has millions of operations at worst. All words are made text in one go, of which a
    # line takes its part; one loop, and nothing looked up twice.
    w = stream.words.tolist()
    text = stream.words.astype(">u4").tobytes().hex(" ", 4)
    names = _Names(stream.header.memtile_rows)
    waits = _Waits()
    lines: list[str] = []
    add = lines.append
    for index, i in enumerate(stream.starts):
        code = w[i]
        at = _WIDTH * i
        if code == 0:
            add(f"write {names[w[i + 1]]} {text[at + 18 : at + 26]}")
        elif code == 1:
            add(f"blockwrite {names[w[i + 1]]} {text[at + 27 : at + (w[i + 2] >> 2) * _WIDTH - 1]}")
        elif code == 0x81 and w[i + 1] == 24 and w[i + 3] < 256 and w[i + 5] == 0:
            add(f"ddr_patch {names[w[i + 2]]} {w[i + 3]} {text[at + 36 : at + 44]}")
        elif code == 0x80 and w[i + 1] == 16 and (line := waits[w[i + 2] << 32 | w[i + 3]]):
            add(line)
        elif code in _MASKED:
            add(f"{_MASKED[code]} {names[w[i + 1]]} {text[at + 18 : at + 35]}")
        else:
            end = stream.starts[index + 1] if index + 1 < len(stream) else len(w)
            add(_line(w[i:end], names, waits))
    return lines


def _line(w: list[int], names: _Names, waits: _Waits) -> str:
    """A line for an operation that both versions write alike, or that is rare."""
    code = w[0]
    low = code & 0xFF
    if code == Opcode.TCT and len(w) == 4 and (line := waits[w[2] << 32 | w[3]]):
        return line
    if code == Opcode.DDR_PATCH and len(w) == 6 and w[3] < 256:
        return f"ddr_patch {names[w[2]]} {w[3]} {w[4] | w[5] << 32:016x}"
    if code == Opcode.DDR_PATCH and len(w) == 12 and not any(w[2:6]) and w[7] == w[9] == 0:
        return f"ddr_patch48 {names[w[6]]} {w[8]} {w[10] | w[11] << 32:08x}"
    if code == Opcode.NOOP:
        return "noop"
    if low == Opcode.PREEMPT and code < 1 << 16:
        return f"preempt {code >> 8}"
    if low == Opcode.LOADPDI and len(w) == 4 and not code & 0xFF00:
        return f"loadpdi {code >> 16} {w[1]:08x} {w[2] | w[3] << 32:016x}"
    return _raw(w)


def _lines_0_1(stream: Transaction) -> list[str]:
    w = stream.words.tolist()
    names = _Names(stream.header.memtile_rows)
    waits = _Waits()
    lines = []
    for i, end in stream._spans():
        op = w[i:end]
        code = op[0] & 0xFF
        line = None
        if code == Opcode.WRITE and len(op) == 6 and op[3] == 0:
            line = f"write {names[op[2]]} {op[4]:08x}"
        elif code == Opcode.BLOCKWRITE:
            line = f"blockwrite {names[op[2]]} {' '.join([f'{word:08x}' for word in op[4:]])}"
        elif code in (Opcode.MASKWRITE, Opcode.MASKPOLL) and op[3] == 0 and op[6:] == [32, 0]:
            line = f"{_MASKED[code]} {names[op[2]]} {op[4]:08x} {op[5]:08x}"
        if line is None:
            lines.append(_line(op, names, waits) if code >= Opcode.TCT else _raw(op))
            continue
        column, row, _ = registers.split(op[2])
        if (op[0], op[1]) != (code | column << 8 | row << 16, 0):
            line += f" head={op[0]:08x},{op[1]:08x}"
        lines.append(line)
    return lines


def assemble(text: str) -> Transaction:
    """The stream of a text. ProgramError names the line that is wrong, and why."""
    asm: Assembler | None = None
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.partition(";")[0].split()
        if not parts:
            continue
        try:
            if asm is None:
                asm = Assembler(_header(parts))
            else:
                _assemble(asm, parts)
        except (ProgramError, ValueError) as error:
            reason = error.strerror if isinstance(error, ProgramError) else error
            raise ProgramError(message=f"line {number}: {reason}") from None
    if asm is None:
        raise _bad("the text is empty: it begins with a txn line")
    return asm.finish()


def _header(parts: list[str]) -> Header:
    versions = {f"{major}.{minor}": (major, minor) for major, minor in VERSIONS}
    if parts[0] != "txn" or len(parts) < 2 or parts[1] not in versions:
        raise ValueError("the first line is: txn 1.0 generation=4 rows=6 columns=8 memtile_rows=1")
    header = Header(versions[parts[1]])
    for part in parts[2:]:
        name, equals, value = part.partition("=")
        if not equals or name not in ("generation", "rows", "columns", "memtile_rows", "pad"):
            raise ValueError(f"{part!r} is no part of a header")
        limit = 16 if name == "pad" else 8
        header = replace(header, **{name: _fit(int(value, 0), limit, name)})  # type: ignore[arg-type]
    return header


_Line = Callable[[Assembler, Callable[[str], int], list[str]], None]


def _tct(asm: Assembler, _name: Callable[[str], int], rest: list[str]) -> None:
    direction, column, row, columns, rows, channel = rest
    if direction not in _DIRECTION_NAMES:
        raise ValueError(f"the direction {direction!r} is neither s2mm nor mm2s")
    numbers = [int(part) for part in (column, row, columns, rows, channel)]
    asm.wait(_DIRECTION_NAMES.index(direction), *numbers)


def _ddr_patch(asm: Assembler, name: Callable[[str], int], rest: list[str], long: bool) -> None:
    register, argument, plus = rest
    asm.ddr_patch(name(register), int(argument), int(plus, 16), long)


def _loadpdi(asm: Assembler, _name: Callable[[str], int], rest: list[str]) -> None:
    pdi, size, address = rest
    asm.load_pdi(int(pdi), int(size, 16), int(address, 16))


_LINES: dict[str, _Line] = {
    "write": lambda asm, name, rest: asm.write(name(rest[0]), *_hex(rest[1:])),
    "blockwrite": lambda asm, name, rest: asm.block_write(name(rest[0]), _hex(rest[1:])),
    "maskwrite": lambda asm, name, rest: asm.mask_write(name(rest[0]), *_hex(rest[1:])),
    "maskpoll": lambda asm, name, rest: asm.mask_poll(name(rest[0]), *_hex(rest[1:])),
    "maskpoll_busy": lambda asm, name, rest: asm.mask_poll_busy(name(rest[0]), *_hex(rest[1:])),
    "ddr_patch": lambda asm, name, rest: _ddr_patch(asm, name, rest, False),
    "ddr_patch48": lambda asm, name, rest: _ddr_patch(asm, name, rest, True),
    "noop": lambda asm, name, rest: asm.noop(*_hex(rest)),
    "preempt": lambda asm, name, rest: asm.preempt(*map(int, rest)),
    "loadpdi": _loadpdi,
    "tct": _tct,
    "raw": lambda asm, name, rest: asm.raw(*_hex(rest)),
}


def _hex(parts: list[str]) -> list[int]:
    return [int(part, 16) for part in parts]


def _assemble(asm: Assembler, parts: list[str]) -> None:
    name, *rest = parts
    line = _LINES.get(name)
    if line is None:
        raise ValueError(f"there is no operation {name}; there are {', '.join(_LINES)}")
    head = None
    if rest and rest[-1].startswith("head=") and asm.header.version == (0, 1):
        head = [_u32(int(part, 16), "the head") for part in rest.pop()[5:].split(",")]
        if len(head) != 2 or name not in ("write", "blockwrite", "maskwrite", "maskpoll"):
            raise ValueError("head= gives two words, to a write or poll")
    try:
        line(asm, lambda text: registers.parse_name(text, asm.header.memtile_rows), rest)
    except (IndexError, TypeError):
        raise ValueError(f"{name} does not take {' '.join(rest) or 'nothing'}") from None
    if head is not None:
        asm._ops[-1][:2] = head


# Files.

_HEX_LINES = re.compile(rb"\s*(?:0[xX])?[0-9A-Fa-f]{8}(?:\s+(?:0[xX])?[0-9A-Fa-f]{8})*\s*\Z")


def read(data: Buffer) -> Transaction:
    """The stream in a file, whatever the file's name says: binary, one %08X word a line, or the
    text that ``disassemble`` writes. ProgramError when it is none of them."""
    raw = memoryview(data).cast("B")
    head = bytes(raw[:64])
    if head.lstrip()[:4] == b"txn ":
        return assemble(_decode_text(raw))
    if (head[:1] in b"0123456789abcdefABCDEF \t\r\n" and head[:2] not in (b"\0\1", b"\1\0")) and (
        _HEX_LINES.match(raw) is not None
    ):
        words = [int(word, 16) for word in _decode_text(raw).split()]
        return Transaction(np.array(words, "<u4"))
    return Transaction(raw)


def _decode_text(raw: memoryview) -> str:
    try:
        return bytes(raw).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad(f"the text is not UTF-8: {error}") from None


def to_hex(stream: Transaction) -> str:
    """One %08X word a line, as insts.txt has them."""
    return "".join(f"{word:08X}\n" for word in stream.words.tolist())


def explain(stream: Transaction) -> list[str]:
    """A sentence for each operation: what it makes the array do."""
    rows = stream.header.memtile_rows
    return [_explain(op, rows) for op in stream]


def _explain(op: Op, memtile_rows: int) -> str:
    if op.patch is not None:
        name = registers.name_of(op.patch.register, memtile_rows)
        return f"{name} becomes the address of argument {op.patch.argument} + {op.patch.plus:#x}"
    if op.wait is not None:
        wait = op.wait
        direction = registers.DIRECTIONS[wait.direction] if wait.direction < 2 else "?"
        where = f"tile ({wait.column},{wait.row})"
        if (wait.columns, wait.rows) != (1, 1):
            where = f"{wait.columns}x{wait.rows} tiles from ({wait.column},{wait.row})"
        return f"wait until {direction} channel {wait.channel} of {where} has finished a task"
    if op.register is None:
        return opcode_name(op.code).lower().replace("_", " ")
    column, row, offset = registers.split(op.register)
    kind = registers.tile_kind(row, memtile_rows)
    where = f"{kind} tile ({column},{row})"
    what, index, _word = registers.place_of(kind, offset)
    name = registers.name_of(op.register, memtile_rows)
    if op.code in (Opcode.MASKPOLL, Opcode.MASKPOLL_BUSY):
        return f"wait until {name} & {op.mask:#x} is {op.value:#x}"
    if op.code == Opcode.BLOCKWRITE:
        if what == "bd" and _word == 0 and len(op.data) == registers.LAYOUTS[kind].words:
            return f"{where}, BD {index}: {BufferDescriptor.decode(kind, op.data).describe()}"
        return f"{name} and on: {len(op.data)} words"
    value = op.value or 0
    if what in registers.DIRECTIONS:
        repeat = (value >> registers.QUEUE_REPEAT_SHIFT & 0xFF) + 1
        times = f", {repeat} times" if repeat > 1 else ""
        token = ", then a token" if value & registers.QUEUE_TOKEN else ""
        bd = value & (registers.DMAS[kind].bd_count - 1 if kind != registers.MEM else 63)
        return f"{where}: {what} channel {index} runs BD {bd}{times}{token}"
    if what == "lock":
        return f"{where}: lock {index} = {value & 63}"
    if what == "master" and value & registers.PORT_ENABLE:
        switch = registers.SWITCHES[kind]
        source = value & 0x7F
        named = switch.slaves[source] if source < len(switch.slaves) else str(source)
        if value & registers.PORT_PACKET:
            return f"{where}: port {switch.masters[index]} takes packets"
        return f"{where}: port {switch.masters[index]} takes from {named}"
    under = f" under {op.mask:#x}" if op.mask is not None else ""
    return f"{name} = {value:#x}{under}"
