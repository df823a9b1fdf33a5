# SPDX-License-Identifier: MIT
"""XDNA containers, instruction streams and launches.

Bounds that are times, not ratios, are given as times beyond a baseline that does nothing: 5 ms
for a container of 100 MiB, 200 ns a word for a disassembly, 15 us for a launch beyond the requests
that it makes.
"""

import pytest

from npukit.abi import amdxdna as abi
from npukit.abi import drm
from npukit.devices.amdxdna import AmdxdnaDevice
from npukit.programs.xdna import designs, ert, txn, xclbin
from npukit.programs.xdna.program import NpuProgram
from npukit.programs.xdna.registers import BufferDescriptor
from npukit.sim import SimKernel

PDIS = 64
PDI_BYTES = (100 << 20) // PDIS


def nothing():
    pass


@pytest.fixture(scope="module")
def container():
    kernels = [
        xclbin.NpuKernel(f"K{i}", bytes([i]) * PDI_BYTES, 3, dpu_kernel_id=i + 1)
        for i in range(PDIS)
    ]
    return xclbin.build_npu(kernels, column_width=1)


@pytest.mark.benchmark(group="xclbin of 100 MiB, 64 PDIs")
class TestContainer:
    def test_baseline(self, benchmark):
        benchmark.extra_info.update(label="baseline: nothing")
        benchmark(nothing)

    def test_frame_and_partition(self, benchmark, container):
        def parse():
            return xclbin.Xclbin(container).partition

        benchmark.extra_info.update(label="sections and PDIs", limit_extra_ns=5e6)
        partition = benchmark(parse)
        # No copy: the images are views of the file.
        assert partition.pdis[0].image.obj is container

    def test_compute_units(self, benchmark, container):
        def parse():
            return xclbin.Xclbin(container).compute_units

        benchmark.extra_info.update(label="all, compute units too", limit_extra_ns=5e6)
        assert len(benchmark(parse)) == PDIS


def stream():
    """As compilers write them: a descriptor, its address, a start and a wait, over and over."""
    asm = txn.Assembler()
    for index in range(20_000):
        column, bd = index % 8, index % 16
        asm.buffer_descriptor(column, 0, bd, BufferDescriptor(1 + index % 4096))
        asm.patch(column, 0, bd, index % 3, 4 * index)
        asm.start(column, 0, 1, 0, bd, token=True)
        asm.wait(1, column)
    return asm.finish()


@pytest.fixture(scope="module")
def data():
    return stream().to_bytes()


@pytest.mark.benchmark(group="instruction stream, a word")
class TestStream:
    def test_baseline(self, benchmark):
        benchmark.extra_info.update(label="baseline: nothing")
        benchmark(nothing)

    def test_read(self, benchmark, data):
        benchmark.extra_info.update(label="read", ops=len(data) // 4)
        benchmark(txn.read, data)

    def test_disassemble(self, benchmark, data):
        read = txn.read(data)
        benchmark.extra_info.update(label="disassemble", ops=len(data) // 4, limit_extra_ns=200)
        benchmark(txn.disassemble, read)

    def test_assemble(self, benchmark, data):
        text = txn.disassemble(txn.read(data))
        benchmark.extra_info.update(label="assemble", ops=len(data) // 4)
        benchmark(txn.assemble, text)


class Answering:
    """A kernel that has done every command at once, so that what is measured is ours alone."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.packet = None

    def __getattr__(self, name):
        return getattr(self.kernel, name)

    def ioctl(self, fd, request, arg=None):
        if self.packet is None:
            return self.kernel.ioctl(fd, request, arg)
        self.packet[0] = self.packet[0] & 0xF0 | ert.State.COMPLETED
        return 0, 0


@pytest.fixture(scope="module")
def launch():
    """(kernel, its buffers), with one packet ready; the requests of a launch are answered."""
    example = designs.memcpy(4096)
    simulated = SimKernel(["amdxdna"])
    answering = Answering(simulated)
    with (
        AmdxdnaDevice(simulated.path("amdxdna"), answering) as device,
        NpuProgram.load(device, example.xclbin) as program,
        program.kernel(example.instructions, example.contract) as kernel,
    ):
        buffers = kernel.alloc_all()
        kernel(*buffers)
        answering.packet = program._resident._commands[0].memory
        yield kernel, buffers
        answering.packet = None
        for buffer in buffers:
            buffer.close()


@pytest.mark.benchmark(group="kernel launch, two buffers")
class TestLaunch:
    def test_baseline(self, benchmark, launch):
        kernel, _ = launch
        device, command = kernel.program.device, kernel.program._resident._commands[0]
        ioctl, fd, packet = device.kernel.ioctl, device.fileno(), bytes(command.memory[:64])
        submission, waiting = abi.amdxdna_drm_exec_cmd(), drm.drm_syncobj_timeline_wait()

        def requests():
            command.memory[:64] = packet
            ioctl(fd, abi.DRM_IOCTL_AMDXDNA_EXEC_CMD, submission)
            ioctl(fd, drm.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT, waiting)

        benchmark.extra_info.update(label="baseline: the packet and two requests")
        benchmark(requests)

    def test_launch(self, benchmark, launch):
        kernel, buffers = launch
        benchmark.extra_info.update(label="kernel(*buffers)", limit_extra_ns=15_000)
        benchmark(kernel, *buffers)
