/* A clock, and the median of runs of a second. */
#ifndef TIMING_H
#define TIMING_H

#include <stdint.h>
#include <stdlib.h>
#include <time.h>

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int compare_ns(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

enum { MOST_RUNS = 1 << 20 };
static int64_t run_ns[MOST_RUNS];

#define TIME_RUNS(median, run)                                                                                         \
    do {                                                                                                               \
        int runs = 0;                                                                                                  \
        for (int64_t end = now_ns() + 1000000000; now_ns() < end && runs < MOST_RUNS; runs++) {                        \
            const int64_t began = now_ns();                                                                            \
            (void)(run);                                                                                               \
            run_ns[runs] = now_ns() - began;                                                                           \
        }                                                                                                              \
        qsort(run_ns, (size_t)runs, sizeof *run_ns, compare_ns);                                                       \
        median = run_ns[runs / 2];                                                                                     \
    } while (0)

#endif
