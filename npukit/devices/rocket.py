# SPDX-License-Identifier: MIT
"""Rockchip NPUs under the mainline driver (drivers/accel/rocket, Linux 6.18 and newer).

One node serves all cores. The driver takes any job and says nothing when it drops one, so all that
it would drop silently is checked here first; what cannot be checked (a job that hangs is reset
after 500 ms and its wait still succeeds) shows in outputs that did not change.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from npukit._fast import Mapping
from npukit.abi import drm as drm_abi
from npukit.abi import rocket as abi
from npukit.ioctl import Ioctl, Kernel, LinuxKernel, ProgramError

from .base import Buffer, JobChecker
from .drm import DrmDevice

MAX_BUFFER = (1 << 31) - 4096
"""The driver keeps the mapped size in an int: from 2 GiB on CREATE_BO fails with ENOMEM."""

MAX_TIMEOUT = 1e6
"""Seconds: what surely fits the request's signed nanoseconds."""

JOB_TIMEOUT = 0.5
"""Seconds after which the driver resets a core that does not finish."""


class RocketBuffer(Buffer):
    """A buffer object; ``offset`` is where mmap finds it in the node."""

    device: RocketDevice

    def __init__(self, device: RocketDevice, answer: abi.drm_rocket_create_bo) -> None:
        super().__init__(device, answer.handle, answer.size, answer.dma_address)
        self.offset = int(answer.offset)

    def _make_mapping(self) -> Mapping:
        return self.device.kernel.mmap(self._file.fd, self.size, self.offset)

    def wait(self, timeout: float = 6.0) -> None:
        """Wait until no job writes this buffer, then make it coherent for the CPU.

        WaitTimeout after ``timeout`` seconds; 0 asks without waiting (DeviceBusy). A job that the
        driver gave up does not fail the wait: compare the contents.
        """
        self._check_open()
        if not 0 <= timeout <= MAX_TIMEOUT:
            raise ValueError(f"timeout {timeout} s: 0 to {MAX_TIMEOUT}")
        kernel = self.device.kernel
        absolute = kernel.monotonic_ns() + int(timeout * 1e9) if timeout > 0 else 0
        self.device.call(abi.DRM_IOCTL_ROCKET_PREP_BO, handle=self.handle, timeout_ns=absolute)

    def flush(self) -> None:
        """Make what the CPU wrote visible to the NPU."""
        self._check_open()
        self.device.call(abi.DRM_IOCTL_ROCKET_FINI_BO, handle=self.handle)

    def _begin(self, mode: str, timeout: float) -> None:
        self.wait(timeout)

    def _end(self, mode: str) -> None:
        self.flush()

    def _destroy(self) -> None:
        self.device._close_handle(drm_abi.DRM_IOCTL_GEM_CLOSE, self.handle)


@dataclass(frozen=True)
class RocketJob:
    """Tasks that one core runs in order, with the buffers they read and those they write."""

    tasks: ctypes.Array[abi.drm_rocket_task]
    reads: Sequence[RocketBuffer]
    writes: Sequence[RocketBuffer] = field(default=())


class RocketDevice(DrmDevice):
    """An open rocket node. Addresses and handles belong to this open file alone.

    ``checker``, where it is set, is asked before each submission whether it may go to the NPU.
    """

    checker: JobChecker | None = None

    driver: ClassVar[str] = "rocket"
    core_count = 3
    """Cores of an RK3588. One open file uses one at a time: the driver moves it when it is idle."""

    def __init__(self, path: str, kernel: Kernel | None = None) -> None:
        super().__init__(kernel or LinuxKernel(), path)

    def explain(self, request: Ioctl, code: int) -> str | None:
        return {
            (abi.DRM_IOCTL_ROCKET_CREATE_BO, errno.ENOSPC): "no room in the 4 GiB of this file's "
            "address space",
            (abi.DRM_IOCTL_ROCKET_CREATE_BO, errno.ENOMEM): "no memory, or no room in the 4 GiB of "
            "this file's address space",
            (abi.DRM_IOCTL_ROCKET_PREP_BO, errno.ETIMEDOUT): "a job that writes this buffer still "
            f"runs or waits; the driver resets a job {JOB_TIMEOUT} s after its start",
            (abi.DRM_IOCTL_ROCKET_PREP_BO, errno.EBUSY): "a job that writes this buffer still runs",
        }.get((request, code))

    def alloc(self, size: int) -> RocketBuffer:
        """A buffer of ``size`` bytes, in memory at once; its address may be 0."""
        if not 1 <= size <= MAX_BUFFER:
            raise ValueError(f"a buffer of {size} bytes: rocket takes 1 to {MAX_BUFFER}")
        return RocketBuffer(self, self.call(abi.DRM_IOCTL_ROCKET_CREATE_BO, size=size))

    def submit(self, jobs: Sequence[RocketJob]) -> None:
        """Queue jobs. They run in order; wait on the buffers that they write.

        What the driver would drop without a word is refused here: ProgramError for a job without
        tasks or words, or without a written buffer, or with one buffer named twice; NpuError for a
        buffer of another device; DeviceClosed for a closed one.
        """
        self._check_open()
        if not jobs:
            return
        keep: list[object] = []
        table = (abi.drm_rocket_job * len(jobs))()
        for row, job in zip(table, jobs, strict=True):
            self._check_job(job)
            reads = (ctypes.c_uint32 * len(job.reads))(*(b.handle for b in job.reads))
            writes = (ctypes.c_uint32 * len(job.writes))(*(b.handle for b in job.writes))
            keep += (reads, writes)
            row.tasks = ctypes.addressof(job.tasks)
            row.task_count = len(job.tasks)
            row.task_struct_size = ctypes.sizeof(abi.drm_rocket_task)
            row.in_bo_handles, row.in_bo_handle_count = ctypes.addressof(reads), len(reads)
            row.out_bo_handles, row.out_bo_handle_count = ctypes.addressof(writes), len(writes)
        self._check_streams(jobs)
        self.call(
            abi.DRM_IOCTL_ROCKET_SUBMIT,
            jobs=ctypes.addressof(table),
            job_count=len(jobs),
            job_struct_size=ctypes.sizeof(abi.drm_rocket_job),
        )

    def _check_streams(self, jobs: Sequence[RocketJob]) -> None:
        if self.checker is None:
            return
        rows = [(task.regcmd, task.regcmd_count, 0) for job in jobs for task in job.tasks]
        ends = list(itertools.accumulate(len(job.tasks) for job in jobs))
        windows = [range(end - len(job.tasks), end) for end, job in zip(ends, jobs, strict=True)]
        places = [(b.dma_address, b.dma_address + b.size) for b in self.buffers()]
        self.checker(self.path, rows, windows, places, self.read_memory, False)

    def _check_job(self, job: RocketJob) -> None:
        if len(job.tasks) == 0:
            raise ProgramError(path=self.path, hint="a job without tasks is dropped silently")
        if any(task.regcmd_count == 0 for task in job.tasks):
            raise ProgramError(path=self.path, hint="a task of 0 words makes the job vanish")
        if not job.writes:
            raise ProgramError(path=self.path, hint="a job that writes no buffer cannot be awaited")
        for buffer in itertools.chain(job.reads, job.writes):
            self._check_buffer(buffer)
        handles = [buffer.handle for buffer in itertools.chain(job.reads, job.writes)]
        if len(set(handles)) != len(handles):
            raise ProgramError(
                path=self.path,
                hint="a buffer is named twice: the driver cannot lock it and drops the job",
            )
