# SPDX-License-Identifier: MIT
"""One open device and the memory that belongs to it.

Ownership is a tree: a device closes what it made before it closes itself. A mapping lives while any
array or memoryview on it lives, so no view ever dangles; the device's file descriptor goes only
after the last mapping and the last exported dma-buf, because some drivers free buffers through it.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from npukit._fast import Mapping
from npukit.ioctl import DeviceClosed, Ioctl, Kernel, NpuError
from npukit.ioctl.errors import error_class


@contextlib.contextmanager
def naming(path: str | None, what: str) -> Iterator[None]:
    """Turn a plain OSError of the kernel into an NpuError that says where it happened."""
    try:
        yield
    except NpuError:
        raise
    except OSError as error:
        code = error.errno or errno.EIO
        raise error_class(code)(code, path=path, request=what) from error


class OpenFile:
    """A file descriptor that is closed when the last of its holders lets go.

    A child of fork shares the open file, handles included: what it lets go of must stay for the
    parent. ``mine`` says whether this process is the one that opened it.
    """

    def __init__(self, kernel: Kernel, fd: int) -> None:
        self.kernel = kernel
        self.fd = fd
        self._pid = os.getpid()
        self._holders = 1
        self._lock = threading.Lock()

    @property
    def mine(self) -> bool:
        return os.getpid() == self._pid

    def retain(self) -> None:
        with self._lock:
            self._holders += 1

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            last = self._holders == 0
        if last:
            self.kernel.close(self.fd)


class Closing:
    """What must be given back: by ``with``, by ``close()``, or by the collector, which warns."""

    _closed = True
    """Also before there is anything to close."""
    _file: OpenFile

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._closed:
            return
        try:
            if not self._file.mine:
                return
        except (AttributeError, TypeError):
            return  # the interpreter is going down, and has taken what we would need
        warnings.warn(f"{self!r} was never closed", ResourceWarning, 2, source=self)
        # What this belonged to may be gone already.
        with contextlib.suppress(Exception):
            self.close()


class Memory(Closing):
    """Memory that the CPU can map: what buffers of a device and dma-bufs have in common.

    Synchronization: may be used by any thread, not by several at once.
    """

    def __init__(self, size: int, file: OpenFile) -> None:
        self.size = size
        """Bytes, as the driver rounded them."""
        self._file = file
        self._mapping: Mapping | None = None
        self._closed = False

    @property
    def views(self) -> int:
        """How many arrays and memoryviews hold the mapping."""
        return self._mapping.views if self._mapping is not None else 0

    def _make_mapping(self) -> Mapping:
        raise NotImplementedError

    def _begin(self, mode: str, timeout: float) -> None:
        raise NotImplementedError

    def _end(self, mode: str) -> None:
        raise NotImplementedError

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceClosed(errno.EBADF, f"{self!r} is closed")

    def map(self) -> Mapping:
        """Map the memory (once) and return the mapping, an object with the buffer protocol."""
        self._check_open()
        if self._mapping is None:
            with naming(None, f"mmap of {self!r}"):
                mapping = self._make_mapping()
            self._file.retain()
            weakref.finalize(mapping, self._file.release)
            self._mapping = mapping
        return self._mapping

    def array(
        self,
        dtype: npt.DTypeLike = np.uint8,
        shape: int | tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> npt.NDArray[Any]:
        """A numpy array over the memory, without a copy.

        ``offset`` is in bytes; ``shape`` None takes all that is left. ValueError when the array
        would not lie within the memory. The array keeps the mapping alive.
        """
        item = np.dtype(dtype)
        if item.itemsize == 0:
            raise ValueError(f"an array of {item!r}, which has no size")
        if not 0 <= offset <= self.size:
            raise ValueError(f"offset {offset} is not within the {self.size} bytes of {self!r}")
        if shape is None:
            shape = (self.size - offset) // item.itemsize
        count = math.prod(shape) if isinstance(shape, tuple) else shape
        if count < 0 or offset + count * item.itemsize > self.size:
            raise ValueError(f"{item} {shape} at offset {offset} does not fit in {self!r}")
        array: npt.NDArray[Any] = np.frombuffer(memoryview(self.map()), item, count, offset)
        return array.reshape(shape)

    def __dlpack__(self, **options: Any) -> Any:
        """DLPack export of the bytes (uint8), without a copy."""
        return self.array().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array().__dlpack_device__()

    @contextlib.contextmanager
    def access(self, mode: str = "rw", timeout: float = 6.0) -> Iterator[npt.NDArray[np.uint8]]:
        """Own the memory with the CPU for a while: ``with buffer.access("w") as array:``.

        ``mode`` is "r", "w" or "rw". What the device wrote is visible inside, what the CPU wrote is
        visible to the device afterwards; where the driver can, work that still uses the memory is
        awaited first, ``timeout`` seconds at most (WaitTimeout). With "r" the array is read-only,
        as are views of it, since nothing would bring to the device what is written there.
        """
        if mode not in ("r", "w", "rw"):
            raise ValueError(f"access mode {mode!r} is not r, w or rw")
        array = self.array()
        if mode == "r":
            # Over a read-only base: an array's own flag can be set back.
            array = np.frombuffer(array.data.toreadonly(), np.uint8)
        self._begin(mode, timeout)
        try:
            yield array
        finally:
            self._end(mode)

    def _unmap(self) -> None:
        """Let go of the mapping: no further view; the pages go with the last one that lives."""
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            self._file.kernel.munmap(mapping)


class Buffer(Memory):
    """A buffer object of a device.

    ``dma_address`` is where the NPU sees it, ``handle`` its handle in the device's file.
    """

    def __init__(self, device: Device, handle: int, size: int, dma_address: int) -> None:
        super().__init__(size, device._file)
        self.device = device
        self.handle = handle
        self.dma_address = dma_address
        device._adopt(self)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.handle} of {self.size} bytes at {self.dma_address:#x}>"
        )

    def _check_open(self) -> None:
        super()._check_open()
        self.device._check_open()

    def _destroy(self) -> None:
        """Tell the driver that the handle is no longer used."""
        raise NotImplementedError

    def close(self) -> None:
        """Give the buffer back. Idempotent. Arrays on it stay valid until they are gone."""
        if self._closed:
            return
        self._closed = True
        self._unmap()
        self.device._children.discard(self)
        if self._file.mine:
            self._destroy()


ReadMemory = Callable[[int, int], bytes | None]
JobChecker = Callable[
    [
        str,
        Sequence[tuple[int, int, int]],
        Sequence[Sequence[int]],
        Sequence[tuple[int, int]],
        ReadMemory,
        bool,
    ],
    None,
]
"""Asked before a job of command streams is submitted; it raises ProgramError for a bad one.

Its arguments: the node; (DMA address, words with the trailer, interrupt mask or 0) of each task;
which of them each core runs, in order; the buffers, (start, end); how to read them; whether a core
finds all but its first task by the chain of the words.
"""


class Device(Closing):
    """One open device.

    Synchronization: any thread may call it; calls that wait hold no lock. Closing it while another
    thread is inside a call is an error of the caller.
    """

    driver: ClassVar[str] = ""
    """The driver's name as DRM_IOCTL_VERSION gives it."""

    def __init__(self, kernel: Kernel, path: str) -> None:
        self.kernel = kernel
        self.path = path
        self._children: weakref.WeakSet[Buffer] = weakref.WeakSet()
        self._exports: weakref.WeakSet[Memory] = weakref.WeakSet()
        try:
            fd = kernel.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            code = error.errno or errno.EIO
            raise NpuError(code, path=path, hint=_OPEN_HINTS.get(code)) from error
        self._file = OpenFile(kernel, fd)
        self._closed = False

    def fileno(self) -> int:
        """The file descriptor, for requests that npukit has no method for."""
        self._check_open()
        return self._file.fd

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<{type(self).__name__} {self.path} ({state})>"

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceClosed(errno.EBADF, path=self.path, hint="the device is closed")

    def _adopt(self, child: Buffer) -> None:
        self._children.add(child)

    def buffers(self) -> list[Buffer]:
        """The buffers that are open, by address."""
        return sorted(self._children, key=lambda buffer: buffer.dma_address)

    def read_memory(self, address: int, size: int) -> bytes | None:
        """The bytes at a DMA address in one of this device's buffers, or None."""
        for buffer in self.buffers():
            offset = address - buffer.dma_address
            if offset >= 0 and offset + size <= buffer.size:
                return buffer.array()[offset : offset + size].tobytes()
        return None

    def explain(self, request: Ioctl, code: int) -> str | None:
        """The driver's own rule behind an errno, where it is known."""
        return None

    def call(self, request: Ioctl, arg: Any = None, /, **fields: Any) -> Any:
        """Make a request on this device; see Ioctl. Errors carry the path and the broken rule."""
        self._check_open()
        try:
            return request(self.kernel, self._file.fd, arg, **fields)
        except NpuError as error:
            error.filename = self.path
            error.hint = error.hint or self.explain(request, error.errno or 0)
            raise

    def _check_buffer(self, buffer: Buffer) -> None:
        """Refuse a buffer that is closed or belongs to another open device."""
        if buffer.device is not self:
            raise NpuError(
                errno.EINVAL,
                path=self.path,
                hint=f"{buffer!r} belongs to {buffer.device!r}: handles are per open file",
            )
        buffer._check_open()

    def close(self, strict: bool = False) -> None:
        """Close all buffers, then the device. Idempotent.

        Arrays and exported dma-bufs that live on stay valid: the file goes with the last of them,
        and a ResourceWarning names them. With ``strict`` they raise BufferError, and nothing is
        closed.
        """
        if self._closed:
            return
        held = [child for child in self.buffers() if child.views]
        exports = [export for export in self._exports if not export.closed]
        if held or exports:
            names = ", ".join(repr(holder) for holder in (*held, *exports))
            if strict:
                raise BufferError(f"{self.path}: still in use: {names}")
            warnings.warn(
                f"{self.path} is closed, its file stays open for {names}",
                ResourceWarning,
                stacklevel=2,
            )
        # All is closed even when the driver refuses to let one go; its first refusal is raised.
        with contextlib.ExitStack() as stack:
            stack.callback(self._file.release)
            stack.callback(setattr, self, "_closed", True)
            for child in list(self._children):
                stack.callback(child.close)


_OPEN_HINTS = {
    errno.EACCES: "no permission: the node's group (often render or video) must be one of yours",
    errno.EPERM: "no permission: the node's group (often render or video) must be one of yours",
    errno.ENOENT: "no such node",
    errno.ENXIO: "the node is there, its driver is not",
    errno.ENODEV: "the node is there, its driver is not",
    errno.EBUSY: "another process holds the device",
    errno.EMFILE: "this process has too many open files",
}
