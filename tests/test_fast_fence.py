# SPDX-License-Identifier: MIT
"""npukit._fast.fence is an instruction, and on AArch64 one that reaches beyond the CPU cores."""

import platform
import re
import shutil
import subprocess

import pytest
from support import ROOT

from npukit import _fast

CODE = """#include "fence.h"
int order(int *a, int *b);
int order(int *a, int *b) { *a = 1; npukit_fence(); return *b; }
"""
BARRIER = {"x86_64": r"mfence|lock\s+or[lq]", "aarch64": r"dmb\s+sy"}


@pytest.mark.parametrize("machine", BARRIER)
def test_the_barrier_is_compiled(machine: str) -> None:
    native = machine == platform.machine()
    gcc = shutil.which("gcc" if native else f"{machine}-linux-gnu-gcc")
    if gcc is None:
        pytest.skip(f"no compiler for {machine}")
    done = subprocess.run(
        [gcc, "-std=gnu11", "-O3", "-Wall", "-Werror", "-Icsrc", "-S", "-xc", "-", "-o", "-"],
        cwd=ROOT, input=CODE, capture_output=True, text=True, check=True,
    )  # fmt: skip
    code = re.search(r"^order:$(.*?)\bret\b", done.stdout, re.M | re.S)
    assert code is not None
    # The store, the barrier, then the load: nothing has moved across.
    before, barrier, after = re.split(f"({BARRIER[machine]})", code[1])
    assert barrier
    assert re.search(r"\$1,|str\s", before)
    assert re.search(r"mov[lq]\s+\(%rsi\)|ldr\s", after)


def test_it_can_be_called() -> None:
    assert _fast.fence() is None
