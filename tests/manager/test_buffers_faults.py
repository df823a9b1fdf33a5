# SPDX-License-Identifier: MIT
"""Every step of the allocator that fails, with every errno, leaves nothing behind."""

import contextlib
import errno
import gc
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from manager.lending import BACKENDS, Lending, machine
from support import mapped_files, no_leak, open_fds

from npukit.ioctl import Fault, FaultyKernel
from npukit.manager.backends import FileSegment
from npukit.manager.buffers import Buffer, BufferState
from npukit.manager.types import BufferPriority

PAGE = mmap.PAGESIZE
READ, WRITE = mmap.PROT_READ, mmap.PROT_WRITE
CODES = [
    errno.EIO,
    errno.ENOMEM,
    errno.EINVAL,
    errno.EBUSY,
    errno.ENOENT,
    errno.EACCES,
    errno.EMFILE,
    errno.EINTR,
]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    path: Path = tmp_path_factory.mktemp("faults") / "weights"
    path.write_bytes(b"w" * (2 * PAGE + 10))
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


def life(kernel: Any, name: str, weights: int) -> list[tuple[Any, ...]]:
    """All that can be done with buffers, as far as it goes."""
    with Lending(name, kernel, limit=16 * PAGE) as lending:
        client = lending.client()
        refused = contextlib.suppress(OSError, KeyError)
        segment = FileSegment(weights, 2 * PAGE + 10)
        with refused:
            client.buffers.alloc_async(
                [
                    client.request("read", 3 * PAGE, segment=segment),
                    client.request("write", 3 * PAGE, protection=READ | WRITE),
                    client.request("taken", PAGE),
                ]
            )
        lending.work()
        there: dict[str, Buffer] = {
            event[1]: event[3] for event in lending.events if event[0] == "alloc" and event[3]
        }
        # A failed allocation is not charged, not even until its client goes.
        assert lending.allocator.used() == sum(buffer.request.size for buffer in there.values())
        for buffer in there.values():
            with refused:
                mapping = buffer.map(buffer.request.protection)
                buffer.unmap(mapping)
            if buffer.request.cookie != "taken":
                client.load(buffer, FileSegment(weights, PAGE + 1, offset=PAGE))
                lending.work()
            with refused:
                buffer.set_priority(BufferPriority(1))
        with refused:
            mapping = there["write"].map(READ)
            client.session.preempt(there["write"].request_id)
            there["write"].unmap(mapping)
        for cookie in ("taken", "read"):
            if cookie in there and there[cookie].state is not BufferState.GONE:
                client.session.preempt(there[cookie].request_id)
        lending.now = 100.0
        lending.allocator.tick()
        for buffer in list(there.values())[:1]:
            with refused:
                buffer.free()
        with refused:
            client.close()
        client.session.close()
        assert lending.allocator.used() == 0
        assert lending.allocator.next_deadline() is None
        return lending.events


@pytest.mark.parametrize("name", BACKENDS)
def test_every_failing_step_leaves_nothing(name: str, weights: int) -> None:
    with no_leak():
        counting = FaultyKernel(machine(name))
        events = life(counting, name, weights)
        arrived = [event for event in events if event[0] == "alloc"]
        assert [event[2] for event in arrived] == [0, 0, 0]
        assert [event[2] for event in events if event[0] == "load"] == [0, 0]
    assert counting.calls > 10
    for step in range(counting.calls):
        for code in CODES:
            fds, maps = open_fds(), mapped_files()
            with contextlib.suppress(OSError):
                life(FaultyKernel(machine(name), [Fault(code, after=step)]), name, weights)
            if open_fds() != fds or mapped_files() != maps:
                # Only what a traceback still holds may be left.
                gc.collect()
                assert open_fds() == fds, (step, errno.errorcode[code])
                assert mapped_files() == maps, (step, errno.errorcode[code])


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("step", range(0, 40, 6))
def test_a_kernel_that_fails_for_good(name: str, step: int, weights: int) -> None:
    """From one call on all fail, those that clean up included."""
    with no_leak(), contextlib.suppress(OSError):
        kernel = FaultyKernel(machine(name), [Fault(errno.EIO, after=step, times=None)])
        life(kernel, name, weights)
