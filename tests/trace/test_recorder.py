# SPDX-License-Identifier: MIT
import ctypes
import errno
import importlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support import no_leak

from npukit.abi import drm, fastrpc, rknpu, rocket
from npukit.devices.rocket import RocketDevice
from npukit.ioctl import Ioctl, Kernel, NpuError, Struct, Union
from npukit.ioctl.memory import OwnMemory
from npukit.ioctl.wrapper import KernelWrapper
from npukit.sim import SimKernel
from npukit.sim.core import KernelOops
from npukit.trace.follow import LIMIT
from npukit.trace.meaning import MODULES
from npukit.trace.record import REGCMD, Block, Memory, Record
from npukit.trace.recorder import Recorder


class Recorded:
    """A kernel under a recorder, and what was recorded."""

    def __init__(self, kernel: Kernel) -> None:
        self.records: list[Record] = []
        self.recorder = Recorder(self.records.append)
        self.kernel = self.recorder.kernel(kernel)

    @property
    def last(self) -> Record:
        return self.records[-1]


@pytest.fixture
def rocket_file() -> Iterator[tuple[Recorded, int]]:
    with no_leak():
        kernel = SimKernel(["rocket"])
        recorded = Recorded(kernel)
        fd = recorded.kernel.open(kernel.path("rocket"), os.O_RDWR)
        yield recorded, fd
        recorded.kernel.close(fd)
        recorded.recorder.close()
        del kernel


class Named(KernelWrapper):
    """A kernel whose every file says that ``driver`` serves it, and knows no other request."""

    def __init__(self, driver: str) -> None:
        super().__init__(SimKernel([]))
        self.driver = driver.encode()
        self.memory = OwnMemory()

    def open(self, path: str, flags: int) -> int:
        return 1000

    def ioctl(self, fd: int, request: int, arg: Any = None) -> tuple[int, int]:
        if request != drm.DRM_IOCTL_VERSION:
            return -1, errno.ENOTTY
        self.memory.write(arg.name, self.driver)
        arg.name_len = len(self.driver)
        return 0, 0


def fill(value: Any, start: int) -> int:
    """Give each field a number of its own, but for pointers: those are bad."""
    for name, ctype, *_bits in value._fields_:
        if name in value._pointers_:
            setattr(value, name, 8)
        elif isinstance(getattr(value, name), (Struct, Union)):
            start = fill(getattr(value, name), start)
        elif issubclass(ctype, ctypes.Array):
            continue
        elif issubclass(ctype, ctypes._SimpleCData) and ctype is not ctypes.c_char:
            start += 1
            setattr(value, name, start % 100)
    return start


DRIVERS = sorted(set(MODULES) - {"drm"})


@pytest.mark.parametrize("driver", DRIVERS)
def test_each_request_of_each_driver_is_named_by_number_with_every_field(driver: str) -> None:
    recorded = Recorded(Named(driver))
    fd = recorded.kernel.open("/dev/dri/renderD128", os.O_RDWR)
    name = ctypes.create_string_buffer(64)
    version = drm.drm_version(name=ctypes.addressof(name), name_len=64)
    recorded.kernel.ioctl(fd, int(drm.DRM_IOCTL_VERSION), version)
    assert recorded.last.driver == driver
    module = importlib.import_module(f"npukit.abi.{MODULES[driver]}")
    requests = [value for value in vars(module).values() if isinstance(value, Ioctl)]
    assert requests
    for request in requests:
        value = None
        if request.struct is not None and issubclass(request.struct, (Struct, Union)):
            value = request.struct()
            fill(value, 1)
        recorded.kernel.ioctl(fd, int(request), value)
        record = recorded.last
        same = {other.name for other in requests if other == request}
        assert record.request in same, "a number with two names has either"
        assert record.driver == driver
        assert record.errno == "ENOTTY"
        if value is not None:
            assert record.sent is not None
            assert record.sent.struct == type(value).__name__
            assert record.sent.fields == value.asdict()
            assert all(memory.content is None for memory in record.sent.memory.values())
        assert Record.from_json(record.to_json()) == record
    recorded.recorder.close()


def test_structures_are_recorded_as_sent_and_as_received(
    rocket_file: tuple[Recorded, int],
) -> None:
    recorded, fd = rocket_file
    answer = rocket.DRM_IOCTL_ROCKET_CREATE_BO(recorded.kernel, fd, size=5000)
    record = recorded.last
    assert (record.call, record.fd, record.driver) == ("ioctl", fd, "rocket")
    assert (record.request, record.number) == (
        "DRM_IOCTL_ROCKET_CREATE_BO",
        int(rocket.DRM_IOCTL_ROCKET_CREATE_BO),
    )
    fields = {"size": 5000, "handle": 0, "dma_address": 0, "offset": 0}
    assert record.sent == Block("drm_rocket_create_bo", fields)
    assert record.received is not None
    assert record.received.fields == answer.asdict()
    assert (record.result, record.errno, record.hint) == (0, "", "")
    assert (record.pid, record.thread) == (os.getpid(), threading.get_native_id())
    rocket.DRM_IOCTL_ROCKET_FINI_BO(recorded.kernel, fd, handle=answer.handle)
    assert recorded.last.received is None


def test_an_error_has_its_name_and_the_rule(rocket_file: tuple[Recorded, int]) -> None:
    recorded, fd = rocket_file
    version(recorded, fd)
    with pytest.raises(NpuError):
        rocket.DRM_IOCTL_ROCKET_CREATE_BO(recorded.kernel, fd, size=0)
    assert recorded.last.errno == "ENOSPC"
    assert "4 GiB" in recorded.last.hint
    with pytest.raises(OSError, match="Invalid"):
        recorded.kernel.mmap(fd, 4096, 12345 << 12)
    assert (recorded.last.call, recorded.last.errno, recorded.last.result) == ("mmap", "EINVAL", -1)


def version(recorded: Recorded, fd: int) -> None:
    name = ctypes.create_string_buffer(64)
    drm.DRM_IOCTL_VERSION(
        recorded.kernel, fd, drm.drm_version(name=ctypes.addressof(name), name_len=64)
    )


def test_memory_that_the_kernel_fills_is_read_after_the_call(
    rocket_file: tuple[Recorded, int],
) -> None:
    recorded, fd = rocket_file
    version(recorded, fd)
    record = recorded.last
    assert record.sent is not None
    assert record.sent.memory == {}
    assert record.received is not None
    name = record.received.memory["name"]
    assert (name.type, name.content, name.count) == ("c_char", b"rocket", 6)


def submit(recorded: Recorded, fd: int, **changes: int) -> Record:
    """A rocket job of one task at the start of one buffer, with fields changed."""
    task = (rocket.drm_rocket_task * 1)(rocket.drm_rocket_task(regcmd=0, regcmd_count=2))
    handles = (ctypes.c_uint32 * 1)(1)
    job = rocket.drm_rocket_job(
        tasks=ctypes.addressof(task),
        task_count=1,
        task_struct_size=8,
        out_bo_handles=ctypes.addressof(handles),
        out_bo_handle_count=1,
    )
    for name, value in changes.items():
        setattr(job, name, value)
    arg = rocket.drm_rocket_submit(
        jobs=ctypes.addressof(job), job_count=1, job_struct_size=ctypes.sizeof(job)
    )
    recorded.kernel.ioctl(fd, rocket.DRM_IOCTL_ROCKET_SUBMIT, arg)
    record = recorded.last
    if recorded.recorder.buffers.all:
        # The driver gives the job up after half a second.
        deadline = time.monotonic_ns() + 10**10
        rocket.DRM_IOCTL_ROCKET_PREP_BO(recorded.kernel, fd, handle=1, timeout_ns=deadline)
    return record


def job_of(record: Record) -> Block:
    assert record.sent is not None
    content = record.sent.memory["jobs"].content
    assert content is not None
    job = content[0]
    assert isinstance(job, Block)
    return job


def test_jobs_tasks_and_register_commands_are_followed(
    rocket_file: tuple[Recorded, int],
) -> None:
    recorded, fd = rocket_file
    bo = rocket.DRM_IOCTL_ROCKET_CREATE_BO(recorded.kernel, fd, size=4096)
    mapping = recorded.kernel.mmap(fd, 4096, bo.offset)
    words = [0x0041 << 48, 0x1201 << 48 | 5 << 16 | 0x1010]
    memoryview(mapping).cast("Q")[:2] = (
        memoryview((ctypes.c_uint64 * 2)(*words)).cast("B").cast("Q")
    )
    job = job_of(submit(recorded, fd))
    assert job.memory["out_bo_handles"].content == [1]
    assert "in_bo_handles" not in job.memory
    tasks = job.memory["tasks"].content
    assert tasks is not None
    task = tasks[0]
    assert isinstance(task, Block)
    assert task.fields == {"regcmd": 0, "regcmd_count": 2}
    assert task.memory["regcmd"] == Memory(REGCMD, 0, 2, words)
    # Past the buffer object, and unmapped: shown as what cannot be read.
    recorded.kernel.munmap(mapping)
    tasks = job_of(submit(recorded, fd)).memory["tasks"].content
    assert tasks is not None
    assert isinstance(tasks[0], Block)
    assert tasks[0].memory["regcmd"] == Memory(REGCMD, 0, 2, None)


@pytest.mark.parametrize("address", [8, (1 << 64) - 4, 1 << 63])
def test_bad_pointers_are_shown_and_never_followed(
    rocket_file: tuple[Recorded, int], address: int
) -> None:
    recorded, fd = rocket_file
    job = job_of(submit(recorded, fd, tasks=address, out_bo_handles=address))
    assert job.memory["tasks"] == Memory("drm_rocket_task", address, 1, None)
    assert job.memory["out_bo_handles"].content is None
    recorded.kernel.ioctl(fd, rocket.DRM_IOCTL_ROCKET_SUBMIT, address)
    assert (recorded.last.errno, recorded.last.sent) == ("EFAULT", None)
    assert recorded.last.arguments == {"arg": address}


def test_wild_counts_and_strides_cost_no_more_than_the_limit() -> None:
    recorded = Recorded(Named("rocket"))
    fd = recorded.kernel.open("/dev/accel/accel0", os.O_RDWR)
    room = ctypes.create_string_buffer(4 * LIMIT)
    address = ctypes.addressof(room)
    for count, stride in ((0xFFFFFFFF, 40), (0xFFFFFFFF, 1), (2, 0xFFFFFFFF), (7, 0)):
        job = rocket.drm_rocket_submit(jobs=address, job_count=count, job_struct_size=stride)
        recorded.kernel.ioctl(fd, rocket.DRM_IOCTL_ROCKET_SUBMIT, job)
        assert recorded.last.sent is not None
        memory = recorded.last.sent.memory["jobs"]
        assert memory.count == count
        assert memory.content is not None
        assert len(memory.content) * (stride or 40) <= LIMIT
    # A structure that leads back to itself, through its own bytes.
    for number in range(200):
        job = rocket.drm_rocket_job(tasks=address, task_count=1 << 30, task_struct_size=8)
        ctypes.memmove(address + 40 * number, bytes(job), 40)
    job = rocket.drm_rocket_submit(jobs=address, job_count=200, job_struct_size=40)
    recorded.kernel.ioctl(fd, rocket.DRM_IOCTL_ROCKET_SUBMIT, job)
    recorded.recorder.close()


def test_fastrpc_arguments_are_followed() -> None:
    recorded = Recorded(Named("fastrpc"))
    fd = recorded.kernel.open("/dev/fastrpc-cdsp", os.O_RDWR)
    data = ctypes.create_string_buffer(b"hello", 5)
    args = (fastrpc.fastrpc_invoke_args * 2)(
        fastrpc.fastrpc_invoke_args(ctypes.addressof(data), 5, -1, 0),
        fastrpc.fastrpc_invoke_args(8, 3, -1, 0),
    )
    call = fastrpc.fastrpc_invoke(
        handle=1, sc=fastrpc.REMOTE_SCALARS_MAKE(2, 1, 1), args=ctypes.addressof(args)
    )
    recorded.kernel.ioctl(fd, int(fastrpc.FASTRPC_IOCTL_INVOKE), call)
    record = recorded.last
    assert (record.driver, record.request) == ("fastrpc", "FASTRPC_IOCTL_INVOKE")
    assert record.sent is not None
    content = record.sent.memory["args"].content
    assert content is not None
    seen = [element.memory["ptr"].content for element in content if isinstance(element, Block)]
    assert seen == [b"hello", None]
    recorded.recorder.close()


def test_an_ert_packet_is_found_in_its_buffer(smoke_trace: Any) -> None:
    records = [r for r in smoke_trace("amdxdna") if r.request == "DRM_IOCTL_AMDXDNA_EXEC_CMD"]
    assert len(records) == 4
    for record in records:
        packet = record.sent.memory["cmd_handles"]
        assert packet.type == "ert_packet"
        assert len(packet.content) == packet.count > 4


def test_the_task_table_of_a_vendor_job_is_followed_before_and_after(smoke_trace: Any) -> None:
    records = [r for r in smoke_trace("rknpu") if r.request == "DRM_IOCTL_RKNPU_SUBMIT"]
    assert len(records) == 5
    for record in records:
        table = record.sent.memory["task_obj_addr"]
        assert table.count == record.sent.fields["task_number"] == len(table.content)
        for task in table.content:
            words = task.memory["regcmd_addr"]
            assert len(words.content) == words.count == task.fields["regcfg_amount"] + 4
            assert task.fields["int_status"] == 0
        after = record.received.memory["task_obj_addr"].content
        assert any(task.fields["int_status"] for task in after)


def test_other_calls_are_recorded(rocket_file: tuple[Recorded, int]) -> None:
    recorded, fd = rocket_file
    kernel = recorded.kernel
    assert recorded.last.call == "open"
    assert recorded.last.arguments["path"].startswith("/dev/accel/")
    copy = kernel.dup(fd)
    assert (recorded.last.call, recorded.last.fd, recorded.last.result) == ("dup", fd, copy)
    kernel.close(copy)
    assert recorded.last.fd == copy
    memory = kernel.memfd_create("scratch")
    kernel.ftruncate(memory, 4096)
    assert recorded.last.arguments == {"length": 4096}
    kernel.lseek(memory, 7)
    assert (recorded.last.arguments, recorded.last.result) == ({"offset": 7, "whence": 0}, 7)
    kernel.fstat(memory)
    assert recorded.last.result == 0
    mapping = kernel.mmap(memory, 4096)
    address = mapping.address
    assert recorded.last.result == address
    kernel.munmap(mapping)
    assert recorded.last.arguments == {"address": address}
    kernel.poll([(memory, 1)], 0)
    assert recorded.last.arguments == {"fds": [[memory, 1]], "timeout": 0}
    kernel.fcntl(memory, 1)
    kernel.close(memory)
    with pytest.raises(OSError, match="Bad file"):
        kernel.dup(memory)
    assert (recorded.last.errno, recorded.last.result) == ("EBADF", -1)
    for record in recorded.records:
        assert Record.from_json(record.to_json()) == record


def test_a_call_that_raises_is_recorded_and_raises() -> None:
    kernel = SimKernel(["rknpu"])
    recorded = Recorded(kernel)
    fd = recorded.kernel.open(kernel.path("rknpu"), os.O_RDWR)
    arg = rknpu.rknpu_mem_sync(obj_addr=0x1234, flags=1)
    with pytest.raises(KernelOops):
        recorded.kernel.ioctl(fd, rknpu.DRM_IOCTL_RKNPU_MEM_SYNC, arg)
    assert recorded.last.result == -1
    assert recorded.last.hint == "the call raised an exception and answered nothing"
    recorded.kernel.close(fd)
    recorded.recorder.close()


def test_what_is_not_known_is_recorded_by_number(rocket_file: tuple[Recorded, int]) -> None:
    recorded, fd = rocket_file
    recorded.kernel.ioctl(fd, 0xC0107A55, bytearray(16))
    record = recorded.last
    assert (record.request, record.number, record.sent) == ("", 0xC0107A55, None)


def test_many_threads_are_recorded_whole() -> None:
    kernel = SimKernel(["rocket"])
    recorded = Recorded(kernel)

    def use() -> None:
        with RocketDevice(kernel.path("rocket"), recorded.kernel) as device:
            for _ in range(10):
                with device.alloc(4096) as buffer, buffer.access("w") as memory:
                    memory[:] = 1

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    creates = [r for r in recorded.records if r.request == "DRM_IOCTL_ROCKET_CREATE_BO"]
    assert len(creates) == 40
    assert len({record.thread for record in creates}) == 4
    assert not recorded.recorder.buffers.living()
    assert not recorded.recorder.buffers.files
    recorded.recorder.close()
