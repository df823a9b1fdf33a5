# SPDX-License-Identifier: MIT
"""A kernel in which chosen calls fail, so that every error path can be walked."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .kernel import Kernel
from .wrapper import KernelWrapper

_NEVER_FAIL = frozenset({"close", "munmap", "monotonic_ns"})
"""Calls that give back: a fault that names none of them leaves these alone."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One failure: the calls that match, but for the first ``after`` of them, give ``errno``.

    ``call`` is a method name of Kernel (None: any that can fail), ``request`` an ioctl number
    (None: any), ``times`` how many calls fail (None: all). With ``done=True`` the call is carried
    out and its result is then thrown away, as when a signal hits after the work.
    """

    errno: int
    call: str | None = None
    request: int | None = None
    after: int = 0
    times: int | None = 1
    done: bool = False

    def matches(self, name: str, arguments: tuple[Any, ...]) -> bool:
        if self.request is not None:
            return name == "ioctl" and arguments[1] == self.request
        return name == self.call if self.call else name not in _NEVER_FAIL


class FaultyKernel(KernelWrapper):
    """``kernel``, with the failures of ``plan``. ``calls`` counts the calls that could fail.

    Synchronization: counts without a lock; one thread at a time.
    """

    def __init__(self, kernel: Kernel, plan: Iterable[Fault] = ()) -> None:
        super().__init__(kernel)
        self.plan = tuple(plan)
        self.calls = 0
        self._seen = [0] * len(self.plan)

    def _pass(self, name: str, *arguments: Any) -> Any:
        if name not in _NEVER_FAIL:
            self.calls += 1
        for index, fault in enumerate(self.plan):
            if not fault.matches(name, arguments):
                continue
            failed = self._seen[index] - fault.after
            self._seen[index] += 1
            if failed < 0 or (fault.times is not None and failed >= fault.times):
                continue
            if fault.done:
                super()._pass(name, *arguments)
            if name == "ioctl":
                return -1, fault.errno
            raise OSError(fault.errno, os.strerror(fault.errno))
        return super()._pass(name, *arguments)
