/* Binds numpy arrays to the ports of a program in one call: reading their addresses one by one would be the slowest
 * part around a run, and every further call is slow after a network has evicted the caches. */
#define _GNU_SOURCE
#include "program.h"

#include <string.h>

/* numpy's array interface as a C struct, returned by `array.__array_struct__` in a capsule (numpy manual, "The array
 * interface protocol"). */
typedef struct {
    int two, rank;
    char kind;
    int itemsize, flags;
    intptr_t *shape, *strides;
    char *data;
    void *description;
} array_interface;

enum { CONTIGUOUS = 0x1, ALIGNED = 0x100, NOT_SWAPPED = 0x200, WRITEABLE = 0x400, MAX_INPUTS = 64 };

/* Functions of Python's stable ABI, passed in: the library loads without Python. */
static struct {
    void *(*item)(void *list, intptr_t index);                /* PyList_GetItem */
    void *(*part)(void *tuple, intptr_t index);               /* PyTuple_GetItem */
    void *(*address)(void *integer);                          /* PyLong_AsVoidPtr */
    void *(*found)(void *dict, void *key);                    /* PyDict_GetItemWithError */
    intptr_t (*count)(void *dict);                            /* PyDict_Size */
    void *(*dict)(void);                                      /* PyDict_New */
    int (*put)(void *dict, void *key, void *value);           /* PyDict_SetItem */
    void *(*made)(void *function, void *tuple);               /* PyObject_CallObject */
    void *(*type)(void *object);                              /* PyObject_Type */
    void *(*attribute)(void *object, void *name);             /* PyObject_GetAttr */
    void *(*pointer)(void *capsule, const char *name);        /* PyCapsule_GetPointer */
    void (*keep)(void *object);                               /* Py_IncRef */
    void (*release)(void *object);                            /* Py_DecRef */
    void *(*error)(void);                                     /* PyErr_Occurred */
    void *(*unlock)(void);                                    /* PyEval_SaveThread */
    void (*lock)(void *state);                                /* PyEval_RestoreThread */
    void *interface, *array, *empty, *none;                   /* "__array_struct__", numpy.ndarray, numpy.empty, None */
} python;

/* A port of a program, and its conditions for arrays without a copy; for outputs also the arguments of numpy.empty. */
typedef struct {
    void *name, *arguments;
    const intptr_t *shape;
    int rank, kind, itemsize;
} port;

/* The bounds of an input whose elements, of 4 or 8 bytes, are indices. */
typedef struct {
    int64_t input, low, high;
} index_row;

/* A program with its ports, inputs first. */
typedef struct {
    const port *ports;
    char **addresses;
    program *program;
    idx inputs, count;
    const index_row *indices;
    idx indexing;
} callable;

/* Sets the functions of Python; before any other call here. */
EXPORT void pelton_python(const void *api) {
    memcpy(&python, api, sizeof python);
}

/* True if all elements of an array are within their bounds. */
static bool is_within(const index_row *row, const char *data, const intptr_t *shape, int rank, int itemsize) {
    const int64_t *wide = (const int64_t *)data;
    const int32_t *narrow = (const int32_t *)data;
    uint64_t low = (uint64_t)row->low, range = (uint64_t)row->high - low;
    idx n = 1;
    for (int i = 0; i < rank; i++)
        n *= shape[i];
    bool outside = false;
    if (itemsize == 8)
        for (idx i = 0; i < n; i++)
            outside |= (uint64_t)wide[i] - low > range;
    else
        for (idx i = 0; i < n; i++)
            outside |= (uint64_t)narrow[i] - low > range;
    return !outside;
}

/* Stores the addresses of a list of n arrays in `addresses`. Returns the index of the first one that is not contiguous
 * and aligned, has elements out of bounds or, from `inputs` on, is not writeable; n if all fit. The caller holds the
 * interpreter's lock. */
EXPORT idx pelton_bind(void *list, idx inputs, idx n, char **addresses, const index_row *indices, idx indexing) {
    const index_row *row = indices, *end = indices + indexing;
    for (idx i = 0; i < n; i++) {
        void *capsule = python.attribute(python.item(list, i), python.interface);
        if (!capsule)
            return i;                                         /* ctypes raises Python's exception */
        const array_interface *a = python.pointer(capsule, NULL);
        int needed = CONTIGUOUS | ALIGNED | (i < inputs ? 0 : WRITEABLE);
        bool fits = a && a->two == 2 && (a->flags & needed) == needed;
        if (fits && row < end && row->input == i)
            fits = is_within(row++, a->data, a->shape, a->rank, a->itemsize);
        if (fits)
            addresses[i] = a->data;
        python.release(capsule);
        if (!fits)
            return i;
    }
    return n;
}

/* Returns the address of an array's elements if it fits the port without a copy; else NULL. */
static char *address_of(void *object, const port *p) {
    void *type = python.type(object);
    python.release(type);                                       /* the array itself keeps it */
    void *capsule = type == python.array ? python.attribute(object, python.interface) : NULL;
    if (!capsule)
        return NULL;
    const array_interface *a = python.pointer(capsule, NULL);
    int needed = CONTIGUOUS | ALIGNED | NOT_SWAPPED;
    bool fits = a && a->two == 2 && (a->flags & needed) == needed
        && a->kind == p->kind && a->itemsize == p->itemsize && a->rank == p->rank;
    for (int i = 0; fits && i < p->rank; i++)
        fits = a->shape[i] == p->shape[i];
    char *data = fits ? a->data : NULL;
    python.release(capsule);
    return data;
}

/* Runs a program on the arrays of a dictionary, by name. Returns a dictionary of its outputs, in new arrays; None,
 * without a run, for the caller to handle, if an array is missing, unexpected, unfit for its port, or has an index out
 * of bounds. The run releases the interpreter's lock, and holds references to the arrays: the dictionary may change. A
 * Python function (METH_FASTCALL): `self` is a tuple of the callable's address and of the objects that it needs,
 * `given` has the dictionary. */
EXPORT void *pelton_call(void *self, void *const *given, intptr_t count) {
    const callable *c = python.address(python.part(self, 0));
    void *held[MAX_INPUTS];
    bool fits = count == 1 && c->inputs <= MAX_INPUTS && python.count(given[0]) == c->inputs;
    void *outputs = fits ? python.dict() : NULL;
    fits = outputs != NULL;
    idx n = 0;
    while (fits && n < c->inputs) {
        void *array = python.found(given[0], c->ports[n].name);
        fits = array && (c->addresses[n] = address_of(array, c->ports + n));
        if (fits)
            python.keep(held[n++] = array);
    }
    for (const index_row *row = c->indices; fits && row < c->indices + c->indexing; row++) {
        const port *p = c->ports + row->input;
        fits = is_within(row, c->addresses[row->input], p->shape, p->rank, p->itemsize);
    }
    for (const port *p = c->ports + c->inputs; fits && p < c->ports + c->count; p++) {
        void *array = python.made(python.empty, p->arguments);
        fits = array && (c->addresses[p - c->ports] = address_of(array, p)) && python.put(outputs, p->name, array) == 0;
        if (array)
            python.release(array);                            /* the dictionary holds it */
    }
    if (fits) {
        void *state = python.unlock();
        pelton_program_run(c->program, c->addresses);
        python.lock(state);
    }
    while (n > 0)
        python.release(held[--n]);
    if (fits)
        return outputs;
    if (outputs)
        python.release(outputs);
    if (python.error())
        return NULL;
    python.keep(python.none);
    return python.none;
}
