/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "copy.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
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

struct half {
    char *dst;
    const char *src;
    size_t n;
    int streamed;
};

static void *copy_half(void *argument)
{
    struct half *half = argument;
    if (half->streamed)
        stream(half->dst, half->src, half->n);
    else
        memcpy(half->dst, half->src, half->n);
    return NULL;
}

/* A thread for each copy, not a pool: starting one costs tens of microseconds, a tenth of the
 * smallest copy that the plan would split, and nothing has to be repaired after a fork. */
static void copy_in_two_threads(struct half whole)
{
    struct half lower = whole, upper = whole;
    lower.n = whole.n / 2 & ~(size_t)63;
    upper.dst += lower.n;
    upper.src += lower.n;
    upper.n -= lower.n;

    /* Signals are for the program's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t helper;
    int failed = pthread_create(&helper, NULL, copy_half, &upper);
    pthread_sigmask(SIG_SETMASK, &before, NULL);

    copy_half(&lower);
    if (failed)
        copy_half(&upper);
    else
        pthread_join(helper, NULL);
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
    struct half whole = {dst, src, n, strategy & NPUKIT_COPY_STREAM};
    if (strategy & NPUKIT_COPY_THREADS)
        copy_in_two_threads(whole);
    else
        copy_half(&whole);
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
#define BUDGET 35e-3
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

static void measure(unsigned band, char *dst, const char *src, double deadline)
{
    size_t size = npukit_copy_band[band];
    cpu_set_t cpus;
    int alone = sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) < 2;
    int strategies = alone ? NPUKIT_COPY_THREADS : NPUKIT_COPY_STRATEGIES;
    double longest = 0;
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        for (int strategy = 0; strategy < strategies; strategy++) {
            double start = now();
            if (start + longest > deadline)
                return;
            npukit_copy_with((enum npukit_copy_strategy)strategy, dst, src, size);
            double seconds = now() - start, rate = 1e-9 * (double)size / seconds;
            if (seconds > longest)
                longest = seconds;
            if (rate > rates[band][strategy])
                rates[band][strategy] = rate;
        }
    }
}

/* The fastest strategy of a band, when it earns its price: what streams is not in the cache
 * afterwards, and a second thread takes a processor from someone else. */
static enum npukit_copy_strategy fastest(unsigned band)
{
    static const double price[NPUKIT_COPY_STRATEGIES] = {1, 1.1, 1.2, 1.3};
    enum npukit_copy_strategy best = NPUKIT_COPY_PLAIN;
    for (int strategy = 1; strategy < NPUKIT_COPY_STRATEGIES; strategy++)
        if (rates[band][strategy] / price[strategy] > rates[band][best] / price[best])
            best = (enum npukit_copy_strategy)strategy;
    return best;
}

/* Measure the plan and publish it. Threads that calibrate at the same time disturb each other, but each ends with a valid plan. */
static uint32_t calibrate(void)
{
    double deadline = now() + BUDGET;
    size_t size = npukit_copy_band[1], room = 2 * size + 2 * MIB;
    enum npukit_copy_strategy chosen[NPUKIT_COPY_BANDS] = {NPUKIT_COPY_PLAIN};
    forget_rates();

    char *arena = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (arena != MAP_FAILED) {
        madvise(arena, room, MADV_HUGEPAGE); /* present in a tenth of the time */
        char *src = (char *)(((uintptr_t)arena + 2 * MIB - 1) & -(2 * MIB));
        char *dst = src + size;
        size_t touched = 0;
        for (unsigned band = 0; band < 2; band++) {
            size_t end = npukit_copy_band[band];
            if (touch(src + touched, src + end, deadline) ||
                touch(dst + touched, dst + end, deadline))
                break;
            touched = end;
            measure(band, dst, src, deadline);
        }
        munmap(arena, room);
    }

    chosen[0] = fastest(0);
    /* Without time to measure every strategy on the larger size, the smaller one speaks for it. */
    chosen[1] = rates[1][NPUKIT_COPY_STREAM] > 0 ? fastest(1) : chosen[0];
    /* Too large to measure here. libc streams such sizes itself; whether a second thread pays is
     * as before. */
    chosen[2] = chosen[1] & NPUKIT_COPY_THREADS;
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
