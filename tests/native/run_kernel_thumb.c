/* run_kernel MEMORY: as run_kernel.c, with a kernel for a micro-controller that is linked into it, on Linux for Arm
 * without a C library. */
#include <stdint.h>

#include "kernel.h"

enum { EXIT = 1, READ = 3, OPEN = 5, MMAP2 = 192, PAGE = 4096 };
enum { NONE = 0, READ_WRITE = 3, SHARED = 1, PRIVATE = 2, FIXED = 16, ANONYMOUS = 32, MOST = 256 };

extern kernel kernel_to_run;

static long call(long number, long a, long b, long c, long d, long e, long f) {
    register long r7 __asm__("r7") = number, r0 __asm__("r0") = a, r1 __asm__("r1") = b, r2 __asm__("r2") = c;
    register long r3 __asm__("r3") = d, r4 __asm__("r4") = e, r5 __asm__("r5") = f;
    __asm__ volatile("svc 0"
                     : "+r"(r0)
                     : "r"(r7), "r"(r1), "r"(r2), "r"(r3), "r"(r4), "r"(r5)
                     : "memory");
    return r0;
}

static void quit(long status) {
    for (;;)
        call(EXIT, status, 0, 0, 0, 0, 0);
}

static int64_t next(void) {
    static char room[1 << 16];
    static long at, size;
    int64_t n = 0;
    for (int i = 0; i < 8; i++) {
        if (at == size && (at = 0, size = call(READ, 0, (long)room, sizeof room, 0, 0, 0)) <= 0)
            quit(3);
        n |= (int64_t)(uint64_t)((uint64_t)(uint8_t)room[at++] << 8 * i);
    }
    return n;
}

static char *pages(long where, long size, long access, long flags, long file, int64_t at) {
    const long p = call(MMAP2, where, size, access, flags, file, (long)(at / PAGE));
    if (p < 0 && p > -PAGE)
        quit(4);
    return (char *)p;
}

/* start: of the stack, where the number of arguments and the arguments are. */
__attribute__((used)) static void run(const long *start) {
    static char *buffers[MOST];
    static args words[1024];
    const long file = call(OPEN, start[2], 2, 0, 0, 0, 0);
    int64_t count = next();
    if (file < 0 || count > MOST)
        quit(8);
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = next(), size = next();
        char *room = pages(0, (long)size + 2 * PAGE, NONE, PRIVATE | ANONYMOUS, -1, 0);
        buffers[i] = pages((long)room + PAGE, (long)size, READ_WRITE, SHARED | FIXED, file, at);
    }
    count = next();
    if (count > (int64_t)(sizeof words / sizeof *words))
        quit(8);
    for (int64_t i = 0; i < count; i++) {
        const int64_t buffer = next(), value = next();
        words[i].d = (idx)value;
        if (buffer >= 0)
            words[i].p = buffers[buffer] + value;
    }
    const int64_t buffer = next(), offset = next();
#if __ARM_FP
    uint32_t mode;
    __asm__ volatile("vmrs %0, fpscr" : "=r"(mode));
    __asm__ volatile("vmsr fpscr, %0" : : "r"(mode | 1u << 24)); /* flush to zero */
#endif
    for (count = next(); count; count--) {
        const int64_t begin = next(), end = next();
        kernel_to_run(words, (idx)begin, (idx)end, buffers[buffer] + offset);
    }
    quit(0);
}

__attribute__((naked)) void _start(void) {
    __asm__ volatile("mov r0, sp\n bl run");
}
