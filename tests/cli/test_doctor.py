# SPDX-License-Identifier: MIT
"""``npukit doctor``: what it prints and the status it leaves."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner
from verify import trees

from npukit.cli.doctor import doctor


def test_problems_come_with_a_fix_that_can_be_copied(tmp_path: Path) -> None:
    trees.plant(tmp_path, trees.rk3588_mainline())
    result = CliRunner().invoke(doctor, ["--root", str(tmp_path)])
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0] == "Radxa ROCK 5B, Linux 7.3.4+deb13-arm64 aarch64"
    assert "Rockchip RK3588 NPU: fdab0000.npu, fdac0000.npu, fdad0000.npu" in lines
    assert "    fix: use a kernel with CONFIG_DRM_ACCEL_ROCKET=m" in lines


def test_json(tmp_path: Path) -> None:
    trees.plant(tmp_path, trees.rk3588_mainline())
    result = CliRunner().invoke(doctor, ["--root", str(tmp_path), "--json"])
    told = json.loads(result.output)
    assert told["npus"][0]["subject"] == "rocket"
    assert told["npus"][0]["problems"][0]["fix"] == "use a kernel with CONFIG_DRM_ACCEL_ROCKET=m"
    assert {found["name"] for found in told["findings"]} >= {"dma-heap", "BTF", "memlock"}


def test_a_machine_with_nothing_leaves_0(tmp_path: Path) -> None:
    trees.plant(tmp_path, trees.nothing())
    result = CliRunner().invoke(doctor, ["--root", str(tmp_path)])
    assert result.exit_code == 0
    assert "no NPU found" in result.output


def test_the_machine_that_runs_the_tests() -> None:
    result = CliRunner().invoke(doctor, [])
    assert result.exit_code in (0, 1)
    assert result.exception is None or isinstance(result.exception, SystemExit)
