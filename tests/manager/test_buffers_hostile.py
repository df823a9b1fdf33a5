# SPDX-License-Identifier: MIT
"""What seals keep a hostile client from, what they do not, and what only honest clients keep to.

The client is another process of the same user, which has what the service lent it: one descriptor.
docs/buffers.md has the table that these tests stand for.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peers
import pytest
from manager.lending import Lending
from peers import Peer, State
from support import no_leak

from npukit.ioctl import NpuError
from npukit.manager.allocator import LastResort
from npukit.manager.backends import FileSegment
from npukit.manager.buffers import AllocRequest, Buffer, BufferClient, BufferType, Grant
from npukit.sim import SimKernel
from npukit.sim.socket import serve

PAGE = mmap.PAGESIZE
SIZE = 2 * PAGE
READ, WRITE = mmap.PROT_READ, mmap.PROT_WRITE
SECRET = b"weights!" * (SIZE // 8)
_PUNCH_HOLE, _KEEP_SIZE = 2, 1


@pytest.fixture
def weights(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "weights").write_bytes(SECRET)
    fd = os.open(tmp_path / "weights", os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    with serve(SimKernel([]), tmp_path / "npu"), Peer(tmp_path / "npu") as peer:
        yield peer


@pytest.fixture
def lending(weights: int) -> Iterator[Lending]:
    with no_leak(), Lending("memfd", deadline=1.0, last_resort=LastResort.TRUNCATE) as lending:
        yield lending


def lend(lending: Lending, weights: int, protection: int = READ) -> Buffer:
    segment = FileSegment(weights, SIZE)
    return lending.client().alloc(size=SIZE, protection=protection, segment=segment)


def errno_of(call: Callable[[], Any]) -> int:
    try:
        call()
    except OSError as error:
        return error.errno or -1
    return 0


def map_writable(fd: int) -> None:
    mmap.mmap(fd, SIZE, mmap.MAP_SHARED, READ | WRITE).close()


def make_writable(fd: int) -> None:
    """mprotect on a read-only mapping."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    address = libc.mmap(None, SIZE, READ, mmap.MAP_SHARED, fd, 0)
    failed = libc.mprotect(address, SIZE, READ | WRITE)
    code = ctypes.get_errno()
    libc.munmap(address, SIZE)
    if failed:
        raise OSError(code, os.strerror(code))


def punch(fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    if libc.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, 0, PAGE):
        raise OSError(ctypes.get_errno(), "fallocate")


def attack(state: State, fd: int) -> dict[str, int]:
    """Everything that a client may try with what it was lent; the errnos."""
    lent = {
        "map for writing": errno_of(lambda: map_writable(fd)),
        "mprotect": errno_of(lambda: make_writable(fd)),
        "write": errno_of(lambda: os.pwrite(fd, b"!", 0)),
    }
    # It is the owner of the file, so it can open it anew.
    os.fchmod(fd, 0o600)
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    state.kept["again"] = again
    opened = {
        "map for writing": errno_of(lambda: map_writable(again)),
        "mprotect": errno_of(lambda: make_writable(again)),
        "write": errno_of(lambda: os.pwrite(again, b"!", 0)),
        "grow": errno_of(lambda: os.ftruncate(again, SIZE + PAGE)),
        "punch": errno_of(lambda: punch(again)),
        "seal": errno_of(lambda: fcntl.fcntl(again, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)),
    }
    found = lent | {f"opened anew: {what}": code for what, code in opened.items()}
    return found | {"shrink": errno_of(lambda: os.ftruncate(fd, 0))}


def shrink(state: State) -> int:
    return errno_of(lambda: os.ftruncate(state.kept["again"], 0))


def grow(state: State) -> int:
    return errno_of(lambda: os.ftruncate(state.kept["again"], SIZE))


def pread(state: State, fd: int, size: int) -> bytes:
    return os.pread(fd, size, 0)


def test_seals_hold_against_a_file_that_is_opened_anew(
    lending: Lending, weights: int, peer: Peer
) -> None:
    buffer = lend(lending, weights)
    fd = peer.send_fd(buffer.fileno())
    assert peer.do(attack, fd) == {
        "map for writing": errno.EACCES,
        "mprotect": errno.EACCES,
        "write": errno.EBADF,
        "shrink": errno.EINVAL,
        "opened anew: map for writing": errno.EPERM,
        "opened anew: mprotect": errno.EACCES,
        "opened anew: write": errno.EPERM,
        "opened anew: grow": errno.EPERM,
        "opened anew: punch": errno.EPERM,
        "opened anew: seal": errno.EPERM,
    }
    mapping = buffer.map()
    assert bytes(memoryview(mapping)) == SECRET
    buffer.unmap(mapping)
    buffer.client.close()


def test_it_can_shrink_the_file_and_harms_itself_only(
    lending: Lending, weights: int, peer: Peer
) -> None:
    buffer, other = lend(lending, weights), lend(lending, weights)
    fd = peer.send_fd(buffer.fileno())
    peer.do(attack, fd)
    assert peer.do(shrink) == 0
    # It cannot make it grow again; the service meets an error and goes on.
    assert peer.do(grow) == errno.EPERM
    heard: list[int] = []
    buffer.load_async(FileSegment(weights, PAGE), lambda code, buffer: heard.append(code))
    lending.work()
    assert heard == [errno.EFAULT]
    with pytest.raises(NpuError, match="by force"):
        buffer.map()
    mapping = other.map()
    assert bytes(memoryview(mapping)) == SECRET
    other.unmap(mapping)
    # What is charged can still be taken from it.
    assert lending.allocator.preempt(2 * SIZE) == 2 * SIZE


def test_it_keeps_what_it_was_lent_until_it_is_taken(
    lending: Lending, weights: int, peer: Peer
) -> None:
    freed, taken = lend(lending, weights), lend(lending, weights)
    there = [peer.send_fd(buffer.fileno()) for buffer in (freed, taken)]
    # A descriptor outlives the free of an honest client...
    freed.free()
    assert peer.do(pread, there[0], 8) == SECRET[:8]
    # ... but not the service's taking back.
    taken.client.service.preempt(taken.request_id)  # type: ignore[attr-defined]
    assert peer.do(pread, there[1], 8) == b""


def test_a_client_that_keeps_it_mapped_gets_sigbus(
    lending: Lending, weights: int, tmp_path: Path
) -> None:
    with serve(SimKernel([]), tmp_path / "npu"):
        victim = Peer(tmp_path / "npu")
        buffer = lend(lending, weights)
        session: Any = buffer.client.service
        fd = victim.send_fd(buffer.fileno())
        assert victim.do(peers.map_as, "a", fd, SIZE, 0, READ) == 0
        assert victim.do(peers.read, "a", 0, 8) == SECRET[:8]
        # An honest client's library has told the service of the mapping.
        session.mapped(buffer.request_id)
        assert session.preempt(buffer.request_id) == 0
        assert victim.do(peers.read, "a", 0, 8) == SECRET[:8]
        lending.now = 1.0
        assert lending.allocator.tick() == SIZE
        victim.start(peers.read, "a", 0, 8)
        assert victim.wait() == signal.SIGBUS


def test_a_mapping_that_nobody_told_of_is_lost_at_once(
    lending: Lending, weights: int, tmp_path: Path
) -> None:
    with serve(SimKernel([]), tmp_path / "npu"):
        liar = Peer(tmp_path / "npu")
        buffer = lend(lending, weights)
        fd = liar.send_fd(buffer.fileno())
        assert liar.do(peers.map_as, "a", fd, SIZE, 0, READ) == 0
        assert lending.allocator.preempt(SIZE) == SIZE
        liar.start(peers.read, "a", 0, 8)
        assert liar.wait() == signal.SIGBUS


def test_only_our_client_turns_a_taken_buffer_into_enoent(
    lending: Lending, weights: int, peer: Peer
) -> None:
    """W06: the kernel maps a file of no bytes; it is the touch that kills."""
    buffer = lend(lending, weights)
    fd = peer.send_fd(buffer.fileno())
    lending.allocator.preempt(SIZE)
    assert peer.do(peers.map_as, "a", fd, SIZE, 0, READ) == 0
    assert errno_of(buffer.map) == errno.ENOENT
    buffer.free()


def test_a_writable_buffer_is_the_clients_own(lending: Lending, weights: int, peer: Peer) -> None:
    buffer = lend(lending, weights, READ | WRITE)
    fd = peer.send_fd(buffer.fileno())
    found = peer.do(attack, fd)
    assert found["map for writing"] == found["write"] == 0
    assert found["opened anew: grow"] == found["opened anew: seal"] == errno.EPERM
    assert found["shrink"] == 0
    # It has shrunk its own buffer: the service is as safe as before.
    assert lending.allocator.preempt(SIZE) == SIZE
    buffer.free()


def take_for_itself(state: State, fd: int) -> int:
    from npukit.abi import wrapfd

    return state.kernel.ioctl(fd, wrapfd.WRAPFD_DEV_IOC_ACQUIRE_OWNERSHIP)[1]


@pytest.mark.parametrize("resort", [LastResort.KEEP, LastResort.KILL])
def test_a_client_that_owns_its_wrap(tmp_path: Path, weights: int, resort: LastResort) -> None:
    """Wraps: ownership is for whoever takes it first, so a client can hold on to its buffer."""
    killed: list[int] = []
    kernel = SimKernel(["wrapfd", "dma_heap"])
    with no_leak(), serve(kernel, tmp_path / "npu"):
        how: dict[str, Any] = {"deadline": 1.0, "last_resort": resort, "kill": killed.append}
        with Lending("wrapfd", kernel, **how) as lending:
            buffer = lend(lending, weights)
            holder = Peer(tmp_path / "npu")
            fd = holder.send_fd(buffer.fileno())
            assert holder.do(take_for_itself, fd) == 0
            assert lending.allocator.preempt(SIZE) == 0
            lending.now = 1.0
            assert lending.allocator.tick() == 0
            assert killed == ([1] if resort is LastResort.KILL else [])
            # Its death ends its ownership.
            holder.kill()
            assert lending.allocator.tick() == SIZE
            buffer.free()


def test_b10_a_process_dies_with_a_buffer_mapped(tmp_path: Path, weights: int) -> None:
    """The kernel of wraps keeps a mapped buffer until the last unmap, and no longer."""
    kernel = SimKernel(["wrapfd", "dma_heap"])
    with no_leak(), serve(kernel, tmp_path / "npu"), Lending("wrapfd", kernel) as lending:
        client = lending.client()
        buffers = [client.alloc(n, SIZE, segment=FileSegment(weights, SIZE)) for n in range(2)]
        holder = Peer(tmp_path / "npu")
        there = [holder.send_fd(buffer.fileno()) for buffer in buffers]
        assert holder.do(peers.map_as, "a", there[0], SIZE, 0, READ) == 0
        assert lending.allocator.preempt(2 * SIZE) == SIZE
        holder.kill()
        client.session.close()
        assert lending.freed == [SIZE, SIZE]
        assert lending.events == [("preempt", 1)]
        assert lending.allocator.used() == 0
        for buffer in buffers:
            assert errno_of(buffer.free) in (0, errno.EINVAL)


class Distant:
    """A service of which only answers come, as if over a wire that is not there yet."""

    def get_buffers(self, requests: Any) -> None:
        pass


def receive(state: State, fd: int, size: int) -> list[Any]:
    """Take a grant that came from the service's process."""
    client = BufferClient(Distant(), state.kernel)  # type: ignore[arg-type]
    heard: list[Any] = []
    state.kept.update(client=client, heard=heard)
    client.alloc_async(
        [
            AllocRequest(
                0,
                BufferType.MODEL_WEIGHTS,
                size,
                on_alloc=lambda code, buffer, cookie: heard.append(("alloc", code)),
                on_preempt=lambda buffer, cookie: heard.append(("preempt",)),
            )
        ]
    )
    client.on_get_buffer(1, Grant(fd, size, True), 0)
    return heard


def map_there(state: State) -> int | bytes:
    (buffer,) = state.kept["client"].buffers()
    try:
        mapping = buffer.map()
    except OSError as error:
        return error.errno or -1
    seen = bytes(memoryview(mapping)[:8])
    buffer.unmap(mapping)
    return seen


def told_of_preemption(state: State) -> list[Any]:
    state.kept["client"].on_preempted(1)
    heard: list[Any] = state.kept["heard"]
    return heard


def test_a_client_in_another_process_meets_enoent(tmp_path: Path, weights: int) -> None:
    """Also before it is told: the kernel itself says so of an empty wrap."""
    kernel = SimKernel(["wrapfd", "dma_heap"])
    with (
        no_leak(),
        serve(kernel, tmp_path / "npu"),
        Lending("wrapfd", kernel) as lending,
        Peer(tmp_path / "npu") as peer,
    ):
        buffer = lend(lending, weights)
        fd = peer.send_fd(buffer.fileno())
        assert peer.do(receive, fd, SIZE) == [("alloc", 0)]
        assert peer.do(map_there) == SECRET[:8]
        assert lending.allocator.preempt(SIZE) == SIZE
        assert peer.do(map_there) == errno.ENOENT
        assert peer.do(told_of_preemption) == [("alloc", 0), ("preempt",)]
        assert peer.do(map_there) == errno.ENOENT
        buffer.free()
