# SPDX-License-Identifier: MIT
"""include/uapi/drm/rocket_accel.h: Rockchip NPUs, mainline driver."""

from __future__ import annotations

from ctypes import c_int64, c_uint32, c_uint64

from npukit.ioctl import Ioctl, Pointer, Struct

from .drm import DRM_COMMAND_BASE, DRM_IOW, DRM_IOWR
from .versions import Variant, Version, kernel_views, variant_views

DRM_ROCKET_CREATE_BO = 0x00
DRM_ROCKET_SUBMIT = 0x01
DRM_ROCKET_PREP_BO = 0x02
DRM_ROCKET_FINI_BO = 0x03


class drm_rocket_create_bo(Struct):
    """``size`` bytes in; ``handle``, ``dma_address`` and the mmap ``offset`` come back."""

    _size_ = 24
    _fields_ = [
        ("size", c_uint32),
        ("handle", c_uint32),
        ("dma_address", c_uint64),
        ("offset", c_uint64),
    ]


class drm_rocket_prep_bo(Struct):
    """``timeout_ns`` is absolute, CLOCK_MONOTONIC; 0 polls."""

    _size_ = 16
    _fields_ = [("handle", c_uint32), ("reserved", c_uint32), ("timeout_ns", c_int64)]


class drm_rocket_fini_bo(Struct):
    _size_ = 8
    _fields_ = [("handle", c_uint32), ("reserved", c_uint32)]


class drm_rocket_task(Struct):
    """``regcmd`` is a DMA address; ``regcmd_count`` counts 64-bit words, the trailer included."""

    _size_ = 8
    _fields_ = [("regcmd", c_uint32), ("regcmd_count", c_uint32)]


class drm_rocket_job(Struct):
    """Tasks that run one after another on one core."""

    _size_ = 40
    _fields_ = [
        ("tasks", c_uint64),
        ("in_bo_handles", c_uint64),
        ("out_bo_handles", c_uint64),
        ("task_count", c_uint32),
        ("task_struct_size", c_uint32),
        ("in_bo_handle_count", c_uint32),
        ("out_bo_handle_count", c_uint32),
    ]
    _pointers_ = {
        "tasks": Pointer(drm_rocket_task, count="task_count", stride="task_struct_size"),
        "in_bo_handles": Pointer(c_uint32, count="in_bo_handle_count"),
        "out_bo_handles": Pointer(c_uint32, count="out_bo_handle_count"),
    }


class drm_rocket_submit(Struct):
    _size_ = 24
    _fields_ = [
        ("jobs", c_uint64),
        ("job_count", c_uint32),
        ("job_struct_size", c_uint32),
        ("reserved", c_uint64),
    ]
    _pointers_ = {"jobs": Pointer(drm_rocket_job, count="job_count", stride="job_struct_size")}


DRM_IOCTL_ROCKET_CREATE_BO = Ioctl(
    "DRM_IOCTL_ROCKET_CREATE_BO",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_ROCKET_CREATE_BO, drm_rocket_create_bo),
    drm_rocket_create_bo,
)
DRM_IOCTL_ROCKET_SUBMIT = Ioctl(
    "DRM_IOCTL_ROCKET_SUBMIT",
    DRM_IOW(DRM_COMMAND_BASE + DRM_ROCKET_SUBMIT, drm_rocket_submit),
    drm_rocket_submit,
)
# The timeout is absolute, so a wait that a signal broke off goes on where it was.
DRM_IOCTL_ROCKET_PREP_BO = Ioctl(
    "DRM_IOCTL_ROCKET_PREP_BO",
    DRM_IOW(DRM_COMMAND_BASE + DRM_ROCKET_PREP_BO, drm_rocket_prep_bo),
    drm_rocket_prep_bo,
    restart=True,
)
DRM_IOCTL_ROCKET_FINI_BO = Ioctl(
    "DRM_IOCTL_ROCKET_FINI_BO",
    DRM_IOW(DRM_COMMAND_BASE + DRM_ROCKET_FINI_BO, drm_rocket_fini_bo),
    drm_rocket_fini_bo,
    restart=True,
)

SINCE: dict[str, Version] = {"rocket": (6, 18)}
VARIANTS: dict[str, type[Variant]] = {}
for_kernel = kernel_views(__name__)
variant = variant_views(__name__)
