/* Runs the steps of a program: participants claim tiles from counters, and a wave ends when all its tiles are done. The
 * order of each atomic access has its reason in docs/memory-order.md. */
#define _GNU_SOURCE
#include "program.h"

#include "memory.h"

#include <limits.h>
#include <string.h>

typedef struct {
    kernel *k;
    const args *a;
    idx tiles, grain, phases;
} step;

typedef struct {
    _Alignas(LINE) _Atomic uint64_t next;   /* epoch << 32 | tiles claimed */
} counter;

/* The unit of claiming: one step by tiles, or a chain of short steps as a whole. */
typedef struct {
    counter *parts;                         /* one counter for each equal part of the tiles */
    const step *first;
    idx count, tiles, grain;
} unit;

typedef struct {
    _Alignas(LINE) _Atomic uint64_t done;   /* tiles finished in all runs so far: never reset */
    unit *units;
    idx count, tiles, phases, step;         /* tiles: of a phase; step: the index of its first one */
} wave;

typedef struct {
    wave *waves;
    unit *units;
    counter *counters;
    idx count;
    bool parallel;                          /* there is work for several threads */
    _Atomic uint64_t runs;
} schedule;

struct program {
    seat *seat;
    step *steps;
    args *words;
    patch_row *patches;
    idx count, n_patches, threads, parts;   /* parts: divisions of a step's tiles */
    char *scratch;
    size_t stride, scratch_bytes;           /* per participant; in total, if it is the program's own */
    schedule schedules[2];                  /* as planned; every step a wave of its own, for time stamps */
    const schedule *last;                   /* the one of the latest shared run */
    _Atomic int64_t *stamps;                /* of the latest run, if it was a profile: begin and end of each step */
    _Alignas(LINE) _Atomic idx at;          /* the caller's wave: where a late worker starts */
    _Alignas(LINE) _Atomic uint32_t bell;   /* rung at the end of a wave if a thread sleeps for it */
    _Atomic uint32_t sleepers;
};

enum { MAX_PARTS = 8 }; /* idle threads visit all parts: more would take too long */

/* ---- building a program ---- */

/* Builds waves and their units. Consecutive waves of one claim each are a chain: the thread that claims it runs it
 * alone, without synchronization. */
static bool build_schedule(schedule *s, const program *p, const step_row *rows, bool stepwise) {
    s->waves = memory_zeros(p->count, sizeof *s->waves);
    s->units = memory_zeros(p->count, sizeof *s->units);
    s->counters = memory_zeros(p->count * p->parts, sizeof *s->counters);
    if (!s->waves || !s->units || !s->counters)
        return false;
    unit *u = s->units;
    bool chain = false;                               /* the last wave may grow */
    for (idx i = 0; i < p->count;) {
        idx end = i + 1, present = 0;
        while (!stepwise && end < p->count && rows[end].wave == rows[i].wave
               && p->steps[i].phases == 1 && p->steps[end].phases == 1)
            end++;
        for (idx j = i; j < end; j++)
            present += p->steps[j].tiles > 0;
        const step *only = &p->steps[i];
        bool brief = end == i + 1 && only->tiles > 0 && only->tiles <= only->grain && only->phases == 1;
        if (brief && chain && !stepwise && u[-1].first + u[-1].count == only) {
            u[-1].count++;
            u[-1].tiles = u[-1].grain = s->waves[s->count - 1].tiles = 1;
        } else if (present || stepwise) {
            wave *w = &s->waves[s->count++];
            w->units = u;
            w->step = i;
            w->phases = only->phases;
            for (idx j = i; j < end; j++) {
                if (!p->steps[j].tiles)
                    continue;
                *u = (unit){.parts = s->counters + (u - s->units) * p->parts, .first = &p->steps[j], .count = 1,
                            .tiles = p->steps[j].tiles, .grain = p->steps[j].grain};
                u++;
                w->tiles += p->steps[j].tiles;
                w->count++;
            }
            s->parallel |= w->count > 1 || (w->count == 1 && !brief);
            chain = brief;
        }
        i = end;
    }
    s->parallel &= p->threads > 1;
    return true;
}

program *pelton_program(const step_row *rows, idx n, const int64_t *words, idx n_words,
                        const patch_row *patches, idx n_patches, idx threads, idx milli_cores, void *scratch) {
    pool_cores(milli_cores);
    program *p = memory_zeros(1, sizeof *p);
    if (!p)
        return NULL;
    p->count = n;
    p->n_patches = n_patches;
    p->threads = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
    p->parts = p->threads < MAX_PARTS ? p->threads : MAX_PARTS;
    p->steps = memory_zeros(n, sizeof *p->steps);
    p->words = memory_zeros(n_words, sizeof *p->words);
    p->patches = memory_zeros(n_patches, sizeof *p->patches);
    p->seat = seat_take(p, p->threads);
    if (!p->steps || !p->words || !p->patches || !p->seat)
        goto no_memory;
    memcpy(p->words, words, n_words * sizeof *p->words);
    memcpy(p->patches, patches, n_patches * sizeof *patches);
    for (idx i = 0; i < n; i++) {
        p->steps[i] = (step){(kernel *)rows[i].function, p->words + rows[i].word,
                             rows[i].tiles, rows[i].grain, rows[i].phases};
        size_t pages = (rows[i].scratch + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
        p->stride = pages > p->stride ? pages : p->stride;
    }
    p->scratch = scratch;
    if (p->stride && !scratch) {
        p->scratch_bytes = p->stride * p->threads;
        p->scratch = pages_take(p->scratch_bytes);
        if (!p->scratch)
            goto no_memory;
    }
    if (build_schedule(&p->schedules[0], p, rows, false) && build_schedule(&p->schedules[1], p, rows, true))
        return p;
no_memory:
    pelton_program_free(p);
    return NULL;
}

void pelton_program_free(program *p) {
    if (p->seat)
        seat_give(p->seat);
    if (p->scratch_bytes)
        pages_give(p->scratch, p->scratch_bytes);
    for (int i = 0; i < 2; i++) {
        memory_give(p->schedules[i].waves);
        memory_give(p->schedules[i].units);
        memory_give(p->schedules[i].counters);
    }
    memory_give(p->patches);
    memory_give(p->words);
    memory_give(p->steps);
    memory_give(p);
}

/* ---- running it ---- */

typedef enum { CLAIMED, EXHAUSTED, STALE } claim;

/* Claims tiles. Those of a phase are divided into parts, in order: a thread begins with the part of a feature map that
 * it worked on in the step before, which is in its own caches, and claims from other parts only afterwards. Chunks are
 * guided: large ones first, to touch counters rarely; small ones last, to end together. A counter goes on counting
 * from phase to phase. A counter of the previous epoch belongs to a finished run and counts as 0; any other epoch means
 * that this thread is late. */
static claim claim_tiles(unit *u, uint32_t epoch, idx phase, idx part, idx parts, idx *begin, idx *end) {
    const idx from = u->tiles * part / parts, all = u->tiles * (part + 1) / parts - from, to = all * (phase + 1);
    if (!all)                                         /* never claimed, so its counter is meaningless */
        return EXHAUSTED;
    counter *c = &u->parts[part];
    uint64_t next = atomic_load_explicit(&c->next, memory_order_relaxed);
    for (;;) {
        uint32_t of = next >> 32;
        if (of != epoch && of != epoch - 1)
            return STALE;
        idx claimed = of == epoch ? (idx)(next & UINT32_MAX) : 0, left = to - claimed;
        if (left <= 0)
            return EXHAUSTED;
        idx take = left / 2;
        take = take < u->grain ? u->grain : take;
        take = take > left ? left : take;
        uint64_t after = (uint64_t)epoch << 32 | (uint64_t)(claimed + take);
        if (atomic_compare_exchange_weak_explicit(&c->next, &next, after, memory_order_relaxed, memory_order_relaxed)) {
            *begin = phase * u->tiles + from + claimed - phase * all;
            *end = *begin + take;
            return CLAIMED;
        }
    }
}

static inline void execute(const unit *u, idx begin, idx end, void *scratch) {
    if (u->count == 1) {
        u->first->k(u->first->a, begin, end, scratch);
        return;
    }
    for (const step *s = u->first; s < u->first + u->count; s++)
        s->k(s->a, 0, s->tiles, scratch);
}

static bool reached(wave *w, uint64_t target) {
    return (int64_t)(atomic_load_explicit(&w->done, memory_order_acquire) - target) >= 0;
}

/* Adds finished tiles; the thread that adds the last wakes those that wait for them. */
static void credit(program *p, wave *w, idx tiles, uint64_t target) {
    if (p->stamps)
        atomic_store_explicit(&p->stamps[2 * w->step + 1], now(), memory_order_relaxed);
    if (atomic_fetch_add(&w->done, (uint64_t)tiles) + (uint64_t)tiles == target && atomic_load(&p->sleepers)) {
        atomic_fetch_add_explicit(&p->bell, 1, memory_order_release);
        word_wake(&p->bell, INT_MAX);
    }
}

static void await(program *p, wave *w, uint64_t target) {
    if (reached(w, target))
        return;
    spin s = spin_for(pool_fits(p->threads) ? SPIN_NS : 0, pool_crowded());
    while (keep_spinning(&s))
        if (reached(w, target))
            return;
    atomic_fetch_add(&p->sleepers, 1);   /* before the check below; finishers read `sleepers` after finishing */
    for (;;) {
        uint32_t seen = atomic_load_explicit(&p->bell, memory_order_acquire);
        if ((int64_t)(atomic_load(&w->done) - target) >= 0)   /* not reached(): that load is too weak here */
            break;
        word_wait(&p->bell, seen);
    }
    atomic_fetch_sub_explicit(&p->sleepers, 1, memory_order_relaxed);
}

/* Runs the rest of the waves from `start` on. Slot 0 is the caller. */
static void walk(program *p, schedule *s, uint32_t epoch, idx slot, idx start) {
    void *scratch = p->scratch ? p->scratch + slot * p->stride : NULL;
    const idx own = slot * p->parts / p->threads;
    uint64_t runs = atomic_load_explicit(&s->runs, memory_order_relaxed);
    for (idx i = start; i < s->count; i++) {
        wave *w = &s->waves[i];
        if (slot == 0)
            atomic_store_explicit(&p->at, i, memory_order_release);
        for (idx phase = 0; phase < w->phases; phase++) {
            idx finished = 0, begin, end;
            for (unit *u = w->units; u < w->units + w->count; u++) {
                for (idx part = own, n = 0; n < p->parts; n++, part = part + 1 < p->parts ? part + 1 : 0) {
                    claim c;
                    while ((c = claim_tiles(u, epoch, phase, part, p->parts, &begin, &end)) == CLAIMED) {
                        execute(u, begin, end, scratch);
                        finished += end - begin;
                    }
                    if (c == STALE)
                        return;
                }
            }
            uint64_t target = ((runs - 1) * (uint64_t)w->phases + (uint64_t)phase + 1) * (uint64_t)w->tiles;
            if (finished)
                credit(p, w, finished, target);
            await(p, w, target);
        }
    }
}

static void walk_alone(program *p, const schedule *s) {
    for (const wave *w = s->waves; w < s->waves + s->count; w++) {
        for (const unit *u = w->units; u < w->units + w->count; u++)
            execute(u, 0, u->tiles * w->phases, p->scratch);
        if (p->stamps)
            atomic_store_explicit(&p->stamps[2 * w->step + 1], now(), memory_order_relaxed);
    }
}

void program_assist(program *p, run r, idx slot) {
    walk(p, &p->schedules[r.stepwise], r.epoch, slot, atomic_load_explicit(&p->at, memory_order_acquire));
}

/* Resets all counters, as before the first run. */
static void reset(program *p) {
    for (schedule *s = p->schedules; s < p->schedules + 2; s++) {
        atomic_store(&s->runs, 0);
        for (wave *w = s->waves; w < s->waves + s->count; w++)
            atomic_store(&w->done, 0);
    }
    atomic_store(&p->sleepers, 0);
    p->last = NULL;
}

/* With `stamps`, step by step. */
static void run_schedule(program *p, _Atomic int64_t *stamps) {
    const bool stepwise = stamps != NULL;
    schedule *s = &p->schedules[stepwise];
    pool_enter();
    if (seat_adopt(p->seat))
        reset(p);
    if (p->stamps != stamps)             /* rare; also after a fork in the middle of a profile */
        p->stamps = stamps;
    if (!s->parallel) {
        walk_alone(p, s);
    } else {
        if (p->last != s) {              /* its counters may be of any epoch; no worker can still claim from them */
            uint64_t fresh = (uint64_t)seat_epoch(p->seat) << 32;
            for (counter *c = s->counters; c < s->counters + p->count * p->parts; c++)
                atomic_store_explicit(&c->next, fresh, memory_order_relaxed);
            p->last = s;
        }
        atomic_fetch_add_explicit(&s->runs, 1, memory_order_relaxed);
        atomic_store_explicit(&p->at, 0, memory_order_relaxed);
        run r = seat_open(p->seat, stepwise);
        walk(p, s, r.epoch, 0, 0);
        seat_close(p->seat);
    }
    pool_leave();
}

static void prepare(program *p, char *const *ports) {
    for (const patch_row *r = p->patches; r < p->patches + p->n_patches; r++)
        p->words[r->word].p = ports[r->port] + r->offset;
}

void pelton_program_run(program *p, char *const *ports) {
    uint64_t mode = enter_kernel_mode();
    prepare(p, ports);
    run_schedule(p, NULL);
    leave_kernel_mode(mode);
}

void pelton_program_profile(program *p, char *const *ports, int64_t *stamps) {
    uint64_t mode = enter_kernel_mode();
    prepare(p, ports);
    if (p->schedules[1].parallel)
        pool_rouse(p->threads);
    int64_t at = now();
    memset(stamps, 0, 2 * p->count * sizeof *stamps);
    run_schedule(p, (_Atomic int64_t *)stamps);
    /* a step begins when the one before it ends; one without tiles takes no time */
    for (idx i = 0; i < p->count; i++) {
        stamps[2 * i] = at;
        stamps[2 * i + 1] = at = stamps[2 * i + 1] > at ? stamps[2 * i + 1] : at;
    }
    leave_kernel_mode(mode);
}

void pelton_program_time(program *p, char *const *ports, idx repeats, int64_t *times) {
    uint64_t mode = enter_kernel_mode();
    prepare(p, ports);
    if (p->schedules[0].parallel)
        pool_rouse(p->threads);
    for (idx i = 0; i < repeats; i++) {
        int64_t begin = now();
        run_schedule(p, NULL);
        times[i] = now() - begin;
    }
    leave_kernel_mode(mode);
}
