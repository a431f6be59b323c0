/* The calling convention of kernels, for the walker and for engines linked into a program. */
#ifndef PELTON_KERNEL_H
#define PELTON_KERNEL_H

#include <stdint.h>

/* Of tiles, steps and sizes, here and in kernels (codegen/c/src/vec.h), whatever a long is. */
#if UINTPTR_MAX == UINT32_MAX
typedef int32_t idx;
#else
typedef int64_t idx;
#endif
typedef union { void *p; idx d; } args;
#if defined(_WIN32) && defined(__x86_64__)
#define CONVENTION __attribute__((sysv_abi)) /* the code of an engine is one for all systems */
#else
#define CONVENTION
#endif
typedef CONVENTION void kernel(const args *a, idx begin, idx end, void *scratch);
#if defined(_WIN32)
#define HIDDEN
#else
#define HIDDEN __attribute__((visibility("hidden")))
#endif

/* Kernels run with denormals flushed, rounding to nearest and no traps, whatever the caller has set. Returns the
 * caller's mode. RISC-V flushes nothing and has no traps: results below 2^-126, which other CPUs make zero, stay. So do
 * they on cores without floats in registers. */
static inline uint64_t enter_kernel_mode(void) {
#if defined(__x86_64__)
    uint32_t before = __builtin_ia32_stmxcsr();
    /* all exceptions masked | flush to zero | denormals are zero */
    __builtin_ia32_ldmxcsr(0x1f80 | 1u << 15 | 1u << 6);
    return before;
#elif defined(__aarch64__)
    uint64_t before, inside = UINT64_C(1) << 24;           /* FPCR.FZ */
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(inside));
    return before;
#elif defined(__riscv)
    uint64_t before;
    __asm__ volatile("fsrmi %0, 0" : "=r"(before));        /* fcsr.frm: to nearest, ties to even */
    return before;
#elif defined(__arm__) && defined(__ARM_FP)
    uint32_t before;
    __asm__ volatile("vmrs %0, fpscr" : "=r"(before));
    /* FPSCR.FZ; LTPSIZE stays, without which loops of Armv8.1-M (LE) fault */
    __asm__ volatile("vmsr fpscr, %0" : : "r"(UINT32_C(1) << 24 | (before & UINT32_C(7) << 16)));
    return before;
#else
    return 0;
#endif
}

static inline void leave_kernel_mode(uint64_t before) {
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr((uint32_t)before);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(before));
#elif defined(__riscv)
    __asm__ volatile("fsrm %0" : : "r"(before));
#elif defined(__arm__) && defined(__ARM_FP)
    __asm__ volatile("vmsr fpscr, %0" : : "r"((uint32_t)before));
#else
    (void)before;
#endif
}

#endif
