# SPDX-License-Identifier: MIT
"""What a program costs, so that a caller can decide between NPU and CPU.

Everything is read off the registers: multiply-accumulates, and the bytes that each DMA moves. What
the CBUF streams again because it does not hold it is not counted again, nor is the fetch of the
words. Within a task DMA and arithmetic go on at once, and the slower of the two is its time; tasks
of one core follow each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from .decode import TaskView
from .encodings import Precision
from .program import Program
from .registers import CNA


@dataclass(frozen=True, slots=True)
class Rates:
    """What one core does in a second.

    The defaults are round numbers for an RK3588: 6 TOPS of int8 by three cores (the maker's), half
    as many in fp16, and a share of the memory that others leave. A multiply-accumulate is two
    operations.
    """

    dma: float = 1e9
    """Bytes."""
    int8: float = 2e12
    """Operations."""
    fp16: float = 1e12
    task: float = 0.0
    """Seconds beside, for each task."""


@dataclass(frozen=True, slots=True)
class Cost:
    """``seconds`` on one core; the rest are sums over the tasks."""

    tasks: int
    macs: int
    bytes_read: int
    bytes_written: int
    seconds: float

    def __add__(self, other: Cost) -> Cost:
        """One after the other."""
        return Cost(
            self.tasks + other.tasks,
            self.macs + other.macs,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
            self.seconds + other.seconds,
        )

    def __str__(self) -> str:
        return (
            f"{self.macs:,} MACs, {self.bytes_read:,} bytes read, {self.bytes_written:,} written, "
            f"{self.seconds * 1e6:.1f} us"
        )


RK3588 = Rates()


def task_cost(view: TaskView, rates: Rates = RK3588) -> Cost:
    """Of one task."""
    accesses = view.accesses()
    read = sum(access.size for access in accesses if not access.write)
    written = sum(access.size for access in accesses if access.write)
    half = view(CNA.CONV_CON1, "IN_PRECISION") == Precision.FP16
    compute = 2 * view.macs / (rates.fp16 if half else rates.int8)
    seconds = max((read + written) / rates.dma, compute) + rates.task
    return Cost(1, view.macs, read, written, seconds)


def cost(program: Program, rates: Rates = RK3588) -> Cost:
    """Of a whole program on one core."""
    total = Cost(0, 0, 0, 0, 0.0)
    for index, task in enumerate(program.tasks):
        total += task_cost(TaskView(program.state(index), task.enable_mask), rates)
    return total
