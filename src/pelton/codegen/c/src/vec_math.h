// The mathematics of float vectors, included by vec.h. Coefficients are minimax fits (Remez) of our own;
// tests/test_vec.py states the largest errors.
#pragma once

// ---- floats: what the two widths share ------------------------------------------------------------------------------

// Coefficients from the highest power down.
#define POLYNOMIAL(T, x, ...) T##_horner(x, (const T[]){__VA_ARGS__}, sizeof((const T[]){__VA_ARGS__}) / sizeof(T))
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")

// Both propagate NaN. On x86 min and max return their second operand where one is NaN: with a constant argument one
// instruction is left.
#if defined __x86_64__ || defined __arm__
#define EXTREME(T, I, name, beyond) \
    AI v##T T##_##name(v##T a, v##T b) { \
        if (__builtin_constant_p(a[0])) return (v##T)((v##I)(a beyond b ? a : b) | (a != a)); \
        return (v##T)((v##I)(b beyond a ? b : a) | (b != b)); \
    }
#define EXTREMES(T, I) EXTREME(T, I, minimum, <) EXTREME(T, I, maximum, >)
#else
#define EXTREMES(T, I) \
    AI v##T T##_minimum(v##T a, v##T b) { return __builtin_elementwise_minimum(a, b); } \
    AI v##T T##_maximum(v##T a, v##T b) { return __builtin_elementwise_maximum(a, b); }
#endif

// Where these would be calls of libm, as they are in cores without a rounding instruction for this type. MAGIC is the
// smallest number that has no smaller bits than 1.
#if defined __arm__ && !(defined __ARM_FPV5__ && __ARM_FP & 8)
#define ROUND_BY_SUMS(T, I, MAGIC) \
    AI v##T T##_trunc(v##T x) { \
        const v##I small = T##_abs(x) < (T)(MAGIC); \
        return small ? T##_copysign(CONVERT(CONVERT((small ? x : (v##T)0), I), T), x) : x; \
    } \
    AI v##T T##_rint(v##T x) { \
        const v##T magnitude = T##_abs(x); \
        return magnitude < (T)(MAGIC) ? T##_copysign(magnitude + (T)(MAGIC) - (T)(MAGIC), x) : x; \
    } \
    AI v##T T##_floor(v##T x) { \
        const v##T t = T##_trunc(x); \
        return t > x ? t - 1 : t; \
    } \
    AI v##T T##_ceil(v##T x) { \
        const v##T t = T##_trunc(x); \
        return t < x ? t + 1 : t; \
    }
#endif
#define ROUND_BY_INSTRUCTION(T) \
    AI v##T T##_floor(v##T x) { return __builtin_elementwise_floor(x); } \
    AI v##T T##_ceil(v##T x) { return __builtin_elementwise_ceil(x); } \
    AI v##T T##_rint(v##T x) { return __builtin_elementwise_rint(x); } \
    AI v##T T##_trunc(v##T x) { return __builtin_elementwise_trunc(x); }
#if defined __arm__ && !defined __ARM_FPV5__
#define ROUND_f32 ROUND_BY_SUMS(f32, i32, 0x1p23)
#else
#define ROUND_f32 ROUND_BY_INSTRUCTION(f32)
#endif
#if defined ROUND_BY_SUMS
#define ROUND_f64 ROUND_BY_SUMS(f64, i64, 0x1p52)
#else
#define ROUND_f64 ROUND_BY_INSTRUCTION(f64)
#endif

#define FLOAT(T, I) \
    AI v##T T##_horner(v##T x, const T *coefficients, u64 count) { \
        v##T r = coefficients[0]; \
        unroll (u64 i = 1; i < count; i++) r = vec_fma(r, x, (v##T)coefficients[i]); \
        return r; \
    } \
    AI v##T T##_div(v##T a, v##T b) { return a / b; } \
    EXTREMES(T, I) \
    AI v##T T##_abs(v##T x) { return __builtin_elementwise_abs(x); } \
    AI v##T T##_copysign(v##T x, v##T sign) { return __builtin_elementwise_copysign(x, sign); } \
    AI v##T T##_sign(v##T x) { return x == 0 ? (v##T)0 : x == x ? T##_copysign((v##T)1, x) : x; } \
    AI v##T T##_sqrt(v##T x) { return __builtin_elementwise_sqrt(x); } \
    ROUND_##T \
    AI vi32 T##_isnan(v##T x) { return CONVERT(x != x, i32); } \
    AI vi32 T##_isinf(v##T x) { return CONVERT(T##_abs(x) == INFINITY, i32); } \
    COMMON(T, I)
FLOAT(f32, i32)
FLOAT(f64, i64)

// Remainders are exact: each step subtracts a multiple of b and leaves less than an ulp of the quotient times b,
// without rounding. Without FMA the quotient is truncated to a power of two. The remainder may be negative until the
// end.
AI vf64 f64_fmod(vf64 a, vf64 b) {
    vf64 r = f64_abs(a), d = f64_abs(b);
    vi64 proper = (r < INFINITY) & (d > 0), going = proper & (r >= d);
    while (any(CONVERT(going, i32))) {
        vf64 step = f64_abs(r / d) == INFINITY ? d * 0x1p600 : d;
        step = f64_abs(r / step) == INFINITY ? step * 0x1p600 : step;
        vf64 q = r / step;
        q = FUSED ? f64_trunc(q) : (vf64)((vu64)q & 0xfff0000000000000);
        r = going ? vec_fma(-q, step, r) : r;
        going = proper & (f64_abs(r) >= d);
    }
    return proper ? f64_copysign(r < 0 ? r + d : r, a) : (vf64)NAN;
}
AI vf64 f64_mod(vf64 a, vf64 b) {
    vf64 r = f64_fmod(a, b);
    return r == 0 ? f64_copysign((vf64)0, b) : ((r < 0) ^ (b < 0)) ? r + b : r;
}
AI vf32 f32_fmod(vf32 a, vf32 b) { return CONVERT(f64_fmod(CONVERT(a, f64), CONVERT(b, f64)), f32); }
AI vf32 f32_mod(vf32 a, vf32 b) {
    vf32 r = f32_fmod(a, b);
    return r == 0 ? f32_copysign((vf32)0, b) : ((r < 0) ^ (b < 0)) ? r + b : r;
}

// e^x = 2^n·e^r, |r| ≤ ln(2)/2. Adding 1.5·2^(mantissa bits) rounds x/ln(2) to n and leaves n and the exponent's bias
// in the low bits, where one shift makes 2^(n-1) of them: half of 2^n, so that n = 128 is no infinity yet; the
// polynomial gives 2·e^r. Results below 1.4 times the smallest normal are 0.
#define EXPONENTIAL(T, I, MANTISSA, MAGIC, LOWEST, HIGHEST, LN2_HIGH, LN2_LOW, ...) \
    AI v##T T##_exp_parts(v##T x, v##T *r, v##T *scale) { \
        x = T##_maximum(T##_minimum(x, (v##T)(T)(HIGHEST)), (v##T)(T)(LOWEST)); \
        v##T shifted = vec_fma(x, (v##T)(T)1.4426950408889634, (v##T)(T)(MAGIC)), n = shifted - (T)(MAGIC); \
        *scale = (v##T)((v##I)shifted << MANTISSA); \
        *r = vec_fma(n, (v##T)(T)-(LN2_LOW), vec_fma(n, (v##T)(T)-(LN2_HIGH), x)); \
        return vec_fma(POLYNOMIAL(T, *r, __VA_ARGS__), *r, (v##T)2); \
    } \
    AI v##T T##_exp(v##T x) { \
        v##T r, scale, p = T##_exp_parts(x, &r, &scale); \
        return vec_fma(p, r, (v##T)2) * scale; \
    } \
    AI v##T T##_expm1(v##T x) { \
        v##T r, scale, p = T##_exp_parts(x, &r, &scale); \
        return vec_fma(p * r, scale, vec_fma(scale, (v##T)2, (v##T)-1)); \
    }
EXPONENTIAL(f32, i32, 23, 12582912 + 126, -87.5f, 89.f, 0.693145751953125f, 1.428606765330187e-06f,
            2 * 8.312514052e-03f, 2 * 4.189033061e-02f, 2 * 1.666711569e-01f, 2 * 4.999923110e-01f)
EXPONENTIAL(f64, i64, 52, 6755399441055744 + 1022, -708.7, 710., 0.69314718055989033, 5.4979230187083712e-14,
            2 * 2.08265917576849718e-09, 2 * 2.51120847670827883e-08, 2 * 2.75575822563534324e-07,
            2 * 2.75572347271347380e-06, 2 * 2.48015869257411476e-05, 2 * 1.98412698965156936e-04,
            2 * 1.38888888891163550e-03, 2 * 8.33333333331698171e-03, 2 * 4.16666666666660954e-02,
            2 * 1.66666666666666824e-01, 2 * 5.00000000000000000e-01)

// log(x) = e·ln(2) + log(1 + f), 2/3 ≤ 1 + f < 4/3. Subnormals count as zero.
AI vf32 f32_log(vf32 x) {
    vi32 e = ((vi32)x - 0x3f2aaaab) >> 23;
    vf32 f = (vf32)((vi32)x - (e << 23)) - 1, n = CONVERT(e, f32);
    vf32 p = POLYNOMIAL(f32, f, 1.423096955e-01f, -1.512759775e-01f, 1.395727694e-01f, -1.647148281e-01f,
                        2.001313120e-01f, -2.500426769e-01f, 3.333317935e-01f, -0.5f);
    vf32 r = vec_fma(n, (vf32)0.693145751953125f, f + vec_fma(p, f * f, n * 1.428606765330187e-06f));
    r = x < 0x1p-126f ? (x < 0 ? (vf32)NAN : (vf32)-INFINITY) : r;
    return x < INFINITY ? r : x;
}
// The same as the sum of a high part and *low, for powers: log(1 + f) = f - f²/2 + s·(f²/2 + s²·L(s²)) with s = f/(2 +
// f).
AI vf64 f64_log_parts(vf64 x, vf64 *low) {
    vf64 y = x < 0x1p-1022 ? x * 0x1p54 : x;
    vu64 bits = (vu64)y + (0x3ff0000000000000 - 0x3fe6a09e667f3bcd);
    vf64 n = (vf64)(bits >> 52 | 0x4330000000000000) - (0x1p52 + 1023) - (x < 0x1p-1022 ? (vf64)54 : (vf64)0);
    vf64 f = (vf64)((bits & 0x000fffffffffffff) + 0x3fe6a09e667f3bcd) - 1, s = f / (f + 2), z = s * s;
    vf64 p = z * POLYNOMIAL(f64, z, 1.47992305365850313e-01, 1.53137407028909489e-01, 1.81835756950256833e-01,
                            2.22221983695626651e-01, 2.85714287442137227e-01, 3.99999999994072430e-01,
                            6.66666666666673513e-01);
    vf64 half = 0.5 * f, square = half * f, square_low = vec_fma(half, f, -square);
    vf64 a = n * 0.69314718055989033, b = a + f, c = b - square;
    vf64 tail = (f - (b - a)) + ((b - c) - square) - square_low + vec_fma(s, square + p, n * 5.4979230187083712e-14);
    vf64 high = c + tail;
    *low = tail - (high - c);
    high = x > 0 ? high : x < 0 ? (vf64)NAN : (vf64)-INFINITY;
    *low = ((x > 0) & (x < INFINITY)) ? *low : (vf64)0;
    return x < INFINITY ? high : x;
}
AI vf64 f64_log(vf64 x) {
    vf64 low;
    return f64_log_parts(x, &low);
}

// C99's special cases of a^b around r = |a|^b: signs of odd powers, roots of negatives, and the powers that are 1 even
// of NaN.
#define POWER(T) \
    AI v##T T##_pow_signed(v##T a, v##T b, v##T r) { \
        v##T half = b * (T)0.5; \
        r = ((T##_copysign((v##T)1, a) < 0) & (T##_rint(half) != half) & (T##_rint(b) == b)) ? -r : r; \
        r = ((a < 0) & (a > -INFINITY) & (T##_rint(b) != b)) ? (v##T)NAN : r; \
        return ((a == 1) | (b == 0) | ((a == -1) & (T##_abs(b) == INFINITY))) ? (v##T)1 : r; \
    }
POWER(f32)
POWER(f64)
AI vf32 f32_pow(vf32 a, vf32 b) {
    return f32_pow_signed(a, b, CONVERT(f64_exp(CONVERT(b, f64) * f64_log(CONVERT(f32_abs(a), f64))), f32));
}
AI vf64 f64_pow(vf64 a, vf64 b) {
    vf64 low, high = f64_log_parts(f64_abs(a), &low), p = b * high, q = vec_fma(b, high, -p) + b * low;
    return f64_pow_signed(a, b, f64_exp(p) * (f64_abs(p) < 800 ? q + 1 : (vf64)1));
}

// Odd rational functions up to where the result rounds to 1.
AI vf32 f32_erf(vf32 x) {
    x = f32_maximum(f32_minimum(x, (vf32)3.9f), (vf32)-3.9f);
    vf32 z = x * x;
    vf32 p = POLYNOMIAL(f32, z, 2.066447450e-06f, 2.850637538e-04f, 3.738444531e-03f, 5.266838893e-02f,
                        1.896692067e-01f, 1.128379107e+00f);
    return x * p / POLYNOMIAL(f32, z, 3.826983448e-05f, 1.157398685e-03f, 1.491447724e-02f, 1.138199344e-01f,
                              5.014227629e-01f, 1.f);
}
AI vf32 f32_tanh(vf32 x) {
    x = f32_maximum(f32_minimum(x, (vf32)8.3f), (vf32)-8.3f);
    vf32 z = x * x, p = POLYNOMIAL(f32, z, 1.464819377e-08f, 2.150844921e-05f, 3.549166257e-03f, 1.342586875e-01f, 1.f);
    return x * p / POLYNOMIAL(f32, z, 8.295082239e-07f, 3.373945947e-04f, 2.607993968e-02f, 4.675919414e-01f, 1.f);
}
// Below 1 a power series in x², above 1 - e^(-x²)·P((x - 3) / (x + 3)).
AI vf64 f64_erf(vf64 x) {
    vf64 a = f64_minimum(f64_abs(x), (vf64)6), z = a * a, t = (a - 3) / (a + 3);
    vf64 near = a * POLYNOMIAL(f64, z, 5.96068479269257704e-11, -1.13749546648358153e-09, 1.46603282275066263e-08,
                               -1.63503961126496665e-07, 1.64610084635029461e-06, -1.49255957710133678e-05,
                               1.20553311328941423e-04, -8.54832698142343988e-04, 5.22397762482838552e-03,
                               -2.68661706450778678e-02, 1.12837916709548847e-01, -3.76126389031837483e-01,
                               1.12837916709551256);
    vf64 far = POLYNOMIAL(f64, t, -1.62212670085174184e-07, -1.92818554908728416e-07, 1.28443531461294769e-06,
                          2.10227333509025699e-06, -7.99219612324115951e-06, -1.28615298524109201e-05,
                          6.40581806767815353e-05, 4.52557271307734387e-05, -5.97062004935218558e-04,
                          7.07746405222596021e-04, 4.26913633139009742e-03, -2.43924993176855114e-02,
                          7.16658371980974096e-02, -1.50115936500784808e-01, 2.45603801712329206e-01,
                          -3.26233560043037274e-01, 1.79001151181389956e-01);
    return f64_copysign(a < 1 ? near : 1 - f64_exp(-z) * far, x);
}
AI vf64 f64_tanh(vf64 x) {
    vf64 e = f64_expm1(2 * f64_minimum(f64_abs(x), (vf64)20));
    return f64_copysign(e / (e + 2), x);
}

// ---- trigonometry ---------------------------------------------------------------------------------------------------

// x·2/π to 128 bits behind the point (Payne and Hanek): the bits of 2/π whose product with x is a multiple of 4 are
// left out.
COLD i64 reduce_far(double x, double *r) {
    static const u32 two_over_pi[] = { 0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599, 0x3c439041,
                                       0xfe5163ab, 0xdebbc561, 0xb7246e3a, 0x424dd2e0, 0x06492eea, 0x09d1921c,
                                       0xfe1deb1c, 0xb129a73e, 0xe88235f5, 0x2ebb4484, 0xe99c7026, 0xb45f7e41,
                                       0x3991d639, 0x835339f4, 0x9c845f8b, 0xbdf9283b, 0x1ff897ff, 0xde05980f,
                                       0xef2f118b, 0x5a0a6d1f, 0x6d367ecf, 0x27cb09b7, 0x4f463f66, 0x9e5fea2d,
                                       0x7527bac7, 0xebe5f17b, 0x3d0739f7, 0x8a5292ea, 0x6bfb5fb1, 0x1f8d5d08,
                                       0x56033046, 0xfc7b6bab };
    union { double value; u64 bits; } in = {x};
    int exponent = (int)(in.bits >> 52 & 0x7ff) - 1075, first = exponent - 2;
    if (exponent == 972) return *r = x - x, 0; // infinity and NaN
    u64 mantissa = (in.bits & 0xfffffffffffff) | 0x10000000000000;
    u32 product[6] = {0}; // 192 bits, most significant first, the first two of them the quadrant
    for (int half = 0; half < 2; half++) {
        u64 factor = half ? mantissa >> 32 : mantissa & 0xffffffff, carry = 0;
        for (int i = 5; i >= half; i--) {
            int at = first + 32 * i, word = at >> 5;
            u64 pair = (word >= 0 && word < 38 ? (u64)two_over_pi[word] << 32 : 0)
                       | (word >= -1 && word < 37 ? two_over_pi[word + 1] : 0);
            carry += factor * (u32)(pair >> (32 - (at & 31))) + product[i - half];
            product[i - half] = (u32)carry;
            carry >>= 32;
        }
    }
    u64 top = (u64)product[0] << 32 | product[1], middle = (u64)product[2] << 32 | product[3];
    u64 fraction = top << 2 | middle >> 62, below = middle << 2 | product[4] >> 30;
    i64 quadrant = (i64)(top >> 62);
    double sign = x < 0 ? -1 : 1;
    if (fraction >> 63) { // the nearer multiple is the next one
        quadrant++;
        sign = -sign;
        fraction = ~fraction, below = ~below;
    }
    *r = sign * ((double)fraction * 0x1p-64 + (double)below * 0x1p-128) * 1.5707963267948966;
    return x < 0 ? -quadrant : quadrant;
}

// x = n·π/2 + r, |r| ≤ π/4: the products of n with the first parts of π/2 are exact, large x go lane by lane.
#define TRIGONOMETRY(T, I, BITS, FAR, MAGIC, REDUCE, SINE, COSINE) \
    COLD void T##_reduce_far(v##T *x, v##T *r, v##I *n) { \
        for (int i = 0; i < VL; i++) { \
            double rest; \
            if (__builtin_fabs((double)(*x)[i]) <= FAR) continue; \
            (*n)[i] = (I)reduce_far((double)(*x)[i], &rest); \
            (*r)[i] = (T)rest; \
        } \
    } \
    AI v##I T##_reduce(v##T x, v##T *rest) { \
        v##T shifted = vec_fma(x, (v##T)(T)0.63661977236758134, (v##T)(T)(MAGIC)), k = shifted - (T)(MAGIC), r = x; \
        v##I n = (v##I)shifted; \
        REDUCE(r, k) \
        if (__builtin_expect(any(CONVERT(T##_abs(x) > FAR, i32)), 0)) { \
            v##T far_x = x, far_r = r; \
            v##I far_n = n; \
            T##_reduce_far(&far_x, &far_r, &far_n); \
            r = far_r, n = far_n; \
        } \
        *rest = r; \
        return n; \
    } \
    AI v##T T##_quarter_sin(v##T r) { return vec_fma(r * r * r, POLYNOMIAL(T, r * r, SINE), r); } \
    AI v##T T##_quarter_cos(v##T r) { return vec_fma(r * r, POLYNOMIAL(T, r * r, COSINE, (T)-0.5), (v##T)1); } \
    AI v##T T##_quarters(v##T r, v##I n) { \
        v##T v = (n & 1) != 0 ? T##_quarter_cos(r) : T##_quarter_sin(r); \
        return (v##T)((v##I)v ^ ((n & 2) << (BITS - 2))); \
    } \
    AI v##T T##_sin(v##T x) { \
        v##T r; \
        v##I n = T##_reduce(x, &r); \
        return T##_quarters(r, n); \
    } \
    AI v##T T##_cos(v##T x) { \
        v##T r; \
        v##I n = T##_reduce(x, &r); \
        return T##_quarters(r, n + 1); \
    } \
    AI v##T T##_tan(v##T x) { \
        v##T r; \
        v##I odd = (T##_reduce(x, &r) & 1) != 0; \
        v##T s = T##_quarter_sin(r), c = T##_quarter_cos(r); \
        return (odd ? -c : s) / (odd ? s : c); \
    }
#define MINUS(r, k, part) r = vec_fma(k, (__typeof__(k))-(part), r);
#define REDUCE_F32(r, k) \
    MINUS(r, k, 1.5703125f) MINUS(r, k, 0.00048375129699707031f) \
    MINUS(r, k, 7.5495336204767227e-08f) MINUS(r, k, 2.5633440682570896e-12f)
#define REDUCE_F64(r, k) \
    MINUS(r, k, 1.5707963267341256) MINUS(r, k, 6.077100506303966e-11) MINUS(r, k, 2.0222662487959506e-21)
#define SINE_F32 -1.951697777e-04f, 8.332176134e-03f, -1.666665524e-01f
#define COSINE_F32 2.443809171e-05f, -1.388736418e-03f, 4.166664556e-02f
#define SINE_F64 \
    1.58966669214847011e-10, -2.50507559697300389e-08, 2.75573136787296031e-06, -1.98412698297713975e-04, \
        8.33333333332236977e-03, -1.66666666666666324e-01
#define COSINE_F64 \
    -1.13595600187482664e-11, 2.08757216399932331e-09, -2.75573143408070872e-07, 2.48015872894441186e-05, \
        -1.38888888888740662e-03, 4.16666666666666019e-02
TRIGONOMETRY(f32, i32, 32, 10000, 12582912, REDUCE_F32, SINE_F32, COSINE_F32)
TRIGONOMETRY(f64, i64, 64, 1000000, 6755399441055744, REDUCE_F64, SINE_F64, COSINE_F64)

// atan on [0, tan(π/8)] after rotating by π/4 or π/2, asin on [0, 1/2] after halving the angle from the pole.
#define INVERSE_TRIGONOMETRY(T, ATAN, ASIN) \
    AI v##T T##_atan(v##T x) { \
        const T quarter = (T)0.78539816339744828; \
        v##T a = T##_abs(x), top = a > (T)2.4142135623730950 ? (v##T)-1 : a > (T)0.41421356237309503 ? a - 1 : a; \
        v##T t = top / (a > (T)2.4142135623730950 ? a : a > (T)0.41421356237309503 ? a + 1 : (v##T)1), z = t * t; \
        v##T base = a > (T)2.4142135623730950 ? (v##T)(2 * quarter) \
            : a > (T)0.41421356237309503 ? (v##T)quarter : (v##T)0; \
        return T##_copysign(base + vec_fma(t * z, POLYNOMIAL(T, z, ATAN), t), x); \
    } \
    AI v##T T##_half_asin(v##T a) { /* asin(a) up to 1/2, above half of π/2 - asin(a) */ \
        v##T z = a > (T)0.5 ? (T)0.5 - (T)0.5 * a : a * a, s = a > (T)0.5 ? T##_sqrt(z) : a; \
        return vec_fma(s * z, POLYNOMIAL(T, z, ASIN), s); \
    } \
    AI v##T T##_asin(v##T x) { \
        v##T a = T##_abs(x), h = T##_half_asin(a); \
        return T##_copysign(a > (T)0.5 ? (T)1.5707963267948966 - 2 * h : h, x); \
    } \
    AI v##T T##_acos(v##T x) { \
        v##T a = T##_abs(x), h = T##_half_asin(a), far = x < 0 ? (T)3.1415926535897931 - 2 * h : 2 * h; \
        return a > (T)0.5 ? far : (T)1.5707963267948966 - T##_copysign(h, x); \
    }
#define ATAN_F64 \
    -1.78924597034223407e-02, 3.80516231391106186e-02, -5.03881702962940478e-02, 5.84778597153159524e-02, \
        -6.66309053117759287e-02, 7.69205908616397288e-02, -9.09089769768534062e-02, 1.11111107814915469e-01, \
        -1.42857142801596226e-01, 1.99999999999532468e-01, -3.33333333333331983e-01
#define ASIN_F64 \
    3.16680944613868740e-02, -1.18985178528287390e-02, 1.83648155028921962e-02, 9.34525599729105205e-03, \
        1.43294531235928814e-02, 1.73132150910979658e-02, 2.23749470279619132e-02, 3.03818215038036896e-02, \
        4.46428602820936188e-02, 7.49999999601097950e-02, 1.66666666666842683e-01
#define ATAN_F32 8.055435866e-02f, -1.387844980e-01f, 1.997780800e-01f, -3.333295286e-01f
#define ASIN_F32 4.227839410e-02f, 2.411456965e-02f, 4.548331723e-02f, 7.495196164e-02f, 1.666675508e-01f
INVERSE_TRIGONOMETRY(f32, ATAN_F32, ASIN_F32)
INVERSE_TRIGONOMETRY(f64, ATAN_F64, ASIN_F64)

// ---- hyperbolic functions and the logistic function -----------------------------------------------------------------

#define HYPERBOLIC(T, LARGE, HUGE) \
    AI v##T T##_log1p(v##T x) { /* adds back what rounding 1 + x lost, divided by 1 + x */ \
        v##T u = 1 + x; \
        return ((x > -1) & (x < INFINITY)) ? T##_log(u) + (x - (u - 1)) / u : T##_log(u); \
    } \
    AI v##T T##_sinh(v##T x) { \
        v##T a = T##_abs(x), e = T##_expm1(a), h = T##_exp((T)0.5 * a); \
        return T##_copysign(a > LARGE ? (T)0.5 * h * h : (T)0.5 * (e + e / (e + 1)), x); \
    } \
    AI v##T T##_cosh(v##T x) { \
        v##T h = T##_exp((T)0.5 * T##_abs(x)); \
        return (T)0.5 * h * h + (T)0.5 / h / h; \
    } \
    AI v##T T##_asinh(v##T x) { \
        v##T a = T##_abs(x), square = a * a; \
        v##T r = a > HUGE ? T##_log(a) + (T)0.69314718055994531 : T##_log1p(a + square / (1 + T##_sqrt(square + 1))); \
        return T##_copysign(r, x); \
    } \
    AI v##T T##_acosh(v##T x) { \
        v##T t = x - 1; \
        return x > HUGE ? T##_log(x) + (T)0.69314718055994531 : T##_log1p(t + T##_sqrt(t) * T##_sqrt(t + 2)); \
    } \
    AI v##T T##_atanh(v##T x) { \
        v##T a = T##_abs(x); \
        return T##_copysign((T)0.5 * T##_log1p(2 * a / (1 - a)), x); \
    } \
    AI v##T T##_sigmoid(v##T x) { return 1 / (1 + T##_exp(-x)); }
HYPERBOLIC(f32, 80, 1e9f)
HYPERBOLIC(f64, 700, 1e9)
