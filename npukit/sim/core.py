# SPDX-License-Identifier: MIT
"""What every simulated driver is made of: errors, callers and their memory, files, devices."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import stat
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from npukit import _fast
from npukit.ioctl.errors import error_name
from npukit.ioctl.kernel import round_to_page
from npukit.ioctl.memory import OwnMemory

if TYPE_CHECKING:
    from .kernel import SimKernel


ERESTARTSYS = 512
"""The kernel's own: a signal came. It becomes EINTR, or the call is made again (SA_RESTART)."""


class Errno(Exception):
    """A simulated driver's refusal: the errno that the system call answers."""

    def __init__(self, code: int) -> None:
        super().__init__(f"{error_name(code)} ({os.strerror(code)})")
        self.code = code


class KernelOops(RuntimeError):
    """What was asked would crash a real kernel: it uses the pointer that it was given unchecked."""


class Caller(Protocol):
    """A process that makes system calls: its memory and its descriptors."""

    pid: int
    files: dict[int, SimFile]
    """The simulated files behind its descriptors."""

    @property
    def alive(self) -> bool: ...

    def give(self, fd: int) -> int:
        """Move a real descriptor of ours into the process; the number that it has there."""

    def take(self, fd: int) -> int:
        """A descriptor of our own for one of the process; Errno(EBADF) when it has none."""

    def shut(self, fd: int) -> None:
        """Close a descriptor of the process."""

    def closes_on_exec(self, fd: int) -> bool:
        """Whether a descriptor of the process has FD_CLOEXEC."""

    def copy_from_user(self, address: int, size: int) -> bytes:
        """``size`` bytes of the caller's memory; Errno(EFAULT) when not all can be read."""

    def copy_to_user(self, address: int, data: bytes) -> None:
        """Write to the caller's memory; Errno(EFAULT) when not all can be written."""


class LocalCaller:
    """This process."""

    alive = True

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.files: dict[int, SimFile] = {}
        self._memory = OwnMemory()

    def give(self, fd: int) -> int:
        return fd

    def take(self, fd: int) -> int:
        try:
            return os.dup(ctypes.c_int32(fd).value)
        except OSError as error:
            raise Errno(error.errno or errno.EBADF) from None

    def shut(self, fd: int) -> None:
        os.close(fd)

    def closes_on_exec(self, fd: int) -> bool:
        return not os.get_inheritable(fd)

    def copy_from_user(self, address: int, size: int) -> bytes:
        data = self._memory.read(address, size)
        if data is None:
            raise Errno(errno.EFAULT)
        return data

    def copy_to_user(self, address: int, data: bytes) -> None:
        if not self._memory.write(address, data):
            raise Errno(errno.EFAULT)

    def close(self) -> None:
        self._memory.close()


class Piece(NamedTuple):
    """``length`` bytes from ``offset`` of the file ``fd``."""

    fd: int
    offset: int
    length: int


class Area(NamedTuple):
    """What a mapping shows. ``unmapped`` is to be called once, when the mapping is gone."""

    pieces: list[Piece]
    unmapped: Callable[[], None]


def map_pieces(pieces: Sequence[Piece], prot: int, flags: int) -> _fast.Mapping:
    """Map the pieces, all but the last of whole pages, one behind the other."""
    if len(pieces) == 1:
        fd, offset, length = pieces[0]
        return _fast.mmap(fd, length, offset, prot, flags)
    # Reserve the whole range, then lay the pieces over it.
    whole = sum(length for _, _, length in pieces)
    mapping = _fast.mmap(-1, whole, 0, prot, flags | _fast.MAP_ANONYMOUS)
    address = mapping.address
    for fd, offset, length in pieces:
        fixed = flags | _MAP_FIXED
        if _libc().mmap(address, length, prot, fixed, fd, offset) != address:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        address += length
    return mapping


_MAP_FIXED = 0x10


PAGES_END = 1 << 60
"""More than a program can ever allocate: places are not used twice."""


class Pages:
    """Memory of a device: one sparse file in which every buffer object has a place of its own.

    Places are never reused, so a program that maps the file itself can never see another's pages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._fd = -1
        self._next = 1 << 32
        self._users = 0

    @property
    def fd(self) -> int:
        if self._fd < 0:
            self._fd = os.memfd_create(self._name)
            os.ftruncate(self._fd, PAGES_END)
        return self._fd

    def hold(self) -> None:
        """An open file or an object needs the memory."""
        self._users += 1

    def drop(self) -> None:
        """One needs it no more; the file goes with the last."""
        self._users -= 1
        if self._users == 0 and self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def take(self, size: int) -> int:
        """The place of ``size`` fresh zero bytes."""
        self.hold()
        place = self._next
        self._next += round_to_page(size)
        return place

    def map(self, place: int, size: int) -> _fast.Mapping:
        return _fast.mmap(self.fd, size, place)

    def free(self, place: int, size: int) -> None:
        self.punch(place, size)
        self.drop()

    def punch(self, place: int, size: int) -> None:
        """Give the pages back; they read as zeros from now on."""
        _libc().fallocate(self.fd, _PUNCH_HOLE | _KEEP_SIZE, place, round_to_page(size))


_PUNCH_HOLE, _KEEP_SIZE = 2, 1


@functools.cache
def _libc() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int64,
    )
    return library


class SimFile:
    """An open file description. File descriptors and mappings hold it; ``released`` ends it."""

    def __init__(self, kernel: SimKernel) -> None:
        self.kernel = kernel
        self.holders = 0
        self.real: set[tuple[int, int]] = set()
        """Identities of the real files that stand for it."""

    def ioctl(self, caller: Caller, request: int, address: int) -> int:
        raise Errno(errno.ENOTTY)

    def mmap(self, caller: Caller, length: int, offset: int, prot: int, flags: int) -> Area:
        """What the caller is to map."""
        raise Errno(errno.ENODEV)

    def lseek(self, offset: int, whence: int) -> int:
        raise Errno(errno.ESPIPE)

    def stat_mode(self) -> tuple[int, int]:
        """(st_mode, st_rdev) as fstat shows them."""
        return stat.S_IFREG | 0o600, 0

    def released(self) -> None:
        """The last descriptor and the last mapping are gone."""


class SimDevice:
    """A simulated driver with one device. ``paths`` are its nodes."""

    name: ClassVar[str]
    major: ClassVar[int]

    def __init__(self, kernel: SimKernel, paths: tuple[str, ...]) -> None:
        self.kernel = kernel
        self.paths = paths

    def open(self, caller: Caller, path: str, flags: int) -> tuple[SimFile, int]:
        """A new open file and the real descriptor that stands for it."""
        raise NotImplementedError
