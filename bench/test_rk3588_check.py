# SPDX-License-Identifier: MIT
"""What it costs to look through a job before its driver gets it, beside the submission itself."""

import numpy as np
import pytest

import npukit
from npukit.programs.rk3588.check import _remembered
from npukit.programs.rk3588.matmul import matmul_program
from npukit.programs.rk3588.program import Program, rknpu_tasks

TASKS = 16


@pytest.fixture(scope="module")
def job():
    """(device, the checker, the job's tasks): small products, one after the other."""
    with npukit.open("sim:rknpu") as device, device.alloc(1 << 20) as buffer:
        place = buffer.dma_address
        products = [
            matmul_program(
                4, 32, 32, np.int8, np.int32, place + at, place + 0x80000, place + at + 4096
            )
            for at in range(0x40000, 0x40000 + 0x2000 * TASKS, 0x2000)
        ]
        program = Program.join(products).chained(place)
        with buffer.access("w") as memory:
            memory[: program.words.nbytes] = program.words.view(np.uint8)
        del memory
        yield device, device.checker, list(rknpu_tasks(program, place))


@pytest.mark.benchmark(group=f"a job of {TASKS} tasks, sim:rknpu")
class TestJob:
    def test_baseline_unchecked(self, benchmark, job):
        device, _, tasks = job
        device.checker = None
        benchmark.extra_info.update(label="unchecked")
        benchmark(device.submit, tasks)

    def test_seen_before(self, benchmark, job):
        device, checker, tasks = job
        device.checker = checker
        benchmark.extra_info.update(label="checked, the words seen before")
        benchmark(device.submit, tasks)

    def test_new(self, benchmark, job):
        device, checker, tasks = job
        device.checker = checker

        def submit():
            _remembered.cache_clear()
            device.submit(tasks)

        benchmark.extra_info.update(label="checked, new words")
        benchmark(submit)
