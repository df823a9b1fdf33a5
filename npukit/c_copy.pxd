# SPDX-License-Identifier: MIT
"""csrc/copy.h"""

cdef extern from "copy.h" nogil:
    enum npukit_copy_strategy:
        NPUKIT_COPY_PLAIN
    enum:
        NPUKIT_COPY_STRATEGIES
        NPUKIT_COPY_BANDS
    const size_t npukit_copy_band[NPUKIT_COPY_BANDS]

    void npukit_copy(void *dst, const void *src, size_t n)
    void npukit_copy_with(npukit_copy_strategy strategy, void *dst, const void *src, size_t n)
    void npukit_copy_2d(void *dst, const void *src, size_t rows, size_t row_bytes,
                        size_t dst_pitch, size_t src_pitch)
    int npukit_copy_plan(unsigned band)
    double npukit_copy_rate(unsigned band, npukit_copy_strategy strategy)
    void npukit_copy_set_plan(const npukit_copy_strategy *strategies)
