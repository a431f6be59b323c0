/* Loads altered copies of an engine file, with all hashes right again, and plans some shapes: mutate ENGINE COUNT SEED.
 * Prints how many were refused and how many were taken. Machine code and the arguments of kernels are trusted like a
 * program: altered plans are not run, altered scripts are. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "pelton.h"
#include "sha256.h"

static uint64_t state;

static uint64_t draw(uint64_t below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % below;
}

static void hash(const void *bytes, size_t size, uint8_t to[32]) {
    sha256 s;
    sha256_start(&s);
    sha256_add(&s, bytes, size);
    sha256_end(&s, to);
}

static bool is_table(const char *name) {
    return !strcmp(name, "plan") || !strcmp(name, "chain") || !strncmp(name, "engine ", 7);
}

/* Alters one table of a file; whether that is the one of a script. */
static bool alter(uint8_t *data, size_t size) {
    static const int64_t NUMBERS[] = {0, 1, -1, 2, 63, 64, 4096, INT32_MAX, INT32_MIN, INT64_C(1) << 32,
                                      INT64_C(1) << 45, INT64_C(1) << 62, INT64_MIN};
    engine_file f;
    reason why;
    if (!file_open(&f, data, size, &why))
        abort();
    section_row *rows = (section_row *)(data + 64), *plan;
    do
        plan = &rows[draw(f.count)];
    while (!is_table(plan->name));
    const bool is_script = !strcmp(plan->name, "chain"), is_engine = !strncmp(plan->name, "engine ", 7);
    if (is_engine)
        alter(data + plan->offset, plan->size); /* a file within the file */
    for (uint64_t n = is_engine ? 0 : 1 + draw(3); n; n--) {
        const size_t width = draw(2) ? 4 : 8, at = plan->offset + draw(plan->size / width) * width;
        int64_t old = 0, new;
        memcpy(&old, data + at, width);
        new = draw(2) ? NUMBERS[draw(sizeof NUMBERS / sizeof *NUMBERS)] : old + (int64_t)draw(129) - 64;
        if (!draw(4))
            data[plan->offset + draw(plan->size)] = (uint8_t)draw(256);
        else
            memcpy(data + at, &new, width);
    }
    hash(data + plan->offset, plan->size, plan->hash);
    if (!draw(8)) { /* a row, too */
        uint64_t *field = draw(2) ? &rows[draw(f.count)].offset : &rows[draw(f.count)].size;
        *field += draw(2) ? 64 : (uint64_t)NUMBERS[draw(sizeof NUMBERS / sizeof *NUMBERS)];
    }
    sha256 s;
    sha256_start(&s);
    sha256_add(&s, data, 32);
    sha256_add(&s, rows, f.count * sizeof *rows);
    sha256_end(&s, data + 32);
    return is_script;
}

static bool try(const void *data, size_t size, bool run) {
    pelton_engine *engine = pelton_load_memory(data, size);
    if (!engine)
        return *pelton_error() ? false : (abort(), false);
    pelton_context *context = pelton_context_new(engine, 2);
    for (int round = 0; context && round < 3; round++) {
        int64_t sizes[64][PELTON_MAX_RANK];
        const int64_t *shapes[64];
        if (pelton_inputs(engine) > 64)
            break;
        for (int i = 0; i < pelton_inputs(engine); i++) {
            const pelton_port *p = pelton_input(engine, i);
            for (int d = 0; d < p->rank; d++) {
                int64_t least = 0, most = 0;
                pelton_range(engine, i, d, &least, &most);
                sizes[i][d] = round == 0 ? least : round == 1 ? least + (int64_t)draw(40) : (int64_t)draw(1 << 20);
            }
            shapes[i] = sizes[i];
        }
        if (!pelton_set_shapes(context, shapes) && run && round < 2)
            pelton_run(context, NULL, NULL);
        for (int i = 0; i < pelton_outputs(engine); i++)
            pelton_context_output(context, i);
    }
    pelton_context_free(context);
    pelton_engine_free(engine);
    return true;
}

int main(int count, char **given) {
    if (count != 4)
        return 2;
    FILE *f = fopen(given[1], "rb");
    if (!f || fseek(f, 0, SEEK_END))
        return 2;
    const size_t size = (size_t)ftell(f);
    uint8_t *original = malloc(size), *data = aligned_alloc(64, (size + 63) / 64 * 64);
    rewind(f);
    if (!original || !data || fread(original, 1, size, f) != size)
        return 2;
    fclose(f);
    state = strtoull(given[3], NULL, 10) * 2654435761u + 1;
    if (!try(memcpy(data, original, size), size, true))
        return fprintf(stderr, "%s\n", pelton_error()), 2;
    int taken = 0, refused = 0;
    for (int n = atoi(given[2]); n; n--) {
        const bool is_script = alter(memcpy(data, original, size), size);
        *(try(data, size, is_script) ? &taken : &refused) += 1;
    }
    for (size_t cut = 0; cut < size; cut += 1 + cut / 8) /* read up to its end and no further */
        try(memcpy(data + size - cut, original, cut), cut, false);
    free(original);
    free(data);
    printf("%d refused, %d taken\n", refused, taken);
    return 0;
}
