# SPDX-License-Identifier: MIT
"""Mutated and random streams on the core under sanitizers; ``make sanitize`` runs many more."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from sim.rk3588_fuzz import write
from support import ROOT

STREAMS = 4000
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that fuzzes, less seed and count."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to compile the fuzzer")
    folder = tmp_path_factory.mktemp("fuzz")
    empty = ["gcc", *SANITIZERS, "-xc", "-", "-o", str(folder / "empty")]
    if subprocess.run(empty, input=b"int main(void) { return 0; }", capture_output=True).returncode:
        pytest.skip("gcc has no sanitizers here")
    core = [path for path in ROOT.glob("csrc/rk3588*.c") if "selftest" not in path.name]
    sources = [ROOT / "tests/sim/rk3588_fuzz.c", ROOT / "csrc/cpu.c", *core]
    program = folder / "rk3588-fuzz"
    flags = ["-std=gnu11", "-O1", "-g", "-ffp-contract=off", *SANITIZERS, f"-I{ROOT / 'csrc'}"]
    subprocess.run(["gcc", *flags, *sources, "-pthread", "-lm", "-o", program], check=True)
    write(str(folder / "corpus"))
    return [str(program), str(folder / "corpus")]


def fuzz(fuzzer: list[str], seed: int, streams: int) -> dict[str, int]:
    done = subprocess.run(
        [*fuzzer, str(seed), str(streams)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {
        name: int(count)
        for name, count in (line.split(": ") for line in done.stdout.split("\n") if line)
    }


def test_an_error_or_a_result(fuzzer: list[str]) -> None:
    ends = fuzz(fuzzer, 1, STREAMS)
    assert sum(ends.values()) == STREAMS
    assert ends.pop("no memory") == 0
    # Neither are all refused at once, nor do mutations miss what they are to hit.
    assert min(ends.values()) > STREAMS // 100
    assert ends["completed"] > STREAMS // 8


def test_a_seed_is_a_run(fuzzer: list[str]) -> None:
    assert fuzz(fuzzer, 2, 300) == fuzz(fuzzer, 2, 300) != fuzz(fuzzer, 3, 300)
