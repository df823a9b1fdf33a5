/* SPDX-License-Identifier: MIT */
#include "rk3588_gemm.h"
#include "rk3588_simd.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#include <sys/auxv.h>
#ifndef HWCAP_ASIMDDP
#define HWCAP_ASIMDDP (1 << 20)
#endif
#endif

/* ---------------------------------------------------------------- fp16 */

static float half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = half >> 10 & 31, fraction = half & 1023;
    uint32_t bits;
    float value;

    if (exponent == 31) {
        bits = sign | 0x7f800000 | fraction << 13 | (fraction ? 0x400000 : 0);
    } else if (exponent) {
        bits = sign | (exponent + 112) << 23 | fraction << 13;
    } else {
        value = (float)fraction * 0x1p-24f;
        memcpy(&bits, &value, 4);
        bits |= sign;
    }
    memcpy(&value, &bits, 4);
    return value;
}

static uint16_t float_to_half(float value)
{
    uint32_t bits, sign, magnitude;

    memcpy(&bits, &value, 4);
    sign = bits >> 16 & 0x8000;
    magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) /* NaN: made quiet, payload cut */
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) { /* below 2^-14: a multiple of 2^-24 */
        float scaled;
        memcpy(&scaled, &magnitude, 4);
        /* Adding 0.5 leaves exactly the bits down to 2^-24, rounded to even by the addition. */
        scaled += 0.5f;
        memcpy(&bits, &scaled, 4);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    magnitude += 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | ((magnitude >> 13) - (112 << 10)));
}

static void widen_portable(float *dst, const void *src, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, (const uint8_t *)src + 2 * i, 2);
        dst[i] = half_to_float(half);
    }
}

/* ---------------------------------------------------------------- portable */

TEMPLATE void s16_portable(const struct npu_tile *tile, const int pixels)
{
    enum { K = 16 };
    uint32_t sums[4][K]; /* unsigned, since sums wrap */

    for (int p = 0; p < pixels; p++)
        memcpy(sums[p], tile->init, sizeof sums[p]);
    const int16_t *w = tile->weights;
    for (ptrdiff_t t = 0; t < tile->taps; t++) {
        for (ptrdiff_t c = 0; c < tile->channels; c++, w += K) {
            for (int p = 0; p < pixels; p++) {
                int16_t x = ((const int16_t *)tile->rows[4 * t + p])[c];
                for (int k = 0; k < K; k++)
                    sums[p][k] += (uint32_t)(x * w[k]);
            }
        }
    }
    memcpy(tile->sums, sums, sizeof sums[0] * (size_t)pixels);
}

static void run_s16_portable(const struct npu_tile *tile)
{
    if (tile->pixels == 1)
        s16_portable(tile, 1);
    else
        s16_portable(tile, 4);
}

TEMPLATE void f32_portable(const struct npu_tile *tile, const int pixels)
{
    enum { K = 16 };
    float sums[4][K];

    for (int p = 0; p < pixels; p++)
        memcpy(sums[p], tile->init, sizeof sums[p]);
    const float *w = tile->weights;
    for (ptrdiff_t t = 0; t < tile->taps; t++) {
        for (ptrdiff_t c = 0; c < tile->channels; c++, w += K) {
            for (int p = 0; p < pixels; p++) {
                float x = ((const float *)tile->rows[4 * t + p])[c];
                for (int k = 0; k < K; k++)
                    sums[p][k] += x * w[k];
            }
        }
    }
    memcpy(tile->sums, sums, sizeof sums[0] * (size_t)pixels);
}

static void run_f32_portable(const struct npu_tile *tile)
{
    if (tile->pixels == 1)
        f32_portable(tile, 1);
    else
        f32_portable(tile, 4);
}

static void run_w16_portable(const struct npu_tile *tile)
{
    enum { K = 16 };
    int64_t sums[4][K] = {{0}};

    const int16_t *w = tile->weights;
    for (ptrdiff_t t = 0; t < tile->taps; t++) {
        for (ptrdiff_t c = 0; c < tile->channels; c++, w += K) {
            for (int p = 0; p < tile->pixels; p++) {
                const int32_t x = ((const int16_t *)tile->rows[4 * t + p])[c];
                for (int k = 0; k < K; k++)
                    sums[p][k] += x * w[k];
            }
        }
    }
    memcpy(tile->sums, sums, sizeof sums[0] * (size_t)tile->pixels);
}

static const struct npu_gemm s16_portable_variant = {
    "portable", 4, 16, 1, NPU_OPERAND_S16, run_s16_portable, NULL};
static const struct npu_gemm f32_portable_variant = {
    "portable", 4, 16, 1, NPU_OPERAND_F32, run_f32_portable, widen_portable};
/* No faster one: nobody computes in int16, since the hardware cannot write what comes out. */
static const struct npu_gemm w16_portable_variant = {
    "portable", 4, 16, 1, NPU_OPERAND_W16, run_w16_portable, NULL};

/* ---------------------------------------------------------------- x86-64 */

#if defined(__x86_64__)

#define VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))

/* SSE2 is part of the base architecture. */
TEMPLATE void s16_sse2(const struct npu_tile *tile, const int pixels)
{
    __m128i sums[2][4];

    for (int p = 0; p < pixels; p++)
        for (int k = 0; k < 4; k++)
            sums[p][k] = _mm_loadu_si128((const __m128i *)tile->init + k);
    const __m128i *w = tile->weights;
    for (ptrdiff_t t = 0; t < tile->taps; t++) {
        const uint8_t *const *rows = tile->rows + 2 * t;
        for (ptrdiff_t c = 0; c < tile->channels; c += 2, w += 4) {
            for (int p = 0; p < pixels; p++) {
                int32_t pair;
                memcpy(&pair, rows[p] + 2 * c, 4);
                __m128i x = _mm_set1_epi32(pair);
                for (int k = 0; k < 4; k++)
                    sums[p][k] = _mm_add_epi32(sums[p][k],
                                               _mm_madd_epi16(x, _mm_loadu_si128(w + k)));
            }
        }
    }
    __m128i *out = tile->sums;
    for (int p = 0; p < pixels; p++)
        for (int k = 0; k < 4; k++)
            _mm_storeu_si128(out + 4 * p + k, sums[p][k]);
}

static void run_s16_sse2(const struct npu_tile *tile)
{
    if (tile->pixels == 1)
        s16_sse2(tile, 1);
    else
        s16_sse2(tile, 2);
}

AVX2 static void widen_avx2(float *dst, const void *src, size_t count)
{
    const uint8_t *halves = src;
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(dst + i,
                         _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(halves + 2 * i))));
    widen_portable(dst + i, halves + 2 * i, count - i);
}

AVX2 static void narrow_avx2(uint16_t *dst, const float *src, size_t count)
{
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128((__m128i *)(dst + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < count; i++)
        dst[i] = float_to_half(src[i]);
}

AVX2 TEMPLATE void s16_avx2(const struct npu_tile *tile, const int pixels)
{
    __m256i sums[6][2];

    for (int p = 0; p < pixels; p++)
        for (int k = 0; k < 2; k++)
            sums[p][k] = _mm256_loadu_si256((const __m256i *)tile->init + k);
    const __m256i *w = tile->weights;
    for (ptrdiff_t t = 0; t < tile->taps; t++) {
        const uint8_t *const *rows = tile->rows + 6 * t;
        for (ptrdiff_t c = 0; c < tile->channels; c += 2, w += 2) {
            __m256i w0 = _mm256_loadu_si256(w), w1 = _mm256_loadu_si256(w + 1);
            for (int p = 0; p < pixels; p++) {
                int32_t pair;
                memcpy(&pair, rows[p] + 2 * c, 4);
                __m256i x = _mm256_set1_epi32(pair);
                sums[p][0] = _mm256_add_epi32(sums[p][0], _mm256_madd_epi16(x, w0));
                sums[p][1] = _mm256_add_epi32(sums[p][1], _mm256_madd_epi16(x, w1));
            }
        }
    }
    __m256i *out = tile->sums;
    for (int p = 0; p < pixels; p++)
        for (int k = 0; k < 2; k++)
            _mm256_storeu_si256(out + 2 * p + k, sums[p][k]);
}

AVX2 static void run_s16_avx2(const struct npu_tile *tile)
{
    if (tile->pixels == 1)
        s16_avx2(tile, 1);
    else if (tile->pixels <= 4)
        s16_avx2(tile, 4);
    else
        s16_avx2(tile, 6);
}

AVX2 TEMPLATE void f32_avx2(const struct npu_tile *tile, const int pixels)
{
    __m256 sums[6][2];

    for (int p = 0; p < pixels; p++)
        for (int k = 0; k < 2; k++)
            sums[p][k] = _mm256_loadu_ps((const float *)tile->init + 8 * k);
    const float *w = tile->weights;
    for (ptrdiff_t t = 0; t < tile->taps; t++) {
        const uint8_t *const *rows = tile->rows + 6 * t;
        for (ptrdiff_t c = 0; c < tile->channels; c++, w += 16) {
            __m256 w0 = _mm256_loadu_ps(w), w1 = _mm256_loadu_ps(w + 8);
            for (int p = 0; p < pixels; p++) {
                __m256 x = _mm256_broadcast_ss((const float *)rows[p] + c);
                sums[p][0] = _mm256_fmadd_ps(x, w0, sums[p][0]);
                sums[p][1] = _mm256_fmadd_ps(x, w1, sums[p][1]);
            }
        }
    }
    float *out = tile->sums;
    for (int p = 0; p < pixels; p++)
        for (int k = 0; k < 2; k++)
            _mm256_storeu_ps(out + 16 * p + 8 * k, sums[p][k]);
}

AVX2 static void run_f32_avx2(const struct npu_tile *tile)
{
    if (tile->pixels == 1)
        f32_avx2(tile, 1);
    else if (tile->pixels <= 4)
        f32_avx2(tile, 4);
    else
        f32_avx2(tile, 6);
}

AVX512 TEMPLATE void f32_avx512(const struct npu_tile *tile, const int pixels)
{
    __m512 sums[12][2];

    for (int p = 0; p < pixels; p++)
        for (int k = 0; k < 2; k++)
            sums[p][k] = _mm512_loadu_ps((const float *)tile->init + 16 * k);
    const float *w = tile->weights;
    for (ptrdiff_t t = 0; t < tile->taps; t++) {
        const uint8_t *const *rows = tile->rows + 12 * t;
        for (ptrdiff_t c = 0; c < tile->channels; c++, w += 32) {
            __m512 w0 = _mm512_loadu_ps(w), w1 = _mm512_loadu_ps(w + 16);
            for (int p = 0; p < pixels; p++) {
                __m512 x = _mm512_set1_ps(((const float *)rows[p])[c]);
                sums[p][0] = _mm512_fmadd_ps(x, w0, sums[p][0]);
                sums[p][1] = _mm512_fmadd_ps(x, w1, sums[p][1]);
            }
        }
    }
    float *out = tile->sums;
    for (int p = 0; p < pixels; p++)
        for (int k = 0; k < 2; k++)
            _mm512_storeu_ps(out + 32 * p + 16 * k, sums[p][k]);
}

AVX512 static void run_f32_avx512(const struct npu_tile *tile)
{
    if (tile->pixels == 1)
        f32_avx512(tile, 1);
    else if (tile->pixels <= 4)
        f32_avx512(tile, 4);
    else if (tile->pixels <= 8)
        f32_avx512(tile, 8);
    else
        f32_avx512(tile, 12);
}

VNNI TEMPLATE void u8_vnni(const struct npu_tile *tile, const int pixels)
{
    __m512i sums[12][2];

    for (int p = 0; p < pixels; p++)
        for (int k = 0; k < 2; k++)
            sums[p][k] = _mm512_loadu_si512((const int32_t *)tile->init + 16 * k);
    const int8_t *w = tile->weights;
    for (ptrdiff_t t = 0; t < tile->taps; t++) {
        const uint8_t *const *rows = tile->rows + 12 * t;
        for (ptrdiff_t c = 0; c < tile->channels; c += 4, w += 128) {
            __m512i w0 = _mm512_loadu_si512(w), w1 = _mm512_loadu_si512(w + 64);
            for (int p = 0; p < pixels; p++) {
                int32_t quad;
                memcpy(&quad, rows[p] + c, 4);
                __m512i x = _mm512_set1_epi32(quad);
                sums[p][0] = _mm512_dpbusd_epi32(sums[p][0], x, w0);
                sums[p][1] = _mm512_dpbusd_epi32(sums[p][1], x, w1);
            }
        }
    }
    int32_t *out = tile->sums;
    for (int p = 0; p < pixels; p++)
        for (int k = 0; k < 2; k++)
            _mm512_storeu_si512(out + 32 * p + 16 * k, sums[p][k]);
}

VNNI static void run_u8_vnni(const struct npu_tile *tile)
{
    if (tile->pixels == 1)
        u8_vnni(tile, 1);
    else if (tile->pixels <= 4)
        u8_vnni(tile, 4);
    else if (tile->pixels <= 8)
        u8_vnni(tile, 8);
    else
        u8_vnni(tile, 12);
}

static const struct npu_gemm s16_sse2_variant = {
    "sse2", 2, 16, 2, NPU_OPERAND_S16, run_s16_sse2, NULL};
static const struct npu_gemm s16_avx2_variant = {
    "avx2", 6, 16, 2, NPU_OPERAND_S16, run_s16_avx2, NULL};
static const struct npu_gemm f32_avx2_variant = {
    "avx2", 6, 16, 1, NPU_OPERAND_F32, run_f32_avx2, widen_avx2};
static const struct npu_gemm f32_avx512_variant = {
    "avx512", 12, 32, 1, NPU_OPERAND_F32, run_f32_avx512, widen_avx2};
static const struct npu_gemm u8_vnni_variant = {
    "avx512-vnni", 12, 32, 4, NPU_OPERAND_U8, run_u8_vnni, NULL};

/* ---------------------------------------------------------------- AArch64 */

#elif defined(__aarch64__)

static void widen_neon(float *dst, const void *src, size_t count)
{
    const uint8_t *halves = src;
    size_t i = 0;
    for (; i + 4 <= count; i += 4)
        vst1q_f32(dst + i, vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(halves + 2 * i))));
    widen_portable(dst + i, halves + 2 * i, count - i);
}

static void narrow_neon(uint16_t *dst, const float *src, size_t count)
{
    size_t i = 0;
    for (; i + 4 <= count; i += 4)
        vst1_u16(dst + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(src + i))));
    for (; i < count; i++)
        dst[i] = float_to_half(src[i]);
}

TEMPLATE void s16_neon(const struct npu_tile *tile, const int pixels)
{
    int32x4_t sums[4][4];

    for (int p = 0; p < pixels; p++)
        for (int k = 0; k < 4; k++)
            sums[p][k] = vld1q_s32((const int32_t *)tile->init + 4 * k);
    const int16_t *w = tile->weights;
    for (ptrdiff_t t = 0; t < tile->taps; t++) {
        const uint8_t *const *rows = tile->rows + 4 * t;
        for (ptrdiff_t c = 0; c < tile->channels; c++, w += 16) {
            int16x8_t w0 = vld1q_s16(w), w1 = vld1q_s16(w + 8);
            for (int p = 0; p < pixels; p++) {
                int16x8_t x = vdupq_n_s16(((const int16_t *)rows[p])[c]);
                sums[p][0] = vmlal_s16(sums[p][0], vget_low_s16(w0), vget_low_s16(x));
                sums[p][1] = vmlal_high_s16(sums[p][1], w0, x);
                sums[p][2] = vmlal_s16(sums[p][2], vget_low_s16(w1), vget_low_s16(x));
                sums[p][3] = vmlal_high_s16(sums[p][3], w1, x);
            }
        }
    }
    int32_t *out = tile->sums;
    for (int p = 0; p < pixels; p++)
        for (int k = 0; k < 4; k++)
            vst1q_s32(out + 16 * p + 4 * k, sums[p][k]);
}

static void run_s16_neon(const struct npu_tile *tile)
{
    if (tile->pixels == 1)
        s16_neon(tile, 1);
    else
        s16_neon(tile, 4);
}

#define DOTPROD __attribute__((target("arch=armv8.2-a+dotprod")))

DOTPROD TEMPLATE void s8_dotprod(const struct npu_tile *tile, const int pixels)
{
    int32x4_t sums[4][4];

    for (int p = 0; p < pixels; p++)
        for (int k = 0; k < 4; k++)
            sums[p][k] = vld1q_s32((const int32_t *)tile->init + 4 * k);
    const int8_t *w = tile->weights;
    for (ptrdiff_t t = 0; t < tile->taps; t++) {
        const uint8_t *const *rows = tile->rows + 4 * t;
        for (ptrdiff_t c = 0; c < tile->channels; c += 4, w += 64) {
            int8x16_t w0 = vld1q_s8(w), w1 = vld1q_s8(w + 16);
            int8x16_t w2 = vld1q_s8(w + 32), w3 = vld1q_s8(w + 48);
            for (int p = 0; p < pixels; p++) {
                int32_t quad;
                memcpy(&quad, rows[p] + c, 4);
                int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(quad));
                sums[p][0] = vdotq_s32(sums[p][0], w0, x);
                sums[p][1] = vdotq_s32(sums[p][1], w1, x);
                sums[p][2] = vdotq_s32(sums[p][2], w2, x);
                sums[p][3] = vdotq_s32(sums[p][3], w3, x);
            }
        }
    }
    int32_t *out = tile->sums;
    for (int p = 0; p < pixels; p++)
        for (int k = 0; k < 4; k++)
            vst1q_s32(out + 16 * p + 4 * k, sums[p][k]);
}

DOTPROD static void run_s8_dotprod(const struct npu_tile *tile)
{
    if (tile->pixels == 1)
        s8_dotprod(tile, 1);
    else
        s8_dotprod(tile, 4);
}

TEMPLATE void f32_neon(const struct npu_tile *tile, const int pixels)
{
    float32x4_t sums[4][4];

    for (int p = 0; p < pixels; p++)
        for (int k = 0; k < 4; k++)
            sums[p][k] = vld1q_f32((const float *)tile->init + 4 * k);
    const float *w = tile->weights;
    for (ptrdiff_t t = 0; t < tile->taps; t++) {
        const uint8_t *const *rows = tile->rows + 4 * t;
        for (ptrdiff_t c = 0; c < tile->channels; c++, w += 16) {
            float32x4_t w0 = vld1q_f32(w), w1 = vld1q_f32(w + 4);
            float32x4_t w2 = vld1q_f32(w + 8), w3 = vld1q_f32(w + 12);
            for (int p = 0; p < pixels; p++) {
                float x = ((const float *)rows[p])[c];
                sums[p][0] = vfmaq_n_f32(sums[p][0], w0, x);
                sums[p][1] = vfmaq_n_f32(sums[p][1], w1, x);
                sums[p][2] = vfmaq_n_f32(sums[p][2], w2, x);
                sums[p][3] = vfmaq_n_f32(sums[p][3], w3, x);
            }
        }
    }
    float *out = tile->sums;
    for (int p = 0; p < pixels; p++)
        for (int k = 0; k < 4; k++)
            vst1q_f32(out + 16 * p + 4 * k, sums[p][k]);
}

static void run_f32_neon(const struct npu_tile *tile)
{
    if (tile->pixels == 1)
        f32_neon(tile, 1);
    else
        f32_neon(tile, 4);
}

static const struct npu_gemm s16_neon_variant = {
    "neon", 4, 16, 1, NPU_OPERAND_S16, run_s16_neon, NULL};
static const struct npu_gemm s8_dotprod_variant = {
    "neon-dotprod", 4, 16, 4, NPU_OPERAND_S8, run_s8_dotprod, NULL};
static const struct npu_gemm f32_neon_variant = {
    "neon", 4, 16, 1, NPU_OPERAND_F32, run_f32_neon, widen_neon};

#endif

/* ---------------------------------------------------------------- choice */

/* Best first. */
static const struct {
    const struct npu_gemm *gemm;
    enum npukit_simd level;
} variants[] = {
#if defined(__x86_64__)
    {&u8_vnni_variant, NPUKIT_AVX512_VNNI},
    {&f32_avx512_variant, NPUKIT_AVX512},
    {&s16_avx2_variant, NPUKIT_AVX2},
    {&f32_avx2_variant, NPUKIT_AVX2},
    {&s16_sse2_variant, NPUKIT_SSE2},
#elif defined(__aarch64__)
    {&s8_dotprod_variant, NPUKIT_NEON},
    {&s16_neon_variant, NPUKIT_NEON},
    {&f32_neon_variant, NPUKIT_NEON},
#endif
    {&s16_portable_variant, NPUKIT_PORTABLE},
    {&f32_portable_variant, NPUKIT_PORTABLE},
    {&w16_portable_variant, NPUKIT_PORTABLE},
};

#define VARIANTS (int)(sizeof variants / sizeof *variants)

/* What the level says nothing about. */
static int runs_here(const struct npu_gemm *gemm)
{
#if defined(__aarch64__)
    return gemm != &s8_dotprod_variant || getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#else
    (void)gemm;
    return 1;
#endif
}

const struct npu_gemm *npu_gemm_variant(int index, enum npukit_simd level)
{
    for (int i = 0; i < VARIANTS; i++)
        if (variants[i].level <= level && runs_here(variants[i].gemm) && index-- == 0)
            return variants[i].gemm;
    return NULL;
}

static const struct npu_gemm *best(enum npu_operand first, enum npu_operand last,
                                   enum npukit_simd level)
{
    const struct npu_gemm *gemm = NULL;

    for (int i = 0; (gemm = npu_gemm_variant(i, level)); i++)
        if (gemm->operand >= first && gemm->operand <= last)
            break;
    return gemm;
}

const struct npu_gemm *npu_gemm_int8(enum npukit_simd level)
{
    return best(NPU_OPERAND_U8, NPU_OPERAND_S16, level);
}

const struct npu_gemm *npu_gemm_fp16(enum npukit_simd level)
{
    return best(NPU_OPERAND_F32, NPU_OPERAND_F32, level);
}

const struct npu_gemm *npu_gemm_int16(enum npukit_simd level)
{
    return best(NPU_OPERAND_W16, NPU_OPERAND_W16, level);
}

void npu_half_from_float(uint16_t *dst, const float *src, size_t count, enum npukit_simd level)
{
#if defined(__x86_64__)
    if (level >= NPUKIT_AVX2) {
        narrow_avx2(dst, src, count);
        return;
    }
#elif defined(__aarch64__)
    if (level >= NPUKIT_NEON) {
        narrow_neon(dst, src, count);
        return;
    }
#endif
    (void)level;
    for (size_t i = 0; i < count; i++)
        dst[i] = float_to_half(src[i]);
}

/* ---------------------------------------------------------------- operands */

size_t npu_gemm_element(const struct npu_gemm *gemm)
{
    static const size_t sizes[] = {1, 1, 2, 4, 2};
    return sizes[gemm->operand];
}

void npu_gemm_features(const struct npu_gemm *gemm, void *dst, const void *src, size_t count)
{
    const uint8_t *bytes = src;

    switch (gemm->operand) {
    case NPU_OPERAND_U8:
        for (size_t i = 0; i < count; i++)
            ((uint8_t *)dst)[i] = bytes[i] ^ 0x80;
        break;
    case NPU_OPERAND_S8:
        memcpy(dst, src, count);
        break;
    case NPU_OPERAND_S16:
        for (size_t i = 0; i < count; i++)
            ((int16_t *)dst)[i] = (int8_t)bytes[i];
        break;
    case NPU_OPERAND_F32:
        gemm->widen(dst, src, count);
        break;
    case NPU_OPERAND_W16:
        memcpy(dst, src, 2 * count);
        break;
    }
}

/*
 * One kernel's run of channels (at most 32) into its column of the packed block: `dst` is where its
 * first unit goes, units of one kernel are `stride` bytes apart.
 */
static void scatter(const struct npu_gemm *gemm, uint8_t *dst, size_t stride, const uint8_t *src,
                    int channels)
{
    float wide[32];

    switch (gemm->operand) {
    case NPU_OPERAND_U8:
    case NPU_OPERAND_S8:
        for (int c = 0; c < channels; c += 4, dst += stride)
            memcpy(dst, src + c, 4);
        break;
    case NPU_OPERAND_S16:
        for (int c = 0; c < channels; c += gemm->unit, dst += stride)
            for (int i = 0; i < gemm->unit; i++)
                ((int16_t *)dst)[i] = (int8_t)src[c + i];
        break;
    case NPU_OPERAND_F32:
        gemm->widen(wide, src, (size_t)channels);
        for (int c = 0; c < channels; c++, dst += stride)
            memcpy(dst, wide + c, 4);
        break;
    case NPU_OPERAND_W16:
        for (int c = 0; c < channels; c++, dst += stride)
            memcpy(dst, src + 2 * c, 2);
        break;
    }
}

static int32_t total(const uint8_t *src, int count)
{
    int32_t sum = 0;
    for (int i = 0; i < count; i++)
        sum += (int8_t)src[i];
    return sum;
}

void npu_gemm_weights(const struct npu_gemm *gemm, const struct npu_weights *weights,
                      int64_t first, void *packed, void *init)
{
    const int group = weights->bytes == 1 ? 32 : 16;
    const int64_t kernel_bytes = weights->taps * weights->channels * weights->bytes;
    const size_t unit_bytes = npu_gemm_element(gemm) * (size_t)gemm->unit;
    const size_t stride = unit_bytes * (size_t)gemm->kernels;
    const int64_t units = weights->taps * weights->channels / gemm->unit;
    int32_t *totals = init;

    memset(init, 0, 4 * (size_t)gemm->kernels);
    if (first + gemm->kernels > weights->kernels)
        memset(packed, 0, stride * (size_t)units);
    for (int64_t k = first; k < weights->kernels && k < first + gemm->kernels;) {
        /* The wanted kernels of one group of memory: k .. end - 1. */
        const int64_t start = k / group * group;
        const int64_t peers = weights->kernels - start < group ? weights->kernels - start : group;
        const int64_t end =
            start + peers < first + gemm->kernels ? start + peers : first + gemm->kernels;
        const uint8_t *src = weights->data + start * kernel_bytes;

        for (int64_t c = 0; c < weights->channels; c += 32) {
            const int run = weights->channels - c < 32 ? (int)(weights->channels - c) : 32;
            const int64_t run_bytes = (int64_t)run * weights->bytes;
            for (int64_t t = 0; t < weights->taps; t++, src += peers * run_bytes) {
                uint8_t *dst = (uint8_t *)packed +
                               stride * (size_t)((t * weights->channels + c) / gemm->unit);
                for (int64_t i = k; i < end; i++) {
                    const uint8_t *from = src + (i - start) * run_bytes;
                    const size_t column = (size_t)(i - first);
                    scatter(gemm, dst + unit_bytes * column, stride, from, run);
                    if (gemm->operand == NPU_OPERAND_U8)
                        totals[column] += total(from, run);
                }
            }
        }
        k = end;
    }
    /* Features are 128 too large in this variant. Modulo 2^32, as the sums are. */
    if (gemm->operand == NPU_OPERAND_U8)
        for (int k = 0; k < gemm->kernels; k++)
            totals[k] = (int32_t)(-128u * (uint32_t)totals[k]);
}
