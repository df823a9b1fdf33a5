# SPDX-License-Identifier: MIT
"""A simulated RK3588 under the mainline rocket driver (drivers/accel/rocket).

What the driver swallows is swallowed here too, and logged; in strict mode it raises. An open file
has an address space of its own and runs its jobs in order, on one core at a time.
"""

from __future__ import annotations

import collections
import ctypes
import errno
import threading
import time
from typing import Any, ClassVar

from npukit.abi import rocket as abi
from npukit.ioctl.kernel import round_to_page

from .core import Caller, Errno
from .drm import DrmDeviceSim, DrmFileSim, GemObject
from .fence import Fence
from .iova import BestFit
from .rk3588 import AddressSpace, Npu

CORES = 3
JOB_TIMEOUT = 0.5
"""Seconds from a job's start to the reset of its core."""
DPU_INTERRUPTS = 0x300
_PAGE = 4096


class RocketGem(GemObject):
    """A buffer object, mapped from its creation on in its creator's address space."""

    def __init__(self, file: RocketFile, size: int) -> None:
        self.where = file.where
        self.dma_address = self.where.addresses.take(size)
        try:
            super().__init__(file.device, round_to_page(size))
        except Errno:
            self.where.addresses.free(self.dma_address)
            raise
        self.where.space.map(self.dma_address, self.pages)
        self.make_offset()

    def freed(self) -> None:
        self.where.space.unmap(self.dma_address)
        self.where.addresses.free(self.dma_address)


class _Where:
    """The address space of an open file; its buffers may outlive the file."""

    def __init__(self) -> None:
        self.space = AddressSpace()
        self.addresses = BestFit(0, 1 << 32, _PAGE)


class Job:
    def __init__(self, file: RocketFile, tasks: list[tuple[int, int]], fence: Fence) -> None:
        self.file = file
        self.tasks = tasks
        self.fence = fence
        self.after: list[Fence] = []
        self.buffers: list[RocketGem] = []


class RocketFile(DrmFileSim):
    device: RocketSim

    def __init__(self, kernel: Any, device: RocketSim, path: str) -> None:
        super().__init__(kernel, device, path)
        self.where = _Where()
        self.jobs: collections.deque[Job] = collections.deque()
        self.running: Job | None = None
        self.core = -1
        """Where its jobs run."""
        self.moving = True
        """Nothing is queued and the last job is done: the next job may take another core."""

    def released(self) -> None:
        for job in self.jobs:
            # The driver waits for a hand-over first; what is left then fails.
            self.device.finish(job, errno.ESRCH)
        self.jobs.clear()
        super().released()

    def create_bo(self, caller: Caller, arg: abi.drm_rocket_create_bo) -> None:
        if arg.size == 0:
            raise Errno(errno.ENOSPC)
        if round_to_page(arg.size) >= 1 << 31:
            # The mapped size is kept in an int.
            raise Errno(errno.ENOMEM)
        gem = RocketGem(self, arg.size)
        arg.handle = self.add_handle(gem)
        arg.dma_address = gem.dma_address
        arg.offset = gem.offset

    def submit(self, caller: Caller, arg: abi.drm_rocket_submit) -> None:
        if arg.job_count == 0:
            return
        size = ctypes.sizeof(abi.drm_rocket_job)
        if arg.job_struct_size < size or arg.reserved:
            raise Errno(errno.EINVAL)
        rows = [
            abi.drm_rocket_job.from_buffer_copy(
                caller.copy_from_user(arg.jobs + index * arg.job_struct_size, size)
            )
            for index in range(arg.job_count)
        ]
        for index, row in enumerate(rows):
            try:
                self._take(caller, row)
            except Errno as error:
                self.kernel.complain(f"rocket: job {index} of {len(rows)} is dropped: {error}")

    def _take(self, caller: Caller, row: abi.drm_rocket_job) -> None:
        size = ctypes.sizeof(abi.drm_rocket_task)
        if row.task_count == 0 or row.task_struct_size < size:
            raise Errno(errno.EINVAL)
        tasks = []
        for index in range(row.task_count):
            raw = caller.copy_from_user(row.tasks + index * row.task_struct_size, size)
            task = abi.drm_rocket_task.from_buffer_copy(raw)
            if task.regcmd_count == 0:
                raise Errno(errno.EINVAL)
            tasks.append((task.regcmd, task.regcmd_count))
        reads = self._buffers(caller, row.in_bo_handles, row.in_bo_handle_count)
        writes = self._buffers(caller, row.out_bo_handles, row.out_bo_handle_count)
        if len({id(gem) for gem in (*reads, *writes)}) != len(reads) + len(writes):
            raise Errno(errno.EALREADY)
        job = Job(self, tasks, Fence(self.kernel, "rocket", "rocket", self))
        job.buffers = [*reads, *writes]
        for gem in job.buffers:
            gem.get()
            job.after += [fence for fence in gem.writers if not fence.signalled]
        for gem in writes:
            gem.writers[:] = [f for f in gem.writers if not f.signalled] + [job.fence]
        self.jobs.append(job)
        self.device.schedule(self)

    def _buffers(self, caller: Caller, address: int, count: int) -> list[RocketGem]:
        handles = (ctypes.c_uint32 * count).from_buffer_copy(
            caller.copy_from_user(address, 4 * count)
        )
        return [self.look_up(handle) for handle in handles]

    def prep_bo(self, caller: Caller, arg: abi.drm_rocket_prep_bo) -> None:
        remaining = (arg.timeout_ns - time.monotonic_ns()) / 1e9 if arg.timeout_ns > 0 else 0
        if arg.reserved:
            raise Errno(errno.EINVAL)
        gem = self.look_up(arg.handle)
        # A job that was given up ends the wait like any other.
        fences = list(gem.writers)
        gem.get()
        try:
            if not self.kernel.wait_for(
                lambda: all(fence.signalled for fence in fences),
                max(remaining, 0),
                interruptible=True,
            ):
                raise Errno(errno.ETIMEDOUT if remaining > 0 else errno.EBUSY)
            for fence in fences:
                if fence.error and self.kernel.strict:
                    self.kernel.complain(
                        f"rocket: a job that writes this buffer failed: {fence.why}"
                    )
        finally:
            gem.put()

    def fini_bo(self, caller: Caller, arg: abi.drm_rocket_fini_bo) -> None:
        if arg.reserved:
            raise Errno(errno.EINVAL)
        self.look_up(arg.handle)

    requests: ClassVar[Any] = {
        abi.DRM_ROCKET_CREATE_BO: (abi.DRM_IOCTL_ROCKET_CREATE_BO, create_bo),
        abi.DRM_ROCKET_SUBMIT: (abi.DRM_IOCTL_ROCKET_SUBMIT, submit),
        abi.DRM_ROCKET_PREP_BO: (abi.DRM_IOCTL_ROCKET_PREP_BO, prep_bo),
        abi.DRM_ROCKET_FINI_BO: (abi.DRM_IOCTL_ROCKET_FINI_BO, fini_bo),
    }


class RocketSim(DrmDeviceSim):
    """The node that serves all cores."""

    name = "rocket"
    major = 261
    driver_name = "rocket"
    driver_version = (0, 0, 0)
    driver_date = "0"
    driver_desc = "rocket DRM"
    file_class = RocketFile

    def __init__(self, kernel: Any, paths: tuple[str, ...]) -> None:
        super().__init__(kernel, paths)
        self.npus = [Npu(index) for index in range(CORES)]
        self.busy: list[RocketFile | None] = [None] * CORES

    def schedule(self, file: RocketFile) -> None:
        """Start the file's next job if it may start: in order, after its fences, on its core."""
        if file.running is not None or not file.jobs:
            return
        if file.moving:
            file.core = self._best_core()
            file.moving = False
        job = file.jobs[0]
        pending = next((fence for fence in job.after if not fence.signalled), None)
        if pending is not None:
            pending.then(lambda: self.schedule(file))
            return
        core = file.core
        if self.busy[core] is not None:
            return
        file.running = file.jobs.popleft()
        self.busy[core] = file
        threading.Thread(
            target=self._run, args=(core, job), name=f"rocket core {core}", daemon=True
        ).start()

    def _best_core(self) -> int:
        """The core with the fewest jobs and files, the first of several."""
        parked = [file.core for file in self.kernel.files_of(self)]
        scores = [(self.busy[core] is not None) + parked.count(core) for core in range(CORES)]
        return scores.index(min(scores))

    def _run(self, core: int, job: Job) -> None:
        """A job on a core, on a thread of its own. Runs without the lock."""
        npu = self.npus[core]
        npu.space = job.file.where.space
        deadline = time.monotonic() + JOB_TIMEOUT
        fault = ""
        for address, count in job.tasks:
            for block in (0x1004, 0x3004):
                npu.write_register(block, 0xE + (core << 28))
            try:
                completion = npu.run(address, count, 1, int_mask=DPU_INTERRUPTS)
            except ValueError as refusal:
                # A count that does not fit the PC's register.
                fault = str(refusal)
                break
            if completion.error is not None:
                fault = str(completion.error)
                break
        kernel = self.kernel
        with kernel.lock:
            error = 0
            if fault:
                # No interrupt comes; the scheduler's timer resets the core.
                kernel.log.append(f"rocket: core {core}: {fault}")
                if not kernel.strict:
                    kernel.sleep(max(deadline - time.monotonic(), 0))
                kernel.log.append(f"rocket: core {core}: NPU job timed out")
                self.npus[core] = Npu(core)
                error = errno.ECANCELED
            self.busy[core] = None
            job.file.running = None
            job.file.moving = not job.file.jobs
            job.fence.why = fault
            self.finish(job, error)
            self.schedule(job.file)
            for other in list(kernel.files_of(self)):
                self.schedule(other)

    def finish(self, job: Job, error: int) -> None:
        job.fence.signal(error)
        for gem in job.buffers:
            gem.put()
        job.buffers = []
