# SPDX-License-Identifier: MIT
"""NPU requests of other processes, watched with ptrace.

Facts: ptrace(2), seccomp(2), kcmp(2), process_vm_readv(2).
"""

from collections.abc import Iterable, Sequence
from typing import final

CALL: int
"""An ioctl that is over."""
ENTRY: int
"""One that begins and leads to more memory; the program waits for Tracer.go_on()."""
EXIT: int
"""The same at its end; the program waits again."""
MMAP: int
"""A mapping of a file at an offset from 4 GiB on, or that is shared."""
FORK: int
"""``value`` is the thread that was born."""
EXEC: int
"""The program waits."""
DEATH: int
"""Of a thread."""

def read_memory(pid: int, address: int, size: int) -> bytes | None:
    """Memory of a process; None when not all can be read."""

def same_file(pid: int, fd: int, other_pid: int, other_fd: int) -> bool:
    """Whether two descriptors are of one open file; False where the kernel does not tell."""

def copy_descriptor(pidfd: int, fd: int) -> int:
    """A descriptor here of the open file behind another process's; -1 when that cannot be had."""

@final
class Event:
    """What happened. ``code`` is an errno or 0; ``lost``: the thread died in the call."""

    kind: int
    pid: int
    tid: int
    args: tuple[int, int, int, int, int, int]
    code: int
    value: int
    lost: bool
    start_ns: int
    end_ns: int
    identity: tuple[int, int]
    """(st_dev, st_ino) of the descriptor's file, (0, 0) when there is none."""
    rdev: int
    mode: int
    access: int
    """O_RDONLY, O_WRONLY or O_RDWR."""
    path: str
    """What the descriptor is; "" where an earlier event of the thread has told."""
    before: bytes | None
    after: bytes | None

@final
class Tracer:
    """See csrc/trace.h. ``flat`` are (driver's number, request) of those whose argument leads to no
    other memory; 0 stands for a driver that is not known.

    Synchronization: launch() and attach() take a thread of their own; all else is for one other.
    """

    def __init__(self, flat: Iterable[tuple[int, int]]) -> None: ...
    def launch(self, command: Sequence[str]) -> int:
        """Run a program and trace it and all that it starts, until none is left. 0, or the errno
        that kept it from beginning."""
    def attach(self, pid: int) -> int:
        """The same of a process that runs already."""
    @property
    def status(self) -> int:
        """The wait status of the program that was launched."""
    @property
    def exec_error(self) -> int:
        """The errno with which it could not be run, or 0."""
    @property
    def pid(self) -> int:
        """The program's process; 0 before it is there, and when it has ended."""
    def fileno(self) -> int:
        """Readable when there are events, and at the end."""
    def take(self) -> list[Event]: ...
    def serves(self, rdev: int, driver: int) -> None:
        """Which driver serves a device."""
    def go_on(self) -> None:
        """The event that the program waits for was seen."""
    def ignore(self) -> None:
        """Make no more events."""
    def let_go(self) -> None:
        """Have the tracer let go; its thread must be interrupted by a signal until it has. What it
        launched is killed."""
