# SPDX-License-Identifier: MIT
"""A simulated RK3588 under the vendor's rknpu driver 0.9.8, as DRM device and as misc device.

The order of checks, what is written back, and what is hidden follow the driver's rknpu_gem.c,
rknpu_mem.c and rknpu_job.c. Where the driver would dereference garbage, KernelOops is raised. Left
out: the driver's own bookkeeping faults after failed submissions, SRAM, and frequency changes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import threading
import time
from typing import Any, ClassVar

from npukit import _fast
from npukit.abi import rknpu as abi
from npukit.ioctl import decode
from npukit.ioctl.kernel import PAGE_SIZE, round_to_page

from .core import Caller, Errno, KernelOops, SimDevice, SimFile
from .dma_buf import DmaBufSim, PlainPages
from .drm import DrmDeviceSim, DrmFileSim, GemObject
from .fence import Fence, SyncFileSim
from .iova import BestFit, TopDown
from .rk3588 import AddressSpace, Npu

CORES = 3
HARDWARE_VERSION = 0x46495245
DRIVER_VERSION = (0, 9, 8)
DOMAINS = 16
MAX_TASKS_PER_KICK = 4095
DOMAIN_WAIT = 6.0
ABORT_SLEEP = 0.1
"""Seconds that the driver sleeps before it gives up a job, and again within a reset."""
HZ = 300
"""Jiffies a second of Rockchip's kernels: the unit in which an in-fence's timeout is taken."""
_CLOCK_HZ = 1_000_000_000
_MICROVOLTS = 750_000
_TASK_SIZE = ctypes.sizeof(abi.rknpu_task)
_KERNEL_POINTERS = 0xFFFFFF8000000000


class Domain:
    """One IOMMU domain: an address space and its allocator."""

    def __init__(self) -> None:
        self.space = AddressSpace()
        self.addresses = TopDown()


class Job:
    def __init__(self, args: abi.rknpu_submit, table: Any, fence: Fence | None) -> None:
        self.args = args
        self.table = table
        self.fence = fence
        self.cores: list[int] = []
        self.waiting_for: set[int] = set()
        """Cores that have not taken it yet."""
        self.running: set[int] = set()
        self.meetings: dict[int, int] = {}
        """Core -> how often it has come to where the cores wait for each other."""
        self.committed = 0.0
        self.error = 0
        self.done = False
        self.dead = False
        self.elapsed_ns = 0
        self.counter = 0
        self.int_status = 0
        self.last_record: int | None = None
        self.fault = ""
        self.oops: KernelOops | None = None

    def window(self, core: int) -> tuple[int, int]:
        """(first task, number) for a core: where the driver looks depends on how many are used."""
        entry = self.args.subcore_task[core + 2 if len(self.cores) == 3 else core]
        return entry.task_start, entry.task_number


class Core:
    def __init__(self, index: int) -> None:
        self.npu = Npu(index)
        self.queue: list[Job] = []
        self.current: Job | None = None
        self.load = 0
        """Sum of the task numbers queued and running."""
        self.thread: threading.Thread | None = None


class Engine:
    """What all open files of the driver share: domains, kernel addresses, cores, jobs."""

    def __init__(self, kernel: Any, iommu: bool) -> None:
        self.kernel = kernel
        self.iommu = iommu
        self.domains = {0: Domain()}
        self.domain = 0
        self.domain_users = 0
        self.objects: dict[int, Any] = {}
        self._next_pointer = _KERNEL_POINTERS
        self.cores = [Core(index) for index in range(CORES)]
        self.resetting = False
        self._context = object()

    # Kernel addresses and domains.

    def name_object(self, obj: Any) -> int:
        self._next_pointer += 0x100
        self.objects[self._next_pointer] = obj
        return self._next_pointer

    def object_at(self, pointer: int) -> Any:
        found = self.objects.get(pointer)
        if found is None:
            raise KernelOops(f"rknpu dereferences {pointer:#x}, which is no object of its own")
        return found

    def get_domain(self, number: int) -> Domain:
        """Switch to a domain and hold it; Errno(EINVAL) when others hold another for 6 s."""
        if number != self.domain:
            idle = self.kernel.wait_for(
                lambda: self.domain_users == 0 or self.domain == number, DOMAIN_WAIT
            )
            # Whether the number is any good is only looked at when it is time to switch.
            if not idle or not self.iommu or not 0 <= number < DOMAINS:
                raise Errno(errno.EINVAL)
            self.domain = number
        self.domain_users += 1
        return self.domains.setdefault(number, Domain())

    def put_domain(self) -> None:
        self.domain_users -= 1
        self.kernel.changed.notify_all()

    # Actions.

    def action(self, arg: abi.rknpu_action) -> None:
        values = {
            abi.RKNPU_GET_HW_VERSION: HARDWARE_VERSION,
            abi.RKNPU_GET_DRV_VERSION: DRIVER_VERSION[1] * 100 + DRIVER_VERSION[2],
            abi.RKNPU_GET_FREQ: _CLOCK_HZ,
            abi.RKNPU_GET_VOLT: _MICROVOLTS,
            abi.RKNPU_GET_IOMMU_EN: int(self.iommu),
            abi.RKNPU_GET_TOTAL_SRAM_SIZE: 0,
            abi.RKNPU_GET_FREE_SRAM_SIZE: 0,
            abi.RKNPU_GET_IOMMU_DOMAIN_ID: self.domain,
        }
        if arg.flags in values:
            arg.value = values[arg.flags]
        elif arg.flags == abi.RKNPU_ACT_RESET:
            self.reset()
        elif arg.flags == abi.RKNPU_SET_IOMMU_DOMAIN_ID:
            self.get_domain(ctypes.c_int32(arg.value).value)
            self.put_domain()
        elif arg.flags == abi.RKNPU_SET_PROC_NICE:
            pass
        elif not abi.RKNPU_ACT_CLR_TOTAL_RW_AMOUNT <= arg.flags <= abi.RKNPU_GET_TOTAL_RW_AMOUNT:
            # The amount counters do not exist on RK3588: those actions succeed and answer nothing.
            raise Errno(errno.EINVAL)

    def reset(self) -> None:
        """Soft reset of the whole NPU: every blocking job on the hardware fails."""
        if self.resetting:
            return
        self.resetting = True
        self.kernel.log.append("RKNPU: soft reset")
        self.kernel.changed.notify_all()
        self.kernel.sleep(ABORT_SLEEP)
        for core in self.cores:
            core.npu = Npu(core.npu.core)
        self.resetting = False
        self.kernel.changed.notify_all()

    # Jobs.

    def submit(self, args: abi.rknpu_submit) -> None:
        """RKNPU_SUBMIT. What the caller is to see again is changed in ``args``."""
        if args.task_number == 0 or args.core_mask > 7:
            raise Errno(errno.EINVAL)
        table = self.object_at(args.task_obj_addr) if args.task_obj_addr else None
        blocking = not args.flags & abi.RKNPU_JOB_NONBLOCK
        if args.flags & abi.RKNPU_JOB_FENCE_IN:
            self._wait_in_fence(args)
        fence = None
        if args.flags & abi.RKNPU_JOB_FENCE_OUT:
            fence = Fence(self.kernel, "rknpu", "rknpu", self._context)
            args.fence_fd = SyncFileSim(self.kernel, [fence]).install()
        private = args if blocking else abi.rknpu_submit.from_buffer_copy(args)
        job = Job(private, table, fence)
        if table is not None:
            table.hold()
        if not blocking:
            self._reap_stale(private)
        self._queue(job)
        if job.oops is not None:
            self._leave(job)
            raise job.oops
        if blocking:
            self._wait(job)
        elif job.error:
            self.kernel.sleep(ABORT_SLEEP)
            self._abort(job)
            raise Errno(job.error)

    def _wait_in_fence(self, args: abi.rknpu_submit) -> None:
        file = self.kernel.file(args.fence_fd)
        args.fence_fd = -1
        if not isinstance(file, SyncFileSim):
            raise Errno(errno.EINVAL)
        # Fences of the driver's own context are taken for ordered already; running out of time is
        # not an error either.
        foreign = [fence for fence in file.fences if fence.context is not self._context]
        self.kernel.wait_for(
            lambda: all(f.signalled for f in foreign), args.timeout / HZ, interruptible=True
        )

    def _reap_stale(self, args: abi.rknpu_submit) -> None:
        for index, core in enumerate(self.cores):
            job = core.current
            if not args.core_mask >> index & 1 or job is None or not job.committed:
                continue
            # The driver compares microseconds with the job's milliseconds.
            if time.monotonic() - job.committed > job.args.timeout * 1e-6:
                self.reset()
                for victim in (job, *core.queue):
                    self._abort(victim)
                core.queue.clear()

    def _queue(self, job: Job) -> None:
        args = job.args
        if args.core_mask == 0:
            loads = [core.load for core in self.cores]
            args.core_mask = 1 << loads.index(min(loads))
        job.cores = [index for index in range(CORES) if args.core_mask >> index & 1]
        try:
            self.get_domain(ctypes.c_int32(args.iommu_domain_id).value)
        except Errno as error:
            job.error, job.cores = error.code, []
            return
        job.waiting_for = set(job.cores)
        for index in job.cores:
            self.cores[index].queue.append(job)
            self.cores[index].load += job.window(index)[1]
        self._schedule()

    def _schedule(self) -> None:
        """Every free core takes its first job; one that all its cores have taken starts."""
        if self.resetting:
            return
        for index, core in enumerate(self.cores):
            if core.current is None and core.queue:
                core.current = job = core.queue.pop(0)
                job.waiting_for.discard(index)
                if not job.waiting_for:
                    try:
                        self._commit(job)
                    except KernelOops as oops:
                        # Whose call led here need not be the caller whose job it is.
                        job.oops, job.error = oops, errno.EINVAL
                        self.kernel.log.append(f"RKNPU: {oops}")

    def _commit(self, job: Job) -> None:
        if not job.args.flags & abi.RKNPU_JOB_PC or job.table is None:
            job.error = errno.EINVAL
            return
        if job.args.core_mask in (5, 6):
            self.kernel.log.append(f"RKNPU: unknown core mask: {job.args.core_mask:#x}")
            return
        if not job.table.flags & abi.RKNPU_MEM_KERNEL_MAPPING:
            raise KernelOops("rknpu reads a task array that has no kernel mapping")
        starts = []
        for index in job.cores:
            start, number = job.window(index)
            last = start + number - 1
            starts.append((index, start, number, self._task(job, last).int_mask))
            self._task(job, start)
            job.last_record = last
        job.committed = time.monotonic()
        space = self.domains[self.domain].space
        for index, start, number, int_mask in starts:
            job.running.add(index)
            core = self.cores[index]
            core.npu.space = space
            core.thread = threading.Thread(
                target=self._run,
                args=(job, core, start, number, int_mask),
                name=f"rknpu core {index}",
                daemon=True,
            )
            core.thread.start()

    def _task(self, job: Job, index: int) -> abi.rknpu_task:
        if not 0 <= index < len(memoryview(job.table.pages)) // _TASK_SIZE:
            raise KernelOops(f"rknpu reads task {index}, past the end of the task array")
        return abi.rknpu_task.from_buffer_copy(job.table.pages, index * _TASK_SIZE)

    def _run(self, job: Job, core: Core, start: int, number: int, int_mask: int) -> None:
        """A core's part of a job, on a thread of its own. Runs without the lock."""
        npu = core.npu
        began = time.monotonic_ns()
        done = 0
        fault = ""
        status = 0
        while done < number and not fault:
            batch = min(number - done, MAX_TASKS_PER_KICK)
            first = self._task(job, start + done)
            for block in (0x1004, 0x3004):
                npu.write_register(block, 0xE + (npu.core << 28))
            link: tuple[int, int] | None = (first.regcmd_addr, first.regcfg_amount + 4)
            end = done + batch
            while link is not None:
                try:
                    completion = npu.run(
                        *link, end - done, int_mask=int_mask, meets=len(job.cores) > 1
                    )
                except ValueError as error:
                    # An address or a count that does not fit the PC's registers.
                    fault = str(error)
                    break
                done += completion.tasks_done
                status = completion.raw_status
                fault = "" if completion.error is None else str(completion.error)
                link = completion.link
                if link is not None and not self._meet(job, npu.core):
                    return
        elapsed = time.monotonic_ns() - began
        with self.kernel.lock:
            if job.dead:
                return
            job.counter = max(job.counter, done & 0xFFF)
            job.int_status = status & int_mask
            job.elapsed_ns = max(job.elapsed_ns, elapsed)
            if fault:
                # No interrupt comes: the core hangs until somebody gives the job up.
                job.fault = f"core {npu.core}: {fault}"
                self.kernel.log.append(f"RKNPU: {job.fault}")
            else:
                job.running.discard(npu.core)
                if not job.running:
                    self._finish(job)
            self.kernel.changed.notify_all()

    def _meet(self, job: Job, index: int) -> bool:
        """Wait until all cores of a job have come as far: the next task reads what others wrote.
        False when the job is given up first."""
        with self.kernel.lock:
            turn = job.meetings[index] = job.meetings.get(index, 0) + 1
            self.kernel.changed.notify_all()
            self.kernel.changed.wait_for(
                lambda: job.dead or all(job.meetings.get(i, 0) >= turn for i in job.cores)
            )
            return not job.dead

    def _finish(self, job: Job) -> None:
        job.done = True
        if job.fence is not None:
            job.fence.signal()
        self._leave(job)
        self._schedule()

    def _leave(self, job: Job) -> None:
        """Take the job off its cores and let go of what it held."""
        if job.dead:
            return
        job.dead = True
        for index in job.cores:
            core = self.cores[index]
            if job in core.queue:
                core.queue.remove(job)
            if core.current is job:
                core.current = None
            core.load -= job.window(index)[1]
        if job.cores:
            self.put_domain()
        if job.table is not None:
            job.table.drop()
        self.kernel.changed.notify_all()

    def _abort(self, job: Job) -> None:
        self._leave(job)
        self._schedule()

    def _wait(self, job: Job) -> None:
        """The blocking half of SUBMIT: no signal ends it."""
        args = job.args
        timeout = None if args.timeout >= 1 << 31 else args.timeout / 1000
        for _ in range(3):
            self.kernel.wait_for(
                lambda: job.done or self.resetting or self._known_bad(job), timeout
            )
            if job.done or self.resetting or self._known_bad(job):
                break
            if job.committed and time.monotonic() - job.committed >= args.timeout / 1000:
                break
        was_reset = self.resetting
        if job.done:
            args.task_counter = args.task_number
            args.hw_elapse_time = job.elapsed_ns
            self._write_status(job)
            return
        if job.oops is not None:
            self._abort(job)
            raise job.oops
        if job.fault and self.kernel.strict:
            self._abort(job)
            self.kernel.complain(job.fault)
        self.kernel.sleep(ABORT_SLEEP)
        if not job.committed or was_reset or job.error:
            code = errno.EINVAL
        else:
            code = errno.ETIMEDOUT
            args.task_counter = job.counter
        if job.committed:
            self._write_status(job)
        self._leave(job)
        if code == errno.ETIMEDOUT:
            self.kernel.log.append(
                f"RKNPU: job timeout, mask: {args.core_mask:#x}, task counter: {job.counter}, "
                f"irq status: {job.int_status:#x}"
            )
            self.reset()
        self._schedule()
        raise Errno(code)

    def _known_bad(self, job: Job) -> bool:
        """Nothing to wait for: an error at commit, or in strict mode a fault of the program."""
        return bool(job.error and job.cores) or bool(job.fault and self.kernel.strict)

    def _write_status(self, job: Job) -> None:
        if job.last_record is not None and job.table is not None:
            offset = job.last_record * _TASK_SIZE + abi.rknpu_task.int_status.offset
            memoryview(job.table.pages)[offset : offset + 4] = job.int_status.to_bytes(4, "little")


class RknpuGem(GemObject):
    """A buffer object of the DRM build."""

    def __init__(self, device: RknpuSim, size: int, flags: int, domain: int) -> None:
        engine = device.engine
        self.flags = flags
        self.domain = domain
        self._exact = bool(flags & abi.RKNPU_MEM_IOMMU_LIMIT_IOVA_ALIGNMENT)
        where = engine.get_domain(domain)
        try:
            self.dma_addr = where.addresses.take(size, self._exact)
        finally:
            engine.put_domain()
        try:
            super().__init__(device, size)
        except Errno:
            where.addresses.free(self.dma_addr, self._exact)
            raise
        where.space.map(self.dma_addr, self.pages)
        self.obj_addr = engine.name_object(self)

    def hold(self) -> None:
        self.get()

    def drop(self) -> None:
        self.put()

    def freed(self) -> None:
        engine: Engine = self.device.engine  # type: ignore[attr-defined]
        where = engine.domains[self.domain]
        where.space.unmap(self.dma_addr)
        where.addresses.free(self.dma_addr, self._exact)
        del engine.objects[self.obj_addr]


class ImportedGem(GemObject):
    """A dma-buf of another device, mapped for the NPU in the domain that is current now."""

    def __init__(self, device: RknpuSim, buffer: DmaBufSim) -> None:
        engine = device.engine
        self.device = device
        self.buffer = buffer
        buffer.holders += 1
        self.size = buffer.backing.size
        self.writers = buffer.backing.writers
        self.offset = None
        self.export = buffer
        self.flags = 0
        self._users = 1
        self._domain = engine.domains[engine.domain]
        self.pages = buffer.backing.map_pages(
            self.size, 0, _fast.PROT_READ | _fast.PROT_WRITE, _fast.MAP_SHARED
        )
        self.dma_addr = self._domain.addresses.take(self.size, False)
        self._domain.space.map(self.dma_addr, self.pages)
        self.obj_addr = engine.name_object(self)

    def hold(self) -> None:
        self.get()

    def drop(self) -> None:
        self.put()

    def put(self) -> None:
        self._users -= 1
        if self._users == 0:
            engine: Engine = self.device.engine  # type: ignore[attr-defined]
            self._domain.space.unmap(self.dma_addr)
            self._domain.addresses.free(self.dma_addr, False)
            del engine.objects[self.obj_addr]
            self.pages.close()
            self.device.kernel.put(self.buffer)


class RknpuFile(DrmFileSim):
    device: RknpuSim

    def action(self, caller: Caller, arg: abi.rknpu_action) -> None:
        self.device.engine.action(arg)

    def submit(self, caller: Caller, arg: abi.rknpu_submit) -> None:
        self.device.engine.submit(arg)

    def mem_create(self, caller: Caller, arg: abi.rknpu_mem_create) -> None:
        gem = self.handles.get(arg.handle)
        if gem is None:
            if arg.size == 0:
                raise Errno(errno.EINVAL)
            scattered = arg.flags & abi.RKNPU_MEM_NON_CONTIGUOUS
            try:
                gem = RknpuGem(self.device, round_to_page(arg.size), arg.flags, arg.iommu_domain_id)
            except Errno as error:
                if error.code != errno.ENOSPC:
                    raise
                raise Errno(errno.EFAULT if scattered else errno.EINVAL) from None
            arg.handle = self.add_handle(gem)
        arg.size = gem.size
        arg.sram_size = 0
        arg.obj_addr = gem.obj_addr
        arg.dma_addr = gem.dma_addr

    def mem_map(self, caller: Caller, arg: abi.rknpu_mem_map) -> None:
        gem = self.look_up(arg.handle)
        if isinstance(gem, ImportedGem):
            raise Errno(errno.EINVAL)
        arg.offset = gem.make_offset()

    def mem_destroy(self, caller: Caller, arg: abi.rknpu_mem_destroy) -> None:
        self.look_up(arg.handle, errno.EINVAL)
        self.close_handle(arg.handle)

    def mem_sync(self, caller: Caller, arg: abi.rknpu_mem_sync) -> None:
        if arg.obj_addr == 0:
            raise Errno(errno.EINVAL)
        if not self.device.engine.object_at(arg.obj_addr).flags & abi.RKNPU_MEM_CACHEABLE:
            raise Errno(errno.EINVAL)

    def import_foreign(self, buffer: DmaBufSim) -> GemObject:
        return ImportedGem(self.device, buffer)

    requests: ClassVar[Any] = {
        abi.RKNPU_ACTION: (abi.DRM_IOCTL_RKNPU_ACTION, action),
        abi.RKNPU_SUBMIT: (abi.DRM_IOCTL_RKNPU_SUBMIT, submit),
        abi.RKNPU_MEM_CREATE: (abi.DRM_IOCTL_RKNPU_MEM_CREATE, mem_create),
        abi.RKNPU_MEM_MAP: (abi.DRM_IOCTL_RKNPU_MEM_MAP, mem_map),
        abi.RKNPU_MEM_DESTROY: (abi.DRM_IOCTL_RKNPU_MEM_DESTROY, mem_destroy),
        abi.RKNPU_MEM_SYNC: (abi.DRM_IOCTL_RKNPU_MEM_SYNC, mem_sync),
    }


class RknpuSim(DrmDeviceSim):
    """The DRM build: a card node and a render node, which behave alike."""

    name = "rknpu"
    driver_name = "rknpu"
    driver_version = DRIVER_VERSION
    driver_date = "20240828"
    driver_desc = "RKNPU driver"
    file_class = RknpuFile

    def __init__(self, kernel: Any, paths: tuple[str, ...]) -> None:
        super().__init__(kernel, paths)
        self.engine = Engine(kernel, iommu=True)


class MiscMemory:
    """A record of the misc build: contiguous memory behind a dma-buf."""

    def __init__(self, device: RknpuMiscSim, buffer: DmaBufSim, size: int, flags: int) -> None:
        self.device = device
        self.buffer = buffer
        self.flags = flags
        self._users = 1
        self.pages = buffer.backing.map_pages(
            size, 0, _fast.PROT_READ | _fast.PROT_WRITE, _fast.MAP_SHARED
        )
        try:
            self.dma_addr = device.physical.take(size)
        except Errno:
            self.pages.close()
            raise
        buffer.holders += 1
        device.engine.domains[0].space.map(self.dma_addr, self.pages)
        self.obj_addr = device.engine.name_object(self)

    def hold(self) -> None:
        self._users += 1

    def drop(self) -> None:
        self._users -= 1
        if self._users == 0:
            self.device.engine.domains[0].space.unmap(self.dma_addr)
            self.device.physical.free(self.dma_addr)
            del self.device.engine.objects[self.obj_addr]
            self.pages.close()
            self.device.kernel.put(self.buffer)


class RknpuMiscFile(SimFile):
    """An open /dev/rknpu. Of a request's number only the nr byte is looked at."""

    def __init__(self, device: RknpuMiscSim) -> None:
        super().__init__(device.kernel)
        self.device = device
        self.records: list[MiscMemory] = []

    def stat_mode(self) -> tuple[int, int]:
        return stat.S_IFCHR | 0o600, os.makedev(self.device.major, 0)

    def released(self) -> None:
        for record in self.records:
            record.drop()

    def ioctl(self, caller: Caller, request: int, address: int) -> int:
        parts = decode(request)
        if parts.nr in (abi.RKNPU_ACTION, abi.RKNPU_SUBMIT):
            kind = abi.rknpu_action if parts.nr == abi.RKNPU_ACTION else abi.rknpu_submit
            arg = kind.from_buffer_copy(caller.copy_from_user(address, ctypes.sizeof(kind)))
            try:
                if isinstance(arg, abi.rknpu_action):
                    self.device.engine.action(arg)
                else:
                    self.device.engine.submit(arg)
            finally:
                caller.copy_to_user(address, bytes(arg))
            return 0
        if parts.nr == abi.RKNPU_MEM_CREATE:
            return self._create(caller, address, parts.size)
        if parts.nr == abi.RKNPU_MEM_DESTROY:
            raw = caller.copy_from_user(address, ctypes.sizeof(abi.rknpu_mem_destroy))
            pointer = abi.rknpu_mem_destroy.from_buffer_copy(raw).obj_addr
            self._kernel_address(pointer)
            for record in [r for r in self.records if r.obj_addr == pointer]:
                self.records.remove(record)
                record.drop()
            return 0
        if parts.nr == abi.RKNPU_MEM_SYNC:
            raw = caller.copy_from_user(address, ctypes.sizeof(abi.rknpu_mem_sync))
            pointer = abi.rknpu_mem_sync.from_buffer_copy(raw).obj_addr
            self._kernel_address(pointer)
            self.device.engine.object_at(pointer)
            return 0
        raise Errno(errno.EINVAL)

    @staticmethod
    def _kernel_address(pointer: int) -> None:
        if pointer < _KERNEL_POINTERS:
            raise Errno(errno.EINVAL)

    def _create(self, caller: Caller, address: int, given: int) -> int:
        size = ctypes.sizeof(abi.rknpu_mem_create)
        if given > size:
            raise KernelOops(f"rknpu copies {given} bytes over a structure of {size}")
        raw = caller.copy_from_user(address, given).ljust(size, b"\0")
        arg = abi.rknpu_mem_create.from_buffer_copy(raw)
        if arg.flags & abi.RKNPU_MEM_NON_CONTIGUOUS:
            raise Errno(errno.EINVAL)
        length = round_to_page(arg.size)
        created = arg.handle == 0
        if created:
            if length == 0:
                raise Errno(errno.EINVAL)
            pages = os.memfd_create("rknpu-cma")
            try:
                os.ftruncate(pages, length)
            except (OSError, OverflowError):
                os.close(pages)
                raise Errno(errno.ENOMEM) from None
            backing = PlainPages(pages, length)
            buffer = DmaBufSim(self.kernel, backing)
            backing.put()
            arg.handle = buffer.install(True)
        else:
            file = self.kernel.file(ctypes.c_int32(arg.handle).value)
            if file is None:
                raise Errno(errno.EBADF)
            if not isinstance(file, DmaBufSim):
                raise Errno(errno.EINVAL)
            buffer = file
        try:
            record = MiscMemory(self.device, buffer, length, arg.flags)
        except (Errno, OSError):
            if created:
                self.kernel.uninstall(arg.handle)
            raise Errno(errno.ENOMEM) from None
        self.records.append(record)
        arg.size, arg.sram_size = length, 0
        arg.obj_addr, arg.dma_addr = record.obj_addr, record.dma_addr
        caller.copy_to_user(address, bytes(arg)[:given])
        return 0


class RknpuMiscSim(SimDevice):
    """The misc build: /dev/rknpu, contiguous memory, physical addresses.

    The device tree has the NPU's IOMMU off: the build gives out no memory that needs one, and
    librknnrt asks for such memory as soon as it hears of an IOMMU.
    """

    name = "rknpu-misc"
    major = 10

    def __init__(self, kernel: Any, paths: tuple[str, ...]) -> None:
        super().__init__(kernel, paths)
        self.engine = Engine(kernel, iommu=False)
        self.physical = BestFit(0x1000_0000, 0xF000_0000, PAGE_SIZE)

    def open(self, caller: Caller, path: str, flags: int) -> tuple[SimFile, int]:
        return RknpuMiscFile(self), os.memfd_create("rknpu")
