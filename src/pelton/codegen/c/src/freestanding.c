// The functions that clang calls even without a C library: block copies and fills, visible only inside the engine that
// they are linked into.
#include "vec.h"

#define HIDDEN __attribute__((visibility("hidden"), no_builtin))
typedef __SIZE_TYPE__ size;
enum : size { BLOCK = sizeof(vf32) };

HIDDEN void *memmove(void *to, const void *from, size n) {
    char *d = to;
    const char *s = from;
    if ((size)d - (size)s >= n) { // no byte of `from` is overwritten before it is read
        for (; n >= BLOCK; d += BLOCK, s += BLOCK, n -= BLOCK) st_f32((f32 *)d, ld_f32((const f32 *)s));
        for (; n; n--) *d++ = *s++;
    } else {
        for (; n >= BLOCK; n -= BLOCK) st_f32((f32 *)(d + n - BLOCK), ld_f32((const f32 *)(s + n - BLOCK)));
        while (n--) d[n] = s[n];
    }
    return to;
}

HIDDEN void *memcpy(void *restrict to, const void *restrict from, size n) { return memmove(to, from, n); }

HIDDEN void *memset(void *to, int value, size n) {
    char *d = to;
    const vf32 block = (vf32)(vu32)((unsigned char)value * 0x01010101u);
    for (; n >= BLOCK; d += BLOCK, n -= BLOCK) st_f32((f32 *)d, block);
    for (; n; n--) *d++ = (char)value;
    return to;
}
