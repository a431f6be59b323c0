/* Numpy arrays for a run, in one call: asking for their addresses one by one takes longer than everything else that a run asks, and after a network has
 * emptied the caches, so does every further call. */
#include "program.h"

/* numpy's array interface as a C struct, which `array.__array_struct__` gives in a capsule (numpy manual, "The array interface protocol"). */
typedef struct {
    int two, rank;
    char kind;
    int itemsize, flags;
    intptr_t *shape, *strides;
    char *data;
    void *description;
} array_interface;

enum { CONTIGUOUS = 0x1, ALIGNED = 0x100, NOT_SWAPPED = 0x200, WRITEABLE = 0x400, MOST = 64 };

/* What is used of Python's stable ABI, handed in so that the library needs no Python to be loaded. */
typedef struct {
    void *(*item)(void *list, intptr_t index);                /* PyList_GetItem */
    void *(*found)(void *dict, void *key);                    /* PyDict_GetItemWithError */
    intptr_t (*count)(void *dict);                            /* PyDict_Size */
    void *(*type)(void *object);                              /* PyObject_Type */
    void *(*attribute)(void *object, void *name);             /* PyObject_GetAttr */
    void *(*pointer)(void *capsule, const char *name);        /* PyCapsule_GetPointer */
    void (*keep)(void *object);                               /* Py_IncRef */
    void (*release)(void *object);                            /* Py_DecRef */
    void *(*unlock)(void);                                    /* PyEval_SaveThread */
    void (*lock)(void *state);                                /* PyEval_RestoreThread */
    void *interface, *array;                                  /* the string "__array_struct__", the type numpy.ndarray */
} python;

/* A port of a program, and what it takes without a copy. */
typedef struct {
    void *name;
    const intptr_t *shape;
    int rank, kind, itemsize;
} port;

/* A program with its ports, inputs first. */
typedef struct {
    const python *api;
    const port *ports;
    char **places;
    program *program;
    long inputs, count;
} callable;

/* Puts the addresses of a list of n arrays into `places`. Gives the index of the first one that is not contiguous and aligned or, from `inputs` on, may not
 * be written; n if there is none. The caller holds the interpreter's lock. */
EXPORT long pelton_bind(const python *api, void *list, long inputs, long n, char **places) {
    for (long i = 0; i < n; i++) {
        void *capsule = api->attribute(api->item(list, i), api->interface);
        if (!capsule)
            return i;                                         /* ctypes raises what Python says */
        const array_interface *a = api->pointer(capsule, NULL);
        int needed = CONTIGUOUS | ALIGNED | (i < inputs ? 0 : WRITEABLE);
        bool fits = a && a->two == 2 && (a->flags & needed) == needed;
        if (fits)
            places[i] = a->data;
        api->release(capsule);
        if (!fits)
            return i;
    }
    return n;
}

/* Where the elements of an array lie, if it is just what the port takes; else NULL. */
static char *exactly(const python *api, void *object, const port *p) {
    void *type = api->type(object);
    api->release(type);                                       /* the array itself keeps it */
    void *capsule = type == api->array ? api->attribute(object, api->interface) : NULL;
    if (!capsule)
        return NULL;
    const array_interface *a = api->pointer(capsule, NULL);
    int needed = CONTIGUOUS | ALIGNED | NOT_SWAPPED;
    bool fits = a && a->two == 2 && (a->flags & needed) == needed && a->kind == p->kind && a->itemsize == p->itemsize && a->rank == p->rank;
    for (int i = 0; fits && i < p->rank; i++)
        fits = a->shape[i] == p->shape[i];
    char *data = fits ? a->data : NULL;
    api->release(capsule);
    return data;
}

/* Runs a program on the arrays of two dictionaries by name. Gives whether it has: not where an array is missing, too many, or not exactly what its port
 * takes, which the caller then sees to. The caller holds the interpreter's lock, the run does not; arrays are kept meanwhile, whoever else has the dictionary. */
EXPORT bool pelton_call(const callable *c, void *inputs, void *outputs) {
    const python *api = c->api;
    void *held[MOST];
    long n = 0;
    bool fits = c->count <= MOST && api->count(inputs) == c->inputs;
    while (fits && n < c->count) {
        void *array = api->found(n < c->inputs ? inputs : outputs, c->ports[n].name);
        fits = array && (c->places[n] = exactly(api, array, c->ports + n));
        if (fits)
            api->keep(held[n++] = array);
    }
    if (fits) {
        void *state = api->unlock();
        pelton_run(c->program, c->places);
        api->lock(state);
    }
    while (n > 0)
        api->release(held[--n]);
    return fits;
}
