# SPDX-License-Identifier: MIT
"""FastRPC: what a call costs beside a C program's, and a shared buffer beside plain memory."""

import contextlib
import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from npukit.abi import fastrpc as abi
from npukit.devices.fastrpc import UNVERIFIED, DmaBuffer, FastRpcDevice
from npukit.programs.hexagon import idl
from npukit.sim import SimKernel
from npukit.sim.cdsp import SHELL

ROOT = Path(__file__).resolve().parent.parent
CALLS = 100
BYTES = 16 << 20
ROUNDS = 12
"""A large cache takes some rounds to hold such buffers; the measurement begins when it does."""
HEAD, DATA = b"\x10\0\0\0\x10\0\0\0", b"0123456789abcdef"


@contextlib.contextmanager
def client(*command):
    """A program in the seccomp door, which makes as many calls as it is told to."""
    door = [sys.executable, "-m", "npukit", "sim", "run", "--device", "fastrpc-cdsp", "--"]
    process = subprocess.Popen(
        [*door, *map(str, command)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    try:
        if process.stdout.readline() != "ready\n":
            pytest.skip("programs cannot be run in the door on this machine")

        def calls():
            process.stdin.write(f"{CALLS}\n")
            assert process.stdout.readline() == "done\n"

        yield calls
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


@pytest.mark.benchmark(group="FastRPC, a call of 2 in buffers and 1 out, in the door")
class TestDoor:
    def test_baseline(self, benchmark, tmp_path):
        source, program = ROOT / "tests/sim/fastrpc_client.c", tmp_path / "client"
        subprocess.run(["gcc", "-std=gnu11", "-O2", source, "-o", program], check=True)
        benchmark.extra_info.update(ops=CALLS, label="baseline: C client")
        with client(program, "loop") as calls:
            benchmark(calls)

    @pytest.mark.parametrize(("way", "limit"), [("invoke", 3.0), ("stub", 4.0)])
    def test_ours(self, benchmark, way, limit):
        benchmark.extra_info.update(ops=CALLS, label=f"npukit, {way}", limit_ratio=limit)
        with client(sys.executable, ROOT / "bench/fastrpc_loop.py", way) as calls:
            benchmark(calls)


@pytest.fixture
def session():
    kernel = SimKernel(["fastrpc-cdsp", "dma_heap"])
    with FastRpcDevice.open(kernel=kernel) as device:
        device.start(SHELL, verify=UNVERIFIED)
        with idl.load("echo.idl").open(device) as echo:
            yield device, echo


def repeat(call):
    for _ in range(CALLS):
        call()


@pytest.mark.benchmark(group="FastRPC, the same call in one process")
class TestInProcess:
    def test_baseline(self, benchmark, session):
        device, echo = session
        head, data, out = (ctypes.create_string_buffer(b, len(b)) for b in (HEAD, DATA, DATA))
        table = (abi.fastrpc_invoke_args * 3)()
        for row, buffer in zip(table, (head, data, out), strict=True):
            row.ptr, row.length, row.fd = ctypes.addressof(buffer), len(buffer), -1
        word = abi.REMOTE_SCALARS_MAKE(2, 2, 1)
        call = abi.fastrpc_invoke(echo.handle, word, ctypes.addressof(table))
        kernel, fd = device.kernel, device.fileno()
        benchmark.extra_info.update(ops=CALLS, label="baseline: the request alone")
        benchmark(repeat, lambda: kernel.ioctl(fd, abi.FASTRPC_IOCTL_INVOKE, call))

    def test_invoke(self, benchmark, session):
        device, echo = session
        benchmark.extra_info.update(ops=CALLS, label="npukit, invoke")
        benchmark(repeat, lambda: device.invoke(echo.handle, 2, [HEAD, DATA], [16]))

    def test_stub(self, benchmark, session):
        _device, echo = session
        benchmark.extra_info.update(ops=CALLS, label="npukit, stub")
        benchmark(repeat, lambda: echo.echo(DATA, 16))


@pytest.fixture(params=["alloc", "heap"], scope="class")
def buffer(request):
    kernel = SimKernel(["fastrpc-cdsp", "dma_heap"])
    with FastRpcDevice.open(kernel=kernel) as device:
        own = request.param == "alloc"
        with device.alloc(BYTES) if own else DmaBuffer.from_heap(BYTES, kernel) as made:
            yield made


class TestBuffer:
    """What the turns cost: both sides copy by memcpy, and to the same pages. (_fast.copy may do
    better; it has test_fast_copy.)"""

    @pytest.fixture(autouse=True)
    def arrays(self, benchmark, buffer, request):
        kind = request.node.callspec.params["buffer"]
        benchmark.group = f"FastRPC, write and read 16 MiB: {kind}"
        self.source, self.target = (np.ones(BYTES, np.uint8) for _ in range(2))

    def copy(self, target, source):
        ctypes.memmove(target.ctypes.data, source.ctypes.data, BYTES)

    def test_baseline(self, benchmark, buffer):
        array = buffer.array()

        def both():
            self.copy(array, self.source)
            self.copy(self.target, array)

        benchmark.extra_info.update(label="baseline: memcpy, to and from the same pages")
        benchmark.pedantic(both, rounds=ROUNDS, warmup_rounds=ROUNDS)

    def test_ours(self, benchmark, buffer):
        def both():
            with buffer.write() as array:
                self.copy(array, self.source)
            with buffer.read() as array:
                self.copy(self.target, array)

        benchmark.extra_info.update(label="write() and read()", limit_ratio=1 / 0.95)
        benchmark.pedantic(both, rounds=ROUNDS, warmup_rounds=ROUNDS)

    def test_plain_memory(self, benchmark, buffer):
        middle = np.ones(BYTES, np.uint8)

        def both():
            self.copy(middle, self.source)
            self.copy(self.target, middle)

        benchmark.extra_info.update(label="memcpy between plain arrays, for comparison")
        benchmark.pedantic(both, rounds=ROUNDS, warmup_rounds=ROUNDS)
