/* Runs the steps of an engine in a module of WebAssembly. With -DTHREADS=n, up to n threads share its memory: each is
 * an instance of the module, and takes tiles of a step in turns with the others. */
#include "web.h"

#define EXPORTED(name) __attribute__((export_name(name)))

EXPORTED("port") void *port(int32_t i) {
    return (void *)ports[i];
}

EXPORTED("weights") void *address_of_weights(void) {
    return weights;
}

#if !THREADS

EXPORTED("run") int32_t run(void) {
    for (int32_t i = 0; i < step_count; i++)
        steps[i].run(words + steps[i].first, 0, steps[i].tiles * steps[i].phases, scratch);
    return 0;
}

#else

/* Claims of a step for each thread; looks at a number before it sleeps. Two claims, or eight, and eight times as many
 * looks change the time of two threads by 4 %, no more than it varies (ResNet-20, MobileNetV2, node, two cores). */
enum { CLAIMS = 4, SPINS = 1 << 14 };
enum { OPEN = 1 << 30 };

/* Numbers are sequentially consistent where a thread that is about to sleep says so before it looks again. */
static _Alignas(64) _Atomic int32_t generation; /* of the work there is; -1: the end */
static _Alignas(64) _Atomic int32_t next_tile;
static _Alignas(64) _Atomic int32_t entered; /* threads at work, less the first, and OPEN while more may begin */
static _Alignas(64) _Atomic int32_t some_sleep, first_sleeps; /* 1 if others, or the first thread, may sleep */
static _Atomic int32_t failed; /* 1 if a thread ended in a step: results are incomplete */
static const step *current;
static int32_t end_tile, claim;
int32_t thread_count;

/* Takes tiles of the current step until there are none. */
static void take(int32_t thread) {
    for (int32_t at; (at = atomic_fetch_add_explicit(&next_tile, claim, memory_order_relaxed)) < end_tile;) {
        const int32_t end = at + claim < end_tile ? at + claim : end_tile;
        current->run(words + current->first, at, end, scratch + (size_t)thread * scratch_bytes);
    }
}

static void leave(void) {
    if (atomic_fetch_sub(&entered, 1) == 1 && atomic_load(&first_sleeps))
        __builtin_wasm_memory_atomic_notify((int32_t *)&entered, 1);
}

/* Takes part in the current step, unless the first thread has closed it. */
static void help(int32_t thread) {
    int32_t threads = atomic_load(&entered);
    do {
        if (!(threads & OPEN))
            return;
    } while (!atomic_compare_exchange_weak(&entered, &threads, threads + 1));
    take(thread);
    leave();
}

/* What the threads behind the first do, until `stop`. */
EXPORTED("work") void work(int32_t thread) {
    for (int32_t seen = 0;;) {
        int32_t now = seen;
        for (int spin = 0; spin < SPINS && now == seen; spin++)
            now = atomic_load_explicit(&generation, memory_order_acquire);
        if (now == seen) {
            atomic_store(&some_sleep, 1);
            __builtin_wasm_memory_atomic_wait32((int32_t *)&generation, seen, -1);
            continue;
        }
        if (now < 0)
            return;
        seen = now;
        help(thread);
    }
}

/* What a thread does whose `work` has ended in a trap, which is in a kernel. */
EXPORTED("fail") void fail(void) {
    atomic_store(&failed, 1);
    leave();
}

static void announce(int32_t value) {
    atomic_store(&generation, value);
    if (atomic_exchange(&some_sleep, 0))
        __builtin_wasm_memory_atomic_notify((int32_t *)&generation, (uint32_t)-1);
}

/* Closes the current step, and waits for the threads that have begun: those that still wake up are not waited for. */
static void finish(void) {
    int32_t left = atomic_fetch_and(&entered, ~OPEN) & ~OPEN;
    for (int spin = 0; left && spin < SPINS; spin++)
        left = atomic_load_explicit(&entered, memory_order_acquire);
    if (!left)
        return;
    atomic_store(&first_sleeps, 1); /* one of them may wait for the core that this one spins on */
    while ((left = atomic_load(&entered)))
        __builtin_wasm_memory_atomic_wait32((int32_t *)&entered, left, -1);
    atomic_store(&first_sleeps, 0);
}

/* Runs all steps. 1 if another thread has failed. */
EXPORTED("run") int32_t run(void) {
    for (int32_t i = 0; i < step_count; i++) {
        const step *s = steps + i;
        if (thread_count < 2 || s->tiles < 2) {
            s->run(words + s->first, 0, s->tiles * s->phases, scratch);
            continue;
        }
        for (int32_t phase = 0; phase < s->phases; phase++) {
            current = s;
            end_tile = (phase + 1) * s->tiles;
            claim = s->tiles / (CLAIMS * thread_count) > 1 ? s->tiles / (CLAIMS * thread_count) : 1;
            atomic_store_explicit(&next_tile, phase * s->tiles, memory_order_relaxed);
            atomic_store(&entered, OPEN);
            const int32_t now = atomic_load_explicit(&generation, memory_order_relaxed);
            announce(now < INT32_MAX ? now + 1 : 1);
            take(0);
            finish();
        }
    }
    return atomic_load(&failed);
}

/* How many threads share the steps, with the one that calls `run`. */
EXPORTED("share") void share(int32_t threads) {
    thread_count = threads;
}

EXPORTED("stop") void stop(void) {
    announce(-1);
}

/* The end of the stack of a thread, in memory of its own. */
EXPORTED("stack") void *stack(int32_t thread) {
    static _Alignas(64) char stacks[THREADS][STACK];
    return stacks[thread] + STACK;
}

#endif
