# SPDX-License-Identifier: MIT
"""The simulated FastRPC driver against drivers/misc/fastrpc.c, rule by rule."""

import ctypes
import errno
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fastrpc_raw import OPEN, SECURE, Later, Session, machine
from support import no_leak

from npukit.abi import dma_buf
from npukit.abi import fastrpc as abi
from npukit.sim import KernelOops, SimKernel
from npukit.sim.cdsp import SHELL, DspFault, Invocation
from npukit.sim.fastrpc import LINUX_6_1, Driver, FastRpcSim

PAGE = mmap.PAGESIZE
UNSIGNED = abi.FASTRPC_MODE_UNSIGNED_MODULE
MAKE = abi.REMOTE_SCALARS_MAKE
EINVAL, EFAULT = (-1, errno.EINVAL), (-1, errno.EFAULT)


@pytest.fixture
def cdsp() -> Iterator[tuple[SimKernel, FastRpcSim]]:
    with no_leak():
        kernel, device = machine()
        yield kernel, device
        device.dsp.join()


def signed(code: int) -> int:
    return code - (1 << 32) if code >> 31 else code


# Nodes and sessions.


def test_nodes_follow_the_domain() -> None:
    for label, options, nodes in (
        ("cdsp", {}, (SECURE, OPEN)),
        ("cdsp1", {"secure": False}, ("/dev/fastrpc-cdsp1-secure", "/dev/fastrpc-cdsp1")),
        ("gdsp0", {}, ("/dev/fastrpc-gdsp0-secure", "/dev/fastrpc-gdsp0")),
        ("adsp", {}, ("/dev/fastrpc-adsp-secure",)),
        ("sdsp", {"secure": False}, ("/dev/fastrpc-sdsp",)),
        ("mdsp", {}, ("/dev/fastrpc-mdsp-secure",)),
    ):
        assert machine(label, **options)[1].paths == nodes
    with pytest.raises(ValueError, match="no DSP"):
        machine("vdsp")
    with pytest.raises(ValueError, match="15 sessions"):
        machine(sessions=15)


def test_a_machine_may_have_two_by_name() -> None:
    kernel = SimKernel(["fastrpc-cdsp", "fastrpc-cdsp"])
    assert kernel.path("fastrpc-cdsp") == SECURE
    assert kernel.devices[1].paths[1] == "/dev/fastrpc-cdsp1"


def test_each_open_takes_a_session_and_close_gives_it_back() -> None:
    with no_leak():
        kernel, device = machine(sessions=2)
        one, two = Session(kernel, create=False), Session(kernel, OPEN, create=False)
        with pytest.raises(OSError, match="busy") as caught:
            kernel.open(SECURE, os.O_RDONLY)
        assert caught.value.errno == errno.EBUSY
        assert kernel.log == ["fastrpc: No session available"]
        copy = kernel.dup(one.fd)
        one.close()
        with pytest.raises(OSError, match="busy"):
            kernel.open(SECURE, os.O_RDONLY | os.O_NONBLOCK)
        kernel.close(copy)
        three = Session(kernel, create=False)
        assert device.channel is not None
        assert [each is not None for each in device.channel.sessions] == [True, True]
        two.close()
        three.close()


def test_the_node_can_be_asked_and_no_more(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, _device = cdsp
    with Session(kernel, create=False) as session:
        with pytest.raises(OSError, match="No such device") as caught:
            kernel.mmap(session.fd, PAGE)
        assert caught.value.errno == errno.ENODEV
        for number in (
            abi.FASTRPC_IOCTL_FREE_DMA_BUFF,  # in the header, in no driver
            0x40005204,  # INIT_ATTACH as a write
            0xC038520C,  # the vendor's MULTIMODE_INVOKE
            0xC0185203,  # INVOKE of another size
            0x5210,
        ):
            assert session.ask(number, bytearray(64)) == (-1, errno.ENOTTY)


# Memory.


def test_alloc_gives_a_dma_buf_of_the_size_asked(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, _device = cdsp
    with Session(kernel, create=False) as session:
        for size in (0, 1 << 32, (1 << 64) - 1):
            arg = abi.fastrpc_alloc_dma_buf(size=size)
            assert session.ask(abi.FASTRPC_IOCTL_ALLOC_DMA_BUFF, arg) == (-1, errno.ENOMEM)
        assert session.ask(abi.FASTRPC_IOCTL_ALLOC_DMA_BUFF, 8) == EFAULT
        arg = abi.fastrpc_alloc_dma_buf(size=2 * PAGE, flags=0xFFFF)
        assert session.ask(abi.FASTRPC_IOCTL_ALLOC_DMA_BUFF, arg) == (0, 0)
        assert os.get_inheritable(arg.fd)
        assert kernel.lseek(arg.fd, 0, os.SEEK_END) == 2 * PAGE
        mapping = kernel.mmap(arg.fd, 2 * PAGE)
        memoryview(mapping)[0] = 1
        kernel.munmap(mapping)
        for offset, length, code in (
            (0, 3 * PAGE, errno.EINVAL),
            (PAGE, 2 * PAGE, errno.EINVAL),
            (PAGE, PAGE, errno.ENXIO),
        ):
            with pytest.raises(OSError, match=os.strerror(code)):
                kernel.mmap(arg.fd, length, offset)
        sync = dma_buf.dma_buf_sync(flags=dma_buf.DMA_BUF_SYNC_RW)
        assert kernel.ioctl(arg.fd, dma_buf.DMA_BUF_IOCTL_SYNC, sync) == (0, 0)
        kernel.close(arg.fd)


def test_an_odd_size_cannot_be_mapped_to_its_end(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, _device = cdsp
    with Session(kernel, create=False) as session:
        fd = session.alloc(PAGE + 1)
        assert kernel.lseek(fd, 0, os.SEEK_END) == PAGE + 1
        with pytest.raises(OSError, match="Invalid"):
            kernel.mmap(fd, PAGE + 1)
        kernel.munmap(kernel.mmap(fd, PAGE))
        kernel.close(fd)


def test_an_answer_that_cannot_be_written_leaves_no_fd(
    cdsp: tuple[SimKernel, FastRpcSim],
) -> None:
    kernel, _device = cdsp
    page = mmap.mmap(-1, PAGE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    window = ctypes.c_char.from_buffer(page)
    address = ctypes.addressof(window)
    page[:16] = bytes(abi.fastrpc_alloc_dma_buf(size=PAGE))
    libc = ctypes.CDLL(None)
    libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), 1)
    with Session(kernel, create=False) as session:
        assert session.ask(abi.FASTRPC_IOCTL_ALLOC_DMA_BUFF, address) == EFAULT
    libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), 3)


def test_closing_a_session_before_its_buffers_is_noticed(
    cdsp: tuple[SimKernel, FastRpcSim],
) -> None:
    kernel, _device = cdsp
    session = Session(kernel, create=False)
    fd = session.alloc(PAGE)
    session.close()
    assert kernel.log == [
        "fastrpc: session closed before 1 of its dma-bufs: freeing them will read freed memory"
    ]
    kernel.close(fd)


# The process.


def test_create_checks_in_the_drivers_order(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, device = cdsp
    big = (2 << 20) + 1
    with Session(kernel, OPEN, create=False) as session:
        assert session.ask(abi.FASTRPC_IOCTL_INIT_CREATE, 8) == EFAULT
        # Trust is looked at before the length, the length before the descriptor.
        assert session.create(filelen=big) == (-1, errno.ECONNREFUSED)
        assert session.create(attrs=UNSIGNED, filelen=big) == EINVAL
        assert session.create(attrs=UNSIGNED, filefd=9999) == (-1, errno.EBADF)
        assert session.create(attrs=UNSIGNED, filefd=-1) == (-1, errno.EBADF)
        assert session.create(attrs=UNSIGNED, filefd=session.fd) == EINVAL
        assert session.create(attrs=UNSIGNED, filelen=PAGE + 1) == EINVAL
        assert device.dsp.processes == {}
        assert session.create(attrs=UNSIGNED) == (0, 0)
        assert session.create(attrs=UNSIGNED) == (signed(0x80000405), 0)
        assert list(device.dsp.processes) == [1]
    assert device.dsp.processes == {}


def test_the_dsps_refusal_of_a_shell_is_the_value(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, device = cdsp
    with Session(kernel, create=False) as session:
        assert session.create(b"no ELF") == (signed(0x80000452), 0)
        assert session.create(filelen=0, filefd=0) == (signed(0x80000406), 0)
        device.dsp.shell_mark = b"build 7"
        assert session.create() == (signed(0x8000054F), 0)
        assert session.create(SHELL + b"build 7") == (0, 0)


def test_a_shell_without_a_dma_buf_is_read_from_a_users_address(
    cdsp: tuple[SimKernel, FastRpcSim],
) -> None:
    kernel, _device = cdsp
    with Session(kernel, create=False) as session, pytest.raises(KernelOops, match="INIT_CREATE"):
        session.create(filefd=0)


def test_a_channel_that_is_not_secure_trusts_all_nodes() -> None:
    with no_leak():
        kernel, device = machine(secure=False)
        with Session(kernel, OPEN):
            pass
        device.dsp.join()


@pytest.mark.parametrize("request_", ["INIT_ATTACH", "INIT_ATTACH_SNS"])
def test_attach_is_an_alternative(cdsp: tuple[SimKernel, FastRpcSim], request_: str) -> None:
    kernel, device = cdsp
    with Session(kernel, OPEN, create=False) as session:
        number = getattr(abi, f"FASTRPC_IOCTL_{request_}")
        assert session.ask(number) == (0, 0)
        assert list(device.dsp.processes) == [1]
        assert session.ask(number) == (signed(0x80000405), 0)


def test_create_static_needs_the_reserved_heap(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, _device = cdsp
    with Session(kernel, create=False) as session:
        # Before the argument is even read.
        assert session.ask(abi.FASTRPC_IOCTL_INIT_CREATE_STATIC, 8) == (-1, errno.ENOMEM)
    adsp_kernel, adsp = machine("adsp", remote_heap=1 << 20)
    with Session(adsp_kernel, "/dev/fastrpc-adsp-secure", create=False) as session:
        name = ctypes.create_string_buffer(b"audiopd")
        make = abi.fastrpc_init_create_static
        address = ctypes.addressof(name)
        request = abi.FASTRPC_IOCTL_INIT_CREATE_STATIC
        assert session.ask(request, 8) == EFAULT
        assert session.ask(request, make(namelen=129, name=address)) == EINVAL
        assert session.ask(request, make(namelen=8, name=8)) == EFAULT
        assert session.ask(request, make(namelen=8, name=address, memlen=7)) == (0, 0)
    with Session(adsp_kernel, "/dev/fastrpc-adsp-secure", create=False) as session:
        assert session.ask(request, make(namelen=8, name=address)) == (0, 0)
        assert session.ask(request, make(namelen=8, name=address)) == (signed(0x80000405), 0)
    # Only the first one brings the heap.
    assert adsp_kernel.log[:2] == [
        f"DSP: static process 'audiopd' with {size} bytes of heap" for size in (1 << 20, 0)
    ]
    adsp.dsp.join()


# Heap growth.


def test_mmap_only_grows_the_heap(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, device = cdsp
    grow, shrink = abi.FASTRPC_IOCTL_MMAP, abi.FASTRPC_IOCTL_MUNMAP
    make = abi.fastrpc_req_mmap
    with Session(kernel) as session:
        assert session.ask(grow, 8) == EFAULT
        assert session.ask(shrink, 8) == EFAULT
        assert session.ask(grow, make(size=PAGE)) == EINVAL
        assert session.ask(grow, make(size=PAGE, flags=0x3000)) == EINVAL
        assert session.ask(grow, make(size=PAGE, flags=0x1000, vaddrin=PAGE)) == EINVAL
        assert session.ask(grow, make(size=0, flags=0x1000)) == (-1, errno.ENOMEM)
        arg = make(fd=4711, size=PAGE, flags=0x1000)
        assert session.ask(grow, arg) == (0, 0)
        assert device.dsp.processes[1].heap == {arg.vaddrout: PAGE}
        take = abi.fastrpc_req_munmap
        assert session.ask(shrink, take(vaddrout=arg.vaddrout, size=2 * PAGE)) == EINVAL
        assert session.ask(shrink, take(vaddrout=arg.vaddrout + 1, size=PAGE)) == EINVAL
        assert session.ask(shrink, take(vaddrout=arg.vaddrout, size=PAGE)) == (0, 0)
        assert session.ask(shrink, take(vaddrout=arg.vaddrout, size=PAGE)) == EINVAL
    with Session(kernel, create=False) as session:
        arg = make(size=PAGE, flags=0x1000)
        assert session.ask(grow, arg) == (signed(0x80000441), 0)


# MEM_MAP.


def test_mem_map_takes_any_dma_buf(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, device = cdsp
    request, make = abi.FASTRPC_IOCTL_MEM_MAP, abi.fastrpc_mem_map
    undo, unmake = abi.FASTRPC_IOCTL_MEM_UNMAP, abi.fastrpc_mem_unmap
    with Session(kernel) as session:
        fd = session.alloc(2 * PAGE)
        assert session.ask(request, 8) == EFAULT
        assert session.ask(undo, 8) == EFAULT
        assert session.ask(request, make(fd=9999, length=PAGE)) == (-1, errno.EBADF)
        assert session.ask(request, make(fd=session.fd, length=PAGE)) == EINVAL
        assert session.ask(request, make(fd=fd, length=2 * PAGE + 1)) == EINVAL
        bad = make(fd=fd, length=PAGE, flags=5)
        assert session.ask(request, bad) == (signed(0x8000040E), 0)
        assert kernel.file(fd).holders == 1  # type: ignore[union-attr]
        arg = make(fd=fd, length=2 * PAGE, flags=abi.FASTRPC_MAP_FD, version=7, attrs=9)
        assert session.ask(request, arg) == (0, 0)
        assert arg.vaddrout in device.dsp.processes[1].maps
        assert session.ask(undo, unmake(fd=fd + 1, vaddr=arg.vaddrout)) == EINVAL
        assert session.ask(undo, unmake(fd=fd, vaddr=arg.vaddrout + 1)) == EINVAL
        assert session.ask(undo, unmake(fd=-1, vaddr=arg.vaddrout, length=1)) == (0, 0)
        assert session.ask(undo, unmake(fd=fd, vaddr=arg.vaddrout)) == EINVAL
        # What is left at the close goes with it.
        assert session.ask(request, make(fd=fd, length=PAGE, flags=2)) == (0, 0)
        kernel.close(fd)


def test_a_mapped_dma_buf_is_used_again_whatever_the_length(
    cdsp: tuple[SimKernel, FastRpcSim],
) -> None:
    kernel, _device = cdsp
    request, make = abi.FASTRPC_IOCTL_MEM_MAP, abi.fastrpc_mem_map
    with Session(kernel) as session:
        fd = session.alloc(PAGE)
        assert session.ask(request, make(fd=fd, length=PAGE, flags=2)) == (0, 0)
        assert session.ask(request, make(fd=fd, length=9 * PAGE, flags=2)) == (0, 0)
        # One, beside that of the shell, which lives as long as the session.
        assert len(kernel.file(session.fd).maps) == 2  # type: ignore[union-attr]
        kernel.close(fd)


def test_address_0_is_that_of_every_map_that_has_none(
    cdsp: tuple[SimKernel, FastRpcSim],
) -> None:
    kernel, _device = cdsp
    with Session(kernel) as session:
        # The shell's; the DSP knows nothing of it.
        request = abi.fastrpc_mem_unmap(fd=-1, vaddr=0)
        assert session.ask(abi.FASTRPC_IOCTL_MEM_UNMAP, request) == (signed(0x80000448), 0)


# Attributes and options.


def info(session: Session, number: int, word: int = 3) -> tuple[tuple[int, int], list[int]]:
    arg = abi.fastrpc_ioctl_capability(unused=word, attribute_id=number, capability=0xAAAA)
    answer = session.ask(abi.FASTRPC_IOCTL_GET_DSP_INFO, arg)
    return answer, [arg.unused, arg.attribute_id, arg.capability]


def test_attributes_are_asked_once(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, device = cdsp
    with Session(kernel, create=False) as session:
        assert session.ask(abi.FASTRPC_IOCTL_GET_DSP_INFO, 8) == EFAULT
        assert info(session, 256)[0] == (-1, errno.EOVERFLOW)
        assert info(session, abi.ARCH_VER) == ((0, 0), [3, abi.ARCH_VER, 0x8C73])
        # The answer says nothing about a DSP that lives.
        device.dsp.silent = True
        assert info(session, 0) == ((0, 0), [3, 0, 0])
        assert info(session, 255, 77) == ((0, 0), [77, 255, 0])
        device.dsp.silent = False


@pytest.mark.parametrize(
    ("result", "answer"),
    [
        (0x80000414, (-1, errno.EOPNOTSUPP)),
        (-1, (-1, errno.EPERM)),
        (0x8000040E, (signed(0x8000040E), 0)),
        (0x27, (0x27, 0)),
    ],
)
def test_a_dsp_without_attributes(
    cdsp: tuple[SimKernel, FastRpcSim], result: int, answer: tuple[int, int]
) -> None:
    kernel, device = cdsp
    device.dsp.info_result = result
    with Session(kernel, create=False) as session:
        assert info(session, 1)[0] == answer


def test_older_drivers_ask_for_a_domain_and_answer_elsewhere() -> None:
    with no_leak():
        kernel, _device = machine(driver=LINUX_6_1)
        with Session(kernel, create=False) as session:
            for domain in (1, 4, 99):
                assert info(session, 6, domain)[0] == (-1, errno.ECHRNG)
            # The structure's other words stay as they were sent.
            assert info(session, 6) == ((0, 0), [0x8C73, 6, 0xAAAA])
            option = abi.fastrpc_ioctl_set_option(request_id=1, value=1)
            assert session.ask(abi.FASTRPC_IOCTL_SET_OPTION, option) == (-1, errno.ENOTTY)


def test_options(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, device = cdsp
    request, make = abi.FASTRPC_IOCTL_SET_OPTION, abi.fastrpc_ioctl_set_option
    with Session(kernel, create=False) as session:
        assert session.ask(request, 8) == EFAULT
        assert session.ask(request, make(request_id=1, value=1)) == (0, 0)
        assert session.ask(request, make(request_id=1, value=0)) == (0, 0)
        assert session.ask(request, make(request_id=1, value=2)) == EINVAL
        assert session.ask(request, make(request_id=2)) == EINVAL
        reserved = make(request_id=1)
        reserved.reserved[5] = 1
        device.poll_support = False
        # Reserved words and the request are looked at first, the value last.
        assert session.ask(request, reserved) == EINVAL
        assert session.ask(request, make(request_id=2)) == EINVAL
        assert session.ask(request, make(request_id=1, value=2)) == (-1, errno.EOPNOTSUPP)


# INVOKE.


def test_invoke_checks_in_the_drivers_order(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, device = cdsp
    with Session(kernel) as session:
        assert session.ask(abi.FASTRPC_IOCTL_INVOKE, 8) == EFAULT
        bad = abi.fastrpc_invoke(1, MAKE(0, 1, 0), 8)
        # The table is read before the handle is looked at.
        assert session.ask(abi.FASTRPC_IOCTL_INVOKE, bad) == EFAULT
        assert session.invoke(1, 0) == (-1, errno.EPERM)
        device.crash()
        assert session.invoke(1, 0) == (-1, errno.EPIPE)


@pytest.mark.parametrize(
    ("result", "answer"),
    [
        (0x27, (0x27, 0)),
        (0x80000406, (signed(0x80000406), 0)),
        (-1, (-1, errno.EPERM)),
        (-4095, (-1, 4095)),
        (-4096, (-4096, 0)),
    ],
)
def test_a_result_of_the_dsp_is_the_value(
    cdsp: tuple[SimKernel, FastRpcSim], result: int, answer: tuple[int, int]
) -> None:
    kernel, device = cdsp

    def fail(call: Invocation) -> None:
        call.outs[0][:2] = b"no"
        raise DspFault(result)

    with Session(kernel) as session:
        handle = session.try_module(device, fail)
        value, code, outs = session.call(handle, 2, [], [4])
        assert (value, code) == answer
        assert outs == [b"no\0\0"]


def test_an_older_driver_keeps_outputs_of_a_failed_call() -> None:
    kernel, device = machine(driver=Driver(outputs_on_error=False))

    def fail(call: Invocation) -> None:
        call.outs[0][:2] = b"no"
        raise DspFault(0x27)

    with Session(kernel) as session:
        handle = session.try_module(device, fail)
        assert session.call(handle, 2, [], [4]) == (0x27, 0, [b"\0\0\0\0"])
    device.dsp.join()


def test_unknown_handles_methods_and_processes(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, _device = cdsp
    with Session(kernel) as session:
        assert session.invoke(0xDEAD, 0)[0] == signed(0x8000042C)
        for handle in (0, 3, 4, 5, 7, 8):
            assert session.invoke(handle, MAKE(30, 0, 0))[0] == signed(0x80000414)
    with Session(kernel, create=False) as session:
        assert session.invoke(0, 0)[0] == signed(0x80000441)


def test_copied_buffers_are_zeroed_aligned_and_merged(
    cdsp: tuple[SimKernel, FastRpcSim],
) -> None:
    kernel, device = cdsp
    found: list[tuple[list[int], list[bytes], list[bytes]]] = []

    def look(call: Invocation) -> None:
        views = [*call.ins, *call.outs]
        starts = [ctypes.addressof(ctypes.c_char.from_buffer(view)) for view in views]
        found.append((starts, [bytes(v) for v in call.ins], [bytes(v) for v in call.outs]))
        call.outs[0][:] = b"X" * len(call.outs[0])

    text = ctypes.create_string_buffer(b"0123456789" * 40)
    base = ctypes.addressof(text)
    with Session(kernel) as session:
        handle = session.try_module(device, look)
        # Two that overlap, one apart, and an output over the end of the first two.
        rows = [(base, 100, -1), (base + 50, 100, 0), (base + 300, 5, -1), (base + 140, 20, -1)]
        assert session.invoke(handle, MAKE(2, 3, 1), rows) == (0, 0)
        starts, ins, outs = found[0]
        data = (b"0123456789" * 40)[:400]
        assert ins == [data[:100], data[50:150], data[300:305]]
        # The output shows what the inputs brought, then zeros.
        assert outs == [data[140:150] + bytes(10)]
        assert [start - starts[0] for start in starts[:2]] == [0, 50]
        assert starts[3] - starts[0] == 140
        assert (starts[2] - starts[0]) % 128 == 0
        assert text.raw[140:160] == b"X" * 20
        assert text.raw[:140] == data[:140]


def test_empty_buffers_reach_the_dsp_as_nothing(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, device = cdsp
    lengths: list[list[int]] = []
    with Session(kernel) as session:
        handle = session.try_module(
            device, lambda call: lengths.append([len(v) for v in (*call.ins, *call.outs)])
        )
        # Nothing behind these addresses and descriptors is looked at.
        assert session.invoke(handle, MAKE(2, 2, 1), [(8, 0, -1), (8, 0, 9999), (8, 0, 7)])[0] == 0
        assert lengths == [[0, 0, 0]]


def test_bad_pointers(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, device = cdsp
    calls: list[int] = []
    with Session(kernel) as session:
        handle = session.try_module(device, lambda call: calls.append(1))
        assert session.invoke(handle, MAKE(2, 1, 0), [(8, 4, -1)]) == EFAULT
        assert calls == []
        # An output is found bad only when it is to be written.
        assert session.invoke(handle, MAKE(2, 0, 1), [(8, 4, -1)]) == EFAULT
        assert calls == [1]
        assert session.invoke(handle, MAKE(2, 1, 0), [(8, 1 << 40, -1)]) == (-1, errno.ENOMEM)
        assert device.channel is not None
        assert device.channel.contexts == {}


def test_the_most_arguments_that_a_scalars_word_counts(
    cdsp: tuple[SimKernel, FastRpcSim],
) -> None:
    kernel, device = cdsp
    seen: list[tuple[int, int, int]] = []
    byte = ctypes.create_string_buffer(b"!")
    with Session(kernel) as session:
        handle = session.try_module(
            device, lambda c: seen.append((len(c.ins), len(c.outs), len(c.handles)))
        )
        rows = [(ctypes.addressof(byte), 1, -1)] * 540
        word = abi.REMOTE_SCALARS_MAKEX(7, 2, 255, 255, 15, 15)
        assert session.invoke(handle, word, rows) == (0, 0)
        assert seen == [(255, 255, 30)]


def shared(kernel: SimKernel, session: Session, pages: int = 2) -> tuple[int, Any]:
    fd = session.alloc(pages * PAGE)
    return fd, kernel.mmap(fd, pages * PAGE)


def test_a_dma_buf_is_shared_not_copied(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, device = cdsp

    def double(call: Invocation) -> None:
        call.outs[0][:] = bytes(2 * value for value in call.ins[0])

    with Session(kernel) as session:
        handle = session.try_module(device, double)
        fd, mapping = shared(kernel, session)
        view = memoryview(mapping)
        view[PAGE + 5 : PAGE + 8] = bytes([1, 2, 3])
        at = mapping.address
        rows = [(at + PAGE + 5, 3, fd), (at + 100, 3, fd)]
        assert session.invoke(handle, MAKE(2, 1, 1), rows) == (0, 0)
        assert bytes(view[100:103]) == bytes([2, 4, 6])
        # Nothing stays mapped but the shell.
        assert len(kernel.file(session.fd).maps) == 1  # type: ignore[union-attr]
        view.release()
        kernel.munmap(mapping)
        kernel.close(fd)


def test_a_heaps_dma_buf_works_as_well(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    from test_dma_buf import heap_buffer

    kernel, device = cdsp
    with Session(kernel) as session:
        fd = heap_buffer(kernel)
        mapping = kernel.mmap(fd, PAGE)
        handle = session.try_module(device, lambda c: c.outs[0].__setitem__(0, 9))
        assert session.invoke(handle, MAKE(2, 0, 1), [(mapping.address, 1, fd)]) == (0, 0)
        assert memoryview(mapping)[0] == 9
        kernel.munmap(mapping)
        kernel.close(fd)


def test_dma_buf_failures_are_all_einval(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, device = cdsp
    with Session(kernel) as session:
        handle = session.try_module(device, lambda call: None)
        fd, mapping = shared(kernel, session)
        at = mapping.address
        for row in ((at, 4, 9999), (at, 4, session.fd), (at, 2 * PAGE + 1, fd), (at, 4, -2)):
            assert session.invoke(handle, MAKE(2, 1, 0), [row]) == EINVAL
        # The hypervisor of this machine gives memory to nobody.
        assert session.invoke(handle, MAKE(2, 1, 0), [(at, 4, fd)], attr=1) == EINVAL
        assert session.invoke(handle, MAKE(2, 1, 0), [(at, 4, fd)], attr=2) == (0, 0)
        kernel.munmap(mapping)
        kernel.close(fd)


def test_a_mapping_that_does_not_begin_at_the_buffer_is_read_wrongly(
    cdsp: tuple[SimKernel, FastRpcSim],
) -> None:
    from test_dma_buf import heap_buffer

    kernel, device = cdsp
    got: list[bytes] = []
    with Session(kernel) as session:
        fd = heap_buffer(kernel, 2 * PAGE)
        whole = kernel.mmap(fd, 2 * PAGE)
        memoryview(whole)[0], memoryview(whole)[PAGE] = 1, 2
        second = kernel.mmap(fd, PAGE, PAGE)
        handle = session.try_module(device, lambda call: got.append(bytes(call.ins[0])))
        # The pointer is to the second page; the driver takes the first.
        assert session.invoke(handle, MAKE(2, 1, 0), [(second.address, 1, fd)]) == (0, 0)
        assert got == [b"\1"]
        kernel.munmap(second)
        kernel.munmap(whole)
        kernel.close(fd)


def test_a_handle_stays_mapped_until_the_dsp_lists_it(
    cdsp: tuple[SimKernel, FastRpcSim],
) -> None:
    kernel, device = cdsp
    seen: list[tuple[int, int, int]] = []

    def take(call: Invocation) -> None:
        each = call.handles[0]
        seen.append((each.fd, each.offset, each.length))
        if call.method == 3:
            call.fdlist.append(each.fd)

    with Session(kernel) as session:
        handle = session.try_module(device, take)
        fd = session.alloc(PAGE)
        maps = kernel.file(session.fd).maps  # type: ignore[union-attr]
        before = len(maps)
        keep, drop = (abi.REMOTE_SCALARS_MAKEX(0, m, 0, 0, 1, 0) for m in (2, 3))
        row = [((5 << 32) + 64, 100, fd)]
        assert session.invoke(handle, keep, row) == (0, 0)
        assert session.invoke(handle, keep, row) == (0, 0)
        assert (len(maps) - before, seen) == (2, [(fd, 64, 100)] * 2)
        assert session.invoke(handle, drop, row) == (0, 0)
        assert len(maps) - before == 2
        kernel.close(fd)


def test_a_copy_over_a_shared_range_would_crash(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, device = cdsp
    with Session(kernel) as session:
        handle = session.try_module(device, lambda call: None)
        fd, mapping = shared(kernel, session)
        at = mapping.address
        with pytest.raises(KernelOops, match="overlaps a dma-buf"):
            session.invoke(handle, MAKE(2, 2, 0), [(at, PAGE, fd), (at + 1, PAGE - 8, -1)])
        kernel.munmap(mapping)
        kernel.close(fd)


# Waiting, signals, crashes.


class Gate:
    """A module that waits in its call until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.let_go = threading.Event()

    def __call__(self, call: Invocation) -> None:
        self.entered.release()
        self.let_go.wait()


def test_255_calls_may_be_under_way(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, device = cdsp
    gate = Gate()
    with Session(kernel) as session:
        handle = session.try_module(device, gate)
        waiting = [Later(lambda: session.invoke(handle, MAKE(2, 0, 0))) for _ in range(255)]
        for _ in waiting:
            gate.entered.acquire()
        assert session.invoke(handle, MAKE(2, 0, 0)) == (-1, errno.ENOSPC)
        assert info(session, 1)[0] == (-1, errno.ENOSPC)
        gate.let_go.set()
        assert {each.result() for each in waiting} == {(0, 0)}
        assert session.invoke(handle, MAKE(2, 0, 0)) == (0, 0)


def test_a_signal_ends_the_wait_and_leaks_the_heap(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, device = cdsp
    gate = Gate()
    with Session(kernel) as session:
        handle = session.try_module(device, gate)
        arg = abi.fastrpc_req_mmap(size=PAGE, flags=0x1000)
        assert session.ask(abi.FASTRPC_IOCTL_MMAP, arg) == (0, 0)
        waiting = Later(lambda: session.invoke(handle, MAKE(2, 0, 0)))
        gate.entered.acquire()
        assert device.interrupt() == 1
        assert waiting.result() == (-1, errno.EINTR)
        assert device.channel is not None
        assert [pages.size for pages in device.channel.parked] == [PAGE]
        take = abi.fastrpc_req_munmap(vaddrout=arg.vaddrout, size=PAGE)
        assert session.ask(abi.FASTRPC_IOCTL_MUNMAP, take) == EINVAL
        # Its slot is not given back either.
        assert len(device.channel.contexts) == 1
    assert kernel.log[-1] == "fastrpc: 1 unanswered calls keep their slots"
    gate.let_go.set()


def test_a_silent_dsp_costs_each_message_its_timeout() -> None:
    with no_leak():
        kernel, device = machine(message_timeout=0.01)
        with Session(kernel, create=False) as session:
            device.dsp.silent = True
            late = (-1, errno.ETIMEDOUT)
            assert session.create() == late
            assert info(session, 1)[0] == late
            assert session.ask(abi.FASTRPC_IOCTL_INIT_ATTACH) == late
            arg = abi.fastrpc_req_mmap(size=PAGE, flags=0x1000)
            assert session.ask(abi.FASTRPC_IOCTL_MMAP, arg) == late
            assert device.channel is not None
            assert len(device.channel.contexts) == 4
        # The close waited once more, and the session is free all the same.
        assert device.channel.sessions == [None] * 12


def test_a_crash_ends_all_calls_and_takes_the_nodes(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, device = cdsp
    gate = Gate()
    session = Session(kernel)
    handle = session.try_module(device, gate)
    waiting = [Later(lambda: session.call(handle, 2, [], [4])) for _ in range(3)]
    for _ in waiting:
        gate.entered.acquire()
    device.crash("sleep_statsi.c:537", restart=False)
    # Outputs come back as zeros.
    assert [each.result() for each in waiting] == [(-1, errno.EPIPE, [bytes(4)])] * 3
    with pytest.raises(FileNotFoundError):
        kernel.open(SECURE, os.O_RDWR)
    device.restart()
    with Session(kernel) as fresh:
        assert fresh.open_module("file:///libecho_skel.so?echo_skel_handle_invoke")[1] == 0
        # The old descriptor stays dead.
        for answer in (
            session.invoke(handle, 0),
            session.create(),
            info(session, 1)[0],
            session.ask(abi.FASTRPC_IOCTL_INIT_ATTACH),
        ):
            assert answer == (-1, errno.EPIPE)
    session.close()
    gate.let_go.set()
    assert "fastrpc: the DSP crashed: sleep_statsi.c:537" in kernel.log


def test_reading_past_a_shared_buffer_stops_the_dsp(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, device = cdsp
    with Session(kernel) as session:
        handle = session.try_module(device, lambda call: None)
        fd, mapping = shared(kernel, session)
        row = (mapping.address + PAGE, 2 * PAGE, fd)
        assert session.invoke(handle, MAKE(2, 1, 0), [row]) == (-1, errno.EPIPE)
        assert f"the DSP crashed: {2 * PAGE} bytes at 0x{PAGE:x}" in kernel.log[-1]
        kernel.munmap(mapping)
        kernel.close(fd)


def test_a_close_during_a_call_waits_for_it(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, device = cdsp
    gate = Gate()
    session = Session(kernel)
    handle = session.try_module(device, gate)
    waiting = Later(lambda: session.invoke(handle, MAKE(2, 0, 0)))
    gate.entered.acquire()
    session.close()
    assert list(device.dsp.processes) == [1]
    gate.let_go.set()
    assert waiting.result() == (0, 0)
    assert device.dsp.processes == {}


def test_each_session_is_a_process_of_its_own(cdsp: tuple[SimKernel, FastRpcSim]) -> None:
    kernel, device = cdsp
    with Session(kernel) as one, Session(kernel) as two:
        assert list(device.dsp.processes) == [1, 2]
        handle, _result, _text = one.open_module("file:///libecho_skel.so?echo_skel_handle_invoke")
        packed = [struct.pack("<II", 3, 3), b"abc"]
        assert one.call(handle, 2, packed, [3]) == (0, 0, [b"abc"])
        assert two.call(handle, 2, packed, [3])[0] == signed(0x8000042C)
