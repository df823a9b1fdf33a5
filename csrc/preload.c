/* SPDX-License-Identifier: MIT */
/* The preload door: a library that has a program's calls on simulated nodes answered by a server
 * (npukit.sim.socket) at the Unix socket $NPUKIT_SIM. Preload it with LD_PRELOAD.
 *
 * Nothing is remembered of descriptors. What stands for an open file of the simulated machine is a
 * pipe, opened for reading and writing. Its inode names the file, whatever dup, fork, exec and
 * sockets do with it; and the server sees when nobody has it any more. Only calls that mean something
 * else on a pipe than on a device are taken from libc; close, dup and fcntl are not.
 *
 * A call is a message of one line: a JSON list of strings and numbers. While it runs, the server asks
 * for what it needs of this process: descriptors, and memory. So no structure need be known here, and
 * the server need not be able to read this process, which may be emulated and of another architecture.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
/* Those headers would define some of the functions. */
#undef _FORTIFY_SOURCE

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))
/* Where connections are put, out of the way of programs that expect the lowest free number. */
#define HIGH_FD 900
#define MOST_FDS 253 /* SCM_MAX_FD */
#define MOST_NODES 64
/* Most answers, which must have room on the stack of any thread or signal handler; and the longest,
 * which tells of 1024 ranges. */
#define TEXT_BYTES 1024
#define LONG_TEXT_BYTES 65536
/* The server does not know the file: the call is the kernel's. */
#define NOT_OURS INT64_MIN
/* Not in the headers of user space: the driver's wait was interrupted. */
#define ERESTARTSYS 512

/* ---- The system's own ---- */

/* The next library's function, which is libc's unless another is preloaded as well. */
#define NEXT(name) \
    ({ \
        static _Atomic(void *) found; \
        void *function = atomic_load(&found); \
        if (!function) { \
            function = dlsym(RTLD_NEXT, #name); \
            atomic_store(&found, function); \
        } \
        (__typeof__(&name))function; \
    })

/* Ours, where libc's own function is one of those below. */
#define SYSTEM(...) NEXT(syscall)(__VA_ARGS__)

static int stat_of(int fd, struct stat *status)
{
    return (int)SYSTEM(SYS_newfstatat, fd, "", status, AT_EMPTY_PATH);
}

/* ---- Connections: each call has one of its own while it runs. ---- */

static char socket_path[sizeof(((struct sockaddr_un *)0)->sun_path)];
static char probe[48];
static uint64_t probe_address;

struct node {
    char path[64];
    uint32_t mode, major, minor;
};
static struct node nodes[MOST_NODES];
static _Atomic int node_count = -1;

/* Low half of the socket's inode, a bit for "in use", and descriptor + 1; 0 is a free slot. The
 * program may close what it does not know, so a descriptor is looked at before it is used. */
#define SLOTS 256
static _Atomic uint64_t slots[SLOTS];
static _Atomic pid_t owner;
#define IN_USE 0x80000000u

struct line {
    int fd;
    int slot; /* -1: closed after the call */
};

static uint64_t slot_of(int fd)
{
    struct stat status;
    if (stat_of(fd, &status) < 0 || !S_ISSOCK(status.st_mode))
        return 0;
    return (uint64_t)status.st_ino << 32 | (uint32_t)(fd + 1);
}

/* In a child the connections of its parent are of no use, and must not outlive the parent. */
static void after_fork(void)
{
    for (int i = 0; i < SLOTS; i++) {
        uint64_t value = atomic_exchange(&slots[i], 0) & ~(uint64_t)IN_USE;
        int fd = (int)(uint32_t)value - 1;
        if (value && slot_of(fd) == value)
            close(fd);
    }
    atomic_store(&owner, getpid());
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("NPUKIT_SIM");
    if (!path || strlen(path) >= sizeof(socket_path) || socket_path[0])
        return;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(probe, sizeof(probe), "%d.%lld.%ld", getpid(), (long long)now.tv_sec, now.tv_nsec);
    /* An emulator does not have this call, and the server could not use our addresses. */
    char copy[sizeof(probe)] = "";
    struct iovec here = {copy, sizeof(copy)}, there = {probe, sizeof(probe)};
    if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) == sizeof(copy))
        probe_address = (uintptr_t)probe;
    atomic_store(&owner, getpid());
    pthread_atfork(NULL, NULL, after_fork);
    strcpy(socket_path, path);
}

static bool active(void)
{
    /* Another library's constructor may come before ours. */
    if (!socket_path[0])
        begin();
    return socket_path[0] != '\0';
}

static bool send_text(int fd, const char *text, size_t size)
{
    struct iovec part = {(void *)text, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    ssize_t sent;
    do
        sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)size;
}

__attribute__((format(printf, 2, 3))) static bool tell(int fd, const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return size < (int)sizeof(text) && send_text(fd, text, (size_t)size);
}

static int connect_anew(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, socket_path);
    int low = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (low < 0)
        return -1;
    int fd = (int)SYSTEM(SYS_fcntl, low, F_DUPFD_CLOEXEC, HIGH_FD);
    if (fd >= 0)
        close(low);
    else
        fd = low;
    int result;
    do
        result = connect(fd, (struct sockaddr *)&address, sizeof(address));
    while (result < 0 && errno == EINTR);
    if (result == 0 && tell(fd, "[\"library\", %llu, \"%s\"]\n",
                            (unsigned long long)probe_address, probe))
        return fd;
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&said))
        dprintf(2, "npukit: nobody serves a simulated machine at %s (%s)\n", socket_path,
                strerror(errno));
    close(fd);
    return -1;
}

static struct line take_line(void)
{
    /* A child of vfork, or of a fork that libc does not know of, leaves the slots alone. */
    int count = getpid() == atomic_load(&owner) ? SLOTS : 0;
    for (int i = 0; i < count; i++) {
        uint64_t value = atomic_load(&slots[i]);
        if (!value || value & IN_USE ||
            !atomic_compare_exchange_strong(&slots[i], &value, value | IN_USE))
            continue;
        int fd = (int)(uint32_t)value - 1;
        if (slot_of(fd) == value)
            return (struct line){fd, i};
        /* The program has closed it. */
        atomic_store(&slots[i], 0);
    }
    struct line line = {connect_anew(), -1};
    uint64_t value = line.fd < 0 ? 0 : slot_of(line.fd);
    for (int i = 0; value && line.slot < 0 && i < count; i++) {
        uint64_t none = 0;
        if (atomic_compare_exchange_strong(&slots[i], &none, value | IN_USE))
            line.slot = i;
    }
    return line;
}

static void leave_line(struct line line, bool good)
{
    if (line.slot >= 0 && good) {
        atomic_fetch_and(&slots[line.slot], ~(uint64_t)IN_USE);
        return;
    }
    if (line.slot >= 0)
        atomic_store(&slots[line.slot], 0);
    close(line.fd);
}

/* ---- Messages ---- */

struct message {
    char *text;
    size_t room;
    const char *rest;
    int fds[MOST_FDS], fd_count;
    bool lost; /* descriptors that there was no number for */
    bool grows;
    char own[TEXT_BYTES];
};

static struct message *fresh(struct message *message)
{
    message->text = message->own;
    message->room = sizeof(message->own);
    message->fd_count = 0;
    message->grows = false;
    return message;
}

/* One that makes room for a long answer, to be given back. Only for one that is long: where the
 * program's next mapping comes to lie must not depend on us. */
static struct message *roomy(struct message *message)
{
    fresh(message)->grows = true;
    return message;
}

static void give_back(struct message *message)
{
    if (message->text != message->own)
        munmap(message->text, message->room);
}

/* The next number or word of a JSON list; false at its end. Lists within it are run through. */
static bool next_word(struct message *message, const char **word, size_t *size)
{
    const char *at = message->rest + strspn(message->rest, "[], \n");
    if (!*at)
        return false;
    bool quoted = *at == '"';
    *word = at + quoted;
    *size = strcspn(*word, quoted ? "\"" : "[], \n");
    message->rest = *word + *size + quoted;
    return true;
}

static int64_t next_number(struct message *message)
{
    const char *word = "";
    size_t size;
    if (!next_word(message, &word, &size))
        return 0;
    /* Addresses are unsigned. */
    return *word == '-' ? strtoll(word, NULL, 10)
         : *word == 't' ? 1 : (int64_t)strtoull(word, NULL, 10);
}

/* 1, or 0 when a signal came that ends waits, or -1 when the server is gone. */
static int receive(int fd, struct message *message)
{
    char control[CMSG_SPACE(MOST_FDS * sizeof(int))], first;
    if (message->grows) {
        ssize_t whole = recv(fd, &first, 1, MSG_PEEK | MSG_TRUNC);
        if (whole < 0 && errno == EINTR)
            return 0;
        if (whole >= (ssize_t)message->room) {
            void *room = NEXT(mmap)(NULL, LONG_TEXT_BYTES, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (room == MAP_FAILED)
                return -1;
            message->text = room;
            message->room = LONG_TEXT_BYTES;
        }
    }
    struct iovec part = {message->text, message->room - 1};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1,
                            .msg_control = control, .msg_controllen = sizeof(control)};
    ssize_t size = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
    if (size < 0 && errno == EINTR)
        return 0;
    if (size <= 0 || header.msg_flags & MSG_TRUNC)
        return -1;
    message->text[size] = '\0';
    message->rest = message->text;
    message->fd_count = 0;
    message->lost = header.msg_flags & MSG_CTRUNC;
    for (struct cmsghdr *each = CMSG_FIRSTHDR(&header); each; each = CMSG_NXTHDR(&header, each)) {
        if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS)
            continue;
        message->fd_count = (int)((each->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(message->fds, CMSG_DATA(each), (size_t)message->fd_count * sizeof(int));
    }
    return 1;
}

/* ---- What the server asks for ---- */

static bool give_memory(int fd, uint64_t address, size_t size)
{
    /* The kernel copies, so that a bad address is an error and no crash. An emulator may send less
     * than was asked for instead, which the server notices. */
    struct iovec parts[] = {{"[0]\n", 4}, {(void *)(uintptr_t)address, size}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t sent;
    do
        sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent >= 0 || tell(fd, "[%d]\n", EFAULT);
}

static bool take_memory(int fd, uint64_t address, size_t size)
{
    /* The bytes come as a message of their own, behind one that can always be taken. */
    char first;
    struct iovec parts[] = {{&first, 1}, {(void *)(uintptr_t)address, size}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t got;
    do
        got = recvmsg(fd, &message, 0);
    while (got < 0 && errno == EINTR);
    return tell(fd, "[%d]\n", got == (ssize_t)size + 1 ? 0 : EFAULT);
}

static bool give_descriptor(int fd, int number)
{
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {"[0]\n", 4};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1,
                             .msg_control = control, .msg_controllen = sizeof(control)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &number, sizeof(int));
    ssize_t sent;
    do
        sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent >= 0 || tell(fd, "[%d]\n", EBADF);
}

static bool take_descriptor(int fd, struct message *message, bool cloexec)
{
    if (message->fd_count != 1)
        return tell(fd, "[%d]\n", EMFILE);
    int number = message->fds[0];
    if (!cloexec)
        SYSTEM(SYS_fcntl, number, F_SETFD, 0);
    return tell(fd, "[0, %d]\n", number);
}

static bool answer(int fd, const char *kind, size_t size, struct message *message)
{
    /* Numbers in the order of the message. */
    int64_t first = next_number(message), second = next_number(message);
#define IS(name) (size == sizeof(name) - 1 && memcmp(kind, name, size) == 0)
    if (IS("read"))
        return give_memory(fd, (uint64_t)first, (size_t)second);
    if (IS("write"))
        return take_memory(fd, (uint64_t)first, (size_t)second);
    if (IS("give"))
        return take_descriptor(fd, message, first);
    if (IS("take"))
        return give_descriptor(fd, (int)first);
    if (IS("shut"))
        return tell(fd, "[%d]\n", close((int)first) < 0 ? errno : 0);
    if (IS("cloexec")) {
        long flags = SYSTEM(SYS_fcntl, (int)first, F_GETFD, 0);
        return flags < 0 ? tell(fd, "[%d]\n", EBADF) : tell(fd, "[0, %ld]\n", flags & FD_CLOEXEC);
    }
    return false;
}

/* Make a call: 0, and `message` holds the answer's values; NOT_OURS; or a negative errno. */
__attribute__((format(printf, 2, 3)))
static int64_t call(struct message *message, const char *format, ...)
{
    char text[256];
    int cancel, saved = errno;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    /* No request to a driver is a cancellation point. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    int64_t result = -ENODEV;
    struct line line = take_line();
    bool good = line.fd >= 0 && send_text(line.fd, text, (size_t)length), done = !good;
    while (!done) {
        const char *kind;
        size_t size;
        int got = receive(line.fd, message);
        if (got == 0)
            /* Whether the driver's wait ends with it is the driver's to say; the call goes on. */
            good = tell(line.fd, "[\"interrupt\"]\n");
        else
            good = got > 0 && next_word(message, &kind, &size);
        if (!good)
            done = true;
        else if (got == 0)
            continue;
        else if (IS("done")) {
            result = message->lost ? -EMFILE : 0;
            done = true;
        } else if (IS("none")) {
            result = NOT_OURS;
            done = true;
        } else if (IS("errno")) {
            int64_t code = next_number(message);
            result = code == ERESTARTSYS ? -EINTR : -code;
            done = true;
        } else
            done = !(good = answer(line.fd, kind, size, message));
    }
    if (line.fd >= 0)
        leave_line(line, good);
    pthread_setcancelstate(cancel, NULL);
    errno = saved;
    return result;
}

/* The value of a call that has one, as a system call of libc gives it. */
static long value_of(int64_t result, struct message *message)
{
    if (result < 0) {
        errno = (int)-result;
        return -1;
    }
    return (long)next_number(message);
}

/* ---- Nodes ---- */

static int load_nodes(void)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    int count = atomic_load(&node_count);
    if (count >= 0)
        return count;
    struct message message;
    if (call(roomy(&message), "[\"nodes\"]\n") < 0) {
        give_back(&message);
        return -1;
    }
    pthread_mutex_lock(&mutex);
    if (atomic_load(&node_count) < 0) {
        const char *path;
        size_t size;
        for (count = 0; count < MOST_NODES && next_word(&message, &path, &size); count++) {
            snprintf(nodes[count].path, sizeof(nodes[count].path), "%.*s", (int)size, path);
            nodes[count].mode = (uint32_t)next_number(&message);
            nodes[count].major = (uint32_t)next_number(&message);
            nodes[count].minor = (uint32_t)next_number(&message);
        }
        atomic_store(&node_count, count);
    }
    pthread_mutex_unlock(&mutex);
    give_back(&message);
    return atomic_load(&node_count);
}

/* Take out empty names, "." and ".." with what stands before it, of a path from the root on. */
static void tidy(char *path)
{
    char *to = path;
    for (char *at = path; *at;) {
        at += strspn(at, "/");
        size_t size = strcspn(at, "/");
        if (size == 2 && at[0] == '.' && at[1] == '.') {
            while (to > path && *--to != '/')
                ;
        } else if (size && !(size == 1 && *at == '.')) {
            *to++ = '/';
            memmove(to, at, size);
            to += size;
        }
        at += size;
    }
    *to = '\0';
}

/* Which node a path means: its number; -1: none; -2: nobody can say, the server is gone. */
static int node_at(int folder, const char *path)
{
    if (!active())
        return -1;
    int saved = errno;
    /* A bad pointer is the kernel's to find. */
    bool bad = SYSTEM(SYS_faccessat, folder, path, F_OK) < 0 && errno == EFAULT;
    errno = saved;
    if (bad || !*path)
        return -1;
    char whole[PATH_MAX], link[32];
    const char *base = strrchr(path, '/');
    base = base ? base + 1 : path;
    if (*path != '/') {
        /* Most relative paths are out of the question. */
        bool known = false;
        int count = atomic_load(&node_count);
        for (int i = 0; i < count; i++)
            known |= strcmp(strrchr(nodes[i].path, '/') + 1, base) == 0;
        if (!known && count >= 0)
            return -1;
        snprintf(link, sizeof(link), folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d",
                 folder);
        ssize_t size = readlink(link, whole, sizeof(whole) - 1);
        errno = saved;
        if (size < 0 || (size_t)size + strlen(path) + 2 > sizeof(whole))
            return -1;
        whole[size++] = '/';
        strcpy(whole + size, path);
        tidy(whole);
        path = whole;
    } else if (strncmp(path, "/dev/", 5) == 0 && (strstr(path, "//") || strstr(path, "/."))) {
        if (strlen(path) >= sizeof(whole))
            return -1;
        strcpy(whole, path);
        tidy(whole);
        path = whole;
    }
    if (strncmp(path, "/dev/", 5) != 0)
        return -1;
    /* What most programs open does not need a server. */
    static const char *const common[] = {"null", "zero", "full", "random", "urandom", "tty"};
    for (size_t i = 0; i < sizeof(common) / sizeof(*common); i++)
        if (strcmp(path + 5, common[i]) == 0)
            return -1;
    if (strncmp(path + 5, "shm/", 4) == 0 || strncmp(path + 5, "pts/", 4) == 0)
        return -1;
    int count = load_nodes();
    if (count < 0)
        return -2;
    for (int i = 0; i < count; i++)
        if (strcmp(nodes[i].path, path) == 0)
            return i;
    return -1;
}

static int open_at(int folder, const char *path, int flags, bool *ours)
{
    int node = flags & O_PATH ? -1 : node_at(folder, path);
    *ours = node != -1;
    if (node == -2) {
        errno = ENODEV;
        return -1;
    }
    struct message message;
    if (!*ours)
        return -1;
    /* What the kernel finds before it asks a driver. */
    int created = O_CREAT | O_EXCL;
    if ((flags & created) == created || flags & O_DIRECTORY) {
        errno = flags & O_DIRECTORY ? ENOTDIR : EEXIST;
        return -1;
    }
    /* Other flags mean nothing to a driver, and have other bits on other architectures. */
    flags &= O_ACCMODE | O_EXCL | O_NONBLOCK | O_CLOEXEC;
    int64_t answer = call(fresh(&message), "[\"open\", %d, %d]\n", node, flags);
    return (int)value_of(answer, &message);
}

/* Whether a descriptor may stand for a simulated file: hardly any other pipe is open for both. */
static bool stands_in(int fd, struct stat *status)
{
    if (!active() || fd < 0)
        return false;
    int saved = errno;
    bool found = stat_of(fd, status) == 0 && S_ISFIFO(status->st_mode) &&
                 (SYSTEM(SYS_fcntl, fd, F_GETFL, 0) & O_ACCMODE) == O_RDWR;
    errno = saved;
    return found;
}

#define IDENTITY "%llu, %llu"
#define IDENTITY_OF(status) (unsigned long long)(status).st_dev, (unsigned long long)(status).st_ino

/* ---- ioctl, mmap, lseek ---- */

static bool do_ioctl(int fd, unsigned long request, void *argument, int *result)
{
    struct stat status;
    if (!stands_in(fd, &status))
        return false;
    struct message message;
    int64_t answer = call(fresh(&message), "[\"ioctl\", " IDENTITY ", %lu, %llu]\n",
                          IDENTITY_OF(status), request & 0xffffffff,
                          (unsigned long long)(uintptr_t)argument);
    if (answer == NOT_OURS)
        return false;
    *result = (int)value_of(answer, &message);
    return true;
}

static void *map_pieces(struct message *message, void *address, size_t length, int prot, int flags)
{
    int count = (int)next_number(message);
    char *at = address;
    if (count > 1) {
        /* Reserve the whole range, then lay the pieces over it. */
        int kind = (flags & ~(MAP_SHARED | MAP_SHARED_VALIDATE)) | MAP_PRIVATE | MAP_ANONYMOUS;
        at = NEXT(mmap)(address, length, PROT_NONE, kind, -1, 0);
        if (at == MAP_FAILED)
            return MAP_FAILED;
        flags = (flags & ~MAP_FIXED_NOREPLACE) | MAP_FIXED;
    }
    char *start = at;
    for (int i = 0; i < count; i++) {
        int64_t index = next_number(message), place = next_number(message);
        size_t size = (size_t)next_number(message);
        if (index < 0 || index >= message->fd_count) {
            errno = EIO;
            return MAP_FAILED;
        }
        char *mapped = NEXT(mmap)(at, count == 1 ? length : size, prot, flags, message->fds[index],
                                  place);
        if (mapped == MAP_FAILED) {
            int code = errno;
            if (count > 1)
                munmap(start, length);
            errno = code;
            return MAP_FAILED;
        }
        if (i == 0)
            start = mapped;
        at = mapped + size;
    }
    return start;
}

static bool do_mmap(void *address, size_t length, int prot, int flags, int fd, off_t offset,
                    void **result)
{
    struct stat status;
    if (flags & MAP_ANONYMOUS || !stands_in(fd, &status))
        return false;
    struct message message;
    int64_t answer = call(roomy(&message), "[\"mmap\", " IDENTITY ", %llu, %llu, %d, %d]\n",
                          IDENTITY_OF(status), (unsigned long long)length,
                          (unsigned long long)offset, prot, flags);
    if (answer == NOT_OURS) {
        give_back(&message);
        return false;
    }
    *result = MAP_FAILED;
    if (answer < 0)
        errno = (int)-answer;
    else
        *result = map_pieces(&message, address, length, prot, flags);
    give_back(&message);
    /* The mapping holds the file, which ends with it, wherever it is inherited to. */
    int saved = errno;
    for (int i = 0; i < message.fd_count; i++)
        close(message.fds[i]);
    errno = saved;
    return true;
}

static bool do_lseek(int fd, off_t offset, int whence, off_t *result)
{
    struct stat status;
    if (!stands_in(fd, &status))
        return false;
    struct message message;
    int64_t answer = call(fresh(&message), "[\"lseek\", " IDENTITY ", %lld, %d]\n",
                          IDENTITY_OF(status), (long long)offset, whence);
    if (answer == NOT_OURS)
        return false;
    *result = value_of(answer, &message);
    return true;
}

PUBLIC int ioctl(int fd, unsigned long request, ...)
{
    va_list arguments;
    va_start(arguments, request);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    int result;
    if (do_ioctl(fd, request, argument, &result))
        return result;
    result = NEXT(ioctl)(fd, request, argument);
    if (result < 0 && errno == ENOSYS) {
        /* An emulator's, for a request that it does not know; it has not looked at the file. */
        long flags = SYSTEM(SYS_fcntl, fd, F_GETFL, 0);
        errno = flags < 0 || flags & O_PATH ? EBADF : ENOTTY;
    }
    return result;
}

PUBLIC void *mmap(void *address, size_t length, int prot, int flags, int fd, off_t offset)
{
    void *result;
    return do_mmap(address, length, prot, flags, fd, offset, &result)
               ? result : NEXT(mmap)(address, length, prot, flags, fd, offset);
}

PUBLIC off_t lseek(int fd, off_t offset, int whence)
{
    off_t result;
    return do_lseek(fd, offset, whence, &result) ? result : NEXT(lseek)(fd, offset, whence);
}

/* off_t has 64 bits on both architectures. */
PUBLIC void *mmap64(void *address, size_t length, int prot, int flags, int fd, off64_t offset)
{
    return mmap(address, length, prot, flags, fd, offset);
}

PUBLIC off64_t lseek64(int fd, off64_t offset, int whence)
{
    return lseek(fd, offset, whence);
}

/* ---- open ---- */

static mode_t mode_of(int flags, va_list arguments)
{
    return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(arguments, mode_t) : 0;
}

#define OPEN(name) \
    PUBLIC int name(const char *path, int flags, ...) \
    { \
        va_list arguments; \
        va_start(arguments, flags); \
        mode_t mode = mode_of(flags, arguments); \
        va_end(arguments); \
        bool ours; \
        int fd = open_at(AT_FDCWD, path, flags, &ours); \
        return ours ? fd : NEXT(name)(path, flags, mode); \
    }
#define OPENAT(name) \
    PUBLIC int name(int folder, const char *path, int flags, ...) \
    { \
        va_list arguments; \
        va_start(arguments, flags); \
        mode_t mode = mode_of(flags, arguments); \
        va_end(arguments); \
        bool ours; \
        int fd = open_at(folder, path, flags, &ours); \
        return ours ? fd : NEXT(name)(folder, path, flags, mode); \
    }
/* What _FORTIFY_SOURCE makes of a call without a mode. */
#define OPEN_2(name) \
    PUBLIC int name(const char *path, int flags); \
    PUBLIC int name(const char *path, int flags) \
    { \
        bool ours; \
        int fd = open_at(AT_FDCWD, path, flags, &ours); \
        return ours ? fd : NEXT(name)(path, flags); \
    }
#define OPENAT_2(name) \
    PUBLIC int name(int folder, const char *path, int flags); \
    PUBLIC int name(int folder, const char *path, int flags) \
    { \
        bool ours; \
        int fd = open_at(folder, path, flags, &ours); \
        return ours ? fd : NEXT(name)(folder, path, flags); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
OPEN_2(__open_2)
OPEN_2(__open64_2)
OPENAT_2(__openat_2)
OPENAT_2(__openat64_2)

#define CREAT(name) \
    PUBLIC int name(const char *path, mode_t mode) \
    { \
        bool ours; \
        int fd = open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, &ours); \
        return ours ? fd : NEXT(name)(path, mode); \
    }
CREAT(creat)
CREAT(creat64)

/* libc's own does not come by our open. */
static FILE *open_stream(const char *path, const char *mode, bool *ours)
{
    int flags = *mode == 'r' ? O_RDONLY : *mode == 'a' ? O_WRONLY | O_APPEND : O_WRONLY;
    for (const char *at = mode; *at && *at != ','; at++)
        flags = *at == '+'   ? (flags & ~O_ACCMODE) | O_RDWR
                : *at == 'e' ? flags | O_CLOEXEC
                : *at == 'x' ? flags | O_CREAT | O_EXCL
                             : flags;
    int fd = open_at(AT_FDCWD, path, flags, ours);
    FILE *stream = fd < 0 ? NULL : fdopen(fd, mode);
    if (fd >= 0 && !stream)
        close(fd);
    return stream;
}

#define FOPEN(name) \
    PUBLIC FILE *name(const char *path, const char *mode) \
    { \
        bool ours; \
        FILE *stream = open_stream(path, mode, &ours); \
        return ours ? stream : NEXT(name)(path, mode); \
    }
FOPEN(fopen)
FOPEN(fopen64)

/* ---- stat and access ---- */

/* Nodes are shown as character devices. */
static void become_node(struct stat *status, uint32_t mode, uint32_t major, uint32_t minor)
{
    status->st_mode = mode;
    status->st_rdev = makedev(major, minor);
    status->st_size = status->st_blocks = 0;
}

/* Apart from statx, whose declaration would have the compiler leave out the first test. */
__attribute__((noinline)) static bool means_folder_itself(const char *path, int flags)
{
    return flags & AT_EMPTY_PATH && path && !*path;
}

static int do_stat(int folder, const char *path, struct stat *status, int flags)
{
    struct stat real;
    bool itself = means_folder_itself(path, flags);
    if (itself && stands_in(folder, &real)) {
        struct message message;
        int64_t answer = call(fresh(&message), "[\"fstat\", " IDENTITY "]\n", IDENTITY_OF(real));
        if (answer != NOT_OURS && answer < 0) {
            errno = (int)-answer;
            return -1;
        }
        if (answer == 0 && stat_of(folder, status) < 0)
            return -1;
        if (answer == 0) {
            uint32_t mode = (uint32_t)next_number(&message);
            uint32_t major = (uint32_t)next_number(&message);
            uint32_t minor = (uint32_t)next_number(&message);
            become_node(status, mode, major, minor);
            status->st_size = next_number(&message);
            return 0;
        }
    }
    int node = itself ? -1 : node_at(folder, path);
    if (node < 0)
        return (int)SYSTEM(SYS_newfstatat, folder, path, status, flags);
    /* Of some other device, so that the kernel judges the pointer. */
    if (SYSTEM(SYS_newfstatat, AT_FDCWD, "/dev/null", status, 0) < 0)
        return -1;
    status->st_ino += (ino_t)(node + 1) << 32;
    become_node(status, nodes[node].mode, nodes[node].major, nodes[node].minor);
    return 0;
}

/* struct stat and struct stat64 are the same on both architectures. */
#define STAT(name, type) \
    PUBLIC int name(const char *path, struct type *status) \
    { \
        return do_stat(AT_FDCWD, path, (struct stat *)status, 0); \
    }
#define LSTAT(name, type) \
    PUBLIC int name(const char *path, struct type *status) \
    { \
        return do_stat(AT_FDCWD, path, (struct stat *)status, AT_SYMLINK_NOFOLLOW); \
    }
#define FSTAT(name, type) \
    PUBLIC int name(int fd, struct type *status) \
    { \
        return do_stat(fd, "", (struct stat *)status, AT_EMPTY_PATH); \
    }
#define FSTATAT(name, type) \
    PUBLIC int name(int folder, const char *path, struct type *status, int flags) \
    { \
        return do_stat(folder, path, (struct stat *)status, flags); \
    }
STAT(stat, stat)
STAT(stat64, stat64)
LSTAT(lstat, stat)
LSTAT(lstat64, stat64)
FSTAT(fstat, stat)
FSTAT(fstat64, stat64)
FSTATAT(fstatat, stat)
FSTATAT(fstatat64, stat64)

/* What programs call that were built before glibc 2.33. */
#define OLD_STAT(name, first, call) \
    PUBLIC int name(int version, first, struct stat *status); \
    PUBLIC int name(int version, first, struct stat *status) \
    { \
        (void)version; \
        return call; \
    }
OLD_STAT(__xstat, const char *path, do_stat(AT_FDCWD, path, status, 0))
OLD_STAT(__xstat64, const char *path, do_stat(AT_FDCWD, path, status, 0))
OLD_STAT(__lxstat, const char *path, do_stat(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW))
OLD_STAT(__lxstat64, const char *path, do_stat(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW))
OLD_STAT(__fxstat, int fd, do_stat(fd, "", status, AT_EMPTY_PATH))
OLD_STAT(__fxstat64, int fd, do_stat(fd, "", status, AT_EMPTY_PATH))

PUBLIC int statx(int folder, const char *path, int flags, unsigned mask, struct statx *status)
{
    struct stat seen;
    bool itself = means_folder_itself(path, flags);
    bool ours = itself ? stands_in(folder, &seen) : node_at(folder, path) >= 0;
    int result = (int)SYSTEM(SYS_statx, ours && !itself ? AT_FDCWD : folder,
                              ours && !itself ? "/dev/null" : path, flags, mask, status);
    if (result < 0 || !ours || do_stat(folder, path, &seen, flags) < 0)
        return result;
    status->stx_mode = (uint16_t)seen.st_mode;
    status->stx_rdev_major = major(seen.st_rdev);
    status->stx_rdev_minor = minor(seen.st_rdev);
    status->stx_size = (uint64_t)seen.st_size;
    status->stx_blocks = 0;
    return 0;
}

static bool do_access(int folder, const char *path, int mode, int *result)
{
    if (node_at(folder, path) < 0)
        return false;
    *result = mode & X_OK ? -1 : 0;
    if (*result)
        errno = EACCES;
    return true;
}

PUBLIC int access(const char *path, int mode)
{
    int result;
    return do_access(AT_FDCWD, path, mode, &result) ? result : NEXT(access)(path, mode);
}

PUBLIC int faccessat(int folder, const char *path, int mode, int flags)
{
    int result;
    return do_access(folder, path, mode, &result) ? result
                                                  : NEXT(faccessat)(folder, path, mode, flags);
}

PUBLIC int euidaccess(const char *path, int mode)
{
    int result;
    return do_access(AT_FDCWD, path, mode, &result) ? result : NEXT(euidaccess)(path, mode);
}

/* ---- System calls by their number ---- */

/* Those that mean something else on a device; npukit's own requests are made so. */
PUBLIC long syscall(long number, ...)
{
    va_list arguments;
    long args[6];
    va_start(arguments, number);
    for (int i = 0; i < 6; i++)
        args[i] = va_arg(arguments, long);
    va_end(arguments);
    if (number == SYS_ioctl) {
        int result;
        if (do_ioctl((int)args[0], (unsigned long)args[1], (void *)args[2], &result))
            return result;
    } else if (number == SYS_mmap) {
        void *result;
        if (do_mmap((void *)args[0], (size_t)args[1], (int)args[2], (int)args[3], (int)args[4],
                    args[5], &result))
            return (long)result;
    } else if (number == SYS_lseek) {
        off_t result;
        if (do_lseek((int)args[0], args[1], (int)args[2], &result))
            return result;
    } else if (number == SYS_openat) {
        bool ours;
        int fd = open_at((int)args[0], (const char *)args[1], (int)args[2], &ours);
        if (ours)
            return fd;
    }
#ifdef SYS_open
    if (number == SYS_open) {
        bool ours;
        int fd = open_at(AT_FDCWD, (const char *)args[0], (int)args[1], &ours);
        if (ours)
            return fd;
    }
#endif
    return SYSTEM(number, args[0], args[1], args[2], args[3], args[4], args[5]);
}
