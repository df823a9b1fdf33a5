/* SPDX-License-Identifier: MIT */
#include "regcmd.h"

#include <stdint.h>

/* Loads and stores of these assume no alignment; the compiler vectorizes them all the same. */
typedef uint16_t __attribute__((aligned(1), may_alias)) any_u16;
typedef uint32_t __attribute__((aligned(1), may_alias)) any_u32;
typedef uint64_t __attribute__((aligned(1), may_alias)) any_u64;

void npukit_encode_regcmds(void *words, const void *target, const void *value, const void *reg,
                           size_t count)
{
    any_u64 *restrict to = words;
    const any_u16 *targets = target, *regs = reg;
    const any_u32 *values = value;
    for (size_t i = 0; i < count; i++)
        to[i] = (uint64_t)targets[i] << 48 | (uint64_t)values[i] << 16 | regs[i];
}

void npukit_decode_regcmds(void *target, void *value, void *reg, const void *words, size_t count)
{
    const any_u64 *from = words;
    any_u16 *restrict targets = target, *restrict regs = reg;
    any_u32 *restrict values = value;
    for (size_t i = 0; i < count; i++) {
        targets[i] = (uint16_t)(from[i] >> 48);
        values[i] = (uint32_t)(from[i] >> 16);
        regs[i] = (uint16_t)from[i];
    }
}
