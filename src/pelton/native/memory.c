#define _GNU_SOURCE
#include "memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "pelton.h"

enum { HUGE_PAGE = 2 << 20 };

static pelton_allocator given;

void pelton_set_allocator(const pelton_allocator *a) { given = a ? *a : (pelton_allocator){0}; }

void *memory_take(size_t bytes) {
    const size_t whole = (bytes + LINE_BYTES) / LINE_BYTES * LINE_BYTES; /* never none */
    if (whole < bytes)
        return NULL;
    return given.take ? given.take(given.user, LINE_BYTES, whole) : aligned_alloc(LINE_BYTES, whole);
}

void *memory_zeros(size_t count, size_t size) {
    const size_t bytes = count * size;
    if (size && bytes / size != count)
        return NULL;
    void *found = memory_take(bytes);
    return found ? memset(found, 0, bytes) : NULL;
}

void memory_give(void *memory) {
    if (!given.take)
        free(memory);
    else if (memory)
        given.give(given.user, memory);
}

void *pages_take(size_t bytes) {
    if (given.take)
        return given.take(given.user, PAGE_BYTES, bytes);
    const size_t slack = bytes >= HUGE_PAGE ? HUGE_PAGE : 0;
    char *map = mmap(NULL, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED || !slack)
        return map == MAP_FAILED ? NULL : map;
    const size_t before = -(uintptr_t)map % HUGE_PAGE, whole = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    if (before)
        munmap(map, before);
    munmap(map + before + whole, bytes + slack - before - whole);
    madvise(map + before, bytes, MADV_HUGEPAGE);
    return map + before;
}

void pages_give(void *pages, size_t bytes) {
    if (!pages)
        return;
    if (given.take)
        given.give(given.user, pages);
    else
        munmap(pages, bytes);
}
