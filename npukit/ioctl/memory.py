# SPDX-License-Identifier: MIT
"""The memory of this process, read and written as a kernel does it: a bad pointer is no crash."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Container, Iterator


class OwnMemory:
    """This process's memory, through a scratch file.

    The kernel itself copies between the file and the pointer; that is exact, needs no privilege and
    works under emulation, where reading a process's memory from outside does not.

    Synchronization: any number of threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._scratch = -1
        self._pid = 0

    def _file(self) -> int:
        # A child of fork has the parent's file, and the two would write over each other.
        if self._pid != os.getpid():
            self.close()
            self._pid = os.getpid()
        if self._scratch < 0:
            self._scratch = os.memfd_create("npukit-user-memory")
        return self._scratch

    def read(self, address: int, size: int) -> bytes | None:
        """``size`` bytes; None when not all can be read."""
        if size == 0:
            return b""
        source = _at(address, size)
        if source is None:
            return None
        with self._lock:
            try:
                if os.pwrite(self._file(), source, 0) == size:
                    return os.pread(self._file(), size, 0)
            except OSError as error:
                if error.errno != errno.EFAULT:
                    raise
        return None

    def write(self, address: int, data: bytes) -> bool:
        """False when not all could be written; what can be is written all the same."""
        if not data:
            return True
        target = _at(address, len(data))
        if target is None:
            return False
        with self._lock:
            os.pwrite(self._file(), data, 0)
            try:
                return os.preadv(self._file(), [target], 0) == len(data)
            except OSError as error:
                if error.errno != errno.EFAULT:
                    raise
        return False

    def close(self) -> None:
        """Give the scratch file back; the next use makes a new one."""
        if self._scratch >= 0:
            os.close(self._scratch)
            self._scratch = -1


def _at(address: int, size: int) -> ctypes.Array[ctypes.c_char] | None:
    if not 0 <= address <= (1 << 64) - size:
        return None
    return (ctypes.c_char * size).from_address(address)


def mappings(pid: int, inodes: Container[int]) -> Iterator[tuple[int, int, int, int]]:
    """(start, end, inode, offset in the file) of each mapping that a process has of these files.

    OSError when the process is gone or not for us to see, or no descriptor is left to ask with.
    Source: proc_pid_maps(5).
    """
    with open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            span, _access, offset, _device, inode, *_path = line.split(None, 5)
            if int(inode) in inodes:
                start, end = span.split("-")
                yield int(start, 16), int(end, 16), int(inode), int(offset, 16)
