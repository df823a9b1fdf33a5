# SPDX-License-Identifier: MIT
"""One ioctl of another process, answered by a supervisor: what does the way there and back cost?"""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from .conftest import CFLAGS, ROOT

COUNT = 2000
QUICK = 100_000
"""Of calls that nobody answers: what it takes to ask for them must not be felt."""
RUN = [sys.executable, "-m", "npukit", "sim", "run", "--device", "rknpu"]


class Client:
    """A program that makes so many ioctls when it is told to."""

    def __init__(self, *command: object) -> None:
        self.process = subprocess.Popen(
            [str(part) for part in command],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def work(self, kind: str, count: int = COUNT) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{kind}{count}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(30) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("seccomp")
    sources = {
        "client": [ROOT / "bench/seccomp_client.c"],
        "bare": [ROOT / "bench/seccomp_bare.c", ROOT / "csrc/seccomp.c"],
    }
    for name, files in sources.items():
        command = ["gcc", *CFLAGS, f"-I{ROOT / 'csrc'}", *map(str, files), "-o", folder / name]
        subprocess.run(command, check=True)
    return {name: str(folder / name) for name in sources}


@pytest.fixture
def client(programs, request) -> Iterator[Client]:
    commands = {
        "native": [programs["client"]],
        "allowed": [programs["client"], "-a"],
        "bare": [programs["bare"], programs["client"], "/dev/null"],
        "finding": [programs["bare"], "-f", programs["client"], "/dev/null"],
        "empty": [sys.executable, "-m", "bench.empty_door", programs["client"], "/dev/empty"],
        "rknpu": [*RUN, "--", programs["client"], "/dev/dri/renderD129"],
        "preload": [*RUN, "--door", "preload", "--", programs["client"], "/dev/dri/renderD129"],
    }
    client = Client(*commands[request.param])
    client.work("u")
    yield client
    client.close()


@pytest.mark.benchmark(group="ioctl through the seccomp door, 24 bytes in and out")
class TestTrapped:
    @pytest.mark.parametrize("client", ["bare"], indirect=True)
    def test_baseline(self, benchmark, client):
        benchmark.extra_info.update(ops=COUNT, label="baseline: bare C supervisor")
        benchmark(client.work, "e")

    @pytest.mark.parametrize("client", ["finding"], indirect=True)
    def test_finding(self, benchmark, client):
        benchmark.extra_info.update(ops=COUNT, label="one in C that finds the open file")
        benchmark(client.work, "e")

    @pytest.mark.parametrize("client", ["empty"], indirect=True)
    def test_empty(self, benchmark, client):
        benchmark.extra_info.update(ops=COUNT, label="the door, empty handler", limit_ratio=1.6)
        benchmark(client.work, "e")

    @pytest.mark.parametrize("client", ["rknpu"], indirect=True)
    def test_rknpu(self, benchmark, client):
        benchmark.extra_info.update(ops=COUNT, label="the door, rknpu ACTION in Python (16 us)")
        benchmark(client.work, "a")

    @pytest.mark.parametrize("client", ["preload"], indirect=True)
    def test_preload(self, benchmark, client):
        benchmark.extra_info.update(ops=COUNT, label="the preload door, rknpu ACTION in Python")
        benchmark(client.work, "a")


@pytest.mark.benchmark(group="ioctl that the seccomp door lets pass")
class TestUntrapped:
    @pytest.mark.parametrize("client", ["native"], indirect=True)
    def test_baseline(self, benchmark, client):
        benchmark.extra_info.update(ops=QUICK, label="baseline: no filter")
        benchmark(client.work, "u", QUICK)

    @pytest.mark.parametrize("client", ["allowed"], indirect=True)
    def test_allowed(self, benchmark, client):
        benchmark.extra_info.update(ops=QUICK, label="with the least filter there is")
        benchmark(client.work, "u", QUICK)

    @pytest.mark.parametrize("client", ["rknpu"], indirect=True)
    def test_filtered(self, benchmark, client):
        benchmark.extra_info.update(ops=QUICK, label="with the filter", limit_extra_ns=50)
        benchmark(client.work, "u", QUICK)

    @pytest.mark.parametrize("client", ["preload"], indirect=True)
    def test_preloaded(self, benchmark, client):
        benchmark.extra_info.update(ops=QUICK, label="with the preloaded library")
        benchmark(client.work, "u", QUICK)
