# SPDX-License-Identifier: MIT
"""How one speaks to a kernel: request numbers, structures, requests, the one door, errors."""

from .codes import IO, IOC, IOC_NONE, IOC_READ, IOC_WRITE, IOR, IOW, IOWR, Decoded, decode
from .errors import (
    AbiMismatch,
    DeviceBusy,
    DeviceClosed,
    DeviceLost,
    DspError,
    NoDevice,
    NpuError,
    ProgramError,
    WaitTimeout,
)
from .faulty import Fault, FaultyKernel
from .kernel import Kernel, LinuxKernel
from .request import Ioctl
from .struct import Pointer, Struct, Union
from .tracing import KernelCall, TracingKernel

__all__ = [
    "IO",
    "IOC",
    "IOC_NONE",
    "IOC_READ",
    "IOC_WRITE",
    "IOR",
    "IOW",
    "IOWR",
    "AbiMismatch",
    "Decoded",
    "DeviceBusy",
    "DeviceClosed",
    "DeviceLost",
    "DspError",
    "Fault",
    "FaultyKernel",
    "Ioctl",
    "Kernel",
    "KernelCall",
    "LinuxKernel",
    "NoDevice",
    "NpuError",
    "Pointer",
    "ProgramError",
    "Struct",
    "TracingKernel",
    "Union",
    "WaitTimeout",
    "decode",
]
