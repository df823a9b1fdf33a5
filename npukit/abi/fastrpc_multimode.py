# SPDX-License-Identifier: MIT
"""include/uapi/misc/fastrpc.h of Qualcomm's dsp-kernel: /dev/fastrpc-* of newer Android kernels.

This module has what differs from mainline's header; ``abi.fastrpc.variant("multimode")`` is the
whole. Requests 1 to 11 and 13 are mainline's. Number 12 is MULTIMODE_INVOKE, which takes many kinds
of calls, where mainline has SET_OPTION: the sizes in the two numbers differ, so each driver answers
the other's with ENOTTY. What ``invparam`` of CONTROL, DSPSIGNAL, NOTIF, MULTISESSION, CONFIG and
SESSIONINFO points to is not in the header.
"""

from __future__ import annotations

from ctypes import c_int32, c_uint8, c_uint32, c_uint64

from npukit.ioctl import IOWR, Ioctl, Pointer, Struct, Union

from .fastrpc import before_6_19, fastrpc_invoke

# Here it still asks for a domain.
fastrpc_ioctl_capability = before_6_19.fastrpc_ioctl_capability
FASTRPC_IOCTL_GET_DSP_INFO = before_6_19.FASTRPC_IOCTL_GET_DSP_INFO

# enum fastrpc_map_flags: flags of fastrpc_mem_map
FASTRPC_MAP_FD_EXTENDED = 17
FASTRPC_MAP_FD_DELAYED_EXTENDED = 18
FASTRPC_MAP_MAX = 19

# enum fastrpc_map_attrs: attr of fastrpc_invoke_args, attrs of fastrpc_mem_map
FASTRPC_MAP_ATTR_DEFAULT = 0
FASTRPC_ATTR_NOVA = 256
FASTRPC_MAP_ATTR_RETAIN_IOVA = 1024
FASTRPC_MAP_ATTR_MAX = 1025

# enum fastrpc_dsp_type
FASTRPC_NSP = 1
FASTRPC_LPASS = 2
FASTRPC_SDSP = 3
FASTRPC_MAX_DSP_TYPE = 4

# enum fastrpc_proc_attr: attrs of fastrpc_init_create
FASTRPC_MODE_SYSTEM_UNSIGNED_PD = 1 << 17

# enum fastrpc_npu_priority_workinfo_op: op of fastrpc_ioctl_npu_priority_workinfo
FASTRPC_NPU_OP_PRIORITY = 0
FASTRPC_NPU_OP_WORKINFO = 1

# enum npu_work_event: event of npu_work_info
WORK_REQUESTED = 0
WORK_STARTED = 1
WORK_ENDED = 2

# enum npu_work_reason: reason of npu_work_info
NPU_WORK_REASON_NONE = 0
NPU_WORK_REASON_START_INITIAL = 1
NPU_WORK_REASON_END_COMPLETED = 2
NPU_WORK_REASON_END_CANCELLED = 3

# enum fastrpc_multimode_invoke_type: req of fastrpc_ioctl_multimode_invoke
FASTRPC_INVOKE = 1
FASTRPC_INVOKE_ENHANCED = 2
FASTRPC_INVOKE_CONTROL = 3
FASTRPC_INVOKE_DSPSIGNAL = 4
FASTRPC_INVOKE_NOTIF = 5
FASTRPC_INVOKE_MULTISESSION = 6
FASTRPC_INVOKE_CONFIG = 7
FASTRPC_INVOKE_SESSIONINFO = 8
FASTRPC_INVOKE_MDCTX_MANAGE = 9
FASTRPC_INVOKE_REMOTE_PROCESS_STATE_DUMP = 10
FASTRPC_INVOKE_SET_RPC_TIMEOUT = 11
FASTRPC_INVOKE_DISABLE_DSP_RECOVERY = 12
FASTRPC_INVOKE_RETRIEVE_KERNEL_LOG = 13
FASTRPC_INVOKE_THREAD_EXIT = 14
FASTRPC_SET_TIMELINE_INFO = 15
FASTRPC_GET_TIMELINE_VERSION = 16
FASTRPC_INVOKE_REMOTE_WORK = 17

# enum fastrpc_remote_work_status: status of fastrpc_ioctl_remote_work
FASTRPC_REMOTE_WORK_STATUS_START = 1
FASTRPC_REMOTE_WORK_STATUS_END = 2

# enum fastrpc_mdctx_manage_req: req of fastrpc_ioctl_mdctx_manage
FASTRPC_MDCTX_SETUP = 0
FASTRPC_MDCTX_REMOVE = 1

# enum fastrpc_thread_type: thread_type of fastrpc_thread_exit
FASTRPC_THREAD_LOGGER = 1

# enum fastrpc_control_type
FASTRPC_CONTROL_LATENCY = 1
FASTRPC_CONTROL_SMMU = 2
FASTRPC_CONTROL_KALLOC = 3
FASTRPC_CONTROL_WAKELOCK = 4
FASTRPC_CONTROL_PM = 5
FASTRPC_CONTROL_DSPPROCESS_CLEAN = 6
FASTRPC_CONTROL_RPC_POLL = 7
FASTRPC_CONTROL_ASYNC_WAKE = 8
FASTRPC_CONTROL_NOTIF_WAKE = 9

# enum fastrpc_dspsignal_type
FASTRPC_DSPSIGNAL_SIGNAL = 1
FASTRPC_DSPSIGNAL_WAIT = 2
FASTRPC_DSPSIGNAL_CREATE = 3
FASTRPC_DSPSIGNAL_DESTROY = 4
FASTRPC_DSPSIGNAL_CANCEL_WAIT = 5

# enum fastrpc_status_flags
FASTRPC_USERPD_UP = 0
FASTRPC_USERPD_EXIT = 1
FASTRPC_USERPD_FORCE_KILL = 2
FASTRPC_USERPD_EXCEPTION = 3
FASTRPC_DSP_SSR = 4
FASTRPC_USERPD_RELEASE = 5
FASTRPC_USERPD_TIMEOUT = 6

# enum fastrpc_perfkeys: what the counters of a call are, in order
PERF_COUNT = 0
PERF_RESERVED1 = 1
PERF_MAP = 2
PERF_COPY = 3
PERF_LINK = 4
PERF_GETARGS = 5
PERF_PUTARGS = 6
PERF_RESERVED2 = 7
PERF_INVOKE = 8
PERF_RESERVED3 = 9
PERF_KEY_MAX = 10

FASTRPC_MDCTX_IOCTL_RSVD = 8
FASTRPC_RPC_TIMEOUT_IOCTL_RSVD = 5
FASTRPC_TIMELINE_ARGS_RSVD = 8
FASTRPC_IOCTL_TIMELINE_BUF_RSVD = 8
NPU_WORKINFO_VERSION = 0


class fastrpc_enhanced_invoke(Struct):
    """For FASTRPC_INVOKE_ENHANCED; older headers have no ``appid`` but 19 reserved words."""

    _size_ = 120
    _fields_ = [
        ("inv", fastrpc_invoke),
        ("crc", c_uint64),
        ("perf_kernel", c_uint64),
        ("perf_dsp", c_uint64),
        ("priority", c_uint32),
        ("appid", c_uint32),
        ("reserved", c_uint32 * 18),
    ]
    _pointers_ = {
        "crc": Pointer(c_uint32, direction="out"),
        "perf_kernel": Pointer(c_uint64 * PERF_KEY_MAX, direction="out"),
        "perf_dsp": Pointer(c_uint64, direction="out"),
    }


class fastrpc_ioctl_multimode_invoke(Struct):
    """``req`` says which structure of ``size`` bytes ``invparam`` points to."""

    _size_ = 56
    _fields_ = [
        ("req", c_uint32),
        ("invparam", c_uint64),
        ("size", c_uint64),
        ("dynamic_domains", c_uint32),
        ("reserved", c_uint32 * 7),
    ]
    _pointers_ = {"invparam": Pointer(c_uint8, count="size", direction="inout")}


class fastrpc_npu_priority(Struct):
    """``configs``: ``num_configs`` entries, whose form the header does not give."""

    _size_ = 48
    _fields_ = [
        ("num_configs", c_uint32),
        ("version", c_uint32),
        ("configs", c_uint64),
        ("reserved", c_uint32 * 8),
    ]


class npu_work_info(Struct):
    """``timestamp_ms`` of CLOCK_MONOTONIC; ``version`` is NPU_WORKINFO_VERSION."""

    _size_ = 192
    _fields_ = [
        ("timestamp_ms", c_uint64),
        ("group_id", c_uint64),
        ("debug_feature_id", c_uint64),
        ("event", c_uint32),
        ("id", c_int32),
        ("uid", c_int32),
        ("debug_pid", c_int32),
        ("original_uid", c_int32),
        ("domain", c_int32),
        ("job_priority", c_int32),
        ("effective_priority", c_int32),
        ("group_id_len", c_uint32),
        ("debug_feature_id_len", c_uint32),
        ("version", c_uint32),
        ("reason", c_uint32),
        ("reserved", c_uint64 * 15),
    ]
    _pointers_ = {
        "group_id": Pointer(c_uint8, count="group_id_len", direction="out"),
        "debug_feature_id": Pointer(c_uint8, count="debug_feature_id_len", direction="out"),
    }


class _npu_priority_or_workinfo(Union):
    _size_ = 192
    _fields_ = [("prio", fastrpc_npu_priority), ("workinfo", npu_work_info)]


class fastrpc_ioctl_npu_priority_workinfo(Struct):
    """``op`` says which member of the union is meant."""

    _size_ = 264
    _anonymous_ = ("_payload",)
    _fields_ = [
        ("op", c_uint32),
        ("rsvd", c_uint32),
        ("_payload", _npu_priority_or_workinfo),
        ("reserved", c_uint32 * 16),
    ]


class fastrpc_timeline_arguments(Struct):
    """For FASTRPC_SET_TIMELINE_INFO: how many events the buffer holds, 0: none wanted."""

    _size_ = 72
    _fields_ = [
        ("num_events", c_uint32),
        ("version", c_uint32),
        ("reserved", c_uint64 * FASTRPC_TIMELINE_ARGS_RSVD),
    ]


class fastrpc_ioctl_timeline_buf(Struct):
    """``total_events_cnt`` events at ``addr``, whose form the header does not give."""

    _size_ = 80
    _fields_ = [
        ("addr", c_uint64),
        ("total_events_cnt", c_uint32),
        ("buf_write_index", c_uint32),
        ("reserved", c_uint64 * FASTRPC_IOCTL_TIMELINE_BUF_RSVD),
    ]


class fastrpc_ioctl_init_attach2(Struct):
    """``filelen`` bytes at ``file``, of dma-buf ``filefd``."""

    _size_ = 32
    _fields_ = [
        ("filelen", c_uint32),
        ("filefd", c_int32),
        ("file", c_uint64),
        ("reserved", c_int32 * 4),
    ]
    _pointers_ = {"file": Pointer(c_uint8, count="filelen")}


class fastrpc_mem_unmap(Struct):
    """Mainline's, with attributes in its first reserved word."""

    _size_ = 48
    _fields_ = [
        ("vesion", c_int32),
        ("fd", c_int32),
        ("vaddr", c_uint64),
        ("length", c_uint64),
        ("attr", c_uint32),
        ("reserved", c_int32 * 4),
    ]


class fastrpc_ioctl_mdctx_manage(Struct):
    """For FASTRPC_INVOKE_MDCTX_MANAGE. SETUP writes the context to ``ctx``, REMOVE reads it."""

    _size_ = 80
    _fields_ = [
        ("req", c_uint32),
        ("user_ctx", c_uint64),
        ("domain_ids", c_uint64),
        ("session_ids", c_uint64),
        ("num_domains", c_uint32),
        ("ctx", c_uint64),
        ("reserved", c_uint32 * FASTRPC_MDCTX_IOCTL_RSVD),
    ]
    _pointers_ = {
        "domain_ids": Pointer(c_uint32, count="num_domains"),
        "session_ids": Pointer(c_uint32, count="num_domains"),
    }


class fastrpc_ioctl_remote_proc_state_dump(Struct):
    """For FASTRPC_INVOKE_REMOTE_PROCESS_STATE_DUMP: the log goes to ``size`` bytes of ``fd``."""

    _size_ = 40
    _fields_ = [
        ("domain", c_uint32),
        ("session", c_uint32),
        ("level", c_uint32),
        ("fd", c_int32),
        ("size", c_uint32),
        ("reserved", c_uint32 * 5),
    ]


class fastrpc_internal_proc_timeout(Struct):
    """For FASTRPC_INVOKE_SET_RPC_TIMEOUT: ``timeout`` in ms."""

    _size_ = 24
    _fields_ = [
        ("timeout", c_uint32),
        ("reserved", c_uint32 * FASTRPC_RPC_TIMEOUT_IOCTL_RSVD),
    ]


class fastrpc_ioctl_kernel_log(Struct):
    """For FASTRPC_INVOKE_RETRIEVE_KERNEL_LOG; older headers have no ``out_copied``."""

    _size_ = 16
    _fields_ = [("buffer", c_uint64), ("buffer_size", c_uint32), ("out_copied", c_uint32)]
    _pointers_ = {"buffer": Pointer(c_uint8, count="buffer_size", direction="out")}


class fastrpc_thread_exit(Struct):
    """For FASTRPC_INVOKE_THREAD_EXIT."""

    _size_ = 4
    _fields_ = [("thread_type", c_uint32)]


class fastrpc_ioctl_remote_work(Struct):
    """For FASTRPC_INVOKE_REMOTE_WORK."""

    _size_ = 88
    _fields_ = [
        ("handle", c_uint64),
        ("priority", c_uint32),
        ("appid", c_uint32),
        ("type", c_uint32),
        ("status", c_uint32),
        ("group_id", c_uint64),
        ("group_id_len", c_uint32),
        ("feature_id", c_uint64),
        ("feature_id_len", c_uint32),
        ("reserved", c_uint32 * 8),
    ]
    _pointers_ = {
        "group_id": Pointer(c_uint8, count="group_id_len"),
        "feature_id": Pointer(c_uint8, count="feature_id_len"),
    }


FASTRPC_IOCTL_MEM_UNMAP = Ioctl(
    "FASTRPC_IOCTL_MEM_UNMAP", IOWR("R", 11, fastrpc_mem_unmap), fastrpc_mem_unmap
)
# It answers with the DSP's result where it carries a call.
FASTRPC_IOCTL_MULTIMODE_INVOKE = Ioctl(
    "FASTRPC_IOCTL_MULTIMODE_INVOKE",
    IOWR("R", 12, fastrpc_ioctl_multimode_invoke),
    fastrpc_ioctl_multimode_invoke,
    returns="value",
)
FASTRPC_IOCTL_INIT_ATTACH2 = Ioctl(
    "FASTRPC_IOCTL_INIT_ATTACH2",
    IOWR("R", 14, fastrpc_ioctl_init_attach2),
    fastrpc_ioctl_init_attach2,
)
FASTRPC_IOCTL_GET_TIMELINE_BUFFER = Ioctl(
    "FASTRPC_IOCTL_GET_TIMELINE_BUFFER",
    IOWR("R", 15, fastrpc_ioctl_timeline_buf),
    fastrpc_ioctl_timeline_buf,
)
FASTRPC_IOCTL_NPU_PRIORITY_WORKINFO = Ioctl(
    "FASTRPC_IOCTL_NPU_PRIORITY_WORKINFO",
    IOWR("R", 16, fastrpc_ioctl_npu_priority_workinfo),
    fastrpc_ioctl_npu_priority_workinfo,
)
