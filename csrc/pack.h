/* SPDX-License-Identifier: MIT */
/* Tensor layouts that an NPU of the NVDLA family reads and writes.
 *
 * All move whole elements of 1, 2 or 4 bytes without looking at them. C2 is the number of elements
 * in an atom of 16 bytes, C1 = ceil(channels / C2). `fill` points to one element. Source and
 * destination do not overlap and need no alignment.
 */
#ifndef NPUKIT_PACK_H
#define NPUKIT_PACK_H

#include <stddef.h>

#define NPUKIT_ATOM 16

/* (channels, plane) <-> (C1, plane, C2); plane = height * width. */
void npukit_pack_nc1hwc2(void *dst, const void *src, size_t channels, size_t plane,
                         size_t itemsize, const void *fill);
void npukit_unpack_nc1hwc2(void *dst, const void *src, size_t channels, size_t plane,
                           size_t itemsize);

/* (plane, channels) <-> (C1, plane, C2). */
void npukit_pack_nhwc(void *dst, const void *src, size_t channels, size_t plane, size_t itemsize,
                      const void *fill);
void npukit_unpack_nhwc(void *dst, const void *src, size_t channels, size_t plane,
                        size_t itemsize);

/* (kernels, taps, channels) <-> the order in which the RK3588 fetches weights; taps = kernel
 * height * width, itemsize 1 or 2. Kernel groups of 32 / itemsize; in each, channel groups of 32;
 * in each, the taps; in each, the kernels of the group with their channels of the group. Channels
 * are filled up to a multiple of C2; last groups hold only what is left. */
void npukit_pack_weights(void *dst, const void *src, size_t kernels, size_t taps, size_t channels,
                         size_t itemsize, const void *fill);
void npukit_unpack_weights(void *dst, const void *src, size_t kernels, size_t taps,
                           size_t channels, size_t itemsize);

#endif
