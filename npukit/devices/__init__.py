# SPDX-License-Identifier: MIT
"""Open devices: find them, allocate, map, synchronize, submit, wait, close."""

from .base import Buffer, Device, Memory
from .discover import DRIVABLE, Found, discover, open_device
from .dma_buf import DmaBuf
from .dma_heap import DmaHeap
from .fence import SyncFile
from .rknpu import RknpuBuffer, RknpuDevice
from .rocket import RocketBuffer, RocketDevice, RocketJob
from .udmabuf import Udmabuf

__all__ = [
    "DRIVABLE",
    "Buffer",
    "Device",
    "DmaBuf",
    "DmaHeap",
    "Found",
    "Memory",
    "RknpuBuffer",
    "RknpuDevice",
    "RocketBuffer",
    "RocketDevice",
    "RocketJob",
    "SyncFile",
    "Udmabuf",
    "discover",
    "open_device",
]
