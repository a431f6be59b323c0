// Decision trees whose leaves have any number of weights (tree_chains.c: those with one). A tile is a run of rows in a
// part of the trees; tree after tree, so that one stays in L1 while the rows pass through it, several at a time: each
// step of a row depends on the node that the step before it found, so several rows hide the latency. Too few rows pass
// through several trees at a time instead. No comparison is branched on: it is added to the index of the next node.
#include "vec.h"

// <region>
enum : idx { ROWS = 5, TREES = 3, PARTS = 1, TARGETS = 1, XR = 4, XF = 1, YP = 5, YR = 1, YT = 1, MISSING = 0 };
typedef f32 element, value;
#define START 0
#define JOIN(a, b) ((a) + (b))
// </region>
// <tactic>
enum : idx { RB = 64 };
// </tactic>

// Walks at a time (16 took as long, within 5 %, for one row and for a hundred), and steps between two checks for the
// end of all walks.
enum : idx { ABREAST = 8, STRIDE = 4 };
typedef struct { element threshold; i32 feature, child; } node;

AI i32 next(const node *n, const element *x) {
    const i32 f = MISSING && n->feature < 0 ? ~n->feature : n->feature;
    const element v = x[f * XF];
    return n->child + !((v <= n->threshold) | (MISSING && v != v && n->feature < 0));
}

// Walks down from the slots in `at`, row by row or tree by tree: lane l reads the features at x + l · step.
AI void walk(const node *nodes, const element *x, idx step, i32 *at, idx depth) {
    for (idx d = 0; d < depth; d += STRIDE) {
        i32 moved = 0;
        unroll (int s = 0; s < STRIDE; s++) {
            unroll (int l = 0; l < ABREAST; l++) {
                const i32 to = next(nodes + at[l], x + l * step);
                if (s == STRIDE - 1) moved |= to ^ at[l];
                at[l] = to;
            }
        }
        if (!moved) break;
    }
}

// Joins the leaf in a slot into a row of the result.
AI void take(const args *a, value *y, i32 at) {
    const i32 *start = (const i32 *)a[4].p + ((const i32 *)a[3].p)[at], *target = a[5].p;
    const value *weight = a[6].p;
    for (i32 e = start[0]; e < start[1]; e++) y[target[e] * YT] = JOIN(y[target[e] * YT], weight[e]);
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const element *all = a[0].p;
    const node *nodes = a[1].p;
    const i32 *depth = a[2].p;
    const idx blocks = (ROWS + RB - 1) / RB, trees = (TREES + PARTS - 1) / PARTS;
    for (idx b = begin; b < end; b++) {
        const idx part = b / blocks, t0 = part * trees, t1 = t0 + trees < TREES ? t0 + trees : TREES;
        const idx r0 = b % blocks * RB, r1 = r0 + RB < ROWS ? r0 + RB : ROWS,
                  whole = r0 + (r1 - r0) / ABREAST * ABREAST;
        value *result = (value *)a[7].p + part * YP;
        for (idx r = r0; r < r1; r++)
            for (idx k = 0; k < TARGETS; k++) result[r * YR + k * YT] = START;
        for (idx t = t0; t < t1; t++)
            for (idx r = r0; r < whole; r += ABREAST) {
                i32 at[ABREAST];
                unroll (int l = 0; l < ABREAST; l++) at[l] = (i32)t;
                walk(nodes, all + r * XR, XR, at, depth[t]);
                unroll (int l = 0; l < ABREAST; l++) take(a, result + (r + l) * YR, at[l]);
            }
        for (idx t = t0; t < t1; t += ABREAST)
            for (idx r = whole; r < r1; r++) {
                i32 at[ABREAST], deepest = 0;
                unroll (int l = 0; l < ABREAST; l++) {
                    at[l] = (i32)(t + l < t1 ? t + l : t1 - 1);
                    deepest = depth[at[l]] > deepest ? depth[at[l]] : deepest;
                }
                walk(nodes, all + r * XR, 0, at, deepest);
                for (int l = 0; l < ABREAST && t + l < t1; l++) take(a, result + r * YR, at[l]);
            }
    }
}
