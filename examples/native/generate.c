/* Continues tokens with a language model, greedily and without Python: generate ENGINE COUNT TOKEN...
 *
 * ENGINE is the file that `pelton generate MODEL TEXT --save-engine ENGINE` writes, with its caches in f32, f16 or
 * int8; tokens are numbers, as a tokenizer makes them. One sequence has room for its tokens and COUNT new ones. */
#include <pelton.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1024 }; /* ports */

static int fail(const char *why) { return fprintf(stderr, "%s\n", why), 1; }

/* Returns a number from 0 to most, -1 for any other text. */
static int64_t number(const char *text, int64_t most) {
    char *end;
    const long long n = strtoll(text, &end, 10);
    return *text && !*end && n >= 0 && n <= most ? n : -1;
}

int main(int count, char **given) {
    static const void *in[MOST];
    static void *out[MOST];
    static int64_t shapes[MOST][PELTON_MAX_RANK];
    static const int64_t *shape[MOST];
    if (count < 4)
        return fprintf(stderr, "usage: generate ENGINE COUNT TOKEN...\n"), 2;
    const int new = number(given[2], 1 << 24), prompt = count - 3, room = prompt + new;
    if (new < 1)
        return fail("COUNT is a number from 1 to 16777216");
    for (int i = 3; i < count; i++)
        if (number(given[i], INT32_MAX) < 0)
            return fail("tokens are numbers from 0 on");
    int64_t *ids = calloc(room + 1, sizeof *ids), *positions = calloc(room, sizeof *positions),
            *mask = calloc(room, sizeof *mask), last = 0, zero = 0;
    pelton_engine *engine = pelton_load(given[1]);
    pelton_context *context = engine ? pelton_context_new(engine, 0) : NULL;
    if (!context || !ids || !positions || !mask)
        return fail(pelton_error());
    for (int i = 0; i < room; i++)
        positions[i] = i, mask[i] = 1, ids[i] = i < prompt ? number(given[3 + i], INT32_MAX) : 0;

    /* what each input is, by its rank and its name; caches are read and extended in the same memory */
    const int inputs = pelton_inputs(engine), outputs = pelton_outputs(engine);
    int logits = -1, of_ids = -1, of_positions = -1, of_mask = -1, of_rows = -1, next = 0;
    if (inputs > MOST || outputs > MOST)
        return fail("the engine has too many inputs or outputs");
    for (int i = 0; i < outputs; i++)
        if (pelton_output(engine, i)->rank == 3)
            logits = i;
    for (int i = 0; i < inputs; i++) {
        const pelton_port *port = pelton_input(engine, i);
        shape[i] = shapes[i];
        for (int axis = 0; axis < port->rank; axis++)
            shapes[i][axis] = port->shape[axis] == PELTON_DYNAMIC ? 1 : port->shape[axis];
        if (port->rank == 4) { /* [1, heads, capacity, size], zeros at first */
            shapes[i][2] = room;
            static const size_t sizes[] = {8, 4, 2, 2, 8, 4, 2, 1};
            if (port->dtype > PELTON_I8 || !(in[i] = calloc(shapes[i][1] * room * shapes[i][3], sizes[port->dtype])))
                return fail("there is no memory for the caches");
            if (next == logits)
                next++;
            out[next++] = (void *)in[i];
        } else if (port->rank == 1)
            of_rows = i, in[i] = &last;
        else if (strstr(port->name, "mask"))
            of_mask = i, in[i] = mask;
        else if (strstr(port->name, "position"))
            of_positions = i;
        else if (strstr(port->name, "long"))
            in[i] = &zero;
        else
            of_ids = i;
    }
    if (logits < 0 || of_ids < 0 || of_mask < 0 || next + (next == logits) != outputs)
        return fail("the engine is no language model with caches");

    for (int length = 0, more = prompt; length < room - 1; length += more, more = 1) {
        const int end = length + more;
        last = more - 1;
        in[of_ids] = ids + length, shapes[of_ids][1] = more, shapes[of_mask][1] = end;
        if (of_positions >= 0)
            in[of_positions] = positions + length, shapes[of_positions][1] = more;
        if (pelton_set_shapes(context, shape) || pelton_run(context, in, out))
            return fail(pelton_error());
        const pelton_port *port = pelton_context_output(context, logits);
        const float *x = (const float *)pelton_output_data(context, logits) + (of_rows < 0 ? port->shape[1] - 1 : 0) *
                                                                                  port->shape[2];
        for (int64_t i = 1; i < port->shape[2]; i++)
            ids[end] = x[i] > x[ids[end]] ? i : ids[end];
        printf("%lld%s", (long long)ids[end], end + 1 < room ? " " : "\n");
        fflush(stdout);
    }
    for (int i = 0; i < inputs; i++)
        if (pelton_input(engine, i)->rank == 4)
            free((void *)in[i]);
    free(ids), free(positions), free(mask);
    pelton_context_free(context);
    pelton_engine_free(engine);
    return 0;
}
