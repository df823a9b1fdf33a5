/* SPDX-License-Identifier: MIT */
/* Does every variant that this processor has agree with the portable one, and the portable one with
 * the plain formula of its layout? One line for each kernel; exit status 1 on a difference. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "copy.h"
#include "cpu.h"
#include "pack.h"
#include "regcmd.h"

/* The simulated NPU's kernels check themselves, where they are linked in. Returns 0 when all is
 * well. */
__attribute__((weak)) int npukit_selftest_rk3588(void);

static int failures;

static uint64_t next_random(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15; /* fixed: a failure can be repeated */
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static size_t below(size_t limit)
{
    return (size_t)(next_random() % limit);
}

/* ---- Buffers with a guard on both sides, at any alignment --------------------------------- */

#define GUARD 64
#define GUARD_BYTE 0xa5

struct buffer {
    uint8_t *block, *data;
    size_t size;
};

static struct buffer new_buffer(size_t size)
{
    struct buffer b = {malloc(size + 3 * GUARD), NULL, size};
    if (!b.block)
        abort();
    memset(b.block, GUARD_BYTE, size + 3 * GUARD);
    b.data = b.block + GUARD + below(GUARD);
    return b;
}

static struct buffer random_buffer(size_t size)
{
    struct buffer b = new_buffer(size);
    for (size_t i = 0; i < size; i++)
        b.data[i] = (uint8_t)next_random();
    return b;
}

static int guards_hold(struct buffer b)
{
    for (uint8_t *p = b.block; p < b.block + b.size + 3 * GUARD; p++)
        if ((p < b.data || p >= b.data + b.size) && *p != GUARD_BYTE)
            return 0;
    return 1;
}

static int same(struct buffer got, struct buffer wanted)
{
    return guards_hold(got) && memcmp(got.data, wanted.data, wanted.size) == 0;
}

static void report(const char *kernel, size_t itemsize, const char *variant, int shapes, int bad)
{
    printf("%-16s %2zu-bit  %-12s %4d shapes  %s\n", kernel, 8 * itemsize, variant, shapes,
           bad ? "DIFFERS" : "ok");
    failures += bad;
}

/* ---- Layouts ------------------------------------------------------------------------------ */

struct shape {
    size_t outer, taps, inner, itemsize; /* what each means is the layout's affair */
};

struct layout {
    const char *name;
    size_t itemsizes; /* how many of 1, 2, 4 */
    void (*pack)(uint8_t *dst, const uint8_t *src, struct shape s, const void *fill);
    void (*unpack)(uint8_t *dst, const uint8_t *src, struct shape s);
    size_t (*packed_items)(struct shape s);
    /* Where element i of the tensor stands in the packed form. */
    size_t (*place)(struct shape s, size_t i);
};

static size_t c2(struct shape s)
{
    return NPUKIT_ATOM / s.itemsize;
}

static size_t align(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* outer = channels, inner = plane */
static void nc1hwc2_pack(uint8_t *dst, const uint8_t *src, struct shape s, const void *fill)
{
    npukit_pack_nc1hwc2(dst, src, s.outer, s.inner, s.itemsize, fill);
}

static void nc1hwc2_unpack(uint8_t *dst, const uint8_t *src, struct shape s)
{
    npukit_unpack_nc1hwc2(dst, src, s.outer, s.inner, s.itemsize);
}

static size_t nc1hwc2_items(struct shape s)
{
    return align(s.outer, c2(s)) * s.inner;
}

static size_t nc1hwc2_place(struct shape s, size_t i)
{
    size_t c = i / s.inner, p = i % s.inner;
    return (c / c2(s) * s.inner + p) * c2(s) + c % c2(s);
}

/* outer = plane, inner = channels */
static void nhwc_pack(uint8_t *dst, const uint8_t *src, struct shape s, const void *fill)
{
    npukit_pack_nhwc(dst, src, s.inner, s.outer, s.itemsize, fill);
}

static void nhwc_unpack(uint8_t *dst, const uint8_t *src, struct shape s)
{
    npukit_unpack_nhwc(dst, src, s.inner, s.outer, s.itemsize);
}

static size_t nhwc_items(struct shape s)
{
    return align(s.inner, c2(s)) * s.outer;
}

static size_t nhwc_place(struct shape s, size_t i)
{
    size_t p = i / s.inner, c = i % s.inner;
    return (c / c2(s) * s.outer + p) * c2(s) + c % c2(s);
}

/* outer = kernels, inner = channels */
static void weights_pack(uint8_t *dst, const uint8_t *src, struct shape s, const void *fill)
{
    npukit_pack_weights(dst, src, s.outer, s.taps, s.inner, s.itemsize, fill);
}

static void weights_unpack(uint8_t *dst, const uint8_t *src, struct shape s)
{
    npukit_unpack_weights(dst, src, s.outer, s.taps, s.inner, s.itemsize);
}

static size_t weights_items(struct shape s)
{
    return s.outer * s.taps * align(s.inner, c2(s));
}

static size_t weights_place(struct shape s, size_t i)
{
    size_t kernel_group = 32 / s.itemsize, padded = align(s.inner, c2(s));
    size_t kernel = i / (s.taps * s.inner), tap = i / s.inner % s.taps, channel = i % s.inner;
    size_t first = kernel / kernel_group * kernel_group, kernels = s.outer - first;
    size_t group = channel / 32 * 32, width = smaller(32, padded - group);
    kernels = smaller(kernel_group, kernels);
    return first * s.taps * padded + kernels * s.taps * group +
           (tap * kernels + kernel - first) * width + channel - group;
}

static const struct layout
    nc1hwc2 = {"nc1hwc2", 3, nc1hwc2_pack, nc1hwc2_unpack, nc1hwc2_items, nc1hwc2_place},
    nhwc = {"nhwc", 3, nhwc_pack, nhwc_unpack, nhwc_items, nhwc_place},
    weights = {"weights", 2, weights_pack, weights_unpack, weights_items, weights_place};

static struct shape random_shape(size_t itemsize)
{
    /* Small, middle and odd sizes, and multiples of what the kernels move at once. */
    static const size_t sizes[] = {0, 1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 48, 49, 63, 64, 65, 100,
                                   128, 257};
    size_t count = sizeof sizes / sizeof *sizes;
    return (struct shape){sizes[below(count)], 1 + below(4), sizes[below(count)], itemsize};
}

static int shape_differs(const struct layout *layout, struct shape s)
{
    size_t items = s.outer * s.inner * (layout->pack == weights_pack ? s.taps : 1);
    size_t bytes = items * s.itemsize, packed_bytes = layout->packed_items(s) * s.itemsize;
    uint8_t fill[4] = {0xde, 0xad, 0xbe, 0xef};
    struct buffer src = random_buffer(bytes), packed = new_buffer(packed_bytes),
                  wanted = new_buffer(packed_bytes), back = new_buffer(bytes);

    for (size_t i = 0; i < packed_bytes; i++)
        wanted.data[i] = fill[i % s.itemsize];
    for (size_t i = 0; i < items; i++)
        memcpy(wanted.data + layout->place(s, i) * s.itemsize, src.data + i * s.itemsize,
               s.itemsize);
    layout->pack(packed.data, src.data, s, fill);
    layout->unpack(back.data, packed.data, s);
    int bad = !same(packed, wanted) || !same(back, src);

    free(src.block);
    free(packed.block);
    free(wanted.block);
    free(back.block);
    return bad;
}

static void check_layout(const struct layout *layout, const char *variant)
{
    for (size_t size = 0; size < layout->itemsizes; size++) {
        int bad = 0, shapes = 300;
        for (int i = 0; i < shapes; i++)
            bad |= shape_differs(layout, random_shape((size_t)1 << size));
        report(layout->name, (size_t)1 << size, variant, shapes, bad);
    }
}

/* ---- Copies ------------------------------------------------------------------------------- */

static int copy_differs(enum npukit_copy_strategy strategy, size_t n)
{
    struct buffer src = random_buffer(n), dst = new_buffer(n), twin = new_buffer(n);
    npukit_copy_with(strategy, dst.data, src.data, n);
    int bad = !same(dst, src);

    /* Overlapping, both ways. */
    size_t by = n ? below(n) : 0;
    memcpy(twin.data, src.data, n);
    memmove(twin.data + by, twin.data, n - by);
    npukit_copy_with(strategy, dst.data + by, dst.data, n - by);
    bad |= !same(dst, twin);
    memmove(twin.data, twin.data + by, n - by);
    npukit_copy_with(strategy, dst.data, dst.data + by, n - by);
    bad |= !same(dst, twin);

    free(src.block);
    free(dst.block);
    free(twin.block);
    return bad;
}

static void check_copies(const char *variant)
{
    static const char *const names[] = {"copy", "copy stream", "copy threads", "copy both"};
    for (int strategy = 0; strategy < NPUKIT_COPY_STRATEGIES; strategy++) {
        int bad = 0, shapes = 30;
        for (int i = 0; i < shapes; i++)
            bad |= copy_differs((enum npukit_copy_strategy)strategy, below(16u << i / 2));
        report(names[strategy], 1, variant, shapes, bad);
    }
}

/* One copy in each of the two lower bands, by whatever plan this machine measures. */
static void check_planned_copy(void)
{
    int bad = 0;
    for (unsigned band = 0; band < 2; band++) {
        size_t n = npukit_copy_band[band] + 4099;
        struct buffer src = random_buffer(n), dst = new_buffer(n);
        npukit_copy(dst.data, src.data, n);
        bad |= !same(dst, src);
        free(src.block);
        free(dst.block);
    }
    report("copy", 1, "planned", 2, bad);
}

/* ---- Command words ------------------------------------------------------------------------ */

static void check_regcmds(void)
{
    enum { COUNT = 1000 };
    static uint64_t words[COUNT];
    static uint32_t value[COUNT], value_back[COUNT];
    static uint16_t target[COUNT], reg[COUNT], target_back[COUNT], reg_back[COUNT];
    int bad = 0;
    for (int i = 0; i < COUNT; i++) {
        target[i] = (uint16_t)next_random();
        value[i] = (uint32_t)next_random();
        reg[i] = (uint16_t)next_random();
    }
    for (size_t count = 0; count <= COUNT; count = count * 3 / 2 + 1) {
        memset(words, 0, sizeof words);
        npukit_encode_regcmds(words, target, value, reg, count);
        npukit_decode_regcmds(target_back, value_back, reg_back, words, count);
        for (size_t i = 0; i < COUNT; i++)
            bad |= words[i] != (i < count ? (uint64_t)target[i] << 48 | (uint64_t)value[i] << 16 |
                                                reg[i]
                                          : 0);
        bad |= memcmp(target, target_back, count * sizeof *target) ||
               memcmp(value, value_back, count * sizeof *value) ||
               memcmp(reg, reg_back, count * sizeof *reg);
    }
    report("regcmds", 8, "portable", COUNT, bad);
}

int main(void)
{
    unsigned available = npukit_simd_available();
    for (int level = 0; level <= NPUKIT_AVX512_VNNI; level++) {
        if (!(available & 1u << level) || npukit_simd_set((enum npukit_simd)level))
            continue;
        check_layout(&nc1hwc2, npukit_simd_name((enum npukit_simd)level));
        check_layout(&nhwc, npukit_simd_name((enum npukit_simd)level));
        check_copies(npukit_simd_name((enum npukit_simd)level));
    }
    check_layout(&weights, "portable");
    check_planned_copy();
    check_regcmds();
    if (npukit_selftest_rk3588)
        failures += npukit_selftest_rk3588() != 0;
    puts(failures ? "FAILED" : "all agree");
    return failures != 0;
}
