# SPDX-License-Identifier: MIT
"""The simulated amdxdna driver, rule by rule, through raw requests."""

import ctypes
import errno
import os
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from raw import Raw
from support import no_leak, wait_until

from npukit import _fast
from npukit.abi import amdxdna as abi
from npukit.abi import drm
from npukit.ioctl import ProgramError
from npukit.programs.xdna import designs, ert
from npukit.programs.xdna.ert import State
from npukit.programs.xdna.txn import Assembler
from npukit.programs.xdna.xclbin import Xclbin
from npukit.sim import SimKernel

NODE = "/dev/accel/accel0"
CREATE = abi.DRM_IOCTL_AMDXDNA_CREATE_BO
INFO = abi.DRM_IOCTL_AMDXDNA_GET_BO_INFO
HWCTX = abi.DRM_IOCTL_AMDXDNA_CREATE_HWCTX
CONFIG = abi.DRM_IOCTL_AMDXDNA_CONFIG_HWCTX
EXEC = abi.DRM_IOCTL_AMDXDNA_EXEC_CMD
GET_INFO = abi.DRM_IOCTL_AMDXDNA_GET_INFO
GET_ARRAY = abi.DRM_IOCTL_AMDXDNA_GET_ARRAY
WAIT = drm.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT
SHARE, HEAP, DEV, CMD = 1, 2, 3, 4
CHUNK = 64 << 20
NOWHERE = (1 << 64) - 1


@pytest.fixture(params=["amdxdna", "amdxdna-npu1"])
def node(request: pytest.FixtureRequest) -> Iterator[Raw]:
    with no_leak():
        with Raw(SimKernel([request.param]), NODE) as node:
            yield node
        del node


@pytest.fixture
def strix() -> Iterator[Raw]:
    with no_leak():
        with Raw(SimKernel(["amdxdna"]), NODE) as node:
            node.kernel.devices[0].tdr_timeout_ms = 50  # type: ignore[attr-defined]
            yield node
        del node


class Client:
    """What a program keeps: its heap, mapped as it must be, and its buffers' mappings."""

    def __init__(self, node: Raw, aligned: bool = True) -> None:
        self.node = node
        self.maps: dict[int, _fast.Mapping] = {}
        self.heap = node.ok(CREATE, size=CHUNK, type=HEAP).handle
        flags = _fast.MAP_SHARED | _fast.MAP_ANONYMOUS | _fast.MAP_NORESERVE
        strays = []
        for turn in range(64):
            address = self.map(self.heap, CHUNK).address
            if (address % CHUNK == 0) is aligned:
                break
            # The kernel takes the top of a gap: what is over goes first, and a chunk with it, so
            # that it fits in no other gap than the heap does. Every other time a chunk alone, or a
            # gap of just its size would be taken again and again.
            node.kernel.munmap(self.maps.pop(self.heap))
            over = CHUNK + (address % CHUNK or 4096) if turn % 2 == 0 else CHUNK
            strays.append(_fast.mmap(-1, over, 0, _fast.PROT_NONE, flags))
        for stray in strays:
            stray.close()
        assert (self.maps[self.heap].address % CHUNK == 0) is aligned

    def map(self, handle: int, size: int) -> _fast.Mapping:
        info = self.node.ok(INFO, handle=handle)
        self.maps[handle] = self.node.kernel.mmap(self.node.fd, size, info.map_offset)
        return self.maps[handle]

    def bo(self, kind: int, size: int = 4096) -> tuple[int, int]:
        """(handle, device address)."""
        handle = self.node.ok(CREATE, size=size, type=kind).handle
        if kind != DEV:
            self.map(handle, size)
        return handle, self.node.ok(INFO, handle=handle).xdna_addr

    def put(self, handle: int, address: int, data: bytes) -> None:
        if handle in self.maps:
            memoryview(self.maps[handle])[: len(data)] = data
        else:
            memoryview(self.maps[self.heap])[address - 0x4000000 :][: len(data)] = data

    def context(self, tiles: int = 4, **fields: int) -> Any:
        qos = abi.amdxdna_qos_info(priority=0x200)
        return self.node.ask(HWCTX, qos_p=ctypes.addressof(qos), num_tiles=tiles, **fields)

    def configure(self, context: int, *handles: int, **changes: int) -> int:
        config = abi.amdxdna_hwctx_param_config_cu.with_tail(len(handles))
        for row, handle in zip(config.cu_configs, handles, strict=True):
            row.cu_bo = handle
        fields = {
            "handle": context,
            "param_val": ctypes.addressof(config),
            "param_val_size": ctypes.sizeof(config),
        }
        return self.node.ask(CONFIG, **{**fields, **changes})[0]

    def submit(self, context: int, command: int, *buffers: int, **changes: int) -> tuple[int, int]:
        array = (ctypes.c_uint32 * len(buffers))(*buffers)
        fields = {
            "hwctx": context,
            "cmd_handles": command,
            "cmd_count": 1,
            "args": ctypes.addressof(array),
            "arg_count": len(buffers),
        }
        code, answer = self.node.ask(EXEC, **{**fields, **changes})
        return code, answer.seq

    def wait(self, syncobj: int, point: int, seconds: float = 10.0, flags: int = 2) -> int:
        handle, value = ctypes.c_uint32(syncobj), ctypes.c_uint64(point)
        deadline = time.monotonic_ns() + int(seconds * 1e9)
        return self.node.ask(
            WAIT,
            handles=ctypes.addressof(handle),
            points=ctypes.addressof(value),
            count_handles=1,
            timeout_nsec=deadline if seconds else 0,
            flags=flags,
        )[0]

    def close(self) -> None:
        for mapping in self.maps.values():
            self.node.kernel.munmap(mapping)
        self.maps.clear()


@pytest.fixture
def client(strix: Raw) -> Iterator[Client]:
    client = Client(strix)
    yield client
    client.close()


class Ready:
    """A context in which the memcpy design is configured, with a command to run."""

    BYTES = 256

    def __init__(self, client: Client, example: designs.Example | None = None) -> None:
        self.client = client
        example = example or designs.memcpy(self.BYTES)
        unit = Xclbin(example.xclbin).compute_unit()
        assert unit.pdi is not None
        _code, context = client.context(16)
        self.context, self.syncobj = context.handle, context.syncobj_handle
        pdi, place = client.bo(DEV, len(unit.pdi.image))
        client.put(pdi, place, bytes(unit.pdi.image))
        assert client.configure(self.context, pdi) == 0
        self.pdi = pdi
        self.unit = unit
        self.code, self.code_at = self.stream(example.instructions.to_bytes())
        self.source, self.source_at = client.bo(SHARE)
        self.target, self.target_at = client.bo(SHARE)
        self.words = len(example.instructions.words)
        self.command = self.packet()
        client.put(self.source, 0, bytes(range(256)))

    def stream(self, code: bytes) -> tuple[int, int]:
        handle, address = self.client.bo(DEV, len(code))
        self.client.put(handle, address, code)
        return handle, address

    def image(self, **changes: int) -> bytes:
        values = {
            "opcode": 3,
            "instr": self.code_at,
            "ninstr": self.words,
            "bo0": self.source_at,
            "bo1": self.target_at,
        }
        return ert.start_cu(0, ert.register_map(self.unit, {**values, **changes}))

    def packet(self, **changes: int) -> int:
        handle, _ = self.client.bo(CMD)
        self.client.put(handle, 0, self.image(**changes))
        return handle

    def submit(self, command: int | None = None, *buffers: int) -> tuple[int, int]:
        used = buffers or (self.code, self.source, self.target)
        return self.client.submit(self.context, command or self.command, *used)

    def state(self, command: int | None = None) -> State:
        return ert.state_of(memoryview(self.client.maps[command or self.command]))

    def result(self) -> bytes:
        return bytes(memoryview(self.client.maps[self.target])[: self.BYTES])


@pytest.fixture
def ready(client: Client) -> Ready:
    return Ready(client)


def test_version(node: Raw) -> None:
    name = ctypes.create_string_buffer(64)
    version = node.ok(drm.DRM_IOCTL_VERSION, name=ctypes.addressof(name), name_len=64)
    assert name.value == b"amdxdna_accel_driver"
    assert (version.version_major, version.version_minor) == (0, 10)
    for capability in (drm.DRM_CAP_SYNCOBJ, drm.DRM_CAP_SYNCOBJ_TIMELINE):
        assert node.ok(drm.DRM_IOCTL_GET_CAP, capability=capability).value == 1


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"size": 4096, "type": 1, "flags": 1}, errno.EINVAL),
        ({"size": 4096, "type": 0}, errno.EINVAL),
        ({"size": 4096, "type": 5}, errno.EINVAL),
        ({"size": 0, "type": SHARE}, errno.EINVAL),
        ({"size": 0, "type": HEAP}, errno.EINVAL),
        ({"size": CHUNK + 4096, "type": HEAP}, errno.EINVAL),
        ({"size": 16 * CHUNK, "type": HEAP}, errno.ENOSPC),
        ({"size": 4096, "type": DEV}, errno.EAGAIN),
        ({"size": 0, "type": DEV}, errno.EINVAL),
        ({"size": 1 << 40, "type": DEV}, errno.EINVAL),
        # amdxdna_gem_create_ubuf_object does not say EFAULT.
        ({"size": 4096, "type": SHARE, "vaddr": 8}, errno.EINVAL),
    ],
)
def test_create_bo_is_checked(node: Raw, fields: dict[str, int], code: int) -> None:
    assert node.ask(CREATE, **fields)[0] == code


def test_slices_of_the_heap_need_it_mapped_and_are_aligned_to_32_kib(node: Raw) -> None:
    heap = node.ok(CREATE, size=CHUNK, type=HEAP)
    assert node.ask(CREATE, size=4096, type=DEV)[0] == errno.EAGAIN
    info = node.ok(INFO, handle=heap.handle)
    assert (info.xdna_addr, info.vaddr) == (0x4000000, NOWHERE)
    mapping = node.kernel.mmap(node.fd, CHUNK, info.map_offset)
    assert node.ok(INFO, handle=heap.handle).vaddr == mapping.address
    for index in range(3):
        bo = node.ok(CREATE, size=100, type=DEV)
        info = node.ok(INFO, handle=bo.handle)
        place = 0x8000 * index
        assert (info.xdna_addr, info.vaddr) == (0x4000000 + place, mapping.address + place)
        assert info.map_offset == NOWHERE
    # More than is left: the heap would have to grow.
    assert node.ask(CREATE, size=CHUNK, type=DEV)[0] in (errno.EAGAIN, errno.ENOSPC)
    node.kernel.munmap(mapping)
    assert node.ask(CREATE, size=100, type=DEV)[0] == errno.EAGAIN


def test_the_heap_grows_only_on_strix_and_must_stay_in_one_piece(node: Raw) -> None:
    client = Client(node)
    more, answer = node.ask(CREATE, size=CHUNK, type=HEAP)
    if node.kernel.devices[0].name == "amdxdna-npu1":
        assert more == errno.ENOSPC
        client.close()
        return
    assert more == 0
    assert node.ok(INFO, handle=answer.handle).xdna_addr == 0x4000000 + CHUNK
    big = {"size": CHUNK + 4096, "type": DEV}
    assert node.ask(CREATE, **big)[0] == errno.EAGAIN
    mapping = client.map(answer.handle, CHUNK)
    apart = mapping.address != client.maps[client.heap].address + CHUNK
    assert node.ask(CREATE, **big)[0] == (errno.EINVAL if apart else 0)
    assert node.ask(CREATE, size=7 * CHUNK, type=HEAP)[0] == errno.ENOSPC
    client.close()


def test_a_buffer_has_no_address_before_it_is_mapped(node: Raw) -> None:
    bo = node.ok(CREATE, size=5000, type=SHARE)
    info = node.ok(INFO, handle=bo.handle)
    assert (info.vaddr, info.xdna_addr) == (NOWHERE, NOWHERE)
    mapping = node.kernel.mmap(node.fd, 8192, info.map_offset)
    info = node.ok(INFO, handle=bo.handle)
    assert info.vaddr == info.xdna_addr == mapping.address
    node.kernel.munmap(mapping)
    assert node.ok(INFO, handle=bo.handle).xdna_addr == NOWHERE
    assert node.ask(INFO, handle=99)[0] == errno.ENOENT
    for field in ("ext", "ext_flags", "pad"):
        assert node.ask(INFO, handle=bo.handle, **{field: 1})[0] == errno.EINVAL


def test_without_pasid_buffers_go_by_iova() -> None:
    with no_leak():
        kernel = SimKernel(["amdxdna"])
        kernel.devices[0].pasid = False  # type: ignore[attr-defined]
        with Raw(kernel, NODE) as node:
            bo = node.ok(CREATE, size=4096, type=SHARE)
            assert node.ok(INFO, handle=bo.handle).xdna_addr == 1 << 32


def test_sync_bo(client: Client) -> None:
    node, sync = client.node, abi.DRM_IOCTL_AMDXDNA_SYNC_BO
    bo, _ = client.bo(SHARE)
    piece, _ = client.bo(DEV)
    assert node.ask(sync, handle=bo, size=4096)[0] == 0
    assert node.ask(sync, handle=piece, size=4096)[0] == 0
    assert node.ask(sync, handle=bo, size=1 << 40)[0] == 0  # clamped
    assert node.ask(sync, handle=bo, offset=4096)[0] == errno.EINVAL
    assert node.ask(sync, handle=bo, offset=1, size=NOWHERE)[0] == errno.EINVAL
    assert node.ask(sync, handle=77)[0] == errno.ENOENT
    # From the device it looks for a debug buffer and finds none.
    assert node.ask(sync, handle=bo, direction=1, size=64)[0] == errno.EINVAL


def test_slices_cannot_be_exported_but_buffers_can(client: Client) -> None:
    export = drm.DRM_IOCTL_PRIME_HANDLE_TO_FD
    piece, _ = client.bo(DEV)
    bo, _ = client.bo(SHARE)
    assert client.node.ask(export, handle=piece)[0] == errno.EOPNOTSUPP
    fd = client.node.ok(export, handle=bo, flags=drm.DRM_CLOEXEC).fd
    client.node.kernel.close(fd)


def test_create_hwctx_is_checked(node: Raw) -> None:
    qos = abi.amdxdna_qos_info(priority=0x200)
    good = {"qos_p": ctypes.addressof(qos), "num_tiles": 4}
    assert node.ask(HWCTX, **good, ext=1)[0] == errno.EINVAL
    assert node.ask(HWCTX, **good, ext_flags=1)[0] == errno.EINVAL
    assert node.ask(HWCTX, num_tiles=4)[0] == errno.EFAULT
    assert node.ask(HWCTX, **good)[0] == errno.ENOENT
    client = Client(node)
    columns = 5 if node.kernel.devices[0].name == "amdxdna-npu1" else 8
    for tiles in (0, 3, 4 * columns + 4):
        assert client.context(tiles)[0] == errno.EINVAL
    code, first = client.context(4)
    assert (code, first.handle, first.umq_doorbell) == (0, 1, 2**32 - 1)
    assert first.syncobj_handle == 1
    assert client.context(4)[1].handle == 2
    destroy = abi.DRM_IOCTL_AMDXDNA_DESTROY_HWCTX
    assert node.ask(destroy, handle=1, pad=1)[0] == errno.EINVAL
    assert node.ask(destroy, handle=9)[0] == errno.EINVAL
    assert node.ask(destroy, handle=1)[0] == 0
    assert node.ask(destroy, handle=1)[0] == errno.EINVAL
    # Its timeline stays: it belongs to the program. Numbers go round.
    assert node.ask(drm.DRM_IOCTL_SYNCOBJ_DESTROY, handle=first.syncobj_handle)[0] == 0
    assert client.context(4)[1].handle == 3
    client.close()


def test_a_heap_that_is_not_mapped_or_misplaced_makes_no_context(node: Raw) -> None:
    heap = node.ok(CREATE, size=CHUNK, type=HEAP)
    qos = abi.amdxdna_qos_info()
    good = {"qos_p": ctypes.addressof(qos), "num_tiles": 4}
    assert node.ask(HWCTX, **good)[0] == errno.EAGAIN
    with Raw(node.kernel, NODE) as other:
        client = Client(other, aligned=False)
        assert client.context()[0] == errno.EINVAL
        assert "0x4000003" in node.kernel.log[-1]
        client.close()
    assert heap.handle == 1


def test_contexts_are_rationed_device_wide(node: Raw) -> None:
    limit = 6 if node.kernel.devices[0].name == "amdxdna-npu1" else 16
    client = Client(node)
    with Raw(node.kernel, NODE) as other:
        second = Client(other)
        codes = [(second if i % 2 else client).context(4)[0] for i in range(limit + 1)]
        assert codes == [0] * limit + [errno.EINVAL]
        assert "0x2000003" in node.kernel.log[-1]
        info = abi.amdxdna_drm_get_resource_info()
        size = ctypes.sizeof(info)
        node.ok(GET_INFO, param=12, buffer=ctypes.addressof(info), buffer_size=size)
        assert (info.npu_task_max, info.npu_task_curr) == (limit, limit)
        second.close()
    # What a file had goes with it.
    assert client.context(4)[0] == 0
    client.close()


def test_the_column_solver_of_phoenix_shares_equal_partitions() -> None:
    with no_leak(), Raw(SimKernel(["amdxdna-npu1"]), NODE) as node:
        client = Client(node)
        for tiles in (8, 8, 8, 4):
            code, _ = client.context(tiles)
            assert code == (errno.ENODEV if tiles == 4 else 0)
        rows = (abi.amdxdna_drm_hwctx_entry * 8)()
        answer = node.ok(
            GET_ARRAY, param=0, element_size=144, num_element=8, buffer=ctypes.addressof(rows)
        )
        found = [(row.start_col, row.num_col) for row in rows[: answer.num_element]]
        assert found == [(1, 2), (3, 2), (1, 2)]
        client.close()


def test_config_hwctx_is_checked(client: Client) -> None:
    _, context = client.context()
    pdi, _ = client.bo(DEV)
    share, _ = client.bo(SHARE)
    configure = client.configure
    assert configure(context.handle, pdi, pad=1) == errno.EINVAL
    assert configure(context.handle, pdi, param_type=7) == errno.EINVAL
    assert configure(context.handle, pdi, param_val_size=4097) == errno.E2BIG
    assert configure(context.handle, pdi, param_val=8) == errno.EFAULT
    assert configure(99, pdi) == errno.EINVAL
    assert configure(context.handle) == errno.EINVAL
    assert configure(context.handle, share) == errno.EINVAL
    assert configure(context.handle, 1234) == errno.EINVAL
    assert configure(context.handle, pdi, param_val_size=8) == errno.EINVAL
    assert configure(context.handle, *[pdi] * 33) == errno.EINVAL
    assert configure(context.handle, *[pdi] * 32) == 0
    assert configure(context.handle, pdi) == errno.EINVAL


def test_a_command_runs(ready: Ready) -> None:
    assert ready.submit() == (0, 0)
    assert ready.client.wait(ready.syncobj, 0) == 0
    assert ready.state() is State.COMPLETED
    assert ready.result() == bytes(range(256))
    assert ready.submit() == (0, 1)
    assert ready.client.wait(ready.syncobj, 1) == 0
    assert ready.client.node.kernel.log == []


def test_exec_cmd_is_checked(ready: Ready) -> None:
    client, context = ready.client, ready.context
    submit = client.submit
    for changes in ({"ext": 1}, {"ext_flags": 1}, {"type": 1}, {"cmd_count": 0}, {"cmd_count": 2}):
        assert submit(context, ready.command, ready.code, **changes)[0] == errno.EINVAL
    assert submit(context, ready.command, arg_count=4096)[0] == errno.EINVAL
    assert submit(context, ready.command, args=8, arg_count=1)[0] == errno.EFAULT
    for wrong in (0, 999, ready.code, client.heap):
        assert submit(context, wrong, ready.code)[0] == errno.EINVAL
    assert submit(context, ready.command, 999)[0] == errno.ENOENT
    assert submit(99, ready.command, ready.code)[0] == errno.EINVAL
    assert submit(context, ready.command, ready.code, ready.code)[0] == errno.EALREADY
    # 7.3 takes a command that names no buffer; nothing above used up a number.
    assert submit(context, ready.command) == (0, 0)
    assert client.wait(ready.syncobj, 0) == 0
    wait = abi.DRM_IOCTL_AMDXDNA_WAIT_CMD
    assert client.node.ask(wait, hwctx=context)[0] == errno.EOPNOTSUPP


def test_waits_on_the_timeline(ready: Ready) -> None:
    client = ready.client
    assert client.wait(ready.syncobj, 5, flags=0) == errno.EINVAL
    assert client.wait(ready.syncobj, 5, seconds=0.01) == errno.ETIME
    assert client.wait(ready.syncobj, 5, seconds=0) == errno.ETIME
    assert client.wait(77, 0) == errno.ENOENT
    ready.submit()
    ready.submit()
    assert client.wait(ready.syncobj, 1, flags=2) == 0
    handle, point = ctypes.c_uint32(ready.syncobj), ctypes.c_uint64()
    client.node.ok(
        drm.DRM_IOCTL_SYNCOBJ_QUERY,
        handles=ctypes.addressof(handle),
        points=ctypes.addressof(point),
        count_handles=1,
    )
    assert point.value == 1


def hanging(ready: Ready) -> int:
    """A command whose stream waits for a token that never comes."""
    asm = Assembler()
    asm.noop()
    asm.wait(0, 0)
    stream = asm.finish()
    _, address = ready.stream(stream.to_bytes())
    return ready.packet(instr=address, ninstr=len(stream.words))


def test_a_hang_is_detected_and_the_packet_tells_where(ready: Ready) -> None:
    ready.client.node.kernel.devices[0].tdr_timeout_ms = 1000  # type: ignore[attr-defined]
    command = hanging(ready)
    assert ready.submit(command) == (0, 0)
    assert ready.submit() == (0, 1)
    assert ready.client.wait(ready.syncobj, 1) == 0
    assert ready.state(command) is State.TIMEOUT
    memory = memoryview(ready.client.maps[command])
    record = ert.health(memory)
    assert record is not None
    assert record.txn_op_idx == 1
    assert bytes(memory[36:]) == b"\xff" * (4096 - 36)
    # What was queued behind it went with the mailbox.
    assert ready.state() is State.ABORT
    log = ready.client.node.kernel.log
    assert any("operation 1: no token comes from shim tile (0,0) S2MM channel 0" in t for t in log)
    # The context goes on, with a packet that is built anew.
    ready.client.put(ready.command, 0, ready.image())
    assert ready.submit() == (0, 2)
    assert ready.client.wait(ready.syncobj, 2) == 0
    assert ready.state() is State.COMPLETED
    assert ready.result() == bytes(range(256))
    rows = (abi.amdxdna_drm_hwctx_entry * 1)()
    ready.client.node.ok(
        GET_ARRAY, param=0, element_size=144, num_element=1, buffer=ctypes.addressof(rows)
    )
    assert (rows[0].errors, rows[0].command_submissions, rows[0].txn_op_idx) == (2, 3, 1)


def test_the_fifth_command_waits_for_one_of_four(ready: Ready) -> None:
    ready.client.node.kernel.devices[0].tdr_timeout_ms = 1500  # type: ignore[attr-defined]
    first = hanging(ready)
    others = [ready.packet() for _ in range(4)]
    assert ready.submit(first) == (0, 0)
    for index, command in enumerate(others[:3]):
        assert ready.submit(command) == (0, index + 1)
    answers: list[tuple[int, int]] = []
    thread = threading.Thread(target=lambda: answers.append(ready.submit(others[3])))
    thread.start()
    assert ready.state(first) is State.NEW
    assert answers == []
    thread.join()
    assert answers == [(0, 4)]
    assert ready.client.wait(ready.syncobj, 4) == 0
    assert [ready.state(command) for command in others] == [State.ABORT] * 3 + [State.COMPLETED]


@pytest.mark.parametrize(
    ("image", "why"),
    [
        (b"", "opcode|mask|count"),
        (struct.pack("<II", 1 | 1 << 12 | 18 << 23, 1), "opcode 18"),
        (struct.pack("<III", 1 | 2 << 12, 0, 1), "mask is empty"),
        (struct.pack("<II", 1 | 2047 << 12, 1), "count 2047|"),
        (ert.chain([4000]), "names the buffer 4000"),
    ],
)
def test_what_the_driver_cannot_start_stays_new_and_fails_its_fence(
    ready: Ready, image: bytes, why: str
) -> None:
    ready.client.put(ready.command, 0, image.ljust(4096, b"\0"))
    assert ready.submit() == (0, 0)
    assert ready.client.wait(ready.syncobj, 0) == 0
    assert ready.state() is State.NEW
    assert "is not started" in ready.client.node.kernel.log[-1]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"opcode": 1}, "kernel opcode 1"),
        ({"ninstr": 3}, "12 bytes"),
        ({"ninstr": 9}, "states"),
    ],
)
def test_what_the_firmware_refuses_is_an_error(
    ready: Ready, changes: dict[str, int], why: str
) -> None:
    command = ready.packet(**changes)
    assert ready.submit(command) == (0, 0)
    assert ready.client.wait(ready.syncobj, 0) == 0
    assert ready.state(command) is State.ERROR
    assert bytes(memoryview(ready.client.maps[command])[4:64]) == b"\xff" * 60
    assert why in ready.client.node.kernel.log[-1]


def test_a_unit_that_is_not_configured_is_an_error(ready: Ready) -> None:
    image = bytearray(ready.image())
    struct.pack_into("<I", image, 4, 2)
    ready.client.put(ready.command, 0, bytes(image))
    ready.submit()
    ready.client.wait(ready.syncobj, 0)
    assert ready.state() is State.ERROR
    assert "compute unit 1 is not configured" in ready.client.node.kernel.log[-1]


def test_instructions_outside_the_heap_complete_without_doing_anything(ready: Ready) -> None:
    command = ready.packet(instr=ready.source_at)
    ready.submit(command)
    assert ready.client.wait(ready.syncobj, 0) == 0
    assert ready.state(command) is State.COMPLETED
    assert ready.result() == bytes(256)
    assert "does nothing" in ready.client.node.kernel.log[-1]


def test_data_that_belongs_to_no_buffer_is_a_fault_and_hangs(ready: Ready) -> None:
    command = ready.packet(bo0=0x1000)
    ready.submit(command)
    ready.client.wait(ready.syncobj, 0)
    assert ready.state(command) is State.TIMEOUT
    assert any("IOMMU fault" in text for text in ready.client.node.kernel.log)


def test_a_chain_runs_and_a_failed_one_overwrites_its_first_command(ready: Ready) -> None:
    client = ready.client
    commands = [ready.packet(), ready.packet()]
    chain, _ = client.bo(CMD)
    client.put(chain, 0, ert.chain(commands))
    assert ready.submit(chain) == (0, 0)
    assert client.wait(ready.syncobj, 0) == 0
    assert ready.state(chain) is State.COMPLETED
    bad = ready.packet(opcode=9)
    client.put(chain, 0, ert.chain([commands[0], bad]))
    ready.submit(chain)
    client.wait(ready.syncobj, 1)
    assert ready.state(chain) is State.ERROR
    assert bytes(memoryview(client.maps[commands[0]])[4:32]) == b"\xff" * 28
    assert ert.decode(bytes(memoryview(client.maps[bad]))).cu == 0
    # Two opcodes in one chain: the driver does not start it.
    preempt, _ = client.bo(CMD)
    client.put(preempt, 0, ert.start_npu(0, ready.code_at, 4 * ready.words))
    client.put(chain, 0, ert.chain([ready.packet(), preempt]))
    ready.submit(chain)
    client.wait(ready.syncobj, 2)
    assert ready.state(chain) is State.NEW


def test_start_npu_and_preempt_run_a_stream(ready: Ready) -> None:
    arguments = [
        half
        for address in (ready.source_at, ready.target_at)
        for half in (address & 0xFFFFFFFF, address >> 32)
    ]
    size = 4 * ready.words
    for image in (
        ert.start_npu(0, ready.code_at, size, arguments),
        ert.preempt(0, (ready.code_at, size), (0, 4), (0, 4), arguments),
    ):
        ready.client.put(ready.target, 0, bytes(256))
        command, _ = ready.client.bo(CMD)
        ready.client.put(command, 0, image)
        _, seq = ready.submit(command)
        ready.client.wait(ready.syncobj, seq or 1, seconds=2) if seq else ready.client.wait(
            ready.syncobj, 0
        )
        assert ready.state(command) is State.COMPLETED
        assert ready.result() == bytes(range(256))


def test_phoenix_has_no_preemption() -> None:
    with no_leak(), Raw(SimKernel(["amdxdna-npu1"]), NODE) as node:
        client = Client(node)
        ready = Ready(client)
        image = ert.preempt(0, (ready.code_at, 4), (0, 4), (0, 4))
        client.put(ready.command, 0, image)
        ready.submit()
        client.wait(ready.syncobj, 0)
        assert ready.state() is State.NEW
        client.close()
        del ready


def test_unmapping_or_closing_under_a_command_is_noticed(ready: Ready) -> None:
    ready.client.node.kernel.devices[0].tdr_timeout_ms = 60_000  # type: ignore[attr-defined]
    ready.submit(hanging(ready))
    log = ready.client.node.kernel.log
    # Addresses are known once the packet is taken apart, which is a thread's work.
    wait_until(lambda: any("command 0 hangs" in text for text in log), 10)
    ready.client.node.ok(drm.DRM_IOCTL_GEM_CLOSE, handle=ready.source)
    ready.client.node.kernel.munmap(ready.client.maps.pop(ready.target))
    # The image that configures the context, too, is read for as long as a command runs.
    ready.client.node.ok(drm.DRM_IOCTL_GEM_CLOSE, handle=ready.pdi)
    for handle in (ready.source, ready.pdi):
        assert any(f"buffer {handle} is closed while a command uses" in text for text in log)
    assert any("are unmapped while a command uses them" in text for text in log)


def test_ending_a_context_aborts_what_is_left(ready: Ready) -> None:
    ready.client.node.kernel.devices[0].tdr_timeout_ms = 60_000  # type: ignore[attr-defined]
    command = hanging(ready)
    ready.submit(command)
    destroy = abi.DRM_IOCTL_AMDXDNA_DESTROY_HWCTX
    assert ready.client.node.ask(destroy, handle=ready.context)[0] == 0
    assert ready.client.wait(ready.syncobj, 0) == 0
    assert ready.state(command) is State.ABORT
    assert ready.submit()[0] == errno.EINVAL


def test_get_info(node: Raw) -> None:
    strix = node.kernel.devices[0].name == "amdxdna"

    def ask(param: int, cls: Any, size: int | None = None) -> Any:
        answer = cls()
        size = ctypes.sizeof(cls) if size is None else size
        node.ok(GET_INFO, param=param, buffer=ctypes.addressof(answer), buffer_size=size)
        return answer

    meta = ask(1, abi.amdxdna_drm_query_aie_metadata)
    assert (meta.cols, meta.rows, meta.core.row_count) == (8 if strix else 5, 6, 4)
    assert ask(1, abi.amdxdna_drm_query_aie_metadata, 4).cols == 0
    assert ask(2, abi.amdxdna_drm_query_aie_version).major == 2
    clocks = ask(3, abi.amdxdna_drm_query_clock_metadata)
    assert clocks.h_clock.freq_mhz == (1800 if strix else 1600)
    assert ask(8, abi.amdxdna_drm_query_firmware_version).major == 1
    assert ask(9, abi.amdxdna_drm_get_power_mode).power_mode == 0
    for param in (6, 7, 14, 99):
        assert node.ask(GET_INFO, param=param)[0] == errno.EOPNOTSUPP
    for param in (11, 13):
        answer = abi.amdxdna_drm_attribute_state()
        fields = {"buffer": ctypes.addressof(answer), "buffer_size": 8}
        code, _ = node.ask(GET_INFO, param=param, **fields)
        assert code == (0 if strix else errno.EOPNOTSUPP)
    sensors = (abi.amdxdna_drm_query_sensor * 16)()
    answer = node.ok(
        GET_INFO, param=4, buffer=ctypes.addressof(sensors), buffer_size=ctypes.sizeof(sensors)
    )
    assert answer.buffer_size == 168 * (1 + meta.cols)
    assert bytes(sensors[0].label).startswith(b"Total Power\0")
    # As the driver has it: milliwatts, and the power of ten that makes them watts.
    assert (bytes(sensors[0].units).rstrip(b"\0"), sensors[0].unitm) == (b"mW", -3)
    assert sensors[0].input == 300
    answer = node.ok(GET_INFO, param=4, buffer=ctypes.addressof(sensors), buffer_size=167)
    assert answer.buffer_size == 0
    assert node.ask(GET_INFO, param=1, buffer=8, buffer_size=64)[0] == errno.EFAULT
    room = ctypes.create_string_buffer(256)
    fields = {"param": 10, "buffer": ctypes.addressof(room)}
    assert node.ask(GET_INFO, **fields, buffer_size=16)[0] == errno.EINVAL
    assert node.ask(GET_INFO, **fields, buffer_size=256)[0] == 0
    assert struct.unpack_from("<I", room.raw, 12)[0] == (16 if strix else 6)


def test_contexts_are_known_by_their_files_number_and_by_the_firmwares(client: Client) -> None:
    """The first counts from 1 in each file, the second from 0 on the device."""
    node = client.node
    with Raw(node.kernel, NODE) as second:
        other = Client(second)
        own = [client.context()[1].handle for _ in range(2)]
        theirs = other.context()[1].handle
        assert (own, theirs) == ([1, 2], 1)
        node.ok(abi.DRM_IOCTL_AMDXDNA_DESTROY_HWCTX, handle=1)
        # The firmware's number 0 is free again; the file counts on.
        assert client.context()[1].handle == 3
        rows = (abi.amdxdna_drm_hwctx_entry * 4)()
        size = ctypes.sizeof(abi.amdxdna_drm_hwctx_entry)
        fields = {"buffer": ctypes.addressof(rows)}
        answer = node.ok(GET_ARRAY, param=0, element_size=size, num_element=4, **fields)
        seen = {(row.context_id, row.hwctx_id) for row in rows[: answer.num_element]}
        assert seen == {(2, 1), (1, 2), (3, 0)}
        # The older question is answered with the room that is left.
        short = ctypes.sizeof(abi.amdxdna_drm_query_hwctx)
        for room, count in ((10 * short + 5, 3), (2 * short + 5, 2), (short - 1, 0)):
            space = ctypes.create_string_buffer(room)
            fields = {"buffer": ctypes.addressof(space), "buffer_size": room}
            assert node.ok(GET_INFO, param=5, **fields).buffer_size == room - count * short
        space = ctypes.create_string_buffer(256)
        node.ok(GET_INFO, param=10, buffer=ctypes.addressof(space), buffer_size=256)
        assert struct.unpack_from("<16I", space.raw, 16) == (3, 2, 1, *[0] * 13)
        other.close()


def test_get_array_and_the_memory_of_a_process(client: Client) -> None:
    node = client.node
    for fields in ({"pad": 1}, {"num_element": 0}, {"element_size": 0}):
        good = {"param": 0, "element_size": 144, "num_element": 1}
        assert node.ask(GET_ARRAY, **{**good, **fields})[0] == errno.EINVAL
    assert node.ask(GET_ARRAY, param=1, element_size=8, num_element=1)[0] == errno.EOPNOTSUPP
    assert node.ok(GET_ARRAY, param=2, element_size=24, num_element=1).num_element == 0
    client.bo(SHARE, 8192)
    client.bo(CMD)
    client.bo(DEV)
    usage = abi.amdxdna_drm_bo_usage(pid=os.getpid())
    fields = {"param": 6, "element_size": 32, "buffer": ctypes.addressof(usage)}
    node.ok(GET_ARRAY, **fields, num_element=1)
    assert usage.total_usage == CHUNK + 8192 + 4096
    assert (usage.internal_usage, usage.heap_usage) == (CHUNK + 4096, 4096)
    assert node.ask(GET_ARRAY, **fields, num_element=2)[0] == errno.EINVAL
    usage.pid = 0
    assert node.ask(GET_ARRAY, **fields, num_element=1)[0] == errno.EINVAL


def test_set_state(strix: Raw) -> None:
    request = abi.DRM_IOCTL_AMDXDNA_SET_STATE
    mode = abi.amdxdna_drm_set_power_mode(power_mode=4)
    fields = {"param": 0, "buffer": ctypes.addressof(mode), "buffer_size": 8}
    code, _ = strix.ask(request, **fields)
    if os.geteuid():
        assert code == errno.EACCES
        return
    assert code == 0
    answer = abi.amdxdna_drm_get_power_mode()
    strix.ok(GET_INFO, param=9, buffer=ctypes.addressof(answer), buffer_size=8)
    assert answer.power_mode == 4
    mode.power_mode = 5
    assert strix.ask(request, **fields)[0] == errno.EINVAL
    assert strix.ask(request, **{**fields, "param": 1})[0] == errno.EOPNOTSUPP


def test_results_of_two_contexts_do_not_mix(client: Client) -> None:
    first, second = Ready(client), Ready(client, designs.memcpy(128))
    client.put(second.source, 0, b"\x55" * 256)
    for ready in (first, second):
        ready.submit()
    for ready in (first, second):
        assert client.wait(ready.syncobj, 0) == 0
        assert ready.state() is State.COMPLETED
    assert first.result() == bytes(range(256))
    assert second.result() == b"\x55" * 128 + bytes(128)
    assert np.count_nonzero(np.frombuffer(second.result(), np.uint8)) == 128


def test_strict_mode_tells_the_caller_what_the_driver_would_hide() -> None:
    with no_leak(), Raw(SimKernel(["amdxdna"], strict=True), NODE) as node:
        client = Client(node)
        ready = Ready(client)
        ready.submit()
        assert client.wait(ready.syncobj, 0) == 0
        with pytest.raises(ProgramError, match="would complete and do nothing"):
            ready.submit(ready.packet(instr=ready.source_at))
        client.put(ready.command, 0, bytes(4096))
        with pytest.raises(ProgramError, match="will not start this"):
            ready.submit()
        # A hang is not waited for.
        hung = hanging(ready)
        ready.submit(hung)
        assert client.wait(ready.syncobj, 1) == 0
        assert ready.state(hung) is State.TIMEOUT
        client.close()
        del ready
