# SPDX-License-Identifier: MIT
"""Rockchip NPUs under the vendor's rknpu driver (0.8 to 0.9.8, RK3588).

The driver is built as a DRM driver or as the misc device /dev/rknpu; the same class drives both. It
trusts what it is given: kernel addresses, task windows and command streams are used unchecked, and
one bad submission resets the NPU under everybody. So all that can be checked is checked here first.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from npukit._fast import Mapping
from npukit.abi import rknpu as abi
from npukit.ioctl import AbiMismatch, Ioctl, Kernel, LinuxKernel, NpuError, ProgramError

from .base import Buffer, Device, JobChecker, naming
from .dma_buf import DmaBuf
from .drm import DrmVersion, drm_version, prime_export
from .fence import SyncFile

DATA_FLAGS = (
    abi.RKNPU_MEM_NON_CONTIGUOUS
    | abi.RKNPU_MEM_CACHEABLE
    | abi.RKNPU_MEM_IOMMU_LIMIT_IOVA_ALIGNMENT
)
"""What the vendor's runtime asks for its data buffers."""

LAST_WAIT = 2.0
"""Seconds that closing a device gives to a job that still runs."""

DOMAINS = 16
"""IOMMU domains of 4 GiB each; a buffer and the job that uses it must name the same one."""

CORE_MASKS = {0: 1, 1: 1, 2: 1, 4: 1, 3: 2, 7: 3}
"""core_mask -> cores used. The driver accepts 5 and 6 too, and never starts them."""

ReadMemory = Callable[[int, int], bytes | None]
"""(DMA address, bytes) -> the bytes, or None when no buffer of the device is there."""

Explainer = Callable[[Sequence[abi.rknpu_task], int, ReadMemory], str]
"""(tasks of the timed-out job, hardware task counter, memory) -> what it looks like went wrong."""


class RknpuBuffer(Buffer):
    """A buffer object. ``obj_addr`` is the driver's own name for it; it must be given no other."""

    device: RknpuDevice

    def __init__(self, device: RknpuDevice, answer: abi.rknpu_mem_create, domain: int) -> None:
        super().__init__(device, answer.handle, answer.size, answer.dma_addr)
        self.flags = int(answer.flags)
        self.obj_addr = int(answer.obj_addr)
        self.domain = domain

    @property
    def cacheable(self) -> bool:
        return bool(self.flags & abi.RKNPU_MEM_CACHEABLE)

    def _make_mapping(self) -> Mapping:
        kernel = self.device.kernel
        if self.device.misc:
            return kernel.mmap(self.handle, self.size)
        answer = self.device.call(abi.DRM_IOCTL_RKNPU_MEM_MAP, handle=self.handle)
        return kernel.mmap(self._file.fd, self.size, answer.offset)

    def sync(self, flags: int, offset: int = 0, size: int | None = None) -> None:
        """Cache maintenance of a range: RKNPU_MEM_SYNC_TO_DEVICE, _FROM_DEVICE or both.

        Does nothing for a buffer that is not cacheable, which the driver would refuse.
        """
        self._check_open()
        if size is None:
            size = self.size - offset
        if offset < 0 or size < 0 or offset + size > self.size:
            raise ValueError(f"{size} bytes at {offset} are not within {self!r}")
        if self.cacheable:
            request = self.device._request(abi.DRM_IOCTL_RKNPU_MEM_SYNC, abi.IOCTL_RKNPU_MEM_SYNC)
            self.device.call(request, flags=flags, obj_addr=self.obj_addr, offset=offset, size=size)

    def _begin(self, mode: str, timeout: float) -> None:
        if "r" in mode:
            self.sync(abi.RKNPU_MEM_SYNC_FROM_DEVICE)

    def _end(self, mode: str) -> None:
        if "w" in mode:
            self.sync(abi.RKNPU_MEM_SYNC_TO_DEVICE)

    def _destroy(self) -> None:
        device = self.device
        request = device._request(abi.DRM_IOCTL_RKNPU_MEM_DESTROY, abi.IOCTL_RKNPU_MEM_DESTROY)
        try:
            request(device.kernel, self._file.fd, handle=self.handle, obj_addr=self.obj_addr)
        finally:
            if device.misc:
                device.kernel.close(self.handle)


@dataclass(frozen=True, slots=True)
class RknpuResult:
    """What a finished job left: tasks done, nanoseconds on the hardware, the core mask used."""

    task_counter: int
    elapsed_ns: int
    core_mask: int


class RknpuDevice(Device):
    """An open rknpu node, DRM (/dev/dri/*) or misc (/dev/rknpu).

    ``checker``, where it is set, is asked before each job whether it may go to the NPU, and
    ``explainer`` for words when one times out.
    """

    driver: ClassVar[str] = "rknpu"
    core_count = 3

    checker: JobChecker | None = None
    explainer: Explainer | None = None

    def __init__(self, path: str, kernel: Kernel | None = None) -> None:
        super().__init__(kernel or LinuxKernel(), path)
        self._fences: weakref.WeakSet[SyncFile] = weakref.WeakSet()
        self.misc = False
        self.version: DrmVersion | None = None
        try:
            self._identify()
        except BaseException:
            self.close()
            raise

    def _identify(self) -> None:
        self.version = drm_version(self.kernel, self._file.fd)
        if self.version is None:
            self.misc = True
        elif self.version.name != self.driver:
            raise AbiMismatch(path=self.path, hint=f"driver {self.version.name!r}, not 'rknpu'")
        try:
            version = self.action(abi.RKNPU_GET_DRV_VERSION)
        except NpuError as error:
            raise AbiMismatch(
                error.errno or errno.ENOTTY, path=self.path, hint="not an rknpu device"
            ) from error
        self.driver_version = (version // 10000, version // 100 % 100, version % 100)

    def _request(self, drm: Ioctl, misc: Ioctl) -> Ioctl:
        return misc if self.misc else drm

    def explain(self, request: Ioctl, code: int) -> str | None:
        kind = request.struct
        if kind in (abi.rknpu_mem_create, abi.rknpu_mem_create_0_8):
            return {
                errno.EFAULT: "the domain's 4 GiB of addresses are full: free buffers, or use "
                "another iommu domain",
                errno.EINVAL: "size 0, an iommu domain that is not there, or no contiguous memory",
                errno.ENOMEM: "the kernel has no memory for this size",
            }.get(code)
        if kind is abi.rknpu_submit:
            return {
                errno.ETIMEDOUT: "the NPU raised no completion interrupt",
                errno.EINVAL: "the job never reached the hardware: the queue was stuck, or another "
                "process's job made the driver reset the NPU",
            }.get(code)
        if kind is abi.rknpu_action and code == errno.EINVAL:
            return "this chip or driver does not know the action"
        return None

    def action(self, action: int, value: int = 0) -> int:
        """One RKNPU_ACTION (RKNPU_GET_*, RKNPU_SET_*, ...); gives the value that came back."""
        request = self._request(abi.DRM_IOCTL_RKNPU_ACTION, abi.IOCTL_RKNPU_ACTION)
        return int(self.call(request, flags=action, value=value).value)

    @property
    def hardware_version(self) -> int:
        """VERSION + VERSION_NUM; 0x46495245 ("FIRE") on an RK3588."""
        return self.action(abi.RKNPU_GET_HW_VERSION)

    def reset(self) -> None:
        """Soft reset of the whole NPU: the running jobs of every process fail."""
        self.action(abi.RKNPU_ACT_RESET)

    def alloc(self, size: int, flags: int | None = None, domain: int = 0) -> RknpuBuffer:
        """A buffer of ``size`` bytes, rounded up to pages.

        ``flags`` are RKNPU_MEM_* (None: as the vendor's runtime asks for data), ``domain`` the
        IOMMU domain, 0 to 15. The driver checks neither, so they are checked here (ValueError).
        """
        if size < 1:
            raise ValueError(f"a buffer of {size} bytes")
        if flags is None:
            flags = abi.RKNPU_MEM_CACHEABLE if self.misc else DATA_FLAGS
        if flags & ~0x7FF:
            raise ValueError(f"flags {flags:#x}: the driver knows {0x7FF:#x}")
        if not 0 <= domain < DOMAINS:
            raise ValueError(f"iommu domain {domain}: there are 0 to {DOMAINS - 1}")
        if self.misc and flags & abi.RKNPU_MEM_NON_CONTIGUOUS:
            raise ValueError("the misc device has contiguous memory only")
        if self.driver_version < (0, 9, 0):
            request = self._request(
                abi.DRM_IOCTL_RKNPU_MEM_CREATE_0_8, abi.IOCTL_RKNPU_MEM_CREATE_0_8
            )
            answer = self.call(request, flags=flags, size=size)
        else:
            request = self._request(abi.DRM_IOCTL_RKNPU_MEM_CREATE, abi.IOCTL_RKNPU_MEM_CREATE)
            answer = self.call(request, flags=flags, size=size, iommu_domain_id=domain)
        return RknpuBuffer(self, answer, domain)

    def export(self, buffer: RknpuBuffer) -> DmaBuf:
        """A dma-buf of ``buffer``. Close it before the device: the file stays open until then."""
        if not self.misc:
            return prime_export(self, buffer)
        self._check_buffer(buffer)
        with naming(self.path, "dup of the buffer's descriptor"):
            fd = self.kernel.dup(buffer.handle)
        return DmaBuf(self.kernel, fd, buffer.size, exporter=self)

    def submit(
        self,
        tasks: Sequence[abi.rknpu_task],
        windows: Sequence[tuple[int, int]] | None = None,
        core_mask: int = 0,
        *,
        timeout: float = 6.0,
        domain: int = 0,
        fence_in: SyncFile | None = None,
        pingpong: bool = True,
    ) -> RknpuResult:
        """Run a job and wait for it.

        ``tasks`` is the table; ``windows`` gives (first task, number) for each core that
        ``core_mask`` names (None: all tasks on the one core). Mask 0 lets the driver choose a core.
        The kernel hands a core only its window's first task: the streams must be chained.

        WaitTimeout after ``timeout`` seconds without a completion interrupt, explained; the driver
        then resets the whole NPU. ProgramError for windows, masks and tasks that the driver would
        take and never finish.
        """
        with self._task_buffer(tasks, domain) as table:
            job = self._job(tasks, windows, core_mask, timeout, domain, pingpong)
            self._check_job(tasks, windows, domain)
            job.task_obj_addr = table.obj_addr
            if fence_in is not None:
                job.flags |= abi.RKNPU_JOB_FENCE_IN
                job.fence_fd = fence_in.fileno()
            try:
                self._submit(job)
            except NpuError as error:
                if error.errno == errno.ETIMEDOUT:
                    error.hint = self._explain_timeout(tasks, job, table)
                raise
            return RknpuResult(job.task_counter, job.hw_elapse_time, job.core_mask)

    def submit_async(
        self,
        tasks: Sequence[abi.rknpu_task],
        windows: Sequence[tuple[int, int]] | None = None,
        core_mask: int = 0,
        *,
        timeout: float = 6.0,
        domain: int = 0,
        fence_in: SyncFile | None = None,
        pingpong: bool = True,
    ) -> SyncFile:
        """Queue a job and give its fence, which can be waited for or awaited.

        The driver never signals the fence of a job that fails, so wait with a timeout. The task
        table is kept until the fence has signalled or is closed.
        """
        table = self._task_buffer(tasks, domain)
        try:
            job = self._job(tasks, windows, core_mask, timeout, domain, pingpong)
            self._check_job(tasks, windows, domain)
            job.task_obj_addr = table.obj_addr
            job.flags |= abi.RKNPU_JOB_NONBLOCK | abi.RKNPU_JOB_FENCE_OUT
            if fence_in is not None:
                job.flags |= abi.RKNPU_JOB_FENCE_IN
                job.fence_fd = fence_in.fileno()
            try:
                self._submit(job)
            except NpuError:
                # The driver opens the fence before it queues the job and leaves it open.
                if fence_in is None and job.fence_fd >= 0:
                    self.kernel.close(job.fence_fd)
                raise
            if job.fence_fd < 0:
                raise NpuError(-job.fence_fd, path=self.path, hint="the job runs without a fence")
        except BaseException:
            table.close()
            raise
        fence = SyncFile(self.kernel, job.fence_fd, table.close)
        self._fences.add(fence)
        return fence

    def close(self, strict: bool = False) -> None:
        """As every device, after the jobs whose fences are still open have had time to end.

        A job that runs on would read and write memory that is given back under it.
        """
        if not self._closed and self._file.mine:
            for fence in [fence for fence in self._fences if not fence.closed]:
                with contextlib.suppress(NpuError):
                    fence.wait(0 if strict else LAST_WAIT)
                if fence.status() == 0 and strict:
                    raise BufferError(f"{self.path}: a job still runs: {fence!r}")
                if fence.status() == 0:
                    warnings.warn(
                        f"{self.path} is closed under a job that never ended: {fence!r}",
                        ResourceWarning,
                        stacklevel=2,
                    )
        super().close(strict)

    def _submit(self, job: abi.rknpu_submit) -> None:
        self.call(self._request(abi.DRM_IOCTL_RKNPU_SUBMIT, abi.IOCTL_RKNPU_SUBMIT), job)

    def _task_buffer(self, tasks: Sequence[abi.rknpu_task], domain: int) -> RknpuBuffer:
        """The task table in a buffer that the kernel has mapped, as it reads the table itself."""
        if not len(tasks):
            raise ProgramError(path=self.path, hint="a job without tasks")
        places = [
            (buffer.dma_address, buffer.dma_address + buffer.size)
            for buffer in self.buffers()
            if isinstance(buffer, RknpuBuffer) and buffer.domain == domain
        ]
        for index, task in enumerate(tasks):
            start, words = task.regcmd_addr, 8 * (task.regcfg_amount + 4)
            inside = any(low <= start and start + words <= high for low, high in places)
            if task.regcmd_addr % 16 or not inside:
                raise ProgramError(
                    path=self.path,
                    hint=f"task {index}: {words} bytes at {task.regcmd_addr:#x} are not 16-byte "
                    f"aligned within an open buffer of this device in domain {domain}",
                )
        flags = abi.RKNPU_MEM_KERNEL_MAPPING | abi.RKNPU_MEM_CACHEABLE
        if not self.misc:
            flags |= DATA_FLAGS
        table = self.alloc(len(tasks) * ctypes.sizeof(abi.rknpu_task), flags, domain)
        try:
            image = b"".join(bytes(task) for task in tasks)
            table.array()[: len(image)] = memoryview(image)
            table.sync(abi.RKNPU_MEM_SYNC_TO_DEVICE)
        except BaseException:
            table.close()
            raise
        return table

    def _check_job(
        self,
        tasks: Sequence[abi.rknpu_task],
        windows: Sequence[tuple[int, int]] | None,
        domain: int,
    ) -> None:
        if self.checker is None:
            return
        places = [
            (buffer.dma_address, buffer.dma_address + buffer.size)
            for buffer in self.buffers()
            if isinstance(buffer, RknpuBuffer) and buffer.domain == domain
        ]
        rows = [(task.regcmd_addr, task.regcfg_amount + 4, task.int_mask) for task in tasks]
        cores = windows if windows is not None else [(0, len(tasks))]
        numbers = [range(start, start + number) for start, number in cores]
        self.checker(self.path, rows, numbers, places, self.read_memory, True)

    def _job(
        self,
        tasks: Sequence[abi.rknpu_task],
        windows: Sequence[tuple[int, int]] | None,
        core_mask: int,
        timeout: float,
        domain: int,
        pingpong: bool,
    ) -> abi.rknpu_submit:
        cores = CORE_MASKS.get(core_mask)
        if cores is None:
            raise ProgramError(
                path=self.path,
                hint=f"core mask {core_mask}: only 0, 1, 2, 3, 4 and 7 are ever started",
            )
        if windows is None:
            windows = [(0, len(tasks))] * cores if cores == 1 else []
        if len(windows) != cores:
            raise ProgramError(
                path=self.path,
                hint=f"core mask {core_mask} uses {cores} cores, {len(windows)} windows are given",
            )
        for start, number in windows:
            if start < 0 or number < 1 or start + number > len(tasks):
                raise ProgramError(
                    path=self.path,
                    hint=f"window of {number} tasks from {start}: there are {len(tasks)}, and the "
                    "driver would read past them",
                )
        milliseconds = round(timeout * 1000)
        if not 1 <= milliseconds <= 4294967:
            raise ValueError(f"timeout {timeout} s: the driver takes 1 ms to 4294 s")
        job = abi.rknpu_submit(
            flags=abi.RKNPU_JOB_PC | (abi.RKNPU_JOB_PINGPONG if pingpong else 0),
            timeout=milliseconds,
            task_number=len(tasks),
            iommu_domain_id=domain,
            core_mask=core_mask,
            fence_fd=-1,
        )
        # With one or two cores the driver reads the entry of each core's own number, with three
        # entries 2, 3 and 4; one core's window stands in all, so that any core finds it.
        first = 2 if cores == 3 else 0
        entries = list(windows) * 3 if cores == 1 else list(windows)
        for index, (start, number) in enumerate(entries, first):
            job.subcore_task[index] = abi.rknpu_subcore_task(start, number)
        return job

    def _explain_timeout(
        self, tasks: Sequence[abi.rknpu_task], job: abi.rknpu_submit, table: RknpuBuffer
    ) -> str:
        table.sync(abi.RKNPU_MEM_SYNC_FROM_DEVICE)
        after = (abi.rknpu_task * len(tasks)).from_buffer_copy(table.map())
        status = next((task.int_status for task in after if task.int_status), 0)
        text = (
            f"no completion in {job.timeout} ms: the hardware counted {job.task_counter} of "
            f"{job.task_number} tasks; last interrupt status {status:#x}, awaited "
            f"{tasks[-1].int_mask:#x}; the driver has reset the NPU"
        )
        if self.explainer is not None:
            with contextlib.suppress(NpuError):
                text += "; " + self.explainer(tasks, job.task_counter, self.read_memory)
        return text
