# SPDX-License-Identifier: MIT
"""Run programs on an open device: place the words, make the driver's task table, submit, wait."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

import numpy as np

from npukit.devices.rknpu import RknpuDevice
from npukit.devices.rocket import RocketDevice, RocketJob
from npukit.ioctl import DeviceLost, ProgramError

from .program import INT_MASK_DPU, TASK_ALIGN, Program, rknpu_tasks, rocket_tasks
from .registers import DPU
from .tensor import align

Rk3588Device = RknpuDevice | RocketDevice

_CANARY_BYTES = 16


def core_share(device: Rk3588Device, cores: int | None) -> int:
    """How many cores to use: ``cores``, or all.

    ProgramError: another NPU. ValueError: more cores than the device has, or none.
    """
    if not isinstance(device, Rk3588Device):
        raise ProgramError(message=f"a program for an RK3588 cannot run on {device!r}")
    share = device.core_count if cores is None else cores
    if not 1 <= share <= device.core_count:
        raise ValueError(f"{share} cores: the device has {device.core_count}")
    return share


class Code:
    """Programs in a buffer of their own, ready to be run any number of times.

    ``steps`` are run one after the other; the programs of a step each have a core to themselves, so
    none may depend on another. A step is a submission under rknpu, and under rocket a job for each
    program, all in one submission: the jobs of an open file run in order.

    ValueError: a step of more programs than the device has cores. ProgramError: for a rocket
    device, a task that does not end in the DPU.
    """

    def __init__(self, device: Rk3588Device, steps: Iterable[Sequence[Program]]) -> None:
        self.device = device
        chosen = [[program for program in step if program.tasks] for step in steps]
        self.steps = [step for step in chosen if step]
        """What is run: programs as they stand in memory."""
        self._tasks: list[list[Any]] = []
        """The driver's table for each program."""
        most = max(map(len, self.steps), default=0)
        if most > device.core_count:
            raise ValueError(f"{most} programs for {device.core_count} cores")
        if isinstance(device, RocketDevice):
            _check_interrupts(chain(*self.steps))
        images = [
            align(program.words.nbytes, TASK_ALIGN) for step in self.steps for program in step
        ]
        self._buffer: Any = device.alloc(max(sum(images), 1))
        try:
            self._write()
        except BaseException:
            self._buffer.close()
            raise

    def _write(self) -> None:
        table = rknpu_tasks if isinstance(self.device, RknpuDevice) else rocket_tasks
        offset = 0
        with self._buffer.access("w") as memory:
            for step in self.steps:
                tables = []
                for index, program in enumerate(step):
                    address = self._buffer.dma_address + offset
                    step[index] = program.chained(address)
                    image = step[index].words.view(np.uint8)
                    memory[offset : offset + len(image)] = image
                    tables.append(table(program, address))
                    offset += align(len(image), TASK_ALIGN)
                self._tasks.append(tables)

    def __enter__(self) -> Code:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the memory back. Idempotent."""
        self._buffer.close()

    def run(
        self,
        reads: Iterable[Any],
        writes: Iterable[Any],
        between: Iterable[Any] = (),
        *,
        timeout: float = 6.0,
    ) -> None:
        """Run all and wait.

        ``reads`` and ``writes`` are the buffers that the programs use, already coherent for the
        NPU; afterwards the written ones are coherent for the CPU. ``between`` are those that only
        programs write and read.

        WaitTimeout when a submission is not done in ``timeout`` seconds. DeviceLost when a rocket
        device, which never reports a failed job, left the output of a task untouched.
        """
        if isinstance(self.device, RknpuDevice):
            for tables in self._tasks:
                ends = list(accumulate(map(len, tables), initial=0))
                windows = list(zip(ends, map(len, tables), strict=False))
                # One program may run on any core; several name theirs.
                mask = (0, 0, 3, 7)[len(tables)]
                self.device.submit(list(chain(*tables)), windows, mask, timeout=timeout)
            for buffer in writes:
                buffer._begin("r", timeout)
        elif self.steps:
            self._run_rocket(self.device, tuple(reads), (*writes, *between), timeout)

    def _run_rocket(
        self, device: RocketDevice, reads: tuple[Any, ...], writes: tuple[Any, ...], timeout: float
    ) -> None:
        canary = np.frombuffer(os.urandom(_CANARY_BYTES), np.uint8)
        outputs = self._first_atoms(writes)
        for view in outputs:
            view[:] = canary
        for buffer in writes:
            buffer.flush()
        # Jobs of one open file run in order, so all may name the same buffers.
        device.submit(
            [
                RocketJob(table, (self._buffer, *reads), writes)
                for tables in self._tasks
                for table in tables
            ]
        )
        deadline = time.monotonic() + timeout
        for buffer in writes:
            buffer.wait(max(deadline - time.monotonic(), 0.001))
        for view in outputs:
            if np.array_equal(view, canary):
                raise DeviceLost(
                    path=device.path,
                    hint="an output did not change: the job was dropped, or hung and was reset; "
                    "rocket reports neither",
                )

    def _first_atoms(self, writes: tuple[Any, ...]) -> list[Any]:
        """The first 16 bytes that each task's DPU writes, as arrays over the output buffers."""
        views = []
        for address in self._outputs:
            for buffer in writes:
                offset = address - buffer.dma_address
                if 0 <= offset <= buffer.size - _CANARY_BYTES:
                    views.append(buffer.array()[offset : offset + _CANARY_BYTES])
        return views

    @cached_property
    def _outputs(self) -> list[int]:
        """Where each task's DPU writes."""
        states = (
            program.state(index)
            for step in self.steps
            for program in step
            for index in range(len(program.tasks))
        )
        register = DPU.DST_BASE_ADDR.offset
        return [state[register] for state in states if register in state]


def _check_interrupts(programs: Iterable[Program]) -> None:
    """rocket unmasks the DPU's interrupt alone, and waits for it after each task."""
    for program in programs:
        for index, task in enumerate(program.tasks):
            if not task.int_mask & INT_MASK_DPU:
                raise ProgramError(
                    message=f"task {index} raises the interrupts {task.int_mask:#x}; rocket waits "
                    f"for the DPU's ({INT_MASK_DPU:#x}) alone, would find it hung after 500 ms and "
                    "reset the core. Use the rknpu driver for the pooling unit"
                )


def run(
    device: Rk3588Device,
    programs: Sequence[Program],
    reads: Iterable[Any],
    writes: Iterable[Any],
    *,
    timeout: float = 6.0,
) -> None:
    """Run up to ``device.core_count`` programs once, as a step of ``Code``."""
    if not any(program.tasks for program in programs):
        return
    with Code(device, [programs]) as code:
        code.run(reads, writes, timeout=timeout)
