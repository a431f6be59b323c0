/* Times an engine: ours ENGINE THREADS, an engine of one input. Prints ns: load with a context, first run, a run. */
#include <pelton.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "timing.h"

int main(int count, char **given) {
    if (count != 3)
        return 2;
    const int64_t begin = now_ns();
    pelton_engine *engine = pelton_load(given[1]);
    pelton_context *context = engine ? pelton_context_new(engine, atoi(given[2])) : NULL;
    if (!context)
        return puts(pelton_error()), 1;
    const int64_t loaded = now_ns();
    memset(pelton_input_data(context, 0), 0, pelton_context_input(context, 0)->bytes);
    void *in = pelton_input_data(context, 0), *out = pelton_output_data(context, 0);
    const int64_t ready = now_ns();
    if (pelton_run(context, (const void *const[]){in}, (void *const[]){out}))
        return puts(pelton_error()), 1;
    const int64_t first = now_ns();
    int64_t median;
    TIME_RUNS(median, pelton_run(context, (const void *const[]){in}, (void *const[]){out}));
    printf("%lld %lld %lld\n", (long long)(loaded - begin), (long long)(first - ready), (long long)median);
    return 0;
}
