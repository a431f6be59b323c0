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

enum { CONTIGUOUS = 0x1, ALIGNED = 0x100, WRITEABLE = 0x400 };

/* What is used of Python's stable ABI, handed in so that the library needs no Python to be loaded. */
typedef struct {
    void *(*item)(void *list, intptr_t index);                /* PyList_GetItem */
    void *(*attribute)(void *object, void *name);             /* PyObject_GetAttr */
    void *(*pointer)(void *capsule, const char *name);        /* PyCapsule_GetPointer */
    void (*release)(void *object);                            /* Py_DecRef */
    void *(*unlock)(void);                                    /* PyEval_SaveThread */
    void (*lock)(void *state);                                /* PyEval_RestoreThread */
    void *interface;                                          /* the string "__array_struct__" */
} python;

/* Puts the addresses of a list of n arrays into `ports`. Gives the index of the first one that is not contiguous and aligned or, from `inputs` on, may not
 * be written; n if there is none: then p has run on them, unless it is NULL. The caller holds the interpreter's lock, the run does not. */
EXPORT long pelton_bind(const python *api, void *list, long inputs, long n, char **ports, program *p) {
    for (long i = 0; i < n; i++) {
        void *capsule = api->attribute(api->item(list, i), api->interface);
        if (!capsule)
            return i;                                         /* ctypes raises what Python says */
        const array_interface *a = api->pointer(capsule, NULL);
        int needed = CONTIGUOUS | ALIGNED | (i < inputs ? 0 : WRITEABLE);
        bool fits = a && a->two == 2 && (a->flags & needed) == needed;
        if (fits)
            ports[i] = a->data;
        api->release(capsule);
        if (!fits)
            return i;
    }
    if (p) {
        void *state = api->unlock();
        pelton_run(p, ports);
        api->lock(state);
    }
    return n;
}
