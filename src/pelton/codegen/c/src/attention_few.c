// Attention for few queries, one at a time. Reading keys and values is the bottleneck: they are read once, in place.
// Those of a cache may be halves or bytes: scales of keys are factors of scores, scales of values those of weights.
#include "attention.h"

// <region>
enum : idx { SQ = 3, SK = 29, D = 19, DV = 21, QR = 19, KR = 19, VR = 21, CAUSAL = 0, MASKED = 1 };
#define SCALE 0.25f
#define Q_AT(b) ((b) * SQ * D)
#define K_AT(b) ((b) * SK * D)
#define V_AT(b) ((b) * SK * DV)
AI vf32 mask_at(const args *a, const float *mask, idx b, idx r, idx c, int n) { return ldn_f32(mask + r * SK + c, n); }
typedef float element;
AI vf32 load(const element *p, idx left) { return piece(p, left); }
enum : idx { KEY_SCALED = 0, VALUE_SCALED = 0 };
AI vf32 key_scales(const args *a, idx b, idx c, idx n) { return bc_f32(1); }
AI vf32 value_scales(const args *a, idx b, idx c, idx n) { return bc_f32(1); }
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[4].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + (b * SQ + r) * DV + c, x, n); }
// </region>
// <tactic>
enum : idx { NV = 3, PARTS = 2 };
// </tactic>

enum : idx { NR = NV * VL };

// VL scores; past the last key, the last one is read again.
AI vf32 score(const args *a, const float *q, const element *k, idx left) {
    vf32 acc[VL];
    const element *at[VL];
    unroll (int i = 0; i < VL; i++) acc[i] = bc_f32(0), at[i] = k + (i < left ? i : left - 1) * KR;
    for (idx d = 0; d + VL <= D; d += VL) {
        const vf32 x = ld_f32(q + d);
        unroll (int i = 0; i < VL; i++) acc[i] = vec_fma(x, load(at[i] + d, VL), acc[i]);
    }
    if (D % VL) {
        const vf32 x = ldn_f32(q + D / VL * VL, D % VL);
        unroll (int i = 0; i < VL; i++) acc[i] = vec_fma(x, load(at[i] + D / VL * VL, D % VL), acc[i]);
    }
    transpose_f32(acc);
    unroll (int step = VL / 2; step > 0; step /= 2)
        unroll (int i = 0; i < step; i++) acc[i] += acc[i + step];
    return acc[0] * SCALE;
}

// `width` columns of the result; the sum over keys in PARTS, enough of them to hide the latency of multiply-adds.
AI void weigh(int width, const args *a, const tail *t, const float *e, const element *v, float scale, idx n, idx b,
              idx r, idx c) {
    vf32 sum[NV];
    unroll (int j = 0; j * VL < width; j++) sum[j] = bc_f32(0);
    for (idx k = 0; k < n;) {
        const idx end = k + PARTS * CHAIN < n ? k + PARTS * CHAIN : n;
        vf32 acc[PARTS][NV];
        unroll (int p = 0; p < PARTS; p++)
            unroll (int j = 0; j * VL < width; j++) acc[p][j] = bc_f32(0);
        for (; k + PARTS <= end; k += PARTS)
            unroll (int p = 0; p < PARTS; p++)
                unroll (int j = 0; j * VL < width; j++)
                    acc[p][j] = vec_fma(bc_f32(e[k + p]), load(v + (k + p) * VR + j * VL, width - j * VL), acc[p][j]);
        // each key's part depends on its place alone: keys behind the last that counts change no bit
        unroll (int p = 0; p < PARTS - 1; p++)
            if (k + p < end)
                unroll (int j = 0; j * VL < width; j++)
                    acc[p][j] = vec_fma(bc_f32(e[k + p]), load(v + (k + p) * VR + j * VL, width - j * VL), acc[p][j]);
        k = end;
        unroll (int j = 0; j * VL < width; j++) {
            unroll (int p = 1; p < PARTS; p++) acc[0][j] += acc[p][j];
            sum[j] += acc[0][j];
        }
    }
    unroll (int j = 0; j * VL < width; j++)
        finish(t, sum[j] * scale, b, r, c + j * VL, width - j * VL < VL ? width - j * VL : VL);
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    const float *mask = MASKED ? a[3].p : 0;
    float *s = scratch;
    for (idx t = begin; t < end; t++) {
        const idx b = t / SQ, r = t % SQ, n = CAUSAL && r + 1 < SK ? r + 1 : SK;
        const float *q = (const float *)a[0].p + Q_AT(b) + r * QR;
        const element *k = (const element *)a[1].p + K_AT(b), *v = (const element *)a[2].p + V_AT(b);
        for (idx c = 0; c < n; c += VL) {
            vf32 x = score(a, q, k + c * KR, n - c);
            if (KEY_SCALED) x *= key_scales(a, b, c, n - c < VL ? n - c : VL);
            if (MASKED) x += mask_at(a, mask, b, r, c, n - c < VL ? n - c : VL);
            st_f32(s + c, c + VL <= n ? x : mask_from(x, c, n));
        }
        float top = -__FLT_MAX__;
        const float sum = exponentials(s, (n + VL - 1) / VL, &top), scale = sum == 0 ? 0 : 1 / sum;
        if (VALUE_SCALED)
            for (idx c = 0; c < n; c += VL)
                st_f32(s + c, ld_f32(s + c) * value_scales(a, b, c, n - c < VL ? n - c : VL));
        idx c = 0;
        for (; c + NR <= DV; c += NR) weigh(NR, a, &T, s, v + c, scale, n, b, r, c);
        if (DV % NR) weigh(DV % NR, a, &T, s, v + c, scale, n, b, r, c);
    }
}
