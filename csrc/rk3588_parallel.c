/* SPDX-License-Identifier: MIT */
#include "rk3588.h"

#define MAX_THREADS 64

struct share {
    void (*work)(void *argument, int index, int threads);
    void *argument;
    int index, threads;
    pthread_t thread;
    int started;
};

static void *run_share(void *pointer)
{
    struct share *share = pointer;

    share->work(share->argument, share->index, share->threads);
    return NULL;
}

void npu_parallel(int threads, void (*work)(void *argument, int index, int threads), void *argument)
{
    struct share shares[MAX_THREADS];

    if (threads > MAX_THREADS)
        threads = MAX_THREADS;
    for (int i = 1; i < threads; i++) {
        shares[i] = (struct share){work, argument, i, threads, 0, 0};
        shares[i].started = !pthread_create(&shares[i].thread, NULL, run_share, &shares[i]);
    }
    work(argument, 0, threads);
    for (int i = 1; i < threads; i++) {
        if (shares[i].started)
            pthread_join(shares[i].thread, NULL);
        else /* no thread was to be had: its share is done here */
            work(argument, i, threads);
    }
}
