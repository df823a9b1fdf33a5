/* SPDX-License-Identifier: MIT */
#include "cpu.h"

#include <stdatomic.h>

unsigned npukit_simd_available(void)
{
    unsigned levels = 1u << NPUKIT_PORTABLE;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse2"))
        levels |= 1u << NPUKIT_SSE2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c"))
        levels |= 1u << NPUKIT_AVX2;
    if ((levels & 1u << NPUKIT_AVX2) && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        levels |= 1u << NPUKIT_AVX512;
    if ((levels & 1u << NPUKIT_AVX512) && __builtin_cpu_supports("avx512vnni"))
        levels |= 1u << NPUKIT_AVX512_VNNI;
#elif defined(__aarch64__)
    levels |= 1u << NPUKIT_NEON; /* part of the base architecture */
#endif
    return levels;
}

static _Atomic int chosen = -1;

enum npukit_simd npukit_simd_level(void)
{
    int level = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (level < 0) {
        level = 31 - __builtin_clz(npukit_simd_available());
        atomic_store_explicit(&chosen, level, memory_order_relaxed);
    }
    return (enum npukit_simd)level;
}

int npukit_simd_set(enum npukit_simd level)
{
    if ((int)level < 0 || level > NPUKIT_AVX512_VNNI || !(npukit_simd_available() & 1u << level))
        return -1;
    atomic_store_explicit(&chosen, (int)level, memory_order_relaxed);
    return 0;
}

const char *npukit_simd_name(enum npukit_simd level)
{
    static const char *const names[] = {"portable", "neon", "sse2", "avx2", "avx512", "avx512-vnni"};
    return names[level];
}
