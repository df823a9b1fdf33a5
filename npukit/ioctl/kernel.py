# SPDX-License-Identifier: MIT
"""The one door: everything above this floor reaches the operating system through a Kernel."""

from __future__ import annotations

import ctypes
import fcntl as _fcntl
import os
import select
import time
from collections.abc import Sequence
from typing import Protocol

from npukit import _fast

Argument = int | bytes | bytearray | memoryview | ctypes.Structure | ctypes.Union | None
"""What an ioctl takes: an address or plain value, or a buffer that stays alive for the call."""

PAGE_SIZE: int = _fast.PAGE_SIZE
"""Bytes of a page, from sysconf: 4, 16 and 64 KiB kernels all run on boards with an NPU."""


def round_to_page(length: int) -> int:
    """``length`` rounded up to whole pages."""
    return -(-length // PAGE_SIZE) * PAGE_SIZE


class Kernel(Protocol):
    """What npukit asks of an operating system.

    All but ``ioctl`` raise OSError on failure; ``ioctl`` answers (value, errno), because some
    drivers return results where others return -1.
    """

    def open(self, path: str, flags: int) -> int: ...
    def close(self, fd: int) -> None: ...
    def dup(self, fd: int) -> int: ...
    def ioctl(self, fd: int, request: int, arg: Argument = None) -> tuple[int, int]: ...
    def mmap(
        self,
        fd: int,
        length: int,
        offset: int = 0,
        prot: int = _fast.PROT_READ | _fast.PROT_WRITE,
        flags: int = _fast.MAP_SHARED,
    ) -> _fast.Mapping:
        """Map ``length`` bytes, rounded up to whole pages, and keep them while any view lives."""

    def munmap(self, mapping: _fast.Mapping) -> None:
        """Allow no further view; the pages go with the last one that lives."""

    def fstat(self, fd: int) -> os.stat_result: ...
    def lseek(self, fd: int, offset: int, whence: int = os.SEEK_SET) -> int: ...
    def poll(
        self, fds: Sequence[tuple[int, int]], timeout: float | None = None
    ) -> list[tuple[int, int]]:
        """(fd, events) pairs that are ready within ``timeout`` seconds (None: for ever)."""

    def memfd_create(self, name: str, flags: int = os.MFD_CLOEXEC) -> int: ...
    def ftruncate(self, fd: int, length: int) -> None: ...
    def fcntl(self, fd: int, command: int, arg: int = 0) -> int: ...
    def monotonic_ns(self) -> int:
        """The clock of absolute timeouts (CLOCK_MONOTONIC), in nanoseconds."""


class LinuxKernel:
    """The kernel that this process runs on.

    Synchronization: has no state; any number of threads may use it.
    """

    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags)

    def close(self, fd: int) -> None:
        os.close(fd)

    def dup(self, fd: int) -> int:
        return os.dup(fd)

    def ioctl(self, fd: int, request: int, arg: Argument = None) -> tuple[int, int]:
        return _fast.ioctl(fd, request, arg)

    def mmap(
        self,
        fd: int,
        length: int,
        offset: int = 0,
        prot: int = _fast.PROT_READ | _fast.PROT_WRITE,
        flags: int = _fast.MAP_SHARED,
    ) -> _fast.Mapping:
        return _fast.mmap(fd, length, offset, prot, flags)

    def munmap(self, mapping: _fast.Mapping) -> None:
        mapping.close()

    def fstat(self, fd: int) -> os.stat_result:
        return os.fstat(fd)

    def lseek(self, fd: int, offset: int, whence: int = os.SEEK_SET) -> int:
        return os.lseek(fd, offset, whence)

    def poll(
        self, fds: Sequence[tuple[int, int]], timeout: float | None = None
    ) -> list[tuple[int, int]]:
        poller = select.poll()
        for fd, events in fds:
            poller.register(fd, events)
        return poller.poll(None if timeout is None else timeout * 1000)

    def memfd_create(self, name: str, flags: int = os.MFD_CLOEXEC) -> int:
        return os.memfd_create(name, flags)

    def ftruncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def fcntl(self, fd: int, command: int, arg: int = 0) -> int:
        return _fcntl.fcntl(fd, command, arg)

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()
