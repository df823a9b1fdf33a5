# SPDX-License-Identifier: MIT
"""include/uapi/linux/wrapfd.h of Android's common kernels (android15-6.6 and newer).

A wrap is a file descriptor around a dma-buf, whose content can be loaded, moved to another wrap and
taken away. WRAP is a request of /dev/wrapfd, every other one of the wrap. Other requests of a wrap
go to its dma-buf. All reserved fields are 0.
"""

from __future__ import annotations

from ctypes import c_int64, c_uint32, c_uint64

from npukit.ioctl import IO, IOW, IOWR, Ioctl, Struct

from .versions import Variant, variant_views

WRAPFD_DEV_IOC = 0xBC

# state of wrapfd_get_state
WRAPFD_CONTENT_EMPTY = 0
WRAPFD_CONTENT_RDONLY = 1
WRAPFD_CONTENT_RDWR = 2


class wrapfd_wrap(Struct):
    """``prot`` is PROT_READ and PROT_WRITE."""

    _size_ = 16
    _fields_ = [("fd", c_uint32), ("prot", c_uint32), ("reserved", c_uint64)]


class wrapfd_get_state(Struct):
    """``state`` comes back."""

    _size_ = 16
    _fields_ = [("state", c_uint32), ("pad", c_uint32), ("reserved", c_uint64)]


class wrapfd_load(Struct):
    """``len`` bytes of the file ``fd``, opened with O_DIRECT; offsets in bytes."""

    _size_ = 40
    _fields_ = [
        ("fd", c_uint32),
        ("pad", c_uint32),
        ("file_offs", c_uint64),
        ("buf_offs", c_uint64),
        ("len", c_uint64),
        ("reserved", c_uint64),
    ]


class wrapfd_rewrap(Struct):
    """``prot`` is PROT_READ and PROT_WRITE."""

    _size_ = 16
    _fields_ = [("prot", c_uint32), ("pad", c_uint32), ("reserved", c_uint64)]


# WRAP and REWRAP answer with the new file descriptor.
WRAPFD_DEV_IOC_WRAP = Ioctl(
    "WRAPFD_DEV_IOC_WRAP", IOW(WRAPFD_DEV_IOC, 0, wrapfd_wrap), wrapfd_wrap, returns="value"
)
WRAPFD_DEV_IOC_GET_STATE = Ioctl(
    "WRAPFD_DEV_IOC_GET_STATE",
    IOWR(WRAPFD_DEV_IOC, 1, wrapfd_get_state),
    wrapfd_get_state,
    restart=True,
)
WRAPFD_DEV_IOC_ACQUIRE_OWNERSHIP = Ioctl("WRAPFD_DEV_IOC_ACQUIRE_OWNERSHIP", IO(WRAPFD_DEV_IOC, 2))
WRAPFD_DEV_IOC_RELEASE_OWNERSHIP = Ioctl("WRAPFD_DEV_IOC_RELEASE_OWNERSHIP", IO(WRAPFD_DEV_IOC, 3))
WRAPFD_DEV_IOC_LOAD = Ioctl("WRAPFD_DEV_IOC_LOAD", IOW(WRAPFD_DEV_IOC, 4, wrapfd_load), wrapfd_load)
# EAGAIN says that another thread of the owner is at it: the caller decides.
WRAPFD_DEV_IOC_REWRAP = Ioctl(
    "WRAPFD_DEV_IOC_REWRAP", IOW(WRAPFD_DEV_IOC, 5, wrapfd_rewrap), wrapfd_rewrap, returns="value"
)
WRAPFD_DEV_IOC_EMPTY = Ioctl("WRAPFD_DEV_IOC_EMPTY", IO(WRAPFD_DEV_IOC, 6))
WRAPFD_DEV_IOC_ALLOW_GUESTS = Ioctl("WRAPFD_DEV_IOC_ALLOW_GUESTS", IO(WRAPFD_DEV_IOC, 7))
WRAPFD_DEV_IOC_PROHIBIT_GUESTS = Ioctl("WRAPFD_DEV_IOC_PROHIBIT_GUESTS", IO(WRAPFD_DEV_IOC, 8))


class generation_1(Variant):
    """64-bit fields; GET_STATE is a request of /dev/wrapfd and names the wrap.

    It is told by ENOTTY for GET_STATE on a wrap. WRAP has the same number, but a 64-bit ``fd``.
    """

    LACKS = frozenset({"WRAPFD_DEV_IOC_ACQUIRE_OWNERSHIP", "WRAPFD_DEV_IOC_RELEASE_OWNERSHIP"})

    class wrapfd_wrap(Struct):
        _size_ = 16
        _fields_ = [("fd", c_int64), ("prot", c_uint64)]

    class wrapfd_get_state(Struct):
        _size_ = 16
        _fields_ = [("fd", c_int64), ("state", c_uint64)]

    class wrapfd_load(Struct):
        _size_ = 32
        _fields_ = [
            ("fd", c_int64),
            ("file_offs", c_uint64),
            ("buf_offs", c_uint64),
            ("len", c_uint64),
        ]

    class wrapfd_rewrap(Struct):
        _size_ = 8
        _fields_ = [("prot", c_uint64)]

    WRAPFD_DEV_IOC_WRAP = Ioctl(
        "WRAPFD_DEV_IOC_WRAP", IOW(WRAPFD_DEV_IOC, 0, wrapfd_wrap), wrapfd_wrap, returns="value"
    )
    WRAPFD_DEV_IOC_GET_STATE = Ioctl(
        "WRAPFD_DEV_IOC_GET_STATE",
        IOWR(WRAPFD_DEV_IOC, 1, wrapfd_get_state),
        wrapfd_get_state,
        restart=True,
    )
    WRAPFD_DEV_IOC_GET = Ioctl("WRAPFD_DEV_IOC_GET", IO(WRAPFD_DEV_IOC, 2))
    WRAPFD_DEV_IOC_PUT = Ioctl("WRAPFD_DEV_IOC_PUT", IO(WRAPFD_DEV_IOC, 3))
    WRAPFD_DEV_IOC_LOAD = Ioctl(
        "WRAPFD_DEV_IOC_LOAD", IOW(WRAPFD_DEV_IOC, 4, wrapfd_load), wrapfd_load
    )
    WRAPFD_DEV_IOC_REWRAP = Ioctl(
        "WRAPFD_DEV_IOC_REWRAP",
        IOW(WRAPFD_DEV_IOC, 5, wrapfd_rewrap),
        wrapfd_rewrap,
        returns="value",
    )


class generation_1_reserved(Variant):
    """Between the two: 64-bit fields with a reserved word behind, GET_STATE on the wrap.

    Found in one vendor's kernel. All but WRAP are answered as in the final form.
    """

    LACKS = frozenset({"WRAPFD_DEV_IOC_ACQUIRE_OWNERSHIP", "WRAPFD_DEV_IOC_RELEASE_OWNERSHIP"})

    class wrapfd_wrap(Struct):
        _size_ = 24
        _fields_ = [("fd", c_int64), ("prot", c_uint64), ("reserved", c_uint64)]

    class wrapfd_get_state(Struct):
        _size_ = 16
        _fields_ = [("state", c_uint64), ("reserved", c_uint64)]

    class wrapfd_load(Struct):
        _size_ = 40
        _fields_ = [
            ("fd", c_int64),
            ("file_offs", c_uint64),
            ("buf_offs", c_uint64),
            ("len", c_uint64),
            ("reserved", c_uint64),
        ]

    class wrapfd_rewrap(Struct):
        _size_ = 16
        _fields_ = [("prot", c_uint64), ("reserved", c_uint64)]

    WRAPFD_DEV_IOC_WRAP = Ioctl(
        "WRAPFD_DEV_IOC_WRAP", IOW(WRAPFD_DEV_IOC, 0, wrapfd_wrap), wrapfd_wrap, returns="value"
    )
    WRAPFD_DEV_IOC_GET_STATE = Ioctl(
        "WRAPFD_DEV_IOC_GET_STATE",
        IOWR(WRAPFD_DEV_IOC, 1, wrapfd_get_state),
        wrapfd_get_state,
        restart=True,
    )
    WRAPFD_DEV_IOC_GET = Ioctl("WRAPFD_DEV_IOC_GET", IO(WRAPFD_DEV_IOC, 2))
    WRAPFD_DEV_IOC_PUT = Ioctl("WRAPFD_DEV_IOC_PUT", IO(WRAPFD_DEV_IOC, 3))
    WRAPFD_DEV_IOC_LOAD = Ioctl(
        "WRAPFD_DEV_IOC_LOAD", IOW(WRAPFD_DEV_IOC, 4, wrapfd_load), wrapfd_load
    )
    WRAPFD_DEV_IOC_REWRAP = Ioctl(
        "WRAPFD_DEV_IOC_REWRAP",
        IOW(WRAPFD_DEV_IOC, 5, wrapfd_rewrap),
        wrapfd_rewrap,
        returns="value",
    )


VARIANTS: dict[str, type[Variant]] = {
    "generation-1": generation_1,
    "generation-1-reserved": generation_1_reserved,
}
variant = variant_views(__name__)
