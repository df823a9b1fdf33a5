/* SPDX-License-Identifier: MIT */
/*
 * The data processing unit and its operand DMA: what their registers ask for.
 *
 * Main data come from CORE, or in flying mode from memory (MRDMA). They pass the stages BS, BN and
 * EW and the output conversion (see rk3588_stage.c), and are written by the address model DST_BASE
 * + 16 * (surface * DST_SURF_STRIDE + y * (width + NOTCH) + x), one 16-byte atom a pixel. Channels
 * behind ORIG_CHANNEL are written as zero (measured on an RK3588, rocket-userspace), or as
 * OFFSET_PEND, "what value the extra channel be set" (the manual).
 *
 * Operands of channels: BRDMA reads int32 one after the other (BRDMA_DATA_USE 1, as Mesa's bias),
 * or groups of 64 bytes for 8 channels (7): int32 to add at 0, int16 for the sum of the window at
 * 32, int16 to multiply with at 48 (measured, rocket-userspace). In fp16 the operands to add are
 * taken to be fp32, as the operand register is 32 bits wide; the groups are not known there. NRDMA
 * reads what BN multiplies with, int16 or fp16, one after the other (NRDMA_DATA_USE 4: the slopes of
 * a PReLU in models of Rockchip's compiler); nothing else that it may read is known.
 *
 * Operands of elements: ERDMA reads surfaces of atoms like the main data. EW_SURF_STRIDE and the
 * notch both describe the distance of surfaces, and are accepted where they agree. For a sum with
 * what a convolution makes, Mesa lets MRDMA read the even surfaces and ERDMA the odd ones (COMB_USE
 * 5). With ERDMA_DATA_MODE 0 it reads one operand for each channel, and EW_SURF_STRIDE has to be 1
 * (the manual; no program is known): atoms of one pixel, one after the other.
 *
 * Division is known for two tensors of fp16 in memory, with all else bypassed and without the two
 * conversions between fp16 and fp32 (programs of allbilly, which ran on an RK3588).
 */
#include "rk3588.h"

#include <stdlib.h>
#include <string.h>

#define GROUP_BYTES 64 /* BRDMA's operands of 8 channels */
#define BRDMA_ADD 1
#define BRDMA_ALL 7
#define NRDMA_MULTIPLY 4
#define COMBINED 5
#define FLIGHT_SMALL_WORK (1 << 20) /* below this, a thread costs more than it brings */

/* Registers of a bypassed stage have no effect, and are not looked at. */
static const struct npu_rule modes[] = {
    {DPU_COMB_USE, 0, "combined use"},
    {DPU_TP_EN, 0, "transposition"},
    {DPU_RGP_TYPE, 0, "regrouping"},
    {DPU_NONALIGN, 0, "non-aligned mode"},
    {DPU_SURF_LEN, 0, "surface length"},
    {DPU_OUTPUT_MODE, 2, "output mode (2 is to memory)"},
    {DPU_MC_SURF_OUT, 0, "several surfaces out"},
    {DPU_MINMAX_CTL, 0, "minimum and maximum"},
    {DPU_RGP_CNTER, 0, "regrouping"},
    {DPU_TP_ORG_EN, 0, "transposition"},
    {DPU_TP_PRECISION, 0, "transposition"},
    {DPU_SIZE_C_WDMA, 0, "transposition"},
    {DPU_UNDOC_40C4_VALUE, 0, "a register that no manual describes"},
};

static const struct npu_rule integer_conversion[] = {
    {DPU_MINUS_EXP, 0, "an exponent of integers"},
};

/* In floating point the output is converted by FP32TOFP16_EN alone. */
static const struct npu_rule float_conversion[] = {
    {DPU_CVT_TYPE, 0, "output conversion in floating point"},
    {DPU_MINUS_EXP, 0, "output conversion in floating point"},
    {DPU_OUT_CVT_OFFSET, 0, "output conversion in floating point"},
    {DPU_OUT_CVT_SCALE, 1, "output conversion in floating point"},
    {DPU_CVT_ROUND, 0, "output conversion in floating point"},
    {DPU_OUT_CVT_SHIFT, 0, "output conversion in floating point"},
};

/*
 * Behind a lookup in fp16: (value + offset) / 2^MINUS_EXP, in either order of CVT_TYPE, as nothing
 * is multiplied: programs with 0 and with 1 have the same tables and offsets. Integers are converted
 * as always.
 */
static const struct npu_rule lookup_conversion[] = {
    {DPU_OUT_CVT_SCALE, 1, "output conversion of a lookup"},
    {DPU_CVT_ROUND, 0, "output conversion of a lookup"},
    {DPU_OUT_CVT_SHIFT, 0, "output conversion of a lookup"},
};

/* How all programs known to use the tables set them up. */
static const struct npu_rule lookup_modes[] = {
    {DPU_LUT_CAL_SEL, 0, "expanded lookup tables"},
    {DPU_LUT_HYBRID_PRIORITY, 1, "LE having priority"},
    {DPU_LUT_OFLOW_PRIORITY, 1, "LE having priority above both tables"},
    {DPU_LUT_UFLOW_PRIORITY, 0, "LO having priority below both tables"},
    {DPU_LUT_LO_LE_MUX, 2, "another choice of table"},
    {DPU_LUT_EXPAND_EN, 0, "expanded lookup tables"},
    {DPU_LUT_ROAD_SEL, 0, "the second road"},
    {DPU_LUT_LE_END, 0, "tables that do not meet at 0"},
    {DPU_LUT_LO_START, 0, "tables that do not meet at 0"},
    {DPU_EW_OP_TYPE, 0, "a product before a lookup"},
    {DPU_EW_ALU_ALGO, 0, "an operation before a lookup"},
    {DPU_EW_OP_SRC, 0, "operands from memory before a lookup"},
    {DPU_EW_RELU_BYPASS, 1, "a clamp beside a lookup"},
};

static const struct npu_rule division[] = {
    {DPU_OUT_PRECISION, NPU_FP16, "a quotient that is not fp16"},
    {DPU_BS_BYPASS, 1, "BS before a division"},
    {DPU_BN_BYPASS, 1, "BN before a division"},
    {DPU_EW_RELU_BYPASS, 1, "a clamp behind a division"},
};

static const struct npu_rule rdma_modes[] = {
    {DPU_RDMA_LINE_NOTCH_ADDR, 0, "notches of lines"},
    {DPU_RDMA_UNPOOLING_EN, 0, "unpooling"},
};

static const struct npu_rule erdma_modes[] = {
    {DPU_RDMA_EW_LINE_NOTCH_ADDR, 0, "notches of lines"},
    {DPU_RDMA_ERDMA_SURF_MODE, 0, "pairs of surfaces"},
    {DPU_RDMA_ERDMA_NONALIGN, 0, "non-aligned operands"},
    {DPU_RDMA_OV4K_BYPASS, 0, "bursts across 4 KiB"},
};

static union npu_value from_bits(uint32_t bits)
{
    union npu_value value;

    memcpy(&value, &bits, 4);
    return value;
}

/* ---------------------------------------------------------------- formats and sizes */

/* What a block computes with: int8 also stands for the int32 sums of int8. */
static int is_integer(uint32_t precision)
{
    return precision == NPU_INT8 || precision == NPU_INT16 || precision == NPU_INT32;
}

static int decode_precision(const struct npu *npu, struct npu_output *out, struct npu_fault *fault)
{
    const uint32_t precision = npu_get(npu, DPU_OUT_PRECISION);
    const int legal = out->fp16 ? precision == NPU_FP16 || precision == NPU_FP32
                                : is_integer(precision);

    if (!legal)
        return npu_fail(fault, NPU_UNSUPPORTED, DPU_OUT_PRECISION, precision, NPU_NO_IOVA,
                        "only %s is modelled for this input",
                        out->fp16 ? "2 (fp16) or 5 (fp32)" : "0, 1 or 4 (int8, int16 or int32)");
    /* Of int8: 16 atoms in a row would not fit SIZE_E. */
    if (out->depthwise && out->source_precision == NPU_INT8 && precision == NPU_INT32)
        return npu_unsupported(fault, npu, DPU_OUT_PRECISION, "sums of a depthwise convolution");
    out->precision = (enum npu_precision)precision;
    return npu_expect(npu, DPU_FP32TOFP16_EN, precision == NPU_FP16 && !out->divide,
                      "has to be 1 for fp16 output alone, and not for a division", fault);
}

static int decode_conversion(const struct npu *npu, struct npu_output *out,
                             struct npu_fault *fault)
{
    if (out->lookup.enabled && out->fp16)
        return NPU_REQUIRE(npu, lookup_conversion, fault);
    if (out->fp16)
        return NPU_REQUIRE(npu, float_conversion, fault);
    if (NPU_REQUIRE(npu, integer_conversion, fault))
        return -1;
    out->add_first = (int)npu_get(npu, DPU_CVT_TYPE);
    out->offset = (int32_t)npu_get(npu, DPU_OUT_CVT_OFFSET);
    out->scale = npu_signed_16(npu_get(npu, DPU_OUT_CVT_SCALE));
    out->shift = (int)npu_get(npu, DPU_OUT_CVT_SHIFT);
    out->round_away = (int)npu_get(npu, DPU_CVT_ROUND);
    if (out->shift > 63)
        return npu_unsupported(fault, npu, DPU_OUT_CVT_SHIFT,
                               "more than 63, the six bits that count");
    return 0;
}

/* Atoms that CORE hands over in a row: of 32 int8 or 16 wider kernels; depthwise, twice as many. */
static int64_t atoms_in_row(const struct npu *npu, const struct npu_output *out)
{
    if (out->flying)
        return (int64_t)npu_get(npu, DPU_SIZE_E_0) + 1;
    return (out->source_precision == NPU_INT8 ? 32 : 16) * (out->depthwise ? 2 : 1) *
           npu_precision_bytes(out->precision) / ATOM;
}

static int check_sizes(const struct npu *npu, const struct npu_output *out,
                       struct npu_fault *fault)
{
    static const uint32_t group_sizes[] = {DPU_SIZE_E_0, DPU_SIZE_E_1, DPU_SIZE_E_2};
    const int64_t atoms = atoms_in_row(npu, out);
    const int64_t surface = npu_get(npu, DPU_DST_SURF_STRIDE);

    for (size_t i = 0; i < sizeof group_sizes / sizeof *group_sizes; i++)
        if (npu_expect(npu, group_sizes[i], atoms - 1, "is atoms in a row - 1", fault))
            return -1;
    if (npu_expect(npu, DPU_NOTCH_ADDR_1, npu_get(npu, DPU_NOTCH_ADDR_0),
                   "has to equal NOTCH_ADDR_0", fault) ||
        npu_expect(npu, DPU_SURF_ADD, surface * atoms,
                   "is DST_SURF_STRIDE times the atoms in a row", fault) ||
        npu_expect(npu, DPU_WIDTH_WDMA, out->width - 1, "has to equal WIDTH", fault) ||
        npu_expect(npu, DPU_HEIGHT_WDMA, out->height - 1, "has to equal HEIGHT", fault) ||
        npu_expect(npu, DPU_CHANNEL_WDMA, out->channels - 1, "has to equal CHANNEL", fault))
        return -1;
    if (out->real > out->channels)
        return npu_fail(fault, NPU_INCONSISTENT, DPU_ORIG_CHANNEL, out->real - 1, NPU_NO_IOVA,
                        "is more than CHANNEL, which is %lld", (long long)out->channels - 1);
    if (out->cube.base % ATOM)
        return npu_inconsistent(fault, npu, DPU_DST_BASE_ADDR, "has to be a multiple of 16");
    return 0;
}

static int decode_extra(const struct npu *npu, struct npu_output *out, struct npu_fault *fault)
{
    const int64_t bytes = npu_precision_bytes(out->precision);

    out->extra = (uint16_t)npu_get(npu, DPU_OFFSET_PEND);
    if (!out->extra)
        return 0;
    if (bytes > 2)
        return npu_unsupported(fault, npu, DPU_OFFSET_PEND, "extra channels of 32 bits");
    if (bytes == 1 && out->extra >> 8 && (int16_t)out->extra != (int8_t)out->extra)
        return npu_unsupported(fault, npu, DPU_OFFSET_PEND, "more than 8 bits for int8");
    if (out->channels * bytes % ATOM)
        return npu_unsupported(fault, npu, DPU_OFFSET_PEND,
                               "whether it fills up the last atom is not known");
    return 0;
}

/* ---------------------------------------------------------------- DPU_RDMA */

static int check_rdma(const struct npu *npu, const struct npu_output *out, struct npu_fault *fault)
{
    const uint32_t precision = npu_get(npu, DPU_PROC_PRECISION);
    const uint32_t use = npu_get(npu, DPU_RDMA_BRDMA_DATA_USE);
    const uint32_t factors = npu_get(npu, DPU_RDMA_NRDMA_DATA_USE);
    const uint32_t combined = npu_get(npu, DPU_RDMA_COMB_USE);

    if (NPU_REQUIRE(npu, rdma_modes, fault) ||
        npu_expect(npu, DPU_RDMA_WIDTH, out->width - 1, "has to equal DPU.WIDTH", fault) ||
        npu_expect(npu, DPU_RDMA_HEIGHT, out->height - 1, "has to equal DPU.HEIGHT", fault) ||
        npu_expect(npu, DPU_RDMA_CHANNEL, out->channels - 1, "has to equal DPU.CHANNEL", fault) ||
        npu_expect(npu, DPU_RDMA_IN_PRECISION, precision, "has to equal DPU.PROC_PRECISION",
                   fault) ||
        npu_expect(npu, DPU_RDMA_PROC_PRECISION, precision, "has to equal DPU.PROC_PRECISION",
                   fault) ||
        npu_expect(npu, DPU_RDMA_CONV_MODE, out->depthwise ? NPU_DEPTHWISE : NPU_DIRECT,
                   "has to equal DPU.CONV_MODE", fault) ||
        npu_expect(npu, DPU_RDMA_FLYING_MODE, out->flying, "has to equal DPU.FLYING_MODE", fault))
        return -1;
    if (use != 0 && use != BRDMA_ADD && use != BRDMA_ALL)
        return npu_unsupported(fault, npu, DPU_RDMA_BRDMA_DATA_USE,
                               "operands whose layout is not known; 0, 1 and 7 are modelled");
    if (factors != 0 && factors != NRDMA_MULTIPLY)
        return npu_unsupported(fault, npu, DPU_RDMA_NRDMA_DATA_USE,
                               "operands whose layout is not known; 0 and 4 are modelled");
    if (use == BRDMA_ALL && out->fp16)
        return npu_unsupported(fault, npu, DPU_RDMA_BRDMA_DATA_USE,
                               "groups of operands are known for integers alone");
    /* A flying program with bit 0 never completes (measured). */
    if (combined != 0 && (combined != COMBINED || out->flying))
        return npu_unsupported(fault, npu, DPU_RDMA_COMB_USE,
                               "combined reading; 0 is modelled, and 5 without flying mode");
    if (npu_get(npu, DPU_RDMA_MRDMA_DISABLE) != (uint32_t)(!out->flying && !combined))
        return npu_inconsistent(fault, npu, DPU_RDMA_MRDMA_DISABLE,
                                "has to be 0 when MRDMA reads, in flying or combined mode, else 1");
    return 0;
}

/* Surfaces of `precision` that MRDMA or ERDMA reads. */
static struct npu_cube input_cube(const struct npu_output *out, enum npu_precision precision,
                                  int64_t base, int64_t notch, uint32_t field)
{
    return (struct npu_cube){
        .base = base,
        .surface_pitch = ATOM * (out->width * out->height + notch),
        .line_pitch = ATOM * out->width,
        .surfaces = (out->channels * npu_precision_bytes(precision) + ATOM - 1) / ATOM,
        .lines = out->height,
        .line_bytes = ATOM * out->width,
        .field = field,
    };
}

static int decode_source(const struct npu *npu, struct npu_output *out, struct npu_fault *fault)
{
    const uint32_t precision = npu_get(npu, DPU_IN_PRECISION);

    if (!is_integer(precision) && precision != NPU_FP16)
        return npu_unsupported(fault, npu, DPU_IN_PRECISION,
                               "only 0, 1, 2 and 4 (int8, int16, fp16 and int32) are modelled");
    if (npu_expect(npu, DPU_RDMA_MRDMA_FP16TOFP32_EN, precision == NPU_FP16 && !out->divide,
                   "has to be 1 for fp16 alone, and not for a division", fault))
        return -1;
    out->source_precision = (enum npu_precision)precision;
    out->source = input_cube(out, out->source_precision, npu_get(npu, DPU_RDMA_SRC_BASE_ADDR),
                             npu_get(npu, DPU_RDMA_SURF_NOTCH_ADDR), DPU_RDMA_SRC_BASE_ADDR);
    if (out->source.base % ATOM)
        return npu_inconsistent(fault, npu, DPU_RDMA_SRC_BASE_ADDR, "has to be a multiple of 16");
    return 0;
}

/* ---------------------------------------------------------------- BS and BN */

/* Where the fields of a stage are: BN's registers are 0x20 behind those of BS. */
#define STAGE_STEP ((uint32_t)0x20 << 16)

/* Finds out which operands there are; their values follow in load_operands. */
static int decode_stage(const struct npu *npu, const struct npu_output *out, int bn, int rdma,
                        struct npu_stage *stage, union npu_value *values, struct npu_fault *fault)
{
    const uint32_t step = bn ? STAGE_STEP : 0;
    const uint32_t algorithm = npu_get(npu, DPU_BS_ALU_ALGO + step);
    const uint32_t multiplier = npu_get(npu, DPU_BS_MUL_OPERAND + step);
    const uint32_t use = rdma ? npu_get(npu, DPU_RDMA_BRDMA_DATA_USE) : 0;

    *stage = (struct npu_stage){.multiply_first = bn};
    if (npu_get(npu, DPU_BS_BYPASS + step))
        return 0;
    if (!npu_get(npu, DPU_BS_ALU_BYPASS + step)) {
        const uint32_t source = npu_get(npu, DPU_BS_ALU_SRC + step);
        if (algorithm != 2 && algorithm != 4)
            return npu_unsupported(fault, npu, DPU_BS_ALU_ALGO + step,
                                   "only 2 (add) and 4 (minus) are defined");
        if (source && bn)
            return npu_unsupported(fault, npu, DPU_BS_ALU_SRC + step, "operands of BN from memory");
        if (source && !use)
            return npu_inconsistent(fault, npu, DPU_BS_ALU_SRC + step,
                                    "is from outside, and BRDMA reads no operand");
        stage->add = values;
        stage->subtract = algorithm == 4;
    }
    if (!npu_get(npu, DPU_BS_MUL_BYPASS + step)) {
        const uint32_t source = npu_get(npu, DPU_BS_MUL_SRC + step);
        if (npu_get(npu, DPU_BS_TRUNCATE_SRC + step))
            return npu_unsupported(fault, npu, DPU_BS_TRUNCATE_SRC + step, "shifts from memory");
        if (source && bn && !(rdma && npu_get(npu, DPU_RDMA_NRDMA_DATA_USE)))
            return npu_unsupported(fault, npu, DPU_BS_MUL_SRC + step,
                                   "operands of BN from memory, and NRDMA reads none");
        if (source && !bn && use != BRDMA_ALL)
            return npu_inconsistent(fault, npu, DPU_BS_MUL_SRC + step,
                                    "is from outside, and BRDMA does not read it");
        /* Measured as unsigned for BN and signed for BS, but not with bit 15. */
        if (bn && !source && !out->fp16 && multiplier & 0x8000)
            return npu_unsupported(fault, npu, DPU_BS_MUL_OPERAND + step,
                                   "whether bit 15 is a sign here is not known");
        stage->factor = values + out->channels;
        stage->prelu = (int)npu_get(npu, DPU_BS_MUL_PRELU + step);
        stage->shift[0] = (int)npu_get(npu, DPU_BS_MUL_SHIFT_VALUE + step);
        stage->shift[1] = (int)npu_get(npu, bn ? DPU_BN_MUL_SHIFT_VALUE_NEG
                                               : DPU_BS_MUL_SHIFT_VALUE_NEG);
        for (int i = 0; i < 2; i++)
            if (out->fp16 && stage->shift[i])
                return npu_unsupported(fault, npu,
                                       i == 0 ? DPU_BS_MUL_SHIFT_VALUE + step
                                       : bn   ? DPU_BN_MUL_SHIFT_VALUE_NEG
                                              : DPU_BS_MUL_SHIFT_VALUE_NEG,
                                       "shifts in floating point");
    }
    if (!npu_get(npu, DPU_BS_RELU_BYPASS + step)) {
        stage->relu = 1;
        stage->relux = (int)npu_get(npu, DPU_BS_RELUX_EN + step);
        stage->limit = from_bits(npu_get(npu, DPU_BS_RELUX_CMP_DAT + step));
    }
    return 0;
}

static union npu_value multiplier_value(const struct npu_output *out, uint32_t bits)
{
    const uint16_t half = (uint16_t)bits;
    union npu_value value;

    if (out->fp16)
        npu_gemm_fp16(NPUKIT_PORTABLE)->widen(&value.f, &half, 1);
    else
        value.i = npu_signed_16(bits);
    return value;
}

/* Per-channel values: those of BS, BN, EW (two arrays each but EW), and the window's factors. */
static int decode_stages(const struct npu *npu, struct npu_output *out, int rdma,
                         struct npu_fault *fault)
{
    const size_t channels = (size_t)out->channels;

    out->values = calloc(6 * channels, sizeof *out->values);
    if (!out->values)
        return npu_fail(fault, NPU_NO_MEMORY, NPU_NO_FIELD, 0, NPU_NO_IOVA, "out of memory");
    if (decode_stage(npu, out, 0, rdma, &out->bs, out->values, fault) ||
        decode_stage(npu, out, 1, rdma, &out->bn, out->values + 2 * channels, fault))
        return -1;
    for (size_t c = 0; c < channels; c++) {
        out->values[c] = from_bits(npu_get(npu, DPU_BS_ALU_OPERAND));
        out->values[channels + c] = multiplier_value(out, npu_get(npu, DPU_BS_MUL_OPERAND));
        out->values[2 * channels + c] = from_bits(npu_get(npu, DPU_BN_ALU_OPERAND));
        out->values[3 * channels + c] = multiplier_value(out, npu_get(npu, DPU_BN_MUL_OPERAND));
    }
    return 0;
}

/* CPEND: the sum of what a window sees, times an operand. It corrects for weights' zero points. */
static int decode_window(const struct npu *npu, struct npu_output *out, int rdma,
                         struct npu_fault *fault)
{
    const uint32_t use = rdma ? npu_get(npu, DPU_RDMA_BRDMA_DATA_USE) : 0;
    const uint32_t source = npu_get(npu, DPU_OW_SRC);

    if (npu_get(npu, DPU_OD_BYPASS))
        return npu_expect(npu, DPU_OW_SRC, 0, "has to be 0 with OD_BYPASS", fault);
    if (!source && !npu_get(npu, DPU_OW_OP))
        return 0;
    /* Measured: depthwise fp16 is exact with Mesa's 128 there, as if it were not. */
    if (!source && out->fp16 && out->depthwise)
        return 0;
    if (out->fp16 || out->flying)
        return npu_unsupported(fault, npu, DPU_OD_BYPASS,
                               "window sums are modelled for convolutions of integers alone");
    if (source && use != BRDMA_ALL)
        return npu_inconsistent(fault, npu, DPU_OW_SRC,
                                "is from outside, and BRDMA does not read it");
    out->window_factor = (int32_t *)(out->values + 5 * out->channels);
    for (int64_t c = 0; c < out->channels; c++)
        out->window_factor[c] = npu_signed_16(npu_get(npu, DPU_OW_OP));
    return 0;
}

static int decode_brdma(const struct npu *npu, struct npu_output *out, struct npu_fault *fault)
{
    const uint32_t use = npu_get(npu, DPU_RDMA_BRDMA_DATA_USE);
    const int64_t channels = out->channels;

    if (!use)
        return 0;
    if (!out->bs.add || !npu_get(npu, DPU_BS_ALU_SRC))
        return npu_unsupported(fault, npu, DPU_RDMA_BRDMA_DATA_USE,
                               "operands that the ALU of BS does not take");
    out->operands_from_memory = (int)use;
    out->operands = (struct npu_cube){
        .base = npu_get(npu, DPU_RDMA_BS_BASE_ADDR),
        .surfaces = 1,
        .lines = 1,
        .line_bytes = use == BRDMA_ADD ? 4 * channels : (channels + 7) / 8 * GROUP_BYTES,
        .field = DPU_RDMA_BS_BASE_ADDR,
    };
    if (out->operands.base % ATOM)
        return npu_inconsistent(fault, npu, DPU_RDMA_BS_BASE_ADDR, "has to be a multiple of 16");
    return 0;
}

static int decode_nrdma(const struct npu *npu, struct npu_output *out, struct npu_fault *fault)
{
    if (!npu_get(npu, DPU_RDMA_NRDMA_DATA_USE))
        return 0;
    if (!out->bn.factor || !npu_get(npu, DPU_BN_MUL_SRC))
        return npu_unsupported(fault, npu, DPU_RDMA_NRDMA_DATA_USE,
                               "operands that the multiplier of BN does not take");
    out->factors = (struct npu_cube){
        .base = npu_get(npu, DPU_RDMA_BN_BASE_ADDR),
        .surfaces = 1,
        .lines = 1,
        .line_bytes = 2 * out->channels,
        .field = DPU_RDMA_BN_BASE_ADDR,
    };
    if (out->factors.base % ATOM)
        return npu_inconsistent(fault, npu, DPU_RDMA_BN_BASE_ADDR, "has to be a multiple of 16");
    return 0;
}

/* ---------------------------------------------------------------- EW */

static int decode_algorithm(const struct npu *npu, struct npu_output *out, struct npu_fault *fault)
{
    const enum npu_algorithm known[] = {NPU_EW_MAX, NPU_EW_MIN, NPU_EW_ADD,
                                        out->divide ? NPU_EW_DIV : NPU_EW_NONE, NPU_EW_MINUS};
    const uint32_t algorithm = npu_get(npu, DPU_EW_ALU_ALGO);
    struct npu_elementwise *ew = &out->ew;

    if (npu_get(npu, DPU_EW_OP_TYPE)) {
        ew->algorithm = NPU_EW_MUL;
        ew->prelu = (int)npu_get(npu, DPU_EW_MUL_PRELU);
        ew->shift[0] = (int)npu_get(npu, DPU_EW_TRUNCATE);
        ew->shift[1] = (int)npu_get(npu, DPU_EW_TRUNCATE_NEG);
        for (int i = 0; i < 2; i++)
            if (ew->shift[i] > (out->fp16 ? 0 : 63))
                return npu_unsupported(fault, npu, i ? DPU_EW_TRUNCATE_NEG : DPU_EW_TRUNCATE,
                                       "shifts in floating point, or of more than 63");
    } else {
        if (algorithm >= sizeof known / sizeof *known || known[algorithm] == NPU_EW_NONE)
            return npu_unsupported(fault, npu, DPU_EW_ALU_ALGO,
                                   "only 0, 1, 2 and 4 (max, min, add and minus) are modelled, and "
                                   "3 (div) of fp16 in memory");
        ew->algorithm = known[algorithm];
        if (npu_get(npu, DPU_EW_TRUNCATE))
            return npu_unsupported(fault, npu, DPU_EW_TRUNCATE, "shifts of what is not a product");
    }
    /* Max and min are the same with it (measured). */
    if (npu_get(npu, DPU_EW_EQUAL_EN) && ew->algorithm != NPU_EW_MAX &&
        ew->algorithm != NPU_EW_MIN)
        return npu_unsupported(fault, npu, DPU_EW_EQUAL_EN, "comparison for equality");
    return 0;
}

static int decode_operand_conversion(const struct npu *npu, struct npu_output *out,
                                     struct npu_fault *fault)
{
    struct npu_elementwise *ew = &out->ew;
    const int bypass = (int)npu_get(npu, DPU_EW_OP_CVT_BYPASS);

    if (out->fp16) {
        /* Measured: an addition needs the converter, a product and a quotient must bypass it. */
        const struct npu_rule rules[] = {
            {DPU_EW_OP_CVT_OFFSET, 0, "conversion of operands in floating point"},
            {DPU_EW_OP_CVT_SCALE, 1, "conversion of operands in floating point"},
            {DPU_EW_OP_CVT_SHIFT, 0, "conversion of operands in floating point"},
        };
        if (bypass != (ew->algorithm == NPU_EW_MUL || out->divide))
            return npu_unsupported(fault, npu, DPU_EW_OP_CVT_BYPASS,
                                   "in fp16 the converter is needed but for products "
                                   "and quotients");
        return bypass ? 0 : NPU_REQUIRE(npu, rules, fault);
    }
    ew->convert = !bypass;
    ew->add_first = (int)npu_get(npu, DPU_EW_CVT_TYPE);
    ew->round_away = (int)npu_get(npu, DPU_EW_CVT_ROUND);
    ew->conversion_shift = (int)npu_get(npu, DPU_EW_OP_CVT_SHIFT);
    ew->scale = npu_signed_16(npu_get(npu, DPU_EW_OP_CVT_SCALE));
    ew->offset = (int32_t)npu_get(npu, DPU_EW_OP_CVT_OFFSET);
    /* (32 + 1) + 16 bits: no operand overflows 64 bits on the way. */
    return 0;
}

/* One operand for all: the eight registers, of which nobody knows which channel takes which. */
static int decode_register_operand(const struct npu *npu, struct npu_output *out,
                                   struct npu_fault *fault)
{
    for (uint32_t i = 1; i < 8; i++) {
        const uint32_t field = DPU_EW_OPERAND_0 + (i << 18); /* registers 4 bytes apart */
        if (npu_get(npu, field) != npu_get(npu, DPU_EW_OPERAND_0))
            return npu_unsupported(fault, npu, field, "an operand other than EW_OPERAND_0");
    }
    /* The register's format in floating point, and whether it is converted, are not known. */
    if (out->fp16)
        return npu_unsupported(fault, npu, DPU_EW_OP_SRC, "operands from registers in fp16");
    if (!npu_get(npu, DPU_EW_OP_CVT_BYPASS))
        return npu_unsupported(fault, npu, DPU_EW_OP_CVT_BYPASS,
                               "conversion of operands from registers");
    out->ew.values = out->values + 4 * out->channels;
    for (int64_t c = 0; c < out->channels; c++)
        out->ew.values[c].i = (int32_t)npu_get(npu, DPU_EW_OPERAND_0);
    return 0;
}

static int decode_erdma(const struct npu *npu, struct npu_output *out, struct npu_fault *fault)
{
    static const int sizes[] = {0, 1, 2, 4};
    struct npu_elementwise *ew = &out->ew;
    const int bytes = sizes[npu_get(npu, DPU_RDMA_ERDMA_DATA_SIZE)];
    const int64_t stride = npu_get(npu, DPU_RDMA_EW_SURF_STRIDE);
    const int64_t notch = npu_get(npu, DPU_RDMA_EW_SURF_NOTCH);
    const int64_t area = out->width * out->height;
    const int combined = npu_get(npu, DPU_RDMA_COMB_USE) == COMBINED;
    const uint32_t mode = npu_get(npu, DPU_RDMA_ERDMA_DATA_MODE);

    if (NPU_REQUIRE(npu, erdma_modes, fault) ||
        npu_expect(npu, DPU_RDMA_ERDMA_DISABLE, 0, "has to be 0 for operands from outside",
                   fault) ||
        npu_expect(npu, DPU_EDATA_SIZE, npu_get(npu, DPU_RDMA_ERDMA_DATA_SIZE),
                   "has to equal ERDMA_DATA_SIZE", fault) ||
        npu_expect(npu, DPU_EW_DATA_MODE, npu_get(npu, DPU_RDMA_ERDMA_DATA_MODE),
                   "has to equal ERDMA_DATA_MODE", fault))
        return -1;
    if (mode > 1)
        return npu_unsupported(fault, npu, DPU_RDMA_ERDMA_DATA_MODE,
                               "only 0 and 1 (an operand for each channel, or element) "
                               "are modelled");
    if (mode == 0 && combined)
        return npu_unsupported(fault, npu, DPU_RDMA_COMB_USE,
                               "combined reading of channels' operands");
    if (bytes == 0 || (out->fp16 && bytes == 1))
        return npu_unsupported(fault, npu, DPU_RDMA_ERDMA_DATA_SIZE,
                               "operands of 4 bits, or of 8 bits in fp16");
    ew->precision = out->fp16 ? (bytes == 2 ? NPU_FP16 : NPU_FP32)
                    : bytes == 1 ? NPU_INT8
                    : bytes == 2 ? NPU_INT16 : NPU_INT32;
    ew->cubes = 1;
    ew->cube[0] = input_cube(out, ew->precision, npu_get(npu, DPU_RDMA_EW_BASE_ADDR), notch,
                             DPU_RDMA_EW_BASE_ADDR);
    if (mode == 0) {
        ew->channelwise = 1;
        ew->values = out->values + 4 * out->channels;
        ew->cube[0].surface_pitch = ew->cube[0].line_bytes = ATOM;
        ew->cube[0].lines = 1;
        if (npu_expect(npu, DPU_RDMA_EW_SURF_STRIDE, 1, "has to be 1 for operands of channels",
                       fault) ||
            npu_expect(npu, DPU_RDMA_EW_SURF_NOTCH, 0, "has to be 0 for operands of channels",
                       fault))
            return -1;
    } else if (combined) {
        const int64_t surfaces = ew->cube[0].surfaces;
        ew->cubes = 2;
        ew->cube[1] = ew->cube[0];
        ew->cube[0].base = npu_get(npu, DPU_RDMA_SRC_BASE_ADDR);
        ew->cube[0].field = DPU_RDMA_SRC_BASE_ADDR;
        ew->cube[0].surfaces = (surfaces + 1) / 2;
        ew->cube[1].surfaces = surfaces / 2;
        if (npu_expect(npu, DPU_RDMA_SURF_NOTCH_ADDR, notch, "has to equal EW_SURF_NOTCH", fault))
            return -1;
        /* One stride apart, two from a surface to the next but one. */
        if (surfaces > 1 && (ew->cube[1].base - ew->cube[0].base != ATOM * stride ||
                             (surfaces > 2 && area + notch != 2 * stride)))
            return npu_unsupported(fault, npu, DPU_RDMA_EW_SURF_STRIDE,
                                   "does not agree with the base addresses and EW_SURF_NOTCH");
    } else if (ew->cube[0].surfaces > 1 && area + notch != stride) {
        return npu_unsupported(fault, npu, DPU_RDMA_EW_SURF_STRIDE,
                               "does not agree with the size and EW_SURF_NOTCH");
    }
    for (int i = 0; i < ew->cubes; i++)
        if (ew->cube[i].base % ATOM)
            return npu_inconsistent(fault, npu, ew->cube[i].field, "has to be a multiple of 16");
    return 0;
}

static int decode_table(const struct npu *npu, struct npu_output *out, int lo,
                        struct npu_fault *fault)
{
    const uint32_t bound = lo ? DPU_LUT_LO_END : DPU_LUT_LE_START;
    const uint32_t select = lo ? DPU_LUT_LO_INDEX_SELECT : DPU_LUT_LE_INDEX_SELECT;
    const uint32_t scale = lo ? DPU_LUT_LO_SLOPE_OFLOW_SCALE : DPU_LUT_LE_SLOPE_UFLOW_SCALE;
    const uint32_t shift = lo ? DPU_LUT_LO_SLOPE_OFLOW_SHIFT : DPU_LUT_LE_SLOPE_UFLOW_SHIFT;
    const uint32_t step = npu_get(npu, select);
    const int64_t size = step <= 21 ? (int64_t)(NPU_LUT_ENTRIES - 1) << step : 0;

    if (!size)
        return npu_unsupported(fault, npu, select, "a table that ends behind 32 bits");
    if ((int32_t)npu_get(npu, bound) != (lo ? size : -size))
        return npu_unsupported(fault, npu, bound, "a table that its 512 steps do not fill");
    if (npu_get(npu, scale) & 0x8000)
        return npu_unsupported(fault, npu, scale, "whether bit 15 is a sign here is not known");
    out->lookup.steps[lo] = (int)step;
    out->lookup.slope_scales[lo] = (int)npu_get(npu, scale);
    out->lookup.slope_shifts[lo] = (int)npu_get(npu, shift);
    return 0;
}

/*
 * The programs that are known set EW to the maximum with a register that is 0, and fill the tables
 * with what is not negative. Whether it comes before or behind the lookup cannot be told from them:
 * before it, nothing would be below 0, which they rely on; so it is taken to be behind.
 */
static int decode_lookup(const struct npu *npu, struct npu_output *out, struct npu_fault *fault)
{
    struct npu_lookup *lookup = &out->lookup;
    const uint32_t exponent = npu_get(npu, DPU_MINUS_EXP);

    if (NPU_REQUIRE(npu, lookup_modes, fault) ||
        decode_table(npu, out, 0, fault) || decode_table(npu, out, 1, fault))
        return -1;
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t field = DPU_EW_OPERAND_0 + (i << 18);
        if (!npu_get(npu, DPU_EW_OP_BYPASS) && npu_get(npu, field))
            return npu_unsupported(fault, npu, field, "an operation beside a lookup");
    }
    for (int i = 0; i < 2 * NPU_LUT_ENTRIES && !npu_get(npu, DPU_EW_OP_BYPASS); i++)
        if (npu->lut[i / NPU_LUT_ENTRIES][i % NPU_LUT_ENTRIES] < 0)
            return npu_unsupported(fault, npu, DPU_EW_OP_BYPASS,
                                   "an operation beside a lookup with negative entries");
    lookup->tables = npu->lut;
    if (!out->fp16)
        return 0;
    if (exponent > 63)
        return npu_unsupported(fault, npu, DPU_MINUS_EXP, "more than 63");
    lookup->offset = (float)(int32_t)npu_get(npu, DPU_OUT_CVT_OFFSET);
    lookup->factor = 1.0f / (float)(UINT64_C(1) << exponent);
    return 0;
}

static int decode_elementwise(const struct npu *npu, struct npu_output *out, int rdma,
                              struct npu_fault *fault)
{
    struct npu_elementwise *ew = &out->ew;

    ew->algorithm = NPU_EW_NONE;
    if (npu_get(npu, DPU_EW_BYPASS))
        return 0;
    if (npu_get(npu, DPU_EW_BINARY_EN))
        return npu_unsupported(fault, npu, DPU_EW_BINARY_EN, "comparison to 0 and 1");
    if (out->lookup.enabled)
        return decode_lookup(npu, out, fault);
    if (!npu_get(npu, DPU_EW_OP_BYPASS)) {
        if (decode_algorithm(npu, out, fault) ||
            decode_operand_conversion(npu, out, fault))
            return -1;
        if (!npu_get(npu, DPU_EW_OP_SRC))
            return decode_register_operand(npu, out, fault);
        if (!rdma)
            return npu_inconsistent(fault, npu, DPU_EW_OP_SRC,
                                    "is from outside, and DPU_RDMA is not enabled");
        if (decode_erdma(npu, out, fault))
            return -1;
    }
    return 0;
}

static int decode_elementwise_clamp(const struct npu *npu, struct npu_output *out,
                                    struct npu_fault *fault)
{
    struct npu_elementwise *ew = &out->ew;

    if (npu_get(npu, DPU_EW_BYPASS) || npu_get(npu, DPU_EW_RELU_BYPASS))
        return 0;
    if (ew->algorithm == NPU_EW_NONE)
        return npu_unsupported(fault, npu, DPU_EW_RELU_BYPASS,
                               "a clamp in EW without an operation");
    ew->relu = 1;
    ew->relux = (int)npu_get(npu, DPU_EW_RELUX_EN);
    ew->limit = from_bits(npu_get(npu, DPU_EW_RELUX_CMP_DAT));
    return 0;
}

/* ---------------------------------------------------------------- all of it */

int npu_dpu_decode(const struct npu *npu, struct npu_output *out, int rdma, struct npu_fault *fault)
{
    const uint32_t computed =
        out->flying ? npu_get(npu, DPU_IN_PRECISION) : (uint32_t)out->source_precision;
    const struct npu_rule rules[] = {
        {DPU_IN_PRECISION, computed, "another precision than CNA reads"},
        {DPU_PROC_PRECISION, computed, "another precision than the input's"},
        {DPU_CONV_MODE, out->depthwise ? NPU_DEPTHWISE : NPU_DIRECT,
         "another convolution mode than CNA's"},
        {DPU_FLYING_MODE, (uint32_t)out->flying, "flying mode with CNA and CORE, or none without"},
    };

    if (out->flying)
        out->fp16 = computed == NPU_FP16;
    out->lookup.enabled = !npu_get(npu, DPU_EW_BYPASS) && !npu_get(npu, DPU_EW_LUT_BYPASS);
    out->divide = out->flying && out->fp16 && !npu_get(npu, DPU_EW_BYPASS) &&
                  !npu_get(npu, DPU_EW_OP_BYPASS) && !npu_get(npu, DPU_EW_OP_TYPE) &&
                  npu_get(npu, DPU_EW_ALU_ALGO) == 3 && !out->lookup.enabled;
    if (NPU_REQUIRE(npu, modes, fault) ||
        NPU_REQUIRE(npu, rules, fault) ||
        (out->divide && NPU_REQUIRE(npu, division, fault)) ||
        decode_precision(npu, out, fault) || decode_conversion(npu, out, fault))
        return -1;
    out->width = (int64_t)npu_get(npu, DPU_WIDTH) + 1;
    out->height = (int64_t)npu_get(npu, DPU_HEIGHT) + 1;
    out->channels = (int64_t)npu_get(npu, DPU_CHANNEL) + 1;
    out->real = (int64_t)npu_get(npu, DPU_ORIG_CHANNEL) + 1;
    out->cube = (struct npu_cube){
        .base = npu_get(npu, DPU_DST_BASE_ADDR),
        .surface_pitch = ATOM * (int64_t)npu_get(npu, DPU_DST_SURF_STRIDE),
        .line_pitch = ATOM * (out->width + npu_get(npu, DPU_NOTCH_ADDR_0)),
        .surfaces = (out->channels * npu_precision_bytes(out->precision) + ATOM - 1) / ATOM,
        .lines = out->height,
        .line_bytes = ATOM * out->width,
        .field = DPU_DST_BASE_ADDR,
    };
    if (check_sizes(npu, out, fault) || decode_extra(npu, out, fault) ||
        (rdma && check_rdma(npu, out, fault)) ||
        (out->flying && decode_source(npu, out, fault)) ||
        decode_stages(npu, out, rdma, fault) || decode_window(npu, out, rdma, fault) ||
        (rdma && (decode_brdma(npu, out, fault) || decode_nrdma(npu, out, fault))) ||
        decode_elementwise(npu, out, rdma, fault) ||
        decode_elementwise_clamp(npu, out, fault))
        return -1;
    if (rdma && npu_get(npu, DPU_RDMA_COMB_USE) && !out->ew.cubes)
        return npu_inconsistent(fault, npu, DPU_RDMA_COMB_USE,
                                "reads operands of elements, and EW takes none");
    if (rdma && !npu_get(npu, DPU_RDMA_ERDMA_DISABLE) && !out->ew.cubes)
        return npu_inconsistent(fault, npu, DPU_RDMA_ERDMA_DISABLE,
                                "has to be 1 when EW takes no operands of elements");
    out->plain = npu_stage_idle(&out->bs) && npu_stage_idle(&out->bn) &&
                 out->ew.algorithm == NPU_EW_NONE && !out->lookup.enabled &&
                 (out->fp16 || (out->precision == NPU_INT32 && out->scale == 1 && !out->shift &&
                                !out->offset));
    return 0;
}

static void load_operands(const struct npu *npu, const struct npu_space *space,
                          struct npu_output *out)
{
    const int64_t channels = out->channels;
    const struct npu_elementwise *ew = &out->ew;

    for (int64_t c = 0; c < channels && ew->channelwise; c += NPU_STORE_CHANNELS) {
        const int64_t left = channels - c;
        npu_dpu_fetch(space, ew->cube, 0, ew->precision, c,
                      left < NPU_STORE_CHANNELS ? (int)left : NPU_STORE_CHANNELS, 0, 0,
                      ew->values + c, npukit_simd_level());
    }
    for (int64_t c = 0; c < channels && out->factors.surfaces; c++) {
        uint16_t factor;
        npu_space_read(space, out->factors.base + 2 * c, &factor, 2);
        out->bn.factor[c] = multiplier_value(out, factor);
    }
    if (!out->operands_from_memory)
        return;
    if (out->operands_from_memory == BRDMA_ADD) {
        npu_space_read(space, out->operands.base, out->bs.add, 4 * channels);
        return;
    }
    for (int64_t c = 0; c < channels; c += 8) {
        const int64_t count = channels - c < 8 ? channels - c : 8;
        uint8_t group[GROUP_BYTES];
        npu_space_read(space, out->operands.base + c / 8 * GROUP_BYTES, group, GROUP_BYTES);
        memcpy(out->bs.add + c, group, 4 * (size_t)count);
        for (int64_t i = 0; i < count; i++) {
            int16_t window, factor;
            memcpy(&window, group + 32 + 2 * i, 2);
            memcpy(&factor, group + 48 + 2 * i, 2);
            if (out->window_factor && npu_get(npu, DPU_OW_SRC))
                out->window_factor[c + i] = window;
            if (out->bs.factor && npu_get(npu, DPU_BS_MUL_SRC))
                out->bs.factor[c + i].i = factor;
        }
    }
}

/* An operation on elements may write over what it reads, in the same place. */
static int same_place(const struct npu_cube *a, const struct npu_cube *b)
{
    return a->base == b->base && a->line_bytes == b->line_bytes && a->lines == b->lines &&
           a->surfaces == b->surfaces && (a->lines == 1 || a->line_pitch == b->line_pitch) &&
           (a->surfaces == 1 || a->surface_pitch == b->surface_pitch);
}

int npu_dpu_open(const struct npu *npu, const struct npu_space *space, struct npu_output *out,
                 struct npu_fault *fault)
{
    struct npu_elementwise *ew = &out->ew;

    if ((out->flying && npu_cube_check(space, &out->source, 0, fault)) ||
        (out->operands_from_memory && npu_cube_check(space, &out->operands, 0, fault)) ||
        (out->factors.surfaces && npu_cube_check(space, &out->factors, 0, fault)))
        return -1;
    for (int i = 0; i < ew->cubes; i++)
        if (npu_cube_check(space, &ew->cube[i], 0, fault))
            return -1;
    if (npu_cube_check(space, &out->cube, 1, fault))
        return -1;
    if ((out->operands_from_memory &&
         npu_cube_apart(&out->cube, &out->operands, "the operands of channels", fault)) ||
        (out->factors.surfaces &&
         npu_cube_apart(&out->cube, &out->factors, "the factors of channels", fault)) ||
        (out->flying && !same_place(&out->cube, &out->source) &&
         npu_cube_apart(&out->cube, &out->source, "the input", fault)))
        return -1;
    for (int i = 0; i < ew->cubes; i++)
        if (!(ew->cubes == 1 && !ew->channelwise && same_place(&out->cube, &ew->cube[i])) &&
            npu_cube_apart(&out->cube, &ew->cube[i], "the operands of EW", fault))
            return -1;
    if (npu_cube_apart(&out->cube, &out->cube, "itself", fault))
        return -1;
    load_operands(npu, space, out);
    return 0;
}

void npu_dpu_close(struct npu_output *out)
{
    free(out->values);
    out->values = NULL;
}

int64_t npu_dpu_bytes(const struct npu_output *out)
{
    const struct npu_cube *cubes[] = {&out->cube,    &out->source,     &out->operands,
                                      &out->factors, &out->ew.cube[0], &out->ew.cube[1]};
    int64_t total = 0;

    for (size_t i = 0; i < sizeof cubes / sizeof *cubes; i++)
        total += npu_cube_bytes(cubes[i]);
    return total;
}

/* ---------------------------------------------------------------- flying mode */

struct flight {
    const struct npu_space *space;
    const struct npu_output *out;
    enum npukit_simd level;
};

/* One thread's share of the pixels. */
static void fly(void *argument, int index, int threads)
{
    const struct flight *flight = argument;
    const struct npu_output *out = flight->out;
    const int64_t pixels = out->width * out->height;
    const int64_t end = pixels * (index + 1) / threads;
    union npu_value values[NPU_STORE_CHANNELS];

    for (int64_t pixel = pixels * index / threads; pixel < end; pixel++)
        for (int64_t first = 0; first < out->channels; first += NPU_STORE_CHANNELS) {
            const int64_t left = out->channels - first;
            const int count = left < NPU_STORE_CHANNELS ? (int)left : NPU_STORE_CHANNELS;
            npu_dpu_fetch(flight->space, &out->source, 0, out->source_precision, first, count,
                          pixel / out->width, pixel % out->width, values, flight->level);
            npu_dpu_store(flight->space, out, values, NPU_STORE_CHANNELS, first, count, pixel, 1,
                          flight->level);
        }
}

static int fly_task(const struct npu *npu, const struct npu_space *space, struct npu_run *run,
                    struct npu_output *out)
{
    struct flight flight = {space, out, npukit_simd_level()};
    int64_t work;

    if (npu_dpu_decode(npu, out, 1, &run->fault))
        return -1;
    work = npu_dpu_bytes(out) * NPU_WORK_PER_BYTE;
    if (run->budget < work)
        return npu_fail(&run->fault, NPU_TIMED_OUT, NPU_NO_FIELD, npu_dpu_bytes(out), NPU_NO_IOVA,
                        "%lld bytes exceed the work that a run may do",
                        (long long)npu_dpu_bytes(out));
    run->budget -= work;
    if (npu_dpu_open(npu, space, out, &run->fault))
        return -1;
    npu_parallel(work < FLIGHT_SMALL_WORK ? 1 : run->threads, fly, &flight);
    return 0;
}

int npu_flying_execute(struct npu *npu, const struct npu_space *space, struct npu_run *run,
                       uint32_t *status)
{
    struct npu_output out = {.flying = 1};
    const int result = fly_task(npu, space, run, &out);

    npu_dpu_close(&out);
    *status |= 0x100u << npu->pointer[NPU_DPU];
    return result;
}
