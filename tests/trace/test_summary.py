# SPDX-License-Identifier: MIT
import os
from collections.abc import Callable

import pytest

from npukit.abi import rknpu, rocket
from npukit.devices import open_device
from npukit.devices.rknpu import RknpuDevice
from npukit.sim import SimKernel
from npukit.trace.record import Block, Record
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
