# SPDX-License-Identifier: MIT
"""The header witness: what the C compiler makes of headers written here."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from npukit.abi import rocket
from npukit.verify import FormatError, Verdict, check, compare, of_module
from npukit.verify.header import Compiler, interfaces

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler"
)

ROCKET = """
#include <linux/types.h>
#include <linux/ioctl.h>
#define DRM_ROCKET_CREATE_BO 0x00
#define DRM_ROCKET_SUBMIT 0x01
#define DRM_IOCTL_ROCKET_CREATE_BO _IOWR('d', 0x40, struct drm_rocket_create_bo)
struct drm_rocket_create_bo { __u32 size; __u32 handle; __u64 dma_address; __u64 offset; };
struct drm_rocket_task { __u32 regcmd; __u32 regcmd_count; };
"""


def headers(root: Path, text: str, name: str = "drm/rocket_accel.h") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return root


def test_names_that_the_header_lacks_are_left_out(tmp_path: Path) -> None:
    ours = of_module(vars(rocket))
    compiler = Compiler(headers(tmp_path, ROCKET))
    said = interfaces(compiler, {"drm/rocket_accel.h": ours})["drm/rocket_accel.h"]
    assert not isinstance(said, str)
    compared = compare(ours, said)
    assert compared.differences == []
    assert set(said.layouts) == {"drm_rocket_create_bo", "drm_rocket_task"}
    assert set(said.constants) == {
        "DRM_ROCKET_CREATE_BO",
        "DRM_ROCKET_SUBMIT",
        "DRM_IOCTL_ROCKET_CREATE_BO",
    }


def test_differences_are_told(tmp_path: Path) -> None:
    text = ROCKET.replace("__u32 size; __u32 handle;", "__u64 size; __u32 handle;")
    text = text.replace("SUBMIT 0x01", "SUBMIT 0x07")
    (result,) = check(["rocket"], headers=headers(tmp_path, text))
    assert result.verdict is Verdict.DIFFERS
    assert [str(difference) for difference in result.differences] == [
        "drm_rocket_create_bo: size is 32, npukit says 24",
        "drm_rocket_create_bo.size: element size is 8, npukit says 4",
        "drm_rocket_create_bo.handle: offset is 8, npukit says 4",
        "drm_rocket_create_bo.dma_address: offset is 16, npukit says 8",
        "drm_rocket_create_bo.offset: offset is 24, npukit says 16",
        "DRM_ROCKET_SUBMIT: value is 0x7, npukit says 0x1",
        "DRM_IOCTL_ROCKET_CREATE_BO: value is 0xc0206440, npukit says 0xc0186440",
    ]


def test_values_of_every_width(tmp_path: Path) -> None:
    text = (
        "#define BIG 0xC0186440u\n#define WIDE 0x123456789abcdef0ull\n#define ALL (~0ul)\n"
        '#define MINUS (-5)\n#define WORD "text"\n#define NOTHING\n#define CALL(x) x\n'
    )
    compiler = Compiler(headers(tmp_path, text, "toy.h"))
    names = ["BIG", "WIDE", "ALL", "MINUS", "WORD", "NOTHING", "CALL", "MISSING", "BIG"]
    assert compiler.evaluate(["toy.h"], names) == [
        *(0xC0186440, 0x123456789ABCDEF0, -1, -5, None, None, None, None, 0xC0186440)
    ]


def test_arrays_flexible_and_of_two_dimensions(tmp_path: Path) -> None:
    text = ROCKET + "struct drm_rocket_submit { __u32 grid[4][8]; __u16 tail[]; };\n"
    from ctypes import c_uint16, c_uint32

    from npukit.ioctl import Struct

    class drm_rocket_submit(Struct):
        _size_ = 128
        _fields_ = [("grid", c_uint32 * 8 * 4), ("tail", c_uint16 * 0)]

    ours = of_module({"drm_rocket_submit": drm_rocket_submit})
    compiler = Compiler(headers(tmp_path, text))
    said = interfaces(compiler, {"drm/rocket_accel.h": ours})["drm/rocket_accel.h"]
    assert not isinstance(said, str)
    flat = said.layouts["drm_rocket_submit"][0].flat()
    assert {name: (f.offset, f.size, f.dims) for name, f in flat.items()} == {
        "grid": (0, 4, (4, 8)),
        "tail": (128, 2, (0,)),
    }


def test_a_header_that_does_not_compile_silences_only_itself(tmp_path: Path) -> None:
    headers(tmp_path, ROCKET)
    headers(tmp_path, "#include <nowhere/to_be_found.h>\n", "linux/udmabuf.h")
    results = check(["rocket", "udmabuf", "ethosu"], headers=tmp_path)
    assert [result.verdict for result in results] == [
        Verdict.AGREED,
        Verdict.UNCHECKED,
        Verdict.UNCHECKED,
    ]
    assert "does not compile" in results[1].reason
    assert "nowhere/to_be_found.h" in results[1].reason
    assert results[2].reason == "no drm/ethosu_accel.h there"


def test_the_version_of_the_headers_chooses_the_view(tmp_path: Path) -> None:
    headers(tmp_path, ROCKET)
    headers(tmp_path, "#define LINUX_VERSION_CODE 396291\n", "linux/version.h")
    assert Compiler(tmp_path).version() == (6, 12)
    headers(tmp_path, "#define NO_CODE 1\n", "linux/version.h")
    assert Compiler(tmp_path).version() is None


def test_vendor_headers_may_lie_anywhere_and_be_raw(tmp_path: Path) -> None:
    text = "#include <linux/types.h>\nstruct rknpu_action { __u32 __user flags; __u32 value; };\n"
    (result,) = check(["rknpu"], headers=headers(tmp_path, text, "rknpu_ioctl.h"))
    assert (result.verdict, result.facts) == (Verdict.AGREED, 3)


def test_installed_headers_are_found() -> None:
    compiler = Compiler()
    assert compiler.source == "installed headers"
    assert compiler.present(["linux/types.h", "linux/nowhere.h"]) == {"linux/types.h"}
    version = compiler.version()
    assert version is not None
    assert version >= (2, 6)


def test_a_directory_that_is_not_there() -> None:
    with pytest.raises(FormatError, match="no such directory"):
        check(["rocket"], headers=Path("/nowhere/at/all"))


def test_a_compiler_that_is_not_there() -> None:
    with pytest.raises(FormatError, match="no C compiler"):
        Compiler(command="/nowhere/cc")
