# SPDX-License-Identifier: MIT
"""What `import npukit` costs a program beside `import numpy`, each in a fresh interpreter."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.benchmark(group="import, whole process", min_rounds=5, warmup=False)


def start(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


def test_baseline(benchmark):
    benchmark.extra_info.update(label="baseline: import numpy")
    benchmark(start, "import numpy")


def test_npukit(benchmark):
    benchmark.extra_info.update(label="import numpy, npukit", limit_extra_ns=60e6)
    benchmark(start, "import numpy, npukit")


def test_ready_to_multiply(benchmark):
    """Everything that a first matmul on a real device needs."""
    benchmark.extra_info.update(label="import numpy, npukit, devices, matmul")
    benchmark(start, "import numpy, npukit.devices, npukit.programs.rk3588.matmul")
