# SPDX-License-Identifier: MIT
"""include/uapi/drm/ivpu_accel.h: Intel NPUs (Meteor Lake and newer)."""

from __future__ import annotations

from ctypes import c_int64, c_uint8, c_uint32, c_uint64

from npukit.ioctl import Ioctl, Pointer, Struct

from .drm import DRM_COMMAND_BASE, DRM_IOW, DRM_IOWR
from .versions import Variant, Version, kernel_views, variant_views

# Number 4 is not used.
DRM_IVPU_GET_PARAM = 0x00
DRM_IVPU_SET_PARAM = 0x01
DRM_IVPU_BO_CREATE = 0x02
DRM_IVPU_BO_INFO = 0x03
DRM_IVPU_SUBMIT = 0x05
DRM_IVPU_BO_WAIT = 0x06
DRM_IVPU_METRIC_STREAMER_START = 0x07
DRM_IVPU_METRIC_STREAMER_STOP = 0x08
DRM_IVPU_METRIC_STREAMER_GET_DATA = 0x09
DRM_IVPU_METRIC_STREAMER_GET_INFO = 0x0A
DRM_IVPU_CMDQ_CREATE = 0x0B
DRM_IVPU_CMDQ_DESTROY = 0x0C
DRM_IVPU_CMDQ_SUBMIT = 0x0D
DRM_IVPU_BO_CREATE_FROM_USERPTR = 0x0E

# param of drm_ivpu_param
DRM_IVPU_PARAM_DEVICE_ID = 0
DRM_IVPU_PARAM_DEVICE_REVISION = 1
DRM_IVPU_PARAM_PLATFORM_TYPE = 2
DRM_IVPU_PARAM_CORE_CLOCK_RATE = 3
DRM_IVPU_PARAM_NUM_CONTEXTS = 4
DRM_IVPU_PARAM_CONTEXT_BASE_ADDRESS = 5
DRM_IVPU_PARAM_CONTEXT_PRIORITY = 6
"""Deprecated."""
DRM_IVPU_PARAM_CONTEXT_ID = 7
DRM_IVPU_PARAM_FW_API_VERSION = 8
"""An array: index is the API."""
DRM_IVPU_PARAM_ENGINE_HEARTBEAT = 9
"""index is the engine."""
DRM_IVPU_PARAM_UNIQUE_INFERENCE_ID = 10
DRM_IVPU_PARAM_TILE_CONFIG = 11
DRM_IVPU_PARAM_SKU = 12
DRM_IVPU_PARAM_CAPABILITIES = 13
"""index is a DRM_IVPU_CAP_*."""
DRM_IVPU_PARAM_PREEMPT_BUFFER_SIZE = 14

DRM_IVPU_PLATFORM_TYPE_SILICON = 0

# Deprecated
DRM_IVPU_CONTEXT_PRIORITY_IDLE = 0
DRM_IVPU_CONTEXT_PRIORITY_NORMAL = 1
DRM_IVPU_CONTEXT_PRIORITY_FOCUS = 2
DRM_IVPU_CONTEXT_PRIORITY_REALTIME = 3

# priority of drm_ivpu_submit and drm_ivpu_cmdq_create
DRM_IVPU_JOB_PRIORITY_DEFAULT = 0
DRM_IVPU_JOB_PRIORITY_IDLE = 1
DRM_IVPU_JOB_PRIORITY_NORMAL = 2
DRM_IVPU_JOB_PRIORITY_FOCUS = 3
DRM_IVPU_JOB_PRIORITY_REALTIME = 4

DRM_IVPU_CAP_METRIC_STREAMER = 1
DRM_IVPU_CAP_DMA_MEMORY_RANGE = 2
DRM_IVPU_CAP_MANAGE_CMDQ = 3
DRM_IVPU_CAP_BO_CREATE_FROM_USERPTR = 4

# flags of drm_ivpu_bo_create
DRM_IVPU_BO_SHAVE_MEM = 0x00000001
DRM_IVPU_BO_HIGH_MEM = DRM_IVPU_BO_SHAVE_MEM
"""An address above 4 GiB."""
DRM_IVPU_BO_MAPPABLE = 0x00000002
DRM_IVPU_BO_DMA_MEM = 0x00000004
DRM_IVPU_BO_READ_ONLY = 0x00000008
DRM_IVPU_BO_CACHED = 0x00000000
DRM_IVPU_BO_UNCACHED = 0x00010000
"""The driver refuses it: write-combining does the same."""
DRM_IVPU_BO_WC = 0x00020000
DRM_IVPU_BO_CACHE_MASK = 0x00030000
DRM_IVPU_BO_FLAGS = (
    DRM_IVPU_BO_HIGH_MEM
    | DRM_IVPU_BO_MAPPABLE
    | DRM_IVPU_BO_DMA_MEM
    | DRM_IVPU_BO_READ_ONLY
    | DRM_IVPU_BO_CACHE_MASK
)

# engine of drm_ivpu_submit
DRM_IVPU_ENGINE_COMPUTE = 0
DRM_IVPU_ENGINE_COPY = 1
"""Deprecated."""

# job_status of drm_ivpu_bo_wait; every other is the firmware's own
DRM_IVPU_JOB_STATUS_SUCCESS = 0
DRM_IVPU_JOB_STATUS_ABORTED = 256

DRM_IVPU_CMDQ_FLAG_TURBO = 0x00000001


class drm_ivpu_param(Struct):
    """``value`` comes back from GET_PARAM."""

    _size_ = 16
    _fields_ = [("param", c_uint32), ("index", c_uint32), ("value", c_uint64)]


class drm_ivpu_bo_create(Struct):
    """``size`` bytes in; ``handle`` and the NPU's address ``vpu_addr`` come back."""

    _size_ = 24
    _fields_ = [
        ("size", c_uint64),
        ("flags", c_uint32),
        ("handle", c_uint32),
        ("vpu_addr", c_uint64),
    ]


class drm_ivpu_bo_create_from_userptr(Struct):
    """``user_ptr`` and ``size`` are whole pages, which stay pinned while the buffer lives."""

    _size_ = 32
    _fields_ = [
        ("user_ptr", c_uint64),
        ("size", c_uint64),
        ("flags", c_uint32),
        ("handle", c_uint32),
        ("vpu_addr", c_uint64),
    ]
    _pointers_ = {"user_ptr": Pointer(c_uint8, count="size", direction="inout")}


class drm_ivpu_bo_info(Struct):
    """All but ``handle`` comes back; ``mmap_offset`` 0: not mappable. ``size`` in bytes."""

    _size_ = 32
    _fields_ = [
        ("handle", c_uint32),
        ("flags", c_uint32),
        ("vpu_addr", c_uint64),
        ("mmap_offset", c_uint64),
        ("size", c_uint64),
    ]


class drm_ivpu_submit(Struct):
    """The first buffer holds the commands, ``commands_offset`` bytes in (a multiple of 8).

    The list names every buffer that the commands refer to.
    """

    _size_ = 32
    _fields_ = [
        ("buffers_ptr", c_uint64),
        ("buffer_count", c_uint32),
        ("engine", c_uint32),
        ("flags", c_uint32),
        ("commands_offset", c_uint32),
        ("priority", c_uint32),
    ]
    _pointers_ = {"buffers_ptr": Pointer(c_uint32, count="buffer_count")}


class drm_ivpu_cmdq_submit(Struct):
    """As drm_ivpu_submit, to a queue; ``preempt_buffer_index`` 0: the driver's own buffer."""

    _size_ = 32
    _fields_ = [
        ("buffers_ptr", c_uint64),
        ("buffer_count", c_uint32),
        ("cmdq_id", c_uint32),
        ("flags", c_uint32),
        ("commands_offset", c_uint32),
        ("preempt_buffer_index", c_uint32),
        ("reserved", c_uint32),
    ]
    _pointers_ = {"buffers_ptr": Pointer(c_uint32, count="buffer_count")}


class drm_ivpu_bo_wait(Struct):
    """``timeout_ns`` is absolute, CLOCK_MONOTONIC; ``job_status`` counts for a command buffer."""

    _size_ = 24
    _fields_ = [
        ("handle", c_uint32),
        ("flags", c_uint32),
        ("timeout_ns", c_int64),
        ("job_status", c_uint32),
        ("pad", c_uint32),
    ]


class drm_ivpu_metric_streamer_start(Struct):
    """``sample_size`` and ``max_data_size``, both in bytes, come back."""

    _size_ = 32
    _fields_ = [
        ("metric_group_mask", c_uint64),
        ("sampling_period_ns", c_uint64),
        ("read_period_samples", c_uint32),
        ("sample_size", c_uint32),
        ("max_data_size", c_uint32),
    ]


class drm_ivpu_metric_streamer_get_data(Struct):
    """``data_size`` bytes were copied; with ``buffer_size`` 0 so many could be."""

    _size_ = 32
    _fields_ = [
        ("metric_group_mask", c_uint64),
        ("buffer_ptr", c_uint64),
        ("buffer_size", c_uint64),
        ("data_size", c_uint64),
    ]
    _pointers_ = {"buffer_ptr": Pointer(c_uint8, count="buffer_size", direction="out")}


class drm_ivpu_cmdq_create(Struct):
    """``cmdq_id`` comes back."""

    _size_ = 12
    _fields_ = [("cmdq_id", c_uint32), ("priority", c_uint32), ("flags", c_uint32)]


class drm_ivpu_cmdq_destroy(Struct):
    _size_ = 4
    _fields_ = [("cmdq_id", c_uint32)]


class drm_ivpu_metric_streamer_stop(Struct):
    _size_ = 8
    _fields_ = [("metric_group_mask", c_uint64)]


DRM_IOCTL_IVPU_GET_PARAM = Ioctl(
    "DRM_IOCTL_IVPU_GET_PARAM",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_IVPU_GET_PARAM, drm_ivpu_param),
    drm_ivpu_param,
    restart=True,
)
DRM_IOCTL_IVPU_SET_PARAM = Ioctl(
    "DRM_IOCTL_IVPU_SET_PARAM",
    DRM_IOW(DRM_COMMAND_BASE + DRM_IVPU_SET_PARAM, drm_ivpu_param),
    drm_ivpu_param,
)
DRM_IOCTL_IVPU_BO_CREATE = Ioctl(
    "DRM_IOCTL_IVPU_BO_CREATE",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_IVPU_BO_CREATE, drm_ivpu_bo_create),
    drm_ivpu_bo_create,
)
DRM_IOCTL_IVPU_BO_INFO = Ioctl(
    "DRM_IOCTL_IVPU_BO_INFO",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_IVPU_BO_INFO, drm_ivpu_bo_info),
    drm_ivpu_bo_info,
    restart=True,
)
DRM_IOCTL_IVPU_SUBMIT = Ioctl(
    "DRM_IOCTL_IVPU_SUBMIT",
    DRM_IOW(DRM_COMMAND_BASE + DRM_IVPU_SUBMIT, drm_ivpu_submit),
    drm_ivpu_submit,
)
# The timeout is absolute, so a wait that a signal broke off goes on where it was.
DRM_IOCTL_IVPU_BO_WAIT = Ioctl(
    "DRM_IOCTL_IVPU_BO_WAIT",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_IVPU_BO_WAIT, drm_ivpu_bo_wait),
    drm_ivpu_bo_wait,
    restart=True,
)
DRM_IOCTL_IVPU_METRIC_STREAMER_START = Ioctl(
    "DRM_IOCTL_IVPU_METRIC_STREAMER_START",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_IVPU_METRIC_STREAMER_START, drm_ivpu_metric_streamer_start),
    drm_ivpu_metric_streamer_start,
)
DRM_IOCTL_IVPU_METRIC_STREAMER_STOP = Ioctl(
    "DRM_IOCTL_IVPU_METRIC_STREAMER_STOP",
    DRM_IOW(DRM_COMMAND_BASE + DRM_IVPU_METRIC_STREAMER_STOP, drm_ivpu_metric_streamer_stop),
    drm_ivpu_metric_streamer_stop,
)
# Data is handed out once: a call that failed half-way is not made again blindly.
DRM_IOCTL_IVPU_METRIC_STREAMER_GET_DATA = Ioctl(
    "DRM_IOCTL_IVPU_METRIC_STREAMER_GET_DATA",
    DRM_IOWR(
        DRM_COMMAND_BASE + DRM_IVPU_METRIC_STREAMER_GET_DATA, drm_ivpu_metric_streamer_get_data
    ),
    drm_ivpu_metric_streamer_get_data,
)
DRM_IOCTL_IVPU_METRIC_STREAMER_GET_INFO = Ioctl(
    "DRM_IOCTL_IVPU_METRIC_STREAMER_GET_INFO",
    DRM_IOWR(
        DRM_COMMAND_BASE + DRM_IVPU_METRIC_STREAMER_GET_INFO, drm_ivpu_metric_streamer_get_data
    ),
    drm_ivpu_metric_streamer_get_data,
    restart=True,
)
DRM_IOCTL_IVPU_CMDQ_CREATE = Ioctl(
    "DRM_IOCTL_IVPU_CMDQ_CREATE",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_IVPU_CMDQ_CREATE, drm_ivpu_cmdq_create),
    drm_ivpu_cmdq_create,
)
DRM_IOCTL_IVPU_CMDQ_DESTROY = Ioctl(
    "DRM_IOCTL_IVPU_CMDQ_DESTROY",
    DRM_IOW(DRM_COMMAND_BASE + DRM_IVPU_CMDQ_DESTROY, drm_ivpu_cmdq_destroy),
    drm_ivpu_cmdq_destroy,
)
DRM_IOCTL_IVPU_CMDQ_SUBMIT = Ioctl(
    "DRM_IOCTL_IVPU_CMDQ_SUBMIT",
    DRM_IOW(DRM_COMMAND_BASE + DRM_IVPU_CMDQ_SUBMIT, drm_ivpu_cmdq_submit),
    drm_ivpu_cmdq_submit,
)
DRM_IOCTL_IVPU_BO_CREATE_FROM_USERPTR = Ioctl(
    "DRM_IOCTL_IVPU_BO_CREATE_FROM_USERPTR",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_IVPU_BO_CREATE_FROM_USERPTR, drm_ivpu_bo_create_from_userptr),
    drm_ivpu_bo_create_from_userptr,
)


class before_6_19(Variant):
    """No preemption buffers from user space, no read-only ones."""

    UNTIL = (6, 19)

    DRM_IVPU_BO_FLAGS = (
        DRM_IVPU_BO_HIGH_MEM | DRM_IVPU_BO_MAPPABLE | DRM_IVPU_BO_DMA_MEM | DRM_IVPU_BO_CACHE_MASK
    )

    class drm_ivpu_cmdq_submit(Struct):
        _size_ = 24
        _fields_ = [
            ("buffers_ptr", c_uint64),
            ("buffer_count", c_uint32),
            ("cmdq_id", c_uint32),
            ("flags", c_uint32),
            ("commands_offset", c_uint32),
        ]
        _pointers_ = {"buffers_ptr": Pointer(c_uint32, count="buffer_count")}

    DRM_IOCTL_IVPU_CMDQ_SUBMIT = Ioctl(
        "DRM_IOCTL_IVPU_CMDQ_SUBMIT",
        DRM_IOW(DRM_COMMAND_BASE + DRM_IVPU_CMDQ_SUBMIT, drm_ivpu_cmdq_submit),
        drm_ivpu_cmdq_submit,
    )


class before_6_17(Variant):
    """A queue had no flags."""

    UNTIL = (6, 17)

    class drm_ivpu_cmdq_create(Struct):
        _size_ = 8
        _fields_ = [("cmdq_id", c_uint32), ("priority", c_uint32)]

    DRM_IOCTL_IVPU_CMDQ_CREATE = Ioctl(
        "DRM_IOCTL_IVPU_CMDQ_CREATE",
        DRM_IOWR(DRM_COMMAND_BASE + DRM_IVPU_CMDQ_CREATE, drm_ivpu_cmdq_create),
        drm_ivpu_cmdq_create,
    )


class before_6_13(Variant):
    """The header stated the driver's version, which DRM_IOCTL_VERSION tells."""

    UNTIL = (6, 13)

    DRM_IVPU_DRIVER_MAJOR = 1
    DRM_IVPU_DRIVER_MINOR = 0


class before_6_8(Variant):
    """A submission had no priority: its context did."""

    UNTIL = (6, 8)

    class drm_ivpu_submit(Struct):
        _size_ = 24
        _fields_ = [
            ("buffers_ptr", c_uint64),
            ("buffer_count", c_uint32),
            ("engine", c_uint32),
            ("flags", c_uint32),
            ("commands_offset", c_uint32),
        ]
        _pointers_ = {"buffers_ptr": Pointer(c_uint32, count="buffer_count")}

    DRM_IOCTL_IVPU_SUBMIT = Ioctl(
        "DRM_IOCTL_IVPU_SUBMIT",
        DRM_IOW(DRM_COMMAND_BASE + DRM_IVPU_SUBMIT, drm_ivpu_submit),
        drm_ivpu_submit,
    )


class before_6_6(Variant):
    """No memory range of its own for DMA."""

    UNTIL = (6, 6)

    DRM_IVPU_BO_FLAGS = DRM_IVPU_BO_HIGH_MEM | DRM_IVPU_BO_MAPPABLE | DRM_IVPU_BO_CACHE_MASK


SINCE: dict[str, Version] = {
    "ivpu": (6, 3),
    "DRM_IVPU_PARAM_CAPABILITIES": (6, 6),
    "DRM_IVPU_CAP_METRIC_STREAMER": (6, 6),
    "DRM_IVPU_CAP_DMA_MEMORY_RANGE": (6, 6),
    "DRM_IVPU_BO_SHAVE_MEM": (6, 6),
    "DRM_IVPU_BO_DMA_MEM": (6, 6),
    "DRM_IVPU_JOB_PRIORITY_DEFAULT": (6, 8),
    "DRM_IVPU_JOB_PRIORITY_IDLE": (6, 8),
    "DRM_IVPU_JOB_PRIORITY_NORMAL": (6, 8),
    "DRM_IVPU_JOB_PRIORITY_FOCUS": (6, 8),
    "DRM_IVPU_JOB_PRIORITY_REALTIME": (6, 8),
    "DRM_IVPU_JOB_STATUS_ABORTED": (6, 8),
    "DRM_IVPU_METRIC_STREAMER_START": (6, 11),
    "DRM_IVPU_METRIC_STREAMER_STOP": (6, 11),
    "DRM_IVPU_METRIC_STREAMER_GET_DATA": (6, 11),
    "DRM_IVPU_METRIC_STREAMER_GET_INFO": (6, 11),
    "drm_ivpu_metric_streamer_start": (6, 11),
    "drm_ivpu_metric_streamer_stop": (6, 11),
    "drm_ivpu_metric_streamer_get_data": (6, 11),
    "DRM_IOCTL_IVPU_METRIC_STREAMER_START": (6, 11),
    "DRM_IOCTL_IVPU_METRIC_STREAMER_STOP": (6, 11),
    "DRM_IOCTL_IVPU_METRIC_STREAMER_GET_DATA": (6, 11),
    "DRM_IOCTL_IVPU_METRIC_STREAMER_GET_INFO": (6, 11),
    "DRM_IVPU_CAP_MANAGE_CMDQ": (6, 15),
    "DRM_IVPU_CMDQ_CREATE": (6, 15),
    "DRM_IVPU_CMDQ_DESTROY": (6, 15),
    "DRM_IVPU_CMDQ_SUBMIT": (6, 15),
    "drm_ivpu_cmdq_create": (6, 15),
    "drm_ivpu_cmdq_destroy": (6, 15),
    "drm_ivpu_cmdq_submit": (6, 15),
    "DRM_IOCTL_IVPU_CMDQ_CREATE": (6, 15),
    "DRM_IOCTL_IVPU_CMDQ_DESTROY": (6, 15),
    "DRM_IOCTL_IVPU_CMDQ_SUBMIT": (6, 15),
    "DRM_IVPU_CMDQ_FLAG_TURBO": (6, 17),
    "DRM_IVPU_PARAM_PREEMPT_BUFFER_SIZE": (6, 19),
    "DRM_IVPU_CAP_BO_CREATE_FROM_USERPTR": (6, 19),
    "DRM_IVPU_BO_READ_ONLY": (6, 19),
    "DRM_IVPU_BO_CREATE_FROM_USERPTR": (6, 19),
    "drm_ivpu_bo_create_from_userptr": (6, 19),
    "DRM_IOCTL_IVPU_BO_CREATE_FROM_USERPTR": (6, 19),
}
VARIANTS: dict[str, type[Variant]] = {
    "before 6.19": before_6_19,
    "before 6.17": before_6_17,
    "before 6.13": before_6_13,
    "before 6.8": before_6_8,
    "before 6.6": before_6_6,
}
for_kernel = kernel_views(__name__)
variant = variant_views(__name__)
