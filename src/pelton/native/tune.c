/* Selects among the kernels that an engine carries for its steps, by timing them on this machine. */
#define _GNU_SOURCE
#include <string.h>

#include "context.h"

enum { ROUNDS = 9 };

static int kernels_of(const plan *p, int32_t step) { return 1 + p->steps[step].spares; }
static int32_t row_of(const plan *p, int32_t step, int choice) {
    return choice ? p->steps[step].alternatives + choice - 1 : step;
}

static int check(const pelton_engine *e) {
    if (!e)
        return fail("an engine is to be tuned, got NULL");
    if (e->chain)
        return fail("a script over engines is tuned by `pelton tune`");
    return e->users == 1 ? 0 : fail("the engine has contexts already; tune it before them");
}

int pelton_choose(pelton_engine *e, const int *choice) {
    if (check(e))
        return -1;
    for (int32_t i = 0; i < e->plan->head->steps; i++)
        if (!choice || choice[i] < 0 || choice[i] >= kernels_of(e->plan, i)) {
            refuse(&last, "step %d has %d kernels, the choice is %d; tune the engine again", (int64_t)i,
                   (int64_t)kernels_of(e->plan, i), choice ? (int64_t)choice[i] : -1);
            return -1;
        }
    for (int32_t i = 0; i < e->plan->head->steps; i++)
        e->chosen[i] = row_of(e->plan, i, choice[i]);
    return 0;
}

/* Fills the inputs of a context with numbers that kernels accept: fractions, and the least index of each range. */
static int fill_inputs(pelton_context *c) {
    const plan *p = c->engine->plan;
    for (int32_t i = 0; i < p->head->inputs; i++) {
        const port_row *port = &p->ports[i];
        char *data = pelton_input_data(c, i);
        if (!data)
            return -1;
        const int64_t n = (int64_t)c->now->ports[i].bytes / dtype_bytes(port->dtype);
        uint32_t random = 1;
        for (int64_t k = 0; k < n; k++) {
            random = random * 1664525 + 1013904223;
            const float fraction = (float)(random >> 8) * 0x1p-23f - 1;
            if (port->dtype == F32)
                ((float *)data)[k] = fraction;
            else if (port->dtype == F64)
                ((double *)data)[k] = fraction;
            else if (port->layer >= 0 && port->dtype == I64)
                ((int64_t *)data)[k] = port->low;
            else if (port->layer >= 0 && port->dtype == I32)
                ((int32_t *)data)[k] = (int32_t)port->low;
        }
    }
    return 0;
}

/* Sets the shapes of the optimum sizes. */
static int set_optimum(pelton_context *c) {
    const plan *p = c->engine->plan;
    const plan_head *h = p->head;
    if (!h->symbols)
        return 0;
    int64_t *cells = memory_zeros((size_t)h->cells + (size_t)h->symbols, sizeof *cells), *optimum = cells + h->cells;
    const int64_t **shapes = memory_zeros((size_t)h->inputs + 1, sizeof *shapes);
    int result = cells && shapes ? 0 : fail("there is no memory to tune the engine");
    for (int32_t i = 0; !result && i < h->symbols; i++)
        optimum[i] = p->symbols[i].optimum;
    if (!result && !plan_fill(p, optimum, cells, &last))
        result = -1;
    for (int32_t i = 0; !result && i < h->inputs; i++)
        shapes[i] = cells + p->ports[i].shape;
    if (!result)
        result = pelton_set_shapes(c, shapes);
    memory_give(cells);
    memory_give(shapes);
    return result;
}

/* One run of the engine in which each step has its kernel of this number, or its last: lowers the least times. */
static int time_kernels(pelton_engine *e, int threads, int number, int64_t *stamps, int64_t *times) {
    const plan *p = e->plan;
    const int32_t steps = p->head->steps;
    for (int32_t i = 0; i < steps; i++)
        e->chosen[i] = row_of(p, i, number < kernels_of(p, i) ? number : kernels_of(p, i) - 1);
    pelton_context *c = pelton_context_new(e, threads);
    int result = c && !set_optimum(c) && !fill_inputs(c) ? 0 : -1;
    for (int repeat = 0; !result && repeat < 2; repeat++) { /* the first warms up */
        result = pelton_profile(c, NULL, NULL, stamps);
        for (int32_t i = 0; !result && i < steps; i++) {
            int64_t *least = &times[e->chosen[i]];
            const int64_t ns = stamps[2 * i + 1] - stamps[2 * i];
            if (!*least || ns < *least)
                *least = ns + !ns;
        }
    }
    pelton_context_free(c);
    return result;
}

int pelton_tune(pelton_engine *e, int threads, double seconds, int *choice) {
    if (check(e))
        return -1;
    if (!(seconds >= 0))
        return fail("the seconds to tune an engine are 0 or more");
    const plan *p = e->plan;
    const int32_t steps = p->head->steps;
    int most = 1;
    for (int32_t i = 0; i < steps; i++)
        most = kernels_of(p, i) > most ? kernels_of(p, i) : most;
    int64_t *times = memory_zeros((size_t)p->all + 2 * (size_t)steps, sizeof *times);
    int32_t *before = memory_take((size_t)steps * sizeof *before);
    if (!times || !before) {
        memory_give(times);
        memory_give(before);
        return fail("there is no memory to tune the engine");
    }
    memcpy(before, e->chosen, (size_t)steps * sizeof *before);
    const int64_t end = now() + (int64_t)(seconds < 1e9 ? seconds * 1e9 : 1e18);
    int result = 0;
    for (int round = 0; !result && round < ROUNDS && (!round || now() < end); round++)
        for (int k = 0; !result && k < most && now() < end; k++)
            result = time_kernels(e, threads, k, times + p->all, times);
    for (int32_t i = 0; i < steps; i++) {
        int best = 0;
        for (int k = 1; k < kernels_of(p, i); k++) {
            const int64_t ns = times[row_of(p, i, k)], least = times[row_of(p, i, best)];
            if (ns && least && ns < least - least / 50) /* two percent, or the earlier one stays */
                best = k;
        }
        e->chosen[i] = result ? before[i] : row_of(p, i, best);
        if (choice)
            choice[i] = best;
    }
    memory_give(times);
    memory_give(before);
    return result;
}
