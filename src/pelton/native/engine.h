/* Internals of engines and contexts behind the public interface. */
#ifndef PELTON_ENGINE_H
#define PELTON_ENGINE_H

#include "file.h"
#include "memory.h"
#include "pelton.h"
#include "program.h"

struct pelton_engine {
    _Atomic int users;          /* its owner, and its contexts: the last one frees it */
    engine_file file;
    void *map;                  /* of the file, if it was opened here */
    size_t mapped;
    void *tables_of_plan;       /* a copy: the verified bytes are used, even if the file is rewritten */
    const plan *plan;
    plan own_plan;              /* the plan, if it was opened here */
    const char *constants;      /* at a multiple of LINE_BYTES */
    void *own, *copy;           /* copies of the constants, or of the whole file */
    int32_t buffers;
    char **tables;              /* copies of buffers that kernels use for addressing */
    void *code;
    kernel **kernels;           /* of the steps, then of their alternatives; NULL for host steps */
    int32_t *chosen;            /* by step: its own row, or that of an alternative */
    pelton_port *ports;         /* inputs, then outputs */
    struct chain *chain;        /* of a script; the plan then has only its ports */
};

extern _Thread_local reason last;          /* returned by pelton_error() */
int fail(const char *what);                 /* sets `last`; returns -1 */

pelton_engine *engine_shared(pelton_engine *e);    /* the same, with one more user */

/* Opens the engine in a section, which reads the constants of another one. Returns NULL, with the reason. */
pelton_engine *engine_within(const pelton_engine *e, const section_row *s, reason *why);

/* Describes the ports for these numbers of the plan; with NULL, without the dynamic sizes. */
void describe(const plan *p, const int64_t *cells, pelton_port *out);

/* For Python, which checks its arguments and keeps them: plan, code and constants must not change until the engine is
 * freed. Python runs host steps. */
EXPORT pelton_engine *pelton_engine_of(const plan *p, const void *code, size_t size, const char *constants,
                                       reason *why);
EXPORT pelton_context *pelton_context_of(pelton_engine *e, int threads, int64_t milli_cores, int64_t limit);

/* Prepares an engine for these values of its symbols, in the memory of a context. `moved`: true if that memory has
 * moved; free all those prepared before. */
typedef struct prepared prepared;
EXPORT prepared *pelton_prepare(pelton_context *c, const int64_t *symbols, bool *moved, reason *why);
EXPORT void pelton_prepared_free(prepared *r);
EXPORT void pelton_prepared_shapes(const prepared *r, int64_t *sizes);             /* of all ports */
EXPORT char *pelton_prepared_buffer(const prepared *r, int32_t number);            /* NULL: in Python, or a port */
EXPORT program *pelton_prepared_program(const prepared *r, int32_t begin, int32_t end);    /* of these steps */

#endif
