/* SPDX-License-Identifier: MIT */
/* usage: matmul rocket|rknpu NODE JOB: one matrix product on the NPU. */
#include "uapi.h"

static void rknpu(int fd, const struct job *job)
{
    struct rknpu_action action = {.flags = 1};
    CHECK(ioctl(fd, RKNPU_ACTION, &action) == 0 && action.value == 908);
    struct buffer buffer = rknpu_buffer(fd, JOB_BYTES, 0);
    CHECK(buffer.address == job->address);
    struct buffer table = rknpu_buffer(fd, 4096, RKNPU_KERNEL_MAPPING);
    memcpy(buffer.memory, job->image, JOB_BYTES);
    struct rknpu_submit submit = rknpu_request(job, &buffer, &table);
    CHECK(ioctl(fd, RKNPU_SUBMIT, &submit) == 0 && submit.task_counter == 1);
    CHECK(memcmp(buffer.memory + OUTPUT, job->result, RESULT_BYTES) == 0);

    /* Once more, with a fence to poll. */
    memset(buffer.memory + OUTPUT, 0, RESULT_BYTES);
    submit = rknpu_request(job, &buffer, &table);
    submit.flags |= RKNPU_NONBLOCK | RKNPU_FENCE_OUT;
    CHECK(ioctl(fd, RKNPU_SUBMIT, &submit) == 0 && submit.fence_fd >= 0);
    fd_set wanted;
    FD_ZERO(&wanted);
    FD_SET(submit.fence_fd, &wanted);
    struct timeval limit = {.tv_sec = 20};
    CHECK(select(submit.fence_fd + 1, &wanted, NULL, NULL, &limit) == 1);
    CHECK(fcntl(submit.fence_fd, F_GETFD) == FD_CLOEXEC);
    close(submit.fence_fd);
    CHECK(memcmp(buffer.memory + OUTPUT, job->result, RESULT_BYTES) == 0);
}

int main(int argc, char **argv)
{
    static struct job job;
    CHECK(argc == 4);
    load(&job, argv[3]);
    int fd = open_node(argv[2]);
    if (strcmp(argv[1], "rocket") == 0)
        rocket_run(fd, &job);
    else
        rknpu(fd, &job);
    puts("equal");
    return 0;
}
