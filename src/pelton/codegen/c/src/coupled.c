// Probabilities of classes from those of pairs of classes (see the op), row by row; in double precision, as in libsvm,
// so that no rounding decides when to stop.
#include "vec.h"

// <region>
enum : idx { CLASSES = 4, ROUNDS = 100, XR = 6, XP = 1, YR = 4, YC = 1 };
typedef f32 element;
// </region>
// <tactic>
// </tactic>

AI void fit(const double *q, double *p, double *qp) {
    for (idx t = 0; t < CLASSES; t++) p[t] = 1. / CLASSES;
    for (idx round = 0; round < ROUNDS; round++) {
        double pqp = 0, error = 0;
        for (idx t = 0; t < CLASSES; t++) {
            qp[t] = 0;
            for (idx j = 0; j < CLASSES; j++) qp[t] += q[t * CLASSES + j] * p[j];
            pqp += p[t] * qp[t];
        }
        for (idx t = 0; t < CLASSES; t++) {
            const double off = __builtin_fabs(qp[t] - pqp);
            error = off > error || off != off ? off : error;
        }
        if (!(error >= 0.005 / CLASSES)) return;
        for (idx t = 0; t < CLASSES; t++) {
            const double *row = q + t * CLASSES, step = (pqp - qp[t]) / row[t], whole = 1 + step;
            p[t] += step;
            pqp = (pqp + step * (step * row[t] + 2 * qp[t])) / (whole * whole);
            for (idx j = 0; j < CLASSES; j++) {
                qp[j] = (qp[j] + step * row[j]) / whole;
                p[j] /= whole;
            }
        }
    }
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    double *q = scratch, *p = q + CLASSES * CLASSES, *qp = p + CLASSES;
    for (idx r = begin; r < end; r++) {
        const element *x = (const element *)a[0].p + r * XR;
        element *y = (element *)a[1].p + r * YR;
        for (idx t = 0; t < CLASSES; t++) q[t * CLASSES + t] = 0;
        for (idx i = 0, pair = 0; i < CLASSES; i++)
            for (idx j = i + 1; j < CLASSES; j++, pair++) {
                double first = x[pair * XP];
                first = first < 1e-7 ? 1e-7 : first > 1 - 1e-7 ? 1 - 1e-7 : first;
                const double second = 1 - first;
                q[i * CLASSES + j] = q[j * CLASSES + i] = -first * second;
                q[i * CLASSES + i] += second * second;
                q[j * CLASSES + j] += first * first;
            }
        fit(q, p, qp);
        for (idx t = 0; t < CLASSES; t++) y[t * YC] = (element)p[t];
    }
}
