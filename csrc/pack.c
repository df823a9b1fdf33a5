/* SPDX-License-Identifier: MIT */
#include "pack.h"

#include <stdint.h>
#include <string.h>

#include "cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))

/* ---- NC1HWC2: a transpose of each group of C2 channels ------------------------------------
 *
 * A group is `rows` <= C2 = n channels of `pitch` bytes on the planar side, and pitch / itemsize
 * atoms on the other. Everything is counted in bytes: byte x of a row belongs to the atom at
 * x * n.
 */
typedef void group_packer(uint8_t *dst, const uint8_t *src, size_t pitch, unsigned rows,
                          const uint8_t *fill_atom);
typedef void group_unpacker(uint8_t *dst, const uint8_t *src, size_t pitch, unsigned rows);

INLINE void pack_portable(uint8_t *dst, const uint8_t *src, size_t pitch, unsigned rows,
                          const uint8_t *fill_atom, size_t itemsize)
{
    for (size_t x = 0; x < pitch; x += itemsize, dst += NPUKIT_ATOM) {
        memcpy(dst, fill_atom, NPUKIT_ATOM);
        for (unsigned row = 0; row < rows; row++)
            memcpy(dst + row * itemsize, src + row * pitch + x, itemsize);
    }
}

INLINE void unpack_portable(uint8_t *dst, const uint8_t *src, size_t pitch, unsigned rows,
                            size_t itemsize)
{
    for (size_t x = 0; x < pitch; x += itemsize, src += NPUKIT_ATOM)
        for (unsigned row = 0; row < rows; row++)
            memcpy(dst + row * pitch + x, src + row * itemsize, itemsize);
}

#define PORTABLE(BITS)                                                                         \
    static void pack_portable_##BITS(uint8_t *dst, const uint8_t *src, size_t pitch,           \
                                     unsigned rows, const uint8_t *fill_atom)                  \
    {                                                                                          \
        pack_portable(dst, src, pitch, rows, fill_atom, BITS / 8);                             \
    }                                                                                          \
    static void unpack_portable_##BITS(uint8_t *dst, const uint8_t *src, size_t pitch,         \
                                       unsigned rows)                                          \
    {                                                                                          \
        unpack_portable(dst, src, pitch, rows, BITS / 8);                                      \
    }

PORTABLE(8)
PORTABLE(16)
PORTABLE(32)

/* Zipping register i with register i + n/2 rotates the bits of an element's index (register, place
 * in a 128-bit lane) by one place; this does `rounds` such rounds on n registers. */
#define ZIP_ROUNDS(V, n, rounds, ZIP_LOW, ZIP_HIGH, tile)                                      \
    _Pragma("GCC unroll 4")                                                                    \
    for (int round = 0; round < rounds; round++) {                                             \
        V zipped[n];                                                                           \
        _Pragma("GCC unroll 8")                                                                \
        for (int i = 0; i < n / 2; i++) {                                                      \
            zipped[2 * i] = ZIP_LOW(tile[i], tile[i + n / 2]);                                 \
            zipped[2 * i + 1] = ZIP_HIGH(tile[i], tile[i + n / 2]);                            \
        }                                                                                      \
        _Pragma("GCC unroll 16")                                                               \
        for (int i = 0; i < n; i++)                                                            \
            tile[i] = zipped[i];                                                               \
    }

/* Packing: 16 bytes of each of the C2 rows make C2 atoms. Register q holds rows q, q + n, q + 2n
 * ... in its lanes; zipping the n registers puts n rows of a column side by side, and
 * join_lanes() the lanes of a column: whole atoms, in order, so that every store is a full vector
 * at the next address.
 *
 * The last tile of a row overlaps the one before it, which writes the same bytes twice and spares
 * a scalar tail; so pitch must be at least one tile wide. */
#define PACKER(NAME, TARGET, V, n, rounds, ZIP_LOW, ZIP_HIGH)                                  \
    TARGET INLINE void pack_tile_##NAME(uint8_t *dst, const uint8_t *src, size_t pitch)        \
    {                                                                                          \
        V tile[n];                                                                             \
        _Pragma("GCC unroll 16")                                                               \
        for (int q = 0; q < n; q++)                                                            \
            tile[q] = load_lanes_##V(src + q * pitch, n * pitch);                              \
        ZIP_ROUNDS(V, n, rounds, ZIP_LOW, ZIP_HIGH, tile)                                      \
        _Pragma("GCC unroll 16")                                                               \
        for (int i = 0; i < n; i++)                                                            \
            store_##V(dst + i * sizeof(V), join_lanes_##V(tile[i]));                           \
    }                                                                                          \
    TARGET static void pack_##NAME(uint8_t *dst, const uint8_t *src, size_t pitch,             \
                                   unsigned rows, const uint8_t *fill_atom)                    \
    {                                                                                          \
        const size_t c2 = n * sizeof(V) / NPUKIT_ATOM;                                         \
        uint8_t staged[n * sizeof(V)];                                                         \
        for (unsigned row = rows; row < c2; row++)                                             \
            memcpy(staged + row * NPUKIT_ATOM, fill_atom, NPUKIT_ATOM);                        \
        for (size_t x = 0; x < pitch; x += NPUKIT_ATOM) {                                      \
            if (x + NPUKIT_ATOM > pitch)                                                       \
                x = pitch - NPUKIT_ATOM;                                                       \
            if (rows == c2) {                                                                  \
                pack_tile_##NAME(dst + x * c2, src + x, pitch);                                \
                continue;                                                                      \
            }                                                                                  \
            for (unsigned row = 0; row < rows; row++)                                          \
                memcpy(staged + row * NPUKIT_ATOM, src + row * pitch + x, NPUKIT_ATOM);        \
            pack_tile_##NAME(dst + x * c2, staged, NPUKIT_ATOM);                               \
        }                                                                                      \
    }

/* Unpacking: lane l of register i is atom l * c2 + i; zipping all c2 registers until row and
 * column have changed places makes register i a full vector of row i. */
#define UNPACKER(NAME, TARGET, V, c2, rounds, ZIP_LOW, ZIP_HIGH)                               \
    TARGET INLINE void unpack_rows_##NAME(uint8_t *dst, const uint8_t *src, size_t pitch,      \
                                          unsigned rows)                                       \
    {                                                                                          \
        for (size_t x = 0; x < pitch; x += sizeof(V)) {                                        \
            if (x + sizeof(V) > pitch)                                                         \
                x = pitch - sizeof(V);                                                         \
            V tile[c2];                                                                        \
            _Pragma("GCC unroll 16")                                                           \
            for (unsigned i = 0; i < c2; i++)                                                  \
                tile[i] = load_lanes_##V(src + x * c2 + i * NPUKIT_ATOM, c2 * NPUKIT_ATOM);    \
            ZIP_ROUNDS(V, c2, rounds, ZIP_LOW, ZIP_HIGH, tile)                                 \
            _Pragma("GCC unroll 16")                                                           \
            for (unsigned i = 0; i < c2; i++)                                                  \
                if (i < rows)                                                                  \
                    store_##V(dst + i * pitch + x, tile[i]);                                   \
        }                                                                                      \
    }                                                                                          \
    TARGET static void unpack_##NAME(uint8_t *dst, const uint8_t *src, size_t pitch,           \
                                     unsigned rows)                                            \
    {                                                                                          \
        if (rows == c2)                                                                        \
            unpack_rows_##NAME(dst, src, pitch, c2);                                           \
        else                                                                                   \
            unpack_rows_##NAME(dst, src, pitch, rows);                                         \
    }

#if defined(__x86_64__)

typedef __m128i v128;

INLINE v128 load_lanes_v128(const uint8_t *p, size_t step)
{
    (void)step;
    return _mm_loadu_si128((const __m128i *)p);
}

INLINE void store_v128(uint8_t *p, v128 v)
{
    _mm_storeu_si128((__m128i *)p, v);
}

INLINE v128 join_lanes_v128(v128 v)
{
    return v;
}

PACKER(sse2_8, , v128, 16, 4, _mm_unpacklo_epi8, _mm_unpackhi_epi8)
PACKER(sse2_16, , v128, 8, 3, _mm_unpacklo_epi16, _mm_unpackhi_epi16)
PACKER(sse2_32, , v128, 4, 2, _mm_unpacklo_epi32, _mm_unpackhi_epi32)
UNPACKER(sse2_8, , v128, 16, 4, _mm_unpacklo_epi8, _mm_unpackhi_epi8)
UNPACKER(sse2_16, , v128, 8, 3, _mm_unpacklo_epi16, _mm_unpackhi_epi16)
UNPACKER(sse2_32, , v128, 4, 2, _mm_unpacklo_epi32, _mm_unpackhi_epi32)

#define AVX2 __attribute__((target("avx2")))
typedef __m256i v256;

AVX2 INLINE v256 load_lanes_v256(const uint8_t *p, size_t step)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load_lanes_v128(p, 0)),
                                   load_lanes_v128(p + step, 0), 1);
}

AVX2 INLINE void store_v256(uint8_t *p, v256 v)
{
    _mm256_storeu_si256((__m256i *)p, v);
}

AVX2 INLINE v256 join_lanes_v256(v256 v)
{
    return _mm256_permute4x64_epi64(v, _MM_SHUFFLE(3, 1, 2, 0));
}

PACKER(avx2_8, AVX2, v256, 8, 3, _mm256_unpacklo_epi8, _mm256_unpackhi_epi8)
PACKER(avx2_16, AVX2, v256, 4, 2, _mm256_unpacklo_epi16, _mm256_unpackhi_epi16)
PACKER(avx2_32, AVX2, v256, 2, 1, _mm256_unpacklo_epi32, _mm256_unpackhi_epi32)
UNPACKER(avx2_8, AVX2, v256, 16, 4, _mm256_unpacklo_epi8, _mm256_unpackhi_epi8)
UNPACKER(avx2_16, AVX2, v256, 8, 3, _mm256_unpacklo_epi16, _mm256_unpackhi_epi16)
UNPACKER(avx2_32, AVX2, v256, 4, 2, _mm256_unpacklo_epi32, _mm256_unpackhi_epi32)

#define AVX512 __attribute__((target("avx512f,avx512bw")))
typedef __m512i v512;

AVX512 INLINE v512 load_lanes_v512(const uint8_t *p, size_t step)
{
    v512 v = _mm512_castsi128_si512(load_lanes_v128(p, 0));
    v = _mm512_inserti32x4(v, load_lanes_v128(p + step, 0), 1);
    v = _mm512_inserti32x4(v, load_lanes_v128(p + 2 * step, 0), 2);
    return _mm512_inserti32x4(v, load_lanes_v128(p + 3 * step, 0), 3);
}

AVX512 INLINE void store_v512(uint8_t *p, v512 v)
{
    _mm512_storeu_si512(p, v);
}

AVX512 INLINE v512 join_lanes_v512(v512 v)
{
    const v512 transposed = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    return _mm512_permutexvar_epi32(transposed, v);
}

PACKER(avx512_8, AVX512, v512, 4, 2, _mm512_unpacklo_epi8, _mm512_unpackhi_epi8)
PACKER(avx512_16, AVX512, v512, 2, 1, _mm512_unpacklo_epi16, _mm512_unpackhi_epi16)
PACKER(avx512_32, AVX512, v512, 1, 0, _mm512_unpacklo_epi32, _mm512_unpackhi_epi32)
UNPACKER(avx512_8, AVX512, v512, 16, 4, _mm512_unpacklo_epi8, _mm512_unpackhi_epi8)
UNPACKER(avx512_16, AVX512, v512, 8, 3, _mm512_unpacklo_epi16, _mm512_unpackhi_epi16)
UNPACKER(avx512_32, AVX512, v512, 4, 2, _mm512_unpacklo_epi32, _mm512_unpackhi_epi32)

#elif defined(__aarch64__)

typedef uint8x16_t v128;

INLINE v128 load_lanes_v128(const uint8_t *p, size_t step)
{
    (void)step;
    return vld1q_u8(p);
}

INLINE void store_v128(uint8_t *p, v128 v)
{
    vst1q_u8(p, v);
}

INLINE v128 join_lanes_v128(v128 v)
{
    return v;
}

INLINE v128 zip1_16(v128 a, v128 b)
{
    return vreinterpretq_u8_u16(vzip1q_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)));
}

INLINE v128 zip2_16(v128 a, v128 b)
{
    return vreinterpretq_u8_u16(vzip2q_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)));
}

INLINE v128 zip1_32(v128 a, v128 b)
{
    return vreinterpretq_u8_u32(vzip1q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
}

INLINE v128 zip2_32(v128 a, v128 b)
{
    return vreinterpretq_u8_u32(vzip2q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
}

PACKER(neon_8, , v128, 16, 4, vzip1q_u8, vzip2q_u8)
PACKER(neon_16, , v128, 8, 3, zip1_16, zip2_16)
PACKER(neon_32, , v128, 4, 2, zip1_32, zip2_32)
UNPACKER(neon_8, , v128, 16, 4, vzip1q_u8, vzip2q_u8)
UNPACKER(neon_16, , v128, 8, 3, zip1_16, zip2_16)
UNPACKER(neon_32, , v128, 4, 2, zip1_32, zip2_32)

#endif

/* Widest first; each is for planes of at least `width` bytes. */
static const struct variant {
    enum npukit_simd level;
    size_t width;
    group_packer *pack[3]; /* by log2(itemsize) */
    group_unpacker *unpack[3];
} variants[] = {
#if defined(__x86_64__)
    {NPUKIT_AVX512, 64, {pack_avx512_8, pack_avx512_16, pack_avx512_32},
     {unpack_avx512_8, unpack_avx512_16, unpack_avx512_32}},
    {NPUKIT_AVX2, 32, {pack_avx2_8, pack_avx2_16, pack_avx2_32},
     {unpack_avx2_8, unpack_avx2_16, unpack_avx2_32}},
    {NPUKIT_SSE2, 16, {pack_sse2_8, pack_sse2_16, pack_sse2_32},
     {unpack_sse2_8, unpack_sse2_16, unpack_sse2_32}},
#elif defined(__aarch64__)
    {NPUKIT_NEON, 16, {pack_neon_8, pack_neon_16, pack_neon_32},
     {unpack_neon_8, unpack_neon_16, unpack_neon_32}},
#endif
    {NPUKIT_PORTABLE, 0, {pack_portable_8, pack_portable_16, pack_portable_32},
     {unpack_portable_8, unpack_portable_16, unpack_portable_32}},
};

static const struct variant *variant_for(size_t pitch)
{
    const struct variant *variant = variants;
    while (variant->level > npukit_simd_level() || variant->width > pitch)
        variant++;
    return variant;
}

static void make_atom(uint8_t *atom, const void *fill, size_t itemsize)
{
    for (size_t at = 0; at < NPUKIT_ATOM; at += itemsize)
        memcpy(atom + at, fill, itemsize);
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

void npukit_pack_nc1hwc2(void *dst, const void *src, size_t channels, size_t plane,
                         size_t itemsize, const void *fill)
{
    size_t pitch = plane * itemsize, c2 = NPUKIT_ATOM / itemsize;
    group_packer *pack = variant_for(pitch)->pack[__builtin_ctzl(itemsize)];
    uint8_t fill_atom[NPUKIT_ATOM];
    make_atom(fill_atom, fill, itemsize);
    for (size_t c = 0; c < channels; c += c2)
        pack((uint8_t *)dst + c * pitch, (const uint8_t *)src + c * pitch, pitch,
             (unsigned)smaller(c2, channels - c), fill_atom);
}

void npukit_unpack_nc1hwc2(void *dst, const void *src, size_t channels, size_t plane,
                           size_t itemsize)
{
    size_t pitch = plane * itemsize, c2 = NPUKIT_ATOM / itemsize;
    group_unpacker *unpack = variant_for(pitch)->unpack[__builtin_ctzl(itemsize)];
    for (size_t c = 0; c < channels; c += c2)
        unpack((uint8_t *)dst + c * pitch, (const uint8_t *)src + c * pitch, pitch,
               (unsigned)smaller(c2, channels - c));
}

/* ---- From and to channels-last: a transpose whose elements are whole atoms ---------------- */

/* Sixteen rows at a time: a core merges stores to neighbours, and can do without neighbouring
 * loads. */
#define ROWS_AT_ONCE 16

static void transpose_atoms_portable(uint8_t *dst, size_t dst_pitch, const uint8_t *src,
                                     size_t src_pitch, size_t rows, size_t columns)
{
    size_t row = 0;
    for (; row + ROWS_AT_ONCE <= rows; row += ROWS_AT_ONCE)
        for (size_t column = 0; column < columns; column++)
            for (size_t i = row; i < row + ROWS_AT_ONCE; i++)
                memcpy(dst + column * dst_pitch + i * NPUKIT_ATOM,
                       src + i * src_pitch + column * NPUKIT_ATOM, NPUKIT_ATOM);
    for (; row < rows; row++)
        for (size_t column = 0; column < columns; column++)
            memcpy(dst + column * dst_pitch + row * NPUKIT_ATOM,
                   src + row * src_pitch + column * NPUKIT_ATOM, NPUKIT_ATOM);
}

#if defined(__x86_64__)

AVX512 INLINE void transpose_4x4_atoms(uint8_t *dst, size_t dst_pitch, const uint8_t *src,
                                       size_t src_pitch)
{
    v512 a = _mm512_loadu_si512(src), b = _mm512_loadu_si512(src + src_pitch);
    v512 c = _mm512_loadu_si512(src + 2 * src_pitch), d = _mm512_loadu_si512(src + 3 * src_pitch);
    v512 ab_low = _mm512_shuffle_i32x4(a, b, _MM_SHUFFLE(1, 0, 1, 0));
    v512 cd_low = _mm512_shuffle_i32x4(c, d, _MM_SHUFFLE(1, 0, 1, 0));
    v512 ab_high = _mm512_shuffle_i32x4(a, b, _MM_SHUFFLE(3, 2, 3, 2));
    v512 cd_high = _mm512_shuffle_i32x4(c, d, _MM_SHUFFLE(3, 2, 3, 2));
    store_v512(dst, _mm512_shuffle_i32x4(ab_low, cd_low, _MM_SHUFFLE(2, 0, 2, 0)));
    store_v512(dst + dst_pitch, _mm512_shuffle_i32x4(ab_low, cd_low, _MM_SHUFFLE(3, 1, 3, 1)));
    store_v512(dst + 2 * dst_pitch,
               _mm512_shuffle_i32x4(ab_high, cd_high, _MM_SHUFFLE(2, 0, 2, 0)));
    store_v512(dst + 3 * dst_pitch,
               _mm512_shuffle_i32x4(ab_high, cd_high, _MM_SHUFFLE(3, 1, 3, 1)));
}

/* AVX2 gains nothing over the portable loop here; nor would this if its stores crossed the lines
 * of the cache, so the rows before the first whole line of dst go ahead. */
AVX512 static void transpose_atoms_avx512(uint8_t *dst, size_t dst_pitch, const uint8_t *src,
                                          size_t src_pitch, size_t rows, size_t columns)
{
    size_t ahead = smaller(rows, -(uintptr_t)dst / NPUKIT_ATOM & 3);
    transpose_atoms_portable(dst, dst_pitch, src, src_pitch, ahead, columns);
    dst += ahead * NPUKIT_ATOM;
    src += ahead * src_pitch;
    rows -= ahead;

    size_t whole_rows = rows / 4 * 4, whole_columns = columns / 4 * 4;
    for (size_t block = 0; block < whole_rows; block += ROWS_AT_ONCE)
        for (size_t column = 0; column < whole_columns; column += 4)
            for (size_t row = block; row < smaller(block + ROWS_AT_ONCE, whole_rows); row += 4)
                transpose_4x4_atoms(dst + column * dst_pitch + row * NPUKIT_ATOM, dst_pitch,
                                    src + row * src_pitch + column * NPUKIT_ATOM, src_pitch);
    transpose_atoms_portable(dst + whole_columns * dst_pitch, dst_pitch,
                             src + whole_columns * NPUKIT_ATOM, src_pitch, whole_rows,
                             columns - whole_columns);
    transpose_atoms_portable(dst + whole_rows * NPUKIT_ATOM, dst_pitch,
                             src + whole_rows * src_pitch, src_pitch, rows - whole_rows, columns);
}

#endif

static void transpose_atoms(uint8_t *dst, size_t dst_pitch, const uint8_t *src, size_t src_pitch,
                            size_t rows, size_t columns)
{
#if defined(__x86_64__)
    if (npukit_simd_level() >= NPUKIT_AVX512) {
        transpose_atoms_avx512(dst, dst_pitch, src, src_pitch, rows, columns);
        return;
    }
#endif
    transpose_atoms_portable(dst, dst_pitch, src, src_pitch, rows, columns);
}

/* The last atom of each pixel when its channels do not fill it: keep `rest` bytes, fill the others.
 * Reads whole atoms, into the next pixel, except where that would pass the end of the source. */
static void pack_rest(uint8_t *dst, const uint8_t *src, size_t pixel, size_t plane, size_t rest,
                      const uint8_t *fill_atom)
{
    struct { uint64_t half[2]; } keep = {{0, 0}}, filled, atom;
    memset(&keep, 0xff, rest);
    memcpy(&filled, fill_atom, NPUKIT_ATOM);
    filled.half[0] &= ~keep.half[0];
    filled.half[1] &= ~keep.half[1];
    for (size_t p = 0; p < plane; p++, dst += NPUKIT_ATOM, src += pixel) {
        int inside = (plane - 1 - p) * pixel + rest >= NPUKIT_ATOM;
        memcpy(&atom, src, inside ? NPUKIT_ATOM : rest);
        atom.half[0] = (atom.half[0] & keep.half[0]) | filled.half[0];
        atom.half[1] = (atom.half[1] & keep.half[1]) | filled.half[1];
        memcpy(dst, &atom, NPUKIT_ATOM);
    }
}

void npukit_pack_nhwc(void *dst, const void *src, size_t channels, size_t plane, size_t itemsize,
                      const void *fill)
{
    size_t pixel = channels * itemsize, whole = pixel / NPUKIT_ATOM, rest = pixel % NPUKIT_ATOM;
    transpose_atoms(dst, plane * NPUKIT_ATOM, src, pixel, plane, whole);
    if (rest) {
        uint8_t fill_atom[NPUKIT_ATOM];
        make_atom(fill_atom, fill, itemsize);
        pack_rest((uint8_t *)dst + whole * plane * NPUKIT_ATOM,
                  (const uint8_t *)src + whole * NPUKIT_ATOM, pixel, plane, rest, fill_atom);
    }
}

void npukit_unpack_nhwc(void *dst, const void *src, size_t channels, size_t plane,
                        size_t itemsize)
{
    size_t pixel = channels * itemsize, whole = pixel / NPUKIT_ATOM, rest = pixel % NPUKIT_ATOM;
    /* The rests first, and in order: a whole atom spills into the next pixel, which is written
     * after it. */
    for (size_t p = 0; rest && p < plane; p++) {
        int inside = (plane - 1 - p) * pixel + rest >= NPUKIT_ATOM;
        memcpy((uint8_t *)dst + p * pixel + whole * NPUKIT_ATOM,
               (const uint8_t *)src + (whole * plane + p) * NPUKIT_ATOM,
               inside ? NPUKIT_ATOM : rest);
    }
    transpose_atoms(dst, pixel, src, plane * NPUKIT_ATOM, whole, plane);
}

/* ---- Weights ------------------------------------------------------------------------------ */

#define CHANNEL_GROUP 32

/* `count` kernels of one tap and one channel group. `have` bytes of `width` exist on the side of
 * the tensor, whose kernels are `step` bytes apart. */
INLINE void pack_kernels(uint8_t *dst, const uint8_t *src, size_t count, size_t step, size_t width,
                         size_t have, const uint8_t *fill_atom)
{
    for (size_t kernel = 0; kernel < count; kernel++, dst += width, src += step) {
        if (have < width)
            memcpy(dst + width - NPUKIT_ATOM, fill_atom, NPUKIT_ATOM);
        memcpy(dst, src, have);
    }
}

INLINE void unpack_kernels(uint8_t *dst, const uint8_t *src, size_t count, size_t step,
                           size_t width, size_t have)
{
    for (size_t kernel = 0; kernel < count; kernel++, dst += step, src += width)
        memcpy(dst, src, have);
}

/* Walk the packed side in order; `fill_atom` NULL means unpacking. */
INLINE void weights(uint8_t *packed, uint8_t *tensor, size_t kernels, size_t taps, size_t row,
                    size_t itemsize, const uint8_t *fill_atom)
{
    const size_t kernel_group = 32 / itemsize, group = CHANNEL_GROUP * itemsize;
    size_t step = taps * row, padded = (row + NPUKIT_ATOM - 1) / NPUKIT_ATOM * NPUKIT_ATOM;
    for (size_t k = 0; k < kernels; k += kernel_group) {
        size_t count = smaller(kernel_group, kernels - k);
        for (size_t c = 0; c < padded; c += group) {
            size_t width = smaller(group, padded - c), have = smaller(width, row - c);
            for (size_t tap = 0; tap < taps; tap++) {
                uint8_t *first = tensor + k * step + tap * row + c;
                if (fill_atom && have == group)
                    pack_kernels(packed, first, count, step, group, group, fill_atom);
                else if (fill_atom)
                    pack_kernels(packed, first, count, step, width, have, fill_atom);
                else if (have == group)
                    unpack_kernels(first, packed, count, step, group, group);
                else
                    unpack_kernels(first, packed, count, step, width, have);
                packed += count * width;
            }
        }
    }
}

void npukit_pack_weights(void *dst, const void *src, size_t kernels, size_t taps, size_t channels,
                         size_t itemsize, const void *fill)
{
    uint8_t fill_atom[NPUKIT_ATOM];
    make_atom(fill_atom, fill, itemsize);
    if (itemsize == 1)
        weights(dst, (uint8_t *)src, kernels, taps, channels, 1, fill_atom);
    else
        weights(dst, (uint8_t *)src, kernels, taps, 2 * channels, 2, fill_atom);
}

void npukit_unpack_weights(void *dst, const void *src, size_t kernels, size_t taps,
                           size_t channels, size_t itemsize)
{
    if (itemsize == 1)
        weights((uint8_t *)src, dst, kernels, taps, channels, 1, NULL);
    else
        weights((uint8_t *)src, dst, kernels, taps, 2 * channels, 2, NULL);
}
