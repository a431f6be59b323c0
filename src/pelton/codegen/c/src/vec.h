// Vectors for every kernel: types of VL lanes, and the scalar primitives as functions of them; the headers that it
// includes have loads and stores, casts, and the mathematics of floats.
//
// Element types T: f32 f64 i64 i32 i16 i8 u64 u32 u16 u8, storage types f16 bf16 (vf32 in registers, the f32_ functions
// apply) and bool (a byte in memory, in registers a vi32 mask of all ones or zero); vec_narrow.h has those of a byte
// and less. vT is VL lanes of T. Functions are named T_primitive, after ir/scalar.py. add, sub, mul, neg are the plain
// operators: clang wraps vector integers, and -ffp-contract=off keeps products and sums apart.
#pragma once

#ifndef VL
#if defined __AVX512F__
#define VL 16
#elif defined __AVX__
#define VL 8
#elif defined __arm__
#define VL 2
#else
#define VL 4
#endif
#endif

// Of elements, sizes and tiles: as wide as the runtime's (kernel.h), whatever the size of a long.
#if __SIZEOF_POINTER__ == 4
typedef __INT32_TYPE__ idx;
typedef __UINT32_TYPE__ uidx;
#else
typedef __INT64_TYPE__ idx;
typedef __UINT64_TYPE__ uidx;
#endif
typedef union { void *p; idx d; } args;
enum : idx { NOWHERE = -((idx)1 << (8 * sizeof(idx) - 2)) }; // an offset far before every buffer

// Kernels with dynamic dimensions work on a copy of their arguments, which no store can change, so that expressions of
// sizes are computed once. ARGS is the number of arguments; 0 where all sizes are known.
#define ARGS 0
#define OWN_ARGS(a, table) \
    args a##_own[ARGS + 1]; \
    __builtin_memcpy(a##_own, table, ARGS * sizeof(args)); \
    const args *a = ARGS ? a##_own : table

#define AI static inline __attribute__((always_inline, unused))
#define COLD static __attribute__((noinline, cold, unused))
#define unroll _Pragma("clang loop unroll(full)") for
#define rolled _Pragma("nounroll")
#define fourfold _Pragma("clang loop unroll_count(4)") // where loop overhead is measurable

// Runs a statement with COUNT in place of n, 0 < n < bound ≤ 16 (not at all for n = 0), as a constant: straight code
// where n is a constant, a switch where it is not.
#define COUNTED(n, bound, ...) \
    switch (n) { \
        COUNTED_AS(1, bound, __VA_ARGS__) COUNTED_AS(2, bound, __VA_ARGS__) COUNTED_AS(3, bound, __VA_ARGS__) \
        COUNTED_AS(4, bound, __VA_ARGS__) COUNTED_AS(5, bound, __VA_ARGS__) COUNTED_AS(6, bound, __VA_ARGS__) \
        COUNTED_AS(7, bound, __VA_ARGS__) COUNTED_AS(8, bound, __VA_ARGS__) COUNTED_AS(9, bound, __VA_ARGS__) \
        COUNTED_AS(10, bound, __VA_ARGS__) COUNTED_AS(11, bound, __VA_ARGS__) COUNTED_AS(12, bound, __VA_ARGS__) \
        COUNTED_AS(13, bound, __VA_ARGS__) COUNTED_AS(14, bound, __VA_ARGS__) COUNTED_AS(15, bound, __VA_ARGS__) \
    }
#define COUNTED_AS(i, bound, ...) case i: if (i < (bound)) { enum : idx { COUNT = i }; __VA_ARGS__; } break;

typedef _Bool vlanes __attribute__((ext_vector_type(VL)));
#define TYPE(T, E) \
    typedef E T; \
    typedef E v##T __attribute__((ext_vector_type(VL))); \
    typedef E v##T##_in_memory __attribute__((ext_vector_type(VL), aligned(__alignof__(E)), may_alias)); \
    typedef E T##_in_memory __attribute__((may_alias));
TYPE(f32, float) TYPE(f64, double) TYPE(i64, __INT64_TYPE__) TYPE(i32, int) TYPE(i16, short) TYPE(i8, signed char)
TYPE(u64, __UINT64_TYPE__) TYPE(u32, unsigned) TYPE(u16, unsigned short) TYPE(u8, unsigned char)
#ifdef __FLT16_MANT_DIG__
typedef _Float16 f16;
#else
typedef u16 f16; // bits
#endif
typedef u16 bf16;
#if __STDC_VERSION__ < 202311L
typedef _Bool bool;
#endif
typedef vf32 vf16, vbf16;
typedef vi32 vbool;
// X(type, unsigned and signed integer of its width, width)
#define EACH_INTEGER(X) \
    X(i64, u64, i64, 64) X(i32, u32, i32, 32) X(i16, u16, i16, 16) X(i8, u8, i8, 8) \
    X(u64, u64, i64, 64) X(u32, u32, i32, 32) X(u16, u16, i16, 16) X(u8, u8, i8, 8)

#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#define CONVERT(x, T) __builtin_convertvector(x, v##T)
#if VL == 2
#define LANES 0, 1
#elif VL == 4
#define LANES 0, 1, 2, 3
#elif VL == 8
#define LANES 0, 1, 2, 3, 4, 5, 6, 7
#elif VL == 16
#define LANES 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#else
#error "VL is 2, 4, 8 or 16"
#endif

// True if multiply-adds take one lane of a vector as a factor: loads of four factors are then one.
#if defined __aarch64__
enum { BY_LANE = 1 };
#else
enum { BY_LANE = 0 };
#endif

// a·b + c, one rounding where the target can: elsewhere the builtin would be a call of libm.
#if defined __wasm_relaxed_simd__ // one rounding on CPUs that can
#define FUSED 0
typedef float wasm_f32 __attribute__((vector_size(16)));
AI __attribute__((overloadable)) vf32 vec_fma(vf32 a, vf32 b, vf32 c) {
    return (vf32)__builtin_wasm_relaxed_madd_f32x4((wasm_f32)a, (wasm_f32)b, (wasm_f32)c);
}
AI __attribute__((overloadable)) vf64 vec_fma(vf64 a, vf64 b, vf64 c) { return a * b + c; }
typedef float narrow_1 __attribute__((ext_vector_type(1)));
typedef float narrow_2 __attribute__((ext_vector_type(2)));
AI __attribute__((overloadable)) narrow_1 vec_fma(narrow_1 a, narrow_1 b, narrow_1 c) { return a * b + c; }
AI __attribute__((overloadable)) narrow_2 vec_fma(narrow_2 a, narrow_2 b, narrow_2 c) { return a * b + c; }
#elif defined __FMA__ || defined __aarch64__ || defined __riscv_v
#define FUSED 1
#define vec_fma(a, b, c) __builtin_elementwise_fma(a, b, c)
#elif defined __ARM_FEATURE_FMA // of micro-controllers: f32 alone
#define FUSED 0
#define vec_fma(a, b, c) \
    __builtin_choose_expr(sizeof((a)[0]) == sizeof(f32), __builtin_elementwise_fma(a, b, c), (a) * (b) + (c))
#else
#define FUSED 0
#define vec_fma(a, b, c) ((a) * (b) + (c))
#endif

#include "vec_memory.h"

// ---- comparisons, selection, bits, reductions -----------------------------------------------------------------------
// Comparisons give a vi32 mask whatever the width of T; I is the integer as wide as T.

AI int any(vi32 mask) { return __builtin_reduce_or(mask) != 0; }
AI int all(vi32 mask) { return __builtin_reduce_and(mask) != 0; }

#if VL == 2
#define FOLD(r, op) r = op(r, SHUFFLE(r, r, 1, 0))
#elif VL == 4
#define FOLD(r, op) r = op(r, SHUFFLE(r, r, 2, 3, 0, 1)), r = op(r, SHUFFLE(r, r, 1, 0, 3, 2))
#elif VL == 8
#define FOLD(r, op) \
    r = op(r, SHUFFLE(r, r, 4, 5, 6, 7, 0, 1, 2, 3)), r = op(r, SHUFFLE(r, r, 2, 3, 0, 1, 6, 7, 4, 5)), \
    r = op(r, SHUFFLE(r, r, 1, 0, 3, 2, 5, 4, 7, 6))
#else
#define FOLD(r, op) r = op(r, SHUFFLE(r, r, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)), \
    r = op(r, SHUFFLE(r, r, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)), \
    r = op(r, SHUFFLE(r, r, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)), \
    r = op(r, SHUFFLE(r, r, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14))
#endif
#define SUM(a, b) ((a) + (b))
#define PRODUCT(a, b) ((a) * (b))

// Selections by a mask. clang 22 makes `a < b ? b : a` of vectors a relaxed_max, whose result for NaN depends on the
// machine, so it must not see what the mask comes from.
AI vi32 selection(vi32 mask) {
#if defined __wasm_relaxed_simd__
    __asm__("" : "+r"(mask));
#endif
    return mask;
}

#define COMMON(T, I) \
    AI vi32 T##_lt(v##T a, v##T b) { return CONVERT(a < b, i32); } \
    AI vi32 T##_le(v##T a, v##T b) { return CONVERT(a <= b, i32); } \
    AI vi32 T##_gt(v##T a, v##T b) { return CONVERT(a > b, i32); } \
    AI vi32 T##_ge(v##T a, v##T b) { return CONVERT(a >= b, i32); } \
    AI vi32 T##_eq(v##T a, v##T b) { return CONVERT(a == b, i32); } \
    AI vi32 T##_ne(v##T a, v##T b) { return CONVERT(a != b, i32); } \
    AI v##T T##_select(vi32 mask, v##T a, v##T b) { return CONVERT(selection(mask), I) ? a : b; } \
    AI T hsum_##T(v##T v) { FOLD(v, SUM); return v[0]; } \
    AI T hprod_##T(v##T v) { FOLD(v, PRODUCT); return v[0]; } \
    AI T hmax_##T(v##T v) { FOLD(v, T##_maximum); return v[0]; } \
    AI T hmin_##T(v##T v) { FOLD(v, T##_minimum); return v[0]; }

AI vi32 bool_and(vi32 a, vi32 b) { return a & b; }
AI vi32 bool_or(vi32 a, vi32 b) { return a | b; }
AI vi32 bool_xor(vi32 a, vi32 b) { return a ^ b; }
AI vi32 bool_not(vi32 a) { return ~a; }
AI vi32 bool_eq(vi32 a, vi32 b) { return ~(a ^ b); }
AI vi32 bool_ne(vi32 a, vi32 b) { return a ^ b; }
AI vi32 bool_select(vi32 mask, vi32 a, vi32 b) { return mask ? a : b; }

// ---- integers -------------------------------------------------------------------------------------------------------
// Nothing traps: x / 0 = x mod 0 = 0, the smallest integer divided by -1 is itself, shifts by the width or more give 0.

// Narrow quotients are exact in the next wider float: a / b is at least 1 / b away from the next integer.
#define QUOTIENT_IN(T, F) AI v##T T##_quotient(v##T a, v##T b) { return CONVERT(CONVERT(a, F) / CONVERT(b, F), T); }
#define QUOTIENT_BY_LANE(T) \
    AI v##T T##_quotient(v##T a, v##T b) { \
        unroll (int i = 0; i < VL; i++) a[i] /= b[i]; \
        return a; \
    }
QUOTIENT_IN(i32, f64) QUOTIENT_IN(u32, f64)
QUOTIENT_IN(i16, f32) QUOTIENT_IN(u16, f32) QUOTIENT_IN(i8, f32) QUOTIENT_IN(u8, f32)
QUOTIENT_BY_LANE(i64) QUOTIENT_BY_LANE(u64)

#define INTEGER(T, U, I, BITS) \
    AI v##T T##_and(v##T a, v##T b) { return a & b; } \
    AI v##T T##_or(v##T a, v##T b) { return a | b; } \
    AI v##T T##_xor(v##T a, v##T b) { return a ^ b; } \
    AI v##T T##_not(v##T a) { return ~a; } \
    AI v##T T##_shl(v##T a, v##T b) { return (v##U)b < BITS ? a << (b & (BITS - 1)) : (v##T)0; } \
    AI v##T T##_shr(v##T a, v##T b) { return (v##U)b < BITS ? a >> (b & (BITS - 1)) : (v##T)(a < 0); } \
    AI v##T T##_minimum(v##T a, v##T b) { return __builtin_elementwise_min(a, b); } \
    AI v##T T##_maximum(v##T a, v##T b) { return __builtin_elementwise_max(a, b); } \
    AI v##T T##_abs(v##T a) { return (T)-1 < (T)0 ? __builtin_elementwise_max(a, -a) : a; } \
    AI v##T T##_sign(v##T a) { return (v##T)((v##I)(a < 0) - (v##I)(a > 0)); } \
    AI v##T T##_div(v##T a, v##T b) { \
        v##I zero = (v##I)(b == 0), negate = (T)-1 < (T)0 ? (v##I)(b == (T)-1) : (v##I)0; \
        v##T q = T##_quotient(a, (zero | negate) ? (v##T)1 : b); \
        return zero ? (v##T)0 : negate ? -a : q; \
    } \
    AI v##T T##_fmod(v##T a, v##T b) { return b == 0 ? (v##T)0 : a - T##_div(a, b) * b; } \
    AI v##T T##_mod(v##T a, v##T b) { \
        v##T r = T##_fmod(a, b); \
        return (T)-1 < (T)0 ? r + (((r != 0) & ((r ^ b) < 0)) ? b : (v##T)0) : r; \
    } \
    AI v##T T##_pow(v##T a, v##T b) { /* by squaring; negative powers are truncated reciprocals */ \
        v##T r = 1; \
        for (v##U n = (v##U)T##_abs(b); any(CONVERT(n != 0, i32)); n >>= 1, a *= a) \
            r = (v##I)((n & 1) != 0) ? r * a : r; \
        return (v##I)(b < 0) ? T##_div((v##T)1, r) : r; \
    } \
    COMMON(T, I)
EACH_INTEGER(INTEGER)

#include "vec_cast.h"

// ---- transposes -----------------------------------------------------------------------------------------------------

// LOW_PAIRS and HIGH_PAIRS zip two vectors within each 128-bit part. EVENS and ODDS unzip such pairs: lane i is then of
// pair ZIPPED[i].
#if VL == 2
#define LOW_PAIRS 0, 2
#define HIGH_PAIRS 1, 3
#define EVENS 0, 2
#define ODDS 1, 3
#define ZIPPED LANES
#elif VL == 4
#define LOW_PAIRS 0, 4, 1, 5
#define HIGH_PAIRS 2, 6, 3, 7
#define EVENS 0, 2, 4, 6
#define ODDS 1, 3, 5, 7
#define ZIPPED LANES
#elif VL == 8
#define LOW_PAIRS 0, 8, 1, 9, 4, 12, 5, 13
#define HIGH_PAIRS 2, 10, 3, 11, 6, 14, 7, 15
#define EVENS 0, 2, 8, 10, 4, 6, 12, 14
#define ODDS 1, 3, 9, 11, 5, 7, 13, 15
#define ZIPPED 0, 1, 4, 5, 2, 3, 6, 7
#define LOW_FOURS 0, 1, 2, 3, 8, 9, 10, 11
#define HIGH_FOURS 4, 5, 6, 7, 12, 13, 14, 15
#else
#define LOW_PAIRS 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29
#define HIGH_PAIRS 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31
#define EVENS 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30
#define ODDS 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31
#define ZIPPED 0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15
#define LOW_FOURS 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define HIGH_FOURS 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define LOW_EIGHTS 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define HIGH_EIGHTS 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#endif
// r[i] of VL rows of VL lanes becomes column i: 4 by 4 within each 128-bit part, then by whole parts.
AI void transpose_f32(vf32 *r) {
#if VL == 2
    const vf32 low = SHUFFLE(r[0], r[1], LOW_PAIRS), high = SHUFFLE(r[0], r[1], HIGH_PAIRS);
    r[0] = low, r[1] = high;
#else
    unroll (int i = 0; i < VL; i += 4) {
        vf32 a = SHUFFLE(r[i], r[i + 2], LOW_PAIRS), b = SHUFFLE(r[i], r[i + 2], HIGH_PAIRS);
        vf32 c = SHUFFLE(r[i + 1], r[i + 3], LOW_PAIRS), d = SHUFFLE(r[i + 1], r[i + 3], HIGH_PAIRS);
        r[i] = SHUFFLE(a, c, LOW_PAIRS), r[i + 1] = SHUFFLE(a, c, HIGH_PAIRS);
        r[i + 2] = SHUFFLE(b, d, LOW_PAIRS), r[i + 3] = SHUFFLE(b, d, HIGH_PAIRS);
    }
#endif
#if VL >= 8
    unroll (int i = 0; i < VL; i++) if (!(i & 4)) {
        vf32 a = r[i], b = r[i + 4];
        r[i] = SHUFFLE(a, b, LOW_FOURS), r[i + 4] = SHUFFLE(a, b, HIGH_FOURS);
    }
#endif
#if VL == 16
    unroll (int i = 0; i < 8; i++) {
        vf32 a = r[i], b = r[i + 8];
        r[i] = SHUFFLE(a, b, LOW_EIGHTS), r[i + 8] = SHUFFLE(a, b, HIGH_EIGHTS);
    }
#endif
}

#include "vec_math.h"
