# SPDX-License-Identifier: MIT
"""Run an unmodified program on a simulated machine (``npukit sim run``)."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from typing import NoReturn

from npukit.ioctl.watcher import Watcher

from . import _seccomp, namespace
from .door import Door, descendants

DEFAULT_DEVICES = ("rknpu", "rocket", "dma_heap", "udmabuf")
CANNOT_RUN = 125
"""Exit status when the machine does not allow it; 126 and 127 are as those of a shell."""

_HANDLED = {signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD}
UNLISTED = "no folder of /dev or /sys shows nodes: discovery finds none, programs must name one"
"""What a machine without a mount namespace means for programs."""
_OK, _UNPLACED = b"ok", b"ok, without a namespace: "


def run(
    command: Sequence[str],
    devices: Sequence[str] = DEFAULT_DEVICES,
    *,
    strict: bool = False,
    report: bool = False,
    char_nodes: bool = False,
    namespaces: bool = True,
    watcher: Watcher | None = None,
) -> int:
    """Run ``command`` and serve it and all processes that it starts; its exit status.

    A status of 128 + N means signal N, as in a shell. Returns when the last of the processes has
    ended. What strict mode refuses, and the report, go to standard error.

    ``char_nodes``: stat shows nodes as character devices, which takes some microseconds for each
    stat of any file. ``namespaces`` False, or a machine that forbids them: open and stat of the
    nodes' full paths are trapped instead, and no folder shows the nodes. ``watcher`` is told of
    each request.

    ValueError when there is no simulated device of such a name.
    """
    door = Door(devices, strict=strict, report=report, char_nodes=char_nodes, watcher=watcher)
    return run_behind(door, command, namespaces)


def run_behind(door: Door, command: Sequence[str], namespaces: bool = True) -> int:
    """run(), on a machine that is there already."""
    fill_standard_files()
    try:
        _seccomp.check()
    except OSError as error:
        door.say(
            "calls of other processes cannot be answered on this machine (it may be a container "
            f"that forbids it; --door preload takes less): {error.filename}: {error.strerror}"
        )
        return CANNOT_RUN
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # What comes before we know what to do with it has to wait.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        ours.close()
        _become(command, door, theirs, namespaces)
    theirs.close()
    with ours:
        message, descriptors, _, _ = socket.recv_fds(ours, 65536, 64)
    if message.startswith(_UNPLACED):
        if namespaces:
            door.say(
                f"no mount namespace on this machine ({message.removeprefix(_UNPLACED).decode()}): "
                + UNLISTED
            )
    elif message != _OK:
        os.waitpid(pid, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for fd in descriptors:
            os.close(fd)
        text = message.decode() or "the program's process ended before it began"
        print(f"npukit sim run: {text}", file=sys.stderr)
        return CANNOT_RUN
    *nodes, listener = descriptors
    return _serve(door, pid, nodes, listener)


def fill_standard_files() -> None:
    """Before a fork: write out what was printed, and have something stand for standard files that
    are closed, which the program will find closed again. Else our own files would take their
    numbers, and what we have to say would go into those."""
    while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
        pass
    os.close(fd)
    # Python has None for what was closed when it began.
    sys.stdout = sys.stdout or io.StringIO()
    sys.stderr = sys.stderr or io.StringIO()
    sys.stdout.flush()
    sys.stderr.flush()


def _become(
    command: Sequence[str], door: Door, supervisor: socket.socket, namespaces: bool
) -> None:
    """Turn this forked process into the program."""
    message = _OK
    try:
        if namespaces:
            namespace.make_private()
        else:
            message = _UNPLACED
    except OSError as error:
        message = _UNPLACED + (error.strerror or str(error)).encode()
    placed = message == _OK
    step = "/dev and /sys cannot be laid out"
    try:
        nodes = (namespace.furnish if placed else namespace.unplaced)(door.devices)
        step = "system calls cannot be trapped (seccomp user notification, Linux 5.19 or newer)"
        listener = _seccomp.trap(door.char_nodes or not placed, door.opens_fail or not placed)
        socket.send_fds(supervisor, [message], [*nodes, listener])
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        text = f"{step} on this machine: {error.strerror}{where}"
        supervisor.send(text.encode())
        os._exit(CANNOT_RUN)
    execute(command)


def execute(command: Sequence[str]) -> NoReturn:
    """Become the program, or end as a shell does that cannot."""
    # What Python has changed for itself.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    status = 126
    try:
        os.execvp(command[0], list(command))
    except (FileNotFoundError, ValueError):
        # An empty name is a ValueError.
        status = 127
        text = "no such program"
    except OSError as error:
        text = error.strerror or str(error)
    os.write(2, f"npukit sim run: {command[0]}: {text}\n".encode())
    os._exit(status)


def _serve(door: Door, pid: int, nodes: Sequence[int], listener: int) -> int:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # Who maps a device's memory is looked up among our descendants.
    _seccomp.adopt_orphans()
    _seccomp.survive_truncation()
    wake, alarm = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
    # A terminal sends these to the program as well, which decides what they mean.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    family = _Family(pid)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: forward(family.running, number))
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
    door.open_door(nodes, listener)
    assert door.listener is not None
    served = door.listener

    def over() -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(wake, 4096)
        # Not while a thread is traced, whose stops are for the tracer alone.
        with door.lock:
            family.reap()
        return family.status is not None and served.over

    door.tend(over, wake)
    door.sweep_files()
    if door.report is not None:
        print("\n".join(["npukit sim run: report", *door.report.lines()]), file=sys.stderr)
    assert family.status is not None
    return family.status


def forward(pid: int | None, number: int) -> None:
    """Pass a signal on to the program, or to all that it has left once it has ended itself."""
    for each in descendants(os.getpid()) if pid is None else [pid]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(each, number)


class _Family:
    """The program and the processes that it left to us."""

    def __init__(self, pid: int) -> None:
        self.running: int | None = pid
        """The program, until it has ended."""
        self.status: int | None = None
        """Exit status of the program once it has ended."""

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.running:
                self.running = None
                code = os.waitstatus_to_exitcode(status)
                self.status = code if code >= 0 else 128 - code
