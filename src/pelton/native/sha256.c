/* SHA-256 (FIPS 180-4), by the instructions of x86-64 (Intel SDM, volume 2B) or of Armv8 (Architecture Reference
 * Manual, C7.2) where available: every load waits for a hash of the code. */
#include "sha256.h"

#include <stdatomic.h>
#include <string.h>

#include "cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

static const _Alignas(16) uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98,
    0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8,
    0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819,
    0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
    0xc67178f2,
};

static uint32_t turned(uint32_t x, int by) { return x >> by | x << (32 - by); }

static void hash_blocks(uint32_t h[8], const uint8_t *p, size_t blocks) {
    for (; blocks; blocks--, p += 64) {
        uint32_t w[64], v[8];
        for (int t = 0; t < 16; t++)
            w[t] = (uint32_t)p[4 * t] << 24 | (uint32_t)p[4 * t + 1] << 16 | (uint32_t)p[4 * t + 2] << 8 | p[4 * t + 3];
        for (int t = 16; t < 64; t++)
            w[t] = (turned(w[t - 2], 17) ^ turned(w[t - 2], 19) ^ w[t - 2] >> 10) + w[t - 7]
                 + (turned(w[t - 15], 7) ^ turned(w[t - 15], 18) ^ w[t - 15] >> 3) + w[t - 16];
        memcpy(v, h, sizeof v);
#pragma GCC unroll 8
        for (int t = 0; t < 64; t++) {
            /* instead of moving letters by one place in each round, move their places */
#define AT(i) v[((i) - t) & 7]
            const uint32_t a = AT(0), e = AT(4);
            const uint32_t first = AT(7) + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & AT(5)) ^ (~e & AT(6)))
                                 + K[t] + w[t];
            const uint32_t second = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22))
                                  + ((a & AT(1)) ^ (a & AT(2)) ^ (AT(1) & AT(2)));
            AT(3) += first;
            AT(7) = first + second;
#undef AT
        }
        for (int i = 0; i < 8; i++)
            h[i] += v[i];
    }
}

#if defined(__x86_64__)
/* Registers hold a state as ABEF and CDGH, the first one highest. */
__attribute__((target("sha,sse4.1"))) static void hash_blocks_by_sha(uint32_t h[8], const uint8_t *p, size_t blocks) {
    const __m128i order = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    const __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)h), 0xb1);
    const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(h + 4)), 0x1b);
    __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
    for (; blocks; blocks--, p += 64) {
        const __m128i x = abef, y = cdgh;
        __m128i w[4]; /* the last 16 words of the schedule */
#pragma GCC unroll 16
        for (int t = 0; t < 16; t++) {
            __m128i *now = &w[t & 3];
            const __m128i last = w[(t + 3) & 3];
            *now = t < 4 ? _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(p + 16 * t)), order)
                         : _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(*now, w[(t + 1) & 3]),
                                                              _mm_alignr_epi8(last, w[(t + 2) & 3], 4)), last);
            const __m128i k = _mm_add_epi32(*now, _mm_load_si128((const __m128i *)(K + 4 * t)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, k);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(k, 0x0e));
        }
        abef = _mm_add_epi32(abef, x), cdgh = _mm_add_epi32(cdgh, y);
    }
    const __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)h, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((__m128i *)(h + 4), _mm_alignr_epi8(dchg, feba, 8));
}

static bool has_sha(void) {
    uint32_t basic[4], more[4];
    pelton_cpuid(1, 0, basic);
    pelton_cpuid(7, 0, more);
    return basic[2] >> 19 & 1 && more[1] >> 29 & 1;
}
#define HAS_BLOCKS_BY_SHA
#elif defined(__aarch64__)
/* Registers hold a state as ABCD and EFGH, the first one lowest. */
__attribute__((target("+sha2"))) static void hash_blocks_by_sha(uint32_t h[8], const uint8_t *p, size_t blocks) {
    uint32x4_t abcd = vld1q_u32(h), efgh = vld1q_u32(h + 4);
    for (; blocks; blocks--, p += 64) {
        const uint32x4_t x = abcd, y = efgh;
        uint32x4_t w[4]; /* the last 16 words of the schedule */
#pragma GCC unroll 16
        for (int t = 0; t < 16; t++) {
            uint32x4_t *now = &w[t & 3];
            *now = t < 4 ? vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(p + 16 * t)))
                         : vsha256su1q_u32(vsha256su0q_u32(*now, w[(t + 1) & 3]), w[(t + 2) & 3], w[(t + 3) & 3]);
            const uint32x4_t k = vaddq_u32(*now, vld1q_u32(K + 4 * t)), before = abcd;
            abcd = vsha256hq_u32(abcd, efgh, k);
            efgh = vsha256h2q_u32(efgh, before, k);
        }
        abcd = vaddq_u32(abcd, x), efgh = vaddq_u32(efgh, y);
    }
    vst1q_u32(h, abcd), vst1q_u32(h + 4, efgh);
}

static bool has_sha(void) { return cpu_has("sha2"); }
#define HAS_BLOCKS_BY_SHA
#endif

static void hash(sha256 *s, const uint8_t *p, size_t blocks) {
#if defined(HAS_BLOCKS_BY_SHA)
    static _Atomic int known; /* 1: no, 2: yes */
    int found = atomic_load_explicit(&known, memory_order_relaxed);
    if (!found)
        atomic_store_explicit(&known, found = 1 + has_sha(), memory_order_relaxed);
    if (found == 2) {
        hash_blocks_by_sha(s->h, p, blocks);
        return;
    }
#endif
    hash_blocks(s->h, p, blocks);
}

void sha256_start(sha256 *s) {
    *s = (sha256){.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab,
                        0x5be0cd19}};
}

void sha256_add(sha256 *s, const void *bytes, size_t size) {
    const uint8_t *p = bytes;
    const size_t held = s->size % 64;
    s->size += size;
    if (held) {
        const size_t more = size < 64 - held ? size : 64 - held;
        memcpy(s->block + held, p, more);
        p += more, size -= more;
        if (held + more < 64)
            return;
        hash(s, s->block, 1);
    }
    hash(s, p, size / 64);
    memcpy(s->block, p + size / 64 * 64, size % 64);
}

void sha256_end(sha256 *s, uint8_t digest[32]) {
    const uint64_t bits = 8 * s->size;
    uint8_t tail[72] = {0x80};
    const size_t zeros = (119 - s->size % 64) % 64;
    for (int i = 0; i < 8; i++)
        tail[1 + zeros + i] = (uint8_t)(bits >> (56 - 8 * i));
    sha256_add(s, tail, 9 + zeros);
    for (int i = 0; i < 32; i++)
        digest[i] = (uint8_t)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}

/* For tests: with or without the instructions. */
EXPORT void pelton_sha256(const void *bytes, size_t size, bool plain, uint8_t digest[32]) {
    sha256 s;
    sha256_start(&s);
    if (plain) { /* a whole number of blocks */
        hash_blocks(s.h, bytes, size / 64);
        s.size = size;
    } else {
        sha256_add(&s, bytes, size);
    }
    sha256_end(&s, digest);
}
