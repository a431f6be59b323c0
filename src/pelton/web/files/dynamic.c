/* An engine with dynamic dimensions: its plan, resolved for the shapes of a run, in the memory behind the module's own.
 * Memory only grows. What belongs to one set of shapes lies behind what stays, and is discarded with the set. */
#include "web.h"

#include <string.h>

#include "memory.h"
#include "plan_parts.h"

#define EXPORTED(name) __attribute__((export_name(name)))

enum { MEMORY_PAGE = 1 << 16 }; /* WebAssembly Core Specification 4.2.8 */

const step *steps;
int32_t step_count;
const args *words;
char *scratch;
size_t scratch_bytes;
char **ports;

static plan of;
static reason why;
static int64_t *sizes; /* of all axes of inputs, then of outputs */
static const int64_t **shapes; /* of each input, in them */
static int32_t axes; /* of all inputs */
static char *top, *kept; /* the end of all memory that was taken, and of what stays */

/* A block follows LINE_BYTES, which begin with the address of its end. */
void *memory_take(size_t bytes) {
    const uint64_t end = (uint64_t)(uintptr_t)top + 2 * LINE_BYTES + bytes / LINE_BYTES * (uint64_t)LINE_BYTES;
    if (end > MOST_MEMORY)
        return NULL;
    const size_t have = __builtin_wasm_memory_size(0), need = ((size_t)end + MEMORY_PAGE - 1) / MEMORY_PAGE;
    if (need > have && __builtin_wasm_memory_grow(0, need - have) == (size_t)-1)
        return NULL;
    char *const block = top + LINE_BYTES;
    *(char **)top = (char *)(uintptr_t)end;
    top = (char *)(uintptr_t)end;
    return block;
}

void *memory_zeros(size_t count, size_t size) {
    size_t bytes;
    void *found = __builtin_mul_overflow(count, size, &bytes) ? NULL : memory_take(bytes);
    return found ? memset(found, 0, bytes) : NULL;
}

/* Memory is given back in the opposite order; other blocks stay until their set is discarded. */
void memory_give(void *memory) {
    char *const block = (char *)memory - LINE_BYTES;
    if (memory && *(char **)block == top)
        top = block;
}

/* What clang calls for a product of 64 bits that may overflow. */
__int128 __multi3(__int128 a, __int128 b) {
    const uint64_t x = (uint64_t)a, y = (uint64_t)b, half = UINT32_MAX;
    const uint64_t low = (x & half) * (y & half), middle = (x >> 32) * (y & half) + (low >> 32);
    const uint64_t other = (x & half) * (y >> 32) + (middle & half);
    const uint64_t high = (x >> 32) * (y >> 32) + (middle >> 32) + (other >> 32);
    const uint64_t more = (uint64_t)(a >> 64) * y + x * (uint64_t)(b >> 64);
    return (__int128)((unsigned __int128)(high + more) << 64 | (other << 32 | (low & half)));
}

/* Opens the plan: once, before anything else. 0, and the reason is `why`, if it cannot. */
EXPORTED("open") int32_t open(void) {
    extern char __heap_base; /* the linker's: the end of the module's own memory */
    top = (char *)(((uintptr_t)&__heap_base + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES);
    if (!plan_open(&of, plan_rows, plan_bytes, weight_bytes, &why))
        return 0;
    int32_t all = 0;
    const int32_t inputs = of.head->inputs, count = inputs + of.head->outputs;
    for (int32_t i = 0; i < count; i++) {
        all += of.ports[i].rank;
        axes += i < inputs ? of.ports[i].rank : 0;
    }
    sizes = memory_zeros((size_t)all + 1, sizeof *sizes);
    shapes = memory_zeros((size_t)inputs + 1, sizeof *shapes);
    ports = memory_zeros((size_t)count + 1, sizeof *ports);
    if (!sizes || !shapes || !ports)
        return refuse(&why, "there is no memory for its plan");
    for (int32_t i = 0, at = 0; i < inputs; at += of.ports[i++].rank)
        shapes[i] = sizes + at;
    kept = top;
    return 1;
}

EXPORTED("sizes") void *address_of_sizes(void) {
    return sizes;
}

EXPORTED("why") void *address_of_why(void) {
    return why.text;
}

static bool no_memory(void) {
    return refuse(&why, "these shapes take more memory than a module of WebAssembly has, %d MB; use a smaller input",
                  (int64_t)MOST_MEMORY >> 20);
}

static char *take(int64_t bytes) {
    return bytes > MOST_MEMORY ? NULL : memory_take((size_t)bytes);
}

/* Writes the arguments of a step. Offsets of its operands become addresses. */
static bool fill_words(args *to, const plan_step *s, const int64_t *cells, char *const *addresses) {
    for (int32_t k = 0; k < s->args + s->dims; k++) {
        const int64_t value = cells[s->words + k];
        if ((idx)value != value)
            return no_memory();
        if (k < s->args)
            to[k].p = addresses[of.operands[s->operands + k]] + value;
        else
            to[k].d = (idx)value;
    }
    return true;
}

static bool fill_steps(const int64_t *cells, char *const *addresses) {
    const int32_t count = of.head->steps;
    size_t all = 0;
    for (int32_t i = 0; i < count; i++)
        all += (size_t)(of.steps[i].args + of.steps[i].dims);
    step *const rows = memory_zeros((size_t)count + 1, sizeof *rows);
    args *const table = memory_zeros(all + 1, sizeof *table);
    if (!rows || !table)
        return no_memory();
    int32_t first = 0;
    for (int32_t i = 0; i < count; first += of.steps[i].args + of.steps[i].dims, i++) {
        rows[i] = (step){kernels[i], first, (int32_t)cells[of.tiles + i], (int32_t)cells[of.phases + i]};
        if (!fill_words(table + first, &of.steps[i], cells, addresses))
            return false;
    }
    steps = rows, words = table, step_count = count;
    return true;
}

/* Takes memory for inputs, outputs, intermediate values and scratch, and finds the address of each buffer. */
static bool place(const int64_t *cells, const int64_t *starts, int64_t arena, char **addresses) {
    const plan_head *h = of.head;
    if (!plan_make_buffers(&of, cells, addresses))
        return no_memory();
    int64_t most = 0;
    for (int32_t i = 0; i < h->steps; i++)
        most = cells[of.scratch + i] > most ? cells[of.scratch + i] : most;
    char *const memory = take(arena);
    if (!memory || most > MOST_MEMORY)
        return no_memory();
    scratch_bytes = ((size_t)most + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    if (!(scratch = take((int64_t)scratch_bytes * thread_count)))
        return no_memory();
    for (int32_t i = 0; i < h->inputs + h->outputs; i++) {
        int64_t bytes = dtype_bytes(of.ports[i].dtype);
        for (int32_t d = 0; d < of.ports[i].rank; d++)
            if (__builtin_mul_overflow(bytes, cells[of.ports[i].shape + d], &bytes))
                return no_memory();
        if (!(ports[i] = take(bytes)))
            return no_memory();
    }
    for (int32_t i = 0; i < h->buffers; i++) {
        const buffer_row *b = &of.buffers[i];
        switch (b->kind) {
        case ARENA: addresses[i] = memory + starts[i]; break;
        case CONSTANT: case TABLE: addresses[i] = weights + starts[i]; break;
        case INPUT: addresses[i] = ports[b->offset]; break;
        case OUTPUT: addresses[i] = ports[h->inputs + b->offset]; break;
        default: break; /* made above */
        }
    }
    return true;
}

/* Prepares a run on inputs of the shapes that were written to `sizes`, where those of outputs then follow. 0, and the
 * reason is `why`, if it cannot; nothing runs before another call that can. */
EXPORTED("prepare") int32_t prepare(void) {
    const plan_head *h = of.head;
    top = kept;
    step_count = 0;
    int64_t *const symbols = memory_zeros((size_t)h->symbols + 1, sizeof *symbols);
    int64_t *const cells = memory_zeros((size_t)h->cells + h->buffers, sizeof *cells), *const starts = cells + h->cells;
    char **const addresses = memory_zeros((size_t)h->buffers + 1, sizeof *addresses);
    int64_t arena;
    if (!symbols || !cells || !addresses)
        return no_memory();
    if (!plan_solve(&of, shapes, true, symbols, &why) || !plan_resolve(&of, symbols, cells, starts, &arena, &why)
        || !plan_fits(&of, cells, shapes, &why) || !place(cells, starts, arena, addresses)
        || !fill_steps(cells, addresses))
        return 0;
    for (int32_t i = h->inputs, at = axes; i < h->inputs + h->outputs; i++)
        for (int32_t d = 0; d < of.ports[i].rank; d++)
            sizes[at++] = cells[of.ports[i].shape + d];
    return 1;
}
