/* Explores every execution of a few threads on a weak memory; see memory_machine.py.
 *
 * The memory is that of Kang et al., "A Promising Semantics for Relaxed-Memory Concurrency" (POPL 2017), without
 * promises. A location is a list of messages. A thread has a view: for each location the oldest message that it may
 * still read. A release adds the thread's view to its message; an acquire takes it over. Plain variables must be
 * accessed in an order that views establish; anything else is a race.
 *
 * seq_cst accesses have one order, but it need not be the one in which they are made here. So a view also has, for each
 * location, the newest message of a seq_cst access that is earlier in that order: one that happened before, or is
 * earlier in the order of a location. A seq_cst access is thus no fence for other accesses of its thread. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, PLACES = 16, PLAINS = 16, MESSAGES = 200, PATH = 4096 };
enum { LOAD, STORE, SWAP, ADD, AND, OR, UNTIL, WAIT, WAKE, READ, WRITE, CHOOSE, ENDED, FAILED };
enum { RELAXED, ACQUIRE, RELEASE, ACQ_REL, SEQ_CST };
enum { WRONG = -1, RACE = -2, STUCK = -3, TOO_MANY = -4, FULL = -5, UNROUSED = -6 };

/* SWAP compares with `a` and stores `b`; UNTIL waits for a value without the bits of `a`, and at least `b`; WAIT sleeps
 * while the value is `a`; WAKE wakes `a` sleepers; CHOOSE has `a` outcomes. */
typedef struct {
    int32_t kind, place, order, failure, a, b;
} access;

typedef struct {
    uint8_t at[PLACES];                /* the oldest message that may be read */
    uint8_t before[PLACES];            /* the newest message of a seq_cst access that came before */
    uint8_t plain[PLAINS];             /* bit 0: the last write was before; others: the last read of each thread was */
} view;

typedef struct {
    int16_t value, joined;             /* joined: a read-modify-write of the message before, nothing comes between */
    view seen;
    uint8_t written[PLACES], read[PLACES]; /* `before` of seq_cst accesses that wrote and read it */
} message;

typedef struct {
    int64_t event;                     /* the last one before, in the log; not of the state */
    int32_t local[THREADS];
    int8_t asleep[THREADS];            /* 1 + the place that it sleeps on */
    view views[THREADS], kernel;       /* kernel: system calls are fences; its plain part is unused */
    int16_t expects[THREADS];          /* the value with which it fell asleep */
    int16_t plain[PLAINS];
    uint16_t first[PLACES + 1];        /* messages of a place: first[p] to first[p + 1] */
    message messages[MESSAGES];
} state;

typedef int32_t advance(int32_t local, int32_t result, access *next);

typedef struct {
    int32_t result, next;
} edge;

typedef struct {
    access a;
    edge *edges;
    int32_t count;
} node;

typedef struct {
    int64_t before;                    /* in the log */
    int32_t thread, local;
} event;

static struct {
    int threads, places, plains;
    advance *advance;
    node *nodes;
    int32_t known;
    uint64_t *table;
    int64_t room, states;
    event *log;
    int64_t events, events_room;
    state *stack;
    int64_t depth, stack_room;
    int verdict;
    int64_t end;                       /* the event where it was found */
} x;

static void *grow(void *p, int64_t *room, size_t size) {
    *room = *room ? 2 * *room : 1024;
    return realloc(p, (size_t)*room * size);
}

static node *know(int32_t local, const access *a) {
    if (local >= x.known) {
        const int32_t more = 2 * local + 64;
        x.nodes = realloc(x.nodes, (size_t)more * sizeof *x.nodes);
        for (int32_t i = x.known; i < more; i++) x.nodes[i] = (node){.a = {.kind = -1}};
        x.known = more;
    }
    if (a) x.nodes[local].a = *a;
    return &x.nodes[local];
}

static int32_t after(int32_t local, int32_t result) {
    const node *n = &x.nodes[local];
    for (int32_t i = 0; i < n->count; i++)
        if (n->edges[i].result == result) return n->edges[i].next;
    access next;
    const int32_t to = x.advance(local, result, &next);
    know(to, &next);
    node *m = &x.nodes[local];
    m->edges = realloc(m->edges, (size_t)(m->count + 1) * sizeof *m->edges);
    m->edges[m->count++] = (edge){result, to};
    return to;
}

static void raise(uint8_t *to, const uint8_t *from) {
    for (int p = 0; p < PLACES; p++) to[p] = from[p] > to[p] ? from[p] : to[p];
}

static void join(view *to, const view *from) {
    raise(to->at, from->at);
    raise(to->before, from->before);
    for (int p = 0; p < PLAINS; p++) to->plain[p] |= from->plain[p];
}

static void fence(state *s, int t) {
    raise(s->views[t].at, s->kernel.at), raise(s->views[t].before, s->kernel.before);
    raise(s->kernel.at, s->views[t].at), raise(s->kernel.before, s->views[t].before);
}

#define EACH_VIEW(s, v)                                                                                        \
    for (int i_ = -(s)->first[x.places]; i_ <= x.threads; i_++)                                                \
        for (view *v = i_ < 0 ? &(s)->messages[i_ + (s)->first[x.places]].seen                                 \
                              : i_ < x.threads ? &(s)->views[i_] : &(s)->kernel; v; v = NULL)
#define EACH_MESSAGE(s, m) for (message *m = (s)->messages; m < (s)->messages + (s)->first[x.places]; m++)

static void lower(uint8_t *at, int by) { *at = *at > by ? (uint8_t)(*at - by) : 0; }

/* Drops messages that no thread can read, for equal states to be equal. */
static void tidy(state *s) {
    for (int p = 0; p < x.places; p++) {
        int low = 255;
        for (int t = 0; t < x.threads; t++)
            if (x.nodes[s->local[t]].a.kind != ENDED && s->views[t].at[p] < low) low = s->views[t].at[p];
        const int most = s->first[p + 1] - s->first[p] - 1;
        low = low > most ? most : low;
        if (!low) continue;
        message *m = s->messages + s->first[p];
        for (int k = 0; k < low; k++) raise(m[low].written, m[k].written), raise(m[low].written, m[k].read);
        memmove(m, m + low, (size_t)(s->first[x.places] - s->first[p] - low) * sizeof *m);
        for (int q = p + 1; q <= x.places; q++) s->first[q] -= (uint16_t)low;
        m->joined = 0;
        EACH_VIEW(s, v) lower(&v->at[p], low), lower(&v->before[p], low);
        EACH_MESSAGE(s, n) lower(&n->written[p], low), lower(&n->read[p], low);
    }
}

/* Puts a message behind message `k` of a place; `inherited`: the view of that message, if it is exchanged. */
static void insert(state *s, int t, int p, int k, int value, int order, const view *inherited) {
    const int at = s->first[p] + k + 1;
    memmove(s->messages + at + 1, s->messages + at, (size_t)(s->first[x.places] - at) * sizeof *s->messages);
    memset(&s->messages[at], 0, sizeof *s->messages);
    for (int q = p + 1; q <= x.places; q++) s->first[q]++;
    EACH_VIEW(s, v) v->at[p] += v->at[p] > k, v->before[p] += v->before[p] > k;
    EACH_MESSAGE(s, n) n->written[p] += n->written[p] > k, n->read[p] += n->read[p] > k;
    s->views[t].at[p] = (uint8_t)(k + 1);
    message m = {.value = (int16_t)value, .joined = inherited != NULL};
    m.seen.at[p] = (uint8_t)(k + 1);
    if (order >= RELEASE) join(&m.seen, &s->views[t]);
    if (inherited) join(&m.seen, inherited);            /* a release sequence goes on */
    s->messages[at] = m;
}

/* Places a seq_cst access of message k in the order of all; false if it cannot be there. */
static bool place(state *s, int t, int p, int k, bool writes) {
    uint8_t *const own = s->views[t].before;
    message *m = s->messages + s->first[p];
    for (int i = 0; i < k; i++) raise(own, m[i].written), raise(own, m[i].read);
    if (!writes) raise(own, m[k].written);
    if (own[p] > k) return false;
    own[p] = (uint8_t)k;
    raise(writes ? m[k].written : m[k].read, own);
    uint8_t copy[PLACES];
    memcpy(copy, own, sizeof copy);
    EACH_VIEW(s, v) if (v->before[p] > k) raise(v->before, copy);      /* what came after it in this place */
    EACH_MESSAGE(s, n) if (n->written[p] > k) raise(n->written, copy);
    EACH_MESSAGE(s, n) if (n->read[p] > k) raise(n->read, copy);
    if (writes) raise(m[k].seen.before, copy);
    return true;
}

static void note(state *s, int t) {
    if (x.events == x.events_room) x.log = grow(x.log, &x.events_room, sizeof *x.log);
    x.log[x.events] = (event){s->event, t, s->local[t]};
    s->event = x.events++;
}

static void found(int verdict, const state *s) {
    if (!x.verdict) x.verdict = verdict, x.end = s->event;
}

static bool plainly(state *s, int t, const access *a) {
    const int p = a->place;
    uint8_t *const own = &s->views[t].plain[p];
    const uint8_t all = (uint8_t)((2 << x.threads) - 1), mine = (uint8_t)(2 << t);
    if (a->kind == READ) {
        if (!(*own & 1)) return false;
        EACH_VIEW(s, v) v->plain[p] &= (uint8_t)~mine;
        *own |= mine;
    } else {
        if (*own != all) return false;
        EACH_VIEW(s, v) v->plain[p] = all & ~1;
        *own = all;
        s->plain[p] = (int16_t)a->a;
    }
    memset(s->kernel.plain, 0, sizeof s->kernel.plain);
    return true;
}

/* Makes the accesses to plain variables that come next: where no race is, their place among others is all one. */
static void settle(state *s) {
    for (int t = 0; t < x.threads; t++)
        while (!s->asleep[t]) {
            const access a = x.nodes[s->local[t]].a;
            if (a.kind != READ && a.kind != WRITE && a.kind != FAILED) break;
            note(s, t);
            if (a.kind == FAILED || !plainly(s, t, &a)) found(a.kind == FAILED ? WRONG : RACE, s);
            if (x.verdict) return;
            s->local[t] = after(s->local[t], a.kind == READ ? s->plain[a.place] : 0);
        }
}

static size_t bytes_of(const state *s) { return offsetof(state, messages) + s->first[x.places] * sizeof(message); }

/* 64 bits: two states of a million have the same with a probability of 1 : 10⁷. */
static uint64_t hash_of(const state *s) {
    const char *const bytes = (const char *)s + sizeof s->event;
    const size_t n = bytes_of(s) - sizeof s->event;
    uint64_t h[4] = {n, 1, 2, 3}, words[4];
    for (size_t i = 0; i < n; i += sizeof words) {
        if (n - i < sizeof words) memset(words, 0, sizeof words);
        memcpy(words, bytes + i, n - i < sizeof words ? n - i : sizeof words);
        for (int k = 0; k < 4; k++) {
            h[k] = (h[k] ^ words[k]) * UINT64_C(0x9e3779b97f4a7c15);
            h[k] ^= h[k] >> 29;
        }
    }
    uint64_t all = 0;
    for (int k = 0; k < 4; k++) all = (all ^ h[k]) * UINT64_C(0xff51afd7ed558ccd), all ^= all >> 32;
    return all ? all : 1;
}

static uint64_t *entry_of(uint64_t h) {
    const uint64_t mask = (uint64_t)x.room - 1;
    uint64_t i = h & mask;
    while (x.table[i] && x.table[i] != h) i = (i + 1) & mask;
    return &x.table[i];
}

static bool is_new(uint64_t h) {
    if (2 * x.states >= x.room) {
        const int64_t old = x.room;
        uint64_t *before = x.table;
        x.room = old ? 2 * old : 1 << 16;
        x.table = calloc((size_t)x.room, sizeof *x.table);
        for (int64_t i = 0; i < old; i++) if (before[i]) *entry_of(before[i]) = before[i];
        free(before);
    }
    uint64_t *entry = entry_of(h);
    const bool fresh = !*entry;
    x.states += fresh;
    *entry = h;
    return fresh;
}

/* Ends a step: `s` is the state, of which thread `t` got `result`. */
static void push(state *s, int t, int32_t result) {
    note(s, t);
    if (s->first[x.places] + 1 >= MESSAGES) found(FULL, s);
    s->local[t] = after(s->local[t], result);
    settle(s);
    tidy(s);
    if (x.verdict || !is_new(hash_of(s))) return;
    if (x.depth == x.stack_room) x.stack = grow(x.stack, &x.stack_room, sizeof *x.stack);
    memcpy(&x.stack[x.depth++], s, bytes_of(s));
}

/* Reads message k. */
static void take(state *s, int t, int p, int k, int order) {
    s->views[t].at[p] = (uint8_t)k;
    if (order == ACQUIRE || order >= ACQ_REL) join(&s->views[t], &s->messages[s->first[p] + k].seen);
}

static int altered(const access *a, int value) {
    switch (a->kind) {
    case STORE: return a->a;
    case ADD: return value + a->a;
    case AND: return value & a->a;
    case OR: return value | a->a;
    default: return a->b;
    }
}

/* Pushes every outcome of the next access of thread t; returns their number. */
static int step(const state *from, int t) {
    static state s;
    const access a = x.nodes[from->local[t]].a;
    const int p = a.place, count = a.kind < CHOOSE ? from->first[p + 1] - from->first[p] : 0;
    const size_t size = bytes_of(from);
    int outcomes = 0;
    for (; a.kind == CHOOSE && outcomes < a.a; outcomes++) {
        memcpy(&s, from, size);
        push(&s, t, outcomes);
    }
    if (a.kind == CHOOSE || a.kind == ENDED) return outcomes;
    if (a.kind == WAKE) {              /* a system call, so a fence */
        int sleepers = 0;
        for (int k = 0; k < x.threads; k++) sleepers += from->asleep[k] == p + 1;
        for (int set = 0; set < 1 << x.threads; set++) {
            int woken = 0;
            for (int k = 0; k < x.threads; k++) if (set >> k & 1) woken += from->asleep[k] == p + 1 ? 1 : THREADS;
            if (woken != (sleepers < a.a ? sleepers : a.a)) continue;
            memcpy(&s, from, size);
            outcomes++;
            fence(&s, t);
            for (int k = 0; k < x.threads; k++) if (set >> k & 1) s.asleep[k] = 0, s.expects[k] = 0;
            push(&s, t, 0);
        }
        return outcomes;
    }
    static state fenced;
    if (a.kind == WAIT) {              /* another one */
        memcpy(&fenced, from, size);
        fence(&fenced, t);
        from = &fenced;
    }
    const int order = a.kind == WAIT ? SEQ_CST : a.order;
    for (int k = from->views[t].at[p]; k < count; k++) {
        const message *m = &from->messages[from->first[p] + k];
        const bool exchanges = a.kind == ADD || a.kind == AND || a.kind == OR || (a.kind == SWAP && m->value == a.a);
        const bool writes = exchanges || a.kind == STORE;
        const int by = a.kind == SWAP && !exchanges ? a.failure : order;
        if (writes && k + 1 < count && m[1].joined) continue;
        if (a.kind == UNTIL && (m->value & a.a || m->value < a.b)) continue;
        memcpy(&s, from, size);
        const view inherited = m->seen;
        if (a.kind == WAIT) s.views[t].at[p] = (uint8_t)k;
        else if (a.kind != STORE) take(&s, t, p, k, by);
        if (writes) insert(&s, t, p, k, altered(&a, m->value), by, exchanges ? &inherited : NULL);
        if (by == SEQ_CST && !place(&s, t, p, k + writes, writes)) continue;
        outcomes++;
        if (a.kind == WAIT && m->value == a.a) s.asleep[t] = (int8_t)(p + 1), s.expects[t] = m->value;
        push(&s, t, a.kind == SWAP ? 2 * m->value + exchanges : m->value);
    }
    return outcomes;
}

/* Returns the number of states, or a verdict; `path`: pairs of thread and local state that lead to it. */
__attribute__((visibility("default")))
int64_t explore(int threads, const int32_t *locals, const access *begins, int places, const int32_t *values, int plains,
                advance *advance, int64_t most, int32_t *path, int32_t *length) {
    memset(&x, 0, sizeof x);
    x.threads = threads, x.places = places, x.plains = plains, x.advance = advance, x.end = -1;
    state s;
    memset(&s, 0, sizeof s);
    s.event = -1;
    for (int p = 0; p < places; p++) {
        s.messages[p] = (message){.value = (int16_t)values[p]};
        s.first[p + 1] = (uint16_t)(p + 1);
    }
    for (int t = 0; t < threads; t++) {
        s.local[t] = locals[t];
        know(locals[t], &begins[t]);
        memset(s.views[t].plain, (2 << threads) - 1, sizeof s.views[t].plain);
    }
    settle(&s);
    tidy(&s);
    is_new(hash_of(&s));
    x.stack = grow(x.stack, &x.stack_room, sizeof s);
    x.stack[x.depth++] = s;
    while (x.depth && !x.verdict) {
        x.depth--;
        memcpy(&s, &x.stack[x.depth], bytes_of(&x.stack[x.depth]));
        int outcomes = 0, choosing = -1;
        for (int t = 0; t < threads; t++) if (x.nodes[s.local[t]].a.kind == CHOOSE && !s.asleep[t]) choosing = t;
        for (int t = 0; t < threads; t++)
            if (!s.asleep[t] && (choosing < 0 || choosing == t)) outcomes += step(&s, t);
        for (int t = 0; !outcomes && t < threads; t++)        /* on place 0 threads may sleep for ever */
            if (s.asleep[t] == 1 && s.messages[s.first[1] - 1].value != s.expects[t]) found(UNROUSED, &s);
            else if (x.nodes[s.local[t]].a.kind != ENDED && s.asleep[t] != 1) found(STUCK, &s);
        if (x.states > most) found(TOO_MANY, &s);
    }
    *length = 0;
    for (int64_t e = x.end; e >= 0 && *length < PATH; e = x.log[e].before) {
        path[2 * *length] = x.log[e].thread;
        path[2 * (*length)++ + 1] = x.log[e].local;
    }
    for (int32_t i = 0; i < x.known; i++) free(x.nodes[i].edges);
    free(x.nodes), free(x.table), free(x.log), free(x.stack);
    return x.verdict ? x.verdict : x.states;
}
