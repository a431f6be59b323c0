/* A driver without a GPU, for tests of the binding: memory is the CPU's, kernels are functions of C, launches are
 * logged to the file FAKE_CUDA_LOG. FAKE_CUDA_FAIL="cuMemAlloc=2" makes a function return that status. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int R;
typedef struct { const char *name; int parameters; void (*run)(unsigned blocks, int64_t *words); } Kernel;
typedef struct { void *func; unsigned grid[3], block[3], shared; void **params; } NodeParams;
typedef struct { unsigned grid[3], block[3], shared; void *stream, *attrs; unsigned count; } Config;
typedef struct { int id; char pad[4]; int value[16]; } Attribute;
typedef struct Graph Graph;
/* A kernel, a graph, or a function of a library. */
typedef struct Node {
    Kernel *kernel;
    unsigned grid, block, shared, cluster, together;
    int64_t words[16];
    int number, after[16], count;
    struct Node *next;
    Graph *child;
    void (*call)(void *);
    void *data;
} Node;
struct Graph { Node *first, *last; int count, destroyed; };

static void scale(unsigned blocks, int64_t *w) {
    for (unsigned i = 0; i < blocks; i++) ((float *)w[1])[i] = ((float *)w[0])[i] * (float)w[2];
}
static void add(unsigned blocks, int64_t *w) {
    for (int64_t i = 0; i < w[4]; i++) ((float *)w[2])[i] = ((float *)w[0])[i] + ((float *)w[1])[i];
}
static void steps(unsigned blocks, int64_t *w) {
    for (int64_t phase = w[2]; phase < w[3]; phase++)
        for (unsigned i = 0; i < blocks; i++) ((float *)w[1])[i] = ((float *)w[phase > 0])[i] * 2 + phase;
}
static void boxes(unsigned blocks, int64_t *w) {       /* w[0]: the address of the mapped memory */
    for (unsigned i = 0; i < blocks; i++) ((float *)w[5])[i] = ((float *)w[0])[i] * 2;
}
static Kernel kernels[] = {{"scale", 5, scale}, {"add", 7, add}, {"steps", 6, steps}, {"boxes", 8, boxes}};

static FILE *out(void) {
    static FILE *f;
    if (!f) {
        const char *path = getenv("FAKE_CUDA_LOG");
        f = fopen(path ? path : "/dev/null", "a");
        setvbuf(f, 0, _IOLBF, 0);
    }
    return f;
}
static R fails(const char *name) {
    const char *asked = getenv("FAKE_CUDA_FAIL");
    size_t n = strlen(name);
    return asked && !strncmp(asked, name, n) && asked[n] == '=' ? atoi(asked + n + 1) : 0;
}
static int depth;
#define BEGIN(name) { R failed = fails(name); if (failed) return failed; if (!depth) return 201; }

static R device_count(int *n) { *n = fails("count") ? 0 : 2; return 0; }
static R device_get(int *d, int i) { *d = i; return 0; }
static R device_attribute(int *v, int a, int d) {
    static const int values[128] = {[16] = 132, [38] = 50 << 20, [75] = 9, [81] = 233472, [95] = 1, [97] = 232448};
    *v = a >= 0 && a < 128 ? values[a] : 0;
    return 0;
}
static R device_name(char *s, int n, int d) { snprintf(s, n, "Fake %d", d); return 0; }
static R device_memory(size_t *n, int d) { *n = 1 << 30; return 0; }
static R retain(void **c, int d) { *c = (void *)(intptr_t)(0x100 + d); return fails("cuDevicePrimaryCtxRetain"); }
static R push(void *c) { depth++; return fails("cuCtxPushCurrent"); }
static R pop(void **c) { depth--; return 0; }
static R memory_info(size_t *left, size_t *all) { *left = 1000; *all = 1 << 30; return 0; }
static R allocate(void **p, size_t n) {
    BEGIN("cuMemAlloc");
    *p = aligned_alloc(256, (n + 255) / 256 * 256);
    fprintf(out(), "allocate %zu\n", n);
    return 0;
}
static R give_back(void *p) { if (fails("endless")) abort(); free(p); fprintf(out(), "free\n"); return 0; }
static R host_allocate(void **p, size_t n, unsigned flags) { BEGIN("cuMemHostAlloc"); *p = malloc(n); return 0; }
static R owner(int *v, int what, void *p) { if ((uintptr_t)p < 1 << 20) return 1; *v = 0; return 0; }
static R copy(void *to, const void *from, size_t n, void *stream) { BEGIN("copy"); memcpy(to, from, n); return 0; }
static R load(void **m, const char *image) {
    BEGIN("cuModuleLoadData");
    if (memcmp(image, "\x7f" "ELF", 4)) return 200;
    *m = (void *)0x200;
    return 0;
}
static R function(void **f, void *m, const char *name) {
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (!strcmp(kernels[i].name, name)) {
            *f = &kernels[i];
            return 0;
        }
    return 500;
}
static R attribute(void *f, int a, int v) {
    fprintf(out(), "attribute %s %d=%d\n", ((Kernel *)f)->name, a, v);
    return 0;
}
static R cache_config(void *f, int which) { fprintf(out(), "cache %s %d\n", ((Kernel *)f)->name, which); return 0; }
static R occupancy(int *n, void *f, int threads, size_t shared) { *n = fails("occupancy") ? 1 : 8; return 0; }
static R parameter(Kernel *f, size_t i, size_t *at, size_t *size) {
    if (i >= (size_t)f->parameters) return 1;
    static const size_t ends[] = {0, 128, 132, 136, 144, 152, 160, 168, 176};
    int map = f->run == boxes;
    *at = map ? ends[i] : 8 * i; *size = fails("wide") ? 4 : map ? ends[i + 1] - ends[i] : 8;
    return 0;
}
static R write_map(const char *what, void **map, unsigned kind, unsigned rank, void *of, const uint64_t *sizes,
                   const uint64_t *strides, const int *low, const int *high, unsigned boxes, const unsigned *box,
                   const unsigned *step, unsigned interleave, unsigned swizzle, unsigned l2, unsigned fill) {
    BEGIN("cuTensorMapEncode");
    if ((uintptr_t)map % 64) return 1;
    memset(map, 0, 128);
    *map = of;
    fprintf(out(), "map %s kind %u interleave %u swizzle %u l2 %u fill %u sizes", what, kind, interleave, swizzle, l2,
            fill);
    for (unsigned i = 0; i < rank; i++) fprintf(out(), " %llu", (unsigned long long)sizes[i]);
    fprintf(out(), " strides");
    for (unsigned i = 0; i + 1 < rank; i++) fprintf(out(), " %llu", (unsigned long long)strides[i]);
    fprintf(out(), " box");
    for (unsigned i = 0; i < boxes; i++) fprintf(out(), " %u", box[i]);
    fprintf(out(), " steps");
    for (unsigned i = 0; i < rank; i++) fprintf(out(), " %u", step[i]);
    for (unsigned i = 0; low && i + 2 < rank; i++) fprintf(out(), " corners %d %d", low[i], high[i]);
    fprintf(out(), "\n");
    return 0;
}
static R tiled(void **map, int kind, unsigned rank, void *of, const uint64_t *sizes, const uint64_t *strides,
               const unsigned *box, const unsigned *step, int interleave, int swizzle, int l2, int fill) {
    return write_map("tiled", map, kind, rank, of, sizes, strides, 0, 0, rank, box, step, interleave, swizzle, l2,
                     fill);
}
static R im2col(void **map, int kind, unsigned rank, void *of, const uint64_t *sizes, const uint64_t *strides,
                const int *low, const int *high, unsigned channels, unsigned pixels, const unsigned *step,
                int interleave, int swizzle, int l2, int fill) {
    unsigned box[] = {channels, pixels};
    return write_map("im2col", map, kind, rank, of, sizes, strides, low, high, 2, box, step, interleave, swizzle, l2,
                     fill);
}
static R stream_create(void **s, unsigned flags) {
    static intptr_t next = 0x300;
    BEGIN("cuStreamCreate");
    *s = (void *)next++;
    return 0;
}
/* An event has happened when it has been waited for. */
static long recorded, waited;
static R event_create(long **e, unsigned flags) { BEGIN("cuEventCreate"); *e = calloc(1, sizeof **e); return 0; }
static R event_record(long *e, void *s) { *e = ++recorded; return 0; }
static R event_wait(long *e) { if (*e > waited) waited = *e; return 0; }
static R event_query(long *e) { if (fails("endless")) return 600; return event_wait(e); }
static R elapsed(float *ms, long *a, long *b) {
    *ms = 0.5f;
    return !*a || !*b ? 400 : *a > waited || *b > waited ? 600 : 0;
}
static R synchronize(void *s) { BEGIN("cuStreamSynchronize"); waited = recorded; return 0; }
static R fine(void) { return 0; }

static void write_launch(const char *what, const Node *n) {
    fprintf(out(), "%s %s grid %u block %u shared %u cluster %u%s words", what, n->kernel->name, n->grid, n->block,
            n->shared, n->cluster, n->together ? " together" : "");
    for (int i = 0; i < n->kernel->parameters; i++) fprintf(out(), " %lld", (long long)n->words[i]);
    fprintf(out(), "\n");
}
static const char *name_of(const Node *n) { return n->kernel ? n->kernel->name : n->child ? "graph" : "library"; }
static void run(const Node *n, const char *what) {
    if (n->child) { for (const Node *c = n->child->first; c; c = c->next) run(c, what); return; }
    if (n->call) { fprintf(out(), "%s library\n", what); n->call(n->data); return; }
    write_launch(what, n);
    n->kernel->run(n->grid, (int64_t *)n->words);
}
static R launch(const Config *c, Kernel *f, void **params, void **extra) {
    BEGIN("cuLaunchKernelEx");
    Node n = {f, c->grid[0], c->block[0], c->shared, 1};
    for (unsigned i = 0; i < c->count; i++) {
        if (((Attribute *)c->attrs)[i].id == 4) n.cluster = ((Attribute *)c->attrs)[i].value[0];
        if (((Attribute *)c->attrs)[i].id == 2) n.together = ((Attribute *)c->attrs)[i].value[0];
    }
    for (int i = 0; i < f->parameters; i++) n.words[i] = *(int64_t *)params[i];
    run(&n, "launch");
    return 0;
}

static R graph_create(void **g, unsigned flags) { BEGIN("cuGraphCreate"); *g = calloc(1, sizeof(Graph)); return 0; }
static Node *node_in(Graph *g, Node *const *after, size_t count) {
    Node *n = calloc(1, sizeof *n);
    n->number = g->count++, n->cluster = 1, n->count = (int)count;
    for (size_t i = 0; i < count; i++) n->after[i] = after[i]->number;
    if (g->last) g->last->next = n; else g->first = n;
    return g->last = n;
}
static void fill(Node *n, const NodeParams *p) {
    n->kernel = p->func, n->grid = p->grid[0], n->block = p->block[0], n->shared = p->shared;
    for (int i = 0; i < n->kernel->parameters; i++) n->words[i] = *(int64_t *)p->params[i];
}
static R add_kernel(Node **n, Graph *g, Node *const *after, size_t count, const NodeParams *p) {
    *n = node_in(g, after, count);
    fill(*n, p);
    return 0;
}
static R node_attribute(Node *n, int id, const int *value) {
    if (id == 4) n->cluster = value[0];
    if (id == 2) n->together = value[0];
    return 0;
}
static R instantiate(Graph **e, Graph *g, uint64_t flags) {
    BEGIN("cuGraphInstantiate");
    for (Node *n = g->first; n; n = n->next) {
        fprintf(out(), "node %d %s after", n->number, name_of(n));
        for (int i = 0; i < n->count; i++) fprintf(out(), " %d", n->after[i]);
        fprintf(out(), "\n");
    }
    *e = g;
    return 0;
}
static R change(Graph *e, Node *n, const NodeParams *p) {
    BEGIN("change");
    fill(n, p);
    fprintf(out(), "change %d\n", n->number);
    return 0;
}
static R replay(Graph *e, void *stream) {
    BEGIN("cuGraphLaunch");
    for (Node *n = e->first; n; n = n->next) run(n, "replay");
    return 0;
}

static Graph *capturing;
static R begin_capture(void *stream, int mode) {
    BEGIN("cuStreamBeginCapture");
    fprintf(out(), "capture %d\n", mode);
    capturing = calloc(1, sizeof *capturing);
    return 0;
}
static R end_capture(void *stream, Graph **g) { *g = capturing; capturing = 0; return fails("cuStreamEndCapture"); }
int fake_captured(void *stream, void (*call)(void *), const void *data, size_t size) {
    if (!capturing) return 0;
    Node *n = node_in(capturing, 0, 0);
    n->call = call, n->data = memcpy(malloc(size), data, size);
    return 1;
}
static R graph_destroy(Graph *g) { g->destroyed = 1; return 0; }
static R add_graph(Node **n, Graph *g, Node *const *after, size_t count, Graph *child) {
    if (child->destroyed) return 1;
    *n = node_in(g, after, count);
    (*n)->child = child;
    return 0;
}
static R change_graph(Graph *e, Node *n, Graph *child) {
    if (child->destroyed) return 1;
    n->child = child;
    fprintf(out(), "change %d\n", n->number);
    return 0;
}

static R version(int *v) { *v = 13000; return 0; }
R cuInit(unsigned flags) { return fails("cuInit"); }
R cuDriverGetVersion(int *v) { return version(v); }
static R error_name(int e, const char **s) { *s = "AN_ERROR"; return 0; }
static R error_text(int e, const char **s) { *s = "as the driver says it"; return 0; }

static const struct { const char *name; void *function; } table[] = {
    {"cuInit", cuInit}, {"cuDriverGetVersion", version}, {"cuDeviceGetCount", device_count},
    {"cuDeviceGet", device_get}, {"cuMemFree", give_back}, {"cuDeviceGetAttribute", device_attribute},
    {"cuDeviceGetName", device_name}, {"cuDeviceTotalMem", device_memory}, {"cuDevicePrimaryCtxRetain", retain},
    {"cuCtxPushCurrent", push}, {"cuCtxPopCurrent", pop}, {"cuMemGetInfo", memory_info}, {"cuMemAlloc", allocate},
    {"cuMemHostAlloc", host_allocate}, {"cuMemFreeHost", give_back}, {"cuPointerGetAttribute", owner},
    {"cuMemcpyHtoDAsync", copy}, {"cuMemcpyDtoHAsync", copy}, {"cuMemcpyDtoDAsync", copy}, {"cuModuleLoadData", load},
    {"cuModuleGetFunction", function}, {"cuModuleUnload", fine}, {"cuFuncSetAttribute", attribute},
    {"cuFuncSetCacheConfig", cache_config}, {"cuOccupancyMaxActiveBlocksPerMultiprocessor", occupancy},
    {"cuFuncGetParamInfo", parameter}, {"cuStreamCreate", stream_create}, {"cuStreamDestroy", fine},
    {"cuEventCreate", event_create}, {"cuEventDestroy", fine}, {"cuEventRecord", event_record},
    {"cuStreamWaitEvent", fine}, {"cuEventSynchronize", event_wait}, {"cuEventQuery", event_query},
    {"cuEventElapsedTime", elapsed}, {"cuStreamSynchronize", synchronize}, {"cuLaunchKernelEx", launch},
    {"cuGraphCreate", graph_create}, {"cuGraphDestroy", graph_destroy}, {"cuStreamBeginCapture", begin_capture},
    {"cuStreamEndCapture", end_capture}, {"cuGraphAddChildGraphNode", add_graph},
    {"cuGraphExecChildGraphNodeSetParams", change_graph}, {"cuGraphAddKernelNode", add_kernel},
    {"cuGraphKernelNodeSetAttribute", node_attribute}, {"cuGraphInstantiateWithFlags", instantiate},
    {"cuGraphUpload", fine}, {"cuGraphExecKernelNodeSetParams", change}, {"cuGraphLaunch", replay},
    {"cuTensorMapEncodeTiled", tiled}, {"cuTensorMapEncodeIm2col", im2col}, {"cuGraphExecDestroy", fine},
    {"cuGetErrorName", error_name}, {"cuGetErrorString", error_text},
};

static R absent(void) { return 801; }
R cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status) {
    *found = strcmp(name, "cuGetProcAddress") ? (void *)absent : (void *)cuGetProcAddress_v2;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, name)) *found = table[i].function;
    if (status) *status = 0;
    return 0;
}
R cuGetProcAddress(const char *name, void **found, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, found, version, flags, 0);
}
