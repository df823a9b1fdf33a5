# SPDX-License-Identifier: MIT
"""What goes wrong, and which rule was broken.

A subclass exists only where a caller acts differently on it.
"""

from __future__ import annotations

import errno as _errno
import os
from typing import Any

_ERRORS = {
    **_errno.errorcode,
    # Of two names that of the kernel; and what drivers let out that no program is to see.
    _errno.EDEADLK: "EDEADLK",
    _errno.EOPNOTSUPP: "EOPNOTSUPP",
    524: "ENOTSUPP",
    # What a signal leaves: the kernel makes the call again, or answers EINTR.
    512: "ERESTARTSYS",
    513: "ERESTARTNOINTR",
    514: "ERESTARTNOHAND",
    515: "ENOIOCTLCMD",
    516: "ERESTART_RESTARTBLOCK",
}


def error_name(code: int) -> str:
    """An errno by name, also one that a kernel keeps to itself; "" for 0."""
    return _ERRORS.get(code, str(code)) if code else ""


class NpuError(OSError):
    """A driver refused, or npukit refused before the driver could.

    ``errno``, ``filename`` (the device path, None when there is none), ``request`` (its name),
    ``argument`` (the structure as it was sent, as text) and ``hint`` (the rule that explains it).
    """

    def __init__(
        self,
        errno: int = _errno.EINVAL,
        message: str | None = None,
        *,
        path: str | None = None,
        request: str | None = None,
        argument: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(errno, message or os.strerror(errno))
        self.filename = path
        self.request = request
        self.argument = argument
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        # OSError's own would give the path as a third positional argument.
        state = {**self.__dict__, "filename": self.filename}
        return type(self), (self.errno, self.strerror), state

    def __str__(self) -> str:
        code = error_name(self.errno) if self.errno else str(self.errno)
        where = " on ".join(str(part) for part in (self.request, self.filename) if part)
        text = f"{where}: {self.strerror} ({code})" if where else f"{self.strerror} ({code})"
        if self.hint:
            text += f": {self.hint}"
        if self.argument:
            text += f" [{self.argument}]"
        return text


class NoDevice(NpuError):
    """No NPU that npukit can drive is there."""


class DeviceClosed(NpuError):
    """The device, or what belonged to it, was closed before this call."""


class DeviceBusy(NpuError):
    """Somebody else holds what was asked for; later it may work."""


class DeviceLost(NpuError):
    """The device hangs or is gone; this handle will not recover, a new one may."""


class WaitTimeout(NpuError, TimeoutError):
    """The work was not done in time. It may still be running."""


class AbiMismatch(NpuError):
    """The kernel's interface is not the one that npukit was told to speak."""


class ProgramError(NpuError, ValueError):
    """A program that the NPU must not be given: the text names register, field and value."""


class DspError(NpuError):
    """A result code of the DSP, which is not an errno."""


_BY_ERRNO: dict[int, type[NpuError]] = {
    _errno.EBUSY: DeviceBusy,
    _errno.ENODEV: DeviceLost,
    _errno.ETIME: WaitTimeout,
    _errno.ETIMEDOUT: WaitTimeout,
}


def error_class(errno: int) -> type[NpuError]:
    """The class under which a driver's errno is raised."""
    return _BY_ERRNO.get(errno, NpuError)
