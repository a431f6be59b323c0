/* Runs scripts that need no Python. See chain.h. */
#define _GNU_SOURCE
#include "chain.h"

#include <string.h>

#include "boxes.h"
#include "profiles.h"

enum { MAX_ITEMS = 1 << 20, MAX_PORTS = 256, BOXES = 5 };
static const int64_t MAX_SIZE = INT64_C(1) << 46;

/* ---- opening ---- */

static bool knows(const chain *c, const bool *made, int32_t array) {
    return array >= 0 && array < c->head->arrays && made[array];
}

static bool is_of(const chain *c, const item_row *item, int32_t dtype, int32_t rank) {
    const array_row *a = &c->arrays[item->array];
    return item->source == WHOLE && a->dtype == dtype && a->rank == rank;
}

/* True if an item can be read for a port of an engine. */
static bool fits_port(const chain *c, const item_row *item, const port_row *port) {
    const array_row *a = &c->arrays[item->array];
    if (item->source == WHOLE)
        return is_of(c, item, port->dtype, port->rank);
    const bool is_size = item->source == AXIS ? item->at < a->rank : a->dtype == I64 || a->dtype == I32;
    return is_size && item->at >= 0 && port->dtype == U8 && port->rank == 2;
}

static bool check_arrays(const chain *c, const pelton_engine *e, bool *made, reason *why) {
    const plan_head *h = e->plan->head;
    for (int32_t i = 0; i < c->head->arrays; i++) {
        const array_row *a = &c->arrays[i];
        if (a->dtype < 0 || a->dtype >= OTHER || a->rank < 0 || a->rank > PELTON_MAX_RANK)
            return refuse(why, "array %d has no type or shape", (int64_t)i);
        made[i] = a->source != FROM_ACTION;
        if (a->source == FROM_INPUT) {
            if (a->input < 0 || a->input >= h->inputs || e->plan->ports[a->input].dtype != a->dtype
                || e->plan->ports[a->input].rank != a->rank)
                return refuse(why, "array %d is no input", (int64_t)i);
        } else if (a->source == FROM_CONSTANTS) {
            int64_t bytes = dtype_bytes(a->dtype);
            for (int32_t d = 0; d < a->rank; d++)
                if (a->shape[d] < 0 || __builtin_mul_overflow(bytes, a->shape[d], &bytes))
                    return refuse(why, "array %d has no shape", (int64_t)i);
            if (a->offset < 0 || a->offset % 8 || a->offset > e->plan->constants
                || bytes > e->plan->constants - a->offset)
                return refuse(why, "array %d is not among the constants", (int64_t)i);
        } else if (a->source != FROM_ACTION) {
            return refuse(why, "array %d comes from nowhere", (int64_t)i);
        }
    }
    return true;
}

static bool check_action(const chain *c, const pelton_engine *e, const action_row *a, const bool *made, reason *why) {
    const item_row *in = c->items + a->first, *out = in + a->reads;
    const plan_head *h = e->plan->head;
    for (const item_row *k = in; k < out; k++)
        if (k->array != -1 ? !knows(c, made, k->array) : a->kind != SUPPRESS)
            return refuse(why, "an action reads what is not there");
    for (const item_row *k = out; k < out + a->writes; k++)
        if (k->array != -1 && (k->array < 0 || k->array >= c->head->arrays || made[k->array]))
            return refuse(why, "an action writes what is there already");
    if (a->kind == RUN_ENGINE) {
        if (a->engine < 0 || a->engine >= c->count)
            return refuse(why, "there is no engine %d", (int64_t)a->engine);
        const plan *p = c->engines[a->engine]->plan;
        bool sound = a->reads == p->head->inputs && a->writes == p->head->outputs && a->reads <= MAX_PORTS;
        for (int32_t k = 0; sound && k < a->reads; k++)
            sound = fits_port(c, in + k, &p->ports[k]);
        for (int32_t k = 0; sound && k < a->writes; k++)
            sound = out[k].array < 0 || is_of(c, out + k, p->ports[a->reads + k].dtype, p->ports[a->reads + k].rank);
        return sound || refuse(why, "engine %d gets or gives other arrays than its own", (int64_t)a->engine);
    }
    if (a->kind == SUPPRESS) {
        bool sound = a->reads == BOXES && a->writes == 1 && in[0].array >= 0 && in[1].array >= 0
                  && is_of(c, &in[0], F32, 3) && is_of(c, &in[1], F32, 3) && out->array >= 0 && is_of(c, out, I64, 2);
        for (int32_t k = 2; sound && k < BOXES; k++)
            sound = in[k].array < 0
                 || (in[k].source == WHOLE && c->arrays[in[k].array].dtype == (k == 2 ? I64 : F32));
        return sound || refuse(why, "a suppression gets or gives other arrays than boxes");
    }
    bool sound = a->kind == RESULTS && !a->writes && a->reads == h->outputs;
    for (int32_t k = 0; sound && k < a->reads; k++)
        sound = is_of(c, in + k, e->plan->ports[h->inputs + k].dtype, e->plan->ports[h->inputs + k].rank);
    return sound || refuse(why, "its results are not its outputs");
}

static bool check(chain *c, const pelton_engine *e, reason *why) {
    bool *made = memory_zeros((size_t)c->head->arrays, sizeof *made);
    bool sound = made ? check_arrays(c, e, made, why) : refuse(why, "there is no memory for it");
    for (int32_t i = 0; sound && i < c->head->actions; i++) {
        const action_row *a = &c->actions[i];
        if (a->reads < 0 || a->writes < 0 || a->first < 0 || a->first > c->head->items
            || (int64_t)a->reads + a->writes > c->head->items - a->first)
            sound = refuse(why, "action %d has no items", (int64_t)i);
        sound = sound && ((a->kind == RESULTS) == (i == c->head->actions - 1)
                              ? check_action(c, e, a, made, why) : refuse(why, "its results are not its last action"));
        for (int32_t k = 0; sound && k < a->writes; k++) {
            const int32_t array = c->items[a->first + a->reads + k].array;
            if (array >= 0 && made[array])
                sound = refuse(why, "an action writes an array twice");
            else if (array >= 0)
                made[array] = true;
        }
    }
    memory_give(made);
    return sound && (c->head->actions > 0 || refuse(why, "it does nothing"));
}

static bool find_rows(chain *c, const section_row *s, const uint8_t *bytes, reason *why) {
    c->bytes = memory_take(s->size);
    if (!c->bytes)
        return refuse(why, "there is no memory for it");
    memcpy(c->bytes, bytes + s->offset, s->size);
    if (!file_verify(s, c->bytes))
        return refuse(why, "it is altered in its chain");
    const chain_head *h = c->head = c->bytes;
    if (s->size < sizeof *h || h->arrays < 0 || h->actions < 0 || h->items < 0 || h->arrays > MAX_ITEMS
        || h->actions > MAX_ITEMS || h->items > MAX_ITEMS
        || s->size != sizeof *h + (size_t)h->arrays * sizeof *c->arrays + (size_t)h->actions * sizeof *c->actions
                          + (size_t)h->items * sizeof *c->items)
        return refuse(why, "its chain has another size than it says");
    c->arrays = (const array_row *)(h + 1);
    c->items = (const item_row *)(c->arrays + h->arrays);
    c->actions = (const action_row *)(c->items + h->items);
    return true;
}

chain *chain_open(const pelton_engine *e, const section_row *s, reason *why) {
    chain *c = memory_zeros(1, sizeof *c);
    bool sound = c ? find_rows(c, s, e->file.bytes, why) : refuse(why, "there is no memory for it");
    int32_t engines = 0;
    for (uint32_t i = 0; i < e->file.count; i++)
        engines += !strncmp(e->file.sections[i].name, "engine ", 7);
    if (sound && !(c->engines = memory_zeros((size_t)engines, sizeof(pelton_engine *))))
        sound = refuse(why, "there is no memory for it");
    for (; sound && c->count < engines; c->count++) {
        reason name;
        refuse(&name, "engine %d", (int64_t)c->count);
        const section_row *part = file_section(&e->file, name.text);
        c->engines[c->count] = part ? engine_within(e, part, why) : NULL;
        if (!c->engines[c->count])
            sound = part ? false : refuse(why, "it has no %s", name.text);
    }
    if (sound && (c->head->profiles ? profiles_check(c, e, why) : check(c, e, why)))
        return c;
    chain_close(c);
    return NULL;
}

void chain_close(chain *c) {
    if (!c)
        return;
    for (int32_t i = 0; c->engines && i < c->count; i++)
        pelton_engine_free(c->engines[i]);
    memory_give(c->engines);
    memory_give(c->bytes);
    memory_give(c);
}

/* ---- running ---- */

typedef struct {
    const char *data;
    int64_t shape[PELTON_MAX_RANK];
} value;

struct chain_run {
    const chain *chain;
    const pelton_engine *engine;
    pelton_context **contexts;  /* one for each action, which keeps its results */
    value *values;
    int64_t **kept;             /* rows of suppressions, for each action */
    void *room;                 /* for one suppression */
    size_t bytes;
};

static int64_t elements(const chain *c, const value *values, int32_t array) {
    int64_t n = 1;
    for (int32_t d = 0; d < c->arrays[array].rank; d++)
        n *= values[array].shape[d];
    return n;
}

chain_run *chain_begin(const pelton_engine *e, int threads, reason *why) {
    const chain *c = e->chain;
    chain_run *r = memory_zeros(1, sizeof *r);
    if (r) {
        r->chain = c;
        r->engine = e;
        r->contexts = memory_zeros((size_t)c->head->actions, sizeof(pelton_context *));
        r->kept = memory_zeros((size_t)c->head->actions, sizeof *r->kept);
        r->values = memory_zeros((size_t)c->head->arrays, sizeof *r->values);
    }
    bool sound = (r && r->contexts && r->kept && r->values) || refuse(why, "there is no memory for a context");
    for (int32_t i = 0; sound && i < c->head->actions; i++)
        if (c->actions[i].kind == RUN_ENGINE) {
            r->contexts[i] = pelton_context_new(c->engines[c->actions[i].engine], threads);
            sound = r->contexts[i] || refuse(why, "%s", pelton_error());
        }
    for (int32_t i = 0; sound && i < c->head->arrays; i++)
        if (c->arrays[i].source == FROM_CONSTANTS) {
            r->values[i].data = e->constants + c->arrays[i].offset;
            memcpy(r->values[i].shape, c->arrays[i].shape, sizeof r->values[i].shape);
        }
    if (sound)
        return r;
    chain_end(r);
    return NULL;
}

void chain_end(chain_run *r) {
    if (!r)
        return;
    for (int32_t i = 0; i < r->chain->head->actions; i++) {
        if (r->contexts)
            pelton_context_free(r->contexts[i]);
        if (r->kept)
            memory_give(r->kept[i]);
    }
    memory_give(r->contexts);
    memory_give(r->kept);
    memory_give(r->values);
    memory_give(r->room);
    memory_give(r);
}

/* Returns the size of an item; -1 if it is not a valid size. */
static int64_t size_of(const chain_run *r, const item_row *item) {
    const value *v = &r->values[item->array];
    if (item->source == AXIS)
        return v->shape[item->at];
    if (item->at >= elements(r->chain, r->values, item->array))
        return -1;
    const int64_t size = r->chain->arrays[item->array].dtype == I64 ? ((const int64_t *)v->data)[item->at]
                                                                    : ((const int32_t *)v->data)[item->at];
    return size < MAX_SIZE ? size : -1;
}

/* Returns true, and makes the outputs, if an engine that rejects empty inputs would give empty outputs. */
static bool gives_nothing(chain_run *r, const action_row *a, const int64_t *const *shapes) {
    const plan *p = r->chain->engines[a->engine]->plan;
    const item_row *out = r->chain->items + a->first + a->reads;
    int64_t *symbols = memory_zeros((size_t)p->head->symbols + p->head->cells, sizeof *symbols);
    int64_t *cells = symbols ? symbols + p->head->symbols : NULL;
    reason unused;
    bool empty = symbols && plan_solve(p, shapes, false, symbols, &unused) && plan_fill(p, symbols, cells, &unused);
    for (int32_t k = 0; empty && k < a->writes; k++) {
        const port_row *port = &p->ports[a->reads + k];
        bool has_none = false;
        for (int32_t d = 0; d < port->rank; d++) {
            empty &= cells[port->shape + d] >= 0;
            has_none |= !cells[port->shape + d];
        }
        empty &= has_none;
    }
    for (int32_t k = 0; empty && k < a->writes; k++)
        if (out[k].array >= 0) {
            const port_row *port = &p->ports[a->reads + k];
            value *v = &r->values[out[k].array];
            *v = (value){.data = ""};
            memcpy(v->shape, cells + port->shape, sizeof *v->shape * (size_t)port->rank);
        }
    memory_give(symbols);
    return empty;
}

static bool run_engine(chain_run *r, int32_t i, reason *why) {
    const action_row *a = &r->chain->actions[i];
    const item_row *in = r->chain->items + a->first, *out = in + a->reads;
    pelton_context *context = r->contexts[i];
    int64_t sizes[2 * MAX_PORTS]; /* shapes of size items: [size, 0] */
    const int64_t *shapes[MAX_PORTS];
    const void *inputs[MAX_PORTS];
    for (int32_t k = 0; k < a->reads; k++) {
        shapes[k] = r->values[in[k].array].shape;
        inputs[k] = r->values[in[k].array].data;
        if (in[k].source == WHOLE)
            continue;
        sizes[2 * k] = size_of(r, &in[k]);
        sizes[2 * k + 1] = 0;
        if (sizes[2 * k] < 0)
            return refuse(why, "a number that the data gives is no size");
        shapes[k] = sizes + 2 * k;
        inputs[k] = ""; /* it has no elements to read */
    }
    if (pelton_set_shapes(context, shapes)) {
        refuse(why, "%s", pelton_error());
        return gives_nothing(r, a, shapes);
    }
    if (pelton_run(context, inputs, NULL))
        return refuse(why, "%s", pelton_error());
    for (int32_t k = 0; k < a->writes; k++)
        if (out[k].array >= 0) {
            value *v = &r->values[out[k].array];
            v->data = pelton_output_data(context, k);
            memcpy(v->shape, pelton_context_output(context, k)->shape, sizeof v->shape);
        }
    return true;
}

static float number_or(const chain_run *r, const item_row *item, float otherwise) {
    return item->array < 0 || !elements(r->chain, r->values, item->array)
             ? otherwise : *(const float *)r->values[item->array].data;
}

/* Allocates room for one suppression and the rows of all. */
static bool make_room(chain_run *r, int32_t i, int64_t boxes, int64_t limit, int64_t rows, reason *why) {
    const size_t need = (size_t)boxes * (4 * sizeof(float) + sizeof(int32_t)) + (size_t)limit * 5 * sizeof(float);
    if (need > r->bytes) {
        memory_give(r->room);
        r->room = memory_take(need);
        r->bytes = r->room ? need : 0;
    }
    memory_give(r->kept[i]);
    r->kept[i] = memory_take((size_t)rows * 3 * sizeof *r->kept[i]);
    return (r->room || !need) && r->kept[i] ? true : refuse(why, "there is no memory for boxes");
}

static bool suppress(chain_run *r, int32_t i, reason *why) {
    const action_row *a = &r->chain->actions[i];
    const item_row *in = r->chain->items + a->first;
    const value *boxes = &r->values[in[0].array], *scores = &r->values[in[1].array];
    const int64_t batch = boxes->shape[0], n = boxes->shape[1], classes = scores->shape[1];
    if (boxes->shape[2] != 4 || scores->shape[0] != batch || scores->shape[2] != n || n > INT32_MAX)
        return refuse(why, "boxes [batch, n, 4] and scores [batch, class, n] are needed");
    int64_t limit = 0;
    if (in[2].array >= 0 && elements(r->chain, r->values, in[2].array))
        limit = *(const int64_t *)r->values[in[2].array].data;
    limit = limit < 0 ? 0 : limit > n ? n : limit;
    const float bound = number_or(r, &in[3], 0), floor = number_or(r, &in[4], 0);
    if (!(bound >= 0 && bound <= 1))
        return refuse(why, "a suppression needs an overlap between 0 and 1");
    if (!make_room(r, i, n, limit, batch * classes * limit, why))
        return false;
    float *corners = r->room, *work = corners + 4 * n;
    int32_t *heap = (int32_t *)(work + 5 * limit);
    int64_t *rows = r->kept[i], count = 0;
    for (int64_t b = 0; limit && b < batch; b++) {
        box_corners((const float *)boxes->data + b * n * 4, n, a->center, corners);
        for (int64_t c = 0; c < classes; c++) {
            /* the boxes go after all earlier rows, then each becomes a row: from the last one on */
            int64_t *at = rows + 3 * count;
            const int64_t kept = pelton_suppress(corners, (const float *)scores->data + (b * classes + c) * n, n, bound,
                                                 floor, in[4].array < 0, limit, heap, work, at);
            for (int64_t k = kept; k-- > 0;) {
                const int64_t box = at[k];
                at[3 * k] = b, at[3 * k + 1] = c, at[3 * k + 2] = box;
            }
            count += kept;
        }
    }
    value *out = &r->values[in[a->reads].array];
    *out = (value){.data = (const char *)rows, .shape = {count, 3}};
    return true;
}

bool chain_walk(chain_run *r, char *const *inputs, const pelton_port *ports, reason *why) {
    const chain *c = r->chain;
    for (int32_t i = 0; i < c->head->arrays; i++)
        if (c->arrays[i].source == FROM_INPUT) {
            r->values[i].data = inputs[c->arrays[i].input];
            memcpy(r->values[i].shape, ports[c->arrays[i].input].shape, sizeof r->values[i].shape);
        }
    for (int32_t i = 0; i < c->head->actions - 1; i++)
        if (!(c->actions[i].kind == RUN_ENGINE ? run_engine : suppress)(r, i, why))
            return false;
    return true;
}

const char *chain_result(const chain_run *r, int32_t i, const int64_t **shape) {
    const action_row *last = &r->chain->actions[r->chain->head->actions - 1];
    const value *v = &r->values[r->chain->items[last->first + i].array];
    *shape = v->shape;
    return v->data;
}
