// Linear attention: each token of a sequence scales the state, adds to it, and reads it. A tile is WIDTH columns of the
// state of one head, which no other column depends on; it takes the tokens of its sequence in their order. Numbers of
// sequences are limited to those there are, negative ones count from the last. The state behind the last token may be
// in the memory of the one before the first.
#include "vec.h"

// <region>
enum : idx { TOKENS = 5, BATCH = 2, HEADS = 2, Q = 3, K = 4, V = 6, DECAYS = 1, RETRIEVE = 1, ENDS = 1, YS = 1 };
enum : idx { CHANGES = 1, Q_ROW = 4, S_ROW = 6, E_ROW = 6, Y_ROW = 6 };
#define Q_AT(t, h) (((t) * HEADS + (h)) * Q * K)
#define K_AT(t, h) (((t) * HEADS + (h)) * K)
#define V_AT(t, h) (((t) * HEADS + (h)) * V)
#define DECAY_AT(t, h) ((t) * HEADS + (h))
#define BETA_AT(t, h) ((t) * HEADS + (h))
#define S_AT(b, h) (((b) * HEADS + (h)) * K * V)
#define OF_AT(t) (t)
#define E_AT(b, h) (((b) * HEADS + (h)) * K * V)
#define Y_AT(t, h) (((t) * HEADS + (h)) * Q * V)
#define D_AT(t, h) (((t) * HEADS + (h)) * V)
typedef i64 place;
// </region>
// <tactic>
enum : idx { WIDTH = 6 };
// </tactic>

#define FLOATS(i) ((const float *)a[i].p)

AI idx sequence_of(const args *a, idx t) {
    const idx b = ((const place *)a[6].p)[OF_AT(t)], from_front = b < 0 ? b + BATCH : b;
    return from_front < 0 ? 0 : from_front >= BATCH ? BATCH - 1 : from_front;
}

// Takes token t: n columns of the state from s on, whose rows are `step` apart; `from` is the first of them.
AI void take(const args *a, idx t, idx h, idx from, idx n, float *restrict s, idx step) {
    const float *key = FLOATS(1) + K_AT(t, h), *v = FLOATS(2) + V_AT(t, h) + from;
    const float *decay = FLOATS(3) + DECAY_AT(t, h), beta = FLOATS(4)[BETA_AT(t, h)];
    float change[WIDTH];
    for (idx i = 0; i < n; i++) change[i] = 0;
    for (idx k = 0; k < K; k++) {
        float *row = s + k * step;
        const float by = decay[DECAYS == 1 ? 0 : k], weight = key[k];
        for (idx i = 0; i < n; i++) row[i] *= by;
        if (RETRIEVE)
            for (idx i = 0; i < n; i++) change[i] += weight * row[i];
    }
    for (idx i = 0; i < n; i++) change[i] = beta * (v[i] - change[i]);
    for (idx k = 0; k < K; k++)
        for (idx i = 0; i < n; i++) s[k * step + i] += key[k] * change[i];
    if (CHANGES) __builtin_memcpy((float *)a[7 + 1 + YS].p + D_AT(t, h) + from, change, n * sizeof(float));
    if (!YS) return;
    for (idx q = 0; q < Q; q++) {
        const float *query = FLOATS(0) + Q_AT(t, h) + q * Q_ROW;
        float y[WIDTH];
        for (idx i = 0; i < n; i++) y[i] = 0;
        for (idx k = 0; k < K; k++)
            for (idx i = 0; i < n; i++) y[i] += query[k] * s[k * step + i];
        __builtin_memcpy((float *)a[7 + 1].p + Y_AT(t, h) + q * Y_ROW + from, y, n * sizeof(float));
    }
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const idx blocks = (V + WIDTH - 1) / WIDTH;
    for (idx tile = begin; tile < end; tile++) {
        const idx b = tile / (HEADS * blocks), h = tile / blocks % HEADS, from = tile % blocks * WIDTH;
        const idx n = from + WIDTH < V ? WIDTH : V - from, step = ENDS ? E_ROW : WIDTH;
        const float *x = FLOATS(5) + S_AT(b, h) + from;
        float *s = ENDS ? (float *)a[7].p + E_AT(b, h) + from : scratch;
        if (s != x)
            for (idx k = 0; k < K; k++) __builtin_memcpy(s + k * step, x + k * S_ROW, n * sizeof(float));
        for (idx t = 0; t < TOKENS; t++)
            if (sequence_of(a, t) == b) {
                if (n == WIDTH) take(a, t, h, from, WIDTH, s, step);
                else take(a, t, h, from, n, s, step);
            }
    }
}
