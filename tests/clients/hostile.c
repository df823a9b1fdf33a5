/* SPDX-License-Identifier: MIT */
/* usage: hostile NODE JOB RKNPU_NODE HEAP: bad pointers, huge counts, overlapping structures, requests
 * on the wrong file, closed files, and a great many buffers. */
#include "uapi.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/resource.h>

static int fails(int fd, unsigned long number, const void *argument)
{
    errno = 0;
    return ioctl(fd, number, argument) == -1 ? errno : 0;
}

static void bad_pointers(int fd)
{
    char *hole = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(munmap(hole + 4096, 4096) == 0);
    CHECK(fails(fd, ROCKET_CREATE_BO, NULL) == EFAULT);
    CHECK(fails(fd, ROCKET_CREATE_BO, (void *)-1) == EFAULT);
    CHECK(fails(fd, ROCKET_CREATE_BO, (void *)0xffffffff81000000) == EFAULT);
    CHECK(fails(fd, ROCKET_CREATE_BO, (void *)0x4141414141414141) == EFAULT);
    /* The second half is not there. */
    CHECK(fails(fd, ROCKET_CREATE_BO, hole + 4096 - 8) == EFAULT);
    /* Read-only: the buffer is made, the answer does not arrive. */
    struct rocket_create_bo *create = (void *)hole;
    create->size = 4096;
    CHECK(mprotect(hole, 4096, PROT_READ) == 0);
    CHECK(fails(fd, ROCKET_CREATE_BO, create) == EFAULT);
    CHECK(fails(fd, GEM_CLOSE, &(struct gem_close){.handle = 1}) == 0);
    /* A descriptor that was made and cannot be told is of no use. */
    int heap = open_node("/dev/dma_heap/system"), next = dup(0);
    close(next);
    CHECK(mprotect(hole, 4096, PROT_READ | PROT_WRITE) == 0);
    *(struct dma_heap_alloc *)hole = (struct dma_heap_alloc){.len = 4096};
    CHECK(mprotect(hole, 4096, PROT_READ) == 0);
    CHECK(fails(heap, DMA_HEAP_ALLOC, hole) == EFAULT);
    int code = fails(next, _IOW('b', 0, uint64_t), &(uint64_t){2});
    CHECK(code == ENOTTY || code == EBADF);
    close(next);
    close(heap);
    CHECK(mprotect(hole, 4096, PROT_NONE) == 0);
    CHECK(fails(fd, ROCKET_PREP_BO, hole) == EFAULT);
    munmap(hole, 4096);
}

static void huge_counts(int fd, const struct job *job)
{
    struct rocket_job row = {.task_count = 1, .task_struct_size = 8};
    struct rocket_submit submit = {
        .jobs = (uintptr_t)&row, .job_count = 0xffffffff, .job_struct_size = 40};
    CHECK(fails(fd, ROCKET_SUBMIT, &submit) == EFAULT);
    submit.job_struct_size = 0xffffffff;
    CHECK(fails(fd, ROCKET_SUBMIT, &submit) == EFAULT);
    submit.job_struct_size = 39;
    CHECK(fails(fd, ROCKET_SUBMIT, &submit) == EINVAL);
    submit.job_struct_size = 40;
    submit.job_count = 1;
    /* What is wrong within a job is not told. */
    row.task_count = 0xffffffff;
    row.tasks = (uintptr_t)job->image;
    CHECK(fails(fd, ROCKET_SUBMIT, &submit) == 0);
    struct rocket_task task = {0, 1};
    row = (struct rocket_job){.tasks = (uintptr_t)&task, .task_count = 1, .task_struct_size = 8,
                              .in_handles = (uintptr_t)&task, .in_count = 0xffffffff};
    CHECK(fails(fd, ROCKET_SUBMIT, &submit) == 0);
    row.in_count = 0x01000000;
    CHECK(fails(fd, ROCKET_SUBMIT, &submit) == 0);
    CHECK(fails(fd, ROCKET_CREATE_BO, &(struct rocket_create_bo){.size = 0}) == ENOSPC);
    CHECK(fails(fd, ROCKET_CREATE_BO, &(struct rocket_create_bo){.size = 0x80000000}) == ENOMEM);
    CHECK(fails(fd, ROCKET_PREP_BO, &(struct rocket_prep_bo){.handle = 77}) == ENOENT);
}

/* Structures that share bytes with one another, and with the answer. */
static void overlapping(int fd)
{
    union {
        struct rocket_submit submit;
        struct rocket_job job;
        struct rocket_task task;
    } all = {.submit = {.jobs = (uintptr_t)&all, .job_count = 1, .job_struct_size = 40}};
    CHECK(fails(fd, ROCKET_SUBMIT, &all) == 0);
    struct { uint64_t words[8]; } version;
    for (int i = 0; i < 8; i++)
        version.words[i] = (uintptr_t)&version;
    fails(fd, _IOC(3, 'd', 0, 64), &version);
    /* Direction and size are the caller's to say. */
    struct rocket_create_bo create = {.size = 4096};
    CHECK(fails(fd, _IOC(_IOC_READ, 'd', 0x40, 24), &create) == ENOSPC && create.size == 0);
    create.size = 4096;
    CHECK(fails(fd, _IOC(_IOC_WRITE, 'd', 0x40, 24), &create) == 0 && create.handle == 0);
    CHECK(fails(fd, _IOC(3, 'd', 0x40, 0), &create) == ENOSPC);
}

static void wrong_files(int fd, int rknpu, int heap)
{
    struct dma_heap_alloc alloc = {.len = 4096};
    CHECK(fails(fd, DMA_HEAP_ALLOC, &alloc) == ENOTTY);
    CHECK(fails(heap, RKNPU_MEM_CREATE, &alloc) == EINVAL);
    /* The number alone decides: for this driver it is MEM_MAP, and there is no such handle. */
    CHECK(fails(rknpu, ROCKET_FINI_BO, &alloc) == ENOENT);
    CHECK(fails(0, ROCKET_CREATE_BO, &alloc) == ENOTTY);
    CHECK(fails(-1, ROCKET_CREATE_BO, &alloc) == EBADF);
    CHECK(fails(999, ROCKET_CREATE_BO, &alloc) == EBADF);
    int path = open("/dev/accel/accel0", O_PATH);
    CHECK(path >= 0 && fails(path, ROCKET_CREATE_BO, &alloc) == EBADF);
    close(path);
    int pair[2];
    CHECK(pipe(pair) == 0 && fails(pair[0], _IOWR('>', 3, char[48]), &alloc) == ENOTTY);
    close(pair[0]);
    close(pair[1]);
    /* Numbers of descriptors that have more than their 31 bits. */
    struct prime_handle prime = {.fd = INT32_MIN};
    CHECK(fails(fd, PRIME_FD_TO_HANDLE, &prime) == EBADF);
    int udmabuf = open_node("/dev/udmabuf");
    struct { uint32_t memfd, flags; uint64_t offset, size; } create = {0x80000000, 0, 0, 4096};
    CHECK(fails(udmabuf, _IOW('u', 0x42, create), &create) == EBADFD);
    create.memfd = 0xffffffff;
    CHECK(fails(udmabuf, _IOW('u', 0x42, create), &create) == EBADFD);
    /* The node itself is no memfd. */
    create.memfd = (uint32_t)udmabuf;
    CHECK(fails(udmabuf, _IOW('u', 0x42, create), &create) == EBADFD);
    close(udmabuf);
}

/* Reads, writes and seeks that a driver refuses or ignores do not lead to another's buffers. */
static void moves_positions(const char *node)
{
    int one = open_node(node), two = open_node(node);
    struct rocket_create_bo create = {.size = 4096};
    struct rocket_fini_bo first = {.handle = 1}, second = {.handle = 2};
    CHECK(fails(one, ROCKET_CREATE_BO, &create) == 0);
    CHECK(fails(two, ROCKET_CREATE_BO, &create) == 0);
    CHECK(fails(two, ROCKET_CREATE_BO, &create) == 0);
    for (int step = -4; step <= 4; step++) {
        char byte = 'x';
        lseek(one, step, SEEK_CUR);
        CHECK(fails(one, ROCKET_FINI_BO, &second) == ENOENT);
        if (write(one, &byte, 1) == 1)
            CHECK(fails(one, ROCKET_FINI_BO, &second) == ENOENT);
        lseek(one, step, SEEK_SET);
        CHECK(fails(one, ROCKET_FINI_BO, &second) == ENOENT);
        CHECK(fails(one, ROCKET_FINI_BO, &first) == 0);
    }
    CHECK(fails(two, ROCKET_FINI_BO, &second) == 0);
    close(one);
    close(two);
}

struct swap {
    const char *node;
    int fd;
    atomic_bool over;
};

/* Puts new open files of a node under the number, and a pipe and a plain file in turns. */
static void *swaps(void *argument)
{
    struct swap *swap = argument;
    int pair[2], file = memfd_create("plain", MFD_CLOEXEC);
    CHECK(pipe(pair) == 0);
    for (int i = 0; !atomic_load(&swap->over); i++) {
        int fd = open_node(swap->node);
        CHECK(dup2(fd, swap->fd) == swap->fd);
        CHECK(dup2(i % 2 ? pair[0] : file, swap->fd) == swap->fd);
        close(fd);
        CHECK(lseek(file, 0, SEEK_CUR) == 0);
    }
    close(pair[0]);
    close(pair[1]);
    close(file);
    return NULL;
}

/* A request is for the file that it finds, and no other is touched. */
static void swaps_descriptors(const char *node)
{
    struct swap swap = {.node = node, .fd = dup(0)};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, swaps, &swap) == 0);
    for (int i = 0; i < 5000; i++) {
        struct rocket_create_bo create = {.size = 4096};
        int code = fails(swap.fd, ROCKET_CREATE_BO, &create);
        CHECK(code == 0 || code == ENOTTY || code == EBADF);
    }
    atomic_store(&swap.over, true);
    CHECK(pthread_join(thread, NULL) == 0);
    close(swap.fd);
}

static void no_descriptors_left(int fd, int heap)
{
    struct rlimit old, none = {0, 0};
    CHECK(getrlimit(RLIMIT_NOFILE, &old) == 0);
    none.rlim_max = old.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    struct dma_heap_alloc alloc = {.len = 4096};
    CHECK(fails(heap, DMA_HEAP_ALLOC, &alloc) == EMFILE && alloc.fd == 0);
    struct rocket_create_bo create = {.size = 4096};
    CHECK(fails(fd, ROCKET_CREATE_BO, &create) == 0);
    struct prime_handle prime = {.handle = create.handle};
    CHECK(fails(fd, PRIME_HANDLE_TO_FD, &prime) == EMFILE);
    CHECK(setrlimit(RLIMIT_NOFILE, &old) == 0);
    CHECK(fails(fd, PRIME_HANDLE_TO_FD, &prime) == 0);
    close(prime.fd);
}

/* The memory of a job is cut off under it. */
static void truncates(const char *node, const struct job *job)
{
    int fd = open_node(node);
    struct buffer buffer = rocket_buffer(fd, JOB_BYTES);
    memcpy(buffer.memory, job->image, JOB_BYTES);
    CHECK(truncate(node, 0) == 0);
    CHECK(rocket_start(fd, job, &buffer) == 0);
    CHECK(rocket_wait(fd, &buffer, 20) == 0);
    close(fd);
}

static void many_buffers(const char *node)
{
    int fd = open_node(node);
    for (uint32_t i = 1; i <= 10000; i++) {
        struct rocket_create_bo create = {.size = 4096};
        CHECK(fails(fd, ROCKET_CREATE_BO, &create) == 0 && create.handle == i);
    }
    close(fd);
}

int main(int argc, char **argv)
{
    static struct job job;
    CHECK(argc == 5);
    load(&job, argv[2]);
    int fd = open_node(argv[1]), rknpu = open_node(argv[3]), heap = open_node(argv[4]);
    bad_pointers(fd);
    huge_counts(fd, &job);
    overlapping(fd);
    wrong_files(fd, rknpu, heap);
    moves_positions(argv[1]);
    swaps_descriptors(argv[1]);
    no_descriptors_left(fd, heap);
    /* A pointer of the vendor's driver that is none: a real kernel would crash. */
    struct rknpu_submit submit = {.flags = 1, .task_number = 1, .task_obj_addr = 0xdead};
    CHECK(fails(rknpu, RKNPU_SUBMIT, &submit) == EFAULT);
    many_buffers(argv[1]);
    truncates(argv[1], &job);
    close(fd);
    fd = open_node(argv[1]);
    rocket_run(fd, &job);
    puts("equal");
    return 0;
}
