/* Times a model in ONNX Runtime's C interface: ort LIBRARY MODEL THREADS INPUT OUTPUT SIZE..., one input and output of
 * f32. Prints ns: load, first run, a run. Its header is in no wheel: functions are found by their place in OrtApi,
 * which is its binary interface and does not change (onnxruntime_c_api.h). Compiles as C17. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "timing.h"

enum { GET_ERROR_MESSAGE = 2, CREATE_ENV = 3, CREATE_SESSION = 7, RUN = 9, CREATE_SESSION_OPTIONS = 10,
       SET_INTRA_OP_NUM_THREADS = 24, CREATE_TENSOR_WITH_DATA = 49, CREATE_CPU_MEMORY_INFO = 69 };
enum { VERSION = 17, WARNING = 2, ARENA = 0, DEFAULT_MEMORY = 0, FLOAT = 1 };
typedef void *call();
typedef struct { const void *(*api)(uint32_t version); const char *(*version)(void); } base;

static call *const *api;

static void check(void *status) {
    if (!status)
        return;
    puts(((const char *(*)(void *))api[GET_ERROR_MESSAGE])(status));
    exit(1);
}

int main(int count, char **given) {
    void *library = count > 6 ? dlopen(given[1], RTLD_NOW) : NULL;
    void *env, *options, *session, *info, *tensor, *result = NULL; /* the result is kept: it is filled again */
    if (!library)
        return puts("usage: ort LIBRARY MODEL THREADS INPUT OUTPUT SIZE..."), 2;
    api = ((const base *(*)(void))dlsym(library, "OrtGetApiBase"))()->api(VERSION);
    int64_t shape[8], elements = 1;
    for (int i = 6; i < count; i++)
        elements *= shape[i - 6] = atoll(given[i]);
    const int64_t begin = now_ns();
    check(api[CREATE_ENV](WARNING, "times", &env));
    check(api[CREATE_SESSION_OPTIONS](&options));
    check(api[SET_INTRA_OP_NUM_THREADS](options, atoi(given[3])));
    check(api[CREATE_SESSION](env, given[2], options, &session));
    const int64_t loaded = now_ns();
    float *data = calloc((size_t)elements, sizeof *data);
    check(api[CREATE_CPU_MEMORY_INFO](ARENA, DEFAULT_MEMORY, &info));
    check(api[CREATE_TENSOR_WITH_DATA](info, data, (size_t)elements * sizeof *data, shape, (size_t)count - 6, FLOAT,
                                       &tensor));
    const char *inputs[] = {given[4]}, *outputs[] = {given[5]};
    const void *tensors[] = {tensor};
    const int64_t ready = now_ns();
    check(api[RUN](session, NULL, inputs, tensors, (size_t)1, outputs, (size_t)1, &result));
    const int64_t first = now_ns();
    int64_t median;
    TIME_RUNS(median, api[RUN](session, NULL, inputs, tensors, (size_t)1, outputs, (size_t)1, &result));
    printf("%lld %lld %lld\n", (long long)(loaded - begin), (long long)(first - ready), (long long)median);
    return 0;
}
