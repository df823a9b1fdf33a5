# SPDX-License-Identifier: MIT
"""The tools that make the snapshots and fetch Debian's kernels, without a network."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from support import ROOT

from npukit.verify import Difference, Result, Verdict
from npukit.verify.header import Compiler

HEADER = """
#ifndef TOY_H
#define TOY_H
#include <linux/types.h>
#include <linux/ioctl.h>
#define TOY_NAME "toy"
#define TOY_LIMIT (1 << 12)
#define TOY_ALL (~0ULL)
#define TOY_CALL(x) (x)
#define TOY_SUBMIT _IOW('t', 1, struct toy)
enum toy_mode { TOY_OFF, TOY_ON = 7, TOY_MINUS = -1 };
struct toy_elsewhere;
struct toy {
    __u32 count;
    __s16 pair[2][3];
    union { __u64 whole; struct { __u32 low, high; }; };
    enum toy_mode mode;
    char name[8];
    void *pointer;
    struct { __u8 x; } inner;
    __u32 tail[];
};
#endif
"""


@pytest.fixture(scope="module", autouse=True)
def tools() -> Iterator[None]:
    sys.path.insert(0, str(ROOT / "tools"))
    yield
    sys.path.remove(str(ROOT / "tools"))


def tool(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_everything_of_a_header_and_nothing_else_is_taken(tmp_path: Path) -> None:
    (tmp_path / "linux").mkdir()
    (tmp_path / "linux/toy.h").write_text(HEADER)
    said = tool("make_snapshots").interface(Compiler(tmp_path), "linux/toy.h")
    assert said.constants == {
        "TOY_OFF": 0,
        "TOY_ON": 7,
        "TOY_MINUS": -1,
        "TOY_LIMIT": 4096,
        "TOY_ALL": -1,
        "TOY_SUBMIT": 0x40387401,
    }
    assert set(said.layouts) == {"toy"}
    (layout,) = said.layouts["toy"]
    assert layout.size == 56
    assert {name: (f.type, f.offset, f.size, f.dims) for name, f in layout.flat().items()} == {
        "count": ("u32", 0, 4, ()),
        "pair": ("s16", 4, 2, (2, 3)),
        "whole": ("u64", 16, 8, ()),
        "low": ("u32", 16, 4, ()),
        "high": ("u32", 20, 4, ()),
        "mode": ("enum toy_mode", 24, 4, ()),
        "name": ("char", 28, 1, (8,)),
        "pointer": ("pointer", 40, 8, ()),
        "inner": ("struct", 48, 1, ()),
        "tail": ("u32", 52, 4, (0,)),
    }
    assert layout.flat()["inner"].members[0].name == "x"


def test_a_package_that_is_there_is_not_downloaded(tmp_path: Path) -> None:
    deb = tmp_path / "toy_1.0-1_all.deb"
    deb.touch()
    assert tool("debian").Archive(tmp_path).get("toy", "1.0-1", "arm64", "sid") == deb


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")
def test_only_wanted_files_are_unpacked(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in ("DEBIAN/control", "usr/include/a.h", "usr/share/b", "lib/x.ko.xz"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(name)
    (tree / "DEBIAN/control").write_text(
        "Package: toy\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b>\nDescription: toy\n"
    )
    deb = tmp_path / "toy.deb"
    command = ["dpkg-deb", "-Zxz", "--build", str(tree), str(deb)]
    subprocess.run(command, check=True, capture_output=True)
    debian, kernels = tool("debian"), tool("abi_kernels")
    debian.unpack(deb, tmp_path / "headers", lambda path: "/include/" in path)
    assert [p.name for p in (tmp_path / "headers").rglob("*") if p.is_file()] == ["a.h"]
    wanted = ["vmlinuz", "vmlinuz-6.1.0", "config", "drm.ko.xz", "intel_vpu.ko", "dm-log.ko.xz"]
    assert [kernels._wanted(f"./lib/modules/7/{name}") for name in wanted] == [True] * 5 + [False]


def test_silence_is_a_failure_only_where_something_was_promised() -> None:
    kernels = tool("abi_kernels")
    differing = Difference("drm_rocket_job", "size", 40, 48)
    results = [
        Result("rocket", "btf", "", Verdict.DIFFERS, differences=(differing,)),
        Result("ivpu", "btf", "", Verdict.UNCHECKED, reason="no module"),
        Result("qaic", "btf", "", Verdict.UNCHECKED, reason="no module"),
        Result("ivpu", "snapshot", "", Verdict.UNCHECKED, reason="none"),
        Result("drm", "btf", "", Verdict.AGREED, 104),
    ]
    assert kernels.failures(results, ("ivpu", "drm")) == [
        "rocket (btf): drm_rocket_job: size is 48, npukit says 40",
        "ivpu (btf): no module",
    ]
