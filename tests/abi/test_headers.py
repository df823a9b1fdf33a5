# SPDX-License-Identifier: MIT
"""Every structure, field, enumerator and macro equals the golden tables of three kernels."""

import re
from types import ModuleType
from typing import Any

import pytest
from abi.witnesses import (
    HEADERS,
    golden,
    golden_layouts,
    golden_numbers,
    is_layout,
    layouts_of,
    numbers_of,
)
from support import needs_shared

from npukit.abi.versions import View
from npukit.ioctl import AbiMismatch

pytestmark = needs_shared

LEFT_OUT = {
    "drm/drm.h": [
        # display hardware, which no accelerator has
        r"DRM_IOCTL_MODE_\w+",
        r"DRM_IOCTL_MODESET_CTL|drm_modeset_ctl|_DRM_(PRE|POST)_MODESET",
        r"DRM_IOCTL_WAIT_VBLANK|drm_wait_vblank\w*|_DRM_VBLANK_\w+",
        r"DRM_IOCTL_CRTC_\w+|drm_crtc_\w+|DRM_CRTC_SEQUENCE_\w+|DRM_EVENT_\w+|drm_event\w*",
        # requests that the DRM core of today has no entry for, answers with an error or ignores
        r"DRM_IOCTL_AGP_\w+|drm_agp_\w+",
        r"DRM_IOCTL_(ADD|RM|GET)_MAP|drm_map|_DRM_(FRAME_BUFFER|REGISTERS|SHM|AGP|CONSISTENT)",
        r"_DRM_(SCATTER_GATHER|RESTRICTED|READ_ONLY|LOCKED|KERNEL|WRITE_COMBINING|CONTAINS_LOCK)",
        r"_DRM_(REMOVABLE|DRIVER)",
        r"DRM_IOCTL_\w*_BUFS|drm_buf_\w+|_DRM_(PAGE_ALIGN|AGP_BUFFER|SG_BUFFER|FB_BUFFER)",
        r"_DRM_PCI_BUFFER_RO|DRM_(MIN|MAX)_ORDER|DRM_RAM_PERCENT",
        r"DRM_IOCTL_(DMA|FINISH)|drm_dma|_DRM_DMA_\w+",
        r"DRM_IOCTL_\w+_CTX|drm_ctx\w*|_DRM_CONTEXT_\w+",
        r"DRM_IOCTL_(UN)?LOCK|drm_(hw_)?lock|_DRM_(LOCK|HALT)_\w+",
        r"DRM_IOCTL_\w+_DRAW|drm_(update_)?draw\w*|DRM_DRAWABLE_CLIPRECTS",
        r"DRM_IOCTL_(CONTROL|IRQ_BUSID)|drm_(control|irq_busid)|DRM_\w+_(COMMAND|HANDLER)",
        r"DRM_IOCTL_SG_\w+|drm_scatter_gather",
        r"DRM_IOCTL_(UN)?BLOCK|drm_block|DRM_IOCTL_SET_UNIQUE",
        r"DRM_IOCTL_GET_STATS|drm_stats|_DRM_STAT_\w+",
        # structures that no request takes
        r"drm_(clip_rect|tex_region|list)",
    ],
}
"""Names of a header that npukit has no use for, and why."""

NOT_IN_THE_TABLES = {
    # macros that the tables' compiler could not turn into a number without other headers
    "dma_heap": {"DMA_HEAP_VALID_FD_FLAGS": 0o2000003},
    "drm": {"DRM_CLOEXEC": 0o2000000, "DRM_RDWR": 2},
    "qaic": {"QAIC_MANAGE_MAX_MSG_LENGTH": 4096},
    "habanalabs": {
        "HL_ENGINES_DATA_MAX_SIZE": 1 << 20,
        "HL_RAZWI_NA_ENG_ID": 0xFFFF,
        "HL_RAZWI_READ": 1,
        "HL_RAZWI_WRITE": 2,
        "HL_RAZWI_LBW": 4,
        "HL_RAZWI_HBW": 8,
        "HL_RAZWI_RR": 16,
        "HL_RAZWI_ADDR_DEC": 32,
    },
    # what the header leaves to the driver's source and to Qualcomm's remote.h
    "fastrpc": {
        "ADSP_MMAP_ADD_PAGES": 0x1000,
        "DOMAIN_SUPPORT": 0,
        "UNSIGNED_PD_SUPPORT": 1,
        "HVX_SUPPORT_64B": 2,
        "HVX_SUPPORT_128B": 3,
        "VTCM_PAGE": 4,
        "VTCM_COUNT": 5,
        "ARCH_VER": 6,
        "HMX_SUPPORT_DEPTH": 7,
        "HMX_SUPPORT_SPATIAL": 8,
        "ASYNC_FASTRPC_SUPPORT": 9,
        "STATUS_NOTIFICATION_SUPPORT": 10,
        "MCID_MULTICAST": 11,
    },
}
UNSIGNED = {"AMDXDNA_INVALID_CMD_HANDLE", "AMDXDNA_INVALID_ADDR"}
"""~0UL, which the tables print with a sign."""

FROM_DRM_H = {"DRM_COMMAND_BASE", "DRM_IOCTL_BASE"}
"""What the other DRM modules take from drm.h."""

OLD = ("linux/dma-buf.h", "linux/dma-heap.h", "linux/sync_file.h", "linux/udmabuf.h")
TABLES = {
    # Debian's headers of 6.1 come without those of DRM.
    "6.1": (*OLD, "misc/fastrpc.h"),
    "6.12": (
        *OLD,
        "drm/drm.h",
        "drm/habanalabs_accel.h",
        "drm/ivpu_accel.h",
        "drm/qaic_accel.h",
        "misc/fastrpc.h",
    ),
    "7.3": tuple(HEADERS),
}
"""The headers of each kernel."""
PAIRS = [(kernel, header) for kernel, headers in TABLES.items() for header in headers]


def release_of(kernel: str) -> tuple[int, ...]:
    return tuple(int(part) for part in kernel.split("."))


def view_of(kernel: str, header: str) -> tuple[View, dict[str, Any]]:
    """A module as that kernel has it, and the table of its header."""
    return HEADERS[header].for_kernel(release_of(kernel)), golden(kernel)[header]


def left_out(header: str, name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in LEFT_OUT.get(header, ()))


@pytest.mark.parametrize(("kernel", "header"), PAIRS)
def test_layouts_equal_the_tables(kernel: str, header: str) -> None:
    view, table = view_of(kernel, header)
    expected = golden_layouts(table, lambda tag: left_out(header, tag))
    assert expected
    assert layouts_of(view.names) == expected


@pytest.mark.parametrize(("kernel", "header"), PAIRS)
def test_numbers_equal_the_tables(kernel: str, header: str) -> None:
    view, table = view_of(kernel, header)
    short = HEADERS[header].__name__.rpartition(".")[2]
    expected = {n: v for n, v in golden_numbers(table).items() if not left_out(header, n)}
    expected |= {name: expected[name] % (1 << 64) for name in UNSIGNED & set(expected)}
    expected |= NOT_IN_THE_TABLES.get(short, {})
    ours = numbers_of(view.names)
    if short != "drm":
        ours = {name: value for name, value in ours.items() if name not in FROM_DRM_H}
    assert expected
    assert ours == expected


@pytest.mark.parametrize("kernel", TABLES)
def test_no_header_of_the_tables_is_forgotten(kernel: str) -> None:
    assert set(TABLES[kernel]) == set(golden(kernel)) & set(HEADERS)
    for header in set(HEADERS) - set(TABLES[kernel]) - {"drm/drm.h"}:
        with pytest.raises(AbiMismatch, match="came with Linux"):
            HEADERS[header].for_kernel(release_of(kernel))


@pytest.mark.parametrize("header", HEADERS)
def test_the_newest_view_is_the_module_itself(header: str) -> None:
    module = HEADERS[header]
    names = module.for_kernel((7, 3)).names
    assert names
    assert all(getattr(module, name) is value for name, value in names.items())


@pytest.mark.parametrize("header", LEFT_OUT)
def test_what_is_left_out_is_there_to_leave_out(header: str) -> None:
    table = golden("7.3")[header]
    known = {*golden_numbers(table), *table["structs"]}
    for pattern in LEFT_OUT[header]:
        assert any(re.fullmatch(pattern, name) for name in known), pattern


@pytest.mark.parametrize("module", HEADERS.values(), ids=lambda each: each.__name__)
def test_a_class_is_named_by_its_tag(module: ModuleType) -> None:
    for variant in (module, *module.VARIANTS.values()):
        for name, value in vars(variant).items():
            # One that is ours alone may be another view of a tag.
            if is_layout(value) and hasattr(value, "_size_") and not name.startswith("_"):
                assert value.__name__ == name
