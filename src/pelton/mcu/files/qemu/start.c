/* Starts a program on an Arm MPS2 or MPS3 board, as QEMU has them: memory, FPU, clock, stack. */
#include <stdint.h>

#include "semihosting.h"

extern uint32_t data_begin[], data_end[], data_source[], zeros_begin[], zeros_end[], stack_begin[], stack_end[];
int main(void);

enum { PAINT = 0x5ac35ac3 };

/* What a program without a C library needs; a linker prefers the library's, if there is one. */
__attribute__((weak)) void *memset(void *to, int byte, __SIZE_TYPE__ bytes) {
    char *p = to;
    while (bytes && (uintptr_t)p % 4)
        *p++ = (char)byte, bytes--;
    for (const uint32_t word = (unsigned char)byte * 0x01010101u; bytes >= 4; bytes -= 4, p += 4)
        *(volatile uint32_t *)p = word;
    while (bytes--)
        *(volatile char *)p++ = (char)byte;
    return to;
}

__attribute__((weak)) void *memcpy(void *to, const void *from, __SIZE_TYPE__ bytes) {
    char *p = to;
    const char *q = from;
    for (; bytes >= 4 && ((uintptr_t)p | (uintptr_t)q) % 4 == 0; bytes -= 4, p += 4, q += 4)
        *(volatile uint32_t *)p = *(const uint32_t *)q;
    while (bytes--)
        *(volatile char *)p++ = *q++;
    return to;
}

__attribute__((weak)) void *memmove(void *to, const void *from, __SIZE_TYPE__ bytes) {
    if ((uintptr_t)to <= (uintptr_t)from || (uintptr_t)to >= (uintptr_t)from + bytes)
        return memcpy(to, from, bytes);
    while (bytes--)
        ((volatile char *)to)[bytes] = ((const char *)from)[bytes];
    return to;
}

/* Bytes of the stack that were ever used. */
uint32_t stack_depth(void) {
    const volatile uint32_t *p = stack_begin;
    while (p < stack_end && *p == PAINT)
        p++;
    return (uint32_t)((char *)stack_end - (const volatile char *)p);
}

/* Cycles of the clock that SysTick counts, modulo 2^24. */
uint32_t clock_ticks(void) {
    return 0xffffff - *(volatile uint32_t *)0xe000e018;
}

__attribute__((noreturn, used)) void start(void) {
#if defined(__ARM_FP)
    *(volatile uint32_t *)0xe000ed88 |= 0xf << 20;         /* CPACR: the FPU */
    __asm__ volatile("dsb\n\tisb");
#endif
    for (uint32_t *p = data_begin, *q = data_source; p < data_end;)
        *p++ = *q++;
    for (uint32_t *p = zeros_begin; p < zeros_end;)
        *p++ = 0;
    for (volatile uint32_t *p = stack_begin; p < (uint32_t *)__builtin_frame_address(0) - 32;)
        *p++ = PAINT;
    *(volatile uint32_t *)0xe000e014 = 0xffffff;           /* SysTick: reload, current, on by the core's clock */
    *(volatile uint32_t *)0xe000e018 = 0;
    *(volatile uint32_t *)0xe000e010 = 5;
    stop(main());
    for (;;)
        ;
}

__attribute__((noreturn)) static void fault(void) {
    print("fault\n");
    stop(1);
    for (;;)
        ;
}

__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    stack_end, (const void *)start, (const void *)fault, (const void *)fault,
    (const void *)fault, (const void *)fault, (const void *)fault, (const void *)fault,
};
