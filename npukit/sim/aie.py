# SPDX-License-Identifier: MIT
"""A model of an AI Engine array (AIE2, AIE2P), which runs instruction streams.

It knows what a stream can set up: register writes, buffer descriptors of shim, memory and compute
tiles in all their dimensions, task queues and tokens, locks, and circuit routes of the stream
switches. What the configuration image (PDI) of a design would do is not emulated: a ``Design``
registered for the image's digest says what is joined to what, and gives each compute tile that it
uses a Python function which takes and sends bytes.

Differences from hardware: time does not pass (a channel runs until it must wait), a stream holds
FIFO_WORDS words on its way, packet routes and padding are not modelled and say so.
"""

from __future__ import annotations

import collections
import hashlib
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from npukit.programs.xdna import registers
from npukit.programs.xdna.registers import CORE, DMAS, MEM, MM2S, S2MM, SHIM, BufferDescriptor
from npukit.programs.xdna.txn import Op, Opcode, Transaction, opcode_name

Words = npt.NDArray[np.uint32]

ROWS, MEMTILE_ROWS = 6, 1
MEMORY_BYTES = {SHIM: 0, MEM: 512 << 10, CORE: 64 << 10}
FIFO_WORDS = 1 << 14
QUEUE_DEPTH = 4
MAX_STEPS = 1 << 17
"""How often descriptors may be run, whole or in part, before all must wait again: what goes on for
longer is taken to go in circles, as hardware would for ever. Tasks that end need fewer."""
STATUS_RUNNING = 1 << 19


class ArrayError(Exception):
    """What the array cannot do: the text names tile and channel. Hardware would stop there."""


class Stuck(ArrayError):
    """A wait that nothing can end any more. ``operation`` is its place in the stream."""

    def __init__(self, operation: int, text: str) -> None:
        super().__init__(f"operation {operation}: {text}")
        self.operation = operation


class Port(NamedTuple):
    """A DMA channel of a tile: an end of a route."""

    column: int
    row: int
    direction: int
    channel: int

    def __str__(self) -> str:
        kind = registers.tile_kind(self.row, MEMTILE_ROWS)
        name = registers.DIRECTIONS[self.direction]
        return f"{kind} tile ({self.column},{self.row}) {name} channel {self.channel}"


@dataclass(frozen=True, slots=True)
class Receive:
    """A compute tile waits for ``size`` bytes (a multiple of 4) on its S2MM ``channel``."""

    channel: int
    size: int


@dataclass(frozen=True, slots=True)
class Send:
    """A compute tile sends ``data``, whole words, from its MM2S ``channel``."""

    channel: int
    data: bytes


class CoreTile(Protocol):
    """What its program sees of a compute tile."""

    column: int
    row: int

    @property
    def memory(self) -> Words:
        """The tile's data memory, where streams write runtime parameters."""


CoreProgram = Callable[[CoreTile], Generator[Receive | Send, bytes, None]]
"""What a compute tile does: it yields Receive, which gives bytes, and Send; it should not end."""


@dataclass(frozen=True)
class Design:
    """What the image with this ``pdi`` makes of the array, in columns of its own partition.

    ``routes`` joins MM2S ports to S2MM ports, where the stream itself sets up no route; ``cores``
    are the programs of the compute tiles.
    """

    pdi: bytes
    routes: dict[Port, tuple[Port, ...]] = field(default_factory=dict)
    cores: dict[tuple[int, int], CoreProgram] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.pdi).hexdigest()


class HostMemory:
    """What the shim tiles reach. ``view`` gives ``size`` bytes at a device address, writable, or
    raises ArrayError, as an IOMMU fault would stop the DMA."""

    def view(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        raise NotImplementedError


class _Fifo:
    """Words on their way to a port."""

    def __init__(self) -> None:
        self.parts: collections.deque[Words] = collections.deque()
        self.words = 0

    def push(self, part: Words) -> None:
        self.parts.append(part)
        self.words += len(part)

    def pop(self, count: int) -> Words:
        self.words -= count
        taken = []
        while count:
            part = self.parts.popleft()
            if len(part) > count:
                self.parts.appendleft(part[count:])
                part = part[:count]
            taken.append(part)
            count -= len(part)
        return taken[0] if len(taken) == 1 else np.concatenate(taken)


class _Task(NamedTuple):
    bd: int
    repeat: int
    token: bool


class _Tile:
    def __init__(self, array: Array, column: int, row: int) -> None:
        self.array = array
        self.column, self.row = column, row
        self.kind = registers.tile_kind(row, MEMTILE_ROWS)
        self.dma = DMAS[self.kind]
        self.registers: dict[int, int] = {}
        self.locks = [0] * self.dma.lock_count
        self._memory: npt.NDArray[np.uint32] | None = None
        self.channels = {
            (direction, channel): _Channel(self, Port(column, row, direction, channel))
            for direction in (S2MM, MM2S)
            for channel in range(self.dma.channels)
        }

    def __str__(self) -> str:
        return f"{self.kind} tile ({self.column},{self.row})"

    @property
    def memory(self) -> npt.NDArray[np.uint32]:
        if self._memory is None:
            self._memory = np.zeros(MEMORY_BYTES[self.kind] // 4, np.uint32)
        return self._memory

    def write(self, offset: int, value: int) -> None:
        what, index, _ = registers.place_of(self.kind, offset)
        if what in registers.DIRECTIONS:
            self.channels[registers.DIRECTIONS.index(what), index].queue_task(value)
        elif what == "lock":
            self.locks[index] = value & 63
        elif offset < MEMORY_BYTES[self.kind]:
            self.memory[offset // 4] = value
        else:
            self.registers[offset] = value
            if what in ("master", "slave") or self.kind == SHIM:
                self.array.routes.clear()

    def read(self, offset: int) -> int:
        what, index, _ = registers.place_of(self.kind, offset)
        if what == "lock":
            return self.locks[index]
        for direction, base in enumerate(self.dma.status):
            channel, rest = divmod(offset - base, 4)
            if rest == 0 and 0 <= channel < self.dma.channels:
                return self.channels[direction, channel].status()
        if offset < MEMORY_BYTES[self.kind]:
            return int(self.memory[offset // 4])
        return self.registers.get(offset, 0)

    def descriptor(self, index: int) -> BufferDescriptor:
        base = self.dma.bd(index)
        words = [self.registers.get(base + 4 * word, 0) for word in range(self.dma.bd_words)]
        return BufferDescriptor.decode(self.kind, words)

    def lock(self, index: int) -> tuple[_Tile, int]:
        """The tile and number of the lock that a descriptor names."""
        if self.kind != MEM:
            return self, index
        side, own = divmod(index, registers.LOCAL_LOCK)
        return self.neighbour(side - 1), own

    def neighbour(self, side: int) -> _Tile:
        return self if side == 0 else self.array.tile(self.column + side, self.row)


class _Channel:
    """A DMA channel: its queue of tasks and what it is at."""

    def __init__(self, tile: _Tile, port: Port) -> None:
        self.tile = tile
        self.port = port
        self.queue: collections.deque[_Task] = collections.deque()
        self.task: _Task | None = None
        self.runs = 0
        self.bd = 0
        self.descriptor: BufferDescriptor | None = None
        self.acquired = False
        self.moved = 0

    def status(self) -> int:
        busy = STATUS_RUNNING if self.task is not None else 0
        return busy | min(len(self.queue), 7) << 20 | self.bd << 24

    def queue_task(self, value: int) -> None:
        bd = value & (63 if self.tile.kind == MEM else 15)
        if len(self.queue) == QUEUE_DEPTH:
            self.tile.array.settle()
        if len(self.queue) == QUEUE_DEPTH:
            raise ArrayError(f"{self.port}: its queue of {QUEUE_DEPTH} tasks overflows")
        repeat = (value >> registers.QUEUE_REPEAT_SHIFT & 0xFF) + 1
        self.queue.append(_Task(bd, repeat, bool(value & registers.QUEUE_TOKEN)))
        self.tile.array.busy[self.port] = self

    def step(self) -> bool:
        """Go on as far as possible; whether anything was done."""
        progress = False
        while self._once():
            progress = True
            self.tile.array.count()
        if self.task is None and not self.queue:
            self.tile.array.busy.pop(self.port, None)
        return progress

    def _once(self) -> bool:
        if self.task is None:
            if not self.queue:
                return False
            self.task = self.queue.popleft()
            self.runs = self.task.repeat
            self._begin(self.task.bd)
        bd = self.descriptor
        assert bd is not None
        if not self.acquired:
            if not self._acquire(bd):
                return False
            self.acquired = True
        if self.moved < bd.length:
            count = self._move(bd)
            self.moved += count
            if count == 0:
                return False
        if self.moved >= bd.length:
            self._finish(bd)
        return True

    def _begin(self, bd: int) -> None:
        self.bd = bd
        if not self.tile.dma.reaches(self.port.channel, bd):
            raise ArrayError(f"{self.port}: descriptor {bd} is not for this channel")
        self.descriptor = self.tile.descriptor(bd)
        if not self.descriptor.valid:
            raise ArrayError(f"{self.port}: descriptor {bd} is not valid")
        if self.descriptor.unmodelled:
            names = ", ".join(self.descriptor.unmodelled)
            raise ArrayError(f"{self.port}: descriptor {bd} uses {names}, which is not modelled")
        self.acquired = False
        self.moved = 0

    def _acquire(self, bd: BufferDescriptor) -> bool:
        if bd.acquire is None:
            return True
        tile, index = self.tile.lock(bd.acquire[0])
        value = bd.acquire[1]
        held = tile.locks[index]
        if (held < -value) if value < 0 else (held != value):
            return False
        tile.locks[index] = held - abs(value)
        return True

    def _finish(self, bd: BufferDescriptor) -> None:
        task = self.task
        assert task is not None
        if bd.release[1]:
            tile, index = self.tile.lock(bd.release[0])
            tile.locks[index] += bd.release[1]
            if not 0 <= tile.locks[index] <= 63:
                raise ArrayError(f"{tile}: lock {index} leaves its range of 0 to 63")
        if bd.iteration_wrap > 1 or bd.iteration_step > 1:
            self._iterate(bd)
        if bd.next is not None:
            self._begin(bd.next)
            return
        self.runs -= 1
        if self.runs:
            self._begin(task.bd)
            return
        self.task = None
        self.descriptor = None
        if task.token:
            self.tile.array.tokens[self.port] += 1

    def _iterate(self, bd: BufferDescriptor) -> None:
        place = registers.LAYOUTS[self.tile.kind].fields["iteration_current"]
        following = (bd.iteration_current + 1) % bd.iteration_wrap
        offset = self.tile.dma.bd(self.bd) + 4 * place.word
        mask = (1 << place.width) - 1 << place.low
        word = self.tile.registers.get(offset, 0) & ~mask
        self.tile.registers[offset] = word | following << place.low

    def _move(self, bd: BufferDescriptor) -> int:
        """Move what can be moved now, in words."""
        array = self.tile.array
        left = bd.length - self.moved
        if self.port.direction == S2MM:
            fifo = array.fifos[self.port]
            count = min(left, fifo.words)
            if count:
                self._scatter(bd, self.moved, fifo.pop(count))
            return count
        sinks = array.sinks(self.port)
        room = min(FIFO_WORDS - array.fifos[sink].words for sink in sinks)
        count = min(left, room)
        if count <= 0:
            return 0
        part = self._gather(bd, self.moved, count)
        for sink in sinks:
            array.fifos[sink].push(part)
        return count

    def _gather(self, bd: BufferDescriptor, first: int, count: int) -> Words:
        memory, index = self._words(bd, first, count)
        part: Words = memory[index].copy()
        return part

    def _scatter(self, bd: BufferDescriptor, first: int, data: Words) -> None:
        memory, index = self._words(bd, first, len(data))
        memory[index] = data

    def _words(self, bd: BufferDescriptor, first: int, count: int) -> tuple[Words, Any]:
        """Memory, and which of its words the descriptor's ``count`` from ``first`` on are."""
        offsets, lowest, highest = _offsets(bd, first, count)
        shift = bd.iteration_step * bd.iteration_current
        lowest += shift
        highest += shift
        if self.tile.kind == SHIM:
            address = bd.base + 4 * lowest
            view = self.tile.array.host.view(address, 4 * (highest - lowest + 1))
            memory = view.view(np.uint32)
        else:
            start, end = bd.base + lowest, bd.base + highest
            size = MEMORY_BYTES[self.tile.kind] // 4
            tile = self.tile
            if tile.kind == MEM:
                side, start = divmod(start, registers.LOCAL_MEMORY_WORD)
                end -= side * registers.LOCAL_MEMORY_WORD
                if side > 2:
                    raise ArrayError(f"{self.port}: descriptor {self.bd} is beyond all memory")
                tile = tile.neighbour(side - 1)
            if end >= size:
                raise ArrayError(f"{self.port}: descriptor {self.bd} leaves the memory of {tile}")
            memory = tile.memory[start : end + 1]
        if offsets is None:
            return memory, slice(0, count)
        return memory, offsets + (shift - lowest)


def _offsets(
    bd: BufferDescriptor, first: int, count: int
) -> tuple[npt.NDArray[np.int64] | None, int, int]:
    """(word offsets or None for consecutive ones, lowest, highest)."""
    loops = [*bd.dimensions]
    if all(size == 0 for size, _ in loops[:-1]) and (not loops or loops[0][1] == 1):
        return None, first, first + count - 1
    index = np.arange(first, first + count, dtype=np.int64)
    offsets = np.zeros(count, np.int64)
    for size, step in loops:
        if size == 0:
            offsets += index * step
            index = np.zeros_like(index)
            break
        index, inner = np.divmod(index, size)
        offsets += inner * step
    if index.any():
        # All sizes are given and used up: hardware goes on in the last dimension with step 1.
        offsets += index
    return offsets, int(offsets.min()), int(offsets.max())


class _Core:
    """A compute tile's program at work."""

    def __init__(self, array: Array, column: int, row: int, program: CoreProgram) -> None:
        self.array = array
        self.column, self.row = column, row
        self._program = program(array.tile(column, row))
        self._want: Receive | Send | None = None
        self._sent = 0
        self._started = False
        self._ended = False

    def _advance(self, answer: bytes | None) -> None:
        self._sent = 0
        try:
            if self._started:
                self._want = self._program.send(answer or b"")
            else:
                self._started = True
                self._want = next(self._program)
        except StopIteration:
            self._want = None
            self._ended = True

    def step(self) -> bool:
        progress = False
        while not self._ended and self._once():
            progress = True
        return progress

    def _once(self) -> bool:
        if self._want is None:
            self._advance(None)
            return True
        want = self._want
        if isinstance(want, Receive):
            if want.size <= 0:
                self.array.count()
            fifo = self.array.fifos[Port(self.column, self.row, S2MM, want.channel)]
            if fifo.words * 4 < want.size:
                return False
            self._advance(fifo.pop(want.size // 4).tobytes() if want.size else b"")
            return True
        words = np.frombuffer(want.data, np.uint32)
        if len(words) == 0:
            self.array.count()
        sinks = self.array.sinks(Port(self.column, self.row, MM2S, want.channel))
        room = min(FIFO_WORDS - self.array.fifos[sink].words for sink in sinks)
        part = words[self._sent : self._sent + max(room, 0)]
        if len(part) == 0 and len(words):
            return False
        for sink in sinks:
            self.array.fifos[sink].push(part)
        self._sent += len(part)
        if self._sent == len(words):
            self._advance(None)
        return True


class Array:
    """The columns of one hardware context.

    Synchronization: one thread at a time.
    """

    def __init__(self, columns: int, host: HostMemory, design: Design | None = None) -> None:
        self.columns = columns
        self.host = host
        self.design = design
        self.tiles: dict[tuple[int, int], _Tile] = {}
        self.fifos: dict[Port, _Fifo] = collections.defaultdict(_Fifo)
        self.routes: dict[Port, tuple[Port, ...]] = {}
        """Those found so far; a switch write forgets them."""
        self.busy: dict[Port, _Channel] = {}
        self.tokens: collections.Counter[Port] = collections.Counter()
        self._steps = 0
        self.max_steps = MAX_STEPS
        self.cores = [
            _Core(self, column, row, program)
            for (column, row), program in (design.cores if design else {}).items()
        ]

    def tile(self, column: int, row: int) -> _Tile:
        """ArrayError when the partition has no such tile."""
        if not (0 <= column < self.columns and 0 <= row < ROWS):
            raise ArrayError(
                f"tile ({column},{row}) is not in the partition of {self.columns} columns and "
                f"{ROWS} rows"
            )
        found = self.tiles.get((column, row))
        if found is None:
            found = self.tiles[column, row] = _Tile(self, column, row)
        return found

    def count(self) -> None:
        """Something happened. ArrayError when that never ends."""
        self._steps += 1
        if self._steps > self.max_steps:
            self._steps = 0
            raise ArrayError("what was started goes in circles and never waits")

    def settle(self) -> None:
        """Let everything run until all waits."""
        self._steps = 0
        progress = True
        while progress:
            progress = False
            for channel in list(self.busy.values()):
                progress |= channel.step()
            for core in self.cores:
                progress |= core.step()

    # Routes.

    def sinks(self, source: Port) -> tuple[Port, ...]:
        """Where a channel's stream goes. ArrayError names it when there is no route."""
        found = self.routes.get(source)
        if found is None:
            found = tuple(self._follow(source))
            if not found and self.design is not None:
                found = self.design.routes.get(source, ())
            if not found:
                raise ArrayError(
                    f"{source}: no route; the stream sets up none, and "
                    + (
                        "no design is registered for the PDI's digest"
                        if self.design is None
                        else "the design's port table has none"
                    )
                )
            self.routes[source] = found
        return found

    def _follow(self, source: Port) -> Iterator[Port]:
        tile = self.tile(source.column, source.row)
        if tile.kind != SHIM:
            yield from self._leave(tile, f"DMA{source.channel}", set())
            return
        mux = tile.registers.get(registers.MUX_CONFIG, 0)
        for port, (channel, bit) in registers.MUX_DMA.items():
            if channel == source.channel and mux >> bit & 3 == 1:
                yield from self._leave(tile, f"SOUTH{port}", set())

    def _leave(self, tile: _Tile, slave: str, seen: set[tuple[int, int, str]]) -> Iterator[Port]:
        """The ports that get what comes in at a tile's slave port."""
        switch = registers.SWITCHES[tile.kind]
        if slave not in switch.slaves or (tile.column, tile.row, slave) in seen:
            return
        seen.add((tile.column, tile.row, slave))
        number = switch.slaves.index(slave)
        config = tile.registers.get(switch.slave_base + 4 * number, 0)
        if not config & registers.PORT_ENABLE:
            return
        if config & registers.PORT_PACKET:
            raise ArrayError(f"{tile}: port {slave} takes packets, which is not modelled")
        for index, master in enumerate(switch.masters):
            setting = tile.registers.get(switch.master_base + 4 * index, 0)
            if not setting & registers.PORT_ENABLE or setting & registers.PORT_PACKET:
                continue
            if setting & 0x7F == number:
                yield from self._enter(tile, master, seen)

    def _enter(self, tile: _Tile, master: str, seen: set[tuple[int, int, str]]) -> Iterator[Port]:
        """Behind a master port: a DMA channel, or the neighbour's slave port."""
        side = master.rstrip("0123456789")
        number = int(master[len(side) :] or 0)
        column, row = tile.column, tile.row
        if side == "DMA":
            yield Port(column, row, S2MM, number)
        elif side == "SOUTH" and tile.kind == SHIM:
            demux = tile.registers.get(registers.DEMUX_CONFIG, 0)
            channel, bit = registers.DEMUX_DMA.get(number, (0, 32))
            if demux >> bit & 3 == 1:
                yield Port(column, row, S2MM, channel)
        elif side in _NEIGHBOURS:
            across, (right, up) = _NEIGHBOURS[side]
            following = self.tile(column + right, row + up)
            yield from self._leave(following, f"{across}{number}", seen)

    # Streams.

    def run(self, stream: Transaction, arguments: Sequence[int]) -> None:
        """Execute a stream; ``arguments`` are the addresses of its buffers.

        Stuck when it waits for what cannot come; ArrayError for what the array cannot do. Both
        carry the operation's number.
        """
        for number, op in enumerate(stream):
            try:
                self._execute(op, arguments, stream.header.memtile_rows)
            except Stuck:
                raise
            except ArrayError as error:
                raise Stuck(number, str(error)) from None
        try:
            self.settle()
        except ArrayError as error:
            raise Stuck(len(stream), str(error)) from None

    def _execute(self, op: Op, arguments: Sequence[int], memtile_rows: int) -> None:
        if op.patch is not None:
            self._patch(op, arguments)
        elif op.wait is not None:
            self._await(op)
        elif op.code == Opcode.BLOCKWRITE:
            assert op.register is not None
            for index, word in enumerate(op.data):
                self._write(op.register + 4 * index, word)
        elif op.code == Opcode.WRITE:
            assert op.register is not None
            assert op.value is not None
            self._write(op.register, op.value)
        elif op.code == Opcode.MASKWRITE:
            assert op.register is not None
            assert op.value is not None
            assert op.mask is not None
            kept = self._read(op.register) & ~op.mask
            self._write(op.register, kept | op.value & op.mask)
        elif op.code in (Opcode.MASKPOLL, Opcode.MASKPOLL_BUSY):
            assert op.register is not None
            assert op.mask is not None
            self.settle()
            found = self._read(op.register)
            if found & op.mask != op.value:
                name = registers.name_of(op.register, memtile_rows)
                raise ArrayError(f"{name} stays {found:#x}, awaited {op.value:#x} & {op.mask:#x}")
        elif op.code not in _NO_EFFECT:
            raise ArrayError(f"{opcode_name(op.code)} is not modelled")

    def _write(self, register: int, value: int) -> None:
        column, row, offset = registers.split(register)
        self.tile(column, row).write(offset, value)

    def _read(self, register: int) -> int:
        column, row, offset = registers.split(register)
        tile = self.tile(column, row)
        what, _, _ = registers.place_of(tile.kind, offset)
        # A queue reads as 0: a masked write to it queues what the mask lets through.
        return 0 if what in registers.DIRECTIONS else tile.read(offset)

    def _patch(self, op: Op, arguments: Sequence[int]) -> None:
        assert op.patch is not None
        register, argument, plus = op.patch
        if argument >= len(arguments):
            raise ArrayError(
                f"argument {argument} is patched in, the packet has {len(arguments)} buffers"
            )
        address = arguments[argument] + plus & (1 << 48) - 1
        self._write(register, self._read(register) & 3 | address & 0xFFFFFFFC)
        high = self._read(register + 4) & 0xFFFF0000
        self._write(register + 4, high | address >> 32)

    def _await(self, op: Op) -> None:
        wait = op.wait
        assert wait is not None
        self.settle()
        columns = range(wait.column, wait.column + wait.columns)
        rows = range(wait.row, wait.row + wait.rows)
        for column, row in itertools.product(columns, rows):
            port = Port(column, row, wait.direction, wait.channel)
            if self.tokens[port] == 0:
                raise ArrayError(f"no token comes from {self.describe(port)}")
        for column, row in itertools.product(columns, rows):
            self.tokens[Port(column, row, wait.direction, wait.channel)] -= 1

    def describe(self, port: Port) -> str:
        """A channel, and what holds it up."""
        if port.direction not in (S2MM, MM2S):
            return f"direction {port.direction} of tile ({port.column},{port.row})"
        tile = self.tile(port.column, port.row)
        channel = tile.channels.get((port.direction, port.channel))
        if channel is None:
            return f"{port}, which the tile does not have"
        bd = channel.descriptor
        if bd is None:
            return f"{port}, which has nothing to do"
        if not channel.acquired and bd.acquire is not None:
            owner, index = tile.lock(bd.acquire[0])
            value = owner.locks[index]
            return f"{port}: it waits for lock {index} of {owner}, which is {value}"
        done = f"{channel.moved} of {bd.length} words of descriptor {channel.bd} are moved"
        return f"{port}: {done}"


_NEIGHBOURS = {
    "NORTH": ("SOUTH", (0, 1)),
    "SOUTH": ("NORTH", (0, -1)),
    "EAST": ("WEST", (1, 0)),
    "WEST": ("EAST", (-1, 0)),
}
_NO_EFFECT = frozenset(
    {
        Opcode.NOOP,
        Opcode.PREEMPT,
        Opcode.READ_REGS,
        Opcode.RECORD_TIMER,
        Opcode.MERGE_SYNC,
    }
)
