/* The runtime of an engine on a micro-controller: one thread, static memory, no library. */
#ifndef PELTON_MCU_H
#define PELTON_MCU_H

#include "pelton_kernel.h"

typedef struct {
    kernel *run;
    const args *arguments;
    idx tiles;                  /* of all phases */
    void *scratch;
} mcu_step;

static inline void mcu_run(const mcu_step *steps, int32_t count) {
    const uint64_t mode = enter_kernel_mode();
    for (const mcu_step *s = steps; s < steps + count; s++)
        s->run(s->arguments, 0, s->tiles, s->scratch);
    leave_kernel_mode(mode);
}

#endif
