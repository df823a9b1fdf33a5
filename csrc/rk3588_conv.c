/* SPDX-License-Identifier: MIT */
/*
 * CNA and CORE: a direct or a depthwise convolution.
 *
 * int8 sums are exact modulo 2^32. int16 is laid out like fp16, and its sums are exact and saturate
 * at 32 bits on the way to DPU, as NVDLA's do: on an RK3588 they have been seen to be right, but
 * DPU wrote one row of 16 kernels of them alone (rocket-userspace). CLIP_TRUNCATE is a right shift
 * of the sums before that (the manual), with ROUND_TYPE as the conversions of CNA and DPU have it. It
 * takes the window sums in: Mesa halves the sums of 15 scales so, among them those of the published
 * uint8 MobileNet v1, which its tests have right on an RK3588 within 2; shifting the sums alone is
 * wrong for most elements, shifting the two apart gives up to 3.
 *
 * Features are read as 16-byte atoms (16 int8 or 8 fp16 channels of one pixel) at base + 16 * (c1 *
 * surface pitch + y * row pitch + x). With GROUP_LINE_OFF = 0, LINE_STRIDE is four row pitches and
 * SURF_STRIDE the surface pitch less four widths; with 1, LINE_STRIDE is the row pitch and
 * SURF_STRIDE the surface pitch less one width. Padding on the left and at the top is set by
 * registers, on the right and at the bottom it is what the output size asks for.
 *
 * Weights of a depthwise convolution are one kernel of as many channels as the input, in groups of
 * 64 bytes: 64 int8 channels (what Mesa packs), 32 fp16 channels (measured, rocket-userspace).
 *
 * Dilation: ATROUS_{X,Y}_DILATION pixels are skipped between the taps of a kernel. (The manual says
 * that so much padding is inserted, and that 0 is the usual convolution.)
 *
 * Deconvolution spreads the input: DECONV_{X,Y}_STRIDE positions of padding lie between its pixels,
 * and the windows move over that (transposed convolutions in models of Rockchip's compiler, which
 * stores the kernels turned around; int8 pads with the zero point there).
 *
 * Channel-last input (ARGB_IN) has one to four channels side by side for each pixel; LINE_STRIDE
 * counts pixels, and DMA_WIDTH says how many of a line are there (the vendor's captures and
 * programs of allbilly, in fp16). The other channels of the atom are 0. Bytes become int8 by the
 * input conversion, for each channel its own: round(x * scale >> truncate) + offset, or with
 * CVT_TYPE round((x + offset) * scale >> truncate) (the manual), ties to even or, with ROUND_TYPE,
 * away from zero. No program is known that could tell this from another rule.
 *
 * The CBUF holds what a task has fetched when it fits the banks that the task gives it, features
 * first and weights behind them, so that the next task may reuse it. What does not fit is streamed:
 * features row by row, which needs room for the rows of one window; weights kernel by kernel.
 *
 * Fields that only steer the speed (FEATURE_GRAINS, burst lengths, clock gating) have no effect
 * here. Neither have two that programs known to run set to values which agree with nothing else:
 * DATAIN_CHANNEL_REAL, and QD_EN (set for fp16 by some, for int8 by others).
 */
#include "rk3588.h"
#include "rk3588_simd.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define PANEL_BYTES (4 << 20) /* of operands made at a time: not far from a second-level cache */
#define CHUNK_BYTES (64 << 10)
#define CHUNK_TILES 16
#define DEPTHWISE_GROUP_BYTES 64 /* of weights of one tap side by side */
#define SMALL_WORK (2 << 20) /* below this, a thread costs more than it brings */

static const struct npu_rule modes[] = {
    {CNA_NN_MODE, 0, "multi-core mode"},
    {CNA_CSC_WO_EN, 0, "weights withheld"},
    {CNA_CSC_DO_EN, 0, "data withheld"},
    {CNA_CMD_FIFO_SRST, 0, "reset of the command FIFO"},
    {CNA_SURF_MODE, 0, "surface mode"},
    {CNA_FC_DATA_BANK, 0, "fully connected mode"},
    {CNA_FC_SKIP_EN, 0, "fully connected mode"},
    {CNA_DATA_OFFSET, 0, "fully connected mode"},
    {CNA_WEIGHT_OFFSET, 0, "fully connected mode"},
    {CNA_OV4K_BYPASS, 0, "bursts across 4 KiB"},
    {CNA_WT_DEC_BYPASS, 0, "compressed weights"},
    {CNA_DECOMP_CONTROL, 0, "compressed weights"},
    {CNA_DCOMP_REGNUM, 0, "compressed weights"},
    {CORE_UNDOC_3030_VALUE, 0, "a register that no manual describes"},
};

static const struct npu_rule atom_input[] = {
    {CNA_NONALIGN_DMA, 0, "non-aligned input of whole atoms"},
    {CNA_DATA_SIGN, 1, "unsigned input"},
    {CNA_CVT_BYPASS, 1, "input conversion"},
    {CNA_PER_CHANNEL_CVT_EN, 0, "input conversion"},
    {CNA_UNDOC_MORE_ENTRIES, 0, "a row of more entries than the manual's field holds"},
};

static const struct npu_rule channel_last[] = {
    {CNA_NONALIGN_DMA, 1, "aligned channel-last input"},
    {CNA_GROUP_LINE_OFF, 1, "channel-last input in groups of lines"},
    {CNA_CONV_MODE, 0, "channel-last input of a depthwise convolution"},
};

static const struct npu_rule deconvolution[] = {
    {CNA_CONV_MODE, 0, "deconvolution of each channel alone"},
    {CNA_ARGB_IN, 0, "deconvolution of channel-last input"},
    {CNA_CONV_X_STRIDE, 1, "a stride of a deconvolution's windows"},
    {CNA_CONV_Y_STRIDE, 1, "a stride of a deconvolution's windows"},
    {CNA_ATROUS_X_DILATION, 0, "dilated deconvolution"},
    {CNA_ATROUS_Y_DILATION, 0, "dilated deconvolution"},
};

static const struct npu_rule no_deconvolution[] = {
    {CNA_DECONV_X_STRIDE, 0, "spreading without DECONV"},
    {CNA_DECONV_Y_STRIDE, 0, "spreading without DECONV"},
};

static const struct npu_rule conversion[] = {
    {CNA_IN_PRECISION, NPU_INT8, "input conversion to another type"},
};

struct conv {
    enum npu_precision precision;
    int fp16, bytes; /* of one element */
    int depthwise;
    int channel_last; /* 0, or how many channels there are side by side */
    int convert, is_signed, add_first, round_away;
    int truncate[4]; /* of channel-last bytes, as the next line */
    int32_t offset[4], scale[4];
    int64_t width, height, channels, atoms;
    int unknown_columns; /* on the right: windows may not see them */
    int64_t kernels, kernel_width, kernel_height, taps;
    int64_t spread_x, spread_y;       /* from pixel to pixel of the input: 1 but in deconvolution */
    int64_t step_x, step_y;           /* from tap to tap */
    int64_t window_width, window_height; /* in pixels */
    int64_t stride_x, stride_y, pad_left, pad_top;
    uint16_t pad; /* an element */
    int truncate_sums, round_sums_away;
    int64_t data_banks, weight_banks;
    int data_reuse, weight_reuse;
    int64_t row_bytes, kernel_bytes;
    int data_fits, weights_fit; /* into their banks */
    struct npu_cube features, weights;
    struct npu_output out;
};

/* ---------------------------------------------------------------- registers */

static int decode_channel_last(const struct npu *npu, struct conv *conv, struct npu_fault *fault)
{
    const uint32_t kind = npu_get(npu, CNA_ARGB_IN);
    const uint32_t enabled = npu_get(npu, CNA_PER_CHANNEL_CVT_EN);

    if (!kind)
        return NPU_REQUIRE(npu, atom_input, fault);
    if (kind < 8 || kind > 11)
        return npu_unsupported(fault, npu, CNA_ARGB_IN,
                               "only 8 to 11 are defined, 1 to 4 channels");
    conv->channel_last = (int)kind - 7;
    conv->convert = !npu_get(npu, CNA_CVT_BYPASS);
    conv->is_signed = (int)npu_get(npu, CNA_DATA_SIGN);
    if (NPU_REQUIRE(npu, channel_last, fault))
        return -1;
    if (!conv->convert) {
        if (npu_get(npu, CNA_IN_PRECISION) != NPU_FP16 && !conv->is_signed)
            return npu_unsupported(fault, npu, CNA_DATA_SIGN,
                                   "unsigned input without conversion");
        return 0;
    }
    /* Mesa sets 16 bits for one channel, the vendor 4 for each of three. */
    if (enabled != 0xffff && enabled != (UINT32_C(1) << (4 * conv->channel_last)) - 1)
        return npu_unsupported(fault, npu, CNA_PER_CHANNEL_CVT_EN,
                               "input conversion of some channels");
    conv->add_first = (int)npu_get(npu, CNA_CVT_TYPE);
    conv->round_away = (int)npu_get(npu, CNA_ROUND_TYPE);
    for (uint32_t c = 0; c < 4; c++) {
        /* Registers are 4 bytes apart, shifts 6 bits. */
        conv->truncate[c] = (int)npu_get(npu, CNA_CVT_TRUNCATE_0 + c * (6 << 8 | 6));
        conv->scale[c] = npu_signed_16(npu_get(npu, CNA_CVT_SCALE0 + (c << 18)));
        conv->offset[c] = npu_signed_16(npu_get(npu, CNA_CVT_OFFSET0 + (c << 18)));
    }
    return NPU_REQUIRE(npu, conversion, fault);
}

static int decode_modes(const struct npu *npu, struct conv *conv, int rdma,
                        struct npu_fault *fault)
{
    const uint32_t precision = npu_get(npu, CNA_IN_PRECISION);
    const uint32_t variant = npu_get(npu, CNA_UNDOC_CORE_VARIANT);
    const uint32_t mode = npu_get(npu, CNA_CONV_MODE);

    if (NPU_REQUIRE(npu, modes, fault))
        return -1;
    if (mode != NPU_DIRECT && mode != NPU_DEPTHWISE)
        return npu_unsupported(fault, npu, CNA_CONV_MODE,
                               "only 0 (direct) and 3 (depthwise) are modelled");
    conv->depthwise = conv->out.depthwise = mode == NPU_DEPTHWISE;
    if (npu_expect(npu, CORE_DW_EN, conv->depthwise, "is 1 for a depthwise convolution alone",
                   fault))
        return -1;
    if (precision != NPU_INT8 && precision != NPU_INT16 && precision != NPU_FP16)
        return npu_unsupported(fault, npu, CNA_IN_PRECISION,
                               "only 0, 1 and 2 (int8, int16 and fp16) are modelled");
    if (decode_channel_last(npu, conv, fault))
        return -1;
    const struct npu_rule same[] = {
        {CNA_PROC_PRECISION, precision, "another precision than the input's"},
        {CORE_PROC_PRECISION, precision, "another precision than the input's"},
    };
    if (NPU_REQUIRE(npu, same, fault))
        return -1;
    /* Set by the vendor where several cores share an operation; each core's part is complete. */
    if (variant != 0 && variant != 0x10 && variant != 0x20 && variant != 0x40 && variant != 0x50)
        return npu_unsupported(fault, npu, CNA_UNDOC_CORE_VARIANT,
                               "only 0, 0x10, 0x20, 0x40 and 0x50 are known");
    for (uint32_t i = 0; i < 16; i++) {
        uint32_t field = CNA_DCOMP_AMOUNT0 + (i << 18); /* registers 4 bytes apart */
        if (npu_get(npu, field))
            return npu_unsupported(fault, npu, field, "compressed weights; only 0 is modelled");
    }
    conv->precision = conv->out.source_precision = (enum npu_precision)precision;
    conv->fp16 = conv->out.fp16 = precision == NPU_FP16;
    conv->bytes = (int)npu_precision_bytes(conv->precision);
    return npu_dpu_decode(npu, &conv->out, rdma, fault);
}

static int decode_sums(const struct npu *npu, struct conv *conv, struct npu_fault *fault)
{
    conv->truncate_sums = (int)npu_get(npu, CORE_CLIP_TRUNCATE);
    conv->round_sums_away = (int)npu_get(npu, CORE_ROUND_TYPE);
    if (conv->truncate_sums && conv->fp16)
        return npu_fail(fault, NPU_UNSUPPORTED, CORE_CLIP_TRUNCATE, conv->truncate_sums,
                        NPU_NO_IOVA, "truncation in floating point");
    if (conv->out.window_factor && conv->precision == NPU_INT16)
        return npu_fail(fault, NPU_UNSUPPORTED, DPU_OD_BYPASS, 0, NPU_NO_IOVA,
                        "window sums of int16");
    return 0;
}

static int decode_input(const struct npu *npu, struct conv *conv, struct npu_fault *fault)
{
    const int64_t off = npu_get(npu, CNA_GROUP_LINE_OFF);
    const int64_t line_stride = npu_get(npu, CNA_LINE_STRIDE);
    /* 28 bits, two's complement. */
    const int64_t surface_stride =
        (int64_t)(npu_get(npu, CNA_SURF_STRIDE) ^ 0x8000000) - 0x8000000;

    conv->width = npu_get(npu, CNA_DATAIN_WIDTH);
    conv->height = npu_get(npu, CNA_DATAIN_HEIGHT);
    conv->channels = npu_get(npu, CNA_DATAIN_CHANNEL);
    if (!conv->width)
        return npu_inconsistent(fault, npu, CNA_DATAIN_WIDTH, "has to be at least 1");
    if (!conv->height)
        return npu_inconsistent(fault, npu, CNA_DATAIN_HEIGHT, "has to be at least 1");
    if (!conv->channels || conv->channels * conv->bytes % ATOM)
        return npu_inconsistent(fault, npu, CNA_DATAIN_CHANNEL,
                                "has to fill whole atoms of 16 bytes, at least one");
    conv->atoms = conv->channels * conv->bytes / ATOM;
    conv->row_bytes = conv->width * conv->channels * conv->bytes;
    if (!off && line_stride % 4)
        return npu_inconsistent(fault, npu, CNA_LINE_STRIDE,
                                "has to be a multiple of 4 (four rows) unless GROUP_LINE_OFF "
                                "is set");
    conv->features = (struct npu_cube){
        .base = npu_get(npu, CNA_FEATURE_BASE_ADDR),
        .surface_pitch = ATOM * (surface_stride + conv->width * (off ? 1 : 4)),
        .line_pitch = ATOM * (off ? line_stride : line_stride / 4),
        .surfaces = conv->atoms,
        .lines = conv->height,
        .line_bytes = ATOM * conv->width,
        .field = CNA_FEATURE_BASE_ADDR,
    };
    if (conv->channel_last) {
        const int64_t pixel = conv->channel_last * conv->bytes, stored = conv->width;
        if (conv->atoms != 1)
            return npu_inconsistent(fault, npu, CNA_DATAIN_CHANNEL,
                                    "has to fill one atom for channel-last input");
        conv->width = npu_get(npu, CNA_DMA_WIDTH);
        if (!conv->width || conv->width > stored)
            return npu_inconsistent(fault, npu, CNA_DMA_WIDTH,
                                    "has to be between 1 and DATAIN_WIDTH");
        conv->row_bytes = conv->width * ATOM;
        conv->unknown_columns = conv->width != stored;
        conv->features.line_pitch = line_stride * pixel;
        conv->features.line_bytes = conv->width * pixel;
    }
    if (conv->features.base % ATOM)
        return npu_inconsistent(fault, npu, CNA_FEATURE_BASE_ADDR, "has to be a multiple of 16");
    if ((!conv->channel_last &&
         npu_expect(npu, CNA_DMA_WIDTH, conv->width, "has to equal DATAIN_WIDTH", fault)) ||
        npu_expect(npu, CNA_DMA_HEIGHT, conv->height, "has to equal DATAIN_HEIGHT", fault) ||
        npu_expect(npu, CNA_DMA_CHANNEL, conv->channels, "has to equal DATAIN_CHANNEL", fault))
        return -1;
    return 0;
}

static int decode_weights(const struct npu *npu, struct conv *conv, struct npu_fault *fault)
{
    const int64_t stored = npu_get(npu, CNA_WEIGHT_KERNELS);

    conv->kernels = conv->depthwise ? conv->channels : stored;
    conv->kernel_width = npu_get(npu, CNA_WEIGHT_WIDTH);
    conv->kernel_height = npu_get(npu, CNA_WEIGHT_HEIGHT);
    conv->taps = conv->kernel_width * conv->kernel_height;
    conv->step_x = (int64_t)npu_get(npu, CNA_ATROUS_X_DILATION) + 1;
    conv->step_y = (int64_t)npu_get(npu, CNA_ATROUS_Y_DILATION) + 1;
    conv->window_width = (conv->kernel_width - 1) * conv->step_x + 1;
    conv->window_height = (conv->kernel_height - 1) * conv->step_y + 1;
    conv->kernel_bytes = conv->taps * conv->channels * conv->bytes;
    if (!conv->kernel_width)
        return npu_inconsistent(fault, npu, CNA_WEIGHT_WIDTH, "has to be at least 1");
    if (!conv->kernel_height)
        return npu_inconsistent(fault, npu, CNA_WEIGHT_HEIGHT, "has to be at least 1");
    if (!stored)
        return npu_inconsistent(fault, npu, CNA_WEIGHT_KERNELS, "has to be at least 1");
    if (conv->depthwise &&
        npu_expect(npu, CNA_WEIGHT_KERNELS, 1, "is 1 for a depthwise convolution", fault))
        return -1;
    /* May be set, says the manual. All known programs leave it at 0, however many there are. */
    if (npu_get(npu, CNA_KERNEL_GROUP) &&
        npu_expect(npu, CNA_KERNEL_GROUP,
                   (stored - 1) / (conv->precision == NPU_INT8 ? 32 : 16),
                   "is 0 or groups of kernels - 1", fault))
        return -1;
    if (npu_expect(npu, CNA_WEIGHT_BYTES_PER_KERNEL, conv->kernel_bytes,
                   "is width x height x DATAIN_CHANNEL x bytes of an element", fault) ||
        npu_expect(npu, CNA_WEIGHT_BYTES, stored * conv->kernel_bytes,
                   "is kernels x bytes per kernel", fault))
        return -1;
    conv->weights = (struct npu_cube){
        .base = npu_get(npu, CNA_DECOMPRESS_ADDR0),
        .surfaces = 1,
        .lines = 1,
        .line_bytes = stored * conv->kernel_bytes,
        .field = CNA_DECOMPRESS_ADDR0,
    };
    if (conv->weights.base % ATOM)
        return npu_inconsistent(fault, npu, CNA_DECOMPRESS_ADDR0, "has to be a multiple of 16");
    return 0;
}

/*
 * PAD_CON1 carries an int8 sign-extended, or (as Mesa writes -128) in both low bytes; an fp16 in
 * its low half. A depthwise convolution on an RK3588 has been seen to pad some odd channels with
 * the second byte (rocket-userspace); here all take the first, which is what programs mean.
 */
static int decode_pad(const struct npu *npu, struct conv *conv, struct npu_fault *fault)
{
    const uint32_t value = npu_get(npu, CNA_PAD_VALUE);
    const uint16_t low = (uint16_t)value;
    const uint16_t byte = value & 0xff, extended = byte & 0x80 ? byte | 0xff00 : byte;

    conv->pad_left = npu_get(npu, CNA_PAD_LEFT);
    conv->pad_top = npu_get(npu, CNA_PAD_TOP);
    conv->pad = conv->bytes == 2 ? low : byte;
    if (value >> 16 != 0 && value >> 16 != (low & 0x8000 ? 0xffff : 0))
        return npu_fail(fault, NPU_UNSUPPORTED, CNA_PAD_VALUE, (int32_t)value, NPU_NO_IOVA,
                        "a pad value of more than 16 bits");
    if (conv->bytes == 1 && low != extended && low != (byte | byte << 8))
        return npu_fail(fault, NPU_UNSUPPORTED, CNA_PAD_VALUE, (int32_t)value, NPU_NO_IOVA,
                        "a pad value of more than 8 bits for int8");
    return 0;
}

/* Each window has to touch the input, which leaves the padding on all sides below a kernel. */
static int check_windows(const struct npu *npu, const struct conv *conv, struct npu_fault *fault)
{
    if (!conv->stride_x)
        return npu_inconsistent(fault, npu, CNA_CONV_X_STRIDE, "has to be at least 1");
    if (!conv->stride_y)
        return npu_inconsistent(fault, npu, CNA_CONV_Y_STRIDE, "has to be at least 1");
    if (conv->pad_left >= conv->window_width)
        return npu_inconsistent(fault, npu, CNA_PAD_LEFT,
                                "leaves the first window in padding alone");
    if (conv->pad_top >= conv->window_height)
        return npu_inconsistent(fault, npu, CNA_PAD_TOP,
                                "leaves the first window in padding alone");
    if ((conv->out.width - 1) * conv->stride_x - conv->pad_left >
        (conv->width - 1) * conv->spread_x)
        return npu_inconsistent(fault, npu, CNA_DATAOUT_WIDTH,
                                "puts the last window behind the input");
    if (conv->unknown_columns &&
        (conv->out.width - 1) * conv->stride_x - conv->pad_left + conv->window_width > conv->width)
        return npu_unsupported(fault, npu, CNA_DATAIN_WIDTH,
                               "what is between DMA_WIDTH and DATAIN_WIDTH is not known");
    if ((conv->out.height - 1) * conv->stride_y - conv->pad_top >
        (conv->height - 1) * conv->spread_y)
        return npu_inconsistent(fault, npu, DPU_HEIGHT, "puts the last window below the input");
    return 0;
}

static int check_output(const struct npu *npu, const struct conv *conv, struct npu_fault *fault)
{
    const struct npu_output *out = &conv->out;

    if (npu_expect(npu, CNA_DATAOUT_WIDTH, out->width, "is DPU.WIDTH + 1", fault) ||
        npu_expect(npu, CNA_DATAOUT_ATOMICS, out->width * out->height,
                   "is output width x height", fault) ||
        npu_expect(npu, CORE_DATAOUT_WIDTH, out->width - 1, "has to equal DPU.WIDTH", fault) ||
        npu_expect(npu, CORE_DATAOUT_HEIGHT, out->height - 1, "has to equal DPU.HEIGHT", fault) ||
        npu_expect(npu, CORE_DATAOUT_CHANNEL, out->channels - 1, "has to equal DPU.CHANNEL",
                   fault))
        return -1;
    if (conv->kernels > out->channels)
        return npu_inconsistent(fault, npu,
                                conv->depthwise ? CNA_DATAIN_CHANNEL : CNA_WEIGHT_KERNELS,
                                "is more than the channels that DPU writes");
    if (npu_get(npu, DPU_ORIG_CHANNEL) >= conv->kernels)
        return npu_inconsistent(fault, npu, DPU_ORIG_CHANNEL,
                                conv->depthwise ? "has to be below DATAIN_CHANNEL"
                                                : "has to be below WEIGHT_KERNELS");
    return 0;
}

static int decode_banks(const struct npu *npu, struct conv *conv, struct npu_fault *fault)
{
    /* Of 64 bytes, for one row. Of channel-last input Mesa and the vendor count all pixels. */
    const int64_t entries = conv->channel_last ? (conv->row_bytes + 63) / 64
                                               : npu_get(npu, CNA_DATA_ENTRIES);

    conv->data_banks = npu_get(npu, CNA_DATA_BANK);
    conv->weight_banks = npu_get(npu, CNA_WEIGHT_BANK);
    conv->data_reuse = (int)npu_get(npu, CNA_DATA_REUSE);
    conv->weight_reuse = (int)npu_get(npu, CNA_WEIGHT_REUSE);
    if (!conv->data_banks)
        return npu_inconsistent(fault, npu, CNA_DATA_BANK, "has to be at least 1");
    if (!conv->weight_banks)
        return npu_inconsistent(fault, npu, CNA_WEIGHT_BANK, "has to be at least 1");
    if (conv->data_banks + conv->weight_banks > NPU_BANKS)
        return npu_inconsistent(fault, npu, CNA_WEIGHT_BANK,
                                "exceeds 12 banks together with DATA_BANK");
    if (entries * 64 < conv->row_bytes)
        return npu_inconsistent(fault, npu, CNA_DATA_ENTRIES,
                                "is less than the units of 64 bytes that a row fills");
    conv->data_fits = conv->height * entries * 64 <= conv->data_banks * NPU_BANK_BYTES;
    conv->weights_fit = conv->weights.line_bytes <= conv->weight_banks * NPU_BANK_BYTES;
    if (!conv->data_fits &&
        (conv->height < conv->window_height ? conv->height : conv->window_height) * entries * 64 >
            conv->data_banks * NPU_BANK_BYTES)
        return npu_inconsistent(fault, npu, CNA_DATA_BANK,
                                "has no room for the rows of one window");
    if (conv->kernel_bytes > conv->weight_banks * NPU_BANK_BYTES)
        return npu_inconsistent(fault, npu, CNA_WEIGHT_BANK, "has no room for one kernel");
    return 0;
}

static int decode(const struct npu *npu, struct conv *conv, int rdma, struct npu_fault *fault)
{
    conv->stride_x = npu_get(npu, CNA_CONV_X_STRIDE);
    conv->stride_y = npu_get(npu, CNA_CONV_Y_STRIDE);
    conv->spread_x = (int64_t)npu_get(npu, CNA_DECONV_X_STRIDE) + 1;
    conv->spread_y = (int64_t)npu_get(npu, CNA_DECONV_Y_STRIDE) + 1;
    if (npu_get(npu, CNA_DECONV) ? NPU_REQUIRE(npu, deconvolution, fault)
                                 : NPU_REQUIRE(npu, no_deconvolution, fault))
        return -1;
    if (decode_modes(npu, conv, rdma, fault) || decode_sums(npu, conv, fault) ||
        decode_pad(npu, conv, fault) ||
        decode_input(npu, conv, fault) || decode_weights(npu, conv, fault) ||
        check_windows(npu, conv, fault) || check_output(npu, conv, fault))
        return -1;
    return decode_banks(npu, conv, fault);
}

/* ---------------------------------------------------------------- CBUF */

static struct npu_cached describe_features(const struct conv *conv)
{
    return (struct npu_cached){.valid = conv->data_fits,
                               .precision = conv->precision,
                               .shape = {conv->width, conv->height, conv->channels,
                                         conv->channel_last}};
}

static struct npu_cached describe_weights(const struct conv *conv)
{
    return (struct npu_cached){.valid = conv->weights_fit,
                               .first_bank = conv->data_banks,
                               .precision = conv->precision,
                               .depthwise = conv->depthwise,
                               .shape = {conv->kernels, conv->channels, conv->kernel_width,
                                         conv->kernel_height}};
}

static int holds(const struct npu_cached *held, const struct npu_cached *wanted)
{
    return held->valid && wanted->valid && held->first_bank == wanted->first_bank &&
           held->precision == wanted->precision && held->depthwise == wanted->depthwise &&
           !memcmp(held->shape, wanted->shape, sizeof held->shape);
}

static int check_reuse(const struct npu *npu, const struct conv *conv, struct npu_fault *fault)
{
    const struct npu_cached features = describe_features(conv), weights = describe_weights(conv);

    if (conv->data_reuse && !holds(&npu->features, &features))
        return npu_inconsistent(fault, npu, CNA_DATA_REUSE,
                                "the CBUF holds no features of this shape in these banks");
    if (conv->weight_reuse && !holds(&npu->weights, &weights))
        return npu_inconsistent(fault, npu, CNA_WEIGHT_REUSE,
                                "the CBUF holds no weights of this shape in these banks");
    return 0;
}

/* ---------------------------------------------------------------- data path */

struct job {
    struct npu *npu;
    const struct npu_space *space;
    const struct conv *conv;
    const struct npu_gemm *gemm;
    enum npukit_simd level;
    struct npu_weights weights;
    size_t pixel_bytes; /* of one pixel's operands */
    int32_t *totals;    /* of the channels of a pixel, where window sums are wanted; else NULL */
    int32_t pad_total;
    uint8_t *panel;     /* operands of the rows first_row .. end_row - 1 */
    uint8_t *pad;       /* operands of a pixel of padding */
    int64_t first_row, end_row;
    int64_t first_pixel, end_pixel;
    atomic_int no_memory;
};

static void copy_atom(const struct job *job, uint8_t *dst, int64_t offset)
{
    npu_cube_read(job->space, &job->conv->features, offset, dst, ATOM);
}

/* An unsigned or signed byte by the input conversion. */
static uint8_t convert_byte(const struct conv *conv, int channel, uint8_t byte)
{
    const int64_t value = conv->is_signed ? (int8_t)byte : byte;
    const int64_t before = conv->add_first ? conv->offset[channel] : 0;
    const int64_t behind = conv->add_first ? 0 : conv->offset[channel];
    const int64_t result = npu_shift_right((value + before) * conv->scale[channel],
                                           conv->truncate[channel], conv->round_away) + behind;

    return (uint8_t)(result < -128 ? -128 : result > 127 ? 127 : result);
}

/* Rows of channel-last input: the first channels of each atom. */
static void gather_pixels(const struct job *job, int64_t first, int64_t end, uint8_t *dst)
{
    const struct conv *conv = job->conv;
    const struct npu_cube *cube = &conv->features;
    const int pixel = conv->channel_last * conv->bytes;

    memset(dst, 0, (size_t)((end - first) * conv->row_bytes));
    for (int64_t y = first; y < end; y++)
        for (int64_t x = 0; x < conv->width; x++, dst += ATOM) {
            npu_cube_read(job->space, cube, y * cube->line_pitch + x * pixel, dst, pixel);
            for (int c = 0; conv->convert && c < conv->channel_last; c++)
                dst[c] = convert_byte(conv, c, dst[c]);
        }
}

/* Rows first .. end - 1 from memory to [row][x][channel]. */
static void gather(const struct job *job, int64_t first, int64_t end, uint8_t *dst)
{
    const struct npu_cube *cube = &job->conv->features;
    const int64_t atoms = job->conv->atoms;
    int64_t lines = end - first, pixels = job->conv->width;
    int64_t offset = first * cube->line_pitch;

    if (cube->line_pitch == cube->line_bytes) { /* rows without gaps are one long row */
        pixels *= lines;
        lines = 1;
    }
    for (; lines > 0; lines--, offset += cube->line_pitch)
        for (int64_t x = 0; x < pixels; x += 4) {
            const int64_t count = pixels - x < 4 ? pixels - x : 4; /* a cache line of atoms */
            for (int64_t c = 0; c < atoms; c++)
                for (int64_t i = 0; i < count; i++)
                    copy_atom(job, dst + (i * atoms + c) * ATOM,
                              offset + c * cube->surface_pitch + (x + i) * ATOM);
            dst += count * atoms * ATOM;
        }
}

/* Per pixel the sum of its channels, of int8. */
static void add_channels(const struct conv *conv, const uint8_t *raw, int64_t pixels,
                         int32_t *totals)
{
    for (int64_t i = 0; i < pixels; i++, raw += conv->channels) {
        totals[i] = 0;
        for (int64_t c = 0; c < conv->channels; c++)
            totals[i] += (int8_t)raw[c];
    }
}

/* Brings the rows first_row .. end_row - 1 into the panel, through the CBUF when all rows fit. */
static void load_rows(void *argument, int index, int threads)
{
    struct job *job = argument;
    const struct conv *conv = job->conv;
    const int64_t rows = job->end_row - job->first_row;
    const int64_t end = job->first_row + rows * (index + 1) / threads;
    const int64_t step = conv->row_bytes < CHUNK_BYTES ? CHUNK_BYTES / conv->row_bytes : 1;
    uint8_t *scratch = conv->data_fits ? NULL : malloc((size_t)(step * conv->row_bytes));

    if (!conv->data_fits && !scratch) {
        atomic_store(&job->no_memory, 1);
        return;
    }
    for (int64_t row = job->first_row + rows * index / threads; row < end; row += step) {
        const int64_t stop = row + step < end ? row + step : end;
        const int64_t pixels = (stop - row) * conv->width;
        const size_t place = (size_t)((row - job->first_row) * conv->width) * job->pixel_bytes;
        uint8_t *raw = conv->data_fits ? job->npu->cbuf + row * conv->row_bytes : scratch;
        if (!conv->data_reuse && conv->channel_last)
            gather_pixels(job, row, stop, raw);
        else if (!conv->data_reuse)
            gather(job, row, stop, raw);
        if (job->totals)
            add_channels(conv, raw, pixels,
                         job->totals + (row - job->first_row) * conv->width);
        npu_gemm_features(job->gemm, job->panel + place, raw, (size_t)(pixels * conv->channels));
    }
    free(scratch);
}

/* The pixel at a position of the spread input, in one direction; below 0: padding. */
static int64_t pixel_at(int64_t position, int64_t spread, int64_t pixels)
{
    if (spread > 1 && position >= 0) {
        if (position % spread)
            return -1;
        position /= spread;
    }
    return position < pixels ? position : -1;
}

/* Where the channels are that each tap of each output pixel is multiplied with. */
static void find_rows(const struct job *job, int64_t pixel, const uint8_t **rows)
{
    const struct conv *conv = job->conv;
    const int count = job->gemm->pixels;

    for (int p = 0; p < count; p++, pixel++) {
        /* Rows behind the last pixel are computed and dropped: any will do. */
        const int64_t wanted = pixel < job->end_pixel ? pixel : job->end_pixel - 1;
        const int64_t x = wanted % conv->out.width * conv->stride_x - conv->pad_left;
        const int64_t y = wanted / conv->out.width * conv->stride_y - conv->pad_top;
        const uint8_t **row = rows + p;
        for (int64_t dy = 0; dy < conv->kernel_height; dy++)
            for (int64_t dx = 0; dx < conv->kernel_width; dx++, row += count) {
                const int64_t v = pixel_at(y + dy * conv->step_y, conv->spread_y, conv->height);
                const int64_t u = pixel_at(x + dx * conv->step_x, conv->spread_x, conv->width);
                const int64_t place = (v - job->first_row) * conv->width + u;
                *row = v >= 0 && u >= 0 ? job->panel + (size_t)place * job->pixel_bytes : job->pad;
            }
    }
}

/* What the window of an output pixel sees, added up over all channels: modulo 2^32. */
static uint32_t window_total(const struct job *job, int64_t pixel)
{
    const struct conv *conv = job->conv;
    const int64_t x = pixel % conv->out.width * conv->stride_x - conv->pad_left;
    const int64_t y = pixel / conv->out.width * conv->stride_y - conv->pad_top;
    uint32_t total = 0;

    for (int64_t dy = 0; dy < conv->window_height; dy += conv->step_y)
        for (int64_t dx = 0; dx < conv->window_width; dx += conv->step_x) {
            const int64_t v = pixel_at(y + dy, conv->spread_y, conv->height);
            const int64_t u = pixel_at(x + dx, conv->spread_x, conv->width);
            total += (uint32_t)(v >= 0 && u >= 0
                                    ? job->totals[(v - job->first_row) * conv->width + u]
                                    : job->pad_total);
        }
    return total;
}

/* What one thread computes with. */
struct scratch {
    void *packed;
    const uint8_t **rows;
    _Alignas(64) int32_t init[NPU_GEMM_MAX_KERNELS];
    _Alignas(64) int32_t sums[NPU_GEMM_MAX_PIXELS * NPU_GEMM_MAX_KERNELS];
    _Alignas(64) int64_t wide[NPU_GEMM_MAX_PIXELS * NPU_GEMM_MAX_KERNELS]; /* of int16 */
};

static int32_t truncate_sum(const struct conv *conv, int64_t sum)
{
    sum = npu_shift_right(sum, conv->truncate_sums, conv->round_sums_away);
    return (int32_t)(sum < INT32_MIN ? INT32_MIN : sum > INT32_MAX ? INT32_MAX : sum);
}

/* From CORE's sums to what DPU takes. */
static void truncate_sums(const struct conv *conv, struct scratch *scratch, int count)
{
    for (int i = 0; i < count && conv->precision == NPU_INT16; i++)
        scratch->sums[i] = truncate_sum(conv, scratch->wide[i]);
    for (int i = 0; i < count && conv->precision == NPU_INT8 && conv->truncate_sums; i++)
        scratch->sums[i] = truncate_sum(conv, scratch->sums[i]);
}

static void add_window_totals(const struct job *job, int32_t *sums, int64_t first, int64_t pixel,
                              int pixels)
{
    const struct conv *conv = job->conv;
    const int64_t left = conv->kernels - first, kernels = job->gemm->kernels;

    for (int p = 0; p < pixels; p++, pixel++, sums += kernels) {
        const uint32_t total = window_total(job, pixel);
        for (int64_t k = 0; k < kernels && k < left; k++)
            sums[k] = (int32_t)((uint32_t)sums[k] +
                                (uint32_t)conv->out.window_factor[first + k] * total);
    }
}

static void compute_tile(const struct job *job, struct scratch *scratch, int64_t first,
                         int64_t pixel)
{
    const struct npu_gemm *gemm = job->gemm;
    const struct conv *conv = job->conv;
    const int64_t left = job->end_pixel - pixel, behind = conv->out.channels - first;
    const int pixels = left < gemm->pixels ? (int)left : gemm->pixels;
    const int64_t present = conv->kernels - first;

    if (present > 0) {
        const struct npu_tile tile = {
            .sums = conv->precision == NPU_INT16 ? (void *)scratch->wide : scratch->sums,
            .init = scratch->init, .rows = scratch->rows,
            .weights = scratch->packed, .taps = conv->taps, .channels = conv->channels,
            .pixels = pixels};
        find_rows(job, pixel, scratch->rows);
        gemm->run(&tile);
        if (job->totals)
            add_window_totals(job, scratch->sums, first, pixel, pixels);
        truncate_sums(conv, scratch, pixels * gemm->kernels);
    }
    /* Channels without a kernel are zero, also where a feature is infinite or no number. */
    for (int p = 0; p < pixels; p++)
        for (int64_t k = present > 0 ? present : 0; k < gemm->kernels; k++)
            scratch->sums[p * gemm->kernels + k] = 0;
    npu_dpu_store(job->space, &conv->out, scratch->sums, gemm->kernels, first,
                  behind < gemm->kernels ? behind : gemm->kernels, pixel, pixels, job->level);
}

/* One thread's share of the (block of kernels) x (chunk of pixels) of this panel. */
static void compute(void *argument, int index, int threads)
{
    struct job *job = argument;
    const struct conv *conv = job->conv;
    const struct npu_gemm *gemm = job->gemm;
    const int64_t step = CHUNK_TILES * gemm->pixels;
    const int64_t chunks = (job->end_pixel - job->first_pixel + step - 1) / step;
    const int64_t blocks = (conv->out.channels + gemm->kernels - 1) / gemm->kernels;
    const int64_t items = blocks * chunks;
    const int64_t end = items * (index + 1) / threads;
    struct scratch scratch;
    int64_t packed = -1;

    scratch.packed = aligned_alloc(
        64, ((size_t)(conv->taps * gemm->kernels) * job->pixel_bytes + 63) / 64 * 64);
    scratch.rows = malloc((size_t)(conv->taps * gemm->pixels) * sizeof *scratch.rows);
    if (!scratch.packed || !scratch.rows)
        atomic_store(&job->no_memory, 1);
    for (int64_t item = items * index / threads; item < end && !job->no_memory; item++) {
        const int64_t block = item / chunks, first = block * gemm->kernels;
        const int64_t start = job->first_pixel + item % chunks * step;
        const int64_t stop = start + step < job->end_pixel ? start + step : job->end_pixel;
        if (packed != block && first < conv->kernels)
            npu_gemm_weights(gemm, &job->weights, first, scratch.packed, scratch.init);
        packed = block;
        for (int64_t pixel = start; pixel < stop; pixel += gemm->pixels)
            compute_tile(job, &scratch, first, pixel);
    }
    free(scratch.packed);
    free(scratch.rows);
}

/* Where the operands of a tap are: of a pixel of the panel, or of padding. */
static const uint8_t *tap(const struct job *job, int64_t y, int64_t x)
{
    const struct conv *conv = job->conv;
    const int inside = y >= 0 && y < conv->height && x >= 0 && x < conv->width;

    return inside ? job->panel + (size_t)((y - job->first_row) * conv->width + x) * job->pixel_bytes
                  : job->pad;
}

/*
 * Depthwise, some channels of an output pixel: their sums over the taps. `weights` are [tap]
 * [channel]: fp32 for fp16, else int16.
 */
TEMPLATE void depthwise_pixel(const struct job *job, const void *weights, int64_t first, int count,
                              int64_t pixel, union npu_value *sums)
{
    const struct conv *conv = job->conv;
    const int64_t x = pixel % conv->out.width * conv->stride_x - conv->pad_left;
    const int64_t y = pixel / conv->out.width * conv->stride_y - conv->pad_top;
    uint32_t totals[NPU_STORE_CHANNELS] = {0}, integers[NPU_STORE_CHANNELS] = {0};
    int64_t wide[NPU_STORE_CHANNELS] = {0};
    float floats[NPU_STORE_CHANNELS] = {0};
    int64_t t = 0;

    for (int64_t v = y; v < y + conv->window_height; v += conv->step_y)
        for (int64_t u = x; u < x + conv->window_width; u += conv->step_x, t += count) {
            const uint8_t *row = tap(job, v, u);
            const int16_t *operands = (const int16_t *)row + first, *w = (const int16_t *)weights + t;
            if (conv->fp16) {
                const float *halves = (const float *)row + first, *f = (const float *)weights + t;
                for (int c = 0; c < count; c++)
                    floats[c] += halves[c] * f[c];
            } else if (conv->precision == NPU_INT16) {
                for (int c = 0; c < count; c++)
                    wide[c] += (int32_t)operands[c] * w[c];
            } else {
                for (int c = 0; c < count; c++)
                    integers[c] += (uint32_t)((int32_t)operands[c] * w[c]);
                for (int c = 0; conv->out.window_factor && c < count; c++)
                    totals[c] += (uint32_t)operands[c];
            }
        }
    if (conv->out.window_factor)
        for (int c = 0; c < count; c++)
            integers[c] += (uint32_t)conv->out.window_factor[first + c] * totals[c];
    for (int c = 0; c < count && conv->precision == NPU_INT16; c++)
        integers[c] = (uint32_t)truncate_sum(conv, wide[c]);
    for (int c = 0; c < count && conv->precision == NPU_INT8 && conv->truncate_sums; c++)
        integers[c] = (uint32_t)truncate_sum(conv, (int32_t)integers[c]);
    memcpy(sums, conv->fp16 ? (const void *)floats : integers, sizeof floats);
}

#define DEPTHWISE(name, attribute)                                                                \
    attribute static void name(const struct job *job, const void *weights, int64_t first,         \
                               int count, int64_t pixel, union npu_value *sums)                   \
    {                                                                                             \
        /* The number that almost all groups have, for the compiler to count on. */               \
        if (count == NPU_STORE_CHANNELS)                                                          \
            depthwise_pixel(job, weights, first, NPU_STORE_CHANNELS, pixel, sums);                \
        else                                                                                      \
            depthwise_pixel(job, weights, first, count, pixel, sums);                             \
    }

DEPTHWISE(depthwise_base, )
#if defined(__x86_64__)
DEPTHWISE(depthwise_avx2, AVX2)
DEPTHWISE(depthwise_avx512, AVX512)
#endif

static __typeof__(&depthwise_base) depthwise_variant(enum npukit_simd level)
{
#if defined(__x86_64__)
    if (level >= NPUKIT_AVX2)
        return level >= NPUKIT_AVX512 ? depthwise_avx512 : depthwise_avx2;
#endif
    (void)level;
    return depthwise_base;
}

/* One thread's share of the output pixels of this panel. */
static void compute_depthwise(void *argument, int index, int threads)
{
    struct job *job = argument;
    const struct conv *conv = job->conv;
    const int64_t pixels = job->end_pixel - job->first_pixel;
    const int64_t start = job->first_pixel + pixels * index / threads;
    const int64_t end = job->first_pixel + pixels * (index + 1) / threads;
    const int64_t group = DEPTHWISE_GROUP_BYTES / conv->bytes;
    const size_t weight_bytes = conv->fp16 ? sizeof(float) : sizeof(int16_t);
    __typeof__(&depthwise_base) run = depthwise_variant(job->level);
    union npu_value sums[NPU_STORE_CHANNELS];
    void *weights = malloc((size_t)(conv->taps * group) * weight_bytes);

    if (!weights)
        atomic_store(&job->no_memory, 1);
    for (int64_t first = 0; first < conv->out.channels && !job->no_memory; first += group) {
        const int64_t behind = conv->out.channels - first, left = conv->channels - first;
        const int count = left < 0 ? 0 : left < group ? (int)left : (int)group;
        const uint8_t *raw = job->weights.data + first * conv->taps * conv->bytes;
        if (conv->fp16)
            job->gemm->widen(weights, raw, (size_t)(conv->taps * count));
        else if (conv->precision == NPU_INT16)
            memcpy(weights, raw, (size_t)(conv->taps * count) * 2);
        for (int64_t i = 0; i < conv->taps * count && conv->precision == NPU_INT8; i++)
            ((int16_t *)weights)[i] = (int8_t)raw[i];
        for (int64_t pixel = start; pixel < end; pixel++) {
            run(job, weights, first, count, pixel, sums);
            npu_dpu_store(job->space, &conv->out, sums, NPU_STORE_CHANNELS, first,
                          behind < group ? behind : group, pixel, 1, job->level);
        }
    }
    free(weights);
}

/* Output rows whose input fits into the panel; all when it fits into the CBUF, which is smaller. */
static int64_t rows_at_a_time(const struct conv *conv, size_t row_operands)
{
    const int64_t rows = PANEL_BYTES / (int64_t)row_operands - conv->window_height;
    const int64_t fit = rows < 0 ? 1 : rows / conv->stride_y + 1;

    return conv->data_fits || fit > conv->out.height ? conv->out.height : fit;
}

/* The input rows of the output rows y .. y + count - 1. */
static void choose_rows(struct job *job, int64_t y, int64_t count)
{
    const struct conv *conv = job->conv;
    const int64_t top = y * conv->stride_y - conv->pad_top;
    const int64_t bottom = top + (count - 1) * conv->stride_y + conv->window_height - 1;
    const int64_t spread = conv->spread_y;

    /* What a later task may reuse is there as a whole, rows that no window sees included. */
    job->first_row = conv->data_fits || top < 0 ? 0 : (top + spread - 1) / spread;
    job->end_row = conv->data_fits || bottom / spread >= conv->height ? conv->height
                                                                     : bottom / spread + 1;
    if (job->end_row < job->first_row) /* all between two rows */
        job->end_row = job->first_row;
    job->first_pixel = y * conv->out.width;
    job->end_pixel = (y + count) * conv->out.width;
}

static int convolve(struct job *job, int threads)
{
    const struct conv *conv = job->conv;
    const size_t row_operands = (size_t)conv->width * job->pixel_bytes;
    const int64_t step = rows_at_a_time(conv, row_operands);
    int64_t panel_rows = (step - 1) * conv->stride_y + conv->window_height;

    if (conv->data_fits || panel_rows > conv->height)
        panel_rows = conv->height;
    job->panel = aligned_alloc(64, ((size_t)panel_rows * row_operands + 63) / 64 * 64);
    if (!job->panel)
        return -1;
    if (conv->out.window_factor && !conv->depthwise) {
        job->totals = malloc((size_t)(panel_rows * conv->width) * sizeof *job->totals);
        if (!job->totals) {
            free(job->panel);
            return -1;
        }
        job->pad_total = (int32_t)conv->channels * (int8_t)conv->pad;
    }
    for (int64_t y = 0; y < conv->out.height && !job->no_memory; y += step) {
        const int64_t left = conv->out.height - y;
        choose_rows(job, y, left < step ? left : step);
        npu_parallel(threads, load_rows, job);
        npu_parallel(threads, conv->depthwise ? compute_depthwise : compute, job);
    }
    free(job->totals);
    free(job->panel);
    return job->no_memory ? -1 : 0;
}

static int with_weights(struct job *job, int threads)
{
    const struct conv *conv = job->conv;
    uint8_t *cached = job->npu->cbuf + conv->data_banks * NPU_BANK_BYTES;
    const int64_t bytes = conv->weights.line_bytes;
    uint8_t *copy = NULL;
    int result;

    if (conv->weight_reuse || conv->weights_fit) {
        if (!conv->weight_reuse)
            npu_space_read(job->space, conv->weights.base, cached, bytes);
        job->weights.data = cached;
    } else if (conv->weights.flat) {
        job->weights.data = conv->weights.flat;
    } else {
        copy = malloc((size_t)bytes);
        if (!copy)
            return -1;
        npu_space_read(job->space, conv->weights.base, copy, bytes);
        job->weights.data = copy;
    }
    result = convolve(job, threads);
    free(copy);
    return result;
}

static int execute(struct npu *npu, const struct npu_space *space, const struct conv *conv,
                   int threads)
{
    const enum npukit_simd level = npukit_simd_level();
    struct job job = {
        .npu = npu, .space = space, .conv = conv, .level = level,
        .gemm = conv->fp16                    ? npu_gemm_fp16(level)
                : conv->precision == NPU_INT16 ? npu_gemm_int16(level)
                : conv->depthwise             ? npu_gemm_int8(NPUKIT_PORTABLE)
                                              : npu_gemm_int8(level),
        .weights = {.kernels = conv->kernels, .channels = conv->channels, .taps = conv->taps,
                    .bytes = conv->bytes}};
    uint8_t *raw;
    int result = -1;

    job.pixel_bytes = (size_t)conv->channels * npu_gemm_element(job.gemm);
    job.pad = malloc(job.pixel_bytes);
    raw = malloc((size_t)(conv->channels * conv->bytes));
    if (job.pad && raw) {
        for (int64_t c = 0; c < conv->channels; c++)
            memcpy(raw + c * conv->bytes, &conv->pad, (size_t)conv->bytes);
        npu_gemm_features(job.gemm, job.pad, raw, (size_t)conv->channels);
        result = with_weights(&job, threads);
    }
    free(job.pad);
    free(raw);
    return result;
}

/* ---------------------------------------------------------------- one task */

static int check_memory(const struct npu *npu, const struct npu_space *space, struct conv *conv,
                        struct npu_fault *fault)
{
    const struct npu_cube *const out = &conv->out.cube;

    if ((!conv->data_reuse && npu_cube_check(space, &conv->features, 0, fault)) ||
        (!conv->weight_reuse && npu_cube_check(space, &conv->weights, 0, fault)) ||
        npu_dpu_open(npu, space, &conv->out, fault))
        return -1;
    /* The hardware would not fail, but what it writes would depend on timing. */
    if ((!conv->data_reuse && npu_cube_apart(out, &conv->features, "the features", fault)) ||
        (!conv->weight_reuse && npu_cube_apart(out, &conv->weights, "the weights", fault)))
        return -1;
    return 0;
}

static int convolve_task(struct npu *npu, const struct npu_space *space, struct npu_run *run,
                         int rdma, struct conv *conv)
{
    struct npu_fault *fault = &run->fault;
    int64_t sums, moved;

    if (decode(npu, conv, rdma, fault) || check_reuse(npu, conv, fault))
        return -1;
    /* Kernels are computed 32 at a time. No factor exceeds its field, so 64 bits hold this. */
    sums = conv->out.width * conv->out.height * conv->taps *
           (conv->depthwise ? conv->channels : (conv->kernels + 31) / 32 * 32 * conv->channels);
    moved = npu_cube_bytes(&conv->features) + npu_cube_bytes(&conv->weights) +
            npu_dpu_bytes(&conv->out);
    if (run->budget < sums || run->budget - sums < moved * NPU_WORK_PER_BYTE)
        return npu_fail(fault, NPU_TIMED_OUT, NPU_NO_FIELD, sums, NPU_NO_IOVA,
                        "%lld products and %lld bytes exceed the work that a run may do",
                        (long long)sums, (long long)moved);
    run->budget -= sums + moved * NPU_WORK_PER_BYTE;
    if (check_memory(npu, space, conv, fault))
        return -1;
    npu->features = describe_features(conv);
    npu->weights = describe_weights(conv);
    if (execute(npu, space, conv, sums < SMALL_WORK ? 1 : run->threads))
        return npu_fail(fault, NPU_NO_MEMORY, NPU_NO_FIELD, 0, NPU_NO_IOVA, "out of memory");
    return 0;
}

int npu_conv_execute(struct npu *npu, const struct npu_space *space, struct npu_run *run, int rdma,
                     uint32_t *status)
{
    struct conv conv = {0};
    const int result = convolve_task(npu, space, run, rdma, &conv);

    npu_dpu_close(&conv.out);
    if (result)
        return -1;
    if (!conv.data_reuse)
        *status |= 1u << npu->pointer[NPU_CNA];
    if (!conv.weight_reuse)
        *status |= 4u << npu->pointer[NPU_CNA];
    *status |= 0x10u << npu->pointer[NPU_CNA] | 0x40u << npu->pointer[NPU_CORE] |
               0x100u << npu->pointer[NPU_DPU];
    return 0;
}
