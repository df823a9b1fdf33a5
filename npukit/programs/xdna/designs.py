# SPDX-License-Identifier: MIT
"""Small designs, each a container and an instruction stream that our assembler made.

``MEMCPY`` and ``TRANSPOSE`` need no compute tile: their streams set up everything, down to the
stream switches. ``VECTOR_ADD`` and ``MATMUL`` use compute tiles. A PDI that a real NPU would load
cannot be made here, so each design carries a name in its place, which only npukit's simulated NPU
takes for that design (npukit.sim.aie_designs); on hardware the firmware refuses it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npukit.ioctl import ProgramError

from .program import Binding, KernelContract
from .registers import LOCAL_LOCK, LOCAL_MEMORY_WORD, MM2S, S2MM, BufferDescriptor, register
from .txn import Assembler, Header, Transaction
from .xclbin import NpuKernel, build_npu

MEMTILE_WORDS = (512 << 10) // 4
MAX_TRANSFER_WORDS = 1 << 20


@dataclass(frozen=True)
class Example:
    """A container, the stream to run with it, and what the stream expects of its buffers."""

    xclbin: bytes | memoryview
    instructions: Transaction
    contract: KernelContract


def _pdi(name: str) -> bytes:
    return f"npukit simulated design {name}\0".encode()


MEMCPY_PDI = _pdi("memcpy")
TRANSPOSE_PDI = _pdi("transpose")
VECTOR_ADD_PDI = _pdi("vector add int32")
MATMUL_PDI = _pdi("matmul int8 16x16x16")

CORE_TILE = (0, 2)
"""The compute tile that VECTOR_ADD and MATMUL use: column, row."""
TILE = 16
"""Rows, columns and depth of the matrix tiles that MATMUL's compute tile multiplies."""
ADD_WORDS = 256
"""Words that VECTOR_ADD's compute tile adds at a time."""


def _container(pdi: bytes, buffers: int) -> bytes:
    return build_npu([NpuKernel("MLIR_AIE", pdi, buffers)], column_width=1)


def _through_memory_tile(asm: Assembler) -> None:
    """Shim MM2S 0 to memory tile S2MM 0, and memory tile MM2S 0 back to shim S2MM 0."""
    asm.connect(0, 0, "DMA0", "NORTH0")
    asm.connect(0, 1, "SOUTH0", "DMA0")
    asm.connect(0, 1, "DMA0", "SOUTH0")
    asm.connect(0, 0, "NORTH0", "DMA0")


_EMPTY, _FULL = 0, 1
"""Locks of the memory tile: places to write, pieces to read."""


def _piece(
    length: int, dimensions: tuple[tuple[int, int], ...] = (), fill: bool = True
) -> BufferDescriptor:
    """A descriptor of the memory tile that fills its one place, or empties it."""
    take, give = (_EMPTY, _FULL) if fill else (_FULL, _EMPTY)
    return BufferDescriptor(
        length,
        LOCAL_MEMORY_WORD,
        dimensions,
        acquire=(LOCAL_LOCK + take, -1),
        release=(LOCAL_LOCK + give, 1),
    )


def memcpy(nbytes: int) -> Example:
    """Copy ``nbytes`` (a multiple of 4, at most 4 MiB) through the memory tile, piece by piece.

    Buffers: source, destination. ProgramError for another size.
    """
    words = nbytes // 4
    if nbytes % 4 or not 0 < words <= MAX_TRANSFER_WORDS:
        raise ProgramError(message=f"memcpy of {nbytes} bytes: 4 to {4 * MAX_TRANSFER_WORDS}, by 4")
    # The largest piece that divides the whole, fits the memory tile and its length field, and
    # needs no more runs than a task can have.
    pieces = next(
        (n for n in range(1, 257) if words % n == 0 and words // n <= MEMTILE_WORDS // 2), None
    )
    if pieces is None:
        raise ProgramError(message=f"memcpy: {words} words do not divide into up to 256 pieces")
    piece = words // pieces
    asm = Assembler(Header())
    _through_memory_tile(asm)
    asm.set_lock(0, 1, _EMPTY, 1)
    asm.set_lock(0, 1, _FULL, 0)
    asm.buffer_descriptor(0, 1, 0, _piece(piece))
    asm.buffer_descriptor(0, 1, 1, _piece(piece, fill=False))
    asm.start(0, 1, S2MM, 0, 0, repeat=pieces)
    asm.start(0, 1, MM2S, 0, 1, repeat=pieces)
    asm.buffer_descriptor(0, 0, 0, BufferDescriptor(words))
    asm.patch(0, 0, 0, argument=0)
    asm.buffer_descriptor(0, 0, 1, BufferDescriptor(words))
    asm.patch(0, 0, 1, argument=1)
    asm.start(0, 0, S2MM, 0, 1, token=True)
    asm.start(0, 0, MM2S, 0, 0)
    asm.wait(S2MM, 0)
    contract = KernelContract(
        Binding("source", (nbytes,), np.uint8, "r"),
        Binding("destination", (nbytes,), np.uint8, "w"),
    )
    return Example(_container(MEMCPY_PDI, 2), asm.finish(), contract)


def transpose(rows: int, columns: int) -> Example:
    """Transpose a matrix of 32-bit words; the memory tile reads it column by column.

    Buffers: matrix (rows, columns), result (columns, rows). ProgramError unless it fits the memory
    tile and each side is 1 to 1023.
    """
    words = rows * columns
    if not (0 < rows < 1024 and 0 < columns < 1024 and words < MEMTILE_WORDS):
        raise ProgramError(
            message=f"transpose of {rows}x{columns}: sides of 1 to 1023, {MEMTILE_WORDS - 1} words"
        )
    asm = Assembler(Header())
    _through_memory_tile(asm)
    asm.set_lock(0, 1, _EMPTY, 1)
    asm.set_lock(0, 1, _FULL, 0)
    asm.buffer_descriptor(0, 1, 0, _piece(words))
    asm.buffer_descriptor(0, 1, 1, _piece(words, ((rows, columns), (columns, 1)), fill=False))
    asm.start(0, 1, S2MM, 0, 0)
    asm.start(0, 1, MM2S, 0, 1)
    for bd, argument in ((0, 0), (1, 1)):
        asm.buffer_descriptor(0, 0, bd, BufferDescriptor(words))
        asm.patch(0, 0, bd, argument)
    asm.start(0, 0, S2MM, 0, 1, token=True)
    asm.start(0, 0, MM2S, 0, 0)
    asm.wait(S2MM, 0)
    contract = KernelContract(
        Binding("matrix", (rows, columns), np.uint32, "r"),
        Binding("result", (columns, rows), np.uint32, "w"),
    )
    return Example(_container(TRANSPOSE_PDI, 2), asm.finish(), contract)


def vector_add(length: int) -> Example:
    """Add two vectors of int32, wrapping. Buffers: a, b, sum.

    ProgramError unless ``length`` is a multiple of ADD_WORDS, at most 2^20.
    """
    if length % ADD_WORDS or not 0 < length <= MAX_TRANSFER_WORDS:
        raise ProgramError(message=f"{length} numbers: a multiple of {ADD_WORDS} is needed")
    asm = Assembler(Header())
    for bd in range(3):
        asm.buffer_descriptor(0, 0, bd, BufferDescriptor(length))
        asm.patch(0, 0, bd, argument=bd)
    asm.start(0, 0, S2MM, 0, 2, token=True)
    asm.start(0, 0, MM2S, 0, 0)
    asm.start(0, 0, MM2S, 1, 1)
    asm.wait(S2MM, 0)
    contract = KernelContract(
        Binding("a", (length,), np.int32, "r"),
        Binding("b", (length,), np.int32, "r"),
        Binding("sum", (length,), np.int32, "w"),
    )
    return Example(_container(VECTOR_ADD_PDI, 3), asm.finish(), contract)


def matmul(m: int, k: int, n: int) -> Example:
    """Multiply int8 matrices into int32: (m, k) by (k, n), in tiles of TILE on one compute tile.

    The shim's descriptors cut the matrices into tiles: for each tile of the result, a row of A's
    tiles and a column of B's. The compute tile finds their number in the first word of its memory,
    a runtime parameter. Buffers: a, b, product. ProgramError unless each side is a multiple of
    TILE, m and n at most 1024, k at most 65536.
    """
    if m % TILE or k % TILE or n % TILE or min(m, k, n) <= 0 or max(m, n) > 64 * TILE:
        raise ProgramError(message=f"matmul {m}x{k}x{n}: sides are multiples of {TILE} up to 1024")
    if k > 1 << 16:
        raise ProgramError(message=f"matmul: k = {k} is over {1 << 16}")
    asm = Assembler(Header())
    row = TILE // 4
    """Words of a row of an int8 tile."""
    # A row of tiles of A: TILE rows of `row` words, then the next tile along k. Each run of the
    # task is for one tile of the result, and the row stays the same for n / TILE of them.
    a = BufferDescriptor(TILE * k // 4, 0, ((row, 1), (TILE, k // 4), (0, row)))
    # A column of tiles of B: TILE rows of `row` words, tiles TILE rows apart; the next run begins
    # one tile further to the right.
    b = BufferDescriptor(
        TILE * k // 4,
        0,
        ((row, 1), (0, n // 4)),
        iteration_step=row,
        iteration_wrap=n // TILE,
    )
    # A row of tiles of the result: TILE rows of TILE words, the next run one tile to the right.
    c = BufferDescriptor(
        TILE * TILE,
        0,
        ((TILE, 1), (0, n)),
        iteration_step=TILE,
        iteration_wrap=n // TILE,
    )
    asm.write(register(*CORE_TILE, "0x0"), k // TILE)
    for index in range(m // TILE):
        asm.buffer_descriptor(0, 0, 0, a)
        asm.patch(0, 0, 0, argument=0, plus=index * TILE * k)
        asm.buffer_descriptor(0, 0, 1, b)
        asm.patch(0, 0, 1, argument=1)
        asm.buffer_descriptor(0, 0, 2, c)
        asm.patch(0, 0, 2, argument=2, plus=4 * index * TILE * n)
        asm.start(0, 0, S2MM, 0, 2, repeat=n // TILE, token=True)
        asm.start(0, 0, MM2S, 0, 0, repeat=n // TILE)
        asm.start(0, 0, MM2S, 1, 1, repeat=n // TILE)
        asm.wait(S2MM, 0)
    contract = KernelContract(
        Binding("a", (m, k), np.int8, "r"),
        Binding("b", (k, n), np.int8, "r"),
        Binding("product", (m, n), np.int32, "w"),
    )
    return Example(_container(MATMUL_PDI, 3), asm.finish(), contract)
