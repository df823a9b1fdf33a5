# SPDX-License-Identifier: MIT
"""The seccomp door: simulated drivers behind the system calls of other processes.

A program's mmap goes straight to the file that holds a device's memory; only requests come here.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import functools
import itertools
import os
import re
import secrets
import select
import stat
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from npukit import _fast
from npukit.abi import dma_buf, dma_heap, drm, fastrpc, rknpu, sync_file, udmabuf, wrapfd
from npukit.abi.versions import Variant
from npukit.ioctl import Ioctl, ProgramError, decode
from npukit.ioctl.errors import error_name
from npukit.ioctl.memory import mappings
from npukit.ioctl.watcher import OpenFile, Watcher

from . import _seccomp
from ._seccomp import Call, Listener
from .core import ERESTARTSYS, PAGES_END, Area, Errno, KernelOops, Pages, SimDevice, SimFile
from .dma_buf import Backing, DmaBufSim
from .drm import DrmDeviceSim, DrmFileSim, GemObject
from .fence import SyncFileSim
from .kernel import SimKernel
from .namespace import device_number
from .rknpu import RknpuMiscFile

_OPENS_FAIL = ("fastrpc", "habanalabs", "ivpu")
"""Names of devices of which an open itself can fail, by their start."""

_SUBMITS = ("_SUBMIT", "_EXEC_CMD", "_INVOKE")
"""How requests are called that give an NPU work."""

_INTERRUPTED = "ERESTARTSYS (a signal: EINTR, or made again)"

_UNSEEN_CALLER = (
    "a program reaches no device here: this machine does not let us look into it (its file cannot "
    "be read, it has given up being traced, or kernel.yama.ptrace_scope forbids it)"
)

SWEEP_SECONDS = 0.05
"""How long freed pages may stay before it is asked who still maps them."""


class Inode:
    """A file that programs have open and that means something here.

    Several open files of a node are told apart by their position, which nobody else uses: system
    calls on a device node that take it do not exist. A dma-buf or sync_file has a file of its own.
    """

    def __init__(self, key: tuple[int, int], fd: int, device: SimDevice | None = None) -> None:
        self.key = key
        self.fd = fd
        """Our own descriptor of it; of a pipe, the end that programs do not have."""
        self.device = device
        self.only: SimFile | None = None
        """What every open file of it means, where that is always the same."""
        self.files: dict[int, SimFile] = {}
        """Number of an open file -> what it means."""
        self.watch = -1


class NodePages(Pages):
    """Memory of a device within its node. What is freed stays until no program maps it."""

    def __init__(self, name: str, node: int, poke: Callable[[], None]) -> None:
        super().__init__(name)
        self._node = node
        self._poke = poke
        self.freed: list[tuple[int, int]] = []

    @property
    def fd(self) -> int:
        return self._node

    def hold(self) -> None:
        pass

    def drop(self) -> None:
        pass

    def free(self, place: int, size: int) -> None:
        self.freed.append((place, size))
        self._poke()

    def sweep(self, freed: Sequence[tuple[int, int]], mapped: Sequence[tuple[int, int]]) -> None:
        """Of what was freed before it was asked for ranges that are ``mapped``, give the pages back
        of all that does not touch one."""
        for place, size in freed:
            if any(start < place + size and place < end for start, end in mapped):
                self.freed.append((place, size))
            else:
                self.punch(place, size)


class Held(NamedTuple):
    """A mapping that a driver wants to know the end of."""

    file: SimFile
    inode: int
    place: int
    unmapped: Callable[[], None]


class Report:
    """What happened, for ``--report``."""

    def __init__(self) -> None:
        self.requests: collections.Counter[tuple[str, str]] = collections.Counter()
        self.errors: collections.Counter[tuple[str, str, str]] = collections.Counter()
        self.bytes_in = 0
        self.bytes_out = 0
        self.leaked: collections.Counter[str] = collections.Counter()
        self.refusals: list[str] = []

    @contextlib.contextmanager
    def request(self, file: SimFile, number: int) -> Iterator[None]:
        """A request, which ends with an error or not."""
        device = getattr(file, "device", None)
        kind = "dma-buf" if isinstance(file, DmaBufSim) else "sync_file"
        where = device.name if device is not None else kind
        name = request_name(file, number)
        self.requests[where, name] += 1
        try:
            yield
        except Exception as error:
            code, _ = outcome(error)
            text = _INTERRUPTED if code == ERESTARTSYS else error_name(code)
            self.errors[where, name, text] += 1
            raise

    def closed(self, file: SimFile) -> None:
        """Nobody has an open file any more."""
        if isinstance(file, (DrmFileSim, RknpuMiscFile)):
            left = len(file.handles if isinstance(file, DrmFileSim) else file.records)
            if left:
                self.leaked[file.device.name] += left

    def lines(self) -> list[str]:
        lines = [f"{count:8} {device}: {name}" for (device, name), count in self.requests.items()]
        lines += [
            f"{count:8} {device}: {name} failed with {code}"
            for (device, name, code), count in self.errors.items()
        ]
        submits = sum(
            count for (_, name), count in self.requests.items() if name.endswith(_SUBMITS)
        )
        lines.append(f"{submits:8} submits")
        lines.append(f"{self.bytes_in:8} bytes read from the program, {self.bytes_out} written")
        lines += [
            f"{count:8} {device}: buffers still open at the last close"
            for device, count in self.leaked.items()
        ]
        lines += [f"strict mode would have refused: {text}" for text in self.refusals]
        return lines


class Door(SimKernel):
    """A simulated machine whose processes are others than this one.

    ``open_door`` gives it the nodes and the listener. Any thread may serve; ``tend`` is for one.
    """

    def __init__(
        self,
        devices: Sequence[str],
        *,
        strict: bool = False,
        report: bool = False,
        char_nodes: bool = False,
        watcher: Watcher | None = None,
    ) -> None:
        super().__init__(devices, strict=strict)
        self.watcher = watcher
        self._numbers: weakref.WeakKeyDictionary[SimFile, int] = weakref.WeakKeyDictionary()
        self._next_number = itertools.count(1)
        self.report = Report() if report else None
        self.char_nodes = char_nodes
        """Whether stat is trapped as well."""
        self.opens_fail = any(device.name.startswith(_OPENS_FAIL) for device in self.devices)
        """Whether open is trapped as well."""
        self.listener: Listener | None = None
        self._inodes: dict[tuple[int, int], Inode] = {}
        self._watched: dict[int, Inode] = {}
        self._nodes: dict[SimDevice, int] = {}
        self._held: list[Held] = []
        self._seen_held: list[Held] = []
        """Those that were there already at the last sweep."""
        self._idle = 0
        self._wake = threading.Semaphore(0)
        self._inotify = -1
        self._closing = False
        """There were closes that it told of, after which nobody has looked yet."""
        self._poke_in, self._poke_out = -1, -1
        self._said: set[str] = set()

    def open_door(self, nodes: Sequence[int], listener: int) -> None:
        self._inotify = _seccomp.watch_closes()
        self._poke_out, self._poke_in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for device, fd in zip(self.devices, nodes, strict=True):
            self._watch(Inode(_key(fd), fd, device))
            self._nodes[device] = fd
            if isinstance(device, DrmDeviceSim):
                device.pages = NodePages(device.name, fd, self.poke)
                device.offsets = None
        self.listener = Listener(listener)
        self._start_receiver()

    def poke(self) -> None:
        """Have ``tend`` look around."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._poke_in, b"!")

    def say(self, text: str, once: bool = False) -> None:
        """Tell the person who started the program."""
        if once and text in self._said:
            return
        self._said.add(text)
        print(f"npukit sim run: {text}", file=sys.stderr, flush=True)

    # ---- Threads: one receives; when it has to wait, another takes its place.

    def _start_receiver(self) -> None:
        assert self.listener is not None
        self.listener.receivers = 1
        threading.Thread(target=self._serve, name="seccomp door", daemon=True).start()

    def _serve(self) -> None:
        assert self.listener is not None
        while self.listener.serve(self._handle):
            with self.lock:
                self._idle += 1
            self._wake.acquire()

    def _hand_over(self) -> None:
        """This thread is going to wait, with the lock released."""
        listener = self.listener
        if listener is None or listener.receivers:
            return
        if self._idle:
            self._idle -= 1
            listener.receivers = 1
            self._wake.release()
        else:
            self._start_receiver()

    # ---- One system call.

    def _handle(self, call: Call, file: SimFile | None, request: int, address: int) -> int | None:
        """The answer: a value, a negative errno, or None where the call is none of ours.

        What most requests need is in this one frame: a second would be felt.
        """
        with self.lock:
            self.current = call
            try:
                if file is None:
                    if call.nr != _seccomp.SYS_IOCTL:
                        return self._other(call)
                    file = self._look(call, call.fd)
                    if file is None:
                        return None
                if self.watcher is not None:
                    return self._watched_by(self.watcher, call, file, request, address)
                if self.report is not None:
                    return self._reported(self.report, call, file, request, address)
                return file.ioctl(call, request, address)
            except Exception as error:
                return self._errno(error)

    def _errno(self, error: Exception) -> int:
        """The negative errno that a request ends with."""
        code, text = outcome(error)
        if text:
            self.say(text)
        return -code

    def _watched_by(
        self, watcher: Watcher, call: Call, file: SimFile, request: int, address: int
    ) -> int:
        ended = None
        with self._telling():
            self._tell_closes()
            told = self._describe(call, file)
            ended = watcher(call.pid, _process_of(call.pid), call.fd, told, request, address)
        try:
            if self.report is None:
                answer = file.ioctl(call, request, address)
            else:
                answer = self._reported(self.report, call, file, request, address)
        except Exception as error:
            answer = self._errno(error)
        if ended is not None:
            with self._telling():
                ended(answer)
        return answer

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """What goes wrong with who watches is not the program's trouble."""
        try:
            yield
        except Exception as error:
            self.watcher = None
            if not isinstance(error, OSError):
                traceback.print_exception(error)
            self.say(f"the trace ends here: {error}", once=True)

    def _describe(self, call: Call, file: SimFile) -> OpenFile:
        number = self._numbers.setdefault(file, next(self._next_number))
        driver = path = ""
        device = getattr(file, "device", None)
        if isinstance(file, DrmFileSim):
            driver, path = file.device.driver_name, file.path
        elif isinstance(file, (DmaBufSim, SyncFileSim)):
            driver = "dma_buf" if isinstance(file, DmaBufSim) else "sync_file"
        elif device is not None:
            path = device.paths[0]
        memory, shared = functools.partial(_memory, file), functools.partial(self._shared, call)
        return OpenFile(number, driver, path, memory, shared)

    def _tell_closes(self) -> None:
        """Have the watcher know of what was closed before the descriptor's number comes again."""
        poller = select.poll()
        poller.register(self._inotify, select.POLLIN)
        if self._closing or poller.poll(0):
            self._sweep_all()

    def _shared(self, call: Call, fd: int, offset: int, size: int) -> bytes | None:
        """Bytes of the dma-buf behind a descriptor of the caller."""
        found = self._identify(call, fd)
        inode = self._inodes.get(found[0]) if found is not None else None
        if found is None or inode is None:
            return None
        file = inode.only or inode.files.get(found[1])
        return _read(file.backing, offset, size) if isinstance(file, DmaBufSim) else None

    def _reported(
        self, report: Report, call: Call, file: SimFile, request: int, address: int
    ) -> int:
        counting = _Counting(call, report)
        self.current = counting
        with report.request(file, request):
            return file.ioctl(counting, request, address)

    def _other(self, call: Call) -> int | None:
        """A call that is no ioctl."""
        if call.nr in (_seccomp.SYS_FSTAT, _seccomp.SYS_NEWFSTATAT, _seccomp.SYS_STATX):
            return self._stat(call)
        if call.nr not in (_seccomp.SYS_MMAP, _seccomp.SYS_FTRUNCATE):
            return self._open(call)
        if call.nr == _seccomp.SYS_FTRUNCATE:
            found = self._identify(call, call.fd)
            # A device node has no length that one could set.
            return -errno.EINVAL if found is not None and found[0] in self._inodes else None
        return self._mmap(call)

    def _mmap(self, call: Call) -> int | None:
        _, length, prot, flags, fd, offset = call.args
        file = self._look(call, fd)
        if file is None:
            return None
        try:
            area = file.mmap(call, length, offset, prot, flags)
            self._hold(file, area)
        except Errno as error:
            if self.strict:
                code = error_name(error.code)
                self.say(f"strict: mmap of {length} bytes at {offset:#x} gets {code}")
            self._tell_mmap(call, file, (0, 0), error.code)
            raise
        if isinstance(file, DrmFileSim) or _file_of(file) is not None:
            found = self._identify(call, fd)
            if found is not None:
                self._tell_mmap(call, file, (found[0][1], offset), 0)
            return None
        # The pages are somewhere in another file.
        problem = "it lies in several files"
        if len(area.pieces) == 1:
            piece = area.pieces[0]
            self._tell_mmap(call, file, (os.fstat(piece.fd).st_ino, piece.offset), 0)
            try:
                call.mmap(piece.fd, piece.offset)
                return None
            except OSError as error:
                problem = f"ptrace: {error.strerror}"
        self.say(f"a {type(file).__name__} cannot be mapped here ({problem})", once=True)
        return -errno.EACCES

    def _tell_mmap(self, call: Call, file: SimFile, place: tuple[int, int], error: int) -> None:
        if self.watcher is None:
            return
        _, length, prot, flags, fd, offset = call.args
        arguments = {"length": length, "offset": offset, "prot": prot, "flags": flags}
        process, told, fd = _process_of(call.pid), self._describe(call, file), fd & 0x7FFFFFFF
        with self._telling():
            self._tell_closes()
            self.watcher.maps(call.pid, process, fd, told, arguments, place, error)

    def _open(self, call: Call) -> int | None:
        """Open a node by its full path as its driver does, errors included."""
        # openat has a folder before what open has.
        path, flags = call.args[call.nr == _seccomp.SYS_OPENAT :][:2]
        if call.nr == _seccomp.SYS_CREAT:
            flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC
        name = _text(call, path)
        for device in self.devices:
            if name in device.paths and not flags & os.O_PATH:
                inode = self._inodes[_key(self._nodes[device])]
                self._sweep_inode(inode)
                # What the kernel finds before it asks a driver.
                if flags & os.O_CREAT and flags & os.O_EXCL:
                    raise Errno(errno.EEXIST)
                if flags & os.O_DIRECTORY:
                    raise Errno(errno.ENOTDIR)
                file, stand_in = device.open(call, name, flags)
                os.close(stand_in)
                access = flags & (os.O_ACCMODE | os.O_NONBLOCK | os.O_APPEND)
                fd = os.open(f"/proc/self/fd/{inode.fd}", access | os.O_CLOEXEC)
                try:
                    self._tag(inode, fd, file)
                    return call.give(fd, bool(flags & os.O_CLOEXEC))
                finally:
                    os.close(fd)
        return None

    def _stat(self, call: Call) -> int | None:
        """Show a node as the character device that it stands for."""
        fd, second, third, fourth, fifth, _ = call.args
        path, address, flags = {
            _seccomp.SYS_FSTAT: (0, second, _seccomp.AT_EMPTY_PATH),
            _seccomp.SYS_NEWFSTATAT: (second, third, fourth),
            _seccomp.SYS_STATX: (second, fifth, third),
        }[call.nr]
        name = _text(call, path) if path else ""
        for device in self.devices:
            if name in device.paths:
                found = device, name
                break
        else:
            if name or not flags & _seccomp.AT_EMPTY_PATH:
                return None
            known = self._identify(call, fd)
            inode = self._inodes.get(known[0]) if known is not None else None
            if inode is None or inode.device is None:
                return None
            found = inode.device, self._path(call, fd, inode.device)
        device, name = found
        node = self._nodes[device]
        call.tell_stat(address, node, stat.S_IFCHR | 0o666, *device_number(device, name))
        return 0

    def _hold(self, file: SimFile, area: Area) -> None:
        """A mapping comes to be, of whose end we only hear when we ask.

        Most drivers only keep the buffer for it, and its pages wait for the end of their own.
        """
        keeps_only = getattr(area.unmapped, "__func__", None) is GemObject.put
        if keeps_only or isinstance(file, DmaBufSim) or not area.pieces:
            area.unmapped()
        else:
            piece = area.pieces[0]
            inode = os.fstat(piece.fd).st_ino
            self._held.append(Held(file, inode, piece.offset, area.unmapped))
            self.poke()

    # ---- Which open file?

    def _identify(self, call: Call, fd: int) -> tuple[tuple[int, int], int] | None:
        try:
            return call.identify(fd)
        except PermissionError:
            self.say(_UNSEEN_CALLER, once=True)
            return None

    def _look(self, call: Call, fd: int) -> SimFile | None:
        found = self._identify(call, fd)
        if found is None:
            return None
        key, position = found
        inode = self._inodes.get(key)
        if inode is None:
            return None
        if inode.only is not None:
            return inode.only
        return inode.files.get(position) or self._meet(call, fd, inode)

    def _meet(self, call: Call, fd: int, inode: Inode) -> SimFile | None:
        """An open file whose position says nothing: a new one, or the program has moved it."""
        copy = call.take(fd)
        try:
            if _key(copy) != inode.key:
                # Another thread has put something else there since.
                raise Errno(errno.EBADF)
            with open(f"/proc/self/fdinfo/{copy}") as info:
                for tag in re.findall(r"OFDLCK .* (\d+) \d+$", info.read(), re.MULTILINE):
                    if int(tag) in inode.files:
                        os.lseek(copy, int(tag), os.SEEK_SET)
                        return inode.files[int(tag)]
            device = inode.device
            if device is None:
                return None
            if isinstance(device, DrmDeviceSim) and os.fstat(inode.fd).st_size < PAGES_END:
                # Opened with O_TRUNC, which means nothing to a device node.
                os.ftruncate(inode.fd, PAGES_END)
            # What is closed already is no longer in the way.
            self._sweep_inode(inode)
            file, stand_in = device.open(call, self._path(call, fd, device), os.O_RDWR)
            os.close(stand_in)
            self._tag(inode, copy, file)
            return file
        finally:
            os.close(copy)

    @staticmethod
    def _path(call: Call, fd: int, device: SimDevice) -> str:
        with contextlib.suppress(OSError):
            name = os.path.basename(os.readlink(f"/proc/{call.pid}/fd/{fd}"))
            for path in device.paths:
                if os.path.basename(path) == name:
                    return path
        return device.paths[0]

    def _tag(self, inode: Inode, fd: int, file: SimFile) -> None:
        """Number the open file behind ``fd``, so that it is known again and its end is noticed."""
        if hasattr(file, "pid"):
            # The caller is a thread, which may end before the process does.
            with contextlib.suppress(ProcessLookupError):
                file.pid = _seccomp.process_of(self.current.pid)
        # Neither a write nor a relative lseek is to lead from one to another.
        tag = _seccomp.FIRST_TAG + secrets.randbits(60)
        _seccomp.lock_file(fd, tag)
        if inode.only is None:
            assert self.listener is not None
            os.lseek(fd, tag, os.SEEK_SET)
            self.listener.tagged[tag] = file
        inode.files[tag] = file
        file.holders += 1

    # ---- What the drivers use.

    def file(self, fd: int) -> SimFile | None:
        call = self.current
        if isinstance(call, _Counting):
            call = call.call
        return self._look(call, fd) if isinstance(call, Call) else super().file(fd)

    def files_of(self, device: SimDevice) -> list[Any]:
        files = {file for inode in self._inodes.values() for file in inode.files.values()}
        return [file for file in files if getattr(file, "device", None) is device]

    def install(self, fd: int, file: SimFile) -> int:
        """Put a file that stands for ``file`` into the program, in place of our ``fd``."""
        cloexec = not os.get_inheritable(fd)
        file.holders += 1
        try:
            if isinstance(file, SyncFileSim):
                os.close(fd)
                return self._install_fence(file)
            return self._install_buffer(fd, file, cloexec)
        finally:
            self.put(file)

    def _install_fence(self, file: SyncFileSim) -> int:
        # A pipe polls as a fence does, has an inode of its own, and its other end tells when the
        # program has let go of it.
        reader, writer = os.pipe2(os.O_CLOEXEC)
        try:
            number = self._give(reader, True)
        except Errno:
            os.close(writer)
            raise
        else:
            os.close(file.events.pop())
            file.events.append(os.dup(writer))
            inode = Inode(_key(reader), writer)
            inode.only = file
            inode.files[0] = file
            file.holders += 1
            self._inodes[inode.key] = inode
            self.poke()
            return number
        finally:
            os.close(reader)

    def _install_buffer(self, fd: int, file: SimFile, cloexec: bool) -> int:
        """Programs get an open file of the pages themselves, where those begin a file; else one of
        the right size, of which each mmap is replaced. ``fd`` is ours to close."""
        pages = _file_of(file)
        if pages is not None:
            os.close(fd)
            fd = os.dup(pages)
        access = os.O_WRONLY if pages is None else os.O_RDWR
        if isinstance(file, DmaBufSim) and not file.writable and pages is not None:
            access = os.O_RDONLY
        # Opened anew: it is to have a lock and an end of its own, and only then inotify sees it.
        opened = os.open(f"/proc/self/fd/{fd}", access | os.O_CLOEXEC)
        try:
            number = self._give(opened, cloexec)
            inode = self._inodes.get(_key(fd))
            if inode is not None:
                os.close(fd)
            else:
                inode = Inode(_key(fd), fd)
                # A program's own memfd is a dma-buf only by the descriptor that we gave it.
                borrowed = isinstance(file, DmaBufSim) and not hasattr(file.backing, "fd")
                inode.only = None if borrowed and pages is not None else file
                self._watch(inode)
            self._tag(inode, opened, file)
            return number
        except Errno:
            os.close(fd)
            raise
        finally:
            os.close(opened)

    def _give(self, fd: int, cloexec: bool) -> int:
        call = self.current
        if isinstance(call, _Counting):
            call = call.call
        return call.give(fd, cloexec) if isinstance(call, Call) else call.give(fd)

    def uninstall(self, fd: int) -> None:
        self.current.shut(fd)

    def complain(self, text: str) -> None:
        if self.report is not None:
            self.report.refusals.append(text)
        super().complain(text)

    def wait_for(
        self, condition: Callable[[], bool], timeout: float | None, *, interruptible: bool = False
    ) -> bool:
        if condition():
            return True
        caller = self.current
        self._hand_over()
        call = caller.call if isinstance(caller, _Counting) else caller
        if not interruptible or not isinstance(call, Call):
            return super().wait_for(condition, timeout)
        return self.wait_unless(condition, timeout, Signals(call).interruption)

    def sleep(self, seconds: float) -> None:
        self._hand_over()
        super().sleep(seconds)

    # ---- The end of files, and of pages.

    def _watch(self, inode: Inode) -> None:
        self._inodes[inode.key] = inode
        inode.watch = _seccomp.add_watch(self._inotify, inode.fd)
        self._watched[inode.watch] = inode

    def tend(self, over: Callable[[], bool], wake: int) -> None:
        """Notice what ends, until ``over`` says that nothing is left. ``wake`` is a descriptor that
        becomes readable when it is to be asked."""
        assert self.listener is not None
        looks: list[float] = []
        """When to look for ended files again."""
        swept = 0.0
        while not over():
            poller = select.poll()
            for fd in (self._inotify, self._poke_out, wake):
                poller.register(fd, select.POLLIN)
            poller.register(self.listener.fd, 0)
            with self.lock:
                for inode in self._inodes.values():
                    if inode.watch < 0:
                        poller.register(inode.fd, 0)
                waiting = self._held or any(pages.freed for pages in self._node_pages())
            due = looks[:1] + ([swept + SWEEP_SECONDS] if waiting else [])
            pause = max(min(due) - time.monotonic(), 0) * 1000 if due else None
            seen = {fd for fd, _ in poller.poll(pause)}
            now = time.monotonic()
            self._closing |= self._inotify in seen
            for fd in seen & {self._poke_out, self._inotify}:
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, 65536)
            looks = [when for when in looks if when > now]
            if self._inotify in seen:
                # The event comes shortly before the file's lock goes.
                looks = [now + 0.001, now + 0.01, now + 0.1]
            self.sweep_files()
            if now >= swept + SWEEP_SECONDS:
                self.sweep_pages()
                swept = time.monotonic()

    def sweep_files(self) -> None:
        """End the open files that no program has any more."""
        with self.lock:
            self._sweep_all()

    def _sweep_all(self) -> None:
        self._closing = False
        for inode in list(self._inodes.values()):
            self._sweep_inode(inode)

    def sweep_pages(self) -> None:
        """Give the pages back that were freed and that no program maps."""
        with self.lock:
            pending = [(pages, pages.freed) for pages in self._node_pages() if pages.freed]
            for pages, _ in pending:
                pages.freed = []
            # What came since the last time may not be mapped yet.
            held, self._seen_held = self._seen_held, list(self._held)
        if not pending and not held:
            return
        inodes = {_key(pages.fd)[1] for pages, _ in pending} | {each.inode for each in held}
        try:
            ranges = mapped_ranges(os.getpid(), inodes)
        except OSError:
            # We have no descriptor left to ask with. Later we may.
            with self.lock:
                for pages, freed in pending:
                    pages.freed += freed
            return
        with self.lock:
            for each in held:
                mapped = ranges.get(each.inode, [])
                if not any(start <= each.place < end for start, end in mapped):
                    self._unhold(each)
            for pages, freed in pending:
                pages.sweep(freed, ranges.get(_key(pages.fd)[1], []))

    def _unhold(self, held: Held) -> None:
        if held in self._held:
            self._held.remove(held)
            held.unmapped()

    def _sweep_inode(self, inode: Inode) -> None:
        if inode.watch < 0:
            ended = [0] if _no_reader(inode.fd) else []
        else:
            ended = [tag for tag in inode.files if not _seccomp.file_locked(inode.fd, tag)]
        for tag in ended:
            file = inode.files.pop(tag)
            if self.listener is not None:
                self.listener.tagged.pop(tag, None)
            for held in [held for held in self._held if held.file is file]:
                self._unhold(held)
            if self.report is not None:
                self.report.closed(file)
            if self.watcher is not None and file in self._numbers:
                with self._telling():
                    self.watcher.closed(self._numbers[file])
            self.put(file)
        if not inode.files and inode.device is None:
            del self._inodes[inode.key]
            if inode.watch >= 0:
                del self._watched[inode.watch]
                _seccomp.drop_watch(self._inotify, inode.watch)
            os.close(inode.fd)

    def _node_pages(self) -> list[NodePages]:
        return [
            device.pages
            for device in self.devices
            if isinstance(device, DrmDeviceSim) and isinstance(device.pages, NodePages)
        ]


class _Counting:
    """A call whose copies are counted."""

    def __init__(self, call: Call, report: Report) -> None:
        self.call = call
        self.report = report
        self.pid = call.pid
        self.files: dict[int, SimFile] = {}
        self.take, self.give, self.shut = call.take, call.give, call.shut
        self.closes_on_exec = call.closes_on_exec

    @property
    def alive(self) -> bool:
        return self.call.alive

    def copy_from_user(self, address: int, size: int) -> bytes:
        data = self.call.copy_from_user(address, size)
        self.report.bytes_in += size
        return data

    def copy_to_user(self, address: int, data: bytes) -> None:
        self.call.copy_to_user(address, data)
        self.report.bytes_out += len(data)


class Signals:
    """Watches for a signal that would end the wait of a thread in a real kernel.

    A call that was received here cannot be interrupted itself (SECCOMP_FILTER_FLAG_WAIT_KILLABLE);
    what is pending for the thread is seen in /proc.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._doubtful = False

    def interruption(self) -> int:
        """0, or the errno that ends the wait.

        ERESTARTSYS has the kernel decide between EINTR and making the call again, as for a driver;
        it must only be given where the signal is sure to be this thread's.
        """
        call = self._call
        if not call.alive:
            return errno.EINTR
        try:
            own, shared, blocked, process, threads = _signals(call.pid)
            if own & ~blocked:
                return ERESTARTSYS
            shared &= ~blocked
            if not shared:
                self._doubtful = False
                return 0
            # The kernel gives a signal of the process to the main thread if that takes it.
            if threads == 1 or process == call.pid:
                return ERESTARTSYS
            if shared & ~_signals(process)[2]:
                return 0
            others = [int(name) for name in os.listdir(f"/proc/{process}/task")]
            if all(not shared & ~_signals(tid)[2] for tid in others if tid != call.pid):
                return ERESTARTSYS
        except OSError:
            return 0
        # Any of several threads may get it; one that runs would have taken it by the next look.
        if self._doubtful:
            return errno.EINTR
        self._doubtful = True
        return 0


def _signals(tid: int) -> tuple[int, int, int, int, int]:
    """(pending for the thread, for the process, blocked, process, number of threads)."""
    with open(f"/proc/{tid}/status", "rb") as status:
        lines = dict(line.split(b":", 1) for line in status.read().splitlines() if b":" in line)
    own, shared, blocked = (int(lines[name], 16) for name in (b"SigPnd", b"ShdPnd", b"SigBlk"))
    return own, shared, blocked, int(lines[b"Tgid"]), int(lines[b"Threads"])


def descendants(pid: int) -> set[int]:
    """All processes below ``pid``."""
    known = os.path.exists(f"/proc/self/task/{threading.get_native_id()}/children")
    found: set[int] = set()
    queue = [pid]
    while queue:
        for child in (children if known else _all_children)(queue.pop()):
            found.add(child)
            queue.append(child)
    return found


def children(pid: int) -> list[int]:
    """The processes that the threads of ``pid`` are parents of."""
    found: list[int] = []
    # A process that ends meanwhile leaves its children to us, where they are found the next time.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for tid in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{tid}/children") as file:
                found += map(int, file.read().split())
    return found


def _all_children(pid: int) -> list[int]:
    """The same where the kernel keeps no such lists (CONFIG_PROC_CHILDREN)."""
    found: list[int] = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            with open(f"/proc/{name}/stat", "rb") as file:
                # The program's name, in parentheses, may hold anything.
                parent = int(file.read().rpartition(b")")[2].split()[1])
            if parent == pid:
                found.append(int(name))
    return found


_UNSEEN = (FileNotFoundError, ProcessLookupError, PermissionError)
"""How /proc refuses to show a process: it is gone, or it is not for us to see."""


def mapped_ranges(pid: int, inodes: set[int]) -> dict[int, list[tuple[int, int]]]:
    """Inode -> ranges (start, end) of it that the processes below ``pid`` have mapped."""
    while True:
        processes = descendants(pid)
        found: dict[int, list[tuple[int, int]]] = {}
        for process in processes:
            with contextlib.suppress(*_UNSEEN):
                for start, end, inode, place in mappings(process, inodes):
                    found.setdefault(inode, []).append((place, place + end - start))
        # A process that was born meanwhile may have inherited what its parent has let go since.
        if descendants(pid) <= processes:
            return found


def _process_of(thread: int) -> int:
    try:
        return _seccomp.process_of(thread)
    except ProcessLookupError:
        return thread


def _memory(file: SimFile, name: int, offset: int, size: int) -> bytes | None:
    """Bytes of a buffer object of an open file."""
    found: Any = None
    if isinstance(file, DrmFileSim):
        found = file.handles.get(name)
    elif isinstance(file, RknpuMiscFile):
        found = next((r.buffer.backing for r in file.records if r.obj_addr == name), None)
    # Handles of amdxdna's device heap are no memory of their own.
    return _read(found, offset, size) if isinstance(found, Backing) else None


def _read(memory: Backing, offset: int, size: int) -> bytes | None:
    if offset + size > memory.size:
        return None
    data = b""
    for piece in memory.pieces(memory.size, 0, _fast.MAP_SHARED):
        skip = min(offset, piece.length)
        data += os.pread(piece.fd, min(piece.length - skip, size - len(data)), piece.offset + skip)
        offset -= skip
    return data if len(data) == size else None


def _text(call: Call, address: int) -> str:
    """The start of a string in the program's memory: as much as the name of a node may have."""
    text = b""
    while len(text) < 256 and b"\0" not in text:
        # What follows on the next page may not be there.
        size = 64 - (address + len(text)) % 64
        text += call.copy_from_user(address + len(text), size)
    return text.partition(b"\0")[0].decode(errors="replace")


def _key(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _no_reader(writer: int) -> bool:
    poller = select.poll()
    poller.register(writer, 0)
    return any(events & select.POLLERR for _, events in poller.poll(0))


def _file_of(file: SimFile) -> int | None:
    """A descriptor of the file that begins with a dma-buf's pages, if there is one."""
    if not isinstance(file, DmaBufSim):
        return None
    pieces = file.backing.pieces(file.backing.size, 0, _fast.MAP_SHARED)
    if len(pieces) == 1 and pieces[0].offset == 0:
        return pieces[0].fd
    return None


def _requests(module: object) -> Iterator[Ioctl]:
    """Those that a header declares, in any version."""
    for value in vars(module).values():
        if isinstance(value, Ioctl):
            yield value
        elif isinstance(value, type) and issubclass(value, Variant):
            yield from _requests(value)


_NAMES = {
    int(request): request.name
    for module in (dma_buf, dma_heap, drm, fastrpc, sync_file, udmabuf, wrapfd)
    for request in _requests(module)
}
_CORE_NAMES = {request.nr: request.name for request in _requests(drm)}
_MISC_NAMES = {
    request.nr: request.name
    for request in _requests(rknpu)
    if request.type == rknpu.RKNPU_IOC_MAGIC
}


def request_name(file: SimFile, request: int) -> str:
    """A request as a person knows it."""
    parts = decode(request)
    name = None
    if isinstance(file, RknpuMiscFile):
        # The driver looks at nothing else.
        name = _MISC_NAMES.get(parts.nr)
    elif isinstance(file, DrmFileSim) and parts.type == drm.DRM_IOCTL_BASE:
        entry = file.requests.get(parts.nr - drm.DRM_COMMAND_BASE)
        name = entry[0].name if entry is not None else _CORE_NAMES.get(parts.nr)
    return name or _NAMES.get(request, f"request {request:#x}")


def outcome(error: Exception) -> tuple[int, str]:
    """The errno that a request ends with, and what a person is to be told of it."""
    if isinstance(error, Errno):
        return error.code, ""
    if isinstance(error, ProgramError):
        return errno.EINVAL, f"strict: {error.hint}"
    if isinstance(error, KernelOops):
        return errno.EFAULT, f"a real kernel would crash here: {error}"
    if isinstance(error, (MemoryError, OSError)):
        # This process ran out of something that the simulated kernel is made of.
        return getattr(error, "errno", None) or errno.ENOMEM, ""
    return errno.EIO, "".join(traceback.format_exception(error))
