# SPDX-License-Identifier: MIT
"""``npukit abi``: what it prints and the status it leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from npukit.cli.abi import abi

HEADER = """
#include <linux/types.h>
struct udmabuf_create { __u32 memfd; __u32 flags; __u64 offset; __u64 size; };
#define UDMABUF_CREATE _IOW('u', 0x42, struct udmabuf_create)
"""


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(abi, [str(argument) for argument in arguments])


@pytest.fixture
def headers(tmp_path: Path) -> Path:
    (tmp_path / "linux").mkdir()
    (tmp_path / "linux/udmabuf.h").write_text(HEADER)
    return tmp_path


def test_check_prints_a_table_and_leaves_0(headers: Path) -> None:
    result = run("check", "--headers", headers, "udmabuf", "rocket")
    assert result.exit_code == 0
    words = result.output.split()
    assert "agreed" in words
    assert "drm/rocket_accel.h" in words


def test_check_leaves_2_when_the_source_tells_nothing(headers: Path) -> None:
    result = run("check", "--headers", headers, "rocket")
    assert result.exit_code == 2
    assert "no drm/rocket_accel.h there" in " ".join(result.output.split())


def test_check_leaves_1_on_a_difference(headers: Path) -> None:
    (headers / "linux/udmabuf.h").write_text(HEADER.replace("0x42", "0x44"))
    result = run("check", "--headers", headers, "udmabuf")
    assert result.exit_code == 1
    assert "UDMABUF_CREATE: value is 0x40187544, npukit says 0x40187542" in " ".join(
        result.output.split()
    )
    (row,) = json.loads(run("check", "--headers", headers, "--json", "udmabuf").output)
    assert row["verdict"] == "differs"
    assert row["differences"] == [
        {
            "subject": "UDMABUF_CREATE",
            "what": "value",
            "npukit": "0x40187542",
            "kernel": "0x40187544",
        }
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "--kernel", "/nowhere"], "no such file"),
        (["check", "--headers", "/nowhere"], "no such directory"),
        (["check", "--headers", "/usr", "--kernel", "/usr"], "--headers goes with neither"),
        (["check", "toaster"], "no interface 'toaster'"),
        (["show", "toaster"], "'toaster' is not one of"),
        (["show", "rocket", "nothing"], "no structure 'nothing'; there are drm_rocket_create_bo"),
        (["show", "ethosu", "--release", "6.1"], "Linux 6.1 has no ethosu interface"),
        (["diff", "6.12", "9.9"], "no snapshot of Linux 9.9; stored are 6.1, 6.12, 7.3"),
        (["diff", "old", "new"], "'old' is not a kernel version"),
    ],
)
def test_what_is_not_there_leaves_2(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_show_prints_layouts() -> None:
    one = run("show", "drm", "drm_syncobj_handle").output
    assert "point;" in one
    assert "/* size: 24, members: 5 */" in one
    old = run("show", "drm", "drm_syncobj_handle", "--release", "6.12").output
    assert "/* size: 16, members: 4 */" in old
    whole = run("show", "rocket").output
    assert whole.count("};") == 6
    assert "-> struct drm_rocket_job[job_count], job_struct_size bytes each (in)" in whole


def test_diff_lists_changes_by_header() -> None:
    lines = run("diff", "6.12", "7.3").output.splitlines()
    assert lines.index("drm/drm.h") < lines.index("    drm_syncobj_handle: size 16 -> 24")
    rows = json.loads(run("diff", "6.12", "7.3", "--json").output)
    assert {
        "header": "drm/drm.h",
        "subject": "drm_syncobj_handle",
        "what": "size",
        "before": 16,
        "after": 24,
    } in rows
