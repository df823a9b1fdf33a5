# SPDX-License-Identifier: MIT
"""Interfaces that mainline does not have, against tables of their specifications."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from abi import vendor_tables as tables
from abi.witnesses import Layout, layouts_of, numbers_of

from npukit.abi import fastrpc, rknpu, wrapfd
from npukit.abi.versions import c_names

Flat = dict[str, tuple[int, str | None, int | None]]

FROM_DRM_H = {"DRM_COMMAND_BASE"}
SHORT = {"DRM_IOCTL_RKNPU_MEM_CREATE_0_8", "IOCTL_RKNPU_MEM_CREATE_0_8", "rknpu_mem_create_0_8"}
"""Second names for what a variant has."""
FROM_REMOTE_H = {
    "ADSP_MMAP_ADD_PAGES",
    "DOMAIN_SUPPORT",
    "UNSIGNED_PD_SUPPORT",
    "HVX_SUPPORT_64B",
    "HVX_SUPPORT_128B",
    "VTCM_PAGE",
    "VTCM_COUNT",
    "ARCH_VER",
    "HMX_SUPPORT_DEPTH",
    "HMX_SUPPORT_SPATIAL",
    "ASYNC_FASTRPC_SUPPORT",
    "STATUS_NOTIFICATION_SUPPORT",
    "MCID_MULTICAST",
}
"""What mainline's module has from another source than its header (test_headers.py)."""


def base(module: Any) -> dict[str, Any]:
    own = FROM_DRM_H | SHORT
    return {name: value for name, value in c_names(vars(module)).items() if name not in own}


CASES = {
    "rknpu": (base(rknpu), tables.RKNPU, tables.RKNPU_NUMBERS),
    "rknpu 0.8": (rknpu.driver_0_8.names(), tables.RKNPU_0_8, tables.RKNPU_0_8_NUMBERS),
    "wrapfd": (base(wrapfd), tables.WRAPFD, tables.WRAPFD_NUMBERS),
    "wrapfd generation 1": (
        wrapfd.generation_1.names(),
        tables.WRAPFD_1,
        tables.WRAPFD_1_NUMBERS,
    ),
    "wrapfd generation 1, reserved words": (
        wrapfd.generation_1_reserved.names(),
        tables.WRAPFD_1_RESERVED,
        tables.WRAPFD_1_RESERVED_NUMBERS,
    ),
    "fastrpc multimode": (
        {n: v for n, v in fastrpc.variant("multimode").names.items() if n not in FROM_REMOTE_H},
        tables.MULTIMODE,
        tables.MULTIMODE_NUMBERS,
    ),
    "fastrpc adsprpc": (
        fastrpc.variant("adsprpc").names,
        tables.ADSPRPC,
        tables.ADSPRPC_NUMBERS,
    ),
}


def read_layouts(text: str) -> dict[str, tuple[str, int, Flat]]:
    found = {}
    joined = re.sub(r"\n +", " ", text.strip())
    for line in joined.splitlines():
        head, _, body = line.partition(": ")
        kind, tag, size = head.split()
        fields: Flat = {}
        for part in body.split(", "):
            offset, ctype, name = part.split()
            bare, _, length = name.removesuffix("]").partition("[")
            fields[bare] = (int(offset), ctype, int(length) if length else None)
        found[tag] = (kind, int(size), fields)
    return found


def read_numbers(text: str) -> dict[str, int]:
    pairs = (part.split() for part in text.replace("\n", " ").split(",") if part.strip())
    return {name: int(value, 0) for name, value in pairs}


def flat(layout: Layout) -> tuple[str, int, Flat]:
    return layout.kind, layout.size, dict(_flat(layout.fields, 0))


def _flat(fields: Any, start: int) -> Iterator[tuple[str, tuple[int, str | None, int | None]]]:
    for field in fields:
        offset = start + field.offset
        if field.name is None:
            yield from _flat(field.members, offset)
        else:
            assert len(field.dims) < 2
            yield field.name, (offset, field.type, field.dims[0] if field.dims else None)


@pytest.mark.parametrize("case", CASES)
def test_layouts_equal_the_table(case: str) -> None:
    names, layouts, _ = CASES[case]
    expected = read_layouts(layouts)
    assert expected
    assert {tag: flat(each) for tag, each in layouts_of(names).items()} == expected


@pytest.mark.parametrize("case", CASES)
def test_numbers_equal_the_table(case: str) -> None:
    names, _, numbers = CASES[case]
    expected = read_numbers(numbers)
    assert expected
    assert numbers_of(names) == expected


@pytest.mark.parametrize("case", CASES)
def test_a_class_is_named_by_its_tag(case: str) -> None:
    names: Mapping[str, Any] = CASES[case][0]
    assert all(names[tag].__name__ == tag for tag in layouts_of(names))


def test_number_12_tells_the_fastrpc_drivers_apart() -> None:
    mainline = fastrpc.FASTRPC_IOCTL_SET_OPTION
    vendor = fastrpc.variant("multimode").FASTRPC_IOCTL_MULTIMODE_INVOKE
    legacy = fastrpc.variant("adsprpc").FASTRPC_IOCTL_CONTROL
    assert [hex(each) for each in (mainline, vendor, legacy)] == [
        "0xc020520c",
        "0xc038520c",
        "0xc00c520c",
    ]
