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

AI vf32 limited(vf32 x, float clip) { return clip ? f32_maximum(f32_minimum(x, bc_f32(clip)), bc_f32(-clip)) : x; }
