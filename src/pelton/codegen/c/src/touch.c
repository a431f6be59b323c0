// Writes memory as it is, part by part: every thread then has its part of an activation in its own caches, as after the step that made it.
#include "vec.h"

void KERNEL(const args *a, long begin, long end, void *scratch) {
    const long n = a[1].d / sizeof(long), parts = a[2].d;
    volatile long *p = a[0].p;
    for (long i = n * begin / parts; i < n * end / parts; i += 64 / sizeof(long)) p[i] = p[i];
}
