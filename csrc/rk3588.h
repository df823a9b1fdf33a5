/* SPDX-License-Identifier: MIT */
/*
 * The device model of one RK3588 NPU core.
 *
 * rk3588_space.c  what its DMA can reach: buffers by IOVA
 * rk3588_pc.c     command words, registers, the chain of tasks
 * rk3588_conv.c   CNA and CORE: features and weights through the CBUF, sums of products
 * rk3588_dpu.c    DPU and DPU_RDMA: registers, operands and memory
 * rk3588_stage.c  DPU: the arithmetic, from sums to elements in memory
 * rk3588_ppu.c    PPU and PPU_RDMA: pooling
 * rk3588_gemm.c   the arithmetic of convolutions, by SIMD variant
 *
 * All functions that return int return 0, or -1 with the fault filled in.
 */
#ifndef NPUKIT_RK3588_H
#define NPUKIT_RK3588_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cpu.h"
#include "rk3588_gemm.h"
#include "rk3588_regs.h"

/* ---------------------------------------------------------------- faults */

enum npu_kind {
    NPU_OK,
    NPU_COMMAND,      /* a command word, or their order */
    NPU_ILLEGAL,      /* a register or a bit that does not exist, a wrong target */
    NPU_UNSUPPORTED,  /* a mode that is not modelled */
    NPU_INCONSISTENT, /* registers that contradict each other or the hardware's limits */
    NPU_ACCESS,       /* memory that is not mapped, or not writable */
    NPU_TIMED_OUT,    /* the hardware would never raise the interrupt */
    NPU_NO_MEMORY,    /* of the host */
};

#define NPU_NO_FIELD UINT32_MAX
#define NPU_NO_IOVA INT64_MIN
#define NPU_REGISTER(offset) NPU_FIELD(offset, 31, 0)

struct npu_fault {
    enum npu_kind kind;
    uint32_t field; /* NPU_FIELD, or NPU_NO_FIELD */
    int64_t value;  /* of the field */
    int64_t iova;   /* NPU_NO_IOVA: none */
    int write;      /* NPU_ACCESS only */
    char text[160];
};

/* Fills in the fault and returns -1. */
int npu_fail(struct npu_fault *fault, enum npu_kind kind, uint32_t field, int64_t value,
             int64_t iova, const char *format, ...) __attribute__((format(printf, 6, 7)));

/* ---------------------------------------------------------------- memory */

/* A 32-bit IOVA space: an IOMMU domain. Runs hold it entered; mapping waits until they leave. */
struct npu_space;

enum npu_map_result { NPU_MAPPED, NPU_MAP_OVERLAP, NPU_MAP_NO_MEMORY };

struct npu_space *npu_space_new(void);
void npu_space_free(struct npu_space *space, void (*release)(void *owner));
enum npu_map_result npu_space_map(struct npu_space *space, uint64_t iova, uint64_t size,
                                  uint8_t *data, int writable, void *owner);
/* The owner of the mapping that starts at `iova`, now unmapped; NULL when none does. */
void *npu_space_unmap(struct npu_space *space, uint64_t iova);

void npu_space_enter(struct npu_space *space);
void npu_space_leave(struct npu_space *space);

/* The rest is for who has entered. */

/* Where a range is when one mapping holds all of it, else NULL. */
uint8_t *npu_space_at(const struct npu_space *space, int64_t iova, int64_t size, int write);
void npu_space_read(const struct npu_space *space, int64_t iova, void *dst, int64_t size);
void npu_space_write(const struct npu_space *space, int64_t iova, const void *src, int64_t size);

/*
 * What a DMA unit walks: surfaces of lines of contiguous bytes. Pitches are in bytes and may be
 * negative. `flat` is set by npu_cube_check: where `base` is when one mapping holds all of it, else
 * NULL, and then every access goes through npu_space_read and npu_space_write.
 */
struct npu_cube {
    int64_t base, surface_pitch, line_pitch;
    int64_t surfaces, lines, line_bytes;
    uint32_t field; /* the register that holds `base`, for faults */
    uint8_t *flat;
};

static inline int64_t npu_cube_bytes(const struct npu_cube *cube)
{
    return cube->surfaces * cube->lines * cube->line_bytes;
}

int npu_cube_check(const struct npu_space *space, struct npu_cube *cube, int write,
                   struct npu_fault *fault);
/* Fails when an output shares bytes with another cube, or (output == other) crosses itself. */
int npu_cube_apart(const struct npu_cube *output, const struct npu_cube *other, const char *name,
                   struct npu_fault *fault);

/* `size` bytes at `offset` from the base of a cube that has been checked. */
static inline void npu_cube_read(const struct npu_space *space, const struct npu_cube *cube,
                                 int64_t offset, void *dst, int64_t size)
{
    if (cube->flat)
        memcpy(dst, cube->flat + offset, (size_t)size);
    else
        npu_space_read(space, cube->base + offset, dst, size);
}

static inline void npu_cube_write(const struct npu_space *space, const struct npu_cube *cube,
                                  int64_t offset, const void *src, int64_t size)
{
    if (cube->flat)
        memcpy(cube->flat + offset, src, (size_t)size);
    else
        npu_space_write(space, cube->base + offset, src, size);
}

/* ---------------------------------------------------------------- the core */

#define ATOM 16 /* bytes of a pixel side by side in memory */
#define NPU_BLOCKS 8
#define NPU_BLOCK_REGISTERS 128
#define NPU_BANKS 12
#define NPU_BANK_BYTES 32768

enum npu_block { NPU_PC, NPU_CNA, NPU_CORE = 3, NPU_DPU, NPU_DPU_RDMA, NPU_PPU, NPU_PPU_RDMA };

enum npu_precision { NPU_INT8, NPU_INT16, NPU_FP16, NPU_BF16, NPU_INT32, NPU_FP32 };

enum npu_conv_mode { NPU_DIRECT = 0, NPU_DEPTHWISE = 3 };

static inline int64_t npu_precision_bytes(enum npu_precision precision)
{
    return precision == NPU_INT8 ? 1 : precision == NPU_INT32 || precision == NPU_FP32 ? 4 : 2;
}

/* What is in the CBUF, so that a task may reuse it. */
struct npu_cached {
    int valid;
    int64_t first_bank;
    enum npu_precision precision;
    int depthwise;
    int64_t shape[4];
};

#define NPU_LUT_ENTRIES 513

struct npu {
    const uint32_t *masks; /* [offset / 4]: legal bits, 0 = no such register */
    uint32_t registers[NPU_BLOCKS][2][NPU_BLOCK_REGISTERS];
    uint32_t pointer_config[NPU_BLOCKS]; /* S_POINTER less the pointers themselves */
    uint8_t pointer[NPU_BLOCKS], executer[NPU_BLOCKS];
    uint8_t *cbuf; /* data banks first, weight banks behind them */
    struct npu_cached features, weights;
    int16_t lut[2][NPU_LUT_ENTRIES]; /* LE and LO */
};

struct npu_run {
    uint32_t iova;   /* of the first command word */
    uint32_t amount; /* of pairs of words, minus one */
    int tasks;
    uint32_t int_mask;
    int threads;
    int meets; /* end in front of a task that waits for other cores */
    int64_t budget; /* work units left: see NPU_WORK_PER_BYTE */
    uint32_t raw_status; /* of the last task that ran */
    int tasks_done;
    uint32_t next_iova, next_amount; /* of the task that the run ended in front of; 0: of none */
    struct npu_fault fault;
};

/* A multiply-accumulate is one unit of work, a byte moved this many. */
#define NPU_WORK_PER_BYTE 8

int npu_init(struct npu *npu, const uint32_t *masks);
void npu_destroy(struct npu *npu);
void npu_reset(struct npu *npu);

/* Host side of a register: -1 when the core has no such register or the bits are not legal. */
int npu_write_register(struct npu *npu, uint32_t offset, uint32_t value);
int npu_read_register(const struct npu *npu, uint32_t offset, uint32_t *value);

/* Executes `run->tasks` tasks of a chain. The space must be entered. */
int npu_execute(struct npu *npu, const struct npu_space *space, struct npu_run *run);

/* ---------------------------------------------------------------- between the blocks */

/* A field in the register group that its block executes. */
static inline uint32_t npu_get(const struct npu *npu, uint32_t field)
{
    uint32_t offset = NPU_FIELD_OFFSET(field), block = offset >> 12;
    uint32_t value = npu->registers[block][npu->pointer[block]][(offset & 0xfff) / 4];
    uint32_t width = NPU_FIELD_HI(field) - NPU_FIELD_LO(field) + 1;
    return value >> NPU_FIELD_LO(field) & (uint32_t)((UINT64_C(1) << width) - 1);
}

/* A field and the only value that is modelled. */
struct npu_rule {
    uint32_t field;
    uint32_t value;
    const char *text;
};

int npu_require(const struct npu *npu, const struct npu_rule *rules, size_t count,
                struct npu_fault *fault);
/* `rules`: an array. */
#define NPU_REQUIRE(npu, rules, fault) \
    npu_require(npu, rules, sizeof(rules) / sizeof *(rules), fault)

/* A field that other registers determine; the text says how, and gets the right value appended. */
int npu_expect(const struct npu *npu, uint32_t field, int64_t expected, const char *text,
               struct npu_fault *fault);

/* A field whose value contradicts others or the hardware's limits, or is not modelled. */
static inline int npu_inconsistent(struct npu_fault *fault, const struct npu *npu, uint32_t field,
                                   const char *text)
{
    return npu_fail(fault, NPU_INCONSISTENT, field, npu_get(npu, field), NPU_NO_IOVA, "%s", text);
}

static inline int npu_unsupported(struct npu_fault *fault, const struct npu *npu, uint32_t field,
                                  const char *text)
{
    return npu_fail(fault, NPU_UNSUPPORTED, field, npu_get(npu, field), NPU_NO_IOVA, "%s", text);
}

static inline int32_t npu_signed_16(uint32_t value)
{
    return (int32_t)(value ^ 0x8000) - 0x8000;
}

/* value / 2^shift, the value within 62 bits: to nearest, ties to even or away from zero. */
static inline int64_t npu_shift_right(int64_t value, int shift, int away)
{
    int64_t half;

    if (!shift)
        return value;
    half = INT64_C(1) << (shift - 1);
    /* A little less than a half for what has to go down at a tie. */
    return (value + half - (away ? value < 0 : !(value >> shift & 1))) >> shift;
}

/* A number inside the DPU: int32 when it computes in integers, else fp32. */
union npu_value {
    int32_t i;
    float f;
};

/* BS or BN: per channel, an addition, a multiplication and a clamp. A NULL or 0 leaves one out. */
struct npu_stage {
    int multiply_first;      /* BN; BS adds first */
    union npu_value *add;    /* [channels] */
    int subtract;
    union npu_value *factor; /* [channels] */
    int prelu;               /* multiply negative values alone */
    int shift[2];            /* of a product that is not negative, and that is */
    int relu, relux;
    union npu_value limit;
};

static inline int npu_stage_idle(const struct npu_stage *stage)
{
    return !stage->add && !stage->factor && !stage->relu;
}

enum npu_algorithm {
    NPU_EW_NONE,
    NPU_EW_MAX,
    NPU_EW_MIN,
    NPU_EW_ADD,
    NPU_EW_DIV,
    NPU_EW_MINUS,
    NPU_EW_MUL,
};

/* EW: with an operand for each element, or for each channel. */
struct npu_elementwise {
    enum npu_algorithm algorithm;
    int prelu;
    int shift[2]; /* of a product, as above */
    int relu, relux;
    union npu_value limit;
    union npu_value *values; /* [channels], or NULL: from the cubes */
    int channelwise; /* the cube holds `values` */
    int cubes; /* 2: surfaces alternate between them */
    struct npu_cube cube[2];
    enum npu_precision precision; /* of elements in the cubes */
    int convert, add_first, round_away, conversion_shift; /* of operands from memory */
    int32_t offset, scale;
};

/* The lookup behind EW: in LE below zero, in LO from zero on. */
struct npu_lookup {
    int enabled;
    const int16_t (*tables)[NPU_LUT_ENTRIES];
    int steps[2]; /* between entries, as a power of two */
    int slope_scales[2], slope_shifts[2]; /* below LE and above LO */
    float offset, factor; /* of the output, in floating point */
};

/* What CORE or the memory hands to DPU, what it does and where it puts it. */
struct npu_output {
    int64_t width, height, channels; /* as written */
    int64_t real;                    /* channels from this one on are written as `extra` */
    uint16_t extra;                  /* an element as it lies in memory */
    int depthwise, flying;
    int divide; /* in EW: fp16 then passes as it is, not as fp32 */
    int fp16;                     /* values are fp32, else int32 */
    enum npu_precision precision; /* of the elements written */
    struct npu_stage bs, bn;
    struct npu_elementwise ew;
    struct npu_lookup lookup;
    int add_first, round_away, shift; /* of the output conversion */
    int32_t offset, scale;
    int plain; /* nothing but a change of format */
    struct npu_cube cube;
    /* A per-channel operand that DPU_RDMA reads, see load_operands. */
    int operands_from_memory;
    struct npu_cube operands;
    struct npu_cube factors; /* of BN, from memory; no surfaces: none */
    int32_t *window_factor; /* [channels], or NULL: times the sum of a window, added to its sums */
    struct npu_cube source; /* flying: what is read */
    enum npu_precision source_precision; /* of that, or of what CNA reads */
    union npu_value *values; /* owns all per-channel values */
};

/* `rdma`: whether DPU_RDMA is enabled. What it fills in is to be given to npu_dpu_close. */
int npu_dpu_decode(const struct npu *npu, struct npu_output *out, int rdma,
                   struct npu_fault *fault);
/* Checks what will be read and written, and reads the operands of channels. */
int npu_dpu_open(const struct npu *npu, const struct npu_space *space, struct npu_output *out,
                 struct npu_fault *fault);
void npu_dpu_close(struct npu_output *out);
int64_t npu_dpu_bytes(const struct npu_output *out);

/* The most channels that one call of the following takes. */
#define NPU_STORE_CHANNELS 64

/* Channels of one pixel from one cube, or from two that hold every other surface. */
void npu_dpu_fetch(const struct npu_space *space, const struct npu_cube *cubes, int alternate,
                   enum npu_precision precision, int64_t first, int count, int64_t y, int64_t x,
                   union npu_value *dst, enum npukit_simd level);

/*
 * Process and write the channels first .. first + count - 1 of `pixels` consecutive output pixels.
 * `sums` has one row of `stride` int32 or float per pixel; `first` is a multiple of 16.
 */
void npu_dpu_store(const struct npu_space *space, const struct npu_output *out, const void *sums,
                   int64_t stride, int64_t first, int64_t count, int64_t pixel, int pixels,
                   enum npukit_simd level);

/* CNA, CORE and DPU: one convolution. Adds to *status the interrupt bits that it raises. */
int npu_conv_execute(struct npu *npu, const struct npu_space *space, struct npu_run *run, int rdma,
                     uint32_t *status);

/* DPU and DPU_RDMA: one operation on elements in memory, as above. */
int npu_flying_execute(struct npu *npu, const struct npu_space *space, struct npu_run *run,
                       uint32_t *status);

/* PPU and PPU_RDMA: one pooling, as above. */
int npu_pool_execute(struct npu *npu, const struct npu_space *space, struct npu_run *run,
                     uint32_t *status);

/* Calls work(argument, i, threads) for each i below `threads`, side by side, and waits for all. */
void npu_parallel(int threads, void (*work)(void *argument, int index, int threads),
                  void *argument);

#endif
