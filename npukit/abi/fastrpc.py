# SPDX-License-Identifier: MIT
"""include/uapi/misc/fastrpc.h: remote procedure calls to Qualcomm's DSPs, mainline driver.

The driver takes a request only with the exact size that its number states (ENOTTY else). Where it
asks the DSP, its answer may be the DSP's result and no errno: any value but 0 of a call with errno
0. INVOKE returns that value; for the others ``Ioctl.call`` shows it.

A call's arguments are counted by its scalars word, which every driver and the DSP read in one way:

    31..29   28..24   23..16        15..8         7..4         3..0
    attr     method   in buffers    out buffers   in handles   out handles

They stand in that order: in buffers, out buffers, in handles, out handles. A method above 30 is
called as 31, its number being the first word of the first in buffer. Source: drivers/misc/fastrpc.c
and remote.h of Qualcomm's user library, which agree; the REMOTE_SCALARS_* names are the library's.
"""

from __future__ import annotations

from ctypes import c_char, c_int32, c_uint8, c_uint32, c_uint64
from typing import NamedTuple, Self

from npukit.ioctl import IO, IOWR, Ioctl, Pointer, Struct

from .versions import Variant, Version, kernel_views, variant_views

# enum fastrpc_map_flags: flags of fastrpc_mem_map
FASTRPC_MAP_STATIC = 0
FASTRPC_MAP_RESERVED = 1
FASTRPC_MAP_FD = 2
FASTRPC_MAP_FD_DELAYED = 3
FASTRPC_MAP_FD_NOMAP = 16
FASTRPC_MAP_MAX = 17

# enum fastrpc_proc_attr: attrs of fastrpc_init_create
FASTRPC_MODE_DEBUG = 1 << 0
FASTRPC_MODE_PTRACE = 1 << 1
FASTRPC_MODE_CRC = 1 << 2
FASTRPC_MODE_UNSIGNED_MODULE = 1 << 3
FASTRPC_MODE_ADAPTIVE_QOS = 1 << 4
FASTRPC_MODE_SYSTEM_PROCESS = 1 << 5
FASTRPC_MODE_PRIVILEGED = 1 << 6

FASTRPC_ATTR_SECUREMAP = 1
"""attr of fastrpc_invoke_args; mainline looks at no other bit."""

# request_id of fastrpc_ioctl_set_option, then its values
FASTRPC_POLL_MODE = 1
FASTRPC_POLL_MODE_DISABLE = 0
FASTRPC_POLL_MODE_ENABLE = 1

# What the header leaves to others
ADSP_MMAP_ADD_PAGES = 0x1000
"""flags of fastrpc_req_mmap, the only ones that are taken (drivers/misc/fastrpc.c)."""
# enum remote_dsp_attributes of Qualcomm's remote.h: attribute_id of fastrpc_ioctl_capability
DOMAIN_SUPPORT = 0
UNSIGNED_PD_SUPPORT = 1
HVX_SUPPORT_64B = 2
HVX_SUPPORT_128B = 3
VTCM_PAGE = 4
VTCM_COUNT = 5
ARCH_VER = 6
HMX_SUPPORT_DEPTH = 7
HMX_SUPPORT_SPATIAL = 8
ASYNC_FASTRPC_SUPPORT = 9
STATUS_NOTIFICATION_SUPPORT = 10
MCID_MULTICAST = 11


def REMOTE_SCALARS_MAKEX(attr: int, method: int, ins: int, outs: int, oin: int, oout: int) -> int:
    """The scalars word; ValueError when a part does not fit its bits."""
    word = 0
    for name, value, bits in (
        ("attr", attr, 3),
        ("method", method, 5),
        ("in buffers", ins, 8),
        ("out buffers", outs, 8),
        ("in handles", oin, 4),
        ("out handles", oout, 4),
    ):
        if not 0 <= value < 1 << bits:
            raise ValueError(f"{name} {value} does not fit in {bits} bits of a scalars word")
        word = word << bits | value
    return word


def REMOTE_SCALARS_MAKE(method: int, ins: int, outs: int) -> int:
    """The scalars word of a call without handles."""
    return REMOTE_SCALARS_MAKEX(0, method, ins, outs, 0, 0)


def REMOTE_SCALARS_METHOD_ATTR(sc: int) -> int:
    return sc >> 29 & 0x7


def REMOTE_SCALARS_METHOD(sc: int) -> int:
    return sc >> 24 & 0x1F


def REMOTE_SCALARS_INBUFS(sc: int) -> int:
    return sc >> 16 & 0xFF


def REMOTE_SCALARS_OUTBUFS(sc: int) -> int:
    return sc >> 8 & 0xFF


def REMOTE_SCALARS_INHANDLES(sc: int) -> int:
    return sc >> 4 & 0xF


def REMOTE_SCALARS_OUTHANDLES(sc: int) -> int:
    return sc & 0xF


def REMOTE_SCALARS_LENGTH(sc: int) -> int:
    """How many arguments the call has."""
    return (
        REMOTE_SCALARS_INBUFS(sc)
        + REMOTE_SCALARS_OUTBUFS(sc)
        + REMOTE_SCALARS_INHANDLES(sc)
        + REMOTE_SCALARS_OUTHANDLES(sc)
    )


class Scalars(NamedTuple):
    """A scalars word taken apart: ``Scalars.of(word)``; ``scalars(*parts)`` makes it again."""

    method: int
    in_bufs: int
    out_bufs: int
    in_handles: int
    out_handles: int
    attr: int

    @classmethod
    def of(cls, word: int) -> Self:
        """ValueError when ``word`` does not fit in 32 bits."""
        if not 0 <= word < 1 << 32:
            raise ValueError(f"{word:#x} is no scalars word of 32 bits")
        return cls(
            REMOTE_SCALARS_METHOD(word),
            REMOTE_SCALARS_INBUFS(word),
            REMOTE_SCALARS_OUTBUFS(word),
            REMOTE_SCALARS_INHANDLES(word),
            REMOTE_SCALARS_OUTHANDLES(word),
            REMOTE_SCALARS_METHOD_ATTR(word),
        )


def scalars(
    method: int,
    in_bufs: int = 0,
    out_bufs: int = 0,
    in_handles: int = 0,
    out_handles: int = 0,
    attr: int = 0,
) -> int:
    """The scalars word of a call; Scalars.of takes it apart.

    ``method`` is what the word holds: 31 for all methods from 31 on. ValueError when a part does
    not fit its bits.
    """
    return REMOTE_SCALARS_MAKEX(attr, method, in_bufs, out_bufs, in_handles, out_handles)


class fastrpc_invoke_args(Struct):
    """A buffer at ``ptr``, ``length`` bytes; ``fd`` its dma-buf, or -1 (0 counts as none, too).

    Of a handle ``fd`` is the dma-buf, and the low 32 bits of ``ptr`` are the offset in it. Which of
    them the DSP reads and which it fills is told by the argument's place.
    """

    _size_ = 24
    _fields_ = [("ptr", c_uint64), ("length", c_uint64), ("fd", c_int32), ("attr", c_uint32)]
    _pointers_ = {"ptr": Pointer(c_uint8, count="length", direction="inout")}


class fastrpc_invoke(Struct):
    """``handle`` of a module, ``sc`` a scalars word, which counts ``args``."""

    _size_ = 16
    _fields_ = [("handle", c_uint32), ("sc", c_uint32), ("args", c_uint64)]
    _pointers_ = {"args": Pointer(fastrpc_invoke_args, count="nscalars")}

    @property
    def nscalars(self) -> int:
        """How many arguments the scalars word announces."""
        return REMOTE_SCALARS_LENGTH(int(self.sc))


class fastrpc_init_create(Struct):
    """A protection domain. Its shell: ``filelen`` bytes at ``file``, in dma-buf ``filefd`` or 0."""

    _size_ = 24
    _fields_ = [
        ("filelen", c_uint32),
        ("filefd", c_int32),
        ("attrs", c_uint32),
        ("siglen", c_uint32),
        ("file", c_uint64),
    ]
    _pointers_ = {"file": Pointer(c_uint8, count="filelen")}


class fastrpc_init_create_static(Struct):
    """``namelen`` counts the final zero. Linux 7.3 ignores ``memlen``."""

    _size_ = 16
    _fields_ = [("namelen", c_uint32), ("memlen", c_uint32), ("name", c_uint64)]
    _pointers_ = {"name": Pointer(c_char, count="namelen")}


class fastrpc_alloc_dma_buf(Struct):
    """``size`` in bytes, of whole pages if it is to be mapped; ``fd``, a dma-buf, comes back."""

    _size_ = 16
    _fields_ = [("fd", c_int32), ("flags", c_uint32), ("size", c_uint64)]


class fastrpc_req_mmap(Struct):
    """Memory for the heap of the DSP process: ``fd`` is ignored, ``vaddrin`` 0.

    ``vaddrout``, an address of the DSP, comes back.
    """

    _size_ = 32
    _fields_ = [
        ("fd", c_int32),
        ("flags", c_uint32),
        ("vaddrin", c_uint64),
        ("size", c_uint64),
        ("vaddrout", c_uint64),
    ]


class fastrpc_mem_map(Struct):
    """Give a dma-buf to the DSP process. ``vaddrout``, an address of the DSP, comes back.

    ``vaddrin`` is told to the DSP; the kernel does not follow it.
    """

    _size_ = 64
    _fields_ = [
        ("version", c_int32),
        ("fd", c_int32),
        ("offset", c_int32),
        ("flags", c_uint32),
        ("vaddrin", c_uint64),
        ("length", c_uint64),
        ("vaddrout", c_uint64),
        ("attrs", c_int32),
        ("reserved", c_int32 * 4),
    ]


class fastrpc_req_munmap(Struct):
    """Exactly what MMAP gave."""

    _size_ = 16
    _fields_ = [("vaddrout", c_uint64), ("size", c_uint64)]


class fastrpc_mem_unmap(Struct):
    """``vaddr`` is what MEM_MAP gave, ``fd`` its dma-buf or negative. (``vesion``: so it is.)"""

    _size_ = 48
    _fields_ = [
        ("vesion", c_int32),
        ("fd", c_int32),
        ("vaddr", c_uint64),
        ("length", c_uint64),
        ("reserved", c_int32 * 5),
    ]


class fastrpc_ioctl_set_option(Struct):
    _size_ = 32
    _fields_ = [("request_id", c_uint32), ("value", c_uint32), ("reserved", c_int32 * 6)]


class fastrpc_ioctl_capability(Struct):
    """``capability`` comes back; older drivers write it over the first word instead."""

    _size_ = 28
    _fields_ = [
        ("unused", c_uint32),
        ("attribute_id", c_uint32),
        ("capability", c_uint32),
        ("reserved", c_uint32 * 4),
    ]


FASTRPC_IOCTL_ALLOC_DMA_BUFF = Ioctl(
    "FASTRPC_IOCTL_ALLOC_DMA_BUFF", IOWR("R", 1, fastrpc_alloc_dma_buf), fastrpc_alloc_dma_buf
)
# No kernel has ever answered it: a buffer is freed by closing its file descriptor.
FASTRPC_IOCTL_FREE_DMA_BUFF = Ioctl("FASTRPC_IOCTL_FREE_DMA_BUFF", IOWR("R", 2, 4), c_uint32)
# Not one to repeat: the DSP may have done the work when a signal ends the wait.
FASTRPC_IOCTL_INVOKE = Ioctl(
    "FASTRPC_IOCTL_INVOKE", IOWR("R", 3, fastrpc_invoke), fastrpc_invoke, returns="value"
)
FASTRPC_IOCTL_INIT_ATTACH = Ioctl("FASTRPC_IOCTL_INIT_ATTACH", IO("R", 4))
FASTRPC_IOCTL_INIT_CREATE = Ioctl(
    "FASTRPC_IOCTL_INIT_CREATE", IOWR("R", 5, fastrpc_init_create), fastrpc_init_create
)
FASTRPC_IOCTL_MMAP = Ioctl("FASTRPC_IOCTL_MMAP", IOWR("R", 6, fastrpc_req_mmap), fastrpc_req_mmap)
FASTRPC_IOCTL_MUNMAP = Ioctl(
    "FASTRPC_IOCTL_MUNMAP", IOWR("R", 7, fastrpc_req_munmap), fastrpc_req_munmap
)
FASTRPC_IOCTL_INIT_ATTACH_SNS = Ioctl("FASTRPC_IOCTL_INIT_ATTACH_SNS", IO("R", 8))
FASTRPC_IOCTL_INIT_CREATE_STATIC = Ioctl(
    "FASTRPC_IOCTL_INIT_CREATE_STATIC",
    IOWR("R", 9, fastrpc_init_create_static),
    fastrpc_init_create_static,
)
FASTRPC_IOCTL_MEM_MAP = Ioctl(
    "FASTRPC_IOCTL_MEM_MAP", IOWR("R", 10, fastrpc_mem_map), fastrpc_mem_map
)
FASTRPC_IOCTL_MEM_UNMAP = Ioctl(
    "FASTRPC_IOCTL_MEM_UNMAP", IOWR("R", 11, fastrpc_mem_unmap), fastrpc_mem_unmap
)
FASTRPC_IOCTL_SET_OPTION = Ioctl(
    "FASTRPC_IOCTL_SET_OPTION", IOWR("R", 12, fastrpc_ioctl_set_option), fastrpc_ioctl_set_option
)
FASTRPC_IOCTL_GET_DSP_INFO = Ioctl(
    "FASTRPC_IOCTL_GET_DSP_INFO",
    IOWR("R", 13, fastrpc_ioctl_capability),
    fastrpc_ioctl_capability,
    restart=True,
)


class before_6_19(Variant):
    """The driver checked which DSP was meant: 3 is the CDSP."""

    UNTIL = (6, 19)

    class fastrpc_ioctl_capability(Struct):
        _size_ = 28
        _fields_ = [
            ("domain", c_uint32),
            ("attribute_id", c_uint32),
            ("capability", c_uint32),
            ("reserved", c_uint32 * 4),
        ]

    FASTRPC_IOCTL_GET_DSP_INFO = Ioctl(
        "FASTRPC_IOCTL_GET_DSP_INFO",
        IOWR("R", 13, fastrpc_ioctl_capability),
        fastrpc_ioctl_capability,
        restart=True,
    )


class multimode(Variant):
    """The driver that Qualcomm ships: number 12 is a request of its own, more follow."""

    HEADER = "fastrpc_multimode"
    LACKS = frozenset(
        {
            "FASTRPC_IOCTL_SET_OPTION",
            "fastrpc_ioctl_set_option",
            "FASTRPC_POLL_MODE",
            "FASTRPC_POLL_MODE_DISABLE",
            "FASTRPC_POLL_MODE_ENABLE",
        }
    )


class adsprpc(Variant):
    """Its predecessor, /dev/adsprpc-smd: other numbers, other structures."""

    HEADER = "adsprpc"
    WHOLE = True


SINCE: dict[str, Version] = {
    "fastrpc_init_create_static": (6, 2),
    "FASTRPC_IOCTL_INIT_CREATE_STATIC": (6, 2),
    "fastrpc_ioctl_set_option": (7, 3),
    "FASTRPC_IOCTL_SET_OPTION": (7, 3),
    "FASTRPC_POLL_MODE": (7, 3),
    "FASTRPC_POLL_MODE_DISABLE": (7, 3),
    "FASTRPC_POLL_MODE_ENABLE": (7, 3),
}
VARIANTS: dict[str, type[Variant]] = {
    "before 6.19": before_6_19,
    "multimode": multimode,
    "adsprpc": adsprpc,
}
for_kernel = kernel_views(__name__)
variant = variant_views(__name__)
