/* Runs convolutions of XNNPACK one by one, with a mark around each: xnnpack f32|qc8 < SHAPES.
 * A line of SHAPES: height, width, channels, outputs, kernel, stride, padding before and
 * after, groups. The numbers are arbitrary. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xnnpack.h>

#include "marks.h"

enum { HEIGHT, WIDTH, CHANNELS, OUTPUTS, KERNEL, STRIDE, BEFORE, AFTER, GROUPS, SIZES };
enum { EXTRA = 64 }; /* bytes that XNNPACK reads past the end of an array */

static void *array(size_t bytes, int value) {
    void *p = malloc(bytes + EXTRA);
    if (!p)
        exit(1);
    return memset(p, value, bytes + EXTRA);
}

static enum xnn_status run(const int *s, int quantized) {
    const uint32_t k = s[KERNEL], stride = s[STRIDE], p = s[BEFORE], q = s[AFTER], groups = s[GROUPS];
    const size_t channels = s[CHANNELS] / groups, outputs = s[OUTPUTS] / groups;
    const size_t weights = s[OUTPUTS] * channels * k * k;
    const size_t high = (s[HEIGHT] + p + q - k) / stride + 1, wide = (s[WIDTH] + p + q - k) / stride + 1;
    const size_t read = (size_t)s[HEIGHT] * s[WIDTH] * s[CHANNELS], written = high * wide * s[OUTPUTS];
    const uint32_t flags = channels == 1 && groups > 1 ? XNN_FLAG_DEPTHWISE_CONVOLUTION : 0;
    const size_t size = quantized ? 1 : sizeof(float);
    void *x = array(read * size, 0), *y = array(written * size, 0), *w = array(weights * size, 0);
    void *bias = array(s[OUTPUTS] * sizeof(float), 0);
    float *scales = array(s[OUTPUTS] * sizeof(float), 0);
    for (int i = 0; i < s[OUTPUTS]; i++)
        scales[i] = 0.01f;
    xnn_operator_t op = NULL;
    enum xnn_status status;
    if (quantized) {
        status = xnn_create_convolution2d_nhwc_qc8(p, q, q, p, k, k, stride, stride, 1, 1, groups, channels, outputs,
                                                   s[CHANNELS], s[OUTPUTS], 0, 0.1f, scales, w, bias, 0, 0.1f, -128,
                                                   127, flags, &op);
        if (!status)
            status = xnn_setup_convolution2d_nhwc_qc8(op, 1, s[HEIGHT], s[WIDTH], x, y, NULL);
    } else {
        status = xnn_create_convolution2d_nhwc_f32(p, q, q, p, k, k, stride, stride, 1, 1, groups, channels, outputs,
                                                   s[CHANNELS], s[OUTPUTS], w, bias, 0, 6, flags, &op);
        if (!status)
            status = xnn_setup_convolution2d_nhwc_f32(op, 1, s[HEIGHT], s[WIDTH], x, y, NULL);
    }
    if (!status) {
        mark();
        status = xnn_run_operator(op, NULL);
        mark();
    }
    xnn_delete_operator(op);
    free(x), free(y), free(w), free(bias), free(scales);
    return status;
}

int main(int count, char **given) {
    int s[SIZES], status = count == 2 ? xnn_initialize(NULL) : 1;
    for (int i = 0; !status && scanf("%d", &s[i]) == 1; i = (i + 1) % SIZES)
        if (i == SIZES - 1)
            status = run(s, !strcmp(given[1], "qc8"));
    if (status)
        fprintf(stderr, "status %d of XNNPACK\n", status);
    return status;
}
