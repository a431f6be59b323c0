/* Memory of the library. See memory.h. */
#define _GNU_SOURCE
#include "memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "pelton.h"
#include "platform.h"

static pelton_allocator given;

void pelton_set_allocator(const pelton_allocator *a) { given = a ? *a : (pelton_allocator){0}; }

void *memory_take(size_t bytes) {
    const size_t whole = (bytes + LINE_BYTES) / LINE_BYTES * LINE_BYTES; /* never 0 bytes */
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
    return given.take ? given.take(given.user, PAGE_BYTES, bytes) : pages_map(bytes);
}

void pages_give(void *pages, size_t bytes) {
    if (!pages)
        return;
    if (given.take)
        given.give(given.user, pages);
    else
        pages_unmap(pages, bytes);
}
