// Attention, softmax(scale · Q·Kᵀ + mask) · V: a block of queries against the keys and values of its head, which are
// packed into panels of NR once for consecutive blocks. Many keys go in blocks of KB with a running maximum and sum
// (Milakov and Gimelshein 2018, Dao et al. 2022), so that scores stay in L2.
#include "attention.h"

// <region>
enum : idx { SQ = 37, SK = 29, D = 19, DV = 21, QR = 19, KR = 19, VR = 21, CAUSAL = 0, MASKED = 1, RUNNING = 0 };
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
enum : idx { MR = 6, NV = 2, MB = 48, KB = 256 };
// </tactic>

// rows a power of two apart would fall into the same sets of L1
enum : idx { NR = NV * VL, COLS = (DV + NR - 1) / NR * NR, ROW = KB + (KB % 256 ? 0 : VL) };
#define MBS ((SQ + MB - 1) / MB)
#define KEYS ((SK + NR - 1) / NR * NR)

// Keys as [panel][d][NR], columns past SK zero: VL × VL elements transposed at a time.
static void pack_keys(const args *a, const element *k, idx b, float *to) {
    for (idx n = 0; n < KEYS; n += VL)
        for (idx d = 0; d < D; d += VL) {
            float *panel = to + n / NR * NR * D + n % NR;
            vf32 v[VL];
            unroll (int i = 0; i < VL; i++) v[i] = n + i >= SK ? bc_f32(0) : load(k + (n + i) * KR + d, D - d);
            transpose_f32(v);
            if (KEY_SCALED && n < SK) {
                const vf32 scales = key_scales(a, b, n, SK - n < VL ? SK - n : VL);
                unroll (int i = 0; i < VL; i++) v[i] *= scales;
            }
            unroll (int i = 0; i < VL; i++) if (D % VL == 0 || d + i < D) st_f32(panel + (d + i) * NR, v[i]);
        }
}

// Values as [panel][key][NR], columns past DV zero.
static void pack_values(const args *a, const element *v, idx b, float *to) {
    for (idx n = 0; n < SK; n++) {
        const vf32 scale = bc_f32(VALUE_SCALED ? value_scales(a, b, n, 1)[0] : 1);
        for (idx c = 0; c < COLS; c += VL)
            st_f32(to + c / NR * NR * SK + n * NR + c % NR, load(v + n * VR + c, DV - c) * scale);
    }
}

// Scores of queries from m and keys from n on; keys masked out for a row become minus infinity.
AI void score(int rows, bool edge, const args *a, const float *mask, const float *q, const float *k, float *s, idx b,
              idx m, idx n) {
    vf32 acc[MR][NV];
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < NV; j++) acc[i][j] = bc_f32(0);
    product(rows, NV, q, D, k, D, &acc[0][0]);
    const bool cut = edge || (CAUSAL && n + NR > m + 1);
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < NV; j++) {
            const idx c = n + j * VL, limit = CAUSAL && m + i + 1 < SK ? m + i + 1 : SK;
            const int left = !edge ? VL : SK % NR - j * VL;
            vf32 x = acc[i][j];
            if (MASKED && left > 0) x += mask_at(a, mask, b, m + i, c, left < VL ? left : VL);
            st_f32(s + i * ROW + j * VL, cut ? mask_from(x, c, limit) : x);
        }
}

AI void scores(bool edge, const args *a, const float *mask, const float *q, const float *k, float *s, idx b, idx m0,
               idx m1, idx n) {
    idx m = m0;
    for (; m + MR <= m1; m += MR, q += MR * D, s += MR * ROW) score(MR, edge, a, mask, q, k, s, b, m, n);
    if (m < m1) COUNTED(SQ % MR, MR, score(COUNT, edge, a, mask, q, k, s, b, m, n));
}

// Rows of exponentials times the values of n keys, added to the rescaled sum of the blocks before; the last part is
// divided by the row's sum and goes through the tail.
typedef struct { float top, sum, rescale; } row;
AI void weigh(int rows, bool edge, const args *a, const tail *t, const float *s, const float *v, float *part,
              const row *r, idx n, bool first, bool last, idx b, idx m, idx c) {
    vf32 acc[MR][NV];
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < NV; j++) acc[i][j] = bc_f32(0);
    product(rows, NV, s, ROW, v, n, &acc[0][0]);
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < NV; j++) {
            const int left = !edge ? VL : DV % NR - j * VL;
            if (RUNNING && !first) acc[i][j] = vec_fma(ld_f32(part + i * NR + j * VL), bc_f32(r[i].rescale), acc[i][j]);
            if (RUNNING && !last) st_f32(part + i * NR + j * VL, acc[i][j]);
            else if (left > 0) finish(t, acc[i][j] * bc_f32(r[i].sum), b, m + i, c + j * VL, left < VL ? left : VL);
        }
}

AI void weights(bool edge, const args *a, const tail *t, const float *s, const float *v, float *part, const row *r,
                idx n, bool first, bool last, idx b, idx m0, idx m1, idx c) {
    idx m = m0;
    for (; m + MR <= m1; m += MR, s += MR * ROW, part += MR * NR, r += MR)
        weigh(MR, edge, a, t, s, v, part, r, n, first, last, b, m, c);
    if (m < m1) COUNTED(SQ % MR, MR, weigh(COUNT, edge, a, t, s, v, part, r, n, first, last, b, m, c));
}

// The number of keys up to the last one that a query from m0 to m1 reads: further ones are all masked out by minus
// infinity, as those behind a token are. Half of a prompt's blocks are skipped so.
static idx keys_read(const args *a, const float *mask, idx b, idx m0, idx m1, idx seen) {
    const vi32 lane = {LANES};
    while (seen > 0) {
        const idx c = (seen - 1) / VL * VL, n = seen - c;
        for (idx m = m1 - 1; m >= m0; m--)
            if (any((mask_at(a, mask, b, m, c, (int)n) != -INFINITY) & (lane < (int)n))) return seen;
        seen = c;
    }
    return 0;
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    const float *mask = MASKED ? a[3].p : 0;
    const element *packed_k = 0, *packed_v = 0;
    float *keys = scratch, *values = keys + KEYS * D, *queries = values + SK * COLS, *s = queries + MB * D,
          *part = s + MB * ROW;
    row *rows = (row *)(part + (RUNNING ? MB * COLS : 0));
    for (idx t = begin; t < end; t++) {
        const idx b = t / MBS, m0 = t % MBS * MB, m1 = m0 + MB < SQ ? m0 + MB : SQ, most = CAUSAL && m1 < SK ? m1 : SK,
                  seen = MASKED ? keys_read(a, mask, b, m0, m1, most) : most;
        const float *q = (const float *)a[0].p + Q_AT(b) + m0 * QR;
        const element *k = (const element *)a[1].p + K_AT(b), *v = (const element *)a[2].p + V_AT(b);
        if (packed_k != k) pack_keys(a, packed_k = k, b, keys);
        if (packed_v != v) pack_values(a, packed_v = v, b, values);
        for (idx i = 0; i < m1 - m0; i++) {
            for (idx d = 0; d < D; d++) queries[i * D + d] = q[i * QR + d] * SCALE;
            rows[i] = (row){ .top = -__FLT_MAX__ }; // finite: a block that is masked out adds nothing
        }
        // runs once even without keys: then the sum of values is 0
        for (idx k0 = 0; k0 == 0 || k0 < seen; k0 += KB) {
            const idx kn = k0 + KB < seen ? KB : seen - k0;
            const bool first = k0 == 0, last = k0 + kn == seen;
            for (idx n = k0; n < k0 + kn; n += NR) {
                if (SK % NR == 0 || n + NR <= SK)
                    scores(false, a, mask, queries, keys + n * D, s + n - k0, b, m0, m1, n);
                else scores(true, a, mask, queries, keys + n * D, s + n - k0, b, m0, m1, n);
            }
            for (row *r = rows; r < rows + (m1 - m0); r++) {
                const float before = r->top,
                            added = exponentials(s + (r - rows) * ROW, (kn + NR - 1) / NR * NV, &r->top);
                if (RUNNING) r->rescale = f32_exp(bc_f32(before - r->top))[0];
                r->sum = r->sum * r->rescale + added;
                if (last) r->sum = r->sum == 0 ? 0 : 1 / r->sum; // without keys
            }
            for (idx c = 0; c < DV; c += NR) {
                if (DV % NR == 0 || c + NR <= DV)
                    weights(false, a, &T, s, values + c * SK + k0 * NR, part + c * MB, rows, kn, first, last, b, m0, m1,
                            c);
                else
                    weights(true, a, &T, s, values + c * SK + k0 * NR, part + c * MB, rows, kn, first, last, b, m0, m1,
                            c);
            }
        }
    }
}
