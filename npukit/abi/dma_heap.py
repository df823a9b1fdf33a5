# SPDX-License-Identifier: MIT
"""include/uapi/linux/dma-heap.h: allocate dma-bufs from /dev/dma_heap/*."""

from __future__ import annotations

from ctypes import c_uint32, c_uint64

from npukit.ioctl import IOWR, Ioctl, Struct

from .versions import Variant, Version, kernel_views, variant_views

DMA_HEAP_VALID_FD_FLAGS = 0o2000000 | 3
"""O_CLOEXEC | O_ACCMODE."""
DMA_HEAP_VALID_HEAP_FLAGS = 0
DMA_HEAP_IOC_MAGIC = ord("H")


class dma_heap_allocation_data(Struct):
    """``len`` bytes, rounded up to pages; ``fd`` comes back."""

    _size_ = 24
    _fields_ = [
        ("len", c_uint64),
        ("fd", c_uint32),
        ("fd_flags", c_uint32),
        ("heap_flags", c_uint64),
    ]


DMA_HEAP_IOCTL_ALLOC = Ioctl(
    "DMA_HEAP_IOCTL_ALLOC",
    IOWR(DMA_HEAP_IOC_MAGIC, 0, dma_heap_allocation_data),
    dma_heap_allocation_data,
)

SINCE: dict[str, Version] = {}
VARIANTS: dict[str, type[Variant]] = {}
for_kernel = kernel_views(__name__)
variant = variant_views(__name__)
