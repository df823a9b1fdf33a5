# SPDX-License-Identifier: MIT
"""csrc/seccomp.h"""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

cdef extern from "seccomp.h" nogil:
    struct npukit_call:
        uint64_t id
        uint32_t pid
        int32_t nr
        uint64_t args[6]

    struct npukit_identity:
        uint64_t dev
        uint64_t ino
        int64_t pos

    int npukit_seccomp_trap(int stat, int open)
    void npukit_seccomp_sync_wake_up(int listener)
    int npukit_seccomp_receive(int listener, npukit_call *call)
    int npukit_seccomp_over(int listener)
    int npukit_seccomp_valid(int listener, uint64_t id)
    int npukit_seccomp_answer(int listener, uint64_t id, int64_t value, int error)
    int npukit_seccomp_continue(int listener, uint64_t id)
    int npukit_seccomp_give(int listener, uint64_t id, int fd, int target, int cloexec)
    int npukit_pidfd(int tid)
    int npukit_pidfd_take(int pidfd, int fd)
    int npukit_pidfd_identify(int pidfd, int fd, npukit_identity *identity)
    int64_t npukit_pidfd_position(int pidfd, int fd)
    int npukit_seccomp_mmap(int listener, const npukit_call *call, int fd, uint64_t offset)
    int npukit_file_lock(int fd, int64_t start)
    int npukit_file_locked(int fd, int64_t start)
    int npukit_survive_truncation()
