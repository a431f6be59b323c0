/* The features of the processor: by CPUID on x86-64, elsewhere from the kernel (AT_HWCAP). Not from /proc/cpuinfo,
 * which under an emulator describes the wrong processor. */
#include "cpu.h"

const char *pelton_cpu_architecture(void) { return ARCHITECTURE; }

#if defined(__x86_64__)
#include <cpuid.h>

void pelton_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t out[4]) {
    out[0] = out[1] = out[2] = out[3] = 0;
    __get_cpuid_count(leaf, subleaf, &out[0], &out[1], &out[2], &out[3]);
}

/* The register sets that the system saves (XCR0): a feature without saved registers is unusable. */
static uint64_t saved_registers(void) {
    uint32_t leaf[4];
    pelton_cpuid(1, 0, leaf);
    if (!(leaf[2] >> 27 & 1))
        return 0;
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
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

void pelton_cpu_model(char name[64]) {
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

#else
#include <stdio.h>

#if defined(__linux__)
#include <fcntl.h>
#include <inttypes.h>
#include <sys/auxv.h>
#include <unistd.h>

enum { HWCAP = AT_HWCAP, HWCAP2 = AT_HWCAP2 };
static uint64_t words(uint32_t of) { return getauxval(of); }
#elif defined(__APPLE__)
#include <sys/sysctl.h>

enum { HWCAP, HWCAP2 };

static uint64_t flag(const char *name) {
    int value = 0;
    size_t size = sizeof value;
    return !sysctlbyname(name, &value, &size, NULL, 0) && value;
}

/* The bits of features that engines need, in Linux's places. */
static uint64_t words(uint32_t of) {
    if (of == HWCAP2)
        return flag("hw.optional.arm.FEAT_I8MM") << 13 | flag("hw.optional.arm.FEAT_BF16") << 14;
    const uint64_t half = flag("hw.optional.arm.FEAT_FP16");
    return 1 << 1 | half << 9 | half << 10 | flag("hw.optional.arm.FEAT_DotProd") << 20;
}
#else
/* On other systems, the features that this file is compiled for. */
enum { HWCAP, HWCAP2 };
static uint64_t words(uint32_t of) {
    uint64_t word[2] = {0};
#if defined(__ARM_NEON)
    word[HWCAP] |= 1 << 1;
#endif
#if defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
    word[HWCAP] |= 1 << 9 | 1 << 10;
#endif
#if defined(__ARM_FEATURE_DOTPROD)
    word[HWCAP] |= 1 << 20;
#endif
#if defined(__ARM_FEATURE_MATMUL_INT8)
    word[HWCAP2] |= 1 << 13;
#endif
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    word[HWCAP2] |= 1 << 14;
#endif
    return word[of];
}
#endif

/* Linux, arch/arm64/include/uapi/asm/hwcap.h and arch/riscv/include/uapi/asm/hwcap.h. `alike`: a second bit of the word
 * that the feature needs, or the same. */
static const struct { uint32_t word, bit, alike; const char *name; } FEATURES[] = {
#if defined(__aarch64__)
    {HWCAP, 1, 1, "neon"}, {HWCAP, 3, 3, "aes"}, {HWCAP, 6, 6, "sha2"}, {HWCAP, 7, 7, "crc"}, {HWCAP, 8, 8, "lse"},
    {HWCAP, 9, 10, "fullfp16"}, {HWCAP, 12, 12, "rdm"}, {HWCAP, 13, 13, "jsconv"}, {HWCAP, 14, 14, "complxnum"},
    {HWCAP, 15, 15, "rcpc"}, {HWCAP, 17, 17, "sha3"}, {HWCAP, 20, 20, "dotprod"}, {HWCAP, 22, 22, "sve"},
    {HWCAP, 23, 23, "fp16fml"}, {HWCAP2, 1, 1, "sve2"}, {HWCAP2, 8, 8, "fptoint"}, {HWCAP2, 13, 13, "i8mm"},
    {HWCAP2, 14, 14, "bf16"}, {HWCAP2, 23, 23, "sme"}, {HWCAP2, 37, 37, "sme2"},
#elif defined(__riscv)
    {HWCAP, 'a' - 'a', 'a' - 'a', "a"}, {HWCAP, 'c' - 'a', 'c' - 'a', "c"}, {HWCAP, 'd' - 'a', 'd' - 'a', "d"},
    {HWCAP, 'f' - 'a', 'f' - 'a', "f"}, {HWCAP, 'm' - 'a', 'm' - 'a', "m"}, {HWCAP, 'v' - 'a', 'v' - 'a', "v"},
#endif
};

enum { COUNT = sizeof FEATURES / sizeof *FEATURES };

static uint64_t saved_registers(void) { return 0; } /* the kernel's words are about both */

static bool has(size_t i, uint64_t saved) {
    const uint64_t word = words(FEATURES[i].word);
    (void)saved;
    return word >> FEATURES[i].bit & 1 && word >> FEATURES[i].alike & 1;
}

#if defined(__aarch64__)
/* MIDR_EL1 of a core that does most of the work. Where cores differ, those of higher part numbers are the faster ones
 * in all processors known here, and the answer must not depend on the core that asks. */
static uint64_t midr(void) {
    uint64_t best = 0;
#if defined(__linux__)
    enum { CPUID = 11, CORES = 1024 }; /* HWCAP_CPUID: the kernel emulates the instruction */
    for (int i = 0; i < CORES; i++) {
        char path[96], text[32];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/regs/identification/midr_el1", i);
        const int file = open(path, O_RDONLY | O_CLOEXEC);
        const ssize_t n = file < 0 ? -1 : read(file, text, sizeof text - 1);
        if (file >= 0)
            close(file);
        if (n <= 0)
            break;
        text[n] = 0;
        uint64_t value = 0;
        if (sscanf(text, "%" SCNx64, &value) == 1 && (value >> 4 & 0xfff) >= (best >> 4 & 0xfff))
            best = value;
    }
    if (!best && getauxval(AT_HWCAP) >> CPUID & 1)
        __asm__("mrs %0, midr_el1" : "=r"(best));
#endif
    return best;
}

/* Arm, Technical Reference Manuals of the cores, MIDR_EL1; others by their Linux drivers (asm/cputype.h). */
static const struct { uint32_t implementer, part; const char *name; } CORES[] = {
    {0x41, 0xd03, "Arm Cortex-A53"}, {0x41, 0xd04, "Arm Cortex-A35"}, {0x41, 0xd05, "Arm Cortex-A55"},
    {0x41, 0xd07, "Arm Cortex-A57"}, {0x41, 0xd08, "Arm Cortex-A72"}, {0x41, 0xd09, "Arm Cortex-A73"},
    {0x41, 0xd0a, "Arm Cortex-A75"}, {0x41, 0xd0b, "Arm Cortex-A76"}, {0x41, 0xd0c, "Arm Neoverse-N1"},
    {0x41, 0xd0d, "Arm Cortex-A77"}, {0x41, 0xd40, "Arm Neoverse-V1"}, {0x41, 0xd41, "Arm Cortex-A78"},
    {0x41, 0xd42, "Arm Cortex-A78AE"}, {0x41, 0xd44, "Arm Cortex-X1"}, {0x41, 0xd46, "Arm Cortex-A510"},
    {0x41, 0xd47, "Arm Cortex-A710"}, {0x41, 0xd48, "Arm Cortex-X2"}, {0x41, 0xd49, "Arm Neoverse-N2"},
    {0x41, 0xd4a, "Arm Neoverse-E1"}, {0x41, 0xd4b, "Arm Cortex-A78C"}, {0x41, 0xd4d, "Arm Cortex-A715"},
    {0x41, 0xd4e, "Arm Cortex-X3"}, {0x41, 0xd4f, "Arm Neoverse-V2"}, {0x41, 0xd80, "Arm Cortex-A520"},
    {0x41, 0xd81, "Arm Cortex-A720"}, {0x41, 0xd82, "Arm Cortex-X4"}, {0x41, 0xd84, "Arm Neoverse-V3"},
    {0x41, 0xd85, "Arm Cortex-X925"}, {0x41, 0xd87, "Arm Cortex-A725"}, {0x41, 0xd8e, "Arm Neoverse-N3"},
    {0x43, 0x0af, "Cavium ThunderX2"}, {0x46, 0x001, "Fujitsu A64FX"}, {0x48, 0xd01, "HiSilicon TSV110"},
    {0x4e, 0x004, "NVIDIA Carmel"}, {0x51, 0x001, "Qualcomm Oryon"}, {0x61, 0x022, "Apple M1"},
    {0x61, 0x023, "Apple M1"}, {0x61, 0x024, "Apple M1 Pro"}, {0x61, 0x025, "Apple M1 Pro"},
    {0x61, 0x028, "Apple M1 Max"}, {0x61, 0x029, "Apple M1 Max"}, {0x61, 0x032, "Apple M2"},
    {0x61, 0x033, "Apple M2"}, {0x6d, 0xd49, "Microsoft Azure Cobalt 100"}, {0xc0, 0xac3, "AmpereOne"},
};

void pelton_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t out[4]) {
    out[0] = leaf ? 0 : (uint32_t)midr();
    out[1] = out[2] = out[3] = 0;
    (void)subleaf;
}

void pelton_cpu_model(char name[64]) {
    const uint64_t id = midr();
    const uint32_t implementer = id >> 24 & 0xff, part = id >> 4 & 0xfff;
    for (size_t i = 0; i < sizeof CORES / sizeof *CORES; i++)
        if (CORES[i].implementer == implementer && CORES[i].part == part) {
            snprintf(name, 64, "%s", CORES[i].name);
            return;
        }
    snprintf(name, 64, "AArch64 0x%02x/0x%03x", implementer, part);
}
#else
void pelton_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t out[4]) {
    out[0] = out[1] = out[2] = out[3] = 0;
    (void)leaf, (void)subleaf;
}

/* No instruction of user programs identifies the core. */
void pelton_cpu_model(char name[64]) { snprintf(name, 64, "%s", ARCHITECTURE); }
#endif
#endif

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

const char *pelton_cpu_feature(size_t i) {
    return i >= COUNT ? NULL : has(i, saved_registers()) ? FEATURES[i].name : "";
}
