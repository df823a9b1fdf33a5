# SPDX-License-Identifier: MIT
"""What the memory that the service lends is made of, and how it is protected and taken back.

A back-end allocates; what it returns is one buffer as the service holds it. docs/buffers.md says
what each of them can promise.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import index
from typing import Protocol

from npukit import _fast
from npukit.devices.dma_buf import DmaBuf
from npukit.devices.dma_heap import DmaHeap
from npukit.devices.udmabuf import Udmabuf
from npukit.devices.wrapfd import Wrap, Wrapfd, read_into
from npukit.ioctl import Kernel, LinuxKernel, NpuError
from npukit.ioctl.kernel import round_to_page
from npukit.manager.types import MOST, brief

PROT_READ, PROT_WRITE = _fast.PROT_READ, _fast.PROT_WRITE
_F_SEAL_FUTURE_WRITE = 0x10
_NAME_BYTES = 31
"""What a dma-buf's name may have."""


def is_whole(value: object, least: int = 0, most: int = MOST) -> bool:
    """Is it a whole number of that range? A client may have sent anything."""
    try:
        return least <= index(value) <= most  # type: ignore[arg-type]
    except TypeError:
        return False


@dataclass(frozen=True, slots=True)
class FileSegment:
    """``length`` bytes of the open file ``fd`` from ``file_offset``, for ``offset`` in a buffer."""

    fd: int
    length: int
    file_offset: int = 0
    offset: int = 0

    def problem(self) -> str | None:
        """Why no file and no buffer could have it; None when there is no reason."""
        if not is_whole(self.fd, -(1 << 31), (1 << 31) - 1):
            return f"{brief(self.fd)} is no file descriptor"
        for name in ("length", "file_offset", "offset"):
            if not is_whole(getattr(self, name)):
                return f"{name} {brief(getattr(self, name))} is not in 0..2**63 - 1"
        if self.file_offset + self.length > MOST:
            return f"{self.length} bytes from {self.file_offset} end beyond 2**63 - 1"
        return None


class Held(Protocol):
    """One buffer, as the service holds it."""

    size: int
    """Bytes, whole pages."""

    @property
    def lost(self) -> bool:
        """The memory is gone: revoked, closed, or lost by an operation that failed half-way."""

    def share(self) -> int:
        """A new descriptor for the client, which can do with it what it may."""

    @property
    def moves(self) -> int:
        """How often the content has moved: descriptors given out before the last are empty."""

    def load(self, segment: FileSegment) -> None:
        """Fill it from a file. NpuError: EINVAL a bad range, EBUSY mapped, or what reading gives.

        The content may have moved, or be lost, whether it fails or not.
        """

    def revoke(self) -> None:
        """Take the memory away; NpuError EBUSY while that is not possible."""

    def force(self) -> bool:
        """Take it away even though it is mapped; False when that is impossible here."""

    def close(self) -> None:
        """Let go of it. Idempotent."""


class Backend(Protocol):
    """Where buffers come from."""

    name: str
    kernel: Kernel
    counts_maps: bool
    """The kernel knows who has a buffer mapped; otherwise clients must say so."""

    def alloc(self, size: int, name: str, prot: int, segment: FileSegment | None = None) -> Held:
        """``size`` bytes, rounded up to pages, loaded and then protected. NpuError, OSError."""

    def close(self) -> None: ...


def _filled(held: Held, segment: FileSegment | None) -> Held:
    """``held`` with the segment loaded; closed when that fails."""
    if segment is not None:
        try:
            held.load(segment)
        except BaseException:
            held.close()
            raise
    return held


# ---- memfd --------------------------------------------------------------------------------------


class MemfdBackend:
    """Files in memory, protected by seals; every Linux has them.

    The pages are filled through a mapping made before the seals, and by the kernel's copy only: a
    client that shrinks the file makes a load fail with EFAULT, and does not stop the service.
    """

    name = "memfd"
    counts_maps = False

    def __init__(self, kernel: Kernel | None = None) -> None:
        self.kernel = kernel or LinuxKernel()

    def alloc(self, size: int, name: str, prot: int, segment: FileSegment | None = None) -> Held:
        held = MemfdHeld(self.kernel, round_to_page(size), name, bool(prot & PROT_WRITE))
        return _filled(held, segment)

    def close(self) -> None:
        pass


class MemfdHeld:
    moves = 0

    def __init__(self, kernel: Kernel, size: int, name: str, writable: bool) -> None:
        self.size = size
        self._kernel = kernel
        self._writable = writable
        self._mapping: _fast.Mapping | None = None
        self._fd = kernel.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            kernel.ftruncate(self._fd, size)
            self._mapping = kernel.mmap(self._fd, size)
            # Not F_SEAL_SHRINK: shrinking is how the memory is taken back. F_SEAL_SEAL keeps a
            # client from adding it.
            seals = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            if not writable:
                seals |= _F_SEAL_FUTURE_WRITE
                # A client of another uid then cannot open the file anew, a client of ours can.
                os.fchmod(self._fd, 0o400)
            kernel.fcntl(self._fd, fcntl.F_ADD_SEALS, seals)
        except BaseException:
            self.close()
            raise

    @property
    def lost(self) -> bool:
        return self._fd < 0

    def share(self) -> int:
        flags = os.O_RDWR if self._writable else os.O_RDONLY
        return self._kernel.open(f"/proc/self/fd/{self._fd}", flags | os.O_CLOEXEC)

    def load(self, segment: FileSegment) -> None:
        assert self._mapping is not None
        _check_range(segment, self.size)
        end = segment.offset + segment.length
        with memoryview(self._mapping)[segment.offset : end] as target:
            read_into(target, segment.fd, segment.file_offset)

    def revoke(self) -> None:
        self._kernel.ftruncate(self._fd, 0)
        self.close()

    def force(self) -> bool:
        self.revoke()
        return True

    def close(self) -> None:
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            self._kernel.munmap(mapping)
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._kernel.close(fd)


# ---- dma-bufs -----------------------------------------------------------------------------------


class DmaBufBackend:
    """Plain dma-bufs of a dma-heap or of udmabuf: nothing is protected or taken back by force.

    A dma-buf's descriptor can always be mapped for writing, and whoever has one keeps the memory.
    """

    counts_maps = False

    def __init__(self, source: DmaHeap | Udmabuf) -> None:
        self.source = source
        self.kernel = source.kernel
        self.name = source.driver

    def alloc(self, size: int, name: str, prot: int, segment: FileSegment | None = None) -> Held:
        held = DmaBufHeld(_dma_buf(self.source, size, name))
        return _filled(held, segment)

    def close(self) -> None:
        self.source.close()


class DmaBufHeld:
    moves = 0

    def __init__(self, buffer: DmaBuf) -> None:
        self.buffer = buffer
        self.size = buffer.size

    @property
    def lost(self) -> bool:
        return self.buffer.closed

    def share(self) -> int:
        return _copy_of(self.buffer)

    def load(self, segment: FileSegment) -> None:
        _check_range(segment, self.size)
        end = segment.offset + segment.length
        with self.buffer.access("w") as array, array.data[segment.offset : end] as target:
            read_into(target, segment.fd, segment.file_offset)

    def revoke(self) -> None:
        self.close()

    def force(self) -> bool:
        return False

    def close(self) -> None:
        self.buffer.close()


class WrapBackend:
    """dma-bufs in wraps: the kernel protects them, counts mappings, and takes the content away."""

    name = "wrapfd"
    counts_maps = True

    def __init__(self, device: Wrapfd, source: DmaHeap | Udmabuf) -> None:
        self.device = device
        self.source = source
        self.kernel = device.kernel

    def alloc(
        self, size: int, name: str, prot: int, segment: FileSegment | None = None
    ) -> WrapHeld:
        writable = bool(prot & PROT_WRITE)
        with _dma_buf(self.source, size, name) as buffer:
            # A read-only wrap cannot be loaded: its protection comes after its content.
            wrap = self.device.wrap(buffer, writable or segment is not None)
        held = WrapHeld(wrap)
        try:
            if segment is not None:
                _load(wrap, segment)
                held.protect(writable)
        except BaseException:
            held.close()
            raise
        return held

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self.source.close)
            stack.callback(self.device.close)


class WrapHeld:
    def __init__(self, wrap: Wrap) -> None:
        self.wrap = wrap
        self.size = wrap.size
        self.moves = 0

    @property
    def lost(self) -> bool:
        return self.wrap.closed

    def share(self) -> int:
        return _copy_of(self.wrap)

    def protect(self, writable: bool) -> None:
        """Move the content to a wrap of the other kind, unless it has that kind already."""
        if self.wrap.writable == writable:
            return
        old = self.wrap
        with _unmapped():
            old.acquire()
        try:
            self.wrap = old.rewrap(writable)
            self.moves += 1
        finally:
            try:
                _disown(old)
            finally:
                if self.wrap is not old:
                    old.close()

    def load(self, segment: FileSegment) -> None:
        _check_range(segment, self.size)
        writable = self.wrap.writable
        self.protect(True)
        try:
            _load(self.wrap, segment)
        finally:
            try:
                self.protect(writable)
            except BaseException:
                # It must never be lent out writable.
                self.close()
                raise

    def revoke(self) -> None:
        with _unmapped():
            try:
                self.wrap.acquire()
                self.wrap.empty()
            except OSError as error:
                # Empty already: a client can do that to its own.
                if error.errno != errno.ENOENT:
                    raise
            finally:
                _disown(self.wrap)
        self.wrap.close()

    def force(self) -> bool:
        return False

    def close(self) -> None:
        """Also takes the content from descriptors that others have kept, unless it is mapped."""
        if not self.wrap.closed:
            try:
                with contextlib.suppress(OSError):
                    self.revoke()
            finally:
                self.wrap.close()


def _disown(wrap: Wrap) -> None:
    """Others hear EBUSY of a wrap that is ours, and ENOENT of one that is nobody's and empty."""
    with contextlib.suppress(OSError):
        wrap.release()


@contextlib.contextmanager
def _unmapped() -> Iterator[None]:
    """The kernel's EINVAL for what is mapped, and EBUSY for what a client owns, as one error."""
    try:
        yield
    except NpuError as error:
        if error.errno != errno.EINVAL:
            raise
        raise NpuError(errno.EBUSY, hint="it is mapped") from error


def _load(wrap: Wrap, segment: FileSegment) -> None:
    _check_range(segment, wrap.size)
    with _unmapped():
        wrap.acquire()
    try:
        wrap.load(segment.fd, segment.length, segment.file_offset, segment.offset)
    except BaseException:
        _disown(wrap)
        raise
    wrap.release()


def _dma_buf(source: DmaHeap | Udmabuf, size: int, name: str) -> DmaBuf:
    buffer = source.alloc(size)
    try:
        buffer.set_name(name[:_NAME_BYTES])
    except BaseException:
        buffer.close()
        raise
    return buffer


def _copy_of(memory: DmaBuf | Wrap) -> int:
    memory._check_open()
    return memory._file.kernel.dup(memory.fd)


def _check_range(segment: FileSegment, size: int) -> None:
    problem = segment.problem()
    if problem is not None:
        raise NpuError(errno.EINVAL, hint=problem)
    if segment.offset + segment.length > size:
        raise NpuError(errno.EINVAL, hint=f"{segment} does not fit in {size} bytes")


def best_backend(kernel: Kernel | None = None) -> Backend:
    """The one that can promise most here: wraps where the kernel has them, else memfds."""
    kernel = kernel or LinuxKernel()
    sources: list[Callable[[], DmaHeap | Udmabuf]] = [
        lambda: DmaHeap(kernel=kernel),
        lambda: Udmabuf(kernel),
    ]
    for make_source in sources:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            device = stack.enter_context(Wrapfd(kernel))
            source = make_source()
            stack.enter_context(source)
            # Some kernels have the node and refuse what the heap gives.
            with source.alloc(1) as buffer:
                device.wrap(buffer).close()
            stack.pop_all()
            return WrapBackend(device, source)
    return MemfdBackend()
