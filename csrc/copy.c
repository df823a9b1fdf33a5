/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "copy.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define MIB ((size_t)1 << 20)
#define PAGE 4096 /* what the hardware prefetchers follow, whatever the kernel's page is */

const size_t npukit_copy_band[NPUKIT_COPY_BANDS] = {NPUKIT_COPY_PLANNED, 16 * MIB, 128 * MIB};

/* ---- Streaming copies ----------------------------------------------------------------------
 *
 * A streaming store spares the read of the line that it replaces, and leaves the caches alone.
 * Walking STREAMS pages side by side keeps as many DRAM rows open, and lets the prefetcher follow
 * each: 10 to 40 % faster than one pass, and the reason why this never falls behind libc's own
 * streaming copy of very large blocks. AVX2 gains nothing over SSE2 here.
 */
#define STREAMS 8
#define SPAN ((size_t)STREAMS * PAGE)

/* Each block copier takes whole spans and a dst aligned to 64 bytes. */
typedef void block_copier(char *dst, const char *src, size_t n);

#if defined(__x86_64__)

__attribute__((target("avx512f")))
static void stream_avx512(char *dst, const char *src, size_t n)
{
    for (size_t span = 0; span < n; span += SPAN) {
        for (size_t column = 0; column < PAGE; column += 256) {
            for (size_t at = span + column; at < span + SPAN; at += PAGE) {
                __m512i line[4];
                for (int i = 0; i < 4; i++)
                    _mm_prefetch(src + at + 256 + 64 * i, _MM_HINT_T0);
                for (int i = 0; i < 4; i++)
                    line[i] = _mm512_loadu_si512(src + at + 64 * i);
                for (int i = 0; i < 4; i++)
                    _mm512_stream_si512((void *)(dst + at + 64 * i), line[i]);
            }
        }
    }
    _mm_sfence();
}

static void stream_sse2(char *dst, const char *src, size_t n)
{
    for (size_t span = 0; span < n; span += SPAN) {
        for (size_t column = 0; column < PAGE; column += 128) {
            for (size_t at = span + column; at < span + SPAN; at += PAGE) {
                __m128i part[8];
                for (int i = 0; i < 2; i++)
                    _mm_prefetch(src + at + 128 + 64 * i, _MM_HINT_T0);
                for (int i = 0; i < 8; i++)
                    part[i] = _mm_loadu_si128((const void *)(src + at + 16 * i));
                for (int i = 0; i < 8; i++)
                    _mm_stream_si128((void *)(dst + at + 16 * i), part[i]);
            }
        }
    }
    _mm_sfence();
}

#elif defined(__aarch64__)

static void stream_neon(char *dst, const char *src, size_t n)
{
    for (size_t span = 0; span < n; span += SPAN) {
        for (size_t column = 0; column < PAGE; column += 64) {
            for (size_t at = span + column; at < span + SPAN; at += PAGE) {
                __asm__ volatile("ldp q0, q1, [%1]\n\t"
                                 "ldp q2, q3, [%1, #32]\n\t"
                                 "stnp q0, q1, [%0]\n\t"
                                 "stnp q2, q3, [%0, #32]"
                                 :
                                 : "r"(dst + at), "r"(src + at)
                                 : "v0", "v1", "v2", "v3", "memory");
            }
        }
    }
}

#endif

static block_copier *streamer(void)
{
    switch (npukit_simd_level()) {
#if defined(__x86_64__)
    case NPUKIT_AVX512:
    case NPUKIT_AVX512_VNNI:
        return stream_avx512;
    case NPUKIT_SSE2:
    case NPUKIT_AVX2:
        return stream_sse2;
#elif defined(__aarch64__)
    case NPUKIT_NEON:
        return stream_neon;
#endif
    default:
        return NULL;
    }
}

static void stream(char *dst, const char *src, size_t n)
{
    block_copier *spans = streamer();
    size_t head = -(uintptr_t)dst & 63;
    if (!spans || n < head + SPAN) {
        memcpy(dst, src, n);
        return;
    }
    size_t body = (n - head) / SPAN * SPAN;
    memcpy(dst, src, head);
    spans(dst + head, src + head, body);
    memcpy(dst + head + body, src + head + body, n - head - body);
}

/* ---- Strategies --------------------------------------------------------------------------- */

static void copy_part(char *dst, const char *src, size_t n, int streamed)
{
    if (streamed)
        stream(dst, src, n);
    else
        memcpy(dst, src, n);
}

struct upper_half {
    char *dst;
    const char *src;
    size_t n;
    int streamed;
    _Atomic int taken; /* by the first of the two threads that comes to it */
};

static void *help(void *argument)
{
    struct upper_half *upper = argument;
    if (atomic_exchange(&upper->taken, 1))
        free(upper);
    else
        copy_part(upper->dst, upper->src, upper->n, upper->streamed);
    return NULL;
}

/* A thread for each copy, not a pool: starting one costs tens of microseconds, a tenth of the
 * smallest copy that the plan would split, and nothing has to be repaired after a fork. On a busy
 * machine it may not have started when the lower half is done. Then we take the upper one, too, and
 * leave the job to the helper, which frees it whenever it comes. */
static void copy_in_two_threads(char *dst, const char *src, size_t n, int streamed)
{
    size_t split = n / 2 & ~(size_t)63;
    struct upper_half *upper = malloc(sizeof *upper);
    if (!upper) {
        copy_part(dst, src, n, streamed);
        return;
    }
    *upper = (struct upper_half){dst + split, src + split, n - split, streamed, 0};

    /* Signals are for the program's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t helper;
    int failed = pthread_create(&helper, NULL, help, upper);
    pthread_sigmask(SIG_SETMASK, &before, NULL);

    copy_part(dst, src, split, streamed);
    if (!failed && atomic_exchange(&upper->taken, 1)) {
        pthread_join(helper, NULL);
        free(upper);
        return;
    }
    if (failed)
        free(upper);
    else
        pthread_detach(helper);
    copy_part(dst + split, src + split, n - split, streamed);
}

static int overlap(const char *a, const char *b, size_t n)
{
    return (uintptr_t)a - (uintptr_t)b < n || (uintptr_t)b - (uintptr_t)a < n;
}

void npukit_copy_with(enum npukit_copy_strategy strategy, void *dst, const void *src, size_t n)
{
    if (strategy == NPUKIT_COPY_PLAIN || overlap(dst, src, n)) {
        memmove(dst, src, n);
        return;
    }
    if (strategy & NPUKIT_COPY_THREADS)
        copy_in_two_threads(dst, src, n, strategy & NPUKIT_COPY_STREAM);
    else
        stream(dst, src, n);
}

/* ---- The plan ----------------------------------------------------------------------------- */

/* Byte b is 1 + the strategy of band b; 0 as a whole: not known yet. One word, so that no reader
 * sees half a plan and no lock can be left behind by a fork. */
static _Atomic uint32_t plan;
static _Atomic double rates[NPUKIT_COPY_BANDS][NPUKIT_COPY_STRATEGIES];

static uint32_t plan_word(const enum npukit_copy_strategy *strategies)
{
    uint32_t word = 0;
    for (unsigned band = 0; band < NPUKIT_COPY_BANDS; band++)
        word |= (uint32_t)(strategies[band] + 1) << 8 * band;
    return word;
}

static void forget_rates(void)
{
    for (unsigned band = 0; band < NPUKIT_COPY_BANDS; band++)
        for (unsigned strategy = 0; strategy < NPUKIT_COPY_STRATEGIES; strategy++)
            rates[band][strategy] = 0;
}

/* The promise is 50 ms; the rest is for what cannot be foreseen of the last measurement. */
#define BUDGET 30e-3
#define REPEATS 3

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Make the pages of a range present. Returns 0, or -1 when the deadline passed before the end. */
static int touch(char *from, char *to, double deadline)
{
    for (char *page = from; page < to; page += PAGE) {
        if ((uintptr_t)page % MIB == 0 && now() > deadline)
            return -1;
        *page = 1;
    }
    return 0;
}

/* Sizes that stand for the lower bands. The larger is 16 MiB and more by behaviour, not by size:
 * memory that was never touched can cost a millisecond a MiB in a virtual machine. */
static const size_t sample[] = {NPUKIT_COPY_PLANNED, 8 * MIB};

/* Copy once, if the time allows, and note the rate if it is the best so far. */
static void measure(unsigned band, enum npukit_copy_strategy strategy, char *dst, const char *src,
                    double deadline)
{
    double size = (double)sample[band], known = rates[1][NPUKIT_COPY_PLAIN];
    double expected = 1e-9 * size / (known > 0 ? known : 2), start = now();
    if (start + 2 * expected > deadline)
        return;
    npukit_copy_with(strategy, dst, src, sample[band]);
    double rate = 1e-9 * size / (now() - start);
    if (rate > rates[band][strategy])
        rates[band][strategy] = rate;
}

/* The fastest strategy of a band, when it earns its price: what streams is not in the cache
 * afterwards, and a second thread takes a processor that others may want the next time. */
static enum npukit_copy_strategy fastest(unsigned band, int may_stream)
{
    static const double price[NPUKIT_COPY_STRATEGIES] = {1, 1.2, 1.5, 1.6};
    int best = NPUKIT_COPY_PLAIN;
    for (int strategy = 1; strategy < NPUKIT_COPY_STRATEGIES; strategy++)
        if ((may_stream || !(strategy & NPUKIT_COPY_STREAM)) &&
            rates[band][strategy] / price[strategy] > rates[band][best] / price[best])
            best = strategy;
    return (enum npukit_copy_strategy)best;
}

static int alone(void)
{
    cpu_set_t cpus;
    return sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) < 2;
}

/* The larger size first, where most is to be gained, and threads last, since on a busy machine
 * nobody knows how long a helper waits for a processor; for the smaller size they never pay. */
static void measure_all(char *dst, char *src, double deadline)
{
    if (touch(src, src + sample[1], deadline) || touch(dst, dst + sample[1], deadline))
        return;
    /* In turns, so that the plain copy finds dst where the streaming one put it, outside of the
     * caches: there it is in any larger copy. */
    for (int turn = 0; turn < 2 * REPEATS; turn++)
        measure(1, turn % 2 ? NPUKIT_COPY_STREAM : NPUKIT_COPY_PLAIN, dst, src, deadline);
    /* One after the other, as in a program that fills the same buffer again and again: what a plain
     * copy leaves in the caches counts in its favour. These are short, and soon disturbed. */
    for (int turn = 0; turn < 4 * REPEATS; turn++)
        measure(0, turn < 2 * REPEATS ? NPUKIT_COPY_PLAIN : NPUKIT_COPY_STREAM, dst, src, deadline);
    for (int turn = 0; turn < 2 * REPEATS && !alone(); turn++)
        measure(1, turn % 2 ? NPUKIT_COPY_STREAM_THREADS : NPUKIT_COPY_THREADS, dst, src, deadline);
}

/* Measure the plan and publish it. Threads that calibrate at the same time disturb each other, but
 * each ends with a valid plan. */
static uint32_t calibrate(void)
{
    double deadline = now() + BUDGET;
    size_t size = sample[1], room = 2 * size + 2 * MIB;
    forget_rates();
    char *arena = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (arena != MAP_FAILED) {
        madvise(arena, room, MADV_HUGEPAGE); /* present in less than half the time */
        char *src = (char *)(((uintptr_t)arena + 2 * MIB - 1) & -(2 * MIB));
        measure_all(src + size, src, deadline);
        munmap(arena, room);
    }

    /* What there was no time to measure is copied plainly. The last band is too large to measure,
     * but libc streams such sizes by itself. */
    enum npukit_copy_strategy chosen[] = {fastest(0, 1), fastest(1, 1), fastest(1, 0)};
    uint32_t word = plan_word(chosen);
    atomic_store_explicit(&plan, word, memory_order_relaxed);
    return word;
}

static int planned(uint32_t word, unsigned band)
{
    return (int)(word >> 8 * band & 0xff) - 1;
}

int npukit_copy_plan(unsigned band)
{
    return planned(atomic_load_explicit(&plan, memory_order_relaxed), band);
}

double npukit_copy_rate(unsigned band, enum npukit_copy_strategy strategy)
{
    return rates[band][strategy];
}

void npukit_copy_set_plan(const enum npukit_copy_strategy *strategies)
{
    if (strategies) /* the rates belong to a measured plan */
        forget_rates();
    atomic_store_explicit(&plan, strategies ? plan_word(strategies) : 0, memory_order_relaxed);
}

void npukit_copy_planned(void *dst, const void *src, size_t n)
{
    uint32_t word = atomic_load_explicit(&plan, memory_order_relaxed);
    if (!word)
        word = calibrate();
    unsigned band = 0;
    while (band + 1 < NPUKIT_COPY_BANDS && n >= npukit_copy_band[band + 1])
        band++;
    npukit_copy_with((enum npukit_copy_strategy)planned(word, band), dst, src, n);
}

void npukit_copy_2d(void *dst, const void *src, size_t rows, size_t row_bytes, size_t dst_pitch,
                    size_t src_pitch)
{
    if (dst_pitch == row_bytes && src_pitch == row_bytes) {
        npukit_copy(dst, src, rows * row_bytes);
        return;
    }
    for (size_t row = 0; row < rows; row++)
        npukit_copy((char *)dst + row * dst_pitch, (const char *)src + row * src_pitch, row_bytes);
}
