/* The public interface: contexts, and their runs. See pelton.h. */
#define _GNU_SOURCE
#include <string.h>

#include "engine.h"
#include "share.h"

enum { PLANS = 16 };

struct pelton_context {
    pelton_engine *engine;
    int threads;
    int64_t milli_cores;        /* that this process may use */
    int64_t limit;              /* of its memory, in bytes */
    char *arena;                /* and the scratch memory of all threads behind it */
    size_t bytes;
    prepared *plans[PLANS], *now;
    uint64_t count;
    int ports;
    char **data;                /* memory of the context for ports */
    size_t *data_bytes;
    char **addresses;
    _Atomic bool busy;
};

/* What an engine is for one set of shapes, in the memory of a context. */
struct prepared {
    pelton_context *context;
    uint64_t used;              /* when, by the context's count */
    int64_t *cells, *starts;    /* the numbers of the plan */
    char *scratch;
    program *program;
    pelton_port *ports;         /* for the public interface */
    int32_t buffers;
    char **made;                /* memory of buffers that are made for these shapes */
};

void pelton_prepared_free(prepared *r) {
    if (!r)
        return;
    if (r->program)
        pelton_program_free(r->program);
    for (int32_t i = 0; r->made && i < r->buffers; i++)
        memory_give(r->made[i]);
    memory_give(r->made);
    memory_give(r->ports);
    memory_give(r->cells);
    memory_give(r);
}

static void count_up(void *to, int32_t dtype, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        switch (dtype) {
        case I64: case U64: ((int64_t *)to)[i] = i; break;
        case I32: case U32: ((int32_t *)to)[i] = (int32_t)i; break;
        case I16: case U16: ((int16_t *)to)[i] = (int16_t)i; break;
        case F64: ((double *)to)[i] = (double)i; break;
        case F32: ((float *)to)[i] = (float)i; break;
        default: ((int8_t *)to)[i] = (int8_t)i;
        }
}

/* Makes the buffers that have contents of their own for each set of sizes. */
static bool make_buffers(const plan *p, const int64_t *cells, char **made) {
    for (int32_t i = 0; i < p->head->buffers; i++) {
        const buffer_row *b = &p->buffers[i];
        if (b->kind != SIZES && b->kind != IOTA && b->kind != ZEROS)
            continue;
        const size_t bytes = (size_t)cells[i];
        if (!(made[i] = memory_take(bytes)))
            return false;
        if (b->kind == SIZES)
            memcpy(made[i], cells + b->values, bytes);
        else if (b->kind == IOTA)
            count_up(made[i], b->dtype, cells[i] / dtype_bytes(b->dtype));
        else
            memset(made[i], 0, bytes);
    }
    return true;
}

char *pelton_prepared_buffer(const prepared *r, int32_t number) {
    const pelton_engine *e = r->context->engine;
    const int32_t kind = e->plan->buffers[number].kind;
    return kind == ARENA ? r->context->arena + r->starts[number]
         : kind == CONSTANT || (kind == TABLE && !e->tables[number]) ? (char *)e->constants + r->starts[number]
         : kind == TABLE ? e->tables[number] : r->made[number];
}

program *pelton_prepared_program(const prepared *r, int32_t begin, int32_t end) {
    const pelton_context *c = r->context;
    const plan *p = c->engine->plan;
    int64_t all_words = 0, all_patches = 0;
    for (int32_t i = begin; i < end; i++) {
        all_patches += p->steps[i].args;
        all_words += (int64_t)p->steps[i].args + p->steps[i].dims;
    }
    step_row *rows = memory_zeros((size_t)(end - begin), sizeof *rows);
    int64_t *words = memory_zeros((size_t)all_words, sizeof *words);
    patch_row *patches = memory_zeros((size_t)all_patches, sizeof *patches);
    program *made = NULL;
    if (rows && words && patches) {
        int64_t word = 0, patched = 0;
        for (int32_t i = begin; i < end; i++) {
            const plan_step *s = &p->steps[i];
            rows[i - begin] = (step_row){(int64_t)(intptr_t)c->engine->kernels[i], word, r->cells[p->tiles + i],
                                         s->grain, s->wave, r->cells[p->scratch + i], r->cells[p->phases + i]};
            memcpy(words + word, r->cells + s->words, sizeof *words * ((size_t)s->args + s->dims));
            for (int32_t k = 0; k < s->args; k++, word++) {
                const int32_t number = p->operands[s->operands + k];
                const buffer_row *b = &p->buffers[number];
                if (b->kind == INPUT || b->kind == OUTPUT)
                    patches[patched++] = (patch_row){word, b->offset + (b->kind == OUTPUT ? p->head->inputs : 0),
                                                     words[word]};
                else
                    words[word] += (int64_t)(intptr_t)pelton_prepared_buffer(r, number);
            }
            word += s->dims;
        }
        made = pelton_program(rows, end - begin, words, word, patches, patched, c->threads, c->milli_cores, r->scratch);
    }
    memory_give(rows);
    memory_give(words);
    memory_give(patches);
    return made;
}

void pelton_prepared_shapes(const prepared *r, int64_t *sizes) {
    const plan *p = r->context->engine->plan;
    for (int32_t i = 0; i < p->head->inputs + p->head->outputs; i++)
        for (int32_t d = 0; d < p->ports[i].rank; d++)
            *sizes++ = r->cells[p->ports[i].shape + d];
}

/* The plans that the context keeps go, as they point into the old memory. */
static bool grow(pelton_context *c, size_t need, bool *moved, reason *why) {
    *moved = need > c->bytes;
    if (!*moved)
        return true;
    for (int i = 0; i < PLANS; i++) {
        pelton_prepared_free(c->plans[i]);
        c->plans[i] = NULL;
    }
    c->now = NULL;
    pages_give(c->arena, c->bytes);
    const size_t bytes = need > 2 * c->bytes ? need : 2 * c->bytes; /* shapes that grow slowly allocate rarely */
    c->arena = pages_take(bytes);
    c->bytes = c->arena ? bytes : 0;
    return c->arena || refuse(why, "it needs %d MB of memory, which the system refuses", (int64_t)(bytes >> 20));
}

static size_t whole_pages(int64_t bytes) { return ((size_t)bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES; }

static bool has_memory(const pelton_context *c, size_t need, reason *why) {
    const int64_t have = c->limit, tenths = (int64_t)(need / 100000000 + !!(need % 100000000)), limit = have / 100000000;
    return need <= (size_t)have
        || refuse(why, "it needs %d.%d GB for a context of %d threads, %s %d.%d GB; use fewer threads or a smaller input",
                  tenths / 10, tenths % 10, (int64_t)c->threads,
                  have < share_installed() ? "its control group allows" : "this machine has", limit / 10, limit % 10);
}

static bool fits(const plan *p, const int64_t *cells, const int64_t *const *shapes, reason *why) {
    for (int32_t i = 0; i < p->head->inputs; i++) {
        const port_row *t = &p->ports[i];
        for (int32_t d = 0; d < t->rank; d++)
            if (cells[t->shape + d] != shapes[i][d])
                return refuse(why, "axis %d of input %s is %d, given %d", (int64_t)d, p->text + t->name,
                              cells[t->shape + d], shapes[i][d]);
    }
    return true;
}

static bool place(prepared *r, const int64_t *symbols, bool *moved, reason *why) {
    pelton_context *c = r->context;
    const plan *p = c->engine->plan;
    int64_t arena;
    if (!plan_resolve(p, symbols, r->cells, r->starts, &arena, why))
        return false;
    size_t scratch = 0, more = 0;
    for (int32_t i = 0; i < p->head->steps; i++) {
        const size_t own = whole_pages(r->cells[p->scratch + i]);
        scratch = own > scratch ? own : scratch;
    }
    for (int32_t i = 0; i < r->buffers; i++) {
        const int32_t kind = p->buffers[i].kind;
        more += kind == SIZES || kind == IOTA || kind == STRINGS || kind == OUTPUT ? (size_t)r->cells[i] : 0;
    }
    const size_t need = whole_pages(arena) + scratch * (size_t)c->threads;
    if (!has_memory(c, need + more, why) || !grow(c, need + PAGE_BYTES, moved, why))
        return false;
    r->scratch = c->arena + whole_pages(arena);
    return make_buffers(p, r->cells, r->made) || refuse(why, "there is no memory for its sizes");
}

prepared *pelton_prepare(pelton_context *c, const int64_t *symbols, bool *moved, reason *why) {
    const plan_head *h = c->engine->plan->head;
    prepared *r = memory_zeros(1, sizeof *r);
    *moved = false;
    if (r) {
        *r = (prepared){.context = c, .used = ++c->count, .buffers = h->buffers,
                        .cells = memory_zeros((size_t)h->cells + h->buffers, sizeof *r->cells),
                        .made = memory_zeros(h->buffers, sizeof *r->made)};
        r->starts = r->cells + h->cells;
    }
    if (!r || !r->cells || !r->made)
        refuse(why, "there is no memory for a plan");
    else if (place(r, symbols, moved, why))
        return r;
    pelton_prepared_free(r);
    return NULL;
}

/* Prepares the context for inputs of these shapes; NULL: those of an engine whose sizes are all known. */
static bool prepare(pelton_context *c, const int64_t *const *shapes, reason *why) {
    const plan *p = c->engine->plan;
    int64_t *symbols = memory_zeros((size_t)p->head->symbols, sizeof *symbols);
    bool moved;
    prepared *r = NULL;
    if (!symbols)
        return refuse(why, "there is no memory for a plan");
    if (!shapes || plan_solve(p, shapes, symbols, why))
        r = pelton_prepare(c, symbols, &moved, why);
    memory_give(symbols);
    if (!r || (shapes && !fits(p, r->cells, shapes, why))) {
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

pelton_context *pelton_context_new(pelton_engine *e, int threads) {
    if (!e || threads < 0 || threads > MAX_THREADS) {
        refuse(&last, e ? "threads are 0 to %d, given %d" : "a context needs an engine", (int64_t)MAX_THREADS,
               (int64_t)threads);
        return NULL;
    }
    const plan_head *h = e->plan->head;
    const int64_t cores = share_cores();
    const int here = (int)((cores + 999) / 1000), tuned = h->threads ? h->threads : MAX_THREADS;
    pelton_context *c = pelton_context_of(e, threads ? threads : here < tuned ? here : tuned, cores, share_memory());
    if (!c)
        fail("there is no memory for a context");
    else if (h->symbols || prepare(c, NULL, &last))
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
    memory_give(c->data);
    memory_give(c->data_bytes);
    memory_give(c->addresses);
    pelton_engine_free(c->engine);
    memory_give(c);
}

static bool enter(pelton_context *c) {
    if (!atomic_exchange(&c->busy, true))
        return true;
    fail("this context is in a run already; threads need contexts of their own");
    return false;
}

static int leave(pelton_context *c, int result) {
    atomic_store(&c->busy, false);
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
            return leave(c, 0);
        }
    return leave(c, prepare(c, shapes, &last) ? 0 : -1);
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
        if (!(c->data[i] = memory_take(port->bytes)))
            fail("there is no memory for an input or output");
        c->data_bytes[i] = c->data[i] ? port->bytes : 0;
    }
    return c->data[i];
}

void *pelton_input_data(pelton_context *c, int i) { return data_of(c, pelton_context_input(c, i)); }
void *pelton_output_data(pelton_context *c, int i) { return data_of(c, pelton_context_output(c, i)); }

static bool has_indices(const plan *p, const port_row *t, const char *data, size_t bytes, reason *why) {
    const uint64_t low = (uint64_t)t->low, range = (uint64_t)t->high - low;
    const size_t n = bytes / (size_t)dtype_bytes(t->dtype);
    size_t outside = 0;
    for (size_t i = 0; i < n; i++)
        outside += (uint64_t)(t->dtype == I64 ? ((const int64_t *)data)[i] : ((const int32_t *)data)[i]) - low > range;
    return !outside || refuse(why, "input %s has an index out of bounds: layer %s takes %d to %d", p->text + t->name,
                              p->text + t->layer, t->low, t->high);
}

/* Finds the arrays of a run and checks what can be known about them. */
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
            if (a < b + c->now->ports[k].bytes && b < a + c->now->ports[i].bytes)
                return refuse(why, "output %s overlaps %s", c->now->ports[i].name, c->now->ports[k].name);
        }
    return true;
}

int pelton_run(pelton_context *c, const void *const *inputs, void *const *outputs) {
    if (!enter(c))
        return -1;
    if (!bind(c, inputs, outputs, &last))
        return leave(c, -1);
    pelton_program_run(c->now->program, c->addresses);
    return leave(c, 0);
}

int pelton_profile(pelton_context *c, const void *const *inputs, void *const *outputs, int64_t *stamps) {
    if (!enter(c))
        return -1;
    if (!bind(c, inputs, outputs, &last))
        return leave(c, -1);
    pelton_program_profile(c->now->program, c->addresses, stamps);
    return leave(c, 0);
}
