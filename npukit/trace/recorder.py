# SPDX-License-Identifier: MIT
"""Records of the calls that this process makes through a TracingKernel."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Self, TextIO, cast

from npukit._fast import Mapping
from npukit.devices.discover import DRIVABLE
from npukit.ioctl import Ioctl, Kernel, KernelCall, Struct, TracingKernel, Union
from npukit.ioctl.memory import OwnMemory

from .buffers import Bo, Buffers
from .follow import LIMIT, Follower, blocks, fills, request_of
from .meaning import MODULES, NODES, REGCMDS
from .record import PACKET, REGCMD, Block, Memory, Record, write_header

_ARGUMENTS = {
    "open": ("path", "flags"),
    "close": (),
    "dup": (),
    "mmap": ("length", "offset", "prot", "flags"),
    "fstat": (),
    "lseek": ("offset", "whence"),
    "memfd_create": ("name", "flags"),
    "ftruncate": ("length",),
    "fcntl": ("command", "arg"),
}
"""The names of each call's arguments, without the descriptor with which most begin."""
_WITHOUT_FD = frozenset({"open", "memfd_create", "poll", "munmap"})
_WITHOUT_RESULT = frozenset({"close", "munmap", "ftruncate"})
_DRIVERS = {module: driver for driver, module in MODULES.items()}


class Recorder:
    """Makes a Record of each call that passes ``kernel(...)`` and hands it to ``sink``.

        with Recorder(to_file(file)) as recorder:
            device = RocketDevice(path, recorder.kernel(LinuxKernel()))

    Memory that the kernel reads is read before the call, memory that it fills after it. What a job
    is made of (task tables, register commands, packets) is found through the buffer objects that
    the process has mapped. ``limit`` is how many bytes are read for one call. A bad pointer is
    shown as such. ``buffers`` is what is known of buffer objects, files and mappings.

    Synchronization: any number of threads; the sink is called by one at a time, in the order in
    which the calls ended.
    """

    def __init__(self, sink: Callable[[Record], object], limit: int = LIMIT) -> None:
        self.buffers = Buffers()
        self._sink = sink
        self._limit = limit
        self._memory = OwnMemory()
        self._lock = threading.RLock()
        self._drivers: dict[int, str] = {}
        self._mappings: weakref.WeakValueDictionary[int, Mapping] = weakref.WeakValueDictionary()

    def kernel(self, kernel: Kernel) -> TracingKernel:
        """``kernel``, recorded."""
        return TracingKernel(kernel, self._ended, self._begins)

    def close(self) -> None:
        """Let go of what following pointers took."""
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _begins(self, name: str, arguments: tuple[Any, ...]) -> tuple[Block, bytes] | int | None:
        """What must be looked at before the call: a structure, or where a mapping is."""
        if name == "munmap":
            return int(arguments[0].address)
        if name != "ioctl":
            return None
        fd, number, arg = arguments
        with self._lock:
            ctype, data = self._argument(fd, number, arg)
            if data is None:
                return None
            follower = Follower(self._memory.read, self._limit)
            block = follower.sent(ctype, data)
            self._follow_device(fd, block, follower)
        return block, data

    def _argument(self, fd: int, number: int, arg: Any) -> tuple[Any, bytes | None]:
        """An ioctl's structure: its type and bytes; None where it has none that can be read."""
        request = self._request(fd, number)
        if isinstance(arg, (Struct, Union)):
            return type(arg), bytes(arg)
        if request is None or request.struct is None or arg is None:
            return None, None
        if isinstance(arg, int):
            return request.struct, self._memory.read(arg, ctypes.sizeof(request.struct))
        return request.struct, bytes(arg)

    def _request(self, fd: int, number: int) -> Ioctl | None:
        if isinstance(number, Ioctl):
            return number
        return request_of(self._drivers.get(fd, ""), number)

    def _follow_device(self, fd: int, block: Block, follower: Follower) -> None:
        """Add what lies in buffer objects: task tables, register commands, packets."""
        if block.struct == "rknpu_submit":
            block.memory["task_obj_addr"] = self._table(fd, block, follower, before=True)
        elif block.struct == "amdxdna_drm_exec_cmd" and block.fields["cmd_count"] == 1:
            block.memory["cmd_handles"] = self._packet(fd, block.fields["cmd_handles"], follower)
        domain = block.fields.get("iommu_domain_id")
        for inner in blocks(block):
            if inner.struct in REGCMDS:
                pointer, counter, more = REGCMDS[inner.struct]
                address, count = inner.fields[pointer], inner.fields[counter] + more
                size = 8 * follower.take(count, 8)
                data = self._read(self.buffers.at(fd, address, domain), address, size)
                words = None if data is None else memoryview(data).cast("Q").tolist()
                inner.memory[pointer] = Memory(REGCMD, address, count, words)

    def _table(self, fd: int, submit: Block, follower: Follower, *, before: bool) -> Memory:
        """The task table of an rknpu job, up to the last task that a core is given."""
        from npukit.abi.rknpu import rknpu_task

        fields, size = submit.fields, ctypes.sizeof(rknpu_task)
        windows = [(fields["task_start"], fields["task_number"])]
        windows += [(w["task_start"], w["task_number"]) for w in fields["subcore_task"]]
        count = max(start + number for start, number in windows)
        name = fields["task_obj_addr"]
        bo = self.buffers.named(fd, name)
        taken = follower.take_structs(min(count, bo.size // size if bo else 0), size)
        data = self._read(bo, bo.dma if bo and bo.dma is not None else 0, taken * size)
        tasks: list[Block] | None = None
        if data is not None:
            rows = (data[at : at + size] for at in range(0, len(data), size))
            look = follower.sent if before else lambda kind, row: follower.received(kind, row, None)
            tasks = [look(rknpu_task, row) for row in rows]
        return Memory("rknpu_task", name, count, tasks)

    def _packet(self, fd: int, handle: int, follower: Follower) -> Memory:
        """The ERT packet in a command buffer: its header word counts the words that follow."""
        bo = self.buffers.of(fd, handle)
        at = bo.dma if bo and bo.dma is not None else 0
        head = self._read(bo, at, 4)
        size = 4 + 4 * (int.from_bytes(head, "little") >> 12 & 0x7FF) if head else 4
        return Memory(PACKET, at, size, self._read(bo, at, follower.take(size, 1)))

    def _read(self, bo: Bo | None, address: int, size: int) -> bytes | None:
        """Memory of a buffer object through a mapping of this process."""
        offset = address - (bo.dma or 0) if bo else 0
        for start, length in bo.maps.items() if bo else ():
            # One that the collector took may have made room for something else.
            if offset + size <= length and self._mappings.get(start) is not None:
                return self._memory.read(start + offset, size)
        return None

    def _ended(self, call: KernelCall) -> None:
        if call.name == "monotonic_ns":
            return
        with self._lock:
            record = self._ioctl(call) if call.name == "ioctl" else self._other(call)
            self.buffers.add(record)
            self._note(record, call)
            self._sink(record)

    def _note(self, record: Record, call: KernelCall) -> None:
        """Remember who serves a descriptor, and which mappings live."""
        drivers = self._drivers
        if record.call == "close":
            drivers.pop(record.fd, None)
        elif record.errno or call.result is None:
            return
        elif record.call == "open":
            drivers.pop(record.result, None)
            if record.driver:
                drivers[record.result] = record.driver
        elif record.call == "dup" and record.driver:
            drivers[record.result] = record.driver
        elif record.call == "mmap":
            self._mappings[record.result] = call.result
        elif record.call == "ioctl" and record.driver not in ("", "drm"):
            drivers[record.fd] = record.driver

    def _other(self, call: KernelCall) -> Record:
        name, values = call.name, call.arguments
        fd = -1 if name in _WITHOUT_FD else int(values[0])
        driver = self._drivers.get(fd, "")
        result = call.result
        if name == "munmap":
            arguments: dict[str, Any] = {"address": call.before}
        elif name == "poll":
            pairs = [[int(polled), int(events)] for polled, events in values[0]]
            arguments = {"fds": pairs, "timeout": values[1]}
            result = None if result is None else len(result)
        else:
            given = values if name in _WITHOUT_FD else values[1:]
            plain = (value if isinstance(value, str) else int(value) for value in given)
            arguments = dict(zip(_ARGUMENTS[name], plain, strict=True))
        if name == "open":
            driver = next((d for node, d in NODES.items() if str(values[0]).startswith(node)), "")
        elif name == "mmap" and result is not None:
            result = result.address
        if not isinstance(result, int):
            # What gives no number succeeded, unless there is no answer at all.
            done = not call.errno and (result is not None or name in _WITHOUT_RESULT)
            result = 0 if done else -1
        return self._record(call, fd, driver, result, arguments=arguments)

    def _ioctl(self, call: KernelCall) -> Record:
        fd, number, arg = call.arguments
        request = self._request(fd, number)
        driver = self._drivers.get(fd, "")
        sent, image = call.before or (None, None)
        after = None
        arguments = {}
        ctype, data = self._argument(fd, number, arg)
        if sent is None and isinstance(arg, int):
            arguments["arg"] = int(arg)
        changed = data != image or (ctype is not None and fills(ctype))
        if sent is not None and data is not None and (changed or sent.struct == "rknpu_submit"):
            follower = Follower(self._memory.read, self._limit)
            if call.errno:
                after = follower.failed(ctype, data)
            else:
                after = follower.received(ctype, data, sent)
            if after.struct == "rknpu_submit":
                after.memory["task_obj_addr"] = self._table(fd, after, follower, before=False)
            if after.fields == sent.fields and not after.memory:
                after = None
        if request is not None and request.name == "DRM_IOCTL_VERSION" and after and not call.errno:
            name = after.memory.get("name")
            if name is not None and isinstance(name.content, bytes) and name.content.isascii():
                driver = driver or name.content.decode()
        if not driver and request is not None and request.struct is not None:
            driver = _DRIVERS.get(request.struct.__module__.rpartition(".")[2], "")
        value = -1 if call.result is None else call.result[0]
        return self._record(
            call,
            fd,
            driver,
            value,
            arguments=arguments,
            number=int(number) & 0xFFFFFFFF,
            request=request.name if request else "",
            sent=sent,
            received=after,
            hint=_hint(driver, request, call),
        )

    def _record(self, call: KernelCall, fd: int, driver: str, result: int, **more: Any) -> Record:
        return Record(
            call.name,
            call.start_ns,
            call.duration_ns,
            os.getpid(),
            threading.get_native_id(),
            fd,
            driver,
            result=result,
            errno=errno.errorcode.get(call.errno, str(call.errno)) if call.errno else "",
            **more,
        )


def _hint(driver: str, request: Ioctl | None, call: KernelCall) -> str:
    """The rule behind an error, as the driver's class knows it."""
    if call.result is None and not call.errno:
        return "the call raised an exception and answered nothing"
    kind = DRIVABLE.get(driver)
    if not call.errno or kind is None or request is None:
        return ""
    # explain() is told all it needs; it looks at no device.
    return kind.explain(cast(Any, None), request, call.errno) or ""


def to_file(file: TextIO) -> Callable[[Record], object]:
    """A sink that writes a trace: the header now, a line for each record."""
    write_header(file)
    return lambda record: file.write(record.to_json() + "\n")
