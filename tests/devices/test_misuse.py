# SPDX-License-Identifier: MIT
"""What careless or hostile callers do: each must end in the documented way, and harm nobody."""

import asyncio
import ctypes
import errno
import os
import resource
import subprocess
import sys
import time
import warnings
from typing import Any

import numpy as np
import pytest
from raw import CODE, JOB_BYTES, job_image
from support import no_leak

import npukit
from npukit.abi import drm, rocket
from npukit.abi.rknpu import rknpu_task
from npukit.devices import DmaHeap, RknpuDevice, RocketDevice, RocketJob, Udmabuf
from npukit.ioctl import (
    DeviceClosed,
    DeviceLost,
    Fault,
    FaultyKernel,
    NpuError,
    ProgramError,
    WaitTimeout,
)
from npukit.programs.rk3588.matmul import matmul
from npukit.programs.rk3588.program import rknpu_tasks
from npukit.sim import KernelOops, SimKernel

STALE = 0.02
"""Seconds after which the driver takes a job of 6000 ms for stale: it compares microseconds."""

CREATE = rocket.DRM_IOCTL_ROCKET_CREATE_BO


def rknpu(kernel: Any = None) -> RknpuDevice:
    """Unchecked: what is misused here is the driver."""
    device = npukit.open("/dev/dri/card1", kernel or SimKernel(["rknpu"]), check=False)
    assert isinstance(device, RknpuDevice)
    return device


def load(device: RknpuDevice) -> tuple[Any, list[rknpu_task]]:
    buffer = device.alloc(JOB_BYTES)
    image, program = job_image(buffer.dma_address)
    with buffer.access("w") as memory:
        memory[:] = image
    return buffer, list(rknpu_tasks(program, buffer.dma_address + CODE))


def test_a_numpy_integer_is_an_address_like_any_other() -> None:
    with npukit.open("sim:rocket") as device:
        for bad in (np.uint64(5), np.int64(5)):
            assert device.kernel.ioctl(device.fileno(), CREATE, bad) == (-1, errno.EFAULT)


def test_memory_shorter_than_the_request_states_is_refused() -> None:
    with npukit.open("sim:rocket") as device:
        with pytest.raises(TypeError, match="takes 24 bytes; a drm_gem_close has 8"):
            device.call(CREATE, drm.drm_gem_close(handle=4096))
        with pytest.raises(ValueError, match="8 bytes for a request that states 24"):
            device.kernel.ioctl(device.fileno(), CREATE, bytearray(8))
        # What is read-only is never written to, and may be as short as a string.
        assert device.kernel.ioctl(device.fileno(), CREATE, b"\0\x10\0\0") == (0, 0)


def test_structures_check_every_way_of_setting_them() -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        drm.drm_gem_close(1 << 40)
    with pytest.raises(ValueError, match="cannot hold"):
        rocket.drm_rocket_create_bo(size=np.int64(-5))
    with pytest.raises(TypeError, match="has 2 fields, not 3"):
        drm.drm_gem_close(1, 2, 3)
    assert drm.drm_gem_close(1, 2).pad == 2


@pytest.mark.parametrize("name", ["rknpu", "rknpu-misc", "rocket"])
def test_a_child_of_fork_leaves_the_parents_buffers_alone(name: str) -> None:
    with no_leak(), npukit.open(f"sim:{name}") as device:
        buffer: Any = device.alloc(4096)  # type: ignore[attr-defined]
        buffer.array()[:] = 3
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    buffer.close()
                    with pytest.raises(RuntimeError, match="not inherited by fork"):
                        device.alloc(4096)  # type: ignore[attr-defined]
                    device.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        assert (buffer.array() == 3).all()
        buffer.close()


def test_a_count_beyond_the_register_is_a_fault_and_not_the_end_of_the_core() -> None:
    with no_leak(), npukit.open("sim:rocket", check=False) as device:
        assert isinstance(device, RocketDevice)
        output = device.alloc(4096)
        tasks = (rocket.drm_rocket_task * 1)(rocket.drm_rocket_task(regcmd_count=131073))
        device.submit([RocketJob(tasks, [], [output])])
        output.wait(5)
        a = np.ones((4, 32), np.int8)
        assert (matmul(device, a, a.T) == 32).all()
        output.close()
    with no_leak(), rknpu(SimKernel(["rknpu"], strict=True)) as device:
        buffer, tasks = load(device)
        big = device.alloc(2 << 20)
        tasks[0].regcmd_addr, tasks[0].regcfg_amount = big.dma_address, 131069
        with pytest.raises(ProgramError, match="core 0"):
            device.submit(tasks)
        buffer.close()
        big.close()


def test_many_tasks_may_await_one_fence() -> None:
    async def all_of_them(fence: Any) -> int:
        async def one() -> int:
            await fence
            return 1

        return sum(await asyncio.wait_for(asyncio.gather(*(one() for _ in range(5))), 5))

    with no_leak(), rknpu() as device:
        buffer, tasks = load(device)
        with device.submit_async(tasks) as fence:
            assert asyncio.run(all_of_them(fence)) == 5
        buffer.close()


def test_a_closed_fence_is_refused() -> None:
    with no_leak(), rknpu() as device:
        buffer, tasks = load(device)
        fence = device.submit_async(tasks)
        fence.wait(5)
        fence.close()
        for submit in (device.submit, device.submit_async):
            with pytest.raises(DeviceClosed):
                submit(tasks, fence_in=fence)
        buffer.close()


def test_a_job_that_still_runs_is_awaited_or_named_when_its_device_is_closed() -> None:
    with no_leak():
        device = rknpu()
        buffer, tasks = load(device)
        fence = device.submit_async(tasks)
        device.close()
        assert fence.status() == 1
        fence.close()
        del buffer

        device = rknpu()
        buffer, tasks = load(device)
        with buffer.access("w") as memory:
            memory[CODE + 8 * 107 : CODE + 8 * 108] = 0  # no enable word: it never ends
        del memory
        fence = device.submit_async(tasks, core_mask=1)
        with pytest.raises(BufferError, match="a job still runs"):
            device.close(strict=True)
        # A later job that names the core gives the stuck one up.
        time.sleep(STALE)
        good, others = load(device)
        with device.submit_async(others, core_mask=1) as second:
            second.wait(5)
        with pytest.warns(ResourceWarning, match="a job that never ended"):
            device.close()
        fence.close()
        del good, buffer


def test_running_out_of_memory_is_an_errno_and_loses_no_address() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    for name in ("rknpu", "rocket"):
        with no_leak(), npukit.open(f"sim:{name}") as device:
            assert isinstance(device, RknpuDevice | RocketDevice)
            with open("/proc/self/statm") as statm:
                used = int(statm.read().split()[0]) * os.sysconf("SC_PAGESIZE")
            resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20), hard))
            try:
                for _ in range(3):
                    with pytest.raises(NpuError, match="ENOMEM"):
                        device.alloc(1 << 30)
            finally:
                resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
            held = [device.alloc(1 << 30) for _ in range(3)]
            for buffer in held:
                buffer.close()


def test_sizes_beyond_any_file() -> None:
    kernel = SimKernel(["dma_heap", "udmabuf"])
    with no_leak():
        with DmaHeap(kernel=kernel) as heap, pytest.raises(NpuError, match="ENOMEM"):
            heap.alloc(1 << 63)
        with Udmabuf(kernel) as maker, pytest.raises(ValueError, match="a dma-buf of"):
            maker.alloc(1 << 63)


def test_a_wrong_descriptor_is_no_lost_device() -> None:
    with Udmabuf(SimKernel(["udmabuf"])) as maker:
        reader, writer = os.pipe()
        with pytest.raises(NpuError, match="not a memfd") as caught:
            maker.create(reader, 0, 4096)
        assert not isinstance(caught.value, DeviceLost)
        os.close(reader)
        os.close(writer)


def test_every_refusal_of_the_kernel_is_an_npu_error() -> None:
    kernel = FaultyKernel(SimKernel(["rknpu"]), [Fault(errno.ENOMEM, call="mmap")])
    with no_leak(), rknpu(kernel) as device, device.alloc(4096) as buffer:
        with pytest.raises(NpuError, match="mmap of <RknpuBuffer 1"):
            buffer.array()
        buffer.array()
    kernel = FaultyKernel(SimKernel(["udmabuf"]), [Fault(errno.EMFILE, call="memfd_create")])
    with Udmabuf(kernel) as maker, pytest.raises(NpuError, match="memfd of 4096 bytes"):
        maker.alloc(1)


def test_an_oops_reaches_the_caller_whose_job_it_is() -> None:
    with no_leak(), rknpu() as device:
        buffer, tasks = load(device)
        fences = [device.submit_async(tasks, core_mask=1) for _ in range(3)]
        table = device.alloc(4096)
        job = device._job(tasks, None, 1, 5.0, 0, True)
        job.task_obj_addr = table.obj_addr  # a buffer that the kernel has not mapped
        with pytest.raises(KernelOops, match="no kernel mapping"):
            device._submit(job)
        for fence in fences:
            fence.wait(5)
            fence.close()
        table.close()
        buffer.close()


def test_an_overflow_is_a_result() -> None:
    a = np.full((2, 40000), 60000, np.float16)
    with npukit.open("sim:rknpu") as device, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isinf(matmul(device, a, a.T.copy(), np.float16)).all()  # type: ignore[arg-type]


def test_arguments_are_bounded() -> None:
    with npukit.open("sim:rocket") as device:
        assert isinstance(device, RocketDevice)
        a = np.ones((2, 2), np.int8)
        with pytest.raises(ValueError, match="0 cores"):
            matmul(device, a, a, cores=0)
        with device.alloc(4096) as buffer:
            for timeout in (-1.0, float("nan"), float("inf"), 1e10):
                with pytest.raises(ValueError, match="timeout"):
                    buffer.wait(timeout)
            with pytest.raises(ValueError, match="no size"):
                buffer.array("S0")


def test_a_fence_is_not_waited_for_when_the_timeout_is_negative() -> None:
    with no_leak(), rknpu() as device:
        buffer, tasks = load(device)
        with buffer.access("w") as memory:
            memory[CODE + 8 * 107 : CODE + 8 * 108] = 0
        del memory
        with device.submit_async(tasks, core_mask=1) as fence, pytest.raises(WaitTimeout):
            fence.wait(-1)
        time.sleep(STALE)
        good, others = load(device)
        with device.submit_async(others, core_mask=1) as second:
            second.wait(5)
        good.close()
        buffer.close()


def test_the_words_of_a_struct_can_be_pointed_to() -> None:
    """The address of a structure works like the structure."""
    with npukit.open("sim:rocket") as device:
        struct = rocket.drm_rocket_create_bo(size=4096)
        address = ctypes.addressof(struct)
        assert device.kernel.ioctl(device.fileno(), CREATE, address) == (0, 0)
        assert struct.handle == 1


@pytest.mark.parametrize("name", ["rknpu", "rocket", "amdxdna", "fastrpc-cdsp"])
def test_an_interpreter_may_end_with_open_devices(name: str) -> None:
    code = f"import npukit; device = npukit.open('sim:{name}'); buffer = device.alloc(4096)"
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stderr) == (0, "")
