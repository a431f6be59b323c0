/* The plan of an engine, as tables of its file: steps, buffers and ports, and their numbers, some of which depend on
 * the sizes of its inputs. See docs/engine-file.md. */
#ifndef PELTON_PLAN_H
#define PELTON_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Element types, by their codes in files. */
enum {
    F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8, BOOL, OTHER, C64, C128, STRING, F8E4M3FN, F8E4M3FNUZ,
    F8E5M2, F8E5M2FNUZ, F8E8M0FNU, F6E2M3FN, F6E3M2FN, F4E2M1FN, I4, U4, I2, U2, DTYPES
};
/* Kinds of buffers: see `pelton.engine.plan.Buffer`. */
enum { ARENA, ZEROS, CONSTANT, TABLE, INPUT, OUTPUT, STRINGS, TEXT, SIZES, IOTA, KINDS };
enum { SUM, PRODUCT, MAXIMUM, MINIMUM, QUOTIENT, REMAINDER, FUNCTIONS };

/* The head of the tables; their rows follow in this order, each table at a multiple of 8 bytes. Names and texts are
 * offsets in the text. A cell is a number of the plan. */
typedef struct {
    int64_t arena;              /* bytes; for the optimum sizes of an engine with symbols */
    int32_t symbols, numbers, lines, terms, formulas, cells, gaps, inputs, outputs, buffers, steps, alternatives,
        operands, tensors, features, text;
    int32_t name, os, arch, isa, cpu, threads, unused[2];
    uint8_t tables[32];         /* SHA-256 of the buffers that are tables */
} plan_head;

typedef struct { int64_t minimum, optimum, maximum; int32_t name, unused; } symbol_row;
/* number_row: int64_t. The values of lines are numbered: symbols first, then numbers, then lines. */
typedef struct { int32_t function, first, count, unused; } line_row;   /* of earlier values: terms */
/* term_row: int32_t */
typedef struct { int32_t value, text; } formula_row;
/* cells: int64_t: the sizes of all buffers in bytes; tiles, then bytes of scratch, then phases of all steps and
 * alternatives; their words; then the targets of rows */
typedef struct { int32_t cell, formula; } gap_row;                     /* by ascending cells */
typedef struct { int32_t name, dtype, rank, shape; int64_t low, high; int32_t layer, shares; } port_row;
/* shares: 1 + the input whose memory an output may use, 0 for none */
typedef struct { int32_t kind, dtype, values, count; int64_t offset; } buffer_row;
typedef struct {
    int32_t name, symbol, host; /* either `symbol` or `host` is an empty text */
    int32_t wave, grain;
    int32_t words, args, dims;  /* cells: the offsets of operands, then dims */
    int32_t operands;           /* the first of `args` operands */
    int32_t inputs, reads, outputs, writes;         /* the first of these tensors, and their number */
    int32_t alternatives, spares;                   /* the first of these steps, and their number */
    int32_t unused;
} plan_step;
/* operand_row: int32_t, a buffer */
typedef struct { int32_t buffer, dtype, rank, offset, shape, strides; } tensor_row; /* the last three: cells */
/* feature_row: int32_t, a text */

typedef struct plan plan;
struct plan {
    const plan_head *head;
    const symbol_row *symbols;
    const int64_t *numbers;
    const line_row *lines;
    const int32_t *terms;
    const formula_row *formulas;
    const int64_t *cells;
    const gap_row *gaps;
    const port_row *ports;      /* inputs, then outputs */
    const buffer_row *buffers;
    const plan_step *steps;     /* alternatives last */
    const int32_t *operands;
    const tensor_row *tensors;
    const int32_t *features;
    const char *text;
    int64_t constants;          /* bytes */
    int32_t all;                /* steps and alternatives */
    int32_t tiles, scratch, phases;                 /* the first of these cells */
    /* Of buffers in the arena, in order: their numbers, and their first and last waves; and for each, the others that
     * are alive at some time with it, in one list with bounds. */
    int32_t lying, *which, *first, *last, *beside, *bounds;
    void *memory;
};

/* A reason for a rejection, as text: `refuse` writes it (%s a text, %d an int64_t) and returns false. */
typedef struct { char text[512]; } reason;
bool refuse(reason *why, const char *format, ...);

/* Opens tables at a multiple of 8 bytes, which must stay in place; `constants`: their bytes. Returns false, with the
 * reason, if they are inconsistent for the optimum sizes. Closing is always allowed afterwards. */
bool plan_open(plan *p, const void *bytes, size_t size, int64_t constants, reason *why);
void plan_close(plan *p);

/* Computes the numbers for these values of the symbols: all cells, the start of each buffer in the arena or the
 * constants, and the bytes of the arena. False, with the reason, if inconsistent: see `pelton.engine.validate`. */
bool plan_resolve(const plan *p, const int64_t *symbols, int64_t *cells, int64_t *starts, int64_t *arena, reason *why);

/* Computes the cells alone, without checking limits. Returns false if a formula has no value. */
bool plan_fill(const plan *p, const int64_t *symbols, int64_t *cells, reason *why);

/* Computes the values of all symbols for inputs of these shapes, one after the other. With `bounded`, returns false,
 * with the reason, if a size is out of its bounds. Sizes that are neither a symbol nor a multiple of one are ignored:
 * compare the shapes from `plan_resolve` with these. */
bool plan_solve(const plan *p, const int64_t *const *shapes, bool bounded, int64_t *symbols, reason *why);

/* Returns false, with the reason, if inputs of these shapes are none that the cells were computed for. */
bool plan_fits(const plan *p, const int64_t *cells, const int64_t *const *shapes, reason *why);

/* Takes memory for each buffer whose contents depend on the sizes, and computes them. False if there is too little. */
bool plan_make_buffers(const plan *p, const int64_t *cells, char **made);

/* The formula of a cell: the number of its value, -1 for a cell that is a number. */
int32_t plan_value(const plan *p, int32_t cell);

/* Returns the smallest and the largest number of a cell, if its formula is one symbol or a multiple of it; otherwise
 * those of its optimum. */
void plan_range(const plan *p, int32_t cell, int64_t *least, int64_t *greatest);

int64_t dtype_bytes(int32_t dtype);

#endif
