// Linear and cubic interpolation, channels-last: an output pixel is the weighted sum of TH × TW input pixels.
#include "vec.h"

// <region>
enum : idx { BATCH = 1, C = 13, OH = 4, OW = 6, TH = 2, TW = 2, XN = 78, XH = 39, XW = 13 };
static const int rows[OH][TH] = { { 0, 0 }, { 0, 1 }, { 0, 1 }, { 1, 1 } },
                 columns[OW][TW] = { { 0, 0 }, { 0, 1 }, { 0, 1 }, { 1, 2 }, { 1, 2 }, { 2, 2 } };
static const float row_weights[OH][TH] = {{.25f, .75f}, {.75f, .25f}, {.25f, .75f}, {.75f, .25f}};
static const float column_weights[OW][TW] = { { .25f, .75f }, { .75f, .25f }, { .25f, .75f },
                                              { .75f, .25f }, { .25f, .75f }, { .75f, .25f } };
typedef f32 element;
typedef vf32 vec;
#define LOAD(p, n) ldn_f32(p, n)
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[1].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + (b * OH * OW + r) * C + c, x, n); }
// </region>
// <tactic>
enum : idx { RB = 1 };
// </tactic>

#define RBS ((OH + RB - 1) / RB)

AI void channels(int lanes, const tail *t, const element *const *from, const vf32 *by, const vf32 *along, const idx *at,
                 idx b, idx r, idx c) {
    vf32 sum = bc_f32(0);
    unroll (int i = 0; i < TH; i++) {
        vf32 part = along[0] * LOAD(from[i] + at[0] + c, lanes);
        unroll (int j = 1; j < TW; j++) part = vec_fma(along[j], LOAD(from[i] + at[j] + c, lanes), part);
        sum = i ? vec_fma(by[i], part, sum) : by[i] * part;
    }
    finish(t, sum, b, r, c, lanes);
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    for (idx t = begin; t < end; t++) {
        const idx b = t / RBS, p0 = t % RBS * RB, p1 = p0 + RB < OH ? p0 + RB : OH;
        for (idx p = p0; p < p1; p++) {
            const element *from[TH];
            vf32 by[TH];
            unroll (int i = 0; i < TH; i++)
                from[i] = (const element *)a[0].p + b * XN + rows[p][i] * XH, by[i] = bc_f32(row_weights[p][i]);
            for (idx q = 0; q < OW; q++) {
                idx at[TW], c = 0;
                vf32 along[TW];
                unroll (int j = 0; j < TW; j++) at[j] = columns[q][j] * XW, along[j] = bc_f32(column_weights[q][j]);
                for (; c + VL <= C; c += VL) channels(VL, &T, from, by, along, at, b, p * OW + q, c);
                if (C % VL) channels(C % VL, &T, from, by, along, at, b, p * OW + q, c);
            }
        }
    }
}
