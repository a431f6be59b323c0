/* Opens and closes contexts, and loads and frees an engine, many times: memory ENGINE COUNT. Fails if memory grows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pelton.h"

static size_t live;

static void *take(void *user, size_t alignment, size_t size) {
    (void)user;
    live++;
    return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

static void give(void *user, void *memory) {
    (void)user;
    live--;
    free(memory);
}

static long resident(void) { /* pages */
    long all = 0, here = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &all, &here) != 2)
        abort();
    fclose(f);
    return here;
}

static void round_of(const char *path, pelton_engine *kept, int n) {
    pelton_engine *engine = n % 64 ? kept : pelton_load(path);
    pelton_context *context = engine ? pelton_context_new(engine, 1 + n % 3) : NULL;
    int64_t sizes[16][PELTON_MAX_RANK], most;
    const int64_t *shapes[16];
    if (!context)
        abort();
    for (int i = 0; i < pelton_inputs(engine); shapes[i] = sizes[i], i++)
        for (int d = 0; d < pelton_input(engine, i)->rank; d++)
            pelton_range(engine, i, d, &sizes[i][d], &most);
    if (pelton_set_shapes(context, shapes) || pelton_run(context, NULL, NULL))
        abort();
    if (engine != kept)
        pelton_engine_free(engine); /* before its context */
    pelton_context_free(context);
}

int main(int count, char **given) {
    if (count != 3)
        return 2;
    const pelton_allocator counted = {take, give, NULL};
    pelton_set_allocator(&counted);
    pelton_engine *kept = pelton_load(given[1]);
    if (!kept)
        return fprintf(stderr, "%s\n", pelton_error()), 2;
    const int all = atoi(given[2]);
    size_t pieces = 0;
    long most[4] = {0}; /* pages, in each quarter: one round differs from the next, quarters do not */
    for (int n = 0; n < all; n++) {
        round_of(given[1], kept, n);
        const long pages = resident();
        long *quarter = &most[(int64_t)n * 4 / all];
        *quarter = pages > *quarter ? pages : *quarter;
        if (n == all / 4)
            pieces = live;
    }
    const long grown = most[3] - most[1], more = (long)live - (long)pieces;
    pelton_engine_free(kept);
    printf("%ld pages and %ld pieces more\n", grown, more);
    return grown > 64 || more > 0;
}
