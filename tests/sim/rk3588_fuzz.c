/* SPDX-License-Identifier: MIT */
/*
 * Throws streams at the simulated RK3588 core: programs of a corpus (tests/sim/rk3588_fuzz.py),
 * mutated, and words made up. Each has to end, with a result or an error, within the work it is
 * allowed, without an access outside of what is mapped: all memory of a stream ends, or begins, at
 * a page that cannot be accessed; the rest of its pages is poisoned where AddressSanitizer is at
 * hand, and checked for writes; what is mapped read-only cannot be written.
 *
 *     rk3588_fuzz CORPUS SEED COUNT
 *
 * prints how many runs ended in which way. Streams depend on the corpus and the seed alone.
 */
#define _GNU_SOURCE
#include "rk3588.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

#define PAGE 4096
#define FILL 0xA5
#define MAX_SPANS 16
#define MAX_WORDS 8192
#define RUNS_BETWEEN_RESETS 32
#define WORK (INT64_C(1) << 25)
#define SECONDS 60.0 /* under sanitizers, on a busy machine; a usual stream takes a millisecond */

#define REQUIRE(condition, ...)                                                                   \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            printf("stream %lld: ", (long long)serial);                                           \
            printf(__VA_ARGS__);                                                                  \
            puts("");                                                                             \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

static int64_t serial; /* of the stream that runs */
static uint64_t state;

static uint32_t next(void)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 32);
}

static uint32_t below(uint32_t limit)
{
    return (uint32_t)((uint64_t)next() * limit >> 32);
}

static int one_in(uint32_t n)
{
    return !below(n);
}

/* ---------------------------------------------------------------- the corpus */

struct span {
    uint32_t iova, size;
};

struct program {
    uint32_t words, first, tasks, spans; /* `first`: words of the first task */
    struct span span[MAX_SPANS];
    uint64_t *word;
};

static uint32_t masks[0x4000];
static struct program *programs;
static uint32_t program_count;

static void get(FILE *file, void *dst, size_t size)
{
    if (fread(dst, 1, size, file) != size) {
        puts("the corpus is too short");
        exit(2);
    }
}

static void load(const char *path)
{
    FILE *file = fopen(path, "rb");

    if (!file) {
        perror(path);
        exit(2);
    }
    get(file, masks, sizeof masks);
    get(file, &program_count, 4);
    programs = calloc(program_count, sizeof *programs);
    for (uint32_t i = 0; i < program_count; i++) {
        struct program *program = &programs[i];
        get(file, program, 16);
        if (program->spans > MAX_SPANS || program->words > MAX_WORDS / 2) {
            puts("the corpus has a program that is too large");
            exit(2);
        }
        get(file, program->span, program->spans * sizeof *program->span);
        program->word = malloc(8 * (size_t)program->words);
        get(file, program->word, 8 * (size_t)program->words);
    }
    fclose(file);
}

/* ---------------------------------------------------------------- memory */

/* Some bytes between pages that cannot be accessed, at one end of the pages in between. */
struct block {
    uint8_t *pages, *data;
    size_t length, size; /* of the pages in between; of the bytes */
    int writable;
};

static struct block block_new(size_t size, int writable, int at_start)
{
    struct block block = {.length = (size + PAGE - 1) / PAGE * PAGE, .size = size,
                          .writable = writable};
    uint8_t *all = mmap(NULL, block.length + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                        0);

    if (all == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    block.pages = all + PAGE;
    mprotect(block.pages, block.length, PROT_READ | PROT_WRITE);
    memset(block.pages, FILL, block.length);
    block.data = at_start ? block.pages : block.pages + block.length - size;
    for (size_t i = 0; i < size; i++)
        block.data[i] = (uint8_t)(i * 37 ^ i >> 7);
    return block;
}

/* From here on only the core accesses it. */
static void block_seal(const struct block *block)
{
    const size_t before = (size_t)(block->data - block->pages);

    ASAN_POISON_MEMORY_REGION(block->pages, before);
    ASAN_POISON_MEMORY_REGION(block->data + block->size, block->length - before - block->size);
    if (!block->writable)
        mprotect(block->pages, block->length, PROT_READ);
}

static void block_free(const struct block *block)
{
    ASAN_UNPOISON_MEMORY_REGION(block->pages, block->length);
    for (size_t i = 0; i < block->length; i++)
        REQUIRE((block->pages + i >= block->data && block->pages + i < block->data + block->size) ||
                    block->pages[i] == FILL,
                "a byte outside of the mappings was written");
    munmap(block->pages - PAGE, block->length + 2 * PAGE);
}

struct world {
    struct npu_space *space;
    struct block block[2 * MAX_SPANS + 1];
    int blocks;
};

static void keep(void *owner)
{
    (void)owner;
}

static void place(struct world *world, uint32_t iova, struct block block)
{
    block_seal(&block);
    if (npu_space_map(world->space, iova, block.size, block.data, block.writable, world->space) !=
        NPU_MAPPED) {
        block_free(&block);
        return;
    }
    world->block[world->blocks++] = block;
}

/* Mostly what the program needs, at times a little less or more, in two pieces, or read-only. */
static void place_span(struct world *world, const struct span *span, int exact)
{
    uint32_t size = span->size, split;

    if (!exact && one_in(12))
        size = one_in(2) ? below(size) + 1 : size + below(64);
    if (!exact && one_in(24))
        return;
    split = one_in(4) && size > 16 ? below(size / 16) * 16 : 0;
    if (split)
        place(world, span->iova, block_new(split, exact || !one_in(16), one_in(2)));
    place(world, span->iova + split,
          block_new(size - split, exact || !one_in(16), one_in(2)));
}

/* ---------------------------------------------------------------- streams */

static uint64_t any_word(void)
{
    return (uint64_t)next() << 32 | next();
}

/* A register that exists, with legal bits alone unless `wild`. */
static uint64_t legal_word(int wild)
{
    uint32_t offset, value = next();

    do
        offset = (1 + below(7)) << 12 | below(0x68) << 2;
    while (!masks[offset / 4]);
    if (one_in(2))
        value &= next() & next();
    if (!wild)
        value &= masks[offset / 4];
    return (uint64_t)(0x100u << (offset >> 12) | 1) << 48 | (uint64_t)value << 16 | offset;
}

static uint32_t changed_value(uint32_t value, uint32_t mask, const struct program *program)
{
    const struct span *span = program->spans ? &program->span[below(program->spans)] : NULL;

    switch (below(8)) {
    case 0:
        return value ^ 1u << below(32);
    case 1:
        return (value ^ 1u << below(32)) & mask;
    case 2:
        return (value + below(5) - 2) & mask;
    case 3:
        return (value + ((below(5) - 2) << 16)) & mask;
    case 4:
        return next() & mask;
    case 5:
        return one_in(2) ? 0 : mask;
    case 6:
        return span ? span->iova + below(span->size / 16 + 2) * 16 - 16 : 0xfffffff0;
    default:
        return next() & next() & mask;
    }
}

static void mutate(uint64_t *word, uint32_t *count, const struct program *program)
{
    const uint32_t at = below(*count), offset = word[at] & 0xffff;
    const uint32_t mask = offset % 4 ? 0 : masks[offset / 4];

    switch (below(16)) {
    case 0:
        word[at] ^= UINT64_C(1) << below(64);
        break;
    case 1: {
        const uint32_t other = below(*count);
        const uint64_t kept = word[at];
        word[at] = word[other];
        word[other] = kept;
        break;
    }
    case 2:
        word[at] = 0;
        break;
    case 3:
        word[at] = legal_word(one_in(4));
        break;
    case 4:
        if (*count > 8)
            *count -= 1 + below(2);
        break;
    default: /* the value alone */
        word[at] = (word[at] & ~(UINT64_C(0xffffffff) << 16)) |
                   (uint64_t)changed_value((uint32_t)(word[at] >> 16), mask, program) << 16;
    }
}

/* Fills in the words and returns how many there are. */
static uint32_t make_stream(const struct program *program, uint64_t *word, int exact)
{
    uint32_t count = program->words;

    if (exact || !one_in(16)) {
        memcpy(word, program->word, 8 * (size_t)count);
        for (uint32_t i = exact ? 0 : 1 + below(one_in(4) ? 12 : 3); i > 0; i--)
            mutate(word, &count, program);
        return count;
    }
    count = 8 + below(200);
    for (uint32_t i = 0; i < count - 4; i++)
        word[i] = one_in(64) ? any_word() : legal_word(one_in(64));
    word[count - 4] = one_in(4) ? (uint64_t)0x0101 << 48 | (uint64_t)(next() & ~15u) << 16 | 0x10
                                : 0;
    word[count - 3] = (uint64_t)0x0101 << 48 | (uint64_t)below(256) << 16 | 0x14;
    word[count - 2] = UINT64_C(0x0041) << 48;
    {
        static const uint32_t enables[] = {0x0d, 0x1d, 0x18, 0x60, 0x7f, 0x0c};
        word[count - 1] = UINT64_C(0x0081) << 48 | (uint64_t)enables[below(6)] << 16 | 8;
    }
    return count;
}

/* ---------------------------------------------------------------- runs */

static int64_t ends[NPU_NO_MEMORY + 1];
static double slowest;

static void check_fault(const struct npu_run *run, int result)
{
    const struct npu_fault *fault = &run->fault;

    REQUIRE(run->tasks_done >= 0 && run->tasks_done <= run->tasks, "%d tasks", run->tasks_done);
    REQUIRE(run->budget >= 0 && run->budget <= WORK, "work left: %lld", (long long)run->budget);
    REQUIRE((fault->kind == NPU_OK) == !result && fault->kind <= NPU_NO_MEMORY, "kind %d",
            (int)fault->kind);
    REQUIRE(memchr(fault->text, 0, sizeof fault->text), "a text without an end");
    REQUIRE(!result || fault->text[0], "an error without a text");
    REQUIRE(fault->field == NPU_NO_FIELD || masks[NPU_FIELD_OFFSET(fault->field) / 4],
            "field %#x", fault->field);
    REQUIRE(fault->kind != NPU_ACCESS || fault->iova != NPU_NO_IOVA, "an access to nowhere");
}

static void run_one(struct npu *npu, const struct program *program)
{
    static uint64_t word[MAX_WORDS];
    const int exact = one_in(8);
    const uint32_t regcmd = program->span[0].iova;
    const uint32_t count = make_stream(program, word, exact);
    struct npu_run run = {
        .iova = exact || !one_in(32) ? regcmd : next(),
        .amount = exact || !one_in(32) ? (program->first + 1) / 2 - 1 : below(count),
        .tasks = exact || !one_in(16) ? (int)program->tasks : 1 + (int)below(6),
        .int_mask = exact ? 0 : one_in(8) ? next() : one_in(2) ? 0x300 : 0,
        .threads = 1 + (int)one_in(8),
        .budget = WORK,
    };
    struct world world = {.space = npu_space_new()};
    struct block words = block_new(8 * (size_t)(count + count % 2), 1, one_in(2));
    struct timespec start, end;
    double seconds;
    int result;

    if (!npu->cbuf || !world.space)
        exit(2);
    memset(words.data, 0, words.size);
    memcpy(words.data, word, 8 * (size_t)count);
    words.writable = 0;
    place(&world, regcmd, words);
    for (uint32_t i = 1; i < program->spans; i++)
        place_span(&world, &program->span[i], exact);
    for (uint32_t i = below(4); i > 0 && !exact; i--) {
        const uint64_t random = legal_word(1);
        uint32_t value;
        npu_write_register(npu, random & 0xffff, (uint32_t)(random >> 16));
        npu_read_register(npu, next() & 0x1ffff, &value);
    }
    if (exact)
        npu_reset(npu);
    clock_gettime(CLOCK_MONOTONIC, &start);
    npu_space_enter(world.space);
    result = npu_execute(npu, world.space, &run);
    npu_space_leave(world.space);
    clock_gettime(CLOCK_MONOTONIC, &end);
    check_fault(&run, result);
    REQUIRE(!exact || !result, "a program of the corpus failed: %s", run.fault.text);
    seconds = (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
    REQUIRE(seconds < SECONDS, "%g seconds", seconds);
    slowest = seconds > slowest ? seconds : slowest;
    ends[run.fault.kind]++;
    npu_space_free(world.space, keep);
    for (int i = 0; i < world.blocks; i++)
        block_free(&world.block[i]);
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"completed",    "command", "illegal",   "unsupported",
                                        "inconsistent", "access",  "timed out", "no memory"};
    struct npu npu;

    if (argc != 4) {
        fprintf(stderr, "usage: %s CORPUS SEED COUNT\n", argv[0]);
        return 2;
    }
    load(argv[1]);
    state = strtoull(argv[2], NULL, 0);
    if (npu_init(&npu, masks))
        return 2;
    for (serial = 0; serial < atoll(argv[3]); serial++) {
        if (serial % RUNS_BETWEEN_RESETS == 0)
            npu_reset(&npu);
        run_one(&npu, &programs[below(program_count)]);
    }
    npu_destroy(&npu);
    for (int kind = 0; kind <= NPU_NO_MEMORY; kind++)
        printf("%s: %lld\n", names[kind], (long long)ends[kind]);
    fprintf(stderr, "the slowest took %.3f s\n", slowest);
    return 0;
}
