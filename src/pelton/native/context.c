/* The public interface: contexts, and their runs. See pelton.h. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine.h"
#include "share.h"

enum { PAGE = 4096, PLANS = 16 };

/* What an engine is for one set of shapes. */
typedef struct {
    int64_t *shapes;            /* of all inputs, one after the other; NULL: unused */
    uint64_t used;              /* when, by the context's count */
    program *program;
    pelton_port *ports;
    char **made;                /* memory of buffers that are made for these shapes */
} ready;

struct pelton_context {
    pelton_engine *engine;
    int threads;
    char *arena;                /* and the scratch memory of all threads behind it */
    size_t bytes;
    ready plans[PLANS], *now;
    uint64_t count;
    char **data;                /* memory of the context for ports */
    size_t *data_bytes;
    char **addresses;
    _Atomic bool busy;
};

static void discard(const pelton_engine *e, ready *r) {
    if (r->program)
        pelton_program_free(r->program);
    for (int32_t i = 0; r->made && i < e->plan.head->buffers; i++)
        free(r->made[i]);
    free(r->made);
    free(r->ports);
    free(r->shapes);
    *r = (ready){0};
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
        if (!(made[i] = room(bytes)))
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

/* The program for these numbers of the plan; NULL where there is no memory. */
static program *build(pelton_context *c, const ready *r, const int64_t *cells, const int64_t *starts, size_t arena) {
    const pelton_engine *e = c->engine;
    const plan *p = &e->plan;
    const int32_t steps = p->head->steps;
    step_row *rows = zeros(steps, sizeof *rows);
    int64_t *words = zeros((size_t)e->words, sizeof *words);
    patch_row *patches = zeros((size_t)e->pointers, sizeof *patches);
    program *made = NULL;
    if (rows && words && patches) {
        int64_t word = 0, patched = 0;
        for (int32_t i = 0; i < steps; i++) {
            const plan_step *s = &p->steps[i];
            rows[i] = (step_row){(int64_t)(intptr_t)e->kernels[i], word, cells[p->tiles + i], s->grain, s->wave,
                                 cells[p->scratch + i], cells[p->phases + i]};
            memcpy(words + word, cells + s->words, sizeof *words * ((size_t)s->args + s->dims));
            for (int32_t k = 0; k < s->args; k++, word++) {
                const int32_t number = p->operands[s->operands + k];
                const buffer_row *b = &p->buffers[number];
                const char *base = b->kind == ARENA ? c->arena + starts[number]
                                 : b->kind == TABLE ? e->tables[number]
                                 : b->kind == CONSTANT ? e->constants + starts[number] : r->made[number];
                if (b->kind == INPUT || b->kind == OUTPUT)
                    patches[patched++] = (patch_row){word, b->offset + (b->kind == OUTPUT ? p->head->inputs : 0),
                                                     words[word]};
                else
                    words[word] += (int64_t)(intptr_t)base;
            }
            word += s->dims;
        }
        made = pelton_program(rows, steps, words, word, patches, patched, c->threads, share_cores(), c->arena + arena);
    }
    free(rows);
    free(words);
    free(patches);
    return made;
}

static bool grow(pelton_context *c, size_t need, reason *why) {
    if (need <= c->bytes)
        return true;
    for (ready *r = c->plans; r < c->plans + PLANS; r++) /* they point into the old memory */
        discard(c->engine, r);
    c->now = NULL;
    if (c->arena)
        munmap(c->arena, c->bytes);
    const size_t more = need > 2 * c->bytes ? need : 2 * c->bytes; /* slowly growing shapes do not allocate each time */
    c->arena = mmap(NULL, more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    c->bytes = c->arena == MAP_FAILED ? 0 : more;
    c->arena = c->bytes ? c->arena : NULL;
    return c->bytes || refuse(why, "there is no memory for a context of %d bytes", (int64_t)need);
}

static size_t whole_pages(int64_t bytes) { return ((size_t)bytes + PAGE - 1) / PAGE * PAGE; }

/* The number of sizes in the shapes of all inputs. */
static size_t axes(const plan *p) {
    size_t n = 0;
    for (int32_t i = 0; i < p->head->inputs; i++)
        n += (size_t)p->ports[i].rank;
    return n;
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

static bool prepare(pelton_context *c, const int64_t *const *shapes, reason *why) {
    const plan *p = &c->engine->plan;
    const plan_head *h = p->head;
    const size_t ports = (size_t)h->inputs + h->outputs;
    int64_t *symbols = zeros((size_t)h->symbols + h->cells + h->buffers, sizeof *symbols), arena;
    if (!symbols)
        return refuse(why, "there is no memory for a plan");
    int64_t *cells = symbols + h->symbols, *starts = cells + h->cells;
    ready made = {.used = ++c->count, .shapes = zeros(axes(p), sizeof *made.shapes),
                  .ports = zeros(ports, sizeof *made.ports), .made = zeros(h->buffers, sizeof *made.made)};
    bool sound = made.shapes && made.ports && made.made ? true : refuse(why, "there is no memory for a plan");
    sound = sound && (!shapes || plan_solve(p, shapes, symbols, why))
         && plan_resolve(p, symbols, cells, starts, &arena, why) && (!shapes || fits(p, cells, shapes, why));
    size_t scratch = 0;
    for (int32_t i = 0; sound && i < h->steps; i++) {
        const size_t own = whole_pages(cells[p->scratch + i]);
        scratch = own > scratch ? own : scratch;
    }
    sound = sound && grow(c, whole_pages(arena) + scratch * (size_t)c->threads + PAGE, why);
    if (sound) {
        int64_t *at = made.shapes;
        for (int32_t i = 0; i < h->inputs; i++)
            for (int32_t d = 0; d < p->ports[i].rank; d++)
                *at++ = cells[p->ports[i].shape + d];
        describe(p, cells, made.ports);
        sound = make_buffers(p, cells, made.made) && (made.program = build(c, &made, cells, starts, whole_pages(arena)))
              ? true : refuse(why, "there is no memory for the engine's step table");
    }
    free(symbols);
    if (!sound) {
        discard(c->engine, &made);
        return false;
    }
    ready *place = c->plans;
    for (ready *r = c->plans; r < c->plans + PLANS; r++)
        if (r->used < place->used)
            place = r;
    discard(c->engine, place);
    *place = made;
    c->now = place;
    return true;
}

pelton_context *pelton_context_new(pelton_engine *e, int threads) {
    if (!e || threads < 0 || threads > MAX_THREADS) {
        refuse(&last, e ? "threads are 0 to %d, given %d" : "a context needs an engine", (int64_t)MAX_THREADS,
               (int64_t)threads);
        return NULL;
    }
    const plan_head *h = e->plan.head;
    const size_t ports = (size_t)h->inputs + h->outputs;
    const int here = (int)((share_cores() + 999) / 1000), tuned = h->threads ? h->threads : MAX_THREADS;
    pelton_context *c = zeros(1, sizeof *c);
    if (c) {
        c->engine = e;
        c->threads = threads ? threads : here < tuned ? here : tuned;
        c->data = zeros(ports, sizeof *c->data);
        c->data_bytes = zeros(ports, sizeof *c->data_bytes);
        c->addresses = zeros(ports, sizeof *c->addresses);
    }
    if (!c || !c->data || !c->data_bytes || !c->addresses)
        fail("there is no memory for a context");
    else if (h->symbols || prepare(c, NULL, &last))
        return c;
    pelton_context_free(c);
    return NULL;
}

void pelton_context_free(pelton_context *c) {
    if (!c)
        return;
    for (ready *r = c->plans; r < c->plans + PLANS; r++)
        discard(c->engine, r);
    for (int i = 0; c->data && i < pelton_inputs(c->engine) + pelton_outputs(c->engine); i++)
        free(c->data[i]);
    if (c->arena)
        munmap(c->arena, c->bytes);
    free(c->data);
    free(c->data_bytes);
    free(c->addresses);
    free(c);
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

static bool is_for(const plan *p, const ready *r, const int64_t *const *shapes) {
    const int64_t *at = r->shapes;
    if (!at)
        return false;
    for (int32_t i = 0; i < p->head->inputs; at += p->ports[i].rank, i++)
        if (memcmp(at, shapes[i], sizeof *at * (size_t)p->ports[i].rank))
            return false;
    return true;
}

int pelton_set_shapes(pelton_context *c, const int64_t *const *shapes) {
    const plan *p = &c->engine->plan;
    for (int32_t i = 0; i < p->head->inputs; i++)
        if (!shapes || (!shapes[i] && p->ports[i].rank))
            return fail("a shape is NULL");
    if (!enter(c))
        return -1;
    for (ready *r = c->plans; r < c->plans + PLANS; r++)
        if (is_for(p, r, shapes)) {
            r->used = ++c->count;
            c->now = r;
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
        free(c->data[i]);
        if (!(c->data[i] = room(port->bytes)))
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
    const plan *p = &c->engine->plan;
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
