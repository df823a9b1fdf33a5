# SPDX-License-Identifier: MIT
"""What the simulated array makes of the designs of npukit.programs.xdna.designs."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from npukit.programs.xdna import designs
from npukit.programs.xdna.registers import MM2S, S2MM

from .aie import CoreTile, Design, Port, Receive, Send

Work = Generator[Receive | Send, bytes, None]


def vector_add(tile: CoreTile) -> Work:
    """Piece after piece of two vectors of int32 and their sum."""
    size = 4 * designs.ADD_WORDS
    while True:
        a = np.frombuffer((yield Receive(0, size)), np.int32)
        b = np.frombuffer((yield Receive(1, size)), np.int32)
        yield Send(0, (a + b).tobytes())


def matmul(tile: CoreTile) -> Work:
    """Pairs of int8 tiles, as many as the first word of memory says, and the int32 sum of their
    products."""
    side = designs.TILE
    size = side * side
    while True:
        a = yield Receive(0, size)
        total = np.zeros((side, side), np.int32)
        for index in range(int(tile.memory[0])):
            if index:
                a = yield Receive(0, size)
            b = yield Receive(1, size)
            left = np.frombuffer(a, np.int8).reshape(side, side).astype(np.int32)
            total += left @ np.frombuffer(b, np.int8).reshape(side, side).astype(np.int32)
        yield Send(0, total.tobytes())


_CORE = designs.CORE_TILE
_TWO_IN_ONE_OUT: dict[Port, tuple[Port, ...]] = {
    Port(0, 0, MM2S, 0): (Port(*_CORE, S2MM, 0),),
    Port(0, 0, MM2S, 1): (Port(*_CORE, S2MM, 1),),
    Port(*_CORE, MM2S, 0): (Port(0, 0, S2MM, 0),),
}

DESIGNS = (
    Design(designs.MEMCPY_PDI),
    Design(designs.TRANSPOSE_PDI),
    Design(designs.VECTOR_ADD_PDI, _TWO_IN_ONE_OUT, {_CORE: vector_add}),
    Design(designs.MATMUL_PDI, _TWO_IN_ONE_OUT, {_CORE: matmul}),
)
