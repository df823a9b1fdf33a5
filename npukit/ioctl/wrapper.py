# SPDX-License-Identifier: MIT
"""A kernel around another kernel: every call passes through one method."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from npukit import _fast

from .kernel import Argument, Kernel


class KernelWrapper:
    """Hands each call to ``_pass(name, *arguments)``, which a subclass overrides."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def _pass(self, name: str, *arguments: Any) -> Any:
        return getattr(self.kernel, name)(*arguments)

    def open(self, path: str, flags: int) -> int:
        return self._pass("open", path, flags)  # type: ignore[no-any-return]

    def close(self, fd: int) -> None:
        self._pass("close", fd)

    def dup(self, fd: int) -> int:
        return self._pass("dup", fd)  # type: ignore[no-any-return]

    def ioctl(self, fd: int, request: int, arg: Argument = None) -> tuple[int, int]:
        return self._pass("ioctl", fd, request, arg)  # type: ignore[no-any-return]

    def mmap(
        self,
        fd: int,
        length: int,
        offset: int = 0,
        prot: int = _fast.PROT_READ | _fast.PROT_WRITE,
        flags: int = _fast.MAP_SHARED,
    ) -> _fast.Mapping:
        return self._pass("mmap", fd, length, offset, prot, flags)  # type: ignore[no-any-return]

    def munmap(self, mapping: _fast.Mapping) -> None:
        self._pass("munmap", mapping)

    def fstat(self, fd: int) -> os.stat_result:
        return self._pass("fstat", fd)  # type: ignore[no-any-return]

    def lseek(self, fd: int, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._pass("lseek", fd, offset, whence)  # type: ignore[no-any-return]

    def poll(
        self, fds: Sequence[tuple[int, int]], timeout: float | None = None
    ) -> list[tuple[int, int]]:
        return self._pass("poll", fds, timeout)  # type: ignore[no-any-return]

    def memfd_create(self, name: str, flags: int = os.MFD_CLOEXEC) -> int:
        return self._pass("memfd_create", name, flags)  # type: ignore[no-any-return]

    def ftruncate(self, fd: int, length: int) -> None:
        self._pass("ftruncate", fd, length)

    def fcntl(self, fd: int, command: int, arg: int = 0) -> int:
        return self._pass("fcntl", fd, command, arg)  # type: ignore[no-any-return]

    def monotonic_ns(self) -> int:
        return self._pass("monotonic_ns")  # type: ignore[no-any-return]
