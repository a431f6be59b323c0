// Products C[b, m, n] = A[b, m, :] · B[:, n] by a constant B of mostly zeros, which are skipped. Rows are in lanes:
// ROWS rows of A are transposed into scratch, KC columns at a time, and each nonzero weight multiplies one of these
// columns. Sums of VL outputs are transposed back for the tail. Of each block of KC columns and each output the weights
// follow one another, filled up to a multiple of PAD by zeros, with the places of their columns; `starts` has where
// they begin. A single row is read in place: its sums take four weights at a time.
#include "vec.h"

// <region>
enum : idx { BATCH = 1, M = 37, N = 40, K = 19, AR = 19 };
#define A_AT(b) ((b) * M * K)
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[4].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + (b * M + r) * N + c, x, n); }
// </region>
// <tactic>
enum : idx { ROWS = 32, KC = 128, NB = 48 };
// </tactic>

// A place counts in steps of two floats, which the addresses of x86 scale. A tile of few rows is narrower than a
// vector. Its sums, and those of a few vectors, are each made of several: a multiply-add waits for the one before.
enum : idx { WIDTH = ROWS < VL ? ROWS : VL, VECTORS = ROWS / WIDTH };
enum : idx { STEP = ROWS < 2 ? 1 : 2, PAD = VECTORS < 2 ? 4 : 2 };
enum : idx { BLOCK = K < KC ? K : KC, BLOCKS = (K + KC - 1) / KC, COPIED = (BLOCK + VL - 1) / VL * VL };
#define TILES ((M + ROWS - 1) / ROWS)
#define NBS ((N + NB - 1) / NB)
typedef float part __attribute__((ext_vector_type(WIDTH)));
typedef float part_in_memory __attribute__((ext_vector_type(WIDTH), aligned(4), may_alias));

// Columns [k][ROWS] of `rows` rows of A, n of them; lanes past `rows` repeat the last row.
AI void transpose_rows(const args *a, const float *A, float *to, idx rows, idx n) {
    if (WIDTH < VL) {
        for (idx i = 0; i < ROWS; i++) {
            const float *from = A + (i < rows ? i : rows - 1) * AR;
            for (idx k = 0; k < n; k++) to[k * ROWS + i] = from[k];
        }
        return;
    }
    for (idx v = 0; v < rows; v += VL)
        for (idx k = 0; k < n; k += VL) {
            vf32 r[VL];
            unroll (int i = 0; i < VL; i++) {
                const float *from = A + (v + i < rows ? v + i : rows - 1) * AR + k;
                r[i] = k + VL <= n ? ld_f32(from) : ldn_f32(from, n - k);
            }
            transpose_f32(r);
            unroll (int i = 0; i < VL; i++) st_f32(to + (k + i) * ROWS + v, r[i]);
        }
}

// The sum of one output for one row.
typedef float four __attribute__((ext_vector_type(4)));
typedef float four_in_memory __attribute__((ext_vector_type(4), aligned(4), may_alias));
AI four times_four(const float *X, const float *w, const u16 *at, four sum) {
    return vec_fma(*(const four_in_memory *)w, ((four){ X[at[0]], X[at[1]], X[at[2]], X[at[3]] }), sum);
}
AI void sum_single(bool first, const float *X, const float *w, const u16 *at, idx count, float *y) {
    four even = (four)0.0f, odd = (four)0.0f;
    idx e = 0;
    rolled for (; e + 8 <= count; e += 8) {
        __builtin_prefetch(w + e + 256, 0, 2);
        even = times_four(X, w + e, at + e, even);
        odd = times_four(X, w + e + 4, at + e + 4, odd);
    }
    if (e < count) even = times_four(X, w + e, at + e, even);
    const four both = even + odd;
    const float total = (both.x + both.y) + (both.z + both.w);
    *y = first ? total : *y + total;
}

// The sums of one output for `vectors` of the rows: `count` weights at w, and the places of their columns in X.
AI void sum(int vectors, bool first, const float *X, const float *w, const u16 *at, idx count, float *y) {
    part acc[VECTORS * PAD];
    unroll (int i = 0; i < vectors * PAD; i++) acc[i] = (part)0.0f;
    rolled for (idx e = 0; e < count; e += PAD)
        unroll (int u = 0; u < PAD; u++) {
            const part weight = (part)w[e + u];
            const float *x = X + (idx)at[e + u] * STEP;
            unroll (int v = 0; v < vectors; v++) {
                const int i = vectors <= 4 ? v * PAD + u : v;
                acc[i] = vec_fma(weight, *(const part_in_memory *)(x + v * WIDTH), acc[i]);
            }
        }
    unroll (int v = 0; v < vectors; v++) {
        part total = vectors <= 4 ? acc[v * PAD] + acc[v * PAD + 1] : acc[v];
        if (PAD == 4 && vectors <= 4) total += acc[v * PAD + 2] + acc[v * PAD + 3];
        part_in_memory *to = (part_in_memory *)(y + v * WIDTH);
        *to = first ? total : *to + total;
    }
}

// The ends of VL outputs from the n-th on, of which y has the sums.
AI void finish_outputs(const tail *t, const float *y, idx rows, idx b, idx m, idx n, int left) {
    if (ROWS == 1) {
        finish(t, ld_f32(y), b, m, n, left);
    } else if (WIDTH < VL) {
        for (idx i = 0; i < rows; i++) finish(t, ldg_f32(y + i, ROWS, VL), b, m + i, n, left);
    } else for (idx v = 0; v < rows; v += VL) {
        vf32 r[VL];
        unroll (int j = 0; j < VL; j++) r[j] = ld_f32(y + j * ROWS + v);
        transpose_f32(r);
        unroll (int i = 0; i < VL; i++)
            if (v + i < rows) finish(t, r[i], b, m + v + i, n, left);
    }
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    const float *weights = a[1].p;
    const u16 *places = a[2].p;
    const i32 *starts = a[3].p;
    float *copies = scratch, *sums = copies + (ROWS > 1 ? ROWS * COPIED : 0);
    idx copied = -1;
    for (idx t = begin; t < end; t++) {
        const idx nb = t % NBS, m = t / NBS % TILES * ROWS, b = t / (NBS * TILES);
        const idx n0 = nb * NB, n1 = n0 + NB < N ? n0 + NB : N, rows = m + ROWS < M ? ROWS : M - m;
        const float *A = (const float *)a[0].p + A_AT(b) + m * AR;
        for (idx k = 0, block = 0; block < BLOCKS; block++, k += KC) {
            const float *X = ROWS > 1 ? copies : A + k;
            // consecutive tasks share their rows
            if (ROWS > 1 && (BLOCKS > 1 || copied != t / NBS))
                transpose_rows(a, A + k, copies, rows, k + KC < K ? KC : K - k);
            copied = t / NBS;
            for (idx n = n0; n < n1; n += VL) {
                const int left = n + VL <= N ? VL : (int)(N - n);
                float *y = sums + (BLOCKS > 1 ? (n - n0) * ROWS : 0);
                const i32 *start = starts + block * N + n;
                for (int j = 0; j < left; j++) {
                    const float *w = weights + start[j];
                    const u16 *at = places + start[j];
                    const idx count = start[j + 1] - start[j];
                    if (ROWS == 1)
                        sum_single(block == 0, X, w, at, count, y + j);
                    else if (rows > ROWS - WIDTH)
                        sum(VECTORS, block == 0, X, w, at, count, y + j * ROWS);
                    else
                        COUNTED((rows + VL - 1) / VL, VECTORS,
                                sum(COUNT, block == 0, X, w, at, count, y + j * ROWS));
                }
                if (block == BLOCKS - 1) finish_outputs(&T, y, rows, b, m, n, left);
            }
        }
    }
}
