# SPDX-License-Identifier: MIT
"""Qualcomm Hexagon DSPs under the FastRPC driver (drivers/misc/fastrpc.c).

One open file is one session: a process on the DSP, of which there are as many as the device tree
gives. A call blocks until the DSP answers, and the DSP may call back to the host for files and
memory meanwhile, so no lock is held across any call here.

    with FastRpcDevice.open("cdsp") as dsp:
        dsp.start("/usr/lib/dsp/cdsp/fastrpc_shell_unsigned_3", verify=ShellVerifier(...))
        handle = dsp.open_module("file:///libecho_skel.so?echo_skel_handle_invoke&_modver=1.0")
        (copy,) = dsp.invoke(handle, 2, [b"\\3\\0\\0\\0\\3\\0\\0\\0", b"abc"], [3])

Above it stand the interfaces of npukit.programs.hexagon.idl, which pack such calls.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from npukit import _fast
from npukit.abi import fastrpc as abi
from npukit.abi import hexagon
from npukit.abi.fastrpc import Scalars, scalars
from npukit.ioctl import (
    DeviceBusy,
    DeviceLost,
    Ioctl,
    Kernel,
    LinuxKernel,
    NoDevice,
    NpuError,
)
from npukit.ioctl.kernel import round_to_page

from .base import Device, OpenFile
from .dma_buf import DmaBuf
from .dma_heap import DmaHeap
from .fastrpc_errors import AmbiguousResult, HexagonError, SizeLimit, SizeOverflow
from .fastrpc_host import Host, Listener, grow_heap, shrink_heap
from .fastrpc_session import Connection, Row, explain
from .shell import UNVERIFIED, ShellRejected, ShellVerifier, Verifier, find_shell, read_shell

DEFAULT_LIMIT = 256 << 20
"""Bytes that one DmaBuffer may have, unless its device or caller says otherwise."""

SHELL_LIMIT = 2 << 20
"""INIT_FILELEN_MAX of the driver."""

DLERROR_BYTES = 255

__all__ = [
    "DEFAULT_LIMIT",
    "DLERROR_BYTES",
    "SHELL_LIMIT",
    "UNVERIFIED",
    "AmbiguousResult",
    "DmaBuffer",
    "DmaSlice",
    "FastRpcDevice",
    "HexagonError",
    "Host",
    "Scalars",
    "ShellRejected",
    "ShellVerifier",
    "SizeLimit",
    "SizeOverflow",
    "holders",
    "scalars",
]

_CAPABILITY_POISON = 0xA5C3_3C5A
_CDSP = 3


class _SessionFile(OpenFile):
    """A dma-buf's descriptor, which keeps the session's file open.

    The driver's buffer points into the session; freeing it after the session's end would read freed
    memory of the kernel.
    """

    def __init__(self, kernel: Kernel, fd: int, session: OpenFile) -> None:
        super().__init__(kernel, fd)
        self._session: OpenFile | None = session
        session.retain()

    def release(self) -> None:
        super().release()
        with self._lock:
            last = self._session if self._holders == 0 else None
            if last is not None:
                self._session = None
        if last is not None:
            last.release()


class DmaBuffer(DmaBuf):
    """Memory that CPU and DSP share, a dma-buf: from FastRpcDevice.alloc, or from a heap alone.

    ``size`` is of whole pages. ``with buffer.write() as array`` and ``with buffer.read() as array``
    give the CPU its turn: DMA_BUF_IOCTL_SYNC waits for other devices and moves what caches hold of
    a heap's memory (that of alloc is coherent), and a full memory barrier stands inside of both
    ends: what the block reads is read after the DSP wrote it, what it wrote is there before the DSP
    may be told. So a module that polls shared memory, with no call going on, sees it in order too.

    Synchronization: may be used by any thread, not by several at once.
    """

    def __init__(
        self, kernel: Kernel, fd: int, size: int, device: FastRpcDevice | None = None
    ) -> None:
        super().__init__(kernel, fd, size)
        self.device = device
        """The device that made it, or that it is mapped to; None for a heap's, unmapped."""
        self._dsp_address: int | None = None
        self._coherent = device is not None
        if device is not None:
            self._file = _SessionFile(kernel, fd, device._file)
            device._children.add(self)  # type: ignore[arg-type]

    @classmethod
    def from_heap(
        cls,
        size: int,
        kernel: Kernel | None = None,
        heap: str = "system",
        limit: int = DEFAULT_LIMIT,
    ) -> DmaBuffer:
        """``size`` bytes, rounded up to pages, of a dma-heap; no device is needed.

        SizeLimit, SizeOverflow, ValueError: as FastRpcDevice.alloc. NpuError: as the heap refuses.
        """
        kernel = kernel or LinuxKernel()
        rounded = _checked_size(size, limit, f"/dev/dma_heap/{heap}")
        with DmaHeap(heap, kernel) as source:
            buffer = source.alloc(rounded)
        # The fd changes hands: the plain object must neither close it nor warn.
        buffer._closed = True
        return cls(kernel, _not_zero(kernel, buffer.fd), rounded)

    def __repr__(self) -> str:
        at = "" if self._dsp_address is None else f", {self._dsp_address:#x} on the DSP"
        return f"<DmaBuffer fd {self.fd} of {self.size} bytes{at}>"

    @property
    def dma_address(self) -> int:
        """Where the DSP's process sees it; 0 before map_to_dsp."""
        return self._dsp_address or 0

    def map_to_dsp(self, device: FastRpcDevice | None = None) -> int:
        """The address at which the DSP's process has the buffer; mapped once, then remembered.

        ``device`` says which for a buffer from a heap. NpuError as MEM_MAP refuses; HexagonError as
        the DSP does.
        """
        self._check_open()
        device = device or self.device
        if device is None:
            raise NpuError(errno.EINVAL, hint=f"{self!r} has no device: say which")
        if self._dsp_address is not None:
            if device is not self.device:
                raise NpuError(errno.EINVAL, hint=f"{self!r} is mapped to {self.device!r}")
            return self._dsp_address
        if self.device is not None and self.device is not device:
            raise NpuError(errno.EINVAL, hint=f"{self!r} belongs to {self.device!r}")
        answer = device._ask(
            abi.FASTRPC_IOCTL_MEM_MAP,
            abi.fastrpc_mem_map(
                fd=self.fd,
                flags=abi.FASTRPC_MAP_FD,
                vaddrin=self.map().address,
                length=self.size,
            ),
        )
        self.device = device
        device._children.add(self)  # type: ignore[arg-type]
        self._dsp_address = int(answer.vaddrout)
        return self._dsp_address

    def unmap_from_dsp(self) -> None:
        """Undo map_to_dsp. Nothing to do when it is not mapped, or the DSP is gone."""
        address, self._dsp_address = self._dsp_address, None
        if address is None or self.device is None or self.device.closed or self.device.lost:
            return
        request = abi.fastrpc_mem_unmap(fd=self.fd, vaddr=address, length=self.size)
        with contextlib.suppress(DeviceLost):
            self.device._ask(abi.FASTRPC_IOCTL_MEM_UNMAP, request)

    def write(self) -> contextlib.AbstractContextManager[npt.NDArray[np.uint8]]:
        """The bytes, to be written by the CPU; the DSP sees them afterwards."""
        return self._turn("w", memoryview(self.map()))

    def read(self) -> contextlib.AbstractContextManager[npt.NDArray[np.uint8]]:
        """The bytes as the DSP left them, read-only."""
        return self._turn("r", memoryview(self.map()).toreadonly())

    @contextlib.contextmanager
    def _turn(self, mode: str, view: memoryview) -> Iterator[npt.NDArray[np.uint8]]:
        array: npt.NDArray[np.uint8] = np.frombuffer(view, np.uint8)
        self._begin(mode, 0)
        try:
            yield array
        finally:
            self._end(mode)

    def _begin(self, mode: str, timeout: float) -> None:
        super()._begin(mode, timeout)
        _fast.fence()

    def _end(self, mode: str) -> None:
        _fast.fence()
        # For the driver's own memory there is nothing to end: it is coherent, and begun only for
        # the fences that other drivers may have put on it.
        if not self._coherent:
            super()._end(mode)

    def buffer_row(self) -> Row:
        return Row(self.map().address, self.size, self.fd)

    def handle_row(self) -> Row:
        self._check_open()
        return Row(0, self.size, self.fd)

    def part(self, offset: int, size: int) -> DmaSlice:
        """A part of the buffer as an argument of a call; ValueError when it is not within."""
        return DmaSlice(self, offset, size)

    def close(self) -> None:
        """Unmap it from the DSP and the CPU, then close it. Idempotent; all is done even if the
        DSP refuses to unmap, and its refusal is raised then."""
        if self._closed:
            return
        with contextlib.ExitStack() as stack:
            stack.callback(super().close)
            if self.device is not None:
                stack.callback(self.device._children.discard, self)  # type: ignore[arg-type]
            stack.callback(self.unmap_from_dsp)


class DmaSlice:
    """``size`` bytes of a DmaBuffer from ``offset`` on, as an argument of a call."""

    def __init__(self, buffer: DmaBuffer, offset: int, size: int) -> None:
        if offset < 0 or size < 0 or offset + size > buffer.size:
            raise ValueError(f"{size} bytes at offset {offset} are not within {buffer!r}")
        self.buffer = buffer
        self.offset = offset
        self.size = size

    def buffer_row(self) -> Row:
        return Row(self.buffer.map().address + self.offset, self.size, self.buffer.fd)

    def handle_row(self) -> Row:
        self.buffer._check_open()
        return Row(self.offset, self.size, self.buffer.fd)


def _checked_size(size: int, limit: int, path: str | None) -> int:
    """``size`` in whole pages; the named errors when it is no size to ask a kernel for."""
    if size < 1:
        raise ValueError(f"a buffer of {size} bytes")
    if size > (1 << 64) - 1 or round_to_page(size) > (1 << 63) - 1:
        raise SizeOverflow(
            errno.EOVERFLOW,
            f"{size} bytes, rounded to pages, do not fit in 63 bits",
            path=path,
        )
    if round_to_page(size) > limit:
        raise SizeLimit(
            errno.EFBIG, f"{size} bytes are more than the limit of {limit} bytes", path=path
        )
    return round_to_page(size)


def _not_zero(kernel: Kernel, fd: int) -> int:
    """The same file under another number than 0, which the driver takes for "no dma-buf"."""
    if fd != 0:
        return fd
    try:
        copy = kernel.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        kernel.close(fd)
    return copy


class FastRpcDevice(Device):
    """An open session of a DSP.

    Synchronization: any thread may call it at any time; no lock is held while a call waits.
    """

    driver: ClassVar[str] = "fastrpc"

    def __init__(
        self,
        path: str,
        kernel: Kernel | None = None,
        *,
        limit: int = DEFAULT_LIMIT,
        root: str | os.PathLike[str] = "/",
        explainer: object = None,
    ) -> None:
        """Open the node ``path``. ``limit`` bounds a buffer; ``root`` is where /proc is, which
        tells who holds the sessions when none is left."""
        self.limit = limit
        self.host: Host | None = None
        """What answers the DSP's own calls, once the session runs."""
        self._listener: Listener | None = None
        self._state = threading.Lock()
        self._process = ""
        self._capabilities: dict[int, int | None] = {}
        # Nobody calls it: the driver says all it knows in its answer.
        self.explainer = explainer
        try:
            super().__init__(kernel or LinuxKernel(), path)
        except NpuError as error:
            if error.errno == errno.EBUSY:
                raise _no_session(path, root) from error
            raise
        self._connection = Connection(self.kernel, self._file, path)

    @classmethod
    def open(
        cls,
        domain: str = "cdsp",
        secure: bool | None = None,
        kernel: Kernel | None = None,
        **options: Any,
    ) -> Self:
        """Open a DSP by its label: "cdsp", "adsp", "cdsp1", "gdsp0".

        ``secure`` chooses the node: True /dev/fastrpc-LABEL-secure, False the one without, None the
        secure one if it is there and this process may open it. NoDevice when there is none;
        DeviceBusy when all sessions are taken; NpuError (EACCES) when none may be opened.
        """
        if not re.fullmatch(r"[a-z]+\d*", domain):
            raise ValueError(f"{domain!r} is not the label of a DSP: cdsp is one")
        names = {True: [f"fastrpc-{domain}-secure"], False: [f"fastrpc-{domain}"]}
        tried = names[True] + names[False] if secure is None else names[secure]
        refused: NpuError | None = None
        for name in tried:
            try:
                return cls(f"/dev/{name}", kernel, **options)
            except NpuError as error:
                if error.errno in (errno.EACCES, errno.EPERM):
                    error.hint = "no permission: the node's group (often fastrpc) must be yours"
                    refused = refused or error
                elif error.errno != errno.ENOENT:
                    raise
        if refused is not None:
            raise refused
        raise NoDevice(
            errno.ENOENT,
            f"no node of the DSP {domain!r}",
            hint=f"tried {', '.join(f'/dev/{name}' for name in tried)}; the DSP's firmware may not "
            "run, or its driver not be loaded",
        )

    @property
    def domain(self) -> str:
        """The DSP's label, from the node's name."""
        return os.path.basename(self.path).removeprefix("fastrpc-").removesuffix("-secure")

    @property
    def secure(self) -> bool:
        """The node is the one that may make signed processes; it is no other DSP."""
        return self.path.endswith("-secure")

    @property
    def lost(self) -> bool:
        """The DSP crashed or was restarted: this session will not work again."""
        return self._connection.lost

    @property
    def running(self) -> bool:
        """The session has its process on the DSP."""
        return bool(self._process) and not self.lost and not self.closed

    def explain(self, request: Ioctl, code: int) -> str | None:
        return explain(request, code)

    def _ask(self, request: Ioctl, arg: Any = None) -> Any:
        """Make a request whose result may be the DSP's. Returns the structure."""
        self._check_open()
        return self._connection.ask(request, arg)

    def capability(self, attribute: str | int) -> int | None:
        """An attribute of the DSP: a name of npukit.abi.fastrpc ("ARCH_VER") or its number.

        None when this DSP answers no such question (its firmware is too old). NpuError (EOVERFLOW)
        for a number above 255; HexagonError as the DSP refuses.
        """
        number = getattr(abi, attribute) if isinstance(attribute, str) else attribute
        if number in self._capabilities:
            return self._capabilities[number]
        if not 0 <= number < 256:
            raise NpuError(
                errno.EOVERFLOW,
                path=self.path,
                hint=f"attribute {number}: attributes are below 256",
            )
        # Drivers before 6.19 ask for a domain there, and older ones answer in that very word.
        arg = abi.fastrpc_ioctl_capability(
            unused=_CDSP, attribute_id=number, capability=_CAPABILITY_POISON
        )
        try:
            self._ask(abi.FASTRPC_IOCTL_GET_DSP_INFO, arg)
        except HexagonError as error:
            if error.code != 0xFFFFFFFF:
                raise
            answer = None
        except NpuError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            answer = None
        else:
            moved = arg.capability == _CAPABILITY_POISON
            answer = int(arg.unused if moved else arg.capability)
        self._capabilities[number] = answer
        return answer

    def set_poll_mode(self, enable: bool) -> None:
        """Let the CPU spin for 10 ms for answers of modules, before it sleeps (Linux 7.3)."""
        value = abi.FASTRPC_POLL_MODE_ENABLE if enable else abi.FASTRPC_POLL_MODE_DISABLE
        self._ask(
            abi.FASTRPC_IOCTL_SET_OPTION,
            abi.fastrpc_ioctl_set_option(request_id=abi.FASTRPC_POLL_MODE, value=value),
        )

    # Memory.

    def alloc(self, size: int) -> DmaBuffer:
        """A coherent buffer of ``size`` bytes, rounded up to pages.

        SizeLimit above ``limit``; SizeOverflow when the rounded size fits no 63 bits; ValueError
        below 1; NpuError (ENOMEM) as the driver refuses.
        """
        self._check_open()
        rounded = _checked_size(size, self.limit, self.path)
        answer = self._ask(
            abi.FASTRPC_IOCTL_ALLOC_DMA_BUFF, abi.fastrpc_alloc_dma_buf(size=rounded)
        )
        fd = _not_zero(self.kernel, answer.fd)
        try:
            self.kernel.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        except OSError:
            self.kernel.close(fd)
            raise
        return DmaBuffer(self.kernel, fd, rounded, self)

    def grow_heap(self, size: int) -> int:
        """Give the DSP's process ``size`` bytes more of heap; the address that the DSP has."""
        self._check_open()
        return grow_heap(self._connection, size)

    def shrink_heap(self, address: int, size: int) -> None:
        """Take back exactly what grow_heap gave."""
        self._check_open()
        shrink_heap(self._connection, address, size)

    def buffers(self) -> list[DmaBuffer]:  # type: ignore[override]
        """The buffers that are open, by the DSP's address."""
        return sorted(self._children, key=lambda each: each.dma_address)  # type: ignore[arg-type]

    # The process on the DSP.

    def start(
        self,
        shell: str | os.PathLike[str] | bytes | None = None,
        *,
        unsigned: bool = True,
        verify: Verifier | None = None,
        host: Host | None = None,
    ) -> None:
        """Make a process on the DSP and answer its calls.

        ``shell`` is the process image: a file, its bytes, or None for the vendor's file where it is
        usually installed (NoDevice says where that was looked for). It is read once, and what was
        verified is what is loaded. ``verify`` must be chosen: a ShellVerifier, or UNVERIFIED to
        load whatever it is; without it nothing is loaded. ``unsigned`` asks for a process that may
        load unsigned modules. ``host`` answers the DSP's calls for files; None gives it no files.

        SizeLimit: a shell above 2 MiB. ShellRejected: as ``verify`` finds, or there is none.
        NpuError (ECONNREFUSED): a signed process asked through a node that is not -secure.
        HexagonError: the DSP's refusal.
        """
        self._check_open()
        if verify is None:
            raise ShellRejected(
                errno.EKEYREJECTED,
                path=self.path,
                hint="nothing says what the shell must be: give verify=ShellVerifier(...), or "
                "verify=UNVERIFIED to load whatever it is",
            )
        self._claim("process")
        host = host or Host()
        created = False
        try:
            host.connect(self._connection)
            if shell is None:
                shell = find_shell(self.domain, unsigned)
            image = shell if isinstance(shell, bytes) else read_shell(shell, SHELL_LIMIT)
            if len(image) > SHELL_LIMIT:
                raise SizeLimit(
                    errno.EFBIG,
                    f"a shell of {len(image)} bytes is larger than the driver's limit of "
                    f"{SHELL_LIMIT} bytes",
                    path=self.path,
                )
            verify.check(image)
            self._create(image, abi.FASTRPC_MODE_UNSIGNED_MODULE if unsigned else 0)
            created = True
            self.host = host
            listener = Listener(self._connection, host)
            listener.begin()
            self._listener = listener
        except BaseException:
            host.disconnect(self._connection)
            self.host = None
            if not created:
                self._process = ""
            raise

    def attach(self, sensors: bool = False) -> None:
        """Use the DSP's root process (or that of its sensors) and make none of one's own.

        No calls of the DSP are answered: that process has its own host.
        """
        self._claim("root")
        request = abi.FASTRPC_IOCTL_INIT_ATTACH_SNS if sensors else abi.FASTRPC_IOCTL_INIT_ATTACH
        try:
            self._ask(request)
        except BaseException:
            self._process = ""
            raise

    def _claim(self, process: str) -> None:
        self._check_open()
        with self._state:
            if self._process:
                raise NpuError(
                    errno.EALREADY, path=self.path, hint="the session has its process already"
                )
            self._process = process

    def _create(self, image: bytes, attrs: int) -> None:
        # The driver keeps a map of its own, so the buffer is needed for the call alone.
        with self.alloc(max(len(image), 1)) as buffer:
            with buffer.write() as memory:
                memory[: len(image)] = np.frombuffer(image, np.uint8)
            address = buffer.map().address
            del memory
            self._ask(
                abi.FASTRPC_IOCTL_INIT_CREATE,
                abi.fastrpc_init_create(
                    filelen=len(image), filefd=buffer.fd, attrs=attrs, file=address
                ),
            )

    def open_module(self, uri: str) -> int:
        """Load a module and return its handle.

        HexagonError when the DSP refuses; its hint has the DSP's own text, and the files that it
        asked the host for meanwhile.
        """
        before = len(self.host.asked) if self.host else 0
        name = uri.encode() + b"\0"
        numbers = struct.pack("<II", len(name), DLERROR_BYTES)
        answer, text = self.invoke(
            hexagon.HANDLE_REMOTECTL,
            hexagon.REMOTECTL_OPEN,
            [numbers, name],
            [8, DLERROR_BYTES],
            name=f"open {uri}",
        )
        handle, result = struct.unpack("<Ii", answer)
        if result:
            said = [bytes(text).split(b"\0", 1)[0].decode(errors="replace")]
            asked = self.host.asked[before:] if self.host else []
            said += [f"files asked for: {'; '.join(asked)}"] if asked else []
            raise HexagonError.of(
                result,
                request=f"open {uri}",
                path=self.path,
                hint=". ".join(filter(None, said)) or None,
            )
        return int(handle)

    def close_module(self, handle: int) -> None:
        """Unload a module. HexagonError as the DSP refuses."""
        answer, _text = self.invoke(
            hexagon.HANDLE_REMOTECTL,
            hexagon.REMOTECTL_CLOSE,
            [struct.pack("<II", handle, DLERROR_BYTES)],
            [4, DLERROR_BYTES],
            name=f"close {handle:#x}",
        )
        (result,) = struct.unpack("<i", answer)
        if result:
            raise HexagonError.of(result, request=f"close {handle:#x}", path=self.path)

    def start_log(self) -> None:
        """Ask the process to send its log lines, which go to the logger npukit.fastrpc.dsp."""
        self.invoke(hexagon.HANDLE_MSGD, 2, name="adspmsgd init")

    def invoke(
        self,
        handle: int,
        method: int,
        ins: Sequence[Any] = (),
        outs: Sequence[Any] = (),
        *,
        in_handles: Sequence[DmaBuffer | DmaSlice] = (),
        out_handles: Sequence[DmaBuffer | DmaSlice] = (),
        attr: int = 0,
        name: str = "",
    ) -> list[Any]:
        """Call a method of a module; returns the out buffers, filled.

        An in buffer is anything with the buffer protocol (copied by the driver), a DmaBuffer or a
        part of one (shared with the DSP, not copied). An out buffer is the same, writable, or an
        int: so many bytes, which come back as a bytearray. A method above 30 goes as 31; its number
        must lead the first in buffer, as npukit.programs.hexagon.marshal packs it. ``name`` is for
        messages.

        HexagonError: the DSP's result, whatever is not 0. NpuError: the driver's refusal.
        AmbiguousResult, an NpuError: it was one of both. DeviceLost: the DSP is gone, and the
        session with it. ValueError: what cannot be sent.
        """
        self._check_open()
        return self._connection.invoke(
            handle,
            method,
            ins,
            outs,
            in_handles=in_handles,
            out_handles=out_handles,
            attr=attr,
            name=name,
        )

    def close(self, strict: bool = False) -> None:
        """Unmap the buffers, end the process, close buffers and session. Idempotent.

        ``strict`` as in Device.close. The driver waits 10 s for the DSP at most.
        """
        if self.closed:
            return
        if strict and any(buffer.views for buffer in self.buffers()):
            super().close(strict)
        with contextlib.ExitStack() as stack:
            stack.callback(super().close)
            stack.callback(self._end_process)
            for buffer in self.buffers():
                stack.callback(buffer.unmap_from_dsp)

    def _end_process(self) -> None:
        listener, self._listener = self._listener, None
        if listener is None:
            return
        self._connection.exit()
        listener.end()
        if self.host is not None:
            self.host.disconnect(self._connection)


def holders(path: str, root: str | os.PathLike[str] = "/") -> list[str]:
    """Who has the DSP of the node ``path`` open, as "name (pid)", one for each session.

    Only processes that this one may look into are seen.
    """
    node = path.removesuffix("-secure")
    found = []
    for process in sorted(Path(root, "proc").glob("[0-9]*")):
        with contextlib.suppress(OSError):
            links = [os.readlink(entry) for entry in (process / "fd").iterdir()]
            count = sum(link in (node, f"{node}-secure") for link in links)
            if count:
                name = (process / "comm").read_text().strip()
                found += [f"{name} ({process.name})"] * count
    return found


def _no_session(path: str, root: str | os.PathLike[str]) -> DeviceBusy:
    names = holders(path, root)
    seen = (
        f"{len(names)} of them belong to {', '.join(sorted(set(names)))}"
        if names
        else "their holders cannot be seen by this user"
    )
    return DeviceBusy(errno.EBUSY, path=path, hint=f"no session of the DSP is free: {seen}")
