# SPDX-License-Identifier: MIT
"""A simulated /dev/wrapfd: dma-bufs whose content can be owned, loaded, moved and taken away.

Checks stand in the order of drivers/android/wrapfd.c in its newest form (generation 3); the three
earlier ones differ where it is said. Every operation is done under one lock, so the EAGAIN that a
racing thread of the owner can meet never comes.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
from typing import Any, TypeVar

from npukit import _fast
from npukit.abi import wrapfd as abi
from npukit.ioctl import Struct
from npukit.ioctl.kernel import PAGE_SIZE, round_to_page

from .core import Area, Caller, Errno, KernelOops, Piece, SimDevice, SimFile
from .dma_buf import CharFile, DmaBufSim

_S = TypeVar("_S", bound=Struct)
_PROT = _fast.PROT_READ | _fast.PROT_WRITE


class WrapfdSim(SimDevice):
    """/dev/wrapfd. ``generation`` is "1", "1-reserved", "2" or "3"; see docs/buffers.md."""

    name = "wrapfd"
    major = 10

    def __init__(self, kernel: Any, paths: tuple[str, ...], generation: str = "3") -> None:
        super().__init__(kernel, paths)
        self.generation = generation
        self.first = generation.startswith("1")
        self.newest = generation == "3"
        self.abi: Any = abi.variant(f"generation-{generation}") if self.first else abi

    def open(self, caller: Caller, path: str, flags: int) -> tuple[SimFile, int]:
        return WrapfdNode(self.kernel, self), os.memfd_create("wrapfd")


def _read(caller: Caller, address: int, struct: type[_S]) -> _S:
    return struct.from_buffer_copy(caller.copy_from_user(address, ctypes.sizeof(struct)))


class WrapfdNode(CharFile):
    """An open /dev/wrapfd, which makes wraps."""

    device: WrapfdSim

    def ioctl(self, caller: Caller, request: int, address: int) -> int:
        if request == self.device.abi.WRAPFD_DEV_IOC_WRAP:
            return self._wrap(caller, _read(caller, address, self.device.abi.wrapfd_wrap))
        if request == abi.WRAPFD_DEV_IOC_GET_STATE and self.device.generation == "1":
            return self._state(caller, address)
        raise Errno(errno.ENOTTY)

    def _wrap(self, caller: Caller, arg: Any) -> int:
        if arg.prot & ~_PROT or getattr(arg, "reserved", 0):
            raise Errno(errno.EINVAL)
        # The field has 64 bits in the first generation, of which the driver looks at 32.
        fd = ctypes.c_int32(arg.fd).value
        buffer = self.kernel.file(fd)
        if buffer is None and self.device.newest:
            os.close(caller.take(fd))  # EBADF, which older drivers report as EINVAL
        if not isinstance(buffer, DmaBufSim):
            raise Errno(errno.EINVAL)
        writable = bool(arg.prot & _fast.PROT_WRITE)
        if writable and not buffer.writable:
            if self.device.newest:
                raise Errno(errno.EACCES)
            self.kernel.complain("wrapfd makes a read-only dma-buf writable")
        content = Content(buffer, writable, caller.closes_on_exec(fd))
        return WrapFile(self.device, content).install()

    def _state(self, caller: Caller, address: int) -> int:
        arg = _read(caller, address, self.device.abi.wrapfd_get_state)
        fd = ctypes.c_int32(arg.fd).value
        wrap = self.kernel.file(fd)
        if wrap is None:
            os.close(caller.take(fd))
        if not isinstance(wrap, WrapFile):
            raise Errno(errno.EINVAL)
        arg.state = wrap.state
        caller.copy_to_user(address, bytes(arg))
        return 0


class Content:
    """A dma-buf inside a wrap."""

    def __init__(self, buffer: DmaBufSim, writable: bool, cloexec: bool) -> None:
        self.buffer = buffer
        self.writable = writable
        self.cloexec = cloexec
        self._readers: dict[int, int] = {}
        buffer.holders += 1

    @property
    def size(self) -> int:
        return self.buffer.backing.size

    def pieces(self, length: int, offset: int, flags: int) -> list[Piece]:
        if offset % PAGE_SIZE or offset + length > round_to_page(self.size):
            raise Errno(errno.EINVAL)
        pieces = self.buffer.backing.pieces(length, offset, flags)
        if self.writable:
            return pieces
        # A mapping of a file that is open for reading can never be made writable by mprotect.
        return [piece._replace(fd=self._reader(piece.fd)) for piece in pieces]

    def _reader(self, fd: int) -> int:
        if fd not in self._readers:
            self._readers[fd] = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        return self._readers[fd]

    def free(self) -> None:
        for fd in self._readers.values():
            os.close(fd)
        self._readers.clear()
        self.buffer.kernel.put(self.buffer)


class WrapFile(SimFile):
    """A wrap. All descriptors of one WRAP or REWRAP share it."""

    def __init__(self, device: WrapfdSim, content: Content) -> None:
        super().__init__(device.kernel)
        self.device = device
        self.content: Content | None = content
        self.owner: Caller | SimDevice | None = None
        self.guests = False
        self.maps = 0
        self.uses = 0
        """Calls that are inside the content now."""
        self._writable = content.writable

    def install(self) -> int:
        """A new descriptor of the size of the content, open for writing if it is writable."""
        content = self.content
        assert content is not None
        memfd = os.memfd_create("wrapfd")
        # The first generation's anonymous file has no size.
        os.ftruncate(memfd, 0 if self.device.generation == "1" else content.size)
        fd = os.open(f"/proc/self/fd/{memfd}", os.O_RDWR if self._writable else os.O_RDONLY)
        os.close(memfd)
        os.set_inheritable(fd, not content.cloexec)
        return self.kernel.install(fd, self)

    def released(self) -> None:
        content, self.content = self.content, None
        if content is not None:
            content.free()

    @property
    def state(self) -> int:
        if self.content is None:
            return abi.WRAPFD_CONTENT_EMPTY
        if self.content.writable:
            return abi.WRAPFD_CONTENT_RDWR
        return abi.WRAPFD_CONTENT_RDONLY

    def lseek(self, offset: int, whence: int) -> int:
        if not self.device.newest:
            raise Errno(errno.ESPIPE)
        if self.content is None:
            self.uses += 1
            self.kernel.complain("lseek of an empty wrap counts a use that never ends")
            raise Errno(errno.ENOENT)
        return self.content.buffer.lseek(offset, whence)

    # Ownership.

    def _owned(self) -> bool:
        # A dead owner is found out when it is asked for; older drivers keep it for ever.
        if self.device.newest and not getattr(self.owner, "alive", True):
            self.owner = None
            if self.guests:
                self.kernel.complain("the guests of a dead owner stay allowed")
        return self.owner is not None

    def _shut_out(self, caller: Caller) -> bool:
        """Another one owns it and allows no guests."""
        return self._owned() and self.owner is not caller and not self.guests

    def _check_modify(self, caller: Caller, needs_content: bool = True) -> None:
        if not self._owned() or self.owner is not caller:
            raise Errno(errno.EBUSY)
        if self.maps or self.uses:
            raise Errno(errno.EINVAL)
        if needs_content and self.content is None:
            raise Errno(errno.ENOENT)

    def _acquire(self, owner: Caller | SimDevice) -> None:
        if self._owned():
            if self.owner is owner:
                return
            raise Errno(errno.EBUSY)
        if self.maps or self.uses:
            raise Errno(errno.EINVAL)
        if self.content is None:
            raise Errno(errno.ENOENT)
        self.owner = owner

    def get_mappable(self, device: SimDevice) -> DmaBufSim:
        """What an NPU driver of the kernel does to use the buffer: the device becomes its owner.

        Errno: EBUSY another one owns it, EINVAL mapped or in use, ENOENT empty.
        """
        if self.owner is device and (self.maps or self.uses):
            raise Errno(errno.EINVAL)
        self._acquire(device)
        assert self.content is not None
        return self.content.buffer

    def put_mappable(self, device: SimDevice) -> None:
        """The device is done with the buffer; Errno(EBUSY) when it does not own it."""
        if self.owner is not device:
            raise Errno(errno.EBUSY)
        self.owner = None

    # System calls.

    def mmap(self, caller: Caller, length: int, offset: int, prot: int, flags: int) -> Area:
        writes = bool(prot & _fast.PROT_WRITE)
        # The virtual file system's own check comes first.
        if writes and flags & _fast.MAP_SHARED and not self._writable:
            raise Errno(errno.EACCES)
        if self._shut_out(caller):
            raise Errno(errno.EBUSY)
        if self.content is None:
            raise Errno(errno.ENOENT)
        if writes and not self.content.writable:
            raise Errno(errno.EINVAL if self.device.first else errno.EACCES)
        if offset and not self.device.newest:
            self.kernel.complain("wrapfd maps from offset 0, whatever was asked")
            offset = 0
        pieces = self.content.pieces(length, offset, flags)
        self.maps += 1
        return Area(pieces, self._unmapped)

    def _unmapped(self) -> None:
        self.maps -= 1

    def ioctl(self, caller: Caller, request: int, address: int) -> int:
        device = self.device.abi
        if request == abi.WRAPFD_DEV_IOC_GET_STATE and self.device.generation != "1":
            return self._get_state(caller, address)
        if request == abi.WRAPFD_DEV_IOC_ACQUIRE_OWNERSHIP:
            self._acquire(caller)
        elif request == abi.WRAPFD_DEV_IOC_RELEASE_OWNERSHIP:
            self._check_modify(caller, needs_content=False)
            self.owner, self.guests = None, False
        elif request == device.WRAPFD_DEV_IOC_LOAD:
            self._load(caller, _read(caller, address, device.wrapfd_load))
        elif request == device.WRAPFD_DEV_IOC_REWRAP:
            return self._rewrap(caller, _read(caller, address, device.wrapfd_rewrap))
        elif request == abi.WRAPFD_DEV_IOC_EMPTY:
            self._check_modify(caller)
            self.released()
        elif request in (abi.WRAPFD_DEV_IOC_ALLOW_GUESTS, abi.WRAPFD_DEV_IOC_PROHIBIT_GUESTS):
            self._check_modify(caller)
            self.guests = request == abi.WRAPFD_DEV_IOC_ALLOW_GUESTS
        else:
            return self._forward(caller, request, address)
        return 0

    def _forward(self, caller: Caller, request: int, address: int) -> int:
        """A request that is not ours goes to the dma-buf."""
        if self.device.newest and self._shut_out(caller):
            raise Errno(errno.EBUSY)
        if self.content is None:
            if self.device.generation == "1":
                raise KernelOops("the first wrapfd driver looks for a request of an empty wrap")
            raise Errno(errno.ENOENT)
        self.uses += 1
        try:
            return self.content.buffer.ioctl(caller, request, address)
        finally:
            self.uses -= 1

    def _get_state(self, caller: Caller, address: int) -> int:
        arg = _read(caller, address, self.device.abi.wrapfd_get_state)
        if arg.reserved or getattr(arg, "pad", 0):
            raise Errno(errno.EINVAL)
        arg.state = self.state
        caller.copy_to_user(address, bytes(arg))
        return 0

    def _rewrap(self, caller: Caller, arg: Any) -> int:
        if arg.prot & ~_PROT or getattr(arg, "pad", 0) or getattr(arg, "reserved", 0):
            raise Errno(errno.EINVAL)
        self._check_modify(caller)
        content = self.content
        assert content is not None
        writable = bool(arg.prot & _fast.PROT_WRITE)
        if writable and not content.buffer.writable and self.device.newest:
            raise Errno(errno.EACCES)
        self.content = None
        moved = Content(content.buffer, writable, content.cloexec)
        content.free()
        return WrapFile(self.device, moved).install()

    def _load(self, caller: Caller, arg: Any) -> None:
        newest = self.device.newest
        if newest and (arg.file_offs | arg.buf_offs | arg.len) >> 63:
            raise Errno(errno.EINVAL)
        if not newest and (arg.file_offs % PAGE_SIZE or arg.buf_offs % PAGE_SIZE):
            raise Errno(errno.EINVAL)
        if getattr(arg, "reserved", 0) or getattr(arg, "pad", 0):
            raise Errno(errno.EINVAL)
        fd = caller.take(arg.fd)
        try:
            length = arg.len if newest else round_to_page(arg.len)
            _check_file(fd, arg.file_offs + length)
            if not newest:
                self._check_modify(caller)
            content = self.content
            if content is None:
                raise Errno(errno.ENOENT)
            if not content.writable:
                if newest:
                    raise Errno(errno.EACCES)
                self.kernel.complain("wrapfd loads into a read-only wrap")
            if arg.buf_offs + length > content.size:
                raise Errno(errno.EINVAL)
            if length:
                _copy(fd, arg.file_offs, content, arg.buf_offs, length)
        finally:
            os.close(fd)


def _check_file(fd: int, end: int) -> None:
    """The file must be open for reading, able to do direct I/O, and reach to ``end``."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    if flags & os.O_PATH or flags & os.O_ACCMODE == os.O_WRONLY:
        raise Errno(errno.EBADF)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISBLK(status.st_mode):
        raise Errno(errno.EINVAL)
    if not flags & os.O_DIRECT:
        # Only files that can do direct I/O let the flag be set, which is not kept.
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        except OSError:
            raise Errno(errno.EINVAL) from None
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    if end > status.st_size:
        raise Errno(errno.EINVAL)


def _copy(fd: int, file_offset: int, content: Content, offset: int, length: int) -> None:
    # A description of our own without O_DIRECT takes any offset and any length.
    source = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        with (
            content.buffer.backing.map_pages(content.size, 0, _PROT, _fast.MAP_SHARED) as mapping,
            memoryview(mapping)[offset : offset + length] as target,
        ):
            done = 0
            while done < length:
                count = os.preadv(source, [target[done:]], file_offset + done)
                if count == 0:
                    raise Errno(errno.EINVAL)
                done += count
    except OSError as error:
        raise Errno(error.errno or errno.EIO) from None
    finally:
        os.close(source)
