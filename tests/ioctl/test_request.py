# SPDX-License-Identifier: MIT
import errno
import fcntl
import os
import pickle
import termios
from typing import Any

import pytest
from support import no_leak

from npukit.abi.drm import DRM_IOCTL_GEM_CLOSE, DRM_IOCTL_VERSION, drm_gem_close
from npukit.ioctl import (
    IO,
    IOR,
    IOWR,
    DeviceBusy,
    DeviceLost,
    Fault,
    FaultyKernel,
    Ioctl,
    KernelCall,
    LinuxKernel,
    NpuError,
    TracingKernel,
    WaitTimeout,
)
from npukit.ioctl.errors import error_class
from npukit.sim import SimKernel

FIONREAD = Ioctl("FIONREAD", termios.FIONREAD)


def test_a_request_is_an_int_that_knows_itself() -> None:
    assert DRM_IOCTL_GEM_CLOSE == 0x40086409
    assert f"{DRM_IOCTL_GEM_CLOSE:#x}" == "0x40086409"
    assert {0x40086409: "x"}[DRM_IOCTL_GEM_CLOSE] == "x"
    assert repr(DRM_IOCTL_GEM_CLOSE) == "<DRM_IOCTL_GEM_CLOSE 0x40086409>"
    assert (DRM_IOCTL_GEM_CLOSE.name, DRM_IOCTL_GEM_CLOSE.struct) == (
        "DRM_IOCTL_GEM_CLOSE",
        drm_gem_close,
    )
    assert DRM_IOCTL_GEM_CLOSE.type == ord("d")
    assert (DRM_IOCTL_GEM_CLOSE.nr, DRM_IOCTL_GEM_CLOSE.size) == (9, 8)


def test_raw_and_called_form_on_a_pipe() -> None:
    kernel = LinuxKernel()
    reader, writer = os.pipe()
    try:
        os.write(writer, b"12345")
        count = bytearray(4)
        assert FIONREAD.call(kernel, reader, count) == (0, 0)
        assert int.from_bytes(count, "little") == 5
        assert FIONREAD(kernel, reader, count) is None
        assert fcntl.ioctl(reader, FIONREAD, b"\0" * 4) == bytes(count)
    finally:
        os.close(reader)
        os.close(writer)


def test_an_error_names_request_rule_and_argument() -> None:
    kernel = SimKernel(["rocket"])
    fd = kernel.open("/dev/accel/accel0", os.O_RDWR)
    with pytest.raises(NpuError) as caught:
        DRM_IOCTL_GEM_CLOSE(kernel, fd, handle=77)
    kernel.close(fd)
    error = caught.value
    assert (error.errno, error.request) == (errno.EINVAL, "DRM_IOCTL_GEM_CLOSE")
    assert str(error) == (
        "DRM_IOCTL_GEM_CLOSE: Invalid argument (EINVAL) [drm_gem_close(handle=77)]"
    )
    assert isinstance(error, OSError)


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        (errno.EBUSY, DeviceBusy),
        (errno.ENODEV, DeviceLost),
        (errno.ETIME, WaitTimeout),
        (errno.ETIMEDOUT, WaitTimeout),
        (errno.EINVAL, NpuError),
    ],
)
def test_subclasses_follow_the_errno(code: int, cls: type[NpuError]) -> None:
    assert error_class(code) is cls
    assert issubclass(WaitTimeout, TimeoutError)


def test_only_requests_that_may_be_repeated_are() -> None:
    once = Ioctl("ONCE", IO("d", 1))
    again = Ioctl("AGAIN", IO("d", 1), restart=True)
    for code in (errno.EINTR, errno.EAGAIN):
        plan = [Fault(code, call="ioctl", times=2)]
        kernel = FaultyKernel(SimKernel(["rocket"]), plan)
        fd = kernel.open("/dev/accel/accel0", os.O_RDWR)
        with pytest.raises(NpuError) as caught:
            once(kernel, fd)
        assert caught.value.errno == code
        with pytest.raises(NpuError) as caught:
            again(kernel, fd)
        assert caught.value.errno == errno.EINVAL  # what the driver says to this number
        kernel.close(fd)


def test_an_eagain_that_lasts_is_an_error_in_the_end() -> None:
    again = Ioctl("AGAIN", IO("d", 1), restart=True)
    kernel = FaultyKernel(LinuxKernel(), [Fault(errno.EAGAIN, call="ioctl", times=None)])
    with pytest.raises(NpuError, match="EAGAIN"):
        again(kernel, 0)


def test_returns_value() -> None:
    request = Ioctl("VALUE", IOWR("d", 0x40, 4), returns="value")

    class Answers(LinuxKernel):
        def ioctl(self, fd: int, request: int, arg: Any = None) -> tuple[int, int]:
            return -42, 0

    assert request(Answers(), 0) == -42


def test_structure_and_fields_exclude_each_other() -> None:
    with pytest.raises(TypeError, match="not both"):
        DRM_IOCTL_GEM_CLOSE(LinuxKernel(), 0, drm_gem_close(), handle=1)


def test_faults_are_planned_by_call_request_and_count() -> None:
    with no_leak():
        kernel = FaultyKernel(
            SimKernel(["rocket"]),
            [
                Fault(errno.ENOMEM, request=DRM_IOCTL_VERSION, after=1),
                Fault(errno.EMFILE, call="dup", times=None),
                Fault(errno.EACCES, call="open", after=1),
            ],
        )
        fd = kernel.open("/dev/accel/accel0", os.O_RDWR)
        DRM_IOCTL_VERSION(kernel, fd)
        with pytest.raises(NpuError) as caught:
            DRM_IOCTL_VERSION(kernel, fd)
        assert caught.value.errno == errno.ENOMEM
        DRM_IOCTL_VERSION(kernel, fd)
        for _ in range(3):
            with pytest.raises(OSError, match="Too many open files"):
                kernel.dup(fd)
        with pytest.raises(PermissionError):
            kernel.open("/dev/accel/accel0", os.O_RDWR)
        assert kernel.calls == 8
        kernel.close(fd)


def test_a_fault_may_hit_after_the_work_is_done() -> None:
    kernel = FaultyKernel(LinuxKernel(), [Fault(errno.EINTR, call="ftruncate", done=True)])
    fd = kernel.memfd_create("test")
    with pytest.raises(InterruptedError):
        kernel.ftruncate(fd, 4096)
    assert kernel.fstat(fd).st_size == 4096
    kernel.close(fd)


def test_every_call_reaches_the_sink_with_what_was_sent() -> None:
    seen: list[KernelCall] = []
    kernel = TracingKernel(SimKernel(["rocket"]), seen.append)
    fd = kernel.open("/dev/accel/accel0", os.O_RDWR)
    version = DRM_IOCTL_VERSION(kernel, fd)
    with pytest.raises(FileNotFoundError):
        kernel.open("/dev/nothing", os.O_RDWR)
    kernel.close(fd)
    assert [call.name for call in seen] == ["open", "ioctl", "open", "close"]
    assert [call.errno for call in seen] == [0, 0, errno.ENOENT, 0]
    sent = seen[1].before
    assert sent is not None
    assert sent == bytes(len(sent))
    assert seen[1].arguments[2] is version
    assert seen[1].duration_ns >= 0
    assert version.name_len == len("rocket")


def test_linux_kernel_has_every_call() -> None:
    kernel = LinuxKernel()
    with no_leak():
        fd = kernel.memfd_create("test")
        kernel.ftruncate(fd, 8192)
        copy = kernel.dup(fd)
        assert kernel.lseek(copy, 0, os.SEEK_END) == 8192
        mapping = kernel.mmap(fd, 100)
        memoryview(mapping)[:3] = b"abc"
        assert os.pread(copy, 3, 0) == b"abc"
        kernel.munmap(mapping)
        assert kernel.fstat(fd).st_size == 8192
        kernel.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        assert kernel.fcntl(fd, fcntl.F_GETFD) == fcntl.FD_CLOEXEC
        assert kernel.poll([(fd, 1)], 0) == [(fd, 1)]
        assert kernel.monotonic_ns() > 0
        value, code = kernel.ioctl(fd, IOR("d", 0, 4), bytearray(4))
        assert (value, code) == (-1, errno.ENOTTY)
        kernel.close(fd)
        kernel.close(copy)


def test_requests_survive_pickling() -> None:
    copy = pickle.loads(pickle.dumps(DRM_IOCTL_VERSION))
    assert (copy, copy.name, copy.struct, copy.restart) == (
        DRM_IOCTL_VERSION,
        "DRM_IOCTL_VERSION",
        DRM_IOCTL_VERSION.struct,
        True,
    )


def test_errors_survive_pickling() -> None:
    error = WaitTimeout(errno.ETIMEDOUT, path="/dev/x", request="R", argument="a", hint="h")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (WaitTimeout, str(error))
