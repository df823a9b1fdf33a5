# SPDX-License-Identifier: MIT
"""What jobs are made of in the buffers that another process has mapped: a plain file is its node,
and its requests are told as if a driver had answered them."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from ctypes import addressof
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

import npukit.trace.outside as outside_module
from npukit.abi import amdxdna, dma_heap, fastrpc, rknpu, rocket
from npukit.trace.contents import CHUNK, Contents
from npukit.trace.interpret import error_name
from npukit.trace.outside import Outside, What
from npukit.trace.record import PACKET, REGCMD, Block, Memory, Record
from npukit.trace.summary import pair_submits, summarize

WORDS = [0x0201_0000_0000_0000 | n << 16 | 0x1010 for n in range(40)]
ROCKET = [
    ("create", rocket.DRM_IOCTL_ROCKET_CREATE_BO),
    ("submit", rocket.DRM_IOCTL_ROCKET_SUBMIT),
]
RKNPU = [
    ("create 1", rknpu.DRM_IOCTL_RKNPU_MEM_CREATE),
    ("create 2", rknpu.DRM_IOCTL_RKNPU_MEM_CREATE),
    ("map 1", rknpu.DRM_IOCTL_RKNPU_MEM_MAP),
    ("map 2", rknpu.DRM_IOCTL_RKNPU_MEM_MAP),
    ("submit", rknpu.DRM_IOCTL_RKNPU_SUBMIT),
]
AMDXDNA = [
    ("create", amdxdna.DRM_IOCTL_AMDXDNA_CREATE_BO),
    ("info", amdxdna.DRM_IOCTL_AMDXDNA_GET_BO_INFO),
    ("submit", amdxdna.DRM_IOCTL_AMDXDNA_EXEC_CMD),
]


class Client:
    """A process with jobs in its memory and in a file that it has mapped."""

    def __init__(self, node: Path) -> None:
        node.touch()
        self.node = node
        self.process = subprocess.Popen(
            [sys.executable, ROOT / "tests/clients/nested.py", node, "jobs"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.addresses: dict[str, int] = json.loads(self.process.stdout.readline())

    def ask(
        self, driver: str, requests: list[tuple[str, Any]], contents: Contents | None = None
    ) -> Block:
        """Tell an Outside of the requests; the last one's structure as it was sent."""
        name = "amdxdna" if driver.startswith("amdxdna") else driver.lower()
        found = os.stat(self.node)
        what = What(driver, str(self.node), os.O_RDWR, (found.st_dev, found.st_ino, 0))
        records: list[Record] = []
        outside = Outside(records.append, contents=contents)
        for number, (which, request) in enumerate(requests):
            address = self.addresses[f"{name} {which}"]
            pid = self.process.pid
            asked = outside.begins((pid, 3), pid, what, int(request), address, number)
            outside.ended(asked, number, number, 0, 0)
        sent = records[-1].sent
        assert sent is not None
        assert [record.errno for record in records] == [""] * len(records)
        return sent


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    client = Client(tmp_path_factory.mktemp("node") / "node")
    yield client
    client.process.communicate(timeout=20)


def only(memory: Memory) -> Block:
    assert memory.content is not None
    (block,) = memory.content
    assert isinstance(block, Block)
    return block


def test_register_commands_of_rocket(client: Client) -> None:
    submit = client.ask("rocket", ROCKET)
    task = only(only(submit.memory["jobs"]).memory["tasks"])
    assert task.memory["regcmd"] == Memory(REGCMD, 0x11010, 6, WORDS[2:8])


def test_task_table_and_register_commands_of_rknpu(client: Client) -> None:
    submit = client.ask("rknpu", RKNPU)
    task = only(submit.memory["task_obj_addr"])
    assert (task.fields["enable_mask"], task.fields["regcfg_amount"]) == (13, 8)
    # Four words more than the table counts: those that start the blocks.
    assert task.memory["regcmd_addr"] == Memory(REGCMD, 0x20000, 12, WORDS[:12])


def test_packet_of_amdxdna(client: Client) -> None:
    submit = client.ask("amdxdna_accel_driver", AMDXDNA)
    packet = b"\x03\x20\0\x30\x02\0\0\0\x11\x22\x33\x44"
    assert submit.memory["cmd_handles"] == Memory(PACKET, 0x7F0000000000, 12, packet)


def test_what_the_buffers_held(client: Client) -> None:
    submit = client.ask("rocket", ROCKET, Contents())
    with client.node.open("rb") as file:
        file.seek(1 << 32)
        data = file.read()
    assert [(c.handle, c.offset, c.content) for c in submit.data] == [
        (1, offset, data[offset : offset + CHUNK]) for offset in (0, CHUNK)
    ]
    submit = client.ask("rknpu", RKNPU, Contents())
    assert [(c.handle, c.offset, c.content) for c in submit.data] == [
        (1, 0, data[:CHUNK]), (2, 0, data[CHUNK:])
    ]  # fmt: skip


def test_a_process_that_has_died_is_read_no_more(tmp_path: Path) -> None:
    client = Client(tmp_path / "node")
    client.process.communicate(timeout=20)
    records: list[Record] = []
    outside = Outside(records.append)
    what = What("rocket", str(client.node), os.O_RDWR, (1, 2, 0))
    asked = outside.begins(
        (client.process.pid, 3), 1, what, int(rocket.DRM_IOCTL_ROCKET_SUBMIT), 4096, 0
    )
    outside.ended(asked, 0, 0, -1, 0, lost=True)
    assert records[-1].sent is None
    assert records[-1].hint == "the thread died in the call"


def test_a_dma_buf_is_read_through_its_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A memfd stands for the dma-buf: its link is not one, so what tells dma-bufs is told so."""
    memory = os.memfd_create("stands for a dma-buf")
    page = bytes(range(256)) * 16
    os.write(memory, bytes(4096) + page)
    allocation = dma_heap.dma_heap_allocation_data(len=8192, fd=0, fd_flags=os.O_RDWR)
    call = fastrpc.fastrpc_invoke(handle=0x100, sc=0)
    heap = What("dma_heap", "/dev/dma_heap/system", os.O_RDWR, (1, 1, 0))
    dsp = What("fastrpc", "/dev/fastrpc-cdsp", os.O_RDWR, (1, 2, 0))

    def invoke() -> Block:
        allocation.fd = 0
        records: list[Record] = []
        outside = Outside(records.append, contents=Contents())
        pid = os.getpid()
        asked = outside.begins(
            (pid, 1000), pid, heap, int(dma_heap.DMA_HEAP_IOCTL_ALLOC), addressof(allocation), 1
        )
        allocation.fd = memory
        outside.ended(asked, 1, 1, 0, 0)
        request = int(fastrpc.FASTRPC_IOCTL_INVOKE)
        asked = outside.begins((pid, 1001), pid, dsp, request, addressof(call), 2)
        outside.ended(asked, 2, 2, 0, 0)
        assert records[-1].sent is not None
        return records[-1].sent

    # Whatever else has the number is not touched: a device's mmap may do anything.
    assert invoke().data == []
    monkeypatch.setattr(outside_module, "_is_dma_buf", lambda pid, fd: fd == memory)
    # Its first page holds zeros, which are not told.
    assert [(c.handle, c.offset, c.content) for c in invoke().data] == [(memory, 4096, page)]
    os.close(memory)
    assert invoke().data == []


def test_an_answer_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    """What was sent is not the buffer object that the driver made."""
    client = Client(tmp_path / "node")
    client.process.communicate(timeout=20)
    records: list[Record] = []
    outside = Outside(records.append)
    create, pid = rocket.DRM_IOCTL_ROCKET_CREATE_BO, client.process.pid
    what = What("rocket", str(client.node), os.O_RDWR, (1, 2, 0))
    sent = bytes(rocket.drm_rocket_create_bo(size=4096))
    for code, lost in ((0, False), (0, True), (errno.ENOMEM, False)):
        asked = outside.begins((pid, 3), 1, what, int(create), 4096, 0, sent)
        outside.ended(asked, 0, 0, -1 if code or lost else 0, code, lost=lost)
    assert [(record.result, record.errno, record.hint) for record in records[1:]] == [
        (-1, "", "what the call gave cannot be read"),
        (-1, "", "the thread died in the call"),
        (-1, "ENOMEM", records[-1].hint),
    ]
    assert outside.buffers.all == summarize(records).buffers == []
    submit = Block("fastrpc_invoke", fastrpc.fastrpc_invoke().asdict())
    request = fastrpc.FASTRPC_IOCTL_INVOKE
    invoke = Record("ioctl", 0, 0, 1, 1, 3, "fastrpc", {}, int(request), request.name, submit)
    assert len(pair_submits([invoke])) == 1
    assert pair_submits([replace(invoke, result=-1)]) == []


def test_errors_have_the_names_of_the_kernel() -> None:
    """Where Python has another of the same number, or none."""
    names = [error_name(code) for code in (0, 35, 95, 524, 512, 9999)]
    assert names == ["", "EDEADLK", "EOPNOTSUPP", "ENOTSUPP", "ERESTARTSYS", "9999"]
