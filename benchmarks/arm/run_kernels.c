/* Runs an exported engine once, with a mark before its first step and behind every step: run INPUT OUTPUT.
 * -DSOURCE: its C source; -DRUN: its function, of one input of IN_BYTES and one output of OUT_BYTES. */
#include <stdio.h>

#include "bundle.h"
#include "marks.h"

static void marked_run(const bundle_step *steps, int32_t count, args *words, const bundle_patch *patches,
                       int32_t patched, char *const *ports, void *scratch) {
    const uint64_t mode = enter_kernel_mode();
    for (const bundle_patch *p = patches; p < patches + patched; p++)
        words[p->word].p = ports[p->port] + p->offset;
    mark();
    for (const bundle_step *s = steps; s < steps + count; s++) {
        s->run(words + s->first, 0, s->tiles, scratch);
        mark();
    }
    leave_kernel_mode(mode);
}
#define bundle_run marked_run
#include SOURCE

/* The emulated CPU has all features. */
bool cpu_has(const char *feature) {
    return feature != NULL;
}

static _Alignas(64) char input[IN_BYTES], output[OUT_BYTES];

int main(int count, char **files) {
    FILE *f = count == 3 ? fopen(files[1], "rb") : NULL;
    if (!f || fread(input, 1, sizeof input, f) != sizeof input)
        return fprintf(stderr, "usage: run INPUT OUTPUT, %zu bytes of input\n", sizeof input), 2;
    fclose(f);
    RUN((void *)input, (void *)output);
    f = fopen(files[2], "wb");
    return !f || fwrite(output, 1, sizeof output, f) != sizeof output || fclose(f);
}
