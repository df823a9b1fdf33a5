/* SPDX-License-Identifier: MIT */
/*
 * The pooling unit and its input DMA: windows of one surface of 16-byte atoms each, in lanes.
 *
 * Source atoms are at SRC_BASE + 16 * (surface * SRC_SURF_STRIDE + y * SRC_LINE_STRIDE + x), output
 * atoms at DST_BASE + 16 * (surface * DST_SURF_STRIDE + y * (width + NOTCH) + x). In an average a
 * position outside of the input holds the pad value and counts; maxima and minima leave it out, as
 * NVDLA's PDP does: Rockchip's compiler pads maxima of any tensor, also of negative numbers, with 0.
 * An average is the sum times both reciprocals: integers of 2^16 / k for int8, rounded to nearest,
 * ties to even, which is what has been measured on an RK3588 (an inexact reciprocal is too small, so
 * that a tie goes towards zero); fp16 bit patterns of 2^16 / k for fp16. There the order of the fp32
 * operations, and what NaN does to a maximum, are not known. (Sources: rocket-userspace's notes on
 * pooling, and the vendor's captures, whose tasks of one pixel only wait.)
 */
#include "rk3588.h"

#include <string.h>

#define LANES 16 /* of int8, the most */
#define SMALL_WORK (1 << 20) /* below this, a thread costs more than it brings */

enum { AVERAGE, MAXIMUM, MINIMUM };

static const struct npu_rule modes[] = {
    {PPU_INDEX_EN, 0, "positions of extrema"},
    {PPU_USE_CNT, 0, "use count"},
    {PPU_FLYING_MODE, 1, "input from the DPU"},
    {PPU_DPU_FLYIN, 0, "input from the DPU"},
    {PPU_PAD_VALUE_1, 0, "pad values of more than 32 bits"},
    {PPU_SURF_LEN, 0, "surface length"},
    {PPU_MC_SURF_OUT, 0, "several surfaces out"},
    {PPU_NONALIGN, 0, "non-aligned mode"},
};

struct pool {
    int fp16, method;
    int64_t width, height, channels;
    int64_t out_width, out_height;
    int64_t kernel_width, kernel_height, stride_x, stride_y, pad_left, pad_top;
    union npu_value pad;
    int64_t reciprocals;    /* the product, for int8 */
    float scale_x, scale_y; /* for fp16 */
    struct npu_cube source, destination;
    const struct npu_space *space;
    enum npukit_simd level;
};

/* ---------------------------------------------------------------- registers */

static int decode_sizes(const struct npu *npu, struct pool *pool, struct npu_fault *fault)
{
    pool->width = (int64_t)npu_get(npu, PPU_CUBE_IN_WIDTH) + 1;
    pool->height = (int64_t)npu_get(npu, PPU_CUBE_IN_HEIGHT) + 1;
    pool->channels = (int64_t)npu_get(npu, PPU_CUBE_IN_CHANNEL) + 1;
    pool->out_width = (int64_t)npu_get(npu, PPU_CUBE_OUT_WIDTH) + 1;
    pool->out_height = (int64_t)npu_get(npu, PPU_CUBE_OUT_HEIGHT) + 1;
    if (npu_expect(npu, PPU_CUBE_OUT_CHANNEL, pool->channels - 1, "has to equal CUBE_IN_CHANNEL",
                   fault) ||
        npu_expect(npu, PPU_RDMA_CUBE_IN_WIDTH, pool->width - 1,
                   "has to equal PPU.CUBE_IN_WIDTH", fault) ||
        npu_expect(npu, PPU_RDMA_CUBE_IN_HEIGHT, pool->height - 1,
                   "has to equal PPU.CUBE_IN_HEIGHT", fault) ||
        npu_expect(npu, PPU_RDMA_CUBE_IN_CHANNEL, pool->channels - 1,
                   "has to equal PPU.CUBE_IN_CHANNEL", fault))
        return -1;
    if (pool->channels * (pool->fp16 ? 2 : 1) % ATOM)
        return npu_unsupported(fault, npu, PPU_CUBE_IN_CHANNEL,
                               "what is written behind channels that do not fill atoms is "
                               "not known");
    return 0;
}

/* A window may reach as far behind the input as the padding goes, and has to touch the input. */
static int decode_windows(const struct npu *npu, struct pool *pool, struct npu_fault *fault)
{
    const int64_t right = npu_get(npu, PPU_PAD_RIGHT), bottom = npu_get(npu, PPU_PAD_BOTTOM);
    int64_t last_x, last_y;

    pool->kernel_width = (int64_t)npu_get(npu, PPU_KERNEL_WIDTH) + 1;
    pool->kernel_height = (int64_t)npu_get(npu, PPU_KERNEL_HEIGHT) + 1;
    pool->stride_x = (int64_t)npu_get(npu, PPU_KERNEL_STRIDE_WIDTH) + 1;
    pool->stride_y = (int64_t)npu_get(npu, PPU_KERNEL_STRIDE_HEIGHT) + 1;
    pool->pad_left = npu_get(npu, PPU_PAD_LEFT);
    pool->pad_top = npu_get(npu, PPU_PAD_TOP);
    last_x = (pool->out_width - 1) * pool->stride_x - pool->pad_left;
    last_y = (pool->out_height - 1) * pool->stride_y - pool->pad_top;
    if (pool->pad_left >= pool->kernel_width)
        return npu_inconsistent(fault, npu, PPU_PAD_LEFT,
                                "leaves the first window in padding alone");
    if (pool->pad_top >= pool->kernel_height)
        return npu_inconsistent(fault, npu, PPU_PAD_TOP,
                                "leaves the first window in padding alone");
    if (last_x >= pool->width || last_x + pool->kernel_width > pool->width + right)
        return npu_inconsistent(fault, npu, PPU_CUBE_OUT_WIDTH,
                                "puts the last window behind the input and its padding");
    if (last_y >= pool->height || last_y + pool->kernel_height > pool->height + bottom)
        return npu_inconsistent(fault, npu, PPU_CUBE_OUT_HEIGHT,
                                "puts the last window below the input and its padding");
    return 0;
}

static float half(uint32_t bits)
{
    const uint16_t value = (uint16_t)bits;
    float wide;

    npu_gemm_fp16(NPUKIT_PORTABLE)->widen(&wide, &value, 1);
    return wide;
}

static int decode_values(const struct npu *npu, struct pool *pool, struct npu_fault *fault)
{
    const uint32_t pad = npu_get(npu, PPU_PAD_VALUE_0);
    const uint32_t x = npu_get(npu, PPU_RECIP_KERNEL_WIDTH);
    const uint32_t y = npu_get(npu, PPU_RECIP_KERNEL_HEIGHT);

    if (pool->fp16) {
        if (pad >> 16)
            return npu_unsupported(fault, npu, PPU_PAD_VALUE_0, "more than 16 bits for fp16");
        if (pool->method == AVERAGE && x >> 16)
            return npu_unsupported(fault, npu, PPU_RECIP_KERNEL_WIDTH,
                                   "more than 16 bits for fp16");
        if (pool->method == AVERAGE && y >> 16)
            return npu_unsupported(fault, npu, PPU_RECIP_KERNEL_HEIGHT,
                                   "more than 16 bits for fp16");
        pool->pad.f = half(pad);
        pool->scale_x = half(x);
        pool->scale_y = half(y);
        return 0;
    }
    /* Sign-extended to 19 bits, as is known to work, or to all. */
    pool->pad.i = (int32_t)((pad & 0x7ffff) ^ 0x40000) - 0x40000;
    if ((pad >> 19 && pad >> 19 != 0x1fff) || pool->pad.i < -128 || pool->pad.i > 127)
        return npu_unsupported(fault, npu, PPU_PAD_VALUE_0, "more than 8 bits for int8");
    pool->reciprocals = (int64_t)x * y;
    return 0;
}

static int decode_memory(const struct npu *npu, struct pool *pool, struct npu_fault *fault)
{
    const int64_t surfaces = pool->channels * (pool->fp16 ? 2 : 1) / ATOM;

    pool->source = (struct npu_cube){
        .base = npu_get(npu, PPU_RDMA_SRC_BASE_ADDR),
        .surface_pitch = ATOM * (int64_t)npu_get(npu, PPU_RDMA_SRC_SURF_STRIDE),
        .line_pitch = ATOM * (int64_t)npu_get(npu, PPU_RDMA_SRC_LINE_STRIDE),
        .surfaces = surfaces,
        .lines = pool->height,
        .line_bytes = ATOM * pool->width,
        .field = PPU_RDMA_SRC_BASE_ADDR,
    };
    pool->destination = (struct npu_cube){
        .base = ATOM * (int64_t)npu_get(npu, PPU_DST_BASE_ADDR),
        .surface_pitch = ATOM * (int64_t)npu_get(npu, PPU_DST_SURF_STRIDE),
        .line_pitch = ATOM * (pool->out_width + npu_get(npu, PPU_NOTCH_ADDR)),
        .surfaces = surfaces,
        .lines = pool->out_height,
        .line_bytes = ATOM * pool->out_width,
        .field = PPU_DST_BASE_ADDR,
    };
    if (pool->source.base % ATOM)
        return npu_inconsistent(fault, npu, PPU_RDMA_SRC_BASE_ADDR, "has to be a multiple of 16");
    return surfaces == 1 ? 0
                         : npu_expect(npu, PPU_INDEX_ADD, npu_get(npu, PPU_DST_SURF_STRIDE),
                                      "has to equal DST_SURF_STRIDE", fault);
}

static int decode(const struct npu *npu, struct pool *pool, struct npu_fault *fault)
{
    const uint32_t precision = npu_get(npu, PPU_PROC_PRECISION);

    if (NPU_REQUIRE(npu, modes, fault))
        return -1;
    if (precision != NPU_INT8 && precision != NPU_FP16)
        return npu_unsupported(fault, npu, PPU_PROC_PRECISION,
                               "only 0 (int8) and 2 (fp16) are modelled");
    pool->fp16 = precision == NPU_FP16;
    /* 8 or 16 bits. Others may work on int8 as well, but nobody should rely on that. */
    if (npu_expect(npu, PPU_RDMA_IN_PRECISION, pool->fp16 ? 2 : 1,
                   "is the width of what PROC_PRECISION says", fault))
        return -1;
    pool->method = (int)npu_get(npu, PPU_POOLING_METHOD);
    if (pool->method > MINIMUM)
        return npu_unsupported(fault, npu, PPU_POOLING_METHOD,
                               "only 0, 1 and 2 (average, maximum and minimum) are defined");
    if (decode_sizes(npu, pool, fault) || decode_windows(npu, pool, fault) ||
        decode_values(npu, pool, fault))
        return -1;
    return decode_memory(npu, pool, fault);
}

/* ---------------------------------------------------------------- arithmetic */

/* The lanes of one position: of the input, or the pad value. */
static void read_position(const struct pool *pool, int64_t surface, int64_t y, int64_t x,
                          union npu_value *lanes)
{
    const struct npu_cube *cube = &pool->source;
    uint8_t atom[ATOM];
    float wide[LANES / 2];

    if (y < 0 || y >= pool->height || x < 0 || x >= pool->width) {
        for (int i = 0; i < LANES; i++)
            lanes[i] = pool->pad;
        return;
    }
    npu_cube_read(pool->space, cube,
                  surface * cube->surface_pitch + y * cube->line_pitch + x * ATOM, atom, ATOM);
    if (pool->fp16) {
        npu_gemm_fp16(pool->level)->widen(wide, atom, LANES / 2);
        memcpy(lanes, wide, sizeof wide);
    } else {
        for (int i = 0; i < LANES; i++)
            lanes[i].i = (int8_t)atom[i];
    }
}

static void combine_floats(int method, union npu_value *total, const union npu_value *lanes)
{
    for (int i = 0; i < LANES / 2; i++) {
        const float a = total[i].f, b = lanes[i].f;
        total[i].f = method == AVERAGE   ? a + b
                     : method == MAXIMUM ? (b > a ? b : a)
                                         : (b < a ? b : a);
    }
}

static void combine_integers(int method, union npu_value *total, const union npu_value *lanes)
{
    for (int i = 0; i < LANES; i++) {
        const int32_t a = total[i].i, b = lanes[i].i;
        total[i].i = method == AVERAGE   ? a + b
                     : method == MAXIMUM ? (b > a ? b : a)
                                         : (b < a ? b : a);
    }
}

static void pool_window(const struct pool *pool, int64_t surface, int64_t y, int64_t x,
                        uint8_t *atom)
{
    int64_t top = y * pool->stride_y - pool->pad_top, bottom = top + pool->kernel_height;
    int64_t left = x * pool->stride_x - pool->pad_left, right = left + pool->kernel_width;
    union npu_value total[LANES], lanes[LANES];
    float floats[LANES / 2];
    uint16_t halves[LANES / 2];

    if (pool->method != AVERAGE) {
        top = top < 0 ? 0 : top;
        left = left < 0 ? 0 : left;
        bottom = bottom > pool->height ? pool->height : bottom;
        right = right > pool->width ? pool->width : right;
    }
    for (int64_t v = top; v < bottom; v++)
        for (int64_t u = left; u < right; u++) {
            const int first = v == top && u == left;
            read_position(pool, surface, v, u, first ? total : lanes);
            if (!first && pool->fp16)
                combine_floats(pool->method, total, lanes);
            else if (!first)
                combine_integers(pool->method, total, lanes);
        }
    if (pool->fp16) {
        for (int i = 0; i < LANES / 2; i++)
            floats[i] = pool->method == AVERAGE
                            ? total[i].f * pool->scale_x * pool->scale_y * 0x1p-32f
                            : total[i].f;
        npu_half_from_float(halves, floats, LANES / 2, pool->level);
        memcpy(atom, halves, ATOM);
        return;
    }
    for (int i = 0; i < LANES; i++) {
        int64_t value = total[i].i;
        if (pool->method == AVERAGE)
            value = npu_shift_right(value * pool->reciprocals, 32, 0);
        atom[i] = (uint8_t)(value < -128 ? -128 : value > 127 ? 127 : value);
    }
}

/* One thread's share of the output lines of all surfaces. */
static void pool_lines(void *argument, int index, int threads)
{
    const struct pool *pool = argument;
    const struct npu_cube *cube = &pool->destination;
    const int64_t lines = cube->surfaces * cube->lines, end = lines * (index + 1) / threads;
    uint8_t atom[ATOM];

    for (int64_t line = lines * index / threads; line < end; line++) {
        const int64_t surface = line / cube->lines, y = line % cube->lines;
        int64_t offset = surface * cube->surface_pitch + y * cube->line_pitch;
        for (int64_t x = 0; x < pool->out_width; x++, offset += ATOM) {
            pool_window(pool, surface, y, x, atom);
            npu_cube_write(pool->space, cube, offset, atom, ATOM);
        }
    }
}

/* ---------------------------------------------------------------- one task */

static int check_memory(const struct npu_space *space, struct pool *pool, struct npu_fault *fault)
{
    if (npu_cube_check(space, &pool->source, 0, fault) ||
        npu_cube_check(space, &pool->destination, 1, fault) ||
        npu_cube_apart(&pool->destination, &pool->source, "the input", fault))
        return -1;
    return npu_cube_apart(&pool->destination, &pool->destination, "itself", fault);
}

int npu_pool_execute(struct npu *npu, const struct npu_space *space, struct npu_run *run,
                     uint32_t *status)
{
    struct pool pool = {.space = space, .level = npukit_simd_level()};
    int64_t positions, bytes;

    if (decode(npu, &pool, &run->fault))
        return -1;
    positions = pool.destination.surfaces * pool.out_width * pool.out_height * pool.kernel_width *
                pool.kernel_height * LANES;
    bytes = npu_cube_bytes(&pool.source) + npu_cube_bytes(&pool.destination);
    if (run->budget < positions || run->budget - positions < bytes * NPU_WORK_PER_BYTE)
        return npu_fail(&run->fault, NPU_TIMED_OUT, NPU_NO_FIELD, positions, NPU_NO_IOVA,
                        "%lld operations and %lld bytes exceed the work that a run may do",
                        (long long)positions, (long long)bytes);
    run->budget -= positions + bytes * NPU_WORK_PER_BYTE;
    if (check_memory(space, &pool, &run->fault))
        return -1;
    npu_parallel(positions < SMALL_WORK ? 1 : run->threads, pool_lines, &pool);
    *status |= 0x400u << npu->pointer[NPU_PPU];
    return 0;
}
