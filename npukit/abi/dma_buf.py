# SPDX-License-Identifier: MIT
"""include/uapi/linux/dma-buf.h: CPU access brackets, names and fences of a dma-buf."""

from __future__ import annotations

from ctypes import c_int32, c_uint32, c_uint64

from npukit.ioctl import IOW, IOWR, Ioctl, Struct

from .versions import Variant, Version, kernel_views, variant_views

DMA_BUF_SYNC_READ = 1 << 0
DMA_BUF_SYNC_WRITE = 2 << 0
DMA_BUF_SYNC_RW = DMA_BUF_SYNC_READ | DMA_BUF_SYNC_WRITE
DMA_BUF_SYNC_START = 0 << 2
DMA_BUF_SYNC_END = 1 << 2
DMA_BUF_SYNC_VALID_FLAGS_MASK = DMA_BUF_SYNC_RW | DMA_BUF_SYNC_END
DMA_BUF_NAME_LEN = 32
DMA_BUF_BASE = ord("b")


class dma_buf_sync(Struct):
    _size_ = 8
    _fields_ = [("flags", c_uint64)]


class dma_buf_export_sync_file(Struct):
    _size_ = 8
    _fields_ = [("flags", c_uint32), ("fd", c_int32)]


class dma_buf_import_sync_file(Struct):
    _size_ = 8
    _fields_ = [("flags", c_uint32), ("fd", c_int32)]


# The driver may be interrupted while it waits for fences; a bracket may be opened or closed again.
DMA_BUF_IOCTL_SYNC = Ioctl(
    "DMA_BUF_IOCTL_SYNC", IOW(DMA_BUF_BASE, 0, dma_buf_sync), dma_buf_sync, restart=True
)
# Two spellings of one request: whatever size the number states, the argument is the name's address.
DMA_BUF_SET_NAME_A = Ioctl("DMA_BUF_SET_NAME_A", IOW(DMA_BUF_BASE, 1, 4))
DMA_BUF_SET_NAME_B = Ioctl("DMA_BUF_SET_NAME_B", IOW(DMA_BUF_BASE, 1, 8))
DMA_BUF_SET_NAME = Ioctl("DMA_BUF_SET_NAME", IOW(DMA_BUF_BASE, 1, 8))
DMA_BUF_IOCTL_EXPORT_SYNC_FILE = Ioctl(
    "DMA_BUF_IOCTL_EXPORT_SYNC_FILE",
    IOWR(DMA_BUF_BASE, 2, dma_buf_export_sync_file),
    dma_buf_export_sync_file,
)
DMA_BUF_IOCTL_IMPORT_SYNC_FILE = Ioctl(
    "DMA_BUF_IOCTL_IMPORT_SYNC_FILE",
    IOW(DMA_BUF_BASE, 3, dma_buf_import_sync_file),
    dma_buf_import_sync_file,
)

SINCE: dict[str, Version] = {}
VARIANTS: dict[str, type[Variant]] = {}
for_kernel = kernel_views(__name__)
variant = variant_views(__name__)
