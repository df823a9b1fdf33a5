/* SPDX-License-Identifier: MIT */
/* All SIMD variants of the arithmetic against plain loops, for where no Python runs. */
#include "rk3588.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int npukit_selftest_rk3588(void);

enum { CHANNELS = 80, TAPS = 3, KERNELS = 45, PIXELS = NPU_GEMM_MAX_PIXELS };

static uint32_t state;

static uint32_t next(void)
{
    state = state * 1664525 + 1013904223;
    return state >> 8;
}

/* Small multiples of 1/8, whose sums fp32 holds exactly in any order. */
static uint16_t small_half(void)
{
    static const uint16_t halves[] = {0x0000, 0x3000, 0x3400, 0x3800, 0x3c00,
                                      0xb000, 0xb400, 0xb800, 0xbc00, 0x3e00};
    return halves[next() % 10];
}

static double half_value(const uint8_t *bytes)
{
    uint16_t half;
    double magnitude;

    memcpy(&half, bytes, 2);
    magnitude = half >> 10 & 31 ? ldexp((half & 1023) | 1024, (half >> 10 & 31) - 25)
                                : ldexp(half & 1023, -24);
    return half & 0x8000 ? -magnitude : magnitude;
}

static int element_bytes(const struct npu_gemm *gemm)
{
    return gemm->operand == NPU_OPERAND_F32 || gemm->operand == NPU_OPERAND_W16 ? 2 : 1;
}

static double element(const struct npu_gemm *gemm, const uint8_t *data, int64_t index)
{
    int16_t wide;

    if (element_bytes(gemm) == 1)
        return (int8_t)data[index];
    memcpy(&wide, data + 2 * index, 2);
    return gemm->operand == NPU_OPERAND_W16 ? wide : half_value(data + 2 * index);
}

static double result(const struct npu_gemm *gemm, const void *sums, int index)
{
    float single;

    if (gemm->operand == NPU_OPERAND_W16)
        return (double)((const int64_t *)sums)[index];
    memcpy(&single, (const float *)sums + index, 4);
    return gemm->operand == NPU_OPERAND_F32 ? single : ((const int32_t *)sums)[index];
}

/* Where a weight is in memory. */
static int64_t place(int64_t kernel, int64_t tap, int64_t channel, int bytes)
{
    int64_t group = bytes == 1 ? 32 : 16, start = kernel / group * group;
    int64_t peers = KERNELS - start < group ? KERNELS - start : group;
    int64_t first = channel / 32 * 32, run = CHANNELS - first < 32 ? CHANNELS - first : 32;

    return start * TAPS * CHANNELS + first * TAPS * peers +
           (tap * peers + kernel - start) * run + channel - first;
}

static int check_variant(const struct npu_gemm *gemm)
{
    const int halves = gemm->operand == NPU_OPERAND_F32, bytes = element_bytes(gemm);
    static uint8_t features[TAPS * PIXELS * CHANNELS * 2], weights[KERNELS * TAPS * CHANNELS * 2];
    static _Alignas(64) uint8_t operands[TAPS * PIXELS * CHANNELS * 4];
    static _Alignas(64) uint8_t packed[TAPS * CHANNELS * NPU_GEMM_MAX_KERNELS * 4];
    static _Alignas(64) int64_t sums[PIXELS * NPU_GEMM_MAX_KERNELS];
    static _Alignas(64) uint32_t init[NPU_GEMM_MAX_KERNELS];
    const uint8_t *rows[TAPS * PIXELS];
    const struct npu_weights source = {weights, KERNELS, CHANNELS, TAPS, bytes};

    for (size_t i = 0; i < sizeof features / 2; i++) {
        const uint16_t value = halves ? small_half() : (uint16_t)next();
        memcpy(features + i * (size_t)bytes, &value, (size_t)bytes);
    }
    for (size_t i = 0; i < sizeof weights / 2; i++) {
        const uint16_t value = halves ? small_half() : (uint16_t)next();
        memcpy(weights + i * (size_t)bytes, &value, (size_t)bytes);
    }
    npu_gemm_features(gemm, operands, features, TAPS * PIXELS * CHANNELS);
    for (int t = 0; t < TAPS; t++)
        for (int p = 0; p < gemm->pixels; p++)
            rows[t * gemm->pixels + p] =
                operands + (size_t)((t * PIXELS + p) * CHANNELS) * npu_gemm_element(gemm);
    for (int64_t first = 0; first < KERNELS; first += gemm->kernels) {
        npu_gemm_weights(gemm, &source, first, packed, init);
        for (int pixels = 1; pixels <= gemm->pixels; pixels++) {
            const struct npu_tile tile = {sums, init, rows, packed, TAPS, CHANNELS, pixels};
            gemm->run(&tile);
            for (int i = 0; i < pixels * gemm->kernels; i++) {
                const int p = i / gemm->kernels;
                const int64_t kernel = first + i % gemm->kernels;
                const double got = result(gemm, sums, i);
                double right = 0;
                for (int t = 0; t < TAPS && kernel < KERNELS; t++)
                    for (int c = 0; c < CHANNELS; c++)
                        right += element(gemm, features, (t * PIXELS + p) * CHANNELS + c) *
                                 element(gemm, weights, place(kernel, t, c, bytes));
                if (got != right) {
                    printf("rk3588 %s %s: pixel %d kernel %d: %g, not %g\n", gemm->name,
                           bytes == 1 ? "int8" : halves ? "fp16" : "int16", p, (int)kernel, got,
                           right);
                    return 1;
                }
            }
        }
    }
    return 0;
}

/* Every half, and floats around every rounding boundary. */
static int check_halves(const struct npu_gemm *gemm, enum npukit_simd level)
{
    static uint16_t halves[65536], back[65536], plain[65536];
    static float wide[65536];

    for (int i = 0; i < 65536; i++)
        halves[i] = (uint16_t)i;
    gemm->widen(wide, halves, 65536);
    for (int i = 0; i < 65536; i++) {
        const int special = (i >> 10 & 31) == 31, nan = special && i & 1023;
        const int ok = nan       ? isnan(wide[i])
                       : special ? isinf(wide[i]) && !signbit(wide[i]) == !(i & 0x8000)
                                 : wide[i] == half_value((const uint8_t *)&halves[i]) &&
                                       !signbit(wide[i]) == !(i & 0x8000);
        if (!ok) {
            printf("rk3588 %s: half %#x becomes %g\n", gemm->name, (unsigned)i, (double)wide[i]);
            return 1;
        }
    }
    for (int round = 0; round < 5; round++) {
        static const uint32_t offsets[] = {0, 0xfff, 0x1000, 0x1001, 0x1fff};
        for (int i = 0; i < 65536; i++) {
            uint32_t bits;
            memcpy(&bits, &wide[i], 4);
            bits += isfinite(wide[i]) ? offsets[round] : 0;
            memcpy(&wide[i], &bits, 4);
        }
        npu_half_from_float(back, wide, 65536, level);
        npu_half_from_float(plain, wide, 65536, NPUKIT_PORTABLE);
        if (memcmp(back, plain, sizeof back) || (!round && memcmp(back, halves, 2 * 0x7c01))) {
            printf("rk3588 %s: float to half differs\n", gemm->name);
            return 1;
        }
        gemm->widen(wide, halves, 65536);
    }
    return 0;
}

/* A value of any magnitude. */
static int32_t any(void)
{
    return (int32_t)(next() << 8 ^ next()) >> next() % 32;
}

static int64_t bounded(int64_t value, int64_t highest)
{
    return value > highest ? highest : value < -highest - 1 ? -highest - 1 : value;
}

/* A sum through BS and the output conversion, one integer operation after the other. */
static int64_t staged(const struct npu_output *out, int channel, int64_t value)
{
    const struct npu_stage *bs = &out->bs;
    const int64_t highest = (INT64_C(1) << (8 * npu_precision_bytes(out->precision) - 1)) - 1;

    value += bs->subtract ? -(int64_t)bs->add[channel].i : bs->add[channel].i;
    if (!bs->prelu || value < 0) {
        value *= bs->factor[channel].i;
        value = npu_shift_right(value, bs->shift[value < 0], 0);
    }
    value = bounded(value, INT32_MAX);
    if (bs->relu && value < 0)
        value = 0;
    if (bs->relux && value > bs->limit.i)
        value = bs->limit.i;
    value += out->add_first ? out->offset : 0;
    value = npu_shift_right(value * out->scale, out->shift, out->round_away);
    return bounded(value + (out->add_first ? 0 : out->offset), highest);
}

static int check_stages(enum npukit_simd level)
{
    enum { N = NPU_STORE_CHANNELS };
    static const enum npu_precision precisions[] = {NPU_INT8, NPU_INT16, NPU_INT32};
    static uint8_t memory[4 * N];
    union npu_value add[N], factor[N];
    int32_t sums[N];

    for (int round = 0; round < 2000; round++) {
        struct npu_output out = {
            .width = 1, .height = 1, .channels = N, .real = N,
            .precision = precisions[next() % 3],
            .bs = {.add = add, .factor = factor, .subtract = next() & 1, .prelu = next() & 1,
                   .shift = {(int)(next() % 40), (int)(next() % 64)}, .relu = next() & 1,
                   .relux = next() & 1, .limit = {.i = any()}},
            .add_first = next() & 1, .round_away = next() & 1, .shift = (int)(next() % 64),
            .offset = any(), .scale = (int16_t)next(),
            .cube = {.flat = memory, .surface_pitch = 16, .surfaces = 4 * N / 16, .lines = 1}};
        const int bytes = (int)npu_precision_bytes(out.precision);
        out.bs.relux &= out.bs.relu;
        for (int c = 0; c < N; c++) {
            sums[c] = any();
            add[c].i = any();
            factor[c].i = (int16_t)next();
        }
        npu_dpu_store(NULL, &out, sums, N, 0, N, 0, 1, level);
        for (int c = 0; c < N; c++) {
            const int64_t right = staged(&out, c, sums[c]);
            if (memcmp(memory + c * bytes, &right, (size_t)bytes)) {
                printf("rk3588 %s: round %d, channel %d: not %lld\n", npukit_simd_name(level),
                       round, c, (long long)right);
                return 1;
            }
        }
    }
    return 0;
}

int npukit_selftest_rk3588(void)
{
    /* The best there is, whatever is chosen at the moment: lower ones come with it. */
    const enum npukit_simd level = (enum npukit_simd)(31 - __builtin_clz(npukit_simd_available()));
    const struct npu_gemm *gemm;

    state = 1;
    for (int i = 0; i <= (int)level; i++)
        if (npukit_simd_available() >> i & 1 && check_stages((enum npukit_simd)i))
            return 1;
    for (int i = 0; (gemm = npu_gemm_variant(i, level)); i++)
        if (check_variant(gemm) || (gemm->widen && check_halves(gemm, level)))
            return 1;
    return 0;
}
