/* SPDX-License-Identifier: MIT */
/* What the clients of the tests know of rknpu and rocket: as much as a program of its own would. */
#ifndef UAPI_H
#define UAPI_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct rocket_create_bo { uint32_t size, handle; uint64_t dma_address, offset; };
struct rocket_prep_bo { uint32_t handle, reserved; int64_t timeout_ns; };
struct rocket_fini_bo { uint32_t handle, reserved; };
struct rocket_task { uint32_t regcmd, regcmd_count; };
struct rocket_job {
    uint64_t tasks, in_handles, out_handles;
    uint32_t task_count, task_struct_size, in_count, out_count;
};
struct rocket_submit { uint64_t jobs; uint32_t job_count, job_struct_size; uint64_t reserved; };
#define ROCKET_CREATE_BO _IOWR('d', 0x40, struct rocket_create_bo)
#define ROCKET_SUBMIT _IOW('d', 0x41, struct rocket_submit)
#define ROCKET_PREP_BO _IOW('d', 0x42, struct rocket_prep_bo)
#define ROCKET_FINI_BO _IOW('d', 0x43, struct rocket_fini_bo)

struct rknpu_action { uint32_t flags, value; };
struct rknpu_mem_create {
    uint32_t handle, flags;
    uint64_t size, obj_addr, dma_addr, sram_size;
    int32_t domain;
    uint32_t core_mask;
};
struct rknpu_mem_map { uint32_t handle, reserved; uint64_t offset; };
struct rknpu_mem_destroy { uint32_t handle, reserved; uint64_t obj_addr; };
struct rknpu_task {
    uint32_t flags, op_idx, enable_mask, int_mask, int_clear, int_status, amount, offset;
    uint64_t regcmd_addr;
} __attribute__((packed));
struct rknpu_submit {
    uint32_t flags, timeout, task_start, task_number, task_counter;
    int32_t priority;
    uint64_t task_obj_addr;
    uint32_t domain, reserved;
    uint64_t task_base_addr;
    int64_t hw_elapse_time;
    uint32_t core_mask;
    int32_t fence_fd;
    struct { uint32_t start, number; } window[5];
};
#define RKNPU_ACTION _IOWR('d', 0x40, struct rknpu_action)
#define RKNPU_SUBMIT _IOWR('d', 0x41, struct rknpu_submit)
#define RKNPU_MEM_CREATE _IOWR('d', 0x42, struct rknpu_mem_create)
#define RKNPU_MEM_MAP _IOWR('d', 0x43, struct rknpu_mem_map)
#define RKNPU_MEM_DESTROY _IOWR('d', 0x44, struct rknpu_mem_destroy)
#define RKNPU_NON_CONTIGUOUS 1u
#define RKNPU_KERNEL_MAPPING 8u
#define RKNPU_EXACT 0x400u
#define RKNPU_PC 1u
#define RKNPU_NONBLOCK 2u
#define RKNPU_FENCE_OUT 0x10u

struct gem_close { uint32_t handle, pad; };
struct prime_handle { uint32_t handle, flags; int32_t fd; };
#define GEM_CLOSE _IOW('d', 0x09, struct gem_close)
#define PRIME_HANDLE_TO_FD _IOWR('d', 0x2d, struct prime_handle)
#define PRIME_FD_TO_HANDLE _IOWR('d', 0x2e, struct prime_handle)

struct dma_heap_alloc { uint64_t len; uint32_t fd, fd_flags; uint64_t heap_flags; };
#define DMA_HEAP_ALLOC _IOWR('H', 0, struct dma_heap_alloc)
struct dma_buf_sync { uint64_t flags; };
#define DMA_BUF_SYNC _IOW('b', 0, struct dma_buf_sync)

/* The job that the test prepared: a buffer's bytes, the result that must come out, and numbers. */
#define JOB_BYTES 0x4000
#define OUTPUT 0x2000
#define RESULT_BYTES 512
struct job {
    uint32_t regcmd, regcmd_count, enable_mask, int_mask, amount, pad;
    uint64_t address;
    unsigned char image[JOB_BYTES], result[RESULT_BYTES];
};

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, strerror(errno)); \
            _exit(1); \
        } \
    } while (0)

static inline void load(struct job *job, const char *path)
{
    FILE *file = fopen(path, "rb");
    CHECK(file && fread(job, sizeof(*job), 1, file) == 1);
    fclose(file);
}

static inline int open_node(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    return fd;
}

static inline int64_t seconds_from_now(double seconds)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec + (int64_t)(seconds * 1e9);
}

/* A signal that comes before the request is received ends it, as no driver is there yet; it has had
 * no effect then. With SA_RESTART the kernel makes it again, without it the program has to. */
static inline int request(int fd, unsigned long number, void *argument)
{
    int result;
    do
        result = ioctl(fd, number, argument);
    while (result < 0 && errno == EINTR);
    return result;
}

/* The same goes for mmap, which no kernel interrupts otherwise. */
static inline char *map(size_t size, int fd, uint64_t offset)
{
    char *memory;
    do
        memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);
    while (memory == MAP_FAILED && errno == EINTR);
    CHECK(memory != MAP_FAILED);
    return memory;
}

struct buffer { uint32_t handle; uint64_t address, object; char *memory; };

static inline struct buffer rocket_buffer(int fd, size_t size)
{
    struct rocket_create_bo create = {.size = size};
    CHECK(request(fd, ROCKET_CREATE_BO, &create) == 0);
    char *memory = map(size, fd, create.offset);
    return (struct buffer){create.handle, create.dma_address, 0, memory};
}

static inline struct buffer rknpu_buffer(int fd, size_t size, uint32_t flags)
{
    struct rknpu_mem_create create = {
        .size = size, .flags = RKNPU_NON_CONTIGUOUS | RKNPU_EXACT | flags};
    CHECK(request(fd, RKNPU_MEM_CREATE, &create) == 0);
    struct rknpu_mem_map where = {.handle = create.handle};
    CHECK(request(fd, RKNPU_MEM_MAP, &where) == 0);
    char *memory = map(size, fd, where.offset);
    return (struct buffer){create.handle, create.dma_addr, create.obj_addr, memory};
}

static inline void gem_close(int fd, struct buffer *buffer)
{
    struct gem_close close = {.handle = buffer->handle};
    CHECK(request(fd, GEM_CLOSE, &close) == 0);
}

static inline int rocket_start(int fd, const struct job *job, const struct buffer *buffer)
{
    struct rocket_task task = {(uint32_t)buffer->address + job->regcmd, job->regcmd_count};
    uint32_t handle = buffer->handle;
    struct rocket_job row = {
        .tasks = (uintptr_t)&task, .task_count = 1, .task_struct_size = sizeof(task),
        .out_handles = (uintptr_t)&handle, .out_count = 1};
    struct rocket_submit submit = {
        .jobs = (uintptr_t)&row, .job_count = 1, .job_struct_size = sizeof(row)};
    return request(fd, ROCKET_SUBMIT, &submit);
}

static inline int rocket_wait(int fd, const struct buffer *buffer, double seconds)
{
    struct rocket_prep_bo prep = {buffer->handle, 0, seconds_from_now(seconds)};
    return ioctl(fd, ROCKET_PREP_BO, &prep);
}

/* Export a buffer and look at it through the dma-buf. */
static inline void map_export(int fd, const struct buffer *buffer)
{
    struct prime_handle prime = {.handle = buffer->handle, .flags = O_CLOEXEC | O_RDWR};
    CHECK(request(fd, PRIME_HANDLE_TO_FD, &prime) == 0);
    char *memory = map(4096, prime.fd, 0);
    buffer->memory[1] = 77;
    CHECK(memory[1] == 77);
    CHECK(munmap(memory, 4096) == 0);
    close(prime.fd);
}

/* One job in a buffer that must stand where the job was made for. */
static inline void rocket_run(int fd, const struct job *job)
{
    struct buffer buffer = rocket_buffer(fd, JOB_BYTES);
    CHECK(buffer.address == job->address);
    memcpy(buffer.memory, job->image, JOB_BYTES);
    CHECK(rocket_start(fd, job, &buffer) == 0);
    CHECK(rocket_wait(fd, &buffer, 20) == 0);
    CHECK(memcmp(buffer.memory + OUTPUT, job->result, RESULT_BYTES) == 0);
    CHECK(munmap(buffer.memory, JOB_BYTES) == 0);
    gem_close(fd, &buffer);
}

static inline struct rknpu_submit rknpu_request(const struct job *job, struct buffer *buffer,
                                                struct buffer *table)
{
    struct rknpu_task task = {
        .enable_mask = job->enable_mask, .int_mask = job->int_mask, .int_clear = 0x1ffff,
        .amount = job->amount, .regcmd_addr = buffer->address + job->regcmd};
    memcpy(table->memory, &task, sizeof(task));
    struct rknpu_submit submit = {
        .flags = RKNPU_PC, .timeout = 6000, .task_number = 1, .task_obj_addr = table->object,
        .core_mask = 1, .fence_fd = -1};
    submit.window[0].number = 1;
    return submit;
}

#endif
