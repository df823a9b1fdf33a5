# SPDX-License-Identifier: MIT
import contextlib
import ctypes
import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from support import no_leak

from npukit.abi import rocket
from npukit.devices import open_device
from npukit.devices.rknpu import RknpuDevice
from npukit.ioctl import NpuError
from npukit.sim import SimKernel
from npukit.trace.record import Block, Memory, Record
from npukit.trace.recorder import Recorder
from npukit.trace.replay import PATIENCE, opened, replay

Trace = Callable[[str], tuple[Record, ...]]


def play(
    records: Sequence[Record],
    name: str,
    kernel: SimKernel | None = None,
    patience: float = PATIENCE,
) -> list[str]:
    kernel = kernel or SimKernel([name])
    nodes = {path: kernel.path(name) for path in opened(records)}
    return [str(difference) for difference in replay(records, kernel, nodes, patience)]


DEVICES = ["rknpu", "rknpu-misc", "rocket", "amdxdna", "fastrpc-cdsp"]
"""All that the smoke test knows."""


@pytest.mark.parametrize("name", DEVICES)
def test_a_trace_of_the_smoke_test_replays_without_a_difference(
    smoke_trace: Trace, name: str
) -> None:
    records = smoke_trace(name)
    assert len(records) > 40
    with no_leak():
        kernel = SimKernel([name])
        assert play(records, name, kernel) == []
        # rocket says nowhere else that a job failed.
        if name != "amdxdna":
            assert kernel.log == []


def test_a_call_that_a_dsp_makes_back_must_be_answered_alike(smoke_trace: Trace) -> None:
    """A thread of the program serves the DSP: what it hands in is what the other's call gives."""
    records = list(smoke_trace("fastrpc-cdsp"))
    served = [
        index for index, r in enumerate(records)
        if r.sent is not None and r.sent.fields.get("handle") == 3 and len(r.sent.memory) and
        r.thread != records[0].thread
    ]  # fmt: skip
    assert len(served) > 3
    assert any(r.duration_ns > 50_000_000 or r.errno for r in records)
    # Without the thread nobody answers, and the call of the other cannot end as it did.
    silent = [record for index, record in enumerate(records) if index not in served]
    assert play(silent, "fastrpc-cdsp", patience=0.2) != []


def test_the_shell_of_a_process_stands_in_its_buffer(smoke_trace: Trace) -> None:
    records = smoke_trace("fastrpc-cdsp")
    made = next(r for r in records if r.request == "FASTRPC_IOCTL_INIT_CREATE")
    assert made.sent is not None
    shell = made.sent.memory["file"]
    assert isinstance(shell.content, bytes)
    broken = dataclasses.replace(shell, content=bytes(len(shell.content)))
    sent = dataclasses.replace(made.sent, memory={"file": broken})
    found = play(change(records, "FASTRPC_IOCTL_INIT_CREATE", sent=sent), "fastrpc-cdsp")
    assert "FASTRPC_IOCTL_INIT_CREATE: the value is -" in found[0]


def test_a_fence_that_was_ready_must_become_ready(fence_trace: list[Record]) -> None:
    records = fence_trace
    assert play(records, "rknpu") == []
    # Without the job nothing is polled here, and nothing is ready.
    rest = [record for record in records if "SUBMIT" not in record.request]
    found = play(rest, "rknpu")
    assert any("poll: the call is 'not: a descriptor is not there'" in line for line in found)


@pytest.mark.parametrize("name", DEVICES)
def test_the_trace_read_from_json_replays_alike(smoke_trace: Trace, name: str) -> None:
    assert play([Record.from_json(r.to_json()) for r in smoke_trace(name)], name) == []


def test_addresses_and_names_are_carried_over(smoke_trace: Trace) -> None:
    """Another open file holds buffers where those of the trace were; none of it is written."""
    kernel = SimKernel(["rknpu"])
    device = open_device(kernel.path("rknpu"), kernel)
    assert isinstance(device, RknpuDevice)
    with device, contextlib.ExitStack() as stack:
        held = [stack.enter_context(device.alloc(1 << 20)) for _ in range(4)]
        for buffer in held:
            buffer.array()[:] = 0xA5
        assert play(smoke_trace("rknpu"), "rknpu", kernel) == []
        assert kernel.log == []
        for buffer in held:
            assert np.all(buffer.array() == 0xA5)


def test_a_job_moves_with_its_buffers(smoke_trace: Trace) -> None:
    """One buffer more, made first, moves all others: handles, addresses, and offsets."""
    records = smoke_trace("rocket")
    opening = max(i for i, record in enumerate(records) if record.call == "open")
    fields = {"size": 1 << 20, "handle": 0, "dma_address": 0, "offset": 0}
    answer = {"size": 1 << 20, "handle": 77, "dma_address": 0xF0000000, "offset": 1 << 40}
    extra = dataclasses.replace(
        next(record for record in records if record.request == "DRM_IOCTL_ROCKET_CREATE_BO"),
        sent=Block("drm_rocket_create_bo", fields),
        received=Block("drm_rocket_create_bo", answer),
    )
    kernel = SimKernel(["rocket"])
    moved = [*records[: opening + 1], extra, *records[opening + 1 :]]
    assert play(moved, "rocket", kernel) == []
    assert kernel.log == []


def test_a_trace_with_errors_replays_with_the_same() -> None:
    kernel = SimKernel(["rocket"])
    records: list[Record] = []
    with Recorder(records.append) as recorder:
        recorded = recorder.kernel(kernel)
        fd = recorded.open(kernel.path("rocket"), os.O_RDWR)
        for size in (0, 1 << 31):
            with pytest.raises(NpuError):
                rocket.DRM_IOCTL_ROCKET_CREATE_BO(recorded, fd, size=size)
        job = rocket.drm_rocket_job(tasks=8, task_count=1, task_struct_size=8)
        for jobs in (8, ctypes.addressof(job)):
            arg = rocket.drm_rocket_submit(jobs=jobs, job_count=1, job_struct_size=40)
            recorded.ioctl(fd, rocket.DRM_IOCTL_ROCKET_SUBMIT, arg)
        recorded.ioctl(fd, rocket.DRM_IOCTL_ROCKET_SUBMIT, 8)
        recorded.ioctl(fd, 0xC0107A55, 8)
        with contextlib.suppress(OSError):
            recorded.mmap(fd, 4096, 77 << 12)
        with contextlib.suppress(OSError):
            recorded.open("/dev/accel/accel9", os.O_RDWR)
        recorded.close(fd)
        recorded.ioctl(fd, rocket.DRM_IOCTL_ROCKET_SUBMIT, 8)
    assert [r.errno for r in records if r.errno] == [
        "ENOSPC", "ENOMEM", "EFAULT", "EFAULT", "ENOTTY", "EINVAL", "ENOENT", "EBADF"
    ]  # fmt: skip
    kernel = SimKernel(["rocket"])
    path = kernel.path("rocket")
    assert [str(d) for d in replay(records, kernel, {path: path})] == []


def change(records: Sequence[Record], request: str, **changes: Any) -> list[Record]:
    """The trace with the first call of ``request`` changed."""
    index = next(i for i, r in enumerate(records) if request in (r.request, r.call))
    return [
        *records[:index],
        dataclasses.replace(records[index], **changes),
        *records[index + 1 :],
    ]


def test_differences_are_found_and_named(smoke_trace: Trace) -> None:
    records = smoke_trace("rocket")
    found = play(change(records, "DRM_IOCTL_ROCKET_PREP_BO", errno="EINVAL", result=-1), "rocket")
    assert found == ["call 7, DRM_IOCTL_ROCKET_PREP_BO: errno is 'none', was recorded as 'EINVAL'"]
    found = play(change(records, "DRM_IOCTL_ROCKET_FINI_BO", result=3), "rocket")
    assert found == ["call 8, DRM_IOCTL_ROCKET_FINI_BO: the value is 0, was recorded as 3"]


def test_a_field_and_filled_memory_that_differ_are_named(smoke_trace: Trace) -> None:
    records = smoke_trace("rknpu")
    action = next(r for r in records if r.request == "DRM_IOCTL_RKNPU_ACTION")
    assert action.received is not None
    other = Block("rknpu_action", {**action.received.fields, "value": 907})
    found = play(change(records, "DRM_IOCTL_RKNPU_ACTION", received=other), "rknpu")
    assert found == ["call 5, DRM_IOCTL_RKNPU_ACTION: value is 908, was recorded as 907"]
    asked = next(r for r in records if r.request == "DRM_IOCTL_VERSION")
    assert asked.received is not None
    memory = {**asked.received.memory, "name": Memory("c_char", 1, 5, b"other")}
    other = Block("drm_version", asked.received.fields, memory)
    found = play(change(records, "DRM_IOCTL_VERSION", received=other), "rknpu")
    assert found == [
        "call 1, DRM_IOCTL_VERSION: what name points to is b'rknpu', was recorded as b'other'"
    ]


def test_what_cannot_be_played_is_said(smoke_trace: Trace) -> None:
    records = smoke_trace("rocket")
    found = play(change(records, "munmap", arguments={"address": 77}), "rocket")
    assert any("not: nothing is mapped there" in line for line in found)
    version = Block("drm_version", {"name": 5, "name_len": 1 << 40})
    found = play(change(records, "DRM_IOCTL_VERSION", sent=version), "rocket")
    assert any("more than is recorded" in line for line in found)
    wrong = Block("drm_version", {"nonsense": 5})
    found = play(change(records, "DRM_IOCTL_VERSION", sent=wrong), "rocket")
    assert any("drm_version" in line for line in found)
    found = play(change(records, "close", call="reboot"), "rocket")
    assert any("there is no such call" in line for line in found)


def test_a_trace_touches_no_descriptor_that_it_did_not_open() -> None:
    reader, writer = os.pipe()
    records = [
        Record("close", 1, 1, 1, 1, reader, ""),
        Record("ftruncate", 1, 1, 1, 1, writer, "", {"length": 0}),
        Record("dup", 1, 1, 1, 1, reader, "", result=99),
    ]
    assert len(replay(records, SimKernel(["rocket"]))) == 3
    os.write(writer, b"x")
    assert os.read(reader, 1) == b"x"
    os.close(reader)
    os.close(writer)


def test_what_the_trace_leaves_is_given_back(smoke_trace: Trace) -> None:
    records = smoke_trace("rocket")[:40]
    with no_leak():
        assert play(records, "rocket") == []


def test_nodes_are_told_with_their_drivers(smoke_trace: Trace) -> None:
    assert opened(smoke_trace("rknpu")) == {"/dev/dri/card1": "rknpu"}
    assert opened(smoke_trace("amdxdna")) == {"/dev/accel/accel0": "amdxdna_accel_driver"}
    assert opened([]) == {}


def test_a_wait_may_take_longer_here_but_must_end(smoke_trace: Trace) -> None:
    records = [
        dataclasses.replace(
            record,
            sent=Block(record.sent.struct, {**record.sent.fields, "timeout_ns": 0}),
        )
        if record.sent is not None and record.sent.struct == "drm_rocket_prep_bo"
        else record
        for record in smoke_trace("rocket")
    ]
    assert play(records, "rocket") == []


def test_a_wait_that_was_not_done_may_be_done_here(smoke_trace: Trace) -> None:
    records = change(
        smoke_trace("rocket"), "DRM_IOCTL_ROCKET_PREP_BO", errno="ETIMEDOUT", result=-1
    )
    assert play(records, "rocket") == []


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("open", {"path": 5, "flags": "x"}),
        ("open", {}),
        ("mmap", {"length": -1, "offset": -1, "prot": 1 << 70, "flags": None}),
        ("munmap", {"address": "x"}),
        ("poll", {"fds": [1], "timeout": None}),
        ("fcntl", {"command": "x", "arg": 0}),
        ("memfd_create", {"name": None, "flags": 0}),
        ("ioctl", {"arg": "x"}),
    ],
)
def test_a_hostile_trace_ends_in_differences(call: str, arguments: dict[str, Any]) -> None:
    with no_leak():
        record = Record(call, 1, 1, 1, 1, 5, "rocket", arguments, 0xC0186440, result=5)
        opening = Record(
            "open", 1, 1, 1, 1, -1, "", {"path": "/dev/accel/accel0", "flags": 2}, result=5
        )
        assert replay([opening, record], SimKernel(["rocket"]))


def test_wild_structures_in_a_trace_hurt_nobody() -> None:
    memory = Memory("drm_rocket_job", 1, 1, [5, b"x"])  # type: ignore[list-item]
    wild = [
        Block("drm_rocket_submit", {"jobs": 1, "job_count": 1 << 31, "job_struct_size": 1 << 31}),
        Block("drm_rocket_submit", {"jobs": 1, "job_count": 2}, {"jobs": memory}),
        Block("drm_rocket_submit", {"jobs": "x"}),
        Block("drm_rocket_submit", {"jobs": [1]}),
        Block("drm_rocket_submit", {"jobs": {"x": 1}}),
        Block("drm_rocket_create_bo", {"size": 1}),
    ]
    opening = Record(
        "open", 1, 1, 1, 1, -1, "", {"path": "/dev/accel/accel0", "flags": 2}, result=5
    )
    number = int(rocket.DRM_IOCTL_ROCKET_SUBMIT)
    records = [Record("ioctl", 1, 1, 1, 1, 5, "rocket", {}, number, "S", block) for block in wild]
    with no_leak():
        found = replay([opening, *records], SimKernel(["rocket"]))
    assert [difference.index for difference in found] == [1, 2, 3, 4, 5, 6]
