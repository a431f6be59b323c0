// Dot products of four bytes in every lane: sums in i32 of u8 or i8 times i8, in the instructions that the target has.
#pragma once
#include "vec.h"

// AT_ONCE: one instruction. PAIRS: two products are added in i16 first, which the build has shown to be exact for these
// weights. Both multiply u8 by i8 on x86, i8 by i8 elsewhere. WIDE: factors are widened to i16; exact for all. SORTED:
// PAIRS where that is exact for the weights of a step, WIDE for the other steps, which come last. WORDS: the image is
// widened to i16 first, once for all weights, the weights in each step; exact for all.
enum : idx { AT_ONCE = 0, PAIRS = 1, WIDE = 2, SORTED = 3, WORDS = 4 };

typedef i16 vi16x2 __attribute__((ext_vector_type(2 * VL)));
typedef u16 vu16x2 __attribute__((ext_vector_type(2 * VL)));
typedef i8 vi8x2 __attribute__((ext_vector_type(2 * VL)));
typedef i16 vi16x2_in_memory __attribute__((ext_vector_type(2 * VL), aligned(1), may_alias));
typedef i8 vi8x2_in_memory __attribute__((ext_vector_type(2 * VL), aligned(1), may_alias));
typedef u8 vu8x2_in_memory __attribute__((ext_vector_type(2 * VL), aligned(1), may_alias));

AI vi16x2 ld_i8x2(const i8 *p) { return __builtin_convertvector(*(const vi8x2_in_memory *)p, vi16x2); }
AI vi16x2 ld_u8x2(const u8 *p) { return __builtin_convertvector(*(const vu8x2_in_memory *)p, vi16x2); }

// Of i16: the products of neighbours, added.
AI vi32 madd(vi16x2 a, vi16x2 b) {
#if defined __AVX512BW__ && VL == 16
    return __builtin_ia32_pmaddwd512(a, b);
#elif defined __AVX2__ && VL == 8
    return __builtin_ia32_pmaddwd256(a, b);
#elif defined __wasm_simd128__
    typedef short words __attribute__((vector_size(16)));
    return (vi32)__builtin_wasm_dot_s_i32x4_i16x8((words)a, (words)b);
#elif defined __aarch64__
    const vi32 low = CONVERT(a.lo, i32) * CONVERT(b.lo, i32), high = CONVERT(a.hi, i32) * CONVERT(b.hi, i32);
    return SHUFFLE(low, high, 0, 2, 4, 6) + SHUFFLE(low, high, 1, 3, 5, 7); // smull, smull2, addp
#else
    const vi32 x = (vi32)a, y = (vi32)b;
    return (x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16);
#endif
}

#if defined __arm__ && !defined __ARM_FEATURE_DSP
enum { MULTIPLIES_PAIRS = 0 };
#else
enum { MULTIPLIES_PAIRS = 1 };
#endif

// A step of a sum of products of i16, two to a lane.
AI vi32 dot_i16(vi32 acc, vi32 x, vi32 w) {
#if defined __AVX512VNNI__ && VL == 16
    return __builtin_ia32_vpdpwssd512(acc, x, w);
#elif defined __AVXVNNI__ && VL == 8
    return __builtin_ia32_vpdpwssd256(acc, x, w);
#elif defined __ARM_FEATURE_DSP && !defined __aarch64__
    unroll (int i = 0; i < VL; i++) acc[i] = __builtin_arm_smlad(x[i], w[i], acc[i]);
    return acc;
#else
    return acc + madd((vi16x2)x, (vi16x2)w);
#endif
}

// Of four bytes the first and third as i16, or (odd) the second and fourth.
AI i32 widen_bytes(bool is_signed, bool odd, i32 x) {
    const u32 two = odd ? (u32)x >> 8 | (u32)x << 24 : (u32)x;
#if defined __ARM_FEATURE_DSP && !defined __aarch64__ // with the rotation, one instruction
    return is_signed ? __builtin_arm_sxtb16((i32)two) : __builtin_arm_uxtb16((i32)two);
#else
    return (i32)((two & 0x00ff00ff) | (is_signed ? (two & 0x00800080) * 0x1fe : 0));
#endif
}

// Sums by WORDS that fill the registers: two pixels by two outputs, or one pixel by four outputs. x: in each step the
// first and third byte of every four of each pixel, then the second and fourth; w: four bytes of each output. acc: of
// the outputs for the first pixel, then for the second.
// Clang holds pixels, weights and sums in more registers than there are: 23 instructions for two by two where 17 do.
#if defined __ARM_FEATURE_DSP && !defined __aarch64__ && VL == 2
enum { HAS_TILES_BY_WORDS = 1 };
#define TWO_BY_TWO \
    "ldrd %[w0], %[w1], [%[w]], #8\n ldrd %[x0], %[x1], [%[x]], #8\n" \
    "sxtb16 %[t], %[w0]\n smlad %[a], %[x0], %[t], %[a]\n smlad %[c], %[x1], %[t], %[c]\n" \
    "sxtb16 %[t], %[w1]\n smlad %[b], %[x0], %[t], %[b]\n smlad %[d], %[x1], %[t], %[d]\n" \
    "ldrd %[x0], %[x1], [%[x]], #8\n sxtb16 %[w0], %[w0], ror #8\n sxtb16 %[w1], %[w1], ror #8\n" \
    "smlad %[a], %[x0], %[w0], %[a]\n smlad %[c], %[x1], %[w0], %[c]\n" \
    "smlad %[b], %[x0], %[w1], %[b]\n smlad %[d], %[x1], %[w1], %[d]\n"
#define TWO_OUTPUTS(a, b) \
    "ldrd %[w0], %[w1], [%[w]], #8\n" \
    "sxtb16 %[t], %[w0]\n smlad %[" a "], %[x0], %[t], %[" a "]\n" \
    "sxtb16 %[t], %[w1]\n smlad %[" b "], %[x0], %[t], %[" b "]\n" \
    "sxtb16 %[w0], %[w0], ror #8\n smlad %[" a "], %[x1], %[w0], %[" a "]\n" \
    "sxtb16 %[w1], %[w1], ror #8\n smlad %[" b "], %[x1], %[w1], %[" b "]\n"
#define ONE_BY_FOUR "ldrd %[x0], %[x1], [%[x]], #8\n" TWO_OUTPUTS("a", "b") TWO_OUTPUTS("c", "d")
#define TILE_LOOP(step) \
    __asm__ volatile("1:\n" step "cmp %[x], %[end]\n bne 1b" \
                     : [a] "+r"(a), [b] "+r"(b), [c] "+r"(c), [d] "+r"(d), [x] "+r"(x), [w] "+r"(w), [x0] "=&r"(x0), \
                       [x1] "=&r"(x1), [w0] "=&r"(w0), [w1] "=&r"(w1), [t] "=&r"(t) \
                     : [end] "r"(end) : "cc", "memory")
AI void tile_by_words(int pixels, idx steps, const i32 *x, const i8 *w, vi32 *acc) {
    i32 a = acc[0].x, b = acc[0].y, c = acc[1].x, d = acc[1].y, x0, x1, w0, w1, t;
    const i32 *const end = x + 2 * pixels * steps;
    if (pixels == 1) TILE_LOOP(ONE_BY_FOUR);
    else if (steps % 2) TILE_LOOP(TWO_BY_TWO);
    else TILE_LOOP(TWO_BY_TWO TWO_BY_TWO);
    acc[0] = (vi32){ a, b }, acc[1] = (vi32){ c, d };
}
#else
enum { HAS_TILES_BY_WORDS = 0 };
AI void tile_by_words(int pixels, idx steps, const i32 *x, const i8 *w, vi32 *acc) {}
#endif

// Of bytes: the products of neighbours, added in i16.
AI vi16x2 madd_bytes(vi32 x, vi32 w) {
#if defined __AVX512BW__ && VL == 16
    typedef char bytes __attribute__((vector_size(64)));
    return __builtin_ia32_pmaddubsw512((bytes)x, (bytes)w);
#elif defined __AVX2__ && VL == 8
    typedef char bytes __attribute__((vector_size(32)));
    return __builtin_ia32_pmaddubsw256((bytes)x, (bytes)w);
#elif defined __aarch64__
    typedef i8 bytes __attribute__((ext_vector_type(16)));
    typedef i16 words __attribute__((ext_vector_type(8)));
    const bytes a = (bytes)x, b = (bytes)w;
    const words low = __builtin_convertvector(a.lo, words) * __builtin_convertvector(b.lo, words),
                high = __builtin_convertvector(a.hi, words) * __builtin_convertvector(b.hi, words);
    return SHUFFLE(low, high, 0, 2, 4, 6, 8, 10, 12, 14) + SHUFFLE(low, high, 1, 3, 5, 7, 9, 11, 13, 15);
#elif defined __x86_64__
    const vi16x2 even = (vi16x2)((vu16x2)x & 255), odd = (vi16x2)((vu16x2)x >> 8);
    return even * ((vi16x2)w << 8 >> 8) + odd * ((vi16x2)w >> 8);
#else
    return ((vi16x2)x << 8 >> 8) * ((vi16x2)w << 8 >> 8) + ((vi16x2)x >> 8) * ((vi16x2)w >> 8);
#endif
}

// Bytes of x with the signs of those of y; 0 where y is 0.
AI vi32 signed_as(vi32 x, vi32 y) {
    typedef i8 bytes __attribute__((ext_vector_type(4 * VL)));
#if defined __AVX2__ && VL == 8
    typedef char chars __attribute__((vector_size(32)));
    return (vi32)__builtin_ia32_psignb256((chars)x, (chars)y);
#else
    const bytes a = (bytes)x, b = (bytes)y;
    return (vi32)(((a ^ (b < 0)) - (b < 0)) & (b != 0));
#endif
}

// acc + neighbours of i16, added.
AI vi32 add_pairs(vi32 acc, vi16x2 x) {
#if defined __aarch64__
    typedef signed char bytes __attribute__((neon_vector_type(16)));
    return (vi32)__builtin_neon_vpadalq_v((bytes)acc, (bytes)x, 34);
#else
    return acc + madd(x, (vi16x2)1);
#endif
}

AI vi32 dot_fours(vi32 acc, vi32 x, vi32 w) {
#if defined __AVX512VNNI__ && VL == 16
    return __builtin_ia32_vpdpbusd512(acc, x, w);
#elif defined __AVXVNNI__ && VL == 8
    return __builtin_ia32_vpdpbusd256(acc, x, w);
#elif defined __ARM_FEATURE_DOTPROD // the second factor may be a lane
    typedef signed char bytes __attribute__((neon_vector_type(16)));
    return (vi32)__builtin_neon_vdotq_s32((bytes)acc, (bytes)w, (bytes)x, 34);
#else
    const vi16x2 first = (vi16x2)((vu16x2)x & 255), second = (vi16x2)((vu16x2)x >> 8);
    return acc + madd(first, (vi16x2)w << 8 >> 8) + madd(second, (vi16x2)w >> 8);
#endif
}

// Four bytes of each lane by i16: even ones are the first and third of each lane, odd ones the second and fourth.
AI vi32 dot_wide(bool is_signed, vi32 acc, vi32 x, vi16x2 even, vi16x2 odd) {
    const vi16x2 first = is_signed ? (vi16x2)x << 8 >> 8 : (vi16x2)((vu16x2)x & 255);
    const vi16x2 second = is_signed ? (vi16x2)x >> 8 : (vi16x2)((vu16x2)x >> 8);
    return acc + madd(first, even) + madd(second, odd);
}

// A step of a sum: four bytes, the same in every lane, times the four bytes of each lane at w. How they are packed:
// AT_ONCE and PAIRS lane by lane, WIDE the first and third of each lane, then the second and fourth.
AI vi32 dot(idx how, bool is_signed, vi32 acc, vi32 x, const i8 *w) {
    if (how == AT_ONCE) return dot_fours(acc, x, *(const vi32_in_memory *)w);
    if (how == PAIRS) return add_pairs(acc, madd_bytes(x, *(const vi32_in_memory *)w));
    return dot_wide(is_signed, acc, x, ld_i8x2(w), ld_i8x2(w + 2 * VL));
}

// The same of two i16, the same in every lane, times the two bytes of each lane at w.
AI vi32 dot_pair(vi32 acc, vi32 x, const i8 *w) { return acc + madd((vi16x2)x, ld_i8x2(w)); }

// Four bytes, or the first n of them before zeros, in every lane.
AI vi32 bc_bytes(const i8 *p, idx n) {
    u32 x = 0;
    if (n >= 4) __builtin_memcpy(&x, p, 4);
    else for (idx i = 0; i < n; i++) x |= (u32)(u8)p[i] << 8 * i;
    return (vi32)(i32)x;
}

// The last n < 4 bytes before p, where there are four, in every lane.
AI vi32 bc_last_bytes(const i8 *p, idx n) {
    u32 x;
    __builtin_memcpy(&x, p - 4, 4);
    return (vi32)(i32)(x >> 8 * (4 - n) % 32);
}

// Bytes of x, which repeats eight, at these places.
AI vi32 pick_bytes(vi32 x, vi32 places) {
#if defined __AVX512BW__ && VL == 16
    typedef char bytes __attribute__((vector_size(64)));
    return (vi32)__builtin_ia32_pshufb512((bytes)x, (bytes)places);
#elif defined __AVX2__ && VL == 8
    typedef char bytes __attribute__((vector_size(32)));
    return (vi32)__builtin_ia32_pshufb256((bytes)x, (bytes)places);
#elif defined __aarch64__
    typedef signed char bytes __attribute__((neon_vector_type(16)));
    return (vi32)__builtin_neon_vqtbl1q_v((bytes)x, (bytes)places, 32);
#else
    typedef u8 bytes __attribute__((ext_vector_type(4 * VL)));
    const bytes from = (bytes)x, at = (bytes)places;
    bytes to;
    unroll (int i = 0; i < 4 * VL; i++) to[i] = from[at[i] & 7];
    return (vi32)to;
#endif
}

// Entries of a table of 16 floats, by the lowest four bits of each lane.
AI vf32 pick_f32(const vf32 *table, vi32 places) {
#if defined __AVX512F__ && VL == 16
    typedef float floats __attribute__((vector_size(64)));
    typedef int ints __attribute__((vector_size(64)));
    return (vf32)__builtin_ia32_permvarsf512((floats)table[0], (ints)places);
#elif defined __AVX2__ && VL == 8
    typedef float floats __attribute__((vector_size(32)));
    typedef int ints __attribute__((vector_size(32)));
    const vf32 low = (vf32)__builtin_ia32_permvarsf256((floats)table[0], (ints)places);
    const vf32 high = (vf32)__builtin_ia32_permvarsf256((floats)table[1], (ints)places);
    return f32_select((places << 28) >> 31, high, low);
#elif defined __aarch64__
    typedef signed char bytes __attribute__((neon_vector_type(16)));
    const vi32 at = (places & 15) * 0x04040404 + 0x03020100;
    return (vf32)__builtin_neon_vqtbl4q_v(
        (bytes)table[0], (bytes)table[1], (bytes)table[2], (bytes)table[3], (bytes)at, 32);
#else
    vf32 to;
    unroll (int i = 0; i < VL; i++) to[i] = ((const float *)table)[places[i] & 15];
    return to;
#endif
}
