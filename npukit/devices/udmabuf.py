# SPDX-License-Identifier: MIT
"""udmabuf: dma-bufs made of the pages of a memfd."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence

from npukit.abi import udmabuf as abi
from npukit.ioctl import Ioctl, Kernel, LinuxKernel
from npukit.ioctl.kernel import PAGE_SIZE, round_to_page

from .base import Device, naming
from .dma_buf import DmaBuf


class Udmabuf(Device):
    """/dev/udmabuf."""

    driver = "udmabuf"

    def __init__(self, kernel: Kernel | None = None) -> None:
        super().__init__(kernel or LinuxKernel(), "/dev/udmabuf")

    def explain(self, request: Ioctl, code: int) -> str | None:
        return {
            errno.EINVAL: "offset and size must be whole pages within the memfd, which must be "
            "sealed F_SEAL_SHRINK and not F_SEAL_WRITE; list_limit and size_limit_mb of the "
            "module bound the rest",
            errno.EBADFD: "the file descriptor is not a memfd",
        }.get(code)

    def create(self, memfd: int, offset: int, size: int) -> DmaBuf:
        """A dma-buf of ``size`` bytes of ``memfd`` from ``offset``, both whole pages."""
        _check_pages(offset, size)
        fd = self.call(
            abi.UDMABUF_CREATE,
            memfd=memfd,
            flags=abi.UDMABUF_FLAGS_CLOEXEC,
            offset=offset,
            size=size,
        )
        return DmaBuf(self.kernel, fd, size)

    def create_list(self, pieces: Sequence[tuple[int, int, int]]) -> DmaBuf:
        """A dma-buf of several (memfd, offset, size) pieces, one after another."""
        if not pieces:
            raise ValueError("a dma-buf of no pieces")
        request = abi.udmabuf_create_list.with_tail(len(pieces), flags=abi.UDMABUF_FLAGS_CLOEXEC)
        for item, (memfd, offset, size) in zip(request.list, pieces, strict=True):
            _check_pages(offset, size)
            item.memfd, item.offset, item.size = memfd, offset, size
        fd = self.call(abi.UDMABUF_CREATE_LIST, request)
        return DmaBuf(self.kernel, fd, sum(size for _, _, size in pieces))

    def alloc(self, size: int, name: str = "npukit") -> DmaBuf:
        """A dma-buf of ``size`` fresh bytes, rounded up to pages."""
        if size < 1:
            raise ValueError(f"a dma-buf of {size} bytes")
        self._check_open()
        length = round_to_page(size)
        if length >= 1 << 63:
            raise ValueError(f"a dma-buf of {size} bytes")
        with naming(self.path, f"memfd of {length} bytes"):
            memfd = self.kernel.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                self.kernel.ftruncate(memfd, length)
                self.kernel.fcntl(memfd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
                return self.create(memfd, 0, length)
            finally:
                self.kernel.close(memfd)


def _check_pages(offset: int, size: int) -> None:
    if offset % PAGE_SIZE or size % PAGE_SIZE or offset < 0 or size < 1:
        raise ValueError(f"{size} bytes at {offset}: udmabuf takes whole pages of {PAGE_SIZE}")
