/* SPDX-License-Identifier: MIT */
/* What the SIMD variants of the RK3588's arithmetic are made with. */
#ifndef NPUKIT_RK3588_SIMD_H
#define NPUKIT_RK3588_SIMD_H

/*
 * A template: where it is inlined, its constant arguments unroll its loops into registers, and the
 * compiler makes vectors of what the function's target has. Contraction is off for all of it, so
 * that results do not depend on the variant.
 */
#define TEMPLATE static inline __attribute__((always_inline))

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2,fma,f16c")))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#endif

#endif
