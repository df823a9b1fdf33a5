# SPDX-License-Identifier: MIT
"""What the fields of a driver's structures stand for.

The headers say how a structure is laid out, not which fields are handles or addresses. Here is no
more than it takes to follow a buffer object through a trace and to play the trace again.
"""

from __future__ import annotations

from enum import Enum


class Role(Enum):
    """What a value is that another run of the same program may give otherwise."""

    HANDLE = "handle"
    """Of a buffer object, in the open file."""
    FD = "fd"
    DMA = "dma"
    """An address of the device, in a buffer object."""
    OBJECT = "object"
    """The driver's name of a buffer object (rknpu: a kernel address)."""
    OFFSET = "offset"
    """Where mmap finds a buffer object in the node."""
    USER = "user"
    """An address in the process where a buffer object is mapped."""
    DEADLINE = "deadline"
    """Absolute time, CLOCK_MONOTONIC."""
    DURATION = "duration"
    """How long the hardware took."""
    INTERRUPTS = "interrupts"
    """Interrupt bits of RK3588: a pair for each block, one for each of its two register groups,
    which take turns."""


MODULES = {
    "rknpu": "rknpu",
    "rocket": "rocket",
    "amdxdna_accel_driver": "amdxdna",
    "intel_vpu": "ivpu",
    "qaic": "qaic",
    "habanalabs": "habanalabs",
    "ethosu": "ethosu",
    "fastrpc": "fastrpc",
    "dma_heap": "dma_heap",
    "udmabuf": "udmabuf",
    "wrapfd": "wrapfd",
    "dma_buf": "dma_buf",
    "sync_file": "sync_file",
    "drm": "drm",
}
"""Driver -> its module in npukit.abi."""

RKNPU_NODE = "/dev/rknpu"
"""The misc build's, whose handles are descriptors of dma-bufs."""
NODES = {
    RKNPU_NODE: "rknpu",
    "/dev/fastrpc-": "fastrpc",
    "/dev/dma_heap/": "dma_heap",
    "/dev/udmabuf": "udmabuf",
    "/dev/wrapfd": "wrapfd",
}
"""How the nodes of a driver begin, where that tells the driver. DRM nodes are asked instead."""


def driver_of_path(path: str) -> str:
    """Which driver a node's path tells; "" where it tells none."""
    return next((driver for start, driver in NODES.items() if path.startswith(start)), "")


_RKNPU_CREATE = {
    "handle": Role.HANDLE,
    "obj_addr": Role.OBJECT,
    "dma_addr": Role.DMA,
}
ROLES: dict[str, dict[str, Role]] = {
    "rknpu_mem_create": _RKNPU_CREATE,
    "rknpu_mem_map": {"handle": Role.HANDLE, "offset": Role.OFFSET},
    "rknpu_mem_destroy": {"handle": Role.HANDLE, "obj_addr": Role.OBJECT},
    "rknpu_mem_sync": {"obj_addr": Role.OBJECT},
    "rknpu_submit": {
        "task_obj_addr": Role.OBJECT,
        "hw_elapse_time": Role.DURATION,
        "fence_fd": Role.FD,
    },
    "rknpu_task": {"regcmd_addr": Role.DMA, "int_status": Role.INTERRUPTS},
    "drm_rocket_create_bo": {
        "handle": Role.HANDLE,
        "dma_address": Role.DMA,
        "offset": Role.OFFSET,
    },
    "drm_rocket_prep_bo": {"handle": Role.HANDLE, "timeout_ns": Role.DEADLINE},
    "drm_rocket_fini_bo": {"handle": Role.HANDLE},
    "drm_rocket_job": {"in_bo_handles": Role.HANDLE, "out_bo_handles": Role.HANDLE},
    "drm_rocket_task": {"regcmd": Role.DMA},
    "amdxdna_drm_create_bo": {"handle": Role.HANDLE},
    "amdxdna_drm_get_bo_info": {
        "handle": Role.HANDLE,
        "map_offset": Role.OFFSET,
        "vaddr": Role.USER,
        "xdna_addr": Role.DMA,
    },
    "amdxdna_drm_sync_bo": {"handle": Role.HANDLE},
    "amdxdna_drm_exec_cmd": {"cmd_handles": Role.HANDLE, "args": Role.HANDLE},
    "drm_ivpu_bo_create": {"handle": Role.HANDLE, "vpu_addr": Role.DMA},
    "drm_ivpu_bo_create_from_userptr": {"handle": Role.HANDLE, "vpu_addr": Role.DMA},
    "drm_ivpu_bo_info": {
        "handle": Role.HANDLE,
        "vpu_addr": Role.DMA,
        "mmap_offset": Role.OFFSET,
    },
    "drm_ivpu_submit": {"buffers_ptr": Role.HANDLE},
    "drm_ivpu_cmdq_submit": {"buffers_ptr": Role.HANDLE},
    "drm_ivpu_bo_wait": {"handle": Role.HANDLE, "timeout_ns": Role.DEADLINE},
    "qaic_create_bo": {"handle": Role.HANDLE},
    "qaic_mmap_bo": {"handle": Role.HANDLE, "offset": Role.OFFSET},
    "qaic_execute_entry": {"handle": Role.HANDLE},
    "qaic_wait": {"handle": Role.HANDLE},
    "drm_ethosu_bo_create": {"handle": Role.HANDLE},
    "drm_ethosu_cmdstream_bo_create": {"handle": Role.HANDLE},
    "drm_ethosu_bo_mmap_offset": {"handle": Role.HANDLE, "offset": Role.OFFSET},
    "drm_ethosu_job": {"cmd_bo": Role.HANDLE, "region_bo_handles": Role.HANDLE},
    "drm_ethosu_bo_wait": {"handle": Role.HANDLE, "timeout_ns": Role.DEADLINE},
    "drm_syncobj_wait": {"timeout_nsec": Role.DEADLINE},
    "drm_syncobj_timeline_wait": {"timeout_nsec": Role.DEADLINE},
    "drm_gem_close": {"handle": Role.HANDLE},
    "drm_prime_handle": {"handle": Role.HANDLE, "fd": Role.FD},
    "fastrpc_alloc_dma_buf": {"fd": Role.FD},
    "fastrpc_init_create": {"filefd": Role.FD},
    "fastrpc_invoke_args": {"fd": Role.FD},
    "fastrpc_mem_map": {"fd": Role.FD},
    "fastrpc_mem_unmap": {"fd": Role.FD},
    "dma_heap_allocation_data": {"fd": Role.FD},
}
"""Structure -> field -> role. For a pointer the role is that of each number it points to."""

NOWHERE = (1 << 64) - 1
"""What stands for no address (AMDXDNA_INVALID_ADDR)."""

WAITS_FOR_OTHERS = frozenset({"FASTRPC_IOCTL_INVOKE"})
"""Requests that may end only after what other threads do: a DSP calls back."""

GIVES_FD = frozenset(
    {"UDMABUF_CREATE", "UDMABUF_CREATE_LIST", "WRAPFD_DEV_IOC_WRAP", "WRAPFD_DEV_IOC_REWRAP"}
)
"""Requests whose value is a new descriptor."""

CREATES = {
    "rknpu_mem_create": "size",
    "drm_rocket_create_bo": "size",
    "amdxdna_drm_create_bo": "size",
    "drm_ivpu_bo_create": "size",
    "drm_ivpu_bo_create_from_userptr": "size",
    "qaic_create_bo": "size",
    "drm_ethosu_bo_create": "size",
    "drm_ethosu_cmdstream_bo_create": "size",
}
"""Structure that makes a buffer object -> the field with its bytes."""
TELLS = frozenset(
    {
        "rknpu_mem_map",
        "amdxdna_drm_get_bo_info",
        "drm_ivpu_bo_info",
        "qaic_mmap_bo",
        "drm_ethosu_bo_mmap_offset",
    }
)
"""Structures that tell more of a buffer object."""
FREES = frozenset({"rknpu_mem_destroy", "drm_gem_close"})

FILES = frozenset({"drm_prime_handle", "fastrpc_alloc_dma_buf", "dma_heap_allocation_data"})
"""Structures whose ``fd`` comes back, a dma-buf; of DRM's only by DRM_IOCTL_PRIME_HANDLE_TO_FD."""

REGCMDS = {
    "drm_rocket_task": ("regcmd", "regcmd_count", 0),
    "rknpu_task": ("regcmd_addr", "regcfg_amount", 4),
}
"""Structure -> where its register commands stand, which field counts them, and the words that it
does not count."""
