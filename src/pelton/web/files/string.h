/* What native/plan.c and native/resolve.c use of a C library. The kernels' own functions
 * (codegen/c/src/freestanding.c) are linked in. */
#ifndef PELTON_WEB_STRING_H
#define PELTON_WEB_STRING_H

#include <stddef.h>

void *memcpy(void *to, const void *from, size_t bytes);
void *memset(void *to, int value, size_t bytes);

#endif
