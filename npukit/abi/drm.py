# SPDX-License-Identifier: MIT
"""include/uapi/drm/drm.h: the requests that every DRM and accel driver answers.

Those of display hardware, AGP and the maps and locks of the last century are left out.
"""

from __future__ import annotations

from ctypes import c_char, c_int32, c_int64, c_uint32, c_uint64

from npukit.ioctl import IOW, IOWR, Ioctl, Pointer, Struct

DRM_IOCTL_BASE = ord("d")
DRM_COMMAND_BASE = 0x40
"""First number of a driver's own requests."""
DRM_COMMAND_END = 0xA0

DRM_CLOEXEC = 0o2000000
"""O_CLOEXEC."""
DRM_RDWR = 2
"""O_RDWR."""

DRM_CAP_ADDFB2_MODIFIERS = 0x10
DRM_CAP_ASYNC_PAGE_FLIP = 0x7
DRM_CAP_ATOMIC_ASYNC_PAGE_FLIP = 0x15
DRM_CAP_CRTC_IN_VBLANK_EVENT = 0x12
DRM_CAP_CURSOR_HEIGHT = 0x9
DRM_CAP_CURSOR_WIDTH = 0x8
DRM_CAP_DUMB_BUFFER = 0x1
DRM_CAP_DUMB_PREFERRED_DEPTH = 0x3
DRM_CAP_DUMB_PREFER_SHADOW = 0x4
DRM_CAP_PAGE_FLIP_TARGET = 0x11
DRM_CAP_PRIME = 0x5
DRM_CAP_SYNCOBJ = 0x13
DRM_CAP_SYNCOBJ_TIMELINE = 0x14
DRM_CAP_TIMESTAMP_MONOTONIC = 0x6
DRM_CAP_VBLANK_HIGH_CRTC = 0x2
DRM_CLIENT_CAP_ASPECT_RATIO = 0x4
DRM_CLIENT_CAP_ATOMIC = 0x3
DRM_CLIENT_CAP_CURSOR_PLANE_HOTSPOT = 0x6
DRM_CLIENT_CAP_PLANE_COLOR_PIPELINE = 0x7
DRM_CLIENT_CAP_STEREO_3D = 0x1
DRM_CLIENT_CAP_UNIVERSAL_PLANES = 0x2
DRM_CLIENT_CAP_WRITEBACK_CONNECTORS = 0x5
DRM_CLIENT_NAME_MAX_LEN = 0x40
DRM_PRIME_CAP_EXPORT = 0x2
DRM_PRIME_CAP_IMPORT = 0x1
DRM_SYNCOBJ_CREATE_SIGNALED = 0x1
DRM_SYNCOBJ_FD_TO_HANDLE_FLAGS_IMPORT_SYNC_FILE = 0x1
DRM_SYNCOBJ_FD_TO_HANDLE_FLAGS_TIMELINE = 0x2
DRM_SYNCOBJ_HANDLE_TO_FD_FLAGS_EXPORT_SYNC_FILE = 0x1
DRM_SYNCOBJ_HANDLE_TO_FD_FLAGS_TIMELINE = 0x2
DRM_SYNCOBJ_QUERY_FLAGS_LAST_SUBMITTED = 0x1
DRM_SYNCOBJ_WAIT_FLAGS_WAIT_ALL = 0x1
DRM_SYNCOBJ_WAIT_FLAGS_WAIT_AVAILABLE = 0x4
DRM_SYNCOBJ_WAIT_FLAGS_WAIT_DEADLINE = 0x8
DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT = 0x2


class drm_version(Struct):
    """Each string: its buffer's length in, its real length out, whatever was copied."""

    _size_ = 64
    _fields_ = [
        ("version_major", c_int32),
        ("version_minor", c_int32),
        ("version_patchlevel", c_int32),
        ("name_len", c_uint64),
        ("name", c_uint64),
        ("date_len", c_uint64),
        ("date", c_uint64),
        ("desc_len", c_uint64),
        ("desc", c_uint64),
    ]
    _pointers_ = {
        "name": Pointer(c_char, count="name_len", direction="out"),
        "date": Pointer(c_char, count="date_len", direction="out"),
        "desc": Pointer(c_char, count="desc_len", direction="out"),
    }


class drm_unique(Struct):
    _size_ = 16
    _fields_ = [
        ("unique_len", c_uint64),
        ("unique", c_uint64),
    ]
    _pointers_ = {"unique": Pointer(c_char, count="unique_len", direction="out")}


class drm_gem_close(Struct):
    _size_ = 8
    _fields_ = [
        ("handle", c_uint32),
        ("pad", c_uint32),
    ]


class drm_gem_flink(Struct):
    _size_ = 8
    _fields_ = [
        ("handle", c_uint32),
        ("name", c_uint32),
    ]


class drm_gem_open(Struct):
    _size_ = 16
    _fields_ = [
        ("name", c_uint32),
        ("handle", c_uint32),
        ("size", c_uint64),
    ]


class drm_get_cap(Struct):
    """``value`` comes back."""

    _size_ = 16
    _fields_ = [
        ("capability", c_uint64),
        ("value", c_uint64),
    ]


class drm_set_client_cap(Struct):
    _size_ = 16
    _fields_ = [
        ("capability", c_uint64),
        ("value", c_uint64),
    ]


class drm_prime_handle(Struct):
    """``flags`` are O_CLOEXEC and O_RDWR."""

    _size_ = 12
    _fields_ = [
        ("handle", c_uint32),
        ("flags", c_uint32),
        ("fd", c_int32),
    ]


class drm_syncobj_create(Struct):
    _size_ = 8
    _fields_ = [
        ("handle", c_uint32),
        ("flags", c_uint32),
    ]


class drm_syncobj_destroy(Struct):
    _size_ = 8
    _fields_ = [
        ("handle", c_uint32),
        ("pad", c_uint32),
    ]


class drm_syncobj_handle(Struct):
    _size_ = 24
    _fields_ = [
        ("handle", c_uint32),
        ("flags", c_uint32),
        ("fd", c_int32),
        ("pad", c_uint32),
        ("point", c_uint64),
    ]


class drm_syncobj_wait(Struct):
    """``timeout_nsec`` is absolute, CLOCK_MONOTONIC."""

    _size_ = 40
    _fields_ = [
        ("handles", c_uint64),
        ("timeout_nsec", c_int64),
        ("count_handles", c_uint32),
        ("flags", c_uint32),
        ("first_signaled", c_uint32),
        ("pad", c_uint32),
        ("deadline_nsec", c_uint64),
    ]
    _pointers_ = {"handles": Pointer(c_uint32, count="count_handles")}


class drm_syncobj_array(Struct):
    _size_ = 16
    _fields_ = [
        ("handles", c_uint64),
        ("count_handles", c_uint32),
        ("pad", c_uint32),
    ]
    _pointers_ = {"handles": Pointer(c_uint32, count="count_handles")}


class drm_syncobj_timeline_wait(Struct):
    """``timeout_nsec`` is absolute, CLOCK_MONOTONIC."""

    _size_ = 48
    _fields_ = [
        ("handles", c_uint64),
        ("points", c_uint64),
        ("timeout_nsec", c_int64),
        ("count_handles", c_uint32),
        ("flags", c_uint32),
        ("first_signaled", c_uint32),
        ("pad", c_uint32),
        ("deadline_nsec", c_uint64),
    ]
    _pointers_ = {
        "handles": Pointer(c_uint32, count="count_handles"),
        "points": Pointer(c_uint64, count="count_handles"),
    }


class drm_syncobj_timeline_array(Struct):
    _size_ = 24
    _fields_ = [
        ("handles", c_uint64),
        ("points", c_uint64),
        ("count_handles", c_uint32),
        ("flags", c_uint32),
    ]
    _pointers_ = {
        "handles": Pointer(c_uint32, count="count_handles"),
        "points": Pointer(c_uint64, count="count_handles", direction="inout"),
    }


class drm_syncobj_transfer(Struct):
    _size_ = 32
    _fields_ = [
        ("src_handle", c_uint32),
        ("dst_handle", c_uint32),
        ("src_point", c_uint64),
        ("dst_point", c_uint64),
        ("flags", c_uint32),
        ("pad", c_uint32),
    ]


class drm_syncobj_eventfd(Struct):
    _size_ = 24
    _fields_ = [
        ("handle", c_uint32),
        ("flags", c_uint32),
        ("point", c_uint64),
        ("fd", c_int32),
        ("pad", c_uint32),
    ]


class drm_set_client_name(Struct):
    """At most DRM_CLIENT_NAME_MAX_LEN bytes, printable; length 0 unsets."""

    _size_ = 16
    _fields_ = [
        ("name_len", c_uint64),
        ("name", c_uint64),
    ]
    _pointers_ = {"name": Pointer(c_char, count="name_len")}


class drm_gem_change_handle(Struct):
    _size_ = 8
    _fields_ = [
        ("handle", c_uint32),
        ("new_handle", c_uint32),
    ]


# A wait with an absolute timeout, and a question, may be asked again after a signal.
DRM_IOCTL_VERSION = Ioctl(
    "DRM_IOCTL_VERSION", IOWR(DRM_IOCTL_BASE, 0x00, drm_version), drm_version, restart=True
)
DRM_IOCTL_GET_UNIQUE = Ioctl(
    "DRM_IOCTL_GET_UNIQUE", IOWR(DRM_IOCTL_BASE, 0x01, drm_unique), drm_unique
)
DRM_IOCTL_GEM_CLOSE = Ioctl(
    "DRM_IOCTL_GEM_CLOSE", IOW(DRM_IOCTL_BASE, 0x09, drm_gem_close), drm_gem_close
)
DRM_IOCTL_GEM_FLINK = Ioctl(
    "DRM_IOCTL_GEM_FLINK", IOWR(DRM_IOCTL_BASE, 0x0A, drm_gem_flink), drm_gem_flink
)
DRM_IOCTL_GEM_OPEN = Ioctl(
    "DRM_IOCTL_GEM_OPEN", IOWR(DRM_IOCTL_BASE, 0x0B, drm_gem_open), drm_gem_open
)
DRM_IOCTL_GET_CAP = Ioctl(
    "DRM_IOCTL_GET_CAP", IOWR(DRM_IOCTL_BASE, 0x0C, drm_get_cap), drm_get_cap, restart=True
)
DRM_IOCTL_SET_CLIENT_CAP = Ioctl(
    "DRM_IOCTL_SET_CLIENT_CAP", IOW(DRM_IOCTL_BASE, 0x0D, drm_set_client_cap), drm_set_client_cap
)
DRM_IOCTL_PRIME_HANDLE_TO_FD = Ioctl(
    "DRM_IOCTL_PRIME_HANDLE_TO_FD", IOWR(DRM_IOCTL_BASE, 0x2D, drm_prime_handle), drm_prime_handle
)
DRM_IOCTL_PRIME_FD_TO_HANDLE = Ioctl(
    "DRM_IOCTL_PRIME_FD_TO_HANDLE", IOWR(DRM_IOCTL_BASE, 0x2E, drm_prime_handle), drm_prime_handle
)
DRM_IOCTL_SYNCOBJ_CREATE = Ioctl(
    "DRM_IOCTL_SYNCOBJ_CREATE", IOWR(DRM_IOCTL_BASE, 0xBF, drm_syncobj_create), drm_syncobj_create
)
DRM_IOCTL_SYNCOBJ_DESTROY = Ioctl(
    "DRM_IOCTL_SYNCOBJ_DESTROY",
    IOWR(DRM_IOCTL_BASE, 0xC0, drm_syncobj_destroy),
    drm_syncobj_destroy,
)
DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD = Ioctl(
    "DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD",
    IOWR(DRM_IOCTL_BASE, 0xC1, drm_syncobj_handle),
    drm_syncobj_handle,
)
DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE = Ioctl(
    "DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE",
    IOWR(DRM_IOCTL_BASE, 0xC2, drm_syncobj_handle),
    drm_syncobj_handle,
)
DRM_IOCTL_SYNCOBJ_WAIT = Ioctl(
    "DRM_IOCTL_SYNCOBJ_WAIT",
    IOWR(DRM_IOCTL_BASE, 0xC3, drm_syncobj_wait),
    drm_syncobj_wait,
    restart=True,
)
DRM_IOCTL_SYNCOBJ_RESET = Ioctl(
    "DRM_IOCTL_SYNCOBJ_RESET", IOWR(DRM_IOCTL_BASE, 0xC4, drm_syncobj_array), drm_syncobj_array
)
DRM_IOCTL_SYNCOBJ_SIGNAL = Ioctl(
    "DRM_IOCTL_SYNCOBJ_SIGNAL", IOWR(DRM_IOCTL_BASE, 0xC5, drm_syncobj_array), drm_syncobj_array
)
DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT = Ioctl(
    "DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT",
    IOWR(DRM_IOCTL_BASE, 0xCA, drm_syncobj_timeline_wait),
    drm_syncobj_timeline_wait,
    restart=True,
)
DRM_IOCTL_SYNCOBJ_QUERY = Ioctl(
    "DRM_IOCTL_SYNCOBJ_QUERY",
    IOWR(DRM_IOCTL_BASE, 0xCB, drm_syncobj_timeline_array),
    drm_syncobj_timeline_array,
)
DRM_IOCTL_SYNCOBJ_TRANSFER = Ioctl(
    "DRM_IOCTL_SYNCOBJ_TRANSFER",
    IOWR(DRM_IOCTL_BASE, 0xCC, drm_syncobj_transfer),
    drm_syncobj_transfer,
)
DRM_IOCTL_SYNCOBJ_TIMELINE_SIGNAL = Ioctl(
    "DRM_IOCTL_SYNCOBJ_TIMELINE_SIGNAL",
    IOWR(DRM_IOCTL_BASE, 0xCD, drm_syncobj_timeline_array),
    drm_syncobj_timeline_array,
)
DRM_IOCTL_SYNCOBJ_EVENTFD = Ioctl(
    "DRM_IOCTL_SYNCOBJ_EVENTFD",
    IOWR(DRM_IOCTL_BASE, 0xCF, drm_syncobj_eventfd),
    drm_syncobj_eventfd,
)
DRM_IOCTL_SET_CLIENT_NAME = Ioctl(
    "DRM_IOCTL_SET_CLIENT_NAME",
    IOWR(DRM_IOCTL_BASE, 0xD1, drm_set_client_name),
    drm_set_client_name,
)
DRM_IOCTL_GEM_CHANGE_HANDLE = Ioctl(
    "DRM_IOCTL_GEM_CHANGE_HANDLE",
    IOWR(DRM_IOCTL_BASE, 0xD2, drm_gem_change_handle),
    drm_gem_change_handle,
)
