# SPDX-License-Identifier: MIT
"""Hostile containers, streams and packets: each is read, or refused with a ProgramError.

Usage: fuzz.py [COUNT [SEED]], 100,000 files by default. Memory and time are bounded as well: no
file may take more than a fixed multiple of its size, nor more than some seconds (a stream that
goes in circles on the simulated array is stopped after so many steps).
"""

from __future__ import annotations

import random
import struct
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from npukit.ioctl import ProgramError
from npukit.programs.xdna import designs, ert, txn, xclbin
from npukit.programs.xdna.registers import BufferDescriptor
from npukit.programs.xdna.txn import Assembler, Header
from npukit.sim.aie import Array, ArrayError, Design, HostMemory, Port, Stuck

EDGES = [
    0, 1, 2, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 1 << 16, (1 << 31) - 1, 1 << 31,
    (1 << 32) - 8, (1 << 32) - 4, (1 << 32) - 1,
]  # fmt: skip
EDGES_64 = [*EDGES, 1 << 32, 1 << 63, (1 << 64) - 4096, (1 << 64) - 8, (1 << 64) - 1]
SECONDS = 10.0
BYTES_A_BYTE = 400
BYTES_FOR_ALL = 4 << 20
"""An array's memory tiles and what is on its way included."""


def seeds() -> list[tuple[str, bytes]]:
    """(kind, good file) of every kind."""
    files = [
        ("xclbin", designs.memcpy(64).xclbin),
        (
            "xclbin",
            xclbin.build_npu(
                [xclbin.NpuKernel(f"K{i}", bytes(50), 3, ("A", "B"), 0x901 + i) for i in range(4)],
                column_width=4,
                start_columns=(0, 4),
            ),
        ),
    ]
    for version in txn.VERSIONS:
        asm = Assembler(Header(version))
        asm.buffer_descriptor(0, 0, 1, BufferDescriptor(64))
        asm.ddr_patch(0x1D024, 1, 64)
        asm.ddr_patch(0x1D024, 1, 64, long=True)
        asm.mask_poll(0x1D204, 1, 1)
        asm.start(0, 0, 0, 0, 1)
        asm.wait(0, 0)
        stream = asm.finish()
        files += [
            ("txn", stream.to_bytes()),
            ("txn", str(stream).encode()),
            ("txn", txn.to_hex(stream).encode()),
        ]
    files += [
        ("ert", ert.start_cu(0, bytes(64))),
        ("ert", ert.start_npu(1, 4096, 64, [1, 2, 3])),
        ("ert", ert.preempt(2, (4, 8), (8, 4), (12, 4))),
        ("ert", ert.chain([1, 2, 3])),
        ("array", designs.memcpy(256).instructions.to_bytes()),
        ("array", designs.transpose(8, 16).instructions.to_bytes()),
    ]
    return files


def mutate(rng: random.Random, data: bytes) -> bytes:
    """One to eight changes, most of them where numbers stand."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if not out:
            break
        kind = rng.randrange(7)
        place = rng.randrange(len(out))
        if kind == 0:
            out[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[place] = rng.randrange(256)
        elif kind == 2 and len(out) >= 4:
            place = rng.randrange(len(out) - 3) & ~3
            struct.pack_into("<I", out, place, rng.choice(EDGES) & 0xFFFFFFFF)
        elif kind == 3 and len(out) >= 8:
            place = rng.randrange(len(out) - 7) & ~7
            struct.pack_into("<Q", out, place, rng.choice(EDGES_64))
        elif kind == 4:
            del out[place : place + rng.randrange(1, 64)]
        elif kind == 5:
            out[place:place] = rng.randbytes(rng.randrange(1, 32))
        else:
            other = rng.randrange(len(out))
            out[place : place + 16] = out[other : other + 16]
    return bytes(out)


def read_xclbin(data: bytes) -> None:
    """All that can be asked of a container; what one part refuses does not spare the others."""
    file = xclbin.Xclbin(data)
    parts: list[Callable[[], object]] = [
        lambda: file.ips,
        lambda: file.memories,
        lambda: file.connections,
        lambda: file.group_memories,
        lambda: file.group_connections,
        lambda: file.partition,
        lambda: file.compute_units,
        file.rebuild,
    ]
    failed: ProgramError | None = None
    for part in parts:
        try:
            part()
        except ProgramError as error:
            failed = error
    if failed is not None:
        raise failed


def read_txn(data: bytes) -> None:
    """A stream that is read says the same bytes again."""
    stream = txn.read(data)
    txn.explain(stream)
    stream.patches()
    again = txn.assemble(str(stream))
    assert again == stream, data.hex()


def read_ert(data: bytes) -> None:
    ert.health(data)
    ert.state_of(data)
    ert.decode(data)


class Memory(HostMemory):
    """A page for the array to move; all else is a fault."""

    BASE = 1 << 20

    def __init__(self) -> None:
        self.bytes = np.zeros(4096, np.uint8)

    def view(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        start = address - self.BASE
        if start < 0 or start + size > len(self.bytes):
            raise ArrayError("a fault")
        return self.bytes[start : start + size]


def run_stream(data: bytes) -> None:
    """A stream that is read runs on the simulated array to its end, or stops with a reason."""
    stream = txn.Transaction(data)
    array = Array(2, Memory(), LOOP)
    try:
        array.run(stream, [Memory.BASE, Memory.BASE + 2048])
    except Stuck as stuck:
        raise ProgramError(message=str(stuck)) from None


LOOP = Design(b"loop", {Port(0, 0, 1, 0): (Port(0, 0, 0, 0),)})
READERS = {"xclbin": read_xclbin, "txn": read_txn, "ert": read_ert, "array": run_stream}


def run(count: int, seed: int) -> Counter[str]:
    """Read ``count`` mutated files; how many were read and how many refused, by kind."""
    rng = random.Random(seed)
    files = seeds()
    seen: Counter[str] = Counter()
    tracemalloc.start()
    try:
        for number in range(count):
            kind, good = files[number % len(files)]
            data = mutate(rng, good)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            start = time.process_time()
            try:
                READERS[kind](data)
                seen[f"{kind} read"] += 1
            except ProgramError:
                seen[f"{kind} refused"] += 1
            except Exception as error:
                raise AssertionError(
                    f"seed {seed}, file {number} ({kind}): {data.hex()}"
                ) from error
            spent = time.process_time() - start
            used = tracemalloc.get_traced_memory()[1] - before
            assert spent < SECONDS, f"{kind}: {spent:.1f} s: {data.hex()}"
            assert used < BYTES_FOR_ALL + BYTES_A_BYTE * len(data), f"{kind}: {used}: {data.hex()}"
    finally:
        tracemalloc.stop()
    return seen


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 32)
    print(f"xdna fuzz: {count} files, seed {seed}", flush=True)
    print(dict(sorted(run(count, seed).items())))


if __name__ == "__main__":
    main()
