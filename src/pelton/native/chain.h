/* Scripts that run in C: engines in sequence, and suppression of boxes between them; or profiles (profiles.h). The
 * section "chain" of a file has a head, then arrays, items and actions, none of these for profiles; the section "plan"
 * has the ports; "engine 0", ... are files of engines without constants. */
#ifndef PELTON_CHAIN_H
#define PELTON_CHAIN_H

#include "engine.h"

typedef struct { int32_t arrays, actions, items, profiles; } chain_head;
enum { FROM_INPUT, FROM_CONSTANTS, FROM_ACTION };
typedef struct {
    int32_t source, input, dtype, rank;
    int64_t offset, shape[PELTON_MAX_RANK];     /* of a constant */
} array_row;
enum { RUN_ENGINE, SUPPRESS, RESULTS };
typedef struct {
    int32_t kind, engine;
    int32_t first, reads, writes;               /* items: operands, then results */
    int32_t center;                             /* 1: boxes are center and size, not corners */
} action_row;
enum { WHOLE, AXIS, VALUE };                    /* an array; the size of its axis; its element, as a size */
typedef struct {
    int32_t array, source;                      /* -1: none */
    int64_t at;
} item_row;

typedef struct chain {
    const chain_head *head;
    const array_row *arrays;
    const action_row *actions;
    const item_row *items;
    pelton_engine **engines;
    int32_t count;
    void *bytes;
} chain;

/* Opens the chain of an opened file, with the ports of the plan. Returns NULL, with the reason. */
chain *chain_open(const pelton_engine *e, const section_row *s, reason *why);
void chain_close(chain *c);

/* Allocates the memory of its runs. Returns NULL, with the reason. */
typedef struct chain_run chain_run;
chain_run *chain_begin(const pelton_engine *e, int threads, reason *why);
void chain_end(chain_run *r);

/* Runs on inputs of the shapes of these ports; then returns its results. */
bool chain_walk(chain_run *r, char *const *inputs, const pelton_port *ports, reason *why);
const char *chain_result(const chain_run *r, int32_t i, const int64_t **shape);

#endif
