/* Contexts: the shared state of runs, and the state prepared for one set of sizes. */
#ifndef PELTON_CONTEXT_H
#define PELTON_CONTEXT_H

#include "chain.h"
#include "engine.h"

enum { PLANS = 16 };

struct pelton_context {
    pelton_engine *engine;
    int threads;
    int64_t milli_cores;        /* that this process may use */
    int64_t limit;              /* of its memory, in bytes */
    char *arena;                /* followed by the scratch memory of all threads */
    size_t bytes;
    prepared *plans[PLANS], *now;
    uint64_t count;
    int ports;
    char **data;                /* memory of the context for ports */
    size_t *data_bytes;
    char **addresses;
    chain_run *chain;           /* of a script */
    struct pelton_context **profiles, *profile; /* of an engine with profiles: all contexts, and the selected one */
    _Atomic int busy;           /* RISC-V has no exchange of a byte */
};

/* An engine for one set of shapes, in the memory of a context. */
struct prepared {
    pelton_context *context;
    uint64_t used;              /* the context's count at the last use */
    int64_t *cells, *starts;    /* the numbers of the plan */
    char *scratch;
    program *program;
    pelton_port *ports;         /* for the public interface */
    int32_t buffers;
    char **made;                /* memory of buffers computed for these shapes */
};

#endif
