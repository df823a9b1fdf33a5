# SPDX-License-Identifier: MIT
"""Records of ioctls, whoever saw them."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import Any, cast

from npukit.abi import hexagon, rknpu
from npukit.devices.discover import DRIVABLE
from npukit.ioctl import Ioctl
from npukit.ioctl.errors import error_name

from .buffers import Bo, Buffers
from .contents import Contents
from .follow import LIMIT, Follower, blocks, fills, request_of
from .meaning import MODULES, REGCMDS
from .record import PACKET, REGCMD, Block, Chunk, Key, Memory, Record
from .summary import NONBLOCK, numbers, written

_DRIVERS = {module: driver for driver, module in MODULES.items()}
_XDNA = "amdxdna_accel_driver"
_CACHEABLE = rknpu.RKNPU_MEM_CACHEABLE
_FROM_DEVICE = rknpu.RKNPU_MEM_SYNC_FROM_DEVICE
_SUBMITS = frozenset(
    {"rknpu_submit", "drm_rocket_submit", "amdxdna_drm_exec_cmd", "fastrpc_invoke"}
)
_LISTENERS = frozenset({hexagon.HANDLE_LISTENER, hexagon.HANDLE_LISTENER1})
_WAITS = frozenset({"drm_rocket_prep_bo", "amdxdna_drm_wait_cmd", "drm_syncobj_timeline_wait"})


class Interpreter:
    """Takes ioctls apart, before and after the call.

    ``buffers`` is what is known of buffer objects, files and mappings. ``limit`` is how many bytes
    are read for one call. ``contents`` records what buffer objects hold, in addition to that: at
    each submit all that can be read of its open file, and at the end of the wait what the job may
    have written (rocket: its output buffers, amdxdna: its packet and arguments, rknpu: each
    that is synchronized for the CPU, and at the end of a submit that waits what is not cached;
    FastRPC: the dma-bufs of the process, at both ends of a call).
    """

    def __init__(self, limit: int = LIMIT, contents: Contents | None = None) -> None:
        self.buffers = Buffers()
        self._contents = contents
        self._due: set[Bo] = set()
        self._jobs: dict[Key, list[tuple[frozenset[int], frozenset[int]]]] = {}
        """Of what was submitted: the buffer objects whose wait tells its end (none: any wait), and
        those that it may write."""
        self.drivers: dict[Key, str] = {}
        """Process and descriptor -> the driver that serves it."""
        self._limit = limit

    def read(self, pid: int, address: int, size: int) -> bytes | None:
        """Memory of a process; None when not all can be read."""
        raise NotImplementedError

    def read_buffer(self, pid: int, bo: Bo, offset: int, size: int) -> bytes | None:
        """Memory of a buffer object; None where it cannot be read."""
        raise NotImplementedError

    def request(self, file: Key, number: int) -> Ioctl | None:
        """The request that a number is for a file."""
        if isinstance(number, Ioctl):
            return number
        return request_of(self.drivers.get(file, ""), number)

    def before(self, file: Key, ctype: Any, data: bytes) -> Block:
        """An ioctl's structure and all that it leads to, as they are sent."""
        pid = file[0]
        follower = Follower(lambda address, size: self.read(pid, address, size), self._limit)
        block = follower.sent(ctype, data)
        if block.struct == "rknpu_submit":
            block.memory["task_obj_addr"] = self._table(file, block, follower, before=True)
        elif block.struct == "amdxdna_drm_exec_cmd" and block.fields["cmd_count"] == 1:
            handle = block.fields["cmd_handles"]
            block.memory["cmd_handles"] = self._packet(file, handle, follower)
        domain = block.fields.get("iommu_domain_id")
        for inner in blocks(block):
            if inner.struct in REGCMDS:
                pointer, counter, more = REGCMDS[inner.struct]
                address, count = inner.fields[pointer], inner.fields[counter] + more
                size = 8 * follower.take(count, 8)
                data_ = self._device(file, self.buffers.at(file, address, domain), address, size)
                words = None if data_ is None else memoryview(data_).cast("Q").tolist()
                inner.memory[pointer] = Memory(REGCMD, address, count, words)
        if self._contents is not None and block.struct in _SUBMITS:
            self._contents.forget_ended()
            self._due = {bo for bo in self._due if bo.ended_ns is None}
            block.data.extend(self._changes(file, self._given(file, block)))
            if block.struct == "drm_rocket_submit":
                outputs = written(block)
                self._jobs.setdefault(file, []).append((outputs, outputs))
            elif block.struct == "amdxdna_drm_exec_cmd":
                used = frozenset((block.fields["cmd_handles"], *numbers(block, "args")))
                self._jobs.setdefault(file, []).append((frozenset(), used))
            elif block.struct == "rknpu_submit":
                self._jobs[file] = []
        return block

    def _given(self, file: Key, submit: Block) -> list[Bo]:
        """The buffer objects that a job may read."""
        if submit.struct == "fastrpc_invoke":
            if submit.fields["handle"] in _LISTENERS:
                # It serves the DSP meanwhile, and does not give it work.
                return []
            return self.buffers.shared(file[0])
        known = self.buffers.files.get(file)
        return list(known.bos.values()) if known else []

    def _changes(self, file: Key, bos: Iterable[Bo]) -> Iterator[Chunk]:
        """What buffer objects hold otherwise than was told, as far as they can be read."""
        assert self._contents is not None
        for bo in bos:
            # A slice of amdxdna's heap has no place of its own.
            if bo.offset is not None or bo.driver != _XDNA:
                read = functools.partial(self.read_buffer, file[0], bo)
                yield from self._contents.changes(bo, read)

    def _written(self, file: Key, bos: list[Bo]) -> Iterator[Chunk]:
        """The same of what a job was to write. What cannot be read yet is told once mapped."""
        self._due.update(bo for bo in bos if self.read_buffer(file[0], bo, 0, 1) is None)
        return self._changes(file, bos)

    def shown(self, record: Record) -> Record:
        """A finished call that ``buffers`` knows of, with the job's output that a mapping shows."""
        _length, bo = self.buffers.maps.get((record.pid, record.result), (0, None))
        if record.call != "mmap" or record.errno or bo is None or bo not in self._due:
            return record
        self._due.discard(bo)
        data = list(self._changes(bo.file, [bo]))
        return dataclasses.replace(record, received=Block("", {}, {}, data))

    def _finished(self, file: Key, sent: Block) -> Iterator[Chunk]:
        """What the jobs have written that a request is told to be done."""
        if sent.struct == "rknpu_submit" and not sent.fields["flags"] & NONBLOCK:
            # What the CPU caches is of the job only once it is synchronized.
            bos = [bo for bo in self._given(file, sent) if not bo.flags & _CACHEABLE]
            yield from self._written(file, bos)
        elif sent.struct == "fastrpc_invoke":
            yield from self._written(file, self._given(file, sent))
        elif sent.struct == "rknpu_mem_sync" and sent.fields["flags"] == _FROM_DEVICE:
            bo = self.buffers.named(file, sent.fields["obj_addr"])
            yield from self._written(file, [bo] if bo and file in self._jobs else [])
        elif sent.struct in _WAITS:
            left = []
            for job in self._jobs.pop(file, ()):
                names, outputs = job
                if names and sent.fields.get("handle") not in names:
                    left.append(job)
                else:
                    named = [self.buffers.of(file, handle) for handle in sorted(outputs)]
                    yield from self._written(file, [bo for bo in named if bo is not None])
            self._jobs[file] = left

    def after(
        self, file: Key, ctype: Any, image: bytes, data: bytes, sent: Block, failed: bool
    ) -> Block | None:
        """The same as they came back; None where nothing changed. ``image`` and ``data`` are the
        structure's bytes before and after."""
        block = self._after(file, ctype, image, data, sent, failed)
        if self._contents is not None and not failed:
            found = list(self._finished(file, sent))
            if found:
                fields = sent.fields if block is None else block.fields
                memory = {} if block is None else block.memory
                return Block(sent.struct, fields, memory, found)
        return block

    def _after(
        self, file: Key, ctype: Any, image: bytes, data: bytes, sent: Block, failed: bool
    ) -> Block | None:
        if data == image and not fills(ctype) and sent.struct != "rknpu_submit":
            return None
        pid = file[0]
        follower = Follower(lambda address, size: self.read(pid, address, size), self._limit)
        if failed:
            block = follower.failed(ctype, data)
        else:
            block = follower.received(ctype, data, sent)
        if block.struct == "rknpu_submit":
            block.memory["task_obj_addr"] = self._table(file, block, follower, before=False)
        return None if block.fields == sent.fields and not block.memory else block

    def _table(self, file: Key, submit: Block, follower: Follower, *, before: bool) -> Memory:
        """The task table of an rknpu job, up to the last task that a core is given."""
        rknpu_task = rknpu.rknpu_task
        fields, size = submit.fields, ctypes.sizeof(rknpu_task)
        windows = [(fields["task_start"], fields["task_number"])]
        windows += [(w["task_start"], w["task_number"]) for w in fields["subcore_task"]]
        count = max(start + number for start, number in windows)
        name = fields["task_obj_addr"]
        bo = self.buffers.named(file, name)
        taken = follower.take_structs(min(count, bo.size // size if bo else 0), size)
        data = self._device(file, bo, bo.dma if bo and bo.dma is not None else 0, taken * size)
        tasks: list[Block] | None = None
        if data is not None:
            rows = (data[at : at + size] for at in range(0, len(data), size))
            look = follower.sent if before else lambda kind, row: follower.received(kind, row, None)
            tasks = [look(rknpu_task, row) for row in rows]
        return Memory("rknpu_task", name, count, tasks)

    def _packet(self, file: Key, handle: int, follower: Follower) -> Memory:
        """The ERT packet in a command buffer: its header word counts the words that follow."""
        bo = self.buffers.of(file, handle)
        at = bo.dma if bo and bo.dma is not None else 0
        head = self._device(file, bo, at, 4)
        size = 4 + 4 * (int.from_bytes(head, "little") >> 12 & 0x7FF) if head else 4
        return Memory(PACKET, at, size, self._device(file, bo, at, follower.take(size, 1)))

    def _device(self, file: Key, bo: Bo | None, address: int, size: int) -> bytes | None:
        """Memory at a device address."""
        offset = address - (bo.dma or 0) if bo else 0
        if bo is None or offset + size > bo.size:
            return None
        return self.read_buffer(file[0], bo, offset, size)

    def ioctl(
        self,
        file: Key,
        number: int,
        sent: Block | None,
        after: Block | None,
        code: int,
        **more: Any,
    ) -> Record:
        """The record of an ioctl that has ended with the errno ``code``. ``more`` are the times,
        the thread, the result, the arguments and a hint in place of the driver's rule."""
        request = self.request(file, number)
        driver = self.drivers.get(file, "")
        if request is not None and request.name == "DRM_IOCTL_VERSION" and after and not code:
            name = after.memory.get("name")
            if name is not None and isinstance(name.content, bytes) and name.content.isascii():
                driver = driver or name.content.decode()
        if not driver and request is not None and request.struct is not None:
            driver = _DRIVERS.get(request.struct.__module__.rpartition(".")[2], "")
        if not more.get("hint"):
            more["hint"] = _rule(driver, request, code)
        return Record(
            "ioctl",
            pid=file[0],
            fd=file[1],
            driver=driver,
            number=int(number) & 0xFFFFFFFF,
            request=request.name if request else "",
            sent=sent,
            received=after,
            errno=error_name(code),
            **more,
        )


def _rule(driver: str, request: Ioctl | None, code: int) -> str:
    """The rule behind an error, as the driver's class knows it."""
    kind = DRIVABLE.get(driver)
    if not code or kind is None or request is None:
        return ""
    # explain() is told all it needs; it looks at no device.
    return kind.explain(cast(Any, None), request, code) or ""
