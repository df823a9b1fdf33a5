# SPDX-License-Identifier: MIT
"""The package's face on a simulated machine of another process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import npukit
from npukit.ioctl import NpuError
from npukit.sim import SimKernel, serve

CLIENT = """
import sys
import numpy as np
import npukit
from npukit.programs.rk3588.matmul import matmul

a = np.arange(64, dtype=np.int8).reshape(2, 32)
with npukit.open(sys.argv[1]) as device:
    assert (matmul(device, a, a.T) == a.astype(np.int32) @ a.T.astype(np.int32)).all()
"""


def test_a_device_of_another_process_by_name(tmp_path: Path) -> None:
    socket = tmp_path / "machine"
    kernel = SimKernel(["rocket", "rknpu"])
    with serve(kernel, str(socket)):
        for name in ("rocket", "rknpu"):
            subprocess.run(
                [sys.executable, "-W", "error", "-c", CLIENT, f"sim:{name}@{socket}"],
                check=True,
                timeout=60,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        with pytest.raises(ValueError, match="decides"):
            npukit.open(f"sim:rocket@{socket}", strict=True)
    with pytest.raises((NpuError, OSError)):
        npukit.open(f"sim:rocket@{socket}")
