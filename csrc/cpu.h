/* SPDX-License-Identifier: MIT */
/* Which SIMD variant to run: asked once, the same answer for every kernel of this library. */
#ifndef NPUKIT_CPU_H
#define NPUKIT_CPU_H

enum npukit_simd {
    NPUKIT_PORTABLE = 0,
    NPUKIT_NEON = 1,
    NPUKIT_SSE2 = 2,
    NPUKIT_AVX2 = 3,   /* with FMA and F16C */
    NPUKIT_AVX512 = 4, /* F, BW, DQ and VL */
    NPUKIT_AVX512_VNNI = 5,
};

/* The best level this processor has, or the one set last. */
enum npukit_simd npukit_simd_level(void);

/* Use `level` from now on (tests and benchmarks). Returns 0, or -1 when the processor lacks it. */
int npukit_simd_set(enum npukit_simd level);

/* "portable", "neon", "sse2", ... */
const char *npukit_simd_name(enum npukit_simd level);

/* Bits of the levels that this processor has: 1 << level. */
unsigned npukit_simd_available(void);

#endif
