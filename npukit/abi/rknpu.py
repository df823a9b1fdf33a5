# SPDX-License-Identifier: MIT
"""rknpu_ioctl.h of Rockchip's vendor kernel (driver 0.8.x to 0.9.8).

The driver comes as a DRM driver (type 'd', numbers from DRM_COMMAND_BASE) or as the misc device
/dev/rknpu (type 'r', numbers from 0) with the same structures: RKNPU_* are the ioctl numbers,
DRM_IOCTL_RKNPU_* and IOCTL_RKNPU_* the requests of the two. Between 0.8 and 0.9 MEM_CREATE grew
from 40 to 48 bytes; DRM pads or cuts an argument to its own size, the misc device takes only its
own. ``variant("0.8")`` is the older header.

Left out: RKNPU_OFFSET_* and the like, which are registers (npukit/programs/rk3588/registers.py).
"""

from __future__ import annotations

from ctypes import c_int32, c_int64, c_uint32, c_uint64

from npukit.ioctl import IOWR, Ioctl, Struct

from .drm import DRM_COMMAND_BASE, DRM_IOWR
from .versions import Variant, variant_views

RKNPU_IOC_MAGIC = ord("r")

RKNPU_ACTION = 0x00
RKNPU_SUBMIT = 0x01
RKNPU_MEM_CREATE = 0x02
RKNPU_MEM_MAP = 0x03
RKNPU_MEM_DESTROY = 0x04
RKNPU_MEM_SYNC = 0x05

# enum e_rknpu_mem_type: flags of rknpu_mem_create
RKNPU_MEM_CONTIGUOUS = 0
RKNPU_MEM_NON_CONTIGUOUS = 1 << 0
RKNPU_MEM_NON_CACHEABLE = 0
RKNPU_MEM_CACHEABLE = 1 << 1
RKNPU_MEM_WRITE_COMBINE = 1 << 2
RKNPU_MEM_KERNEL_MAPPING = 1 << 3
RKNPU_MEM_IOMMU = 1 << 4
RKNPU_MEM_ZEROING = 1 << 5
RKNPU_MEM_SECURE = 1 << 6
RKNPU_MEM_DMA32 = 1 << 7
"""0.9; the same bit was RKNPU_MEM_NON_DMA32 in 0.8, with the opposite sense."""
RKNPU_MEM_NON_DMA32 = 1 << 7
RKNPU_MEM_TRY_ALLOC_SRAM = 1 << 8
RKNPU_MEM_TRY_ALLOC_NBUF = 1 << 9
RKNPU_MEM_IOMMU_LIMIT_IOVA_ALIGNMENT = 1 << 10
RKNPU_MEM_MASK = 0x7FF

# enum e_rknpu_mem_sync_mode
RKNPU_MEM_SYNC_TO_DEVICE = 1 << 0
RKNPU_MEM_SYNC_FROM_DEVICE = 1 << 1
RKNPU_MEM_SYNC_MASK = RKNPU_MEM_SYNC_TO_DEVICE | RKNPU_MEM_SYNC_FROM_DEVICE

# enum e_rknpu_job_mode: flags of rknpu_submit
RKNPU_JOB_SLAVE = 0
RKNPU_JOB_PC = 1 << 0
RKNPU_JOB_BLOCK = 0
RKNPU_JOB_NONBLOCK = 1 << 1
RKNPU_JOB_PINGPONG = 1 << 2
RKNPU_JOB_FENCE_IN = 1 << 3
RKNPU_JOB_FENCE_OUT = 1 << 4
RKNPU_JOB_MASK = (
    RKNPU_JOB_PC
    | RKNPU_JOB_NONBLOCK
    | RKNPU_JOB_PINGPONG
    | RKNPU_JOB_FENCE_IN
    | RKNPU_JOB_FENCE_OUT
)

# core_mask of rknpu_submit (rknpu_job.h of the driver)
RKNPU_CORE_AUTO_MASK = 0
RKNPU_CORE0_MASK = 1
RKNPU_CORE1_MASK = 2
RKNPU_CORE2_MASK = 4

# enum e_rknpu_action
RKNPU_GET_HW_VERSION = 0
RKNPU_GET_DRV_VERSION = 1
RKNPU_GET_FREQ = 2
RKNPU_SET_FREQ = 3
RKNPU_GET_VOLT = 4
RKNPU_SET_VOLT = 5
RKNPU_ACT_RESET = 6
RKNPU_GET_BW_PRIORITY = 7
RKNPU_SET_BW_PRIORITY = 8
RKNPU_GET_BW_EXPECT = 9
RKNPU_SET_BW_EXPECT = 10
RKNPU_GET_BW_TW = 11
RKNPU_SET_BW_TW = 12
RKNPU_ACT_CLR_TOTAL_RW_AMOUNT = 13
RKNPU_GET_DT_WR_AMOUNT = 14
RKNPU_GET_DT_RD_AMOUNT = 15
RKNPU_GET_WT_RD_AMOUNT = 16
RKNPU_GET_TOTAL_RW_AMOUNT = 17
RKNPU_GET_IOMMU_EN = 18
RKNPU_SET_PROC_NICE = 19
RKNPU_POWER_ON = 20
RKNPU_POWER_OFF = 21
RKNPU_GET_TOTAL_SRAM_SIZE = 22
RKNPU_GET_FREE_SRAM_SIZE = 23
RKNPU_GET_IOMMU_DOMAIN_ID = 24
RKNPU_SET_IOMMU_DOMAIN_ID = 25

RKNPU_PC_DATA_EXTRA_AMOUNT = 4
"""Words of the trailer, which regcfg_amount of rknpu_task does not count."""


# The answer of RKNPU_GET_DRV_VERSION


def RKNPU_GET_DRV_VERSION_CODE(major: int, minor: int, patchlevel: int) -> int:
    """0.9.8 is 908."""
    return major * 10000 + minor * 100 + patchlevel


def RKNPU_GET_DRV_VERSION_MAJOR(code: int) -> int:
    return code // 10000


def RKNPU_GET_DRV_VERSION_MINOR(code: int) -> int:
    return code % 10000 // 100


def RKNPU_GET_DRV_VERSION_PATCHLEVEL(code: int) -> int:
    return code % 100


class rknpu_mem_create(Struct):
    """``handle``, ``size`` rounded up to pages, ``obj_addr``, ``dma_addr``, ``sram_size`` are
    answers.

    ``obj_addr`` is a kernel address: an opaque value for MEM_SYNC and the task pointer of SUBMIT.
    """

    _size_ = 48
    _fields_ = [
        ("handle", c_uint32),
        ("flags", c_uint32),
        ("size", c_uint64),
        ("obj_addr", c_uint64),
        ("dma_addr", c_uint64),
        ("sram_size", c_uint64),
        ("iommu_domain_id", c_int32),
        ("core_mask", c_uint32),
    ]


class rknpu_mem_map(Struct):
    """``offset`` for mmap comes back (DRM only)."""

    _size_ = 16
    _fields_ = [("handle", c_uint32), ("reserved", c_uint32), ("offset", c_uint64)]


class rknpu_mem_destroy(Struct):
    _size_ = 16
    _fields_ = [("handle", c_uint32), ("reserved", c_uint32), ("obj_addr", c_uint64)]


class rknpu_mem_sync(Struct):
    """The driver trusts ``obj_addr`` without a check."""

    _size_ = 32
    _fields_ = [
        ("flags", c_uint32),
        ("reserved", c_uint32),
        ("obj_addr", c_uint64),
        ("offset", c_uint64),
        ("size", c_uint64),
    ]


class rknpu_task(Struct):
    """One entry of the task array, which stands in a buffer object.

    ``regcfg_amount`` counts 64-bit words without the four of the trailer. The kernel uses
    ``regcmd_addr``, ``regcfg_amount`` and ``int_mask`` only, and writes ``int_status``.
    """

    _size_ = 40
    _fields_ = [
        ("flags", c_uint32),
        ("op_idx", c_uint32),
        ("enable_mask", c_uint32),
        ("int_mask", c_uint32),
        ("int_clear", c_uint32),
        ("int_status", c_uint32),
        ("regcfg_amount", c_uint32),
        ("regcfg_offset", c_uint32),
        ("regcmd_addr", c_uint64),
    ]


class rknpu_subcore_task(Struct):
    _size_ = 8
    _fields_ = [("task_start", c_uint32), ("task_number", c_uint32)]


class rknpu_submit(Struct):
    """``timeout`` in ms, ``hw_elapse_time`` in ns; ``task_obj_addr`` is a buffer's obj_addr."""

    _size_ = 104
    _fields_ = [
        ("flags", c_uint32),
        ("timeout", c_uint32),
        ("task_start", c_uint32),
        ("task_number", c_uint32),
        ("task_counter", c_uint32),
        ("priority", c_int32),
        ("task_obj_addr", c_uint64),
        ("iommu_domain_id", c_uint32),
        ("reserved", c_uint32),
        ("task_base_addr", c_uint64),
        ("hw_elapse_time", c_int64),
        ("core_mask", c_uint32),
        ("fence_fd", c_int32),
        ("subcore_task", rknpu_subcore_task * 5),
    ]


class rknpu_action(Struct):
    """``flags`` holds the action's number."""

    _size_ = 8
    _fields_ = [("flags", c_uint32), ("value", c_uint32)]


def _drm(name: str, nr: int, struct: type[Struct]) -> Ioctl:
    return Ioctl(name, DRM_IOWR(DRM_COMMAND_BASE + nr, struct), struct)


def _misc(name: str, nr: int, struct: type[Struct]) -> Ioctl:
    return Ioctl(name, IOWR(RKNPU_IOC_MAGIC, nr, struct), struct)


DRM_IOCTL_RKNPU_ACTION = _drm("DRM_IOCTL_RKNPU_ACTION", RKNPU_ACTION, rknpu_action)
DRM_IOCTL_RKNPU_SUBMIT = _drm("DRM_IOCTL_RKNPU_SUBMIT", RKNPU_SUBMIT, rknpu_submit)
DRM_IOCTL_RKNPU_MEM_CREATE = _drm("DRM_IOCTL_RKNPU_MEM_CREATE", RKNPU_MEM_CREATE, rknpu_mem_create)
DRM_IOCTL_RKNPU_MEM_MAP = _drm("DRM_IOCTL_RKNPU_MEM_MAP", RKNPU_MEM_MAP, rknpu_mem_map)
DRM_IOCTL_RKNPU_MEM_DESTROY = _drm(
    "DRM_IOCTL_RKNPU_MEM_DESTROY", RKNPU_MEM_DESTROY, rknpu_mem_destroy
)
DRM_IOCTL_RKNPU_MEM_SYNC = _drm("DRM_IOCTL_RKNPU_MEM_SYNC", RKNPU_MEM_SYNC, rknpu_mem_sync)

IOCTL_RKNPU_ACTION = _misc("IOCTL_RKNPU_ACTION", RKNPU_ACTION, rknpu_action)
IOCTL_RKNPU_SUBMIT = _misc("IOCTL_RKNPU_SUBMIT", RKNPU_SUBMIT, rknpu_submit)
IOCTL_RKNPU_MEM_CREATE = _misc("IOCTL_RKNPU_MEM_CREATE", RKNPU_MEM_CREATE, rknpu_mem_create)
IOCTL_RKNPU_MEM_MAP = _misc("IOCTL_RKNPU_MEM_MAP", RKNPU_MEM_MAP, rknpu_mem_map)
IOCTL_RKNPU_MEM_DESTROY = _misc("IOCTL_RKNPU_MEM_DESTROY", RKNPU_MEM_DESTROY, rknpu_mem_destroy)
IOCTL_RKNPU_MEM_SYNC = _misc("IOCTL_RKNPU_MEM_SYNC", RKNPU_MEM_SYNC, rknpu_mem_sync)


class driver_0_8(Variant):
    """The driver before 0.9, without IOMMU domains."""

    LACKS = frozenset(
        {
            "RKNPU_MEM_DMA32",
            "RKNPU_MEM_TRY_ALLOC_NBUF",
            "RKNPU_MEM_IOMMU_LIMIT_IOVA_ALIGNMENT",
            "RKNPU_GET_IOMMU_DOMAIN_ID",
            "RKNPU_SET_IOMMU_DOMAIN_ID",
        }
    )

    RKNPU_MEM_MASK = 0x1FF

    class rknpu_mem_create(Struct):
        """As the newer one, which ends in two more fields."""

        _size_ = 40
        _fields_ = [
            ("handle", c_uint32),
            ("flags", c_uint32),
            ("size", c_uint64),
            ("obj_addr", c_uint64),
            ("dma_addr", c_uint64),
            ("sram_size", c_uint64),
        ]

    class rknpu_submit(Struct):
        """As the newer one, but for ``regcfg_obj_addr`` and ``user_data``."""

        _size_ = 104
        _fields_ = [
            ("flags", c_uint32),
            ("timeout", c_uint32),
            ("task_start", c_uint32),
            ("task_number", c_uint32),
            ("task_counter", c_uint32),
            ("priority", c_int32),
            ("task_obj_addr", c_uint64),
            ("regcfg_obj_addr", c_uint64),
            ("task_base_addr", c_uint64),
            ("user_data", c_uint64),
            ("core_mask", c_uint32),
            ("fence_fd", c_int32),
            ("subcore_task", rknpu_subcore_task * 5),
        ]

    DRM_IOCTL_RKNPU_MEM_CREATE = _drm(
        "DRM_IOCTL_RKNPU_MEM_CREATE", RKNPU_MEM_CREATE, rknpu_mem_create
    )
    DRM_IOCTL_RKNPU_SUBMIT = _drm("DRM_IOCTL_RKNPU_SUBMIT", RKNPU_SUBMIT, rknpu_submit)
    IOCTL_RKNPU_MEM_CREATE = _misc("IOCTL_RKNPU_MEM_CREATE", RKNPU_MEM_CREATE, rknpu_mem_create)
    IOCTL_RKNPU_SUBMIT = _misc("IOCTL_RKNPU_SUBMIT", RKNPU_SUBMIT, rknpu_submit)


# Short names for those who have to try both.
rknpu_mem_create_0_8 = driver_0_8.rknpu_mem_create
DRM_IOCTL_RKNPU_MEM_CREATE_0_8 = driver_0_8.DRM_IOCTL_RKNPU_MEM_CREATE
IOCTL_RKNPU_MEM_CREATE_0_8 = driver_0_8.IOCTL_RKNPU_MEM_CREATE

VARIANTS: dict[str, type[Variant]] = {"0.8": driver_0_8}
variant = variant_views(__name__)
