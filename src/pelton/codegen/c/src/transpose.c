// A copy between two layouts whose unit-stride axes differ: blocks of VL × VL elements transposed in registers.
#include "vec.h"

// <region>
enum : idx { OUTER = 2, I = 13, J = 21, XI = 1, XJ = 13, YI = 21, YJ = 1 };
typedef float element;
#define X_AT(o) ((o) * I * J)
#define Y_AT(o) ((o) * I * J)
#define TRANSPOSE transpose_f32
// </region>
// <tactic>
enum : idx { JB = 64 };
// </tactic>

#define JBS ((J + JB - 1) / JB)

// x has unit stride along i, y along j
void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    for (idx t = begin; t < end; t++) {
        const idx o = t / JBS, j0 = t % JBS * JB, j1 = j0 + JB < J ? j0 + JB : J;
        const element *x = (const element *)a[0].p + X_AT(o);
        element *y = (element *)a[1].p + Y_AT(o);
        idx i = 0;
#ifdef TRANSPOSE
        for (; i + VL <= I; i += VL) {
            idx j = j0;
            for (; j + VL <= j1; j += VL) {
                vf32 v[VL];
                unroll (int k = 0; k < VL; k++) v[k] = ld_f32((const float *)(x + (j + k) * XJ + i));
                TRANSPOSE(v);
                unroll (int k = 0; k < VL; k++) st_f32((float *)(y + (i + k) * YI + j), v[k]);
            }
            for (; j < j1; j++)
                for (int k = 0; k < VL; k++) y[(i + k) * YI + j] = x[j * XJ + i + k];
        }
#endif
        for (; i < I; i++)
            for (idx j = j0; j < j1; j++) y[i * YI + j] = x[j * XJ + i];
    }
}
