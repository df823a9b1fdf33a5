# SPDX-License-Identifier: MIT
import functools
from collections.abc import Callable

import pytest

import npukit
from npukit import smoke
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
