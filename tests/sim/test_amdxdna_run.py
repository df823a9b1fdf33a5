# SPDX-License-Identifier: MIT
"""A program that knows nothing of the simulator finds an XDNA device and uses it."""

import subprocess
import sys

import pytest
from support import ROOT, skip_if_refused

PROGRAM = """
from npukit.devices.amdxdna import AmdxdnaDevice, BoKind
from npukit.programs.xdna import smoke

with AmdxdnaDevice("/dev/accel/accel0") as device:
    for name, check in smoke.steps(device):
        passed, detail = check(device)
        assert passed, (name, detail)
    slices = [device.alloc(48 << 20, BoKind.DEV) for _ in range(3)]
    assert device.heap_size == 192 << 20
    for buffer in slices:
        buffer.close()
print("all passed")
"""


@pytest.mark.parametrize("door", ["seccomp", "preload"])
def test_an_unmodified_program_runs_kernels(door: str) -> None:
    options = ["--door", door, "--device", "amdxdna"]
    command = [sys.executable, "-m", "npukit", "sim", "run", *options, "--"]
    result = subprocess.run(
        [*command, sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    skip_if_refused(result)
    assert (result.returncode, result.stdout) == (0, "all passed\n"), result.stderr
