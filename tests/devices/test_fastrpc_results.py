# SPDX-License-Identifier: MIT
"""A result of the DSP is never taken for an errno, nor the other way round.

The driver hands the DSP's 32-bit result on as its own return value, so results from -4095 to -1
arrive as errnos. The simulated driver does the same.
"""

import errno
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from devices.hexagon_session import machine, nothing_left, session

from npukit.abi import aee
from npukit.abi import fastrpc as abi
from npukit.devices.fastrpc import UNVERIFIED, DmaSlice, FastRpcDevice
from npukit.devices.fastrpc_errors import AmbiguousResult, HexagonError
from npukit.devices.fastrpc_session import Row
from npukit.ioctl import DeviceLost, Fault, FaultyKernel, Ioctl, NpuError, WaitTimeout
from npukit.ioctl.wrapper import KernelWrapper
from npukit.programs.hexagon import idl
from npukit.sim.cdsp import SHELL, Dsp, DspFault, Invocation, Process
from npukit.sim.fastrpc import LINUX_7_3, Channel, Driver

ECHO = idl.load("echo.idl")
LIKE_ERRNOS = range(1, 4096)
ON_THE_WAY = {errno.ENOMEM, errno.ENOSPC, errno.EINTR, errno.EIO, errno.EAGAIN, errno.ECONNRESET,
              errno.ECANCELED, errno.ETIMEDOUT}  # fmt: skip
"""What drivers/misc/fastrpc.c, qcom_glink_native.c and qcom_smd.c give on a message's way."""
LARGE = [
    *(0x80000400 + number for number in range(0x202)), 0x80000000, 0xFFFFF000, 0xFFFFEFFF,
    0x7FFFFFFF, 1, 39, 46, 104, 516, 4096,
]  # fmt: skip


class Failing:
    """A module whose every method answers what the first in buffer says."""

    def __init__(self, process: Process) -> None:
        self.process = process

    def invoke(self, call: Invocation) -> None:
        raise DspFault(int.from_bytes(call.ins[0][:4], "little", signed=True))


def failing(driver: Driver) -> Iterator[tuple[FastRpcDevice, int]]:
    kernel, dsp = machine(driver=driver)
    dsp.dsp.register("file:///libfailing_skel.so?failing", Failing)
    with nothing_left(dsp):
        with FastRpcDevice.open(kernel=kernel) as device:
            device.start(SHELL, verify=UNVERIFIED)
            yield device, device.open_module("file:///libfailing_skel.so?failing")
        del device


@pytest.fixture
def module() -> Iterator[tuple[FastRpcDevice, int]]:
    yield from failing(LINUX_7_3)


@pytest.fixture
def module_of_old_driver() -> Iterator[tuple[FastRpcDevice, int]]:
    yield from failing(Driver(outputs_on_error=False))


def ask(device: FastRpcDevice, handle: int, code: int, *ins: Any, outs: Any = ()) -> NpuError:
    """How a call fails whose result is ``code``."""
    word = (code & 0xFFFFFFFF).to_bytes(4, "little")
    with pytest.raises(NpuError) as caught:
        device.invoke(handle, 2, [word, *ins], outs)
    error = caught.value
    # The frames hold the arguments.
    del caught
    return error.with_traceback(None)


def check_hexagon(error: NpuError, code: int) -> None:
    assert type(error) is HexagonError
    assert (error.code, error.errno) == (code & 0xFFFFFFFF, errno.EREMOTEIO)
    assert error.name
    assert error.layer


def check_ambiguous(error: NpuError, code: int) -> None:
    assert isinstance(error, AmbiguousResult)
    assert (error.errno, error.code) == (code, -code & 0xFFFFFFFF)
    assert error.name
    assert error.layer
    for part in (os.strerror(code), f"or else it is the DSP's own result {error.code:#x}"):
        assert part in str(error)


def test_every_result_that_looks_like_an_errno(module: tuple[FastRpcDevice, int]) -> None:
    device, handle = module
    for code in LIKE_ERRNOS:
        error = ask(device, handle, -code)
        if code in ON_THE_WAY:
            check_ambiguous(error, code)
        else:
            check_hexagon(error, -code)
    assert not device.lost
    assert isinstance(ask(device, handle, -errno.ETIMEDOUT), WaitTimeout)


def test_an_out_buffer_tells_that_the_dsp_has_answered(module: tuple[FastRpcDevice, int]) -> None:
    device, handle = module
    for code in LIKE_ERRNOS:
        check_hexagon(ask(device, handle, -code, outs=[4]), -code)
    # One of the caller's own is not marked, and one of no bytes cannot be.
    for code in ON_THE_WAY:
        check_ambiguous(ask(device, handle, -code, outs=[bytearray(4), 0]), code)


def test_an_old_driver_writes_no_buffer_of_a_failed_call(
    module_of_old_driver: tuple[FastRpcDevice, int],
) -> None:
    device, handle = module_of_old_driver
    for code in LIKE_ERRNOS:
        error = ask(device, handle, -code, outs=[4])
        if code in ON_THE_WAY:
            check_ambiguous(error, code)
        else:
            check_hexagon(error, -code)


def test_results_that_look_like_no_errno(module: tuple[FastRpcDevice, int]) -> None:
    device, handle = module
    for code in LARGE:
        error = ask(device, handle, code)
        check_hexagon(error, code)
        assert aee.decode(code).name in str(error)


def test_a_result_that_reads_as_an_errno_says_so(module: tuple[FastRpcDevice, int]) -> None:
    device, handle = module
    text = str(ask(device, handle, -errno.ENODEV))
    assert "0xffffffed" in text
    assert "a module that counts in errnos means ENODEV; this kernel gave none" in text


def test_a_broken_pipe_is_believed_only_of_a_dead_channel(
    module: tuple[FastRpcDevice, int],
) -> None:
    device, handle = module
    sim: Any = device.kernel
    check_hexagon(ask(device, handle, -errno.EPIPE), -errno.EPIPE)
    assert not device.lost
    check_hexagon(ask(device, handle, 5), 5)
    sim.devices[-1].crash("test")
    assert isinstance(ask(device, handle, 5), DeviceLost)
    assert device.lost


class Refusing(KernelWrapper):
    """A kernel whose ioctls on sessions all end with ``code``, once it is set: the descriptor is
    closed, or another file's, or a security module is against it."""

    code = 0

    def ioctl(self, fd: int, request: int, arg: Any = None) -> tuple[int, int]:
        return (-1, self.code) if self.code else super().ioctl(fd, request, arg)


@pytest.mark.parametrize("code", [errno.EBADF, errno.ENOTTY, errno.EACCES])
def test_a_lost_descriptor_is_no_result(code: int) -> None:
    kernel, dsp = machine()
    dsp.dsp.register("file:///libfailing_skel.so?failing", Failing)
    refusing = Refusing(kernel)
    with nothing_left(dsp), FastRpcDevice.open(kernel=refusing) as device:
        device.attach()
        handle = device.open_module("file:///libfailing_skel.so?failing")
        check_hexagon(ask(device, handle, -code), -code)
        refusing.code = code
        error = ask(device, handle, -code)
        assert (type(error), error.errno) == (NpuError, code)
        assert not device.lost
        refusing.code = 0
        check_hexagon(ask(device, handle, -code), -code)


# What only some calls can meet.


def test_einval_is_the_drivers_only_with_a_dma_buf(module: tuple[FastRpcDevice, int]) -> None:
    device, handle = module
    with device.alloc(4096) as buffer:
        error = ask(device, handle, -errno.EINVAL, buffer)
        check_ambiguous(error, errno.EINVAL)
        assert "a dma-buf argument cannot be mapped" in str(error)
        check_hexagon(ask(device, handle, -errno.EINVAL, buffer, outs=[4]), -errno.EINVAL)
        check_hexagon(ask(device, handle, -errno.EBADF, buffer), -errno.EBADF)
        check_hexagon(ask(device, handle, -errno.EINVAL, b"copied"), -errno.EINVAL)


def test_a_dma_buf_that_the_driver_cannot_map_is_named(
    module: tuple[FastRpcDevice, int],
) -> None:
    device, handle = module
    with device.alloc(4096) as buffer, tempfile.TemporaryFile() as other:

        class Wrong(DmaSlice):
            """The descriptor of something else."""

            fd = -1

            def buffer_row(self) -> Row:
                return super().buffer_row()._replace(fd=self.fd)

        wrong = Wrong(buffer, 0, 4096)
        for fd, length, hint in (
            (999, 4096, "descriptor 999 is not open"),
            (other.fileno(), 4096, f"descriptor {other.fileno()} is no dma-buf"),
            (device.fileno(), 4096, f"descriptor {device.fileno()} is no dma-buf"),
            (buffer.fd, 8192, f"dma-buf {buffer.fd} has 4096 bytes, 8192 were asked for"),
        ):
            wrong.fd, wrong.size = fd, length
            error = ask(device, handle, 5, wrong)
            assert (type(error), error.errno) == (NpuError, errno.EINVAL)
            assert hint in str(error)


def test_efault_is_the_drivers_only_with_memory_that_may_go(
    module: tuple[FastRpcDevice, int],
) -> None:
    device, handle = module
    check_hexagon(ask(device, handle, -errno.EFAULT, b"bytes", outs=[bytearray(3)]), -errno.EFAULT)
    check_ambiguous(ask(device, handle, -errno.EFAULT, np.zeros(3)), errno.EFAULT)
    with tempfile.TemporaryFile() as file:
        file.truncate(4096)
        with mmap.mmap(file.fileno(), 4096) as memory:
            check_hexagon(ask(device, handle, 5, memory), 5)
            file.truncate(0)
            error = ask(device, handle, 5, memory)
            check_ambiguous(error, errno.EFAULT)
            assert "memory of an argument is not there any more" in str(error)


# Messages of the driver's own.


class Answering(Dsp):
    """Firmware that answers all messages with ``code``, once it is set."""

    code = 0

    def map_memory(self, *arguments: Any) -> int:
        return self.code or super().map_memory(*arguments)

    def unmap_memory(self, *arguments: Any) -> int:
        return self.code or super().unmap_memory(*arguments)

    def add_pages(self, *arguments: Any) -> int:
        return self.code or super().add_pages(*arguments)

    def remove_pages(self, *arguments: Any) -> int:
        return self.code or super().remove_pages(*arguments)

    def create(self, *arguments: Any) -> int:
        return self.code or super().create(*arguments)

    def attach(self, *arguments: Any) -> int:
        return self.code or super().attach(*arguments)

    def info(self, *arguments: Any) -> int:
        return self.code or super().info(*arguments)


@pytest.mark.parametrize(
    ("secure", "also"),
    [
        (True, {}),
        (False, {"create": {errno.ECONNREFUSED}}),
    ],
)
def test_every_message_tells_the_dsps_result_from_the_drivers(
    secure: bool, also: dict[str, set[int]]
) -> None:
    kernel, dsp = machine()
    firmware = dsp.dsp = Answering(kernel.log)
    dsp.channel = Channel(firmware, 12)
    own: dict[str, set[int]] = {
        "map": {errno.EINVAL, errno.EREMOTEIO},
        "unmap": {errno.EINVAL},
        "grow": set(),
        "shrink": {errno.EINVAL},
        "create": {errno.EINVAL, errno.EREMOTEIO},
        "attach": set(),
        "capability": {errno.EOVERFLOW},
    }
    with (
        nothing_left(dsp),
        FastRpcDevice.open(kernel=kernel, secure=secure) as device,
        FastRpcDevice.open(kernel=kernel, secure=secure) as started,
    ):
        started.start(SHELL, verify=UNVERIFIED)
        with started.alloc(4096) as buffer, started.alloc(4096) as mapped:
            address = started.grow_heap(4096)
            mapped.map_to_dsp()
            request = abi.fastrpc_mem_unmap(fd=mapped.fd, vaddr=mapped.dma_address, length=4096)
            calls: dict[str, Callable[[], object]] = {
                "map": buffer.map_to_dsp,
                "unmap": lambda: started._ask(abi.FASTRPC_IOCTL_MEM_UNMAP, request),
                "grow": lambda: started.grow_heap(4096),
                "shrink": lambda: started.shrink_heap(address, 4096),
                "create": lambda: device.start(SHELL, verify=UNVERIFIED),
                "attach": device.attach,
                "capability": lambda: device.capability("ARCH_VER"),
            }
            for name, call in calls.items():
                drivers = ON_THE_WAY | own[name] | also.get(name, set())
                for code in LIKE_ERRNOS:
                    if name == "capability" and code in (errno.EPERM, errno.EOPNOTSUPP):
                        continue
                    firmware.code = -code
                    with pytest.raises(NpuError) as caught:
                        call()
                    if code in drivers:
                        check_ambiguous(caught.value, code)
                    else:
                        check_hexagon(caught.value, -code)
                firmware.code = 0x80000447
                with pytest.raises(HexagonError, match=r"AEE_E[A-Z]+ 0x80000447"):
                    call()
            firmware.code = 0
            assert not started.lost
            assert not device.running
            # It all goes on.
            buffer.map_to_dsp()
            started.shrink_heap(address, 4096)


def test_a_full_channel_and_the_dsps_same_number(module: tuple[FastRpcDevice, int]) -> None:
    """Neither is known, so neither is claimed."""
    device, handle = module
    text = str(ask(device, handle, -errno.ENOSPC))
    assert "255 calls are under way on this DSP" in text
    assert "0xffffffe4" in text


def test_requests_that_ask_no_dsp_give_errnos() -> None:
    with session() as device:
        device.limit = 1 << 40
        with pytest.raises(NpuError, match=f"no contiguous or mappable memory of {1 << 33} bytes"
                           ) as caught:  # fmt: skip
            device.alloc(1 << 33)
        assert type(caught.value) is NpuError


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (abi.FASTRPC_IOCTL_ALLOC_DMA_BUFF, errno.ENOMEM, "mappable memory of 4096 bytes"),
        (abi.FASTRPC_IOCTL_INIT_CREATE, errno.ENOMEM, f"its shell of {len(SHELL)} bytes"),
        (abi.FASTRPC_IOCTL_MEM_MAP, errno.EINVAL, r"dma-buf \d+ cannot be mapped with 8192 bytes"),
        (abi.FASTRPC_IOCTL_MEM_UNMAP, errno.EINVAL, r"dma-buf \d+ is mapped at 0x[0-9a-f]+"),
        (abi.FASTRPC_IOCTL_MMAP, errno.ENOMEM, "mappable memory of 12288 bytes"),
        (abi.FASTRPC_IOCTL_MUNMAP, errno.EINVAL, r"address 0x[0-9a-f]+ and size 12288 must be"),
    ],
    ids=str,
)
def test_a_refusal_names_the_numbers(request_: Ioctl, code: int, text: str) -> None:
    kernel, dsp = machine()
    faulty = FaultyKernel(kernel, [Fault(code, request=int(request_))])
    with nothing_left(dsp), FastRpcDevice.open(kernel=faulty) as device:

        def everything() -> None:
            device.start(SHELL, verify=UNVERIFIED)
            with device.alloc(8192) as buffer:
                buffer.map_to_dsp()
                buffer.unmap_from_dsp()
            device.shrink_heap(device.grow_heap(12288), 12288)

        with pytest.raises(NpuError, match=text) as caught:
            everything()
        assert (caught.value.errno, caught.value.filename) == (code, device.path)
        assert str(caught.value.request) == request_.name
        # Without a request at hand the rule is told by the fields' names.
        rule = device.explain(request_, code)
        assert rule is not None
        assert "{" not in rule
