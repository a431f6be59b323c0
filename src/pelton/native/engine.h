/* What engines and contexts share behind the public interface. */
#ifndef PELTON_ENGINE_H
#define PELTON_ENGINE_H

#include "file.h"
#include "pelton.h"
#include "program.h"

enum { LINE_BYTES = 64 };

struct pelton_engine {
    engine_file file;
    void *map;                  /* of the file, if it was opened here */
    size_t mapped;
    void *tables_of_plan;       /* what was verified is what is used, even if the file is rewritten meanwhile */
    plan plan;
    const char *constants;      /* at a multiple of LINE_BYTES */
    void *own;                  /* constants that had to be copied */
    char **tables;              /* of buffers that kernels use for addressing: copies */
    void *code;
    kernel **kernels;           /* of the steps */
    pelton_port *ports;         /* inputs, then outputs */
    int64_t words, pointers;    /* of all steps */
};

extern _Thread_local reason last;          /* what pelton_error() says */
int fail(const char *what);                 /* says so; -1 */

void *room(size_t bytes);                   /* at a multiple of LINE_BYTES; NULL where there is none */
void *zeros(size_t count, size_t size);     /* never none */

/* The ports for these numbers of the plan; with NULL, with sizes that are not known yet. */
void describe(const plan *p, const int64_t *cells, pelton_port *out);

#endif
