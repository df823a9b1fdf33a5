# SPDX-License-Identifier: MIT
"""What goes wrong on the way to a Hexagon DSP, beside what an errno says."""

from __future__ import annotations

import errno
from typing import Self

from npukit.abi import aee
from npukit.ioctl import DspError, NpuError, WaitTimeout


class HexagonError(DspError):
    """A result of the DSP, which is no errno: ``code`` (unsigned), its ``name`` and ``layer``.

    ``errno`` is EREMOTEIO always. ``layer`` is one of npukit.abi.aee: AEE, RPC, shell, signature,
    file, power, or "module" for codes that a module gives of its own.
    """

    code: int = 0
    name: str = ""
    layer: str = ""

    @classmethod
    def of(
        cls, code: int, *, request: str | None, path: str | None, hint: str | None = None
    ) -> Self:
        known = aee.decode(code)
        code &= 0xFFFFFFFF
        error = cls(
            errno.EREMOTEIO,
            f"the DSP answers {known.name} {code:#x}, layer {known.layer}: {known.text}",
            path=path,
            request=request,
            hint=hint or _DSP_HINTS.get(code) or _as_errno(code),
        )
        error.code, error.name, error.layer = code, known.name, known.layer
        return error


def _as_errno(code: int) -> str | None:
    name = errno.errorcode.get((1 << 32) - code)
    return name and f"a module that counts in errnos means {name}; this kernel gave none"


class AmbiguousResult(NpuError):
    """The driver refused, or the DSP answered: the same number says either, and nothing else tells.

    ``errno`` is the first reading. ``code`` (unsigned), ``name`` and ``layer`` are the second, as
    HexagonError has them. Whether the DSP did the call is unknown.
    """

    code: int = 0
    name: str = ""
    layer: str = ""

    @classmethod
    def of(
        cls, code: int, *, request: str | None, path: str, argument: str | None, hint: str | None
    ) -> AmbiguousResult:
        kind = AmbiguousTimeout if code == errno.ETIMEDOUT else cls
        result = -code & 0xFFFFFFFF
        known = aee.decode(result)
        second = f"or else it is the DSP's own result {result:#x}, which looks alike here"
        error = kind(
            code,
            path=path,
            request=request,
            argument=argument,
            hint=f"{hint}; {second}" if hint else second,
        )
        error.code, error.name, error.layer = result, known.name, known.layer
        return error


class AmbiguousTimeout(AmbiguousResult, WaitTimeout):
    """The same of ETIMEDOUT."""


_DSP_HINTS = {
    0x8000054F: "firmware and fastrpc_shell are of different builds, or the DSP is still busy with "
    "the end of an earlier process",
    0x80000406: "a file that the module needs was not found, or is of another build; the log "
    "npukit.fastrpc lists what the DSP asked for",
    0x80000414: "this DSP's firmware does not have this",
    0x8000040D: "the process on the DSP is gone or going",
}


class SizeOverflow(NpuError, ValueError):
    """Sizes whose sum or rounding no longer fits what the kernel takes."""


class SizeLimit(NpuError, ValueError):
    """More bytes than npukit or the driver allows."""
