# SPDX-License-Identifier: MIT
"""How one asks the FastRPC driver, and what its refusals mean.

A Connection is all that a call needs. The thread that answers the DSP has it, and not the device:
so a device that nobody holds any more is collected, although that thread still waits.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from npukit.abi import fastrpc as abi
from npukit.abi import hexagon
from npukit.abi.dma_buf import DMA_BUF_IOCTL_SYNC, dma_buf_sync
from npukit.ioctl import DeviceLost, Ioctl, Kernel, NpuError
from npukit.ioctl.errors import error_class

from .base import OpenFile
from .fastrpc_errors import AmbiguousResult, HexagonError

_EXIT_ATTEMPTS = 3

_CAUSES: dict[tuple[Ioctl, int], str] = {
    (abi.FASTRPC_IOCTL_ALLOC_DMA_BUFF, errno.ENOMEM): "no contiguous or mappable memory of {size} "
    "bytes",
    (abi.FASTRPC_IOCTL_INIT_CREATE, errno.ECONNREFUSED): "a signature is needed: a node that is "
    "not -secure makes unsigned processes only, and not on every DSP",
    (abi.FASTRPC_IOCTL_INIT_CREATE, errno.ENOMEM): "no memory for the process: it takes four times "
    "its shell of {filelen} bytes, 2 MiB at least",
    (abi.FASTRPC_IOCTL_INVOKE, errno.EINVAL): "a dma-buf argument cannot be mapped",
    (abi.FASTRPC_IOCTL_INVOKE, errno.EFAULT): "memory of an argument is not there any more",
    (abi.FASTRPC_IOCTL_INVOKE, errno.EINTR): "a signal ended the wait; the DSP may have done the "
    "call, and heap that it took stays taken until it restarts",
    (abi.FASTRPC_IOCTL_MEM_MAP, errno.EINVAL): "the dma-buf {fd} cannot be mapped with {length} "
    "bytes",
    (abi.FASTRPC_IOCTL_MEM_UNMAP, errno.EINVAL): "nothing of dma-buf {fd} is mapped at {vaddr:#x}",
    (abi.FASTRPC_IOCTL_MMAP, errno.ENOMEM): "no contiguous or mappable memory of {size} bytes",
    (abi.FASTRPC_IOCTL_MUNMAP, errno.EINVAL): "address {vaddrout:#x} and size {size} must be those "
    "of one earlier request",
    (abi.FASTRPC_IOCTL_GET_DSP_INFO, errno.EOVERFLOW): "attribute {attribute_id}: attributes are "
    "below 256",
    (abi.FASTRPC_IOCTL_SET_OPTION, errno.EOPNOTSUPP): "this chip's DSP cannot be polled",
    (abi.FASTRPC_IOCTL_SET_OPTION, errno.ENOTTY): "the driver cannot poll before Linux 7.3",
}
_ANY_REQUEST = {
    errno.EPIPE: "the DSP crashed or was restarted: close this session and open a new one",
    errno.ETIMEDOUT: "the DSP did not answer in 10 s",
    errno.ENOSPC: "255 calls are under way on this DSP",
}

# The driver hands a result of the DSP on as its own return value, so -4095 to -1 look like errnos.
# What it can itself return in which state is read off drivers/misc/fastrpc.c (5.19 to 7.3) and, for
# the sending of a message, drivers/rpmsg/qcom_glink_native.c and qcom_smd.c.
_OF_THE_FILE = frozenset({errno.EPIPE, errno.EBADF, errno.ENOTTY, errno.EACCES})
"""The channel is dead, or the descriptor is not the session: every request then ends so."""
_ON_THE_WAY = frozenset({
    errno.ENOMEM, errno.ENOSPC, errno.EINTR, errno.EIO, errno.EAGAIN, errno.ECONNRESET,
    errno.ECANCELED, errno.ETIMEDOUT,
})  # fmt: skip
"""Any message to the DSP may end so before it is sent or answered."""
_DMA_BUF_FAILS = frozenset({errno.EINVAL, errno.EREMOTEIO})
"""Beside ENOMEM and EIO, what an exporter or the IOMMU give for a dma-buf that is good as such."""
_ALSO: dict[Ioctl, frozenset[int]] = {
    abi.FASTRPC_IOCTL_INIT_CREATE: _DMA_BUF_FAILS,
    abi.FASTRPC_IOCTL_MEM_MAP: _DMA_BUF_FAILS,
    abi.FASTRPC_IOCTL_MEM_UNMAP: frozenset({errno.EINVAL}),
    abi.FASTRPC_IOCTL_MUNMAP: frozenset({errno.EINVAL}),
    abi.FASTRPC_IOCTL_GET_DSP_INFO: frozenset({errno.EOPNOTSUPP, errno.EOVERFLOW}),
}
"""What single requests add, sent as npukit sends them: with structures that are there."""
_ASK_NO_DSP = (abi.FASTRPC_IOCTL_ALLOC_DMA_BUFF, abi.FASTRPC_IOCTL_SET_OPTION)
_UNTOUCHED = 0xA5
"""First byte of an out buffer of npukit's own before the call. The driver writes it, with zeros at
least, once the DSP has answered: a failure that changed it is the DSP's. (Old drivers write only
after success, and then this tells nothing.)"""


class _Names(dict[str, Any]):
    """Fields of an argument that is not at hand: their names."""

    def __missing__(self, key: str) -> _Names.Name:
        return self.Name(key)

    class Name(str):
        def __format__(self, spec: str) -> str:
            return str(self)


def explain(request: Ioctl, code: int, arg: Any = None) -> str | None:
    """The driver's own rule behind an errno, with the numbers of ``arg``."""
    text = _CAUSES.get((request, code)) or _ANY_REQUEST.get(code)
    fields = {} if arg is None else {name: getattr(arg, name) for name, *_ in arg._fields_}
    return text and text.format_map(_Names(fields))


def dma_buf_fault(kernel: Kernel, fd: int, length: int) -> tuple[int, str] | None:
    """Why no driver can map ``length`` bytes of the dma-buf ``fd``, if that can be seen here."""
    # A dma-buf knows the request, and without flags finds nothing to do in it (EINVAL).
    _, code = kernel.ioctl(fd, DMA_BUF_IOCTL_SYNC, dma_buf_sync(flags=0))
    if code == errno.EBADF:
        return code, f"descriptor {fd} is not open"
    if code != errno.EINVAL:
        return errno.EINVAL, f"descriptor {fd} is no dma-buf"
    try:
        size = kernel.lseek(fd, 0, os.SEEK_END)
    except OSError:
        return None
    if length > size:
        return errno.EINVAL, f"dma-buf {fd} has {size} bytes, {length} were asked for"
    return None


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
        if code and request in _ASK_NO_DSP:
            raise self._refusal(request, request.name, code, arg)
        if code or value:
            own = _ON_THE_WAY | _ALSO.get(request, frozenset())
            if request == abi.FASTRPC_IOCTL_INIT_CREATE and not self.path.endswith("-secure"):
                own |= {errno.ECONNREFUSED}
            buffers = []
            if request == abi.FASTRPC_IOCTL_MEM_MAP:
                buffers = [(arg.fd, arg.length)]
            elif request == abi.FASTRPC_IOCTL_INIT_CREATE:
                buffers = [(arg.filefd, arg.filelen)]
            raise self._failure(request, request.name, value, code, arg, own, buffers)
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
        results = [_fresh(out) if isinstance(out, int) else out for out in outs]
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
            answered = any(
                isinstance(out, int) and out and result[0] != _UNTOUCHED
                for out, result in zip(outs, results, strict=True)
            )
            own = frozenset() if answered else _ON_THE_WAY
            buffers = [(row.fd, row.length) for row in rows if row.fd > 0 and row.length]
            if buffers and not answered:
                own |= {errno.EINVAL}
            # Other memory may be a mapping whose file was cut short.
            if not all(
                isinstance(data, bytes | bytearray) or hasattr(data, "buffer_row")
                for data in (*ins, *results)
            ):
                own |= {errno.EFAULT}
            raise self._failure(abi.FASTRPC_IOCTL_INVOKE, title, value, code, call, own, buffers)
        return results

    def _gone(self, title: str) -> DeviceLost:
        hint = _ANY_REQUEST[errno.EPIPE]
        return DeviceLost(errno.EPIPE, path=self.path, request=title, hint=hint)

    def _refusal(
        self, request: Ioctl, title: str, code: int, arg: Any, hint: str | None = None
    ) -> NpuError:
        return error_class(code)(
            code,
            path=self.path,
            request=title,
            argument=None if arg is None else repr(arg),
            hint=hint or explain(request, code, arg),
        )

    def _failure(
        self,
        request: Ioctl,
        title: str,
        value: int,
        code: int,
        arg: Any,
        own: frozenset[int],
        buffers: Sequence[tuple[int, int]],
    ) -> NpuError:
        """What a failed message was: the DSP's result unless the driver can have refused.

        ``own`` are the errnos that the driver can give for this message beside those of the file,
        ``buffers`` the dma-bufs (descriptor, bytes) that it maps for it.
        """
        if not code:
            return HexagonError.of(value, request=title, path=self.path)
        if code in _OF_THE_FILE and self._probe() == code:
            if code == errno.EPIPE:
                self.lost = True
                return self._gone(title)
            return self._refusal(request, title, code, arg)
        if code == errno.EBADF or (code == errno.EINVAL and code in own):
            for fd, length in buffers:
                fault = dma_buf_fault(self.kernel, fd, length)
                if fault and code in (fault[0], errno.EINVAL):
                    return self._refusal(request, title, code, arg, fault[1])
        if code in own:
            return AmbiguousResult.of(
                code,
                request=title,
                path=self.path,
                argument=None if arg is None else repr(arg),
                hint=explain(request, code, arg),
            )
        return HexagonError.of(-code, request=title, path=self.path)

    def _probe(self) -> int:
        """The errno that any call ends with now: EPERM while the session and its channel live.

        The driver refuses a call of its own handle, but only once it has seen that the channel is
        there, and before it has done anything; the DSP hears nothing of it.
        """
        call = abi.fastrpc_invoke(hexagon.HANDLE_KERNEL, abi.REMOTE_SCALARS_MAKE(30, 0, 0))
        return self.kernel.ioctl(self.file.fd, abi.FASTRPC_IOCTL_INVOKE, call)[1]


def _fresh(size: int) -> bytearray:
    out = bytearray(size)
    if size:
        out[0] = _UNTOUCHED
    return out


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
