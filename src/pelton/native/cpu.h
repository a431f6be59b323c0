/* The processor: its name and its features. */
#ifndef PELTON_CPU_H
#define PELTON_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "export.h"

#define OS "linux"
#if defined(__x86_64__)
#define ARCHITECTURE "x86_64"
#elif defined(__aarch64__)
#define ARCHITECTURE "aarch64"
#elif defined(__riscv) && __riscv_xlen == 64
#define ARCHITECTURE "riscv64"
#else
#error "Pelton runs on x86-64, AArch64 and 64-bit RISC-V"
#endif

/* True if the processor has a feature, by its name in compilers, and the system saves its registers. */
bool cpu_has(const char *feature);

/* The maker's name of the processor, without needless spaces; where cores differ, of the fastest. */
EXPORT void pelton_cpu_model(char name[64]);

/* For Python: ARCHITECTURE. */
EXPORT const char *pelton_cpu_architecture(void);

/* For Python: eax, ebx, ecx, edx of a CPUID leaf, zeros for a missing leaf. On AArch64, leaf 0 is MIDR_EL1, 0 if the
 * kernel does not show it. */
EXPORT void pelton_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t out[4]);

/* For Python: the name of feature i, empty if the processor lacks it; NULL after the last one. */
EXPORT const char *pelton_cpu_feature(size_t i);

#endif
