// Rows of a matrix times a panel of packed columns, summed up in registers.
#pragma once
#include "vec.h"

// Weights are f32, or f16 where reading them is what takes the time.
AI vf32 weights_at(bool half, const void *panel, long i) { return half ? ld_f16((const f16 *)panel + i) : ld_f32((const float *)panel + i); }

// acc[rows][vectors] += n columns of `a`, whose rows lie `stride` apart, times n rows of the panel. What there is less of is loaded first
// and stays in registers: the other way round spills. Meanwhile memory from `next` on is asked for, `step` bytes per column.
AI void product_of(bool half, int rows, int vectors, const float *a, long stride, const void *panel, long n, vf32 *acc, const void *next, long step) {
    for (long k = 0; k < n; k++) {
        if (step) __builtin_prefetch((const char *)next + k * step, 0, 2);
        const long row = k * vectors * VL;
        if (rows < vectors) {
            vf32 x[rows];
            unroll (int i = 0; i < rows; i++) x[i] = bc_f32(a[i * stride + k]);
            unroll (int j = 0; j < vectors; j++) {
                const vf32 w = weights_at(half, panel, row + j * VL);
                unroll (int i = 0; i < rows; i++) acc[i * vectors + j] = vec_fma(x[i], w, acc[i * vectors + j]);
            }
        } else {
            vf32 w[vectors];
            unroll (int j = 0; j < vectors; j++) w[j] = weights_at(half, panel, row + j * VL);
            unroll (int i = 0; i < rows; i++) {
                const vf32 x = bc_f32(a[i * stride + k]);
                unroll (int j = 0; j < vectors; j++) acc[i * vectors + j] = vec_fma(x, w[j], acc[i * vectors + j]);
            }
        }
    }
}

AI void product(int rows, int vectors, const float *a, long stride, const float *panel, long n, vf32 *acc) {
    product_of(false, rows, vectors, a, stride, panel, n, acc, 0, 0);
}

// Sums of more terms than this are made of partial sums: the rounding error grows with the longest chain of additions.
enum : long { CHAIN = 256 };

// As product_of, for any length.
AI void long_product(int rows, int vectors, const float *a, long stride, const float *panel, long n, vf32 *acc, const void *next, long step) {
    for (long k = 0; k < n; k += CHAIN) {
        vf32 part[rows * vectors];
        unroll (int i = 0; i < rows * vectors; i++) part[i] = bc_f32(0);
        product_of(false, rows, vectors, a + k, stride, panel + k * vectors * VL, k + CHAIN < n ? CHAIN : n - k, part, (const char *)next + k * step, step);
        unroll (int i = 0; i < rows * vectors; i++) acc[i] += part[i];
    }
}

// A vector of a row of which `left` elements are there; the rest reads as zero.
AI vf32 piece(const float *p, long left) { return left >= VL ? ld_f32(p) : left > 0 ? ldn_f32(p, left) : bc_f32(0); }
