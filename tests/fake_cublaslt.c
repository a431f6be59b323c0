/* A cuBLASLt without a GPU, for tests: it computes in the CPU's memory, by the conventions of the real one, and rejects
 * what that rejects. FAKE_CUBLASLT_FAIL="cublasLtMatmul=13" makes a function return that status; where a fake driver
 * captures the stream, the work becomes a node. */
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int S;
typedef struct {
    int compute, scale;
    int32_t a_transposed, b_transposed, bias_type;
    uint32_t end;
    void *bias;
} Operation;
typedef struct { int type; uint64_t rows, cols; int64_t line; int32_t batch; int64_t step; } Layout;
typedef struct { uint64_t workspace; uint32_t reductions, aligned[4]; } Preference;
typedef struct { char algorithm[64]; size_t workspace; S status; float waves; int reserved[4]; } Result;
typedef struct { Operation what; Layout a, b, c, d; const void *pa, *pb, *pc; void *pd; float alpha, beta; } Work;

static int live;
int fake_live(void) { return live; }                       /* objects that have not been destroyed */
static S fails(const char *name) {
    const char *asked = getenv("FAKE_CUBLASLT_FAIL");
    size_t n = strlen(name);
    return asked && !strncmp(asked, name, n) && asked[n] == '=' ? atoi(asked + n + 1) : 0;
}
#define BEGIN(name) { S failed = fails(name); if (failed) return failed; }
static void *create(size_t size) { live++; return calloc(1, size); }
static S destroy(void *p) { live--; free(p); return 0; }

size_t cublasLtGetVersion(void) { const char *v = getenv("FAKE_CUBLASLT_VERSION"); return v ? atol(v) : 130100; }
S cublasLtCreate(void **h) { BEGIN("cublasLtCreate"); *h = create(1); return 0; }
S cublasLtDestroy(void *h) { return destroy(h); }
S cublasLtMatmulDescCreate(Operation **w, int compute, int scale) {
    BEGIN("cublasLtMatmulDescCreate");
    *w = create(sizeof **w), (*w)->compute = compute, (*w)->scale = scale, (*w)->end = 1, (*w)->bias_type = -1;
    return (compute == 68 || compute == 77) && scale == 0 ? 0 : 15;
}
S cublasLtMatmulDescDestroy(void *w) { return destroy(w); }
static S put(void *to, size_t size, const void *from, size_t given) {
    if (size != given) return 7;
    memcpy(to, from, size);
    return 0;
}
S cublasLtMatmulDescSetAttribute(Operation *w, int which, const void *from, size_t n) {
    BEGIN("cublasLtMatmulDescSetAttribute");
    switch (which) {
    case 3: return put(&w->a_transposed, 4, from, n);
    case 4: return put(&w->b_transposed, 4, from, n);
    case 7: return put(&w->end, 4, from, n);
    case 8: return put(&w->bias, 8, from, n);
    case 26: return put(&w->bias_type, 4, from, n);
    }
    return 7;
}
S cublasLtMatrixLayoutCreate(Layout **l, int type, uint64_t rows, uint64_t cols, int64_t line) {
    *l = create(sizeof **l), **l = (Layout){type, rows, cols, line, 1, 0};
    return 0;
}
S cublasLtMatrixLayoutDestroy(void *l) { return destroy(l); }
S cublasLtMatrixLayoutSetAttribute(Layout *l, int which, const void *from, size_t n) {
    return which == 5 ? put(&l->batch, 4, from, n) : which == 6 ? put(&l->step, 8, from, n) : 7;
}
S cublasLtMatmulPreferenceCreate(Preference **p) { *p = create(sizeof **p); return 0; }
S cublasLtMatmulPreferenceDestroy(void *p) { return destroy(p); }
S cublasLtMatmulPreferenceSetAttribute(Preference *p, int which, const void *from, size_t n) {
    return which == 1 ? put(&p->workspace, 8, from, n) : which == 3 ? put(&p->reductions, 4, from, n)
         : which >= 5 && which <= 8 ? put(&p->aligned[which - 5], 4, from, n) : 7;
}

static int size_of(int type) { return type == 0 ? 4 : type == 2 || type == 14 ? 2 : 0; }
static S fits(const Operation *w, const Layout *a, const Layout *b, const Layout *c, const Layout *d) {
    const Layout *all[] = {a, b, c, d};
    for (int i = 0; i < 4; i++)
        if (!size_of(all[i]->type) || all[i]->line < (int64_t)all[i]->rows || all[i]->batch != d->batch
            || all[i]->batch < 1)
            return 7;
    uint64_t m = w->a_transposed ? a->cols : a->rows, k = w->a_transposed ? a->rows : a->cols,
             n = w->b_transposed ? b->rows : b->cols;
    if (k != (w->b_transposed ? b->cols : b->rows) || d->rows != m || d->cols != n || c->rows != m || c->cols != n)
        return 7;
    if (a->type != b->type || c->type != d->type || (d->type && d->type != a->type)) return 15;
    if (w->end & ~(1 | 2 | 4 | 32) || (w->end & 4 && (!w->bias || w->bias_type != d->type))) return 15;
    return 0;
}
S cublasLtMatmulAlgoGetHeuristic(void *h, const Operation *w, const Layout *a, const Layout *b, const Layout *c,
                                 const Layout *d, const Preference *p, int wanted, Result *found, int *count) {
    BEGIN("cublasLtMatmulAlgoGetHeuristic");
    S wrong = fits(w, a, b, c, d);
    if (wrong) return wrong;
    for (int i = 0; i < 4; i++) if (!p->aligned[i]) return 7;
    *count = wanted < 2 ? wanted : 2;
    for (int i = 0; i < *count; i++) {
        memset(&found[i], 0, sizeof found[i]);
        memcpy(found[i].algorithm, "fake", 4), found[i].algorithm[4] = i;
        for (int k = 0; k < 4; k++) found[i].algorithm[8 + k] = p->aligned[k];
        found[i].workspace = i ? 4096 : 0;
    }
    return 0;
}

static double get(int type, const void *p, int64_t i) {
    if (type == 0) return ((const float *)p)[i];
    if (type == 2) return ((const _Float16 *)p)[i];
    union { uint32_t bits; float f; } x = {(uint32_t)((const uint16_t *)p)[i] << 16};
    return x.f;
}
static void store(int type, void *p, int64_t i, double v) {
    if (type == 0) ((float *)p)[i] = v;
    else if (type == 2) ((_Float16 *)p)[i] = v;
    else {
        union {
            float f;
            uint32_t bits;
        } x = {v};
        ((uint16_t *)p)[i] = (x.bits + 0x7fff + (x.bits >> 16 & 1)) >> 16;
    }
}
static void compute(void *data) {
    Work *w = data;
    int64_t m = w->d.rows, n = w->d.cols, k = w->what.a_transposed ? w->a.rows : w->a.cols;
    for (int64_t s = 0; s < w->d.batch; s++) for (int64_t j = 0; j < n; j++) for (int64_t i = 0; i < m; i++) {
        double sum = 0;
        for (int64_t l = 0; l < k; l++)
            sum += get(w->a.type, w->pa, s * w->a.step + (w->what.a_transposed ? l + i * w->a.line : i + l * w->a.line))
                   * get(w->b.type, w->pb,
                         s * w->b.step + (w->what.b_transposed ? j + l * w->b.line : l + j * w->b.line));
        sum *= w->alpha;
        if (w->beta) sum += w->beta * get(w->c.type, w->pc, s * w->c.step + i + j * w->c.line);
        if (w->what.end & 4) sum += get(w->d.type, w->what.bias, i);
        if (w->what.end & 2) sum = sum > 0 ? sum : 0;
        if (w->what.end & 32) sum = .5 * sum * (1 + tanh(.7978845608028654 * (sum + .044715 * sum * sum * sum)));
        store(w->d.type, w->pd, s * w->d.step + i + j * w->d.line, sum);
    }
}
S cublasLtMatmul(void *h, const Operation *w, const float *alpha, const void *pa, const Layout *a, const void *pb,
                 const Layout *b, const float *beta, const void *pc, const Layout *c, void *pd, const Layout *d,
                 const char *algorithm, char *workspace, size_t nbytes, void *stream) {
    BEGIN("cublasLtMatmul");
    S wrong = fits(w, a, b, c, d);
    if (wrong || memcmp(algorithm, "fake", 4)) return wrong ? wrong : 7;
    const void *all[] = {pa, pb, pc, pd};
    for (int i = 0; i < 4; i++) if (!all[i] || (uintptr_t)all[i] % (unsigned char)algorithm[8 + i]) return 7;
    if (algorithm[4]) { if (nbytes < 4096 || !workspace) return 7; memset(workspace, 0x55, 4096); }
    Work work = {*w, *a, *b, *c, *d, pa, pb, pc, pd, *alpha, *beta};
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    int (*captured)(void *, void (*)(void *), const void *, size_t) = driver ? dlsym(driver, "fake_captured") : 0;
    if (!captured || !captured(stream, compute, &work, sizeof work)) compute(&work);
    return 0;
}
