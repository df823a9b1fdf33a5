# SPDX-License-Identifier: MIT
"""Records of the calls that this process makes through a TracingKernel."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Self, TextIO

from npukit._fast import Mapping
from npukit.ioctl import Kernel, KernelCall, Struct, TracingKernel, Union
from npukit.ioctl.errors import error_name
from npukit.ioctl.memory import OwnMemory

from .buffers import Bo
from .contents import Contents
from .follow import LIMIT
from .interpret import Interpreter
from .meaning import driver_of_path
from .record import Block, Record, write_header

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


class Recorder(Interpreter):
    """Makes a Record of each call that passes ``kernel(...)`` and hands it to ``sink``.

        with Recorder(to_file(file)) as recorder:
            device = RocketDevice(path, recorder.kernel(LinuxKernel()))

    Memory that the kernel reads is read before the call, memory that it fills after it. What a job
    is made of (task tables, register commands, packets) is found through the buffer objects that
    the process has mapped. ``limit`` is how many bytes are read for one call. A bad pointer is
    shown as such. ``buffers`` is what is known of buffer objects, files and mappings. ``contents``:
    record what buffer objects hold, too.

    Synchronization: any number of threads; the sink is called by one at a time, in the order in
    which the calls ended.
    """

    def __init__(
        self,
        sink: Callable[[Record], object],
        limit: int = LIMIT,
        contents: Contents | None = None,
    ) -> None:
        super().__init__(limit, contents)
        self._sink = sink
        self._memory = OwnMemory()
        self._lock = threading.RLock()
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

    def read(self, pid: int, address: int, size: int) -> bytes | None:
        return self._memory.read(address, size)

    def read_buffer(self, pid: int, bo: Bo, offset: int, size: int) -> bytes | None:
        for start, length in bo.maps.items():
            # One that the collector took may have made room for something else.
            if offset + size <= length and self._mappings.get(start) is not None:
                return self._memory.read(start + offset, size)
        return None

    def _begins(self, name: str, arguments: tuple[Any, ...]) -> tuple[Block, bytes] | int | None:
        """What must be looked at before the call: a structure, or where a mapping is."""
        if name == "munmap":
            return int(arguments[0].address)
        if name != "ioctl":
            return None
        fd, number, arg = arguments
        with self._lock:
            ctype, data = self._argument(fd, number, arg)
            return None if data is None else (self.before((os.getpid(), fd), ctype, data), data)

    def _argument(self, fd: int, number: int, arg: Any) -> tuple[Any, bytes | None]:
        """An ioctl's structure: its type and bytes; None where it has none that can be read."""
        if isinstance(arg, (Struct, Union)):
            return type(arg), bytes(arg)
        request = self.request((os.getpid(), fd), number)
        if request is None or request.struct is None or arg is None:
            return None, None
        if isinstance(arg, int):
            return request.struct, self._memory.read(arg, ctypes.sizeof(request.struct))
        return request.struct, bytes(arg)

    def _ended(self, call: KernelCall) -> None:
        if call.name == "monotonic_ns":
            return
        with self._lock:
            record = self._ioctl(call) if call.name == "ioctl" else self._other(call)
            self.buffers.add(record)
            self._note(record, call)
            self._sink(self.shown(record))

    def _note(self, record: Record, call: KernelCall) -> None:
        """Remember who serves a descriptor, and which mappings live."""
        drivers, opened = self.drivers, (record.pid, record.result)
        if record.call == "close":
            drivers.pop(record.file, None)
        elif record.errno or call.result is None:
            return
        elif record.call == "open":
            drivers.pop(opened, None)
            if record.driver:
                drivers[opened] = record.driver
        elif record.call == "dup" and record.driver:
            drivers[opened] = record.driver
        elif record.call == "mmap":
            self._mappings[record.result] = call.result
        elif record.call == "ioctl" and record.driver not in ("", "drm"):
            drivers[record.file] = record.driver

    def _other(self, call: KernelCall) -> Record:
        name, values = call.name, call.arguments
        fd = -1 if name in _WITHOUT_FD else int(values[0])
        driver = self.drivers.get((os.getpid(), fd), "")
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
            driver = driver_of_path(str(values[0]))
        elif name == "mmap" and result is not None:
            result = result.address
        if not isinstance(result, int):
            # What gives no number succeeded, unless there is no answer at all.
            done = not call.errno and (result is not None or name in _WITHOUT_RESULT)
            result = 0 if done else -1
        return Record(
            name,
            call.start_ns,
            call.duration_ns,
            os.getpid(),
            threading.get_native_id(),
            fd,
            driver,
            result=result,
            errno=error_name(call.errno),
            arguments=arguments,
        )

    def _ioctl(self, call: KernelCall) -> Record:
        fd, number, arg = call.arguments
        file = os.getpid(), fd
        sent, image = call.before or (None, None)
        after = None
        ctype, data = self._argument(fd, number, arg)
        if sent is not None and data is not None:
            after = self.after(file, ctype, image or b"", data, sent, bool(call.errno))
        unanswered = call.result is None and not call.errno
        return self.ioctl(
            file,
            number,
            sent,
            after,
            call.errno,
            start_ns=call.start_ns,
            duration_ns=call.duration_ns,
            thread=threading.get_native_id(),
            arguments={"arg": int(arg)} if sent is None and isinstance(arg, int) else {},
            result=-1 if call.result is None else call.result[0],
            hint="the call raised an exception and answered nothing" if unanswered else "",
        )


def to_file(file: TextIO) -> Callable[[Record], object]:
    """A sink that writes a trace: the header now, a line for each record."""
    write_header(file)
    return lambda record: file.write(record.to_json() + "\n")
