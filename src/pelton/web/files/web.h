/* An engine's steps for runtime.c, which the exported C source defines. */
#ifndef PELTON_WEB_H
#define PELTON_WEB_H

#include <stdatomic.h>
#include <stddef.h>

#include "kernel.h"

#ifndef THREADS
#define THREADS 0 /* one, in memory that no other has */
#endif

typedef struct {
    kernel *run;
    int32_t first; /* of its arguments among the words */
    int32_t tiles, phases;
} step;

extern const step steps[];
extern const int32_t step_count;
extern const args words[];
extern char *const ports[]; /* inputs, then outputs */
extern char weights[], scratch[];

#endif
