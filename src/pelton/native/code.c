/* Loads the machine code of an engine by the system's loader, from memory or from a temporary file. */
#define _GNU_SOURCE
#include "program.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int write_all(int file, const char *bytes, size_t size) {
    while (size) {
        ssize_t n = write(file, bytes, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        bytes += n;
        size -= (size_t)n;
    }
    return 0;
}

/* A file in memory has no name, and the loader takes two libraries of one path for the same one. So each is opened by
 * another spelling of its path: the bits of a serial number choose between "//" and "/./". */
static void *load_from_memory(const void *bytes, size_t size) {
    static _Atomic uint32_t serial;
    int file = (int)syscall(SYS_memfd_create, "pelton", 1u /* MFD_CLOEXEC */);
    if (file < 0)
        return NULL;
    void *code = NULL;
    if (!write_all(file, bytes, size)) {
        char path[160] = "/proc/self";
        for (uint32_t bits = atomic_fetch_add(&serial, 1) + 1; bits; bits >>= 1)
            strcat(path, bits & 1 ? "/." : "/");
        snprintf(path + strlen(path), 32, "/fd/%d", file);
        code = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    close(file);
    return code;
}

static void *load_from_file(const void *bytes, size_t size, const char *directory) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/pelton-XXXXXX", directory) >= (int)sizeof path)
        return NULL;
    int file = mkostemp(path, O_CLOEXEC);
    if (file < 0)
        return NULL;
    void *code = NULL;
    bool written = !write_all(file, bytes, size) && !fchmod(file, S_IRWXU);
    close(file);   /* before loading: a file open for writing is not executed everywhere */
    if (written)
        code = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    unlink(path);
    return code;
}

/* The handle of a shared object given as bytes; NULL with a reason in `error`. With a directory, by a temporary file in
 * it. */
EXPORT void *pelton_code_load(const void *bytes, size_t size, const char *directory, char *error, size_t error_size) {
    errno = 0;
    dlerror();
    void *code = directory ? load_from_file(bytes, size, directory) : load_from_memory(bytes, size);
    if (!code) {
        const char *loader = dlerror();
        snprintf(error, error_size, "%s", loader ? loader : strerror(errno));
    }
    return code;
}

EXPORT void *pelton_code_symbol(void *code, const char *name) { return dlsym(code, name); }
EXPORT void pelton_code_unload(void *code) { dlclose(code); }
