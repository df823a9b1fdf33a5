# SPDX-License-Identifier: MIT
"""XDNA containers, instruction streams and launches.

Bounds that are times, not ratios, are given as times beyond a baseline that does nothing: 5 ms
for a container of 100 MiB, 200 ns a word for a disassembly, 15 us for a launch beyond the requests
that it makes.
"""

import ctypes

import numpy as np
import pytest

from npukit.abi import amdxdna as abi
from npukit.abi import drm
from npukit.devices.amdxdna import AmdxdnaDevice
from npukit.programs.xdna import designs, txn, xclbin
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


@pytest.fixture(scope="module")
def kernel():
    asm = txn.Assembler()
    asm.noop()
    example = designs.memcpy(4096)
    simulated = SimKernel(["amdxdna"])
    with (
        AmdxdnaDevice(simulated.path("amdxdna"), simulated) as device,
        NpuProgram.load(device, example.xclbin) as program,
        program.kernel(asm.finish(), example.contract) as kernel,
    ):
        buffers = kernel.alloc_all()
        kernel(*buffers)
        yield kernel, buffers


@pytest.mark.benchmark(group="kernel launch")
class TestLaunch:
    """A kernel of one operation, on the simulated NPU; the baseline makes the same requests."""

    def test_baseline(self, benchmark, kernel):
        kernel, buffers = kernel
        program = kernel.program
        device, context = program.device, program._context
        command = program._commands[0]
        handles = np.array([kernel._code.handle, *(b.handle for b in buffers)], np.uint32)
        submission = abi.amdxdna_drm_exec_cmd(
            hwctx=context.handle,
            cmd_handles=command.buffer.handle,
            args=handles.ctypes.data,
            cmd_count=1,
            arg_count=len(handles),
        )
        syncobj, point = ctypes.c_uint32(context.syncobj), ctypes.c_uint64()
        waiting = drm.drm_syncobj_timeline_wait(
            handles=ctypes.addressof(syncobj),
            points=ctypes.addressof(point),
            timeout_nsec=(1 << 63) - 1,
            count_handles=1,
            flags=2,
        )
        ioctl, fd = device.kernel.ioctl, device.fileno()
        packet = bytes(command.memory[:64])

        def launch():
            command.memory[:64] = packet
            ioctl(fd, abi.DRM_IOCTL_AMDXDNA_EXEC_CMD, submission)
            point.value = submission.seq
            ioctl(fd, drm.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT, waiting)

        benchmark.extra_info.update(label="baseline: the two requests")
        benchmark(launch)

    def test_launch(self, benchmark, kernel):
        kernel, buffers = kernel
        benchmark.extra_info.update(label="kernel(*buffers)", limit_extra_ns=15_000)
        benchmark(kernel, *buffers)
