// Determinants by elimination, the largest element of each column as its pivot; in double precision, whatever the elements are.
#include "vec.h"

// <region>
enum : long { N = 5, ROW = 5, COLUMN = 1 };
#define X_AT(b) ((b) * N * N)
#define Y_AT(b) (b)
typedef f32 element;
// </region>
// <tactic>
// </tactic>

AI double eliminated(double *m, long n) {
    double product = 1;
    for (long k = 0; k < n; k++) {
        long best = k;
        for (long i = k + 1; i < n; i++)
            if (__builtin_fabs(m[i * n + k]) > __builtin_fabs(m[best * n + k])) best = i;
        double *row = m + k * n, *other = m + best * n;
        product *= best == k ? other[k] : -other[k];
        if (product == 0) return 0;
        for (long j = k; j < n && best != k; j++) {
            const double held = row[j];
            row[j] = other[j], other[j] = held;
        }
        for (long i = k + 1; i < n; i++) {
            const double factor = m[i * n + k] / row[k];
            for (long j = k + 1; j < n; j++) m[i * n + j] -= factor * row[j];
        }
    }
    return product;
}

void KERNEL(const args *table, long begin, long end, void *scratch) {
    OWN_ARGS(a, table);
    double *m = scratch;
    for (long b = begin; b < end; b++) {
        const element *x = (const element *)a[0].p + X_AT(b);
        for (long i = 0; i < N; i++)
            for (long j = 0; j < N; j++) m[i * N + j] = x[i * ROW + j * COLUMN];
        ((element *)a[1].p)[Y_AT(b)] = (element)eliminated(m, N);
    }
}
