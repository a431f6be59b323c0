// Filters that are not constant are packed by the task that uses them: panels of NR output channels as
// [tap][channel][NR], zero past the last one.
#pragma once
#include "vec.h"

AI void pack_filters(const args *a, const float *filters, float *to, idx n0, idx n1) {
    for (idx n = n0; n < n1; n += NR)
        for (idx kh = 0; kh < KH; kh++)
            for (idx kw = 0; kw < KW; kw++)
                for (idx c = 0; c < C; c++) {
                    const float *from = filters + n * WO + c * WC + kh * WH + kw * WW;
                    unroll (int j = 0; j < NV; j++) {
                        const idx left = OC - n - j * VL;
                        st_f32(to, left <= 0 ? bc_f32(0) : ldg_f32(from + j * VL * WO, WO, left < VL ? left : VL));
                        to += VL;
                    }
                }
}
