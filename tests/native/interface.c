/* What the public interface promises, without Python in the process: interface STATIC DYNAMIC CARRYING, three engines.
 * The first takes one array of known sizes, the others one whose first axis a run decides; the last carries several
 * kernels for a step. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pelton.h"

#define CHECK(what) ((what) ? (void)0 : fail(__LINE__, #what))

static void fail(int line, const char *what) {
    fprintf(stderr, "line %d: %s; pelton_error() says: %s\n", line, what, pelton_error());
    exit(1);
}

static bool says(const char *text) { return strstr(pelton_error(), text); }

static int refuse_all(void *user, const void *file, size_t size) {
    (void)file;
    *(size_t *)user = size;
    return 1;
}

static void hear(void *user, const char *text) { *(int *)user += strstr(text, "was tuned on") != NULL; }

static void test_loading(const char *path) {
    CHECK(pelton_abi() == PELTON_ABI);
    CHECK(!pelton_load(NULL) && says("NULL"));
    CHECK(!pelton_load("/nowhere/e.pelton") && says("/nowhere/e.pelton") && says("No such file"));
    CHECK(!pelton_load("/") && says("not a file"));
    CHECK(!pelton_load("/dev/null") && says("not a file"));
    CHECK(!pelton_load_memory(NULL, 10) && says("NULL"));
    CHECK(!pelton_load_memory("nonsense", 8) && says("not a Pelton engine"));
    size_t seen = 0;
    pelton_set_check(refuse_all, &seen);
    CHECK(!pelton_load(path) && says("the check of this program refuses it") && seen > 1000);
    pelton_set_check(NULL, NULL);
    int heard = 0;
    pelton_set_log(hear, &heard);
    pelton_engine *e = pelton_load(path);
    CHECK(e && pelton_name(e) && !pelton_verify(e) && heard <= 1);
    size_t size;
    const char *meta = pelton_metadata(e, &size);
    CHECK(size > 2 && meta[0] == '{' && meta[size - 1] == '}');
    CHECK(pelton_steps(e) > 0 && pelton_step(e, 0) && !pelton_step(e, -1) && !pelton_step(e, pelton_steps(e)));
    pelton_set_log(NULL, NULL);
    pelton_engine_free(e);
    pelton_engine_free(NULL);
}

static void test_misaligned_data(const char *path) {
    FILE *f = fopen(path, "rb");
    CHECK(f && !fseek(f, 0, SEEK_END));
    const size_t size = (size_t)ftell(f);
    char *data = malloc(size + 1);
    rewind(f);
    CHECK(fread(data + 1, 1, size, f) == size);
    fclose(f);
    pelton_engine *e = pelton_load_memory(data + 1, size);
    CHECK(e);
    pelton_context *c = pelton_context_new(e, 1);
    CHECK(c && !pelton_run(c, NULL, NULL));
    pelton_engine_free(e); /* the context goes on */
    CHECK(!pelton_run(c, NULL, NULL));
    pelton_context_free(c);
    free(data);
}

static void test_runs(const char *path) {
    pelton_engine *e = pelton_load(path);
    CHECK(e && pelton_inputs(e) == 1 && pelton_outputs(e) == 1 && !pelton_input(e, 1) && !pelton_output(e, -1));
    const pelton_port *in = pelton_input(e, 0), *out = pelton_output(e, 0);
    CHECK(in->dtype == PELTON_F32 && in->bytes && out->bytes && in->rank <= PELTON_MAX_RANK);
    CHECK(!pelton_context_new(NULL, 1) && says("needs an engine"));
    CHECK(!pelton_context_new(e, -1) && says("threads are 0 to 256") && !pelton_context_new(e, 257));
    pelton_context *c = pelton_context_new(e, 2);
    CHECK(c);
    float *x = aligned_alloc(64, (in->bytes + 127) / 64 * 64), *y = aligned_alloc(64, (out->bytes + 127) / 64 * 64);
    for (size_t i = 0; i < in->bytes / 4; i++)
        x[i] = (float)(i % 13) / 13;
    const void *given[] = {x};
    void *taken[] = {y};
    CHECK(!pelton_run(c, given, taken));
    const char *fresh = pelton_input_data(c, 0);
    size_t zeros = 0;
    while (zeros < in->bytes && !fresh[zeros])
        zeros++;
    CHECK(zeros == in->bytes);
    memcpy(pelton_input_data(c, 0), x, in->bytes);
    CHECK(!pelton_run(c, NULL, NULL) && !memcmp(pelton_output_data(c, 0), y, out->bytes));
    CHECK(!pelton_input_data(c, 1) && says("no such input"));
    given[0] = (const char *)x + 1;
    CHECK(pelton_run(c, given, taken) && says("not aligned"));
    given[0] = x;
    taken[0] = x;
    CHECK(pelton_run(c, given, taken) && says("overlaps"));
    taken[0] = y;
    int64_t *stamps = calloc((size_t)pelton_steps(e) * 2, sizeof *stamps);
    CHECK(!pelton_profile(c, given, taken, stamps));
    for (int i = 0; i < pelton_steps(e); i++)
        CHECK(stamps[2 * i] && stamps[2 * i] <= stamps[2 * i + 1] && (!i || stamps[2 * i - 1] <= stamps[2 * i]));
    int64_t shape[PELTON_MAX_RANK];
    memcpy(shape, in->shape, sizeof shape);
    CHECK(!pelton_set_shapes(c, (const int64_t *const[]){shape}));
    shape[in->rank - 1]++;
    CHECK(pelton_set_shapes(c, (const int64_t *const[]){shape}) && says("axis"));
    CHECK(pelton_set_shapes(c, NULL) && says("NULL") && pelton_set_shapes(c, (const int64_t *const[]){NULL}));
    CHECK(!pelton_run(c, given, taken)); /* as before */
    free(stamps);
    free(x);
    free(y);
    pelton_context_free(c);
    pelton_context_free(NULL);
    pelton_engine_free(e);
}

static void test_dynamic_sizes(const char *path) {
    pelton_engine *e = pelton_load(path);
    CHECK(e && pelton_input(e, 0)->shape[0] == PELTON_DYNAMIC && !pelton_input(e, 0)->bytes);
    int64_t least, most, shape[PELTON_MAX_RANK];
    CHECK(!pelton_range(e, 0, 0, &least, &most) && least >= 1 && least < most);
    CHECK(pelton_range(e, 1, 0, &least, &most) && pelton_range(e, 0, 9, &least, &most));
    CHECK(!pelton_range(e, 0, 0, &least, &most));
    pelton_context *c = pelton_context_new(e, 0);
    CHECK(c && !pelton_context_input(c, 0) && pelton_run(c, NULL, NULL) && says("pelton_set_shapes"));
    memcpy(shape, pelton_input(e, 0)->shape, sizeof shape);
    for (int64_t n = least; n <= most && n < least + 40; n++) { /* more than a context keeps */
        shape[0] = n;
        CHECK(!pelton_set_shapes(c, (const int64_t *const[]){shape}));
        CHECK(pelton_context_input(c, 0)->shape[0] == n && pelton_context_output(c, 0)->bytes);
        CHECK(!pelton_run(c, NULL, NULL));
    }
    shape[0] = most + 1;
    CHECK(pelton_set_shapes(c, (const int64_t *const[]){shape}) && says("may have") && says("got"));
    pelton_context_free(c);
    pelton_engine_free(e);
}

static float *outputs_of(pelton_engine *e, int64_t n, size_t *bytes) {
    pelton_context *c = pelton_context_new(e, 2);
    int64_t shape[PELTON_MAX_RANK];
    memcpy(shape, pelton_input(e, 0)->shape, sizeof shape);
    shape[0] = n;
    CHECK(c && !pelton_set_shapes(c, (const int64_t *const[]){shape}));
    float *x = pelton_input_data(c, 0);
    for (size_t i = 0; i < pelton_context_input(c, 0)->bytes / sizeof *x; i++)
        x[i] = (float)(i % 13) / 13;
    CHECK(!pelton_run(c, NULL, NULL));
    *bytes = pelton_context_output(c, 0)->bytes;
    float *copy = memcpy(malloc(*bytes), pelton_output_data(c, 0), *bytes);
    pelton_context_free(c);
    return copy;
}

static void test_tuning(const char *path, const char *single) {
    pelton_engine *e = pelton_load(path), *again = pelton_load(path), *other = pelton_load(single);
    CHECK(e && again && other);
    const int steps = pelton_steps(e);
    int *choice = calloc((size_t)steps, sizeof *choice), *last = calloc((size_t)steps, sizeof *last), most = 0;
    size_t bytes;
    float *first = outputs_of(e, 3, &bytes);
    CHECK(pelton_tune(NULL, 1, 1, NULL) && says("NULL") && pelton_tune(e, 1, -1, NULL) && says("seconds"));
    CHECK(pelton_tune(e, 257, 1, NULL) && says("threads") && !pelton_tune(e, 2, 0, choice));
    for (int i = 0; i < steps; i++)
        CHECK(choice[i] == 0); /* no time, no choice */
    CHECK(!pelton_tune(e, 2, 60, choice) && !pelton_choose(again, choice));
    for (int i = 0; i < steps; i++) /* the last kernel of each step */
        for (int k = 0; k < 100; k++) {
            last[i]++;
            if (pelton_choose(again, last)) {
                CHECK(says("kernels, the choice is"));
                last[i]--;
                most = last[i] > most ? last[i] : most;
                break;
            }
        }
    CHECK(most > 0 && !pelton_choose(again, last) && pelton_choose(again, NULL));
    pelton_context *c = pelton_context_new(again, 1);
    CHECK(c && pelton_choose(again, choice) && says("contexts") && pelton_tune(again, 1, 1, NULL));
    pelton_context_free(c);
    for (int turn = 0; turn < 2; turn++) {
        size_t now;
        float *y = outputs_of(turn ? again : e, 3, &now);
        CHECK(now == bytes);
        for (size_t i = 0; i < bytes / sizeof *y; i++)
            CHECK(fabsf(y[i] - first[i]) <= 1e-5f);
        free(y);
    }
    CHECK(!pelton_tune(other, 1, 60, NULL)); /* nothing to choose from */
    free(choice);
    free(last);
    free(first);
    pelton_engine_free(e);
    pelton_engine_free(again);
    pelton_engine_free(other);
}

int main(int count, char **given) {
    CHECK(count == 4);
    test_loading(given[1]);
    test_misaligned_data(given[1]);
    test_runs(given[1]);
    test_dynamic_sizes(given[2]);
    test_tuning(given[3], given[1]);
    puts("right");
    return 0;
}
