# SPDX-License-Identifier: MIT
"""include/uapi/drm/qaic_accel.h: Qualcomm Cloud AI 100 and 080."""

from __future__ import annotations

from ctypes import c_uint8, c_uint16, c_uint32, c_uint64

from npukit.ioctl import Ioctl, Pointer, Struct

from .drm import DRM_COMMAND_BASE, DRM_IOW, DRM_IOWR
from .versions import Variant, Version, kernel_views, variant_views

QAIC_MANAGE_MAX_MSG_LENGTH = 0x1000
"""SZ_4K, which user space does not know."""

# flags of qaic_sem
QAIC_SEM_INSYNCFENCE = 2
QAIC_SEM_OUTSYNCFENCE = 1

# cmd of qaic_sem
QAIC_SEM_NOP = 0
QAIC_SEM_INIT = 1
QAIC_SEM_INC = 2
QAIC_SEM_DEC = 3
QAIC_SEM_WAIT_EQUAL = 4
QAIC_SEM_WAIT_GT_EQ = 5
QAIC_SEM_WAIT_GT_0 = 6

# type of qaic_manage_trans_hdr
QAIC_TRANS_UNDEFINED = 0
QAIC_TRANS_PASSTHROUGH_FROM_USR = 1
QAIC_TRANS_PASSTHROUGH_TO_USR = 2
QAIC_TRANS_PASSTHROUGH_FROM_DEV = 3
QAIC_TRANS_PASSTHROUGH_TO_DEV = 4
QAIC_TRANS_DMA_XFER_FROM_USR = 5
QAIC_TRANS_DMA_XFER_TO_DEV = 6
QAIC_TRANS_ACTIVATE_FROM_USR = 7
QAIC_TRANS_ACTIVATE_FROM_DEV = 8
QAIC_TRANS_ACTIVATE_TO_DEV = 9
QAIC_TRANS_DEACTIVATE_FROM_USR = 10
QAIC_TRANS_DEACTIVATE_FROM_DEV = 11
QAIC_TRANS_STATUS_FROM_USR = 12
QAIC_TRANS_STATUS_TO_USR = 13
QAIC_TRANS_STATUS_FROM_DEV = 14
QAIC_TRANS_STATUS_TO_DEV = 15
QAIC_TRANS_TERMINATE_FROM_DEV = 16
QAIC_TRANS_TERMINATE_TO_DEV = 17
QAIC_TRANS_DMA_XFER_CONT = 18
QAIC_TRANS_VALIDATE_PARTITION_FROM_DEV = 19
QAIC_TRANS_VALIDATE_PARTITION_TO_DEV = 20


class qaic_manage_trans_hdr(Struct):
    """``len`` in bytes, this header included."""

    _size_ = 8
    _fields_ = [
        ("type", c_uint32),
        ("len", c_uint32),
    ]


class qaic_manage_trans_passthrough(Struct):
    """``hdr.len`` counts header and data: data is opaque, little-endian, whole 8-byte words."""

    _size_ = 8
    _fields_ = [
        ("hdr", qaic_manage_trans_hdr),
        ("data", c_uint8 * 0),
    ]


class qaic_manage_trans_dma_xfer(Struct):
    """``tag`` names the transfer to other transactions."""

    _size_ = 32
    _fields_ = [
        ("hdr", qaic_manage_trans_hdr),
        ("tag", c_uint32),
        ("pad", c_uint32),
        ("addr", c_uint64),
        ("size", c_uint64),
    ]
    _pointers_ = {"addr": Pointer(c_uint8, count="size")}


class qaic_manage_trans_activate_to_dev(Struct):
    """``queue_size`` in elements."""

    _size_ = 24
    _fields_ = [
        ("hdr", qaic_manage_trans_hdr),
        ("queue_size", c_uint32),
        ("eventfd", c_uint32),
        ("options", c_uint32),
        ("pad", c_uint32),
    ]


class qaic_manage_trans_activate_from_dev(Struct):
    """``dbc_id`` is the channel that the workload got."""

    _size_ = 24
    _fields_ = [
        ("hdr", qaic_manage_trans_hdr),
        ("status", c_uint32),
        ("dbc_id", c_uint32),
        ("options", c_uint64),
    ]


class qaic_manage_trans_deactivate(Struct):
    _size_ = 16
    _fields_ = [
        ("hdr", qaic_manage_trans_hdr),
        ("dbc_id", c_uint32),
        ("pad", c_uint32),
    ]


class qaic_manage_trans_status_to_dev(Struct):
    _size_ = 8
    _fields_ = [
        ("hdr", qaic_manage_trans_hdr),
    ]


class qaic_manage_trans_status_from_dev(Struct):
    """``status_flags`` bit 0: messages carry a CRC."""

    _size_ = 24
    _fields_ = [
        ("hdr", qaic_manage_trans_hdr),
        ("major", c_uint16),
        ("minor", c_uint16),
        ("status", c_uint32),
        ("status_flags", c_uint64),
    ]


class qaic_manage_msg(Struct):
    """``count`` transactions in ``len`` bytes, which the answers overwrite."""

    _size_ = 16
    _fields_ = [
        ("len", c_uint32),
        ("count", c_uint32),
        ("data", c_uint64),
    ]
    _pointers_ = {"data": Pointer(c_uint8, count="len", direction="inout")}


class qaic_create_bo(Struct):
    """``size`` bytes in; ``handle`` comes back."""

    _size_ = 16
    _fields_ = [
        ("size", c_uint64),
        ("handle", c_uint32),
        ("pad", c_uint32),
    ]


class qaic_mmap_bo(Struct):
    """``offset`` for mmap comes back."""

    _size_ = 16
    _fields_ = [
        ("handle", c_uint32),
        ("pad", c_uint32),
        ("offset", c_uint64),
    ]


class qaic_sem(Struct):
    """``val`` has 12 bits, ``index`` 5; ``presync`` 1: before the transfer."""

    _size_ = 8
    _fields_ = [
        ("val", c_uint16),
        ("index", c_uint8),
        ("presync", c_uint8),
        ("cmd", c_uint8),
        ("flags", c_uint8),
        ("pad", c_uint16),
    ]


class qaic_attach_slice_entry(Struct):
    """``db_len`` in bits (32, 16 or 8; 0: no doorbell), ``size`` and ``offset`` in bytes."""

    _size_ = 72
    _fields_ = [
        ("size", c_uint64),
        ("sem0", qaic_sem),
        ("sem1", qaic_sem),
        ("sem2", qaic_sem),
        ("sem3", qaic_sem),
        ("dev_addr", c_uint64),
        ("db_addr", c_uint64),
        ("db_data", c_uint32),
        ("db_len", c_uint32),
        ("offset", c_uint64),
    ]


class qaic_attach_slice_hdr(Struct):
    """``dir`` 1: to the device, 2: from it. ``size`` is ignored."""

    _size_ = 24
    _fields_ = [
        ("count", c_uint32),
        ("dbc_id", c_uint32),
        ("handle", c_uint32),
        ("dir", c_uint32),
        ("size", c_uint64),
    ]


class qaic_attach_slice(Struct):
    _size_ = 32
    _fields_ = [
        ("hdr", qaic_attach_slice_hdr),
        ("data", c_uint64),
    ]
    _pointers_ = {"data": Pointer(qaic_attach_slice_entry, count="count")}

    @property
    def count(self) -> int:
        """``hdr.count``, under a name that the pointer can give."""
        return int(self.hdr.count)


class qaic_execute_entry(Struct):
    """``dir`` 1: to the device, 2: from it."""

    _size_ = 8
    _fields_ = [
        ("handle", c_uint32),
        ("dir", c_uint32),
    ]


class qaic_partial_execute_entry(Struct):
    """The first ``resize`` bytes only; 0: no transfer."""

    _size_ = 16
    _fields_ = [
        ("handle", c_uint32),
        ("dir", c_uint32),
        ("resize", c_uint64),
    ]


class qaic_execute_hdr(Struct):
    _size_ = 8
    _fields_ = [
        ("count", c_uint32),
        ("dbc_id", c_uint32),
    ]


class qaic_execute(Struct):
    _size_ = 16
    _fields_ = [
        ("hdr", qaic_execute_hdr),
        ("data", c_uint64),
    ]
    _pointers_ = {"data": Pointer(qaic_execute_entry, count="count")}

    @property
    def count(self) -> int:
        """``hdr.count``, under a name that the pointer can give."""
        return int(self.hdr.count)


class _PartialExecute(qaic_execute):
    """The same for PARTIAL_EXECUTE_BO, whose data are other entries."""

    _pointers_ = {"data": Pointer(qaic_partial_execute_entry, count="count")}


_PartialExecute.__name__ = qaic_execute.__name__


class qaic_wait(Struct):
    """``timeout`` in ms from now on; 0: the driver's default, 5000."""

    _size_ = 16
    _fields_ = [
        ("handle", c_uint32),
        ("timeout", c_uint32),
        ("dbc_id", c_uint32),
        ("pad", c_uint32),
    ]


class qaic_perf_stats_hdr(Struct):
    _size_ = 8
    _fields_ = [
        ("count", c_uint16),
        ("pad", c_uint16),
        ("dbc_id", c_uint32),
    ]


class qaic_perf_stats_entry(Struct):
    """``handle`` in, the rest comes back."""

    _size_ = 24
    _fields_ = [
        ("handle", c_uint32),
        ("queue_level_before", c_uint32),
        ("num_queue_element", c_uint32),
        ("submit_latency_us", c_uint32),
        ("device_latency_us", c_uint32),
        ("pad", c_uint32),
    ]


class qaic_perf_stats(Struct):
    _size_ = 16
    _fields_ = [
        ("hdr", qaic_perf_stats_hdr),
        ("data", c_uint64),
    ]
    _pointers_ = {"data": Pointer(qaic_perf_stats_entry, count="count", direction="inout")}

    @property
    def count(self) -> int:
        """``hdr.count``, under a name that the pointer can give."""
        return int(self.hdr.count)


class qaic_detach_slice(Struct):
    _size_ = 8
    _fields_ = [
        ("handle", c_uint32),
        ("pad", c_uint32),
    ]


DRM_QAIC_MANAGE = 0x00
DRM_QAIC_CREATE_BO = 0x01
DRM_QAIC_MMAP_BO = 0x02
DRM_QAIC_ATTACH_SLICE_BO = 0x03
DRM_QAIC_EXECUTE_BO = 0x04
DRM_QAIC_PARTIAL_EXECUTE_BO = 0x05
DRM_QAIC_WAIT_BO = 0x06
DRM_QAIC_PERF_STATS_BO = 0x07
DRM_QAIC_DETACH_SLICE_BO = 0x08


DRM_IOCTL_QAIC_MANAGE = Ioctl(
    "DRM_IOCTL_QAIC_MANAGE",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_QAIC_MANAGE, qaic_manage_msg),
    qaic_manage_msg,
)
DRM_IOCTL_QAIC_CREATE_BO = Ioctl(
    "DRM_IOCTL_QAIC_CREATE_BO",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_QAIC_CREATE_BO, qaic_create_bo),
    qaic_create_bo,
)
DRM_IOCTL_QAIC_MMAP_BO = Ioctl(
    "DRM_IOCTL_QAIC_MMAP_BO",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_QAIC_MMAP_BO, qaic_mmap_bo),
    qaic_mmap_bo,
)
DRM_IOCTL_QAIC_ATTACH_SLICE_BO = Ioctl(
    "DRM_IOCTL_QAIC_ATTACH_SLICE_BO",
    DRM_IOW(DRM_COMMAND_BASE + DRM_QAIC_ATTACH_SLICE_BO, qaic_attach_slice),
    qaic_attach_slice,
)
DRM_IOCTL_QAIC_EXECUTE_BO = Ioctl(
    "DRM_IOCTL_QAIC_EXECUTE_BO",
    DRM_IOW(DRM_COMMAND_BASE + DRM_QAIC_EXECUTE_BO, qaic_execute),
    qaic_execute,
)
DRM_IOCTL_QAIC_PARTIAL_EXECUTE_BO = Ioctl(
    "DRM_IOCTL_QAIC_PARTIAL_EXECUTE_BO",
    DRM_IOW(DRM_COMMAND_BASE + DRM_QAIC_PARTIAL_EXECUTE_BO, qaic_execute),
    _PartialExecute,
)
# The timeout counts from the call: one more would wait the whole time again.
DRM_IOCTL_QAIC_WAIT_BO = Ioctl(
    "DRM_IOCTL_QAIC_WAIT_BO", DRM_IOW(DRM_COMMAND_BASE + DRM_QAIC_WAIT_BO, qaic_wait), qaic_wait
)
DRM_IOCTL_QAIC_PERF_STATS_BO = Ioctl(
    "DRM_IOCTL_QAIC_PERF_STATS_BO",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_QAIC_PERF_STATS_BO, qaic_perf_stats),
    qaic_perf_stats,
)
DRM_IOCTL_QAIC_DETACH_SLICE_BO = Ioctl(
    "DRM_IOCTL_QAIC_DETACH_SLICE_BO",
    DRM_IOW(DRM_COMMAND_BASE + DRM_QAIC_DETACH_SLICE_BO, qaic_detach_slice),
    qaic_detach_slice,
)


SINCE: dict[str, Version] = {
    "qaic": (6, 4),
    "qaic_detach_slice": (6, 7),
    "DRM_QAIC_DETACH_SLICE_BO": (6, 7),
    "DRM_IOCTL_QAIC_DETACH_SLICE_BO": (6, 7),
}
VARIANTS: dict[str, type[Variant]] = {}
for_kernel = kernel_views(__name__)
variant = variant_views(__name__)
