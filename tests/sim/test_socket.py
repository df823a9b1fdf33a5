# SPDX-License-Identifier: MIT
"""One simulated machine, several real processes."""

import ctypes
import errno
import fcntl
import mmap
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import peers
import pytest
from peers import Peer, State
from support import no_leak

from npukit.abi import dma_buf, dma_heap, drm, sync_file, udmabuf
from npukit.devices import RocketDevice
from npukit.programs.rk3588.matmul import matmul
from npukit.sim import SimKernel
from npukit.sim.fence import Fence, SyncFileSim
from npukit.sim.socket import SocketKernel, serve

HEAP, UDMABUF, ROCKET = "/dev/dma_heap/system", "/dev/udmabuf", "/dev/accel/accel0"
PAGE = mmap.PAGESIZE
ALLOC = dma_heap.DMA_HEAP_IOCTL_ALLOC


@pytest.fixture(params=[True, False], ids=["process_vm", "asking"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[SimKernel, Path]]:
    with no_leak():
        kernel = SimKernel(["dma_heap", "udmabuf", "rocket"])
        path = tmp_path / "npu"
        with serve(kernel, path, process_vm=request.param):
            yield kernel, path
        assert not kernel.others


def heap_buffer(state: State, size: int = PAGE, flags: int = os.O_RDWR) -> int:
    kernel = state.kernel
    heap = kernel.open(HEAP, os.O_RDWR | os.O_CLOEXEC)
    fd: int = ALLOC(kernel, heap, len=size, fd_flags=flags).fd
    kernel.close(heap)
    return fd


def matmul_there(state: State) -> list[list[int]]:
    a = np.arange(4 * 32, dtype=np.int8).reshape(4, 32)
    with RocketDevice(ROCKET, state.kernel) as device:
        product: list[list[int]] = matmul(device, a, np.eye(32, dtype=np.int8)).tolist()
    return product


def test_a_device_works_from_another_process(machine: tuple[SimKernel, Path]) -> None:
    with Peer(machine[1]) as peer:
        expected = np.arange(4 * 32).reshape(4, 32).tolist()
        assert peer.do(matmul_there) == expected


def bad_pointers(state: State) -> list[int]:
    kernel, page = state.kernel, mmap.mmap(-1, 2 * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    request = bytes(dma_heap.dma_heap_allocation_data(len=PAGE, fd_flags=os.O_RDWR))
    last = start + PAGE - len(request)
    ctypes.memmove(last, request, len(request))
    libc = ctypes.CDLL(None)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert libc.mprotect(start + PAGE, PAGE, 0) == 0
    heap = kernel.open(HEAP, os.O_RDWR)
    # Half of the structure on a page that cannot be touched; all of it just before that page.
    places = (last + len(request) // 2, last, 0, 8, (1 << 64) - 8)
    return [kernel.ioctl(heap, ALLOC, place)[1] for place in places]


def test_bad_pointers_are_efault(machine: tuple[SimKernel, Path]) -> None:
    with Peer(machine[1]) as peer:
        fault = errno.EFAULT
        assert peer.do(bad_pointers) == [fault, 0, fault, fault, fault]


def read_only_answer(state: State) -> tuple[int, int]:
    kernel, page = state.kernel, mmap.mmap(-1, PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    request = dma_heap.dma_heap_allocation_data(len=PAGE, fd_flags=os.O_RDWR)
    ctypes.memmove(address, bytes(request), ctypes.sizeof(request))
    libc = ctypes.CDLL(None)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert libc.mprotect(address, PAGE, mmap.PROT_READ) == 0
    heap = kernel.open(HEAP, os.O_RDWR)
    before = len(os.listdir("/proc/self/fd"))
    code = kernel.ioctl(heap, ALLOC, address)[1]
    return code, len(os.listdir("/proc/self/fd")) - before


def test_a_descriptor_that_cannot_be_told_is_taken_back(machine: tuple[SimKernel, Path]) -> None:
    with Peer(machine[1]) as peer:
        code, more = peer.do(read_only_answer)
        # The library's scratch file is kept, the dma-buf is not.
        assert code == errno.EFAULT
        assert more <= 1


def test_processes_share_memory_and_the_kernel_counts_it(machine: tuple[SimKernel, Path]) -> None:
    kernel, path = machine
    with Peer(path) as one, Peer(path) as two:
        fd = one.do(heap_buffer, 2 * PAGE)
        assert one.do(peers.map_as, "a", fd, 2 * PAGE) == 0
        here = one.fetch_fd(fd)
        there = two.send_fd(here)
        os.close(here)
        assert two.do(peers.map_as, "b", there, PAGE, PAGE) == 0
        one.do(peers.write, "a", PAGE + 5, b"hello")
        assert two.do(peers.read, "b", 5, 5) == b"hello"
        assert two.do(peers.call, "lseek", there, 0, os.SEEK_END) == 2 * PAGE
        one.do(peers.unmap, "a")
        one.do(peers.call, "close", fd)
        # Only the second process holds it now.
        assert two.do(peers.read, "b", 5, 5) == b"hello"
        with kernel.lock:
            assert [len(caller.files) for caller in kernel.others] in ([0, 1], [1, 0])
        two.do(peers.drop, "b")
        two.do(peers.call, "close", there)
        with kernel.lock:
            assert not any(caller.files for caller in kernel.others)


def test_a_killed_process_gives_all_back(machine: tuple[SimKernel, Path]) -> None:
    kernel, path = machine
    with no_leak(), Peer(path) as other:
        victim = Peer(path)
        fd = victim.do(heap_buffer, PAGE)
        assert victim.do(peers.map_as, "a", fd, PAGE) == 0
        victim.do(peers.call, "open", ROCKET, os.O_RDWR)
        with kernel.lock:
            assert sorted(len(caller.files) for caller in kernel.others) == [0, 2]
        assert victim.kill() == signal.SIGKILL
        # The next call of anybody finds all given back.
        other.do(peers.call, "open", HEAP, os.O_RDWR | os.O_CLOEXEC)
        with kernel.lock:
            assert [len(caller.files) for caller in kernel.others] == [1]


def open_forever(state: State) -> None:
    while True:
        fd = heap_buffer(state, 16 * PAGE)
        mapping = state.kernel.mmap(fd, 16 * PAGE)
        memoryview(mapping)[0] = 1
        state.kernel.close(fd)


def test_processes_killed_inside_calls_leave_nothing(machine: tuple[SimKernel, Path]) -> None:
    kernel, path = machine
    with no_leak():
        victims = [Peer(path) for _ in range(2)]
        for victim in victims:
            victim.do(heap_buffer)
            victim.start(open_forever)
        for victim in victims:
            # Let it come somewhere into its loop.
            victim.pipe.poll(0.05)
            victim.kill()
        with Peer(path) as other:
            other.do(heap_buffer)
            assert len(kernel.others) == 1


def hammer(state: State, rounds: int) -> int:
    """Several threads of one process, all with their own buffers."""
    done: list[int] = []

    def work() -> None:
        for _ in range(rounds):
            fd = heap_buffer(state)
            mapping = state.kernel.mmap(fd, PAGE)
            memoryview(mapping)[:4] = b"mine"
            done.append(bytes(memoryview(mapping)[:4]) == b"mine")
            state.kernel.munmap(mapping)
            state.kernel.close(fd)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done)


def test_several_processes_with_several_threads(machine: tuple[SimKernel, Path]) -> None:
    kernel, path = machine
    with Peer(path) as one, Peer(path) as two:
        one.start(hammer, 20)
        two.start(hammer, 20)
        assert one.finish() == two.finish() == 60
        with kernel.lock:
            assert not any(caller.files or caller.mappings for caller in kernel.others)  # type: ignore[attr-defined]


def udmabuf_there(state: State) -> tuple[bytes, bool]:
    kernel = state.kernel
    memfd = kernel.memfd_create("pages", os.MFD_ALLOW_SEALING)
    kernel.ftruncate(memfd, 4 * PAGE)
    kernel.fcntl(memfd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    os.pwrite(memfd, b"far", 3 * PAGE)
    node = kernel.open(UDMABUF, os.O_RDWR)
    many = udmabuf.udmabuf_create_list.with_tail(2, flags=0)
    for item, start in zip(many.list, (3, 0), strict=True):
        item.memfd, item.offset, item.size = memfd, start * PAGE, PAGE
    fd = udmabuf.UDMABUF_CREATE_LIST(kernel, node, many)
    mapping = kernel.mmap(fd, 2 * PAGE)
    memoryview(mapping)[PAGE] = ord("!")
    seen = bytes(memoryview(mapping)[:3]) + os.pread(memfd, 1, 0)
    wrong = udmabuf.UDMABUF_CREATE.call(kernel, node, udmabuf.udmabuf_create(memfd=999, size=PAGE))
    return seen, wrong == (-1, errno.EBADFD)


def test_descriptors_inside_structures_are_the_callers(machine: tuple[SimKernel, Path]) -> None:
    with Peer(machine[1]) as peer:
        assert peer.do(udmabuf_there) == (b"far!", True)


def node_facts(state: State) -> dict[str, Any]:
    kernel = state.kernel
    fd = kernel.open(ROCKET, os.O_RDWR | os.O_CLOEXEC)
    copy = kernel.dup(fd)
    status = kernel.fstat(copy)
    facts = {
        "path": kernel.path("rocket"),
        "device": (os.major(status.st_rdev), status.st_mode & 0o170000),
        "cloexec": not os.get_inheritable(fd),
        "cap": drm.DRM_IOCTL_GET_CAP(kernel, copy, capability=drm.DRM_CAP_PRIME).value,
        "plain": kernel.ioctl(0, drm.DRM_IOCTL_GET_CAP, bytearray(16))[1] != 0,
        "unmapped": peers.map_as(state, "x", fd, PAGE, 0),
    }
    kernel.close(fd)
    facts["after close"] = drm.DRM_IOCTL_GET_CAP(kernel, copy, capability=drm.DRM_CAP_PRIME).value
    kernel.close(copy)
    for name, call in {
        "missing": lambda: kernel.open("/dev/none", 0),
        "closed": lambda: kernel.lseek(copy, 0),
        "unknown": lambda: kernel.path("toaster"),
    }.items():
        try:
            call()
        except (OSError, KeyError) as error:
            facts[name] = getattr(error, "errno", "KeyError")
    return facts


def test_nodes_look_the_same_from_everywhere(machine: tuple[SimKernel, Path]) -> None:
    with Peer(machine[1]) as peer:
        assert peer.do(node_facts) == {
            "path": ROCKET,
            "device": (261, 0o020000),
            "cloexec": True,
            "cap": 3,
            "plain": True,
            "unmapped": errno.EINVAL,
            "after close": 3,
            "missing": errno.ENOENT,
            "closed": errno.EBADF,
            "unknown": "KeyError",
        }


def wait_for_fence(state: State, dma_buf_fd: int) -> tuple[int, bool]:
    kernel = state.kernel
    fd = dma_buf.DMA_BUF_IOCTL_EXPORT_SYNC_FILE(
        kernel, dma_buf_fd, flags=dma_buf.DMA_BUF_SYNC_READ
    ).fd
    early = kernel.poll([(fd, 1)], 0)
    state.pipe.send((True, "waiting"))
    ready = kernel.poll([(fd, 1)], 10)
    return sync_file.SYNC_IOC_FILE_INFO(kernel, fd).status, early == [] and ready == [(fd, 1)]


def test_a_fence_wakes_another_process(machine: tuple[SimKernel, Path]) -> None:
    kernel, path = machine
    with Peer(path) as peer:
        there = peer.do(heap_buffer)
        with kernel.lock:
            fence = Fence(kernel, "test", "line", object())
            (caller,) = kernel.others
            buffer: Any = caller.files[there]
            buffer.backing.writers.append(fence)
        peer.start(wait_for_fence, there)
        assert peer.finish() == "waiting"
        with kernel.lock:
            fence.signal()
        assert peer.finish() == (1, True)


def wait_in_a_call(state: State, fd: int) -> tuple[int, int]:
    state.pipe.send((True, "going"))
    return state.kernel.ioctl(fd, dma_buf.DMA_BUF_IOCTL_SYNC, dma_buf.dma_buf_sync(flags=1))


def test_a_call_that_waits_lets_others_in(machine: tuple[SimKernel, Path]) -> None:
    kernel, path = machine
    with Peer(path) as one, Peer(path) as two:
        there = one.do(heap_buffer)
        with kernel.lock:
            fence = Fence(kernel, "test", "line", object())
            caller = next(caller for caller in kernel.others if caller.pid == one.pid)
            buffer: Any = caller.files[there]
            buffer.backing.writers.append(fence)
        one.start(wait_in_a_call, there)
        assert one.finish() == "going"
        mine = two.do(heap_buffer)
        assert two.do(peers.ioctl, mine, dma_buf.DMA_BUF_IOCTL_SYNC, bytes([1] + [0] * 7))[1] == 0
        with kernel.lock:
            fence.signal()
        assert one.finish() == (0, 0)


def test_a_process_killed_while_it_waits(machine: tuple[SimKernel, Path]) -> None:
    kernel, path = machine
    peer = Peer(path)
    there = peer.do(heap_buffer)
    with kernel.lock:
        fence = Fence(kernel, "test", "line", object())
        (caller,) = kernel.others
        buffer: Any = caller.files[there]
        buffer.backing.writers.append(fence)
    peer.start(wait_in_a_call, there)
    assert peer.finish() == "going"
    peer.kill()
    with kernel.lock:
        kernel.enter(kernel.current)
        assert not kernel.others
        fence.signal()


def test_a_sync_file_of_the_server_is_no_file_of_others(machine: tuple[SimKernel, Path]) -> None:
    kernel, path = machine
    with Peer(path) as peer:
        with kernel.lock:
            kernel.current = kernel._local
            mine = SyncFileSim(kernel, []).install()
        there = peer.send_fd(mine)
        value, code, _ = peer.do(peers.ioctl, there, sync_file.SYNC_IOC_FILE_INFO, bytes(56))
        assert (value, code) == (-1, errno.ENOTTY)
        kernel.close(mine)


def test_when_the_server_goes_every_call_says_so(tmp_path: Path) -> None:
    server = serve(SimKernel(["dma_heap"]), tmp_path / "npu")
    with pytest.raises(OSError, match="in use"):
        serve(SimKernel([]), tmp_path / "npu")
    with SocketKernel(tmp_path / "npu") as kernel:
        heap = kernel.open(HEAP, os.O_RDWR)
        server.close()
        server.close()
        with pytest.raises(ConnectionError):
            kernel.open(HEAP, os.O_RDWR)
        os.close(heap)
    with pytest.raises(ConnectionError):
        kernel.path("dma_heap")
    with pytest.raises(OSError, match="No such file"):
        SocketKernel(tmp_path / "npu")


def fork_there(state: State) -> tuple[int, str]:
    child = os.fork()
    if child == 0:
        try:
            state.kernel.path("rocket")
        except ConnectionError:
            os._exit(7)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), state.kernel.path("rocket")


def test_a_forked_child_needs_its_own_kernel(machine: tuple[SimKernel, Path]) -> None:
    with Peer(machine[1]) as peer:
        assert peer.do(fork_there) == (7, ROCKET)


def test_nonsense_ends_the_connection_and_nothing_else(machine: tuple[SimKernel, Path]) -> None:
    _, path = machine
    for data in (b"{", b"7\n", b'["hello"]\n', b'["open", 1]\n', b"\xff\n"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(str(path))
            sock.send(data)
            assert sock.recv(100) == b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(path))
        sock.send(b'["hello", "me"]\n')
        sock.send(b'["mmap", 99, 1, 0, 1, 1]\n')
        assert sock.recv(10000) == f'["errno", {errno.EBADF}]\n'.encode()
    for data in (b'["ioctl"]', b'["toast", 1]', b'["open", 5, 5]', b'["munmap", []]', b"[" * 99999):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(str(path))
            sock.send(b'["hello", "me"]\n')
            sock.send(data)
            assert sock.recv(100) == b""
    with SocketKernel(path) as remote:
        assert remote.path("rocket") == ROCKET
