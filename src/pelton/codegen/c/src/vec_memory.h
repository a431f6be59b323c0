// Loads and stores of vectors, whole, partial and strided, and the element types that are wider in registers than in
// memory; included by vec.h.
#pragma once

// ld_T, st_T: VL elements, any alignment.  ldn_T, stn_T: the first n elements and no byte beyond, lanes past n read as
// zero. ldg_T, stg_T: the first n of elements that are `stride` elements apart.  bc_T: one value in all lanes. stp_T:
// the first n lanes are elements at, at + 1, … of `size` elements that start at p; those inside of it are stored.

// clang turns "select between x and *p, and store it at p" (a ReLU in place) into a masked store: 12 cycles on Zen 3's
// AVX2. It does not where load and store name different address spaces, and all numbers below 256 are the same memory.
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
        return whole ? SHUFFLE(*(const T##_##H##_in_memory *)p, rest, __VA_ARGS__) \
                     : SHUFFLE(rest, (T##_##H)0, __VA_ARGS__); \
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

// A masked load is one instruction where the target has it for the element's size; a masked store only on AVX-512 (12
// cycles on Zen 3's AVX2).
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
    BY_VL(PART_)(T) AI v##T bc_##T(T x) { return (v##T)x; } \
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
        unroll (int i = 0; i < VL; i++) \
            if (i < n) v[i] = *(const T##_in_memory *)(p + i * stride); \
        return v; \
    } \
    AI void stg_##T(T *p, idx stride, v##T v, idx n) { \
        unroll (int i = 0; i < VL; i++) \
            if (i < n) *(T##_in_memory *)(p + i * stride) = v[i]; \
    } \
    AI void stp_##T(T *p, idx size, idx at, v##T v, idx n) { \
        T lanes_of_v[VL]; \
        if (at >= 0 && at + n <= size) { \
            stn_##T(p + at, v, n); \
            return; \
        } \
        st_##T(lanes_of_v, v); \
        rolled for (idx i = at < 0 ? -at : 0; i < n && at + i < size; i++) \
            * (T##_in_memory *)(p + at + i) = lanes_of_v[i]; \
    }
MEMORY(f32) MEMORY(f64) MEMORY(i64) MEMORY(i32) MEMORY(i16) MEMORY(i8) MEMORY(u64) MEMORY(u32) MEMORY(u16) MEMORY(u8)

// ---- storage types: f16, bf16, bool ---------------------------------------------------------------------------------

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
    // the addition rounds at the last bit of a half subnormal
    vu32 subnormal = (vu32)((vf32)magnitude + 0.5f) - 0x3f000000;
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
