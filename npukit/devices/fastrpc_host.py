# SPDX-License-Identifier: MIT
"""The host's side of a DSP process: what answers when the DSP calls.

A process on the DSP has no files and no heap of its own making; it asks the host, through calls in
the other direction: a thread of the host asks the DSP's listener for the next call (next2), answers
it, and hands the answer in with the next question. Modules of the host are apps_std (files),
apps_mem (heap), adspmsgd_apps (log lines) and apps_remotectl, which opens the others.

What the DSP asks for is logged to ``npukit.fastrpc``; its own log lines go to
``npukit.fastrpc.dsp``.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import stat
import struct
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from npukit.abi import fastrpc as abi
from npukit.abi import hexagon
from npukit.ioctl import DeviceLost, NpuError

from .fastrpc_errors import HexagonError
from .fastrpc_session import Connection

log = logging.getLogger("npukit.fastrpc")
dsp_log = logging.getLogger("npukit.fastrpc.dsp")

# Results that the host gives, in its own numbering
AEE_EFAILED = 0x01
AEE_EBADPARM = 0x0E
AEE_EUNSUPPORTED = 0x14
AEE_ENOSUCH = 39
AEE_EOUTOFHANDLES = 0x2D
_EBADSTATE_OF_DSP = 0x8000040D
_EINTERRUPTED = 46

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

ASKED_LIMIT = 1000
"""How many of the DSP's questions for files a Host remembers."""

_T = TypeVar("_T")

Answer = tuple[int, list[bytes]]
"""A result and the out buffers. A result other than 0 sends no buffers."""


def unpack_call(packed: bytes, sc: int) -> tuple[list[bytes], list[int]]:
    """(in buffers, capacities of the out buffers) of a call of the DSP; ValueError if cut short.

    Source: sbuf_parser.h of the user library. Each in buffer is its length and, at the next
    multiple of 8, its bytes; then come the lengths of the out buffers.
    """
    ins: list[bytes] = []
    at = 0
    for _ in range(abi.REMOTE_SCALARS_INBUFS(sc)):
        length, at = _word(packed, at)
        if length:
            at = -(-at // 8) * 8
            if at + length > len(packed):
                raise ValueError(f"an in buffer of {length} bytes in {len(packed) - at}")
            ins.append(packed[at : at + length])
            at += length
        else:
            ins.append(b"")
    capacities = []
    for _ in range(abi.REMOTE_SCALARS_OUTBUFS(sc)):
        length, at = _word(packed, at)
        capacities.append(length)
    return ins, capacities


def _word(packed: bytes, at: int) -> tuple[int, int]:
    if at + 4 > len(packed):
        raise ValueError(f"a length at {at} in {len(packed)} bytes")
    return int.from_bytes(packed[at : at + 4], "little"), at + 4


def pack_outs(outs: Sequence[bytes], capacities: Sequence[int]) -> bytes:
    """The out buffers of an answer, each filled up or cut to its capacity."""
    packed = bytearray()
    for out, capacity in zip(outs, capacities, strict=True):
        packed += capacity.to_bytes(4, "little")
        if capacity:
            packed += bytes(-len(packed) % 8)
            packed += out[:capacity].ljust(capacity, b"\0")
    return bytes(packed)


class Files:
    """What the DSP sees of the host's files: those below the folders in ``search``, no others.

    Names are looked up in each folder in turn; an absolute name must lie below one. A name with
    ".." and a symbolic link below a folder are refused (EACCES), since either may lead out of it.
    Without ``writable`` nothing can be made or changed (EROFS).
    """

    def __init__(
        self, search: Sequence[str | os.PathLike[str]] = (), writable: bool = False
    ) -> None:
        self.search = [os.path.realpath(folder) for folder in search]
        self.writable = writable

    def open(self, name: str, flags: int) -> int:
        """A descriptor; OSError as the host's kernel or the rules above refuse."""
        if flags & (os.O_ACCMODE | os.O_CREAT | os.O_TRUNC) and not self.writable:
            raise OSError(errno.EROFS, "the DSP may not write")
        return self._first(name, lambda folder, leaf: _open_plain(folder, leaf, flags))

    def stat(self, name: str) -> os.stat_result:
        return self._first(name, _stat_plain)

    def listing(self, name: str) -> list[tuple[int, str]]:
        """(inode, name) of what a folder holds."""

        def read(folder: int, leaf: str) -> list[tuple[int, str]]:
            fd = os.open(leaf, _FOLDER, dir_fd=folder)
            try:
                with os.scandir(fd) as entries:
                    return sorted((entry.inode(), entry.name) for entry in entries)
            finally:
                os.close(fd)

        return self._first(name, read)

    def change(self, name: str, what: Callable[[int, str], None]) -> None:
        """Do ``what`` (folder's descriptor, name in it)."""
        if not self.writable:
            raise OSError(errno.EROFS, "the DSP may not write")
        self._first(name, what)

    def _first(self, name: str, use: Callable[[int, str], _T]) -> _T:
        """What ``use`` gives in the first folder that has the name."""
        refusal = OSError(errno.ENOENT, f"{name} is in none of {', '.join(self.search) or 'none'}")
        for folder in self.search:
            inner = name
            if os.path.isabs(name):
                if os.path.commonpath((folder, os.path.normpath(name))) != folder:
                    refusal = OSError(errno.EACCES, f"{name} is outside of what the DSP may see")
                    continue
                inner = os.path.relpath(name, folder) if ".." not in name.split("/") else name
            parts = [part for part in inner.split("/") if part not in ("", ".")] or ["."]
            if ".." in parts:
                raise OSError(errno.EACCES, f"{name} leads out of {folder}")
            try:
                return _beneath(folder, parts, use)
            except FileNotFoundError:
                continue
            except OSError as error:
                # O_NOFOLLOW answers ELOOP at a link, and ENOTDIR at one where a folder is expected.
                link = error.errno in (errno.ELOOP, errno.ENOTDIR)
                refusal = OSError(errno.EACCES, f"{name} is a link") if link else error
        raise refusal


def _beneath(folder: str, parts: Sequence[str], use: Callable[[int, str], _T]) -> _T:
    """Go down from ``folder`` one name at a time, so that no link is followed."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            below = os.open(part, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = below
        return use(fd, parts[-1])
    finally:
        os.close(fd)


def _stat_plain(folder: int, leaf: str) -> os.stat_result:
    found = os.stat(leaf, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, f"{leaf} is a link")
    return found


def _open_plain(folder: int, leaf: str, flags: int) -> int:
    """An ordinary file only: opening a device or a pipe may do something, or block."""
    refusal = OSError(errno.EACCES, f"{leaf} is no ordinary file")
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(_stat_plain(folder, leaf).st_mode):
            raise refusal
    # It may be another one by now, so the one that was opened is looked at as well.
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    fd = os.open(leaf, flags, 0o600, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise refusal
    return fd


class _OpenFile:
    """A file that the DSP has open."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.at_end = False


_MODES = {
    "r": os.O_RDONLY,
    "r+": os.O_RDWR,
    "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "w+": os.O_RDWR | os.O_CREAT | os.O_TRUNC,
    "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "a+": os.O_RDWR | os.O_CREAT | os.O_APPEND,
}
_WHENCE = (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END)
# What the DSP asks for is not trusted.
CALL_LIMIT = 64 << 20
"""Bytes that one call of the DSP may bring, and that it may have back."""
OPEN_LIMIT = 256
"""Files and folders that it may have open at once, and modules."""

Method = Callable[[Sequence[bytes], Sequence[int]], list[bytes]]


class AppsStd:
    """The module apps_std: files, environment. A method raises OSError to answer its errno."""

    def __init__(self, files: Files, environment: Mapping[str, str], asked: list[str]) -> None:
        self.files = files
        self.environment = dict(environment)
        self._asked = asked
        self._open: dict[int, _OpenFile] = {}
        self._folders: dict[int, list[tuple[int, str]]] = {}
        self._next = 1

    def methods(self) -> dict[int, Method]:
        std = hexagon
        return {
            std.APPS_STD_FOPEN: self.fopen,
            std.APPS_STD_FFLUSH: self.nothing,
            std.APPS_STD_FCLOSE: self.fclose,
            std.APPS_STD_FREAD: self.fread,
            std.APPS_STD_FWRITE: self.fwrite,
            std.APPS_STD_FTELL: self.ftell,
            std.APPS_STD_FSEEK: self.fseek,
            std.APPS_STD_FLEN: self.flen,
            std.APPS_STD_REWIND: self.rewind,
            std.APPS_STD_FEOF: self.feof,
            std.APPS_STD_FERROR: self.ferror,
            std.APPS_STD_CLEARERR: self.clearerr,
            std.APPS_STD_PRINT_STRING: self.print_string,
            std.APPS_STD_GETENV: self.getenv,
            std.APPS_STD_FOPEN_WITH_ENV: self.fopen_with_env,
            std.APPS_STD_FGETS: self.fgets,
            std.APPS_STD_FILE_EXISTS: self.file_exists,
            std.APPS_STD_FSYNC: self.nothing,
            std.APPS_STD_FREMOVE: self.fremove,
            std.APPS_STD_OPENDIR: self.opendir,
            std.APPS_STD_CLOSEDIR: self.closedir,
            std.APPS_STD_READDIR: self.readdir,
            std.APPS_STD_MKDIR: self.mkdir,
            std.APPS_STD_RMDIR: self.rmdir,
            std.APPS_STD_STAT: self.stat,
            std.APPS_STD_FTRUNC: self.ftrunc,
        }

    def close(self) -> None:
        for file in self._open.values():
            os.close(file.fd)
        self._open.clear()
        self._folders.clear()

    def _number(self) -> int:
        self._next += 1
        return self._next - 1

    def _file(self, ins: Sequence[bytes]) -> _OpenFile:
        (number,) = struct.unpack_from("<I", ins[0])
        file = self._open.get(number)
        if file is None:
            raise OSError(errno.EBADF, f"the DSP has no file {number} open")
        return file

    def _answer_open(self, name: str, mode: str) -> list[bytes]:
        flags = _MODES.get(mode.replace("b", ""))
        if flags is None:
            raise OSError(errno.EINVAL, f"mode {mode!r}")
        try:
            self._check_room()
            fd = self.files.open(name, flags)
        except OSError as error:
            self._note(f"{name}: {error.strerror}")
            raise
        self._note(f"{name}: found")
        number = self._number()
        self._open[number] = _OpenFile(fd)
        return [struct.pack("<I", number)]

    def _check_room(self) -> None:
        if len(self._open) + len(self._folders) >= OPEN_LIMIT:
            raise OSError(errno.EMFILE, f"the DSP has {OPEN_LIMIT} files open, which is the most")

    def _note(self, text: str) -> None:
        text = _shown(text)
        log.info("the DSP asks for %s", text)
        if len(self._asked) < ASKED_LIMIT:
            self._asked.append(text)

    def nothing(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        self._file(ins)
        return []

    def fopen(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        return self._answer_open(_text(ins[1]), _text(ins[2]))

    def fopen_with_env(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        # The variable and its delimiter are the DSP's idea of a search path; the host has its own.
        return self._answer_open(_text(ins[3]), _text(ins[4]))

    def fclose(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        self._file(ins)
        os.close(self._open.pop(struct.unpack_from("<I", ins[0])[0]).fd)
        return []

    def fread(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        file = self._file(ins)
        wanted = min(capacities[1], CALL_LIMIT)
        data = b""
        while len(data) < wanted and (piece := os.read(file.fd, wanted - len(data))):
            data += piece
        file.at_end = len(data) < wanted
        return [struct.pack("<ii", len(data), file.at_end), data]

    def fgets(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        file = self._file(ins)
        start = os.lseek(file.fd, 0, os.SEEK_CUR)
        data = os.read(file.fd, max(capacities[1] - 1, 0))
        line = data[: data.find(b"\n") + 1] or data
        os.lseek(file.fd, start + len(line), os.SEEK_SET)
        file.at_end = not line
        return [struct.pack("<i", file.at_end), line + b"\0"]

    def fwrite(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        return [struct.pack("<ii", os.write(self._file(ins).fd, ins[1]), 0)]

    def ftell(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        return [struct.pack("<i", os.lseek(self._file(ins).fd, 0, os.SEEK_CUR))]

    def fseek(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        file = self._file(ins)
        _number, offset, whence = struct.unpack_from("<IiI", ins[0])
        if whence >= len(_WHENCE):
            raise OSError(errno.EINVAL, f"whence {whence}")
        os.lseek(file.fd, offset, _WHENCE[whence])
        file.at_end = False
        return []

    def rewind(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        file = self._file(ins)
        os.lseek(file.fd, 0, os.SEEK_SET)
        file.at_end = False
        return []

    def flen(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        return [struct.pack("<Q", os.fstat(self._file(ins).fd).st_size)]

    def feof(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        return [struct.pack("<i", self._file(ins).at_end)]

    def ferror(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        self._file(ins)
        return [struct.pack("<i", 0)]

    def clearerr(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        self._file(ins).at_end = False
        return []

    def ftrunc(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        # The first word is the method's number.
        _method, number, length = struct.unpack_from("<IIi", ins[0])
        file = self._file([struct.pack("<I", number)])
        os.ftruncate(file.fd, length)
        return []

    def print_string(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        dsp_log.info("%s", _shown(_text(ins[1]).rstrip()))
        return []

    def getenv(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        value = self.environment.get(_text(ins[1]))
        if value is None:
            raise OSError(errno.ENOENT, f"no variable {_text(ins[1])}")
        encoded = value.encode() + b"\0"
        return [struct.pack("<i", len(encoded)), encoded]

    def file_exists(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        try:
            self.files.stat(_text(ins[1]))
        except OSError:
            return [b"\0"]
        return [b"\1"]

    def stat(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        name = _text(ins[1])
        try:
            found = self.files.stat(name)
        except OSError as error:
            self._note(f"{name}: {error.strerror}")
            raise
        answer = hexagon.apps_std_STAT(
            tsz=96,
            dev=found.st_dev,
            ino=found.st_ino,
            mode=found.st_mode,
            nlink=found.st_nlink,
            rdev=found.st_rdev,
            size=found.st_size,
        )
        for field in ("atime", "mtime", "ctime"):
            whole, rest = divmod(getattr(found, f"st_{field}_ns"), 1_000_000_000)
            setattr(answer, field, whole)
            setattr(answer, f"{field}nsec", rest)
        return [bytes(answer)]

    def opendir(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        self._check_room()
        entries = self.files.listing(_text(ins[1]))
        number = self._number()
        self._folders[number] = entries
        return [struct.pack("<Q", number)]

    def _folder(self, ins: Sequence[bytes]) -> int:
        (number,) = struct.unpack_from("<Q", ins[0])
        if number not in self._folders:
            raise OSError(errno.EBADF, f"the DSP has no folder {number} open")
        return int(number)

    def readdir(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        entries = self._folders[self._folder(ins)]
        if not entries:
            return [bytes(hexagon.apps_std_DIRENT()) + struct.pack("<i", 1)]
        inode, name = entries.pop(0)
        entry = hexagon.apps_std_DIRENT(ino=inode & 0x7FFFFFFF, name=os.fsencode(name)[:254])
        return [bytes(entry) + struct.pack("<i", 0)]

    def closedir(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        del self._folders[self._folder(ins)]
        return []

    def fremove(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        self.files.change(_text(ins[1]), lambda folder, leaf: os.unlink(leaf, dir_fd=folder))
        return []

    def mkdir(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        self.files.change(_text(ins[1]), lambda folder, leaf: os.mkdir(leaf, 0o700, dir_fd=folder))
        return []

    def rmdir(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        self.files.change(_text(ins[1]), lambda folder, leaf: os.rmdir(leaf, dir_fd=folder))
        return []


def _shown(text: str) -> str:
    """For a log: no line feeds and control sequences of the DSP's own."""
    return text if text.isprintable() else repr(text)[1:-1]


def _text(packed: bytes) -> str:
    return packed.split(b"\0", 1)[0].decode(errors="surrogateescape")


_LEVELS = (logging.DEBUG, logging.INFO, logging.INFO, logging.ERROR, logging.CRITICAL)


class Host:
    """The modules that a DSP process may call: files below ``search`` only, heap, log.

    ``writable`` lets the DSP make and change files there. ``environment`` is what its getenv sees.
    ``asked`` lists the files that it asked for, each with what became of it.

    Synchronization: one session's listener calls it, one call at a time.
    """

    def __init__(
        self,
        search: Sequence[str | os.PathLike[str]] = (),
        *,
        writable: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.asked: list[str] = []
        self.files = Files(search, writable)
        self._std = AppsStd(self.files, environment or {}, self.asked)
        self._session: Connection | None = None
        self._modules: dict[str, Mapping[int, Method]] = {
            "apps_std": self._std.methods(),
            "apps_mem": {
                hexagon.APPS_MEM_REQUEST_MAP: self._request_map,
                hexagon.APPS_MEM_REQUEST_UNMAP: self._request_unmap,
                hexagon.APPS_MEM_REQUEST_MAP64: self._request_map64,
                hexagon.APPS_MEM_REQUEST_UNMAP64: self._request_unmap64,
            },
            "adspmsgd_apps": {hexagon.MSGD_LOG: self._message},
        }
        self._handles: dict[int, Mapping[int, Method]] = {}

    def add(self, name: str, methods: Mapping[int, Method]) -> None:
        """Let the DSP open a module of one's own.

        A method gets the in buffers and the capacities of the out buffers and returns those; an
        OSError that it raises is answered as its errno.
        """
        self._modules[name] = methods

    def connect(self, session: Connection) -> None:
        """Belong to a session; a Host serves one."""
        if self._session is not None:
            raise ValueError("this Host serves another session")
        self._session = session

    def disconnect(self, session: Connection) -> None:
        """The session ended: close what the DSP left open. Nothing to do for another session."""
        if self._session is session:
            self._session = None
            self.close()

    def close(self) -> None:
        """Close the files that the DSP left open, and forget the modules that it opened."""
        self._handles.clear()
        self._std.close()

    def answer(self, handle: int, sc: int, packed: bytes) -> tuple[int, bytes]:
        """(result, packed out buffers) for a call of the DSP. Never raises."""
        if abi.REMOTE_SCALARS_INHANDLES(sc) or abi.REMOTE_SCALARS_OUTHANDLES(sc):
            return AEE_EBADPARM, b""
        try:
            ins, capacities = unpack_call(packed, sc)
            if sum(capacities) > CALL_LIMIT:
                raise ValueError(f"{sum(capacities)} bytes are asked for")
            result, outs = self._call(handle, abi.REMOTE_SCALARS_METHOD(sc), ins, capacities)
            return result, b"" if result else pack_outs(outs, capacities)
        except (ValueError, IndexError, struct.error) as error:
            log.warning("a call of the DSP (handle %#x, scalars %#010x): %s", handle, sc, error)
            return AEE_EBADPARM, b""
        except Exception:
            # The DSP waits for an answer whatever happens here.
            log.exception("a call of the DSP (handle %#x, scalars %#010x)", handle, sc)
            return AEE_EFAILED, b""

    def _call(
        self, handle: int, method: int, ins: Sequence[bytes], capacities: Sequence[int]
    ) -> Answer:
        if method == hexagon.EXTENDED_METHOD and ins:
            (method,) = struct.unpack_from("<I", ins[0])
        if handle == 0:
            return self._remotectl(method, ins)
        module = self._handles.get(handle)
        if module is None:
            return AEE_ENOSUCH, []
        use = module.get(method)
        if use is None:
            log.info(
                "the DSP calls method %d of handle %#x, which the host has not", method, handle
            )
            return AEE_EUNSUPPORTED, []
        try:
            return 0, use(ins, capacities)
        except NpuError as error:
            log.warning("a call of the DSP fails: %s", error)
            return AEE_EFAILED, []
        except OSError as error:
            return error.errno or AEE_EFAILED, []

    def _remotectl(self, method: int, ins: Sequence[bytes]) -> Answer:
        if method == hexagon.REMOTECTL_OPEN:
            name = _text(ins[1])
            module = self._modules.get(name)
            if module is None:
                log.info("the DSP opens %s, which the host has not", _shown(name))
                return 0, [struct.pack("<Ii", 0, AEE_ENOSUCH), b"no such module\0"]
            if len(self._handles) >= OPEN_LIMIT:
                return 0, [struct.pack("<Ii", 0, AEE_EOUTOFHANDLES), b"too many are open\0"]
            handle = max(self._handles, default=0) + 1
            self._handles[handle] = module
            return 0, [struct.pack("<Ii", handle, 0), b""]
        if method == hexagon.REMOTECTL_CLOSE:
            (handle,) = struct.unpack_from("<I", ins[0])
            known = self._handles.pop(handle, None) is not None
            return 0, [struct.pack("<i", 0 if known else AEE_ENOSUCH), b""]
        return AEE_EUNSUPPORTED, []

    def _grow(self, flags: int, size: int) -> int:
        if flags not in _HEAP_FLAGS or self._session is None:
            raise OSError(AEE_EUNSUPPORTED, f"a map with flags {flags:#x}")
        address = grow_heap(self._session, size)
        log.debug("the DSP takes %d bytes of heap, at %#x", size, address)
        return address

    def _shrink(self, address: int, size: int) -> list[bytes]:
        if self._session is not None:
            shrink_heap(self._session, address, size)
        return []

    def _request_map(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        _heap, _ion, flags, _address, size = struct.unpack_from("<iIIIi", ins[0])
        address = self._grow(flags, size)
        if address >= 1 << 32:
            self._shrink(address, size)
            raise OSError(errno.EOVERFLOW, f"{address:#x} does not fit in 32 bits")
        return [struct.pack("<II", 0, address)]

    def _request_unmap(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        return self._shrink(*struct.unpack_from("<Ii", ins[0]))

    def _request_map64(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        _heap, _ion, flags, _address, size = struct.unpack_from("<iIIxxxxQq", ins[0])
        return [struct.pack("<QQ", 0, self._grow(flags, size))]

    def _request_unmap64(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        return self._shrink(*struct.unpack_from("<Qq", ins[0]))

    def _message(self, ins: Sequence[bytes], capacities: Sequence[int]) -> list[bytes]:
        size = hexagon.adspmsgd_node._size_
        for at in range(0, len(ins[1]) - size + 1, size):
            node = hexagon.adspmsgd_node.from_buffer_copy(ins[1][at : at + size])
            level = _LEVELS[min(node.level, len(_LEVELS) - 1)]
            text = _shown(node.str.decode(errors="replace").rstrip())
            file = _shown(node.file.decode(errors="replace"))
            dsp_log.log(level, "%s:%d:%#x: %s", file, node.line, node.thread_id, text)
        return []


def grow_heap(session: Connection, size: int) -> int:
    """Give the session's process ``size`` bytes more of heap; the address that the DSP has."""
    answer = session.ask(
        abi.FASTRPC_IOCTL_MMAP,
        abi.fastrpc_req_mmap(fd=-1, flags=abi.ADSP_MMAP_ADD_PAGES, size=size),
    )
    return int(answer.vaddrout)


def shrink_heap(session: Connection, address: int, size: int) -> None:
    """Take back exactly what grow_heap gave."""
    session.ask(abi.FASTRPC_IOCTL_MUNMAP, abi.fastrpc_req_munmap(vaddrout=address, size=size))


_HEAP_FLAGS = (0x1000, 0x3000)
"""What asks the host to add pages to the heap (libcdsprpc); all other maps are not mainline's."""


class Listener:
    """The thread that asks a session's DSP for calls, and answers them."""

    FIRST_CAPACITY = 4096
    MOST_CAPACITY = 256 << 10
    """Bytes of a call that come with its announcement; the driver copies as many for every call."""
    END_TIMEOUT = 5.0
    PATIENCE = 100
    """How often in a row the driver may refuse the thread's question, ``PAUSE`` seconds apart."""
    PAUSE = 0.01

    def __init__(self, session: Connection, host: Host) -> None:
        self._session = session
        self._host = host
        self._ready = threading.Event()
        self._refusal: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"listener of {session.path}", daemon=True
        )

    def begin(self) -> None:
        """Start; raises what the DSP answers to the listener's first call."""
        # The number of a file that was closed may soon be another's.
        self._session.file.retain()
        try:
            self._thread.start()
        except RuntimeError:
            self._session.file.release()
            raise
        self._ready.wait()
        if self._refusal is not None:
            self._thread.join()
            raise self._refusal

    def end(self, timeout: float = END_TIMEOUT) -> None:
        """Wait for the thread, which ends when its process on the DSP has ended.

        After ``timeout`` seconds ResourceWarning: it goes on waiting, and keeps the session's file.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            warnings.warn(
                f"{self._thread.name} still waits for the DSP", ResourceWarning, stacklevel=2
            )

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        # A signal that this thread took would interrupt the call that waits for the DSP.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._listen()
        finally:
            self._session.file.release()

    def _listen(self) -> None:
        try:
            self._session.invoke(
                hexagon.HANDLE_LISTENER, hexagon.LISTENER_INIT2, name="listener init2"
            )
        except BaseException as error:
            self._refusal = error
            return
        finally:
            self._ready.set()
        try:
            self._serve()
        except NpuError as error:
            if getattr(error, "code", 0) == _EBADSTATE_OF_DSP:
                log.debug("%s ends: %s", self._thread.name, error)
                return
            level = logging.DEBUG if self._session.lost else logging.ERROR
            log.log(level, "%s ends, and its process with it: %s", self._thread.name, error)
            # Calls that wait for an answer of the host would wait for ever.
            self._session.exit()

    def _serve(self) -> None:
        capacity = self.FIRST_CAPACITY
        context, result, reply = 0, 0xFFFFFFFF, b""
        retried = False
        patience = self.PATIENCE
        while True:
            head = struct.pack("<IIII", context, result & 0xFFFFFFFF, len(reply), capacity)
            try:
                numbers, packed = self._session.invoke(
                    hexagon.HANDLE_LISTENER,
                    hexagon.LISTENER_NEXT2,
                    [head, reply],
                    [16, capacity],
                    name="listener next2",
                )
            except HexagonError as error:
                if error.code == _EINTERRUPTED:
                    context, result, reply = 0, 0xFFFFFFFF, b""
                    continue
                if retried or error.code == _EBADSTATE_OF_DSP:
                    raise
                # As the vendor's library does: one more try, which tells the DSP what failed.
                retried, result, reply = True, error.code, b""
                continue
            except DeviceLost:
                raise
            except NpuError as error:
                # No room for one more call, or no memory: others are under way, and end.
                patience -= 1
                if patience == 0:
                    raise
                log.debug("%s tries again: %s", self._thread.name, error)
                time.sleep(self.PAUSE)
                continue
            retried, patience = False, self.PATIENCE
            context, handle, sc, needed = struct.unpack("<IIII", numbers)
            data = bytes(packed[:needed])
            if needed > CALL_LIMIT:
                log.warning("%s refuses a call of %d bytes", self._thread.name, needed)
                result, reply = AEE_EBADPARM, b""
                continue
            if needed > capacity:
                data = self._rest(context, data, needed)
                capacity = max(capacity, min(needed, self.MOST_CAPACITY))
            result, reply = self._host.answer(handle, sc, data)

    def _rest(self, context: int, data: bytes, needed: int) -> bytes:
        """A call of which only ``data`` fitted."""
        numbers, rest = self._session.invoke(
            hexagon.HANDLE_LISTENER,
            hexagon.LISTENER_GET_IN_BUFS2,
            [struct.pack("<IiI", context, len(data), needed - len(data))],
            [4, needed - len(data)],
            name="listener get_in_bufs2",
        )
        with contextlib.suppress(struct.error):
            (still,) = struct.unpack("<i", numbers)
            log.debug("a call of %d bytes of the DSP came in two parts (%d)", needed, still)
        return data + bytes(rest)
