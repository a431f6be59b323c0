/* Opens the container of an engine file. */
#include "file.h"

#include <string.h>

#include "export.h"
#include "say.h"
#include "sha256.h"

static const char MAGIC[] = "\x93PELTON\n"; /* without its terminating zero */

#define AGAIN "copy or build it again"

typedef struct {
    char magic[8];
    uint32_t version, count;
    uint64_t unused, size;
    uint8_t hash[32];
} preamble;

static bool is_same(const uint8_t a[32], const uint8_t b[32]) { return !memcmp(a, b, 32); }

bool file_open(engine_file *f, const void *bytes, size_t size, reason *why) {
    const preamble *p = bytes;
    *f = (engine_file){.bytes = bytes, .size = size, .sections = (const section_row *)(p + 1)};
    if (size < sizeof p->magic || memcmp(p->magic, MAGIC, sizeof p->magic))
        return refuse(why, "it is not a Pelton engine");
    if (size < sizeof *p)
        return refuse(why, "it is truncated: it has only %d bytes; " AGAIN, (int64_t)size);
    if (p->version != FILE_VERSION)
        return refuse(why, "it is an engine of format version %d, this Pelton reads version %d; %sbuild it again",
                      (int64_t)p->version, (int64_t)FILE_VERSION,
                      p->version > FILE_VERSION ? "install a newer Pelton or " : "");
    if (size < p->size)
        return refuse(why, "it is truncated: it must have %d bytes, but has %d; " AGAIN, (int64_t)p->size,
                      (int64_t)size);
    if (size > p->size)
        return refuse(why, "it is altered: it must have %d bytes, but has %d; " AGAIN, (int64_t)p->size,
                      (int64_t)size);
    f->count = p->count;
    if (p->count > SECTIONS || p->count * sizeof *f->sections > size - sizeof *p)
        return refuse(why, "it is altered in its first bytes; " AGAIN);
    sha256 s;
    uint8_t hash[32];
    sha256_start(&s);
    sha256_add(&s, p, sizeof *p - sizeof p->hash);
    sha256_add(&s, f->sections, p->count * sizeof *f->sections);
    sha256_end(&s, hash);
    if (p->unused || !is_same(hash, p->hash))
        return refuse(why, "it is altered in its first bytes; " AGAIN);
    const uint64_t first = sizeof *p + p->count * sizeof *f->sections;
    for (const section_row *r = f->sections; r < f->sections + p->count; r++)
        if (r->name[sizeof r->name - 1] || r->offset % 64 || r->offset < first || r->offset > size
            || r->size > size - r->offset)
            return refuse(why, "it is damaged: section %d would be %d bytes at %d, there are %d; " AGAIN,
                          (int64_t)(r - f->sections), (int64_t)r->size, (int64_t)r->offset, (int64_t)size);
    return true;
}

const section_row *file_section(const engine_file *f, const char *name) {
    for (const section_row *r = f->sections; r < f->sections + f->count; r++)
        if (!strcmp(r->name, name))
            return r;
    return NULL;
}

bool file_verify(const section_row *s, const void *bytes) {
    sha256 now;
    uint8_t hash[32];
    sha256_start(&now);
    sha256_add(&now, bytes, s->size);
    sha256_end(&now, hash);
    return is_same(hash, s->hash);
}

/* For callers that keep no struct. */
EXPORT bool pelton_file_check(const void *bytes, size_t size, reason *why) {
    engine_file f;
    return file_open(&f, bytes, size, why);
}
