# SPDX-License-Identifier: MIT
"""Buffers between client and service: rows B01 to B10 on every back-end, and what lies between."""

import contextlib
import errno
import gc
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from manager.lending import BACKENDS, CACHE, TAKES_BACK, WEIGHTS, Lending
from support import no_leak

from npukit.abi import wrapfd
from npukit.ioctl import NpuError
from npukit.manager.allocator import Allocator, Heap, LastResort
from npukit.manager.backends import FileSegment, MemfdBackend, best_backend
from npukit.manager.buffers import (
    AllocRequest,
    Buffer,
    BufferClient,
    BufferRequest,
    BufferState,
    BufferType,
    Grant,
)
from npukit.manager.types import FOREGROUND, BufferPriority, Importance, ModelPriority
from npukit.sim import SimKernel

PAGE, MIB = mmap.PAGESIZE, 1 << 20
READ, WRITE = mmap.PROT_READ, mmap.PROT_WRITE
EINVAL, ENOENT, EACCES, EBUSY = errno.EINVAL, errno.ENOENT, errno.EACCES, errno.EBUSY


@pytest.fixture
def weights(tmp_path: Path) -> Iterator[tuple[int, bytes]]:
    data = np.random.default_rng(8).bytes(3 * PAGE - 100)
    (tmp_path / "weights").write_bytes(data)
    fd = os.open(tmp_path / "weights", os.O_RDONLY)
    yield fd, data
    os.close(fd)


@pytest.fixture(params=BACKENDS)
def lending(request: pytest.FixtureRequest, weights: tuple[int, bytes]) -> Iterator[Lending]:
    with no_leak():
        with Lending(request.param) as lending:
            yield lending
        assert lending.allocator.used() == 0


@pytest.fixture(params=TAKES_BACK)
def taking(request: pytest.FixtureRequest, weights: tuple[int, bytes]) -> Iterator[Lending]:
    """One whose memory can be taken back."""
    with no_leak():
        with Lending(request.param) as lending:
            yield lending
        assert lending.allocator.used() == 0


def code_of(call: Any, *arguments: Any) -> int:
    with pytest.raises(OSError, match=r".") as caught:
        call(*arguments)
    assert caught.value.errno is not None
    return caught.value.errno


# ---- The rows -----------------------------------------------------------------------------------


def test_b01_protection(lending: Lending) -> None:
    client = lending.client()
    buffer = client.alloc(size=MIB)
    assert buffer.size == MIB
    mapping = buffer.map(READ)
    assert memoryview(mapping).readonly
    assert code_of(buffer.map, READ | WRITE) == EACCES
    buffer.unmap(mapping)
    buffer.free()
    assert lending.allocator.used() == 0
    client.close()


def test_b02_a_batch_with_one_that_is_wrong(lending: Lending) -> None:
    client = lending.client()
    client.buffers.alloc_async([client.request(1), client.request(2, device=-1), client.request(3)])
    assert lending.events == [("alloc", 2, EINVAL, None)]
    lending.work()
    assert [event[:3] for event in lending.events[1:]] == [("alloc", 1, 0), ("alloc", 3, 0)]
    client.close()


def test_b03_unknown_and_unconfigured(lending: Lending) -> None:
    client = lending.client()
    client.buffers.alloc_async(
        [client.request(1, type=BufferType.UNKNOWN), client.request(2, device=7)]
    )
    assert lending.events == [("alloc", 1, EINVAL, None), ("alloc", 2, errno.ENOSYS, None)]
    wrong, missing, there = client.buffers.is_supported(
        [(0, BufferType.UNKNOWN), (7, WEIGHTS), (0, CACHE)]
    )
    assert isinstance(wrong, NpuError)
    assert wrong.errno == EINVAL
    assert (missing, there) == (False, True)
    client.close()


def test_b04_a_second_load_before_the_first_is_done(
    lending: Lending, weights: tuple[int, bytes]
) -> None:
    client = lending.client()
    buffer = client.alloc(size=3 * PAGE)
    client.load(buffer, FileSegment(weights[0], len(weights[1])))
    client.load(buffer, FileSegment(weights[0], 1))
    assert lending.events == [("load", "a", EINVAL)]
    assert code_of(buffer.map) == EBUSY
    lending.work()
    assert lending.events[1:] == [("load", "a", 0)]
    assert buffer.state is BufferState.ALLOCATED
    assert contents(buffer)[: len(weights[1])] == weights[1]
    client.close()


def contents(buffer: Buffer) -> bytes:
    mapping = buffer.map(READ)
    data = bytes(memoryview(mapping))
    buffer.unmap(mapping)
    return data


def test_b05_a_buffer_survives_a_load_that_fails(
    lending: Lending, weights: tuple[int, bytes]
) -> None:
    client = lending.client()
    buffer = client.alloc(size=4 * PAGE)
    client.load(buffer, FileSegment(weights[0], PAGE, file_offset=len(weights[1]) - 1))
    lending.work()
    assert lending.events == [("load", "a", EINVAL)]
    assert buffer.state is BufferState.ALLOCATED
    assert len(contents(buffer)) == 4 * PAGE
    # Also one that does not fit, and a file that cannot be read.
    client.load(buffer, FileSegment(weights[0], PAGE, offset=4 * PAGE - 1))
    writer = os.open("/dev/null", os.O_WRONLY)
    client.load(buffer, FileSegment(writer, 1))
    lending.work()
    assert [event[2] != 0 for event in lending.events] == [True, True, True]
    client.load(buffer, FileSegment(99999, 1))
    assert lending.events[-1] == ("load", "a", errno.EBADF)
    client.load(buffer, FileSegment(weights[0], PAGE))
    lending.work()
    assert contents(buffer)[:PAGE] == weights[1][:PAGE]
    os.close(writer)
    client.close()


def test_b06_preempted(taking: Lending, weights: tuple[int, bytes]) -> None:
    client = taking.client()
    buffer = client.alloc()
    # A second descriptor, as a client may keep one.
    kept = taking.kernel.dup(buffer.fileno())
    assert client.session.preempt(buffer.request_id) == MIB
    assert taking.events == [("preempt", "a")]
    assert buffer.state is BufferState.GONE
    assert code_of(buffer.map) == ENOENT
    client.load(buffer, FileSegment(weights[0], 1))
    assert taking.events[1:] == [("load", "a", EINVAL)]
    buffer.free()
    buffer.free()
    assert taking.allocator.used() == 0
    assert taking.freed == [MIB]
    if taking.backend.counts_maps:
        with pytest.raises(FileNotFoundError):
            taking.kernel.mmap(kept, MIB, prot=READ)
    else:
        assert taking.kernel.fstat(kept).st_size == 0
    taking.kernel.close(kept)
    client.close()


def test_b07_preempted_before_it_arrives(lending: Lending) -> None:
    client = lending.client()
    client.buffers.alloc_async([client.request("a")])
    assert client.session.preempt(1) == 0
    canceled = [("alloc", "a", errno.ECANCELED, None), ("preempt", "a")]
    assert lending.events == canceled
    lending.work()
    assert lending.events == canceled
    # And an answer that was on its way already.
    late = lending.kernel.memfd_create("late")
    client.buffers.on_get_buffer(1, Grant(late, PAGE, True), 0)
    client.buffers.on_preempted(1)
    assert lending.events == canceled
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(late)
    client.close()


def test_b08_unknown_ids_do_not_keep_known_ones(lending: Lending) -> None:
    client = lending.client()
    buffer = client.alloc()
    with pytest.raises(NpuError, match="no buffer 99") as caught:
        client.session.put_buffers([buffer.request_id, 99])
    assert caught.value.errno == EINVAL
    assert lending.allocator.used() == 0
    assert code_of(client.session.put_buffers, [buffer.request_id]) == EINVAL
    assert code_of(client.session.set_priority, 99, BufferPriority(0)) == EINVAL
    assert code_of(client.session.preempt, 99) == EINVAL
    # The local entry is dropped even though the service refuses.
    assert code_of(buffer.free) == EINVAL
    assert client.buffers.buffers() == []
    client.close()


class Told:
    """A receiver that writes down what it is told."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.events: list[tuple[Any, ...]] = []

    def on_get_buffer(self, request_id: int, grant: Grant | None, code: int) -> None:
        self.events.append(("get", request_id, grant is not None, code))
        if grant is not None:
            self.kernel.close(grant.fd)

    def on_load(self, request_id: int, code: int, grant: Grant | None) -> None:
        self.events.append(("load", request_id, code))

    def on_preempted(self, request_id: int) -> None:
        self.events.append(("preempted", request_id))


def test_b09_the_same_id_twice(lending: Lending) -> None:
    told = Told(lending.kernel)
    session = lending.allocator.connect(told, "A")
    session.get_buffers([BufferRequest(7, 0, WEIGHTS, PAGE), BufferRequest(7, 0, WEIGHTS, PAGE)])
    lending.work()
    assert sorted(told.events) == [("get", 7, False, EINVAL), ("get", 7, True, 0)]
    assert lending.allocator.used() == PAGE
    session.put_buffers([7])
    session.close()


def test_b10_a_client_dies(lending: Lending) -> None:
    client = lending.client()
    first, second = client.alloc(1), client.alloc(2)
    mapping = first.map()
    client.session.close()
    client.session.close()
    assert lending.events == []
    assert lending.freed == [2 * MIB]
    assert lending.allocator.used() == 0
    # The kernel keeps what is mapped until the last unmap.
    assert memoryview(mapping)[MIB - 1] == 0
    first.unmap(mapping)
    for buffer in (first, second):
        assert code_of(buffer.free) == EINVAL


# ---- Between the rows ---------------------------------------------------------------------------


def test_a_segment_is_there_before_the_buffer_is(
    lending: Lending, weights: tuple[int, bytes]
) -> None:
    client, (file, data) = lending.client(), weights
    for prot in (READ, READ | WRITE):
        segment = FileSegment(file, 2 * PAGE, file_offset=PAGE // 2, offset=PAGE)
        buffer = client.alloc(size=4 * PAGE, protection=prot, segment=segment)
        seen = contents(buffer)
        assert seen[PAGE : 3 * PAGE] == data[PAGE // 2 : PAGE // 2 + 2 * PAGE]
        assert not any(seen[:PAGE] + seen[3 * PAGE :])
        buffer.free()
    client.buffers.alloc_async(
        [client.request(1, segment=FileSegment(file, len(data) + 1)), client.request(2)]
    )
    lending.work()
    assert [event[2] for event in lending.events] == [EINVAL, 0]
    client.close()


def test_the_segments_file_may_be_closed_at_once(
    lending: Lending, weights: tuple[int, bytes]
) -> None:
    client = lending.client()
    file = os.dup(weights[0])
    client.buffers.alloc_async([client.request(1, PAGE, segment=FileSegment(file, PAGE))])
    os.close(file)
    lending.work()
    buffer = lending.events[0][3]
    assert contents(buffer) == weights[1][:PAGE]
    client.close()


def test_a_writable_buffer(lending: Lending, weights: tuple[int, bytes]) -> None:
    client = lending.client()
    buffer = client.alloc(size=100, protection=READ | WRITE)
    assert buffer.size == PAGE
    mapping = buffer.map(READ | WRITE)
    memoryview(mapping)[:4] = b"mine"
    if not lending.backend.counts_maps:
        # Where the kernel guards mappings it also keeps a mapped one from being loaded.
        client.load(buffer, FileSegment(weights[0], PAGE - 4, offset=4))
        lending.work()
        assert bytes(memoryview(mapping)) == b"mine" + weights[1][: PAGE - 4]
    buffer.unmap(mapping)
    client.load(buffer, FileSegment(weights[0], PAGE - 4, offset=4))
    lending.work()
    assert contents(buffer) == b"mine" + weights[1][: PAGE - 4]
    client.close()


def test_a_mapped_read_only_buffer_is_not_loaded(
    lending: Lending, weights: tuple[int, bytes]
) -> None:
    client = lending.client()
    buffer = client.alloc()
    mapping = buffer.map()
    client.load(buffer, FileSegment(weights[0], PAGE))
    lending.work()
    assert lending.events == [("load", "a", EBUSY)]
    assert not any(memoryview(mapping)[:PAGE])
    buffer.unmap(mapping)
    client.load(buffer, FileSegment(weights[0], PAGE))
    lending.work()
    assert lending.events[1:] == [("load", "a", 0)]
    client.close()


def test_preempted_while_loading(taking: Lending, weights: tuple[int, bytes]) -> None:
    client = taking.client()
    buffer = client.alloc()
    client.load(buffer, FileSegment(weights[0], PAGE))
    client.session.preempt(buffer.request_id)
    assert taking.events == [("load", "a", errno.ECANCELED), ("preempt", "a")]
    taking.work()
    client.buffers.on_load(buffer.request_id, 0, None)
    assert len(taking.events) == 2
    buffer.free()
    client.close()


def test_freed_while_on_its_way(lending: Lending, weights: tuple[int, bytes]) -> None:
    client = lending.client()
    client.buffers.alloc_async([client.request(1)])
    client.buffers.buffers()[0].free()
    buffer = client.alloc(2)
    client.load(buffer, FileSegment(weights[0], PAGE))
    buffer.free()
    lending.work()
    assert lending.events == []
    client.close()


def test_a_request_is_a_snapshot(lending: Lending) -> None:
    client = lending.client()
    request = client.request(1, PAGE)
    client.buffers.alloc_async([request])
    request.size, request.cookie = 2 * PAGE, 2
    client.buffers.alloc_async([request])
    lending.work()
    assert [(cookie, buffer.size) for _, cookie, _, buffer in lending.events] == [
        (1, PAGE),
        (2, 2 * PAGE),
    ]
    with pytest.raises(TypeError, match="nobody would hear"):
        client.buffers.alloc_async([AllocRequest(device=0, type=WEIGHTS, size=1)])
    client.buffers.alloc_async([client.request(3, 0), client.request(4, protection=4)])
    assert [event[2] for event in lending.events[2:]] == [EINVAL, EINVAL]
    client.close()


def test_a_service_that_answers_nonsense() -> None:
    client = BufferClient()
    heard: list[Any] = []
    request = AllocRequest(
        0, WEIGHTS, PAGE, on_alloc=lambda code, buffer, cookie: heard.append((code, buffer))
    )
    client.alloc_async([request])
    assert heard == [(errno.ENOTCONN, None)]

    class Silent(Any):  # type: ignore[misc]
        def get_buffers(self, requests: Any) -> None: ...

    client.connect(Silent())
    client.alloc_async([request])
    client.on_get_buffer(2, None, 0)
    client.on_get_buffer(2, None, 0)
    client.on_load(2, 0, None)
    client.on_preempted(2)
    assert heard[1:] == [(errno.ENOSYS, None)]


# ---- Taking back --------------------------------------------------------------------------------


def test_what_is_mapped_is_asked_for_again(taking: Lending) -> None:
    client = taking.client()
    buffer = client.alloc()
    mapping = buffer.map()
    assert client.session.preempt(buffer.request_id) == 0
    assert taking.allocator.next_deadline() == 5.0
    assert taking.allocator.tick() == 0
    assert taking.events == []
    buffer.unmap(mapping)
    assert taking.allocator.tick() == MIB
    assert taking.events == [("preempt", "a")]
    assert taking.allocator.next_deadline() is None
    client.close()


def test_arrays_keep_a_buffer_and_their_end_lets_it_go(taking: Lending) -> None:
    client = taking.client()
    buffer = client.alloc()
    array = np.frombuffer(memoryview(buffer.map()), np.uint8)
    assert taking.allocator.preempt(1) == 0
    del array
    gc.collect()
    assert taking.allocator.tick() == MIB
    client.close()


def test_an_unmapping_of_nothing_does_not_count(taking: Lending) -> None:
    client = taking.client()
    buffer = client.alloc()
    client.session.unmapped(buffer.request_id)
    mapping = buffer.map()
    assert taking.allocator.preempt(1) == 0
    buffer.unmap(mapping)
    assert taking.allocator.tick() == MIB
    client.close()


def test_nobody_maps_what_is_asked_back(taking: Lending) -> None:
    client = taking.client()
    buffer = client.alloc()
    mapping = buffer.map()
    client.session.preempt(buffer.request_id)
    if not taking.backend.counts_maps:
        assert code_of(buffer.map) == EBUSY
    buffer.unmap(mapping)
    taking.allocator.tick()
    client.close()


@pytest.mark.parametrize("name", TAKES_BACK)
@pytest.mark.parametrize("resort", list(LastResort))
def test_the_last_resort(name: str, resort: LastResort) -> None:
    killed: list[int] = []
    with no_leak(), Lending(name, deadline=2.0, last_resort=resort, kill=killed.append) as lending:
        client = lending.client()
        buffer = client.alloc()
        mapping = buffer.map()
        client.session.preempt(buffer.request_id)
        lending.now = 1.9
        assert lending.allocator.tick() == 0
        assert (killed, lending.events) == ([], [])
        lending.now = 2.0
        gone = resort is LastResort.TRUNCATE and name == "memfd"
        assert lending.allocator.tick() == (MIB if gone else 0)
        lending.now = 3.0
        lending.allocator.tick()
        assert killed == ([1] if resort is LastResort.KILL else [])
        assert lending.events == ([("preempt", "a")] if gone else [])
        assert lending.allocator.next_deadline() is None
        buffer.unmap(mapping)
        assert lending.allocator.tick() == (0 if gone else MIB)
        client.close()


@pytest.mark.parametrize("pid", [0, -1, -77, 1 << 40, 2.5, "x", None])
def test_killing_needs_the_pid_of_a_process(pid: Any) -> None:
    """To kill process 0 is to kill the service's own process group."""
    with Lending(last_resort=LastResort.KILL, kill=lambda pid: None) as lending:
        with pytest.raises(ValueError, match="needs a process's pid"):
            lending.allocator.connect(BufferClient(), "A", pid)
        lending.allocator.connect(BufferClient(), "A", 1).close()
    with Lending() as lending:
        lending.allocator.connect(BufferClient(), "A", 0).close()


def test_a_process_that_is_gone_already_cannot_be_killed() -> None:
    def kill(pid: int) -> None:
        raise ProcessLookupError(errno.ESRCH, "no such process")

    with no_leak(), Lending(deadline=1.0, last_resort=LastResort.KILL, kill=kill) as lending:
        client = lending.client()
        kept, given = client.alloc("kept"), client.alloc("given")
        mappings = [kept.map(), given.map()]
        lending.allocator.preempt(2 * MIB)
        given.unmap(mappings[1])
        lending.now = 1.0
        # What came free besides is told all the same.
        assert lending.allocator.tick() == MIB
        assert lending.freed == [MIB]
        kept.unmap(mappings[0])
        client.close()


def test_who_gives_first(taking: Lending) -> None:
    """Importance of the principal, then the buffer's own, then its type, then its age."""
    front, back = taking.client("front", FOREGROUND), taking.client("back", Importance(400))
    names = {}
    for client, cookie, priority, kind in (
        (front, "front", 1000, CACHE),
        (back, "needed", 0, CACHE),
        (back, "weights", 500, WEIGHTS),
        (back, "old cache", 500, CACHE),
        (back, "new cache", 500, CACHE),
        (back, "spare", 600, WEIGHTS),
    ):
        names[cookie] = client.alloc(cookie, PAGE, priority=BufferPriority(priority), type=kind)
    order = ["spare", "new cache", "old cache", "weights", "needed", "front"]
    for cookie in order[:3]:
        assert taking.allocator.preempt(1) == PAGE
        assert taking.events.pop() == ("preempt", cookie)
    # What counts is what holds now.
    names["weights"].set_priority(BufferPriority(0))
    taking.allocator.set_importance("front", Importance(1000))
    assert taking.allocator.preempt(PAGE + 1) == 2 * PAGE
    assert taking.events == [("preempt", "front"), ("preempt", "needed")]
    front.close()
    back.close()


@pytest.mark.parametrize("name", TAKES_BACK)
def test_a_full_heap(name: str) -> None:
    with no_leak(), Lending(name, limit=4 * PAGE) as lending:
        front, back = lending.client("front", FOREGROUND), lending.client("back")
        first = back.alloc(1, 3 * PAGE)
        # Equals do not push each other out.
        back.buffers.alloc_async([back.request(2, 2 * PAGE)])
        lending.work()
        assert lending.events.pop() == ("alloc", 2, errno.ENOMEM, None)
        # Nor is anybody disturbed for what would not fit anyway.
        front.buffers.alloc_async([front.request(3, 5 * PAGE)])
        lending.work()
        assert lending.events.pop() == ("alloc", 3, errno.ENOMEM, None)
        mapping = first.map()
        front.buffers.alloc_async([front.request(4, 2 * PAGE)])
        lending.work()
        # It has been asked for, and will come.
        assert lending.events.pop() == ("alloc", 4, errno.EAGAIN, None)
        first.unmap(mapping)
        front.alloc(5, 2 * PAGE)
        assert lending.events == [("preempt", 1)]
        assert lending.allocator.used() == 2 * PAGE
        front.close()
        back.close()


def test_work_is_done_by_a_thread_of_its_own() -> None:
    with no_leak():
        allocator = Allocator([Heap(MemfdBackend(), [0], [WEIGHTS])])
        client = BufferClient()
        session = allocator.connect(client, "A")
        client.connect(session)
        done = threading.Event()
        order: list[int] = []

        def arrived(code: int, buffer: Buffer | None, cookie: Any) -> None:
            order.append(cookie)
            if cookie == 31:
                done.set()
            if cookie == 3:
                raise RuntimeError("a client's mistake")

        client.alloc_async(
            [AllocRequest(0, WEIGHTS, PAGE, cookie=n, on_alloc=arrived) for n in range(32)]
        )
        assert done.wait(10)
        assert order == list(range(32))
        client.close()
        allocator.close()
        assert allocator.used() == 0


def test_the_best_backend_is_found() -> None:
    for devices, name in (
        ([], "memfd"),
        (["dma_heap"], "memfd"),
        (["wrapfd"], "memfd"),
        (["wrapfd", "dma_heap"], "wrapfd"),
        (["wrapfd", "udmabuf"], "wrapfd"),
    ):
        with no_leak():
            backend = best_backend(SimKernel(devices))
            assert backend.name == name
            backend.close()
    with pytest.raises(ValueError, match="needs kill"):
        Allocator([], last_resort=LastResort.KILL)


class Slow:
    """A back-end whose loads last until they are let go."""

    name, counts_maps = "slow", False

    def __init__(self) -> None:
        self.inner = MemfdBackend()
        self.kernel = self.inner.kernel
        self.loading, self.go = threading.Event(), threading.Event()

    def alloc(self, size: int, name: str, prot: int, segment: FileSegment | None = None) -> Any:
        held = self.inner.alloc(size, name, prot)
        load = held.load

        class SlowHeld:
            def load(_, segment: FileSegment) -> None:  # noqa: N805
                self.loading.set()
                assert self.go.wait(10)
                load(segment)

            def __getattr__(_, name: str) -> Any:  # noqa: N805
                return getattr(held, name)

        return SlowHeld()

    def close(self) -> None:
        pass


@pytest.mark.parametrize("what", ["preempt", "free", "die"])
def test_while_the_worker_fills_a_buffer(what: str, weights: tuple[int, bytes]) -> None:
    """The memory stays until the worker is done, and goes then."""
    heard: list[Any] = []
    with no_leak():
        slow = Slow()
        allocator = Allocator([Heap(slow, [0], [WEIGHTS])])
        client = BufferClient()
        session = allocator.connect(client, "A")
        client.connect(session)
        there = threading.Event()
        client.alloc_async(
            [
                AllocRequest(
                    0,
                    WEIGHTS,
                    PAGE,
                    on_alloc=lambda code, buffer, cookie: there.set(),
                    on_preempt=lambda buffer, cookie: heard.append("preempt"),
                )
            ]
        )
        assert there.wait(10)
        (buffer,) = client.buffers()
        buffer.load_async(FileSegment(weights[0], PAGE), lambda code, buffer: heard.append(code))
        assert slow.loading.wait(10)
        if what == "preempt":
            assert session.preempt(buffer.request_id) == 0
            assert allocator.tick() == 0
            assert allocator.used() == PAGE
        else:
            (buffer.free if what == "free" else session.close)()
            assert allocator.used() == 0
        slow.go.set()
        # Closing waits for the worker, and ends the session.
        allocator.close()
        assert allocator.used() == 0
        assert heard == ([0] if what == "preempt" else [])
        with pytest.raises(NpuError) if what != "free" else contextlib.nullcontext():
            client.close()


def test_buffers_have_names(taking: Lending) -> None:
    client = taking.client()
    buffer = client.alloc()
    if taking.name == "memfd":
        name = os.readlink(f"/proc/self/fd/{buffer.fileno()}")
    else:
        wrap: Any = taking.kernel.file(buffer.fileno())  # type: ignore[attr-defined]
        name = wrap.content.buffer.label.decode()
    assert "npubuf-1-1" in name
    client.close()


@pytest.mark.parametrize("name", [name for name in TAKES_BACK if name != "memfd"])
def test_a_client_that_emptied_its_own_wrap(name: str) -> None:
    with no_leak(), Lending(name) as lending:
        client = lending.client()
        buffer = client.alloc()
        for request in (wrapfd.WRAPFD_DEV_IOC_ACQUIRE_OWNERSHIP, wrapfd.WRAPFD_DEV_IOC_EMPTY):
            request(lending.kernel, buffer.fileno())
        assert lending.allocator.preempt(MIB) == MIB
        assert lending.events == [("preempt", "a")]
        client.close()


def test_a_priority_that_is_none_is_refused_before_it_is_compared(lending: Lending) -> None:
    """Taking memory back compares the priorities of all clients: one wrong value would stop it."""
    client = lending.client()
    buffer = client.alloc()
    for wrong in (77777, -5, Importance(5), ModelPriority.NORMAL, "B", None):
        with pytest.raises(NpuError, match="no buffer priority") as caught:
            buffer.set_priority(wrong)  # type: ignore[arg-type]
        assert caught.value.errno == EINVAL
    buffer.set_priority(BufferPriority(1000))
    buffer.set_priority(7)  # type: ignore[arg-type]
    buffer.free()
    client.close()
