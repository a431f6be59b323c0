/* The runtime of an exported engine of fixed sizes: one thread, static memory, no library. */
#ifndef PELTON_BUNDLE_H
#define PELTON_BUNDLE_H

#include "kernel.h"

typedef struct {
    kernel *run;
    int32_t first;              /* of its arguments among the words */
    int64_t tiles;              /* of all phases */
} bundle_step;

/* Before a run, a word becomes ports[port] + offset. */
typedef struct {
    int32_t word, port;
    int64_t offset;
} bundle_patch;

static inline void bundle_run(const bundle_step *steps, int32_t count, args *words, const bundle_patch *patches,
                              int32_t patched, char *const *ports, void *scratch) {
    const uint64_t mode = enter_kernel_mode();
    for (const bundle_patch *p = patches; p < patches + patched; p++)
        words[p->word].p = ports[p->port] + p->offset;
    for (const bundle_step *s = steps; s < steps + count; s++)
        s->run(words + s->first, 0, s->tiles, scratch);
    leave_kernel_mode(mode);
}

#endif
