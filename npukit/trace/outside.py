# SPDX-License-Identifier: MIT
"""Records of the calls that other processes make, and of what those calls are about.

Only requests are watched, and mappings where DRM has its buffers: a program's other calls go at
full speed. That a file was opened, passed on or closed is concluded from the next request.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import mmap
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from npukit.devices.discover import driver_of_number
from npukit.ioctl import Ioctl, Struct, Union
from npukit.ioctl.errors import error_name
from npukit.ioctl.memory import mappings
from npukit.ioctl.watcher import OpenFile

from . import _ptrace
from .buffers import Bo
from .contents import Contents
from .follow import LIMIT
from .interpret import Interpreter
from .meaning import CREATES, MODULES, RKNPU_NODE, driver_of_path
from .record import Block, Key, Record


@dataclass(frozen=True, slots=True)
class What:
    """What a descriptor is: who serves it, its path, how it was opened, and what tells its file
    from others (not which open file of it)."""

    driver: str
    path: str
    access: int
    identity: tuple[int, ...]


@dataclass(slots=True)
class Asked:
    """An ioctl that has begun."""

    file: Key
    thread: int
    number: int
    request: Ioctl | None
    argument: int
    ctype: Any = None
    image: bytes | None = None
    sent: Block | None = None


def is_npu(driver: str) -> bool:
    """Not what is known to be another driver's."""
    return not driver or driver in MODULES


class Nodes:
    """Which driver serves a file, by /sys under ``root``, or else by its path."""

    def __init__(self, root: str | os.PathLike[str] = "/") -> None:
        self._root = root
        self._known: dict[int, tuple[str, str]] = {}

    def of(self, mode: int, rdev: int, path: str) -> tuple[str, str] | None:
        """(driver, path) of a file; the driver is "" where nothing tells it. None: it cannot be an
        NPU's."""
        if path.startswith("/dmabuf:"):
            return "dma_buf", path
        if path.startswith("anon_inode:"):
            return ("sync_file", path) if "sync_file" in path else None
        if not stat.S_ISCHR(mode):
            return None
        if rdev not in self._known:
            self._known[rdev] = driver_of_number(rdev, self._root)
        driver, node = self._known[rdev]
        return driver or driver_of_path(node) or driver_of_path(path), path or node


class Outside(Interpreter):
    """Makes a Record of each call of other processes that it is told of, and hands it to ``sink``.

    Synchronization: one thread.
    """

    def __init__(
        self,
        sink: Callable[[Record], object],
        limit: int = LIMIT,
        contents: Contents | None = None,
    ) -> None:
        super().__init__(limit, contents)
        self._sink = sink
        self._what: dict[Key, What] = {}
        self._parents: dict[int, int] = {}

    def read(self, pid: int, address: int, size: int) -> bytes | None:
        if not 0 <= address <= (1 << 64) - size:
            return None
        return _ptrace.read_memory(pid, address, size)

    def read_buffer(self, pid: int, bo: Bo, offset: int, size: int) -> bytes | None:
        """Through a mapping that the process has of the buffer's node now, or a dma-buf of it."""
        what = self._what.get(bo.file)
        if bo.offset is not None and what is not None:
            with contextlib.suppress(OSError):
                for start, end, _inode, place in mappings(pid, (what.identity[1],)):
                    at = bo.offset + offset - place
                    if at >= 0 and at + size <= end - start:
                        return self.read(pid, start + at, size)
        files = self.buffers.files.items()
        fds = [key[1] for key, file in files if key[0] == pid and file.backing is bo]
        found = (_read_dma_buf(pid, fd, offset, size) for fd in fds if _is_dma_buf(pid, fd))
        return next((data for data in found if data is not None), None)

    # What is told.

    def begins(
        self,
        file: Key,
        thread: int,
        what: What,
        number: int,
        argument: int,
        at_ns: int,
        data: bytes | None = None,
    ) -> Asked:
        """An ioctl has begun. ``data`` are the bytes of its structure as the request's number has
        its size; without them, they are read now."""
        self._meet(file, thread, what, at_ns)
        request = self.request(file, number)
        asked = Asked(file, thread, number & 0xFFFFFFFF, request, argument)
        ctype = request.struct if request is not None else None
        if ctype is None:
            return asked
        size = ctypes.sizeof(ctype)
        if data is None or (len(data) != size and _is_struct(ctype)):
            # A number of another size: the driver takes as much as that says.
            stated = (asked.number >> 16 & 0x3FFF) or size
            data = self.read(file[0], argument, min(size, stated))
        if data is None:
            return asked
        if _is_struct(ctype) and ctype._tail_ is not None and len(data) == size:
            ctype, data = self._with_tail(file[0], argument, ctype, data)
        asked.ctype, asked.image = ctype, data
        asked.sent = self.before(file, ctype, data)
        return asked

    def _with_tail(self, pid: int, address: int, ctype: Any, data: bytes) -> tuple[Any, bytes]:
        """A structure with its flexible array, as far as that is recorded."""
        count = getattr(ctype.from_buffer_copy(data), ctype._tail_[1])
        if not 0 < count <= self._limit // 256:
            return ctype, data
        whole = ctype.with_tail(count)
        found = self.read(pid, address, ctypes.sizeof(whole))
        return (ctype, data) if found is None else (type(whole), found)

    def ended(
        self,
        asked: Asked,
        start_ns: int,
        end_ns: int,
        value: int,
        code: int,
        data: bytes | None = None,
        *,
        lost: bool = False,
    ) -> None:
        """It has ended with a value or the errno ``code``. ``data``: as for begins(), where it may
        have changed. ``lost``: its thread died."""
        after = None
        hint = "the thread died in the call" if lost else ""
        sent, image = asked.sent, asked.image
        if sent is not None and image is not None and not lost:
            if data is None or len(data) != len(image):
                data = self.read(asked.file[0], asked.argument, len(image))
            if data is not None:
                after = self.after(asked.file, asked.ctype, image, data, sent, bool(code))
            elif not code:
                # What was sent is not what it gave.
                lost, hint = True, "what the call gave cannot be read"
        record = self.ioctl(
            asked.file,
            asked.number,
            sent,
            after,
            code,
            start_ns=start_ns,
            duration_ns=end_ns - start_ns,
            thread=asked.thread,
            arguments={"arg": asked.argument} if sent is None else {},
            result=-1 if lost else value,
            hint=hint,
        )
        self._reopened(record)
        self._add(record)

    def mapped(
        self, file: Key, thread: int, what: What, times: tuple[int, int], value: int, code: int,
        arguments: dict[str, int],
    ) -> None:  # fmt: skip
        """An mmap has ended."""
        self._meet(file, thread, what, times[0])
        self._add(
            Record(
                "mmap",
                times[0],
                times[1] - times[0],
                *(file[0], thread, file[1], self.drivers.get(file, "")),
                arguments=arguments,
                result=value,
                errno=error_name(code),
            )
        )

    def forked(self, parent: int, child: int) -> None:
        """A thread of ``parent`` has made ``child``, which may be a process."""
        self._parents[child] = parent

    def executes(self, pid: int, at_ns: int) -> None:
        """A process has become another program: descriptors that close then are gone."""
        for file in [file for file in self._what if file[0] == pid]:
            if not os.path.exists(f"/proc/{pid}/fd/{file[1]}"):
                self._close(file, pid, at_ns)
        for key in [key for key in self.buffers.maps if key[0] == pid]:
            unmap = Record("munmap", at_ns, 0, pid, pid, -1, "", {"address": key[1]})
            self._add(unmap)

    # What follows from it.

    def _add(self, record: Record) -> None:
        self.buffers.add(record)
        if record.call == "ioctl" and not record.errno and record.driver not in ("", "drm"):
            self.drivers.setdefault(record.file, record.driver)
        self._sink(self.shown(record))

    def _meet(self, file: Key, thread: int, what: What, at_ns: int) -> None:
        """A descriptor that is asked something: is it one that we know?"""
        known = self._what.get(file)
        if known is not None and known.identity == what.identity:
            return
        if known is not None:
            self._close(file, thread, at_ns)
        if not any(what.identity):
            # No such descriptor.
            return
        self._what[file] = what
        self.drivers[file] = what.driver
        common = (at_ns, 0, file[0], thread)
        source = self._source(file, what)
        if source is not None and self._is_known(file, source):
            self._what[file] = self._what[source]
            self.drivers[file] = self.drivers[source]
        elif source is not None:
            self._what[file] = self._what[source]
            arguments = {} if source[0] == file[0] else {"pid": source[0]}
            driver = self.drivers[file] = self.drivers[source]
            self._add(Record("dup", *common, source[1], driver, arguments, result=file[1]))
        elif what.driver not in ("dma_buf", "sync_file"):
            opening = {"path": what.path, "flags": what.access}
            self._add(Record("open", *common, -1, what.driver, opening, result=file[1]))

    def _source(self, file: Key, what: What) -> Key | None:
        """A known descriptor of the same open file."""
        same = [
            other for other, its in self._what.items()
            if other != file and its.identity == what.identity
        ]  # fmt: skip
        for other in same:
            if _ptrace.same_file(*file, *other):
                return other
        # Its parent may have closed it since.
        parent = self._parents.get(file[0])
        inherited = (parent, file[1])
        return inherited if parent is not None and inherited in same else None

    def _is_known(self, file: Key, source: Key) -> bool:
        """Both came from a request, which gave the same dma-buf twice."""
        one, other = self.buffers.files.get(file), self.buffers.files.get(source)
        return one is not None and other is not None and one.backing is other.backing is not None

    def _reopened(self, record: Record) -> None:
        """No driver gives a handle that lives once more: the file was closed and opened anew."""
        after, sent = record.after, record.sent
        if after is None or sent is None or after.struct not in CREATES or record.errno:
            return
        handle = after.fields["handle"]
        if sent.fields["handle"] == handle or self.buffers.of(record.file, handle) is None:
            return
        what = self._what.get(record.file)
        if what is None:
            return
        self._close(record.file, record.thread, record.start_ns)
        self._meet(record.file, record.thread, what, record.start_ns)

    def _close(self, file: Key, thread: int, at_ns: int) -> None:
        driver = self.drivers.pop(file, "")
        del self._what[file]
        self._add(Record("close", at_ns, 0, file[0], thread, file[1], driver))


class Pages(NamedTuple):
    """What is mapped: the number of the open file, and where its pages begin."""

    file: int
    inode: int
    offset: int


class Supervised(Outside):
    """Of the processes of a simulated machine, whose supervisor tells of each request.

    It knows its open files and holds their buffers itself. A request of which it is told after its
    thread's death has the answer that nobody got.
    """

    def __init__(
        self,
        sink: Callable[[Record], object],
        limit: int = LIMIT,
        contents: Contents | None = None,
    ) -> None:
        self.error: OSError | None = None
        """Why the sink takes no more records: no request is to fail for that."""

        def guarded(record: Record) -> None:
            if self.error is not None:
                return
            try:
                sink(record)
            except OSError as error:
                self.error = error

        super().__init__(guarded, limit, contents)
        self._files: dict[tuple[int, ...], OpenFile] = {}
        self._told: OpenFile
        """That of the request of which something is told now."""
        self._coming: list[tuple[Record, Pages]] = []
        """Mappings whose address is not known yet."""
        self._mapped: dict[Key, Pages] = {}
        """Process and address of a mapping -> what is mapped there."""

    def read_buffer(self, pid: int, bo: Bo, offset: int, size: int) -> bytes | None:
        found = self.buffers.files.get(bo.file)
        if found is not None and found.alone:
            return self._told.shared(bo.handle, offset, size)
        what = self._what.get(bo.file)
        file = self._files.get(what.identity) if what is not None else None
        if file is None:
            return None
        # Handles of the misc node are descriptors, which the program may have closed.
        name = bo.object if file.path == RKNPU_NODE else bo.handle
        return None if name is None else file.memory(name, offset, size)

    def _source(self, file: Key, what: What) -> Key | None:
        return next(
            (o for o, its in self._what.items() if o != file and its.identity == what.identity),
            None,
        )

    def __call__(
        self, thread: int, process: int, fd: int, file: OpenFile, request: int, address: int
    ) -> Callable[[int], None]:
        self._told = file
        self._settle(process)
        now = time.monotonic_ns()
        asked = self.begins((process, fd), thread, self._named(file), request, address, now)
        start = time.monotonic_ns()

        def ended(answer: int) -> None:
            self._told = file
            # As the door tells the two apart; a DSP's result may be a large negative number.
            failed = -4096 < answer < 0
            value, code = (-1, -answer) if failed else (answer, 0)
            self.ended(asked, start, time.monotonic_ns(), value, code)

        return ended

    def maps(
        self,
        thread: int,
        process: int,
        fd: int,
        file: OpenFile,
        arguments: dict[str, int],
        place: tuple[int, int],
        error: int,
    ) -> None:
        self._told = file
        self._settle(process)
        now, key, what = time.monotonic_ns(), (process, fd), self._named(file)
        if error:
            self.mapped(key, thread, what, (now, now), -1, error, arguments)
            return
        self._meet(key, thread, what, now)
        driver = self.drivers.get(key, "")
        record = Record("mmap", now, 0, process, thread, fd, driver, arguments=arguments)
        self._coming.append((record, Pages(file.number, *place)))

    def closed(self, number: int) -> None:
        identity, now = (number,), time.monotonic_ns()
        files = [file for file, what in self._what.items() if what.identity == identity]
        self._coming = [(record, pages) for record, pages in self._coming if pages.file != number]
        for process, address in [key for key, its in self._mapped.items() if its.file == number]:
            self._unmapped(process, address, now)
        for file in files:
            self._close(file, file[0], now)
        self._files.pop(identity, None)

    def _named(self, file: OpenFile) -> What:
        what = What(file.driver or driver_of_path(file.path), file.path, os.O_RDWR, (file.number,))
        self._files[what.identity] = file
        return what

    def _settle(self, process: int) -> None:
        """Record what a process has mapped since. What it has unmapped again remains unknown."""
        coming = [each for each in self._coming if each[0].pid == process]
        if not coming:
            return
        self._coming = [each for each in self._coming if each[0].pid != process]
        found: list[tuple[int, int, int, int]] = []
        with contextlib.suppress(OSError):
            found += mappings(process, {pages.inode for _record, pages in coming})
        for record, pages in coming:
            for start, end, inode, first in found:
                key = process, start + pages.offset - first
                if inode != pages.inode or not start <= key[1] < end:
                    continue
                if self._mapped.get(key) == pages:
                    # The same pages are mapped twice; this is the other mapping.
                    continue
                if key in self._mapped:
                    self._unmapped(*key, record.start_ns)
                self._mapped[key] = pages
                self._add(dataclasses.replace(record, result=key[1]))
                break

    def _unmapped(self, process: int, address: int, at_ns: int) -> None:
        del self._mapped[process, address]
        what = {"address": address}
        self._add(Record("munmap", at_ns, 0, process, process, -1, "", what))


def _is_dma_buf(pid: int, fd: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}").startswith("/dmabuf:")
    except OSError:
        return False


def _read_dma_buf(pid: int, fd: int, offset: int, size: int) -> bytes | None:
    """Bytes of a dma-buf of another process, as its CPU sees them.

    No DMA_BUF_IOCTL_SYNC is made: that may throw away what the process has not written back yet.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(OSError, ValueError))
        pidfd = os.pidfd_open(pid)
        stack.callback(os.close, pidfd)
        copy = _ptrace.copy_descriptor(pidfd, fd)
        if copy >= 0:
            stack.callback(os.close, copy)
            pages = mmap.mmap(copy, offset + size, mmap.MAP_SHARED, mmap.PROT_READ)
            return stack.enter_context(pages)[offset : offset + size]
    return None


def _is_struct(ctype: Any) -> bool:
    return issubclass(ctype, (Struct, Union))
