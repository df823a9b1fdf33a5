# SPDX-License-Identifier: MIT
"""Run programs on an open device: place the words, make the driver's task table, submit, wait."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from npukit.abi.rknpu import rknpu_task
from npukit.devices.rknpu import RknpuDevice
from npukit.devices.rocket import RocketBuffer, RocketDevice, RocketJob
from npukit.ioctl import DeviceLost, ProgramError

from .program import INT_MASK_DPU, TASK_ALIGN, Program, rknpu_tasks, rocket_tasks
from .registers import DPU

Rk3588Device = RknpuDevice | RocketDevice

_CANARY_BYTES = 16


def run(
    device: Rk3588Device,
    programs: Sequence[Program],
    reads: Iterable[Any],
    writes: Iterable[Any],
    *,
    timeout: float = 6.0,
) -> None:
    """Run up to ``device.core_count`` programs, each on a core of its own, and wait for all.

    The programs must not depend on each other. ``reads`` and ``writes`` are the buffers that they
    use, already coherent for the NPU; afterwards the written ones are coherent for the CPU.

    ProgramError for a task on a rocket device that does not end in the DPU, before anything is
    allocated. WaitTimeout when they are not done in ``timeout`` seconds. DeviceLost when a rocket
    device, which never reports a failed job, left an output untouched.
    """
    programs = [program for program in programs if program.tasks]
    if not programs:
        return
    if isinstance(device, RocketDevice):
        _check_interrupts(programs)
    if len(programs) > device.core_count:
        raise ValueError(f"{len(programs)} programs for {device.core_count} cores")
    size = sum(8 * len(program.words) + TASK_ALIGN for program in programs)
    with device.alloc(size) as code:
        placed = []
        offset = 0
        with code.access("w") as memory:
            for program in programs:
                address = code.dma_address + offset
                program = program.chained(address)
                image = program.words.view(np.uint8)
                memory[offset : offset + len(image)] = image
                placed.append((program, address))
                offset += -(-len(image) // TASK_ALIGN) * TASK_ALIGN
        if isinstance(device, RknpuDevice):
            _run_rknpu(device, placed, timeout)
            for buffer in writes:
                buffer._begin("r", timeout)
        elif isinstance(code, RocketBuffer):
            _run_rocket(device, placed, code, tuple(reads), tuple(writes), timeout)


def _check_interrupts(programs: Sequence[Program]) -> None:
    """rocket unmasks the DPU's interrupt alone, and waits for it after each task."""
    for program in programs:
        for index, task in enumerate(program.tasks):
            if not task.int_mask & INT_MASK_DPU:
                raise ProgramError(
                    message=f"task {index} raises the interrupts {task.int_mask:#x}; rocket waits "
                    f"for the DPU's ({INT_MASK_DPU:#x}) alone, would find it hung after 500 ms and "
                    "reset the core. Use the rknpu driver for the pooling unit"
                )


def _run_rknpu(device: RknpuDevice, placed: list[tuple[Program, int]], timeout: float) -> None:
    tasks: list[rknpu_task] = []
    windows = []
    for program, address in placed:
        windows.append((len(tasks), len(program.tasks)))
        tasks += list(rknpu_tasks(program, address))
    # One program may run on any core; several name theirs.
    core_mask = (0, 0, 3, 7)[len(placed)]
    device.submit(tasks, windows, core_mask, timeout=timeout)


def _run_rocket(
    device: RocketDevice,
    placed: list[tuple[Program, int]],
    code: RocketBuffer,
    reads: tuple[Any, ...],
    writes: tuple[Any, ...],
    timeout: float,
) -> None:
    canary = np.frombuffer(os.urandom(_CANARY_BYTES), np.uint8)
    outputs = _first_atoms(placed, writes)
    for view in outputs:
        view[:] = canary
    for buffer in writes:
        buffer.flush()
    # Jobs of one open file run in order, so all may name the same buffers.
    device.submit(
        [
            RocketJob(rocket_tasks(program, address), (code, *reads), writes)
            for program, address in placed
        ]
    )
    deadline = time.monotonic() + timeout
    for buffer in writes:
        buffer.wait(max(deadline - time.monotonic(), 0.001))
    for view in outputs:
        if np.array_equal(view, canary):
            raise DeviceLost(
                path=device.path,
                hint="an output did not change: the job was dropped, or hung and was reset; rocket "
                "reports neither",
            )


def _first_atoms(placed: list[tuple[Program, int]], writes: tuple[Any, ...]) -> list[Any]:
    """The first 16 bytes that each task's DPU writes, as arrays over the output buffers."""
    views = []
    for program, _ in placed:
        for index in range(len(program.tasks)):
            address = program.state(index).get(DPU.DST_BASE_ADDR.offset)
            for buffer in writes:
                offset = -1 if address is None else address - buffer.dma_address
                if 0 <= offset <= buffer.size - _CANARY_BYTES:
                    views.append(buffer.array()[offset : offset + _CANARY_BYTES])
    return views
