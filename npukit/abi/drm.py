# SPDX-License-Identifier: MIT
"""include/uapi/drm/drm.h: the requests that every DRM and accel driver answers.

Left out: what needs display hardware (DRM_IOCTL_MODE_*, vblank, CRTC sequences, events) and what
the core of today refuses or ignores (AGP, maps, contexts, locks, drawables, statistics).
"""

from __future__ import annotations

from ctypes import c_char, c_int32, c_int64, c_uint32, c_uint64

from npukit.ioctl import IO, IOR, IOW, IOWR, Ioctl, Pointer, Struct, Union

from .versions import Variant, Version, kernel_views, variant_views

DRM_IOCTL_BASE = ord("d")


def DRM_IO(nr: int) -> int:
    """The number of a DRM request without an argument."""
    return IO(DRM_IOCTL_BASE, nr)


def DRM_IOR(nr: int, argument: type[Struct] | type[Union]) -> int:
    """The number of a DRM request whose argument the kernel fills."""
    return IOR(DRM_IOCTL_BASE, nr, argument)


def DRM_IOW(nr: int, argument: type[Struct] | type[Union]) -> int:
    """The number of a DRM request whose argument the kernel reads."""
    return IOW(DRM_IOCTL_BASE, nr, argument)


def DRM_IOWR(nr: int, argument: type[Struct] | type[Union]) -> int:
    """The number of a DRM request whose argument goes both ways."""
    return IOWR(DRM_IOCTL_BASE, nr, argument)


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


class drm_client(Struct):
    """``idx`` 0 asks about the file itself: ``auth`` and ``pid`` come back. Others are EINVAL."""

    _size_ = 40
    _fields_ = [
        ("idx", c_int32),
        ("auth", c_int32),
        ("pid", c_uint64),
        ("uid", c_uint64),
        ("magic", c_uint64),
        ("iocs", c_uint64),
    ]


class drm_auth(Struct):
    """A token of a primary node: its master lets the file that got it pass as authenticated."""

    _size_ = 4
    _fields_ = [("magic", c_uint32)]


class drm_set_version(Struct):
    """Interface and driver version asked for, -1 where none; those in use come back."""

    _size_ = 16
    _fields_ = [
        ("drm_di_major", c_int32),
        ("drm_di_minor", c_int32),
        ("drm_dd_major", c_int32),
        ("drm_dd_minor", c_int32),
    ]


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
    """Linux 7.3 answers EINVAL to every call: its core has the request switched off."""

    _size_ = 8
    _fields_ = [
        ("handle", c_uint32),
        ("new_handle", c_uint32),
    ]


# A wait with an absolute timeout, and a question, may be asked again after a signal.
DRM_IOCTL_VERSION = Ioctl(
    "DRM_IOCTL_VERSION", DRM_IOWR(0x00, drm_version), drm_version, restart=True
)
DRM_IOCTL_GET_UNIQUE = Ioctl("DRM_IOCTL_GET_UNIQUE", DRM_IOWR(0x01, drm_unique), drm_unique)
DRM_IOCTL_GET_MAGIC = Ioctl("DRM_IOCTL_GET_MAGIC", DRM_IOR(0x02, drm_auth), drm_auth)
DRM_IOCTL_GET_CLIENT = Ioctl("DRM_IOCTL_GET_CLIENT", DRM_IOWR(0x05, drm_client), drm_client)
DRM_IOCTL_SET_VERSION = Ioctl(
    "DRM_IOCTL_SET_VERSION", DRM_IOWR(0x07, drm_set_version), drm_set_version
)
DRM_IOCTL_GEM_CLOSE = Ioctl("DRM_IOCTL_GEM_CLOSE", DRM_IOW(0x09, drm_gem_close), drm_gem_close)
DRM_IOCTL_GEM_FLINK = Ioctl("DRM_IOCTL_GEM_FLINK", DRM_IOWR(0x0A, drm_gem_flink), drm_gem_flink)
DRM_IOCTL_GEM_OPEN = Ioctl("DRM_IOCTL_GEM_OPEN", DRM_IOWR(0x0B, drm_gem_open), drm_gem_open)
DRM_IOCTL_GET_CAP = Ioctl(
    "DRM_IOCTL_GET_CAP", DRM_IOWR(0x0C, drm_get_cap), drm_get_cap, restart=True
)
DRM_IOCTL_SET_CLIENT_CAP = Ioctl(
    "DRM_IOCTL_SET_CLIENT_CAP", DRM_IOW(0x0D, drm_set_client_cap), drm_set_client_cap
)
DRM_IOCTL_AUTH_MAGIC = Ioctl("DRM_IOCTL_AUTH_MAGIC", DRM_IOW(0x11, drm_auth), drm_auth)
DRM_IOCTL_SET_MASTER = Ioctl("DRM_IOCTL_SET_MASTER", DRM_IO(0x1E))
DRM_IOCTL_DROP_MASTER = Ioctl("DRM_IOCTL_DROP_MASTER", DRM_IO(0x1F))
DRM_IOCTL_PRIME_HANDLE_TO_FD = Ioctl(
    "DRM_IOCTL_PRIME_HANDLE_TO_FD", DRM_IOWR(0x2D, drm_prime_handle), drm_prime_handle
)
DRM_IOCTL_PRIME_FD_TO_HANDLE = Ioctl(
    "DRM_IOCTL_PRIME_FD_TO_HANDLE", DRM_IOWR(0x2E, drm_prime_handle), drm_prime_handle
)
DRM_IOCTL_SYNCOBJ_CREATE = Ioctl(
    "DRM_IOCTL_SYNCOBJ_CREATE", DRM_IOWR(0xBF, drm_syncobj_create), drm_syncobj_create
)
DRM_IOCTL_SYNCOBJ_DESTROY = Ioctl(
    "DRM_IOCTL_SYNCOBJ_DESTROY",
    DRM_IOWR(0xC0, drm_syncobj_destroy),
    drm_syncobj_destroy,
)
DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD = Ioctl(
    "DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD",
    DRM_IOWR(0xC1, drm_syncobj_handle),
    drm_syncobj_handle,
)
DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE = Ioctl(
    "DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE",
    DRM_IOWR(0xC2, drm_syncobj_handle),
    drm_syncobj_handle,
)
DRM_IOCTL_SYNCOBJ_WAIT = Ioctl(
    "DRM_IOCTL_SYNCOBJ_WAIT",
    DRM_IOWR(0xC3, drm_syncobj_wait),
    drm_syncobj_wait,
    restart=True,
)
DRM_IOCTL_SYNCOBJ_RESET = Ioctl(
    "DRM_IOCTL_SYNCOBJ_RESET", DRM_IOWR(0xC4, drm_syncobj_array), drm_syncobj_array
)
DRM_IOCTL_SYNCOBJ_SIGNAL = Ioctl(
    "DRM_IOCTL_SYNCOBJ_SIGNAL", DRM_IOWR(0xC5, drm_syncobj_array), drm_syncobj_array
)
DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT = Ioctl(
    "DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT",
    DRM_IOWR(0xCA, drm_syncobj_timeline_wait),
    drm_syncobj_timeline_wait,
    restart=True,
)
DRM_IOCTL_SYNCOBJ_QUERY = Ioctl(
    "DRM_IOCTL_SYNCOBJ_QUERY",
    DRM_IOWR(0xCB, drm_syncobj_timeline_array),
    drm_syncobj_timeline_array,
    restart=True,
)
DRM_IOCTL_SYNCOBJ_TRANSFER = Ioctl(
    "DRM_IOCTL_SYNCOBJ_TRANSFER",
    DRM_IOWR(0xCC, drm_syncobj_transfer),
    drm_syncobj_transfer,
)
DRM_IOCTL_SYNCOBJ_TIMELINE_SIGNAL = Ioctl(
    "DRM_IOCTL_SYNCOBJ_TIMELINE_SIGNAL",
    DRM_IOWR(0xCD, drm_syncobj_timeline_array),
    drm_syncobj_timeline_array,
)
DRM_IOCTL_SYNCOBJ_EVENTFD = Ioctl(
    "DRM_IOCTL_SYNCOBJ_EVENTFD",
    DRM_IOWR(0xCF, drm_syncobj_eventfd),
    drm_syncobj_eventfd,
)
DRM_IOCTL_SET_CLIENT_NAME = Ioctl(
    "DRM_IOCTL_SET_CLIENT_NAME",
    DRM_IOWR(0xD1, drm_set_client_name),
    drm_set_client_name,
)
DRM_IOCTL_GEM_CHANGE_HANDLE = Ioctl(
    "DRM_IOCTL_GEM_CHANGE_HANDLE",
    DRM_IOWR(0xD2, drm_gem_change_handle),
    drm_gem_change_handle,
)


class before_6_16(Variant):
    """A syncobj's file descriptor had no timeline point."""

    UNTIL = (6, 16)

    class drm_syncobj_handle(Struct):
        _size_ = 16
        _fields_ = [
            ("handle", c_uint32),
            ("flags", c_uint32),
            ("fd", c_int32),
            ("pad", c_uint32),
        ]

    DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD = Ioctl(
        "DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD", DRM_IOWR(0xC1, drm_syncobj_handle), drm_syncobj_handle
    )
    DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE = Ioctl(
        "DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE", DRM_IOWR(0xC2, drm_syncobj_handle), drm_syncobj_handle
    )


class before_6_8(Variant):
    """A wait had no deadline hint."""

    UNTIL = (6, 8)

    class drm_syncobj_wait(Struct):
        _size_ = 32
        _fields_ = [
            ("handles", c_uint64),
            ("timeout_nsec", c_int64),
            ("count_handles", c_uint32),
            ("flags", c_uint32),
            ("first_signaled", c_uint32),
            ("pad", c_uint32),
        ]
        _pointers_ = {"handles": Pointer(c_uint32, count="count_handles")}

    class drm_syncobj_timeline_wait(Struct):
        _size_ = 40
        _fields_ = [
            ("handles", c_uint64),
            ("points", c_uint64),
            ("timeout_nsec", c_int64),
            ("count_handles", c_uint32),
            ("flags", c_uint32),
            ("first_signaled", c_uint32),
            ("pad", c_uint32),
        ]
        _pointers_ = {
            "handles": Pointer(c_uint32, count="count_handles"),
            "points": Pointer(c_uint64, count="count_handles"),
        }

    DRM_IOCTL_SYNCOBJ_WAIT = Ioctl(
        "DRM_IOCTL_SYNCOBJ_WAIT", DRM_IOWR(0xC3, drm_syncobj_wait), drm_syncobj_wait, restart=True
    )
    DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT = Ioctl(
        "DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT",
        DRM_IOWR(0xCA, drm_syncobj_timeline_wait),
        drm_syncobj_timeline_wait,
        restart=True,
    )


SINCE: dict[str, Version] = {
    "drm_syncobj_eventfd": (6, 6),
    "DRM_IOCTL_SYNCOBJ_EVENTFD": (6, 6),
    "DRM_CAP_ATOMIC_ASYNC_PAGE_FLIP": (6, 8),
    "DRM_CLIENT_CAP_CURSOR_PLANE_HOTSPOT": (6, 8),
    "DRM_SYNCOBJ_WAIT_FLAGS_WAIT_DEADLINE": (6, 8),
    "DRM_CLIENT_NAME_MAX_LEN": (6, 13),
    "drm_set_client_name": (6, 13),
    "DRM_IOCTL_SET_CLIENT_NAME": (6, 13),
    "DRM_SYNCOBJ_FD_TO_HANDLE_FLAGS_TIMELINE": (6, 16),
    "DRM_SYNCOBJ_HANDLE_TO_FD_FLAGS_TIMELINE": (6, 16),
    "drm_gem_change_handle": (6, 18),
    "DRM_IOCTL_GEM_CHANGE_HANDLE": (6, 18),
    "DRM_CLIENT_CAP_PLANE_COLOR_PIPELINE": (6, 19),
}
VARIANTS: dict[str, type[Variant]] = {
    "before 6.16": before_6_16,
    "before 6.8": before_6_8,
}
for_kernel = kernel_views(__name__)
variant = variant_views(__name__)
