/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "rk3588.h"

#include <stdlib.h>
#include <string.h>

#define SPACE_SIZE (INT64_C(1) << 32)

struct mapping {
    int64_t start, end;
    uint8_t *data;
    int writable;
    void *owner;
};

struct npu_space {
    pthread_rwlock_t lock;
    struct mapping *mappings; /* by address */
    size_t count, capacity;
};

struct npu_space *npu_space_new(void)
{
    struct npu_space *space = calloc(1, sizeof *space);
    pthread_rwlockattr_t attributes;

    if (!space)
        return NULL;
    pthread_rwlockattr_init(&attributes);
    /* Three busy cores must not keep a mapping out for ever. */
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&space->lock, &attributes);
    pthread_rwlockattr_destroy(&attributes);
    return space;
}

void npu_space_free(struct npu_space *space, void (*release)(void *owner))
{
    if (!space)
        return;
    for (size_t i = 0; i < space->count; i++)
        release(space->mappings[i].owner);
    pthread_rwlock_destroy(&space->lock);
    free(space->mappings);
    free(space);
}

/* Index of the first mapping that ends behind `iova`. */
static size_t find(const struct npu_space *space, int64_t iova)
{
    size_t low = 0, high = space->count;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if (space->mappings[middle].end > iova)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static enum npu_map_result insert(struct npu_space *space, const struct mapping *mapping)
{
    size_t i = find(space, mapping->start);

    if (i < space->count && space->mappings[i].start < mapping->end)
        return NPU_MAP_OVERLAP;
    if (space->count == space->capacity) {
        size_t capacity = space->capacity ? 2 * space->capacity : 16;
        struct mapping *grown = realloc(space->mappings, capacity * sizeof *grown);
        if (!grown)
            return NPU_MAP_NO_MEMORY;
        space->mappings = grown;
        space->capacity = capacity;
    }
    memmove(space->mappings + i + 1, space->mappings + i,
            (space->count - i) * sizeof *space->mappings);
    space->mappings[i] = *mapping;
    space->count++;
    return NPU_MAPPED;
}

enum npu_map_result npu_space_map(struct npu_space *space, uint64_t iova, uint64_t size,
                                  uint8_t *data, int writable, void *owner)
{
    struct mapping mapping = {(int64_t)iova, (int64_t)(iova + size), data, writable, owner};
    enum npu_map_result result;

    pthread_rwlock_wrlock(&space->lock);
    result = insert(space, &mapping);
    pthread_rwlock_unlock(&space->lock);
    return result;
}

void *npu_space_unmap(struct npu_space *space, uint64_t iova)
{
    void *owner = NULL;

    pthread_rwlock_wrlock(&space->lock);
    size_t i = find(space, (int64_t)iova);
    if (i < space->count && space->mappings[i].start == (int64_t)iova) {
        owner = space->mappings[i].owner;
        space->count--;
        memmove(space->mappings + i, space->mappings + i + 1,
                (space->count - i) * sizeof *space->mappings);
    }
    pthread_rwlock_unlock(&space->lock);
    return owner;
}

void npu_space_enter(struct npu_space *space)
{
    pthread_rwlock_rdlock(&space->lock);
}

void npu_space_leave(struct npu_space *space)
{
    pthread_rwlock_unlock(&space->lock);
}

uint8_t *npu_space_at(const struct npu_space *space, int64_t iova, int64_t size, int write)
{
    size_t i = find(space, iova);

    if (i == space->count || space->mappings[i].start > iova ||
        space->mappings[i].end - iova < size || (write && !space->mappings[i].writable))
        return NULL;
    return space->mappings[i].data + (iova - space->mappings[i].start);
}

void npu_space_read(const struct npu_space *space, int64_t iova, void *dst, int64_t size)
{
    uint8_t *to = dst;

    for (size_t i = find(space, iova); size > 0; i++) {
        const struct mapping *mapping = &space->mappings[i];
        int64_t part = mapping->end - iova < size ? mapping->end - iova : size;
        memcpy(to, mapping->data + (iova - mapping->start), (size_t)part);
        to += part, iova += part, size -= part;
    }
}

void npu_space_write(const struct npu_space *space, int64_t iova, const void *src, int64_t size)
{
    const uint8_t *from = src;

    for (size_t i = find(space, iova); size > 0; i++) {
        const struct mapping *mapping = &space->mappings[i];
        int64_t part = mapping->end - iova < size ? mapping->end - iova : size;
        memcpy(mapping->data + (iova - mapping->start), from, (size_t)part);
        from += part, iova += part, size -= part;
    }
}

/* Faults with the first byte of the range that cannot be accessed. */
static int check_line(const struct npu_space *space, int64_t iova, int64_t size, int write,
                      const struct npu_cube *cube, struct npu_fault *fault)
{
    const int64_t end = iova + size;
    const char *where = iova < 0 ? "below address 0" : NULL;

    for (size_t i = find(space, iova); !where && iova < end; i++) {
        const struct mapping *mapping = &space->mappings[i];
        if (i == space->count || mapping->start > iova)
            where = iova < SPACE_SIZE ? "of unmapped memory" : "past 4 GiB";
        else if (write && !mapping->writable)
            where = "to read-only memory";
        else
            iova = mapping->end;
    }
    if (!where)
        return 0;
    npu_fail(fault, NPU_ACCESS, cube->field, cube->base, iova, "%s %s", write ? "write" : "read",
             where);
    fault->write = write;
    return -1;
}

static void span(const struct npu_cube *cube, int64_t *low, int64_t *high)
{
    int64_t surfaces = cube->surface_pitch * (cube->surfaces - 1);
    int64_t lines = cube->line_pitch * (cube->lines - 1);

    *low = cube->base + (surfaces < 0 ? surfaces : 0) + (lines < 0 ? lines : 0);
    *high = cube->base + (surfaces > 0 ? surfaces : 0) + (lines > 0 ? lines : 0) + cube->line_bytes;
}

int npu_cube_check(const struct npu_space *space, struct npu_cube *cube, int write,
                   struct npu_fault *fault)
{
    int64_t low, high;
    uint8_t *data;

    span(cube, &low, &high);
    data = low >= 0 ? npu_space_at(space, low, high - low, write) : NULL;
    cube->flat = data ? data + (cube->base - low) : NULL;
    if (data)
        return 0;
    for (int64_t surface = 0; surface < cube->surfaces; surface++)
        for (int64_t line = 0; line < cube->lines; line++)
            if (check_line(space,
                           cube->base + surface * cube->surface_pitch + line * cube->line_pitch,
                           cube->line_bytes, write, cube, fault))
                return -1;
    return 0;
}

/* Sets (or only tests) the bits first .. last - 1; returns whether one of them was set before. */
static int touch(uint64_t *bits, int64_t first, int64_t last, int set)
{
    int found = 0;

    while (first < last) {
        int64_t word = first / 64, low = first % 64;
        int64_t count = last - first < 64 - low ? last - first : 64 - low;
        uint64_t mask = (count == 64 ? ~UINT64_C(0) : (UINT64_C(1) << count) - 1) << low;
        found |= (bits[word] & mask) != 0;
        if (set)
            bits[word] |= mask;
        first += count;
    }
    return found;
}

/* Touches the atoms of the cube that lie in low .. high - 1. */
static int touch_cube(uint64_t *bits, const struct npu_cube *cube, int64_t low, int64_t high,
                      int set, int stop)
{
    int found = 0;

    for (int64_t surface = 0; surface < cube->surfaces; surface++)
        for (int64_t line = 0; line < cube->lines; line++) {
            int64_t from =
                cube->base + surface * cube->surface_pitch + line * cube->line_pitch;
            int64_t to = from + cube->line_bytes;
            from = from > low ? from : low;
            to = to < high ? to : high;
            if (from < to && touch(bits, (from - low) / ATOM, (to - low + ATOM - 1) / ATOM, set)) {
                if (stop)
                    return 1;
                found = 1;
            }
        }
    return found;
}

/* Whether two cubes share bytes, or (with a == b) whether a cube crosses itself; -1: no memory. */
static int overlap(const struct npu_cube *a, const struct npu_cube *b)
{
    int64_t low, high, other_low, other_high;
    uint64_t *bits;
    int found;

    span(a, &low, &high);
    if (a == b) {
        /* The usual two nestings: lines inside surfaces, or surfaces inside lines. */
        int64_t lines = (a->lines - 1) * a->line_pitch + a->line_bytes;
        int64_t surfaces = (a->surfaces - 1) * a->surface_pitch + a->line_bytes;
        if ((a->lines == 1 || a->line_pitch >= a->line_bytes) &&
            (a->surfaces == 1 || a->surface_pitch >= lines))
            return 0;
        if ((a->surfaces == 1 || a->surface_pitch >= a->line_bytes) &&
            (a->lines == 1 || a->line_pitch >= surfaces))
            return 0;
    } else {
        span(b, &other_low, &other_high);
        low = low > other_low ? low : other_low;
        high = high < other_high ? high : other_high;
        if (low >= high)
            return 0;
    }
    low -= low % ATOM;
    bits = calloc((size_t)((high - low) / ATOM / 64 + 1), sizeof *bits);
    if (!bits)
        return -1;
    if (a == b) {
        found = touch_cube(bits, a, low, high, 1, 1);
    } else {
        touch_cube(bits, a, low, high, 1, 0);
        found = touch_cube(bits, b, low, high, 0, 1);
    }
    free(bits);
    return found;
}

int npu_cube_apart(const struct npu_cube *output, const struct npu_cube *other, const char *name,
                   struct npu_fault *fault)
{
    const int found = overlap(output, other);

    if (found < 0)
        return npu_fail(fault, NPU_NO_MEMORY, NPU_NO_FIELD, 0, NPU_NO_IOVA, "out of memory");
    if (found)
        return npu_fail(fault, NPU_INCONSISTENT, output->field,
                        output->base >> NPU_FIELD_LO(output->field), NPU_NO_IOVA,
                        "the output overlaps %s", name);
    return 0;
}
