/* What engines and contexts share behind the public interface. */
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
    void *tables_of_plan;       /* what was verified is what is used, even if the file is rewritten meanwhile */
    const plan *plan;
    plan own_plan;              /* the plan, if it was opened here */
    const char *constants;      /* at a multiple of LINE_BYTES */
    void *own, *copy;           /* constants, or a whole file, that had to be copied */
    int32_t buffers;
    char **tables;              /* of buffers that kernels use for addressing: copies */
    void *code;
    kernel **kernels;           /* of the steps; NULL for host steps */
    pelton_port *ports;         /* inputs, then outputs */
    struct chain *chain;        /* of a script; the plan then has its ports alone */
};

extern _Thread_local reason last;          /* what pelton_error() says */
int fail(const char *what);                 /* says so; -1 */

pelton_engine *engine_shared(pelton_engine *e);    /* the same, with one more user */

/* The engine in a section, which reads the constants of another one. NULL, with the reason. */
pelton_engine *engine_within(const pelton_engine *e, const section_row *s, reason *why);

/* The ports for these numbers of the plan; with NULL, with sizes that are not known yet. */
void describe(const plan *p, const int64_t *cells, pelton_port *out);

/* For Python, which checks and keeps what it gives: plan, code and constants stay as they are until the engine is
 * freed. Host steps are run by Python. */
EXPORT pelton_engine *pelton_engine_of(const plan *p, const void *code, size_t size, const char *constants,
                                       reason *why);
EXPORT pelton_context *pelton_context_of(pelton_engine *e, int threads, int64_t milli_cores, int64_t limit);

/* An engine for these values of its symbols, in the memory of a context. `moved`: that memory has moved, so that all
 * that were prepared before are to be freed. */
typedef struct prepared prepared;
EXPORT prepared *pelton_prepare(pelton_context *c, const int64_t *symbols, bool *moved, reason *why);
EXPORT void pelton_prepared_free(prepared *r);
EXPORT void pelton_prepared_shapes(const prepared *r, int64_t *sizes);             /* of all ports */
EXPORT char *pelton_prepared_buffer(const prepared *r, int32_t number);            /* NULL: Python's, or a port's */
EXPORT program *pelton_prepared_program(const prepared *r, int32_t begin, int32_t end);    /* of these steps */

#endif
