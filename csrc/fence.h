/* SPDX-License-Identifier: MIT */
#ifndef NPUKIT_FENCE_H
#define NPUKIT_FENCE_H

/* A full barrier for memory that a device shares, for the compiler and the processor.
 *
 * The C11 fence of AArch64 is "dmb ish": it orders memory among the CPU cores alone. A DSP stands
 * outside of their shareability domain, so the whole system is meant here.
 */
static inline void npukit_fence(void)
{
#if defined(__aarch64__)
    __asm__ volatile("dmb sy" ::: "memory");
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

#endif
