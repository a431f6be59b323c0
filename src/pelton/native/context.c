/* The public interface: contexts, and their runs. See pelton.h. */
#define _GNU_SOURCE
#include <string.h>

#include "context.h"
#include "profiles.h"
#include "share.h"

/* Prepares the context for inputs of these shapes; NULL: the fixed shapes of the engine. */
static bool prepare(pelton_context *c, const int64_t *const *shapes, reason *why) {
    const plan *p = c->engine->plan;
    int64_t *symbols = memory_zeros((size_t)p->head->symbols, sizeof *symbols);
    bool moved;
    prepared *r = NULL;
    if (!symbols)
        return refuse(why, "there is no memory for a plan");
    if (!shapes || plan_solve(p, shapes, true, symbols, why))
        r = pelton_prepare(c, symbols, &moved, why);
    memory_give(symbols);
    if (!r || (shapes && !plan_fits(p, r->cells, shapes, why))) {
        pelton_prepared_free(r);
        return false;
    }
    r->ports = memory_zeros((size_t)c->ports, sizeof *r->ports);
    r->program = pelton_prepared_program(r, 0, p->head->steps);
    if (!r->ports || !r->program) {
        pelton_prepared_free(r);
        return refuse(why, "there is no memory for the engine's step table");
    }
    describe(p, r->cells, r->ports);
    prepared **oldest = c->plans;
    for (prepared **k = c->plans; k < c->plans + PLANS && *oldest; k++)
        if (!*k || (*k)->used < (*oldest)->used)
            oldest = k;
    pelton_prepared_free(*oldest);
    *oldest = c->now = r;
    return true;
}

pelton_context *pelton_context_of(pelton_engine *e, int threads, int64_t milli_cores, int64_t limit) {
    const plan_head *h = e->plan->head;
    const size_t ports = (size_t)h->inputs + h->outputs;
    pelton_context *c = memory_zeros(1, sizeof *c);
    if (!c)
        return NULL;
    c->threads = threads;
    c->milli_cores = milli_cores;
    c->limit = limit;
    c->ports = (int)ports;
    c->data = memory_zeros(ports, sizeof *c->data);
    c->data_bytes = memory_zeros(ports, sizeof *c->data_bytes);
    c->addresses = memory_zeros(ports, sizeof *c->addresses);
    c->engine = engine_shared(e);
    if (c->data && c->data_bytes && c->addresses)
        return c;
    pelton_context_free(c);
    return NULL;
}

/* Creates what a script or profiles run. */
static bool begin(pelton_context *c, int threads) {
    const pelton_engine *e = c->engine;
    if (!e->chain)
        return true;
    return e->chain->head->profiles ? profiles_begin(c, threads, &last)
                                    : (c->chain = chain_begin(e, threads, &last)) != NULL;
}

pelton_context *pelton_context_new(pelton_engine *e, int threads) {
    if (!e || threads < 0 || threads > MAX_THREADS) {
        refuse(&last, e ? "threads are 0 to %d, got %d" : "a context needs an engine", (int64_t)MAX_THREADS,
               (int64_t)threads);
        return NULL;
    }
    const plan_head *h = e->plan->head;
    const int64_t cores = share_cores();
    const int here = (int)((cores + 999) / 1000), tuned = h->threads ? h->threads : MAX_THREADS;
    pelton_context *c = pelton_context_of(e, threads ? threads : here < tuned ? here : tuned, cores, share_memory());
    if (!c)
        fail("there is no memory for a context");
    else if (begin(c, threads) && (h->symbols || prepare(c, NULL, &last)))
        return c;
    pelton_context_free(c);
    return NULL;
}

void pelton_context_free(pelton_context *c) {
    if (!c)
        return;
    for (int i = 0; i < PLANS; i++)
        pelton_prepared_free(c->plans[i]);
    for (int i = 0; c->data && i < c->ports; i++)
        memory_give(c->data[i]);
    pages_give(c->arena, c->bytes);
    chain_end(c->chain);
    profiles_end(c);
    memory_give(c->data);
    memory_give(c->data_bytes);
    memory_give(c->addresses);
    pelton_engine_free(c->engine);
    memory_give(c);
}

static bool enter(pelton_context *c) {
    if (!atomic_exchange(&c->busy, 1))
        return true;
    fail("this context is in a run already; threads need contexts of their own");
    return false;
}

static int leave(pelton_context *c, int result) {
    atomic_store(&c->busy, 0);
    return result;
}

static bool is_for(const plan *p, const prepared *r, const int64_t *const *shapes) {
    for (int32_t i = 0; i < p->head->inputs; i++)
        if (memcmp(r->cells + p->ports[i].shape, shapes[i], sizeof *r->cells * (size_t)p->ports[i].rank))
            return false;
    return true;
}

int pelton_set_shapes(pelton_context *c, const int64_t *const *shapes) {
    const plan *p = c->engine->plan;
    for (int32_t i = 0; i < p->head->inputs; i++)
        if (!shapes || (!shapes[i] && p->ports[i].rank))
            return fail("a shape is NULL");
    if (!enter(c))
        return -1;
    for (int i = 0; i < PLANS; i++)
        if (c->plans[i] && is_for(p, c->plans[i], shapes)) {
            c->now = c->plans[i];
            c->now->used = ++c->count;
            return leave(c, profiles_choose(c, shapes, &last) ? 0 : -1);
        }
    return leave(c, prepare(c, shapes, &last) && profiles_choose(c, shapes, &last) ? 0 : -1);
}

static const pelton_port *port_of(const pelton_context *c, int i, int count, int from) {
    return c->now && i >= 0 && i < count ? &c->now->ports[from + i] : NULL;
}

const pelton_port *pelton_context_input(const pelton_context *c, int i) {
    return port_of(c, i, pelton_inputs(c->engine), 0);
}

const pelton_port *pelton_context_output(const pelton_context *c, int i) {
    return port_of(c, i, pelton_outputs(c->engine), pelton_inputs(c->engine));
}

static void *data_of(pelton_context *c, const pelton_port *port) {
    if (!port) {
        fail("there is no such input or output, or its shape was not set");
        return NULL;
    }
    const ptrdiff_t i = port - c->now->ports;
    if (!c->data[i] || c->data_bytes[i] < port->bytes) {
        memory_give(c->data[i]);
        if (!(c->data[i] = memory_zeros(port->bytes, 1)))
            fail("there is no memory for an input or output");
        c->data_bytes[i] = c->data[i] ? port->bytes : 0;
    }
    return c->data[i];
}

void *pelton_input_data(pelton_context *c, int i) { return data_of(c, pelton_context_input(c, i)); }

void *pelton_output_data(pelton_context *c, int i) {
    const int64_t *shape;
    const bool is_result = c->chain && pelton_context_output(c, i);
    const char *found = is_result ? chain_result(c->chain, i, &shape) : NULL;
    return found ? (void *)(uintptr_t)found : data_of(c, pelton_context_output(c, i));
}

static bool has_indices(const plan *p, const port_row *t, const char *data, size_t bytes, reason *why) {
    const uint64_t low = (uint64_t)t->low, range = (uint64_t)t->high - low;
    const size_t n = bytes / (size_t)dtype_bytes(t->dtype);
    size_t outside = 0;
    for (size_t i = 0; i < n; i++)
        outside += (uint64_t)(t->dtype == I64 ? ((const int64_t *)data)[i] : ((const int32_t *)data)[i]) - low > range;
    return !outside || refuse(why, "input %s has an index out of bounds: layer %s takes %d to %d", p->text + t->name,
                              p->text + t->layer, t->low, t->high);
}

/* Finds the arrays of a run and checks them as far as possible. */
static bool bind(pelton_context *c, const void *const *inputs, void *const *outputs, reason *why) {
    const plan *p = c->engine->plan;
    const int32_t first = p->head->inputs, all = first + p->head->outputs;
    if (!c->now)
        return refuse(why, "the engine has dynamic sizes: call pelton_set_shapes before a run");
    for (int32_t i = 0; i < all; i++) {
        const pelton_port *port = &c->now->ports[i];
        const void *given = i < first ? (inputs ? inputs[i] : NULL) : (outputs ? outputs[i - first] : NULL);
        if (!given && !(given = data_of(c, port)))
            return false;
        const size_t element = (size_t)dtype_bytes(p->ports[i].dtype);
        if ((uintptr_t)given % (element > 8 ? 8 : element))
            return refuse(why, "%s is not aligned to its type", port->name);
        if (i < first && p->ports[i].layer >= 0 && !has_indices(p, &p->ports[i], given, port->bytes, why))
            return false;
        c->addresses[i] = (char *)(uintptr_t)given;
    }
    for (int32_t i = first; i < all; i++)
        for (int32_t k = 0; k < i; k++) {
            const char *a = c->addresses[i], *b = c->addresses[k];
            const bool allowed = a == b && k + 1 == p->ports[i].shares
                                 && c->now->ports[i].bytes == c->now->ports[k].bytes;
            if (!allowed && a < b + c->now->ports[k].bytes && b < a + c->now->ports[i].bytes)
                return refuse(why, "output %s overlaps %s", c->now->ports[i].name, c->now->ports[k].name);
        }
    return true;
}

/* Runs a script. Outputs of data-dependent sizes stay in memory of the context. */
static bool run_chain(pelton_context *c, const void *const *inputs, void *const *outputs, reason *why) {
    const plan_head *h = c->engine->plan->head;
    for (int32_t i = 0; outputs && i < h->outputs; i++)
        if (outputs[i] && !c->engine->ports[h->inputs + i].bytes)
            return refuse(why, "the data decides the size of output %s: pass NULL, and ask for it after the run",
                          c->engine->ports[h->inputs + i].name);
    if (!bind(c, inputs, outputs, why) || !chain_walk(c->chain, c->addresses, c->now->ports, why))
        return false;
    for (int32_t i = 0; i < h->outputs; i++) {
        pelton_port *port = &c->now->ports[h->inputs + i];
        const int64_t *shape;
        const char *data = chain_result(c->chain, i, &shape);
        port->bytes = (size_t)dtype_bytes(c->engine->plan->ports[h->inputs + i].dtype);
        for (int d = 0; d < port->rank; d++)
            port->bytes *= (size_t)(port->shape[d] = shape[d]);
        if (outputs && outputs[i])
            memcpy(outputs[i], data, port->bytes);
    }
    return true;
}

static bool run_once(pelton_context *c, const void *const *inputs, void *const *outputs, reason *why) {
    if (c->chain)
        return run_chain(c, inputs, outputs, why);
    if (!bind(c, inputs, outputs, why))
        return false;
    if (c->profiles)
        return profiles_run(c, why);
    pelton_program_run(c->now->program, c->addresses);
    return true;
}

int pelton_run(pelton_context *c, const void *const *inputs, void *const *outputs) {
    return enter(c) ? leave(c, run_once(c, inputs, outputs, &last) ? 0 : -1) : -1;
}

int pelton_profile(pelton_context *c, const void *const *inputs, void *const *outputs, int64_t *stamps) {
    if (!enter(c))
        return -1;
    if (c->chain || c->profiles)
        return leave(c, fail("a script, or an engine with profiles, has no steps of its own to profile"));
    if (!bind(c, inputs, outputs, &last))
        return leave(c, -1);
    pelton_program_profile(c->now->program, c->addresses, stamps);
    return leave(c, 0);
}
