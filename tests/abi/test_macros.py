# SPDX-License-Identifier: MIT
"""Macros with arguments, and members of structures without a tag, which the tables do not have."""

import pytest
from abi.witnesses import layout, modules
from hypothesis import given
from hypothesis import strategies as st

from npukit.abi import drm, ethosu, fastrpc, habanalabs, rknpu
from npukit.abi.fastrpc import (
    REMOTE_SCALARS_INBUFS,
    REMOTE_SCALARS_INHANDLES,
    REMOTE_SCALARS_LENGTH,
    REMOTE_SCALARS_MAKE,
    REMOTE_SCALARS_MAKEX,
    REMOTE_SCALARS_METHOD,
    REMOTE_SCALARS_METHOD_ATTR,
    REMOTE_SCALARS_OUTBUFS,
    REMOTE_SCALARS_OUTHANDLES,
)
from npukit.abi.versions import c_names

scalars = st.tuples(
    st.integers(0, 7),
    st.integers(0, 31),
    st.integers(0, 255),
    st.integers(0, 255),
    st.integers(0, 15),
    st.integers(0, 15),
)


@given(scalars)
def test_a_scalars_word_can_be_taken_apart(parts: tuple[int, int, int, int, int, int]) -> None:
    word = REMOTE_SCALARS_MAKEX(*parts)
    assert 0 <= word < 1 << 32
    assert parts == (
        REMOTE_SCALARS_METHOD_ATTR(word),
        REMOTE_SCALARS_METHOD(word),
        REMOTE_SCALARS_INBUFS(word),
        REMOTE_SCALARS_OUTBUFS(word),
        REMOTE_SCALARS_INHANDLES(word),
        REMOTE_SCALARS_OUTHANDLES(word),
    )
    assert REMOTE_SCALARS_LENGTH(word) == sum(parts[2:]) <= 540


@pytest.mark.parametrize(
    ("method", "ins", "outs", "word"),
    [
        (0, 2, 2, 0x00020200),  # remotectl open
        (1, 1, 2, 0x01010200),  # remotectl close
        (4, 2, 2, 0x04020200),  # listener next2
        (3, 0, 0, 0x03000000),  # listener init2
        (19, 5, 1, 0x13050100),  # apps_std fopen_with_env
        (31, 2, 1, 0x1F020100),  # apps_std stat
    ],
)
def test_known_calls(method: int, ins: int, outs: int, word: int) -> None:
    assert REMOTE_SCALARS_MAKE(method, ins, outs) == word


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ((8, 0, 0, 0, 0, 0), "attr"),
        ((0, 32, 0, 0, 0, 0), "method"),
        ((0, 0, 256, 0, 0, 0), "in buffers"),
        ((0, 0, 0, -1, 0, 0), "out buffers"),
        ((0, 0, 0, 0, 16, 0), "in handles"),
        ((0, 0, 0, 0, 0, 16), "out handles"),
    ],
)
def test_what_does_not_fit_a_scalars_word_is_refused(
    parts: tuple[int, int, int, int, int, int], name: str
) -> None:
    with pytest.raises(ValueError, match=name):
        REMOTE_SCALARS_MAKEX(*parts)


def test_the_parts_of_an_ethosu_id() -> None:
    # arch 1.2.3, product 4, version 5.6, status 7, as the header's macros take them apart
    number = 1 << 28 | 2 << 20 | 3 << 16 | 4 << 12 | 5 << 8 | 6 << 4 | 7
    assert ethosu.DRM_ETHOSU_ARCH_MAJOR(number) == 1
    assert ethosu.DRM_ETHOSU_ARCH_MINOR(number) == 2
    assert ethosu.DRM_ETHOSU_ARCH_PATCH(number) == 3
    assert ethosu.DRM_ETHOSU_PRODUCT_MAJOR(number) == 4
    assert ethosu.DRM_ETHOSU_VERSION_MAJOR(number) == 5
    assert ethosu.DRM_ETHOSU_VERSION_MINOR(number) == 5 << 4 | 6
    assert ethosu.DRM_ETHOSU_VERSION_STATUS(number) == 7


def test_the_version_of_the_rknpu_driver() -> None:
    assert rknpu.RKNPU_GET_DRV_VERSION_CODE(0, 9, 8) == 908
    code = rknpu.RKNPU_GET_DRV_VERSION_CODE(12, 34, 56)
    assert rknpu.RKNPU_GET_DRV_VERSION_MAJOR(code) == 12
    assert rknpu.RKNPU_GET_DRV_VERSION_MINOR(code) == 34
    assert rknpu.RKNPU_GET_DRV_VERSION_PATCHLEVEL(code) == 56


def test_no_macro_is_invented() -> None:
    functions = {
        name
        for module in modules()
        for name, value in c_names(vars(module)).items()
        if not isinstance(value, int | type)
    }
    assert functions == {
        *("DRM_IO", "DRM_IOR", "DRM_IOW", "DRM_IOWR"),
        *("DRM_ETHOSU_ARCH_MAJOR", "DRM_ETHOSU_ARCH_MINOR", "DRM_ETHOSU_ARCH_PATCH"),
        *("DRM_ETHOSU_PRODUCT_MAJOR", "DRM_ETHOSU_VERSION_MAJOR", "DRM_ETHOSU_VERSION_MINOR"),
        "DRM_ETHOSU_VERSION_STATUS",
        *("REMOTE_SCALARS_MAKE", "REMOTE_SCALARS_MAKEX", "REMOTE_SCALARS_LENGTH"),
        *("REMOTE_SCALARS_METHOD", "REMOTE_SCALARS_METHOD_ATTR"),
        *("REMOTE_SCALARS_INBUFS", "REMOTE_SCALARS_OUTBUFS"),
        *("REMOTE_SCALARS_INHANDLES", "REMOTE_SCALARS_OUTHANDLES"),
        *("RKNPU_GET_DRV_VERSION_CODE", "RKNPU_GET_DRV_VERSION_MAJOR"),
        *("RKNPU_GET_DRV_VERSION_MINOR", "RKNPU_GET_DRV_VERSION_PATCHLEVEL"),
    }


def test_drm_numbers() -> None:
    assert drm.DRM_IO(0x1E) == 0x641E
    assert drm.DRM_IOR(0x02, drm.drm_auth) == 0x80046402
    assert drm.DRM_IOW(0x09, drm.drm_gem_close) == 0x40086409
    assert drm.DRM_IOWR(0x00, drm.drm_version) == 0xC0406400


@pytest.mark.parametrize(
    ("operation", "fields"),
    [
        ("alloc", ["mem_size", "page_size"]),
        ("free", ["handle"]),
        ("map_device", ["hint_addr", "handle"]),
        ("map_host", ["host_virt_addr", "hint_addr", "mem_size"]),
        ("map_block", ["block_addr"]),
        ("unmap", ["device_virt_addr"]),
        ("export_dmabuf_fd", ["addr", "mem_size", "offset"]),
    ],
)
def test_the_operations_of_gaudis_memory(operation: str, fields: list[str]) -> None:
    argument = getattr(habanalabs.hl_mem_in(), operation)
    found = layout(type(argument)).fields
    assert [(f.name, f.offset, f.type) for f in found] == [
        (name, 8 * index, "u64") for index, name in enumerate(fields)
    ]


def test_mainline_has_its_own_scalars() -> None:
    assert fastrpc.REMOTE_SCALARS_MAKE is REMOTE_SCALARS_MAKE
    assert "REMOTE_SCALARS_MAKE" in fastrpc.for_kernel((6, 12))
