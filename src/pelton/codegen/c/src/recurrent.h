// Shared by recurrent kernels. A tile is some rows of the batch in one direction, so that directions run side by side
// without synchronization; its states are in scratch. Where that leaves threads idle, a tile is only a part of the
// units at one time step: states are then in a workspace that all threads share, and a phase is the loading of the
// initial states or a pass over the units at one time step, which begins when the phase before it is done.
#pragma once
#include "product.h"

// Columns from `begin` to `end` of rows of n elements, `stride` apart, to rows of `width`, zeros behind the last.
AI void load_state(float *to, idx width, const float *from, idx stride, idx rows, idx n, idx begin, idx end) {
    for (idx i = 0; i < rows; i++)
        for (idx u = begin; u < end; u += VL) st_f32(to + i * width + u, piece(from + i * stride + u, n - u));
}

AI void save_state(float *to, idx stride, const float *from, idx width, idx rows, idx n, idx begin, idx end) {
    for (idx i = 0; i < rows; i++)
        for (idx u = begin; u < end && u < n; u += VL)
            stn_f32(to + i * stride + u, ld_f32(from + i * width + u), n - u < VL ? n - u : VL);
}

// Packs weights [gate, unit, old unit], rows `stride` apart and gates n units apart, in the order in which they are
// read: by blocks of `width` units, in a block by old units, then gates; zero past the last unit. Blocks from `begin`
// to `end`.
AI void pack_weights(float *to, const float *from, idx stride, idx gates, idx n, idx width, idx begin, idx end) {
    for (idx b = begin; b < end; b++)
        for (idx g = 0; g < gates; g++)
            for (idx u = 0; u < width; u++) {
                const float *row = from + (g * n + b * width + u) * stride;
                float *at = to + b * n * gates * width + g * width + u;
                for (idx k = 0; k < n; k++) at[k * gates * width] = b * width + u < n ? row[k] : 0;
            }
}

AI vf32 clip(vf32 x, float limit) { return limit ? f32_maximum(f32_minimum(x, bc_f32(limit)), bc_f32(-limit)) : x; }

// The first of n blocks in part number `part` of `parts`; n for part = parts.
AI idx share(idx n, idx part, idx parts) { return n * part / parts; }

// The body of a kernel: run(a, o, direction, first row of the batch, memory of its states, phase, part), by phases 0 to
// PHASES - 1 of SPLIT parts each. states: elements of the states of a tile.
#define RUN_TILES(states)                                                                                              \
    OWN_ARGS(a, table);                                                                                                \
    const operands o = open(a);                                                                                        \
    for (idx t = begin; t < end; t++) {                                                                               \
        const idx tile = t / SPLIT % (DIRECTIONS * BBS), d = tile / BBS, b = tile % BBS * BB;                         \
        if (SPLIT > 1) run(a, &o, d, b, o.own + tile * (states), t / SPLIT / (DIRECTIONS * BBS), t % SPLIT);           \
        else for (idx phase = 0; phase < PHASES; phase++) run(a, &o, d, b, scratch, phase, 0);                        \
    }
