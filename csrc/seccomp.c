/* SPDX-License-Identifier: MIT */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "seccomp.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__x86_64__)
#define NATIVE_ARCH AUDIT_ARCH_X86_64
#define OLD_OPEN __NR_open
#define OLD_CREAT __NR_creat
#elif defined(__aarch64__)
#define NATIVE_ARCH AUDIT_ARCH_AARCH64
#define OLD_OPEN __NR_openat
#define OLD_CREAT __NR_openat
#else
#error "seccomp.c knows x86-64 and AArch64"
#endif

/* Newer than the headers of the distributions that we build on. */
#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif
#ifndef SECCOMP_ADDFD_FLAG_SETFD
#define SECCOMP_ADDFD_FLAG_SETFD (1UL << 0)
#endif
#define NOTIF_SET_FLAGS SECCOMP_IOW(4, uint64_t)
#define NOTIF_SYNC_WAKE_UP 1
/* Older headers have the number that the kernel keeps for compatibility. */
#define NOTIF_ID_VALID SECCOMP_IOW(2, uint64_t)
#define PIDFD_OF_THREAD O_EXCL

static int result_of(long value)
{
    return value < 0 ? -errno : (int)value;
}

/* ---- The filter ---- */

/* In the half of the descriptor's register that the kernel ignores. */
#define OUR_OWN_MMAP 0x6e70756bu

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
/* Both architectures are little-endian. */
#define LOAD_LOW(n) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[n]))
#define LOAD_HIGH(n) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[n]) + 4)
#define IF_EQUAL(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, yes, no)
#define IF_ANY(bits, yes, no) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, yes, no)
#define TRAP BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF)
#define PASS BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

int npukit_seccomp_trap(int stat, int open)
{
    /* No system call has the number that stands for none. */
    uint32_t none = 0xffffffff;
    struct sock_filter code[] = {
        LOAD(arch),
        IF_EQUAL(NATIVE_ARCH, 1, 0),
        PASS,
        LOAD(nr),
        IF_EQUAL(__NR_ioctl, 10, 0),
        IF_EQUAL(__NR_mmap, 24, 0),
        IF_EQUAL(__NR_ftruncate, 7, 0),
        IF_EQUAL(open ? __NR_openat : none, 6, 0),
        IF_EQUAL(open ? OLD_OPEN : none, 5, 0),
        IF_EQUAL(open ? OLD_CREAT : none, 4, 0),
        IF_EQUAL(stat ? __NR_newfstatat : none, 3, 0),
        IF_EQUAL(stat ? __NR_statx : none, 2, 0),
        IF_EQUAL(stat ? __NR_fstat : none, 1, 0),
        PASS,
        TRAP,
        /* ioctl: the type byte of the request. */
        LOAD_LOW(1),
        BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 8),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xff),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 'b', 4, 0),
        IF_EQUAL('R', 8, 0), /* FastRPC */
        IF_EQUAL('H', 7, 0), /* dma-heap */
        IF_EQUAL('>', 6, 0), /* sync_file */
        PASS,
        IF_EQUAL('d', 4, 0), /* DRM */
        IF_EQUAL('b', 3, 0), /* dma-buf */
        IF_EQUAL('r', 2, 0), /* rknpu */
        IF_EQUAL('u', 1, 0), /* udmabuf */
        IF_EQUAL(0xBC, 0, 1), /* wrapfd */
        TRAP,
        PASS,
        /* mmap: a file, and offset or flags as those of buffers; but not one of our own. */
        LOAD_LOW(4),
        IF_ANY(0x80000000, 6, 0),
        LOAD_HIGH(4),
        IF_EQUAL(OUR_OWN_MMAP, 4, 0),
        LOAD_HIGH(5),
        IF_EQUAL(0, 0, 3),
        LOAD_LOW(3),
        IF_ANY(MAP_SHARED, 1, 0),
        PASS,
        TRAP,
    };
    struct sock_fprog program = {.len = sizeof(code) / sizeof(*code), .filter = code};
    /* Without the second flag any signal would have the kernel make a call twice. */
    unsigned long flags =
        SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    return result_of(syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program));
}

/* ---- Calls and answers ---- */

void npukit_seccomp_sync_wake_up(int listener)
{
    ioctl(listener, NOTIF_SET_FLAGS, NOTIF_SYNC_WAKE_UP);
}

int npukit_seccomp_receive(int listener, struct npukit_call *call)
{
    /* Room for what later kernels may append. */
    union {
        struct seccomp_notif notif;
        char room[256];
    } buffer;
    memset(&buffer, 0, sizeof(buffer));
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &buffer) < 0)
        return -errno;
    call->id = buffer.notif.id;
    call->pid = buffer.notif.pid;
    call->nr = buffer.notif.data.nr;
    memcpy(call->args, buffer.notif.data.args, sizeof(call->args));
    return 0;
}

int npukit_seccomp_over(int listener)
{
    struct pollfd entry = {.fd = listener, .events = 0};
    return poll(&entry, 1, 0) == 1 && (entry.revents & (POLLHUP | POLLERR | POLLNVAL));
}

int npukit_seccomp_valid(int listener, uint64_t id)
{
    return ioctl(listener, NOTIF_ID_VALID, &id) == 0;
}

static int send_answer(int listener, const struct seccomp_notif_resp *answer)
{
    union {
        struct seccomp_notif_resp answer;
        char room[256];
    } buffer;
    memset(&buffer, 0, sizeof(buffer));
    buffer.answer = *answer;
    return result_of(ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &buffer));
}

int npukit_seccomp_answer(int listener, uint64_t id, int64_t value, int error)
{
    struct seccomp_notif_resp answer = {.id = id, .val = value, .error = error};
    return send_answer(listener, &answer);
}

int npukit_seccomp_continue(int listener, uint64_t id)
{
    struct seccomp_notif_resp answer = {.id = id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    return send_answer(listener, &answer);
}

int npukit_seccomp_give(int listener, uint64_t id, int fd, int target, int cloexec)
{
    struct seccomp_notif_addfd addition = {
        .id = id,
        .flags = target < 0 ? 0 : SECCOMP_ADDFD_FLAG_SETFD,
        .srcfd = (uint32_t)fd,
        .newfd = target < 0 ? 0 : (uint32_t)target,
        .newfd_flags = cloexec ? O_CLOEXEC : 0,
    };
    int number;
    /* EINTR here means that one of our own signals came. */
    do
        number = ioctl(listener, SECCOMP_IOCTL_NOTIF_ADDFD, &addition);
    while (number < 0 && errno == EINTR);
    return result_of(number);
}

/* ---- Files of other processes ---- */

int npukit_pidfd(int tid)
{
    return result_of(syscall(__NR_pidfd_open, tid, PIDFD_OF_THREAD));
}

int npukit_pidfd_take(int pidfd, int fd)
{
    return result_of(syscall(__NR_pidfd_getfd, pidfd, fd, 0));
}

int npukit_pidfd_identify(int pidfd, int fd, struct npukit_identity *identity)
{
    struct stat status;
    int copy = npukit_pidfd_take(pidfd, fd);
    if (copy < 0)
        return copy;
    int error = fstat(copy, &status) < 0 ? -errno : 0;
    if (error == 0) {
        identity->dev = status.st_dev;
        identity->ino = status.st_ino;
        /* A pipe has none. */
        identity->pos = lseek(copy, 0, SEEK_CUR);
        if (identity->pos < 0 && errno != ESPIPE)
            error = -errno;
    }
    close(copy);
    return error;
}

int64_t npukit_pidfd_position(int pidfd, int fd)
{
    int copy = npukit_pidfd_take(pidfd, fd);
    if (copy < 0)
        return copy;
    int64_t position = lseek(copy, 0, SEEK_CUR);
    if (position < 0)
        position = -errno;
    close(copy);
    return position;
}

int npukit_file_lock(int fd, int64_t start)
{
    struct flock lock = {.l_whence = SEEK_SET, .l_start = start, .l_len = 1};
    /* Which kind is allowed depends on how the file was opened. */
    lock.l_type = F_RDLCK;
    if (fcntl(fd, F_OFD_SETLK, &lock) == 0)
        return 0;
    lock.l_type = F_WRLCK;
    return result_of(fcntl(fd, F_OFD_SETLK, &lock));
}

int npukit_file_locked(int fd, int64_t start)
{
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = 1};
    if (fcntl(fd, F_OFD_GETLK, &lock) < 0)
        return -errno;
    return lock.l_type != F_UNLCK;
}

/* ---- A system call that another process makes for us ---- */

#if defined(__x86_64__)
#define CALL_INSTRUCTION 2 /* bytes */
#define SET_CALL(state, number, a, b, c, d, e, f) \
    ((state).rax = (number), (state).orig_rax = (unsigned long)-1, (state).rdi = (a), \
     (state).rsi = (b), (state).rdx = (c), (state).r10 = (d), (state).r8 = (e), (state).r9 = (f))
#define COUNTER(state) (state).rip
#define RESULT(state) (state).rax
#else
#define CALL_INSTRUCTION 4
#define SET_CALL(state, number, a, b, c, d, e, f) \
    ((state).regs[8] = (number), (state).regs[0] = (a), (state).regs[1] = (b), \
     (state).regs[2] = (c), (state).regs[3] = (d), (state).regs[4] = (e), (state).regs[5] = (f))
#define COUNTER(state) (state).pc
#define RESULT(state) (state).regs[0]
#endif

/* Wait until the traced thread stops; -ESRCH when it has died, of which its parent is to learn. */
static int wait_for_stop(int tid, int *status)
{
    siginfo_t info;
    do {
        if (waitid(P_PID, tid, &info, WEXITED | WSTOPPED | WNOWAIT | __WALL) < 0) {
            if (errno == EINTR)
                continue;
            return -errno;
        }
        if (info.si_code == CLD_EXITED || info.si_code == CLD_KILLED || info.si_code == CLD_DUMPED)
            return -ESRCH;
        return result_of(waitpid(tid, status, __WALL));
    } while (1);
}

/* Let the stopped thread make the call that is set in `regs`; then `regs` has its result. */
static int make_call(int tid, struct user_regs_struct *regs)
{
    struct iovec vector = {regs, sizeof(*regs)};
    COUNTER(*regs) -= CALL_INSTRUCTION;
    if (ptrace(PTRACE_SETREGSET, tid, NT_PRSTATUS, &vector) < 0)
        return -errno;
    /* It stops where the call begins and where it ends. Between, SIGSTOP may come, which nothing
     * blocks: it is delivered, the thread is part of the stopped process from then on, goes on
     * nevertheless while it is traced, and stands still afterwards unless SIGCONT has come. */
    int status, stops = 0, number = 0;
    while (stops < 2) {
        if (ptrace(PTRACE_SYSCALL, tid, 0, number) < 0)
            return -errno;
        int error = wait_for_stop(tid, &status);
        if (error < 0)
            return error;
        int of_call = WSTOPSIG(status) == (SIGTRAP | 0x80), of_process = status >> 16;
        stops += of_call;
        number = of_call || of_process ? 0 : WSTOPSIG(status);
    }
    return result_of(ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &vector));
}

int npukit_seccomp_mmap(int listener, const struct npukit_call *call, int fd, uint64_t offset)
{
    const uint64_t *args = call->args;
    int tid = (int)call->pid;
    if (ptrace(PTRACE_SEIZE, tid, 0, PTRACE_O_TRACESYSGOOD) < 0)
        return -errno;
    if (ptrace(PTRACE_INTERRUPT, tid, 0, 0) < 0) {
        int error = -errno;
        ptrace(PTRACE_DETACH, tid, 0, 0);
        return error;
    }
    /* The call ends, and the thread stops before it returns to the program. */
    npukit_seccomp_answer(listener, call->id, 0, -ENOSYS);
    int status, error = wait_for_stop(tid, &status);
    if (error < 0)
        return error;
    struct user_regs_struct saved, regs;
    struct iovec vector = {&saved, sizeof(saved)};
    uint64_t mask, all = ~0ULL;
    if (ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &vector) < 0 ||
        ptrace(PTRACE_GETSIGMASK, tid, sizeof(mask), &mask) < 0 ||
        ptrace(PTRACE_SETSIGMASK, tid, sizeof(all), &all) < 0) {
        error = -errno;
        ptrace(PTRACE_DETACH, tid, 0, 0);
        return error;
    }
    regs = saved;
    SET_CALL(regs, __NR_mmap, args[0], args[1], args[2], args[3],
             (uint64_t)OUR_OWN_MMAP << 32 | (uint32_t)fd, offset);
    error = make_call(tid, &regs);
    if (error == 0) {
        RESULT(saved) = RESULT(regs);
        regs = saved;
        SET_CALL(regs, __NR_close, (uint64_t)fd, 0, 0, 0, 0, 0);
        error = make_call(tid, &regs);
    }
    ptrace(PTRACE_SETREGSET, tid, NT_PRSTATUS, &vector);
    ptrace(PTRACE_SETSIGMASK, tid, sizeof(mask), &mask);
    ptrace(PTRACE_DETACH, tid, 0, 0);
    return error;
}

/* ---- Truncation ---- */

static void on_sigbus(int number, siginfo_t *info, void *context)
{
    (void)context;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    void *at = (void *)((uintptr_t)info->si_addr & ~(page - 1));
    if (info->si_code == BUS_ADRERR &&
        mmap(at, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at)
        return;
    signal(number, SIG_DFL);
}

int npukit_survive_truncation(void)
{
    struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};
    return result_of(sigaction(SIGBUS, &action, NULL));
}
