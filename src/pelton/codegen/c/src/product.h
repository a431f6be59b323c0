// Rows of a matrix times a panel of packed columns, summed up in registers.
#pragma once
#include "vec.h"

enum : idx { FAR = 1 << 16 }; // from this many on, weights come from L3 or memory and are prefetched

// Empties vector registers before a tile fills them. Otherwise constants of tails that stay in some make the tile
// spill: 6 × 4 took 173 instructions for 96 multiply-adds instead of 115.
#if defined __aarch64__
#define FREE_REGISTERS \
    __asm__ volatile("" ::: \
        "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", \
        "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", \
        "v29", "v30", "v31")
#else
#define FREE_REGISTERS (void)0
#endif

// Weights are f32 or, where reading them is the bottleneck, halves.
enum : idx { HALF_F16 = 1, HALF_BF16 = 2 };
AI vf32 weights_at(int half, const void *panel, idx i) {
    if (half == HALF_BF16) return ld_bf16((const bf16 *)panel + i);
    return half ? ld_f16((const f16 *)panel + i) : ld_f32((const float *)panel + i);
}

// One column of `a` times one row of the panel. The fewer of both are loaded first and stay in registers: the opposite
// spills.
AI void column(int half, int rows, int vectors, const float *a, idx stride, const void *panel, idx row, vf32 *acc) {
    if (rows < vectors) {
        vf32 x[rows];
        unroll (int i = 0; i < rows; i++) x[i] = bc_f32(a[i * stride]);
        unroll (int j = 0; j < vectors; j++) {
            const vf32 w = weights_at(half, panel, row + j * VL);
            unroll (int i = 0; i < rows; i++) acc[i * vectors + j] = vec_fma(x[i], w, acc[i * vectors + j]);
        }
    } else {
        vf32 w[vectors];
        unroll (int j = 0; j < vectors; j++) w[j] = weights_at(half, panel, row + j * VL);
        unroll (int i = 0; i < rows; i++) {
            const vf32 x = bc_f32(a[i * stride]);
            unroll (int j = 0; j < vectors; j++) acc[i * vectors + j] = vec_fma(x, w[j], acc[i * vectors + j]);
        }
    }
}

// The columns by which the loop is unrolled. Where another thread of the core takes half of the issue slots, loop
// overhead counts: against no unrolling, products of 128 to 256 rows are 5–12 % faster beside such a thread and as fast
// without. By eight: 1 % more, for longer compilation.
enum : idx { UNROLLED = 4 };
enum : idx { MAX_ROWS = 16 }; // of a register tile

// acc[rows][vectors] += n columns of `a`, whose rows are `stride` apart, times n rows of the panel. Meanwhile memory
// from `next` on is prefetched, `step` bytes per column.
AI void product_of(int half, int rows, int vectors, const float *a, idx stride, const void *panel, idx n, vf32 *acc,
                   const void *next, idx step) {
    idx k = 0;
    if (rows * vectors >= 8) {
        rolled for (; k + UNROLLED <= n; k += UNROLLED) {
            for (idx i = 0; i < UNROLLED * step; i += 64) __builtin_prefetch((const char *)next + k * step + i, 0, 2);
            if (BY_LANE) {
                vf32 x[MAX_ROWS];
                unroll (int i = 0; i < rows; i++) x[i] = ld_f32(a + i * stride + k);
                unroll (int u = 0; u < UNROLLED; u++)
                    unroll (int j = 0; j < vectors; j++) {
                        const vf32 w = weights_at(half, panel, (k + u) * vectors * VL + j * VL);
                        unroll (int i = 0; i < rows; i++)
                            acc[i * vectors + j] = vec_fma(bc_f32(x[i][u]), w, acc[i * vectors + j]);
                    }
            } else unroll (int u = 0; u < UNROLLED; u++)
                column(half, rows, vectors, a + k + u, stride, panel, (k + u) * vectors * VL, acc);
        }
    }
    rolled for (; k < n; k++) column(half, rows, vectors, a + k, stride, panel, k * vectors * VL, acc);
}

AI void product(int rows, int vectors, const float *a, idx stride, const float *panel, idx n, vf32 *acc) {
    product_of(0, rows, vectors, a, stride, panel, n, acc, 0, 0);
}

// Sums of more terms than this are split into partial sums: the rounding error grows with the longest chain of
// additions.
enum : idx { CHAIN = 256 };
// The size of arrays of accumulators: an array of a tile's exact number would stay in memory.
enum : idx { MAX_ACCUMULATORS = 32 };

// As product_of, for any length.
AI void long_product_of(int half, int rows, int vectors, const float *a, idx stride, const void *panel, idx n,
                        vf32 *acc, const void *next, idx step) {
    for (idx k = 0; k < n; k += CHAIN) {
        vf32 part[MAX_ACCUMULATORS];
        unroll (int i = 0; i < rows * vectors; i++) part[i] = bc_f32(0);
        product_of(half, rows, vectors, a + k, stride, (const char *)panel + k * vectors * VL * (half ? 2 : 4),
                   k + CHAIN < n ? CHAIN : n - k, part, (const char *)next + k * step, step);
        unroll (int i = 0; i < rows * vectors; i++) acc[i] += part[i];
    }
}

AI void long_product(int rows, int vectors, const float *a, idx stride, const float *panel, idx n, vf32 *acc,
                     const void *next, idx step) {
    long_product_of(0, rows, vectors, a, stride, panel, n, acc, next, step);
}

// A vector of a row with `left` more elements, zero past its end.
AI vf32 piece(const float *p, idx left) { return left >= VL ? ld_f32(p) : left > 0 ? ldn_f32(p, left) : bc_f32(0); }
