// Element types of a byte and less: floats with few bits, vf32 in registers, and integers of 2 and 4 bits, vi8 and vu8
// in registers. In memory each element is a byte, its code in the low bits, as ml_dtypes has it. Functions are named as
// in vec.h.
#pragma once
#include "vec.h"

// Everything about a float of E exponent bits (biased by BIAS) and M bits of fraction: its largest finite code, the
// code of larger values where nothing saturates, and the code of NaN. KIND: codes as in IEEE 754 (SIGNED), NaN in place
// of negative zero (NO_NEGATIVE_ZERO), or only numbers (FINITE).
enum { SIGNED, NO_NEGATIVE_ZERO, FINITE };
#define FLOATS_OF_A_BYTE(X) \
    X(f8e4m3fn, 4, 3, 7, 0x7e, 0x7f, 0x7f, SIGNED) \
    X(f8e5m2, 5, 2, 15, 0x7b, 0x7c, 0x7e, SIGNED) X(f8e4m3fnuz, 4, 3, 8, 0x7f, 0x80, 0x80, NO_NEGATIVE_ZERO) \
        X(f8e5m2fnuz, 5, 2, 16, 0x7f, 0x80, 0x80, NO_NEGATIVE_ZERO) X(f6e2m3fn, 2, 3, 1, 0x1f, 0x1f, 0, FINITE) \
            X(f6e3m2fn, 3, 2, 3, 0x1f, 0x1f, 0, FINITE) X(f4e2m1fn, 2, 1, 1, 7, 7, 0, FINITE)

// Bits of the f32 that a code stands for, sign and special codes aside. Subnormals are multiples of the smallest one.
AI vu32 decode(vu32 code, int m, int bias) {
    const vf32 smallest = (vf32)(vu32)(unsigned)((128 - bias - m) << 23);
    return code < 1u << m ? (vu32)(CONVERT((vi32)code, f32) * smallest) : (code << (23 - m)) + ((127u - bias) << 23);
}

// The code of a magnitude, given as bits of an f32: rounded half to even, without a check of its range.
AI vu32 encode(vu32 magnitude, int m, int bias) {
    // adding a number whose last bit is the smallest subnormal rounds
    const unsigned last_bit = (unsigned)(151 - bias - m) << 23;
    const vu32 normal = (magnitude - ((127u - bias) << 23) + ((1u << (22 - m)) - 1) + (magnitude >> (23 - m) & 1))
                        >> (23 - m);
    return magnitude < (128u - bias) << 23 ? (vu32)((vf32)magnitude + (vf32)(vu32)last_bit) - last_bit : normal;
}

#define FLOAT_OF_A_BYTE(T, E, M, BIAS, MAX_CODE, OVERFLOW_CODE, NAN_CODE, KIND) \
    typedef u8 T; \
    typedef vf32 v##T; \
    AI vf32 T##_widen(vu8 h) { \
        const vu32 code = CONVERT(h, u32) & ((2u << (E + M)) - 1), magnitude = code & ((1u << (E + M)) - 1); \
        vu32 bits = decode(magnitude, M, BIAS); \
        if (KIND == SIGNED) \
            bits = magnitude > MAX_CODE \
                       ? OVERFLOW_CODE == NAN_CODE || magnitude != OVERFLOW_CODE ? 0x7fc00000u : 0x7f800000u \
                       : bits; \
        bits |= (code >> (E + M)) << 31; \
        if (KIND == NO_NEGATIVE_ZERO) bits = code == NAN_CODE ? (vu32)0xffc00000 : bits; \
        return (vf32)bits; \
    } \
    AI vu8 T##_code(vf32 v, bool saturate) { \
        const vu32 bits = (vu32)v, magnitude = bits & 0x7fffffff, sign = bits >> 31 << (E + M); \
        vu32 code = encode(magnitude, M, BIAS), is_nan = (vu32)(magnitude > 0x7f800000); \
        if (KIND == NO_NEGATIVE_ZERO) { \
            if (!saturate) is_nan |= (vu32)(code > MAX_CODE); \
            code = (code > MAX_CODE ? (vu32)MAX_CODE : code) | (code == 0 ? (vu32)0 : sign); \
            return CONVERT(is_nan ? (vu32)NAN_CODE : code, u8); \
        } \
        code = code > MAX_CODE ? (vu32)(saturate ? MAX_CODE : OVERFLOW_CODE) : code; \
        if (KIND == FINITE) return CONVERT(is_nan ? sign ^ (1u << (E + M)) : code | sign, u8); \
        return CONVERT((is_nan ? (vu32)NAN_CODE : code) | sign, u8); \
    } \
    AI vu8 T##_narrow(vf32 v) { return T##_code(v, false); } \
    AI vf32 cast_f32_##T(vf32 v) { return T##_widen(T##_code(v, true)); } \
    AI vf32 cast_f32_##T##_free(vf32 v) { return T##_widen(T##_code(v, false)); }
FLOATS_OF_A_BYTE(FLOAT_OF_A_BYTE)

// f8e8m0fnu is a power of two: the exponent of an f32 without sign and fraction, 255 for NaN. A fraction rounds up,
// down, or to the nearer one; signs are lost.
typedef u8 f8e8m0fnu;
typedef vf32 vf8e8m0fnu;
enum { UP, DOWN, NEAREST };
AI vf32 f8e8m0fnu_widen(vu8 h) {
    const vu32 code = CONVERT(h, u32);
    return (vf32)(code == 0 ? (vu32)0x00400000 : code == 255 ? (vu32)0x7fc00000 : code << 23);
}
AI vu8 f8e8m0fnu_code(vf32 v, int direction, bool saturate) {
    const vu32 bits = (vu32)v, exponent = bits >> 23 & 255, fraction = bits & 0x7fffff;
    vu32 up = (vu32)(fraction != 0);
    if (direction == DOWN) up = (vu32)0;
    if (direction == NEAREST) up = (vu32)(fraction > 0x400000) | ((vu32)(fraction == 0x400000) & (vu32)(exponent != 0));
    return CONVERT(exponent + (up & (vu32)(exponent < (saturate ? 254 : 255)) & 1), u8);
}
AI vu8 f8e8m0fnu_narrow(vf32 v) { return f8e8m0fnu_code(v, DOWN, true); }
#define CAST_POWER(name, direction, saturate) \
    AI vf32 cast_f32_f8e8m0fnu##name(vf32 v) { return f8e8m0fnu_widen(f8e8m0fnu_code(v, direction, saturate)); }
CAST_POWER(, UP, true) CAST_POWER(_free, UP, false) CAST_POWER(_down, DOWN, true) CAST_POWER(_down_free, DOWN, false)
CAST_POWER(_nearest, NEAREST, true) CAST_POWER(_nearest_free, NEAREST, false)

#define INTEGER_OF_BITS(T, WIDE, BITS) \
    typedef u8 T; \
    typedef v##WIDE v##T; \
    AI v##WIDE T##_widen(vu8 b) { return (v##WIDE)(b << (8 - BITS)) >> (8 - BITS); } \
    AI vu8 T##_narrow(v##WIDE v) { return (vu8)v & ((1 << BITS) - 1); } \
    AI v##WIDE cast_i32_##T(vi32 v) { return T##_widen(CONVERT(v, u8)); }
INTEGER_OF_BITS(i4, i8, 4) INTEGER_OF_BITS(u4, u8, 4) INTEGER_OF_BITS(i2, i8, 2) INTEGER_OF_BITS(u2, u8, 2)

#define IN_A_BYTE(T, ...) \
    AI v##T bc_##T(T x) { return T##_widen((vu8)x); } \
    STORAGE(T, u8)
FLOATS_OF_A_BYTE(IN_A_BYTE) IN_A_BYTE(f8e8m0fnu) IN_A_BYTE(i4) IN_A_BYTE(u4) IN_A_BYTE(i2) IN_A_BYTE(u2)
