# SPDX-License-Identifier: MIT
"""Flags and enumerations have the names of their header."""

import importlib
from dataclasses import replace
from typing import Any

import pytest

from npukit.abi import amdxdna, dma_heap, drm, habanalabs, ivpu, rknpu
from npukit.ioctl import Ioctl
from npukit.trace.format import to_text
from npukit.trace.names import FIELDS, Enumeration, Flags, inner, named, names_of, parts, structures
from npukit.trace.record import Block, Memory, Record


@pytest.mark.parametrize(("struct", "field"), FIELDS)
def test_each_is_a_field_and_its_names_are_of_the_header(struct: str, field: str) -> None:
    kinds = structures().get(struct) or [getattr(drm, struct).struct]
    assert any(field in dict(parts(kind)) for kind in kinds)
    names = FIELDS[struct, field]
    if not isinstance(names, Enumeration):
        return
    known = names_of(names)
    header = vars(importlib.import_module(f"npukit.abi.{names.module}"))
    # What a range of names would take in that is not of it: a mask, a request's number.
    begins = {name.split("_")[0] for name in known}
    assert len(begins) == 1 or names.module == "fastrpc"
    assert known == {name: header[name] for name in known}
    assert {names.first} <= set(known)
    assert names.last in known
    for name, value in known.items():
        assert named(struct, field, value) == name


def test_flags_are_single_bits() -> None:
    for names in FIELDS.values():
        if isinstance(names, Flags):
            assert all(value.bit_count() == 1 for value in names_of(names).values())


def line(driver: str, request: Ioctl, **fields: Any) -> str:
    assert request.struct is not None
    sent = Block(request.struct.__name__, request.struct(**fields).asdict())
    record = Record(
        "ioctl", 0, 0, 1, 1, 3, driver, number=int(request), request=request.name, sent=sent
    )
    return next(to_text([record]))


def test_bits_are_named_and_the_rest_is_a_number() -> None:
    create = rknpu.DRM_IOCTL_RKNPU_MEM_CREATE
    assert "flags=RKNPU_MEM_NON_CONTIGUOUS|RKNPU_MEM_IOMMU|0x80000000," in line(
        "rknpu", create, flags=0x80000011
    )
    assert "flags=0," in line("rknpu", create)
    heap = dma_heap.DMA_HEAP_IOCTL_ALLOC
    assert "fd_flags=O_RDWR|O_CLOEXEC," in line("dma_heap", heap, fd_flags=0o2000002)


def test_values_are_named_where_they_have_a_name() -> None:
    action = rknpu.DRM_IOCTL_RKNPU_ACTION
    assert "flags=RKNPU_GET_DRV_VERSION," in line("rknpu", action, flags=1)
    assert "flags=0x63," in line("rknpu", action, flags=99)
    create = amdxdna.DRM_IOCTL_AMDXDNA_CREATE_BO
    assert "type=AMDXDNA_BO_DEV_HEAP," in line("amdxdna_accel_driver", create, type=2)
    assert "param=DRM_IVPU_PARAM_SKU," in line("intel_vpu", ivpu.DRM_IOCTL_IVPU_GET_PARAM, param=12)
    to_fd, from_fd = drm.DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD, drm.DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE
    assert "flags=DRM_SYNCOBJ_HANDLE_TO_FD_FLAGS_TIMELINE," in line("rocket", to_fd, flags=2)
    assert "_FLAGS_IMPORT_SYNC_FILE," in line("rocket", from_fd, flags=1)
    capability = line("rocket", drm.DRM_IOCTL_GET_CAP, capability=drm.DRM_CAP_SYNCOBJ)
    assert "capability=DRM_CAP_SYNCOBJ," in capability


def test_a_structure_within_a_structure_has_its_own_names() -> None:
    assert inner("hl_mem_args", "in") == "hl_mem_in"
    assert inner("rknpu_submit", "subcore_task") == "rknpu_subcore_task"
    assert inner("rknpu_submit", "flags") == inner("nothing", "flags") == ""
    kind = habanalabs.hl_mem_args
    fields = kind().asdict()
    fields["in"] |= {"op": 2, "flags": 4}
    number = int(habanalabs.DRM_IOCTL_HL_MEMORY)
    sent = Block("hl_mem_args", fields)
    record = Record("ioctl", 0, 0, 1, 1, 3, "habanalabs", number=number, sent=sent)
    assert "op=HL_MEM_OP_MAP, flags=HL_MEM_USERPTR," in next(to_text([record]))
    # What came back is named, too.
    fields = amdxdna.amdxdna_drm_get_power_mode(power_mode=4).asdict()
    answer = Block("amdxdna_drm_get_power_mode", fields)
    memory = {"buffer": Memory("amdxdna_drm_get_power_mode", 1, 1, [answer])}
    received = Block("x", {}, memory)
    text = "\n".join(to_text([replace(record, sent=None, received=received)]))
    assert "power_mode=POWER_MODE_TURBO" in text
