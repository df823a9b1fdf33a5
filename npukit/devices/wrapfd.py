# SPDX-License-Identifier: MIT
"""Wraps: dma-bufs whose content can be protected, loaded from a file, and taken away.

/dev/wrapfd is in Android's common kernels (android15-6.6 and newer). Its interface has changed;
the device finds out which form the kernel speaks, and everything here works with all of them.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

from npukit import _fast
from npukit._fast import Mapping
from npukit.abi import dma_buf
from npukit.abi import wrapfd as abi
from npukit.ioctl import AbiMismatch, Ioctl, Kernel, LinuxKernel, NpuError
from npukit.ioctl.kernel import PAGE_SIZE

from .base import Device, Memory, OpenFile
from .dma_buf import DmaBuf

READ, WRITE = _fast.PROT_READ, _fast.PROT_WRITE
_SYNC = {
    "r": dma_buf.DMA_BUF_SYNC_READ,
    "w": dma_buf.DMA_BUF_SYNC_WRITE,
    "rw": dma_buf.DMA_BUF_SYNC_RW,
}


class WrapState(IntEnum):
    """What a wrap holds."""

    EMPTY = abi.WRAPFD_CONTENT_EMPTY
    RDONLY = abi.WRAPFD_CONTENT_RDONLY
    RDWR = abi.WRAPFD_CONTENT_RDWR


class Wrapfd(Device):
    """/dev/wrapfd.

    ``variant`` is None where the kernel speaks the final form of the interface, else the name of
    an older one (npukit.abi.wrapfd.VARIANTS).
    """

    driver = "wrapfd"

    def __init__(self, kernel: Kernel | None = None, path: str = "/dev/wrapfd") -> None:
        super().__init__(kernel or LinuxKernel(), path)
        try:
            self.variant = self._probe()
        except BaseException:
            self.close()
            raise

    def _probe(self) -> str | None:
        """Each form knows its own WRAP or GET_STATE here, and then meets the missing argument."""
        first, reserved = (_view(name) for name in abi.VARIANTS)
        for request, variant in (
            (first.WRAPFD_DEV_IOC_GET_STATE, "generation-1"),
            (reserved.WRAPFD_DEV_IOC_WRAP, "generation-1-reserved"),
            (abi.WRAPFD_DEV_IOC_WRAP, None),
        ):
            code = request.call(self.kernel, self.fileno(), None)[1]
            if code == errno.EFAULT:
                return variant
            if code != errno.ENOTTY:
                break
        raise AbiMismatch(code, path=self.path, hint="this is no /dev/wrapfd that npukit knows")

    def explain(self, request: Ioctl, code: int) -> str | None:
        return _explain(request, code)

    def wrap(self, buffer: DmaBuf, writable: bool = False) -> Wrap:
        """Wrap a dma-buf, which can be closed afterwards: the wrap keeps the memory.

        Without ``writable`` nobody can map the wrap for writing. (The dma-buf itself, and any
        descriptor of it that is left, still can be.)
        """
        buffer._check_open()
        prot = READ | WRITE if writable else READ
        fd = self.call(_view(self.variant).WRAPFD_DEV_IOC_WRAP, fd=buffer.fd, prot=prot)
        return Wrap(
            self.kernel, fd, buffer.size, writable=writable, variant=self.variant, device=self
        )


class Wrap(Memory):
    """An open wrap, owned by this object; made by Wrapfd.wrap() or of a descriptor received.

    ``size`` in bytes and ``writable`` as at its making. Whoever received the descriptor from
    another process says in which ``variant`` of the interface the kernel speaks. Ownership of a
    wrap is the process's, not the descriptor's.
    """

    def __init__(
        self,
        kernel: Kernel,
        fd: int,
        size: int,
        *,
        writable: bool = False,
        variant: str | None = None,
        device: Wrapfd | None = None,
    ) -> None:
        super().__init__(size, OpenFile(kernel, fd))
        self.fd = fd
        self.writable = writable
        self.variant = variant
        self._device = device
        self._abi = _view(variant)

    def __repr__(self) -> str:
        kind = "writable" if self.writable else "read-only"
        return f"<Wrap fd {self.fd} of {self.size} bytes ({kind})>"

    def _call(self, request: Ioctl, **fields: int) -> Any:
        self._check_open()
        try:
            return request(self._file.kernel, self.fd, **fields)
        except NpuError as error:
            error.hint = error.hint or _explain(request, error.errno or 0)
            raise

    @property
    def state(self) -> WrapState:
        """Asked from the kernel; anybody may. EMPTY also while the content is on its way out."""
        self._check_open()
        request = self._abi.WRAPFD_DEV_IOC_GET_STATE
        if "fd" not in dict(request.struct._fields_):
            return WrapState(self._call(request).state)
        if self._device is None:
            raise NpuError(
                errno.ENOTTY,
                request=request.name,
                hint="this kernel tells the state at /dev/wrapfd only",
            )
        return WrapState(self._device.call(request, fd=self.fd).state)

    # Ownership.

    def acquire(self) -> None:
        """Make this process the owner: others can neither map nor change the wrap.

        DeviceBusy another one owns it; NpuError EINVAL mapped by anybody, ENOENT empty.
        """
        self._call(abi.WRAPFD_DEV_IOC_ACQUIRE_OWNERSHIP)

    def release(self) -> None:
        """Give ownership up. DeviceBusy when it is not ours; NpuError EINVAL while mapped."""
        self._call(abi.WRAPFD_DEV_IOC_RELEASE_OWNERSHIP)

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        """Own it for a while."""
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def allow_guests(self, allow: bool = True) -> None:
        """Let others map it though it is owned. Errors as acquire()."""
        self._call(abi.WRAPFD_DEV_IOC_ALLOW_GUESTS if allow else abi.WRAPFD_DEV_IOC_PROHIBIT_GUESTS)

    # Content.

    def load(self, file: int, length: int, file_offset: int = 0, offset: int = 0) -> None:
        """Read ``length`` bytes of a file from ``file_offset`` to ``offset`` in the wrap.

        This process must be the owner, and nobody may have it mapped. The kernel reads whole
        pages past the page cache; the rest, and a file that cannot do direct I/O, is copied
        through a mapping instead.

        NpuError: EINVAL the range is not within file and wrap; EACCES it is read-only; ENOENT it is
        empty; EBADF; EIO. DeviceBusy: this process is not the owner (older drivers; the newest
        does not ask).
        """
        self._check_open()
        end = self._file.kernel.fstat(file).st_size
        if min(length, file_offset, offset) < 0 or file_offset + length > end:
            raise NpuError(
                errno.EINVAL, hint=f"{length} bytes at {file_offset} of a file of {end} bytes"
            )
        if offset + length > self.size:
            raise NpuError(errno.EINVAL, hint=f"{length} bytes at {offset} of {self!r}")
        if not self.writable:
            raise NpuError(errno.EACCES, hint=f"{self!r} is read-only")
        # Drivers before the newest take whole pages only, and read beyond what was asked.
        direct = 0 if (file_offset | offset) % PAGE_SIZE else length - length % PAGE_SIZE
        if direct:
            try:
                self._call(
                    self._abi.WRAPFD_DEV_IOC_LOAD,
                    fd=file,
                    file_offs=file_offset,
                    buf_offs=offset,
                    len=direct,
                )
            except NpuError as error:
                if error.errno != errno.EINVAL:
                    raise
                direct = 0
        if direct < length:
            self._copy_in(file, length - direct, file_offset + direct, offset + direct)

    def _copy_in(self, file: int, length: int, file_offset: int, offset: int) -> None:
        kernel = self._file.kernel
        mapping = kernel.mmap(self.fd, self.size)
        try:
            self._begin("w", 0)
            with memoryview(mapping)[offset : offset + length] as target:
                read_into(target, file, file_offset)
            self._end("w")
        finally:
            kernel.munmap(mapping)

    def rewrap(self, writable: bool) -> Wrap:
        """Move the content to a new wrap; this one is empty afterwards, and still owned by us.

        This process must be the owner; nobody owns the new one. Errors as acquire(); EACCES
        ``writable`` of a read-only dma-buf; EAGAIN another thread of this process is at it.
        """
        prot = READ | WRITE if writable else READ
        fd = self._call(self._abi.WRAPFD_DEV_IOC_REWRAP, prot=prot)
        return Wrap(
            self._file.kernel,
            fd,
            self.size,
            writable=writable,
            variant=self.variant,
            device=self._device,
        )

    def empty(self) -> None:
        """Take the content away: memory is freed, and mapping gives ENOENT from now on.

        This process must be the owner. Errors as acquire(): above all, nobody can take away what
        is mapped.
        """
        self._call(abi.WRAPFD_DEV_IOC_EMPTY)

    # Memory.

    def _make_mapping(self) -> Mapping:
        return self._file.kernel.mmap(
            self.fd, self.size, prot=READ | WRITE if self.writable else READ
        )

    # What a wrap does not know itself it hands to its dma-buf.

    def _begin(self, mode: str, timeout: float) -> None:
        self._call(dma_buf.DMA_BUF_IOCTL_SYNC, flags=dma_buf.DMA_BUF_SYNC_START | _SYNC[mode])

    def _end(self, mode: str) -> None:
        self._call(dma_buf.DMA_BUF_IOCTL_SYNC, flags=dma_buf.DMA_BUF_SYNC_END | _SYNC[mode])

    def close(self) -> None:
        """Close the file descriptor. Idempotent. Arrays on it stay valid until they are gone."""
        if self._closed:
            return
        self._closed = True
        self._unmap()
        self._file.release()


def read_into(target: memoryview, file: int, file_offset: int) -> None:
    """Fill memory from a file; NpuError: EINVAL the file is too short, or what reading gives.

    The kernel does the copying: memory that is taken away meanwhile is EFAULT and no signal.
    """
    done = 0
    while done < len(target):
        try:
            count = os.preadv(file, [target[done:]], file_offset + done)
        except OSError as error:
            raise NpuError(error.errno or errno.EIO, hint="reading the file") from error
        if count == 0:
            raise NpuError(errno.EINVAL, hint=f"the file ends {len(target) - done} bytes early")
        done += count


def _view(variant: str | None) -> Any:
    return abi if variant is None else abi.variant(variant)


def _explain(request: Ioctl, code: int) -> str | None:
    if code == errno.EBUSY:
        return "another process or a device owns the wrap, or this call needs ownership first"
    if code == errno.ENOENT:
        return "the wrap is empty: its content was taken away or moved to another wrap"
    if code == errno.EAGAIN:
        return "another thread of this process is changing the wrap"
    if request.name == "WRAPFD_DEV_IOC_WRAP":
        return {
            errno.EINVAL: "the file descriptor is not a dma-buf",
            errno.EACCES: "the dma-buf is read-only",
        }.get(code)
    if request.name == "WRAPFD_DEV_IOC_LOAD":
        return {
            errno.EINVAL: "the file cannot do direct I/O, or a range is not within file and wrap, "
            "or (older drivers) offsets are no whole pages or the wrap is mapped",
            errno.EACCES: "the wrap is read-only",
        }.get(code)
    if code == errno.EINVAL:
        return "somebody has the wrap mapped, or uses it at this moment"
    return "the dma-buf is read-only" if code == errno.EACCES else None
