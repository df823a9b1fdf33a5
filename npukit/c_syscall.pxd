# SPDX-License-Identifier: MIT
"""<unistd.h> and <sys/syscall.h>: what Cython's own posix declarations lack."""

cdef extern from "<unistd.h>" nogil:
    long syscall(long number, ...)

cdef extern from "<sys/syscall.h>" nogil:
    enum:
        SYS_ioctl
