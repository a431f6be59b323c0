/* The threads of the process: started on demand, parked on one word, joining any open run. The order of each atomic
 * access has its reason in docs/memory-order.md. */
#define _GNU_SOURCE
#include "pool.h"

#include <limits.h>
#include <signal.h>
#include <string.h>

#include "memory.h"

#define STEPWISE (UINT64_C(1) << 31)
#define OPEN (UINT64_C(1) << 30)
#define JOINED (OPEN - 1)

enum { OPEN_RUNS = 64 };   /* if the directory is full, a run goes on without workers */
static const int64_t RETRY_NS = 1000000000; /* from a failed thread creation to the next */

static struct {
    _Alignas(LINE) _Atomic uint32_t bell;       /* rung for every opened run; parked workers sleep on it */
    _Atomic uint32_t parked;
    _Alignas(LINE) _Atomic(seat *) open[OPEN_RUNS];
    _Alignas(LINE) _Atomic idx computing;       /* threads inside a run or spinning for one */
    _Alignas(LINE) _Atomic idx workers;
    _Atomic idx milli_cores;
    idx generation;                             /* grows in a forked child */
    _Atomic int64_t retry_at;                   /* when to create threads again after a failure; 0: none failed */
    bool prepared;                              /* fork handlers are in place */
    seat *unused;
    pthread_mutex_t lock;                       /* for starting workers and for unused seats; never held in a run */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .milli_cores = 1000};

#ifdef POSIX_WORDS
pthread_mutex_t word_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t word_changed = PTHREAD_COND_INITIALIZER;
#endif

void pool_enter(void) { atomic_fetch_add_explicit(&pool.computing, 1, memory_order_relaxed); }
void pool_leave(void) { atomic_fetch_sub_explicit(&pool.computing, 1, memory_order_relaxed); }
void pool_cores(idx milli) { atomic_store_explicit(&pool.milli_cores, milli, memory_order_relaxed); }
bool pool_fits(idx threads) { return threads * 1000 <= atomic_load_explicit(&pool.milli_cores, memory_order_relaxed); }
bool pool_crowded(void) { return !pool_fits(atomic_load_explicit(&pool.computing, memory_order_relaxed)); }

/* Enters a seat if it is open and has room. */
static bool join(seat *s, run *r) {
    uint64_t state = atomic_load_explicit(&s->state, memory_order_acquire);
    while (state & OPEN && (state & JOINED) < atomic_load_explicit(&s->limit, memory_order_relaxed))
        if (atomic_compare_exchange_weak_explicit(&s->state, &state, state + 1,
                                                  memory_order_acquire, memory_order_acquire)) {
            *r = (run){.epoch = state >> 32, .stepwise = state & STEPWISE};
            return true;
        }
    return false;
}

/* The lowest free slot; there is one, because no more than `limit` have joined. */
static idx take_slot(seat *s) {
    for (idx w = 0;; w = (w + 1) % (MAX_THREADS / 64)) {
        uint64_t taken = atomic_load_explicit(&s->slots[w], memory_order_relaxed);
        while (~taken) {
            idx bit = __builtin_ctzll(~taken);
            if (w * 64 + bit > atomic_load_explicit(&s->limit, memory_order_relaxed))
                break;                             /* a lower slot was freed: start again */
            if (atomic_compare_exchange_weak_explicit(&s->slots[w], &taken, taken | UINT64_C(1) << bit,
                                                      memory_order_acquire, memory_order_relaxed))
                return w * 64 + bit;
        }
    }
}

static void leave(seat *s, idx slot) {
    atomic_fetch_and_explicit(&s->slots[slot / 64], ~(UINT64_C(1) << slot % 64), memory_order_release);
    atomic_fetch_sub_explicit(&s->state, 1, memory_order_release);
}

/* Takes part in one open run, if one has room. */
static bool assist(void) {
    for (int i = 0; i < OPEN_RUNS; i++) {
        seat *s = atomic_load_explicit(&pool.open[i], memory_order_acquire);
        run r;
        if (!s || !join(s, &r))
            continue;
        idx slot = take_slot(s);
        pool_enter();
        program_assist(s->program, r, slot);
        pool_leave();
        leave(s, slot);
        return true;
    }
    return false;
}

static placement allowed;                            /* of the thread that hired last; under the lock */

static void *work(void *unused) {
    (void)unused;
    pthread_mutex_lock(&pool.lock);
    const placement own = allowed;
    pthread_mutex_unlock(&pool.lock);
    place_self(&own);
    enter_kernel_mode();
    for (;;) {
        uint32_t seen = atomic_load_explicit(&pool.bell, memory_order_acquire);
        if (assist())
            continue;
        pool_enter();                                /* a spinning thread occupies a core, too */
        spin idle = spin_for(pool_crowded() ? 0 : SPIN_NS, false);
        bool rung = false;
        while (!(rung = atomic_load_explicit(&pool.bell, memory_order_relaxed) != seen) && keep_spinning(&idle)) {}
        pool_leave();
        if (!rung) {
            /* before the bell is read; ringers read `parked` after ringing */
            atomic_fetch_add(&pool.parked, 1);
            word_wait(&pool.bell, seen);
            atomic_fetch_sub_explicit(&pool.parked, 1, memory_order_relaxed);
        }
    }
    return NULL;
}

static void hire(idx workers) {
    if (atomic_load_explicit(&pool.workers, memory_order_relaxed) >= workers)
        return;
    int64_t retry_at = atomic_load_explicit(&pool.retry_at, memory_order_relaxed);
    if (retry_at && now() < retry_at)
        return;
    pthread_mutex_lock(&pool.lock);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);   /* signals belong to the program's own threads */
    pthread_attr_t elsewhere;
    pthread_attr_init(&elsewhere);
    allowed = placement_of_caller();
    place_elsewhere(&allowed, &elsewhere);
    int64_t again = 0;
    while (atomic_load_explicit(&pool.workers, memory_order_relaxed) < workers && !again) {
        pthread_t thread;
        if (pthread_create(&thread, &elsewhere, work, NULL)) {
            again = now() + RETRY_NS;                /* the existing threads finish the run */
        } else {
            pthread_detach(thread);
            atomic_fetch_add_explicit(&pool.workers, 1, memory_order_relaxed);
        }
    }
    atomic_store_explicit(&pool.retry_at, again, memory_order_relaxed);
    pthread_attr_destroy(&elsewhere);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_mutex_unlock(&pool.lock);
}

void pool_rouse(idx threads) {
    hire(threads - 1);
    atomic_fetch_add(&pool.bell, 1);
    if (atomic_load(&pool.parked))
        word_wake(&pool.bell, INT_MAX);
    spin waking = spin_for(20 * SPIN_NS, false);
    while (atomic_load(&pool.parked) && keep_spinning(&waking)) {}
}

bool seat_adopt(seat *s) {
    if (s->generation == pool.generation)
        return false;
    s->generation = pool.generation;
    atomic_fetch_and(&s->state, ~(JOINED | OPEN));
    for (int i = 0; i < MAX_THREADS / 64; i++)
        atomic_store(&s->slots[i], i == 0);
    return true;
}

run seat_open(seat *s, bool stepwise) {
    idx workers = atomic_load_explicit(&s->limit, memory_order_relaxed);
    hire(workers);
    uint64_t state = atomic_load_explicit(&s->state, memory_order_relaxed), opened;
    do {
        opened = ((state >> 32) + 1) << 32 | (stepwise ? STEPWISE : 0) | OPEN | (state & JOINED);
    } while (!atomic_compare_exchange_weak_explicit(&s->state, &state, opened,
                                                    memory_order_release, memory_order_relaxed));
    s->entry = -1;
    for (int i = 0; i < OPEN_RUNS && s->entry < 0; i++) {
        seat *empty = NULL;
        if (!atomic_load_explicit(&pool.open[i], memory_order_relaxed)
            && atomic_compare_exchange_strong_explicit(&pool.open[i], &empty, s,
                                                       memory_order_release, memory_order_relaxed))
            s->entry = i;
    }
    if (s->entry >= 0) {
        atomic_fetch_add(&pool.bell, 1);
        if (atomic_load(&pool.parked))
            word_wake(&pool.bell, (int)workers);
    }
    return (run){.epoch = opened >> 32, .stepwise = stepwise};
}

uint32_t seat_epoch(const seat *s) { return atomic_load_explicit(&s->state, memory_order_relaxed) >> 32; }

void seat_close(seat *s) {
    atomic_fetch_and_explicit(&s->state, ~OPEN, memory_order_relaxed);
    if (s->entry >= 0)
        atomic_store_explicit(&pool.open[s->entry], NULL, memory_order_relaxed);
}

static void before_fork(void) { pthread_mutex_lock(&pool.lock); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&pool.lock); }

/* The child has only this thread: it starts with an empty pool, and seats detect that by the generation. */
static void after_fork_in_child(void) {
    pthread_mutex_init(&pool.lock, NULL);
    words_after_fork();
    for (int i = 0; i < OPEN_RUNS; i++)
        atomic_store(&pool.open[i], NULL);
    atomic_store(&pool.workers, 0);
    atomic_store(&pool.parked, 0);
    atomic_store(&pool.computing, 0);
    atomic_store(&pool.retry_at, 0);
    pool.generation++;
}

seat *seat_take(program *p, idx threads) {
    pthread_mutex_lock(&pool.lock);
    bool ready = pool.prepared || !pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    pool.prepared = ready;
    seat *s = ready ? pool.unused : NULL;
    if (s)
        pool.unused = s->next;
    pthread_mutex_unlock(&pool.lock);
    if (ready && !s) {
        s = memory_take(sizeof *s);
        if (s)
            memset(s, 0, sizeof *s);
    }
    if (!s)
        return NULL;
    s->program = p;
    s->generation = pool.generation;
    s->entry = -1;
    atomic_store_explicit(&s->limit, (uint32_t)(threads - 1), memory_order_relaxed);
    atomic_store_explicit(&s->slots[0], 1, memory_order_relaxed);
    return s;
}

void seat_give(seat *s) {
    while (s->generation == pool.generation && atomic_load_explicit(&s->state, memory_order_acquire) & JOINED)
        sched_yield();
    atomic_fetch_and_explicit(&s->state, ~(JOINED | OPEN), memory_order_relaxed);
    for (int i = 0; i < MAX_THREADS / 64; i++)
        atomic_store_explicit(&s->slots[i], 0, memory_order_relaxed);
    pthread_mutex_lock(&pool.lock);
    s->next = pool.unused;
    pool.unused = s;
    pthread_mutex_unlock(&pool.lock);
}
