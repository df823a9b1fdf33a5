/* SPDX-License-Identifier: MIT */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "trace.h"

#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#define NATIVE_ARCH AUDIT_ARCH_X86_64
#define FIRST_ARGUMENT(regs) (regs).rdi
#elif defined(__aarch64__)
#define NATIVE_ARCH AUDIT_ARCH_AARCH64
#define FIRST_ARGUMENT(regs) (regs).regs[0]
#else
#error "trace.c knows x86-64 and AArch64"
#endif

#ifndef __NR_clone3
#define __NR_clone3 435
#endif
#define UNTRACED 0x00800000u /* CLONE_UNTRACED */

/* ptrace(2), PTRACE_GET_SYSCALL_INFO (Linux 5.3); not in all headers that we build with. */
#define GET_SYSCALL_INFO 0x420e
enum { OP_NONE, OP_ENTRY, OP_EXIT, OP_SECCOMP };
struct syscall_info {
    uint8_t op;
    uint8_t pad[3];
    uint32_t arch;
    uint64_t ip, sp;
    union {
        struct {
            uint64_t nr, args[6];
        } entry; /* and seccomp */
        struct {
            int64_t value;
            uint8_t is_error;
        } exit;
    };
    uint64_t more[2];
};

enum {
    BUCKETS = 1024,
    FILES = 8,
    DEVICES = 64,
    MOST_BYTES = 64 << 20, /* of events that wait to be taken */
    LET_GO_MS = 1000,      /* how long a thread that sleeps in a driver is waited for */
};

/* A thread that is traced. */
struct task {
    struct task *next;
    int32_t tid, pid;
    int letting_go;
    int mapping; /* the call that it is in is an mmap */
    int waits;   /* the call that it is in has memory to follow */
    struct npukit_trace_event *pending;
    struct {
        int32_t fd;
        uint64_t ino, rdev;
    } told[FILES]; /* descriptors whose path an event has told */
};

struct npukit_trace {
    uint64_t *flat;
    size_t flat_count;
    struct {
        _Atomic uint64_t rdev;
        _Atomic uint32_t driver;
    } devices[DEVICES];
    struct task *tasks[BUCKETS];
    size_t task_count;
    int filtered; /* a filter picks the calls out; else all stop */
    int options;
    atomic_int program;
    int status, exec_error;
    int ready;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct npukit_trace_event *first, **last;
    size_t bytes;
    int gone_on, ignored, over;
    atomic_int let_go;
    uint64_t let_go_ns;
};

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* ---- Between the two threads ---- */

struct npukit_trace *npukit_trace_new(const uint64_t *flat, size_t count)
{
    struct npukit_trace *trace = calloc(1, sizeof(*trace));
    if (trace == NULL)
        return NULL;
    trace->flat = malloc(count * sizeof(*flat) + 1);
    trace->ready = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (trace->flat == NULL || trace->ready < 0) {
        npukit_trace_free(trace);
        return NULL;
    }
    memcpy(trace->flat, flat, count * sizeof(*flat));
    trace->flat_count = count;
    trace->last = &trace->first;
    pthread_mutex_init(&trace->lock, NULL);
    pthread_cond_init(&trace->changed, NULL);
    return trace;
}

void npukit_trace_free(struct npukit_trace *trace)
{
    struct npukit_trace_event *event, *next;
    for (event = trace->first; event; event = next) {
        next = event->next;
        free(event);
    }
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct task *task = trace->tasks[i], *after; task; task = after) {
            after = task->next;
            free(task->pending);
            free(task);
        }
    if (trace->ready >= 0)
        close(trace->ready);
    free(trace->flat);
    free(trace);
}

int npukit_trace_status(const struct npukit_trace *trace) { return trace->status; }
int npukit_trace_exec_error(const struct npukit_trace *trace) { return trace->exec_error; }
int npukit_trace_pid(const struct npukit_trace *trace) { return trace->program; }
int npukit_trace_ready(const struct npukit_trace *trace) { return trace->ready; }

static void signal_ready(struct npukit_trace *trace)
{
    uint64_t one = 1;
    while (write(trace->ready, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

static size_t size_of(const struct npukit_trace_event *event)
{
    return sizeof(*event) + 2 * event->room;
}

/* Hand an event over; with `wait`, until it was seen. */
static void push(struct npukit_trace *trace, struct npukit_trace_event *event, int wait)
{
    pthread_mutex_lock(&trace->lock);
    while (trace->bytes > MOST_BYTES && !trace->ignored)
        pthread_cond_wait(&trace->changed, &trace->lock);
    if (trace->ignored) {
        pthread_mutex_unlock(&trace->lock);
        free(event);
        return;
    }
    int empty = trace->first == NULL;
    event->next = NULL;
    *trace->last = event;
    trace->last = &event->next;
    trace->bytes += size_of(event);
    trace->gone_on = 0;
    if (empty)
        signal_ready(trace);
    while (wait && !trace->gone_on && !trace->ignored)
        pthread_cond_wait(&trace->changed, &trace->lock);
    pthread_mutex_unlock(&trace->lock);
}

struct npukit_trace_event *npukit_trace_take(struct npukit_trace *trace)
{
    uint64_t count;
    pthread_mutex_lock(&trace->lock);
    struct npukit_trace_event *events = trace->first;
    trace->first = NULL;
    trace->last = &trace->first;
    trace->bytes = 0;
    /* At the end it stays readable. */
    if (!trace->over && read(trace->ready, &count, sizeof(count)) < 0)
        count = 0;
    pthread_cond_signal(&trace->changed);
    pthread_mutex_unlock(&trace->lock);
    return events;
}

void npukit_trace_serves(struct npukit_trace *trace, uint64_t rdev, uint32_t driver)
{
    for (size_t i = 0; i < DEVICES; i++)
        if (atomic_load(&trace->devices[i].rdev) == rdev)
            return;
        else if (atomic_load(&trace->devices[i].rdev) == 0) {
            atomic_store(&trace->devices[i].driver, driver);
            atomic_store(&trace->devices[i].rdev, rdev);
            return;
        }
}

static int is_flat(const struct npukit_trace *trace, uint64_t rdev, uint32_t request)
{
    uint64_t key = request;
    for (size_t i = 0; rdev && i < DEVICES && atomic_load(&trace->devices[i].rdev); i++)
        if (atomic_load(&trace->devices[i].rdev) == rdev)
            key |= (uint64_t)atomic_load(&trace->devices[i].driver) << 32;
    size_t low = 0, high = trace->flat_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (trace->flat[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low < trace->flat_count && trace->flat[low] == key;
}

void npukit_trace_go_on(struct npukit_trace *trace)
{
    pthread_mutex_lock(&trace->lock);
    trace->gone_on = 1;
    pthread_cond_signal(&trace->changed);
    pthread_mutex_unlock(&trace->lock);
}

void npukit_trace_ignore(struct npukit_trace *trace)
{
    pthread_mutex_lock(&trace->lock);
    trace->ignored = 1;
    pthread_cond_signal(&trace->changed);
    pthread_mutex_unlock(&trace->lock);
}

void npukit_trace_let_go(struct npukit_trace *trace)
{
    atomic_store(&trace->let_go, 1);
}

/* ---- Threads that are traced ---- */

static struct task **slot_of(struct npukit_trace *trace, int tid)
{
    struct task **slot = &trace->tasks[(unsigned)tid % BUCKETS];
    while (*slot && (*slot)->tid != tid)
        slot = &(*slot)->next;
    return slot;
}

static struct task *task_of(struct npukit_trace *trace, int tid)
{
    struct task **slot = slot_of(trace, tid);
    if (*slot == NULL && (*slot = calloc(1, sizeof(**slot))) != NULL) {
        (*slot)->tid = tid;
        for (int i = 0; i < FILES; i++)
            (*slot)->told[i].fd = -1;
        trace->task_count++;
    }
    return *slot;
}

static struct npukit_trace_event *new_event(const struct task *task, int kind, size_t room)
{
    struct npukit_trace_event *event = malloc(sizeof(*event) + 2 * room);
    if (event != NULL) {
        memset(event, 0, sizeof(*event));
        event->kind = kind;
        event->tid = task->tid;
        event->pid = task->pid;
        event->room = (uint32_t)room;
        event->before = event->after = -1;
    }
    return event;
}

static void push_plain(struct npukit_trace *trace, struct task *task, int kind, int64_t value,
                       int wait)
{
    struct npukit_trace_event *event = new_event(task, kind, 0);
    if (event != NULL) {
        event->value = value;
        event->start_ns = event->end_ns = now();
        push(trace, event, wait);
    }
}

/* The thread is gone, whatever it was in. */
static void forget(struct npukit_trace *trace, int tid)
{
    struct task **slot = slot_of(trace, tid), *task = *slot;
    if (task == NULL)
        return;
    *slot = task->next;
    trace->task_count--;
    if (task->pending != NULL) {
        task->pending->kind = task->waits      ? NPUKIT_TRACE_EXIT
                              : task->mapping ? NPUKIT_TRACE_MMAP
                                              : NPUKIT_TRACE_CALL;
        task->pending->end = NPUKIT_TRACE_LOST;
        task->pending->end_ns = now();
        push(trace, task->pending, task->waits);
    }
    push_plain(trace, task, NPUKIT_TRACE_DEATH, 0, 0);
    free(task);
}

static int process_of(int tid)
{
    char path[64], text[512];
    snprintf(path, sizeof(path), "/proc/%d/status", tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return tid;
    ssize_t size = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[size < 0 ? 0 : size] = 0;
    char *line = strstr(text, "\nTgid:");
    int pid = line ? atoi(line + 6) : 0;
    return pid > 0 ? pid : tid;
}

static int read_memory(int tid, uint64_t address, void *data, size_t size)
{
    struct iovec here = {data, size}, there = {(void *)(uintptr_t)address, size};
    if (process_vm_readv(tid, &here, 1, &there, 1, 0) != (ssize_t)size)
        return -1;
    return (int)size;
}

/* What a descriptor is, at this moment. */
static void look_at(struct task *task, int fd, struct npukit_trace_event *event)
{
    char path[64];
    struct stat status;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", task->tid, fd);
    if (stat(path, &status) < 0)
        return;
    event->dev = status.st_dev;
    event->ino = status.st_ino;
    event->rdev = status.st_rdev;
    event->mode = status.st_mode;
    unsigned slot = (unsigned)fd % FILES;
    /* All anonymous inodes are one. */
    if (S_ISCHR(status.st_mode) && task->told[slot].fd == fd &&
        task->told[slot].ino == status.st_ino && task->told[slot].rdev == status.st_rdev)
        return;
    ssize_t size = readlink(path, event->path, sizeof(event->path) - 1);
    event->path[size < 0 ? 0 : size] = 0;
    if (lstat(path, &status) == 0)
        event->access = (status.st_mode & 0600) == 0600 ? O_RDWR
                        : status.st_mode & 0200         ? O_WRONLY
                                                        : O_RDONLY;
    task->told[slot].fd = fd;
    task->told[slot].ino = event->ino;
    task->told[slot].rdev = event->rdev;
}

static int npu_type(uint32_t request)
{
    switch (request >> 8 & 0xff) {
    case 'd': /* DRM */
    case 'R': /* FastRPC */
    case 'H': /* dma-heap, habanalabs */
    case 'b': /* dma-buf */
    case 'r': /* rknpu */
    case 'u': /* udmabuf */
    case '>': /* sync_file */
    case 0xBC: /* wrapfd */
        return 1;
    default:
        return 0;
    }
}

/* A child must not escape: its requests would be answered ENOSYS. */
static void keep_child(struct task *task, const struct syscall_info *info)
{
    uint64_t flags = info->entry.args[0], address = flags;
    if (info->entry.nr == __NR_clone3) {
        /* Also where the program itself may not write. */
        if (read_memory(task->tid, address, &flags, sizeof(flags)) > 0 && flags & UNTRACED)
            ptrace(PTRACE_POKEDATA, task->tid, address, flags & ~(uint64_t)UNTRACED);
        return;
    }
    struct user_regs_struct regs;
    struct iovec vector = {&regs, sizeof(regs)};
    if (ptrace(PTRACE_GETREGSET, task->tid, NT_PRSTATUS, &vector) == 0) {
        FIRST_ARGUMENT(regs) &= ~(uint64_t)UNTRACED;
        ptrace(PTRACE_SETREGSET, task->tid, NT_PRSTATUS, &vector);
    }
}

/* A call begins. */
static void enter(struct npukit_trace *trace, struct task *task, const struct syscall_info *info)
{
    const uint64_t *args = info->entry.args;
    uint64_t nr = info->entry.nr;
    if (info->arch != NATIVE_ARCH)
        return;
    if (nr == __NR_clone || nr == __NR_clone3) {
        if (trace->filtered)
            keep_child(task, info);
        return;
    }
    task->mapping = nr == __NR_mmap;
    int buffers = (args[5] >> 32 != 0 || args[3] & MAP_SHARED) && !(args[3] & MAP_ANONYMOUS);
    if (task->mapping ? !buffers || (int)args[4] < 0
                      : nr != __NR_ioctl || !npu_type((uint32_t)args[1]))
        return;
    uint32_t request = (uint32_t)args[1];
    size_t room = task->mapping ? 0 : _IOC_SIZE(request);
    if (task->pid == 0)
        task->pid = process_of(task->tid);
    struct npukit_trace_event *event = new_event(
        task, task->mapping ? NPUKIT_TRACE_MMAP : NPUKIT_TRACE_CALL, room);
    if (event == NULL)
        return;
    memcpy(event->args, args, sizeof(event->args));
    look_at(task, (int)args[task->mapping ? 4 : 0], event);
    if (room)
        event->before = read_memory(task->tid, args[2], event->data, room);
    task->pending = event;
    /* Whether a new descriptor is one more of a known open file can be asked only while it lives. */
    int met = S_ISCHR(event->mode) && event->path[0];
    task->waits = !task->mapping && (met || !is_flat(trace, event->rdev, request));
    if (task->waits) {
        struct npukit_trace_event *copy = malloc(size_of(event));
        if (copy != NULL) {
            memcpy(copy, event, size_of(event));
            copy->kind = NPUKIT_TRACE_ENTRY;
            copy->start_ns = copy->end_ns = now();
            push(trace, copy, 1);
        }
    }
    event->start_ns = now();
}

/* Its end. An event that is to be handed over when the thread goes on. */
static struct npukit_trace_event *leave(struct npukit_trace *trace, struct task *task,
                                        const struct syscall_info *info)
{
    struct npukit_trace_event *event = task->pending;
    task->pending = NULL;
    event->end_ns = now();
    event->value = info->exit.value;
    event->end = info->exit.is_error ? NPUKIT_TRACE_ERROR : NPUKIT_TRACE_VALUE;
    /* What the kernel restarts for a signal is told to nobody else as an error. */
    if (event->value <= -512 && event->value >= -516)
        event->end = NPUKIT_TRACE_ERROR;
    if (event->before >= 0 && _IOC_DIR(event->args[1]) & _IOC_READ)
        event->after =
            read_memory(task->tid, event->args[2], event->data + event->room, event->room);
    if (!task->waits)
        return event;
    event->kind = NPUKIT_TRACE_EXIT;
    push(trace, event, 1);
    return NULL;
}

/* ---- Stops ---- */

static void go_on(struct npukit_trace *trace, struct task *task, int number)
{
    int how = trace->filtered && task->pending == NULL ? PTRACE_CONT : PTRACE_SYSCALL;
    /* A thread that died meanwhile is for waitpid to tell. */
    ptrace(how, task->tid, 0, number);
}

static void stopped(struct npukit_trace *trace, int tid, int status)
{
    int number = WSTOPSIG(status), event = status >> 16;
    struct task *task = task_of(trace, tid);
    struct syscall_info info = {0};
    struct npukit_trace_event *done = NULL;
    unsigned long message = 0;
    if (task == NULL) { /* no memory: not watched any more */
        ptrace(PTRACE_DETACH, tid, 0, event ? 0 : number);
        return;
    }
    int call = number == (SIGTRAP | 0x80) && event == 0;
    int is_signal = event == 0 && !call;
    if (task->letting_go) {
        if (task->pending != NULL) {
            free(task->pending);
            task->pending = NULL;
        }
        ptrace(PTRACE_DETACH, tid, 0, is_signal ? number : 0);
        forget(trace, tid);
        return;
    }
    switch (event) {
    case PTRACE_EVENT_FORK:
    case PTRACE_EVENT_VFORK:
    case PTRACE_EVENT_CLONE:
        ptrace(PTRACE_GETEVENTMSG, tid, 0, &message);
        if (task->pid == 0)
            task->pid = process_of(tid);
        push_plain(trace, task, NPUKIT_TRACE_FORK, (int64_t)message, 0);
        break;
    case PTRACE_EVENT_EXEC:
        /* The thread that called it has the number of its process now; all others are gone. */
        ptrace(PTRACE_GETEVENTMSG, tid, 0, &message);
        if ((int)message != tid)
            forget(trace, (int)message);
        if (task->pending != NULL) {
            forget(trace, tid);
            task = task_of(trace, tid);
            if (task == NULL)
                break;
        }
        for (int i = 0; i < FILES; i++)
            task->told[i].fd = -1;
        task->pid = tid;
        push_plain(trace, task, NPUKIT_TRACE_EXEC, 0, 1);
        break;
    case PTRACE_EVENT_SECCOMP:
        if (ptrace(GET_SYSCALL_INFO, tid, sizeof(info), &info) > 0)
            enter(trace, task, &info);
        break;
    case PTRACE_EVENT_STOP:
        if (number == SIGSTOP || number == SIGTSTP || number == SIGTTIN || number == SIGTTOU) {
            /* Job control stopped it: it stays so until SIGCONT. */
            ptrace(PTRACE_LISTEN, tid, 0, 0);
            return;
        }
        break;
    default:
        break;
    }
    if (call && ptrace(GET_SYSCALL_INFO, tid, sizeof(info), &info) > 0) {
        if (info.op == OP_EXIT && task->pending != NULL)
            done = leave(trace, task, &info);
        else if (info.op == OP_ENTRY && task->pending == NULL && !trace->filtered)
            enter(trace, task, &info);
    }
    if (task != NULL)
        go_on(trace, task, is_signal ? number : 0);
    if (done != NULL)
        push(trace, done, 0);
}

static void let_all_go(struct npukit_trace *trace)
{
    if (trace->let_go_ns == 0)
        trace->let_go_ns = now();
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct task *task = trace->tasks[i]; task; task = task->next) {
            if (trace->filtered) {
                kill(task->tid, SIGKILL);
            } else if (!task->letting_go) {
                task->letting_go = 1;
                ptrace(PTRACE_INTERRUPT, task->tid, 0, 0);
            }
        }
}

static void watch(struct npukit_trace *trace)
{
    for (;;) {
        int status;
        int tid = waitpid(-1, &status, __WALL | __WNOTHREAD);
        if (tid < 0 && errno == ECHILD)
            break;
        if (tid > 0) {
            if (WIFSTOPPED(status)) {
                stopped(trace, tid, status);
            } else {
                if (tid == trace->program) {
                    trace->status = status;
                    trace->program = 0;
                }
                forget(trace, tid);
            }
        }
        if (!atomic_load(&trace->let_go))
            continue;
        let_all_go(trace);
        /* One that sleeps in a driver is let go of when this process ends. */
        if (trace->task_count == 0 || now() > trace->let_go_ns + LET_GO_MS * 1000000ull)
            break;
    }
}

static void end(struct npukit_trace *trace)
{
    pthread_mutex_lock(&trace->lock);
    trace->over = 1;
    signal_ready(trace);
    pthread_mutex_unlock(&trace->lock);
}

/* ---- Beginning ---- */

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
/* Both architectures are little-endian. */
#define LOAD_LOW(n) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[n]))
#define LOAD_HIGH(n) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[n]) + 4)
#define IF_EQUAL(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, yes, no)
#define IF_ANY(bits, yes, no) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, yes, no)

/* Stop the calls of this thread, and of all that it starts, that the tracer wants to see. */
static int filter_calls(void)
{
    struct sock_filter code[] = {
        LOAD(arch),
        IF_EQUAL(NATIVE_ARCH, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        LOAD(nr),
        IF_EQUAL(__NR_ioctl, 4, 0),
        IF_EQUAL(__NR_mmap, 14, 0),
        IF_EQUAL(__NR_clone, 19, 0),
        IF_EQUAL(__NR_clone3, 21, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        /* As npu_type has it. */
        LOAD_LOW(1),
        BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 8),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xff),
        IF_EQUAL('d', 16, 0),
        IF_EQUAL('R', 15, 0),
        IF_EQUAL('H', 14, 0),
        IF_EQUAL('b', 13, 0),
        IF_EQUAL('r', 12, 0),
        IF_EQUAL('u', 11, 0),
        IF_EQUAL('>', 10, 0),
        IF_EQUAL(0xBC, 9, 8),
        /* mmap: a file, from 4 GiB on as DRM's buffers, or shared as dma-bufs. */
        LOAD_LOW(4),
        IF_ANY(0x80000000, 6, 0),
        LOAD_HIGH(5),
        IF_EQUAL(0, 0, 5),
        LOAD_LOW(3),
        IF_ANY(MAP_SHARED, 3, 2),
        /* clone */
        LOAD_LOW(0),
        IF_ANY(UNTRACED, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE),
    };
    struct sock_fprog program = {.len = sizeof(code) / sizeof(*code), .filter = code};
    if (syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0)
        return 0;
    /* Without privilege it takes that the program gets none either (setuid). */
    if (errno != EACCES || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) < 0)
        return -errno;
    return 0;
}

/* In the new process, with the tracer at work. */
static void become(char *const *argv, int errors, const sigset_t *mask)
{
    int error = filter_calls();
    if (error == 0) {
        /* What Python has changed for itself. */
        signal(SIGPIPE, SIG_DFL);
        signal(SIGXFSZ, SIG_DFL);
        pthread_sigmask(SIG_SETMASK, mask, NULL);
        execvp(argv[0], argv);
        error = errno;
    }
    if (write(errors, &error, sizeof(error)) < 0)
        _exit(125);
    _exit(126);
}

int npukit_trace_launch(struct npukit_trace *trace, char *const *argv)
{
    int go[2], errors[2];
    sigset_t all, mask;
    trace->filtered = 1;
    trace->options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXEC | PTRACE_O_TRACECLONE |
                     PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACESECCOMP |
                     PTRACE_O_EXITKILL;
    int error = 0;
    if (pipe2(go, O_CLOEXEC) < 0) {
        error = -errno;
        end(trace);
        return error;
    }
    if (pipe2(errors, O_CLOEXEC | O_NONBLOCK) < 0) {
        error = -errno;
        close(go[0]);
        close(go[1]);
        end(trace);
        return error;
    }
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    sigfillset(&all);
    sigset_t ours;
    pthread_sigmask(SIG_BLOCK, &all, &ours);
    int pid = fork();
    if (pid == 0) {
        char one;
        close(go[1]);
        if (read(go[0], &one, 1) != 1)
            _exit(125);
        become(argv, errors[1], &mask);
    }
    error = pid < 0 ? -errno : 0;
    pthread_sigmask(SIG_SETMASK, &ours, NULL);
    close(go[0]);
    close(errors[1]);
    if (pid > 0) {
        if (ptrace(PTRACE_SEIZE, pid, 0, trace->options) < 0) {
            error = -errno;
            close(go[1]);
            go[1] = -1;
            waitpid(pid, NULL, 0);
        } else {
            trace->program = pid;
            task_of(trace, pid);
            if (write(go[1], "!", 1) < 0)
                error = -errno;
            watch(trace);
            if (read(errors[0], &trace->exec_error, sizeof(int)) < (ssize_t)sizeof(int))
                trace->exec_error = 0;
        }
    }
    if (go[1] >= 0)
        close(go[1]);
    close(errors[0]);
    end(trace);
    return error;
}

/* Seize the threads that are not traced yet; how many, or -errno. */
static int seize_threads(struct npukit_trace *trace, int pid)
{
    char path[64];
    int found = 0, error = 0;
    snprintf(path, sizeof(path), "/proc/%d/task", pid);
    DIR *folder = opendir(path);
    if (folder == NULL)
        return errno == ENOENT ? -ESRCH : -errno;
    for (struct dirent *entry; (entry = readdir(folder));) {
        int tid = atoi(entry->d_name);
        if (tid <= 0 || *slot_of(trace, tid) != NULL)
            continue;
        if (ptrace(PTRACE_SEIZE, tid, 0, trace->options) < 0) {
            /* A thread that ended is none; one that a sibling's clone has brought is traced. */
            if (errno != ESRCH && !(errno == EPERM && trace->task_count))
                error = -errno;
            continue;
        }
        /* Calls are seen from the next stop on. */
        if (task_of(trace, tid) && ptrace(PTRACE_INTERRUPT, tid, 0, 0) == 0)
            found++;
    }
    closedir(folder);
    return found ? found : error;
}

int npukit_trace_attach(struct npukit_trace *trace, int pid)
{
    int found, error = 0;
    trace->options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXEC | PTRACE_O_TRACECLONE |
                     PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK;
    /* Threads that are born meanwhile are found the next time. */
    do
        found = seize_threads(trace, pid);
    while (found > 0);
    if (trace->task_count == 0) {
        error = found < 0 ? found : -ESRCH;
    } else {
        trace->program = pid;
        watch(trace);
    }
    end(trace);
    return error;
}
