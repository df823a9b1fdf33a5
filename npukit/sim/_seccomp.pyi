# SPDX-License-Identifier: MIT
"""System calls of other processes, answered here, and the namespaces that those live in.

Facts: seccomp_unotify(2), fcntl_locking(2), inotify(7), mount_namespaces(7).
"""

from collections.abc import Callable
from typing import final

from .core import SimFile

CLONE_NEWNS: int
CLONE_NEWUSER: int
MS_BIND: int
MS_REC: int
MS_PRIVATE: int
MS_NOSUID: int
MS_NOEXEC: int
MS_NODEV: int
SYS_IOCTL: int
SYS_MMAP: int
SYS_FTRUNCATE: int
SYS_FSTAT: int
SYS_NEWFSTATAT: int
SYS_STATX: int
SYS_OPENAT: int
SYS_CREAT: int
"""-1 where there is none."""
AT_EMPTY_PATH: int
FIRST_TAG: int
"""No program comes upon a position this large."""

def trap(stat: bool = False, opening: bool = False) -> int:
    """Trap NPU requests of this thread and of all that it starts; the listener's descriptor.

    Trapped are ioctl with the type byte of an NPU driver, mmap of a file that is shared or at
    offsets from 4 GiB on, and ftruncate; with ``stat`` also fstat, newfstatat and statx; with
    ``opening`` also open and openat. Sets no_new_privs. OSError(EINVAL) before Linux 5.19.
    """

def unshare(flags: int) -> None: ...
def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None: ...
def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent ends."""

def survive_truncation() -> None:
    """Give a fresh page to an access behind the end of a mapped file, instead of SIGBUS."""

def check() -> None:
    """OSError, which names the call, where this machine lacks what the answers to another process's
    calls take. Descriptor 0 must be open."""

def watch_closes() -> int:
    """An inotify descriptor, for add_watch()."""

def add_watch(inotify: int, fd: int) -> int:
    """Tell when an open file of the inode behind ``fd`` ends: its last descriptor and mapping."""

def drop_watch(inotify: int, watch: int) -> None: ...
def lock_file(fd: int, start: int) -> None:
    """Lock the byte at ``start`` for the open file behind ``fd``; the lock goes with that file."""

def file_locked(fd: int, start: int) -> bool:
    """Whether an open file of the inode, other than that behind ``fd``, has the byte locked."""

def process_of(tid: int) -> int:
    """The process that a thread belongs to; ProcessLookupError."""

@final
class Listener:
    """The receiving end of a filter. Owns the descriptor ``fd``.

    Synchronization: any number of threads may serve(); one at a time receives, if they start others
    only while ``receivers`` is 0, and raise it then.
    """

    fd: int
    tagged: dict[int, SimFile]
    """Position that belongs to one open file alone, from FIRST_TAG on -> what it stands for."""

    receivers: int
    """How many threads receive, or are about to."""

    def __init__(self, fd: int) -> None: ...
    def close(self) -> None: ...
    @property
    def over(self) -> bool:
        """No process with the filter is left."""

    def serve(self, handle: Callable[[Call, SimFile | None, int, int], int | None]) -> bool:
        """Receive calls and answer what ``handle`` says: a value, a negative errno, or None to let
        the kernel do it. ``handle`` must not raise. It gets the call, the file that an ioctl is for
        where ``tagged`` tells, and the call's second and third argument: of an ioctl the request
        and the address.

        True when another thread receives meanwhile, so that this one can go; False when no process
        is left. Before Linux 6.11 the end is not noticed here.
        """

@final
class Call:
    """A system call of another process that waits for its answer: a Caller.

    Memory is that of the thread ``pid``. What it names by a pointer is read once, when asked for.
    """

    pid: int
    """The thread's number. Like all here it cannot be set."""

    files: dict[int, SimFile]
    """Empty: what stands behind a descriptor is asked of the process each time."""

    @property
    def nr(self) -> int: ...
    @property
    def fd(self) -> int:
        """The first argument of ioctl and ftruncate."""

    @property
    def args(self) -> tuple[int, ...]:
        """The six argument registers, unsigned."""

    @property
    def alive(self) -> bool:
        """Whether the thread still waits for an answer."""

    def identify(self, fd: int) -> tuple[tuple[int, int], int] | None:
        """((device, inode), position) of the open file behind a descriptor of the process; None
        when there is none, or it is only a path; Errno(EMFILE) when we have no descriptor left,
        PermissionError when the process is not for us to look into."""

    def take(self, fd: int) -> int: ...
    def closes_on_exec(self, fd: int) -> bool: ...
    def give(self, fd: int, cloexec: bool = True) -> int:
        """The number that a copy of our ``fd`` has in the process; Errno(EMFILE)."""

    def tell_stat(self, address: int, fd: int, mode: int, major: int, minor: int) -> None:
        """Write the answer of a trapped stat: that of our ``fd``, but as a device of these numbers.

        The layout is that of the call made. Errno(EFAULT).
        """

    def mmap(self, fd: int, offset: int) -> None:
        """Answer an mmap by mapping our file ``fd`` at ``offset`` instead.

        The thread itself makes that call, for which it is stopped by ptrace; OSError(EPERM) when
        another traces it already. The call is answered then, unless there is an error.
        """

    def shut(self, fd: int) -> None:
        """Let go of what a descriptor of the process stands for; the number remains, as
        /dev/null."""

    def copy_from_user(self, address: int, size: int) -> bytes: ...
    def copy_to_user(self, address: int, data: bytes) -> None: ...
