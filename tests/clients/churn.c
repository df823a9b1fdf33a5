/* SPDX-License-Identifier: MIT */
/* usage: churn NODE JOB HEAP KILLS SEED: children that do all they can are killed at random moments;
 * what they held must not hinder who comes after. */
#include "uapi.h"

#include <pthread.h>

static struct job job;
static const char *node, *heap;

static void *more_waits(void *argument)
{
    int fd = *(int *)argument;
    struct buffer buffer = rocket_buffer(fd, JOB_BYTES);
    memcpy(buffer.memory, job.image, JOB_BYTES);
    memset(buffer.memory + job.regcmd + 8 * 107, 0, 8);
    rocket_start(fd, &job, &buffer);
    rocket_wait(fd, &buffer, 20);
    return NULL;
}

static void churn(void)
{
    pthread_t thread;
    int shared = open_node(node);
    pthread_create(&thread, NULL, more_waits, &shared);
    for (;;) {
        int fd = open_node(node);
        struct buffer buffer = rocket_buffer(fd, JOB_BYTES);
        memcpy(buffer.memory, job.image, JOB_BYTES);
        rocket_start(fd, &job, &buffer);
        rocket_wait(fd, &buffer, 1);
        map_export(fd, &buffer);
        int heap_fd = open_node(heap);
        struct dma_heap_alloc alloc = {.len = 65536, .fd_flags = O_RDWR | O_CLOEXEC};
        ioctl(heap_fd, DMA_HEAP_ALLOC, &alloc);
        char *memory = mmap(NULL, 65536, PROT_WRITE, MAP_SHARED, alloc.fd, 0);
        if (memory != MAP_FAILED) {
            memset(memory, 1, 65536);
            munmap(memory, 65536);
        }
        close(alloc.fd);
        close(heap_fd);
        munmap(buffer.memory, JOB_BYTES);
        close(fd);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 6);
    node = argv[1];
    load(&job, argv[2]);
    heap = argv[3];
    srand(atoi(argv[5]));
    for (int i = 0; i < atoi(argv[4]); i++) {
        int status;
        pid_t pid = fork();
        if (pid == 0)
            churn();
        usleep(rand() % 8000);
        CHECK(kill(pid, SIGKILL) == 0);
        CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
    }
    int fd = open_node(node);
    rocket_run(fd, &job);
    puts("equal");
    return 0;
}
