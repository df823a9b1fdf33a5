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

    ``errno`` is 0 on success. ``before`` is what ``capture`` gave before the call: by default the
    bytes of an ioctl's structure as they were sent; the argument itself shows them as they came
    back.
    """

    name: str
    arguments: tuple[Any, ...]
    result: Any
    errno: int
    start_ns: int
    duration_ns: int
    before: Any = None


def sent_bytes(name: str, arguments: tuple[Any, ...]) -> bytes | None:
    """An ioctl's structure before the call; None where there is none."""
    if name == "ioctl" and arguments[2] is not None and not isinstance(arguments[2], int):
        return bytes(arguments[2])
    return None


class TracingKernel(KernelWrapper):
    """``kernel``, with each finished call handed to ``sink``.

    ``capture`` is asked before each call, with its name and arguments, for what is to be kept.

    Synchronization: as the kernel, the sink and the capture.
    """

    def __init__(
        self,
        kernel: Kernel,
        sink: Callable[[KernelCall], object],
        capture: Callable[[str, tuple[Any, ...]], Any] = sent_bytes,
    ) -> None:
        super().__init__(kernel)
        self.sink = sink
        self.capture = capture

    def _pass(self, name: str, *arguments: Any) -> Any:
        before = self.capture(name, arguments)
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
