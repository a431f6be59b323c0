/* Runs several engines in several threads at once, each with contexts of its own, and compares every result with the
 * first of its kind: threads ROUNDS ENGINE… Half of the contexts are opened anew in each round. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pelton.h"

enum { THREADS = 8, ENGINES = 16 };

static pelton_engine *engines[ENGINES];
static char *wanted[ENGINES];
static size_t bytes[ENGINES];
static int count, rounds;

static void check(int sound) {
    if (sound)
        return;
    fprintf(stderr, "%s\n", pelton_error());
    abort();
}

static void plan(pelton_context *context, pelton_engine *engine) {
    int64_t sizes[16][PELTON_MAX_RANK];
    const int64_t *shapes[16];
    for (int i = 0; i < pelton_inputs(engine); i++) {
        for (int d = 0; d < pelton_input(engine, i)->rank; d++) {
            int64_t most;
            check(!pelton_range(engine, i, d, &sizes[i][d], &most));
            sizes[i][d] += sizes[i][d] < most && most - sizes[i][d] > 2 ? 2 : 0;
        }
        shapes[i] = sizes[i];
    }
    check(!pelton_set_shapes(context, shapes));
    for (int i = 0; i < pelton_inputs(engine); i++) {
        float *in = pelton_input_data(context, i);
        check(in != NULL);
        for (size_t k = 0; k < pelton_context_input(context, i)->bytes / 4; k++)
            in[k] = (float)(k % 17) / 16 - 0.5f;
    }
}

static void *work(void *of) {
    pelton_context *kept[ENGINES] = {0};
    for (int r = 0; r < rounds; r++)
        for (int n = 0; n < count; n++) {
            const int e = (n + (int)(intptr_t)of) % count;
            pelton_context *c = kept[e];
            if (!c) {
                c = pelton_context_new(engines[e], 1 + (n + (int)(intptr_t)of) % 3);
                check(c != NULL);
                plan(c, engines[e]);
            }
            check(!pelton_run(c, NULL, NULL));
            check(!memcmp(pelton_output_data(c, 0), wanted[e], bytes[e]));
            kept[e] = e % 2 ? c : NULL;
            if (!kept[e])
                pelton_context_free(c);
        }
    for (int e = 0; e < count; e++)
        pelton_context_free(kept[e]);
    return NULL;
}

int main(int given, char **paths) {
    rounds = atoi(paths[1]);
    for (count = 0; count + 2 < given && count < ENGINES; count++) {
        engines[count] = pelton_load(paths[count + 2]);
        check(engines[count] != NULL);
        pelton_context *c = pelton_context_new(engines[count], 1);
        check(c != NULL);
        plan(c, engines[count]);
        check(!pelton_run(c, NULL, NULL));
        bytes[count] = pelton_context_output(c, 0)->bytes;
        wanted[count] = memcpy(malloc(bytes[count]), pelton_output_data(c, 0), bytes[count]);
        pelton_context_free(c);
    }
    pthread_t threads[THREADS];
    for (intptr_t i = 0; i < THREADS; i++)
        check(!pthread_create(&threads[i], NULL, work, (void *)i));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int e = 0; e < count; e++) {
        pelton_engine_free(engines[e]);
        free(wanted[e]);
    }
    puts("all equal");
    return 0;
}
