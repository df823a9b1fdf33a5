# SPDX-License-Identifier: MIT
import functools
from collections.abc import Callable

import numpy as np
import pytest

import npukit
from npukit import smoke
from npukit.devices import open_device
from npukit.devices.rknpu import RknpuDevice
from npukit.programs.rk3588.matmul import matmul_program
from npukit.programs.rk3588.program import rknpu_tasks
from npukit.sim import SimKernel
from npukit.trace.record import Record
from npukit.trace.recorder import Recorder


@functools.cache
def _record(name: str) -> tuple[Record, ...]:
    kernel = SimKernel([name])
    records: list[Record] = []
    with (
        Recorder(records.append) as recorder,
        npukit._open(kernel.path(name), recorder.kernel(kernel)) as device,
    ):
        for _step, check in smoke._steps(device, True):
            passed, seen = check(device)
            assert passed, seen
    return tuple(records)


@pytest.fixture(scope="session")
def smoke_trace() -> Callable[[str], tuple[Record, ...]]:
    """The records of the smoke test on a simulated device."""
    return _record


@pytest.fixture
def fence_trace() -> list[Record]:
    """The records of a job of rknpu's whose fence is polled."""
    kernel = SimKernel(["rknpu"])
    records: list[Record] = []
    with Recorder(records.append) as recorder:
        device = open_device(kernel.path("rknpu"), recorder.kernel(kernel))
        assert isinstance(device, RknpuDevice)
        with device, device.alloc(1 << 16) as data, device.alloc(1 << 12) as code:
            at = data.dma_address
            program = matmul_program(4, 32, 32, np.int8, np.int32, at, at + 4096, at + 8192)
            program = program.chained(code.dma_address)
            with code.access("w") as memory:
                image = program.words.view(np.uint8)
                memory[: len(image)] = image
            # A view keeps the device's file open.
            del memory
            tasks = list(rknpu_tasks(program, code.dma_address))
            with device.submit_async(tasks, core_mask=1) as fence:
                fence.wait(5)
    return records
