# SPDX-License-Identifier: MIT
"""include/uapi/linux/udmabuf.h: make a dma-buf of memfd pages through /dev/udmabuf."""

from __future__ import annotations

from ctypes import c_uint32, c_uint64

from npukit.ioctl import IOW, Ioctl, Struct

from .versions import Variant, Version, kernel_views, variant_views

UDMABUF_FLAGS_CLOEXEC = 1


class udmabuf_create(Struct):
    """``offset`` and ``size`` in bytes, both whole pages; the memfd sealed F_SEAL_SHRINK."""

    _size_ = 24
    _fields_ = [
        ("memfd", c_uint32),
        ("flags", c_uint32),
        ("offset", c_uint64),
        ("size", c_uint64),
    ]


class udmabuf_create_item(Struct):
    _size_ = 24
    _fields_ = [
        ("memfd", c_uint32),
        ("__pad", c_uint32),
        ("offset", c_uint64),
        ("size", c_uint64),
    ]


class udmabuf_create_list(Struct):
    _size_ = 8
    _tail_ = ("list", "count")
    _fields_ = [
        ("flags", c_uint32),
        ("count", c_uint32),
        ("list", udmabuf_create_item * 0),
    ]


UDMABUF_CREATE = Ioctl(
    "UDMABUF_CREATE", IOW("u", 0x42, udmabuf_create), udmabuf_create, returns="value"
)
UDMABUF_CREATE_LIST = Ioctl(
    "UDMABUF_CREATE_LIST", IOW("u", 0x43, udmabuf_create_list), udmabuf_create_list, returns="value"
)

SINCE: dict[str, Version] = {}
VARIANTS: dict[str, type[Variant]] = {}
for_kernel = kernel_views(__name__)
variant = variant_views(__name__)
