# SPDX-License-Identifier: MIT
"""include/uapi/drm/amdxdna_accel.h: AMD Ryzen AI NPUs (XDNA)."""

from __future__ import annotations

from ctypes import c_int8, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64

from npukit.ioctl import Ioctl, Pointer, Struct

from .drm import DRM_COMMAND_BASE, DRM_IOW, DRM_IOWR
from .versions import Variant, Version, kernel_views, variant_views

# ~0UL of a 64-bit machine, and ~0U
AMDXDNA_INVALID_CMD_HANDLE = (1 << 64) - 1
AMDXDNA_INVALID_ADDR = (1 << 64) - 1
AMDXDNA_INVALID_CTX_HANDLE = 0
AMDXDNA_INVALID_BO_HANDLE = 0
AMDXDNA_INVALID_FENCE_HANDLE = 0
AMDXDNA_INVALID_DOORBELL_OFFSET = (1 << 32) - 1

# priority of amdxdna_qos_info
AMDXDNA_QOS_REALTIME_PRIORITY = 0x100
AMDXDNA_QOS_HIGH_PRIORITY = 0x180
AMDXDNA_QOS_NORMAL_PRIORITY = 0x200
AMDXDNA_QOS_LOW_PRIORITY = 0x280

# enum amdxdna_device_type: what sysfs calls device_type
AMDXDNA_DEV_TYPE_UNKNOWN = -1
AMDXDNA_DEV_TYPE_KMQ = 0
AMDXDNA_DEV_TYPE_UMQ = 1
AMDXDNA_DEV_TYPE_PF = 2

# enum amdxdna_drm_ioctl_id
DRM_AMDXDNA_CREATE_HWCTX = 0
DRM_AMDXDNA_DESTROY_HWCTX = 1
DRM_AMDXDNA_CONFIG_HWCTX = 2
DRM_AMDXDNA_CREATE_BO = 3
DRM_AMDXDNA_GET_BO_INFO = 4
DRM_AMDXDNA_SYNC_BO = 5
DRM_AMDXDNA_EXEC_CMD = 6
DRM_AMDXDNA_GET_INFO = 7
DRM_AMDXDNA_SET_STATE = 8
DRM_AMDXDNA_WAIT_CMD = 9
DRM_AMDXDNA_GET_ARRAY = 10


class amdxdna_qos_info(Struct):
    """Hints: 10^9 operations a second, frames a second; the rest in the driver's own terms."""

    _size_ = 24
    _fields_ = [
        ("gops", c_uint32),
        ("fps", c_uint32),
        ("dma_bandwidth", c_uint32),
        ("latency", c_uint32),
        ("frame_exec_time", c_uint32),
        ("priority", c_uint32),
    ]


class amdxdna_drm_create_hwctx(Struct):
    """``ext`` and ``ext_flags`` are 0; ``num_tiles`` is columns times core rows.

    ``umq_doorbell``, ``handle`` and ``syncobj_handle`` come back.
    """

    _size_ = 56
    _fields_ = [
        ("ext", c_uint64),
        ("ext_flags", c_uint64),
        ("qos_p", c_uint64),
        ("umq_bo", c_uint32),
        ("log_buf_bo", c_uint32),
        ("max_opc", c_uint32),
        ("num_tiles", c_uint32),
        ("mem_size", c_uint32),
        ("umq_doorbell", c_uint32),
        ("handle", c_uint32),
        ("syncobj_handle", c_uint32),
    ]
    _pointers_ = {"qos_p": Pointer(amdxdna_qos_info)}


class amdxdna_drm_destroy_hwctx(Struct):
    _size_ = 8
    _fields_ = [
        ("handle", c_uint32),
        ("pad", c_uint32),
    ]


class amdxdna_cu_config(Struct):
    """A compute unit: the buffer (type DEV) with its PDI, and its function."""

    _size_ = 8
    _fields_ = [
        ("cu_bo", c_uint32),
        ("cu_func", c_uint8),
        ("pad", c_uint8 * 3),
    ]


class amdxdna_hwctx_param_config_cu(Struct):
    """What ``param_val`` of drm_config_hwctx points to for DRM_AMDXDNA_HWCTX_CONFIG_CU."""

    _size_ = 8
    _tail_ = ("cu_configs", "num_cus")
    _fields_ = [
        ("num_cus", c_uint16),
        ("pad", c_uint16 * 3),
        ("cu_configs", amdxdna_cu_config * 0),
    ]


# enum amdxdna_drm_config_hwctx_param: param_type of amdxdna_drm_config_hwctx
DRM_AMDXDNA_HWCTX_CONFIG_CU = 0
DRM_AMDXDNA_HWCTX_ASSIGN_DBG_BUF = 1
DRM_AMDXDNA_HWCTX_REMOVE_DBG_BUF = 2


class amdxdna_drm_config_hwctx(Struct):
    """``param_val`` points to ``param_val_size`` bytes for CONFIG_CU, else it is a handle."""

    _size_ = 24
    _fields_ = [
        ("handle", c_uint32),
        ("param_type", c_uint32),
        ("param_val", c_uint64),
        ("param_val_size", c_uint32),
        ("pad", c_uint32),
    ]
    _pointers_ = {"param_val": Pointer(c_uint8, count="param_val_size")}


# enum amdxdna_bo_type: type of amdxdna_drm_create_bo
AMDXDNA_BO_INVALID = 0
AMDXDNA_BO_SHMEM = 1
"""The older name of AMDXDNA_BO_SHARE."""
AMDXDNA_BO_SHARE = 1
AMDXDNA_BO_DEV_HEAP = 2
AMDXDNA_BO_DEV = 3
AMDXDNA_BO_CMD = 4


class amdxdna_drm_va_entry(Struct):
    _size_ = 16
    _fields_ = [
        ("vaddr", c_uint64),
        ("len", c_uint64),
    ]
    _pointers_ = {"vaddr": Pointer(c_uint8, count="len", direction="inout")}


class amdxdna_drm_va_tbl(Struct):
    """The memory of a SHARE buffer: a dma-buf and no entries, or entries of the caller's pages."""

    _size_ = 8
    _tail_ = ("va_entries", "num_entries")
    _fields_ = [
        ("dmabuf_fd", c_int32),
        ("num_entries", c_uint32),
        ("va_entries", amdxdna_drm_va_entry * 0),
    ]


class amdxdna_drm_create_bo(Struct):
    """``flags`` is 0; ``vaddr`` is 0 or a table of the memory to use; ``handle`` comes back."""

    _size_ = 32
    _fields_ = [
        ("flags", c_uint64),
        ("vaddr", c_uint64),
        ("size", c_uint64),
        ("type", c_uint32),
        ("handle", c_uint32),
    ]
    _pointers_ = {"vaddr": Pointer(amdxdna_drm_va_tbl)}


class amdxdna_drm_get_bo_info(Struct):
    """What comes back is AMDXDNA_INVALID_ADDR where it is not known, as before the first mmap."""

    _size_ = 48
    _fields_ = [
        ("ext", c_uint64),
        ("ext_flags", c_uint64),
        ("handle", c_uint32),
        ("pad", c_uint32),
        ("map_offset", c_uint64),
        ("vaddr", c_uint64),
        ("xdna_addr", c_uint64),
    ]


class amdxdna_drm_sync_bo(Struct):
    """``offset`` and ``size`` in bytes."""

    _size_ = 24
    _fields_ = [
        ("handle", c_uint32),
        ("direction", c_uint32),
        ("offset", c_uint64),
        ("size", c_uint64),
    ]


# direction of amdxdna_drm_sync_bo
SYNC_DIRECT_TO_DEVICE = 0
SYNC_DIRECT_FROM_DEVICE = 1

# enum amdxdna_cmd_type: type of amdxdna_drm_exec_cmd
AMDXDNA_CMD_SUBMIT_EXEC_BUF = 0
AMDXDNA_CMD_SUBMIT_DEPENDENCY = 1
AMDXDNA_CMD_SUBMIT_SIGNAL = 2


class amdxdna_drm_exec_cmd(Struct):
    """``cmd_handles`` is the handle itself while ``cmd_count`` is 1; mainline takes no other.

    ``args`` are handles of the buffers that the command uses; ``seq`` comes back.
    """

    _size_ = 56
    _fields_ = [
        ("ext", c_uint64),
        ("ext_flags", c_uint64),
        ("hwctx", c_uint32),
        ("type", c_uint32),
        ("cmd_handles", c_uint64),
        ("args", c_uint64),
        ("cmd_count", c_uint32),
        ("arg_count", c_uint32),
        ("seq", c_uint64),
    ]
    _pointers_ = {"args": Pointer(c_uint32, count="arg_count")}


class amdxdna_drm_wait_cmd(Struct):
    """``timeout`` in ms from now on, 0: for ever."""

    _size_ = 16
    _fields_ = [
        ("hwctx", c_uint32),
        ("timeout", c_uint32),
        ("seq", c_uint64),
    ]


class amdxdna_drm_query_aie_status(Struct):
    """``cols_filled``, one bit a column, comes back."""

    _size_ = 16
    _fields_ = [
        ("buffer", c_uint64),
        ("buffer_size", c_uint32),
        ("cols_filled", c_uint32),
    ]
    _pointers_ = {"buffer": Pointer(c_uint8, count="buffer_size", direction="out")}


class amdxdna_drm_query_aie_version(Struct):
    _size_ = 8
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
    ]


class amdxdna_drm_query_aie_tile_metadata(Struct):
    _size_ = 16
    _fields_ = [
        ("row_count", c_uint16),
        ("row_start", c_uint16),
        ("dma_channel_count", c_uint16),
        ("lock_count", c_uint16),
        ("event_reg_count", c_uint16),
        ("pad", c_uint16 * 3),
    ]


class amdxdna_drm_query_aie_metadata(Struct):
    _size_ = 64
    _fields_ = [
        ("col_size", c_uint32),
        ("cols", c_uint16),
        ("rows", c_uint16),
        ("version", amdxdna_drm_query_aie_version),
        ("core", amdxdna_drm_query_aie_tile_metadata),
        ("mem", amdxdna_drm_query_aie_tile_metadata),
        ("shim", amdxdna_drm_query_aie_tile_metadata),
    ]


class amdxdna_drm_query_clock(Struct):
    _size_ = 24
    _fields_ = [
        ("name", c_uint8 * 16),
        ("freq_mhz", c_uint32),
        ("pad", c_uint32),
    ]


class amdxdna_drm_query_clock_metadata(Struct):
    _size_ = 48
    _fields_ = [
        ("mp_npu_clock", amdxdna_drm_query_clock),
        ("h_clock", amdxdna_drm_query_clock),
    ]


# enum amdxdna_sensor_type: type of amdxdna_drm_query_sensor
AMDXDNA_SENSOR_TYPE_POWER = 0
AMDXDNA_SENSOR_TYPE_COLUMN_UTILIZATION = 1


class amdxdna_drm_query_sensor(Struct):
    """``units`` are those of ``input`` ("mW"); 10^``unitm`` leads to the unit without prefix."""

    _size_ = 168
    _fields_ = [
        ("label", c_uint8 * 64),
        ("input", c_uint32),
        ("max", c_uint32),
        ("average", c_uint32),
        ("highest", c_uint32),
        ("status", c_uint8 * 64),
        ("units", c_uint8 * 16),
        ("unitm", c_int8),
        ("type", c_uint8),
        ("pad", c_uint8 * 6),
    ]


class amdxdna_drm_query_hwctx(Struct):
    """Mainline's driver answers with drm_hwctx_entry instead."""

    _size_ = 64
    _fields_ = [
        ("context_id", c_uint32),
        ("start_col", c_uint32),
        ("num_col", c_uint32),
        ("pad", c_uint32),
        ("pid", c_int64),
        ("command_submissions", c_uint64),
        ("command_completions", c_uint64),
        ("migrations", c_uint64),
        ("preemptions", c_uint64),
        ("errors", c_uint64),
    ]


# enum amdxdna_power_mode_type: power_mode of amdxdna_drm_get_power_mode and _set_power_mode
POWER_MODE_DEFAULT = 0
POWER_MODE_LOW = 1
POWER_MODE_MEDIUM = 2
POWER_MODE_HIGH = 3
POWER_MODE_TURBO = 4


class amdxdna_drm_get_power_mode(Struct):
    _size_ = 8
    _fields_ = [
        ("power_mode", c_uint8),
        ("pad", c_uint8 * 7),
    ]


class amdxdna_drm_query_firmware_version(Struct):
    _size_ = 16
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("patch", c_uint32),
        ("build", c_uint32),
    ]


# enum amdxdna_drm_get_param: param of amdxdna_drm_get_info; 6 and 7 are not used
DRM_AMDXDNA_QUERY_AIE_STATUS = 0
DRM_AMDXDNA_QUERY_AIE_METADATA = 1
DRM_AMDXDNA_QUERY_AIE_VERSION = 2
DRM_AMDXDNA_QUERY_CLOCK_METADATA = 3
DRM_AMDXDNA_QUERY_SENSORS = 4
DRM_AMDXDNA_QUERY_HW_CONTEXTS = 5
DRM_AMDXDNA_QUERY_FIRMWARE_VERSION = 8
DRM_AMDXDNA_GET_POWER_MODE = 9
DRM_AMDXDNA_QUERY_TELEMETRY = 10
DRM_AMDXDNA_GET_FORCE_PREEMPT_STATE = 11
DRM_AMDXDNA_QUERY_RESOURCE_INFO = 12
DRM_AMDXDNA_GET_FRAME_BOUNDARY_PREEMPT_STATE = 13


class amdxdna_drm_get_resource_info(Struct):
    _size_ = 40
    _fields_ = [
        ("npu_clk_max", c_uint64),
        ("npu_tops_max", c_uint64),
        ("npu_task_max", c_uint64),
        ("npu_tops_curr", c_uint64),
        ("npu_task_curr", c_uint64),
    ]


class amdxdna_drm_attribute_state(Struct):
    _size_ = 8
    _fields_ = [
        ("state", c_uint8),
        ("pad", c_uint8 * 7),
    ]


class amdxdna_drm_query_telemetry_header(Struct):
    """Telemetry data follows the map."""

    _size_ = 16
    _tail_ = ("map", "map_num_elements")
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("type", c_uint32),
        ("map_num_elements", c_uint32),
        ("map", c_uint32 * 0),
    ]


class amdxdna_drm_get_info(Struct):
    """``param`` says which structure ``buffer`` holds."""

    _size_ = 16
    _fields_ = [
        ("param", c_uint32),
        ("buffer_size", c_uint32),
        ("buffer", c_uint64),
    ]
    _pointers_ = {"buffer": Pointer(c_uint8, count="buffer_size", direction="inout")}


# state of amdxdna_drm_hwctx_entry
AMDXDNA_HWCTX_STATE_IDLE = 0
AMDXDNA_HWCTX_STATE_ACTIVE = 1


class amdxdna_drm_hwctx_entry(Struct):
    _size_ = 144
    _fields_ = [
        ("context_id", c_uint32),
        ("start_col", c_uint32),
        ("num_col", c_uint32),
        ("hwctx_id", c_uint32),
        ("pid", c_int64),
        ("command_submissions", c_uint64),
        ("command_completions", c_uint64),
        ("migrations", c_uint64),
        ("preemptions", c_uint64),
        ("errors", c_uint64),
        ("priority", c_uint64),
        ("heap_usage", c_uint64),
        ("suspensions", c_uint64),
        ("state", c_uint32),
        ("pasid", c_uint32),
        ("gops", c_uint32),
        ("fps", c_uint32),
        ("dma_bandwidth", c_uint32),
        ("latency", c_uint32),
        ("frame_exec_time", c_uint32),
        ("txn_op_idx", c_uint32),
        ("ctx_pc", c_uint32),
        ("fatal_error_type", c_uint32),
        ("fatal_error_exception_type", c_uint32),
        ("fatal_error_exception_pc", c_uint32),
        ("fatal_error_app_module", c_uint32),
        ("pad", c_uint32),
    ]


class amdxdna_async_error(Struct):
    _size_ = 24
    _fields_ = [
        ("err_code", c_uint64),
        ("ts_us", c_uint64),
        ("ex_err_code", c_uint64),
    ]


class amdxdna_drm_bo_usage(Struct):
    """Bytes; ``pid`` goes in."""

    _size_ = 32
    _fields_ = [
        ("pid", c_int64),
        ("total_usage", c_uint64),
        ("internal_usage", c_uint64),
        ("heap_usage", c_uint64),
    ]


# param of amdxdna_drm_get_array, which answers with an array of
DRM_AMDXDNA_HW_CONTEXT_ALL = 0
"""amdxdna_drm_hwctx_entry"""
DRM_AMDXDNA_HW_LAST_ASYNC_ERR = 2
"""amdxdna_async_error"""
DRM_AMDXDNA_BO_USAGE = 6
"""amdxdna_drm_bo_usage"""


class amdxdna_drm_get_array(Struct):
    """Sizes of the room go in, those of the answer come back."""

    _size_ = 24
    _fields_ = [
        ("param", c_uint32),
        ("element_size", c_uint32),
        ("num_element", c_uint32),
        ("pad", c_uint32),
        ("buffer", c_uint64),
    ]
    _pointers_ = {
        "buffer": Pointer(c_uint8, count="num_element", stride="element_size", direction="inout")
    }


# enum amdxdna_drm_set_param: param of amdxdna_drm_set_state
DRM_AMDXDNA_SET_POWER_MODE = 0
DRM_AMDXDNA_WRITE_AIE_MEM = 1
DRM_AMDXDNA_WRITE_AIE_REG = 2
DRM_AMDXDNA_SET_FORCE_PREEMPT = 3
DRM_AMDXDNA_SET_FRAME_BOUNDARY_PREEMPT = 4


class amdxdna_drm_set_state(Struct):
    """``param`` says which structure ``buffer`` holds."""

    _size_ = 16
    _fields_ = [
        ("param", c_uint32),
        ("buffer_size", c_uint32),
        ("buffer", c_uint64),
    ]
    _pointers_ = {"buffer": Pointer(c_uint8, count="buffer_size")}


class amdxdna_drm_set_power_mode(Struct):
    _size_ = 8
    _fields_ = [
        ("power_mode", c_uint8),
        ("pad", c_uint8 * 7),
    ]


DRM_IOCTL_AMDXDNA_CREATE_HWCTX = Ioctl(
    "DRM_IOCTL_AMDXDNA_CREATE_HWCTX",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_AMDXDNA_CREATE_HWCTX, amdxdna_drm_create_hwctx),
    amdxdna_drm_create_hwctx,
)
DRM_IOCTL_AMDXDNA_DESTROY_HWCTX = Ioctl(
    "DRM_IOCTL_AMDXDNA_DESTROY_HWCTX",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_AMDXDNA_DESTROY_HWCTX, amdxdna_drm_destroy_hwctx),
    amdxdna_drm_destroy_hwctx,
)
DRM_IOCTL_AMDXDNA_CONFIG_HWCTX = Ioctl(
    "DRM_IOCTL_AMDXDNA_CONFIG_HWCTX",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_AMDXDNA_CONFIG_HWCTX, amdxdna_drm_config_hwctx),
    amdxdna_drm_config_hwctx,
)
DRM_IOCTL_AMDXDNA_CREATE_BO = Ioctl(
    "DRM_IOCTL_AMDXDNA_CREATE_BO",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_AMDXDNA_CREATE_BO, amdxdna_drm_create_bo),
    amdxdna_drm_create_bo,
)
DRM_IOCTL_AMDXDNA_GET_BO_INFO = Ioctl(
    "DRM_IOCTL_AMDXDNA_GET_BO_INFO",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_AMDXDNA_GET_BO_INFO, amdxdna_drm_get_bo_info),
    amdxdna_drm_get_bo_info,
    restart=True,
)
DRM_IOCTL_AMDXDNA_SYNC_BO = Ioctl(
    "DRM_IOCTL_AMDXDNA_SYNC_BO",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_AMDXDNA_SYNC_BO, amdxdna_drm_sync_bo),
    amdxdna_drm_sync_bo,
)
DRM_IOCTL_AMDXDNA_EXEC_CMD = Ioctl(
    "DRM_IOCTL_AMDXDNA_EXEC_CMD",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_AMDXDNA_EXEC_CMD, amdxdna_drm_exec_cmd),
    amdxdna_drm_exec_cmd,
)
DRM_IOCTL_AMDXDNA_GET_INFO = Ioctl(
    "DRM_IOCTL_AMDXDNA_GET_INFO",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_AMDXDNA_GET_INFO, amdxdna_drm_get_info),
    amdxdna_drm_get_info,
    restart=True,
)
DRM_IOCTL_AMDXDNA_SET_STATE = Ioctl(
    "DRM_IOCTL_AMDXDNA_SET_STATE",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_AMDXDNA_SET_STATE, amdxdna_drm_set_state),
    amdxdna_drm_set_state,
)
DRM_IOCTL_AMDXDNA_GET_ARRAY = Ioctl(
    "DRM_IOCTL_AMDXDNA_GET_ARRAY",
    DRM_IOWR(DRM_COMMAND_BASE + DRM_AMDXDNA_GET_ARRAY, amdxdna_drm_get_array),
    amdxdna_drm_get_array,
    restart=True,
)
DRM_IOCTL_AMDXDNA_WAIT_CMD = Ioctl(
    "DRM_IOCTL_AMDXDNA_WAIT_CMD",
    DRM_IOW(DRM_COMMAND_BASE + DRM_AMDXDNA_WAIT_CMD, amdxdna_drm_wait_cmd),
    amdxdna_drm_wait_cmd,
)


SINCE: dict[str, Version] = {
    "amdxdna": (6, 14),
    "DRM_AMDXDNA_GET_ARRAY": (6, 18),
    "AMDXDNA_HWCTX_STATE_IDLE": (6, 18),
    "AMDXDNA_HWCTX_STATE_ACTIVE": (6, 18),
    "amdxdna_drm_hwctx_entry": (6, 18),
    "DRM_AMDXDNA_HW_CONTEXT_ALL": (6, 18),
    "amdxdna_drm_get_array": (6, 18),
    "DRM_IOCTL_AMDXDNA_GET_ARRAY": (6, 18),
    "amdxdna_drm_va_entry": (6, 19),
    "amdxdna_drm_va_tbl": (6, 19),
    "DRM_AMDXDNA_QUERY_TELEMETRY": (6, 19),
    "DRM_AMDXDNA_GET_FORCE_PREEMPT_STATE": (6, 19),
    "DRM_AMDXDNA_QUERY_RESOURCE_INFO": (6, 19),
    "DRM_AMDXDNA_GET_FRAME_BOUNDARY_PREEMPT_STATE": (6, 19),
    "amdxdna_drm_get_resource_info": (6, 19),
    "amdxdna_drm_attribute_state": (6, 19),
    "amdxdna_drm_query_telemetry_header": (6, 19),
    "amdxdna_async_error": (6, 19),
    "DRM_AMDXDNA_HW_LAST_ASYNC_ERR": (6, 19),
    "DRM_AMDXDNA_SET_FORCE_PREEMPT": (6, 19),
    "DRM_AMDXDNA_SET_FRAME_BOUNDARY_PREEMPT": (6, 19),
    "AMDXDNA_INVALID_DOORBELL_OFFSET": (7, 2),
    "AMDXDNA_QOS_REALTIME_PRIORITY": (7, 2),
    "AMDXDNA_QOS_HIGH_PRIORITY": (7, 2),
    "AMDXDNA_QOS_NORMAL_PRIORITY": (7, 2),
    "AMDXDNA_QOS_LOW_PRIORITY": (7, 2),
    "AMDXDNA_DEV_TYPE_UMQ": (7, 2),
    "AMDXDNA_DEV_TYPE_PF": (7, 2),
    "AMDXDNA_BO_SHARE": (7, 2),
    "AMDXDNA_SENSOR_TYPE_COLUMN_UTILIZATION": (7, 2),
    "amdxdna_drm_bo_usage": (7, 2),
    "DRM_AMDXDNA_BO_USAGE": (7, 2),
    "DRM_AMDXDNA_WAIT_CMD": (7, 2),
    "amdxdna_drm_wait_cmd": (7, 2),
    "DRM_IOCTL_AMDXDNA_WAIT_CMD": (7, 2),
}
VARIANTS: dict[str, type[Variant]] = {}
for_kernel = kernel_views(__name__)
variant = variant_views(__name__)
