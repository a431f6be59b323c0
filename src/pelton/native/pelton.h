/* Pelton's runtime: loads an engine file and runs it, with nothing but a C library. Threads are those of the process,
 * shared by all contexts. Functions that can fail return NULL or a number other than 0; pelton_error() then says why.
 *
 *     pelton_engine *e = pelton_load("resnet.pelton");
 *     pelton_context *c = pelton_context_new(e, 0);
 *     const void *in[] = {picture};
 *     void *out[] = {scores};
 *     if (pelton_run(c, in, out)) puts(pelton_error());
 */
#ifndef PELTON_H
#define PELTON_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PELTON_ABI 1
#define PELTON_API __attribute__((visibility("default")))
#define PELTON_DYNAMIC (-1)
enum { PELTON_MAX_RANK = 8 };

typedef enum {
    PELTON_F64, PELTON_F32, PELTON_F16, PELTON_BF16, PELTON_I64, PELTON_I32, PELTON_I16, PELTON_I8, PELTON_U64,
    PELTON_U32, PELTON_U16, PELTON_U8, PELTON_BOOL, PELTON_OTHER
} pelton_dtype;
typedef struct pelton_engine pelton_engine;     /* does not change: for any number of threads */
typedef struct pelton_context pelton_context;   /* the memory of a run: one run at a time */

/* An input or output. A size that a run decides is PELTON_DYNAMIC in an engine and a number in a context. */
typedef struct {
    const char *name;
    pelton_dtype dtype;
    int rank;
    int64_t shape[PELTON_MAX_RANK];
    size_t bytes;                               /* 0 while a size is dynamic */
} pelton_port;

PELTON_API int pelton_abi(void);                /* PELTON_ABI of the library */
PELTON_API const char *pelton_error(void);      /* why the latest call of this thread failed */

/* For programs that have an allocator of their own: before all other calls. Files are mapped, not allocated. */
typedef struct {
    void *(*take)(void *user, size_t alignment, size_t bytes);      /* NULL where there is no memory */
    void (*give)(void *user, void *memory);
    void *user;
} pelton_allocator;
PELTON_API void pelton_set_allocator(const pelton_allocator *);     /* NULL: that of the C library */

/* What is said besides errors, such as that an engine was tuned on another CPU. NULL, as at first: nothing is said. */
PELTON_API void pelton_set_log(void (*log)(void *user, const char *text), void *user);

/* Sees the bytes of every engine file before anything in them is used, and refuses it by a number other than 0: for
 * signatures. The bytes are then in memory of the library, so that what was checked is what runs. NULL: no check. */
PELTON_API void pelton_set_check(int (*check)(void *user, const void *file, size_t size), void *user);

PELTON_API pelton_engine *pelton_load(const char *path);
/* Reads an engine from memory that stays as it is until the engine is freed, best at a multiple of 64 bytes: constants
 * are then used in place. */
PELTON_API pelton_engine *pelton_load_memory(const void *data, size_t size);
/* An engine that is part of the program: sources that `pelton export` wrote call this. */
typedef struct {
    const void *plan, *constants;       /* at multiples of 64 bytes */
    size_t plan_size, constants_size;
    void *const *kernels;               /* of all steps */
} pelton_linked;
PELTON_API pelton_engine *pelton_load_linked(const pelton_linked *);
PELTON_API void pelton_engine_free(pelton_engine *);            /* NULL does nothing; contexts that are there go on */
PELTON_API int pelton_verify(const pelton_engine *);            /* reads all constants and compares their hash */
PELTON_API const char *pelton_name(const pelton_engine *);
PELTON_API const char *pelton_metadata(const pelton_engine *, size_t *size);    /* JSON, not ended by a zero */
PELTON_API int pelton_inputs(const pelton_engine *);
PELTON_API int pelton_outputs(const pelton_engine *);
PELTON_API const pelton_port *pelton_input(const pelton_engine *, int i);       /* NULL where there is none */
PELTON_API const pelton_port *pelton_output(const pelton_engine *, int i);
/* The least and the greatest size that an axis of an input may have. */
PELTON_API int pelton_range(const pelton_engine *, int input, int axis, int64_t *minimum, int64_t *maximum);

/* threads: 1 to 256; 0 for as many as the engine was tuned for, at most one for each CPU that the process may use. */
PELTON_API pelton_context *pelton_context_new(pelton_engine *, int threads);
PELTON_API void pelton_context_free(pelton_context *);
/* Sets the shapes of all inputs, one after the other. Needed before a run if the engine has dynamic sizes; the plans of
 * the latest shapes are kept. */
PELTON_API int pelton_set_shapes(pelton_context *, const int64_t *const *shapes);
PELTON_API const pelton_port *pelton_context_input(const pelton_context *, int i);
PELTON_API const pelton_port *pelton_context_output(const pelton_context *, int i);
/* Runs on dense arrays, aligned to their types; no output overlaps another array. An array that is NULL, or a list that
 * is, stands for memory of the context: see pelton_input_data. Where the data decides the size of an output, as it does
 * the number of boxes that a detector keeps, NULL has to stand for it; the context has its shape after the run. */
PELTON_API int pelton_run(pelton_context *, const void *const *inputs, void *const *outputs);
/* Memory of the context for an input or output, valid until the shapes change. It is allocated, as zeros, at the first
 * request. */
PELTON_API void *pelton_input_data(pelton_context *, int i);
PELTON_API void *pelton_output_data(pelton_context *, int i);

/* The number of steps, the name of one, and the begin and end of each in ns, in a run in which none overlap. */
PELTON_API int pelton_steps(const pelton_engine *);
PELTON_API const char *pelton_step(const pelton_engine *, int i);
PELTON_API int pelton_profile(pelton_context *, const void *const *inputs, void *const *outputs, int64_t *stamps);

#ifdef __cplusplus
}
#endif
#endif
