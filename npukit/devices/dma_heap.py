# SPDX-License-Identifier: MIT
"""dma-heaps: dma-bufs from /dev/dma_heap/NAME."""

from __future__ import annotations

import errno
import os

from npukit.abi import dma_heap as abi
from npukit.ioctl import Ioctl, Kernel, LinuxKernel
from npukit.ioctl.kernel import round_to_page

from .base import Device
from .dma_buf import DmaBuf


class DmaHeap(Device):
    """One heap, for example "system"."""

    driver = "dma_heap"

    def __init__(self, name: str = "system", kernel: Kernel | None = None) -> None:
        self.name = name
        super().__init__(kernel or LinuxKernel(), f"/dev/dma_heap/{name}")

    def explain(self, request: Ioctl, code: int) -> str | None:
        return {
            errno.EINVAL: "a size of 0, or flags that the heap does not know",
            errno.ENOMEM: "the heap has no room for this size",
        }.get(code)

    def alloc(self, size: int) -> DmaBuf:
        """A dma-buf of ``size`` bytes, rounded up to pages."""
        if size < 1:
            raise ValueError(f"a dma-buf of {size} bytes")
        answer = self.call(abi.DMA_HEAP_IOCTL_ALLOC, len=size, fd_flags=os.O_RDWR | os.O_CLOEXEC)
        return DmaBuf(self.kernel, answer.fd, round_to_page(size))
