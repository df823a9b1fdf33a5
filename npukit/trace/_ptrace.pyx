# SPDX-License-Identifier: MIT
"""NPU requests of other processes, watched with ptrace.

_ptrace.pyi holds the documentation.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free

from npukit.c_trace cimport (
    NPUKIT_TRACE_CALL,
    NPUKIT_TRACE_DEATH,
    NPUKIT_TRACE_ENTRY,
    NPUKIT_TRACE_ERROR,
    NPUKIT_TRACE_EXEC,
    NPUKIT_TRACE_EXIT,
    NPUKIT_TRACE_FORK,
    NPUKIT_TRACE_LOST,
    NPUKIT_TRACE_MMAP,
    npukit_trace,
    npukit_trace_attach,
    npukit_trace_event,
    npukit_trace_exec_error,
    npukit_trace_free,
    npukit_trace_go_on,
    npukit_trace_ignore,
    npukit_trace_launch,
    npukit_trace_let_go,
    npukit_trace_new,
    npukit_trace_pid,
    npukit_trace_ready,
    npukit_trace_serves,
    npukit_trace_status,
    npukit_trace_take,
)

import os

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t process_vm_readv(int pid, const iovec *local, unsigned long locals,
                             const iovec *remote, unsigned long remotes, unsigned long flags)

cdef extern from "<sys/syscall.h>" nogil:
    enum:
        SYS_kcmp
        SYS_pidfd_getfd
    long syscall(long number, ...)

CALL, ENTRY, EXIT = NPUKIT_TRACE_CALL, NPUKIT_TRACE_ENTRY, NPUKIT_TRACE_EXIT
MMAP, FORK, EXEC, DEATH = (
    NPUKIT_TRACE_MMAP, NPUKIT_TRACE_FORK, NPUKIT_TRACE_EXEC, NPUKIT_TRACE_DEATH,
)


def read_memory(int pid, uint64_t address, size_t size):
    cdef iovec here, there
    cdef bytes data
    if size == 0:
        return b""
    data = PyBytes_FromStringAndSize(NULL, size)
    here.iov_base = PyBytes_AS_STRING(data)
    here.iov_len = there.iov_len = size
    there.iov_base = <void *>address
    if process_vm_readv(pid, &here, 1, &there, 1, 0) != <ssize_t>size:
        return None
    return data


def same_file(int pid, int fd, int other_pid, int other_fd):
    # KCMP_FILE
    return syscall(SYS_kcmp, pid, other_pid, 0, <unsigned long>fd, <unsigned long>other_fd) == 0


def copy_descriptor(int pidfd, int fd):
    return syscall(SYS_pidfd_getfd, pidfd, fd, 0)


@cython.final
@cython.freelist(16)
cdef class Event:
    cdef readonly int kind, pid, tid, code, access
    cdef readonly bint lost
    cdef readonly tuple args
    cdef readonly int64_t value
    cdef readonly uint64_t start_ns, end_ns, rdev
    cdef readonly tuple identity
    cdef readonly uint32_t mode
    cdef readonly bytes before, after
    cdef readonly str path


cdef Event _event(const npukit_trace_event *raw):
    cdef Event event = Event.__new__(Event)
    event.kind = raw.kind
    event.pid = raw.pid
    event.tid = raw.tid
    event.args = (raw.args[0], raw.args[1], raw.args[2], raw.args[3], raw.args[4], raw.args[5])
    event.code = 0
    event.value = raw.value
    if raw.end == NPUKIT_TRACE_ERROR:
        event.code = <int>-raw.value
        event.value = -1
    event.lost = raw.end == NPUKIT_TRACE_LOST
    event.start_ns = raw.start_ns
    event.end_ns = raw.end_ns
    event.rdev = raw.rdev
    event.identity = (raw.dev, raw.ino)
    event.mode = raw.mode
    event.access = raw.access
    event.before = event.after = None
    if raw.before >= 0:
        event.before = raw.data[:raw.before]
    if raw.after >= 0:
        event.after = (raw.data + raw.room)[:raw.after]
    event.path = os.fsdecode(<bytes>raw.path)
    return event


@cython.final
cdef class Tracer:
    cdef npukit_trace *trace

    def __cinit__(self, flat):
        cdef list numbers = sorted({driver << 32 | int(number) for driver, number in flat})
        cdef uint64_t *raw = <uint64_t *>PyMem_Malloc((len(numbers) + 1) * sizeof(uint64_t))
        if raw == NULL:
            raise MemoryError
        for i, number in enumerate(numbers):
            raw[i] = number
        self.trace = npukit_trace_new(raw, len(numbers))
        PyMem_Free(raw)
        if self.trace == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.trace != NULL:
            npukit_trace_free(self.trace)

    def launch(self, command):
        cdef list words = [os.fsencode(word) for word in command]
        cdef char **argv = <char **>PyMem_Malloc((len(words) + 1) * sizeof(char *))
        cdef int error
        if argv == NULL:
            raise MemoryError
        for i, word in enumerate(words):
            argv[i] = PyBytes_AS_STRING(word)
        argv[len(words)] = NULL
        with nogil:
            error = npukit_trace_launch(self.trace, argv)
        PyMem_Free(argv)
        return -error

    def attach(self, int pid):
        cdef int error
        with nogil:
            error = npukit_trace_attach(self.trace, pid)
        return -error

    @property
    def status(self):
        return npukit_trace_status(self.trace)

    @property
    def exec_error(self):
        return npukit_trace_exec_error(self.trace)

    @property
    def pid(self):
        return npukit_trace_pid(self.trace)

    def fileno(self):
        return npukit_trace_ready(self.trace)

    def take(self):
        cdef npukit_trace_event *raw
        cdef npukit_trace_event *after
        cdef list events = []
        with nogil:
            raw = npukit_trace_take(self.trace)
        while raw != NULL:
            after = raw.next
            events.append(_event(raw))
            free(raw)
            raw = after
        return events

    def serves(self, uint64_t rdev, uint32_t driver):
        npukit_trace_serves(self.trace, rdev, driver)

    def go_on(self):
        with nogil:
            npukit_trace_go_on(self.trace)

    def ignore(self):
        with nogil:
            npukit_trace_ignore(self.trace)

    def let_go(self):
        npukit_trace_let_go(self.trace)
