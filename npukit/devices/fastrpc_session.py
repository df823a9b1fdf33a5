# SPDX-License-Identifier: MIT
"""How one asks the FastRPC driver, and what its refusals mean.

A Connection is all that a call needs. The thread that answers the DSP has it, and not the device:
so a device that nobody holds any more is collected, although that thread still waits.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from npukit.abi import fastrpc as abi
from npukit.abi import hexagon
from npukit.ioctl import DeviceLost, Ioctl, Kernel, NpuError
from npukit.ioctl.errors import error_class

from .base import OpenFile
from .fastrpc_errors import HexagonError

_EXIT_ATTEMPTS = 3

_CAUSES: dict[tuple[Ioctl, int], str] = {
    (abi.FASTRPC_IOCTL_ALLOC_DMA_BUFF, errno.ENOMEM): "no contiguous or mappable memory of this "
    "size",
    (abi.FASTRPC_IOCTL_INIT_CREATE, errno.ECONNREFUSED): "a signature is needed: a node that is "
    "not -secure makes unsigned processes only, and not on every DSP",
    (abi.FASTRPC_IOCTL_INIT_CREATE, errno.ENOMEM): "no memory for the process: it takes four times "
    "its shell, 2 MiB at least",
    (abi.FASTRPC_IOCTL_INVOKE, errno.EINVAL): "a dma-buf argument cannot be mapped: it is closed, "
    "no dma-buf, or shorter than stated",
    (abi.FASTRPC_IOCTL_INVOKE, errno.ENOSPC): "255 calls are under way on this DSP",
    (abi.FASTRPC_IOCTL_INVOKE, errno.EINTR): "a signal ended the wait; the DSP may have done the "
    "call, and heap that it took stays taken until it restarts",
    (abi.FASTRPC_IOCTL_MEM_MAP, errno.EBADF): "the dma-buf's descriptor is not open",
    (abi.FASTRPC_IOCTL_MEM_MAP, errno.EINVAL): "the descriptor is no dma-buf, or shorter than the "
    "length",
    (abi.FASTRPC_IOCTL_MEM_UNMAP, errno.EINVAL): "nothing is mapped at this address",
    (abi.FASTRPC_IOCTL_MUNMAP, errno.EINVAL): "address and size must be those of one earlier "
    "request",
    (abi.FASTRPC_IOCTL_GET_DSP_INFO, errno.EOVERFLOW): "attributes are below 256",
    (abi.FASTRPC_IOCTL_SET_OPTION, errno.EOPNOTSUPP): "this chip's DSP cannot be polled",
    (abi.FASTRPC_IOCTL_SET_OPTION, errno.ENOTTY): "the driver cannot poll before Linux 7.3",
}
_ANY_REQUEST = {
    errno.EPIPE: "the DSP crashed or was restarted: close this session and open a new one",
    errno.ETIMEDOUT: "the DSP did not answer in 10 s",
}


def explain(request: Ioctl, code: int) -> str | None:
    """The driver's own rule behind an errno."""
    return _ANY_REQUEST.get(code) or _CAUSES.get((request, code))


class Row(NamedTuple):
    """An argument as the driver takes it."""

    address: int
    length: int
    fd: int


class Shared(Protocol):
    """A dma-buf, or a part of one, as an argument: not copied, but shared with the DSP."""

    def buffer_row(self) -> Row:
        """By address; the driver finds the place in the dma-buf from the mapping's start."""

    def handle_row(self) -> Row:
        """By offset."""


class Connection:
    """An open node of a DSP.

    Synchronization: any thread at any time; no lock is held across a call.
    """

    def __init__(self, kernel: Kernel, file: OpenFile, path: str) -> None:
        self.kernel = kernel
        self.file = file
        self.path = path
        self.lost = False
        """The DSP crashed or was restarted: this session will not work again."""

    def ask(self, request: Ioctl, arg: Any = None) -> Any:
        """Make a request whose result may be the DSP's. Returns the structure."""
        if self.lost:
            raise self._gone(request.name)
        value, code = request.call(self.kernel, self.file.fd, arg)
        if code or value:
            raise self._failure(request, request.name, value, code, arg)
        return arg

    def invoke(
        self,
        handle: int,
        method: int,
        ins: Sequence[Any] = (),
        outs: Sequence[Any] = (),
        *,
        in_handles: Sequence[Shared] = (),
        out_handles: Sequence[Shared] = (),
        attr: int = 0,
        name: str = "",
    ) -> list[Any]:
        """See FastRpcDevice.invoke."""
        if self.lost:
            raise self._gone(abi.FASTRPC_IOCTL_INVOKE.name)
        return self._invoke(handle, method, ins, outs, in_handles, out_handles, attr, name)

    def exit(self) -> None:
        """Ask the process to end, which frees all who wait in it.

        To ask twice is harmless, so the driver's refusal (no room for the call, a signal) is no
        reason to give up.
        """
        for _ in range(_EXIT_ATTEMPTS):
            with contextlib.suppress(NpuError):
                self._invoke(hexagon.HANDLE_PROCESS, hexagon.PROCESS_EXIT, name="exit")
                return

    def _invoke(
        self,
        handle: int,
        method: int,
        ins: Sequence[Any] = (),
        outs: Sequence[Any] = (),
        in_handles: Sequence[Shared] = (),
        out_handles: Sequence[Shared] = (),
        attr: int = 0,
        name: str = "",
    ) -> list[Any]:
        if handle == hexagon.HANDLE_KERNEL:
            raise NpuError(
                errno.EPERM, path=self.path, hint="handle 1 is the driver's own", request=name
            )
        number = method
        if method >= hexagon.EXTENDED_METHOD:
            number = hexagon.EXTENDED_METHOD
            if not ins or bytes(memoryview(ins[0])[:4]) != struct.pack("<I", method):
                raise ValueError(f"method {method} must lead the first in buffer")
        word = abi.REMOTE_SCALARS_MAKEX(
            attr, number, len(ins), len(outs), len(in_handles), len(out_handles)
        )
        results = [bytearray(out) if isinstance(out, int) else out for out in outs]
        # The arrays hold what the addresses in the table point to.
        keep: list[object] = []
        rows = [_row(data, keep, False) for data in ins]
        rows += [_row(data, keep, True) for data in results]
        rows += [shared.handle_row() for shared in (*in_handles, *out_handles)]
        table = (abi.fastrpc_invoke_args * len(rows))()
        for entry, row in zip(table, rows, strict=True):
            entry.ptr, entry.length, entry.fd = row
        call = abi.fastrpc_invoke(handle, word, ctypes.addressof(table))
        value, code = self.kernel.ioctl(self.file.fd, abi.FASTRPC_IOCTL_INVOKE, call)
        if code or value:
            what = name or f"handle {handle:#x}, method {method}"
            title = f"{abi.FASTRPC_IOCTL_INVOKE.name} ({what})"
            raise self._failure(abi.FASTRPC_IOCTL_INVOKE, title, value, code, call)
        return results

    def _gone(self, title: str) -> DeviceLost:
        hint = _ANY_REQUEST[errno.EPIPE]
        return DeviceLost(errno.EPIPE, path=self.path, request=title, hint=hint)

    def _failure(self, request: Ioctl, title: str, value: int, code: int, arg: Any) -> NpuError:
        if code == errno.EPIPE:
            self.lost = True
            return self._gone(title)
        if code == errno.EPERM and request in _NEVER_EPERM:
            return HexagonError.of(-1, request=title, path=self.path)
        if code:
            return error_class(code)(
                code,
                path=self.path,
                request=title,
                argument=None if arg is None else repr(arg),
                hint=explain(request, code),
            )
        return HexagonError.of(value, request=title, path=self.path)


_NEVER_EPERM = (abi.FASTRPC_IOCTL_INVOKE, abi.FASTRPC_IOCTL_GET_DSP_INFO)
"""Neither asks for a right: the DSP's result -1 looks like this errno."""


def _row(data: Any, keep: list[object], filled: bool) -> Row:
    if hasattr(data, "buffer_row"):
        row: Row = data.buffer_row()
        return row
    view = memoryview(data)
    if view.nbytes == 0:
        return Row(0, 0, -1)
    if filled and view.readonly:
        raise ValueError("an out buffer is read-only")
    array = np.frombuffer(view, np.uint8)
    keep.append(array)
    return Row(array.__array_interface__["data"][0], view.nbytes, -1)
