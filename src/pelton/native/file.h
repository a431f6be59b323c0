/* The container of engine files: a preamble, rows of sections, then the sections, verified by SHA-256.
 *
 *     bytes 0-7   magic       8-11  format version     12-15  number of sections    16-23  zero
 *     24-31       file size   32-63 SHA-256 of bytes 0-31 and the rows
 *
 * Integers are little-endian. Sections start at multiples of 64 bytes; those used in place start on pages. */
#ifndef PELTON_FILE_H
#define PELTON_FILE_H

#include "plan.h"

enum { FILE_VERSION = 8, SECTIONS = 1 << 15 };

typedef struct {
    char name[16];          /* padded by zeros */
    uint64_t offset, size;  /* bytes, from the start of the file */
    uint8_t hash[32];
} section_row;

typedef struct {
    const uint8_t *bytes;
    size_t size;
    const section_row *sections;
    uint32_t count;
} engine_file;

/* Checks preamble and rows of an engine file in memory, at a multiple of 8 bytes. Returns false, with the reason. */
bool file_open(engine_file *f, const void *bytes, size_t size, reason *why);

/* The section of a name, NULL if there is none. */
const section_row *file_section(const engine_file *f, const char *name);

/* True if these bytes, or those in the file, match the hash of their section. */
bool file_verify(const section_row *s, const void *bytes);

#endif
