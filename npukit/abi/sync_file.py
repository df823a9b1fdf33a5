# SPDX-License-Identifier: MIT
"""include/uapi/linux/sync_file.h: fences as file descriptors."""

from __future__ import annotations

from ctypes import c_char, c_int32, c_uint32, c_uint64

from npukit.ioctl import IOW, IOWR, Ioctl, Pointer, Struct

from .versions import Variant, Version, kernel_views, variant_views

SYNC_IOC_MAGIC = ord(">")


class sync_merge_data(Struct):
    """``fd2`` is merged with the fence that is asked; ``fence`` comes back."""

    _size_ = 48
    _fields_ = [
        ("name", c_char * 32),
        ("fd2", c_int32),
        ("fence", c_int32),
        ("flags", c_uint32),
        ("pad", c_uint32),
    ]


class sync_fence_info(Struct):
    """``status``: 1 signalled, 0 not yet, negative an errno."""

    _size_ = 80
    _fields_ = [
        ("obj_name", c_char * 32),
        ("driver_name", c_char * 32),
        ("status", c_int32),
        ("flags", c_uint32),
        ("timestamp_ns", c_uint64),
    ]


class sync_file_info(Struct):
    """``num_fences`` 0 asks how many there are; then ``sync_fence_info`` takes that many."""

    _size_ = 56
    _fields_ = [
        ("name", c_char * 32),
        ("status", c_int32),
        ("flags", c_uint32),
        ("num_fences", c_uint32),
        ("pad", c_uint32),
        ("sync_fence_info", c_uint64),
    ]
    _pointers_ = {"sync_fence_info": Pointer(sync_fence_info, count="num_fences", direction="out")}


class sync_set_deadline(Struct):
    _size_ = 16
    _fields_ = [("deadline_ns", c_uint64), ("pad", c_uint64)]


SYNC_IOC_MERGE = Ioctl("SYNC_IOC_MERGE", IOWR(SYNC_IOC_MAGIC, 3, sync_merge_data), sync_merge_data)
SYNC_IOC_FILE_INFO = Ioctl(
    "SYNC_IOC_FILE_INFO", IOWR(SYNC_IOC_MAGIC, 4, sync_file_info), sync_file_info
)
SYNC_IOC_SET_DEADLINE = Ioctl(
    "SYNC_IOC_SET_DEADLINE", IOW(SYNC_IOC_MAGIC, 5, sync_set_deadline), sync_set_deadline
)

SINCE: dict[str, Version] = {
    "sync_set_deadline": (6, 8),
    "SYNC_IOC_SET_DEADLINE": (6, 8),
}
VARIANTS: dict[str, type[Variant]] = {}
for_kernel = kernel_views(__name__)
variant = variant_views(__name__)
