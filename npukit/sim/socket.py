# SPDX-License-Identifier: MIT
"""The simulated machine for other processes.

    server = serve(SimKernel(["rknpu"]), "/run/user/1000/npu")   # in one process
    kernel = SocketKernel("/run/user/1000/npu")                  # in any number of others

A call goes over a Unix socket; the drivers run in the serving process, one thread for each
connection. Descriptors are real ones of the calling process, made by SCM_RIGHTS; a mapping shows
the same pages as every other process's. The caller's memory is read and written by
process_vm_readv(2), and where that is not allowed the caller's own library is asked for it: either
way a bad pointer is EFAULT. What a process held is given back when it dies, before the next call of
anybody.

A message is a JSON list, with bytes behind its newline. While a call runs, the server may ask the
caller's library: give (a descriptor), take, shut, cloexec, read, write.
"""

from __future__ import annotations

import array
import collections
import contextlib
import ctypes
import errno
import functools
import json
import os
import secrets
import select
import socket
import stat
import struct
import threading
import traceback
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from npukit import _fast
from npukit.ioctl import LinuxKernel, NpuError, ProgramError
from npukit.ioctl.kernel import Argument

from .core import Errno, KernelOops, LocalCaller, Piece, SimFile, map_pieces
from .kernel import SimKernel, address_of, as_seen, identity

_CHUNK = 1 << 16
_CALL_BYTES = 4096
MAX_FDS = 253
"""SCM_MAX_FD of the kernel."""
_LARGEST_COPY = 1 << 28
"""No driver copies more at once: the kernel's own allocator refuses it."""
_LIMIT = 1 << 63
Shapes = dict[str, tuple[type[int] | type[str], ...]]
_CALLS: Shapes = {
    "path": (str,),
    "devices": (),
    "open": (str, int),
    "munmap": (int,),
    "adopt": (int, int, int),
    "ioctl": (int, int, int),
    "mmap": (int, int, int, int, int),
    "close": (int,),
    "dup": (int, int),
    "fstat": (int,),
    "lseek": (int, int, int),
}
"""Call of a SocketKernel -> what it comes with."""
_ANSWERS = {"give": (1, 0), "take": (0, 1), "cloexec": (1, 0)}
"""What a caller's library is asked -> numbers and descriptors of its answer, if any."""
MAX_ANSWER_FDS = 1
_ERRNOS = 4096
_PATH_BYTES = 108
"""Room for the path of a Unix socket, with a byte that ends it."""
_PATIENCE = 10.0
"""Seconds in which a caller's library must answer before its process counts as dead."""


class Gone(Exception):
    """The other side has closed its end."""


def send(
    sock: socket.socket, message: Sequence[Any], payload: bytes = b"", fds: Sequence[int] = ()
) -> None:
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        sock.sendmsg([json.dumps(message).encode(), b"\n", payload], ancillary, socket.MSG_NOSIGNAL)
    except OSError as error:
        raise Gone from error


def receive(sock: socket.socket, most: int = 0) -> tuple[list[Any], bytes, list[int]]:
    """A message, which may come with so many descriptors. Gone when it is none."""
    try:
        data, fds, flags, _ = socket.recv_fds(sock, 2 * _CHUNK, most, socket.MSG_CMSG_CLOEXEC)
    except OSError as error:
        raise Gone from error
    head, _, payload = data.partition(b"\n")
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise Gone
        return parse(head), payload, fds
    except Gone:
        for fd in fds:
            os.close(fd)
        raise


def parse(head: bytes) -> list[Any]:
    """The list that a message is. Gone when it is none."""
    try:
        message = json.loads(head)
    except (ValueError, RecursionError):
        raise Gone from None
    if not isinstance(message, list) or not message:
        raise Gone
    return message


def fits(shapes: Shapes, name: Any, arguments: Sequence[Any]) -> bool:
    """Whether a call is one of ``shapes``, with what belongs to it."""
    shape = shapes.get(name) if isinstance(name, str) else None
    return (
        shape is not None
        and len(shape) == len(arguments)
        and all(
            isinstance(value, kind) and (isinstance(value, str) or -_LIMIT <= value < 2 * _LIMIT)
            for value, kind in zip(arguments, shape, strict=True)
        )
    )


# ---- The caller's side --------------------------------------------------------------------------


class SocketKernel(LinuxKernel):
    """A simulated machine that another process serves at ``path``.

    It counts as one process of that machine, with its own descriptors; leave() (or its end, or
    the end of this process) gives back all that it held. A child made by fork must make its own.
    NpuError when nobody serves there; every method raises ConnectionError once the server is gone.

    A descriptor that was received from another process of the machine is recognised at its first
    use, if it is a dma-buf, a wrap or a node that nobody else has open; a sync_file is not.

    Synchronization: any number of threads.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.socket_path = os.fspath(path)
        self._pid = os.getpid()
        self._token = secrets.token_hex(8)
        self._memory = LocalCaller()
        self._known: set[int] = set()
        self._unmapped: collections.deque[int] = collections.deque()
        self._mappings: weakref.WeakKeyDictionary[_fast.Mapping, Any] = weakref.WeakKeyDictionary()
        self._closed = False
        # Connections of calls come and go; the process is there as long as this one is.
        try:
            self._lifeline = self._connect()
        except OSError as error:
            hint = f"npukit sim serve --socket {self.socket_path} serves a machine there"
            raise NpuError(error.errno or errno.EIO, path=self.socket_path, hint=hint) from None
        self._idle: list[socket.socket] = []

    def leave(self) -> None:
        """Leave the machine. Descriptors and mappings of it are useless from now on."""
        self._closed = True
        self._lifeline.close()
        while self._idle:
            self._idle.pop().close()
        self._memory.close()

    def __enter__(self) -> SocketKernel:
        return self

    def __exit__(self, *exception: object) -> None:
        self.leave()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):
            self.leave()

    def path(self, name: str) -> str:
        """The node of the first simulated device called ``name``; KeyError when there is none."""
        found = self._call("path", name)
        if found is None:
            there = ", ".join(self._call("devices")) or "none"
            raise KeyError(f"no simulated device {name!r} is served; there are {there}")
        return str(found)

    def _connect(self) -> socket.socket:
        if self._closed or os.getpid() != self._pid:
            raise ConnectionError(f"{self.socket_path}: this SocketKernel belongs to nobody now")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(self.socket_path)
            send(sock, ["hello", self._token])
        except BaseException:
            sock.close()
            raise
        return sock

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._call_for_fds(name, *arguments)[0]

    def _call_for_fds(self, name: str, *arguments: Any) -> tuple[Any, list[int]]:
        """Make a call, and serve what the server asks meanwhile. Errno when it is refused."""
        if os.getpid() != self._pid:
            raise ConnectionError("a SocketKernel does not survive fork: make a new one")
        try:
            sock = self._idle.pop()
        except IndexError:
            sock = self._connect()
        try:
            self._tell_unmapped(sock)
            send(sock, [name, *arguments])
            while True:
                (kind, *values), payload, fds = receive(sock, MAX_FDS)
                if kind == "done":
                    break
                if kind in ("errno", "program", "oops"):
                    break
                self._serve(sock, kind, values, payload, fds)
        except Gone:
            sock.close()
            raise ConnectionResetError(f"{self.socket_path}: the server is gone") from None
        except BaseException:
            sock.close()
            raise
        if self._closed:
            sock.close()
        else:
            self._idle.append(sock)
        if kind == "errno":
            raise Errno(values[0])
        if kind == "program":
            raise ProgramError(message=values[0], hint=values[1])
        if kind == "oops":
            raise KernelOops(values[0])
        return values[0], fds

    def _serve(
        self, sock: socket.socket, kind: str, values: list[Any], payload: bytes, fds: list[int]
    ) -> None:
        try:
            if kind == "give":
                (number,) = fds
                os.set_inheritable(number, not values[0])
                self._known.add(number)
                send(sock, [0, number])
            elif kind == "take":
                copy = self._memory.take(values[0])
                try:
                    send(sock, [0], fds=[copy])
                finally:
                    os.close(copy)
            elif kind == "shut":
                self._known.discard(values[0])
                os.close(values[0])
                send(sock, [0])
            elif kind == "cloexec":
                send(sock, [0, not os.get_inheritable(values[0])])
            elif kind == "read":
                send(sock, [0], self._memory.copy_from_user(values[0], values[1]))
            elif kind == "write":
                self._memory.copy_to_user(values[0], payload)
                send(sock, [0])
        except Errno as error:
            send(sock, [error.code])
        except OSError as error:
            send(sock, [error.errno])

    def _tell_unmapped(self, sock: socket.socket) -> None:
        tokens = []
        with contextlib.suppress(IndexError):
            while True:
                tokens.append(self._unmapped.popleft())
        if tokens:
            send(sock, ["unmapped", *tokens])

    def _forget(self, token: int) -> None:
        """A mapping is gone; the collector may call this anywhere, so nothing is awaited."""
        self._unmapped.append(token)
        try:
            sock = self._idle.pop()
        except IndexError:
            return
        try:
            self._tell_unmapped(sock)
            self._idle.append(sock)
        except Gone:
            sock.close()

    def _is_simulated(self, fd: int) -> bool:
        if fd in self._known:
            return True
        try:
            status = os.fstat(fd)
        except OSError:
            return False
        # Every simulated file that can be told from others is a memfd.
        if not stat.S_ISREG(status.st_mode) or status.st_nlink:
            return False
        if self._call("adopt", fd, *identity(status)):
            self._known.add(fd)
            return True
        return False

    # The Kernel protocol.

    def open(self, path: str, flags: int) -> int:
        try:
            return int(self._call("open", path, flags))
        except Errno as error:
            raise OSError(error.code, os.strerror(error.code), path) from None

    def close(self, fd: int) -> None:
        if fd in self._known:
            self._known.discard(fd)
            self._call("close", fd)
        os.close(fd)

    def dup(self, fd: int) -> int:
        simulated = self._is_simulated(fd)
        copy = os.dup(fd)
        if simulated:
            self._known.add(copy)
            self._call("dup", fd, copy)
        return copy

    def ioctl(self, fd: int, request: int, arg: Argument = None) -> tuple[int, int]:
        if not self._is_simulated(fd):
            return super().ioctl(fd, request, arg)
        address, _keep = address_of(arg)
        try:
            value = self._call("ioctl", fd, int(request) & 0xFFFFFFFF, address & (1 << 64) - 1)
        except Errno as error:
            return -1, error.code
        return int(value), 0

    def mmap(
        self,
        fd: int,
        length: int,
        offset: int = 0,
        prot: int = _fast.PROT_READ | _fast.PROT_WRITE,
        flags: int = _fast.MAP_SHARED,
    ) -> _fast.Mapping:
        if not self._is_simulated(fd):
            return super().mmap(fd, length, offset, prot, flags)
        try:
            (token, places), fds = self._call_for_fds("mmap", fd, length, offset, prot, flags)
        except Errno as error:
            raise OSError(error.code, os.strerror(error.code)) from None
        try:
            pieces = [Piece(fds[index], place, size) for index, place, size in places]
            mapping = map_pieces(pieces, prot, flags)
        except OSError:
            self._call("munmap", token)
            raise
        finally:
            for piece in fds:
                os.close(piece)
        finalizer = weakref.finalize(mapping, _forget_in, weakref.ref(self), token)
        finalizer.atexit = False
        self._mappings[mapping] = finalizer, token
        return mapping

    def munmap(self, mapping: _fast.Mapping) -> None:
        mapping.close()
        if mapping.views == 0:
            finalizer, token = self._mappings.pop(mapping, (None, 0))
            # The call is awaited, so that who is told of it can rely on it.
            if finalizer is not None and finalizer.detach():
                self._call("munmap", token)

    def fstat(self, fd: int) -> os.stat_result:
        real = os.fstat(fd)
        if not self._is_simulated(fd):
            return real
        mode, rdev = self._call("fstat", fd)
        return as_seen(real, mode, rdev)

    def lseek(self, fd: int, offset: int, whence: int = os.SEEK_SET) -> int:
        if not self._is_simulated(fd):
            return os.lseek(fd, offset, whence)
        try:
            return int(self._call("lseek", fd, offset, whence))
        except Errno as error:
            raise OSError(error.code, os.strerror(error.code)) from None


def _forget_in(kernel: weakref.ref[SocketKernel], token: int) -> None:
    alive = kernel()
    if alive is not None:
        alive._forget(token)


# ---- The server's side --------------------------------------------------------------------------


class SocketCaller:
    """A process that calls over a socket: what it has to give for its calls."""

    def __init__(self, pid: int, process_vm: bool) -> None:
        self.pid = pid
        self.files: dict[int, SimFile] = {}
        self.bytes_in, self.bytes_out = 0, 0
        """What its calls have read from and written to its memory."""
        self._process_vm = process_vm

    def _connection(self) -> socket.socket:
        """The connection of the call that this thread serves."""
        raise NotImplementedError

    def _ask(
        self, kind: str, *values: Any, payload: bytes = b"", fds: Sequence[int] = ()
    ) -> tuple[list[Any], bytes, list[int]]:
        """Ask the library of the caller, which is in the call that this thread serves."""
        sock = self._connection()
        sock.settimeout(_PATIENCE)
        try:
            answer, payload, received = self._exchange(sock, [kind, *values], payload, fds)
            if not _is_answer(kind, answer, len(received)):
                for fd in received:
                    os.close(fd)
                raise Gone
        except Gone:
            # What follows must come to nothing, as for a process that dies inside a system call.
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            raise Errno(errno.EFAULT) from None
        finally:
            sock.settimeout(None)
        code, *numbers = answer
        if code:
            raise Errno(code)
        return numbers, payload, received

    def _exchange(
        self, sock: socket.socket, message: list[Any], payload: bytes, fds: Sequence[int]
    ) -> tuple[list[Any], bytes, list[int]]:
        send(sock, message, payload, fds)
        return receive(sock, MAX_ANSWER_FDS)

    def take(self, fd: int) -> int:
        number = ctypes.c_int32(fd).value
        try:
            _, _, fds = self._ask("take", number)
        except Errno:
            raise Errno(errno.EBADF) from None
        return fds[0]

    def shut(self, fd: int) -> None:
        with contextlib.suppress(Errno):
            self._ask("shut", fd)

    def closes_on_exec(self, fd: int) -> bool:
        (flag,), _, _ = self._ask("cloexec", ctypes.c_int32(fd).value)
        return bool(flag)

    def copy_from_user(self, address: int, size: int) -> bytes:
        if size == 0:
            return b""
        _check_range(address, size)
        if size > _LARGEST_COPY:
            raise Errno(errno.ENOMEM)
        data = self._read(address, size)
        self.bytes_in += size
        return data

    def _read(self, address: int, size: int) -> bytes:
        if self._process_vm:
            buffer = ctypes.create_string_buffer(size)
            count = self._move("process_vm_readv", buffer, address, size)
            if count is not None:
                return buffer.raw
        parts = []
        for start in range(0, size, _CHUNK):
            part = min(_CHUNK, size - start)
            parts.append(self._ask("read", address + start, part)[1])
            if len(parts[-1]) != part:
                raise Errno(errno.EFAULT)
        return b"".join(parts)

    def copy_to_user(self, address: int, data: bytes) -> None:
        if not data:
            return
        _check_range(address, len(data))
        self._write(address, data)
        self.bytes_out += len(data)

    def _write(self, address: int, data: bytes) -> None:
        if self._process_vm:
            buffer = ctypes.create_string_buffer(data, len(data))
            if self._move("process_vm_writev", buffer, address, len(data)) is not None:
                return
        for start in range(0, len(data), _CHUNK):
            self._ask("write", address + start, payload=data[start : start + _CHUNK])

    def _move(self, name: str, buffer: Any, address: int, size: int) -> int | None:
        """Bytes that were moved, all of them; None when this is not allowed here."""
        local = _iovec(ctypes.addressof(buffer), size)
        remote = _iovec(address, size)
        ctypes.set_errno(0)
        count = getattr(_libc(), name)(self.pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
        code = ctypes.get_errno()
        if count < 0 and code in (errno.EPERM, errno.ENOSYS):
            self._process_vm = False
            return None
        if count != size:
            raise Errno(errno.EFAULT)
        return int(count)


class RemoteCaller(SocketCaller):
    """A process with a SocketKernel."""

    def __init__(self, pid: int, process_vm: bool, here: threading.local) -> None:
        super().__init__(pid, process_vm)
        self.mappings: dict[int, list[Callable[[], None]]] = {}
        self.connections = 0
        self.calls = 0
        """Calls under way."""
        self._next_mapping = 0
        self._next_lost = -2
        self._here = here
        self._pidfd = os.pidfd_open(pid)
        self._poll = select.poll()
        self._poll.register(self._pidfd, select.POLLIN)

    def _connection(self) -> socket.socket:
        sock: socket.socket = self._here.connection
        return sock

    @property
    def alive(self) -> bool:
        return self._pidfd >= 0 and not self._poll.poll(0)

    def forget(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def keep(self, releases: list[Callable[[], None]]) -> int:
        """A mapping of the process; what names it."""
        self._next_mapping += 1
        self.mappings[self._next_mapping] = releases
        return self._next_mapping

    def unmapped(self, token: int) -> None:
        for release in self.mappings.pop(token, []):
            release()

    def give(self, fd: int) -> int:
        try:
            numbers, _, _ = self._ask("give", not os.get_inheritable(fd), fds=[fd])
            return int(numbers[0])
        except Errno:
            # It died: whatever the driver made belongs to it for the moment that is left.
            self._next_lost -= 1
            return self._next_lost
        finally:
            os.close(fd)


def _is_answer(kind: str, answer: Sequence[Any], descriptors: int) -> bool:
    """Whether a list, an errno first, with so many descriptors answers what was asked."""
    if not all(isinstance(value, int) for value in answer) or not 0 <= answer[0] < _ERRNOS:
        return False
    return (len(answer) - 1, descriptors) == (
        _ANSWERS.get(kind, (0, 0)) if not answer[0] else (0, 0)
    )


def _check_range(address: int, size: int) -> None:
    if not 0 <= address <= (1 << 64) - size:
        raise Errno(errno.EFAULT)


class _iovec(ctypes.Structure):
    _fields_ = [("iov_base", ctypes.c_uint64), ("iov_len", ctypes.c_size_t)]


@functools.cache
def _libc() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    for name in ("process_vm_readv", "process_vm_writev"):
        function = getattr(library, name)
        function.restype = ctypes.c_ssize_t
        function.argtypes = (
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_ulong,
            ctypes.c_void_p,
            ctypes.c_ulong,
            ctypes.c_ulong,
        )
    return library


class SocketServer:
    """Serves a simulated machine; made by serve()."""

    def __init__(self, kernel: SimKernel, path: str, process_vm: bool) -> None:
        self.kernel = kernel
        self.path = path
        self._process_vm = process_vm
        self._here = threading.local()
        self._callers: dict[tuple[int, str], RemoteCaller] = {}
        self._connections: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._closed = False
        if len(os.fsencode(path)) >= _PATH_BYTES:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            if _is_stale(path):
                os.unlink(path)
            self._listener.bind(path)
            os.chmod(path, 0o600)
            self._listener.listen(64)
        except BaseException:
            self._listener.close()
            raise
        self._node = identity(os.stat(path))
        self._start(self._accept)

    def __enter__(self) -> SocketServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Serve no more: every client's next call raises ConnectionError. Idempotent."""
        if self._closed:
            return
        self._closed = True
        # A listener that is shut down wakes who waits in accept.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for sock in list(self._connections):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(_PATIENCE)
        self._listener.close()
        with contextlib.suppress(OSError):
            # It may have been removed, and be another server's by now.
            if identity(os.stat(self.path)) == self._node:
                os.unlink(self.path)

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.add(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                break
            self._connections.add(sock)
            self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        self._here.connection = sock
        caller = None
        try:
            (kind, *values), _, _ = receive(sock)
            if kind == "library":
                self._serve_library(sock, *values)
            elif kind == "hello":
                (token,) = values
                caller = self._enter(_peer(sock), str(token))
                while True:
                    message, _, _ = receive(sock)
                    self._answer(sock, caller, message)
        except (Gone, OSError, ValueError, TypeError, OverflowError):
            # It has gone, or it does not speak our language.
            pass
        finally:
            sock.close()
            self._connections.discard(sock)
            if caller is not None:
                self._leave(caller)
            self._threads.discard(threading.current_thread())

    def _serve_library(self, sock: socket.socket, address: Any, probe: Any) -> None:
        """Serve a thread of a program that has csrc/preload.c."""
        library = self.kernel.library(sock, _peer(sock), self._process_vm, int(address), str(probe))
        while library is not None:
            # Short, and without descriptors.
            data = sock.recv(_CALL_BYTES)
            library.answer(*parse(data))

    def _enter(self, pid: int, token: str) -> RemoteCaller:
        with self.kernel.lock:
            caller = self._callers.get((pid, token))
            if caller is None:
                caller = RemoteCaller(pid, self._process_vm, self._here)
                self._callers[pid, token] = caller
                self.kernel.others[caller] = functools.partial(self._bury, caller)
            caller.connections += 1
            return caller

    def _leave(self, caller: RemoteCaller) -> None:
        with self.kernel.lock:
            caller.connections -= 1
            if caller.connections == 0:
                self._bury(caller)

    def _bury(self, caller: RemoteCaller) -> None:
        """Give back all that a process held."""
        self.kernel.others.pop(caller, None)
        for key in [key for key, value in self._callers.items() if value is caller]:
            del self._callers[key]
        caller.forget()
        for token in list(caller.mappings):
            caller.unmapped(token)
        while caller.files:
            self.kernel.put(caller.files.popitem()[1])
        if caller.calls:
            self.kernel.dying.add(caller)
        self.kernel.changed.notify_all()

    def _answer(self, sock: socket.socket, caller: RemoteCaller, message: list[Any]) -> None:
        name, *arguments = message
        if name == "unmapped" and all(isinstance(token, int) for token in arguments):
            with self.kernel.lock:
                self.kernel.enter(caller)
                for token in arguments:
                    caller.unmapped(token)
            return
        if not fits(_CALLS, name, arguments):
            raise Gone
        fds: list[int] = []
        held: list[SimFile] = []
        try:
            with self.kernel.lock:
                self.kernel.enter(caller)
                caller.calls += 1
                try:
                    value = self._do(caller, name, arguments, fds, held)
                    # Sent with the lock held, so that the descriptors cannot be closed before.
                    send(sock, ["done", value], fds=fds)
                    return
                finally:
                    self.kernel.current = caller
                    for file in held:
                        self.kernel.put(file)
                    caller.calls -= 1
                    if caller in self.kernel.dying and not caller.calls:
                        self.kernel.dying.discard(caller)
                        self.kernel.changed.notify_all()
        except Errno as error:
            reply = ["errno", error.code]
        except ProgramError as error:
            reply = ["program", error.strerror, error.hint]
        except KernelOops as error:
            reply = ["oops", str(error)]
        except Gone:
            raise
        except Exception:
            reply = ["oops", traceback.format_exc()]
        send(sock, reply)

    def _do(
        self,
        caller: RemoteCaller,
        name: str,
        arguments: list[Any],
        fds: list[int],
        held: list[SimFile],
    ) -> Any:
        kernel = self.kernel
        if name == "path":
            try:
                return kernel.path(arguments[0])
            except KeyError:
                return None
        if name == "devices":
            return [device.name for device in kernel.devices]
        if name == "open":
            return kernel.open_node(*arguments)
        if name == "munmap":
            return caller.unmapped(arguments[0])
        if name == "adopt":
            fd, device, inode = arguments
            return kernel.adopt(fd, (device, inode))
        file = kernel.file(arguments[0])
        if file is None:
            raise Errno(errno.EBADF)
        # A call holds its file, whatever another thread or the death of the process closes.
        file.holders += 1
        held.append(file)
        if name == "ioctl":
            return kernel.request(caller, file, arguments[1], arguments[2])
        if name == "mmap":
            return self._mmap(caller, file, arguments[1:], fds)
        if name == "close":
            del caller.files[arguments[0]]
            return kernel.put(file)
        if name == "dup":
            return kernel.share(arguments[1], file)
        if name == "fstat":
            return file.stat_mode()
        if name == "lseek":
            return file.lseek(*arguments[1:])
        raise Errno(errno.ENOSYS)

    def _mmap(
        self, caller: RemoteCaller, file: SimFile, arguments: list[int], fds: list[int]
    ) -> Any:
        area = file.mmap(caller, *arguments)
        fds += dict.fromkeys(piece.fd for piece in area.pieces)
        if len(fds) > MAX_FDS:
            fds.clear()
            area.unmapped()
            raise Errno(errno.ENOMEM)
        file.holders += 1
        token = caller.keep([area.unmapped, functools.partial(self.kernel.put, file)])
        return token, [(fds.index(fd), offset, length) for fd, offset, length in area.pieces]


def _is_stale(path: str) -> bool:
    """Whether a socket is there that a server has left behind which was killed."""
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(os.stat(path, follow_symlinks=False).st_mode):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
                return probe.connect_ex(path) == errno.ECONNREFUSED
    return False


def _peer(sock: socket.socket) -> int:
    """The process at the other end, as the kernel knows it."""
    size = struct.calcsize("3i")
    pid: int = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0]
    return pid


def serve(
    kernel: SimKernel, path: str | os.PathLike[str], *, process_vm: bool = True
) -> SocketServer:
    """Serve ``kernel`` to other processes at a new Unix socket, until the result is closed.

    A socket that a killed server has left at ``path`` is replaced; OSError when all else is there.
    Only this user can connect. ``process_vm=False`` never reads another process's memory directly.
    """
    return SocketServer(kernel, os.fspath(path), process_vm)


__all__ = ["SocketKernel", "SocketServer", "serve"]
