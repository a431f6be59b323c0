/* SHA-256 (FIPS 180-4). */
#ifndef PELTON_SHA256_H
#define PELTON_SHA256_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint32_t h[8];
    uint8_t block[64];      /* not hashed yet: size % 64 bytes */
    uint64_t size;          /* bytes so far */
} sha256;

void sha256_start(sha256 *s);
void sha256_add(sha256 *s, const void *bytes, size_t size);
void sha256_end(sha256 *s, uint8_t digest[32]);

#endif
