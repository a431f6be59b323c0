/* Runs the kernels of an engine once, with a mark before the first step and behind every step, on Linux for Arm without
 * a C library: run < INPUT > OUTPUT. The code is that of a micro-controller; qemu-arm runs it as a user process.
 * -DIN_BYTES, -DOUT_BYTES: of the only input and the only output. -DWORDS: a file with words, patches, steps. */
#include <stddef.h>

#include "bundle.h"
#include "../arm/marks.h"

enum { EXIT = 1, READ = 3, WRITE = 4 };

static long call(long number, long a, const void *b, long c) {
    register long r7 __asm__("r7") = number, r0 __asm__("r0") = a, r2 __asm__("r2") = c;
    register const void *r1 __asm__("r1") = b;
    __asm__ volatile("svc 0" : "+r"(r0) : "r"(r7), "r"(r1), "r"(r2) : "memory");
    return r0;
}

static _Alignas(64) char input[IN_BYTES], output[OUT_BYTES];
static char *const ports[] = { input, output };

#include WORDS

static void run(void) {
    for (size_t i = 0; i < IN_BYTES;) {
        const long n = call(READ, 0, input + i, (long)(IN_BYTES - i));
        if (n <= 0)
            call(EXIT, 2, NULL, 0);
        i += (size_t)n;
    }
    for (size_t i = 0; i < sizeof patches / sizeof *patches; i++)
        words[patches[i].word].p = ports[patches[i].port] + patches[i].offset;
#if __ARM_FP
    uint32_t mode;
    __asm__ volatile("vmrs %0, fpscr" : "=r"(mode));
    __asm__ volatile("vmsr fpscr, %0" : : "r"(mode | 1u << 24)); /* flush to zero */
#endif
    mark();
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        steps[i].run(words + steps[i].first, 0, (idx)steps[i].tiles, scratch);
        mark();
    }
    for (size_t i = 0; i < OUT_BYTES;)
        i += (size_t)call(WRITE, 1, output + i, (long)(OUT_BYTES - i));
    call(EXIT, 0, NULL, 0);
}

void _start(void) {
    run();
}
