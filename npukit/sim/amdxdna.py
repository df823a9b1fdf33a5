# SPDX-License-Identifier: MIT
"""Simulated AMD XDNA NPUs under the amdxdna driver (drivers/accel/amdxdna, Linux 7.3).

Two generations: NPU1 (Phoenix) and NPU4 (Strix). Buffers are addressed by the caller's own virtual
addresses, as in the driver's PASID mode (its default), or by IOVAs. Instruction streams run on a
model of the array (npukit.sim.aie) in which the configuration images (PDIs) of designs stand for
what ``register_design`` was told of them: real PDIs are not emulated.

Checks stand in the order of the driver's amdxdna_{gem,ctx}.c and aie2_{ctx,message,pci}.c.
"""

from __future__ import annotations

import collections
import ctypes
import errno
import hashlib
import os
import struct
import threading
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from npukit.abi import amdxdna as abi
from npukit.ioctl import ProgramError
from npukit.ioctl.kernel import PAGE_SIZE, round_to_page
from npukit.ioctl.memory import mappings
from npukit.programs.xdna import ert
from npukit.programs.xdna.ert import PacketOpcode, State
from npukit.programs.xdna.txn import Transaction

from . import syncobj
from .aie import ROWS, Array, ArrayError, Design, HostMemory, Stuck
from .aie_designs import DESIGNS
from .core import Area, Caller, Errno
from .drm import DrmDeviceSim, DrmFileSim, GemObject
from .fence import Fence
from .iova import BestFit

HEAP_BASE = 0x4000000
HEAP_CHUNK = 64 << 20
DEV_ALIGN = 32 << 10
SLOT_BYTES = 4096
MAX_IN_FLIGHT = 4
MAX_CONTEXTS_OF_A_FILE = 255
MAX_ARGUMENTS = 4095
MAX_CUS = 32
TELEMETRY_MAX = 4 << 20
CORE_ROWS = 4
INVALID = abi.AMDXDNA_INVALID_ADDR
TDR_TIMEOUT_MS = 2000
"""The driver's module parameter tdr_timeout_ms."""

_designs: dict[str, tuple[int, Design]] = {}


def register_design(design: Design) -> None:
    """Let every simulated array take a compute unit with ``design.pdi`` for that design."""
    _designs[design.digest] = (len(design.pdi), design)


for _design in DESIGNS:
    register_design(_design)


@dataclass(frozen=True, slots=True)
class Generation:
    """What distinguishes two NPUs under the same driver."""

    columns: int
    first_column: int
    heap_max: int
    contexts: int
    natural_alignment: bool
    """A partition begins at a multiple of its width."""
    temporal_only: bool
    """Firmware gives every context the whole array, one after the other."""
    preemption: bool
    ops_per_column: int
    clocks_mhz: tuple[int, int]
    firmware: tuple[int, int, int, int]


NPU1 = Generation(5, 1, HEAP_CHUNK, 6, False, False, False, 2048, (847, 1600), (1, 5, 5, 391))
NPU4 = Generation(8, 0, 8 * HEAP_CHUNK, 16, True, True, True, 4096, (1267, 1800), (1, 1, 2, 65))


class XdnaGem(GemObject):
    """A buffer of pages: SHARE, CMD or a piece of the heap."""

    device: XdnaSim

    def __init__(self, file: XdnaFile, size: int, kind: int) -> None:
        super().__init__(file.device, round_to_page(size))
        self.file = file
        self.heap = kind == abi.AMDXDNA_BO_DEV_HEAP
        self.kind = kind if self.heap else abi.AMDXDNA_BO_SHARE
        self.internal = kind != abi.AMDXDNA_BO_SHARE
        self.heap_address = 0
        self.mappings = 0
        self._user_address = INVALID
        self.iova = INVALID if file.device.pasid else file.device.iovas.take(self.size)
        file.usage[0] += self.size
        file.usage[1] += self.size * self.internal
        file.gems.append(self)
        self.make_offset()

    @property
    def user_address(self) -> int:
        """Where its owner has it mapped, ~0 if nowhere."""
        if self.mappings and self._user_address == INVALID:
            self._user_address = self.device.find_mapping(self)
        return self._user_address

    def forget(self) -> None:
        """Ask anew where it is mapped."""
        self._user_address = INVALID

    @property
    def dma_address(self) -> int:
        return self.user_address if self.device.pasid else self.iova

    @property
    def device_address(self) -> int:
        return self.heap_address if self.heap else self.dma_address

    def mapped(self) -> None:
        self.mappings += 1

    def unmapped(self) -> None:
        self.mappings -= 1
        if self.mappings == 0:
            if self.device.pasid and self.file.in_use(self):
                self.device.kernel.log.append(
                    f"amdxdna: {self.size} bytes at {self._user_address:#x} are unmapped while a "
                    "command uses them"
                )
            self._user_address = INVALID
        self.put()

    def bytes(self) -> npt.NDArray[np.uint8]:
        return np.frombuffer(memoryview(self.pages), np.uint8)

    def freed(self) -> None:
        self.file.usage[0] -= self.size
        self.file.usage[1] -= self.size * self.internal
        self.file.gems.remove(self)
        if self.iova != INVALID:
            self.device.iovas.free(self.iova)


class DevBo:
    """A slice of the heap. It has no pages of its own and is not mapped by itself."""

    kind = abi.AMDXDNA_BO_DEV
    offset = None
    device_address: int

    def __init__(self, file: XdnaFile, size: int) -> None:
        self.file = file
        self.asked = size
        self.size = round_to_page(size)
        if not 0 < self.size <= file.device.generation.heap_max:
            raise Errno(errno.EINVAL)
        try:
            self.device_address = file.heap_space.take(self.size)
        except Errno:
            raise Errno(errno.ENOSPC) from None
        try:
            self.user_address = file.heap_user_address(self.device_address, self.size)
        except Errno:
            file.heap_space.free(self.device_address)
            raise
        file.usage[2] += self.size
        self._users = 1

    def bytes(self) -> npt.NDArray[np.uint8]:
        return self.file.heap_view(self.device_address, self.size)

    @property
    def export(self) -> None:
        """Asked for when it is to become a dma-buf, which it cannot."""
        raise Errno(errno.EOPNOTSUPP)

    def get(self) -> None:
        self._users += 1

    def put(self) -> None:
        self._users -= 1
        if self._users == 0:
            self.file.heap_space.free(self.device_address)
            self.file.usage[2] -= self.size


class Job:
    """One EXEC_CMD."""

    def __init__(self, context: Context, command: XdnaGem, buffers: list[Any], seq: int) -> None:
        self.context = context
        self.command = command
        self.buffers = buffers
        self.seq = seq
        self.fence = Fence(context.file.kernel, "amdxdna", "amdxdna", object())
        self.addresses: list[int] = []
        """Where its packets say that data is."""


class Context:
    """A hardware context: a share of the array and a queue of commands."""

    def __init__(self, file: XdnaFile, qos: abi.amdxdna_qos_info, columns: int, start: int) -> None:
        self.file = file
        self.qos = qos
        self.id = 0
        """Its file's number for it."""
        taken = {other.firmware_id for other in file.device.contexts()}
        self.firmware_id: int = next(i for i in range(len(taken) + 1) if i not in taken)
        """The device's number for it, below the limit of contexts."""
        self.columns = columns
        self.start_column = start
        self.timeline = syncobj.Syncobj(file.kernel)
        self.slots: list[DevBo] = []
        self.units: list[tuple[DevBo, int]] | None = None
        self.jobs: collections.deque[Job] = collections.deque()
        self.seq = 0
        self.completed = 0
        self.errors = 0
        self.waiting = 0
        """Calls that wait for a place in the queue."""
        self.working = False
        self.alive = True
        self.health: ert.HealthRecord | None = None
        self._loaded: dict[int, tuple[str, Design]] = {}
        """Compute unit -> digest of its image, and what is known of it."""
        self._arrays: dict[str, Array] = {}

    def array(self, unit: int) -> Array:
        """The array as the PDI of a compute unit configures it."""
        assert self.units is not None
        digest, design = self._loaded.get(unit, ("", None))
        if design is None:
            image = self.units[unit][0].bytes().tobytes()
            for size, known in _designs.values():
                if hashlib.sha256(image[:size]).hexdigest() == known.digest:
                    digest, design = self._loaded[unit] = known.digest, known
        if digest not in self._arrays:
            # One image is loaded at a time.
            self._arrays = {digest: Array(self.columns, _Memory(self.file), design)}
        return self._arrays[digest]

    def reset(self) -> None:
        self._arrays.clear()


class _Memory(HostMemory):
    """The memory of a client as its commands reach it."""

    def __init__(self, file: XdnaFile) -> None:
        self.file = file

    def view(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        with self.file.kernel.lock:
            for gem in self.file.gems:
                start = gem.dma_address
                if start != INVALID and start <= address and address + size <= start + gem.size:
                    return gem.bytes()[address - start : address - start + size]
        raise ArrayError(f"IOMMU fault: {size} bytes at {address:#x} belong to no buffer")


class XdnaFile(DrmFileSim):
    """An open node: a client of the driver."""

    device: XdnaSim

    def __init__(self, kernel: Any, device: XdnaSim, path: str) -> None:
        super().__init__(kernel, device, path)
        self.pid = kernel.current.pid
        self.heap: list[XdnaGem] = []
        heap_max = device.generation.heap_max
        self.heap_space = BestFit(HEAP_BASE, HEAP_BASE + heap_max, max(PAGE_SIZE, DEV_ALIGN))
        self.gems: list[XdnaGem] = []
        self.usage = [0, 0, 0]
        """Bytes of all buffers, of the internal ones, of the heap's slices."""
        self.contexts: dict[int, Context] = {}
        self._next_context = 1

    def released(self) -> None:
        for context in list(self.contexts.values()):
            self.device.destroy(context)
        self.contexts.clear()
        heap, self.heap = self.heap, []
        self.syncobjs.clear()
        super().released()
        for gem in heap:
            gem.put()

    # Memory.

    def mmap(self, caller: Caller, length: int, offset: int, prot: int, flags: int) -> Area:
        area = super().mmap(caller, length, offset, prot, flags)
        if self.pid != os.getpid():
            # Another process does not tell what it unmaps: addresses may be used anew.
            for known in self.gems:
                known.forget()
        gem = self.device.by_offset[offset]
        assert isinstance(gem, XdnaGem)
        gem.mapped()
        # The hold that the base class took goes with ``unmapped``.
        return Area(area.pieces, gem.unmapped)

    def heap_user_address(self, address: int, size: int) -> int:
        """Where a slice of the heap is mapped; EAGAIN when the heap must grow or be mapped."""
        if not self.heap:
            raise Errno(errno.EAGAIN)
        expected = self.heap[0].user_address
        answer = INVALID
        for gem in self.heap:
            start, end = gem.heap_address, gem.heap_address + gem.size
            if end > address:
                if gem.user_address == INVALID:
                    raise Errno(errno.EAGAIN)
                if answer == INVALID:
                    answer = gem.user_address + address - start
                elif gem.user_address != expected:
                    raise Errno(errno.EINVAL)
                expected = gem.user_address
                if end >= address + size:
                    return answer
            expected += gem.size
        raise Errno(errno.EAGAIN)

    def heap_view(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        """Bytes of the heap; a copy where they cross pieces. Errno when they are not there."""
        parts = []
        for gem in self.heap:
            start = max(address, gem.heap_address)
            end = min(address + size, gem.heap_address + gem.size)
            if start < end:
                parts.append(gem.bytes()[start - gem.heap_address : end - gem.heap_address])
        if sum(map(len, parts)) != size:
            raise Errno(errno.EINVAL)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def in_use(self, bo: XdnaGem | DevBo) -> bool:
        """Whether a command that runs, or one that waits and lists it, uses the buffer.

        The addresses in a packet are known once the command is started. An image is used by all
        commands of the contexts that it configures.
        """
        start = bo.dma_address if isinstance(bo, XdnaGem) else bo.device_address
        return any(
            bo is job.command
            or bo in job.buffers
            or any(start <= address < start + bo.size for address in job.addresses)
            or any(bo is image for image, _ in context.units or ())
            for context in self.contexts.values()
            for job in context.jobs
        )

    def close_handle(self, handle: int) -> None:
        bo = self.handles[handle]
        if self.in_use(bo):
            self.kernel.log.append(
                f"amdxdna: buffer {handle} is closed while a command uses its {bo.size} bytes"
            )
        super().close_handle(handle)

    def create_bo(self, caller: Caller, arg: abi.amdxdna_drm_create_bo) -> None:
        if arg.flags:
            raise Errno(errno.EINVAL)
        bo: XdnaGem | DevBo
        if arg.type in (abi.AMDXDNA_BO_SHARE, abi.AMDXDNA_BO_CMD):
            bo = self._share(caller, arg)
        elif arg.type == abi.AMDXDNA_BO_DEV_HEAP:
            bo = self._heap_piece(caller, arg)
        elif arg.type == abi.AMDXDNA_BO_DEV:
            bo = DevBo(self, arg.size)
        else:
            raise Errno(errno.EINVAL)
        arg.handle = self.add_handle(bo)  # type: ignore[arg-type]

    def _share(self, caller: Caller, arg: abi.amdxdna_drm_create_bo) -> XdnaGem:
        if arg.vaddr:
            # Pages of the caller, or a dma-buf by its descriptor, are not part of the model.
            try:
                caller.copy_from_user(arg.vaddr, ctypes.sizeof(abi.amdxdna_drm_va_tbl))
            except Errno:
                raise Errno(errno.EINVAL) from None
            raise Errno(errno.EOPNOTSUPP)
        if arg.size == 0:
            raise Errno(errno.EINVAL)
        if arg.size > 1 << 40:
            raise Errno(errno.ENOMEM)
        return XdnaGem(self, arg.size, arg.type)

    def _heap_piece(self, caller: Caller, arg: abi.amdxdna_drm_create_bo) -> XdnaGem:
        if arg.size == 0 or arg.size % HEAP_CHUNK:
            raise Errno(errno.EINVAL)
        total = sum(gem.size for gem in self.heap)
        if total + arg.size > self.device.generation.heap_max:
            raise Errno(errno.ENOSPC)
        gem = self._share(caller, arg)
        gem.heap_address = HEAP_BASE + total
        self.heap.append(gem)
        # The client holds its heap beside the handle.
        gem.get()
        return gem

    def get_bo_info(self, caller: Caller, arg: abi.amdxdna_drm_get_bo_info) -> None:
        if arg.ext or arg.ext_flags or arg.pad:
            raise Errno(errno.EINVAL)
        bo = self.look_up(arg.handle)
        arg.vaddr = bo.user_address
        arg.xdna_addr = bo.device_address
        arg.map_offset = INVALID if isinstance(bo, DevBo) else bo.make_offset()

    def sync_bo(self, caller: Caller, arg: abi.amdxdna_drm_sync_bo) -> None:
        bo = self.look_up(arg.handle)
        # A slice of the heap is clamped to the heap, whatever the offset.
        if not isinstance(bo, DevBo) and (
            arg.offset >= bo.size or arg.offset + arg.size >= 1 << 64
        ):
            raise Errno(errno.EINVAL)
        if arg.direction == abi.SYNC_DIRECT_FROM_DEVICE:
            # It goes on to look for a debug buffer, which an ordinary one is not.
            raise Errno(errno.EINVAL)

    # Contexts.

    def create_hwctx(self, caller: Caller, arg: abi.amdxdna_drm_create_hwctx) -> None:
        if arg.ext or arg.ext_flags:
            raise Errno(errno.EINVAL)
        raw = caller.copy_from_user(arg.qos_p, ctypes.sizeof(abi.amdxdna_qos_info))
        qos = abi.amdxdna_qos_info.from_buffer_copy(raw)
        if not self.heap:
            raise Errno(errno.ENOENT)
        slots: list[DevBo] = []
        try:
            slots.extend(DevBo(self, SLOT_BYTES) for _ in range(MAX_IN_FLIGHT))
            columns, start = self.device.place(arg.num_tiles)
            self.device.check_firmware(self)
            context = Context(self, qos, columns, start)
            context.id = self._context_id()
        except Errno:
            for slot in slots:
                slot.put()
            raise
        context.slots = slots
        self.contexts[context.id] = context
        arg.handle = context.id
        arg.syncobj_handle = syncobj.add(self, context.timeline)
        arg.umq_doorbell = abi.AMDXDNA_INVALID_DOORBELL_OFFSET

    def _context_id(self) -> int:
        """The next free number, going round."""
        for _ in range(MAX_CONTEXTS_OF_A_FILE):
            number = self._next_context
            self._next_context = number % MAX_CONTEXTS_OF_A_FILE + 1
            if number not in self.contexts:
                return number
        raise Errno(errno.EBUSY)

    def _context(self, handle: int) -> Context:
        context = self.contexts.get(handle)
        if context is None:
            raise Errno(errno.EINVAL)
        return context

    def destroy_hwctx(self, caller: Caller, arg: abi.amdxdna_drm_destroy_hwctx) -> None:
        if arg.pad:
            raise Errno(errno.EINVAL)
        context = self._context(arg.handle)
        del self.contexts[arg.handle]
        self.device.drain(context)
        self.device.destroy(context)

    def config_hwctx(self, caller: Caller, arg: abi.amdxdna_drm_config_hwctx) -> None:
        if arg.pad:
            raise Errno(errno.EINVAL)
        if arg.param_type in (
            abi.DRM_AMDXDNA_HWCTX_ASSIGN_DBG_BUF,
            abi.DRM_AMDXDNA_HWCTX_REMOVE_DBG_BUF,
        ):
            self._context(arg.handle)
            raise Errno(errno.EINVAL)
        if arg.param_type != abi.DRM_AMDXDNA_HWCTX_CONFIG_CU:
            raise Errno(errno.EINVAL)
        if arg.param_val_size > PAGE_SIZE:
            raise Errno(errno.E2BIG)
        raw = caller.copy_from_user(arg.param_val, arg.param_val_size)
        self._configure(self._context(arg.handle), raw)

    def _configure(self, context: Context, raw: bytes) -> None:
        head_size = ctypes.sizeof(abi.amdxdna_hwctx_param_config_cu)
        row_size = ctypes.sizeof(abi.amdxdna_cu_config)
        head = abi.amdxdna_hwctx_param_config_cu.from_buffer_copy(raw.ljust(head_size, b"\0"))
        if any(head.pad) or context.units is not None or head.num_cus == 0:
            raise Errno(errno.EINVAL)
        if head_size + head.num_cus * row_size > len(raw) or head.num_cus > MAX_CUS:
            raise Errno(errno.EINVAL)
        rows = (abi.amdxdna_cu_config * head.num_cus).from_buffer_copy(raw, head_size)
        units = []
        for row in rows:
            bo = self.handles.get(row.cu_bo)
            if not isinstance(bo, DevBo) or any(row.pad):
                raise Errno(errno.EINVAL)
            units.append((bo, int(row.cu_func)))
        for bo, _ in units:
            bo.get()
        context.units = units

    # Commands.

    def exec_cmd(self, caller: Caller, arg: abi.amdxdna_drm_exec_cmd) -> None:
        if arg.ext or arg.ext_flags or arg.type != abi.AMDXDNA_CMD_SUBMIT_EXEC_BUF:
            raise Errno(errno.EINVAL)
        if arg.arg_count > MAX_ARGUMENTS or arg.cmd_count != 1:
            raise Errno(errno.EINVAL)
        raw = caller.copy_from_user(arg.args, 4 * arg.arg_count)
        handles = list((ctypes.c_uint32 * arg.arg_count).from_buffer_copy(raw))
        command = self.handles.get(arg.cmd_handles & 0xFFFFFFFF)
        if command is None or command.kind != abi.AMDXDNA_BO_SHARE:
            raise Errno(errno.EINVAL)
        buffers = [self.look_up(handle) for handle in handles]
        context = self._context(arg.hwctx)
        if self.kernel.strict:
            self.device.check_strictly(self, command)
        held = [command, *buffers]
        for bo in held:
            bo.get()
        try:
            arg.seq = self._push(context, command, buffers)
        except BaseException:
            for bo in held:
                bo.put()
            raise

    def _push(self, context: Context, command: XdnaGem, buffers: list[Any]) -> int:
        context.waiting += 1
        try:
            self.kernel.wait_for(
                lambda: len(context.jobs) < MAX_IN_FLIGHT or not context.alive,
                None,
                interruptible=True,
            )
        finally:
            context.waiting -= 1
            self.kernel.changed.notify_all()
        if not context.alive:
            raise Errno(errno.EINVAL)
        if len({id(bo) for bo in buffers}) != len(buffers):
            raise Errno(errno.EALREADY)
        job = Job(context, command, buffers, context.seq)
        context.seq += 1
        for bo in buffers:
            if isinstance(bo, XdnaGem):
                bo.writers[:] = [f for f in bo.writers if not f.signalled] + [job.fence]
        context.timeline.add_point(job.seq, job.fence)
        context.jobs.append(job)
        if not context.working:
            context.working = True
            threading.Thread(
                target=self.device.work, args=(context,), name="amdxdna", daemon=True
            ).start()
        return job.seq

    def wait_cmd(self, caller: Caller, arg: abi.amdxdna_drm_wait_cmd) -> None:
        raise Errno(errno.EOPNOTSUPP)

    # Questions.

    def get_info(self, caller: Caller, arg: abi.amdxdna_drm_get_info) -> None:
        self.device.answer(self, caller, arg)

    def set_state(self, caller: Caller, arg: abi.amdxdna_drm_set_state) -> None:
        if os.geteuid() != 0:
            raise Errno(errno.EACCES)
        self.device.set_state(caller, arg)

    def get_array(self, caller: Caller, arg: abi.amdxdna_drm_get_array) -> None:
        if arg.pad or arg.num_element == 0 or arg.element_size == 0:
            raise Errno(errno.EINVAL)
        self.device.get_array(self, caller, arg)

    requests: ClassVar[Any] = {
        abi.DRM_AMDXDNA_CREATE_HWCTX: (abi.DRM_IOCTL_AMDXDNA_CREATE_HWCTX, create_hwctx),
        abi.DRM_AMDXDNA_DESTROY_HWCTX: (abi.DRM_IOCTL_AMDXDNA_DESTROY_HWCTX, destroy_hwctx),
        abi.DRM_AMDXDNA_CONFIG_HWCTX: (abi.DRM_IOCTL_AMDXDNA_CONFIG_HWCTX, config_hwctx),
        abi.DRM_AMDXDNA_CREATE_BO: (abi.DRM_IOCTL_AMDXDNA_CREATE_BO, create_bo),
        abi.DRM_AMDXDNA_GET_BO_INFO: (abi.DRM_IOCTL_AMDXDNA_GET_BO_INFO, get_bo_info),
        abi.DRM_AMDXDNA_SYNC_BO: (abi.DRM_IOCTL_AMDXDNA_SYNC_BO, sync_bo),
        abi.DRM_AMDXDNA_EXEC_CMD: (abi.DRM_IOCTL_AMDXDNA_EXEC_CMD, exec_cmd),
        abi.DRM_AMDXDNA_GET_INFO: (abi.DRM_IOCTL_AMDXDNA_GET_INFO, get_info),
        abi.DRM_AMDXDNA_SET_STATE: (abi.DRM_IOCTL_AMDXDNA_SET_STATE, set_state),
        abi.DRM_AMDXDNA_WAIT_CMD: (abi.DRM_IOCTL_AMDXDNA_WAIT_CMD, wait_cmd),
        abi.DRM_AMDXDNA_GET_ARRAY: (abi.DRM_IOCTL_AMDXDNA_GET_ARRAY, get_array),
    }


class _Refused(Exception):
    """The driver cannot start a packet: its state stays NEW and the fence carries the errno."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class _FirmwareError(Exception):
    """The firmware answers a command with an error."""


class XdnaSim(DrmDeviceSim):
    """A Strix NPU."""

    name = "amdxdna"
    major = 261
    driver_name = "amdxdna_accel_driver"
    driver_version = (0, 10, 0)
    driver_date = "0"
    driver_desc = "AMD XDNA DRM implementation"
    file_class = XdnaFile
    has_syncobj = True
    generation: ClassVar[Generation] = NPU4

    def __init__(self, kernel: Any, paths: tuple[str, ...], *, pasid: bool = True) -> None:
        super().__init__(kernel, paths)
        self.pasid = pasid
        self.tdr_timeout_ms = TDR_TIMEOUT_MS
        self.iovas = BestFit(1 << 32, 1 << 47, PAGE_SIZE)
        self.power_mode = abi.POWER_MODE_DEFAULT
        self.preemption = {
            abi.DRM_AMDXDNA_SET_FORCE_PREEMPT: 0,
            abi.DRM_AMDXDNA_SET_FRAME_BOUNDARY_PREEMPT: 0,
        }

    def find_mapping(self, gem: XdnaGem) -> int:
        """Where the owner's process has a buffer mapped, from what the kernel says of it."""
        inode = os.fstat(self.pages.fd).st_ino
        own = gem.pages.address if gem.file.pid == os.getpid() else 0
        place = gem._place
        for start, end, _inode, offset in mappings(gem.file.pid, (inode,)):
            address = start + place - offset
            # Neighbours in memory and in the file are one line; ours is the driver's view.
            if start <= address and address + gem.size <= end and address != own:
                return address
        return INVALID

    # Contexts.

    def contexts(self) -> list[Context]:
        return [context for file in self.files_of() for context in file.contexts.values()]

    def files_of(self) -> list[XdnaFile]:
        return list(self.kernel.files_of(self))

    def place(self, tiles: int) -> tuple[int, int]:
        """(columns, first column) for a context of so many tiles: the driver's column solver."""
        generation = self.generation
        columns = tiles // CORE_ROWS
        if tiles == 0 or not 0 < columns <= generation.columns:
            raise Errno(errno.EINVAL)
        first = generation.first_column
        last = generation.columns - columns
        if first > 0 and last == 0:
            first = 0
        width = columns if generation.natural_alignment else 1
        starts = range(first + -first % width, last - last % width + 1, width)
        if not starts:
            raise Errno(errno.EINVAL)
        if generation.temporal_only:
            return generation.columns, 0
        used = {
            column
            for context in self.contexts()
            for column in range(context.start_column, context.start_column + context.columns)
        }
        for start in starts:
            if not used & set(range(start, start + columns)):
                return columns, start
        shared = collections.Counter(
            context.start_column for context in self.contexts() if context.columns == columns
        )
        fits = [start for start in shared if start in starts]
        if not fits:
            raise Errno(errno.ENODEV)
        return columns, min(fits, key=lambda start: shared[start])

    def check_firmware(self, file: XdnaFile) -> None:
        """What the firmware refuses when a context is made."""
        if len(self.contexts()) >= self.generation.contexts:
            self.kernel.log.append("amdxdna: create context: firmware status 0x2000003")
            raise Errno(errno.EINVAL)
        if self.pasid and file.heap[0].user_address % HEAP_CHUNK:
            self.kernel.log.append("amdxdna: map host buffer: firmware status 0x4000003")
            raise Errno(errno.EINVAL)

    def drain(self, context: Context) -> None:
        """Wait for the commands of a context that is going, two seconds at most."""
        self.kernel.wait_for(lambda: not context.jobs, 2.0)

    def destroy(self, context: Context) -> None:
        """End a context; commands that are left are aborted."""
        context.alive = False
        self.kernel.changed.notify_all()
        for job in list(context.jobs):
            self._end(job, State.ABORT)
        for slot in context.slots:
            slot.put()
        for bo, _ in context.units or ():
            bo.put()
        context.units = None

    # Commands.

    def work(self, context: Context) -> None:
        """A context's worker: one command after the other, until there is none."""
        kernel = self.kernel
        while True:
            with kernel.lock:
                if not context.jobs or not context.alive:
                    context.working = False
                    return
                job = context.jobs[0]
            self._run(job)

    def _run(self, job: Job) -> None:
        """One command. Runs without the lock, but for what looks at shared things."""
        context, kernel = job.context, self.kernel
        try:
            with kernel.lock:
                if not context.alive:
                    return
                packets = self._start(job)
            for array, stream, arguments in packets:
                array.run(stream, arguments)
        except _Refused as refusal:
            with kernel.lock:
                kernel.log.append(f"amdxdna: command {job.seq} is not started: {refusal}")
                job.fence.why = str(refusal)
                self._end(job, None, error=refusal.code)
            return
        except _FirmwareError as failure:
            with kernel.lock:
                kernel.log.append(f"amdxdna: command {job.seq} fails: {failure}")
                job.fence.why = str(failure)
                self._end(job, State.ERROR)
            return
        except Stuck as stuck:
            self._time_out(job, stuck)
            return
        with kernel.lock:
            self._end(job, State.COMPLETED)

    def _start(self, job: Job) -> list[tuple[Array, Transaction, list[int]]]:
        """Take the packet apart as driver and firmware do."""
        self._set_state(job.command, State.NEW)
        packet = self._decode(job.command)
        commands = [packet]
        if packet.opcode == PacketOpcode.CMD_CHAIN:
            handles = struct.unpack(f"<{len(packet.body) // 8}Q", packet.body)
            commands = []
            for handle in handles:
                bo = job.context.file.handles.get(handle & 0xFFFFFFFF)
                if bo is None or bo.kind != abi.AMDXDNA_BO_SHARE:
                    raise _Refused(errno.ENOENT, f"a chain names the buffer {handle}")
                commands.append(self._decode(bo))
            if len({command.opcode for command in commands}) > 1:
                raise _Refused(errno.EINVAL, "a chain of several opcodes")
            total = sum(52 + len(command.body) for command in commands)
            if total > SLOT_BYTES or not commands:
                raise _Refused(errno.EINVAL, f"a chain of {total} bytes of slots")
        started = []
        for command in commands:
            found = self._command(job, command)
            if found is not None:
                started.append(found)
        return started

    def _decode(self, bo: XdnaGem) -> ert.Packet:
        try:
            packet = ert.decode(bo.bytes().tobytes())
        except ProgramError as error:
            raise _Refused(errno.EINVAL, str(error.strerror)) from None
        if packet.opcode in (PacketOpcode.NPU_PREEMPT, PacketOpcode.NPU_PREEMPT_ELF) and (
            not self.generation.preemption
        ):
            raise _Refused(errno.EOPNOTSUPP, "this NPU has no preemption")
        arguments = len(packet.body) if packet.opcode != PacketOpcode.CMD_CHAIN else 0
        if packet.opcode != PacketOpcode.START_CU and arguments > 4 * ert.MAX_NPU_ARGUMENT_WORDS:
            raise _Refused(errno.EINVAL, f"{arguments} bytes of arguments")
        return packet

    def _command(self, job: Job, packet: ert.Packet) -> tuple[Array, Transaction, list[int]] | None:
        context = job.context
        if packet.opcode == PacketOpcode.START_CU:
            if len(packet.body) < 20:
                raise _FirmwareError(f"a register map of {len(packet.body)} bytes")
            opcode, address, words = struct.unpack_from("<QQI", packet.body)
            if opcode not in (2, ert.OPCODE_TXN):
                raise _FirmwareError(f"kernel opcode {opcode} is none of a stream")
            size, rest = 4 * words, packet.body[20:]
        else:
            address, size = packet.operands["instructions"], packet.operands["size"]
            rest = packet.body
        arguments = list(struct.unpack(f"<{len(rest) // 8}Q", rest[: len(rest) // 8 * 8]))
        job.addresses += arguments
        unit = packet.cu or 0
        if context.units is None or unit >= len(context.units):
            raise _FirmwareError(f"compute unit {unit} is not configured")
        try:
            code = context.file.heap_view(address, size).tobytes()
        except Errno:
            # Instructions in another kind of buffer are not found and nobody says so.
            self.kernel.log.append(
                f"amdxdna: command {job.seq}: {size} bytes of instructions at {address:#x} are not "
                "in the heap: the command completes and does nothing"
            )
            return None
        try:
            stream = Transaction(code)
        except ProgramError as error:
            raise _FirmwareError(str(error.strerror)) from None
        return context.array(unit), stream, arguments

    def check_strictly(self, file: XdnaFile, command: XdnaGem) -> None:
        """Complain to the caller of a packet that would complete without doing anything."""
        try:
            packet = ert.decode(command.bytes().tobytes())
        except ProgramError as error:
            self.kernel.complain(f"amdxdna: the driver will not start this: {error.strerror}")
            return
        if packet.opcode == PacketOpcode.CMD_CHAIN:
            return
        if packet.opcode == PacketOpcode.START_CU and len(packet.body) >= 20:
            _, address, words = struct.unpack_from("<QQI", packet.body)
            size = 4 * words
        else:
            address, size = (packet.operands.get(name, 0) for name in ("instructions", "size"))
        try:
            file.heap_view(address, size)
        except Errno:
            self.kernel.complain(
                f"amdxdna: {size} bytes of instructions at {address:#x} are not in the heap: the "
                "command would complete and do nothing"
            )

    def _time_out(self, job: Job, stuck: Stuck) -> None:
        """No answer comes: the driver's timer resets the context."""
        context, kernel = job.context, self.kernel
        with kernel.lock:
            kernel.log.append(f"amdxdna: command {job.seq} hangs: {stuck}")
            job.fence.why = str(stuck)
            if not kernel.strict:
                kernel.wait_for(lambda: not context.alive, self.tdr_timeout_ms / 1000)
            if job not in context.jobs:
                return
            kernel.log.append("amdxdna: TDR timeout detected")
            record = ert.HealthRecord(stuck.operation, 0, 0, 0, 0, 0)
            context.health = record
            context.reset()
            self._end(job, State.TIMEOUT, record.encode())
            # The mailbox goes with the context: what else was under way is answered by nobody.
            for other in list(context.jobs):
                self._end(other, State.ABORT)

    @staticmethod
    def _set_state(command: XdnaGem, state: State) -> None:
        memory = command.bytes()
        memory[0] = int(memory[0]) & 0xF0 | state

    def _fail(self, job: Job, state: State, record: bytes) -> None:
        """Set the state, and overwrite the packet; that of a chain is its first command's."""
        job.context.errors += 1
        self._set_state(job.command, state)
        target = job.command.bytes()
        if ert.packet_header(target[:4].tobytes()).opcode == PacketOpcode.CMD_CHAIN:
            (handle,) = struct.unpack_from("<Q", target[28:36].tobytes())
            target[12:16] = 0
            first = job.context.file.handles.get(handle & 0xFFFFFFFF)
            if not isinstance(first, XdnaGem):
                return
            target = first.bytes()
        target[4:] = 0xFF
        target[4 : 4 + len(record)] = np.frombuffer(record, np.uint8)

    def _end(self, job: Job, state: State | None, record: bytes = b"", error: int = 0) -> None:
        """A command is done; state None: it never began. What is gone already stays as it is."""
        if job not in job.context.jobs:
            return
        if state in ert.FAILED:
            self._fail(job, state, record)
        elif state is not None:
            self._set_state(job.command, state)
        job.context.jobs.remove(job)
        job.context.completed += 1
        job.fence.signal(error)
        for bo in (job.command, *job.buffers):
            bo.put()
        self.kernel.changed.notify_all()

    # Questions.

    def answer(self, file: XdnaFile, caller: Caller, arg: abi.amdxdna_drm_get_info) -> None:
        """GET_INFO."""
        param = arg.param
        if param == abi.DRM_AMDXDNA_QUERY_AIE_STATUS:
            self._aie_status(caller, arg)
        elif param == abi.DRM_AMDXDNA_QUERY_SENSORS:
            rows = b"".join(bytes(row) for row in self._sensors())
            size = ctypes.sizeof(abi.amdxdna_drm_query_sensor)
            fits = min(arg.buffer_size, len(rows)) // size * size
            caller.copy_to_user(arg.buffer, rows[:fits])
            arg.buffer_size = fits
        elif param == abi.DRM_AMDXDNA_QUERY_HW_CONTEXTS:
            size = ctypes.sizeof(abi.amdxdna_drm_query_hwctx)
            entries = [bytes(self._entry(c))[:size] for c in self.contexts()]
            fits = min(arg.buffer_size // size, len(entries))
            caller.copy_to_user(arg.buffer, b"".join(entries[:fits]))
            # The driver gives what is left of the room, not what it used.
            arg.buffer_size -= fits * size
        elif param == abi.DRM_AMDXDNA_QUERY_TELEMETRY:
            self._telemetry(caller, arg)
        else:
            struct_ = self._plain_answer(param)
            if struct_ is None:
                raise Errno(errno.EOPNOTSUPP)
            caller.copy_to_user(arg.buffer, bytes(struct_)[: arg.buffer_size])

    def _plain_answer(self, param: int) -> Any:
        generation = self.generation
        if param == abi.DRM_AMDXDNA_QUERY_AIE_METADATA:
            tile = abi.amdxdna_drm_query_aie_tile_metadata
            return abi.amdxdna_drm_query_aie_metadata(
                col_size=0x2000000,
                cols=generation.columns,
                rows=ROWS,
                version=abi.amdxdna_drm_query_aie_version(2, 0),
                core=tile(CORE_ROWS, 2, 4, 16, 16),
                mem=tile(1, 1, 12, 64, 16),
                shim=tile(1, 0, 4, 16, 16),
            )
        if param == abi.DRM_AMDXDNA_QUERY_AIE_VERSION:
            return abi.amdxdna_drm_query_aie_version(2, 0)
        if param == abi.DRM_AMDXDNA_QUERY_CLOCK_METADATA:
            clocks = abi.amdxdna_drm_query_clock_metadata()
            names = ((clocks.mp_npu_clock, b"MP-NPU Clock"), (clocks.h_clock, b"H Clock"))
            for (clock, name), mhz in zip(names, generation.clocks_mhz, strict=True):
                clock.name[: len(name)] = name
                clock.freq_mhz = mhz
            return clocks
        if param == abi.DRM_AMDXDNA_QUERY_FIRMWARE_VERSION:
            return abi.amdxdna_drm_query_firmware_version(*generation.firmware)
        if param == abi.DRM_AMDXDNA_GET_POWER_MODE:
            return abi.amdxdna_drm_get_power_mode(power_mode=self.power_mode)
        if param == abi.DRM_AMDXDNA_QUERY_RESOURCE_INFO:
            tops = 2 * generation.ops_per_column * generation.columns * generation.clocks_mhz[1]
            return abi.amdxdna_drm_get_resource_info(
                npu_clk_max=generation.clocks_mhz[1],
                npu_tops_max=tops // 1_000_000,
                npu_task_max=generation.contexts,
                npu_tops_curr=tops // 1_000_000,
                npu_task_curr=len(self.contexts()),
            )
        states = {
            abi.DRM_AMDXDNA_GET_FORCE_PREEMPT_STATE: abi.DRM_AMDXDNA_SET_FORCE_PREEMPT,
            abi.DRM_AMDXDNA_GET_FRAME_BOUNDARY_PREEMPT_STATE: (
                abi.DRM_AMDXDNA_SET_FRAME_BOUNDARY_PREEMPT
            ),
        }
        if param in states and generation.preemption:
            return abi.amdxdna_drm_attribute_state(state=self.preemption[states[param]])
        return None

    def _aie_status(self, caller: Caller, arg: abi.amdxdna_drm_get_info) -> None:
        size = min(arg.buffer_size, ctypes.sizeof(abi.amdxdna_drm_query_aie_status))
        raw = caller.copy_from_user(arg.buffer, size)
        status = abi.amdxdna_drm_query_aie_status.from_buffer_copy(raw.ljust(16, b"\0"))
        room = min(status.buffer_size, self.generation.columns * 0x1000)
        caller.copy_to_user(status.buffer, bytes(room))
        filled = 0
        for context in self.contexts():
            filled |= (1 << context.columns) - 1 << context.start_column
        status.cols_filled = filled
        caller.copy_to_user(arg.buffer, bytes(status)[:size])

    def _sensors(self) -> list[abi.amdxdna_drm_query_sensor]:
        def sensor(label: bytes, units: bytes, **fields: int) -> abi.amdxdna_drm_query_sensor:
            row = abi.amdxdna_drm_query_sensor(**fields)
            row.label[: len(label)] = label
            row.units[: len(units)] = units
            return row

        busy = sum(bool(context.jobs) for context in self.contexts())
        power = sensor(
            b"Total Power", b"mW", input=300 + 900 * busy, unitm=-3,
            type=abi.AMDXDNA_SENSOR_TYPE_POWER,
        )  # fmt: skip
        columns = [
            sensor(
                b"Column %d Utilization" % column, b"%", input=100 * (busy > 0),
                type=abi.AMDXDNA_SENSOR_TYPE_COLUMN_UTILIZATION,
            )
            for column in range(self.generation.columns)
        ]  # fmt: skip
        return [power, *columns]

    def _telemetry(self, caller: Caller, arg: abi.amdxdna_drm_get_info) -> None:
        head = ctypes.sizeof(abi.amdxdna_drm_query_telemetry_header)
        limit = self.generation.contexts
        size = head + 4 * limit
        if not size < arg.buffer_size <= size + TELEMETRY_MAX:
            raise Errno(errno.EINVAL)
        raw = caller.copy_from_user(arg.buffer, head)
        header = abi.amdxdna_drm_query_telemetry_header.from_buffer_copy(raw)
        header.major, header.minor, header.map_num_elements = 1, 1, limit
        ids = [0] * limit
        for context in self.contexts():
            ids[context.firmware_id] = context.id
        caller.copy_to_user(arg.buffer, bytes(header) + struct.pack(f"<{limit}I", *ids))
        caller.copy_to_user(arg.buffer + size, bytes(arg.buffer_size - size))

    def _entry(self, context: Context) -> abi.amdxdna_drm_hwctx_entry:
        health = context.health or ert.HealthRecord(0, 0, 0, 0, 0, 0)
        return abi.amdxdna_drm_hwctx_entry(
            context_id=context.id,
            start_col=context.start_column,
            num_col=context.columns,
            hwctx_id=context.firmware_id,
            pid=context.file.pid,
            command_submissions=context.seq,
            command_completions=context.completed,
            errors=context.errors,
            priority=context.qos.priority,
            heap_usage=context.file.usage[2],
            state=abi.AMDXDNA_HWCTX_STATE_ACTIVE if context.jobs else abi.AMDXDNA_HWCTX_STATE_IDLE,
            gops=context.qos.gops,
            fps=context.qos.fps,
            dma_bandwidth=context.qos.dma_bandwidth,
            latency=context.qos.latency,
            frame_exec_time=context.qos.frame_exec_time,
            txn_op_idx=health.txn_op_idx,
            ctx_pc=health.ctx_pc,
            fatal_error_type=health.fatal_error_type,
        )

    def get_array(self, file: XdnaFile, caller: Caller, arg: abi.amdxdna_drm_get_array) -> None:
        """GET_ARRAY."""
        if arg.param == abi.DRM_AMDXDNA_HW_CONTEXT_ALL:
            if arg.element_size > 4096 or arg.num_element > 1024:
                raise Errno(errno.EINVAL)
            size = min(arg.element_size, ctypes.sizeof(abi.amdxdna_drm_hwctx_entry))
            rows = [bytes(self._entry(context))[:size] for context in self.contexts()]
            rows = rows[: arg.num_element * arg.element_size // size]
            caller.copy_to_user(arg.buffer, b"".join(rows))
            arg.element_size, arg.num_element = size, len(rows)
        elif arg.param == abi.DRM_AMDXDNA_HW_LAST_ASYNC_ERR:
            arg.num_element = 0
        elif arg.param == abi.DRM_AMDXDNA_BO_USAGE:
            if arg.num_element != 1:
                raise Errno(errno.EINVAL)
            size = min(arg.element_size, ctypes.sizeof(abi.amdxdna_drm_bo_usage))
            raw = caller.copy_from_user(arg.buffer, size)
            usage = abi.amdxdna_drm_bo_usage.from_buffer_copy(raw.ljust(32, b"\0"))
            if usage.pid == 0:
                raise Errno(errno.EINVAL)
            same = [other for other in self.files_of() if other.pid == usage.pid]
            usage.total_usage, usage.internal_usage, usage.heap_usage = (
                sum(other.usage[index] for other in same) for index in range(3)
            )
            caller.copy_to_user(arg.buffer, bytes(usage)[:size])
        else:
            raise Errno(errno.EOPNOTSUPP)

    def set_state(self, caller: Caller, arg: abi.amdxdna_drm_set_state) -> None:
        """SET_STATE."""
        if arg.param == abi.DRM_AMDXDNA_SET_POWER_MODE:
            raw = caller.copy_from_user(arg.buffer, 8)
            if any(raw[1:]) or raw[0] > abi.POWER_MODE_TURBO:
                raise Errno(errno.EINVAL)
            self.power_mode = raw[0]
        elif arg.param in self.preemption and self.generation.preemption:
            raw = caller.copy_from_user(arg.buffer, 8)
            if any(raw[1:]) or raw[0] > 1:
                raise Errno(errno.EINVAL)
            self.preemption[arg.param] = raw[0]
        else:
            raise Errno(errno.EOPNOTSUPP)


class XdnaNpu1Sim(XdnaSim):
    """A Phoenix NPU."""

    name = "amdxdna-npu1"
    generation = NPU1
