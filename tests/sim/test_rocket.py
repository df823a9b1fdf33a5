# SPDX-License-Identifier: MIT
"""The simulated rocket driver against the rules of drivers/accel/rocket."""

import ctypes
import errno
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from raw import CODE, JOB_BYTES, PRODUCT, Raw, job_image, job_result
from support import no_leak

from npukit.abi import drm, rocket
from npukit.devices import RocketBuffer, RocketDevice, RocketJob
from npukit.ioctl import DeviceBusy, DeviceClosed, NpuError, ProgramError, WaitTimeout
from npukit.programs.rk3588.program import rocket_tasks
from npukit.sim import SimKernel

NODE = "/dev/accel/accel0"
CREATE = rocket.DRM_IOCTL_ROCKET_CREATE_BO
SUBMIT = rocket.DRM_IOCTL_ROCKET_SUBMIT
PREP = rocket.DRM_IOCTL_ROCKET_PREP_BO
FINI = rocket.DRM_IOCTL_ROCKET_FINI_BO


@pytest.fixture
def node() -> Iterator[Raw]:
    with no_leak(), Raw(SimKernel(["rocket"]), NODE) as node:
        yield node


class Work:
    """A buffer with a job in it, and the structures that submit it."""

    def __init__(self, node: Raw) -> None:
        self.node = node
        self.bo = node.ok(CREATE, size=JOB_BYTES)
        self.mapping = node.kernel.mmap(node.fd, JOB_BYTES, self.bo.offset)
        image, program = job_image(self.bo.dma_address)
        memoryview(self.mapping)[:] = memoryview(image)
        self.tasks = rocket_tasks(program, self.bo.dma_address + CODE)
        self.writes = (ctypes.c_uint32 * 1)(self.bo.handle)
        self.job = rocket.drm_rocket_job(
            tasks=ctypes.addressof(self.tasks),
            task_count=1,
            task_struct_size=8,
            out_bo_handles=ctypes.addressof(self.writes),
            out_bo_handle_count=1,
        )

    def submit(self, **changes: Any) -> int:
        for name, value in changes.items():
            setattr(self.job, name, value)
        return self.node.ask(
            SUBMIT, jobs=ctypes.addressof(self.job), job_count=1, job_struct_size=40
        )[0]

    def wait(self, seconds: float = 5.0) -> int:
        deadline = time.monotonic_ns() + int(seconds * 1e9) if seconds else 0
        return self.node.ask(PREP, handle=self.bo.handle, timeout_ns=deadline)[0]

    def close(self) -> None:
        self.node.kernel.munmap(self.mapping)

    def ran(self) -> bool:
        return np.array_equal(job_result(memoryview(self.mapping)), PRODUCT)


def test_a_job_runs(node: Raw) -> None:
    work = Work(node)
    assert work.submit() == 0
    assert work.wait() == 0
    assert work.ran()
    assert node.ask(FINI, handle=work.bo.handle)[0] == 0
    assert node.kernel.log == []


def test_create_bo(node: Raw) -> None:
    assert node.ask(CREATE, size=0)[0] == errno.ENOSPC
    assert node.ask(CREATE, size=1 << 31)[0] == errno.ENOMEM
    first = node.ok(CREATE, size=100)
    second = node.ok(CREATE, size=100)
    assert (first.dma_address, second.dma_address) == (0, 0x1000)
    third = node.ok(CREATE, size=0x3000)
    node.ok(drm.DRM_IOCTL_GEM_CLOSE, handle=first.handle)
    assert node.ok(CREATE, size=0x1000).dma_address == 0
    assert third.dma_address == 0x2000
    with Raw(node.kernel, NODE) as other:
        assert other.ok(CREATE, size=4096).dma_address == 0  # an address space for each open file


def test_the_address_space_ends_at_4_gib(node: Raw) -> None:
    for _ in range(4):
        node.ok(CREATE, size=1 << 30)
    assert node.ask(CREATE, size=4096)[0] == errno.ENOSPC


def test_submit_checks_in_order(node: Raw) -> None:
    # Nothing is looked at when there are no jobs.
    assert node.ask(SUBMIT, jobs=8, job_count=0, job_struct_size=1, reserved=1)[0] == 0
    assert node.ask(SUBMIT, jobs=8, job_count=1, job_struct_size=39)[0] == errno.EINVAL
    assert node.ask(SUBMIT, jobs=8, job_count=1, job_struct_size=40, reserved=1)[0] == errno.EINVAL
    assert node.ask(SUBMIT, jobs=8, job_count=1, job_struct_size=40)[0] == errno.EFAULT


@pytest.mark.parametrize(
    "change",
    [
        {"task_count": 0},
        {"task_struct_size": 7},
        {"tasks": 8},
        {"out_bo_handles": 8},
        {"in_bo_handles": 8, "in_bo_handle_count": 1},
    ],
)
def test_a_bad_job_is_swallowed(node: Raw, change: dict[str, int]) -> None:
    work = Work(node)
    assert work.submit(**change) == 0
    assert work.wait(0) == 0  # nothing to wait for: the job does not exist
    assert not work.ran()
    assert "is dropped" in node.kernel.log[0]


def test_other_swallowed_errors(node: Raw) -> None:
    work = Work(node)
    work.tasks[0].regcmd_count = 0
    assert work.submit() == 0
    work.tasks[0].regcmd_count = 108
    twice = (ctypes.c_uint32 * 2)(work.bo.handle, work.bo.handle)
    assert work.submit(out_bo_handles=ctypes.addressof(twice), out_bo_handle_count=2) == 0
    unknown = (ctypes.c_uint32 * 1)(99)
    assert work.submit(out_bo_handles=ctypes.addressof(unknown), out_bo_handle_count=1) == 0
    assert [line.split(": ")[-1].split()[0] for line in node.kernel.log] == [
        "EINVAL",
        "EALREADY",
        "ENOENT",
    ]
    assert not work.ran()


def test_a_bad_job_does_not_stop_later_ones(node: Raw) -> None:
    good, bad = Work(node), rocket.drm_rocket_job()
    jobs = (rocket.drm_rocket_job * 2)(bad, good.job)
    node.ok(SUBMIT, jobs=ctypes.addressof(jobs), job_count=2, job_struct_size=40)
    assert good.wait() == 0
    assert good.ran()


def test_job_structures_may_be_larger(node: Raw) -> None:
    work = Work(node)
    padded = ctypes.create_string_buffer(bytes(work.job) + b"future..", 48)
    node.ok(SUBMIT, jobs=ctypes.addressof(padded), job_count=1, job_struct_size=48)
    assert work.wait() == 0
    assert work.ran()


def test_strict_mode_says_what_is_swallowed() -> None:
    with no_leak(), Raw(SimKernel(["rocket"], strict=True), NODE) as node:
        work = Work(node)
        with pytest.raises(ProgramError, match="job 0 of 1 is dropped: EINVAL"):
            work.submit(task_count=0)
        work.submit(task_count=1)
        assert work.wait() == 0
        work.tasks[0].regcmd = 0x100000
        assert work.submit() == 0
        with pytest.raises(ProgramError, match="a job that writes this buffer failed: access"):
            work.wait()
        work.close()


def test_prep_and_fini_check_in_order(node: Raw) -> None:
    for request in (PREP, FINI):
        assert node.ask(request, handle=9, reserved=1)[0] == errno.EINVAL
        assert node.ask(request, handle=9)[0] == errno.ENOENT
    idle = node.ok(CREATE, size=4096)
    assert node.ask(PREP, handle=idle.handle, timeout_ns=0)[0] == 0


def test_a_hang_is_reset_after_half_a_second_and_not_reported(node: Raw) -> None:
    work = Work(node)
    image, _ = job_image(work.bo.dma_address)
    memoryview(work.mapping)[CODE + 8 * 107 : CODE + 8 * 108] = bytes(8)  # no enable word
    start = time.monotonic()
    assert work.submit() == 0
    assert work.wait(0) == errno.EBUSY
    assert work.wait(0.05) == errno.ETIMEDOUT
    assert work.wait() == 0  # given up, and the wait succeeds
    assert 0.45 < time.monotonic() - start < 5
    assert not work.ran()
    assert any("timed out" in line for line in node.kernel.log)
    memoryview(work.mapping)[:] = memoryview(image)
    assert work.submit() == 0
    assert work.wait() == 0
    assert work.ran()


def test_closing_while_a_job_runs(node: Raw) -> None:
    with Raw(node.kernel, NODE) as other:
        work = Work(other)
        memoryview(work.mapping)[CODE + 8 * 107 : CODE + 8 * 108] = bytes(8)
        for _ in range(3):
            assert work.submit() == 0
        work.close()
    time.sleep(0.6)


def test_reading_buffers_order_jobs_of_two_files(node: Raw) -> None:
    """A buffer that another file's job writes is waited for, also when this job only reads it."""
    first = Work(node)
    memoryview(first.mapping)[CODE + 8 * 107 : CODE + 8 * 108] = bytes(8)
    fd = node.ok(drm.DRM_IOCTL_PRIME_HANDLE_TO_FD, handle=first.bo.handle, flags=2).fd
    with Raw(node.kernel, NODE) as other:
        second = Work(other)
        shared = other.ok(drm.DRM_IOCTL_PRIME_FD_TO_HANDLE, fd=fd).handle
        reads = (ctypes.c_uint32 * 1)(shared)
        assert first.submit() == 0
        assert second.submit(in_bo_handles=ctypes.addressof(reads), in_bo_handle_count=1) == 0
        assert second.wait(0) == errno.EBUSY
        assert second.wait() == 0
        assert second.ran()
        second.close()
    node.kernel.close(fd)


# The class above the driver: what it checks first.


@pytest.fixture
def device() -> Iterator[RocketDevice]:
    with no_leak():
        with RocketDevice(NODE, SimKernel(["rocket"])) as device:
            yield device
        HELD.clear()
        del device


HELD: list[RocketBuffer] = []
"""Buffers of the test's device, which closes them."""


def job(device: RocketDevice, **changes: Any) -> RocketJob:
    buffer = device.alloc(JOB_BYTES)
    HELD.append(buffer)
    image, program = job_image(buffer.dma_address)
    with buffer.access("w") as memory:
        memory[:] = image
    fields = {
        "tasks": rocket_tasks(program, buffer.dma_address + CODE),
        "reads": (),
        "writes": (buffer,),
    }
    return RocketJob(**{**fields, **changes})


def test_the_class_runs_jobs(device: RocketDevice) -> None:
    jobs = [job(device) for _ in range(4)]
    device.submit(jobs)
    device.submit([])
    for each in jobs:
        (buffer,) = each.writes
        with buffer.access("r") as memory:
            assert np.array_equal(job_result(memory), PRODUCT)


def test_the_class_refuses_what_the_driver_would_drop(device: RocketDevice) -> None:
    empty = (rocket.drm_rocket_task * 0)()
    zero = (rocket.drm_rocket_task * 1)(rocket.drm_rocket_task(regcmd=16, regcmd_count=0))
    buffer = device.alloc(4096)
    for changes, rule in (
        ({"tasks": empty}, "without tasks"),
        ({"tasks": zero}, "0 words"),
        ({"writes": ()}, "cannot be awaited"),
        ({"reads": (buffer,), "writes": (buffer,)}, "named twice"),
    ):
        with pytest.raises(ProgramError, match=rule):
            device.submit([job(device, **changes)])
    buffer.close()
    with pytest.raises(DeviceClosed):
        device.submit([job(device, reads=(buffer,))])
    with RocketDevice(NODE, device.kernel) as other:
        foreign = other.alloc(4096)
        with pytest.raises(NpuError, match="handles are per open file"):
            device.submit([job(device, reads=(foreign,))])


def test_waits_end_with_the_right_exception(device: RocketDevice) -> None:
    hung = job(device)
    hung.tasks[0].regcmd = 0x7FFFF000
    device.submit([hung])
    (buffer,) = hung.writes
    with pytest.raises(DeviceBusy, match="still runs"):
        buffer.wait(0)
    with pytest.raises(WaitTimeout, match=r"resets a job 0\.5 s after"):
        buffer.wait(0.02)
    buffer.wait()


@pytest.mark.parametrize("size", [0, -1, 1 << 31, 1 << 40])
def test_sizes_that_the_driver_cannot_take(device: RocketDevice, size: int) -> None:
    with pytest.raises(ValueError, match="rocket takes"):
        device.alloc(size)
