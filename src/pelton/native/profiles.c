/* Runs engines with profiles. See profiles.h. */
#define _GNU_SOURCE
#include "profiles.h"

#include "context.h"

bool profiles_check(const chain *c, const pelton_engine *e, reason *why) {
    const plan_head *h = e->plan->head;
    if (c->head->profiles != c->count || c->head->actions)
        return refuse(why, "it has %d engines, and %d profiles", (int64_t)c->count, (int64_t)c->head->profiles);
    for (int32_t k = 0; k < c->count; k++) {
        const plan *p = c->engines[k]->plan;
        bool alike = p->head->inputs == h->inputs && p->head->outputs == h->outputs;
        for (int32_t i = 0; alike && i < h->inputs + h->outputs; i++)
            alike = p->ports[i].dtype == e->plan->ports[i].dtype && p->ports[i].rank == e->plan->ports[i].rank;
        if (!alike)
            return refuse(why, "profile %d has other inputs or outputs", (int64_t)k);
    }
    return true;
}

bool profiles_begin(pelton_context *c, int threads, reason *why) {
    const chain *all = c->engine->chain;
    c->profiles = memory_zeros((size_t)all->count, sizeof(pelton_context *));
    if (!c->profiles)
        return refuse(why, "there is no memory for a context");
    for (int32_t i = 0; i < all->count; i++)
        if (!(c->profiles[i] = pelton_context_new(all->engines[i], threads)))
            return false; /* pelton_context_new gives the reason */
    return true;
}

void profiles_end(pelton_context *c) {
    for (int32_t i = 0; c->profiles && i < c->engine->chain->count; i++)
        pelton_context_free(c->profiles[i]);
    memory_give(c->profiles);
}

bool profiles_choose(pelton_context *c, const int64_t *const *shapes, reason *why) {
    reason first = {{0}};
    for (int32_t i = 0; c->profiles && i < c->engine->chain->count; i++) {
        c->profile = c->profiles[i];
        if (!pelton_set_shapes(c->profile, shapes))
            return true;
        if (!i)
            refuse(&first, "%s", pelton_error());
    }
    c->profile = NULL;
    return !c->profiles || refuse(why, "no profile accepts these shapes; the first one: %s", first.text);
}

bool profiles_run(pelton_context *c, reason *why) {
    if (!c->profile)
        return refuse(why, "no profile accepts the shapes that were set");
    const void *const *inputs = (const void *const *)c->addresses;
    void *const *outputs = (void *const *)(c->addresses + c->engine->plan->head->inputs);
    return !pelton_run(c->profile, inputs, outputs); /* pelton_run gives the reason */
}
