// Casts between all element types of vec.h, which includes it.
#pragma once

// cast_S_T for every pair. Integers to integers wrap; anything to bool is `!= 0`. Floats to integers truncate. ONNX
// leaves NaN and values out of range undefined; here they are converted as by x86 (and so by numpy and ONNX Runtime) on
// every machine: T of 8 and 16 bits wraps the i32, and beyond i32 and i64 the result is their smallest number.
// Subnormals keep their value between f32 and f64 although the engine's arithmetic treats them as zero.

#define CAST_PLAIN(S, T) AI v##T cast_##S##_##T(v##S v) { return CONVERT(v, T); }
#define CAST_EACH(X, S) \
    X(S, f64) X(S, f32) X(S, i64) X(S, i32) X(S, i16) X(S, i8) X(S, u64) X(S, u32) X(S, u16) X(S, u8)
#define CAST_INTEGER(S, U, I, BITS) CAST_EACH(CAST_PLAIN, S)
EACH_INTEGER(CAST_INTEGER)

// HALF is 2 to the power of the bits of T minus one.
#define CAST_SIGNED(S, T, HALF) \
    AI v##T cast_##S##_##T(v##S v) { \
        const __typeof__(v < v) inside = (v >= -(S)(HALF)) & (v < (S)(HALF)); \
        const v##T whole = CONVERT((inside ? v : (v##S)0), T); \
        return CONVERT(inside, T) ? whole : (v##T)((T)1 << (8 * sizeof(T)-1)); \
    }
#define CAST_UNSIGNED(S, T, I, HALF) \
    AI v##T cast_##S##_##T(v##S v) { \
        const __typeof__(v < v) high = v >= (S)(HALF); \
        return (v##T)cast_##S##_##I(high ? v - (S)(HALF) : v) \
               ^ ((v##T)CONVERT(high, I) & (T)1 << (8 * sizeof(T)-1)); \
    }
#define CAST_SMALL(S, T) AI v##T cast_##S##_##T(v##S v) { return CONVERT(cast_##S##_i32(v), T); }
#define CAST_FLOAT(S) \
    AI v##S cast_##S##_##S(v##S v) { return v; } \
    CAST_SIGNED(S, i64, 0x1p63) CAST_SIGNED(S, i32, 0x1p31) \
    CAST_UNSIGNED(S, u64, i64, 0x1p63) CAST_UNSIGNED(S, u32, i32, 0x1p31) \
    CAST_SMALL(S, i16) CAST_SMALL(S, i8) CAST_SMALL(S, u16) CAST_SMALL(S, u8)
CAST_FLOAT(f32) CAST_FLOAT(f64)
AI vf64 cast_f32_f64(vf32 v) {
    const vu32 bits = (vu32)v, magnitude = bits & 0x7fffffff;
    const vi32 counted = (vi32)bits < 0 ? -(vi32)magnitude : (vi32)magnitude,
               tiny = (magnitude < 0x800000) & (magnitude != 0);
    return CONVERT(tiny, i64) ? CONVERT(counted, f64) * 0x1p-149 : CONVERT(v, f64);
}
AI vf32 cast_f64_f32(vf64 v) {
    const vf64 magnitude = __builtin_elementwise_abs(v);
    // rounded to a multiple of the smallest subnormal, by adding a number that has no smaller bits
    const vi64 small = magnitude < 0x1p-126;
    const vu32 counted = (vu32)CONVERT((small ? magnitude : (vf64)0) * 0x1p149 + 0x1p52 - 0x1p52, i32),
               sign = CONVERT((vu64)v >> 32, u32) & 0x80000000;
    return (vf32)(CONVERT(small, i32) ? counted | sign : (vu32)CONVERT(v, f32));
}
// To f32, rounded to odd: rounding that again, to fewer bits, gives the same as rounding once.
AI vf32 f64_to_odd(vf64 v) {
    const vf32 near = cast_f64_f32(v);
    const vf64 back = cast_f32_f64(near);
    const vi32 off = CONVERT((back < v) | (back > v), i32),
               far = CONVERT(__builtin_elementwise_abs(back) > __builtin_elementwise_abs(v), i32);
    return (vf32)(off ? ((vu32)near + (vu32)far) | 1 : (vu32)near);
}

#if defined __aarch64__
// Arguments of clang's own functions, which are bytes whatever they hold, and the numbers of the types that they give.
typedef signed char signed_bytes __attribute__((neon_vector_type(16)));
enum { INT8X8 = 0, INT16X4 = 1, UINT8X8 = 16, INT32X4 = 34 };
#endif

// Rounds f32, within an integer of 8 or 16 bits or NaN, half to even. NaN gives 0, as in casts.
AI vi32 round_within_i32(vf32 v) {
#if defined __AVX512F__ && VL == 16
    return (vi32)__builtin_ia32_cvtps2dq512_mask(v, (vi32)0, 0xffff, 4);
#elif defined __AVX__ && VL == 8
    return (vi32)__builtin_ia32_cvtps2dq256(v);
#elif defined __aarch64__ // fcvtns
    return (vi32)__builtin_neon_vcvtnq_s32_v((signed_bytes)v, INT32X4);
#elif defined __arm__ && __ARM_FP & 4
    vi32 whole;
    unroll (int i = 0; i < VL; i++) whole[i] = __builtin_bit_cast(i32, __builtin_arm_vcvtr_f(v[i], 0));
    return whole;
#elif defined __arm__ // without floats in registers; the smallest bits of a sum with 1.5 · 2²³
    return (vi32)((v == v ? v : (vf32)0) + 0x1.8p23f) - 0x4b400000;
#else
    return CONVERT(__builtin_elementwise_rint(v == v ? v : (vf32)0), i32);
#endif
}
AI vu8 round_within_u8(vf32 v) {
#if defined __AVX__ && VL == 8
    typedef u8 u8_16 __attribute__((ext_vector_type(16)));
    typedef short i16_8 __attribute__((vector_size(16))); // saturated: the smallest i32, which NaN gives, as 0
    const vi32 whole = round_within_i32(v);
    const i16_8 words = (i16_8)__builtin_ia32_packusdw128(whole.lo, whole.hi);
    return ((u8_16)__builtin_ia32_packuswb128(words, words)).lo;
#else
    return CONVERT(round_within_i32(v), u8);
#endif
}
AI vi8 round_within_i8(vf32 v) { return CONVERT(round_within_i32(v), i8); }
AI vu16 round_within_u16(vf32 v) { return CONVERT(round_within_i32(v), u16); }
AI vi16 round_within_i16(vf32 v) { return CONVERT(round_within_i32(v), i16); }

// Rounds f32 below 2³⁰ half to even, adds a number of up to 255, and saturates. PACK, NARROW: words of i16 to bytes.
#if defined __AVX__ && VL == 8
#define ROUND_SATURATED(T, LOW, HIGH, PACK, NARROW, BYTES) \
    AI v##T round_saturated_##T(vf32 v, i32 plus) { \
        typedef T bytes __attribute__((ext_vector_type(16))); \
        typedef short words __attribute__((vector_size(16))); \
        const vi32 whole = round_within_i32(v) + plus; \
        const words packed = (words)__builtin_ia32_packssdw128(whole.lo, whole.hi); \
        return ((bytes)PACK(packed, packed)).lo; \
    }
#elif defined __aarch64__
#define ROUND_SATURATED(T, LOW, HIGH, PACK, NARROW, BYTES) \
    AI v##T round_saturated_##T(vf32 v, i32 plus) { \
        typedef T bytes __attribute__((ext_vector_type(8))); \
        const vi32 whole = round_within_i32(v) + plus; \
        const vi16 words = (vi16)__builtin_neon_vqmovn_v((signed_bytes)whole, INT16X4); \
        return ((bytes)NARROW((signed_bytes)SHUFFLE(words, words, 0, 1, 2, 3, -1, -1, -1, -1), BYTES)).lo; \
    }
#else
#define ROUND_SATURATED(T, LOW, HIGH, PACK, NARROW, BYTES) \
    AI v##T round_saturated_##T(vf32 v, i32 plus) { \
        const vi32 whole = round_within_i32(v) + plus; \
        return CONVERT(__builtin_elementwise_min(__builtin_elementwise_max(whole, (vi32)(LOW)), (vi32)(HIGH)), T); \
    }
#endif
ROUND_SATURATED(u8, 0, 255, __builtin_ia32_packuswb128, __builtin_neon_vqmovun_v, UINT8X8)
ROUND_SATURATED(i8, -128, 127, __builtin_ia32_packsswb128, __builtin_neon_vqmovn_v, INT8X8)

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
