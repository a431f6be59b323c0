// Decision trees whose leaves have one weight each. The trees of a part that share a target form a chain: a leaf leads
// to the root of the next tree, the last one to a slot that leads to itself. Every slot has a weight, that of a branch
// changes nothing. So a walk of a row along a chain is one loop without branches, and walks of different lengths even
// out over the trees. Each step depends on the node before it; a tile has several walks to hide that latency. Walks
// are ordered by chain, then row: rows pass through one chain while it is in L1.
#include "vec.h"

// <region>
enum : idx { ROWS = 5, TARGETS = 1, CHAINS = 1, XR = 4, XF = 1, YP = 5, YR = 1, YT = 1, MISSING = 0 };
typedef f32 element, value;
#define START 0
#define JOIN(a, b) ((a) + (b))
// </region>
// <tactic>
enum : idx { WALKS = 16 };
// </tactic>

enum : idx { STRIDE = 2 }; // steps between two checks of whether all have arrived
typedef struct { element threshold; i32 feature, child; value weight; } node;

AI i32 next(const node *n, const element *x) {
    const i32 f = MISSING ? n->feature ^ n->feature >> 31 : n->feature;
    const element v = x[f * XF];
    return n->child + !((v <= n->threshold) | (MISSING && v != v && n->feature < 0));
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const element *all = a[0].p;
    const node *nodes = a[1].p;
    const i32 *first = a[2].p;
    for (idx b = begin; b < end; b++) {
        idx chain = b * WALKS / ROWS, row = b * WALKS % ROWS;
        i32 at[WALKS];
        const element *x[WALKS];
        value sum[WALKS], *y[WALKS];
        unroll (int l = 0; l < WALKS; l++) { // after the last walk, that one again
            at[l] = first[chain];
            x[l] = all + row * XR;
            y[l] = (value *)a[3].p + chain / TARGETS * YP + row * YR + chain % TARGETS * YT;
            sum[l] = START;
            if (++row == ROWS) {
                if (++chain == CHAINS) chain--, row--;
                else row = 0;
            }
        }
        for (i32 moved = 1; moved;) {
            moved = 0;
            unroll (int s = 0; s < STRIDE; s++) {
                unroll (int l = 0; l < WALKS; l++) {
                    const node *n = nodes + at[l];
                    const i32 to = next(n, x[l]);
                    sum[l] = JOIN(sum[l], n->weight);
                    if (s == STRIDE - 1) moved |= to ^ at[l];
                    at[l] = to;
                }
            }
        }
        unroll (int l = 0; l < WALKS; l++) *y[l] = sum[l];
    }
}
