/* Resolves the numbers of a plan for some sizes: formulas, places of buffers, and consistency checks. */
#include <string.h>

#include "memory.h"
#include "plan_parts.h"

static bool compute(int32_t function, const int64_t *values, const int32_t *terms, int32_t count, int64_t *out) {
    int64_t r = values[terms[0]];
    for (int32_t k = 1; k < count; k++) {
        const int64_t x = values[terms[k]];
        switch (function) {
        case SUM:
            if (__builtin_add_overflow(r, x, &r))
                return false;
            break;
        case PRODUCT:
            if (__builtin_mul_overflow(r, x, &r))
                return false;
            break;
        case MAXIMUM: r = r > x ? r : x; break;
        case MINIMUM: r = r < x ? r : x; break;
        default:
            if (x == 0 || (x == -1 && r == INT64_MIN))
                return false;
            const int64_t rest = r % x, down = rest && (rest < 0) != (x < 0);
            r = function == QUOTIENT ? r / x - down : rest + (down ? x : 0);
        }
    }
    *out = r;
    return true;
}

bool plan_fill(const plan *p, const int64_t *symbols, int64_t *cells, reason *why) {
    const plan_head *h = p->head;
    memcpy(cells, p->cells, sizeof *cells * h->cells);
    if (!h->gaps)
        return true;
    const size_t known = (size_t)h->symbols + h->numbers;
    int64_t *values = memory_take(sizeof *values * (known + h->lines + 1));
    if (!values)
        return refuse(why, "there is no memory for its plan");
    memcpy(values, symbols, sizeof *values * h->symbols);
    memcpy(values + h->symbols, p->numbers, sizeof *values * h->numbers);
    bool sound = true;
    for (int32_t i = 0; sound && i < h->lines; i++) {
        const line_row *l = &p->lines[i];
        sound = compute(l->function, values, p->terms + l->first, l->count, &values[known + i]);
    }
    for (int32_t i = 0; sound && i < h->gaps; i++)
        cells[p->gaps[i].cell] = values[p->formulas[p->gaps[i].formula].value];
    memory_give(values);
    return sound || refuse(why, "a size is beyond all bounds");
}

typedef struct { const plan *p; const int64_t *sizes; } by_size;

static int64_t room_of(const plan *p, const int64_t *cells, int32_t lying) {
    const int64_t size = cells[p->which[lying]];
    return ((size > 1 ? size : 1) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Larger ones come first, then those used earlier. */
static bool lies_later(const void *with, int32_t a, int32_t b) {
    const by_size *s = with;
    const int64_t x = s->sizes[s->p->which[a]], y = s->sizes[s->p->which[b]];
    if (x != y)
        return x < y;
    return s->p->first[a] != s->p->first[b] ? s->p->first[a] > s->p->first[b] : a > b;
}

/* Places the largest first, each into the smallest sufficient gap between those alive with it, else after them; as
 * `pelton.engine.memory`. */
static bool lay_out(const plan *p, const int64_t *cells, int64_t *starts, int64_t *arena, reason *why) {
    const int32_t n = p->lying;
    int32_t *order = memory_take(sizeof *order * (2 * (size_t)n + 1)), *near = order + n;
    if (!order)
        return refuse(why, "there is no memory for its plan");
    for (int32_t i = 0; i < n; i++)
        order[i] = i, starts[p->which[i]] = -1;
    sort(order, n, lies_later, &(by_size){p, cells});
    *arena = 0;
    for (int32_t k = 0; k < n; k++) {
        const int32_t i = order[k];
        int32_t count = 0;
        for (int32_t b = p->bounds[i]; b < p->bounds[i + 1]; b++) {
            const int32_t other = p->beside[b];
            const int64_t start = starts[p->which[other]];
            if (start < 0)
                continue;
            int32_t place = count++;
            for (; place && starts[p->which[near[place - 1]]] > start; place--)
                near[place] = near[place - 1];
            near[place] = other;
        }
        const int64_t size = room_of(p, cells, i);
        int64_t at = 0, best = -1, gap = 0;
        for (int32_t c = 0; c < count; c++) {
            const int64_t start = starts[p->which[near[c]]], end = start + room_of(p, cells, near[c]);
            if (start - at >= size && (best < 0 || start - at < gap))
                best = at, gap = start - at;
            at = end > at ? end : at;
        }
        starts[p->which[i]] = best < 0 ? at : best;
        const int64_t end = starts[p->which[i]] + size;
        *arena = end > *arena ? end : *arena;
        if (*arena >= MAX_BYTES) {
            memory_give(order);
            return refuse(why, "its arena has %d bytes", *arena);
        }
    }
    memory_give(order);
    return true;
}

/* Returns the bytes of an array, -1 if its shape is invalid; 0 if an axis is empty. */
static int64_t array_bytes(int32_t dtype, const int64_t *shape, int32_t rank) {
    int64_t bytes = dtype_bytes(dtype);
    bool empty = false;
    for (int32_t d = 0; d < rank; d++) {
        if (shape[d] < 0 || shape[d] >= MAX_BYTES)
            return -1;
        empty |= !shape[d];
        if (shape[d] && (__builtin_mul_overflow(bytes, shape[d], &bytes) || bytes >= MAX_BYTES))
            return -1;
    }
    return empty ? 0 : bytes;
}

static bool check_sizes(const plan *p, const int64_t *cells, const int64_t *starts, int64_t arena, reason *why) {
    const plan_head *h = p->head;
    for (int32_t i = 0; i < h->inputs + h->outputs; i++) {
        const port_row *t = &p->ports[i];
        if (array_bytes(t->dtype, cells + t->shape, t->rank) < 0)
            return refuse(why, "%s is of a shape that no array has", p->text + t->name);
    }
    for (int32_t i = 0; i < h->buffers; i++) {
        const buffer_row *b = &p->buffers[i];
        const int64_t size = cells[i];
        if (size < 0 || size >= MAX_BYTES)
            return refuse(why, "buffer %d has %d bytes", (int64_t)i, size);
        switch (b->kind) {
        case INPUT: case OUTPUT: {
            const port_row *t = &p->ports[b->offset + (b->kind == OUTPUT ? h->inputs : 0)];
            const int64_t bytes = array_bytes(t->dtype, cells + t->shape, t->rank);
            if (size != bytes)
                return refuse(why, "buffer %d has %d bytes, %s has %d", (int64_t)i, size, p->text + t->name, bytes);
            break;
        }
        case SIZES: case IOTA:
            if (size % dtype_bytes(b->dtype)
                || (b->kind == SIZES && (b->dtype != I64 || size != 8 * (int64_t)b->count)))
                return refuse(why, "buffer %d has %d bytes for %d sizes", (int64_t)i, size, (int64_t)b->count);
            break;
        case STRINGS: break;
        default: {
            const int64_t limit = b->kind == ZEROS ? MAX_ZEROS : b->kind == ARENA ? arena : p->constants;
            /* a buffer in the arena that no step uses has no place */
            if (!(b->kind == ARENA && h->symbols) && (starts[i] % ALIGNMENT || !within(starts[i], size, limit)))
                return refuse(why, "buffer %d is %d bytes from %d on, there are %d", (int64_t)i, size, starts[i],
                              limit);
        }
        }
    }
    for (int32_t i = 0; i < h->outputs; i++) {
        const port_row *t = &p->ports[h->inputs + i];
        bool made = !array_bytes(t->dtype, cells + t->shape, t->rank);
        for (int32_t b = 0; b < h->buffers && !made; b++)
            made = p->buffers[b].kind == OUTPUT && p->buffers[b].offset == i;
        if (!made)
            return refuse(why, "no buffer is output %s", p->text + t->name);
    }
    return true;
}

static bool check_reach(const plan *p, const plan_step *s, const tensor_row *t, const int64_t *cells, reason *why) {
    const int64_t *shape = cells + t->shape, *strides = cells + t->strides, offset = cells[t->offset];
    const int64_t bytes = array_bytes(t->dtype, shape, t->rank), element = dtype_bytes(t->dtype);
    int64_t room = cells[t->buffer], begin = offset, end = offset + element;
    if (bytes < 0 || offset < 0 || offset > room)
        return refuse(why, "step %s uses byte %d of buffer %d", label(p, s), offset, (int64_t)t->buffer);
    for (int32_t d = 0; d < t->rank; d++) {
        int64_t span;
        if (strides[d] <= -MAX_BYTES || strides[d] >= MAX_BYTES)
            return refuse(why, "a stride of step %s is %d", label(p, s), strides[d]);
        if (!bytes)
            continue;
        if (__builtin_mul_overflow(shape[d] - 1, strides[d], &span) || __builtin_mul_overflow(span, element, &span)
            || __builtin_add_overflow(span < 0 ? begin : end, span, span < 0 ? &begin : &end))
            return refuse(why, "step %s reaches beyond all bounds", label(p, s));
    }
    if (p->buffers[t->buffer].kind == TEXT)
        return true; /* Python knows the number of strings */
    if (t->dtype == STRING) {
        room = room / element * element;
        if (offset % element)
            return refuse(why, "step %s uses byte %d of strings", label(p, s), offset);
    }
    if (bytes && (begin < 0 || end > room))
        return refuse(why, "step %s reaches byte %d of buffer %d, which has %d", label(p, s), begin < 0 ? begin : end,
                      (int64_t)t->buffer, room);
    return true;
}

static bool check_work(const plan *p, const int64_t *cells, reason *why) {
    for (int32_t i = 0; i < p->all; i++) {
        const plan_step *s = &p->steps[i];
        const int64_t tiles = cells[p->tiles + i], phases = cells[p->phases + i], scratch = cells[p->scratch + i];
        if (tiles < 0 || tiles > MAX_TILES || phases < 1 || phases > MAX_TILES || tiles * phases > MAX_TILES)
            return refuse(why, "step %s has %d phases of %d tiles", label(p, s), phases, tiles);
        if (scratch < 0 || scratch >= MAX_BYTES)
            return refuse(why, "step %s needs %d bytes of scratch memory", label(p, s), scratch);
        for (int32_t k = 0; k < s->args; k++) {
            const int64_t offset = cells[s->words + k], room = cells[p->operands[s->operands + k]];
            if (offset < 0 || offset > room)
                return refuse(why, "step %s uses byte %d of buffer %d, which has %d", label(p, s), offset,
                              (int64_t)p->operands[s->operands + k], room);
        }
        for (int32_t k = 0; k < s->reads + s->writes; k++)
            if (!check_reach(p, s, &p->tensors[k < s->reads ? s->inputs + k : s->outputs + k - s->reads], cells, why))
                return false;
    }
    return true;
}

bool plan_resolve(const plan *p, const int64_t *symbols, int64_t *cells, int64_t *starts, int64_t *arena, reason *why) {
    const plan_head *h = p->head;
    if (!plan_fill(p, symbols, cells, why))
        return false;
    for (int32_t i = 0; i < h->buffers; i++) {
        const int32_t kind = p->buffers[i].kind;
        starts[i] = kind == ARENA || kind == ZEROS || kind == CONSTANT || kind == TABLE || kind == TEXT
                        ? p->buffers[i].offset : 0;
        if (cells[i] < 0 || cells[i] >= MAX_BYTES)
            return refuse(why, "buffer %d has %d bytes", (int64_t)i, cells[i]);
    }
    *arena = h->arena;
    return (!h->symbols || lay_out(p, cells, starts, arena, why)) && check_sizes(p, cells, starts, *arena, why)
        && check_work(p, cells, why);
}

int32_t plan_value(const plan *p, int32_t cell) {
    int32_t low = 0, high = p->head->gaps;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (p->gaps[middle].cell < cell)
            low = middle + 1;
        else
            high = middle;
    }
    const bool found = low < p->head->gaps && p->gaps[low].cell == cell;
    return found ? p->formulas[p->gaps[low].formula].value : -1;
}

/* Returns the symbol that a value is a multiple of, with the factor in `times`; -1 for others. */
static int32_t symbol_of(const plan *p, int32_t value, int64_t *times) {
    const plan_head *h = p->head;
    *times = 1;
    if (value < h->symbols)
        return value;
    const int32_t line = value - h->symbols - h->numbers;
    if (line < 0 || p->lines[line].function != PRODUCT || p->lines[line].count != 2)
        return -1;
    const int32_t *terms = p->terms + p->lines[line].first;
    for (int k = 0; k < 2; k++) {
        const int32_t number = terms[!k] - h->symbols;
        if (terms[k] < h->symbols && number >= 0 && number < h->numbers && p->numbers[number] > 0) {
            *times = p->numbers[number];
            return terms[k];
        }
    }
    return -1;
}

void plan_range(const plan *p, int32_t cell, int64_t *least, int64_t *greatest) {
    const int32_t value = plan_value(p, cell);
    int64_t times;
    const int32_t s = value < 0 ? -1 : symbol_of(p, value, &times);
    *least = s < 0 ? p->cells[cell] : p->symbols[s].minimum * times;
    *greatest = s < 0 ? p->cells[cell] : p->symbols[s].maximum * times;
}

bool plan_solve(const plan *p, const int64_t *const *shapes, bool bounded, int64_t *symbols, reason *why) {
    const plan_head *h = p->head;
    for (int32_t i = 0; i < h->symbols; i++)
        symbols[i] = -1;
    for (int32_t i = 0; i < h->inputs; i++) {
        const port_row *t = &p->ports[i];
        for (int32_t d = 0; d < t->rank; d++) {
            const int32_t value = plan_value(p, t->shape + d);
            int64_t times;
            const int32_t s = value < 0 ? -1 : symbol_of(p, value, &times);
            if (s < 0 || symbols[s] >= 0)
                continue;
            const symbol_row *of = &p->symbols[s];
            const int64_t size = shapes[i][d] / times;
            if (shapes[i][d] < 0 || (bounded && (size < of->minimum || size > of->maximum)))
                return refuse(why, "axis %d of input %s may have %d to %d, got %d", (int64_t)d, p->text + t->name,
                              of->minimum * times, of->maximum * times, shapes[i][d]);
            symbols[s] = size;
        }
    }
    for (int32_t i = 0; i < h->symbols; i++)
        if (symbols[i] < 0)
            symbols[i] = p->symbols[i].optimum;
    return true;
}

bool plan_fits(const plan *p, const int64_t *cells, const int64_t *const *shapes, reason *why) {
    for (int32_t i = 0; i < p->head->inputs; i++) {
        const port_row *t = &p->ports[i];
        for (int32_t d = 0; d < t->rank; d++)
            if (cells[t->shape + d] != shapes[i][d])
                return refuse(why, "axis %d of input %s is %d, got %d", (int64_t)d, p->text + t->name,
                              cells[t->shape + d], shapes[i][d]);
    }
    return true;
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

bool plan_make_buffers(const plan *p, const int64_t *cells, char **made) {
    for (int32_t i = 0; i < p->head->buffers; i++) {
        const buffer_row *b = &p->buffers[i];
        if (b->kind != SIZES && b->kind != IOTA && b->kind != ZEROS)
            continue;
        const size_t bytes = (size_t)cells[i];
        if ((int64_t)bytes != cells[i] || !(made[i] = memory_take(bytes)))
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
