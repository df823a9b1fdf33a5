# SPDX-License-Identifier: MIT
"""Fixtures of all benchmarks; README.md tells how a benchmark is written."""

import ctypes
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# As setup.py compiles the extensions, so that no side of a comparison has better flags.
CFLAGS = ["-std=gnu11", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]


@pytest.fixture(scope="session")
def c_library(tmp_path_factory) -> ctypes.CDLL:
    """bench/baseline.c and the C behind npukit._fast, called through ctypes (without the GIL).

    Pass sizes and addresses as ctypes.c_size_t and c_void_p; a call costs a microsecond, so let
    a function of it run for a hundred or more.
    """
    library = tmp_path_factory.mktemp("bench") / "baseline.so"
    sources = [ROOT / "bench/baseline.c", ROOT / "csrc/copy.c", ROOT / "csrc/cpu.c"]
    subprocess.run(
        ["gcc", *CFLAGS, "-shared", "-fPIC", f"-I{ROOT / 'csrc'}", "-pthread",
         *map(str, sources), "-o", str(library)],
        check=True,
    )  # fmt: skip
    return ctypes.CDLL(str(library))
