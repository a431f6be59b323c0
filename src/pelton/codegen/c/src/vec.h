// Vectors for every kernel: types of VL lanes, loads and stores of whole and partial vectors, and the mathematics of the scalar primitives.
//
// Element types T: f32 f64 i64 i32 i16 i8 u64 u32 u16 u8, storage types f16 bf16 (vf32 in registers, the f32_ functions apply) and bool
// (a byte in memory, in registers a vi32 mask of all ones or zero); vec_narrow.h has those of a byte and less. vT is VL lanes of T. Functions are named T_primitive, after ops/scalar.py.
// add, sub, mul, neg are the plain operators: clang wraps vector integers, and -ffp-contract=off keeps products and sums apart.
#pragma once

#ifndef VL
#if defined __AVX512F__
#define VL 16
#elif defined __AVX__
#define VL 8
#else
#define VL 4
#endif
#endif

typedef __INT64_TYPE__ idx; // of elements, sizes and tiles: exactly as wide as what the walker passes, whatever a long is on a target
typedef union { void *p; idx d; } args;

// Kernels that take sizes which a run decides work on a copy of their arguments, which no store can change: what follows from sizes is computed once.
// ARGS is how many arguments there are; 0 where all sizes are known.
#define ARGS 0
#define OWN_ARGS(a, table) args a##_own[ARGS + 1]; __builtin_memcpy(a##_own, table, ARGS * sizeof(args)); const args *a = ARGS ? a##_own : table

#define AI static inline __attribute__((always_inline, unused))
#define COLD static __attribute__((noinline, cold, unused))
#define unroll _Pragma("clang loop unroll(full)") for
#define rolled _Pragma("nounroll")
#define fourfold _Pragma("clang loop unroll_count(4)")                     // where the instructions that only count are felt

// Does what follows with COUNT in place of n, 0 < n < most ≤ 16 (nothing for n = 0), a number that the compiler knows: straight code where n is a constant,
// a switch where it is not.
#define COUNTED(n, most, ...) switch (n) { \
    COUNTED_AS(1, most, __VA_ARGS__) COUNTED_AS(2, most, __VA_ARGS__) COUNTED_AS(3, most, __VA_ARGS__) COUNTED_AS(4, most, __VA_ARGS__) \
    COUNTED_AS(5, most, __VA_ARGS__) COUNTED_AS(6, most, __VA_ARGS__) COUNTED_AS(7, most, __VA_ARGS__) COUNTED_AS(8, most, __VA_ARGS__) \
    COUNTED_AS(9, most, __VA_ARGS__) COUNTED_AS(10, most, __VA_ARGS__) COUNTED_AS(11, most, __VA_ARGS__) COUNTED_AS(12, most, __VA_ARGS__) \
    COUNTED_AS(13, most, __VA_ARGS__) COUNTED_AS(14, most, __VA_ARGS__) COUNTED_AS(15, most, __VA_ARGS__) }
#define COUNTED_AS(i, most, ...) case i: if (i < (most)) { enum : idx { COUNT = i }; __VA_ARGS__; } break;

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
#if VL == 4
#define LANES 0, 1, 2, 3
#elif VL == 8
#define LANES 0, 1, 2, 3, 4, 5, 6, 7
#elif VL == 16
#define LANES 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#else
#error "VL is 4, 8 or 16"
#endif

// a·b + c, one rounding where the target can: elsewhere the builtin would be a call of libm.
#if defined __FMA__ || defined __aarch64__ || defined __riscv_v
#define FUSED 1
#define vec_fma(a, b, c) __builtin_elementwise_fma(a, b, c)
#else
#define FUSED 0
#define vec_fma(a, b, c) ((a) * (b) + (c))
#endif

// ---- loads and stores -----------------------------------------------------------------------------------------------------------------
// ld_T, st_T: VL elements, any alignment.  ldn_T, stn_T: the first n elements and no byte beyond, lanes past n read as zero.
// ldg_T, stg_T: the first n of elements that lie `stride` elements apart.  bc_T: one value in all lanes.
// stp_T: the first n lanes stand for elements at, at + 1, … of `size` that start at p; those that are there are stored.

// clang makes a masked store of "choose between x and what lies at p, and store it at p" (a ReLU in place): 12 cycles on Zen 3's AVX2. It does not where load
// and store name different address spaces, and all numbers below 256 are the same memory.
#if defined __AVX__ && !defined __AVX512F__
#define STORED __attribute__((address_space(1)))
#else
#define STORED
#endif

// Partial vectors go by halves: straight moves where n is a constant, log2(VL) branches where it is not.
#define PART_2(T) \
    typedef T T##_2 __attribute__((ext_vector_type(2))); \
    typedef T T##_2_in_memory __attribute__((ext_vector_type(2), aligned(__alignof__(T)), may_alias)); \
    AI T##_2 T##_load_2(const T *p, idx n) { \
        if (n >= 2) return *(const T##_2_in_memory *)p; \
        return (T##_2){n > 0 ? *(const T##_in_memory *)p : (T)0, 0}; \
    } \
    AI void T##_store_2(T *p, T##_2 v, idx n) { \
        if (n >= 2) *(STORED T##_2_in_memory *)p = v; \
        else if (n > 0) *(T##_in_memory *)p = v.x; \
    }
#define PART(T, W, H, ...) \
    typedef T T##_##W __attribute__((ext_vector_type(W))); \
    typedef T T##_##W##_in_memory __attribute__((ext_vector_type(W), aligned(__alignof__(T)), may_alias)); \
    AI T##_##W T##_load_##W(const T *p, idx n) { \
        if (n >= W) return *(const T##_##W##_in_memory *)p; \
        idx whole = n >= H ? H : 0; \
        T##_##H rest = T##_load_##H(p + whole, n - whole); \
        return whole ? SHUFFLE(*(const T##_##H##_in_memory *)p, rest, __VA_ARGS__) : SHUFFLE(rest, (T##_##H)0, __VA_ARGS__); \
    } \
    AI void T##_store_##W(T *p, T##_##W v, idx n) { \
        if (n >= W) *(STORED T##_##W##_in_memory *)p = v; \
        else if (n >= H) *(STORED T##_##H##_in_memory *)p = v.lo, T##_store_##H(p + H, v.hi, n - H); \
        else T##_store_##H(p, v.lo, n); \
    }
#define PART_4(T) PART_2(T) PART(T, 4, 2, 0, 1, 2, 3)
#define PART_8(T) PART_4(T) PART(T, 8, 4, 0, 1, 2, 3, 4, 5, 6, 7)
#define PART_16(T) PART_8(T) PART(T, 16, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#define PASTE(a, b) a##b
#define BY_VL(name) PASTE_EXPANDED(name, VL)
#define PASTE_EXPANDED(a, b) PASTE(a, b)
#define FIRST(n) CONVERT(((vi32){LANES} < (int)(n)), lanes)

// A masked load is one instruction where the target has it for the element's size; a masked store only on AVX-512 (12 cycles on Zen 3's AVX2).
#if defined __AVX512BW__ && defined __AVX512VL__
#define MASKED_LOAD(T) 1
#define MASKED_STORE 1
#elif defined __AVX__
#define MASKED_LOAD(T) (sizeof(T) >= 4)
#define MASKED_STORE 0
#else
#define MASKED_LOAD(T) 0
#define MASKED_STORE 0
#endif

#define MEMORY(T) \
    BY_VL(PART_)(T) \
    AI v##T bc_##T(T x) { return (v##T)x; } \
    AI v##T ld_##T(const T *p) { return *(const v##T##_in_memory *)p; } \
    AI void st_##T(T *p, v##T v) { *(STORED v##T##_in_memory *)p = v; } \
    AI v##T ldn_##T(const T *p, idx n) { \
        if (MASKED_LOAD(T) && !__builtin_constant_p(n)) return __builtin_masked_load(FIRST(n), p, (v##T)0); \
        return BY_VL(T##_load_)(p, n); \
    } \
    AI void stn_##T(T *p, v##T v, idx n) { \
        if (MASKED_STORE && !__builtin_constant_p(n)) __builtin_masked_store(FIRST(n), v, p); \
        else BY_VL(T##_store_)(p, v, n); \
    } \
    AI v##T ldg_##T(const T *p, idx stride, idx n) { \
        v##T v = 0; \
        unroll (int i = 0; i < VL; i++) if (i < n) v[i] = *(const T##_in_memory *)(p + i * stride); \
        return v; \
    } \
    AI void stg_##T(T *p, idx stride, v##T v, idx n) { \
        unroll (int i = 0; i < VL; i++) if (i < n) *(T##_in_memory *)(p + i * stride) = v[i]; \
    } \
    AI void stp_##T(T *p, idx size, idx at, v##T v, idx n) { \
        T held[VL]; \
        if (at >= 0 && at + n <= size) { \
            stn_##T(p + at, v, n); \
            return; \
        } \
        st_##T(held, v); \
        rolled for (idx i = at < 0 ? -at : 0; i < n && at + i < size; i++) *(T##_in_memory *)(p + at + i) = held[i]; \
    }
MEMORY(f32) MEMORY(f64) MEMORY(i64) MEMORY(i32) MEMORY(i16) MEMORY(i8) MEMORY(u64) MEMORY(u32) MEMORY(u16) MEMORY(u8)

// ---- storage types: f16, bf16, bool ---------------------------------------------------------------------------------------------------

#if defined __F16C__ || defined __aarch64__
typedef _Float16 vhalf __attribute__((ext_vector_type(VL)));
AI vf32 f16_widen(vu16 h) { return CONVERT((vhalf)h, f32); }
AI vu16 f16_narrow(vf32 v) { return (vu16)CONVERT(v, half); }
#else
AI vf32 f16_widen(vu16 h) {
    vu32 bits = CONVERT(h, u32), magnitude = bits & 0x7fff;
    vu32 subnormal = (vu32)(CONVERT((vi32)magnitude, f32) * 0x1p-24f);
    vu32 special = magnitude >= 0x7c00 ? (vu32)0x7f800000 : (vu32)0;
    return (vf32)((magnitude < 0x400 ? subnormal : ((magnitude << 13) + 0x38000000) | special) | (bits & 0x8000) << 16);
}
AI vu16 f16_narrow(vf32 v) {
    vu32 bits = (vu32)v, sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    vu32 normal = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    vu32 subnormal = (vu32)((vf32)magnitude + 0.5f) - 0x3f000000; // the addition rounds at the last bit of a half subnormal
    vu32 half = magnitude < 0x38800000 ? subnormal : normal;
    half = magnitude >= 0x477ff000 ? (vu32)0x7c00 : half;
    half = magnitude > 0x7f800000 ? (vu32)0x7e00 : half;
    return CONVERT(half | sign, u16);
}
#endif
AI vf32 bf16_widen(vu16 h) { return (vf32)(CONVERT(h, u32) << 16); }
AI vu16 bf16_narrow(vf32 v) {
    vu32 bits = (vu32)v, even = bits + 0x7fff + (bits >> 16 & 1);
    return CONVERT((v == v ? even : bits | 0x400000) >> 16, u16);
}
AI vi32 bool_widen(vu8 b) { return CONVERT(b, i32) != 0; }
AI vu8 bool_narrow(vi32 mask) { return CONVERT(mask & 1, u8); }

AI vf32 bc_f16(f16 x) { return f16_widen((vu16)__builtin_bit_cast(u16, x)); }
AI vf32 bc_bf16(bf16 x) { return bf16_widen((vu16)x); }
AI vi32 bc_bool(bool x) { return (vi32)-(int)x; }
#define STORAGE(T, M) \
    AI v##T ld_##T(const void *p) { return T##_widen(ld_##M(p)); } \
    AI v##T ldn_##T(const void *p, idx n) { return T##_widen(ldn_##M(p, n)); } \
    AI v##T ldg_##T(const void *p, idx stride, idx n) { return T##_widen(ldg_##M(p, stride, n)); } \
    AI void st_##T(void *p, v##T v) { st_##M(p, T##_narrow(v)); } \
    AI void stn_##T(void *p, v##T v, idx n) { stn_##M(p, T##_narrow(v), n); } \
    AI void stg_##T(void *p, idx stride, v##T v, idx n) { stg_##M(p, stride, T##_narrow(v), n); } \
    AI void stp_##T(void *p, idx size, idx at, v##T v, idx n) { stp_##M(p, size, at, T##_narrow(v), n); }
STORAGE(f16, u16) STORAGE(bf16, u16) STORAGE(bool, u8)

// ---- comparisons, selection, bits, reductions -----------------------------------------------------------------------------------------
// Comparisons give a vi32 mask whatever the width of T; I is the integer as wide as T.

AI int any(vi32 mask) { return __builtin_reduce_or(mask) != 0; }
AI int all(vi32 mask) { return __builtin_reduce_and(mask) != 0; }

#if VL == 4
#define FOLD(r, op) r = op(r, SHUFFLE(r, r, 2, 3, 0, 1)), r = op(r, SHUFFLE(r, r, 1, 0, 3, 2))
#elif VL == 8
#define FOLD(r, op) r = op(r, SHUFFLE(r, r, 4, 5, 6, 7, 0, 1, 2, 3)), r = op(r, SHUFFLE(r, r, 2, 3, 0, 1, 6, 7, 4, 5)), \
    r = op(r, SHUFFLE(r, r, 1, 0, 3, 2, 5, 4, 7, 6))
#else
#define FOLD(r, op) r = op(r, SHUFFLE(r, r, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)), \
    r = op(r, SHUFFLE(r, r, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)), \
    r = op(r, SHUFFLE(r, r, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)), \
    r = op(r, SHUFFLE(r, r, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14))
#endif
#define SUM(a, b) ((a) + (b))
#define PRODUCT(a, b) ((a) * (b))

#define COMMON(T, I) \
    AI vi32 T##_lt(v##T a, v##T b) { return CONVERT(a < b, i32); } \
    AI vi32 T##_le(v##T a, v##T b) { return CONVERT(a <= b, i32); } \
    AI vi32 T##_gt(v##T a, v##T b) { return CONVERT(a > b, i32); } \
    AI vi32 T##_ge(v##T a, v##T b) { return CONVERT(a >= b, i32); } \
    AI vi32 T##_eq(v##T a, v##T b) { return CONVERT(a == b, i32); } \
    AI vi32 T##_ne(v##T a, v##T b) { return CONVERT(a != b, i32); } \
    AI v##T T##_select(vi32 mask, v##T a, v##T b) { return CONVERT(mask, I) ? a : b; } \
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

// ---- integers -------------------------------------------------------------------------------------------------------------------------
// Nothing traps: x / 0 = x mod 0 = 0, the least integer divided by -1 is itself, shifts by the width or more give 0.

// Narrow quotients are exact in the next wider float: a / b is at least 1 / b away from the next integer.
#define QUOTIENT_IN(T, F) AI v##T T##_quotient(v##T a, v##T b) { return CONVERT(CONVERT(a, F) / CONVERT(b, F), T); }
#define QUOTIENT_BY_LANE(T) \
    AI v##T T##_quotient(v##T a, v##T b) { \
        unroll (int i = 0; i < VL; i++) a[i] /= b[i]; \
        return a; \
    }
QUOTIENT_IN(i32, f64) QUOTIENT_IN(u32, f64) QUOTIENT_IN(i16, f32) QUOTIENT_IN(u16, f32) QUOTIENT_IN(i8, f32) QUOTIENT_IN(u8, f32)
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
        for (v##U n = (v##U)T##_abs(b); any(CONVERT(n != 0, i32)); n >>= 1, a *= a) r = (v##I)((n & 1) != 0) ? r * a : r; \
        return (v##I)(b < 0) ? T##_div((v##T)1, r) : r; \
    } \
    COMMON(T, I)
EACH_INTEGER(INTEGER)

// ---- casts ----------------------------------------------------------------------------------------------------------------------------
// cast_S_T for every pair. Integers to integers wrap; anything to bool is `!= 0`. Floats to integers truncate. What is too large or no number has no
// meaning in ONNX; here it is what x86 (and so numpy and ONNX Runtime) makes of it, on every machine: T of 8 and 16 bits wraps what i32 holds, and beyond i32
// and i64 lies their least number. Subnormals keep their value between f32 and f64 although the engine's arithmetic takes them for zero.

#define CAST_PLAIN(S, T) AI v##T cast_##S##_##T(v##S v) { return CONVERT(v, T); }
#define CAST_EACH(X, S) X(S, f64) X(S, f32) X(S, i64) X(S, i32) X(S, i16) X(S, i8) X(S, u64) X(S, u32) X(S, u16) X(S, u8)
#define CAST_INTEGER(S, U, I, BITS) CAST_EACH(CAST_PLAIN, S)
EACH_INTEGER(CAST_INTEGER)

// HALF is 2 to the power of the bits of T less one.
#define CAST_SIGNED(S, T, HALF) \
    AI v##T cast_##S##_##T(v##S v) { \
        const __typeof__(v < v) inside = (v >= -(S)(HALF)) & (v < (S)(HALF)); \
        const v##T whole = CONVERT((inside ? v : (v##S)0), T); \
        return CONVERT(inside, T) ? whole : (v##T)((T)1 << (8 * sizeof(T) - 1)); \
    }
#define CAST_UNSIGNED(S, T, I, HALF) \
    AI v##T cast_##S##_##T(v##S v) { \
        const __typeof__(v < v) high = v >= (S)(HALF); \
        return (v##T)cast_##S##_##I(high ? v - (S)(HALF) : v) ^ ((v##T)CONVERT(high, I) & (T)1 << (8 * sizeof(T) - 1)); \
    }
#define CAST_SMALL(S, T) AI v##T cast_##S##_##T(v##S v) { return CONVERT(cast_##S##_i32(v), T); }
#define CAST_FLOAT(S) \
    AI v##S cast_##S##_##S(v##S v) { return v; } \
    CAST_SIGNED(S, i64, 0x1p63) CAST_SIGNED(S, i32, 0x1p31) CAST_UNSIGNED(S, u64, i64, 0x1p63) CAST_UNSIGNED(S, u32, i32, 0x1p31) \
    CAST_SMALL(S, i16) CAST_SMALL(S, i8) CAST_SMALL(S, u16) CAST_SMALL(S, u8)
CAST_FLOAT(f32) CAST_FLOAT(f64)
AI vf64 cast_f32_f64(vf32 v) {
    const vu32 bits = (vu32)v, magnitude = bits & 0x7fffffff;
    const vi32 counted = (vi32)bits < 0 ? -(vi32)magnitude : (vi32)magnitude, tiny = (magnitude < 0x800000) & (magnitude != 0);
    return CONVERT(tiny, i64) ? CONVERT(counted, f64) * 0x1p-149 : CONVERT(v, f64);
}
AI vf32 cast_f64_f32(vf64 v) {
    const vf64 magnitude = __builtin_elementwise_abs(v);
    const vi64 small = magnitude < 0x1p-126;                               // rounded to a multiple of the least subnormal, by adding what has no smaller bits
    const vu32 counted = (vu32)CONVERT((small ? magnitude : (vf64)0) * 0x1p149 + 0x1p52 - 0x1p52, i32), sign = CONVERT((vu64)v >> 32, u32) & 0x80000000;
    return (vf32)(CONVERT(small, i32) ? counted | sign : (vu32)CONVERT(v, f32));
}
AI vf32 f64_to_odd(vf64 v) { // as f32, what lies between two to the odd one: rounded once more, to fewer bits, it is as if rounded once
    const vf32 near = cast_f64_f32(v);
    const vf64 back = cast_f32_f64(near);
    const vi32 off = CONVERT((back < v) | (back > v), i32), far = CONVERT(__builtin_elementwise_abs(back) > __builtin_elementwise_abs(v), i32);
    return (vf32)(off ? ((vu32)near + (vu32)far) | 1 : (vu32)near);
}

#define CAST_STORAGE(S, F16) \
    AI vf32 cast_##S##_f16(v##S v) { return f16_widen(f16_narrow(F16)); } \
    AI vf32 cast_##S##_bf16(v##S v) { return bf16_widen(bf16_narrow(cast_##S##_f32(v))); } \
    AI vi32 cast_##S##_bool(v##S v) { return CONVERT(v != 0, i32); }
#define CAST_STORAGE_INTEGER(S, U, I, BITS) CAST_STORAGE(S, CONVERT(v, f32))
CAST_STORAGE(f32, v) CAST_STORAGE(f64, f64_to_odd(v)) EACH_INTEGER(CAST_STORAGE_INTEGER)
#define CAST_FROM_F32(S, T) AI v##T cast_##S##_##T(vf32 v) { return cast_f32_##T(v); }
#define CAST_FROM_BOOL(S, T) AI v##T cast_##S##_##T(vi32 mask) { return CONVERT(mask & 1, T); }
CAST_EACH(CAST_FROM_F32, f16) CAST_FROM_F32(f16, f16) CAST_FROM_F32(f16, bf16) CAST_FROM_F32(f16, bool)
CAST_EACH(CAST_FROM_F32, bf16) CAST_FROM_F32(bf16, f16) CAST_FROM_F32(bf16, bf16) CAST_FROM_F32(bf16, bool)
CAST_EACH(CAST_FROM_BOOL, bool) CAST_FROM_BOOL(bool, f16) CAST_FROM_BOOL(bool, bf16)
AI vi32 cast_bool_bool(vi32 mask) { return mask; }

// ---- transposes -----------------------------------------------------------------------------------------------------------------------

// LOW_PAIRS and HIGH_PAIRS zip two vectors within each 128-bit part. EVENS and ODDS take such pairs apart: lane i has pair ZIPPED[i] then.
#if VL == 4
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
// r[i] of VL rows of VL lanes becomes column i: 4 by 4 within each 128-bit part, then whole parts change places.
AI void transpose_f32(vf32 *r) {
    unroll (int i = 0; i < VL; i += 4) {
        vf32 a = SHUFFLE(r[i], r[i + 2], LOW_PAIRS), b = SHUFFLE(r[i], r[i + 2], HIGH_PAIRS);
        vf32 c = SHUFFLE(r[i + 1], r[i + 3], LOW_PAIRS), d = SHUFFLE(r[i + 1], r[i + 3], HIGH_PAIRS);
        r[i] = SHUFFLE(a, c, LOW_PAIRS), r[i + 1] = SHUFFLE(a, c, HIGH_PAIRS);
        r[i + 2] = SHUFFLE(b, d, LOW_PAIRS), r[i + 3] = SHUFFLE(b, d, HIGH_PAIRS);
    }
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
