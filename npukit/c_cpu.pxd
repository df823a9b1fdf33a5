# SPDX-License-Identifier: MIT
"""csrc/cpu.h"""

cdef extern from "cpu.h" nogil:
    enum npukit_simd:
        NPUKIT_PORTABLE
        NPUKIT_AVX512_VNNI

    npukit_simd npukit_simd_level()
    int npukit_simd_set(npukit_simd level)
    const char *npukit_simd_name(npukit_simd level)
    unsigned npukit_simd_available()
