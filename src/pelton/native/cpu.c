/* The features of the processor (CPUID). */
#include "cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

void pelton_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t out[4]) {
    out[0] = out[1] = out[2] = out[3] = 0;
#if defined(__x86_64__)
    __get_cpuid_count(leaf, subleaf, &out[0], &out[1], &out[2], &out[3]);
#endif
    (void)leaf, (void)subleaf;
}

/* The register sets that the system saves (XCR0): a feature without saved registers is unusable. */
static uint64_t saved_registers(void) {
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

enum { EAX, EBX, ECX, EDX };
enum { AVX = 0x6, AVX512 = 0xe6, AMX = 0x60000 }; /* register sets (XCR0) */

/* Intel SDM volume 2A, CPUID; AMD APM volume 3, appendix E. */
static const struct { uint32_t leaf, subleaf, place, bit, saved; const char *name; } FEATURES[] = {
    {1, 0, ECX, 0, 0, "sse3"}, {1, 0, ECX, 1, 0, "pclmul"}, {1, 0, ECX, 9, 0, "ssse3"}, {1, 0, ECX, 12, AVX, "fma"},
    {1, 0, ECX, 13, 0, "cx16"}, {1, 0, ECX, 19, 0, "sse4.1"}, {1, 0, ECX, 20, 0, "sse4.2"},
    {1, 0, ECX, 22, 0, "movbe"}, {1, 0, ECX, 23, 0, "popcnt"}, {1, 0, ECX, 25, 0, "aes"}, {1, 0, ECX, 27, 0, "xsave"},
    {1, 0, ECX, 28, AVX, "avx"}, {1, 0, ECX, 29, AVX, "f16c"}, {7, 0, EBX, 3, 0, "bmi"}, {7, 0, EBX, 5, AVX, "avx2"},
    {7, 0, EBX, 8, 0, "bmi2"}, {7, 0, EBX, 16, AVX512, "avx512f"}, {7, 0, EBX, 17, AVX512, "avx512dq"},
    {7, 0, EBX, 21, AVX512, "avx512ifma"}, {7, 0, EBX, 28, AVX512, "avx512cd"}, {7, 0, EBX, 29, 0, "sha"},
    {7, 0, EBX, 30, AVX512, "avx512bw"}, {7, 0, EBX, 31, AVX512, "avx512vl"}, {7, 0, ECX, 1, AVX512, "avx512vbmi"},
    {7, 0, ECX, 6, AVX512, "avx512vbmi2"}, {7, 0, ECX, 8, 0, "gfni"}, {7, 0, ECX, 9, AVX, "vaes"},
    {7, 0, ECX, 10, AVX, "vpclmulqdq"}, {7, 0, ECX, 11, AVX512, "avx512vnni"},
    {7, 0, ECX, 12, AVX512, "avx512bitalg"}, {7, 0, ECX, 14, AVX512, "avx512vpopcntdq"},
    {7, 0, EDX, 22, AMX, "amx-bf16"}, {7, 0, EDX, 23, AVX512, "avx512fp16"}, {7, 0, EDX, 24, AMX, "amx-tile"},
    {7, 0, EDX, 25, AMX, "amx-int8"}, {7, 1, EAX, 4, AVX, "avxvnni"}, {7, 1, EAX, 5, AVX512, "avx512bf16"},
    {7, 1, EAX, 23, AVX, "avxifma"}, {7, 1, EDX, 4, AVX, "avxvnniint8"}, {7, 1, EDX, 5, AVX, "avxneconvert"},
    {7, 1, EDX, 10, AVX, "avxvnniint16"}, {0x80000001, 0, ECX, 0, 0, "sahf"}, {0x80000001, 0, ECX, 5, 0, "lzcnt"},
    {0x80000001, 0, ECX, 8, 0, "prfchw"},
};

enum { COUNT = sizeof FEATURES / sizeof *FEATURES };

static bool has(size_t i, uint64_t saved) {
    uint32_t leaf[4];
    pelton_cpuid(FEATURES[i].leaf, FEATURES[i].subleaf, leaf);
    return leaf[FEATURES[i].place] >> FEATURES[i].bit & 1 && (saved & FEATURES[i].saved) == FEATURES[i].saved;
}

static bool is_same(const char *a, const char *b) {
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

bool cpu_has(const char *feature) {
    for (size_t i = 0; i < COUNT; i++)
        if (is_same(FEATURES[i].name, feature))
            return has(i, saved_registers());
    return false;
}

void cpu_model(char name[64]) {
    uint32_t brand[13] = {0};
    for (uint32_t i = 0; i < 3; i++)
        pelton_cpuid(0x80000002 + i, 0, brand + 4 * i);
    char *to = name;
    for (const char *at = (const char *)brand; *at; at++)
        if (*at != ' ' || (to > name && to[-1] != ' '))
            *to++ = *at;
    to -= to > name && to[-1] == ' ';
    *to = 0;
}

const char *pelton_cpu_feature(size_t i) {
    return i >= COUNT ? NULL : has(i, saved_registers()) ? FEATURES[i].name : "";
}
