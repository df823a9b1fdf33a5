# SPDX-License-Identifier: MIT
"""AMD Ryzen AI NPUs (XDNA1 and XDNA2) under the amdxdna driver (Linux 6.14 and newer).

The order that the driver needs is kept here: a heap, mapped at a multiple of 64 MiB, before the
first context; buffers mapped before their address is asked for; contexts ended before what they
use. What the driver answers with a bare EINVAL is checked before the call where it can be known.

Sources: drivers/accel/amdxdna and the user library of amd/xdna-driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import operator
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from npukit import _fast
from npukit._fast import Mapping
from npukit.abi import amdxdna as abi
from npukit.abi import drm as drm_abi
from npukit.ioctl import (
    DeviceBusy,
    DeviceClosed,
    Ioctl,
    Kernel,
    LinuxKernel,
    NpuError,
    ProgramError,
)

from .base import Buffer
from .drm import DrmDevice

HEAP_CHUNK = 64 << 20
"""Heaps are made of pieces of this size, and mapped at multiples of it."""
SLICE_ALIGN = 32 << 10
"""Slices of the heap begin at multiples of it (the driver's dev_mem_buf_shift)."""
MAX_ARGUMENTS = 4095
MAX_CUS = 32
CMD_BYTES = 4096
TELEMETRY_MAX = 4 << 20
_AIMS = 64
"""How many wrong gaps are filled before the place of a piece of heap is given up."""


class BoKind(IntEnum):
    """What a buffer is for (enum amdxdna_bo_type)."""

    SHARE = abi.AMDXDNA_BO_SHARE
    """Data that NPU and CPU share."""
    HEAP = abi.AMDXDNA_BO_DEV_HEAP
    DEV = abi.AMDXDNA_BO_DEV
    """A slice of the heap: instructions and PDIs. In any other kind they are not found, and
    nobody says so."""
    CMD = abi.AMDXDNA_BO_CMD
    """A packet."""


class Priority(IntEnum):
    """Of a context (amdxdna_qos_info.priority)."""

    REALTIME = abi.AMDXDNA_QOS_REALTIME_PRIORITY
    HIGH = abi.AMDXDNA_QOS_HIGH_PRIORITY
    NORMAL = abi.AMDXDNA_QOS_NORMAL_PRIORITY
    LOW = abi.AMDXDNA_QOS_LOW_PRIORITY


class PowerMode(IntEnum):
    DEFAULT = abi.POWER_MODE_DEFAULT
    LOW = abi.POWER_MODE_LOW
    MEDIUM = abi.POWER_MODE_MEDIUM
    HIGH = abi.POWER_MODE_HIGH
    TURBO = abi.POWER_MODE_TURBO


@dataclass(frozen=True, slots=True)
class Sensor:
    """A reading: ``value`` ``units``, without prefixes (W, %, C)."""

    label: str
    value: float
    units: str


@dataclass(frozen=True, slots=True)
class Resources:
    """The answer of QUERY_RESOURCE_INFO: MHz, 10^12 operations a second, contexts."""

    clock_max: int
    tops_max: int
    contexts_max: int
    tops: int
    contexts: int


class AmdxdnaBuffer(Buffer):
    """A buffer. ``dma_address`` is what packets and streams call it by."""

    device: AmdxdnaDevice

    def __init__(
        self, device: AmdxdnaDevice, handle: int, size: int, address: int, kind: BoKind
    ) -> None:
        self.kind = kind
        self._holds = 0
        self._doomed = False
        self._then: Callable[[], object] | None = None
        super().__init__(device, handle, size, address)

    def __repr__(self) -> str:
        return (
            f"<AmdxdnaBuffer {self.handle} ({self.kind.name}) of {self.size} bytes "
            f"at {self.dma_address:#x}>"
        )

    def _check_open(self) -> None:
        super()._check_open()
        if self._doomed:
            raise DeviceClosed(errno.EBADF, f"{self!r} is closed, and goes when the NPU is done")

    @property
    def views(self) -> int:
        # Arrays on a slice hold the mapping of the heap.
        return 0 if self.kind is BoKind.DEV else super().views

    def _make_mapping(self) -> Mapping:
        assert self.kind is not BoKind.DEV
        info = self.device.call(abi.DRM_IOCTL_AMDXDNA_GET_BO_INFO, handle=self.handle)
        return self.device.kernel.mmap(self._file.fd, self.size, info.map_offset)

    def array(
        self,
        dtype: npt.DTypeLike = np.uint8,
        shape: int | tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> npt.NDArray[Any]:
        if self.kind is not BoKind.DEV:
            return super().array(dtype, shape, offset)
        self._check_open()
        piece, place = self.device._heap_piece(self.dma_address, self.size)
        if not 0 <= offset <= self.size:
            raise ValueError(f"offset {offset} is not within {self!r}")
        item = np.dtype(dtype)
        if shape is None:
            shape = (self.size - offset) // item.itemsize
        if offset + int(np.prod(shape)) * item.itemsize > self.size:
            raise ValueError(f"{item}{shape} at offset {offset} does not fit in {self!r}")
        return piece.array(dtype, shape, place + offset)

    def flush(self, offset: int = 0, size: int | None = None) -> None:
        """Write the CPU's cache lines of a range back and forget them.

        Makes what the CPU wrote visible to the NPU, and the reverse: the driver does the same for
        either direction, and answers EINVAL to the one called FROM_DEVICE.
        """
        self._check_open()
        size = self.size - offset if size is None else size
        if offset < 0 or size < 0 or offset + size > self.size:
            raise ValueError(f"{size} bytes at {offset} are not within {self!r}")
        if size:
            self.device.call(
                abi.DRM_IOCTL_AMDXDNA_SYNC_BO,
                handle=self.handle,
                direction=abi.SYNC_DIRECT_TO_DEVICE,
                offset=offset,
                size=size,
            )

    def _begin(self, mode: str, timeout: float) -> None:
        if "r" in mode:
            self.flush()

    def _end(self, mode: str) -> None:
        if "w" in mode:
            self.flush()

    def write(self, data: bytes | memoryview, offset: int = 0) -> None:
        """Copy ``data`` in, and make it visible to the NPU."""
        source = np.frombuffer(data, np.uint8)
        if not 0 <= offset <= self.size - len(source):
            raise ValueError(f"{len(source)} bytes at {offset} are not within {self!r}")
        self._check_open()
        done = 0
        while done < len(source):
            target: Buffer = self
            place, count = offset + done, len(source) - done
            if self.kind is BoKind.DEV:
                # A slice may cross pieces of the heap.
                target, place = self.device._heap_at(self.dma_address + place)
                count = min(count, target.size - place)
            target.array(np.uint8, count, place)[:] = source[done : done + count]
            done += count
        self.flush(offset, len(source))

    def hold(self) -> None:
        """Keep it open while the NPU may use it: ``close`` then waits for the last ``release``."""
        self._holds += 1

    def release(self) -> None:
        self._holds -= 1
        if self._holds == 0 and self._doomed:
            self.close()

    @property
    def in_use(self) -> bool:
        return self._holds > 0

    def close(self) -> None:
        """Give it back; while the NPU may still use it, as soon as it does no more. Idempotent."""
        if self._holds and not self._closed:
            self._doomed = True
            return
        then, self._then = self._then, None
        try:
            super().close()
        finally:
            if then is not None:
                then()

    def when_closed(self, then: Callable[[], object]) -> None:
        """Call back once it is given back."""
        self._then = then

    def _destroy(self) -> None:
        self.device._close_handle(drm_abi.DRM_IOCTL_GEM_CLOSE, self.handle)


class HeapPlaces:
    """Where the pieces of a heap are mapped: the first at a multiple of 64 MiB, each further one
    behind the last. ``maximum``: bytes of all pieces together.

    The kernel is told no address: it takes the top of the highest gap that fits, so all that would
    be taken before the place is taken first. Synchronization: none.
    """

    def __init__(self, kernel: Kernel, path: str, maximum: int) -> None:
        self._kernel = kernel
        self._path = path
        self._maximum = maximum
        self._size = 0
        self._end: int | None = None
        self._filler: Mapping | None = None
        """Addresses kept for further pieces."""

    @contextlib.contextmanager
    def aimed(self, size: int) -> Iterator[int]:
        """Within, the kernel puts the ``size`` bytes that are mapped next where a piece belongs.

        NpuError (EAGAIN) when something else is there.
        """
        room = max(self._maximum - self._size, size)
        strays: list[Mapping] = []
        self.release()
        try:
            if self._end is not None:
                place = self._end
            else:
                probe = _reserve(self._kernel, room + HEAP_CHUNK)
                end = probe.address + HEAP_CHUNK
                place = end - end % HEAP_CHUNK
                self._kernel.munmap(probe)
            if room > size:
                self._filler = self._reserve_at(place + size, room - size, strays)
            self._kernel.munmap(self._reserve_at(place, size, strays))
            yield place
        finally:
            for stray in strays:
                self._kernel.munmap(stray)

    def took(self, address: int, size: int) -> None:
        """A piece is mapped."""
        self._size += size
        self._end = address + size

    def release(self) -> None:
        """Keep no addresses any more."""
        filler, self._filler = self._filler, None
        if filler is not None:
            self._kernel.munmap(filler)

    def _reserve_at(self, address: int, size: int, strays: list[Mapping]) -> Mapping:
        """Addresses from ``address`` on; ``strays`` collects those that were in the way."""
        for _ in range(_AIMS):
            found = _reserve(self._kernel, size)
            over = found.address - address
            if over == 0:
                return found
            if 0 < over < size:
                # The right gap, but its top is higher than it should be.
                self._kernel.munmap(found)
                found = _reserve(self._kernel, over)
            strays.append(found)
        raise self.misplaced(strays[-1].address, address)

    def misplaced(self, found: int, wanted: int) -> NpuError:
        return NpuError(
            errno.EAGAIN,
            path=self._path,
            hint=f"heap is mapped at {found:#x} and must be at {wanted:#x}: something else was "
            "mapped there meanwhile; try again, or open with a larger heap_size",
        )


class HwContext:
    """A share of the NPU: columns, compute units, a queue of up to four commands.

    Made by ``AmdxdnaDevice.context``. Synchronization: any thread. One that ends it ends the waits
    of the others.
    """

    def __init__(self, device: AmdxdnaDevice, columns: int, handle: int, syncobj: int) -> None:
        self.device = device
        self.columns = columns
        self.handle = handle
        self.syncobj = syncobj
        self.units: list[AmdxdnaBuffer] = []
        self._closed = False
        self._lock = threading.Lock()
        self._waiting = 0
        self._idle_waits: list[TimelineWait] = []
        device._contexts.add(self)

    def __repr__(self) -> str:
        return f"<HwContext {self.handle} of {self.columns} columns>"

    @property
    def closed(self) -> bool:
        return self._closed

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceClosed(errno.EBADF, f"{self!r} is closed")
        self.device._check_open()

    def configure(self, units: Sequence[tuple[bytes | memoryview, int]]) -> None:
        """Tell the NPU of the compute units, once: (PDI image, functional number) of each.

        ProgramError for none, too many, an empty image, or a second call: the driver says EINVAL.
        """
        self._check_open()
        if self.units:
            raise ProgramError(path=self.device.path, hint="a context is configured only once")
        if not 1 <= len(units) <= MAX_CUS:
            raise ProgramError(
                path=self.device.path, hint=f"{len(units)} compute units: 1 to {MAX_CUS} can be had"
            )
        buffers: list[AmdxdnaBuffer] = []
        # Units of one PDI share its buffer.
        placed: dict[bytes, AmdxdnaBuffer] = {}
        try:
            rows = []
            for image, function in units:
                if not 0 <= function < 256:
                    raise ProgramError(path=self.device.path, hint=f"function {function} of a unit")
                key = bytes(image)
                buffer = placed.get(key)
                if buffer is None:
                    if not key:
                        raise ProgramError(path=self.device.path, hint="a PDI of 0 bytes")
                    buffer = self.device.alloc(len(key), BoKind.DEV)
                    buffers.append(buffer)
                    placed[key] = buffer
                    buffer.write(key)
                rows.append(abi.amdxdna_cu_config(buffer.handle, function))
            config = abi.amdxdna_hwctx_param_config_cu.with_tail(len(rows))
            for index, row in enumerate(rows):
                config.cu_configs[index] = row
            self.device.call(
                abi.DRM_IOCTL_AMDXDNA_CONFIG_HWCTX,
                handle=self.handle,
                param_type=abi.DRM_AMDXDNA_HWCTX_CONFIG_CU,
                param_val=ctypes.addressof(config),
                param_val_size=ctypes.sizeof(config),
            )
        except BaseException:
            for buffer in buffers:
                buffer.close()
            raise
        self.units = buffers

    def submit(self, command: AmdxdnaBuffer, buffers: Sequence[AmdxdnaBuffer]) -> int:
        """Queue the packet in ``command``; its sequence number, which ``wait`` takes.

        ``buffers`` are all that the packet uses: the driver keeps them in place for its time. A
        fifth command waits until one of four is done. ProgramError for what the driver refuses or,
        worse, takes and cannot run.
        """
        self._check_open()
        path = self.device.path
        if not self.units:
            raise ProgramError(path=path, hint="the context is not configured: see configure()")
        if command.kind not in (BoKind.CMD, BoKind.SHARE):
            raise ProgramError(path=path, hint=f"{command!r} cannot hold a packet: CMD is needed")
        for buffer in (command, *buffers):
            self.device._check_buffer(buffer)
        handles = [buffer.handle for buffer in buffers]
        if len(set(handles)) != len(handles):
            raise ProgramError(path=path, hint="a buffer is named twice (the driver: EALREADY)")
        if not handles and self.device.quirks.needs_arguments:
            raise ProgramError(path=path, hint="this driver takes no command without a buffer")
        if len(handles) > MAX_ARGUMENTS:
            raise ProgramError(
                path=path, hint=f"{len(handles)} buffers: the most is {MAX_ARGUMENTS}"
            )
        return Submission(command).send(self, handles)

    def wait(self, seq: int, timeout: float | None = None) -> None:
        """Return once command ``seq`` and all before it are done, well or not: look at its packet.

        WaitTimeout after ``timeout`` seconds (None: when it never is). For number 0 the core waits
        for all commands that were submitted so far. ValueError for a number that is none, and for
        a timeout that is negative or NaN.
        """
        if not 0 <= seq < 1 << 64:
            raise ValueError(f"command {seq}: numbers have 64 bits")
        with self._lock:
            self._check_open()
            self._waiting += 1
            wait = self._idle_waits.pop() if self._idle_waits else TimelineWait(self)
        try:
            wait.wait(seq, timeout)
        finally:
            with self._lock:
                self._waiting -= 1
                self._idle_waits.append(wait)
                last = self._closed and not self._waiting
            if last and not self.device._closed:
                self._drop_timeline()

    def _drop_timeline(self) -> None:
        """It is ours, not the context's; not before the last wait, or the next context's timeline
        could take its handle while it is asked for."""
        drm_abi.DRM_IOCTL_SYNCOBJ_DESTROY(
            self.device.kernel, self.device._file.fd, handle=self.syncobj
        )

    def reached(self) -> int:
        """The number of the newest command before which all are done, 0 also when none is."""
        self._check_open()
        handle, point = ctypes.c_uint32(self.syncobj), ctypes.c_uint64()
        self.device.call(
            drm_abi.DRM_IOCTL_SYNCOBJ_QUERY,
            handles=ctypes.addressof(handle),
            points=ctypes.addressof(point),
            count_handles=1,
        )
        return point.value

    def close(self) -> None:
        """End it. Idempotent. The driver waits two seconds for what runs, then aborts it."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            waiting = self._waiting
        device = self.device
        device._contexts.discard(self)
        try:
            if not waiting:
                self._drop_timeline()
        finally:
            try:
                abi.DRM_IOCTL_AMDXDNA_DESTROY_HWCTX(
                    device.kernel, device._file.fd, handle=self.handle
                )
            except BaseException:
                # It may still run, and read its units' images.
                device.quarantine += self.units
                raise
        with contextlib.ExitStack() as stack:
            for buffer in self.units:
                stack.callback(buffer.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warnings.warn(f"{self!r} was never closed", ResourceWarning, 2, source=self)
            with contextlib.suppress(Exception):
                self.close()


class Submission:
    """The request that submits one packet, built once for as often as it is sent.

    Unlike ``HwContext.submit`` it checks nothing. Synchronization: one thread at a time.
    """

    def __init__(self, command: AmdxdnaBuffer) -> None:
        self._device = command.device
        self._request = abi.amdxdna_drm_exec_cmd(
            type=abi.AMDXDNA_CMD_SUBMIT_EXEC_BUF, cmd_handles=command.handle, cmd_count=1
        )
        self._handles: list[int] = []
        self._array: ctypes.Array[ctypes.c_uint32] | None = None

    def send(self, context: HwContext, handles: list[int]) -> int:
        """Queue it, with the handles of what it uses, each once; its sequence number."""
        request = self._request
        if handles != self._handles:
            self._array = (ctypes.c_uint32 * len(handles))(*handles)
            self._handles = handles
            request.args = ctypes.addressof(self._array)
            request.arg_count = len(handles)
        request.hwctx = context.handle
        self._device.call(abi.DRM_IOCTL_AMDXDNA_EXEC_CMD, request)
        return int(request.seq)


class TimelineWait:
    """The request that waits for commands of a context, built once. One thread at a time."""

    def __init__(self, context: HwContext) -> None:
        self._device = context.device
        self._handle = ctypes.c_uint32(context.syncobj)
        self._point = ctypes.c_uint64()
        self._request = drm_abi.drm_syncobj_timeline_wait(
            handles=ctypes.addressof(self._handle),
            points=ctypes.addressof(self._point),
            count_handles=1,
            flags=drm_abi.DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT,
        )

    def wait(self, seq: int, timeout: float | None) -> None:
        """See HwContext.wait."""
        absolute = _FOR_EVER
        if timeout is not None and check_timeout(timeout) < _FOR_EVER // 10**9:
            now = self._device.kernel.monotonic_ns()
            absolute = min(now + int(timeout * 1e9), absolute)
        self._point.value = seq
        self._request.timeout_nsec = absolute
        self._device.call(drm_abi.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT, self._request)


_FOR_EVER = (1 << 63) - 1


def check_timeout(timeout: float) -> float:
    """``timeout``, which may be infinite. ValueError when it is negative or no number."""
    if not timeout >= 0:
        raise ValueError(f"a timeout of {timeout} s")
    return timeout


@dataclass(frozen=True, slots=True)
class Quirks:
    """How an older driver differs, by the version that DRM_IOCTL_VERSION gives.

    Versions up to 0.0 (Linux 6.14 to 6.17) take no command without argument buffers; 1.x is the
    driver that AMD builds out of tree.
    """

    needs_arguments: bool
    has_get_array: bool

    @classmethod
    def of(cls, version: tuple[int, int]) -> Self:
        return cls(needs_arguments=version < (0, 1), has_get_array=version >= (0, 1))


class AmdxdnaDevice(DrmDevice):
    """An open XDNA node. ``heap_size``: bytes of heap at the start, a multiple of 64 MiB.

    ``columns`` and ``core_rows`` are the array's; ``heap_max`` what this NPU can have.
    """

    driver: ClassVar[str] = "amdxdna_accel_driver"

    def __init__(
        self,
        path: str,
        kernel: Kernel | None = None,
        *,
        heap_size: int = HEAP_CHUNK,
    ) -> None:
        if operator.index(heap_size) <= 0 or heap_size % HEAP_CHUNK:
            raise ValueError(f"a heap of {heap_size} bytes: it is a multiple of {HEAP_CHUNK}")
        self._contexts: weakref.WeakSet[HwContext] = weakref.WeakSet()
        self.dependents: weakref.WeakSet[Any] = weakref.WeakSet()
        """What is built on the device and must be closed before it."""
        self.quarantine: list[Any] = []
        """What commands that could not be ended may still use; closed with the device."""
        self._heap: list[AmdxdnaBuffer] = []
        self._places: HeapPlaces | None = None
        super().__init__(kernel or LinuxKernel(), path)
        self.quirks = Quirks.of((self.version.major, self.version.minor))
        try:
            self.metadata = self._info(
                abi.DRM_AMDXDNA_QUERY_AIE_METADATA, abi.amdxdna_drm_query_aie_metadata
            )
            self.columns = int(self.metadata.cols)
            self.core_rows = int(self.metadata.core.row_count)
            # XDNA1 has a heap of one piece and five columns, XDNA2 eight of each.
            self.heap_max = HEAP_CHUNK if self.columns <= 5 else 8 * HEAP_CHUNK
            self._places = HeapPlaces(self.kernel, self.path, self.heap_max)
            self._add_heap(heap_size)
        except BaseException:
            self.close()
            raise

    def explain(self, request: Ioctl, code: int) -> str | None:
        return _HINTS.get((request, code))

    # The heap.

    def _add_heap(self, size: int) -> None:
        """A further piece of heap, mapped behind those there are."""
        places = self._places
        assert places is not None
        answer = self.call(abi.DRM_IOCTL_AMDXDNA_CREATE_BO, size=size, type=abi.AMDXDNA_BO_DEV_HEAP)
        piece = AmdxdnaBuffer(self, answer.handle, size, 0, BoKind.HEAP)
        try:
            with places.aimed(size) as place:
                address = piece.map().address
            if address != place:
                raise places.misplaced(address, place)
            info = self.call(abi.DRM_IOCTL_AMDXDNA_GET_BO_INFO, handle=piece.handle)
        except BaseException:
            piece.close()
            raise
        piece.dma_address = int(info.xdna_addr)
        self._heap.append(piece)
        places.took(address, size)

    @property
    def heap_size(self) -> int:
        """Bytes of heap that are there."""
        return sum(piece.size for piece in self._heap)

    def grow_heap(self) -> None:
        """Add 64 MiB to the heap. NpuError (ENOSPC) when this NPU can have no more."""
        self._check_open()
        if self.heap_size + HEAP_CHUNK > self.heap_max:
            raise NpuError(
                errno.ENOSPC,
                path=self.path,
                hint=f"the heap has {self.heap_size >> 20} of {self.heap_max >> 20} MiB",
            )
        self._add_heap(HEAP_CHUNK)

    def _heap_at(self, address: int) -> tuple[AmdxdnaBuffer, int]:
        """The piece of heap at a device address, and where in it that is."""
        for piece in self._heap:
            if 0 <= address - piece.dma_address < piece.size:
                return piece, address - piece.dma_address
        raise ValueError(f"no piece of heap holds {address:#x}")

    def _heap_piece(self, address: int, size: int) -> tuple[AmdxdnaBuffer, int]:
        """The same for a slice; ValueError when it crosses pieces."""
        piece, offset = self._heap_at(address)
        if offset + size > piece.size:
            raise ValueError("the slice crosses two pieces of heap: no array shows it, write() can")
        return piece, offset

    # Buffers.

    def alloc(self, size: int, kind: BoKind = BoKind.SHARE) -> AmdxdnaBuffer:
        """A buffer of ``size`` bytes, rounded up to pages, mapped and with its address.

        The heap grows for DEV buffers as far as the NPU allows. ValueError for no size; use
        ``heap_size`` of the class and ``grow_heap`` for the heap.
        """
        kind = BoKind(kind)
        footprint(size, kind)
        if kind is BoKind.HEAP:
            raise ValueError("the device makes its heap itself; see grow_heap()")
        if kind is BoKind.DEV and size > self.heap_max:
            raise ValueError(f"{size} bytes: this NPU's heap has at most {self.heap_max}")
        answer = self._create(size, kind)
        buffer = AmdxdnaBuffer(self, answer.handle, _page_round(size), 0, kind)
        try:
            if kind is not BoKind.DEV:
                # Until then a buffer that goes by the caller's own address has none.
                buffer.map()
            info = self.call(abi.DRM_IOCTL_AMDXDNA_GET_BO_INFO, handle=buffer.handle)
            if info.xdna_addr == abi.AMDXDNA_INVALID_ADDR:
                raise NpuError(
                    errno.EFAULT, path=self.path, hint=f"{buffer!r} has no device address"
                )
            buffer.dma_address = int(info.xdna_addr)
        except BaseException:
            buffer.close()
            raise
        return buffer

    def _create(self, size: int, kind: BoKind) -> Any:
        while True:
            try:
                return self.call(abi.DRM_IOCTL_AMDXDNA_CREATE_BO, size=size, type=int(kind))
            except NpuError as error:
                # The heap has no room for the slice.
                full = kind is BoKind.DEV and error.errno in (errno.EAGAIN, errno.ENOSPC)
                if not full or self.heap_size + HEAP_CHUNK > self.heap_max:
                    raise
                self.grow_heap()

    # Contexts.

    def context(
        self,
        columns: int,
        units: Sequence[tuple[bytes | memoryview, int]] = (),
        *,
        priority: Priority = Priority.NORMAL,
        ops_per_cycle: int = 0,
        gops: int = 0,
        fps: int = 0,
        latency: int = 0,
        frame_exec_time: int = 0,
        dma_bandwidth: int = 0,
    ) -> HwContext:
        """A hardware context of ``columns`` columns, configured with ``units`` if any are given.

        Contexts are few (``resources``) and dear to make: DeviceBusy when all are taken.
        ProgramError for more columns than the NPU has, ValueError for a wish of over 32 bits.
        """
        if not 1 <= operator.index(columns) <= self.columns:
            raise ProgramError(
                path=self.path, hint=f"{columns} columns: this NPU has {self.columns}"
            )
        wishes = {
            "gops": gops,
            "fps": fps,
            "dma_bandwidth": dma_bandwidth,
            "latency": latency,
            "frame_exec_time": frame_exec_time,
        }
        for name, number in {**wishes, "ops_per_cycle": ops_per_cycle}.items():
            if not 0 <= operator.index(number) < 1 << 32:
                raise ValueError(f"{name}={number}: it has 32 bits")
        qos = abi.amdxdna_qos_info(**wishes, priority=int(Priority(priority)))
        try:
            answer = self.call(
                abi.DRM_IOCTL_AMDXDNA_CREATE_HWCTX,
                qos_p=ctypes.addressof(qos),
                max_opc=ops_per_cycle,
                num_tiles=columns * self.core_rows,
            )
        except NpuError as error:
            raise self._no_context(error) from None
        context = HwContext(self, columns, int(answer.handle), int(answer.syncobj_handle))
        if units:
            try:
                context.configure(units)
            except BaseException:
                context.close()
                raise
        return context

    def _no_context(self, error: NpuError) -> NpuError:
        """EINVAL is also said when all contexts are taken, ENODEV when too few columns are free."""
        if error.errno == errno.ENODEV:
            return DeviceBusy(
                errno.EBUSY,
                path=self.path,
                request=error.request,
                hint="not enough columns of the array are free together",
            )
        if error.errno == errno.EINVAL:
            resources = None
            with contextlib.suppress(NpuError):
                resources = self.resources()
            if resources is not None and resources.contexts >= resources.contexts_max:
                return DeviceBusy(
                    errno.EBUSY,
                    path=self.path,
                    request=error.request,
                    hint=f"all {resources.contexts_max} hardware contexts of this NPU are taken, "
                    "counting those of other processes",
                )
        return error

    def contexts(self) -> list[HwContext]:
        """Those that are open."""
        return sorted(self._contexts, key=lambda context: context.handle)

    def close(self, strict: bool = False) -> None:
        # Packets are mapped for their programs, which close them.
        views = (b.views for b in self._children if getattr(b, "kind", None) is not BoKind.CMD)
        held = strict and (self._exports or any(views))
        if not self._closed and not held:
            self._end_contexts()
        super().close(strict)
        if self._closed and self._places is not None:
            self._places.release()

    def _end_contexts(self) -> None:
        with contextlib.ExitStack() as stack:
            # Without its contexts the NPU uses nothing more.
            stack.callback(self._let_go)
            for context in list(self._contexts):
                stack.callback(context.close)
            for dependent in list(self.dependents):
                stack.callback(dependent.close)

    def _let_go(self) -> None:
        for child in list(self._children):
            assert isinstance(child, AmdxdnaBuffer)
            child._holds = 0
        while self.quarantine:
            self.quarantine.pop().close()

    # Questions.

    def _info(self, param: int, cls: Any) -> Any:
        """One GET_INFO structure. NpuError (EOPNOTSUPP) where the driver does not know it."""
        answer = cls()
        self.call(
            abi.DRM_IOCTL_AMDXDNA_GET_INFO,
            param=param,
            buffer_size=ctypes.sizeof(cls),
            buffer=ctypes.addressof(answer),
        )
        return answer

    def _maybe(self, param: int, cls: Any) -> Any:
        """None where this driver or NPU does not know the question."""
        try:
            return self._info(param, cls)
        except NpuError as error:
            if error.errno == errno.EOPNOTSUPP:
                return None
            raise

    def _info_bytes(self, param: int, size: int) -> bytes | None:
        room = ctypes.create_string_buffer(size)
        try:
            answer = self.call(
                abi.DRM_IOCTL_AMDXDNA_GET_INFO,
                param=param,
                buffer_size=size,
                buffer=ctypes.addressof(room),
            )
        except NpuError as error:
            if error.errno == errno.EOPNOTSUPP:
                return None
            raise
        return room.raw[: answer.buffer_size]

    def firmware_version(self) -> tuple[int, int, int, int] | None:
        answer = self._maybe(
            abi.DRM_AMDXDNA_QUERY_FIRMWARE_VERSION, abi.amdxdna_drm_query_firmware_version
        )
        return answer and (answer.major, answer.minor, answer.patch, answer.build)

    def clocks(self) -> dict[str, int] | None:
        """Name -> MHz."""
        answer = self._maybe(
            abi.DRM_AMDXDNA_QUERY_CLOCK_METADATA, abi.amdxdna_drm_query_clock_metadata
        )
        return answer and {
            _text(clock.name): int(clock.freq_mhz)
            for clock in (answer.mp_npu_clock, answer.h_clock)
        }

    def sensors(self) -> list[Sensor] | None:
        """Total power, and the utilization of each column; None where the driver has no sensors.

        Of power the driver says ``input`` 500, ``unitm`` -3 and "mW": 500 mW, which is 500 * 10^-3
        W. So 10^``unitm`` leads to the unit without its prefix.
        """
        cls = abi.amdxdna_drm_query_sensor
        raw = self._info_bytes(abi.DRM_AMDXDNA_QUERY_SENSORS, 32 * ctypes.sizeof(cls))
        if raw is None:
            return None
        rows = (cls * (len(raw) // ctypes.sizeof(cls))).from_buffer_copy(raw)
        return [_sensor(row) for row in rows if row.input != _NO_READING]

    def resources(self) -> Resources | None:
        """What the NPU has, and what all processes take of it. None before Linux 6.19."""
        answer = self._maybe(abi.DRM_AMDXDNA_QUERY_RESOURCE_INFO, abi.amdxdna_drm_get_resource_info)
        return answer and Resources(
            answer.npu_clk_max,
            answer.npu_tops_max,
            answer.npu_task_max,
            answer.npu_tops_curr,
            answer.npu_task_curr,
        )

    @property
    def contexts_max(self) -> int:
        """Hardware contexts of this NPU, for all processes together."""
        resources = self.resources()
        # Before Linux 6.19 the driver does not tell; XDNA1 has 6, XDNA2 16.
        return resources.contexts_max if resources else 6 if self.columns <= 5 else 16

    def telemetry(self, size: int = 4096) -> bytes | None:
        """``size`` bytes: a header, a map of all contexts, and what the firmware tells.

        ValueError for a size that leaves the firmware nothing, or more than 4 MiB: the driver says
        EINVAL.
        """
        header = ctypes.sizeof(abi.amdxdna_drm_query_telemetry_header) + 4 * self.contexts_max
        if not 0 < size - header <= TELEMETRY_MAX:
            raise ValueError(
                f"{size} bytes of telemetry: header and map take {header}, and the firmware's part "
                f"is 1 to {TELEMETRY_MAX}"
            )
        return self._info_bytes(abi.DRM_AMDXDNA_QUERY_TELEMETRY, size)

    @property
    def power_mode(self) -> PowerMode:
        answer = self._info(abi.DRM_AMDXDNA_GET_POWER_MODE, abi.amdxdna_drm_get_power_mode)
        return PowerMode(answer.power_mode)

    def set_power_mode(self, mode: PowerMode) -> None:
        """For the whole NPU; NpuError (EACCES) without CAP_SYS_ADMIN."""
        value = abi.amdxdna_drm_set_power_mode(power_mode=int(PowerMode(mode)))
        self.call(
            abi.DRM_IOCTL_AMDXDNA_SET_STATE,
            param=abi.DRM_AMDXDNA_SET_POWER_MODE,
            buffer_size=ctypes.sizeof(value),
            buffer=ctypes.addressof(value),
        )

    def context_status(self) -> list[abi.amdxdna_drm_hwctx_entry]:
        """All contexts of the NPU that this process may see: submissions, errors, health."""
        if not self.quirks.has_get_array:
            return []
        count, cls = 256, abi.amdxdna_drm_hwctx_entry
        rows = (cls * count)()
        answer = self.call(
            abi.DRM_IOCTL_AMDXDNA_GET_ARRAY,
            param=abi.DRM_AMDXDNA_HW_CONTEXT_ALL,
            element_size=ctypes.sizeof(cls),
            num_element=count,
            buffer=ctypes.addressof(rows),
        )
        # An older driver has shorter rows, and says so.
        raw, step = bytes(rows), answer.element_size
        return [
            cls.from_buffer_copy(raw[i * step : (i + 1) * step].ljust(ctypes.sizeof(cls), b"\0"))
            for i in range(answer.num_element)
        ]

    def memory_usage(self, pid: int) -> tuple[int, int, int] | None:
        """Bytes of all buffers, of internal ones and of the heap's slices of a process."""
        if not 0 < operator.index(pid) < 1 << 63:
            raise ValueError(f"process {pid}")
        usage = abi.amdxdna_drm_bo_usage(pid=pid)
        try:
            self.call(
                abi.DRM_IOCTL_AMDXDNA_GET_ARRAY,
                param=abi.DRM_AMDXDNA_BO_USAGE,
                element_size=ctypes.sizeof(usage),
                num_element=1,
                buffer=ctypes.addressof(usage),
            )
        except NpuError as error:
            if error.errno == errno.EOPNOTSUPP:
                return None
            raise
        return usage.total_usage, usage.internal_usage, usage.heap_usage


def _reserve(kernel: Kernel, size: int) -> Mapping:
    """Addresses without memory.

    Shared, as a device's memory is: the kernel puts private anonymous memory elsewhere, where it
    can have huge pages.
    """
    flags = _fast.MAP_SHARED | _fast.MAP_ANONYMOUS | _fast.MAP_NORESERVE
    return kernel.mmap(-1, size, 0, _fast.PROT_NONE, flags)


def _page_round(size: int) -> int:
    return -(-size // _fast.PAGE_SIZE) * _fast.PAGE_SIZE


def footprint(size: int, kind: BoKind) -> int:
    """Bytes that a buffer takes: pages, or of the heap all that no other slice can have.

    ValueError for a size below 1, TypeError for one that is no integer.
    """
    if operator.index(size) < 1:
        raise ValueError(f"a buffer of {size} bytes")
    unit = max(_fast.PAGE_SIZE, SLICE_ALIGN) if kind is BoKind.DEV else _fast.PAGE_SIZE
    return -(-size // unit) * unit


_NO_READING = (1 << 32) - 1
"""A sensor's input where the platform does not tell the driver."""
_PREFIXES = {-6: "u", -3: "m", 3: "k", 6: "M"}


def _sensor(row: abi.amdxdna_drm_query_sensor) -> Sensor:
    units = _text(row.units)
    prefix = _PREFIXES.get(row.unitm)
    if prefix is not None and len(units) > 1:
        units = units.removeprefix(prefix)
    return Sensor(_text(row.label), row.input * 10.0**row.unitm, units)


def _text(raw: ctypes.Array[Any]) -> str:
    return bytes(raw).partition(b"\0")[0].decode("utf-8", "replace")


_HINTS = {
    (abi.DRM_IOCTL_AMDXDNA_CREATE_BO, errno.EAGAIN): "the heap has no room left, or a piece of it "
    "is not mapped",
    (abi.DRM_IOCTL_AMDXDNA_CREATE_BO, errno.ENOSPC): "the heap is as large as this NPU allows",
    (abi.DRM_IOCTL_AMDXDNA_CREATE_BO, errno.EINVAL): "a size of 0, flags, or a heap that is no "
    "multiple of 64 MiB (drivers that know only CMA memory refuse every heap)",
    (abi.DRM_IOCTL_AMDXDNA_CREATE_BO, errno.EOPNOTSUPP): "this driver has one heap, which cannot "
    "grow",
    (abi.DRM_IOCTL_AMDXDNA_CREATE_BO, errno.ENOMEM): "no memory, or RLIMIT_MEMLOCK is too low",
    (abi.DRM_IOCTL_AMDXDNA_CREATE_BO, errno.EPERM): "locking memory is forbidden here",
    (abi.DRM_IOCTL_AMDXDNA_CREATE_HWCTX, errno.ENOENT): "there is no heap",
    (abi.DRM_IOCTL_AMDXDNA_CREATE_HWCTX, errno.EAGAIN): "the heap is not mapped, or has no room "
    "for the 16 KiB that a context takes",
    (abi.DRM_IOCTL_AMDXDNA_CREATE_HWCTX, errno.EINVAL): "more columns than there are, a heap that "
    "is not mapped at a multiple of 64 MiB, or no context left (dmesg: status 0x2000003)",
    (abi.DRM_IOCTL_AMDXDNA_CREATE_HWCTX, errno.ENODEV): "no columns are free, and no context of "
    "this width can share its own",
    (abi.DRM_IOCTL_AMDXDNA_CONFIG_HWCTX, errno.ETIME): "the firmware did not answer: too many "
    "contexts live, or a PDI that it cannot load",
    (abi.DRM_IOCTL_AMDXDNA_CONFIG_HWCTX, errno.E2BIG): "the list of compute units is over 4 KiB",
    (abi.DRM_IOCTL_AMDXDNA_EXEC_CMD, errno.EALREADY): "a buffer is named twice",
    (abi.DRM_IOCTL_AMDXDNA_EXEC_CMD, errno.ENOENT): "a buffer is not there any more",
    (abi.DRM_IOCTL_AMDXDNA_EXEC_CMD, errno.EINVAL): "no such context, or a command buffer that is "
    "none",
    (abi.DRM_IOCTL_AMDXDNA_SET_STATE, errno.EACCES): "only root may change the NPU's state",
    (abi.DRM_IOCTL_AMDXDNA_GET_INFO, errno.EOPNOTSUPP): "this driver does not know the question",
    (drm_abi.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT, errno.EINVAL): "no such command was submitted",
    (drm_abi.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT, errno.ETIME): "the command is not done; the driver "
    "resets a context that makes no progress for two seconds",
    (
        drm_abi.DRM_IOCTL_PRIME_HANDLE_TO_FD,
        errno.EOPNOTSUPP,
    ): "a slice of the heap cannot be shared",
}

__all__ = [
    "CMD_BYTES",
    "HEAP_CHUNK",
    "AmdxdnaBuffer",
    "AmdxdnaDevice",
    "BoKind",
    "HeapPlaces",
    "HwContext",
    "PowerMode",
    "Priority",
    "Quirks",
    "Resources",
    "Sensor",
    "Submission",
    "TimelineWait",
    "check_timeout",
    "footprint",
]
