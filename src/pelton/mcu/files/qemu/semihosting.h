/* Semihosting: files and texts of the machine that runs an emulator or a debugger (Arm's ABI, semihosting.rst). */
#ifndef SEMIHOSTING_H
#define SEMIHOSTING_H

#include <stdint.h>

enum { SYS_OPEN = 1, SYS_CLOSE = 2, SYS_WRITE0 = 4, SYS_WRITE = 5, SYS_READ = 6, SYS_EXIT = 0x18 };
enum { READ_BINARY = 1, WRITE_BINARY = 5 };

static inline int32_t semihosting(int32_t operation, const void *argument) {
    register int32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

/* A handle; -1 without the file. */
static inline int32_t file_open(const char *name, uint32_t length, uint32_t mode) {
    const uint32_t of[3] = {(uint32_t)name, mode, length};
    return semihosting(SYS_OPEN, of);
}

/* The bytes that were not read or written. */
static inline int32_t file_transfer(int32_t operation, int32_t handle, const void *data, uint32_t bytes) {
    const uint32_t of[3] = {(uint32_t)handle, (uint32_t)data, bytes};
    return semihosting(operation, of);
}

static inline void file_close(int32_t handle) {
    semihosting(SYS_CLOSE, &handle);
}

static inline void print(const char *text) {
    semihosting(SYS_WRITE0, text);
}

static inline void print_number(const char *before, uint32_t number) {
    char digits[12], *at = digits + sizeof digits - 1;
    *at = 0;
    do
        *--at = (char)('0' + number % 10), number /= 10;
    while (number);
    print(before);
    print(at);
    print("\n");
}

static inline void stop(int is_failure) {
    /* ADP_Stopped_RunTimeErrorUnknown, ADP_Stopped_ApplicationExit */
    semihosting(SYS_EXIT, (const void *)(is_failure ? 0x20023u : 0x20026u));
    for (;;)
        ;
}

#endif
