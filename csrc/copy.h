/* SPDX-License-Identifier: MIT */
/* Copies whose method depends on their size. Ranges may overlap, as for memmove. */
#ifndef NPUKIT_COPY_H
#define NPUKIT_COPY_H

#include <stddef.h>
#include <string.h>

/* Bits: streaming (non-temporal) stores, and a second thread for the upper half. */
enum npukit_copy_strategy {
    NPUKIT_COPY_PLAIN = 0,
    NPUKIT_COPY_STREAM = 1,
    NPUKIT_COPY_THREADS = 2,
    NPUKIT_COPY_STREAM_THREADS = 3,
};
#define NPUKIT_COPY_STRATEGIES 4

/* The plan names a strategy for each band of sizes; below the first band libc's copy always wins. */
#define NPUKIT_COPY_BANDS 3
#define NPUKIT_COPY_PLANNED ((size_t)4 << 20)

/* Smallest size of each band, in bytes. */
extern const size_t npukit_copy_band[NPUKIT_COPY_BANDS];

/* Copy n bytes. The first call with n >= NPUKIT_COPY_PLANNED measures the plan (at most 50 ms). */
static inline void npukit_copy(void *dst, const void *src, size_t n);

/* Copy n bytes by one strategy, whatever the plan says. Overlapping ranges are copied plainly. */
void npukit_copy_with(enum npukit_copy_strategy strategy, void *dst, const void *src, size_t n);

/* `rows` rows of `row_bytes`, in order; each row is one npukit_copy. */
void npukit_copy_2d(void *dst, const void *src, size_t rows, size_t row_bytes, size_t dst_pitch,
                    size_t src_pitch);

/* The strategy of a band, or -1 when the plan is not known yet. */
int npukit_copy_plan(unsigned band);

/* GB/s that the calibration measured for a strategy in a band, or 0 when it did not measure it. */
double npukit_copy_rate(unsigned band, enum npukit_copy_strategy strategy);

/* Set the strategies of all bands; NULL forgets the plan, so that the next large copy measures. */
void npukit_copy_set_plan(const enum npukit_copy_strategy *strategies);

/* The part of npukit_copy that is not worth inlining: n >= NPUKIT_COPY_PLANNED. */
void npukit_copy_planned(void *dst, const void *src, size_t n);

static inline void npukit_copy(void *dst, const void *src, size_t n)
{
    if (n < NPUKIT_COPY_PLANNED)
        memmove(dst, src, n);
    else
        npukit_copy_planned(dst, src, n);
}

#endif
