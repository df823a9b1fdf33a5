# SPDX-License-Identifier: MIT
"""The one error of this floor."""

from __future__ import annotations

import errno

from npukit.ioctl import NpuError


class FormatError(NpuError, ValueError):
    """A file is not what it should be: corrupt, cut short, hostile, or of an unknown kind."""

    def __init__(self, message: str, *, path: str | None = None) -> None:
        super().__init__(errno.EBADMSG, message, path=path)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}" if self.filename else str(self.strerror)
