# SPDX-License-Identifier: MIT
"""Views: what an older kernel, another driver or a vendor has."""

import copy
from typing import Any

import pytest
from abi.witnesses import HEADERS, modules

from npukit.abi import drm, ethosu, fastrpc, habanalabs, ivpu, qaic, rknpu, rocket, sync_file
from npukit.abi.versions import Variant, c_names
from npukit.ioctl import AbiMismatch

# Requests as strace's tables give them, release by release: name, release, number (None: not yet).
DATED = [
    (fastrpc, "FASTRPC_IOCTL_INIT_CREATE_STATIC", {(6, 1): None, (6, 2): 0xC0105209}),
    (fastrpc, "FASTRPC_IOCTL_SET_OPTION", {(7, 2): None, (7, 3): 0xC020520C}),
    (drm, "DRM_IOCTL_SYNCOBJ_EVENTFD", {(6, 5): None, (6, 6): 0xC01864CF}),
    (drm, "DRM_IOCTL_SYNCOBJ_WAIT", {(6, 1): 0xC02064C3, (6, 7): 0xC02064C3, (6, 8): 0xC02864C3}),
    (drm, "DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT", {(6, 7): 0xC02864CA, (6, 8): 0xC03064CA}),
    (drm, "DRM_IOCTL_SET_CLIENT_NAME", {(6, 12): None, (6, 13): 0xC01064D1}),
    (drm, "DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD", {(6, 15): 0xC01064C1, (6, 16): 0xC01864C1}),
    (drm, "DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE", {(6, 15): 0xC01064C2, (6, 16): 0xC01864C2}),
    (drm, "DRM_IOCTL_GEM_CHANGE_HANDLE", {(6, 17): None, (6, 18): 0xC00864D2}),
    (sync_file, "SYNC_IOC_SET_DEADLINE", {(6, 7): None, (6, 8): 0x40103E05}),
    (qaic, "DRM_IOCTL_QAIC_DETACH_SLICE_BO", {(6, 6): None, (6, 7): 0x40086448}),
    (ivpu, "DRM_IOCTL_IVPU_SUBMIT", {(6, 3): 0x40186445, (6, 7): 0x40186445, (6, 8): 0x40206445}),
    (ivpu, "DRM_IOCTL_IVPU_METRIC_STREAMER_START", {(6, 10): None, (6, 11): 0xC0206447}),
    (ivpu, "DRM_IOCTL_IVPU_CMDQ_CREATE", {(6, 14): None, (6, 15): 0xC008644B, (6, 17): 0xC00C644B}),
    (ivpu, "DRM_IOCTL_IVPU_CMDQ_SUBMIT", {(6, 15): 0x4018644D, (6, 18): 0x4018644D}),
    (ivpu, "DRM_IOCTL_IVPU_CMDQ_SUBMIT", {(6, 19): 0x4020644D, (7, 3): 0x4020644D}),
    (ivpu, "DRM_IOCTL_IVPU_BO_CREATE_FROM_USERPTR", {(6, 18): None, (6, 19): 0xC020644E}),
    (habanalabs, "DRM_IOCTL_HL_INFO", {(6, 6): None, (6, 7): 0xC0186440}),
    (habanalabs, "HL_IOCTL_INFO", {(6, 6): 0xC0184801, (6, 7): 0}),
    (habanalabs, "HL_IOCTL_WAIT_CS", {(6, 6): 0xC0384804, (6, 7): 3}),
    (HEADERS["drm/amdxdna_accel.h"], "DRM_IOCTL_AMDXDNA_GET_ARRAY", {(6, 18): 0xC018644A}),
    (HEADERS["drm/amdxdna_accel.h"], "DRM_IOCTL_AMDXDNA_WAIT_CMD", {(6, 19): None}),
    (HEADERS["drm/amdxdna_accel.h"], "DRM_IOCTL_AMDXDNA_WAIT_CMD", {(7, 2): 0x40106449}),
]


@pytest.mark.parametrize(("module", "name", "numbers"), DATED)
def test_requests_change_when_strace_says(
    module: Any, name: str, numbers: dict[tuple[int, int], int | None]
) -> None:
    for release, number in numbers.items():
        assert getattr(module.for_kernel(release), name, None) == number


@pytest.mark.parametrize(
    ("module", "first"),
    [
        ("ivpu", (6, 3)),
        ("qaic", (6, 4)),
        ("habanalabs", (6, 3)),
        ("amdxdna", (6, 14)),
        ("rocket", (6, 18)),
        ("ethosu", (6, 19)),
    ],
)
def test_a_whole_interface_has_a_first_release(module: str, first: tuple[int, int]) -> None:
    for_kernel = {each.__name__: each for each in modules()}[f"npukit.abi.{module}"].for_kernel
    assert for_kernel(first).names
    with pytest.raises(AbiMismatch) as caught:
        for_kernel((first[0], first[1] - 1))
    assert str(caught.value) == (
        f"Linux {first[0]}.{first[1] - 1} has no {module} interface (ENOSYS): "
        f"it came with Linux {first[0]}.{first[1]}"
    )


def test_a_view_names_what_it_lacks() -> None:
    view = fastrpc.for_kernel((6, 12))
    assert view.fastrpc_ioctl_capability.fields() == [
        "domain",
        "attribute_id",
        "capability",
        "reserved",
    ]
    assert fastrpc.fastrpc_ioctl_capability.fields()[0] == "unused"
    assert not hasattr(view, "FASTRPC_IOCTL_SET_OPTION")
    with pytest.raises(AttributeError, match=r"fastrpc of Linux 6\.12: .*came with Linux 7\.3"):
        _ = view.FASTRPC_IOCTL_SET_OPTION
    with pytest.raises(AttributeError, match="NONSENSE is not a name of this interface"):
        _ = view.NONSENSE


def test_a_view_can_be_looked_through() -> None:
    view = ethosu.for_kernel((7, 2))
    assert repr(view) == f"<ethosu of Linux 7.2: {len(view.names)} names>"
    assert "drm_ethosu_submit" in view
    assert "DRM_ETHOSU_PERFMON_CREATE" not in view
    assert set(view) == set(view.names) <= set(dir(view))
    assert copy.copy(view).drm_ethosu_npu_info is view.drm_ethosu_npu_info
    assert view.drm_ethosu_submit.fields()[-1] == "pad"


def test_further_numbers_of_a_release_are_ignored() -> None:
    assert fastrpc.for_kernel((6, 12, 117)).names == fastrpc.for_kernel((6, 12)).names
    assert fastrpc.for_kernel((8, 0)).names == fastrpc.for_kernel((7, 3)).names
    with pytest.raises(ValueError, match="not a Linux release"):
        fastrpc.for_kernel((6,))


@pytest.mark.parametrize("module", [m for m in modules() if hasattr(m, "VARIANTS")])
def test_since_and_variants_speak_of_real_names(module: Any) -> None:
    names = c_names(vars(module))
    short = module.__name__.rpartition(".")[2]
    assert set(getattr(module, "SINCE", ())) <= {*names, short}
    for title, variant in module.VARIANTS.items():
        assert issubclass(variant, Variant)
        assert variant.__doc__
        assert set(names) >= variant.LACKS
        assert not variant.LACKS & set(variant.names())
        assert module.variant(title).names
    with pytest.raises(ValueError, match="has no variant 'nonsense'"):
        module.variant("nonsense")


def test_a_variant_of_a_kernel_is_that_kernels_view() -> None:
    assert drm.variant("before 6.8").names == drm.for_kernel((6, 7)).names
    # Of two changes to DRM_IVPU_BO_FLAGS the earlier one holds for kernels before both.
    assert ivpu.for_kernel((6, 5)).DRM_IVPU_BO_FLAGS == 0x30003
    assert ivpu.for_kernel((6, 18)).DRM_IVPU_BO_FLAGS == 0x30007
    assert ivpu.for_kernel((6, 19)).DRM_IVPU_BO_FLAGS == 0x3000F
    assert ivpu.for_kernel((6, 12)).DRM_IVPU_DRIVER_MAJOR == 1
    assert not hasattr(ivpu.for_kernel((6, 13)), "DRM_IVPU_DRIVER_MAJOR")


def test_a_changed_member_reaches_what_holds_it() -> None:
    old = habanalabs.for_kernel((6, 3))
    assert "engines" in habanalabs.hl_cs_in.fields()
    assert "engines" not in old.hl_cs_in.fields()
    assert dict(old.hl_cs_args._fields_)["in"] is old.hl_cs_in
    assert old.HL_IOCTL_CS.struct is old.hl_cs_args
    assert old.HL_IOCTL_CS == 0xC0304803


def test_a_vendors_variant_replaces_and_lacks() -> None:
    old = rknpu.variant("0.8")
    assert old.rknpu_mem_create is rknpu.rknpu_mem_create_0_8
    assert old.RKNPU_MEM_MASK == 511
    assert old.rknpu_submit.fields()[7] == "regcfg_obj_addr"
    with pytest.raises(AttributeError, match="RKNPU_SET_IOMMU_DOMAIN_ID is not in this variant"):
        _ = old.RKNPU_SET_IOMMU_DOMAIN_ID
    assert not hasattr(fastrpc.variant("adsprpc"), "FASTRPC_IOCTL_INIT_ATTACH")
    assert not hasattr(fastrpc.variant("multimode"), "FASTRPC_IOCTL_SET_OPTION")


def test_views_do_not_touch_the_module() -> None:
    before = dict(vars(rocket))
    rocket.for_kernel((6, 18)).names.clear()
    assert vars(rocket) == before
    assert rocket.for_kernel((6, 18)).names
