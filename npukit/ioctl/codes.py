# SPDX-License-Identifier: MIT
"""Request numbers, as include/uapi/asm-generic/ioctl.h encodes them.

    31..30      29..16     15..8   7..0
    direction   size       type    number

x86, ARM, RISC-V and LoongArch use this encoding; MIPS, PowerPC and SPARC, which have none of the
NPUs that npukit knows, use another. Every number here is positive, so it compares with what strace
prints.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

IOC_NONE = 0
IOC_WRITE = 1
"""User space writes: the kernel reads the argument."""
IOC_READ = 2
"""User space reads: the kernel writes the argument."""

_NR_BITS, _TYPE_BITS, _SIZE_BITS, _DIRECTION_BITS = 8, 8, 14, 2
_TYPE_SHIFT = _NR_BITS
_SIZE_SHIFT = _TYPE_SHIFT + _TYPE_BITS
_DIRECTION_SHIFT = _SIZE_SHIFT + _SIZE_BITS

CType = type[ctypes.Structure] | type[ctypes.Union] | type["ctypes._SimpleCData[Any]"]


def _field(name: str, value: int, bits: int) -> int:
    if not 0 <= value < 1 << bits:
        raise ValueError(f"ioctl {name} {value:#x} does not fit in {bits} bits")
    return value


def IOC(direction: int, type: str | int, nr: int, size: int) -> int:
    """Encode a request number; ValueError when a part does not fit its bits."""
    letter = ord(type) if isinstance(type, str) else type
    return (
        _field("direction", direction, _DIRECTION_BITS) << _DIRECTION_SHIFT
        | _field("size", size, _SIZE_BITS) << _SIZE_SHIFT
        | _field("type", letter, _TYPE_BITS) << _TYPE_SHIFT
        | _field("number", nr, _NR_BITS)
    )


def _size(argument: CType | int) -> int:
    return argument if isinstance(argument, int) else ctypes.sizeof(argument)


def IO(type: str | int, nr: int) -> int:
    """A request without an argument structure."""
    return IOC(IOC_NONE, type, nr, 0)


def IOR(type: str | int, nr: int, argument: CType | int) -> int:
    """A request whose argument (a ctypes type, or its size in bytes) the kernel fills."""
    return IOC(IOC_READ, type, nr, _size(argument))


def IOW(type: str | int, nr: int, argument: CType | int) -> int:
    """A request whose argument (a ctypes type, or its size in bytes) the kernel reads."""
    return IOC(IOC_WRITE, type, nr, _size(argument))


def IOWR(type: str | int, nr: int, argument: CType | int) -> int:
    """A request whose argument (a ctypes type, or its size in bytes) goes both ways."""
    return IOC(IOC_READ | IOC_WRITE, type, nr, _size(argument))


class Decoded(NamedTuple):
    """The four parts of a request number. ``str()`` writes them as strace does."""

    direction: int
    type: int
    nr: int
    size: int

    def __str__(self) -> str:
        names = ("_IOC_NONE", "_IOC_WRITE", "_IOC_READ", "_IOC_READ|_IOC_WRITE")
        numbers = (hex(part) if part else "0" for part in self[1:])
        return f"_IOC({', '.join((names[self.direction], *numbers))})"


@functools.lru_cache(maxsize=1024)  # asked for at every call, of few numbers
def decode(number: int) -> Decoded:
    """Split a request number. A negative one (a signed 32-bit view of it) is accepted."""
    if not -(1 << 31) <= number < 1 << 32:
        raise ValueError(f"{number:#x} is not a 32-bit request number")
    number &= 0xFFFFFFFF
    return Decoded(
        number >> _DIRECTION_SHIFT,
        number >> _TYPE_SHIFT & (1 << _TYPE_BITS) - 1,
        number & (1 << _NR_BITS) - 1,
        number >> _SIZE_SHIFT & (1 << _SIZE_BITS) - 1,
    )
