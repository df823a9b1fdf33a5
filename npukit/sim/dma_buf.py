# SPDX-License-Identifier: MIT
"""Simulated dma-bufs and the two devices that make them of plain memory.

Checks stand in the order of drivers/dma-buf/{dma-buf,dma-heap,udmabuf}.c.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
from typing import TYPE_CHECKING

from npukit import _fast
from npukit.abi import dma_buf as abi
from npukit.abi import dma_heap, udmabuf
from npukit.ioctl import IOC_READ, IOC_WRITE, decode
from npukit.ioctl.kernel import PAGE_SIZE, round_to_page

from .core import Area, Caller, Errno, Piece, SimDevice, SimFile, map_pieces
from .fence import Fence, SyncFileSim

if TYPE_CHECKING:
    from .kernel import SimKernel

_ACCESS = abi.DMA_BUF_SYNC_RW
_RAM = os.sysconf("SC_PHYS_PAGES") * PAGE_SIZE
"""More than that a heap never finds, page by page."""


class Backing:
    """What a dma-buf is made of."""

    size: int
    writers: list[Fence]
    """Fences of work that writes the memory; of work that reads it the drivers keep none."""

    def pieces(self, length: int, offset: int, flags: int) -> list[Piece]:
        """Where the pages are; Errno where they cannot be mapped so."""
        raise NotImplementedError

    def get(self) -> None:
        raise NotImplementedError

    def put(self) -> None:
        raise NotImplementedError

    def map_pages(self, length: int, offset: int, prot: int, flags: int) -> _fast.Mapping:
        """Map them into this process."""
        return map_pieces(self.pieces(length, offset, flags), prot, flags)


class PlainPages(Backing):
    """Memory in a file of its own."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self.writers = []
        self._users = 1

    def pieces(self, length: int, offset: int, flags: int) -> list[Piece]:
        return [Piece(self.fd, offset, length)]

    def get(self) -> None:
        self._users += 1

    def put(self) -> None:
        self._users -= 1
        if self._users == 0:
            os.close(self.fd)


class DmaBufSim(SimFile):
    """An open dma-buf. All descriptors of one export share it."""

    def __init__(self, kernel: SimKernel, backing: Backing, writable: bool = True) -> None:
        super().__init__(kernel)
        self.backing = backing
        self.writable = writable
        self.label = b""
        backing.get()

    def install(self, cloexec: bool) -> int:
        """A new descriptor. It is a real file of the right size, which polls as always ready."""
        fd = os.memfd_create("dmabuf", os.MFD_CLOEXEC if cloexec else 0)
        os.ftruncate(fd, self.backing.size)
        return self.kernel.install(fd, self)

    def released(self) -> None:
        self.backing.put()

    def lseek(self, offset: int, whence: int) -> int:
        if offset == 0 and whence == os.SEEK_END:
            return self.backing.size
        if offset == 0 and whence == os.SEEK_SET:
            return 0
        raise Errno(errno.EINVAL)

    def mmap(self, caller: Caller, length: int, offset: int, prot: int, flags: int) -> Area:
        if offset % PAGE_SIZE or offset + length > round_to_page(self.backing.size):
            raise Errno(errno.EINVAL)
        if not self.writable and prot & _fast.PROT_WRITE and flags & _fast.MAP_SHARED:
            raise Errno(errno.EACCES)
        return Area(self.backing.pieces(length, offset, flags), lambda: None)

    def ioctl(self, caller: Caller, request: int, address: int) -> int:
        if request == abi.DMA_BUF_IOCTL_SYNC:
            return self._sync(caller, address)
        if request in (abi.DMA_BUF_SET_NAME_A, abi.DMA_BUF_SET_NAME_B):
            return self._set_name(caller, address)
        if request == abi.DMA_BUF_IOCTL_EXPORT_SYNC_FILE:
            return self._export_fence(caller, address)
        if request == abi.DMA_BUF_IOCTL_IMPORT_SYNC_FILE:
            return self._import_fence(caller, address)
        raise Errno(errno.ENOTTY)

    def _sync(self, caller: Caller, address: int) -> int:
        flags = int.from_bytes(caller.copy_from_user(address, 8), "little")
        if flags & ~abi.DMA_BUF_SYNC_VALID_FLAGS_MASK or not flags & _ACCESS:
            raise Errno(errno.EINVAL)
        writers = self.backing.writers
        if writers and not flags & abi.DMA_BUF_SYNC_END:
            self.kernel.wait_for(
                lambda: all(fence.signalled for fence in writers), None, interruptible=True
            )
        return 0

    def _set_name(self, caller: Caller, address: int) -> int:
        name = b""
        # A string ends where its zero byte is; the page behind it may not be there.
        while len(name) < abi.DMA_BUF_NAME_LEN:
            byte = caller.copy_from_user(address + len(name), 1)
            if byte == b"\0":
                self.label = name
                return 0
            name += byte
        raise Errno(errno.EINVAL)

    def _export_fence(self, caller: Caller, address: int) -> int:
        size = ctypes.sizeof(abi.dma_buf_export_sync_file)
        data = abi.dma_buf_export_sync_file.from_buffer_copy(caller.copy_from_user(address, size))
        if data.flags & ~_ACCESS or not data.flags:
            raise Errno(errno.EINVAL)
        data.fd = SyncFileSim(self.kernel, self.backing.writers).install()
        try:
            caller.copy_to_user(address, bytes(data))
        except Errno:
            self.kernel.uninstall(data.fd)
            raise
        return 0

    def _import_fence(self, caller: Caller, address: int) -> int:
        size = ctypes.sizeof(abi.dma_buf_import_sync_file)
        data = abi.dma_buf_import_sync_file.from_buffer_copy(caller.copy_from_user(address, size))
        if data.flags & ~_ACCESS or not data.flags:
            raise Errno(errno.EINVAL)
        file = self.kernel.file(data.fd)
        if not isinstance(file, SyncFileSim):
            raise Errno(errno.EINVAL)
        if data.flags & abi.DMA_BUF_SYNC_WRITE:
            self.backing.writers += file.fences
        return 0


class CharFile(SimFile):
    """An open node of a device that has no state of its own for each open file."""

    def __init__(self, kernel: SimKernel, device: SimDevice) -> None:
        super().__init__(kernel)
        self.device = device

    def stat_mode(self) -> tuple[int, int]:
        return stat.S_IFCHR | 0o660, os.makedev(self.device.major, 0)


class DmaHeapSim(SimDevice):
    """/dev/dma_heap/system."""

    name = "dma_heap"
    major = 250

    def open(self, caller: Caller, path: str, flags: int) -> tuple[SimFile, int]:
        return DmaHeapFile(self.kernel, self), os.memfd_create("dma_heap")


class DmaHeapFile(CharFile):
    def ioctl(self, caller: Caller, request: int, address: int) -> int:
        parts = decode(request)
        if parts.nr:
            raise Errno(errno.EINVAL)
        # As in DRM, the sizes of caller and kernel may differ; the type byte is not looked at.
        size = ctypes.sizeof(dma_heap.dma_heap_allocation_data)
        given = min(parts.size, size)
        raw = caller.copy_from_user(address, given) if parts.direction & IOC_WRITE else b""
        data = dma_heap.dma_heap_allocation_data.from_buffer_copy(raw.ljust(size, b"\0"))
        if (
            data.fd
            or data.fd_flags & ~dma_heap.DMA_HEAP_VALID_FD_FLAGS
            or data.heap_flags & ~dma_heap.DMA_HEAP_VALID_HEAP_FLAGS
            or not 0 < data.len <= (1 << 64) - PAGE_SIZE
        ):
            raise Errno(errno.EINVAL)
        size = round_to_page(data.len)
        if size > _RAM:
            raise Errno(errno.ENOMEM)
        pages = os.memfd_create("dma_heap")
        try:
            os.ftruncate(pages, size)
        except OSError:
            os.close(pages)
            raise Errno(errno.ENOMEM) from None
        backing = PlainPages(pages, size)
        writable = data.fd_flags & os.O_ACCMODE != os.O_RDONLY
        buffer = DmaBufSim(self.kernel, backing, writable)
        backing.put()
        data.fd = buffer.install(bool(data.fd_flags & os.O_CLOEXEC))
        if parts.direction & IOC_READ:
            try:
                caller.copy_to_user(address, bytes(data)[:given])
            except Errno:
                self.kernel.uninstall(data.fd)
                raise
        return 0


class UdmabufSim(SimDevice):
    """/dev/udmabuf, with the limits that the module has by default."""

    name = "udmabuf"
    major = 10
    LIST_LIMIT = 1024
    SIZE_LIMIT = 64 << 20

    def open(self, caller: Caller, path: str, flags: int) -> tuple[SimFile, int]:
        return UdmabufFile(self.kernel, self), os.memfd_create("udmabuf")


class MemfdRanges(Backing):
    """Ranges of memfds, one after another, as one piece of memory."""

    def __init__(self, ranges: list[Piece]) -> None:
        self.ranges = ranges
        self.size = sum(size for _, _, size in ranges)
        self.writers = []
        self._users = 1

    def pieces(self, length: int, offset: int, flags: int) -> list[Piece]:
        if not flags & _fast.MAP_SHARED:
            raise Errno(errno.EINVAL)
        parts = []
        for fd, start, size in self.ranges:
            if length > 0 and offset < size:
                part = min(length, size - offset)
                parts.append(Piece(fd, start + offset, part))
                length -= part
                offset = 0
            else:
                offset -= size
        return parts

    def get(self) -> None:
        self._users += 1

    def put(self) -> None:
        self._users -= 1
        if self._users == 0:
            for fd, _, _ in self.ranges:
                os.close(fd)


class UdmabufFile(CharFile):
    device: UdmabufSim

    def ioctl(self, caller: Caller, request: int, address: int) -> int:
        if request == udmabuf.UDMABUF_CREATE:
            raw = caller.copy_from_user(address, ctypes.sizeof(udmabuf.udmabuf_create))
            head = udmabuf.udmabuf_create.from_buffer_copy(raw)
            return self._create(caller, head.flags, [(head.memfd, head.offset, head.size)])
        if request == udmabuf.UDMABUF_CREATE_LIST:
            size = ctypes.sizeof(udmabuf.udmabuf_create_list)
            raw = caller.copy_from_user(address, size)
            many = udmabuf.udmabuf_create_list.from_buffer_copy(raw)
            if many.count > self.device.LIST_LIMIT:
                raise Errno(errno.EINVAL)
            item = udmabuf.udmabuf_create_item
            raw = caller.copy_from_user(address + size, many.count * ctypes.sizeof(item))
            items = (item * many.count).from_buffer_copy(raw)
            return self._create(caller, many.flags, [(i.memfd, i.offset, i.size) for i in items])
        raise Errno(errno.ENOTTY)

    def _create(self, caller: Caller, flags: int, items: list[tuple[int, int, int]]) -> int:
        total = 0
        for _, offset, size in items:
            total += size
            if offset % PAGE_SIZE or size % PAGE_SIZE or total > self.device.SIZE_LIMIT:
                raise Errno(errno.EINVAL)
        if total == 0:
            raise Errno(errno.EINVAL)
        ranges: list[Piece] = []
        try:
            for memfd, offset, size in items:
                ranges.append(Piece(self._pin(caller, memfd, offset, size), offset, size))
        except Errno:
            for fd, _, _ in ranges:
                os.close(fd)
            raise
        backing = MemfdRanges(ranges)
        buffer = DmaBufSim(self.kernel, backing)
        backing.put()
        return buffer.install(bool(flags & udmabuf.UDMABUF_FLAGS_CLOEXEC))

    def _pin(self, caller: Caller, memfd: int, offset: int, size: int) -> int:
        """A descriptor of our own of a memfd that obeys the driver's rules."""
        if self.kernel.file(memfd) is not None:
            # What stands for a device or a dma-buf here may be a memfd, which those are not.
            raise Errno(errno.EBADFD)
        try:
            fd = caller.take(memfd)
        except Errno:
            raise Errno(errno.EBADFD) from None
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError:
            os.close(fd)
            raise Errno(errno.EBADFD) from None
        future_write = 0x10
        if (
            not seals & fcntl.F_SEAL_SHRINK
            or seals & (fcntl.F_SEAL_WRITE | future_write)
            or offset + size > os.fstat(fd).st_size
        ):
            os.close(fd)
            raise Errno(errno.EINVAL)
        return fd
