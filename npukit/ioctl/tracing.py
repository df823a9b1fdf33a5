# SPDX-License-Identifier: MIT
"""A kernel that tells a sink about every call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .kernel import Kernel
from .wrapper import KernelWrapper


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One call: its name and arguments, what it gave, and when (nanoseconds, CLOCK_MONOTONIC).

    ``errno`` is 0 on success. ``before`` holds the bytes of an ioctl's structure as they were sent;
    the argument itself shows them as they came back.
    """

    name: str
    arguments: tuple[Any, ...]
    result: Any
    errno: int
    start_ns: int
    duration_ns: int
    before: bytes | None = None


class TracingKernel(KernelWrapper):
    """``kernel``, with each finished call handed to ``sink``.

    Synchronization: as the kernel and the sink.
    """

    def __init__(self, kernel: Kernel, sink: Callable[[KernelCall], object]) -> None:
        super().__init__(kernel)
        self.sink = sink

    def _pass(self, name: str, *arguments: Any) -> Any:
        before = None
        if name == "ioctl" and arguments[2] is not None and not isinstance(arguments[2], int):
            before = bytes(arguments[2])
        result: Any = None
        errno = 0
        start = time.monotonic_ns()
        try:
            result = super()._pass(name, *arguments)
            if name == "ioctl":
                errno = result[1]
            return result
        except OSError as error:
            errno = error.errno or 0
            raise
        finally:
            duration = time.monotonic_ns() - start
            self.sink(KernelCall(name, arguments, result, errno, start, duration, before))
