# SPDX-License-Identifier: MIT
"""The corpus that rk3588_fuzz.c mutates: programs which complete, and the memory each needs.

    python -m sim.rk3588_fuzz FILE

All numbers are little-endian u32: the register masks, how many programs there are, and for each of
them: words, words of the first task, tasks, spans; (address, bytes) of each span, the words' own
first; then the words, as u64.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sim.rk3588_streams import Conv, Flight, Pool
from sim.test_rk3588_npu_conv import convs
from sim.test_rk3588_npu_dpu import programs as behind_convolutions
from sim.test_rk3588_npu_flying import programs as flying
from sim.test_rk3588_npu_lut import lookup, table_words
from sim.test_rk3588_npu_pool import pools

from npukit.programs.rk3588.conv import Convolution, conv2d, depthwise_conv2d
from npukit.programs.rk3588.matmul import matmul_program
from npukit.programs.rk3588.program import Program
from npukit.programs.rk3588.quantize import Quantization
from npukit.programs.rk3588.registers import REGISTERS

REGCMD = 0x1000
INPUTS, CONSTANTS, OUTPUT = (0x10000000, 0x18000000), 0x20000000, 0x30000000
STEP = Quantization(0.1, 128)


@dataclass(frozen=True)
class Entry:
    words: list[int]
    spans: list[tuple[int, int]]
    first: int
    tasks: int = 1

    def encode(self) -> bytes:
        size = 8 * (len(self.words) + len(self.words) % 2)
        spans = [(REGCMD, size), *self.spans]
        head = [len(self.words), self.first, self.tasks, len(spans)]
        numbers = np.array([*head, *(number for span in spans for number in span)], "<u4")
        return numbers.tobytes() + np.array(self.words, "<u8").tobytes()


def entry(op: Conv | Flight | Pool, words: list[int], spans: Any = ()) -> Entry:
    return Entry(words, [*op.spans().values(), *(span[:2] for span in spans)], len(words))


def drawn(
    strategy: st.SearchStrategy[Any], count: int, make: Callable[[Any], Entry]
) -> list[Entry]:
    """Always the same examples of a strategy."""
    entries: list[Entry] = []

    @settings(
        max_examples=count, derandomize=True, database=None, deadline=None,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy)
    def collect(example: Any) -> None:
        entries.append(make(example))

    collect()
    return entries


def program_entry(program: Program, spans: list[tuple[int, int]]) -> Entry:
    chained = program.chained(REGCMD)
    words = [int(word) for word in chained.words]
    return Entry(words, spans, chained.tasks[0].count, len(chained.tasks))


def operation(op: Convolution) -> Entry:
    places = INPUTS[: len(op.inputs)]
    spans = [(place, tensor.size) for place, tensor in zip(places, op.inputs, strict=True)]
    if op.constants.size:
        spans.append((CONSTANTS, op.constants.nbytes))
    spans.append((OUTPUT, op.output.size))
    return program_entry(op.program(places, CONSTANTS, OUTPUT), spans)


def operations() -> list[Entry]:
    """Programs of this package, tall ones in several tasks."""
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        return rng.integers(0, 256, shape, np.uint8)

    step = Quantization(0.02, 120)
    return [
        operation(conv2d(9, 7, weights(5, 3, 3, 16), None, STEP, step, STEP)),
        operation(conv2d(6, 6, weights(40, 1, 1, 50), None, STEP, step, STEP, addend=STEP)),
        operation(conv2d(90, 60, weights(8, 3, 3, 64), None, STEP, step, STEP, stride=2)),
        operation(depthwise_conv2d(12, 10, weights(1, 3, 3, 70), None, STEP, step, STEP, stride=2)),
        *(
            program_entry(
                matmul_program(4, 64, 32, dtype, out, INPUTS[0], CONSTANTS, OUTPUT),
                [(INPUTS[0], 4 * 64 * size), (CONSTANTS, 32 * 64 * size), (OUTPUT, 4 * 32 * 4)],
            )
            for dtype, out, size in ((np.int8, np.int32, 1), (np.float16, np.float32, 2))
        ),
    ]


def lookups() -> list[Entry]:
    rng = np.random.default_rng(1)
    fill = table_words(rng.integers(0, 32768, (2, 513), np.int16))
    entries = []
    for dtype, out_dtype in (("fp16", "fp16"), ("int8", "int16"), ("int32", "int8")):
        changes = {} if dtype == "fp16" else {
            "OUT_CVT_SHIFT__CVT_TYPE": 0, "OUT_CVT_SHIFT__MINUS_EXP": 0
        }  # fmt: skip
        flight = Flight(dtype, out_dtype, 3, 5, 24)
        entries.append(entry(flight, fill + flight.words(**lookup(**changes))))
    return entries


def channel_last() -> list[Entry]:
    entries = []
    for channels in (1, 2, 3, 4):
        conv = Conv(height=7, width=9, channels=16, kernels=20, kernel=(3, 3), out=(5, 7), off=True)
        changes = {
            "CNA__CONV_CON1__ARGB_IN": 7 + channels,
            "CNA__CONV_CON1__NONALIGN_DMA": 1,
            "CNA__CVT_CON0__CVT_BYPASS": 0,
            "CNA__CVT_CON0__CVT_TYPE": 0,
            "CNA__CVT_CON0__DATA_SIGN": 0,
            "CNA__CVT_CON5__PER_CHANNEL_CVT_EN": 0xFFFF,
            "CNA__CBUF_CON1__DATA_ENTRIES": 63,
        }
        entries.append(entry(conv, conv.words(**changes)))
    return entries


def full() -> list[Entry]:
    """More features than the CBUF holds, or as many weights."""
    wide = Conv(height=60, width=64, channels=128, kernels=3, stride=(7, 7), out=(9, 10))
    heavy = Conv(height=2, width=2, channels=1024, kernels=320, out=(1, 1))
    return [entry(conv, conv.words()) for conv in (wide, heavy)]


def corpus() -> list[Entry]:
    return [
        *drawn(convs(), 100, lambda conv: entry(conv, conv.words())),
        *drawn(behind_convolutions(), 200, lambda program: entry(*program)),
        *drawn(flying(), 150, lambda program: entry(*program)),
        *drawn(pools(), 80, lambda pool: entry(pool, pool.words())),
        *(operations() + lookups() + channel_last() + full()) * 8,
    ]


def write(path: str) -> None:
    masks = np.zeros(0x4000, "<u4")
    for offset, register in REGISTERS.items():
        masks[offset // 4] = register.mask
    entries = corpus()
    with open(path, "wb") as file:
        file.write(masks.tobytes() + len(entries).to_bytes(4, "little"))
        file.writelines(one.encode() for one in entries)


if __name__ == "__main__":
    write(sys.argv[1])
