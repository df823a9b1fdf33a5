# SPDX-License-Identifier: MIT
"""SimKernel: a kernel made of software, with NPUs made of software behind it."""

from __future__ import annotations

import collections
import ctypes
import errno
import functools
import importlib
import operator
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from npukit import _fast
from npukit.ioctl import LinuxKernel, ProgramError, decode
from npukit.ioctl.kernel import Argument

from .core import Caller, Errno, LocalCaller, SimDevice, SimFile, map_pieces

DEVICES: dict[str, tuple[str, str, Callable[[int], Any]]] = {
    "rknpu": (
        "rknpu",
        "RknpuSim",
        lambda n: (f"/dev/dri/card{n + 1}", f"/dev/dri/renderD{n + 129}"),
    ),
    "rknpu-misc": ("rknpu", "RknpuMiscSim", lambda n: ("/dev/rknpu",)),
    "rocket": ("rocket", "RocketSim", lambda n: (f"/dev/accel/accel{n}",)),
    "amdxdna": ("amdxdna", "XdnaSim", lambda n: (f"/dev/accel/accel{n}",)),
    "amdxdna-npu1": ("amdxdna", "XdnaNpu1Sim", lambda n: (f"/dev/accel/accel{n}",)),
    "dma_heap": ("dma_buf", "DmaHeapSim", lambda n: ("/dev/dma_heap/system",)),
    "udmabuf": ("dma_buf", "UdmabufSim", lambda n: ("/dev/udmabuf",)),
    "wrapfd": ("wrapfd", "WrapfdSim", lambda n: ("/dev/wrapfd",)),
    "fastrpc-cdsp": ("fastrpc", "FastRpcSim", lambda n: f"cdsp{n or ''}"),
}
"""Name of a simulated device -> module and class here, and what the class is given, besides the
kernel, for the n-th of its kind. A machine loads only the drivers that it has."""
NPUS = tuple(name for name in DEVICES if name not in ("dma_heap", "udmabuf", "wrapfd"))
"""Those that npukit.open() opens, as "sim:NAME"."""


def _make(kernel: SimKernel, name: str) -> SimDevice:
    module, cls, arguments = DEVICES[name]
    number = sum(device.name == name for device in kernel.devices)
    # Drivers of one class share its numbers.
    taken = {path for device in kernel.devices for path in device.paths}
    while taken & set(arguments(number)) and arguments(number + 1) != arguments(number):
        number += 1
    make = getattr(importlib.import_module(f"{__package__}.{module}"), cls)
    device: SimDevice = make(kernel, arguments(number))
    return device


_LAST_CALLS = 1.0
"""Seconds that the calls of a dead process may take to notice."""


class SimKernel:
    """A simulated machine. ``devices`` names what it has (see DEVICES; a name may come twice).

    Descriptors are real ones of this process, so they can be polled and counted; what they mean is
    known here: use this object's methods on them. In *faithful* mode (the default) drivers behave
    as the real ones do, swallowed errors included. In *strict* mode what a driver would swallow
    raises ProgramError from the call that it concerns. ``log`` holds what the drivers would have
    printed.

    Synchronization: any number of threads; calls that wait let others in.
    """

    def __init__(
        self, devices: Sequence[str] = ("rknpu", "dma_heap", "udmabuf"), *, strict: bool = False
    ) -> None:
        unknown = [name for name in devices if name not in DEVICES]
        if unknown:
            raise ValueError(f"no simulated device {unknown[0]!r}; there are {', '.join(DEVICES)}")
        self.strict = strict
        self.log: list[str] = []
        self._pid = os.getpid()
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self._linux = LinuxKernel()
        self._local = LocalCaller()
        self.current: Caller = self._local
        """Who makes the system call that holds the lock."""
        self.dying: set[Caller] = set()
        """Processes that are gone, but for calls which have not ended yet."""
        self.others: dict[Caller, Callable[[], None]] = {}
        """The other processes of this machine, and what gives back all that a dead one held."""
        self._gone: collections.deque[Callable[[], None]] = collections.deque()
        self._mappings: weakref.WeakKeyDictionary[_fast.Mapping, list[Any]] = (
            weakref.WeakKeyDictionary()
        )
        self.devices: list[SimDevice] = []
        for name in devices:
            self.devices.append(_make(self, name))

    def path(self, name: str) -> str:
        """The node of the first simulated device called ``name``; KeyError when there is none."""
        for device in self.devices:
            if device.name == name:
                return device.paths[0]
        raise KeyError(name)

    # What the drivers use; the lock is held.

    def file(self, fd: int) -> SimFile | None:
        """The simulated file behind a descriptor of the caller."""
        return self.current.files.get(fd)

    def files_of(self, device: SimDevice) -> list[Any]:
        """The open files of a device that keeps its device in ``device``."""
        files = {file for caller in (self._local, *self.others) for file in caller.files.values()}
        return [file for file in files if getattr(file, "device", 0) is device]

    def install(self, fd: int, file: SimFile) -> int:
        """Let a real descriptor stand for a simulated file; the number the caller has it under."""
        file.real.add(identity(os.fstat(fd)))
        number = self.current.give(fd)
        self.share(number, file)
        return number

    def share(self, number: int, file: SimFile) -> None:
        """The caller has ``file`` behind one more descriptor."""
        stale = self.current.files.pop(number, None)
        if stale is not None:
            self.put(stale)
        file.holders += 1
        self.current.files[number] = file

    def adopt(self, fd: int, real: tuple[int, int]) -> bool:
        """The caller got a descriptor from another process; False when it is none of ours."""
        callers = (self._local, *self.others)
        files = {file for caller in callers for file in caller.files.values() if real in file.real}
        if len(files) != 1:
            return False
        self.share(fd, files.pop())
        return True

    def uninstall(self, fd: int) -> None:
        """Close a descriptor of the caller."""
        file = self.current.files.pop(fd, None)
        self.current.shut(fd)
        if file is not None:
            self.put(file)

    def wait_for(
        self, condition: Callable[[], bool], timeout: float | None, *, interruptible: bool = False
    ) -> bool:
        """Let others in until ``condition`` holds; False after ``timeout`` seconds.

        ``interruptible``: a signal that the caller gets ends the wait with Errno(ERESTARTSYS),
        where the kernel knows of the caller's signals; this one knows of those that kill.
        """
        caller = self.current
        try:
            if not interruptible:
                return self.changed.wait_for(condition, timeout)
            met = self.changed.wait_for(lambda: condition() or not caller.alive, timeout)
            if met and not condition():
                raise Errno(errno.EINTR)
            return met
        finally:
            self.current = caller

    def wait_unless(
        self,
        condition: Callable[[], bool],
        timeout: float | None,
        interruption: Callable[[], int],
    ) -> bool:
        """wait_for() that ends with Errno when ``interruption``, asked now and then, gives one."""
        caller = self.current
        end = time.monotonic() + (threading.TIMEOUT_MAX if timeout is None else timeout)
        pause = 0.0005
        try:
            while True:
                left = end - time.monotonic()
                if left <= 0:
                    return condition()
                if self.changed.wait_for(condition, min(pause, left)):
                    return True
                code = interruption()
                if code:
                    raise Errno(code)
                # Soon enough for a person, seldom enough not to be felt.
                pause = min(2 * pause, 0.004)
        finally:
            self.current = caller

    def sleep(self, seconds: float) -> None:
        """Let others in for a while, whatever happens."""
        caller = self.current
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.changed.wait(left)
        self.current = caller

    def complain(self, text: str) -> None:
        """Say what a driver swallows: in strict mode to the caller, else to the log."""
        self.log.append(text)
        if self.strict:
            raise ProgramError(message="the real driver hides this", hint=text)

    def when_unmapped(self, mapping: _fast.Mapping, release: Callable[[], None]) -> None:
        """Call ``release``, with the lock held, when ``mapping`` and all views of it are gone."""
        finalizer = weakref.finalize(mapping, self._unmapped, release)
        finalizer.atexit = False
        self._mappings.setdefault(mapping, []).append(finalizer)

    def put(self, file: SimFile) -> None:
        file.holders -= 1
        if file.holders == 0:
            file.released()

    def _here(self) -> None:
        """A child of fork has a copy of the drivers and shares their memory: no good can come."""
        if os.getpid() != self._pid:
            raise RuntimeError(
                "a simulated machine is not inherited by fork: serve() it, and let the child open "
                "a SocketKernel"
            )

    def _unmapped(self, release: Callable[[], None]) -> None:
        """A mapping is gone. The collector may call this anywhere, also while the lock is held."""
        if os.getpid() != self._pid:
            return
        self._gone.append(release)
        if self.lock.acquire(blocking=False):
            try:
                self._reap()
            finally:
                self.lock.release()

    def _reap(self) -> None:
        """Do what could not be done when a mapping went."""
        while self._gone:
            self._gone.popleft()()
        for bury in [bury for caller, bury in self.others.items() if not caller.alive]:
            bury()
        if not self._local.files:
            self._local.close()

    def enter(self, caller: Caller) -> None:
        """Begin a system call of ``caller``; the lock is held, and is the call's from now on."""
        self._reap()
        # Who waits for the end of a process finds its files closed, so its last calls go first.
        if self.dying:
            self.changed.wait_for(lambda: not self.dying, _LAST_CALLS)
        self.current = caller

    def request(self, caller: Caller, file: SimFile, number: int, address: int) -> int:
        """An ioctl of another process; Errno."""
        return file.ioctl(caller, number, address)

    def library(self, sock: Any, pid: int, process_vm: bool, address: int, probe: str) -> Any:
        """Who makes the calls of a program with csrc/preload.c; None: a ServedKernel is needed."""
        return None

    def open_node(self, path: str, flags: int) -> int:
        """Open a node for the caller; Errno."""
        for device in self.devices:
            if path in device.paths:
                file, fd = device.open(self.current, path, flags)
                os.set_inheritable(fd, not flags & os.O_CLOEXEC)
                return self.install(fd, file)
        raise Errno(errno.ENOENT)

    # The Kernel protocol.

    def open(self, path: str, flags: int) -> int:
        self._here()
        with self.lock:
            self.enter(self._local)
            try:
                return self.open_node(path, flags)
            except Errno as error:
                raise OSError(error.code, os.strerror(error.code), path) from None

    def close(self, fd: int) -> None:
        if os.getpid() != self._pid:
            os.close(fd)
            return
        with self.lock:
            self.enter(self._local)
            self.uninstall(fd)
            self._reap()

    def dup(self, fd: int) -> int:
        self._here()
        with self.lock:
            self.enter(self._local)
            copy = os.dup(fd)
            file = self.file(fd)
            if file is not None:
                self.share(copy, file)
            return copy

    def ioctl(self, fd: int, request: int, arg: Argument = None) -> tuple[int, int]:
        self._here()
        with self.lock:
            self.enter(self._local)
            file = self.file(fd)
            if file is not None:
                number = int(request) & 0xFFFFFFFF
                address, _keep = address_of(arg, decode(number).size)
                try:
                    return file.ioctl(self._local, number, address), 0
                except Errno as error:
                    return -1, error.code
                except ProgramError:
                    raise
                except OSError as error:
                    # This process ran out of something that the simulated kernel is made of.
                    return -1, error.errno or errno.ENOMEM
        return self._linux.ioctl(fd, request, arg)

    def mmap(
        self,
        fd: int,
        length: int,
        offset: int = 0,
        prot: int = _fast.PROT_READ | _fast.PROT_WRITE,
        flags: int = _fast.MAP_SHARED,
    ) -> _fast.Mapping:
        self._here()
        with self.lock:
            self.enter(self._local)
            file = self.file(fd)
            if file is not None:
                try:
                    area = file.mmap(self._local, length, offset, prot, flags)
                except Errno as error:
                    raise OSError(error.code, os.strerror(error.code)) from None
                try:
                    mapping = map_pieces(area.pieces, prot, flags)
                except OSError:
                    area.unmapped()
                    raise
                file.holders += 1
                self.when_unmapped(mapping, area.unmapped)
                self.when_unmapped(mapping, functools.partial(self.put, file))
                return mapping
        return self._linux.mmap(fd, length, offset, prot, flags)

    def munmap(self, mapping: _fast.Mapping) -> None:
        mapping.close()
        if mapping.views == 0:
            for finalizer in self._mappings.pop(mapping, []):
                finalizer()

    def fstat(self, fd: int) -> os.stat_result:
        self._here()
        real = os.fstat(fd)
        with self.lock:
            self.enter(self._local)
            file = self.file(fd)
            return real if file is None else as_seen(real, *file.stat_mode())

    def lseek(self, fd: int, offset: int, whence: int = os.SEEK_SET) -> int:
        self._here()
        with self.lock:
            self.enter(self._local)
            file = self.file(fd)
            if file is not None:
                try:
                    return file.lseek(offset, whence)
                except Errno as error:
                    raise OSError(error.code, os.strerror(error.code)) from None
        return os.lseek(fd, offset, whence)

    def poll(
        self, fds: Sequence[tuple[int, int]], timeout: float | None = None
    ) -> list[tuple[int, int]]:
        return self._linux.poll(fds, timeout)

    def memfd_create(self, name: str, flags: int = os.MFD_CLOEXEC) -> int:
        return os.memfd_create(name, flags)

    def ftruncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def fcntl(self, fd: int, command: int, arg: int = 0) -> int:
        return self._linux.fcntl(fd, command, arg)

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()


def identity(status: os.stat_result) -> tuple[int, int]:
    """What tells one real file from all others."""
    return status.st_dev, status.st_ino


def as_seen(real: os.stat_result, mode: int, rdev: int) -> os.stat_result:
    """What fstat tells of a simulated file behind a real descriptor."""
    # The fields that are no elements of the sequence, whose first ten are given as such.
    times = ("st_atime", "st_mtime", "st_ctime")
    names = (*times, *(name + "_ns" for name in times), "st_blksize", "st_blocks")
    fields: dict[str, Any] = {name: getattr(real, name) for name in names}
    fields["st_rdev"] = rdev
    return os.stat_result((mode, *real[1:10]), fields)


def address_of(arg: Argument, size: int = 0) -> tuple[int, object]:
    """The address that a system call would get, and what must live until it is done.

    ``size`` is what the request's number states. A buffer that is shorter would have the kernel
    read and write past its end, which here is a ValueError.
    """
    if arg is None:
        return 0, None
    if isinstance(arg, int):
        return arg, None
    if hasattr(arg, "__index__") and not hasattr(arg, "__array_function__"):
        return operator.index(arg), None
    keep: object
    if isinstance(arg, (ctypes.Structure, ctypes.Union, ctypes.Array)):
        length, address, keep = ctypes.sizeof(arg), ctypes.addressof(arg), arg
    else:
        view = memoryview(arg)
        length = view.nbytes
        if view.readonly:
            # The kernel may read up to the stated size: a string is shorter than that.
            room = max(length, size)
            copy = ctypes.create_string_buffer(view.tobytes().ljust(room, b"\0"), room)
            return ctypes.addressof(copy), copy
        window = (ctypes.c_char * length).from_buffer(view)
        address, keep = ctypes.addressof(window), window
    if length < size:
        raise ValueError(f"{length} bytes for a request that states {size}")
    return address, keep


__all__ = ["DEVICES", "NPUS", "Caller", "SimKernel"]
