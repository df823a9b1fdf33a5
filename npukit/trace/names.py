# SPDX-License-Identifier: MIT
"""Flags and enumerations of structures by the names of their header.

The header says which names there are, not which field they are for: that is here.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from npukit import _fast
from npukit.abi.versions import Variant
from npukit.ioctl import Struct, Union

from .meaning import MODULES


@dataclass(frozen=True, slots=True)
class Enumeration:
    """The names of a header from ``first`` to ``last``, in its order, of which a field is one."""

    module: str
    first: str
    last: str


class Flags(Enumeration):
    """The same, of which a field is any number: those that are one bit."""


PROT = {name: getattr(_fast, name) for name in ("PROT_READ", "PROT_WRITE", "PROT_EXEC")}
OPEN = {name: getattr(os, name) for name in ("O_WRONLY", "O_RDWR", "O_CLOEXEC")}

_IVPU_BO = Flags("ivpu", "DRM_IVPU_BO_HIGH_MEM", "DRM_IVPU_BO_WC")
_SYNC = Flags("dma_buf", "DMA_BUF_SYNC_READ", "DMA_BUF_SYNC_END")
_WAIT = Flags("drm", "DRM_SYNCOBJ_WAIT_FLAGS_WAIT_ALL", "DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT")
_JOB_PRIORITY = Enumeration(
    "ivpu", "DRM_IVPU_JOB_PRIORITY_DEFAULT", "DRM_IVPU_JOB_PRIORITY_REALTIME"
)
_ENGINE = Enumeration("habanalabs", "HL_ENGINE_CORE_HALT", "HL_ENGINE_RESUME")
_PRIORITY = Enumeration("amdxdna", "AMDXDNA_QOS_REALTIME_PRIORITY", "AMDXDNA_QOS_LOW_PRIORITY")
_POWER = Enumeration("amdxdna", "POWER_MODE_DEFAULT", "POWER_MODE_TURBO")
_UDMABUF = Flags("udmabuf", "UDMABUF_FLAGS_CLOEXEC", "UDMABUF_FLAGS_CLOEXEC")

FIELDS: dict[tuple[str, str], Enumeration | Mapping[str, int]] = {
    ("rknpu_mem_create", "flags"): Flags(
        "rknpu", "RKNPU_MEM_NON_CONTIGUOUS", "RKNPU_MEM_IOMMU_LIMIT_IOVA_ALIGNMENT"
    ),
    ("rknpu_mem_create", "core_mask"): Flags("rknpu", "RKNPU_CORE0_MASK", "RKNPU_CORE2_MASK"),
    ("rknpu_mem_sync", "flags"): Flags(
        "rknpu", "RKNPU_MEM_SYNC_TO_DEVICE", "RKNPU_MEM_SYNC_FROM_DEVICE"
    ),
    ("rknpu_submit", "flags"): Flags("rknpu", "RKNPU_JOB_PC", "RKNPU_JOB_FENCE_OUT"),
    ("rknpu_submit", "core_mask"): Flags("rknpu", "RKNPU_CORE0_MASK", "RKNPU_CORE2_MASK"),
    ("rknpu_action", "flags"): Enumeration(
        "rknpu", "RKNPU_GET_HW_VERSION", "RKNPU_SET_IOMMU_DOMAIN_ID"
    ),
    ("amdxdna_qos_info", "priority"): _PRIORITY,
    ("amdxdna_drm_hwctx_entry", "priority"): _PRIORITY,
    ("amdxdna_drm_config_hwctx", "param_type"): Enumeration(
        "amdxdna", "DRM_AMDXDNA_HWCTX_CONFIG_CU", "DRM_AMDXDNA_HWCTX_REMOVE_DBG_BUF"
    ),
    ("amdxdna_drm_create_bo", "type"): Enumeration(
        "amdxdna", "AMDXDNA_BO_INVALID", "AMDXDNA_BO_CMD"
    ),
    ("amdxdna_drm_sync_bo", "direction"): Enumeration(
        "amdxdna", "SYNC_DIRECT_TO_DEVICE", "SYNC_DIRECT_FROM_DEVICE"
    ),
    ("amdxdna_drm_exec_cmd", "type"): Enumeration(
        "amdxdna", "AMDXDNA_CMD_SUBMIT_EXEC_BUF", "AMDXDNA_CMD_SUBMIT_SIGNAL"
    ),
    ("amdxdna_drm_query_sensor", "type"): Enumeration(
        "amdxdna", "AMDXDNA_SENSOR_TYPE_POWER", "AMDXDNA_SENSOR_TYPE_COLUMN_UTILIZATION"
    ),
    ("amdxdna_drm_get_power_mode", "power_mode"): _POWER,
    ("amdxdna_drm_set_power_mode", "power_mode"): _POWER,
    ("amdxdna_drm_get_info", "param"): Enumeration(
        "amdxdna",
        "DRM_AMDXDNA_QUERY_AIE_STATUS",
        "DRM_AMDXDNA_GET_FRAME_BOUNDARY_PREEMPT_STATE",
    ),
    ("amdxdna_drm_hwctx_entry", "state"): Enumeration(
        "amdxdna", "AMDXDNA_HWCTX_STATE_IDLE", "AMDXDNA_HWCTX_STATE_ACTIVE"
    ),
    ("amdxdna_drm_get_array", "param"): Enumeration(
        "amdxdna", "DRM_AMDXDNA_HW_CONTEXT_ALL", "DRM_AMDXDNA_BO_USAGE"
    ),
    ("amdxdna_drm_set_state", "param"): Enumeration(
        "amdxdna", "DRM_AMDXDNA_SET_POWER_MODE", "DRM_AMDXDNA_SET_FRAME_BOUNDARY_PREEMPT"
    ),
    ("drm_ivpu_param", "param"): Enumeration(
        "ivpu", "DRM_IVPU_PARAM_DEVICE_ID", "DRM_IVPU_PARAM_PREEMPT_BUFFER_SIZE"
    ),
    ("drm_ivpu_bo_create", "flags"): _IVPU_BO,
    ("drm_ivpu_bo_create_from_userptr", "flags"): _IVPU_BO,
    ("drm_ivpu_bo_info", "flags"): _IVPU_BO,
    ("drm_ivpu_submit", "engine"): Enumeration(
        "ivpu", "DRM_IVPU_ENGINE_COMPUTE", "DRM_IVPU_ENGINE_COPY"
    ),
    ("drm_ivpu_submit", "priority"): _JOB_PRIORITY,
    ("drm_ivpu_cmdq_create", "priority"): _JOB_PRIORITY,
    ("drm_ivpu_cmdq_create", "flags"): Flags(
        "ivpu", "DRM_IVPU_CMDQ_FLAG_TURBO", "DRM_IVPU_CMDQ_FLAG_TURBO"
    ),
    ("drm_ivpu_bo_wait", "job_status"): Enumeration(
        "ivpu", "DRM_IVPU_JOB_STATUS_SUCCESS", "DRM_IVPU_JOB_STATUS_ABORTED"
    ),
    ("qaic_sem", "flags"): Flags("qaic", "QAIC_SEM_INSYNCFENCE", "QAIC_SEM_OUTSYNCFENCE"),
    ("qaic_sem", "cmd"): Enumeration("qaic", "QAIC_SEM_NOP", "QAIC_SEM_WAIT_GT_0"),
    ("qaic_manage_trans_hdr", "type"): Enumeration(
        "qaic", "QAIC_TRANS_UNDEFINED", "QAIC_TRANS_VALIDATE_PARTITION_TO_DEV"
    ),
    ("drm_ethosu_dev_query", "type"): Enumeration(
        "ethosu", "DRM_ETHOSU_DEV_QUERY_NPU_INFO", "DRM_ETHOSU_DEV_QUERY_NPU_INFO"
    ),
    ("drm_ethosu_bo_create", "flags"): Flags(
        "ethosu", "DRM_ETHOSU_BO_NO_MMAP", "DRM_ETHOSU_BO_NO_MMAP"
    ),
    ("drm_ethosu_perfmon_set_global", "flags"): Flags(
        "ethosu", "DRM_ETHOSU_PERFMON_CLEAR_GLOBAL", "DRM_ETHOSU_PERFMON_CLEAR_GLOBAL"
    ),
    ("hl_info_device_status", "status"): Enumeration(
        "habanalabs",
        "HL_DEVICE_STATUS_OPERATIONAL",
        "HL_DEVICE_STATUS_IN_RESET_AFTER_DEVICE_RELEASE",
    ),
    ("hl_info_hw_ip_info", "server_type"): Enumeration(
        "habanalabs", "HL_SERVER_TYPE_UNKNOWN", "HL_SERVER_GAUDI2_TYPE1"
    ),
    ("hl_info_args", "op"): Enumeration("habanalabs", "HL_INFO_HW_IP_INFO", "HL_INFO_DEV_SIGNED"),
    ("hl_info_fw_err_event", "err_type"): Enumeration(
        "habanalabs", "HL_INFO_FW_HEARTBEAT_ERR", "HL_INFO_FW_REPORTED_ERR"
    ),
    ("hl_info_razwi_event", "flags"): Flags("habanalabs", "HL_RAZWI_READ", "HL_RAZWI_ADDR_DEC"),
    ("hl_cb_in", "op"): Enumeration("habanalabs", "HL_CB_OP_CREATE", "HL_CB_OP_INFO"),
    ("hl_cb_in", "flags"): Flags("habanalabs", "HL_CB_FLAGS_MAP", "HL_CB_FLAGS_GET_DEVICE_VA"),
    ("hl_cs_chunk", "cs_chunk_flags"): Flags(
        "habanalabs", "HL_CS_CHUNK_FLAGS_USER_ALLOC_CB", "HL_CS_CHUNK_FLAGS_USER_ALLOC_CB"
    ),
    ("hl_cs_in", "cs_flags"): Flags(
        "habanalabs", "HL_CS_FLAGS_FORCE_RESTORE", "HL_CS_FLAGS_ENGINES_COMMAND"
    ),
    ("hl_cs_in", "core_command"): _ENGINE,
    ("hl_cs_in", "engine_command"): _ENGINE,
    ("hl_wait_cs_in", "flags"): Flags(
        "habanalabs", "HL_WAIT_CS_FLAGS_INTERRUPT", "HL_WAIT_CS_FLAGS_REGISTER_INTERRUPT"
    ),
    ("hl_wait_cs_out", "status"): Enumeration(
        "habanalabs", "HL_WAIT_CS_STATUS_COMPLETED", "HL_WAIT_CS_STATUS_ABORTED"
    ),
    ("hl_wait_cs_out", "flags"): Flags(
        "habanalabs", "HL_WAIT_CS_STATUS_FLAG_GONE", "HL_WAIT_CS_STATUS_FLAG_TIMESTAMP_VLD"
    ),
    ("hl_mem_in", "op"): Enumeration("habanalabs", "HL_MEM_OP_ALLOC", "HL_MEM_OP_TS_ALLOC"),
    ("hl_mem_in", "flags"): Flags("habanalabs", "HL_MEM_CONTIGUOUS", "HL_MEM_PREFETCH"),
    ("hl_debug_args", "op"): Enumeration("habanalabs", "HL_DEBUG_OP_ETR", "HL_DEBUG_OP_SET_MODE"),
    ("fastrpc_mem_map", "flags"): Enumeration(
        "fastrpc", "FASTRPC_MAP_STATIC", "FASTRPC_MAP_FD_NOMAP"
    ),
    ("fastrpc_init_create", "attrs"): Flags(
        "fastrpc", "FASTRPC_MODE_DEBUG", "FASTRPC_MODE_PRIVILEGED"
    ),
    ("fastrpc_invoke_args", "attr"): Flags(
        "fastrpc", "FASTRPC_ATTR_SECUREMAP", "FASTRPC_ATTR_SECUREMAP"
    ),
    ("fastrpc_req_mmap", "flags"): Flags("fastrpc", "ADSP_MMAP_ADD_PAGES", "ADSP_MMAP_ADD_PAGES"),
    ("fastrpc_ioctl_set_option", "request_id"): Enumeration(
        "fastrpc", "FASTRPC_POLL_MODE", "FASTRPC_POLL_MODE"
    ),
    ("fastrpc_ioctl_capability", "attribute_id"): Enumeration(
        "fastrpc", "DOMAIN_SUPPORT", "MCID_MULTICAST"
    ),
    ("dma_heap_allocation_data", "fd_flags"): OPEN,
    ("udmabuf_create", "flags"): _UDMABUF,
    ("udmabuf_create_list", "flags"): _UDMABUF,
    ("wrapfd_wrap", "prot"): PROT,
    ("wrapfd_rewrap", "prot"): PROT,
    ("wrapfd_get_state", "state"): Enumeration(
        "wrapfd", "WRAPFD_CONTENT_EMPTY", "WRAPFD_CONTENT_RDWR"
    ),
    ("dma_buf_sync", "flags"): _SYNC,
    ("dma_buf_export_sync_file", "flags"): _SYNC,
    ("dma_buf_import_sync_file", "flags"): _SYNC,
    ("drm_get_cap", "capability"): Enumeration(
        "drm", "DRM_CAP_ADDFB2_MODIFIERS", "DRM_CAP_VBLANK_HIGH_CRTC"
    ),
    ("drm_set_client_cap", "capability"): Enumeration(
        "drm", "DRM_CLIENT_CAP_ASPECT_RATIO", "DRM_CLIENT_CAP_WRITEBACK_CONNECTORS"
    ),
    ("drm_prime_handle", "flags"): Flags("drm", "DRM_CLOEXEC", "DRM_RDWR"),
    ("drm_syncobj_create", "flags"): Flags(
        "drm", "DRM_SYNCOBJ_CREATE_SIGNALED", "DRM_SYNCOBJ_CREATE_SIGNALED"
    ),
    ("DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD", "flags"): Flags(
        "drm",
        "DRM_SYNCOBJ_HANDLE_TO_FD_FLAGS_EXPORT_SYNC_FILE",
        "DRM_SYNCOBJ_HANDLE_TO_FD_FLAGS_TIMELINE",
    ),
    ("DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE", "flags"): Flags(
        "drm",
        "DRM_SYNCOBJ_FD_TO_HANDLE_FLAGS_IMPORT_SYNC_FILE",
        "DRM_SYNCOBJ_FD_TO_HANDLE_FLAGS_TIMELINE",
    ),
    ("drm_syncobj_wait", "flags"): _WAIT,
    ("drm_syncobj_timeline_wait", "flags"): _WAIT,
    ("drm_syncobj_transfer", "flags"): _WAIT,
    ("drm_syncobj_eventfd", "flags"): _WAIT,
    ("drm_syncobj_timeline_array", "flags"): Flags(
        "drm", "DRM_SYNCOBJ_QUERY_FLAGS_LAST_SUBMITTED", "DRM_SYNCOBJ_QUERY_FLAGS_LAST_SUBMITTED"
    ),
}
"""(structure, or the request where one serves several, field) -> the names of its values; a mapping
has bits by name."""


def named(struct: str, field: str, value: int) -> str | None:
    """A value of a field by name; None where it has none."""
    names = FIELDS.get((struct, field))
    if names is None:
        return None
    if not isinstance(names, Enumeration):
        return flags(names, value)
    values = names_of(names)
    if isinstance(names, Flags):
        return flags(values, value)
    return next((name for name, known in values.items() if known == value), None)


def flags(bits: Mapping[str, int], value: int, nothing: str = "0") -> str:
    """Which of ``bits`` are set, and the rest as a number."""
    names = [name for name, bit in bits.items() if value & bit]
    rest = value & ~sum(bits.values())
    return "|".join([*names, *([hex(rest)] if rest else [])]) or nothing


@functools.cache
def names_of(names: Enumeration) -> dict[str, int]:
    """The names and their values; of several names for a value the first."""
    header = vars(importlib.import_module(f"npukit.abi.{names.module}"))
    order = list(header)
    found: dict[str, int] = {}
    for name in order[order.index(names.first) : order.index(names.last) + 1]:
        value = header[name]
        one_bit = isinstance(value, int) and value > 0 and value & (value - 1) == 0
        fits = one_bit or (type(value) is int and not isinstance(names, Flags))
        if fits and value not in found.values():
            found[name] = value
    return found


@functools.cache
def structures() -> dict[str, tuple[Any, ...]]:
    """C tag -> the structures that have it: a header has them otherwise in another version."""
    found: dict[str, dict[Any, None]] = {}
    for module in sorted(set(MODULES.values())):
        header = importlib.import_module(f"npukit.abi.{module}")
        variants: dict[str, type[Variant]] = getattr(header, "VARIANTS", {})
        for names in (vars(header), *(variant.names() for variant in variants.values())):
            for value in names.values():
                a_struct = isinstance(value, type) and issubclass(value, (Struct, Union))
                if a_struct and value not in (Struct, Union):
                    found.setdefault(value.__name__, {})[value] = None
    return {tag: tuple(kinds) for tag, kinds in found.items()}


def parts(ctype: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a structure, those of an anonymous member in its place."""
    for name, part, *_bits in ctype._fields_:
        if name in ctype._anonymous_:
            yield from parts(part)
        else:
            yield name, part


@functools.cache
def inner(struct: str, field: str) -> str:
    """The tag of the structure that a field of another is, or is an array of; "" where none."""
    for kind in structures().get(struct, ()):
        part = dict(parts(kind)).get(field)
        while part is not None and issubclass(part, ctypes.Array):
            part = part._type_
        if part is not None and issubclass(part, (Struct, Union)):
            return str(part.__name__)
    return ""
