# SPDX-License-Identifier: MIT
"""Simulated fences, and sync_file descriptors that poll and asyncio can wait for."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from npukit.abi import sync_file as abi

from .core import Caller, Errno, SimFile

if TYPE_CHECKING:
    from .kernel import SimKernel


class Fence:
    """Signals once. Guarded by the kernel's lock; ``signal`` wakes who waits on its condition."""

    def __init__(self, kernel: SimKernel, driver: str, timeline: str, context: object) -> None:
        self._kernel = kernel
        self.driver = driver
        self.timeline = timeline
        self.context = context
        self.signalled = False
        self.error = 0
        self.why = ""
        """What failed, for people; no driver tells."""
        self.timestamp_ns = 0
        self._then: list[Callable[[], None]] = []

    def signal(self, error: int = 0) -> None:
        if self.signalled:
            return
        self.signalled, self.error, self.timestamp_ns = True, error, time.monotonic_ns()
        for callback in self._then:
            callback()
        self._then.clear()
        self._kernel.changed.notify_all()

    def then(self, callback: Callable[[], None]) -> None:
        """Call back when it signals, at once if it has."""
        if self.signalled:
            callback()
        else:
            self._then.append(callback)

    @property
    def status(self) -> int:
        """1 signalled, 0 not yet, negative: the errno of work that failed."""
        return (-self.error or 1) if self.signalled else 0


class SyncFileSim(SimFile):
    """A sync_file (drivers/dma-buf/sync_file.c). Its descriptor is an eventfd."""

    def __init__(self, kernel: SimKernel, fences: Iterable[Fence], name: str = "") -> None:
        super().__init__(kernel)
        # The newest fence of a context stands for the older ones.
        newest = {fence.context: fence for fence in fences if not fence.signalled}
        self.fences = list(newest.values())
        if not self.fences:
            stub = Fence(kernel, "stub", "stub", object())
            stub.signal()
            self.fences = [stub]
        self.name = name or f"{self.fences[0].driver}-{self.fences[0].timeline}"
        self.events: list[int] = []
        """Descriptors of our own that are written when all fences have signalled."""

    def install(self) -> int:
        """A descriptor for it, readable as soon as all its fences have signalled."""
        fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.events.append(os.dup(fd))
        number = self.kernel.install(fd, self)
        for fence in self.fences:
            fence.then(self._look)
        return number

    def _look(self) -> None:
        if all(fence.signalled for fence in self.fences):
            for event in self.events:
                os.eventfd_write(event, 1)
            self.released()

    def released(self) -> None:
        for event in self.events:
            os.close(event)
        self.events.clear()

    def ioctl(self, caller: Caller, request: int, address: int) -> int:
        if request == abi.SYNC_IOC_MERGE:
            return self._merge(caller, address)
        if request == abi.SYNC_IOC_FILE_INFO:
            return self._info(caller, address)
        if request == abi.SYNC_IOC_SET_DEADLINE:
            raw = caller.copy_from_user(address, ctypes.sizeof(abi.sync_set_deadline))
            if abi.sync_set_deadline.from_buffer_copy(raw).pad:
                raise Errno(errno.EINVAL)
            return 0
        raise Errno(errno.ENOTTY)

    def _merge(self, caller: Caller, address: int) -> int:
        raw = caller.copy_from_user(address, ctypes.sizeof(abi.sync_merge_data))
        data = abi.sync_merge_data.from_buffer_copy(raw)
        if data.flags or data.pad:
            raise Errno(errno.EINVAL)
        other = self.kernel.file(data.fd2)
        if not isinstance(other, SyncFileSim):
            raise Errno(errno.ENOENT)
        merged = SyncFileSim(self.kernel, [*self.fences, *other.fences], data.name.decode())
        data.fence = merged.install()
        try:
            caller.copy_to_user(address, bytes(data))
        except Errno:
            self.kernel.uninstall(data.fence)
            raise
        return 0

    def _info(self, caller: Caller, address: int) -> int:
        raw = caller.copy_from_user(address, ctypes.sizeof(abi.sync_file_info))
        info = abi.sync_file_info.from_buffer_copy(raw)
        if info.flags or info.pad:
            raise Errno(errno.EINVAL)
        if 0 < info.num_fences < len(self.fences):
            raise Errno(errno.EINVAL)
        statuses = [fence.status for fence in self.fences]
        info.status = next((status for status in statuses if status != 1), 1)
        info.name = self.name.encode()[:31]
        if info.num_fences:
            rows = b"".join(
                bytes(
                    abi.sync_fence_info(
                        obj_name=fence.timeline.encode()[:31],
                        driver_name=fence.driver.encode()[:31],
                        status=fence.status,
                        timestamp_ns=fence.timestamp_ns,
                    )
                )
                for fence in self.fences
            )
            caller.copy_to_user(info.sync_fence_info, rows)
        info.num_fences = len(self.fences)
        caller.copy_to_user(address, bytes(info))
        return 0
