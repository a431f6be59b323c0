/* Numpy arrays for a run, in one call: asking for their addresses one by one takes longer than everything else that a run asks, and after a network has
 * emptied the caches, so does every further call. */
#include "program.h"

#include <string.h>

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
    void *interface, *array, *empty, *none;                   /* the string "__array_struct__", numpy.ndarray, numpy.empty, None */
} python;

/* A port of a program, and what it takes without a copy; of an output also what numpy.empty is given for it. */
typedef struct {
    void *name, *given;
    const intptr_t *shape;
    int rank, kind, itemsize;
} port;

/* A program with its ports, inputs first. */
typedef struct {
    const port *ports;
    char **places;
    program *program;
    idx inputs, count;
} callable;

/* Before any other call here: what is used of Python. */
EXPORT void pelton_python(const void *api) {
    memcpy(&python, api, sizeof python);
}

/* Puts the addresses of a list of n arrays into `places`. Gives the index of the first one that is not contiguous and aligned or, from `inputs` on, may not
 * be written; n if there is none. The caller holds the interpreter's lock. */
EXPORT idx pelton_bind(void *list, idx inputs, idx n, char **places) {
    for (idx i = 0; i < n; i++) {
        void *capsule = python.attribute(python.item(list, i), python.interface);
        if (!capsule)
            return i;                                         /* ctypes raises what Python says */
        const array_interface *a = python.pointer(capsule, NULL);
        int needed = CONTIGUOUS | ALIGNED | (i < inputs ? 0 : WRITEABLE);
        bool fits = a && a->two == 2 && (a->flags & needed) == needed;
        if (fits)
            places[i] = a->data;
        python.release(capsule);
        if (!fits)
            return i;
    }
    return n;
}

/* Where the elements of an array lie, if it is just what the port takes; else NULL. */
static char *exactly(void *object, const port *p) {
    void *type = python.type(object);
    python.release(type);                                       /* the array itself keeps it */
    void *capsule = type == python.array ? python.attribute(object, python.interface) : NULL;
    if (!capsule)
        return NULL;
    const array_interface *a = python.pointer(capsule, NULL);
    int needed = CONTIGUOUS | ALIGNED | NOT_SWAPPED;
    bool fits = a && a->two == 2 && (a->flags & needed) == needed && a->kind == p->kind && a->itemsize == p->itemsize && a->rank == p->rank;
    for (int i = 0; fits && i < p->rank; i++)
        fits = a->shape[i] == p->shape[i];
    char *data = fits ? a->data : NULL;
    python.release(capsule);
    return data;
}

/* Runs a program on the arrays that a dictionary has by name. Gives a dictionary of its outputs, in fresh arrays; None, and nothing is run, where an array is
 * missing, too many, or not exactly what its port takes, which the caller then sees to. The interpreter's lock is given up for the run; arrays are kept
 * meanwhile, whoever else has the dictionary. A function of Python's own kind (METH_FASTCALL): `self` is a tuple of the callable's address and of what has
 * to live as long, `given` has the dictionary. */
EXPORT void *pelton_call(void *self, void *const *given, intptr_t count) {
    const callable *c = python.address(python.part(self, 0));
    void *held[MOST], *outputs = count == 1 && c->inputs <= MOST && python.count(given[0]) == c->inputs ? python.dict() : NULL;
    bool fits = outputs != NULL;
    idx n = 0;
    while (fits && n < c->inputs) {
        void *array = python.found(given[0], c->ports[n].name);
        fits = array && (c->places[n] = exactly(array, c->ports + n));
        if (fits)
            python.keep(held[n++] = array);
    }
    for (const port *p = c->ports + c->inputs; fits && p < c->ports + c->count; p++) {
        void *array = python.made(python.empty, p->given);
        fits = array && (c->places[p - c->ports] = exactly(array, p)) && python.put(outputs, p->name, array) == 0;
        if (array)
            python.release(array);                            /* the dictionary has it */
    }
    if (fits) {
        void *state = python.unlock();
        pelton_run(c->program, c->places);
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
