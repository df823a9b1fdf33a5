/* SPDX-License-Identifier: MIT */
/* usage: threads NODE JOB THREADS JOBS: jobs from many threads at once, each with its own file, and
 * all with one shared file as well. */
#include "uapi.h"

#include <pthread.h>

static struct job job;
static const char *node;
static int shared, jobs;

static void *work(void *unused)
{
    for (int i = 0; i < jobs; i++) {
        int fd = open_node(node);
        rocket_run(fd, &job);
        struct buffer other = rocket_buffer(shared, 4096);
        memset(other.memory, i, 4096);
        map_export(shared, &other);
        CHECK(rocket_wait(shared, &other, 1) == 0);
        CHECK(munmap(other.memory, 4096) == 0);
        gem_close(shared, &other);
        CHECK(close(fd) == 0);
    }
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t threads[64];
    CHECK(argc == 5);
    node = argv[1];
    load(&job, argv[2]);
    int count = atoi(argv[3]);
    jobs = atoi(argv[4]);
    shared = open_node(node);
    for (int i = 0; i < count; i++)
        CHECK(pthread_create(&threads[i], NULL, work, NULL) == 0);
    for (int i = 0; i < count; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    puts("equal");
    return 0;
}
