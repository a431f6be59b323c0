/* Many short waves of random tile counts, run from several threads at once: every tile once, no wave before the end of
 * the one before. Usage: stress SECONDS CALLERS THREADS MILLI_CORES */
#define _GNU_SOURCE
#include "program.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 60, MAX_TILES = 40, PHASES = 5 };

typedef struct {
    idx runs[MAX_TILES * PHASES]; /* plain memory: only the order of waves keeps it from racing */
    idx tiles, all, wave;      /* tiles: of a phase */
} cell;

typedef struct {
    cell cells[STEPS];
    idx first[STEPS + 1];    /* step → first step of its wave */
    unsigned seed;
} world;

static void fail(const char *what) {
    fprintf(stderr, "stress: %s\n", what);
    abort();
}

/* a[0]: world, a[1]: scratch check, a[2]: own step */
static void touch(const args *a, idx begin, idx end, void *scratch) {
    world *w = a[0].p;
    idx me = a[1].d;
    volatile idx *mine = scratch;
    *mine = me * 1000 + begin;
    for (idx t = begin; t < end; t++) {
        idx past = ++w->cells[me].runs[t];
        for (idx s = w->first[me] - 1, n = 0; s >= 0 && n < 3; s--, n++)   /* earlier waves are complete */
            for (idx k = 0; k < w->cells[s].all; k++)
                if (w->cells[s].runs[k] != past)
                    fail("a wave began before the one before had ended");
        for (idx k = 0; k < t / w->cells[me].tiles * w->cells[me].tiles; k++)
            if (w->cells[me].runs[k] != past)
                fail("a phase began before the one before had ended");
    }
    if (me % 7 == 3)
        for (volatile int i = 0; i < 3000; i++) {}
    if (*mine != me * 1000 + begin)
        fail("two participants share scratch");
}

static double seconds;
static idx threads, milli_cores;

static void *call(void *seed) {
    unsigned random = (unsigned)(size_t)seed;
    int64_t stop = now() + (int64_t)(seconds * 1e9);
    idx programs = 0, runs = 0;
    while (now() < stop) {
        world *w = calloc(1, sizeof *w);
        step_row rows[STEPS];
        int64_t words[STEPS * 2];
        for (idx i = 0, wave = 0; i < STEPS; i++) {
            bool same = i && rand_r(&random) % 4 == 0;
            wave += same ? 0 : 1 + rand_r(&random) % 2;
            w->cells[i].tiles = rand_r(&random) % 3 == 0 ? rand_r(&random) % 3 : rand_r(&random) % (MAX_TILES + 1);
            w->first[i] = same ? w->first[i - 1] : i;
            int64_t phases = rand_r(&random) % 3 ? 1 : 1 + rand_r(&random) % PHASES;
            w->cells[i].all = w->cells[i].tiles * phases;
            words[2 * i] = (int64_t)w;
            words[2 * i + 1] = i;
            rows[i] = (step_row){(int64_t)touch, 2 * i, w->cells[i].tiles, 1 + rand_r(&random) % 6, wave, 64, phases};
        }
        program *p = pelton_program(rows, STEPS, words, STEPS * 2, NULL, 0, 1 + rand_r(&random) % threads, milli_cores,
                                    NULL);
        if (!p)
            fail("no memory");
        int64_t stamps[2 * STEPS];
        idx n = 1 + rand_r(&random) % 60;
        for (idx r = 0; r < n; r++) {
            if (rand_r(&random) % 8 == 0)
                pelton_program_profile(p, NULL, stamps);
            else
                pelton_program_run(p, NULL);
            if (rand_r(&random) % 16 == 0) {
                struct timespec nap = {0, rand_r(&random) % 200000};
                nanosleep(&nap, NULL);
            }
        }
        for (idx i = 0; i < STEPS; i++)
            for (idx k = 0; k < w->cells[i].all; k++)
                if (w->cells[i].runs[k] != n)
                    fail("a tile did not run once per run");
        pelton_program_free(p);
        free(w);
        programs++;
        runs += n;
    }
    return (void *)runs;
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    seconds = atof(argv[1]);
    idx callers = atol(argv[2]), total = 0;
    threads = atol(argv[3]);
    milli_cores = atol(argv[4]);
    pthread_t ids[64];
    for (idx i = 0; i < callers; i++)
        pthread_create(&ids[i], NULL, call, (void *)(i + 1));
    for (idx i = 0; i < callers; i++) {
        void *runs;
        pthread_join(ids[i], &runs);
        total += (idx)runs;
    }
    printf("%ld runs\n", total);
    return 0;
}
