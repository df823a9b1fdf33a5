# SPDX-License-Identifier: MIT
"""csrc/pack.h"""

cdef extern from "pack.h" nogil:
    enum:
        NPUKIT_ATOM

    void npukit_pack_nc1hwc2(void *dst, const void *src, size_t channels, size_t plane,
                             size_t itemsize, const void *fill)
    void npukit_unpack_nc1hwc2(void *dst, const void *src, size_t channels, size_t plane,
                               size_t itemsize)
    void npukit_pack_nhwc(void *dst, const void *src, size_t channels, size_t plane,
                          size_t itemsize, const void *fill)
    void npukit_unpack_nhwc(void *dst, const void *src, size_t channels, size_t plane,
                            size_t itemsize)
    void npukit_pack_weights(void *dst, const void *src, size_t kernels, size_t taps,
                             size_t channels, size_t itemsize, const void *fill)
    void npukit_unpack_weights(void *dst, const void *src, size_t kernels, size_t taps,
                               size_t channels, size_t itemsize)
