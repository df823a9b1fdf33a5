# SPDX-License-Identifier: MIT
"""include/uapi/drm/ethosu_accel.h: Arm Ethos-U65 and U85.

Every request is declared to go both ways, also where the driver only reads.
"""

from __future__ import annotations

from ctypes import c_int64, c_uint8, c_uint16, c_uint32, c_uint64

from npukit.ioctl import Ioctl, Pointer, Struct

from .drm import DRM_COMMAND_BASE, DRM_IOWR
from .versions import Variant, Version, kernel_views, variant_views

# enum drm_ethosu_ioctl_id
DRM_ETHOSU_DEV_QUERY = 0
DRM_ETHOSU_BO_CREATE = 1
DRM_ETHOSU_BO_WAIT = 2
DRM_ETHOSU_BO_MMAP_OFFSET = 3
DRM_ETHOSU_CMDSTREAM_BO_CREATE = 4
DRM_ETHOSU_SUBMIT = 5
DRM_ETHOSU_PERFMON_CREATE = 6
DRM_ETHOSU_PERFMON_DESTROY = 7
DRM_ETHOSU_PERFMON_GET_VALUES = 8
DRM_ETHOSU_PERFMON_SET_GLOBAL = 9

# enum drm_ethosu_dev_query_type: type of drm_ethosu_dev_query
DRM_ETHOSU_DEV_QUERY_NPU_INFO = 0

# enum drm_ethosu_bo_flags: flags of drm_ethosu_bo_create
DRM_ETHOSU_BO_NO_MMAP = 1 << 0

ETHOSU_MAX_REGIONS = 8
DRM_ETHOSU_MAX_PERF_EVENT_COUNTERS = 8
DRM_ETHOSU_MAX_PERF_COUNTERS = DRM_ETHOSU_MAX_PERF_EVENT_COUNTERS + 1
"""The event counters, and the cycle counter behind them."""
DRM_ETHOSU_PERFMON_CLEAR_GLOBAL = 0x0001
"""flags of drm_ethosu_perfmon_set_global."""


# The parts of drm_ethosu_npu_info.id


def DRM_ETHOSU_ARCH_MAJOR(id: int) -> int:
    return id >> 28


def DRM_ETHOSU_ARCH_MINOR(id: int) -> int:
    return id >> 20 & 0xFF


def DRM_ETHOSU_ARCH_PATCH(id: int) -> int:
    return id >> 16 & 0xF


def DRM_ETHOSU_PRODUCT_MAJOR(id: int) -> int:
    return id >> 12 & 0xF


def DRM_ETHOSU_VERSION_MAJOR(id: int) -> int:
    return id >> 8 & 0xF


def DRM_ETHOSU_VERSION_MINOR(id: int) -> int:
    """As the header has it, eight bits wide: the major version stands in the upper four."""
    return id >> 4 & 0xFF


def DRM_ETHOSU_VERSION_STATUS(id: int) -> int:
    return id & 0xF


class drm_ethosu_npu_info(Struct):
    """``id`` and ``config`` are the registers of that name; ``sram_size`` in bytes."""

    _size_ = 16
    _fields_ = [
        ("id", c_uint32),
        ("config", c_uint32),
        ("sram_size", c_uint32),
        ("pmu_counters", c_uint32),
    ]


class drm_ethosu_dev_query(Struct):
    """With ``pointer`` 0 only ``size`` comes back; else at most ``size`` bytes are filled."""

    _size_ = 16
    _fields_ = [("type", c_uint32), ("size", c_uint32), ("pointer", c_uint64)]
    _pointers_ = {"pointer": Pointer(drm_ethosu_npu_info, stride="size", direction="out")}


class drm_ethosu_bo_create(Struct):
    """``size`` in bytes comes back rounded up to pages; ``handle`` comes back."""

    _size_ = 16
    _fields_ = [("size", c_uint64), ("flags", c_uint32), ("handle", c_uint32)]


class drm_ethosu_bo_mmap_offset(Struct):
    """``offset`` for mmap comes back."""

    _size_ = 16
    _fields_ = [("handle", c_uint32), ("pad", c_uint32), ("offset", c_uint64)]


class drm_ethosu_bo_wait(Struct):
    """``timeout_ns`` is absolute, CLOCK_MONOTONIC; 0 polls."""

    _size_ = 16
    _fields_ = [("handle", c_uint32), ("pad", c_uint32), ("timeout_ns", c_int64)]


class drm_ethosu_cmdstream_bo_create(Struct):
    """``size`` bytes of commands, which the kernel copies and checks; ``handle`` comes back."""

    _size_ = 24
    _fields_ = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("data", c_uint64),
        ("handle", c_uint32),
        ("pad", c_uint32),
    ]
    _pointers_ = {"data": Pointer(c_uint8, count="size")}


class drm_ethosu_job(Struct):
    """A command stream and the buffer of each region; region 2 is the SRAM where it has a size."""

    _size_ = 40
    _fields_ = [
        ("cmd_bo", c_uint32),
        ("sram_size", c_uint32),
        ("region_bo_handles", c_uint32 * ETHOSU_MAX_REGIONS),
    ]


class drm_ethosu_submit(Struct):
    """``perfmon_id`` 0 measures nothing."""

    _size_ = 16
    _fields_ = [("jobs", c_uint64), ("job_count", c_uint32), ("perfmon_id", c_uint32)]
    _pointers_ = {"jobs": Pointer(drm_ethosu_job, count="job_count")}


class drm_ethosu_perfmon_create(Struct):
    """The first ``ncounters`` of ``counters`` are event numbers; ``id`` comes back."""

    _size_ = 24
    _fields_ = [
        ("id", c_uint32),
        ("ncounters", c_uint32),
        ("counters", c_uint16 * DRM_ETHOSU_MAX_PERF_EVENT_COUNTERS),
    ]


class drm_ethosu_perfmon_destroy(Struct):
    _size_ = 8
    _fields_ = [("id", c_uint32), ("pad", c_uint32)]


class drm_ethosu_perfmon_get_values(Struct):
    """One value for each counter that the monitor was made with, then the cycles.

    The structure does not say how many those are.
    """

    _size_ = 16
    _fields_ = [("id", c_uint32), ("pad", c_uint32), ("values_ptr", c_uint64)]
    _pointers_ = {"values_ptr": Pointer(c_uint64, direction="out")}


class drm_ethosu_perfmon_set_global(Struct):
    """The monitor of all jobs; while there is one, no job may bring its own."""

    _size_ = 8
    _fields_ = [("flags", c_uint32), ("id", c_uint32)]


DRM_IOCTL_ETHOSU_DEV_QUERY = Ioctl(
    "DRM_IOCTL_ETHOSU_DEV_QUERY",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_ETHOSU_DEV_QUERY, drm_ethosu_dev_query),
    drm_ethosu_dev_query,
    restart=True,
)
DRM_IOCTL_ETHOSU_BO_CREATE = Ioctl(
    "DRM_IOCTL_ETHOSU_BO_CREATE",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_ETHOSU_BO_CREATE, drm_ethosu_bo_create),
    drm_ethosu_bo_create,
)
# The timeout is absolute, so a wait that a signal broke off goes on where it was.
DRM_IOCTL_ETHOSU_BO_WAIT = Ioctl(
    "DRM_IOCTL_ETHOSU_BO_WAIT",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_ETHOSU_BO_WAIT, drm_ethosu_bo_wait),
    drm_ethosu_bo_wait,
    restart=True,
)
DRM_IOCTL_ETHOSU_BO_MMAP_OFFSET = Ioctl(
    "DRM_IOCTL_ETHOSU_BO_MMAP_OFFSET",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_ETHOSU_BO_MMAP_OFFSET, drm_ethosu_bo_mmap_offset),
    drm_ethosu_bo_mmap_offset,
    restart=True,
)
DRM_IOCTL_ETHOSU_CMDSTREAM_BO_CREATE = Ioctl(
    "DRM_IOCTL_ETHOSU_CMDSTREAM_BO_CREATE",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_ETHOSU_CMDSTREAM_BO_CREATE, drm_ethosu_cmdstream_bo_create),
    drm_ethosu_cmdstream_bo_create,
)
DRM_IOCTL_ETHOSU_SUBMIT = Ioctl(
    "DRM_IOCTL_ETHOSU_SUBMIT",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_ETHOSU_SUBMIT, drm_ethosu_submit),
    drm_ethosu_submit,
)
DRM_IOCTL_ETHOSU_PERFMON_CREATE = Ioctl(
    "DRM_IOCTL_ETHOSU_PERFMON_CREATE",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_ETHOSU_PERFMON_CREATE, drm_ethosu_perfmon_create),
    drm_ethosu_perfmon_create,
)
DRM_IOCTL_ETHOSU_PERFMON_DESTROY = Ioctl(
    "DRM_IOCTL_ETHOSU_PERFMON_DESTROY",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_ETHOSU_PERFMON_DESTROY, drm_ethosu_perfmon_destroy),
    drm_ethosu_perfmon_destroy,
)
DRM_IOCTL_ETHOSU_PERFMON_GET_VALUES = Ioctl(
    "DRM_IOCTL_ETHOSU_PERFMON_GET_VALUES",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_ETHOSU_PERFMON_GET_VALUES, drm_ethosu_perfmon_get_values),
    drm_ethosu_perfmon_get_values,
    restart=True,
)
DRM_IOCTL_ETHOSU_PERFMON_SET_GLOBAL = Ioctl(
    "DRM_IOCTL_ETHOSU_PERFMON_SET_GLOBAL",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_ETHOSU_PERFMON_SET_GLOBAL, drm_ethosu_perfmon_set_global),
    drm_ethosu_perfmon_set_global,
)


class before_7_3(Variant):
    """No performance monitors."""

    UNTIL = (7, 3)

    class drm_ethosu_npu_info(Struct):
        _size_ = 12
        _fields_ = [("id", c_uint32), ("config", c_uint32), ("sram_size", c_uint32)]

    class drm_ethosu_submit(Struct):
        _size_ = 16
        _fields_ = [("jobs", c_uint64), ("job_count", c_uint32), ("pad", c_uint32)]
        _pointers_ = {"jobs": Pointer(drm_ethosu_job, count="job_count")}

    DRM_IOCTL_ETHOSU_SUBMIT = Ioctl(
        "DRM_IOCTL_ETHOSU_SUBMIT",
        DRM_IOWR(DRM_COMMAND_BASE + DRM_ETHOSU_SUBMIT, drm_ethosu_submit),
        drm_ethosu_submit,
    )


SINCE: dict[str, Version] = {
    "ethosu": (6, 19),
    "DRM_ETHOSU_PERFMON_CREATE": (7, 3),
    "DRM_ETHOSU_PERFMON_DESTROY": (7, 3),
    "DRM_ETHOSU_PERFMON_GET_VALUES": (7, 3),
    "DRM_ETHOSU_PERFMON_SET_GLOBAL": (7, 3),
    "DRM_ETHOSU_MAX_PERF_EVENT_COUNTERS": (7, 3),
    "DRM_ETHOSU_MAX_PERF_COUNTERS": (7, 3),
    "DRM_ETHOSU_PERFMON_CLEAR_GLOBAL": (7, 3),
    "drm_ethosu_perfmon_create": (7, 3),
    "drm_ethosu_perfmon_destroy": (7, 3),
    "drm_ethosu_perfmon_get_values": (7, 3),
    "drm_ethosu_perfmon_set_global": (7, 3),
    "DRM_IOCTL_ETHOSU_PERFMON_CREATE": (7, 3),
    "DRM_IOCTL_ETHOSU_PERFMON_DESTROY": (7, 3),
    "DRM_IOCTL_ETHOSU_PERFMON_GET_VALUES": (7, 3),
    "DRM_IOCTL_ETHOSU_PERFMON_SET_GLOBAL": (7, 3),
}
VARIANTS: dict[str, type[Variant]] = {"before 7.3": before_7_3}
for_kernel = kernel_views(__name__)
variant = variant_views(__name__)
