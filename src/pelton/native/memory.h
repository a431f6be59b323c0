/* All memory of the library, from the program's allocator if it has set one. */
#ifndef PELTON_MEMORY_H
#define PELTON_MEMORY_H

#include <stddef.h>

enum { LINE_BYTES = 64, PAGE_BYTES = 4096 };

void *memory_take(size_t bytes);                    /* at a multiple of LINE_BYTES; NULL where there is none */
void *memory_zeros(size_t count, size_t size);      /* the same, of zeros, and never none */
void memory_give(void *);

/* Whole pages, huge ones from 2 MB on, which take memory only where they are written. NULL where there are none. */
void *pages_take(size_t bytes);
void pages_give(void *, size_t bytes);

#endif
