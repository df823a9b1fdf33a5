# SPDX-License-Identifier: MIT
"""How long a tracer holds a program: ``npukit trace`` beside strace, which decodes no structure."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import CFLAGS, ROOT
from .test_sim_run import COUNT, QUICK, Client


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "client"
    subprocess.run(["gcc", *CFLAGS, ROOT / "bench/trace_client.c", "-o", path], check=True)
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A /sys in which the machine's /dev/null is a rocket NPU."""
    root = tmp_path_factory.mktemp("root")
    (root / "drivers/rocket").mkdir(parents=True)
    entry = root / "sys/dev/char/1:3"
    (entry / "device").mkdir(parents=True)
    (entry / "device/driver").symlink_to(root / "drivers/rocket")
    (entry / "uevent").write_text("DEVNAME=accel/accel0\n")
    return root


@pytest.fixture
def client(program, root, tmp_path, request) -> Iterator[Client]:
    file = tmp_path / "trace"
    strace = ["strace", "--seccomp-bpf", "-f", "-e", "trace=ioctl", "-o", file]
    ours = [
        sys.executable,
        "-m",
        "npukit",
        "trace",
        "--root",
        root,
        "--format",
        "jsonl",
        "-o",
        file,
    ]
    if request.param == "strace" and shutil.which("strace") is None:
        pytest.skip("no strace to compare with")
    client = Client(
        *{"native": [], "strace": strace, "npukit": [*ours, "--"]}[request.param], program
    )
    # Two kinds of line, so that the driver is known before time is taken.
    client.work("p")
    client.work("i")
    yield client
    client.close()


@pytest.mark.benchmark(group="traced ioctl of 24 bytes in and out")
class TestTraced:
    @pytest.mark.parametrize("client", ["strace"], indirect=True)
    def test_baseline(self, benchmark, client):
        benchmark.extra_info.update(ops=COUNT, label="baseline: strace --seccomp-bpf")
        benchmark(client.work, "i")

    @pytest.mark.parametrize("client", ["npukit"], indirect=True)
    def test_npukit(self, benchmark, client):
        benchmark.extra_info.update(ops=COUNT, label="npukit trace", limit_ratio=1.5)
        benchmark(client.work, "i")


@pytest.mark.benchmark(group="system call of a traced program that is not traced")
class TestOther:
    @pytest.mark.parametrize("client", ["native"], indirect=True)
    def test_baseline(self, benchmark, client):
        benchmark.extra_info.update(ops=QUICK, label="baseline: no tracer")
        benchmark(client.work, "p", QUICK)

    @pytest.mark.parametrize("client", ["npukit"], indirect=True)
    def test_npukit(self, benchmark, client):
        benchmark.extra_info.update(ops=QUICK, label="npukit trace", limit_extra_ns=50)
        benchmark(client.work, "p", QUICK)
