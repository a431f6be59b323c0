/* The processor: what it is called, and what it has. */
#ifndef PELTON_CPU_H
#define PELTON_CPU_H

#include "program.h"

#define OS "linux"
#if defined(__x86_64__)
#define ARCHITECTURE "x86_64"
#elif defined(__aarch64__)
#define ARCHITECTURE "aarch64"
#endif

/* Whether the processor has a feature, as compilers spell it, and the system saves its registers. */
bool cpu_has(const char *feature);

/* For Python: the name of the feature of this number, which is empty if the processor lacks it; NULL behind the last. */
EXPORT const char *pelton_cpu_feature(size_t i);

#endif
