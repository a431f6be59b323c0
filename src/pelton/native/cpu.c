/* The features of the processor (CPUID). */
#include "program.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* eax, ebx, ecx, edx of a CPUID leaf; zeros where there is no such leaf. */
EXPORT void pelton_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t out[4]) {
    out[0] = out[1] = out[2] = out[3] = 0;
#if defined(__x86_64__)
    __get_cpuid_count(leaf, subleaf, &out[0], &out[1], &out[2], &out[3]);
#endif
    (void)leaf, (void)subleaf;
}

/* The register sets that the system saves (XCR0): a feature whose registers are not saved cannot be used. */
EXPORT uint64_t pelton_saved_registers(void) {
    uint32_t leaf[4];
    pelton_cpuid(1, 0, leaf);
    if (!(leaf[2] >> 27 & 1))
        return 0;
    uint32_t low = 0, high = 0;
#if defined(__x86_64__)
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
#endif
    return (uint64_t)high << 32 | low;
}
