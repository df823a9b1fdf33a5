/* SPDX-License-Identifier: MIT */
/*
 * The arithmetic of the convolution core: tiles of (output pixels) x (kernels), summed over kernel
 * taps and channels. A tile gets one pointer per tap and pixel, so that a convolution needs no copy
 * of its input for each tap, and a matmul is the case of one tap.
 */
#ifndef NPUKIT_RK3588_GEMM_H
#define NPUKIT_RK3588_GEMM_H

#include <stddef.h>
#include <stdint.h>

#include "cpu.h"

#define NPU_GEMM_MAX_PIXELS 12
#define NPU_GEMM_MAX_KERNELS 32

/* How features and weights are stored while they are computed with. */
enum npu_operand {
    NPU_OPERAND_U8, /* features offset by 128, weights int8 */
    NPU_OPERAND_S8,
    NPU_OPERAND_S16,
    NPU_OPERAND_F32,
    NPU_OPERAND_W16, /* int16 from the start, with sums of 64 bits */
};

struct npu_tile {
    void *sums;       /* [NPU_GEMM_MAX_PIXELS][kernels of the variant], int32, int64 or float */
    const void *init; /* [kernels of the variant]: what each sum starts from */
    const uint8_t *const *rows; /* [taps][pixels of the variant]: where a pixel's channels start */
    const void *weights;        /* [taps][channels / unit][kernels of the variant][unit] */
    ptrdiff_t taps;
    ptrdiff_t channels; /* a multiple of 16 for int8, else of 8 */
    int pixels;         /* how many of the rows are wanted; all of them can be read */
};

/* One SIMD variant. Sums of int8 wrap modulo 2^32, the same in every variant. */
struct npu_gemm {
    const char *name;
    int pixels, kernels; /* of one tile */
    int unit;            /* channels side by side in packed weights */
    enum npu_operand operand;
    void (*run)(const struct npu_tile *tile);
    void (*widen)(float *dst, const void *src, size_t count); /* of fp16, else NULL */
};

/* The variants that run here at this level, best first; NULL behind the last. */
const struct npu_gemm *npu_gemm_variant(int index, enum npukit_simd level);

/* The best of them. */
const struct npu_gemm *npu_gemm_int8(enum npukit_simd level);
const struct npu_gemm *npu_gemm_fp16(enum npukit_simd level);
const struct npu_gemm *npu_gemm_int16(enum npukit_simd level);

/* Bytes of one element of features or weights in this variant. */
size_t npu_gemm_element(const struct npu_gemm *gemm);

/* Turn `count` channels as they are in memory into this variant's operands. */
void npu_gemm_features(const struct npu_gemm *gemm, void *dst, const void *src, size_t count);

/* Weights as they are in memory: see npu_gemm_weights. */
struct npu_weights {
    const uint8_t *data;
    int64_t kernels, channels, taps;
    int bytes; /* of one element: 1 int8, 2 int16 or fp16 */
};

/*
 * Pack kernels first .. first + gemm->kernels - 1 for this variant (absent kernels become zero) and
 * set what their sums start from. Memory holds groups of 32 int8 or 16 wider kernels, in each groups
 * of 32 channels (the last one holds the channels left), then taps, kernels of the group, channels.
 */
void npu_gemm_weights(const struct npu_gemm *gemm, const struct npu_weights *weights,
                      int64_t first, void *packed, void *init);

/* fp32 to fp16, ties to even, overflow to infinity. */
void npu_half_from_float(uint16_t *dst, const float *src, size_t count, enum npukit_simd level);

#endif
