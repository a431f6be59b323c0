/* Says what is in a picture, 32 by 32 pixels as binary PPM: classify ENGINE PICTURE */
#include <pelton.h>
#include <stdio.h>

static const char *const NAMES[] = {"airplane", "automobile", "bird",  "cat",  "deer",
                                    "dog",      "frog",       "horse", "ship", "truck"};

int main(int count, char **given) {
    static unsigned char pixels[32][32][3];
    if (count != 3)
        return fprintf(stderr, "usage: classify ENGINE PICTURE\n"), 2;
    FILE *f = fopen(given[2], "rb");
    if (!f || fscanf(f, "P6 32 32 255") || fgetc(f) != '\n' || fread(pixels, sizeof pixels, 1, f) != 1)
        return fprintf(stderr, "%s is no such picture\n", given[2]), 1;
    fclose(f);

    pelton_engine *engine = pelton_load(given[1]);
    pelton_context *context = engine ? pelton_context_new(engine, 0) : NULL;
    const int64_t shape[] = {1, 3, 32, 32};
    if (!context || pelton_set_shapes(context, (const int64_t *const[]){shape}))
        return fprintf(stderr, "%s\n", pelton_error()), 1;

    float *in = pelton_input_data(context, 0); /* memory of the context: nothing is copied */
    for (int c = 0; c < 3; c++)
        for (int i = 0; i < 32 * 32; i++)
            in[c * 32 * 32 + i] = pixels[i / 32][i % 32][c];
    if (pelton_run(context, NULL, NULL))
        return fprintf(stderr, "%s\n", pelton_error()), 1;

    const float *scores = pelton_output_data(context, 0);
    int best = 0;
    for (int i = 1; i < 10; i++)
        best = scores[i] > scores[best] ? i : best;
    printf("%s\n", NAMES[best]);
    pelton_context_free(context);
    pelton_engine_free(engine);
    return 0;
}
