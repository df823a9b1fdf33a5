/* SPDX-License-Identifier: MIT */
/*
 * The program counter: fetches command words, fills the register groups, starts the blocks and
 * follows the chain from task to task.
 *
 * Register groups: each block has two. S_POINTER names the one that is written; with POINTER_PP_EN
 * the pointer itself cannot be written and goes to the other group when an operation completes.
 * With EXECUTER_PP_EN the executed group alternates as well, on its own; without, it is the one
 * that the pointer names. An operation enabled in a group that is not the executer's turn never
 * starts. A stream of the vendor or of Mesa sets only the DPU's (and its RDMA's) pointer; CNA and
 * CORE keep what the kernel's driver wrote, or else stay with group 0.
 *
 * Where several cores share a job, the upper half of REGISTER_AMOUNTS says how many others the next
 * task waits for, which reads what they have written (streams of Rockchip's compiler: without, their
 * results are wrong, and not twice the same). What it does where one core runs alone is not known.
 */
#include "rk3588.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TARGET_ENABLE 0x0081
#define WORD_MARKER UINT64_C(0x0041000000000000)
#define BASE_ADDRESS 0x0010
#define REGISTER_AMOUNTS 0x0014
#define LUT_ACCESS_CFG 0x4100
#define LUT_ACCESS_DATA 0x4104
#define ENABLE_CONV 0x0d /* CNA, CORE and DPU */
#define ENABLE_CONV_RDMA 0x1d
#define ENABLE_FLYING 0x18 /* DPU and DPU_RDMA */
#define ENABLE_POOL 0x60   /* PPU and PPU_RDMA */
/* The core's number, EXECUTER, both CLEAR bits and POINTER: not configuration */
#define POINTER_STATE 0xf0010031u
#define DMA_READ_ERROR (1u << 12)
#define DMA_WRITE_ERROR (1u << 13)
#define FETCH_WORDS 256

int npu_fail(struct npu_fault *fault, enum npu_kind kind, uint32_t field, int64_t value,
             int64_t iova, const char *format, ...)
{
    va_list arguments;

    fault->kind = kind;
    fault->field = field;
    fault->value = value;
    fault->iova = iova;
    fault->write = 0;
    va_start(arguments, format);
    vsnprintf(fault->text, sizeof fault->text, format, arguments);
    va_end(arguments);
    return -1;
}

int npu_require(const struct npu *npu, const struct npu_rule *rules, size_t count,
                struct npu_fault *fault)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t value = npu_get(npu, rules[i].field);
        if (value != rules[i].value)
            return npu_fail(fault, NPU_UNSUPPORTED, rules[i].field, value, NPU_NO_IOVA,
                            "%s; only %u is modelled", rules[i].text, rules[i].value);
    }
    return 0;
}

int npu_expect(const struct npu *npu, uint32_t field, int64_t expected, const char *text,
               struct npu_fault *fault)
{
    uint32_t value = npu_get(npu, field);

    if (value == expected)
        return 0;
    return npu_fail(fault, NPU_INCONSISTENT, field, value, NPU_NO_IOVA, "%s, which gives %lld",
                    text, (long long)expected);
}

/* ---------------------------------------------------------------- state */

int npu_init(struct npu *npu, const uint32_t *masks)
{
    memset(npu, 0, sizeof *npu);
    npu->masks = masks;
    npu->cbuf = calloc(NPU_BANKS, NPU_BANK_BYTES);
    return npu->cbuf ? 0 : -1;
}

void npu_destroy(struct npu *npu)
{
    free(npu->cbuf);
    npu->cbuf = NULL;
}

void npu_reset(struct npu *npu)
{
    memset(npu->registers, 0, sizeof npu->registers);
    memset(npu->pointer_config, 0, sizeof npu->pointer_config);
    memset(npu->pointer, 0, sizeof npu->pointer);
    memset(npu->executer, 0, sizeof npu->executer);
    memset(npu->lut, 0, sizeof npu->lut);
    npu->features.valid = npu->weights.valid = 0;
}

static uint32_t bit(uint32_t value, uint32_t field)
{
    return value >> NPU_FIELD_LO(field) & 1;
}

static void set_pointer(struct npu *npu, uint32_t block, uint32_t value)
{
    if (bit(value, CNA_POINTER_PP_CLEAR))
        npu->pointer[block] = 0;
    if (bit(value, CNA_EXECUTER_PP_CLEAR))
        npu->executer[block] = 0;
    if (!bit(value, CNA_POINTER_PP_EN))
        npu->pointer[block] = (uint8_t)bit(value, CNA_POINTER);
    npu->pointer_config[block] = value & ~POINTER_STATE;
}

/* The legal bits of a register that words or the host may write; 0: none. */
static uint32_t writable_bits(const struct npu *npu, uint32_t offset)
{
    if (offset & 3 || offset >> 12 >= NPU_BLOCKS || (offset & 0xfff) / 4 >= NPU_BLOCK_REGISTERS)
        return 0;
    return npu->masks[offset / 4];
}

/* -1: an entry behind the end of a lookup table. */
static int set_register(struct npu *npu, uint32_t offset, uint32_t value)
{
    const uint32_t block = offset >> 12;
    uint32_t *group = npu->registers[block][npu->pointer[block]];
    uint32_t *access = &group[(LUT_ACCESS_CFG & 0xfff) / 4];

    group[(offset & 0xfff) / 4] = value;
    if (offset != LUT_ACCESS_DATA || !bit(*access, DPU_LUT_ACCESS_TYPE))
        return 0;
    /* Each entry written moves the address on. */
    if ((*access & 0x3ff) >= NPU_LUT_ENTRIES)
        return -1;
    npu->lut[bit(*access, DPU_LUT_TABLE_ID)][*access & 0x3ff] = (int16_t)value;
    ++*access;
    return 0;
}

int npu_write_register(struct npu *npu, uint32_t offset, uint32_t value)
{
    uint32_t block = offset >> 12, place = offset & 0xfff;
    uint32_t legal = offset < 0x10000 ? writable_bits(npu, offset) : 0;

    /* PC registers and the enables are npu_execute's. */
    if (!legal || block == NPU_PC || place == NPU_S_STATUS || place == NPU_OPERATION_ENABLE)
        return -1;
    if (value & ~legal)
        return -1;
    if (place == NPU_S_POINTER)
        set_pointer(npu, block, value);
    else
        return set_register(npu, offset, value);
    return 0;
}

int npu_read_register(const struct npu *npu, uint32_t offset, uint32_t *value)
{
    uint32_t block = offset >> 12, place = offset & 0xfff;

    if (offset >= 0x10000 || !writable_bits(npu, offset) || block == NPU_PC ||
        place == NPU_S_STATUS || place == NPU_OPERATION_ENABLE)
        return -1;
    if (place == NPU_S_POINTER)
        *value = npu->pointer_config[block] | npu->pointer[block] |
                 (uint32_t)npu->executer[block] << NPU_FIELD_LO(CNA_EXECUTER);
    else
        *value = npu->registers[block][npu->pointer[block]][place / 4];
    return 0;
}

/* ---------------------------------------------------------------- words */

struct task {
    uint32_t iova, amount;
    uint32_t next_iova, next_amount;
    uint32_t others; /* cores that the next task waits for */
    uint32_t enable;
    int enabled, marked; /* the word before was the marker */
    int behind;          /* words seen behind the enable word */
};

static int write_word(struct npu *npu, struct task *task, uint64_t word, int64_t iova,
                      struct npu_fault *fault)
{
    uint32_t target = (uint32_t)(word >> 48), value = (uint32_t)(word >> 16);
    uint32_t offset = word & 0xffff, block = offset >> 12, place = offset & 0xfff;
    uint32_t legal = writable_bits(npu, offset);

    if (!legal)
        return npu_fail(fault, NPU_ILLEGAL, NPU_NO_FIELD, value, iova,
                        "word 0x%016llx writes register 0x%04x, which a stream cannot reach",
                        (unsigned long long)word, offset);
    /* Bit 56 + n reaches the block at n << 12; bit 48 marks a write. */
    if (target != (0x100u << block | 1))
        return npu_fail(fault, NPU_ILLEGAL, NPU_REGISTER(offset), value, iova,
                        "target 0x%04x is not its block, which is 0x%04x", target,
                        0x100u << block | 1);
    if (value & ~legal)
        return npu_fail(fault, NPU_ILLEGAL, NPU_REGISTER(offset), value, iova,
                        "reserved bits %#x are set", value & ~legal);
    if (block == NPU_PC) {
        if (offset == BASE_ADDRESS && value & 1)
            return npu_fail(fault, NPU_UNSUPPORTED, PC_PC_SEL, 1, iova,
                            "slave mode inside a stream; only 0 is modelled");
        if (offset == BASE_ADDRESS)
            task->next_iova = value;
        else if (offset == REGISTER_AMOUNTS) {
            task->next_amount = value & 0xffff;
            task->others = value >> 16;
        } else
            return npu_fail(fault, NPU_UNSUPPORTED, NPU_REGISTER(offset), value, iova,
                            "only the chain registers 0x0010 and 0x0014 are modelled in a stream");
        return 0;
    }
    if (place == NPU_S_STATUS)
        return npu_fail(fault, NPU_ILLEGAL, NPU_REGISTER(offset), value, iova, "is read-only");
    if (place == NPU_OPERATION_ENABLE)
        return npu_fail(fault, NPU_UNSUPPORTED, NPU_REGISTER(offset), value, iova,
                        "starting one block alone; only the enable word is modelled");
    if (place == NPU_S_POINTER) {
        if (bit(value, CNA_EXECUTER))
            return npu_fail(fault, NPU_ILLEGAL, NPU_FIELD(offset, 16, 16), 1, iova,
                            "is read-only");
        set_pointer(npu, block, value);
        return 0;
    }
    if (set_register(npu, offset, value))
        return npu_fail(fault, NPU_INCONSISTENT, NPU_REGISTER(offset), value, iova,
                        "is behind the %d entries of a lookup table", NPU_LUT_ENTRIES);
    return 0;
}

static int enable_word(const struct npu *npu, struct task *task, uint64_t word, int64_t iova,
                       struct npu_fault *fault)
{
    uint32_t value = (uint32_t)(word >> 16);
    uint32_t legal = npu->masks[GLOBAL_OPERATION_ENABLE / 4];

    if ((word & 0xffff) != NPU_OPERATION_ENABLE)
        return npu_fail(fault, NPU_COMMAND, NPU_NO_FIELD, value, iova,
                        "enable word 0x%016llx names register 0x%04x, not 0x0008",
                        (unsigned long long)word, (unsigned)(word & 0xffff));
    if (!task->marked)
        return npu_fail(fault, NPU_COMMAND, NPU_NO_FIELD, value, iova,
                        "enable word without the marker 0x0041000000000000 before it");
    if (!value || value & ~legal)
        return npu_fail(fault, NPU_ILLEGAL, NPU_REGISTER(NPU_OPERATION_ENABLE), value, iova,
                        "enables blocks that do not exist, or none");
    task->enable = value;
    task->enabled = 1;
    return 0;
}

static int step(struct npu *npu, struct task *task, uint64_t word, int64_t iova,
                struct npu_fault *fault)
{
    uint32_t target = (uint32_t)(word >> 48);
    int result = 0;

    if (task->enabled) {
        /* Words are fetched in pairs: the one that fills up the last pair is not looked at. */
        if (task->behind++ && word)
            return npu_fail(fault, NPU_COMMAND, NPU_NO_FIELD, 0, iova,
                            "word 0x%016llx behind the enable word", (unsigned long long)word);
        return 0;
    }
    if (task->marked && target != TARGET_ENABLE)
        return npu_fail(fault, NPU_COMMAND, NPU_NO_FIELD, 0, iova,
                        "word 0x%016llx between the marker and the enable word",
                        (unsigned long long)word);
    if (target == TARGET_ENABLE)
        result = enable_word(npu, task, word, iova, fault);
    else if (word && word != WORD_MARKER)
        result = write_word(npu, task, word, iova, fault);
    task->marked = word == WORD_MARKER;
    return result;
}

static int fetch(struct npu *npu, const struct npu_space *space, struct task *task,
                 struct npu_fault *fault)
{
    uint64_t words[FETCH_WORDS];
    int64_t count = 2 * ((int64_t)task->amount + 1);
    struct npu_cube cube = {.base = task->iova,
                            .surfaces = 1,
                            .lines = 1,
                            .line_bytes = 8 * count,
                            .field = NPU_REGISTER(BASE_ADDRESS)};

    if (task->iova & 15)
        return npu_fail(fault, NPU_ILLEGAL, cube.field, task->iova, NPU_NO_IOVA,
                        "command words must be at a multiple of 16");
    if (npu_cube_check(space, &cube, 0, fault))
        return -1;
    for (int64_t done = 0; done < count; done += FETCH_WORDS) {
        int64_t part = count - done < FETCH_WORDS ? count - done : FETCH_WORDS;
        npu_space_read(space, cube.base + 8 * done, words, 8 * part);
        for (int64_t i = 0; i < part; i++)
            if (step(npu, task, words[i], cube.base + 8 * (done + i), fault))
                return -1;
    }
    if (!task->enabled)
        return npu_fail(fault, NPU_COMMAND, NPU_NO_FIELD, 0, task->iova,
                        "no enable word in the %lld words of the task", (long long)count);
    return 0;
}

/* ---------------------------------------------------------------- tasks */

/* The blocks of an enable value: bit i starts the block at (i + 1) << 12. */
static int enables(uint32_t value, uint32_t block)
{
    return value >> (block - 1) & 1;
}

static int start(struct npu *npu, const struct npu_space *space, struct npu_run *run,
                 const struct task *task)
{
    uint32_t status = 0;
    int failed;

    if (task->enable != ENABLE_CONV && task->enable != ENABLE_CONV_RDMA &&
        task->enable != ENABLE_FLYING && task->enable != ENABLE_POOL)
        return npu_fail(&run->fault, NPU_UNSUPPORTED, NPU_REGISTER(NPU_OPERATION_ENABLE),
                        task->enable, NPU_NO_IOVA,
                        "only 0xd (CNA, CORE and DPU), 0x1d (and DPU_RDMA), 0x18 (DPU and "
                        "DPU_RDMA) and 0x60 (PPU and PPU_RDMA) are modelled");
    for (uint32_t block = NPU_CNA; block < NPU_BLOCKS; block++) {
        uint32_t offset = block << 12 | NPU_S_POINTER;
        if (!enables(task->enable, block))
            continue;
        if (!bit(npu->pointer_config[block], CNA_EXECUTER_PP_EN))
            npu->executer[block] = npu->pointer[block];
        if (npu->executer[block] != npu->pointer[block])
            return npu_fail(&run->fault, NPU_TIMED_OUT, NPU_REGISTER(offset),
                            npu->pointer_config[block], NPU_NO_IOVA,
                            "group %d is enabled while it is group %d's turn: it never starts",
                            npu->pointer[block], npu->executer[block]);
    }
    if (task->enable == ENABLE_FLYING)
        failed = npu_flying_execute(npu, space, run, &status);
    else if (task->enable == ENABLE_POOL)
        failed = npu_pool_execute(npu, space, run, &status);
    else
        failed = npu_conv_execute(npu, space, run, enables(task->enable, NPU_DPU_RDMA), &status);
    if (failed)
        return -1;
    for (uint32_t block = NPU_CNA; block < NPU_BLOCKS; block++) {
        if (!enables(task->enable, block))
            continue;
        npu->pointer[block] ^= (uint8_t)bit(npu->pointer_config[block], CNA_POINTER_PP_EN);
        npu->executer[block] ^= (uint8_t)bit(npu->pointer_config[block], CNA_EXECUTER_PP_EN);
    }
    run->raw_status = status;
    return 0;
}

/* Whether each pair of bits (the two groups of one block) that is waited for has been raised. */
static int meets(uint32_t status, uint32_t mask)
{
    for (int pair = 0; pair < 12; pair += 2)
        if (mask >> pair & 3 && !((status & mask) >> pair & 3))
            return 0;
    return 1;
}

static int follow(struct npu *npu, const struct npu_space *space, struct npu_run *run)
{
    struct task task = {.next_iova = run->iova, .next_amount = run->amount};

    while (run->tasks_done < run->tasks) {
        if (run->tasks_done && !task.next_iova)
            return npu_fail(&run->fault, NPU_TIMED_OUT, NPU_REGISTER(BASE_ADDRESS), 0, NPU_NO_IOVA,
                            "the chain ends after %d of %d tasks", run->tasks_done, run->tasks);
        run->raw_status = 0;
        task = (struct task){.iova = task.next_iova, .amount = task.next_amount};
        if (fetch(npu, space, &task, &run->fault) || start(npu, space, run, &task))
            return -1;
        run->tasks_done++;
        if (run->meets && task.others && task.next_iova && run->tasks_done < run->tasks) {
            run->next_iova = task.next_iova;
            run->next_amount = task.next_amount;
            return 0;
        }
    }
    if (!meets(run->raw_status, run->int_mask))
        return npu_fail(&run->fault, NPU_TIMED_OUT, NPU_NO_FIELD, run->raw_status, NPU_NO_IOVA,
                        "the last task raised %#x, the interrupt mask waits for %#x",
                        run->raw_status, run->int_mask);
    return 0;
}

int npu_execute(struct npu *npu, const struct npu_space *space, struct npu_run *run)
{
    run->raw_status = 0;
    run->tasks_done = 0;
    run->next_iova = run->next_amount = 0;
    run->fault = (struct npu_fault){.kind = NPU_OK, .field = NPU_NO_FIELD, .iova = NPU_NO_IOVA};
    if (!follow(npu, space, run))
        return 0;
    if (run->fault.kind == NPU_ACCESS)
        run->raw_status |= run->fault.write ? DMA_WRITE_ERROR : DMA_READ_ERROR;
    /* A failed task may have overwritten part of it. */
    if (run->tasks_done < run->tasks)
        npu->features.valid = npu->weights.valid = 0;
    return -1;
}
