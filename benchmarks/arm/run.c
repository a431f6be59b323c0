/* Runs an engine on arrays in files: run ENGINE FOLDER. Reads array I from FOLDER/inI and its shape, as i64, from
 * FOLDER/shapeI, and writes FOLDER/outI. */
#include <pelton.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 64 };

static size_t read_all(const char *folder, const char *name, int i, void **bytes) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s%d", folder, name, i);
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END))
        return perror(path), exit(1), 0;
    const size_t size = (size_t)ftell(f);
    rewind(f);
    *bytes = aligned_alloc(64, (size + 64) / 64 * 64);
    if (!*bytes || fread(*bytes, 1, size, f) != size)
        return perror(path), exit(1), 0;
    fclose(f);
    return size;
}

int main(int count, char **given) {
    static void *inputs[MOST], *shapes[MOST];
    if (count != 3)
        return fprintf(stderr, "usage: run ENGINE FOLDER\n"), 2;
    pelton_engine *engine = pelton_load(given[1]);
    pelton_context *context = engine ? pelton_context_new(engine, 0) : NULL;
    if (!context || pelton_verify(engine) || pelton_inputs(engine) > MOST)
        return fprintf(stderr, "%s\n", pelton_error()), 1;
    for (int i = 0; i < pelton_inputs(engine); i++) {
        read_all(given[2], "in", i, &inputs[i]);
        read_all(given[2], "shape", i, &shapes[i]);
    }
    if (pelton_set_shapes(context, (const int64_t *const *)shapes)
        || pelton_run(context, (const void *const *)inputs, NULL))
        return fprintf(stderr, "%s\n", pelton_error()), 1;
    for (int i = 0; i < pelton_outputs(engine); i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/out%d", given[2], i);
        FILE *f = fopen(path, "wb");
        const size_t size = pelton_context_output(context, i)->bytes;
        if (!f || fwrite(pelton_output_data(context, i), 1, size, f) != size || fclose(f))
            return perror(path), 1;
    }
    return 0;
}
