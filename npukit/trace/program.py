# SPDX-License-Identifier: MIT
"""Trace a program from outside (``npukit trace``)."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from npukit.ioctl import Struct, Union

from . import _ptrace
from ._ptrace import Event, Tracer
from .contents import Contents
from .follow import fills, requests_for
from .meaning import MODULES, REGCMDS
from .outside import Asked, Nodes, Outside, What, is_npu
from .record import Record


class CannotTrace(OSError):
    """The machine, or the program's owner, forbids it."""


_NUMBERS = {driver: number for number, driver in enumerate(MODULES, 1)}


@functools.cache
def flat_requests() -> frozenset[tuple[int, int]]:
    """(driver, request) of all whose argument leads to no other memory; the driver counts MODULES
    from 1 on, and is 0 where that holds for the request of this number of every driver."""
    flat: set[tuple[int, int]] = set()
    followed: set[int] = set()
    for driver, index in _NUMBERS.items():
        for number, request in requests_for(driver).items():
            if _is_flat(request.struct):
                flat.add((index, number))
            else:
                followed.add(number)
    return frozenset(flat | {(0, number) for _, number in flat if number not in followed})


def _is_flat(ctype: Any) -> bool:
    if ctype is None or not issubclass(ctype, (Struct, Union)):
        return True
    inner = [field[1] for field in ctype._fields_ if isinstance(field[1], type)]
    device = ctype.__name__ in REGCMDS or ctype.__name__ in ("rknpu_submit", "amdxdna_drm_exec_cmd")
    return not (
        device or ctype._pointers_ or ctype._tail_ or fills(ctype)
    ) and all(_is_flat(part) for part in inner)  # fmt: skip


def trace_program(
    command: Sequence[str],
    sink: Callable[[Record], object],
    root: str | os.PathLike[str] = "/",
    contents: Contents | None = None,
) -> int:
    """Run ``command``, and tell ``sink`` of each NPU request of it and of what it starts.

    Returns its exit status, 128 + N for signal N, when the last process has ended. The program is
    killed if this process is: the filter that picks its requests out has them fail without a
    tracer. What a terminal sends goes to the program, and SIGTERM and SIGHUP are passed on; when it
    has ended, each of them ends what it has left running. ``root`` holds the /sys that tells
    drivers. ``contents``: record what buffer objects hold, too.

    CannotTrace with errno, where this machine does not allow it; FileNotFoundError and
    PermissionError as for execution.
    """
    tracer = Tracer(flat_requests())
    stopping = threading.Event()

    def on_signal(number: int, _frame: Any) -> None:
        if not tracer.pid:
            stopping.set()
            tracer.let_go()
        elif number in (signal.SIGTERM, signal.SIGHUP):
            with contextlib.suppress(ProcessLookupError):
                os.kill(tracer.pid, number)

    # Handlers, for what is ignored stays so in the program; and what is ignored already is to.
    wanted = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)
    heeded = [each for each in wanted if signal.getsignal(each) is not signal.SIG_IGN]
    with _signals(heeded, on_signal):
        error = _follow(
            tracer, lambda: tracer.launch(command), Outside(sink, contents=contents), root, stopping
        )
    if error:
        raise CannotTrace(error, f"cannot trace here: {_why(error, os.getpid())}")
    if tracer.exec_error:
        code = tracer.exec_error
        raise OSError(code, os.strerror(code), command[0])
    code = os.waitstatus_to_exitcode(tracer.status)
    return code if code >= 0 else 128 - code


def trace_process(
    pid: int,
    sink: Callable[[Record], object],
    root: str | os.PathLike[str] = "/",
    contents: Contents | None = None,
) -> None:
    """The same of a process that runs already, and of what it starts, until it ends or SIGINT or
    SIGTERM comes; it goes on then. All its system calls are stopped at meanwhile.

    CannotTrace when it is not there or not ours to trace.
    """
    tracer = Tracer(flat_requests())
    stopping = threading.Event()

    def stop(*_signal: Any) -> None:
        stopping.set()
        tracer.let_go()

    def add(record: Record) -> None:
        try:
            sink(record)
        except BaseException:
            stop()
            raise

    with _signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), stop):
        error = _follow(
            tracer, lambda: tracer.attach(pid), Outside(add, contents=contents), root, stopping
        )
    if error:
        raise CannotTrace(error, f"cannot trace {pid}: {_why(error, pid)}")


def _why(error: int, pid: int) -> str:
    """A process has one tracer, and with it all that it starts."""
    text = os.strerror(error)
    with contextlib.suppress(OSError):
        thread = _status(pid, "TracerPid")
        if thread:
            text += f" (process {_status(thread, 'Tgid')} traces it already)"
    return text


def _status(pid: int, name: str) -> int:
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(f"{name}:"))


@contextlib.contextmanager
def _signals(
    numbers: Iterable[signal.Signals], handler: Callable[[int, Any], None]
) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    # It interrupts the tracer's thread; nothing else comes of it.
    before[signal.SIGURG] = signal.signal(signal.SIGURG, lambda _number, _frame: None)
    try:
        yield
    finally:
        for number, action in before.items():
            # None is a handler that is not Python's: it cannot be put back.
            signal.signal(number, signal.SIG_DFL if action is None else action)


def _follow(
    tracer: Tracer,
    begin: Callable[[], int],
    outside: Outside,
    root: str | os.PathLike[str],
    stopping: threading.Event,
) -> int:
    """Trace on a thread of its own, and take what it finds here. ``stopping``: it was told to let
    go."""
    begun: Future[int] = Future()

    def run() -> None:
        try:
            begun.set_result(begin())
        except BaseException as error:
            begun.set_exception(error)

    thread = threading.Thread(target=run, name="tracer")
    watch = _Watch(outside, Nodes(root), tracer)
    poller = select.poll()
    poller.register(tracer, select.POLLIN)
    thread.start()
    # What makes sense of events is not to take the processor from what they come from.
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(nice + 10, 19))

    def interrupt() -> int:
        """The tracer, if it is to let go; how many milliseconds to wait then. A signal may come
        just before the tracer sleeps, so it is sent again."""
        if not stopping.is_set() or thread.ident is None:
            return 1000
        with contextlib.suppress(ProcessLookupError):
            signal.pthread_kill(thread.ident, signal.SIGURG)
        return 20

    try:
        while thread.is_alive():
            poller.poll(interrupt())
            watch.take()
        watch.take()
    finally:
        # Whatever went wrong with the records, what was launched is to go on.
        tracer.ignore()
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
        while thread.is_alive():
            thread.join(interrupt() / 1000)
    return begun.result()


class _Watch:
    """Tells an Outside of events."""

    def __init__(self, outside: Outside, nodes: Nodes, tracer: Tracer) -> None:
        self._outside = outside
        self._nodes = nodes
        self._tracer = tracer
        self._served: set[int] = set()
        self._paths: dict[tuple[int, int, int, int], tuple[str, int]] = {}
        self._asked: dict[int, Asked] = {}

    def take(self) -> None:
        tracer = self._tracer
        for event in tracer.take():
            self._one(event)
            if event.kind in (_ptrace.ENTRY, _ptrace.EXIT, _ptrace.EXEC):
                tracer.go_on()

    def _one(self, event: Event) -> None:
        outside = self._outside
        if event.kind == _ptrace.FORK:
            outside.forked(event.pid, event.value)
        elif event.kind == _ptrace.EXEC:
            outside.executes(event.pid, event.start_ns)
        elif event.kind == _ptrace.DEATH:
            self._asked.pop(event.tid, None)
        elif event.kind == _ptrace.EXIT:
            asked = self._asked.pop(event.tid, None)
            if asked is not None:
                self._ended(asked, event)
        elif event.kind == _ptrace.MMAP:
            file, what = self._what(event, event.args[4])
            _at, length, prot, flags, _fd, offset = event.args
            # Of what nobody knows, only what is mapped where DRM has its buffers.
            wanted = what is not None and (what.driver or offset >> 32)
            if what is not None and wanted and not event.lost:
                arguments = {"length": length, "offset": offset, "prot": prot, "flags": flags}
                times = event.start_ns, event.end_ns
                outside.mapped(
                    file, event.tid, what, times, event.value, event.code, arguments
                )  # fmt: skip
        else:
            file, what = self._what(event, event.args[0])
            if what is None:
                return
            number, argument = event.args[1] & 0xFFFFFFFF, event.args[2]
            asked = outside.begins(
                file, event.tid, what, number, argument, event.start_ns, event.before
            )
            if event.kind == _ptrace.ENTRY:
                self._asked[event.tid] = asked
            else:
                self._ended(asked, event)

    def _ended(self, asked: Asked, event: Event) -> None:
        # Where the kernel only reads, nothing has changed.
        data = event.before if event.after is None else event.after
        self._outside.ended(
            asked, event.start_ns, event.end_ns, event.value, event.code, data, lost=event.lost
        )

    def _what(self, event: Event, register: int) -> tuple[tuple[int, int], What | None]:
        number = register & 0xFFFFFFFF
        fd = number - (1 << 32) if number >> 31 else number
        key = (event.pid, fd, *event.identity)
        if event.path:
            self._paths[key] = event.path, event.access
        path, access = self._paths.get(key, ("", os.O_RDWR))
        if event.identity == (0, 0):
            # No such descriptor: EBADF is of interest, too.
            return (event.pid, fd), What("", "", 0, (0, 0, 0))
        found = self._nodes.of(event.mode, event.rdev, path)
        if found is None or not is_npu(found[0]):
            return (event.pid, fd), None
        if event.rdev and event.rdev not in self._served and found[0]:
            self._served.add(event.rdev)
            self._tracer.serves(event.rdev, _NUMBERS[found[0]])
        return (event.pid, fd), What(*found, access, (*event.identity, event.rdev))
