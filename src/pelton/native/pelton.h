/* Pelton's runtime: loads an engine file and runs it, with no dependency but a C library. All contexts share the
 * threads of the process. On failure, functions return NULL or a nonzero number; pelton_error() returns the reason.
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
typedef struct pelton_engine pelton_engine;     /* immutable: for any number of threads */
typedef struct pelton_context pelton_context;   /* the memory of a run: one run at a time */

/* An input or output. A dynamic size is PELTON_DYNAMIC in an engine and a number in a context. */
typedef struct {
    const char *name;
    pelton_dtype dtype;
    int rank;
    int64_t shape[PELTON_MAX_RANK];
    size_t bytes;                               /* 0 while a size is dynamic */
} pelton_port;

PELTON_API int pelton_abi(void);                /* the library's PELTON_ABI */
PELTON_API const char *pelton_error(void);      /* reason of this thread's latest failure */

/* The program's own allocator; set it before all other calls. Files are mapped, not allocated. */
typedef struct {
    void *(*take)(void *user, size_t alignment, size_t bytes);      /* NULL if out of memory */
    void (*give)(void *user, void *memory);
    void *user;
} pelton_allocator;
PELTON_API void pelton_set_allocator(const pelton_allocator *);     /* NULL: the C library's */

/* Sets the function for warnings, for example about an engine tuned on another CPU. NULL, the default: no warnings. */
PELTON_API void pelton_set_log(void (*log)(void *user, const char *text), void *user);

/* Sets a check of every engine file before its first use, for example of signatures; a nonzero result rejects the file.
 * With a check, the bytes are in memory of the library: the checked bytes are those that run. NULL: no check. */
PELTON_API void pelton_set_check(int (*check)(void *user, const void *file, size_t size), void *user);

PELTON_API pelton_engine *pelton_load(const char *path);
/* Loads an engine from memory, which must not change until the engine is freed. At a multiple of 64 bytes, constants
 * are used in place. */
PELTON_API pelton_engine *pelton_load_memory(const void *data, size_t size);
/* An engine linked into the program, for sources written by `pelton export`. */
typedef struct {
    const void *plan, *constants;       /* at multiples of 64 bytes */
    size_t plan_size, constants_size;
    void *const *kernels;               /* of all steps, then of their alternatives */
} pelton_linked;
PELTON_API pelton_engine *pelton_load_linked(const pelton_linked *);
PELTON_API void pelton_engine_free(pelton_engine *);            /* NULL does nothing; existing contexts go on */
PELTON_API int pelton_verify(const pelton_engine *);            /* reads all constants and checks their hash */
PELTON_API const char *pelton_name(const pelton_engine *);
PELTON_API const char *pelton_metadata(const pelton_engine *, size_t *size);    /* JSON, without a terminating zero */
PELTON_API int pelton_inputs(const pelton_engine *);
PELTON_API int pelton_outputs(const pelton_engine *);
PELTON_API const pelton_port *pelton_input(const pelton_engine *, int i);       /* NULL if out of range */
PELTON_API const pelton_port *pelton_output(const pelton_engine *, int i);
/* The smallest and the largest size of an input's axis. */
PELTON_API int pelton_range(const pelton_engine *, int input, int axis, int64_t *minimum, int64_t *maximum);

/* threads: 1 to 256; 0 for those that the engine was tuned for, at most one for each CPU that the process may use. */
PELTON_API pelton_context *pelton_context_new(pelton_engine *, int threads);
PELTON_API void pelton_context_free(pelton_context *);
/* Sets the shapes of all inputs, in order. Required before a run if the engine has dynamic sizes; plans of recent
 * shapes are kept. */
PELTON_API int pelton_set_shapes(pelton_context *, const int64_t *const *shapes);
PELTON_API const pelton_port *pelton_context_input(const pelton_context *, int i);
PELTON_API const pelton_port *pelton_context_output(const pelton_context *, int i);
/* Runs on dense arrays, aligned to their types; no output may overlap another array, except for a cache that the run
 * extends: it may be the array of the input that `shares` of `pelton inspect --json` names. A NULL array or list
 * selects memory of the context: see pelton_input_data. Outputs of data-dependent size, such as a detector's boxes,
 * must be NULL; the context has their shapes after the run. */
PELTON_API int pelton_run(pelton_context *, const void *const *inputs, void *const *outputs);
/* Memory of the context for an input or output, valid until the shapes change. The first request allocates it, filled
 * with zeros. */
PELTON_API void *pelton_input_data(pelton_context *, int i);
PELTON_API void *pelton_output_data(pelton_context *, int i);

/* Engines built without their machine carry several kernels for a step. pelton_tune times them here, in whole runs at
 * the optimum sizes, for about so many seconds, and selects the fastest; call it before the engine has a context.
 * threads: as in pelton_context_new. choice: the kernel of each step, pelton_steps() numbers, which a program keeps and
 * passes to pelton_choose when it loads the engine again; NULL if it does not. */
PELTON_API int pelton_tune(pelton_engine *, int threads, double seconds, int *choice);
PELTON_API int pelton_choose(pelton_engine *, const int *choice);

/* The number of steps, the name of one, and the begin and end of each in ns, in a run without overlap. */
PELTON_API int pelton_steps(const pelton_engine *);
PELTON_API const char *pelton_step(const pelton_engine *, int i);
PELTON_API int pelton_profile(pelton_context *, const void *const *inputs, void *const *outputs, int64_t *stamps);

#ifdef __cplusplus
}
#endif
#endif
