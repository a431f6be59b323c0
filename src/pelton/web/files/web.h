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

#if THREADS
extern int32_t thread_count; /* that share the steps */
#else
enum { thread_count = 1 };
#endif

extern char weights[];
#if DYNAMIC /* dynamic.c computes these for the shapes of a run */
extern const step *steps;
extern int32_t step_count;
extern const args *words;
extern char **ports;
extern char *scratch;
extern size_t scratch_bytes; /* for each thread */

extern const char plan_rows[];
extern const int32_t plan_bytes, weight_bytes;
extern kernel *const kernels[]; /* of all steps */
#else
extern const step steps[];
extern const int32_t step_count;
extern const args words[];
extern char *const ports[]; /* inputs, then outputs */
extern char scratch[];
enum { scratch_bytes = SCRATCH };
#endif

#endif
