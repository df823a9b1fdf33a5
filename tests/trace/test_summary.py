# SPDX-License-Identifier: MIT
import ctypes
import os
from collections.abc import Callable
from typing import Any

import pytest

from npukit.abi import drm, ethosu, ivpu, qaic, rknpu, rocket
from npukit.devices import open_device
from npukit.devices.rknpu import RknpuDevice
from npukit.ioctl import Ioctl, Struct
from npukit.sim import SimKernel
from npukit.trace.record import Block, Memory, Record
from npukit.trace.recorder import Recorder
from npukit.trace.summary import pair_submits, summarize, to_lines

Trace = Callable[[str], tuple[Record, ...]]


@pytest.mark.parametrize(
    ("name", "submits", "buffers"), [("rknpu", 5, 26), ("rocket", 5, 21), ("amdxdna", 4, 24)]
)
def test_a_clean_program_leaves_nothing(
    smoke_trace: Trace, name: str, submits: int, buffers: int
) -> None:
    records = smoke_trace(name)
    summary = summarize(records)
    assert len(summary.jobs) == submits
    for job in summary.jobs:
        assert job.latency_ns is not None
        assert job.latency_ns > 0
    assert len(summary.buffers) == buffers
    assert [bo for bo in summary.leaked if bo.size < 64 << 20] == []
    assert (summary.open_files, summary.mappings) == ([], [])
    assert sum(kind.count for kind in summary.requests) == len(records)
    assert any(line.startswith("submits: ") for line in to_lines(summary))


def test_leaks_are_listed() -> None:
    kernel = SimKernel(["rocket", "rknpu"])
    records: list[Record] = []
    with Recorder(records.append) as recorder:
        recorded = recorder.kernel(kernel)
        first = recorded.open(kernel.path("rocket"), os.O_RDWR)
        second = recorded.open(kernel.path("rknpu"), os.O_RDWR)
        rocket.DRM_IOCTL_ROCKET_CREATE_BO(recorded, first, size=4096)
        kept = rocket.DRM_IOCTL_ROCKET_CREATE_BO(recorded, first, size=8192)
        lost = rknpu.DRM_IOCTL_RKNPU_MEM_CREATE(recorded, second, size=4096)
        mapping = recorded.mmap(first, 8192, kept.offset)
        address = mapping.address
        recorded.close(second)
        summary = summarize(records)
        leaked = [(bo.handle, bo.size, bo.closed) for bo in summary.leaked]
        assert leaked == [(1, 4096, False), (2, 8192, False), (lost.handle, 4096, True)]
        assert summary.open_files == [((os.getpid(), first), kernel.path("rocket"))]
        assert summary.mappings == [((os.getpid(), address), 8192)]
        text = list(to_lines(summary))
        assert f"left open: {first} ({kernel.path('rocket')})" in text
        assert f"left mapped: 8192 bytes at {address:#x}" in text
        assert sum(line.startswith("leaked: ") for line in text) == 3
        # A copy of the descriptor keeps the buffers; handles are the file's.
        copy = recorded.dup(first)
        recorded.close(first)
        assert len([bo for bo in summarize(records).leaked if bo.closed]) == 1
        assert recorder.buffers.of((os.getpid(), copy), kept.handle) is not None
        recorded.munmap(mapping)
        recorded.close(copy)
        assert len([bo for bo in summarize(records).leaked if bo.closed]) == 3


def test_what_is_left_is_told_by_process_where_there_are_several() -> None:
    def left(*pids: int) -> list[str]:
        records = []
        for pid in pids:
            fields = rocket.drm_rocket_create_bo(size=4096, handle=1).asdict()
            sent = Block("drm_rocket_create_bo", fields)
            opening = {"path": "/dev/x", "flags": 2}
            mapping = {"length": 4096, "offset": 1 << 32, "prot": 3, "flags": 1}
            records += [
                Record("open", 0, 1, pid, pid, -1, "rocket", opening, result=3),
                Record("ioctl", 0, 1, pid, pid, 3, "rocket", sent=sent),
                Record("mmap", 0, 1, pid, pid, 3, "rocket", mapping, result=1 << 16),
            ]
        lines = to_lines(summarize(records))
        return [line for line in lines if line.startswith(("leaked", "left"))]

    first = [
        "leaked: rocket 1 of 4096 bytes at 0x0, held to the end",
        "left open: 3 (/dev/x)",
        "left mapped: 4096 bytes at 0x10000",
    ]
    assert left(5) == first
    both = [f"{line}, process {pid}" for line in first for pid in (5, 6)]
    assert left(5, 6) == both


def ask(driver: str, request: Ioctl, start: int, received: Any, memory: Any = None) -> Record:
    sent = Block(type(received).__name__, received.asdict(), memory or {})
    return Record(
        "ioctl", start, 5, 1, 1, 3, driver, {}, int(request), request.name, sent=sent
    )  # fmt: skip


def entries(kind: type[Struct], *values: dict[str, Any]) -> Memory:
    blocks = [Block(kind.__name__, kind(**value).asdict()) for value in values]
    return Memory(kind.__name__, 1, len(blocks), blocks)


REGIONS = (ctypes.c_uint32 * 8)(0, 2)
IVPU = [
    ask("intel_vpu", ivpu.DRM_IOCTL_IVPU_BO_CREATE, 0,
        ivpu.drm_ivpu_bo_create(size=4096, handle=1, vpu_addr=0x8000)),
    ask("intel_vpu", ivpu.DRM_IOCTL_IVPU_BO_CREATE_FROM_USERPTR, 10,
        ivpu.drm_ivpu_bo_create_from_userptr(size=8192, handle=2, vpu_addr=0x9000)),
    ask("intel_vpu", ivpu.DRM_IOCTL_IVPU_SUBMIT, 20, ivpu.drm_ivpu_submit(buffer_count=2),
        {"buffers_ptr": Memory("c_uint", 1, 2, [2, 1])}),
    ask("intel_vpu", ivpu.DRM_IOCTL_IVPU_BO_WAIT, 30, ivpu.drm_ivpu_bo_wait(handle=1)),
    ask("intel_vpu", ivpu.DRM_IOCTL_IVPU_BO_WAIT, 40, ivpu.drm_ivpu_bo_wait(handle=2)),
]  # fmt: skip
QAIC = [
    ask("qaic", qaic.DRM_IOCTL_QAIC_CREATE_BO, 0, qaic.qaic_create_bo(size=4096, handle=1)),
    ask("qaic", qaic.DRM_IOCTL_QAIC_MMAP_BO, 5, qaic.qaic_mmap_bo(handle=1, offset=1 << 32)),
    ask("qaic", qaic.DRM_IOCTL_QAIC_CREATE_BO, 10, qaic.qaic_create_bo(size=8192, handle=2)),
    ask("qaic", qaic.DRM_IOCTL_QAIC_EXECUTE_BO, 20, qaic.qaic_execute(),
        {"data": entries(qaic.qaic_execute_entry, {"handle": 2, "dir": 1})}),
    ask("qaic", qaic.DRM_IOCTL_QAIC_WAIT_BO, 30, qaic.qaic_wait(handle=1)),
    ask("qaic", qaic.DRM_IOCTL_QAIC_WAIT_BO, 40, qaic.qaic_wait(handle=2)),
]  # fmt: skip
ETHOSU = [
    ask("ethosu", ethosu.DRM_IOCTL_ETHOSU_CMDSTREAM_BO_CREATE, 0,
        ethosu.drm_ethosu_cmdstream_bo_create(size=4096, handle=1)),
    ask("ethosu", ethosu.DRM_IOCTL_ETHOSU_BO_CREATE, 10,
        ethosu.drm_ethosu_bo_create(size=8192, handle=2)),
    ask("ethosu", ethosu.DRM_IOCTL_ETHOSU_SUBMIT, 20, ethosu.drm_ethosu_submit(job_count=1),
        {"jobs": entries(ethosu.drm_ethosu_job, {"cmd_bo": 1, "region_bo_handles": REGIONS})}),
    ask("ethosu", ethosu.DRM_IOCTL_ETHOSU_BO_WAIT, 30, ethosu.drm_ethosu_bo_wait(handle=1)),
    ask("ethosu", ethosu.DRM_IOCTL_ETHOSU_BO_WAIT, 40, ethosu.drm_ethosu_bo_wait(handle=2)),
]  # fmt: skip


@pytest.mark.parametrize("records", [IVPU, QAIC, ETHOSU], ids=["ivpu", "qaic", "ethosu"])
def test_drivers_that_nothing_simulates_have_buffers_and_jobs(records: list[Record]) -> None:
    (job,) = pair_submits(records)
    assert (job.start_ns, job.end_ns, job.waiter) == (20, 45, (1, 1))
    close = drm.drm_gem_close(handle=2)
    summary = summarize([*records, ask("x", drm.DRM_IOCTL_GEM_CLOSE, 50, close)])
    assert [(bo.handle, bo.size) for bo in summary.buffers] == [(1, 4096), (2, 8192)]
    assert [bo.handle for bo in summary.leaked] == [1]
    if records is IVPU:
        assert [bo.dma for bo in summary.buffers] == [0x8000, 0x9000]


def test_exported_buffers_are_followed() -> None:
    kernel = SimKernel(["rknpu"])
    records: list[Record] = []
    with Recorder(records.append) as recorder:
        device = open_device(kernel.path("rknpu"), recorder.kernel(kernel))
        assert isinstance(device, RknpuDevice)
        with device, device.alloc(8192) as buffer, device.export(buffer) as shared:
            file = recorder.buffers.files[os.getpid(), shared.fd]
            assert (file.what, file.backing) == (
                "dma-buf",
                recorder.buffers.of((os.getpid(), device.fileno()), buffer.handle),
            )
            with shared.access("w") as memory:
                memory[:] = 1
            del memory
            bo = file.backing
            assert bo is not None
            assert len(bo.maps) >= 1
    summary = summarize(records)
    assert (summary.leaked, summary.open_files, summary.mappings) == ([], [], [])


def test_a_fence_that_is_polled_ends_the_job(fence_trace: list[Record]) -> None:
    records = fence_trace
    (job,) = pair_submits(records)
    assert job.latency_ns is not None
    (submit,) = [r for r in records if r.request == "DRM_IOCTL_RKNPU_SUBMIT"]
    assert job.latency_ns > submit.duration_ns
    assert summarize(records).open_files == []
