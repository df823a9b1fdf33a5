/* SPDX-License-Identifier: MIT */
/* System calls of other processes, answered here: seccomp user notification (seccomp_unotify(2)). */
#ifndef NPUKIT_SECCOMP_H
#define NPUKIT_SECCOMP_H

#include <stddef.h>
#include <stdint.h>

/* A system call that waits for its answer. */
struct npukit_call {
    uint64_t id;
    uint32_t pid; /* of the thread */
    int32_t nr;
    uint64_t args[6];
};

/* What tells open files apart: the inode, and the position, which belongs to the open file. */
struct npukit_identity {
    uint64_t dev;
    uint64_t ino;
    int64_t pos;
};

/* All below: 0 or more, or -errno. */

/* Trap the NPU requests of this thread and of all that it starts; the listener's descriptor.
 * Trapped are: ioctl with a type byte of an NPU driver; mmap of a file, shared or where a node has
 * its buffers (offsets from 4 GiB); ftruncate; with `stat` also fstat, newfstatat and statx; with
 * `open` also open and openat. */
int npukit_seccomp_trap(int stat, int open);

/* Let a sleeper be woken on the core of the waker; does nothing before Linux 6.6. */
void npukit_seccomp_sync_wake_up(int listener);

/* The next call. -ENOENT: its thread died, or (npukit_seccomp_over) no process is left. */
int npukit_seccomp_receive(int listener, struct npukit_call *call);
int npukit_seccomp_over(int listener);

/* Whether the call still waits. */
int npukit_seccomp_valid(int listener, uint64_t id);

/* Answer: a value, or the negative errno `error`. */
int npukit_seccomp_answer(int listener, uint64_t id, int64_t value, int error);

/* Let the kernel do it. */
int npukit_seccomp_continue(int listener, uint64_t id);

/* Put a copy of the descriptor `fd` into the caller, as number `target` unless that is negative;
 * the number. */
int npukit_seccomp_give(int listener, uint64_t id, int fd, int target, int cloexec);

/* A descriptor for the thread `tid`, which other threads of its process do not share;
 * -EINVAL before Linux 6.9. */
int npukit_pidfd(int tid);

/* A copy of a descriptor of that process. */
int npukit_pidfd_take(int pidfd, int fd);
int npukit_pidfd_identify(int pidfd, int fd, struct npukit_identity *identity);
/* Its position alone, which takes fewer system calls. */
int64_t npukit_pidfd_position(int pidfd, int fd);

/* Answer an mmap by making one of another file: `fd`, a descriptor of the caller that is closed then,
 * at `offset`. The thread is stopped for it (ptrace), which -EPERM says is not allowed or done by
 * another; the call still waits then. */
int npukit_seccomp_mmap(int listener, const struct npukit_call *call, int fd, uint64_t offset);

/* A lock on the byte at `start` that belongs to the open file and goes with it. */
int npukit_file_lock(int fd, int64_t start);
/* Whether some other open file of the inode has it. */
int npukit_file_locked(int fd, int64_t start);

/* Give a fresh page to an access behind the end of a mapped file, instead of SIGBUS: programs can
 * truncate files that they share with us. */
int npukit_survive_truncation(void);

#endif
