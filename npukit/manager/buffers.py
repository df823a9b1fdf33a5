# SPDX-License-Identifier: MIT
"""Buffers that the service lends to a client: what a client asks, and what it holds.

    client = BufferClient(session)
    client.alloc_async([
        AllocRequest(device=0, type=BufferType.MODEL_WEIGHTS, size=1 << 20, on_alloc=ready)
    ])

The service can take a buffer back at any time that it is not mapped (``on_preempt``), and as a last
resort when it is; see npukit.manager.allocator for its side and docs/buffers.md for the rules.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, Protocol

from npukit import _fast
from npukit.ioctl import Kernel, LinuxKernel, NpuError
from npukit.ioctl.kernel import PAGE_SIZE
from npukit.manager.backends import PROT_READ, PROT_WRITE, FileSegment, is_whole
from npukit.manager.types import MOST, BufferPriority, brief

_log = logging.getLogger(__name__)

USUAL = BufferPriority(500)

LARGEST = MOST + 1 - PAGE_SIZE
"""The most bytes that a buffer may be asked to have: whole pages, as many as a file can."""


class BufferType(IntEnum):
    """What a buffer is for. CACHE and AUXILIARY go before the others when memory is short."""

    UNKNOWN = 0
    MODEL_EXECUTABLE = 1
    MODEL_WEIGHTS = 2
    CACHE = 3
    AUXILIARY = 4


class BufferState(Enum):
    """Where a buffer stands, as its client knows it."""

    ALLOCATING = "Allocating"
    ALLOCATED = "Allocated"
    LOADING = "Loading"
    GONE = "Gone"
    """Preempted or freed."""


@dataclass(frozen=True, slots=True)
class BufferRequest:
    """What the service is told of a request; ``request_id`` is the client's own number for it."""

    request_id: int
    device: int
    type: BufferType
    size: int
    priority: BufferPriority = USUAL
    protection: int = PROT_READ
    segment: FileSegment | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """What the service lends: a descriptor, which is the receiver's from now on."""

    fd: int
    size: int
    """Bytes, whole pages."""
    counts_maps: bool
    """The kernel counts mappings, so the service need not be told of them."""


class Service(Protocol):
    """The service as one client sees it (npukit.manager.allocator.Session, or a way to one).

    Everything is refused with NpuError: EINVAL for unknown ids. Answers come through a Receiver.
    """

    def is_supported(self, pairs: Sequence[tuple[int, BufferType]]) -> list[bool | NpuError]: ...
    def get_buffers(self, requests: Sequence[BufferRequest]) -> None: ...
    def put_buffers(self, request_ids: Sequence[int]) -> None: ...
    def load(self, request_id: int, segment: FileSegment) -> None: ...
    def set_priority(self, request_id: int, priority: BufferPriority) -> None: ...
    def mapped(self, request_id: int) -> None:
        """The client is about to map; ENOENT when the buffer is taken back."""

    def unmapped(self, request_id: int) -> None:
        """A mapping is gone. Never raises, takes no lock: a garbage collector may call it."""


class Receiver(Protocol):
    """What the service calls; any thread, one after another."""

    def on_get_buffer(self, request_id: int, grant: Grant | None, code: int) -> None: ...
    def on_load(self, request_id: int, code: int, grant: Grant | None) -> None:
        """``grant`` replaces the one before, whose descriptor is empty now."""

    def on_preempted(self, request_id: int) -> None: ...


OnAlloc = Callable[[int, "Buffer | None", Any], object]
"""(errno or 0, the buffer or None, the request's cookie)."""
OnPreempt = Callable[["Buffer | None", Any], object]
"""(the buffer, None when it was not there yet; the request's cookie)."""
OnLoad = Callable[[int, "Buffer"], object]
"""(errno or 0, the buffer)."""


@dataclass
class AllocRequest:
    """One buffer to ask for; alloc_async() takes a snapshot, so it may be changed and used again.

    ``size`` in bytes. ``protection`` bounds what can be mapped (PROT_READ, PROT_WRITE).
    ``segment`` is loaded before anybody sees the buffer. ``cookie`` comes back with each callback.
    """

    device: int = -1
    type: BufferType = BufferType.UNKNOWN
    size: int = 0
    priority: BufferPriority = USUAL
    protection: int = PROT_READ
    segment: FileSegment | None = None
    cookie: Any = None
    on_alloc: OnAlloc | None = None
    on_preempt: OnPreempt | None = None

    def problem(self) -> str | None:
        """Why the service need not even be asked; None when there is no reason."""
        if not is_whole(self.device):
            return f"device {brief(self.device)}"
        if not isinstance(self.type, BufferType) or self.type is BufferType.UNKNOWN:
            return f"buffer type {brief(self.type)}"
        if not is_whole(self.size, 1, LARGEST):
            return f"a buffer of {brief(self.size)} bytes"
        if not is_whole(self.protection, 0, PROT_READ | PROT_WRITE):
            return f"protection {brief(self.protection)}"
        if self.segment is None:
            return None
        if not isinstance(self.segment, FileSegment):
            return f"{brief(self.segment)} is no FileSegment"
        return self.segment.problem()


class Buffer:
    """A buffer of the client, made by BufferClient.alloc_async(). It must be freed, Gone or not."""

    def __init__(self, client: BufferClient, request_id: int, request: AllocRequest) -> None:
        self.client = client
        self.request_id = request_id
        self.request = request
        self.state = BufferState.ALLOCATING
        self.size = request.size
        """Bytes; whole pages once it is allocated."""
        self._fd = -1
        self._counts_maps = True
        self._on_load: OnLoad | None = None
        self._mappings: weakref.WeakKeyDictionary[_fast.Mapping, Any] = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        kind = f"{self.request.type.name} of {self.size} bytes"
        return f"<Buffer {self.request_id}: {kind} ({self.state.value})>"

    def fileno(self) -> int:
        """Its descriptor, for a driver to import; -1 while there is none."""
        return self._fd

    def map(self, prot: int = PROT_READ) -> _fast.Mapping:
        """Map all of it. OSError: EACCES more than was asked for, EBUSY loading, ENOENT gone.

        While it is mapped the service does not take it back, unless it has lost patience.
        """
        with self.client._lock:
            if self.state is BufferState.GONE:
                raise NpuError(errno.ENOENT, hint=f"{self!r} was taken back")
            if self.state is not BufferState.ALLOCATED:
                raise NpuError(errno.EBUSY, hint=f"{self!r}")
            if prot & ~self.request.protection:
                raise NpuError(errno.EACCES, hint=f"{self!r} has protection {prot:#x} not")
            return self.client._map(self, prot)

    def unmap(self, mapping: _fast.Mapping) -> None:
        """Give a mapping back; it goes with the last view of it."""
        self.client.kernel.munmap(mapping)
        if mapping.views == 0:
            finalizer = self._mappings.pop(mapping, None)
            if finalizer is not None:
                finalizer()

    def load_async(self, segment: FileSegment, on_load: OnLoad) -> None:
        """Have the service fill it from a file; what follows outside the segment stays.

        A buffer that is not Allocated gets EINVAL at once. It survives a load that fails.
        """
        self.client._load(self, segment, on_load)

    def set_priority(self, priority: BufferPriority) -> None:
        """How much the client needs it: 0 most, 1000 least. NpuError."""
        self.client.service.set_priority(self.request_id, priority)

    def free(self) -> None:
        """Give it back. Idempotent. Mappings live on, and their memory with them."""
        self.client._free(self)


class BufferClient:
    """The buffers of one client.

    ``service`` is its session; the service must be told to call this object's Receiver methods.
    Callbacks are called in the thread that brings the news, with no lock held.

    Synchronization: any number of threads.
    """

    def __init__(self, service: Service | None = None, kernel: Kernel | None = None) -> None:
        self.kernel = kernel or LinuxKernel()
        self._service = service
        self._lock = threading.RLock()
        self._ids = itertools.count(1)
        self._buffers: dict[int, Buffer] = {}

    @property
    def service(self) -> Service:
        if self._service is None:
            raise NpuError(errno.ENOTCONN, hint="this client has no service yet: connect(session)")
        return self._service

    def connect(self, service: Service) -> None:
        """Set the session, where that needs the client first."""
        self._service = service

    def is_supported(self, pairs: Sequence[tuple[int, BufferType]]) -> list[bool | NpuError]:
        """For each (device, type) whether the service has memory for it; EINVAL for nonsense."""
        return self.service.is_supported(pairs)

    def alloc_async(self, requests: Sequence[AllocRequest]) -> None:
        """Ask for buffers; each request's ``on_alloc`` tells how it went.

        What is wrong in itself, in type or range, gets EINVAL before this returns. TypeError
        without ``on_alloc``.
        """
        for request in requests:
            if request.on_alloc is None:
                raise TypeError(f"{request}: without on_alloc nobody would hear of the buffer")
        wanted, refused = [], []
        for request in map(dataclasses.replace, requests):
            problem = request.problem()
            if problem is not None:
                _log.info("refused at once: %s", problem)
                refused.append(request)
                continue
            buffer = Buffer(self, next(self._ids), request)
            wanted.append(buffer)
        with self._lock:
            self._buffers.update((buffer.request_id, buffer) for buffer in wanted)
        for request in refused:
            _call(request.on_alloc, errno.EINVAL, None, request.cookie)
        if wanted:
            try:
                self.service.get_buffers([_wire(buffer) for buffer in wanted])
            except NpuError as error:
                for buffer in wanted:
                    self.on_get_buffer(buffer.request_id, None, error.errno or errno.EIO)

    def buffers(self) -> list[Buffer]:
        """Those that are not freed, oldest first."""
        with self._lock:
            return list(self._buffers.values())

    def close(self) -> None:
        """Free all. Every buffer is freed even when the service refuses; its first error."""
        with contextlib.ExitStack() as stack:
            for buffer in self.buffers():
                stack.callback(buffer.free)

    # What the service calls.

    def on_get_buffer(self, request_id: int, grant: Grant | None, code: int) -> None:
        with self._lock:
            buffer = self._buffers.get(request_id)
            if buffer is None or buffer.state is not BufferState.ALLOCATING:
                _log.warning("an answer for request %d, which waits for none", request_id)
                self._close(grant)
                return
            if code == 0 and grant is None:
                code = errno.ENOSYS
            if code or grant is None:
                self._close(grant)
                buffer.state = BufferState.GONE
                del self._buffers[request_id]
            else:
                self._take(buffer, grant)
        _call(buffer.request.on_alloc, code, None if code else buffer, buffer.request.cookie)

    def on_load(self, request_id: int, code: int, grant: Grant | None) -> None:
        with self._lock:
            buffer = self._buffers.get(request_id)
            if buffer is None or buffer.state is not BufferState.LOADING:
                _log.warning("request %d is loaded, which waits for nothing", request_id)
                self._close(grant)
                return
            on_load, buffer._on_load = buffer._on_load, None
            buffer.state = BufferState.ALLOCATED
            if grant is not None:
                self._drop(buffer)
                self._take(buffer, grant)
        _call(on_load, code, buffer)

    def on_preempted(self, request_id: int) -> None:
        with self._lock:
            buffer = self._buffers.get(request_id)
            if buffer is None or buffer.state is BufferState.GONE:
                _log.info("request %d is taken back, which is gone", request_id)
                return
            state, buffer.state = buffer.state, BufferState.GONE
            on_load, buffer._on_load = buffer._on_load, None
            self._drop(buffer)
            if state is BufferState.ALLOCATING:
                del self._buffers[request_id]
        request = buffer.request
        if state is BufferState.ALLOCATING:
            _call(request.on_alloc, errno.ECANCELED, None, request.cookie)
        if state is BufferState.LOADING:
            _call(on_load, errno.ECANCELED, buffer)
        seen = None if state is BufferState.ALLOCATING else buffer
        _call(request.on_preempt, seen, request.cookie)

    # What buffers call.

    def _take(self, buffer: Buffer, grant: Grant) -> None:
        buffer.state = BufferState.ALLOCATED
        buffer.size, buffer._fd, buffer._counts_maps = grant.size, grant.fd, grant.counts_maps

    def _close(self, grant: Grant | None) -> None:
        if grant is not None:
            self.kernel.close(grant.fd)

    def _drop(self, buffer: Buffer) -> None:
        fd, buffer._fd = buffer._fd, -1
        if fd >= 0:
            self.kernel.close(fd)

    def _map(self, buffer: Buffer, prot: int) -> _fast.Mapping:
        if buffer._counts_maps:
            return self.kernel.mmap(buffer._fd, buffer.size, prot=prot)
        self.service.mapped(buffer.request_id)
        try:
            # The service may have shrunk the file without a word: touching it would be SIGBUS.
            if self.kernel.fstat(buffer._fd).st_size < buffer.size:
                raise NpuError(errno.ENOENT, hint=f"{buffer!r} was taken back by force")
            mapping = self.kernel.mmap(buffer._fd, buffer.size, prot=prot)
        except BaseException:
            self.service.unmapped(buffer.request_id)
            raise
        finalizer = weakref.finalize(mapping, self.service.unmapped, buffer.request_id)
        finalizer.atexit = False
        buffer._mappings[mapping] = finalizer
        return mapping

    def _load(self, buffer: Buffer, segment: FileSegment, on_load: OnLoad) -> None:
        with self._lock:
            ready = buffer.state is BufferState.ALLOCATED
            if ready:
                buffer.state, buffer._on_load = BufferState.LOADING, on_load
        if not ready:
            _call(on_load, errno.EINVAL, buffer)
            return
        try:
            self.service.load(buffer.request_id, segment)
        except NpuError as error:
            self.on_load(buffer.request_id, error.errno or errno.EIO, None)

    def _free(self, buffer: Buffer) -> None:
        with self._lock:
            if self._buffers.pop(buffer.request_id, None) is None:
                return
            state, buffer.state = buffer.state, BufferState.GONE
            self._drop(buffer)
        if state is not BufferState.GONE:
            self.service.put_buffers([buffer.request_id])


def _wire(buffer: Buffer) -> BufferRequest:
    request = buffer.request
    return BufferRequest(
        buffer.request_id,
        request.device,
        request.type,
        request.size,
        request.priority,
        request.protection,
        request.segment,
    )


def _call(callback: Callable[..., object] | None, *arguments: Any) -> None:
    if callback is not None:
        callback(*arguments)
