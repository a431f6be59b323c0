/* Opens the plan of an engine. No byte of it is trusted: every index, count and offset is checked, and no step reaches
 * memory outside its buffers. The use of dims by kernels is unknown here: code and dims are trusted like a program. */
#include "plan_parts.h"

#include <string.h>

#include "memory.h"
#include "export.h"
#include "say.h"

static const uint8_t BYTES[DTYPES] = {
    [F64] = 8, [F32] = 4, [F16] = 2, [BF16] = 2, [I64] = 8, [I32] = 4, [I16] = 2, [I8] = 1, [U64] = 8, [U32] = 4,
    [U16] = 2, [U8] = 1, [BOOL] = 1, [C64] = 8, [C128] = 16, [STRING] = 8, [F8E4M3FN] = 1, [F8E4M3FNUZ] = 1,
    [F8E5M2] = 1, [F8E5M2FNUZ] = 1, [F8E8M0FNU] = 1, [F6E2M3FN] = 1, [F6E3M2FN] = 1, [F4E2M1FN] = 1, [I4] = 1,
    [U4] = 1, [I2] = 1, [U2] = 1,
};

bool refuse(reason *why, const char *format, ...) {
    va_list given;
    va_start(given, format);
    say_all(why->text, sizeof why->text, format, given);
    va_end(given);
    return false;
}

static bool is_dtype(int32_t dtype) { return dtype >= 0 && dtype < DTYPES && BYTES[dtype]; }

int64_t dtype_bytes(int32_t dtype) { return is_dtype(dtype) ? BYTES[dtype] : 0; }

typedef struct { const char *at; size_t left; bool wrong; } cursor;

static const void *take(cursor *c, int64_t count, size_t row) {
    const size_t bytes = count < 0 || count > MAX_ROWS ? SIZE_MAX : ((size_t)count * row + 7) / 8 * 8;
    c->wrong |= bytes > c->left;
    if (c->wrong)
        return NULL;
    const void *table = c->at;
    c->at += bytes;
    c->left -= bytes;
    return table;
}

static bool find_tables(plan *p, const void *bytes, size_t size, reason *why) {
    cursor c = {.at = bytes, .left = size};
    const plan_head *h = p->head = take(&c, 1, sizeof *h);
    if (c.wrong)
        return refuse(why, "it is too short");
    p->symbols = take(&c, h->symbols, sizeof *p->symbols);
    p->numbers = take(&c, h->numbers, sizeof *p->numbers);
    p->lines = take(&c, h->lines, sizeof *p->lines);
    p->terms = take(&c, h->terms, sizeof *p->terms);
    p->formulas = take(&c, h->formulas, sizeof *p->formulas);
    p->cells = take(&c, h->cells, sizeof *p->cells);
    p->gaps = take(&c, h->gaps, sizeof *p->gaps);
    const int64_t ports = (int64_t)h->inputs + h->outputs, all = (int64_t)h->steps + h->alternatives;
    if (h->inputs < 0 || h->outputs < 0 || h->steps < 0 || h->alternatives < 0 || all > MAX_ROWS)
        return refuse(why, "a table has less than no rows");
    p->ports = take(&c, ports, sizeof *p->ports);
    p->buffers = take(&c, h->buffers, sizeof *p->buffers);
    p->steps = take(&c, all, sizeof *p->steps);
    p->operands = take(&c, h->operands, sizeof *p->operands);
    p->tensors = take(&c, h->tensors, sizeof *p->tensors);
    p->features = take(&c, h->features, sizeof *p->features);
    p->text = take(&c, h->text, 1);
    if (c.wrong || c.left)
        return refuse(why, "its tables have other sizes than they say");
    if (!h->text || p->text[h->text - 1])
        return refuse(why, "its texts have no end");
    p->all = (int32_t)all;
    p->tiles = h->buffers;
    p->scratch = p->tiles + p->all;
    p->phases = p->scratch + p->all;
    return true;
}

static bool is_text(const plan *p, int32_t text) { return text >= 0 && text < p->head->text; }

static bool check_formulas(const plan *p, reason *why) {
    const plan_head *h = p->head;
    for (int32_t i = 0; i < h->symbols; i++) {
        const symbol_row *s = &p->symbols[i];
        if (!is_text(p, s->name) || s->minimum < 0 || s->minimum > s->optimum || s->optimum > s->maximum
            || s->maximum >= MAX_BYTES)
            return refuse(why, "symbol %d has the bounds %d, %d, %d", (int64_t)i, s->minimum, s->optimum, s->maximum);
    }
    const int64_t known = (int64_t)h->symbols + h->numbers;
    for (int32_t i = 0; i < h->lines; i++) {
        const line_row *l = &p->lines[i];
        const bool pair = l->function == QUOTIENT || l->function == REMAINDER;
        if (l->function < 0 || l->function >= FUNCTIONS || l->count < 1 || (pair && l->count != 2)
            || !within(l->first, l->count, h->terms))
            return refuse(why, "formula %d is none", (int64_t)i);
        for (int32_t k = 0; k < l->count; k++)
            if (p->terms[l->first + k] < 0 || p->terms[l->first + k] >= known + i)
                return refuse(why, "formula %d uses a later value", (int64_t)i);
    }
    for (int32_t i = 0; i < h->formulas; i++)
        if (p->formulas[i].value < 0 || p->formulas[i].value >= known + h->lines || !is_text(p, p->formulas[i].text))
            return refuse(why, "size %d is not explained", (int64_t)i);
    for (int32_t i = 0, last = -1; i < h->gaps; i++) {
        const gap_row *g = &p->gaps[i];
        if (g->cell <= last || g->cell >= h->cells || g->formula < 0 || g->formula >= h->formulas)
            return refuse(why, "number %d has no formula", (int64_t)g->cell);
        last = g->cell;
    }
    return true;
}

static bool check_ports(const plan *p, reason *why) {
    const plan_head *h = p->head;
    for (int32_t i = 0; i < h->inputs + h->outputs; i++) {
        const port_row *t = &p->ports[i];
        if (!is_text(p, t->name) || !p->text[t->name] || !is_dtype(t->dtype) || t->rank < 0 || t->rank > MAX_RANK
            || !within(t->shape, t->rank, h->cells))
            return refuse(why, "input or output %d has no name, type or shape", (int64_t)i);
        if (t->shares < 0 || t->shares > (i < h->inputs ? 0 : h->inputs))
            return refuse(why, "output %s shares the memory of input %d", p->text + t->name, (int64_t)t->shares);
        if (t->layer < 0)
            continue;
        if (!is_text(p, t->layer) || i >= h->inputs || (t->dtype != I32 && t->dtype != I64) || t->high < 0
            || t->high >= MAX_BYTES || t->low != -t->high - 1)
            return refuse(why, "input %s has indices from %d to %d", p->text + t->name, t->low, t->high);
    }
    return true;
}

static bool check_buffers(const plan *p, reason *why) {
    const plan_head *h = p->head;
    for (int32_t i = 0; i < h->buffers; i++) {
        const buffer_row *b = &p->buffers[i];
        if (b->kind < 0 || b->kind >= KINDS)
            return refuse(why, "buffer %d is of unknown kind %d", (int64_t)i, (int64_t)b->kind);
        const bool is_port = b->kind == INPUT || b->kind == OUTPUT;
        if (b->offset < 0 || b->offset >= MAX_BYTES
            || (is_port && b->offset >= (b->kind == INPUT ? h->inputs : h->outputs)))
            return refuse(why, "buffer %d starts at %d", (int64_t)i, b->offset);
        if (!within(b->values, b->count, h->cells) || !is_dtype(b->dtype) || b->dtype == STRING)
            return refuse(why, "buffer %d has no contents", (int64_t)i);
        if ((b->kind == CONSTANT || b->kind == TABLE || b->kind == TEXT) && plan_value(p, i) >= 0)
            return refuse(why, "buffer %d is a constant of another size for other inputs", (int64_t)i);
    }
    return true;
}

static bool check_tensors(const plan *p, int32_t first, int32_t count, reason *why, const char *where) {
    if (!within(first, count, p->head->tensors))
        return refuse(why, "step %s has tensors that are not there", where);
    for (int32_t i = first; i < first + count; i++) {
        const tensor_row *t = &p->tensors[i];
        if (t->buffer < 0 || t->buffer >= p->head->buffers || !is_dtype(t->dtype) || t->rank < 0 || t->rank > MAX_RANK
            || !within(t->offset, 1, p->head->cells) || !within(t->shape, t->rank, p->head->cells)
            || !within(t->strides, t->rank, p->head->cells))
            return refuse(why, "step %s has a tensor of no buffer, type or shape", where);
    }
    return true;
}

static bool is_text_buffer(const plan *p, int32_t buffer) {
    const buffer_row *b = &p->buffers[buffer];
    if (b->kind == INPUT || b->kind == OUTPUT)
        return p->ports[b->offset + (b->kind == OUTPUT ? p->head->inputs : 0)].dtype == STRING;
    return b->kind == STRINGS || b->kind == TEXT;
}

static bool check_steps(const plan *p, reason *why) {
    const plan_head *h = p->head;
    for (int32_t i = 0, wave = 0; i < p->all; i++) {
        const plan_step *s = &p->steps[i];
        if (!is_text(p, s->name) || !is_text(p, s->symbol) || !is_text(p, s->host))
            return refuse(why, "step %d has no name", (int64_t)i);
        const bool host = p->text[s->host];
        if (host == !!p->text[s->symbol])
            return refuse(why, "step %s is neither one kernel nor one host step", label(p, s));
        if (s->args < 0 || s->dims < 0 || !within(s->words, (int64_t)s->args + s->dims, h->cells)
            || !within(s->operands, s->args, h->operands) || s->grain < 1)
            return refuse(why, "step %s has no operands", label(p, s));
        if (!check_tensors(p, s->inputs, s->reads, why, label(p, s))
            || !check_tensors(p, s->outputs, s->writes, why, label(p, s)))
            return false;
        if (host ? s->args || s->dims : s->reads)
            return refuse(why, "step %s has operands of two kinds", label(p, s));
        for (int32_t k = 0; k < s->args; k++) {
            const int32_t b = p->operands[s->operands + k];
            if (b < 0 || b >= h->buffers)
                return refuse(why, "step %s uses buffer %d, there are %d", label(p, s), (int64_t)b,
                              (int64_t)h->buffers);
            if (is_text_buffer(p, b))
                return refuse(why, "step %s is a kernel and would touch strings", label(p, s));
        }
        for (int32_t k = 0; k < s->reads + s->writes; k++) {
            const tensor_row *t = &p->tensors[k < s->reads ? s->inputs + k : s->outputs + k - s->reads];
            const int32_t kind = p->buffers[t->buffer].kind;
            if (is_text_buffer(p, t->buffer) != (t->dtype == STRING) || (t->dtype == STRING && !host))
                return refuse(why, "step %s takes strings for bytes", label(p, s));
            if (k >= s->reads && kind != ARENA && kind != ZEROS && kind != OUTPUT && kind != STRINGS)
                return refuse(why, "step %s writes to a constant or an input", label(p, s));
        }
        if (i >= h->steps) {
            if (s->spares || s->writes || host)
                return refuse(why, "alternative %s is no kernel that could stand for another", label(p, s));
            continue;
        }
        if (s->wave < wave)
            return refuse(why, "step %s is of wave %d, after wave %d", label(p, s), (int64_t)s->wave, (int64_t)wave);
        wave = s->wave;
        if (s->spares && (host || s->alternatives < h->steps || !within(s->alternatives, s->spares, p->all)))
            return refuse(why, "step %s has no such alternatives", label(p, s));
        for (int32_t k = 0; k < s->spares; k++)
            if (p->steps[s->alternatives + k].wave != wave)
                return refuse(why, "an alternative of step %s is of another wave", label(p, s));
    }
    return true;
}

static void use(const plan *p, int32_t *first, int32_t *last, int32_t buffer, int32_t wave) {
    if (p->buffers[buffer].kind != ARENA)
        return;
    first[buffer] = first[buffer] < 0 ? wave : first[buffer];
    last[buffer] = wave;
}

static void use_all(const plan *p, int32_t *first, int32_t *last, const plan_step *s, int32_t wave) {
    for (int32_t k = 0; k < s->args; k++)
        use(p, first, last, p->operands[s->operands + k], wave);
    for (int32_t k = 0; k < s->reads; k++)
        use(p, first, last, p->tensors[s->inputs + k].buffer, wave);
    for (int32_t k = 0; k < s->writes; k++)
        use(p, first, last, p->tensors[s->outputs + k].buffer, wave);
}

static void sink(int32_t *heap, int32_t n, int32_t i, after *later, const void *with) {
    const int32_t moved = heap[i];
    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && later(with, heap[child + 1], heap[child]);
        if (!later(with, heap[child], moved))
            break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

void sort(int32_t *numbers, int32_t n, after *later, const void *with) {
    for (int32_t i = n / 2; i-- > 0;)
        sink(numbers, n, i, later, with);
    while (n > 1) {
        const int32_t top = numbers[0];
        numbers[0] = numbers[--n];
        numbers[n] = top;
        sink(numbers, n, 0, later, with);
    }
}

static bool starts_later(const void *with, int32_t a, int32_t b) {
    const int32_t *first = ((const plan *)with)->first;
    return first[a] != first[b] ? first[a] > first[b] : a > b;
}

/* Visits all pairs of buffers in the arena that are alive together: counts them, or fills the lists. */
static void visit_pairs(const plan *p, const int32_t *order, int32_t *alive, int32_t *counts, int32_t *lists) {
    int32_t n = 0;
    for (int32_t k = 0; k < p->lying; k++) {
        const int32_t i = order[k];
        int32_t kept = 0;
        for (int32_t a = 0; a < n; a++)
            if (p->last[alive[a]] >= p->first[i])
                alive[kept++] = alive[a];
        for (int32_t a = 0; a < kept; a++) {
            if (lists) {
                lists[counts[i]] = alive[a];
                lists[counts[alive[a]]] = i;
            }
            counts[i]++, counts[alive[a]]++;
        }
        alive[kept] = i;
        n = kept + 1;
    }
}

static bool find_lives(plan *p, reason *why) {
    const int32_t n = p->head->buffers;
    /* first, last, which; bounds; two orders */
    int32_t *room = memory_take(sizeof *room * (6 * (size_t)n + 1));
    if (!room)
        return refuse(why, "there is no memory for its plan");
    int32_t *first = room, *last = room + n;
    memset(first, 0xff, sizeof *first * n);
    memset(last, 0xff, sizeof *last * n);
    for (int32_t i = 0; i < p->head->steps; i++) {
        const plan_step *s = &p->steps[i];
        use_all(p, first, last, s, s->wave);
        for (int32_t k = 0; k < s->spares; k++)
            use_all(p, first, last, &p->steps[s->alternatives + k], s->wave);
    }
    p->memory = room;
    p->first = first, p->last = last, p->which = room + 2 * n, p->bounds = room + 3 * n;
    int32_t *order = p->bounds + n + 1, *alive = order + n;
    for (int32_t i = 0; i < n; i++)
        if (first[i] >= 0) {
            p->which[p->lying] = i;
            first[p->lying] = first[i], last[p->lying] = last[i];
            order[p->lying] = p->lying;
            p->lying++;
        }
    sort(order, p->lying, starts_later, p);
    int32_t *counts = p->bounds + 1;
    memset(p->bounds, 0, sizeof *p->bounds * (p->lying + 1));
    visit_pairs(p, order, alive, counts, NULL);
    int64_t pairs = 0;
    for (int32_t i = 0; i < p->lying; i++) {
        const int32_t own = counts[i];
        counts[i] = (int32_t)pairs;
        pairs += own;
        if (pairs > INT32_MAX / 2)
            return refuse(why, "it has too many buffers");
    }
    p->beside = memory_take(sizeof *p->beside * (size_t)(pairs + 1));
    if (!p->beside)
        return refuse(why, "there is no memory for its plan");
    visit_pairs(p, order, alive, counts, p->beside);    /* counts[i] is now the end of list i: bounds[i + 1] */
    return true;
}

bool plan_open(plan *p, const void *bytes, size_t size, int64_t constants, reason *why) {
    *p = (plan){.constants = constants};
    if (!find_tables(p, bytes, size, why))
        return false;
    const plan_head *h = p->head;
    const int32_t names[] = {h->name, h->os, h->arch, h->isa, h->cpu};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!is_text(p, names[i]))
            return refuse(why, "it does not say what machine it is for");
    for (int32_t i = 0; i < h->features; i++)
        if (!is_text(p, p->features[i]))
            return refuse(why, "it does not say what it needs of a CPU");
    if (h->arena < 0 || h->arena >= MAX_BYTES)
        return refuse(why, "the size of the arena is %d", h->arena);
    if (h->buffers + 3 * (int64_t)p->all > h->cells)
        return refuse(why, "it has too few numbers");
    if (!check_formulas(p, why) || !check_ports(p, why) || !check_buffers(p, why) || !check_steps(p, why)
        || !find_lives(p, why))
        return false;
    int64_t *optimum = memory_take(sizeof *optimum * ((size_t)h->symbols + h->cells + h->buffers + 1)), arena;
    if (!optimum)
        return refuse(why, "there is no memory for its plan");
    for (int32_t i = 0; i < h->symbols; i++)
        optimum[i] = p->symbols[i].optimum;
    int64_t *cells = optimum + h->symbols;
    const bool sound = plan_resolve(p, optimum, cells, cells + h->cells, &arena, why);
    memory_give(optimum);
    return sound;
}

void plan_close(plan *p) {
    memory_give(p->memory);
    memory_give(p->beside);
    p->memory = NULL, p->beside = NULL;
}

/* For callers that keep no struct. */
EXPORT plan *pelton_plan_new(const void *bytes, size_t size, int64_t constants, reason *why) {
    plan *p = memory_take(sizeof *p);
    if (p && plan_open(p, bytes, size, constants, why))
        return p;
    if (p)
        plan_close(p);
    else
        refuse(why, "there is no memory for its plan");
    memory_give(p);
    return NULL;
}

EXPORT void pelton_plan_free(plan *p) {
    plan_close(p);
    memory_give(p);
}

EXPORT bool pelton_plan_resolve(const plan *p, const int64_t *symbols, int64_t *cells, int64_t *starts, int64_t *arena,
                                reason *why) {
    return plan_resolve(p, symbols, cells, starts, arena, why);
}
