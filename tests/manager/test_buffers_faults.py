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
from npukit.ioctl.wrapper import KernelWrapper
from npukit.manager.backends import FileSegment
from npukit.manager.buffers import Buffer, BufferRequest, BufferState, BufferType
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


class Bug(Exception):
    """What nobody has thought of."""


class BuggyKernel(KernelWrapper):
    """Call number ``step`` fails with what is no OSError."""

    def __init__(self, kernel: Any, step: int) -> None:
        super().__init__(kernel)
        self.step = step

    def _pass(self, name: str, *arguments: Any) -> Any:
        if name not in ("close", "munmap", "monotonic_ns"):
            self.step -= 1
            if self.step == -1:
                raise Bug(name)
        return super()._pass(name, *arguments)


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
        refused = contextlib.suppress(OSError, KeyError, Bug)

        def work() -> None:
            while lending.queue:
                with contextlib.suppress(Bug):
                    lending.work()

        segment = FileSegment(weights, 2 * PAGE + 10)
        with refused:
            client.buffers.alloc_async(
                [
                    client.request("read", 3 * PAGE, segment=segment),
                    client.request("write", 3 * PAGE, protection=READ | WRITE),
                    client.request("taken", PAGE),
                ]
            )
        work()
        assert [event[0] for event in lending.events] == ["alloc"] * 3
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
                work()
                assert buffer.state is not BufferState.LOADING
            with refused:
                buffer.set_priority(BufferPriority(1))
        with refused:
            mapping = there["write"].map(READ)
            client.session.preempt(there["write"].request_id)
            there["write"].unmap(mapping)
        for cookie in ("taken", "read"):
            if cookie in there and there[cookie].state is not BufferState.GONE:
                with contextlib.suppress(Bug):
                    client.session.preempt(there[cookie].request_id)
        lending.now = 100.0
        with contextlib.suppress(Bug):
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


@pytest.mark.parametrize("name", BACKENDS)
def test_a_mistake_at_any_step_leaves_nothing(name: str, weights: int) -> None:
    """What is no OSError is answered with EIO, and raised where it happened."""
    counting = FaultyKernel(machine(name))
    with no_leak():
        life(counting, name, weights)
    failed = set()
    for step in range(counting.calls):
        fds, maps = open_fds(), mapped_files()
        with contextlib.suppress(Bug, OSError):
            events = life(BuggyKernel(machine(name), step), name, weights)
            failed |= {event[0] for event in events if event[2:3] == (errno.EIO,)}
        if open_fds() != fds or mapped_files() != maps:
            gc.collect()  # only what a traceback still holds may be left
            assert (open_fds(), mapped_files()) == (fds, maps), step
    assert failed >= {"alloc"}


HUGE = (1 << 63, 1 << 70, -1, -(1 << 70), 2.5, "x", None)
BAD_SEGMENTS = [
    *({"length": value} for value in HUGE),
    *({"file_offset": value} for value in HUGE),
    *({"offset": value} for value in HUGE),
    {"file_offset": (1 << 63) - 1},
    *({"fd": value} for value in (1 << 40, -(1 << 40), 2.5, "x", None)),
]


@pytest.mark.parametrize("wrong", BAD_SEGMENTS, ids=str)
def test_a_segment_that_no_file_has(wrong: dict[str, Any], weights: int) -> None:
    segment = FileSegment(**{"fd": weights, "length": PAGE, **wrong})
    with no_leak(), Lending(limit=16 * PAGE) as lending:
        client = lending.client()
        client.buffers.alloc_async([client.request("a", PAGE, segment=segment)])
        # The service itself does not rely on the client's library.
        client.session.get_buffers(
            [BufferRequest(77, 0, BufferType.MODEL_WEIGHTS, PAGE, segment=segment)]
        )
        lending.work()
        assert lending.events == [("alloc", "a", errno.EINVAL, None)]
        assert (lending.allocator.used(), client.buffers.buffers()) == (0, [])
        lending.events.clear()
        buffer = client.alloc("b", PAGE)
        client.load(buffer, segment)
        lending.work()
        assert lending.events.pop() == ("load", "b", errno.EINVAL)
        assert buffer.state is BufferState.ALLOCATED
        assert lending.allocator.preempt(PAGE) == PAGE
        client.close()


@pytest.mark.parametrize(
    "wrong",
    [
        *({"size": value} for value in ((1 << 63) - 1, 1 << 63, 1 << 70, 0, -1, 2.5, "x", None)),
        *({"device": value} for value in (-1, 1 << 70, 0.5, "x", None)),
        *({"protection": value} for value in (4, -1, 1 << 70, 0.5, "x", None)),
        *({"priority": value} for value in (-1, 1 << 70, "x", None)),
        *({"type": value} for value in (0, 7, -1, 1 << 70, 2.5, "x", [], None)),
        {"segment": "x"},
    ],
    ids=str,
)
def test_a_request_of_wrong_types_or_numbers(wrong: dict[str, Any]) -> None:
    """Also where no limit of the heap refuses it; each is answered, by the service as well."""
    told = []

    class Receiver:
        def on_get_buffer(self, request_id: int, grant: Any, code: int) -> None:
            told.append((request_id, grant, code))

    with no_leak(), Lending() as lending:
        client = lending.client()
        fields = {"cookie": "a", "size": PAGE, **wrong}
        client.buffers.alloc_async([client.request(**fields)])
        lending.work()
        assert lending.events == [("alloc", "a", errno.EINVAL, None)]
        session = lending.allocator.connect(Receiver(), "A")  # type: ignore[arg-type]
        plain = {"request_id": 1, "device": 0, "type": BufferType.CACHE, "size": PAGE}
        session.get_buffers([BufferRequest(**{**plain, **wrong})])
        session.get_buffers([BufferRequest(**{**plain, "request_id": "x"})])
        lending.work()
        assert told == [(1, None, errno.EINVAL), ("x", None, errno.EINVAL)]
        assert lending.allocator.used() == 0
