# SPDX-License-Identifier: MIT
"""System calls of other processes, answered here, and the namespaces that those live in.

_seccomp.pyi holds the documentation.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EFAULT, EINTR, EINVAL, EMFILE, ENFILE, ENOENT, ENOMEM, EPERM, ESRCH, errno
from libc.stdint cimport int64_t, uint64_t
from posix.time cimport clock_gettime, timespec
from posix.unistd cimport close

from npukit.c_seccomp cimport (
    npukit_call,
    npukit_file_lock,
    npukit_file_locked,
    npukit_identity,
    npukit_pidfd,
    npukit_pidfd_identify,
    npukit_pidfd_position,
    npukit_pidfd_take,
    npukit_seccomp_answer,
    npukit_seccomp_continue,
    npukit_seccomp_give,
    npukit_seccomp_mmap,
    npukit_seccomp_over,
    npukit_seccomp_receive,
    npukit_seccomp_sync_wake_up,
    npukit_seccomp_trap,
    npukit_seccomp_valid,
    npukit_survive_truncation,
)

import os

from npukit.sim.core import Errno

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t process_vm_readv(int pid, const iovec *local, unsigned long locals,
                             const iovec *remote, unsigned long remotes, unsigned long flags)
    ssize_t process_vm_writev(int pid, const iovec *local, unsigned long locals,
                              const iovec *remote, unsigned long remotes, unsigned long flags)

cdef extern from "<sched.h>" nogil:
    int c_unshare "unshare"(int flags)
    enum:
        C_NEWNS "CLONE_NEWNS"
        C_NEWUSER "CLONE_NEWUSER"

cdef extern from "<sys/mount.h>" nogil:
    int c_mount "mount"(const char *source, const char *target, const char *kind,
                        unsigned long flags, const void *data)
    enum:
        C_BIND "MS_BIND"
        C_REC "MS_REC"
        C_PRIVATE "MS_PRIVATE"
        C_NOSUID "MS_NOSUID"
        C_NOEXEC "MS_NOEXEC"
        C_NODEV "MS_NODEV"

cdef extern from "<sys/prctl.h>" nogil:
    int prctl(int option, ...)
    enum:
        PR_SET_CHILD_SUBREAPER

cdef extern from "<sys/inotify.h>" nogil:
    int inotify_init1(int flags)
    int inotify_add_watch(int fd, const char *path, unsigned int mask)
    int inotify_rm_watch(int fd, int watch)
    enum:
        IN_CLOSE
        IN_CLOEXEC
        IN_NONBLOCK

cdef extern from "<sys/syscall.h>" nogil:
    enum:
        C_IOCTL "SYS_ioctl"
        C_MMAP "SYS_mmap"
        C_FTRUNCATE "SYS_ftruncate"
        C_FSTAT "SYS_fstat"
        C_NEWFSTATAT "SYS_newfstatat"
        C_STATX "SYS_statx"
        C_OPENAT "SYS_openat"

# AArch64 has only the newer call.
cdef extern from *:
    """
    #ifndef SYS_creat
    #define SYS_creat -1
    #endif
    """
    enum:
        C_CREAT "SYS_creat"

cdef extern from "<sys/stat.h>" nogil:
    struct c_stat "stat":
        unsigned int st_mode
        unsigned long st_rdev
        long st_size
        long st_blocks
    struct c_statx "statx":
        unsigned short stx_mode
        unsigned int stx_rdev_major
        unsigned int stx_rdev_minor
        uint64_t stx_size
        uint64_t stx_blocks
    int c_fstat "fstat"(int fd, c_stat *status)
    int c_call_statx "statx"(int fd, const char *path, int flags, unsigned int mask,
                             c_statx *status)

cdef extern from "<sys/sysmacros.h>" nogil:
    unsigned long makedev(unsigned int major, unsigned int minor)

cdef extern from "<fcntl.h>" nogil:
    enum:
        C_EMPTY_PATH "AT_EMPTY_PATH"

CLONE_NEWNS = C_NEWNS
CLONE_NEWUSER = C_NEWUSER
MS_BIND = C_BIND
MS_REC = C_REC
MS_PRIVATE = C_PRIVATE
MS_NOSUID = C_NOSUID
MS_NOEXEC = C_NOEXEC
MS_NODEV = C_NODEV
SYS_IOCTL = C_IOCTL
SYS_MMAP = C_MMAP
SYS_FTRUNCATE = C_FTRUNCATE
SYS_FSTAT = C_FSTAT
SYS_NEWFSTATAT = C_NEWFSTATAT
SYS_STATX = C_STATX
SYS_OPENAT = C_OPENAT
SYS_CREAT = C_CREAT
AT_EMPTY_PATH = C_EMPTY_PATH

FIRST_TAG = 1 << 61
cdef int64_t FIRST = FIRST_TAG

cdef extern from "<time.h>" nogil:
    enum:
        CLOCK_MONOTONIC_COARSE

cdef enum:
    PIDFDS = 256
    # No driver copies more at once: the kernel's own allocator refuses it.
    LARGEST_COPY = 1 << 28
    # A thread's number comes again only after tens of thousands of others.
    SURE_SECONDS = 1


cdef long _seconds() noexcept:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now)
    return now.tv_sec


cdef int _number(object fd) except? -1:
    """A descriptor as the kernel takes it from a field of any width: the low 32 bits, signed."""
    return <int><unsigned int>(fd & 0xFFFFFFFF)


cdef int _check(int result) except -1:
    """What a C function gave, which is an errno when negative."""
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


cdef int _checked(int result) except -1:
    """What a libc function gave."""
    if result < 0:
        raise OSError(errno, os.strerror(errno))
    return result


def trap(bint stat=False, bint opening=False):
    return _check(npukit_seccomp_trap(stat, opening))


def unshare(int flags):
    _checked(c_unshare(flags))


def mount(str source, str target, str kind, unsigned long flags, str data=""):
    cdef bytes c_source = source.encode(), c_target = target.encode()
    cdef bytes c_kind = kind.encode(), c_data = data.encode()
    cdef const char *options = c_data
    if c_mount(c_source, c_target, c_kind, flags, options) < 0:
        raise OSError(errno, os.strerror(errno), target)


def adopt_orphans():
    _checked(prctl(PR_SET_CHILD_SUBREAPER, <long>1, <long>0, <long>0, <long>0))


def survive_truncation():
    _check(npukit_survive_truncation())


def watch_closes():
    cdef int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK)
    if fd < 0:
        raise OSError(errno, os.strerror(errno), "inotify_init1")
    return fd


def check():
    cdef int pidfd, copy
    cdef char there = 0, here = 0
    cdef iovec source, target
    os.close(watch_closes())
    try:
        pidfd = os.pidfd_open(os.getpid())
    except OSError as error:
        raise OSError(error.errno, error.strerror, "pidfd_open") from None
    copy = npukit_pidfd_take(pidfd, 0)
    close(pidfd)
    if copy < 0:
        raise OSError(-copy, os.strerror(-copy), "pidfd_getfd")
    close(copy)
    source.iov_base, target.iov_base = &there, &here
    source.iov_len = target.iov_len = 1
    if process_vm_readv(os.getpid(), &target, 1, &source, 1, 0) != 1:
        raise OSError(errno, os.strerror(errno), "process_vm_readv")


def add_watch(int inotify, int fd):
    cdef bytes path = f"/proc/self/fd/{fd}".encode()
    return _checked(inotify_add_watch(inotify, path, IN_CLOSE))


def drop_watch(int inotify, int watch):
    inotify_rm_watch(inotify, watch)


def lock_file(int fd, int64_t start):
    _check(npukit_file_lock(fd, start))


def file_locked(int fd, int64_t start):
    return bool(_check(npukit_file_locked(fd, start)))


@cython.final
cdef class Listener:
    """The receiving end of a filter."""

    cdef readonly int fd
    cdef public int receivers
    cdef readonly dict tagged
    cdef int tids[PIDFDS]
    cdef int pidfds[PIDFDS]

    def __init__(self, int fd):
        self.fd = fd
        self.receivers = 0
        self.tagged = {}
        for slot in range(PIDFDS):
            self.pidfds[slot] = -1
        npukit_seccomp_sync_wake_up(fd)

    def close(self):
        for slot in range(PIDFDS):
            if self.pidfds[slot] >= 0:
                close(self.pidfds[slot])
                self.pidfds[slot] = -1
        close(self.fd)

    @property
    def over(self):
        return bool(npukit_seccomp_over(self.fd))

    def serve(self, handle):
        cdef npukit_call raw
        cdef Call call
        cdef int error
        while True:
            with nogil:
                error = npukit_seccomp_receive(self.fd, &raw)
            if error == -ENOENT and not npukit_seccomp_over(self.fd) or error == -EINTR:
                continue
            if error < 0:
                return False
            # What follows up to the hand-over below holds the GIL wherever `receivers` is at stake.
            self.receivers -= 1
            call = Call.__new__(Call)
            call.listener = self
            call.raw = raw
            call.received = _seconds()
            answer = handle(call, call.find(), <unsigned int>raw.args[1], raw.args[2])
            # That nobody waits for the answer any more is no error.
            if answer is None:
                npukit_seccomp_continue(self.fd, raw.id)
            elif answer < 0:
                npukit_seccomp_answer(self.fd, raw.id, 0, answer)
            else:
                npukit_seccomp_answer(self.fd, raw.id, answer, 0)
            if self.receivers > 0:
                return True
            self.receivers += 1

    cdef int pidfd(self, int tid) except? -1:
        """A descriptor for the thread, kept for its next call; -1 when it is gone."""
        cdef int slot = tid % PIDFDS
        if self.pidfds[slot] >= 0 and self.tids[slot] == tid:
            return self.pidfds[slot]
        if self.pidfds[slot] >= 0:
            close(self.pidfds[slot])
        self.pidfds[slot] = npukit_pidfd(tid)
        self.tids[slot] = tid
        if self.pidfds[slot] == -EINVAL:
            # This kernel has descriptors of whole processes alone. They do not tell when a thread's
            # number is given to another, so none is kept.
            self.tids[slot] = -1
            try:
                self.pidfds[slot] = os.pidfd_open(process_of(tid))
            except OSError:
                self.pidfds[slot] = -1
        return self.pidfds[slot]

    cdef void forget(self, int tid) noexcept:
        cdef int slot = tid % PIDFDS
        if self.tids[slot] == tid and self.pidfds[slot] >= 0:
            close(self.pidfds[slot])
            self.pidfds[slot] = -1


def process_of(int tid):
    """The process that a thread belongs to; ProcessLookupError."""
    try:
        with open(f"/proc/{tid}/status", "rb") as status:
            for line in status:
                if line.startswith(b"Tgid:"):
                    return int(line[5:])
    except OSError:
        pass
    raise ProcessLookupError(ESRCH, os.strerror(ESRCH))


@cython.final
@cython.freelist(8)
@cython.no_gc
cdef class Call:
    """A system call of another process that waits for its answer."""

    cdef Listener listener
    cdef npukit_call raw
    cdef long received

    @property
    def pid(self):
        return self.raw.pid

    @property
    def nr(self):
        return self.raw.nr

    @property
    def fd(self):
        return <int>self.raw.args[0]

    @property
    def args(self):
        return tuple([self.raw.args[i] for i in range(6)])

    @property
    def files(self):
        return {}

    @property
    def alive(self):
        return bool(npukit_seccomp_valid(self.listener.fd, self.raw.id))

    cdef object find(self):
        """What an ioctl is for, where the position of the open file tells."""
        cdef int64_t position
        cdef int pidfd
        if self.raw.nr != C_IOCTL:
            return None
        pidfd = self.listener.pidfd(self.raw.pid)
        if pidfd < 0:
            return None
        position = npukit_pidfd_position(pidfd, <int>self.raw.args[0])
        return self.listener.tagged.get(position) if position >= FIRST else None

    def identify(self, fd):
        cdef npukit_identity identity
        cdef int error = -ESRCH, number = _number(fd), tries, pidfd
        for tries in range(2):
            pidfd = self.listener.pidfd(self.raw.pid)
            error = pidfd if pidfd < 0 else npukit_pidfd_identify(pidfd, number, &identity)
            if error != -ESRCH:
                break
            # An earlier thread of this number.
            self.listener.forget(self.raw.pid)
        if error == -EMFILE or error == -ENFILE:
            # It may be one of ours, for all that we can tell.
            raise Errno(-error)
        if error == -EPERM:
            raise PermissionError(EPERM, os.strerror(EPERM))
        if error < 0:
            return None
        return (identity.dev, identity.ino), identity.pos

    def take(self, fd):
        cdef int number = _number(fd), pidfd = self.listener.pidfd(self.raw.pid)
        cdef int copy = npukit_pidfd_take(pidfd, number) if pidfd >= 0 else -ESRCH
        if copy < 0:
            raise Errno(-copy)
        return copy

    def closes_on_exec(self, fd):
        try:
            with open(f"/proc/{self.raw.pid}/fdinfo/{_number(fd)}", "rb") as info:
                for line in info:
                    if line.startswith(b"flags:"):
                        return bool(int(line[6:], 8) & os.O_CLOEXEC)
        except OSError:
            pass
        return False

    def give(self, int fd, bint cloexec=True):
        cdef int number
        with nogil:
            number = npukit_seccomp_give(self.listener.fd, self.raw.id, fd, -1, cloexec)
        if number < 0:
            raise Errno(EINTR if number == -ENOENT else -number)
        return number

    def tell_stat(self, address, int fd, mode, unsigned int major, unsigned int minor):
        cdef c_stat status
        cdef c_statx extended
        if self.raw.nr != C_STATX:
            _checked(c_fstat(fd, &status))
            status.st_mode = mode
            status.st_rdev = makedev(major, minor)
            status.st_size = status.st_blocks = 0
            self.copy_to_user(address, (<char *>&status)[:sizeof(status)])
        else:
            _checked(c_call_statx(fd, b"", C_EMPTY_PATH, <unsigned int>self.raw.args[3], &extended))
            extended.stx_mode = mode
            extended.stx_rdev_major = major
            extended.stx_rdev_minor = minor
            extended.stx_size = extended.stx_blocks = 0
            self.copy_to_user(address, (<char *>&extended)[:sizeof(extended)])

    def mmap(self, int fd, uint64_t offset):
        cdef int number = self.give(fd), error
        with nogil:
            error = npukit_seccomp_mmap(self.listener.fd, &self.raw, number, offset)
        if error < 0 and npukit_seccomp_valid(self.listener.fd, self.raw.id):
            self.shut(number)
            raise OSError(-error, os.strerror(-error))

    def shut(self, int fd):
        # A descriptor cannot be closed from outside; nothing better than /dev/null can be left.
        cdef int null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        with nogil:
            npukit_seccomp_give(self.listener.fd, self.raw.id, null, fd, True)
            close(null)

    def copy_from_user(self, address, size):
        cdef uint64_t start = address
        cdef size_t length = size
        cdef iovec here, there
        cdef bytes data
        if length == 0:
            return b""
        if length > LARGEST_COPY:
            raise Errno(ENOMEM)
        there.iov_base = <void *>start
        there.iov_len = length
        data = PyBytes_FromStringAndSize(NULL, length)
        here.iov_base = PyBytes_AS_STRING(data)
        here.iov_len = length
        if process_vm_readv(self.raw.pid, &here, 1, &there, 1, 0) != <ssize_t>length:
            raise Errno(EFAULT)
        return data

    def copy_to_user(self, address, bytes data):
        cdef uint64_t start = address
        cdef size_t length = len(data)
        cdef iovec here, there
        if length == 0:
            return
        here.iov_base = <void *>PyBytes_AS_STRING(data)
        here.iov_len = length
        there.iov_base = <void *>start
        there.iov_len = length
        if _seconds() > self.received + SURE_SECONDS:
            # Else the thread's number may be another's by now.
            if not npukit_seccomp_valid(self.listener.fd, self.raw.id):
                raise Errno(EFAULT)
        if process_vm_writev(self.raw.pid, &here, 1, &there, 1, 0) != <ssize_t>length:
            raise Errno(EFAULT)
