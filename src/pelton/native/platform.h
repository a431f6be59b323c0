/* The runtime's interface to the machine and its system. A header for each system has:
 *
 *     now                             ns of a clock that never goes back
 *     word_wait, word_wake            sleep while a word is `seen` (or less), and wake the sleepers
 *     words_after_fork                makes both usable in a forked child
 *     placement, placement_of_caller, place_elsewhere, place_self
 *                                     the CPUs where a new thread may run; empty without affinity
 *     cpus_here, memory_here          CPUs of this process without quotas; bytes of the machine
 *     pages_map, pages_unmap          zeroed pages, which occupy memory only where written
 */
#ifndef PELTON_PLATFORM_H
#define PELTON_PLATFORM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernel.h"

enum { LINE = 64 }; /* bytes of a cache line */

#if defined(__linux__) && !defined(__ANDROID__) && !defined(PELTON_POSIX)
#include "platform/linux.h"
#else
#include "platform/posix.h"
#endif

static inline void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#elif defined(__riscv)
    __asm__ volatile(".4byte 0x0100000f"); /* pause (Zihintpause), a hint that other CPUs ignore */
#endif
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
