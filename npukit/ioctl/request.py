# SPDX-License-Identifier: MIT
"""A request: an int that knows its name and structure, and can be called."""

from __future__ import annotations

import ctypes
import errno as _errno
from typing import TYPE_CHECKING, Any

from .codes import decode
from .errors import error_class

if TYPE_CHECKING:
    from .kernel import Kernel

MAX_AGAIN = 1000
"""How often EAGAIN is taken for an answer that will change, before it is taken for an error."""


class Ioctl(int):
    """A request number, encoded once and always positive, usable wherever an int is.

        number = IOWR("d", 0x40, drm_rocket_create_bo)
        CREATE_BO = Ioctl("DRM_IOCTL_ROCKET_CREATE_BO", number, drm_rocket_create_bo)
        bo = CREATE_BO(kernel, fd, size=4096)   # the filled structure

    ``returns="value"`` declares a request whose result is the ioctl's own return value (a file
    descriptor, a DSP result) and not its structure. ``restart=True`` declares that the driver
    allows the same call again after EINTR or EAGAIN; without it, either is an error like any other.
    """

    name: str
    struct: Any
    returns: str
    restart: bool
    size: int
    """Bytes of argument that the number states."""

    def __new__(
        cls,
        name: str,
        number: int,
        struct: Any = None,
        *,
        returns: str = "struct",
        restart: bool = False,
    ) -> Ioctl:
        self = super().__new__(cls, number)
        self.name = name
        self.struct = struct
        self.returns = returns
        self.restart = restart
        self.size = decode(number).size  # kept, as each call asks for it
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"returns": self.returns, "restart": self.restart}
        return _make, (self.name, int(self), self.struct, options)

    @property
    def direction(self) -> int:
        """Bits of IOC_READ and IOC_WRITE."""
        return decode(self).direction

    @property
    def type(self) -> int:
        return decode(self).type

    @property
    def nr(self) -> int:
        return decode(self).nr

    def __repr__(self) -> str:
        return f"<{self.name} {int(self):#x}>"

    def call(self, kernel: Kernel, fd: int, arg: Any = None) -> tuple[int, int]:
        """The raw form: (value, errno), as the kernel answered. Nothing is retried or raised."""
        return kernel.ioctl(fd, self, arg)

    def __call__(self, kernel: Kernel, fd: int, arg: Any = None, /, **fields: Any) -> Any:
        """Make the call, and raise what the driver answers as an NpuError.

        ``arg`` is a structure to send (it is filled in place); without one, a new one is made from
        ``fields``. Returns that structure; the ioctl's value where ``returns="value"``; None for a
        request that has no structure.
        """
        if arg is None and self.struct is not None:
            arg = self.struct(**fields)
        elif fields:
            raise TypeError(f"{self.name}: give a structure or fields, not both")
        if isinstance(arg, (ctypes.Structure, ctypes.Union)) and ctypes.sizeof(arg) < self.size:
            raise TypeError(
                f"{self.name} takes {self.size} bytes; a {type(arg).__name__} has "
                f"{ctypes.sizeof(arg)}, and the kernel would go past its end"
            )
        patience = MAX_AGAIN
        while True:
            value, errno = kernel.ioctl(fd, self, arg)
            if errno == 0:
                break
            if self.restart and errno == _errno.EINTR:
                continue
            if self.restart and errno == _errno.EAGAIN and patience:
                patience -= 1
                continue
            sent = None if arg is None else repr(arg)
            raise error_class(errno)(errno, request=self.name, argument=sent)
        if self.returns == "value":
            return value
        return arg if self.struct is not None else None


def _make(name: str, number: int, struct: Any, options: dict[str, Any]) -> Ioctl:
    return Ioctl(name, number, struct, **options)
