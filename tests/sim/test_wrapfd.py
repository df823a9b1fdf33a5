# SPDX-License-Identifier: MIT
"""The simulated /dev/wrapfd against the rules of the driver and of its self-test.

Rows W01 to W10 are conformance cases: the same table should hold for a real /dev/wrapfd.
"""

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peers
import pytest
from peers import Peer
from support import no_leak

from npukit.abi import dma_buf, dma_heap
from npukit.abi import wrapfd as abi
from npukit.ioctl import Ioctl, Kernel, LinuxKernel, ProgramError
from npukit.sim import KernelOops, SimKernel
from npukit.sim.socket import SocketKernel, serve
from npukit.sim.wrapfd import WrapfdSim, WrapFile

NODE, HEAP = "/dev/wrapfd", "/dev/dma_heap/system"
PAGE = mmap.PAGESIZE
READ, WRITE = mmap.PROT_READ, mmap.PROT_WRITE
EMPTY, RDONLY, RDWR = 0, 1, 2
ACQUIRE = abi.WRAPFD_DEV_IOC_ACQUIRE_OWNERSHIP
RELEASE = abi.WRAPFD_DEV_IOC_RELEASE_OWNERSHIP
GUESTS, NO_GUESTS = abi.WRAPFD_DEV_IOC_ALLOW_GUESTS, abi.WRAPFD_DEV_IOC_PROHIBIT_GUESTS
OK, EBUSY, EINVAL, ENOENT, EACCES = 0, errno.EBUSY, errno.EINVAL, errno.ENOENT, errno.EACCES


class Machine:
    """A kernel with /dev/wrapfd and a heap, and short names for what the rows do."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.node = kernel.open(NODE, os.O_RDWR | os.O_CLOEXEC)
        self.heap = kernel.open(HEAP, os.O_RDWR | os.O_CLOEXEC)
        self.fds = [self.node, self.heap]

    def buffer(self, size: int = PAGE, flags: int = os.O_RDWR | os.O_CLOEXEC) -> int:
        fd: int = dma_heap.DMA_HEAP_IOCTL_ALLOC(self.kernel, self.heap, len=size, fd_flags=flags).fd
        self.fds.append(fd)
        return fd

    def ask(self, fd: int, request: Ioctl, arg: Any = None, /, **fields: int) -> int:
        """The errno; a new descriptor is kept as the last of ``fds``."""
        struct = request.struct(**fields) if request.struct and arg is None else arg
        value, code = request.call(self.kernel, fd, struct)
        if request.returns == "value" and code == 0:
            self.fds.append(value)
        return code

    def wrap(self, prot: int, buffer: int | None = None, size: int = PAGE) -> int:
        fd = self.buffer(size) if buffer is None else buffer
        assert self.ask(self.node, abi.WRAPFD_DEV_IOC_WRAP, fd=fd, prot=prot) == OK
        return self.fds[-1]

    def rewrap(self, fd: int, prot: int) -> int:
        return self.ask(fd, abi.WRAPFD_DEV_IOC_REWRAP, prot=prot)

    def load(self, fd: int, file: int, offset: int, at: int, length: int) -> int:
        return self.ask(
            fd, abi.WRAPFD_DEV_IOC_LOAD, fd=file, file_offs=offset, buf_offs=at, len=length
        )

    def state(self, fd: int) -> int:
        state: int = abi.WRAPFD_DEV_IOC_GET_STATE(self.kernel, fd).state
        return state

    def map(self, fd: int, prot: int = READ | WRITE, size: int = PAGE, **how: int) -> Any:
        """The mapping, or the errno."""
        try:
            return self.kernel.mmap(fd, size, prot=prot, **how)
        except OSError as error:
            return error.errno

    def close(self) -> None:
        for fd in self.fds:
            self.kernel.close(fd)


@pytest.fixture(params=["same process", "socket", pytest.param("real", marks=pytest.mark.hardware)])
def machine(
    request: pytest.FixtureRequest, tmp_path: Path, content: tuple[int, bytes]
) -> Iterator[Machine]:
    if request.param == "real":
        if not os.path.exists(NODE):
            pytest.skip("this kernel has no /dev/wrapfd")
        machine = Machine(LinuxKernel())
        yield machine
        machine.close()
        return
    with no_leak():
        kernel = SimKernel(["wrapfd", "dma_heap"])
        if request.param == "same process":
            machine = Machine(kernel)
            yield machine
            machine.close()
        else:
            with serve(kernel, tmp_path / "npu"), SocketKernel(tmp_path / "npu") as remote:
                machine = Machine(remote)
                yield machine
                machine.close()


@pytest.fixture
def content(tmp_path: Path) -> Iterator[tuple[int, bytes]]:
    """A file of a little less than three pages, open for reading, and what is in it."""
    data = bytes(range(1, 251)) * (3 * PAGE // 250 - 1)
    path = tmp_path / "weights"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
    except OSError:
        os.close(fd)
        pytest.skip(f"no direct I/O in {tmp_path}, which LOAD needs")
    fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    yield fd, data
    os.close(fd)


def test_w01_only_a_wrap_has_a_state(machine: Machine) -> None:
    assert machine.ask(machine.buffer(), abi.WRAPFD_DEV_IOC_GET_STATE) == errno.ENOTTY
    assert machine.ask(machine.node, abi.WRAPFD_DEV_IOC_GET_STATE) == errno.ENOTTY


def test_w02_what_cannot_be_wrapped(machine: Machine) -> None:
    wrap = abi.WRAPFD_DEV_IOC_WRAP
    buffer = machine.buffer()
    read_only = machine.buffer(flags=os.O_RDONLY | os.O_CLOEXEC)
    inner = machine.wrap(READ)
    for fields, code in (
        ({"fd": buffer, "prot": 4}, EINVAL),
        ({"fd": buffer, "prot": READ, "reserved": 1}, EINVAL),
        ({"fd": read_only, "prot": READ | WRITE}, EACCES),
        ({"fd": machine.node, "prot": READ}, EINVAL),
        ({"fd": inner, "prot": READ}, EINVAL),
        ({"fd": 0xFFFFFFFF, "prot": READ}, errno.EBADF),
        ({"fd": read_only, "prot": READ}, OK),
    ):
        assert machine.ask(machine.node, wrap, **fields) == code, fields
    assert machine.ask(machine.node, wrap, 8) == errno.EFAULT
    # No protection at all is taken, and means reading.
    assert machine.state(machine.wrap(0)) == RDONLY


def test_w03_a_read_only_wrap(machine: Machine) -> None:
    fd = machine.wrap(READ)
    assert machine.state(fd) == RDONLY
    assert machine.map(fd) == EACCES
    assert machine.map(fd, flags=mmap.MAP_PRIVATE) == EACCES
    mapping = machine.map(fd, READ)
    assert memoryview(mapping).readonly
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert libc.mprotect(mapping.address, PAGE, READ | WRITE) == -1
    assert ctypes.get_errno() == EACCES
    machine.kernel.munmap(mapping)


def test_w04_ownership_and_mappings(machine: Machine) -> None:
    fd = machine.wrap(READ | WRITE)
    assert machine.state(fd) == RDWR
    mapping = machine.map(fd)
    assert machine.ask(fd, ACQUIRE) == EINVAL
    machine.kernel.munmap(mapping)
    assert machine.ask(fd, ACQUIRE) == OK
    assert machine.ask(fd, ACQUIRE) == OK
    mapping = machine.map(fd)
    assert machine.ask(fd, RELEASE) == EINVAL
    machine.kernel.munmap(mapping)
    assert machine.ask(fd, RELEASE) == OK
    assert machine.ask(fd, RELEASE) == EBUSY


def test_w05_rewrap(machine: Machine) -> None:
    old = machine.wrap(READ)
    assert machine.rewrap(old, READ | WRITE) == EBUSY
    assert machine.ask(old, ACQUIRE) == OK
    mapping = machine.map(old, READ)
    assert machine.rewrap(old, READ | WRITE) == EINVAL
    machine.kernel.munmap(mapping)
    assert machine.rewrap(old, 4) == EINVAL
    assert machine.ask(old, abi.WRAPFD_DEV_IOC_REWRAP, prot=WRITE, pad=1) == EINVAL
    assert machine.rewrap(old, WRITE) == OK
    new = machine.fds[-1]
    assert (machine.state(new), machine.state(old)) == (RDWR, EMPTY)
    assert machine.map(old, READ) == ENOENT
    # Nobody owns the new wrap; the old one is still ours to give up.
    assert machine.rewrap(old, READ) == ENOENT
    assert machine.ask(old, RELEASE) == OK
    mapping = machine.map(new)
    memoryview(mapping)[0] = 1
    machine.kernel.munmap(mapping)


def test_a_read_only_dma_buf_cannot_be_rewrapped_for_writing(machine: Machine) -> None:
    fd = machine.wrap(READ, machine.buffer(flags=os.O_RDONLY))
    assert machine.ask(fd, ACQUIRE) == OK
    assert machine.rewrap(fd, READ | WRITE) == EACCES
    assert machine.state(fd) == RDONLY


def test_w06_empty(machine: Machine, content: tuple[int, bytes]) -> None:
    fd = machine.wrap(READ | WRITE)
    assert machine.ask(fd, abi.WRAPFD_DEV_IOC_EMPTY) == EBUSY
    assert machine.ask(fd, ACQUIRE) == OK
    mapping = machine.map(fd)
    assert machine.ask(fd, abi.WRAPFD_DEV_IOC_EMPTY) == EINVAL
    machine.kernel.munmap(mapping)
    assert machine.ask(fd, abi.WRAPFD_DEV_IOC_EMPTY) == OK
    assert machine.state(fd) == EMPTY
    assert machine.ask(fd, abi.WRAPFD_DEV_IOC_EMPTY) == ENOENT
    assert machine.map(fd) == ENOENT
    assert machine.load(fd, content[0], 0, 0, PAGE) == ENOENT
    assert machine.ask(fd, dma_buf.DMA_BUF_IOCTL_SYNC, flags=1) == ENOENT
    assert machine.ask(fd, RELEASE) == OK
    assert machine.ask(fd, ACQUIRE) == ENOENT


def test_w07_and_w08_two_processes(tmp_path: Path) -> None:
    kernel = SimKernel(["wrapfd", "dma_heap"])
    with no_leak(), serve(kernel, tmp_path / "npu"):
        machine = Machine(kernel)
        fd = machine.wrap(READ | WRITE)
        with Peer(tmp_path / "npu") as one, Peer(tmp_path / "npu") as two:
            mine, theirs = one.send_fd(fd), two.send_fd(fd)

            def ask(peer: Peer, request: int) -> int:
                code: int = peer.do(peers.ioctl, mine if peer is one else theirs, request)[1]
                return code

            assert ask(one, ACQUIRE) == OK
            assert two.do(peers.map_as, "a", theirs, PAGE) == EBUSY
            assert ask(two, ACQUIRE) == EBUSY
            assert ask(two, abi.WRAPFD_DEV_IOC_EMPTY) == EBUSY
            sync = dma_buf.DMA_BUF_IOCTL_SYNC
            assert two.do(peers.ioctl, theirs, sync, bytes([1] + [0] * 7))[1] == EBUSY
            assert ask(one, GUESTS) == OK
            assert two.do(peers.map_as, "a", theirs, PAGE) == OK
            assert two.do(peers.ioctl, theirs, sync, bytes([1] + [0] * 7))[1] == OK
            assert ask(one, RELEASE) == EINVAL
            two.do(peers.unmap, "a")
            assert ask(one, RELEASE) == OK
            # The flag went with the ownership.
            assert ask(one, ACQUIRE) == OK
            assert two.do(peers.map_as, "a", theirs, PAGE) == EBUSY
        # W08: the owner dies, and with it its ownership and its mappings.
        with Peer(tmp_path / "npu") as two:
            theirs = two.send_fd(fd)
            one = Peer(tmp_path / "npu")
            mine = one.send_fd(fd)
            assert one.do(peers.ioctl, mine, ACQUIRE)[1] == OK
            assert one.do(peers.map_as, "a", mine, PAGE) == OK
            assert two.do(peers.ioctl, theirs, ACQUIRE)[1] == EBUSY
            one.kill()
            assert two.do(peers.ioctl, theirs, ACQUIRE)[1] == OK
            assert two.do(peers.ioctl, theirs, RELEASE)[1] == OK
        machine.close()


def test_w09_guests(machine: Machine) -> None:
    fd = machine.wrap(READ | WRITE)
    assert machine.ask(fd, GUESTS) == EBUSY
    assert machine.ask(fd, ACQUIRE) == OK
    mapping = machine.map(fd)
    assert machine.ask(fd, GUESTS) == EINVAL
    machine.kernel.munmap(mapping)
    assert machine.ask(fd, GUESTS) == OK
    assert machine.ask(fd, NO_GUESTS) == OK


def seen(machine: Machine, fd: int, size: int) -> bytes:
    mapping = machine.map(fd, READ, size)
    data = bytes(memoryview(mapping))
    machine.kernel.munmap(mapping)
    return data


def test_w10_load(machine: Machine, content: tuple[int, bytes]) -> None:
    file, data = content
    size = 3 * PAGE
    fd = machine.wrap(READ | WRITE, size=size)
    mapping = machine.map(fd, size=size)
    memoryview(mapping)[:] = b"\xaa" * size
    machine.kernel.munmap(mapping)
    assert machine.ask(fd, ACQUIRE) == OK
    half = PAGE // 2
    assert machine.load(fd, file, 0, 0, half) == OK
    assert seen(machine, fd, size) == data[:half] + b"\xaa" * (size - half)
    assert machine.load(fd, file, 0, 0, len(data)) == OK
    assert seen(machine, fd, size) == data + b"\xaa" * (size - len(data))
    # The newest driver takes any offset.
    assert machine.load(fd, file, 7, size - 9, 9) == OK
    assert seen(machine, fd, size)[-9:] == data[7:16]
    for offset, at, length in (
        (0, 0, len(data) + 1),
        (PAGE, 0, len(data)),
        (0, PAGE, len(data)),
        (0, size, 1),
        (0, 0, 1 << 63),
        (1 << 63, 0, 1),
        ((1 << 63) - 1, 0, 2),
    ):
        assert machine.load(fd, file, offset, at, length) == EINVAL, (offset, at, length)
    assert machine.ask(fd, abi.WRAPFD_DEV_IOC_LOAD, fd=file, pad=1) == EINVAL
    assert machine.ask(fd, abi.WRAPFD_DEV_IOC_LOAD, fd=0xFFFFFFFF) == errno.EBADF
    writer = os.open("/proc/self/exe", os.O_PATH)
    assert machine.load(fd, writer, 0, 0, 0) == errno.EBADF
    os.close(writer)
    pipe = os.pipe()
    assert machine.load(fd, pipe[0], 0, 0, 0) == EINVAL
    assert machine.load(fd, pipe[1], 0, 0, 0) == errno.EBADF
    # It is not asked whose the wrap is, nor whether it is mapped.
    assert machine.ask(fd, RELEASE) == OK
    mapping = machine.map(fd, READ, size)
    assert machine.load(fd, file, PAGE, 0, 3) == OK
    assert bytes(memoryview(mapping)[:3]) == data[PAGE : PAGE + 3]
    machine.kernel.munmap(mapping)
    assert machine.load(machine.wrap(READ), file, 0, 0, 1) == EACCES
    for each in pipe:
        os.close(each)


@pytest.mark.parametrize("cloexec", [0, os.O_CLOEXEC])
def test_w10_close_on_exec_is_that_of_the_source(machine: Machine, cloexec: int) -> None:
    fd = machine.wrap(READ, machine.buffer(flags=os.O_RDWR | cloexec))
    assert os.get_inheritable(fd) == (not cloexec)
    os.set_inheritable(fd, bool(cloexec))
    assert machine.ask(fd, ACQUIRE) == OK
    assert machine.rewrap(fd, READ) == OK
    assert os.get_inheritable(machine.fds[-1]) == (not cloexec)


def test_a_wrap_as_a_file(machine: Machine) -> None:
    fd = machine.wrap(READ | WRITE, size=3 * PAGE)
    kernel = machine.kernel
    assert kernel.fstat(fd).st_size == kernel.lseek(fd, 0, os.SEEK_END) == 3 * PAGE
    for prot, mode in ((READ, os.O_RDONLY), (READ | WRITE, os.O_RDWR)):
        flags = kernel.fcntl(machine.wrap(prot), fcntl.F_GETFL)
        assert flags & os.O_ACCMODE == mode
    last = machine.map(fd, size=PAGE, offset=2 * PAGE)
    memoryview(last)[0] = 9
    assert seen(machine, fd, 3 * PAGE)[2 * PAGE] == 9
    assert machine.map(fd, size=2 * PAGE, offset=2 * PAGE) == EINVAL
    # The wrap lives as long as a mapping of it.
    kernel.close(fd)
    machine.fds.remove(fd)
    assert memoryview(last)[0] == 9
    kernel.munmap(last)
    assert machine.ask(machine.wrap(READ), Ioctl("UNKNOWN", 0x7777)) == errno.ENOTTY


def test_an_npu_of_the_kernel_can_own_a_wrap() -> None:
    with no_leak():
        kernel = SimKernel(["wrapfd", "dma_heap", "rocket"])
        machine = Machine(kernel)
        npu = kernel.devices[-1]
        fd = machine.wrap(READ | WRITE)
        wrap = kernel.file(fd)
        assert isinstance(wrap, WrapFile)
        assert wrap.get_mappable(npu).backing.size == PAGE
        assert machine.ask(fd, ACQUIRE) == EBUSY
        assert machine.map(fd) == EBUSY
        wrap.put_mappable(npu)
        assert machine.ask(fd, ACQUIRE) == OK
        machine.close()


@pytest.mark.parametrize("generation", ["1", "1-reserved", "2"])
def test_older_generations(generation: str, content: tuple[int, bytes]) -> None:
    """What differs from the newest: structures, names, and the rules of LOAD."""
    file, data = content
    with no_leak():
        kernel = SimKernel(["dma_heap"])
        kernel.devices.append(WrapfdSim(kernel, (NODE,), generation))
        machine = Machine(kernel)
        view: Any = abi if generation == "2" else abi.variant(f"generation-{generation}")
        size = 3 * PAGE
        buffer = machine.buffer(size, os.O_RDONLY | os.O_CLOEXEC)
        # A read-only dma-buf becomes writable.
        wrap = view.WRAPFD_DEV_IOC_WRAP
        assert machine.ask(machine.node, wrap, fd=buffer, prot=READ | WRITE) == OK
        fd = machine.fds[-1]
        assert kernel.fstat(fd).st_size == (0 if generation == "1" else size)
        with pytest.raises(OSError, match="seek"):
            kernel.lseek(fd, 0, os.SEEK_END)
        get_state = view.WRAPFD_DEV_IOC_GET_STATE
        if generation == "1":
            assert machine.ask(fd, get_state, fd=fd) == errno.ENOTTY
            assert get_state(kernel, machine.node, fd=fd).state == RDWR
            assert machine.ask(machine.node, get_state, fd=buffer) == EINVAL
            assert machine.ask(machine.node, get_state, fd=-1) == errno.EBADF
        else:
            assert get_state(kernel, fd).state == RDWR
            assert machine.ask(machine.node, get_state) == errno.ENOTTY
        load = view.WRAPFD_DEV_IOC_LOAD
        assert machine.ask(fd, load, fd=file, len=PAGE) == EBUSY
        assert machine.ask(fd, ACQUIRE) == OK
        assert machine.ask(fd, load, fd=file, file_offs=1, len=PAGE) == EINVAL
        # The length is rounded up to pages, which then must lie in the file.
        assert machine.ask(fd, load, fd=file, len=len(data)) == EINVAL
        assert machine.ask(fd, load, fd=file, len=5) == OK
        assert seen(machine, fd, PAGE) == data[:PAGE]
        mapping = machine.map(fd)
        assert machine.ask(fd, load, fd=file, len=PAGE) == EINVAL
        kernel.munmap(mapping)
        # An offset of mmap is not looked at.
        mapping = machine.map(fd, READ, offset=PAGE)
        assert bytes(memoryview(mapping)) == data[:PAGE]
        kernel.munmap(mapping)
        assert machine.ask(fd, view.WRAPFD_DEV_IOC_REWRAP, prot=READ) == OK
        new = machine.fds[-1]
        assert machine.map(new) == EACCES
        assert machine.ask(new, ACQUIRE) == OK
        # A read-only wrap can be loaded all the same.
        assert machine.ask(new, load, fd=file, file_offs=PAGE, len=PAGE) == OK
        assert seen(machine, new, PAGE) == data[PAGE : 2 * PAGE]
        assert len(kernel.log) == 3
        # The rewrapped one is empty now.
        if generation == "1":
            with pytest.raises(KernelOops, match="empty wrap"):
                machine.ask(fd, dma_buf.DMA_BUF_IOCTL_SYNC, flags=1)
        else:
            assert machine.ask(fd, dma_buf.DMA_BUF_IOCTL_SYNC, flags=1) == ENOENT
        machine.close()


def test_strict_mode_says_what_the_driver_hides() -> None:
    with no_leak():
        kernel = SimKernel(["wrapfd", "dma_heap"], strict=True)
        machine = Machine(kernel)
        fd = machine.wrap(READ)
        assert machine.ask(fd, ACQUIRE) == OK
        assert machine.ask(fd, abi.WRAPFD_DEV_IOC_EMPTY) == OK
        with pytest.raises(ProgramError, match="a use that never ends"):
            kernel.lseek(fd, 0, os.SEEK_END)
        # That is what comes of it: the owner can never let go.
        assert machine.ask(fd, RELEASE) == EINVAL
        machine.close()


def test_guests_of_a_dead_owner_stay(tmp_path: Path) -> None:
    kernel = SimKernel(["wrapfd", "dma_heap"])
    with no_leak(), serve(kernel, tmp_path / "npu"):
        machine = Machine(kernel)
        fd = machine.wrap(READ)
        one = Peer(tmp_path / "npu")
        mine = one.send_fd(fd)
        assert one.do(peers.ioctl, mine, ACQUIRE)[1] == OK
        assert one.do(peers.ioctl, mine, GUESTS)[1] == OK
        one.kill()
        assert machine.ask(fd, ACQUIRE) == OK
        with Peer(tmp_path / "npu") as two:
            # The new owner never allowed it.
            assert two.do(peers.map_as, "a", two.send_fd(fd), PAGE, 0, READ) == OK
        assert kernel.log == ["the guests of a dead owner stay allowed"]
        machine.close()
