/* All memory of the library, from the program's allocator if set. */
#ifndef PELTON_MEMORY_H
#define PELTON_MEMORY_H

#include <stddef.h>

enum { LINE_BYTES = 64, PAGE_BYTES = 4096 };

void *memory_take(size_t bytes);                    /* at a multiple of LINE_BYTES; NULL if out of memory */
void *memory_zeros(size_t count, size_t size);      /* the same, zeroed, and never 0 bytes */
void memory_give(void *);

/* Whole pages, huge ones from 2 MB on, which occupy memory only where written. NULL if out of memory. */
void *pages_take(size_t bytes);
void pages_give(void *, size_t bytes);

#endif
