/* Stress of the runtime's threads without an engine: every run has arguments of its own, and must leave every tile done
 * once, by these. Usage: claims SECONDS, for each of three parts. */
#define _GNU_SOURCE
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { MOST = 96, WAVES = 3, CALLERS = 4, PATIENCE = 120 /* s; a lost wake-up hangs */ };

static void fail(const char *what) {
    fprintf(stderr, "claims: %s\n", what);
    abort();
}

/* Plain memory: only the order of claims, waves and runs keeps it from racing. */
typedef struct {
    int64_t in, out[WAVES][MOST];
} array;

typedef struct job {
    program *p;
    array *arrays[2];                   /* of odd and even runs */
    idx tiles[WAVES];
    int64_t runs;
    struct job *inner;                  /* a program for each tile of the first wave to run, or NULL */
} job;

static void run_once(job *j);

/* a[0]: the array of this run, a[1]: the wave, a[2]: the job */
static void count(const args *a, idx begin, idx end, void *scratch) {
    array *const at = a[0].p;
    const idx wave = a[1].d;
    job *const j = a[2].p;
    int64_t *const mine = scratch;
    *mine = at->in;
    for (idx t = begin; t < end; t++) {
        for (idx k = 0; wave && k < j->tiles[wave - 1]; k++)
            if (at->out[wave - 1][k] != at->in)
                fail("a wave began before the one before had ended");
        if (at->out[wave][t] >= at->in)
            fail("a tile ran twice, or late");
        at->out[wave][t] = at->in;
        if (!wave && j->inner)
            run_once(&j->inner[t]);
    }
    if (*mine != at->in)
        fail("two participants share scratch");
}

static void make(job *j, const idx *tiles, idx threads, idx milli_cores) {
    step_row rows[WAVES];
    int64_t words[3 * WAVES];
    patch_row patches[WAVES];
    for (idx w = 0; w < WAVES; w++) {
        j->tiles[w] = tiles[w];
        rows[w] = (step_row){(int64_t)count, 3 * w, tiles[w], 1, w, 64, 1};
        memcpy(words + 3 * w, (int64_t[]){0, w, (int64_t)j}, sizeof(int64_t[3]));
        patches[w] = (patch_row){3 * w, 0, 0};
    }
    for (int i = 0; i < 2; i++)
        j->arrays[i] = calloc(1, sizeof *j->arrays[i]);
    j->p = pelton_program(rows, WAVES, words, 3 * WAVES, patches, WAVES, threads, milli_cores, NULL);
    if (!j->p || !j->arrays[0] || !j->arrays[1])
        fail("no memory");
}

static void give(job *j) {
    pelton_program_free(j->p);
    free(j->arrays[0]);
    free(j->arrays[1]);
}

static void run_once(job *j) {
    array *const at = j->arrays[++j->runs % 2];
    int64_t stamps[2 * WAVES];
    at->in = j->runs;
    if (j->runs % 16 == 15)
        pelton_program_profile(j->p, (char *[]){(char *)at}, stamps);
    else
        pelton_program_run(j->p, (char *[]){(char *)at});
    for (idx w = 0; w < WAVES; w++)
        for (idx t = 0; t < j->tiles[w]; t++)
            if (at->out[w][t] != j->runs)
                fail("a run ended before its tiles");
}

static int64_t stop;

static void nap(int64_t ns) { nanosleep(&(struct timespec){0, ns}, NULL); }

/* Runs, with pauses in which workers fall asleep, and new programs, whose seats were others'. */
static void *call(void *number) {
    static const idx SHAPES[][WAVES] = {{1, 7, 2}, {2, 2, 2}, {MOST, MOST, MOST}, {3, 1, MOST}};
    const idx me = (idx)(intptr_t)number;
    for (idx n = me; now() < stop; n++) {
        job j = {0};
        make(&j, SHAPES[n % 4], 2 + n % 7, n % 2 ? 1000 : 16000);
        for (int k = 0; k < 24 && now() < stop; k++) {
            run_once(&j);
            if (k % 8 == 7)
                nap(n % 3 ? 300000 : 3000);          /* longer and shorter than idle threads spin */
        }
        give(&j);
    }
    return NULL;
}

/* A tile of one program runs another one. */
static void nest(void) {
    job outer = {0}, inner[4] = {0};
    const idx few[WAVES] = {4, 1, 3}, some[WAVES] = {8, 2, 8};
    make(&outer, few, 4, 4000);
    for (int i = 0; i < 4; i++)
        make(&inner[i], some, 3, 4000);
    outer.inner = inner;
    while (now() < stop)
        run_once(&outer);
    give(&outer);
    for (int i = 0; i < 4; i++)
        give(&inner[i]);
}

#if defined(__SANITIZE_THREAD__)
enum { CHILD_RUNS = 0 };                /* ThreadSanitizer takes new threads of a child for those of its parent */
#else
enum { CHILD_RUNS = 20 };
#endif

/* Forks while workers are busy with runs of other threads; children go on with the program of this one. */
static void split(job *j) {
    for (int k = 0; k < 3; k++)
        run_once(j);
    const pid_t child = fork();
    if (!child) {
        alarm(PATIENCE);
        job own = {0};
        make(&own, (idx[]){5, 1, 9}, 3, 16000);
        for (int k = 0; k < CHILD_RUNS; k++) {
            run_once(j);
            run_once(&own);
            if (k % 5 == 4)
                nap(300000);
        }
        give(&own);
        _exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status)
        fail("a child of a fork failed");
}

int main(int given, char **arguments) {
    const int64_t ns = (int64_t)(atof(arguments[given - 1]) * 1e9);
    pthread_t callers[CALLERS];
    alarm(PATIENCE);
    for (int part = 0; part < 2; part++) {
        stop = now() + ns;
        for (intptr_t i = 0; i < CALLERS; i++)
            if (pthread_create(&callers[i], NULL, call, (void *)i))
                fail("no thread");
        job j = {0};
        make(&j, (idx[]){6, 2, 6}, 4, 16000);
        while (part && now() < stop)
            split(&j);
        for (int i = 0; i < CALLERS; i++)
            pthread_join(callers[i], NULL);
        run_once(&j);
        give(&j);
    }
    stop = now() + ns;
    nest();
    puts("each tile once");
    return 0;
}
