/* SPDX-License-Identifier: MIT */
/*
 * The arithmetic of the DPU: BS, BN, EW, output conversion, and the write to memory.
 *
 * Integers: what leaves a stage saturates at 32 bits, what happens inside does not. Right shifts
 * round to nearest, ties to even; in the output conversion CVT_ROUND sends ties away from zero
 * instead. The sign of a product chooses the shift. The output conversion is
 * sat(round(x * scale >> shift) + offset), the scale being signed. All of this has been measured on
 * an RK3588 (rocket-userspace: its notes and probes for the output converter, the BS multiplier and
 * EW in integer mode). By analogy alone: the shift of an EW product and the conversion of EW
 * operands, which follow the same rules. From the manual alone: with CVT_TYPE the output conversion
 * adds before it multiplies.
 *
 * Integers are computed with as doubles, of which vector units have as many as of nothing else that
 * is wide enough: no step has a result of more than 50 bits, so each is exact, and rounded where
 * the DPU rounds.
 *
 * fp16: each operation is one of fp32.
 */
#include "rk3588.h"
#include "rk3588_simd.h"

#include <string.h>


TEMPLATE double clamp(double value, double lowest, double highest)
{
    value = value < lowest ? lowest : value;
    return value > highest ? highest : value;
}

TEMPLATE double saturate_32(double value)
{
    return clamp(value, INT32_MIN, INT32_MAX);
}

/* 2^-shift, for a shift of at most 63. */
static double power(int shift)
{
    const uint64_t bits = (uint64_t)(1023 - shift) << 52;
    double value;

    memcpy(&value, &bits, 8);
    return value;
}

/* To the nearest integer, ties to even, of what is below 2^51. */
TEMPLATE double round_even(double value)
{
    const double magic = 0x1.8p52;

    return value + magic - magic;
}

TEMPLATE double round_away(double value)
{
    const double even = round_even(value), behind = value - even;
    const double up = value > 0 && behind == 0.5, down = value < 0 && behind == -0.5;

    return even + (up - down);
}

/* ---------------------------------------------------------------- BS and BN */

TEMPLATE void add_integers(const struct npu_stage *stage, int64_t first, double *values, int count)
{
    const union npu_value *add = stage->add + first;
    const double sign = stage->subtract ? -1 : 1;

    for (int k = 0; k < count; k++)
        values[k] += sign * add[k].i;
}

/* The sign of a product chooses its shift. With PReLU, what is not negative stays. */
TEMPLATE double product(double value, double factor, const double *powers, int prelu)
{
    const double exact = value * factor;
    const double rounded = round_even(exact * (exact < 0 ? powers[1] : powers[0]));

    return prelu && value >= 0 ? value : rounded;
}

TEMPLATE void multiply_integers(const struct npu_stage *stage, int64_t first, double *values,
                                int count)
{
    const union npu_value *factor = stage->factor + first;
    const double powers[] = {power(stage->shift[0]), power(stage->shift[1])};

    for (int k = 0; k < count; k++)
        values[k] = product(values[k], factor[k].i, powers, stage->prelu);
}

/* Saturation, and a clamp where there is one. */
TEMPLATE void clamp_integers(int relu, int relux, int32_t limit, double *values, int count)
{
    const double lowest = relu ? 0 : INT32_MIN, highest = relux ? limit : INT32_MAX;

    for (int k = 0; k < count; k++)
        values[k] = clamp(values[k], lowest, highest);
}

TEMPLATE void integer_stage(const struct npu_stage *stage, int64_t first, double *values, int count)
{
    if (stage->factor && stage->multiply_first)
        multiply_integers(stage, first, values, count);
    if (stage->add)
        add_integers(stage, first, values, count);
    if (stage->factor && !stage->multiply_first)
        multiply_integers(stage, first, values, count);
    clamp_integers(stage->relu, stage->relux, stage->limit.i, values, count);
}

TEMPLATE void float_stage(const struct npu_stage *stage, int64_t first, float *values, int count)
{
    for (int k = 0; k < count; k++) {
        float value = values[k];
        const float add = stage->add ? stage->add[first + k].f : 0;
        if (stage->add && !stage->multiply_first)
            value = stage->subtract ? value - add : value + add;
        if (stage->factor && !(stage->prelu && value >= 0))
            value *= stage->factor[first + k].f;
        if (stage->add && stage->multiply_first)
            value = stage->subtract ? value - add : value + add;
        if (stage->relu && value < 0)
            value = 0;
        if (stage->relux && value > stage->limit.f)
            value = stage->limit.f;
        values[k] = value;
    }
}

/* ---------------------------------------------------------------- EW */

static void widen(const uint8_t *src, enum npu_precision precision, int count,
                  union npu_value *dst, enum npukit_simd level)
{
    float wide[NPU_STORE_CHANNELS];

    switch (precision) {
    case NPU_INT8:
        for (int k = 0; k < count; k++)
            dst[k].i = (int8_t)src[k];
        break;
    case NPU_INT16:
        for (int k = 0; k < count; k++) {
            int16_t value;
            memcpy(&value, src + 2 * k, 2);
            dst[k].i = value;
        }
        break;
    case NPU_FP16:
        npu_gemm_fp16(level)->widen(wide, src, (size_t)count);
        memcpy(dst, wide, 4 * (size_t)count);
        break;
    default:
        memcpy(dst, src, 4 * (size_t)count);
    }
}

/* The channels of one pixel from a cube of 16-byte atoms, whose surfaces may alternate. */
void npu_dpu_fetch(const struct npu_space *space, const struct npu_cube *cubes, int alternate,
                   enum npu_precision precision, int64_t first, int count, int64_t y, int64_t x,
                   union npu_value *dst, enum npukit_simd level)
{
    const int64_t bytes = npu_precision_bytes(precision);
    uint8_t raw[4 * NPU_STORE_CHANNELS];
    int64_t surface = first * bytes / ATOM;

    for (int64_t done = 0; done < count * bytes; done += ATOM, surface++) {
        const struct npu_cube *cube = &cubes[alternate ? surface & 1 : 0];
        const int64_t place = alternate ? surface >> 1 : surface;
        npu_cube_read(space, cube, place * cube->surface_pitch + y * cube->line_pitch + x * ATOM,
                      raw + done, ATOM);
    }
    widen(raw, precision, count, dst, level);
}

/* A conversion: round((value + before) * scale / 2^shift) + behind, between two bounds. */
TEMPLATE void convert(double *values, int count, double before, double scale, int shift, int away,
                      double behind, double lowest, double highest)
{
    const double factor = power(shift);

    if (away)
        for (int k = 0; k < count; k++)
            values[k] = clamp(round_away((values[k] + before) * scale * factor) + behind, lowest,
                              highest);
    else
        for (int k = 0; k < count; k++)
            values[k] = clamp(round_even((values[k] + before) * scale * factor) + behind, lowest,
                              highest);
}

TEMPLATE void combine_integers(const struct npu_elementwise *ew, const double *operands,
                               double *values, int count)
{
    const double powers[] = {power(ew->shift[0]), power(ew->shift[1])};

    switch (ew->algorithm) {
    case NPU_EW_MAX:
        for (int k = 0; k < count; k++)
            values[k] = values[k] > operands[k] ? values[k] : operands[k];
        break;
    case NPU_EW_MIN:
        for (int k = 0; k < count; k++)
            values[k] = values[k] < operands[k] ? values[k] : operands[k];
        break;
    case NPU_EW_ADD:
        for (int k = 0; k < count; k++)
            values[k] += operands[k];
        break;
    case NPU_EW_MINUS:
        for (int k = 0; k < count; k++)
            values[k] -= operands[k];
        break;
    default: /* measured: of an operand of 32 bits the lower half counts */
        for (int k = 0; k < count; k++)
            values[k] = product(values[k], (int16_t)(int32_t)operands[k], powers, ew->prelu);
    }
}

TEMPLATE void integer_elementwise(const struct npu_elementwise *ew, const union npu_value *fetched,
                                  double *values, int count)
{
    double operands[NPU_STORE_CHANNELS];

    for (int k = 0; k < count; k++)
        operands[k] = fetched[k].i;
    if (ew->convert)
        convert(operands, count, ew->add_first ? ew->offset : 0, ew->scale, ew->conversion_shift,
                ew->round_away, ew->add_first ? 0 : ew->offset, INT32_MIN, INT32_MAX);
    combine_integers(ew, operands, values, count);
    clamp_integers(ew->relu, ew->relux, ew->limit.i, values, count);
}

TEMPLATE float combine_floats(const struct npu_elementwise *ew, float a, float b)
{
    switch (ew->algorithm) {
    case NPU_EW_MAX:
        return a > b ? a : b;
    case NPU_EW_MIN:
        return a < b ? a : b;
    case NPU_EW_ADD:
        return a + b;
    case NPU_EW_DIV:
        return a / b;
    case NPU_EW_MINUS:
        return a - b;
    case NPU_EW_MUL:
        return ew->prelu && a >= 0 ? a : a * b;
    default:
        return a;
    }
}

TEMPLATE void float_elementwise(const struct npu_elementwise *ew, const union npu_value *operands,
                              float *values, int count)
{
    for (int k = 0; k < count; k++) {
        values[k] = combine_floats(ew, values[k], operands[k].f);
        if (ew->relu && values[k] < 0)
            values[k] = 0;
        if (ew->relux && values[k] > ew->limit.f)
            values[k] = ew->limit.f;
    }
}

/* ---------------------------------------------------------------- lookup */

/*
 * Linear between entries, and beyond the tables by a slope. How the hardware rounds in between is
 * not known; here it is one fp32 operation after the other. Not modelled are faults that have been
 * seen on an RK3588: wrong results close to 0 when the offset of the output is negative, in flat
 * parts of a table, and at entries that are 0 (rocket-userspace).
 */
static float slope(const struct npu_lookup *lookup, int lo)
{
    return (float)lookup->slope_scales[lo] / (float)(UINT32_C(1) << lookup->slope_shifts[lo]);
}

static float look_up_float(const struct npu_lookup *lookup, float index)
{
    const int lo = !(index < 0);
    const int16_t *table = lookup->tables[lo];
    const float step = (float)(1 << lookup->steps[lo]), size = step * (NPU_LUT_ENTRIES - 1);
    float position, fraction;
    int entry;

    if (index < -size)
        return table[0] + (index + size) * slope(lookup, 0);
    if (index > size)
        return table[NPU_LUT_ENTRIES - 1] + (index - size) * slope(lookup, 1);
    if (index != index)
        return index;
    position = (lo ? index : index + size) / step;
    entry = (int)position < NPU_LUT_ENTRIES - 2 ? (int)position : NPU_LUT_ENTRIES - 2;
    fraction = position - (float)entry;
    return table[entry] + fraction * (float)(table[entry + 1] - table[entry]);
}

/*
 * The same of an integer. No run of it on an RK3588 is known. That entries are int16, that the
 * index is (value - start) >> select and that what is shifted out interpolates is the design of
 * NVDLA's SDP, and has been measured on an RK3576 (rocket-userspace), as has the usual output
 * conversion behind it. The two roundings are chosen: to nearest, ties to even, as all shifts of
 * the DPU that have been measured on an RK3588, where NVDLA's send ties away from zero.
 */
static int64_t look_up_integer(const struct npu_lookup *lookup, int64_t index)
{
    const int lo = index >= 0, step = lookup->steps[lo];
    const int16_t *table = lookup->tables[lo];
    const int64_t size = (int64_t)(NPU_LUT_ENTRIES - 1) << step;
    const int64_t beyond = index < -size ? index + size : index > size ? index - size : 0;
    int64_t position, entry;

    if (beyond)
        return table[lo ? NPU_LUT_ENTRIES - 1 : 0] +
               npu_shift_right(beyond * lookup->slope_scales[lo], lookup->slope_shifts[lo], 0);
    position = lo ? index : index + size;
    entry = position >> step < NPU_LUT_ENTRIES - 2 ? position >> step : NPU_LUT_ENTRIES - 2;
    return npu_shift_right(table[entry] * (INT64_C(1) << step) +
                               (position - (entry << step)) * (table[entry + 1] - table[entry]),
                           step, 0);
}

/* ---------------------------------------------------------------- output */

/* Integers of the output's width, as it lies in memory. */
TEMPLATE void convert_integers(const struct npu_output *out, double *values, uint8_t *dst,
                               int count)
{
    const int64_t bytes = npu_precision_bytes(out->precision);
    const double highest = (double)((INT64_C(1) << (8 * bytes - 1)) - 1);
    int32_t wide[NPU_STORE_CHANNELS];
    int16_t medium[NPU_STORE_CHANNELS];

    convert(values, count, out->add_first ? out->offset : 0, out->scale, out->shift,
            out->round_away, out->add_first ? 0 : out->offset, -highest - 1, highest);
    for (int k = 0; k < count; k++)
        wide[k] = (int32_t)values[k];
    if (bytes == 1) {
        for (int k = 0; k < count; k++)
            dst[k] = (uint8_t)wide[k];
    } else if (bytes == 2) {
        for (int k = 0; k < count; k++)
            medium[k] = (int16_t)wide[k];
        memcpy(dst, medium, 2 * (size_t)count);
    } else {
        memcpy(dst, wide, 4 * (size_t)count);
    }
}

static void convert_floats(const struct npu_output *out, const float *values, uint8_t *dst,
                           int count, enum npukit_simd level)
{
    uint16_t halves[NPU_STORE_CHANNELS];

    if (out->precision == NPU_FP16) {
        npu_half_from_float(halves, values, (size_t)count, level);
        memcpy(dst, halves, 2 * (size_t)count);
    } else {
        memcpy(dst, values, 4 * (size_t)count);
    }
}

/* One pixel through all stages, into `dst`. */
TEMPLATE void process(const struct npu_space *space, const struct npu_output *out,
                      const uint8_t *sums, int64_t first, int count, int64_t pixel, uint8_t *dst,
                      enum npukit_simd level)
{
    const struct npu_elementwise *ew = &out->ew;
    const union npu_value *operands = NULL;
    union npu_value fetched[NPU_STORE_CHANNELS], values[NPU_STORE_CHANNELS];
    double integers[NPU_STORE_CHANNELS];
    float floats[NPU_STORE_CHANNELS];

    if (ew->algorithm != NPU_EW_NONE && ew->values) {
        operands = ew->values + first;
    } else if (ew->algorithm != NPU_EW_NONE) {
        npu_dpu_fetch(space, ew->cube, ew->cubes == 2, ew->precision, first, count,
                      pixel / out->width, pixel % out->width, fetched, level);
        operands = fetched;
    }
    if (out->fp16) {
        memcpy(floats, sums, 4 * (size_t)count);
        float_stage(&out->bs, first, floats, count);
        float_stage(&out->bn, first, floats, count);
        if (operands)
            float_elementwise(ew, operands, floats, count);
        for (int k = 0; out->lookup.enabled && k < count; k++)
            floats[k] = (look_up_float(&out->lookup, floats[k]) + out->lookup.offset) *
                        out->lookup.factor;
        convert_floats(out, floats, dst, count, level);
        return;
    }
    memcpy(values, sums, 4 * (size_t)count);
    for (int k = 0; k < count; k++)
        integers[k] = values[k].i;
    if (!npu_stage_idle(&out->bs))
        integer_stage(&out->bs, first, integers, count);
    if (!npu_stage_idle(&out->bn))
        integer_stage(&out->bn, first, integers, count);
    if (operands)
        integer_elementwise(ew, operands, integers, count);
    for (int k = 0; out->lookup.enabled && k < count; k++)
        integers[k] = saturate_32((double)look_up_integer(&out->lookup, (int64_t)integers[k]));
    convert_integers(out, integers, dst, count);
}

#define PROCESS(name, attribute)                                                                  \
    attribute static void name(const struct npu_space *space, const struct npu_output *out,       \
                               const uint8_t *sums, int64_t first, int count, int64_t pixel,      \
                               uint8_t *dst, enum npukit_simd level)                              \
    {                                                                                             \
        process(space, out, sums, first, count, pixel, dst, level);                               \
    }

PROCESS(process_base, )
#if defined(__x86_64__)
PROCESS(process_avx2, AVX2)
PROCESS(process_avx512, AVX512)
#endif

void npu_dpu_store(const struct npu_space *space, const struct npu_output *out, const void *sums,
                   int64_t stride, int64_t first, int64_t count, int64_t pixel, int pixels,
                   enum npukit_simd level)
{
    const struct npu_cube *cube = &out->cube;
    const int64_t bytes = npu_precision_bytes(out->precision);
    const int64_t atoms = (count * bytes + ATOM - 1) / ATOM;
    const int64_t surface = first * bytes / ATOM;
    const int64_t left = out->real - first;
    const int real = left < 0 ? 0 : left < count ? (int)left : (int)count;
    uint8_t elements[4 * NPU_STORE_CHANNELS];
    __typeof__(&process_base) run = process_base;

#if defined(__x86_64__)
    if (level >= NPUKIT_AVX2)
        run = level >= NPUKIT_AVX512 ? process_avx512 : process_avx2;
#endif
    memset(elements, 0, sizeof elements);
    for (int64_t i = real * bytes; out->extra && i < count * bytes; i += bytes)
        memcpy(elements + i, &out->extra, (size_t)bytes);
    for (int p = 0; p < pixels; p++, pixel++) {
        const uint8_t *src = (const uint8_t *)sums + 4 * stride * p;
        int64_t offset = surface * cube->surface_pitch + pixel / out->width * cube->line_pitch +
                         pixel % out->width * ATOM;
        if (!out->plain)
            run(space, out, src, first, real, pixel, elements, level);
        else if (out->fp16)
            convert_floats(out, (const float *)src, elements, real, level);
        else
            memcpy(elements, src, 4 * (size_t)real);
        for (int64_t i = 0; i < atoms; i++, offset += cube->surface_pitch)
            npu_cube_write(space, cube, offset, elements + i * ATOM, ATOM);
    }
}
