/* What the runtime needs of the machine: a clock, a pause and a futex. */
#ifndef PELTON_PLATFORM_H
#define PELTON_PLATFORM_H

#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "kernel.h"

enum { LINE = 64 }; /* bytes of a cache line */

static inline int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static inline void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("yield");
#endif
}

/* Sleeps while *word is `seen`; may also return spuriously. */
static inline void futex_wait(_Atomic uint32_t *word, uint32_t seen) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static inline void futex_wake(_Atomic uint32_t *word, int sleepers) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, sleepers, NULL, NULL, 0);
}

/* A bounded wait: pauses first, then yields the core, then gives up. */
typedef struct {
    int64_t start, limit;   /* ns; a limit of 0 never spins */
    idx rounds;
    bool yielding;          /* more threads than cores: the awaited thread may need this core */
} spin;

static inline spin spin_for(int64_t limit, bool crowded) {
    return (spin){.start = limit ? now() : 0, .limit = limit, .yielding = crowded};
}

static inline bool keep_spinning(spin *s) {
    if (s->limit == 0)
        return false;
    if (s->yielding)
        sched_yield();
    else
        pause_cpu();
    if (++s->rounds % (s->yielding ? 4 : 32) == 0) {
        int64_t spent = now() - s->start;
        if (spent > s->limit)
            return false;
        s->yielding |= spent > s->limit / 2;
    }
    return true;
}

#endif
