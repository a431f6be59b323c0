/* An engine for one set of sizes, in the memory of a context. See engine.h. */
#define _GNU_SOURCE
#include <string.h>

#include "context.h"
#include "share.h"

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
    const int32_t *chosen = c->engine->chosen;
    for (int32_t i = begin; i < end; i++) {
        const plan_step *s = &p->steps[chosen[i]];
        all_patches += s->args;
        all_words += (int64_t)s->args + s->dims;
    }
    step_row *rows = memory_zeros((size_t)(end - begin), sizeof *rows);
    int64_t *words = memory_zeros((size_t)all_words, sizeof *words);
    patch_row *patches = memory_zeros((size_t)all_patches, sizeof *patches);
    program *made = NULL;
    if (rows && words && patches) {
        int64_t word = 0, patched = 0;
        for (int32_t i = begin; i < end; i++) {
            const int32_t k = chosen[i];
            const plan_step *s = &p->steps[k];
            rows[i - begin] = (step_row){(int64_t)(intptr_t)c->engine->kernels[k], word, r->cells[p->tiles + k],
                                         s->grain, s->wave, r->cells[p->scratch + k], r->cells[p->phases + k]};
            memcpy(words + word, r->cells + s->words, sizeof *words * ((size_t)s->args + s->dims));
            for (int32_t a = 0; a < s->args; a++, word++) {
                const int32_t number = p->operands[s->operands + a];
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

/* Frees the plans of the context: they point into the old memory. */
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
    if (need <= (size_t)c->limit)
        return true;
    const char *const owner = c->limit < share_installed() ? "its control group allows" : "this machine has";
    const int64_t tenths = (int64_t)(need / 100000000) + 1, have = c->limit / 100000000; /* of GB */
    return refuse(why, "it needs %d.%d GB for a context of %d threads, %s %d.%d GB; use fewer threads or a smaller "
                  "input", tenths / 10, tenths % 10, (int64_t)c->threads, owner, have / 10, have % 10);
}

static bool place(prepared *r, const int64_t *symbols, bool *moved, reason *why) {
    pelton_context *c = r->context;
    const plan *p = c->engine->plan;
    int64_t arena;
    if (!plan_resolve(p, symbols, r->cells, r->starts, &arena, why))
        return false;
    size_t scratch = 0, more = 0;
    for (int32_t i = 0; i < p->all; i++) {
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
    return plan_make_buffers(p, r->cells, r->made) || refuse(why, "there is no memory for its sizes");
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
