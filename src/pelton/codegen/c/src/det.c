// Determinants by elimination, with the largest element of each column as its pivot; in double precision, whatever the
// element type.
#include "vec.h"

// <region>
enum : idx { N = 5, ROW = 5, COLUMN = 1 };
#define X_AT(b) ((b) * N * N)
#define Y_AT(b) (b)
typedef f32 element;
// </region>
// <tactic>
// </tactic>

AI double determinant(double *m, idx n) {
    double product = 1;
    for (idx k = 0; k < n; k++) {
        idx best = k;
        for (idx i = k + 1; i < n; i++)
            if (__builtin_fabs(m[i * n + k]) > __builtin_fabs(m[best * n + k])) best = i;
        double *row = m + k * n, *other = m + best * n;
        product *= best == k ? other[k] : -other[k];
        if (product == 0) return 0;
        for (idx j = k; j < n && best != k; j++) {
            const double swapped = row[j];
            row[j] = other[j], other[j] = swapped;
        }
        for (idx i = k + 1; i < n; i++) {
            const double factor = m[i * n + k] / row[k];
            for (idx j = k + 1; j < n; j++) m[i * n + j] -= factor * row[j];
        }
    }
    return product;
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    double *m = scratch;
    for (idx b = begin; b < end; b++) {
        const element *x = (const element *)a[0].p + X_AT(b);
        for (idx i = 0; i < N; i++)
            for (idx j = 0; j < N; j++) m[i * N + j] = x[i * ROW + j * COLUMN];
        ((element *)a[1].p)[Y_AT(b)] = (element)determinant(m, N);
    }
}
