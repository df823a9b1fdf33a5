# SPDX-License-Identifier: MIT
"""Other processes of a simulated machine, which do what a test tells them."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.reduction
import multiprocessing.resource_tracker
import os
import signal
from collections.abc import Callable
from typing import Any

from npukit.ioctl import Ioctl
from npukit.sim.socket import SocketKernel

# A server that has loaded numpy and the simulator makes each peer in a few milliseconds. Both stay
# until the end of the tests, so they are started before anybody counts descriptors.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["numpy", "npukit.sim.socket", "npukit.devices"])
if os.environ.setdefault("NPUKIT_TESTS_PID", str(os.getpid())) == str(os.getpid()):
    multiprocessing.resource_tracker.ensure_running()
    multiprocessing.forkserver.ensure_running()


class Peer:
    """A process with a SocketKernel. ``do(function, ...)`` calls it there with (peer's state, ...).

    The function must stand in a module that can be imported. What it raises is raised here.
    """

    def __init__(self, path: Any) -> None:
        self.pipe, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=_main, args=(theirs, str(path)), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        pid = self.process.pid
        assert pid is not None
        return pid

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.start(function, *arguments)
        return self.finish()

    def start(self, function: Callable[..., Any], *arguments: Any) -> None:
        # A request cannot be pickled; its number says all.
        numbers = [int(each) if isinstance(each, Ioctl) else each for each in arguments]
        self.pipe.send((function, numbers))

    def finish(self) -> Any:
        good, value = self.pipe.recv()
        if not good:
            raise value
        return value

    def send_fd(self, fd: int) -> int:
        """The number of a copy of ``fd`` in the peer."""
        self.start(_receive_fd)
        multiprocessing.reduction.send_handle(self.pipe, fd, self.pid)  # type: ignore[arg-type]
        number: int = self.finish()
        return number

    def fetch_fd(self, fd: int) -> int:
        """A copy of the peer's ``fd`` here."""
        self.start(_send_fd, fd)
        copy = multiprocessing.reduction.recv_handle(self.pipe)  # type: ignore[arg-type]
        self.finish()
        return copy

    def kill(self) -> int:
        """End it in the middle of whatever it does; the signal that ended it."""
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def wait(self) -> int:
        self.process.join()
        self.pipe.close()
        code = self.process.exitcode
        self.process.close()
        assert code is not None
        return -code

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(ValueError, OSError):
            # After a failure it may be stuck in a call.
            if exception[0] is None:
                self.pipe.send(None)
                self.wait()
            else:
                self.kill()


class State:
    """What a peer keeps between calls: its kernel, and whatever a function puts here."""

    def __init__(self, path: str, pipe: Any) -> None:
        self.kernel = SocketKernel(path)
        self.pipe = pipe
        self.kept: dict[Any, Any] = {}


def _main(pipe: Any, path: str) -> None:
    state = State(path, pipe)
    while True:
        try:
            order = pipe.recv()
        except EOFError:
            return
        if order is None:
            return
        function, arguments = order
        try:
            answer = True, function(state, *arguments)
        except Exception as error:
            answer = False, error
        pipe.send(answer)


def _receive_fd(state: State) -> int:
    return multiprocessing.reduction.recv_handle(state.pipe)


def _send_fd(state: State, fd: int) -> None:
    multiprocessing.reduction.send_handle(state.pipe, fd, os.getppid())


def call(state: State, name: str, *arguments: Any) -> Any:
    """A method of the peer's kernel that gives something that can be sent."""
    return getattr(state.kernel, name)(*arguments)


def ioctl(state: State, fd: int, request: int, data: bytes | int | None = None) -> Any:
    """(value, errno, the argument as it came back)."""
    argument = bytearray(data) if isinstance(data, bytes) else data
    value, code = state.kernel.ioctl(fd, request, argument)
    return value, code, bytes(argument) if isinstance(argument, bytearray) else None


def map_as(state: State, key: Any, *arguments: Any) -> int:
    """Map, and keep the mapping under ``key``; the errno, or 0."""
    try:
        state.kept[key] = state.kernel.mmap(*arguments)
    except OSError as error:
        return error.errno or -1
    return 0


def unmap(state: State, key: Any) -> None:
    state.kernel.munmap(state.kept.pop(key))


def drop(state: State, key: Any) -> None:
    """Let the collector find the mapping."""
    del state.kept[key]


def read(state: State, key: Any, offset: int, size: int) -> bytes:
    return bytes(memoryview(state.kept[key])[offset : offset + size])


def write(state: State, key: Any, offset: int, data: bytes) -> None:
    memoryview(state.kept[key])[offset : offset + len(data)] = data
