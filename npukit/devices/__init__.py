# SPDX-License-Identifier: MIT
"""Open devices: find them, allocate, map, synchronize, submit, wait, close."""

from .amdxdna import AmdxdnaBuffer, AmdxdnaDevice
from .base import Buffer, Device, Memory
from .discover import DRIVABLE, Found, discover, open_device
from .dma_buf import DmaBuf
from .dma_heap import DmaHeap
from .fastrpc import DmaBuffer, FastRpcDevice
from .fence import SyncFile
from .rknpu import RknpuBuffer, RknpuDevice
from .rocket import RocketBuffer, RocketDevice, RocketJob
from .udmabuf import Udmabuf
from .wrapfd import Wrap, Wrapfd, WrapState

__all__ = [
    "DRIVABLE",
    "AmdxdnaBuffer",
    "AmdxdnaDevice",
    "Buffer",
    "Device",
    "DmaBuf",
    "DmaBuffer",
    "DmaHeap",
    "FastRpcDevice",
    "Found",
    "Memory",
    "RknpuBuffer",
    "RknpuDevice",
    "RocketBuffer",
    "RocketDevice",
    "RocketJob",
    "SyncFile",
    "Udmabuf",
    "Wrap",
    "WrapState",
    "Wrapfd",
    "discover",
    "open_device",
]
