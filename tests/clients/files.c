/* SPDX-License-Identifier: MIT */
/* usage: files NODE JOB HEAP: which open file a descriptor means, through fork, dup, exec and sockets. */
#include "uapi.h"

#include <sys/socket.h>

static uint32_t create(int fd)
{
    struct rocket_create_bo create = {.size = 4096};
    CHECK(ioctl(fd, ROCKET_CREATE_BO, &create) == 0);
    return create.handle;
}

static int knows(int fd, uint32_t handle)
{
    struct rocket_fini_bo fini = {.handle = handle};
    return ioctl(fd, ROCKET_FINI_BO, &fini) == 0;
}

static void in_child(void (*work)(int), int fd)
{
    int status;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        work(fd);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void adds_handle_2(int fd)
{
    CHECK(knows(fd, 1) && create(fd) == 2);
    close(fd);
}

static void has_own_file(int unused)
{
    (void)unused;
    int fd = open_node("/dev/accel/accel0");
    CHECK(!knows(fd, 1) && errno == ENOENT);
    CHECK(create(fd) == 1 && !knows(fd, 2));
}

static void send_fd(int socket, int fd)
{
    char byte = 'x', room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room)};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &fd, sizeof(int));
    CHECK(sendmsg(socket, &message, 0) == 1);
}

static int receive_fd(int socket)
{
    char byte, room[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room)};
    int fd;
    CHECK(recvmsg(socket, &message, 0) == 1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
    return fd;
}

static void passes_files(const char *node)
{
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    int fd = open_node(node);
    CHECK(create(fd) == 1);
    send_fd(pair[0], fd);
    /* Nobody has a descriptor now: the file lives in the socket. */
    close(fd);
    int other = open_node(node);
    CHECK(!knows(other, 1));
    fd = receive_fd(pair[1]);
    CHECK(knows(fd, 1) && create(fd) == 2);
    close(fd);
    close(other);
    close(pair[0]);
    close(pair[1]);
}

static void maps_after_close(const char *node)
{
    int fd = open_node(node);
    struct buffer buffer = rocket_buffer(fd, 1 << 20);
    memset(buffer.memory, 7, 1 << 20);
    gem_close(fd, &buffer);
    close(fd);
    /* Time enough for what was freed to be looked for. */
    for (int i = 0; i < 20; i++) {
        usleep(10000);
        fd = open_node(node);
        struct buffer fresh = rocket_buffer(fd, 4096);
        CHECK(fresh.memory[0] == 0 && fresh.memory[4095] == 0);
        munmap(fresh.memory, 4096);
        close(fd);
    }
    for (int i = 0; i < 1 << 20; i++)
        CHECK(buffer.memory[i] == 7);
    munmap(buffer.memory, 1 << 20);
}

/* Of what is freed, no page is left, though the node goes on: seen where a node is the file that
 * holds them, and not a device whose position is fixed. */
static void gives_pages_back(const char *node)
{
    int fd = open_node(node), tries, is_file = lseek(fd, 1, SEEK_SET) == 1;
    for (int i = 0; i < 20; i++) {
        struct buffer buffer = rocket_buffer(fd, 1 << 20);
        memset(buffer.memory, 1, 1 << 20);
        munmap(buffer.memory, 1 << 20);
        gem_close(fd, &buffer);
    }
    for (tries = 0; is_file && lseek(fd, 0, SEEK_DATA) >= 0 && tries < 500; tries++)
        usleep(10000);
    CHECK(!is_file || (lseek(fd, 0, SEEK_DATA) == -1 && errno == ENXIO));
    close(fd);
}

static void refuses_stray_maps(const char *node)
{
    int fd = open_node(node), other = open_node(node);
    struct buffer buffer = rocket_buffer(fd, 8192);
    struct rocket_create_bo second = {.size = 4096};
    CHECK(ioctl(fd, ROCKET_CREATE_BO, &second) == 0);
    CHECK(mmap(NULL, 8192, PROT_READ, MAP_SHARED, fd, second.offset) == MAP_FAILED);
    CHECK(errno == EINVAL);
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, second.offset + 4096) == MAP_FAILED);
    CHECK(errno == EINVAL);
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EINVAL);
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, other, second.offset) == MAP_FAILED);
    CHECK(errno == EACCES);
    CHECK(ftruncate(fd, 0) == -1 && errno == EINVAL);
    memset(buffer.memory, 1, 8192);
    close(open(node, O_RDWR | O_TRUNC));
    munmap(buffer.memory, 8192);
    close(fd);
    close(other);
}

static void shares_heap_buffers(const char *heap)
{
    int fd = open_node(heap), status;
    struct dma_heap_alloc alloc = {.len = 8192, .fd_flags = O_RDWR | O_CLOEXEC};
    CHECK(ioctl(fd, DMA_HEAP_ALLOC, &alloc) == 0);
    close(fd);
    CHECK(fcntl(alloc.fd, F_GETFD) == FD_CLOEXEC);
    CHECK(lseek(alloc.fd, 0, SEEK_END) == 8192);
    char *here = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, alloc.fd, 0);
    CHECK(here != MAP_FAILED);
    CHECK(mmap(NULL, 12288, PROT_READ, MAP_SHARED, alloc.fd, 0) == MAP_FAILED && errno == EINVAL);
    pid_t pid = fork();
    if (pid == 0) {
        struct dma_buf_sync sync = {.flags = 2};
        CHECK(ioctl(alloc.fd, DMA_BUF_SYNC, &sync) == 0);
        char *there = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, alloc.fd, 4096);
        CHECK(there != MAP_FAILED);
        there[5] = 42;
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(here[4096 + 5] == 42);
    CHECK(munmap(here, 8192) == 0);
    close(alloc.fd);
    struct dma_heap_alloc read_only = {.len = 4096, .fd_flags = O_RDONLY};
    fd = open_node(heap);
    CHECK(ioctl(fd, DMA_HEAP_ALLOC, &read_only) == 0);
    CHECK(fcntl(read_only.fd, F_GETFD) == 0);
    CHECK(mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, read_only.fd, 0) == MAP_FAILED);
    CHECK(errno == EACCES);
    close(read_only.fd);
    close(fd);
}

static void exports(const char *node)
{
    int fd = open_node(node), other = open_node(node);
    struct prime_handle prime = {.handle = create(fd), .flags = O_CLOEXEC | O_RDWR};
    CHECK(ioctl(fd, PRIME_HANDLE_TO_FD, &prime) == 0);
    CHECK(lseek(prime.fd, 0, SEEK_END) == 4096);
    struct prime_handle again = {.fd = prime.fd};
    CHECK(ioctl(fd, PRIME_FD_TO_HANDLE, &again) == 0 && again.handle == prime.handle);
    /* In another file the same buffer has another handle, which maps the same pages. */
    create(other);
    struct prime_handle import = {.fd = prime.fd};
    CHECK(ioctl(other, PRIME_FD_TO_HANDLE, &import) == 0 && import.handle == 2);
    CHECK(ioctl(other, PRIME_FD_TO_HANDLE, &(struct prime_handle){.fd = other}) == -1);
    CHECK(errno == EINVAL);
    CHECK(ioctl(other, PRIME_FD_TO_HANDLE, &(struct prime_handle){.fd = 999}) == -1);
    CHECK(errno == EBADF);
    close(prime.fd);
    close(fd);
    close(other);
}

/* An exported buffer is mapped by its own descriptor too, and the pages are the same. */
static void maps_exports(const char *node)
{
    int fd = open_node(node), status;
    struct buffer buffer = rocket_buffer(fd, 8192);
    struct prime_handle prime = {.handle = buffer.handle, .flags = O_CLOEXEC | O_RDWR};
    CHECK(ioctl(fd, PRIME_HANDLE_TO_FD, &prime) == 0);
    int lowest = dup(0);
    close(lowest);
    memset(buffer.memory, 3, 8192);
    char *both = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, prime.fd, 0);
    CHECK(both != MAP_FAILED && both[0] == 3 && both[8191] == 3);
    both[100] = 4;
    CHECK(buffer.memory[100] == 4);
    char *half = mmap(NULL, 4096, PROT_READ, MAP_SHARED, prime.fd, 4096);
    CHECK(half != MAP_FAILED);
    buffer.memory[4096] = 5;
    CHECK(half[0] == 5);
    CHECK(mmap(NULL, 12288, PROT_READ, MAP_SHARED, prime.fd, 0) == MAP_FAILED && errno == EINVAL);
    /* No descriptor is left that was not there before. */
    int next = dup(0);
    CHECK(next == lowest);
    close(next);
    /* The memory outlives handle, file and descriptor. */
    gem_close(fd, &buffer);
    munmap(buffer.memory, 8192);
    close(prime.fd);
    close(fd);
    pid_t pid = fork();
    if (pid == 0) {
        usleep(200000);
        both[0] = 9;
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(both[0] == 9 && both[100] == 4 && half[0] == 5);
    munmap(both, 8192);
    munmap(half, 4096);
}

int main(int argc, char **argv)
{
    static struct job job;
    if (argc == 3 && strcmp(argv[1], "inherited") == 0)
        return !knows(atoi(argv[2]), 1);
    CHECK(argc == 4);
    const char *node = argv[1];
    load(&job, argv[2]);

    int fd = open_node(node);
    CHECK(create(fd) == 1);
    in_child(adds_handle_2, fd);
    CHECK(knows(fd, 2) && create(fd) == 3);
    in_child(has_own_file, -1);

    int copy = dup(fd);
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    CHECK(knows(copy, 3) && close(fd) == 0 && knows(copy, 3));
    CHECK(!knows(fd, 1) && errno == EBADF);
    CHECK(ioctl(copy, _IO('d', 0x9f)) == -1 && errno == EINVAL);
    CHECK(ioctl(0, ROCKET_FINI_BO, &(struct rocket_fini_bo){0}) == -1 && errno == ENOTTY);

    passes_files(node);
    maps_after_close(node);
    gives_pages_back(node);
    refuses_stray_maps(node);
    shares_heap_buffers(argv[3]);
    exports(node);
    maps_exports(node);

    fd = open_node(node);
    rocket_run(fd, &job);
    close(fd);
    puts("equal");
    fflush(stdout);

    int inherited = dup(copy);
    char number[16];
    snprintf(number, sizeof(number), "%d", inherited);
    execl(argv[0], argv[0], "inherited", number, NULL);
    /* An emulated program cannot start another where nothing is set up for that (binfmt_misc). */
    CHECK(errno == ENOEXEC);
    return 0;
}
