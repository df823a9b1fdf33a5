# SPDX-License-Identifier: MIT
"""Fences as file descriptors (sync_file): wait for them, await them, merge them."""

from __future__ import annotations

import errno
import select
from collections.abc import Callable, Generator
from typing import Any

from npukit.abi import sync_file as abi
from npukit.ioctl import DeviceClosed, Kernel, NpuError, WaitTimeout

from .base import Closing, OpenFile, naming


class SyncFile(Closing):
    """A sync_file, owned by this object. ``await fence`` works in asyncio.

    ``release`` is called once the fence was seen signalled, or is closed.

    Synchronization: any thread may wait; closing while another waits is an error of the caller.
    """

    def __init__(
        self, kernel: Kernel, fd: int, release: Callable[[], object] | None = None
    ) -> None:
        self.kernel = kernel
        self.fd = fd
        self._file = OpenFile(kernel, fd)
        self._release = release
        self._closed = False

    def __repr__(self) -> str:
        return f"<SyncFile fd {self.fd}>"

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceClosed(errno.EBADF, f"{self!r} is closed")

    def fileno(self) -> int:
        """The descriptor; DeviceClosed when it may be another's by now."""
        self._check_open()
        return self.fd

    def status(self) -> int:
        """1 signalled, 0 not yet, negative: the errno with which the work ended."""
        self._check_open()
        return int(abi.SYNC_IOC_FILE_INFO(self.kernel, self.fd).status)

    def _let_go(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()

    def _finish(self) -> None:
        self._let_go()
        status = self.status()
        if status < 0:
            raise NpuError(-status, hint="the work behind the fence failed")

    def wait(self, timeout: float | None = None) -> None:
        """Return when the fence has signalled; WaitTimeout after ``timeout`` seconds.

        Raises NpuError with the errno of work that failed.
        """
        self._check_open()
        if timeout is not None:
            timeout = max(timeout, 0.0)
        with naming(None, f"wait for {self!r}"):
            ready = self.kernel.poll([(self.fd, select.POLLIN)], timeout)
        if not ready:
            raise WaitTimeout(errno.ETIME, f"{self!r} did not signal in {timeout} s")
        self._finish()

    def __await__(self) -> Generator[Any, None, None]:
        import asyncio  # half as much to load as everything else here together

        self._check_open()
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        # A loop has one reader a descriptor, and several tasks may await one fence.
        own = self.kernel.dup(self.fd)

        def signalled() -> None:
            if not ready.done():
                ready.set_result(None)

        loop.add_reader(own, signalled)
        try:
            yield from ready
        finally:
            loop.remove_reader(own)
            self.kernel.close(own)
        self._finish()

    def merge(self, other: SyncFile, name: str = "npukit") -> SyncFile:
        """A fence that signals when both have."""
        self._check_open()
        other._check_open()
        answer = abi.SYNC_IOC_MERGE(self.kernel, self.fd, name=name.encode()[:31], fd2=other.fd)
        return SyncFile(self.kernel, answer.fence)

    def close(self) -> None:
        """Close the file descriptor. Idempotent."""
        if not self._closed:
            self._closed = True
            self._file.release()
            self._let_go()
