// What recurrent kernels share: states held in scratch, one padded row per row of the batch.
#pragma once
#include "product.h"

// Rows of `n` elements, `stride` apart, to rows of `width`, the rest zero.
AI void load_state(float *to, long width, const float *from, long stride, long rows, long n) {
    for (long i = 0; i < rows; i++)
        for (long u = 0; u < width; u += VL) st_f32(to + i * width + u, piece(from + i * stride + u, n - u));
}

AI void save_state(float *to, long stride, const float *from, long width, long rows, long n) {
    for (long i = 0; i < rows; i++)
        for (long u = 0; u < n; u += VL) stn_f32(to + i * stride + u, ld_f32(from + i * width + u), n - u < VL ? n - u : VL);
}

// Weights [gate, unit, old unit], `stride` from row to row, in the order in which they are read: by blocks of `width` units, in a block by old units, then
// gates; units past the last one zero. Gates lie n units apart.
AI void pack_weights(float *to, const float *from, long stride, long gates, long n, long width) {
    const long blocks = (n + width - 1) / width;
    for (long b = 0; b < blocks; b++)
        for (long g = 0; g < gates; g++)
            for (long u = 0; u < width; u++) {
                const float *row = from + (g * n + b * width + u) * stride;
                float *at = to + b * n * gates * width + g * width + u;
                for (long k = 0; k < n; k++) at[k * gates * width] = b * width + u < n ? row[k] : 0;
            }
}

AI vf32 limited(vf32 x, float clip) { return clip ? f32_maximum(f32_minimum(x, bc_f32(clip)), bc_f32(-clip)) : x; }
