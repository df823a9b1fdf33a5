/* SPDX-License-Identifier: MIT */
/*
 * The data processing unit: takes sums from CORE and writes elements by the address model
 * DST_BASE + 16 * (surface * DST_SURF_STRIDE + y * (width + NOTCH) + x), one 16-byte atom a pixel.
 * All stages between are modelled in their bypassed form only.
 */
#include "rk3588.h"

#include <string.h>

#define ATOM 16

/* Registers of a bypassed stage have no effect, and are not looked at. */
static const struct npu_rule modes[] = {
    {DPU_COMB_USE, 0, "combined use"},
    {DPU_TP_EN, 0, "transposition"},
    {DPU_RGP_TYPE, 0, "regrouping"},
    {DPU_NONALIGN, 0, "non-aligned mode"},
    {DPU_SURF_LEN, 0, "surface length"},
    {DPU_CONV_MODE, 0, "convolution mode (0 is direct)"},
    {DPU_OUTPUT_MODE, 2, "output mode (2 is to memory)"},
    {DPU_FLYING_MODE, 0, "flying mode (0 is from CORE)"},
    {DPU_EW_TRUNCATE_NEG, 0, "elementwise truncation of negative values"},
    {DPU_BN_MUL_SHIFT_VALUE_NEG, 0, "batch norm shift of negative values"},
    {DPU_BS_MUL_SHIFT_VALUE_NEG, 0, "bias shift of negative values"},
    {DPU_MC_SURF_OUT, 0, "several surfaces out"},
    {DPU_OFFSET_PEND, 0, "offset"},
    {DPU_MINMAX_CTL, 0, "minimum and maximum"},
    {DPU_BS_BYPASS, 1, "the bias stage"},
    {DPU_BN_BYPASS, 1, "the batch norm stage"},
    {DPU_EW_BYPASS, 1, "the elementwise stage"},
    {DPU_EW_LUT_BYPASS, 1, "the lookup table"},
    {DPU_RGP_CNTER, 0, "regrouping"},
    {DPU_TP_ORG_EN, 0, "transposition"},
    {DPU_OD_BYPASS, 1, "the weight offset operand"},
    {DPU_OW_SRC, 0, "weight offsets from memory"},
    {DPU_TP_PRECISION, 0, "transposition"},
    {DPU_SIZE_C_WDMA, 0, "transposition"},
    {DPU_OUT_CVT_OFFSET, 0, "output conversion"},
    {DPU_OUT_CVT_SCALE, 1, "output conversion"},
    {DPU_CVT_TYPE, 0, "output conversion"},
    {DPU_CVT_ROUND, 0, "output conversion"},
    {DPU_MINUS_EXP, 0, "output conversion"},
    {DPU_OUT_CVT_SHIFT, 0, "output conversion"},
    {DPU_UNDOC_40C4_VALUE, 0, "a register that no manual describes"},
};

static int64_t element_bytes(enum npu_precision precision)
{
    return precision == NPU_FP16 ? 2 : 4;
}

static int decode_precision(const struct npu *npu, struct npu_output *out, struct npu_fault *fault)
{
    uint32_t precision = npu_get(npu, DPU_OUT_PRECISION);
    int legal = out->fp16 ? precision == NPU_FP16 || precision == NPU_FP32
                          : precision == NPU_INT32;

    if (!legal)
        return npu_fail(fault, NPU_UNSUPPORTED, DPU_OUT_PRECISION, precision, NPU_NO_IOVA,
                        "only %s is modelled for this input",
                        out->fp16 ? "2 (fp16) or 5 (fp32)" : "4 (int32)");
    out->precision = (enum npu_precision)precision;
    return npu_expect(npu, DPU_FP32TOFP16_EN, precision == NPU_FP16,
                      "has to be 1 for fp16 output alone", fault);
}

static int check_sizes(const struct npu *npu, const struct npu_output *out,
                       struct npu_fault *fault)
{
    static const uint32_t group_sizes[] = {DPU_SIZE_E_0, DPU_SIZE_E_1, DPU_SIZE_E_2};
    /* CORE hands over groups of 32 int8 or 16 fp16 kernels. */
    const int64_t group = out->fp16 ? 16 : 32;
    const int64_t atoms = group * element_bytes(out->precision) / ATOM;
    const int64_t surface = npu_get(npu, DPU_DST_SURF_STRIDE);

    for (size_t i = 0; i < sizeof group_sizes / sizeof *group_sizes; i++)
        if (npu_expect(npu, group_sizes[i], atoms - 1, "is atoms per group of kernels - 1", fault))
            return -1;
    if (npu_expect(npu, DPU_NOTCH_ADDR_1, npu_get(npu, DPU_NOTCH_ADDR_0),
                   "has to equal NOTCH_ADDR_0", fault) ||
        npu_expect(npu, DPU_SURF_ADD, surface * atoms,
                   "is DST_SURF_STRIDE times the atoms per group of kernels", fault) ||
        npu_expect(npu, DPU_WIDTH_WDMA, out->width - 1, "has to equal WIDTH", fault) ||
        npu_expect(npu, DPU_HEIGHT_WDMA, out->height - 1, "has to equal HEIGHT", fault) ||
        npu_expect(npu, DPU_CHANNEL_WDMA, out->channels - 1, "has to equal CHANNEL", fault))
        return -1;
    if (npu_get(npu, DPU_ORIG_CHANNEL) >= out->channels)
        return npu_fail(fault, NPU_INCONSISTENT, DPU_ORIG_CHANNEL, npu_get(npu, DPU_ORIG_CHANNEL),
                        NPU_NO_IOVA, "is more than CHANNEL, which is %lld",
                        (long long)out->channels - 1);
    if (out->cube.base % ATOM)
        return npu_fail(fault, NPU_INCONSISTENT, DPU_DST_BASE_ADDR, out->cube.base, NPU_NO_IOVA,
                        "has to be a multiple of 16");
    return 0;
}

int npu_dpu_decode(const struct npu *npu, struct npu_output *out, struct npu_fault *fault)
{
    const struct npu_rule precisions[] = {
        {DPU_IN_PRECISION, out->fp16 ? NPU_FP16 : NPU_INT8, "another precision than CNA reads"},
        {DPU_PROC_PRECISION, out->fp16 ? NPU_FP16 : NPU_INT8, "another precision than CNA reads"},
    };

    if (npu_require(npu, modes, sizeof modes / sizeof *modes, fault) ||
        npu_require(npu, precisions, sizeof precisions / sizeof *precisions, fault) ||
        decode_precision(npu, out, fault))
        return -1;
    out->width = (int64_t)npu_get(npu, DPU_WIDTH) + 1;
    out->height = (int64_t)npu_get(npu, DPU_HEIGHT) + 1;
    out->channels = (int64_t)npu_get(npu, DPU_CHANNEL) + 1;
    out->cube = (struct npu_cube){
        .base = npu_get(npu, DPU_DST_BASE_ADDR),
        .surface_pitch = ATOM * (int64_t)npu_get(npu, DPU_DST_SURF_STRIDE),
        .line_pitch = ATOM * (out->width + npu_get(npu, DPU_NOTCH_ADDR_0)),
        .surfaces = (out->channels * element_bytes(out->precision) + ATOM - 1) / ATOM,
        .lines = out->height,
        .line_bytes = ATOM * out->width,
        .field = DPU_DST_BASE_ADDR,
    };
    return check_sizes(npu, out, fault);
}

void npu_dpu_store(const struct npu_space *space, const struct npu_output *out, const void *sums,
                   int64_t stride, int64_t first, int64_t count, int64_t pixel, int pixels,
                   enum npukit_simd level)
{
    const struct npu_cube *cube = &out->cube;
    const int64_t bytes = element_bytes(out->precision);
    const int64_t atoms = (count * bytes + ATOM - 1) / ATOM;
    const int64_t surface = first * bytes / ATOM;
    uint16_t halves[NPU_GEMM_MAX_KERNELS];

    for (int p = 0; p < pixels; p++, pixel++) {
        const uint8_t *src = (const uint8_t *)sums + 4 * stride * p;
        int64_t offset = surface * cube->surface_pitch + pixel / out->width * cube->line_pitch +
                         pixel % out->width * ATOM;
        if (out->precision == NPU_FP16) {
            npu_half_from_float(halves, (const float *)src, (size_t)stride, level);
            src = (const uint8_t *)halves;
        }
        for (int64_t i = 0; i < atoms; i++, offset += cube->surface_pitch, src += ATOM) {
            if (cube->flat)
                memcpy(cube->flat + offset, src, ATOM);
            else
                npu_space_write(space, cube->base + offset, src, ATOM);
        }
    }
}
