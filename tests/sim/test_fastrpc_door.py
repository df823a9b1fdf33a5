# SPDX-License-Identifier: MIT
"""A C program that knows nothing of npukit uses the simulated CDSP through both doors."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, skip_if_refused

LIMIT = 60
"""Seconds after which a run is stopped as hung; each takes a few at most."""


def door(*command: str | Path, kind: str = "seccomp") -> "subprocess.CompletedProcess[str]":
    options = ["--door", kind, "--device", "fastrpc-cdsp"]
    arguments = ["sim", "run", *options, "--", *map(str, command)]
    return subprocess.run(
        [sys.executable, "-m", "npukit", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


@pytest.fixture(scope="module", autouse=True)
def possible() -> None:
    """Skips where the machine has no user notification or forbids namespaces."""
    skip_if_refused(door("true"))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to compile the client")
    source = ROOT / "tests/sim/fastrpc_client.c"
    header = (
        "#include <misc/fastrpc.h>\n#include <sys/ioctl.h>\nlong request = FASTRPC_IOCTL_MEM_MAP;"
    )
    probe = subprocess.run(
        ["gcc", "-fsyntax-only", "-xc", "-"], input=header, text=True, capture_output=True,
        check=False,
    )  # fmt: skip
    if probe.returncode:
        pytest.skip("the kernel's header misc/fastrpc.h (linux-libc-dev) is missing or too old")
    program = tmp_path_factory.mktemp("client") / "fastrpc_client"
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *flags, source, "-o", program], check=True)
    return program


@pytest.mark.parametrize("kind", ["seccomp", "preload"])
def test_every_request_and_result(client: Path, kind: str) -> None:
    result = door(client, kind=kind)
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr


@pytest.mark.parametrize("kind", ["seccomp", "preload"])
def test_npukit_itself_through_the_door(kind: str) -> None:
    code = (
        "from npukit.devices.fastrpc import UNVERIFIED, FastRpcDevice, Host\n"
        "from npukit.sim.cdsp import SHELL\n"
        "from npukit.programs.hexagon import idl\n"
        "with FastRpcDevice.open() as device:\n"
        f"    device.start(SHELL, verify=UNVERIFIED, host=Host([{str(ROOT / 'npukit/data')!r}]))\n"
        "    with idl.load('echo.idl').open(device) as echo, device.alloc(8192) as buffer:\n"
        "        print(echo.checksum('README.md')[0] > 100, echo.echo(b'abc', 3))\n"
        "        echo.transform_mapped(buffer.map_to_dsp(), 8192, 5)\n"
        "        print(set(buffer.array().tolist()))\n"
    )
    result = door(sys.executable, "-W", "error", "-c", code, kind=kind)
    assert (result.returncode, result.stdout) == (0, "True b'abc'\n{5}\n"), result.stderr
