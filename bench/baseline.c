/* SPDX-License-Identifier: MIT */
/* What the benchmarks compare with: loops that a C programmer would write. The loops around npukit's
 * own C functions stand here too, so that both sides of a comparison are timed alike. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>

#include "copy.h"

/* Keeps the compiler from merging the iterations of a loop. */
#define ANOTHER_TIME() __asm__ volatile("" ::: "memory")

void baseline_ioctl(int fd, unsigned long request, void *arg, long count)
{
    for (long i = 0; i < count; i++)
        ioctl(fd, request, arg);
}

void baseline_memcpy(void *dst, const void *src, size_t n, long count)
{
    for (long i = 0; i < count; i++) {
        memcpy(dst, src, n);
        ANOTHER_TIME();
    }
}

void ours_copy(void *dst, const void *src, size_t n, long count)
{
    for (long i = 0; i < count; i++) {
        npukit_copy(dst, src, n);
        ANOTHER_TIME();
    }
}

void baseline_encode(uint64_t *restrict words, const uint16_t *target, const uint32_t *value,
                     const uint16_t *reg, size_t count)
{
    for (size_t i = 0; i < count; i++)
        words[i] = (uint64_t)target[i] << 48 | (uint64_t)value[i] << 16 | reg[i];
}
