/* A program: resolved steps over raw pointers, walked by the caller and by idle workers. */
#ifndef PELTON_PROGRAM_H
#define PELTON_PROGRAM_H

#include "export.h"
#include "pool.h"

/* One row per step, in Python's layout. */
typedef struct {
    int64_t function;       /* address of a kernel */
    int64_t word;           /* index of its first argument in the words */
    int64_t tiles, grain;   /* independent tiles; the smallest claim worth its cost */
    int64_t wave;           /* never decreases from step to step; steps of one wave may overlap */
    int64_t scratch;        /* bytes per participant */
    int64_t phases;       /* passes over the tiles, numbered on; a phase begins when the one before is done */
} step_row;

/* Before a run, word `word` becomes ports[port] + offset. */
typedef struct {
    int64_t word, port, offset;
} patch_row;

/* NULL: out of memory. scratch: pages for each participant, enough for the step with the most; NULL: allocates its
 * own. */
EXPORT program *pelton_program(const step_row *steps, idx n, const int64_t *words, idx n_words,
                               const patch_row *patches, idx n_patches, idx threads, idx milli_cores,
                               void *scratch);
EXPORT void pelton_program_free(program *p);
EXPORT void pelton_program_run(program *p, char *const *ports);
EXPORT void pelton_program_profile(program *p, char *const *ports, int64_t *stamps); /* begin, end of each step, ns */
EXPORT void pelton_program_time(program *p, char *const *ports, idx repeats, int64_t *times); /* ns of every run */

#endif
