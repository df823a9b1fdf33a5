# SPDX-License-Identifier: MIT
"""The preload door's side of the server: a machine for programs with csrc/preload.c.

What stands for an open file in such a program is a pipe, whose inode names the file wherever the
descriptor goes (dup, fork, exec, sockets); our end of it tells when nobody has it any more. A
mapping is of a file opened for it alone, with a lock that goes with the last of its pages. So
nothing is counted, and a program's death at any moment gives back all that it held.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from npukit import _fast
from npukit.ioctl.errors import error_name

from . import _seccomp
from .core import ERESTARTSYS, Area, Caller, Errno, SimDevice, SimFile
from .dma_buf import DmaBufSim
from .door import Report, outcome
from .fence import SyncFileSim
from .kernel import SimKernel, identity
from .namespace import device_number
from .socket import MAX_ANSWER_FDS, MAX_FDS, Gone, Shapes, SocketCaller, fits, receive, send

_F_SETPIPE_SZ = getattr(fcntl, "F_SETPIPE_SZ", 1031)


_FILE = (int, int)
_CALLS: Shapes = {
    "nodes": (),
    "open": (int, int),
    "ioctl": (*_FILE, int, int),
    "mmap": (*_FILE, int, int, int, int),
    "lseek": (*_FILE, int, int),
    "fstat": _FILE,
    "interrupt": (),
}
"""Call of the library -> what it comes with."""


class LibraryCaller(SocketCaller):
    """A thread of a program that has the library, while it makes a call."""

    def __init__(
        self, machine: ServedKernel, sock: socket.socket, pid: int, process_vm: bool
    ) -> None:
        super().__init__(pid, process_vm)
        self._machine = machine
        self._sock = sock
        self._interrupted = False
        self._poll = select.poll()
        self._poll.register(sock, select.POLLRDHUP)

    def _connection(self) -> socket.socket:
        return self._sock

    @property
    def alive(self) -> bool:
        return not self._poll.poll(0)

    def reads(self, address: int, text: bytes) -> bool:
        """Whether what stands at ``address`` of this process's memory is ``text``."""
        try:
            return self.copy_from_user(address, len(text)) == text
        except Errno:
            return False

    def _exchange(
        self, sock: socket.socket, message: list[Any], payload: bytes, fds: Sequence[int]
    ) -> tuple[list[Any], bytes, list[int]]:
        if payload:
            # Received straight into place; the byte in front can be taken even if those cannot.
            send(sock, [*message, len(payload)])
            try:
                sock.sendmsg([b"!", payload], [], socket.MSG_NOSIGNAL)
            except OSError as error:
                raise Gone from error
        else:
            send(sock, message, fds=fds)
        while True:
            answer = receive(sock, MAX_ANSWER_FDS)
            if answer[0] != ["interrupt"] or answer[2]:
                return answer
            self._interrupted = True

    def give(self, fd: int) -> int:
        try:
            numbers, _, _ = self._ask("give", not os.get_inheritable(fd), fds=[fd])
            return int(numbers[0])
        finally:
            os.close(fd)

    def interruption(self) -> int:
        """0, or the errno that ends a wait: a signal came, or the program has died."""
        try:
            while not self._interrupted and select.select([self._sock], [], [], 0)[0]:
                message, _, _ = receive(self._sock)
                self._interrupted = message == ["interrupt"]
        except Gone:
            return errno.EINTR
        return ERESTARTSYS if self._interrupted else 0

    def answer(self, name: str, *arguments: Any) -> None:
        """Make a call of the program and answer it. Gone when it is none that there is."""
        if not fits(_CALLS, name, arguments):
            raise Gone
        if name == "interrupt":
            # The call that it was for is over.
            return
        self._interrupted = False
        fds: list[int] = []
        try:
            reply = self._machine.call(self, name, arguments, fds)
            send(self._sock, reply, fds=fds)
        finally:
            for fd in fds:
                os.close(fd)


class _Mapping:
    """A mapping of a program, which is there until all its files have ended."""

    def __init__(self, release: Callable[[], None]) -> None:
        self.files = 0
        self.release = release


class _Mapped:
    """A file of which programs have mappings."""

    def __init__(self, fd: int, watch: int) -> None:
        self.fd = fd
        self.watch = watch
        self.tags: dict[int, _Mapping] = {}


class ServedKernel(SimKernel):
    """A simulated machine to be served to programs with the library, and to any SocketKernel.

    ``report``: count what they ask for. ``name`` stands before what is said on standard error.
    shut_down() ends it; nothing may be served any more then.
    """

    def __init__(
        self,
        devices: Sequence[str],
        *,
        strict: bool = False,
        report: bool = False,
        name: str = "npukit sim serve",
    ) -> None:
        super().__init__(devices, strict=strict)
        self.report = Report() if report else None
        self.name = name
        self._stand_ins: dict[tuple[int, int], SimFile] = {}
        self._access: dict[tuple[int, int], int] = {}
        """How a stand-in was opened, if not for reading and writing, as all pipes here are."""
        self._opening = os.O_RDWR
        self._writers: dict[int, tuple[int, int]] = {}
        """Our end of a pipe -> the pipe."""
        self._mapped: dict[tuple[int, int], _Mapped] = {}
        self._calls: set[LibraryCaller] = set()
        """Those that are under way."""
        self._next_tag = _seccomp.FIRST_TAG
        self._doubt = 0.0
        """Until when mappings may be found to have ended."""
        self._next_look = 0.0
        self._epoll = select.epoll()
        self._inotify = _seccomp.watch_closes()
        self._epoll.register(self._inotify, select.EPOLLIN)
        self._wake, self._waker = os.pipe2(os.O_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._over = False
        self._thread: threading.Thread | None = None

    def shut_down(self) -> None:
        """Let go of all that is still held. Idempotent."""
        if self._over:
            return
        self._over = True
        os.write(self._waker, b"!")
        if self._thread is not None:
            self._thread.join()
        with self.lock:
            self.sweep()
            for writer in list(self._writers):
                self._end(writer)
            for key, mapped in list(self._mapped.items()):
                for mapping in list(mapped.tags.values()):
                    self._unmap(mapping)
                self._forget(key, mapped)
        self._epoll.close()
        for fd in (self._inotify, self._wake, self._waker):
            os.close(fd)

    @property
    def held(self) -> bool:
        """Whether any program has an open file or a mapping."""
        return bool(self._stand_ins or self._mapped)

    def say(self, text: str) -> None:
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)

    def complain(self, text: str) -> None:
        if self.report is not None:
            self.report.refusals.append(text)
        super().complain(text)

    def library(
        self, sock: socket.socket, pid: int, process_vm: bool, address: int, probe: str
    ) -> LibraryCaller:
        """Who calls over a connection. ``probe`` is said to stand at ``address`` of its memory; if
        it is not found there, the library is asked for all memory."""
        with self.lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._tend, daemon=True)
                self._thread.start()
        caller = LibraryCaller(self, sock, pid, False)
        if process_vm and address:
            direct = LibraryCaller(self, sock, pid, True)
            if direct.reads(address, probe.encode()):
                caller = direct
        caller.bytes_in = 0
        return caller

    # ---- Calls.

    def call(
        self, caller: LibraryCaller, name: str, arguments: tuple[Any, ...], fds: list[int]
    ) -> list[Any]:
        """Make a call; the answer. ``fds`` gets descriptors of ours that go with it."""
        with self.lock:
            self.enter(caller)
            self._calls.add(caller)
            try:
                return self._call(caller, name, arguments, fds)
            except Gone:
                raise
            except Exception as error:
                code, text = outcome(error)
                if text:
                    self.say(text)
                return ["errno", code]
            finally:
                self._calls.discard(caller)
                if caller in self.dying:
                    self.dying.discard(caller)
                    self.changed.notify_all()

    def _call(
        self, caller: LibraryCaller, name: str, arguments: tuple[Any, ...], fds: list[int]
    ) -> list[Any]:
        if name == "nodes":
            return ["done", [_describe(device, path) for device, path in self._paths()]]
        if name == "open":
            return ["done", self._open(*arguments)]
        device, inode, *arguments_left = arguments
        file = self._stand_ins.get((device, inode))
        if file is None:
            return ["none"]
        # A call holds its file, whatever another thread closes.
        file.holders += 1
        try:
            if name == "ioctl":
                return ["done", self.request(caller, file, *arguments_left)]
            if name == "mmap":
                _, _, prot, flags = arguments_left
                access = self._access.get((device, inode), os.O_RDWR)
                writes = prot & _fast.PROT_WRITE and flags & _fast.MAP_SHARED
                if access == os.O_WRONLY or (access == os.O_RDONLY and writes):
                    raise Errno(errno.EACCES)
                pieces = self._map(caller, file, arguments_left, fds)
                return ["done", len(pieces), pieces]
            if name == "lseek":
                return ["done", file.lseek(*arguments_left)]
            if name == "fstat":
                mode, number = file.stat_mode()
                size = file.backing.size if isinstance(file, DmaBufSim) else 0
                return ["done", mode, os.major(number), os.minor(number), size]
        finally:
            self.current = caller
            self.put(file)
        raise Errno(errno.ENOSYS)

    def _open(self, number: int, flags: int) -> int:
        paths = self._paths()
        if not 0 <= number < len(paths):
            raise Errno(errno.ENOENT)
        self._opening = flags & os.O_ACCMODE
        try:
            return self.open_node(paths[number][1], flags)
        finally:
            self._opening = os.O_RDWR

    def _paths(self) -> list[tuple[SimDevice, str]]:
        return [(device, path) for device in self.devices for path in device.paths]

    def request(self, caller: Caller, file: SimFile, number: int, address: int) -> int:
        report = self.report
        if report is None or not isinstance(caller, SocketCaller):
            return file.ioctl(caller, number, address)
        before = caller.bytes_in, caller.bytes_out
        try:
            with report.request(file, number):
                return file.ioctl(caller, number, address)
        finally:
            report.bytes_in += caller.bytes_in - before[0]
            report.bytes_out += caller.bytes_out - before[1]

    def _map(
        self, caller: LibraryCaller, file: SimFile, arguments: list[int], fds: list[int]
    ) -> list[tuple[int, int, int]]:
        length, offset, prot, flags = arguments
        try:
            area = file.mmap(caller, length, offset, prot, flags)
        except Errno as error:
            if self.strict:
                code = error_name(error.code)
                self.say(f"strict: mmap of {length} bytes at {offset:#x} gets {code}")
            raise
        # A file may have come many times, by descriptors of its own.
        names = {piece.fd: identity(os.fstat(piece.fd)) for piece in area.pieces}
        sources = {name: fd for fd, name in names.items()}
        file.holders += 1
        mapping = _Mapping(functools.partial(self._release, area, file))
        try:
            if len(sources) > MAX_FDS:
                raise Errno(errno.ENOMEM)
            read_only = isinstance(file, DmaBufSim) and not file.writable
            for source in sources.values():
                fds.append(self._open_mapped(source, os.O_RDONLY if read_only else os.O_RDWR))
                self._tag(fds[-1], mapping)
        except (Errno, OSError):
            # The files that there are already have no other use, and end with this call.
            if not mapping.files:
                mapping.release()
            raise
        if not sources:
            mapping.release()
        order = list(sources)
        return [(order.index(names[fd]), place, size) for fd, place, size in area.pieces]

    def _release(self, area: Area, file: SimFile) -> None:
        area.unmapped()
        self.put(file)

    @staticmethod
    def _open_mapped(source: int, access: int) -> int:
        """Open a file anew, so that its end is the end of what is mapped of it."""
        return os.open(f"/proc/self/fd/{source}", access | os.O_CLOEXEC)

    def _tag(self, fd: int, mapping: _Mapping) -> None:
        key = identity(os.fstat(fd))
        mapped = self._mapped.get(key)
        if mapped is None:
            # An open file of our own: a lock on the other could not be seen through the same one.
            own = self._open_mapped(fd, os.O_RDONLY)
            mapped = self._mapped[key] = _Mapped(own, _seccomp.add_watch(self._inotify, own))
        tag = self._next_tag
        self._next_tag += 1
        _seccomp.lock_file(fd, tag)
        mapped.tags[tag] = mapping
        mapping.files += 1

    # ---- What the drivers use.

    def file(self, fd: int) -> SimFile | None:
        caller = self.current
        if not isinstance(caller, LibraryCaller):
            return super().file(fd)
        try:
            copy = caller.take(fd)
        except Errno:
            return None
        try:
            return self._stand_ins.get(identity(os.fstat(copy)))
        finally:
            os.close(copy)

    def files_of(self, device: SimDevice) -> list[Any]:
        known = {file for file in self._stand_ins.values() if getattr(file, "device", 0) is device}
        return [*known, *(file for file in super().files_of(device) if file not in known)]

    def install(self, fd: int, file: SimFile) -> int:
        caller = self.current
        if not isinstance(caller, LibraryCaller):
            return super().install(fd, file)
        cloexec = not os.get_inheritable(fd)
        os.close(fd)
        file.holders += 1
        try:
            return self._stand_in(caller, file, cloexec)
        finally:
            self.put(file)

    def _stand_in(self, caller: LibraryCaller, file: SimFile, cloexec: bool) -> int:
        """Put a pipe for ``file`` into the program."""
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            # For both, as a device would be, and as hardly any other pipe is.
            both = os.open(f"/proc/self/fd/{reader}", os.O_RDWR | os.O_CLOEXEC)
            os.close(reader)
            # A page is enough; an unprivileged user has room for some thousands.
            with contextlib.suppress(OSError):
                fcntl.fcntl(writer, _F_SETPIPE_SZ, 4096)
            if isinstance(file, SyncFileSim):
                # It becomes readable with the fence.
                os.close(file.events.pop())
                file.events.append(os.dup(writer))
            key = identity(os.fstat(both))
            os.set_inheritable(both, not cloexec)
            number = caller.give(both)
        except BaseException:
            os.close(writer)
            raise
        self._stand_ins[key] = file
        if self._opening != os.O_RDWR:
            self._access[key] = self._opening
        self._writers[writer] = key
        self._epoll.register(writer, select.EPOLLERR)
        file.holders += 1
        return number

    def uninstall(self, fd: int) -> None:
        if isinstance(self.current, LibraryCaller):
            self.current.shut(fd)
        else:
            super().uninstall(fd)

    def wait_for(
        self, condition: Callable[[], bool], timeout: float | None, *, interruptible: bool = False
    ) -> bool:
        caller = self.current
        if condition():
            return True
        if not interruptible or not isinstance(caller, LibraryCaller):
            return super().wait_for(condition, timeout)
        return self.wait_unless(condition, timeout, caller.interruption)

    # ---- The end of files and mappings.

    def enter(self, caller: Caller) -> None:
        dead = {each for each in self._calls if not each.alive}
        if dead - self.dying:
            self.dying |= dead
            self.changed.notify_all()
        self.sweep()
        super().enter(caller)

    def put(self, file: SimFile) -> None:
        if self.report is not None and file.holders == 1:
            self.report.closed(file)
        super().put(file)

    def _end(self, writer: int) -> None:
        """Nobody has a pipe any more."""
        self._epoll.unregister(writer)
        os.close(writer)
        key = self._writers.pop(writer)
        self._access.pop(key, None)
        self.put(self._stand_ins.pop(key))

    def sweep(self) -> None:
        """End what no program has any more; the lock is held."""
        for fd, _ in self._epoll.poll(0):
            if fd in self._writers:
                self._end(fd)
            elif fd == self._inotify:
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, 65536)
                # The event comes shortly before the file's lock goes.
                self._doubt = time.monotonic() + 0.1
        if self._doubt:
            self._sweep_mappings()

    def _sweep_mappings(self) -> None:
        now = time.monotonic()
        if now < self._next_look:
            return
        for key, mapped in list(self._mapped.items()):
            ended = [tag for tag in mapped.tags if not _seccomp.file_locked(mapped.fd, tag)]
            for tag in ended:
                self._unmap(mapped.tags.pop(tag))
            if not mapped.tags:
                self._forget(key, mapped)
        if now > self._doubt:
            self._doubt = 0.0
        # With thousands of mappings it takes long; it may take a tenth of the time.
        took = time.monotonic() - now
        self._next_look = now + 10 * took if took > 0.001 else 0.0

    @staticmethod
    def _unmap(mapping: _Mapping) -> None:
        mapping.files -= 1
        if mapping.files == 0:
            mapping.release()

    def _forget(self, key: tuple[int, int], mapped: _Mapped) -> None:
        del self._mapped[key]
        _seccomp.drop_watch(self._inotify, mapped.watch)
        os.close(mapped.fd)

    def _tend(self) -> None:
        """Sweep when no call does."""
        while not self._over:
            self._epoll.poll(0.02 if self._doubt else None)
            with self.lock:
                self.sweep()
                self._reap()


def _describe(device: SimDevice, path: str) -> tuple[Any, ...]:
    """A node as the library is told of it: path, mode, major, minor."""
    return path, 0o020666, *device_number(device, path)
