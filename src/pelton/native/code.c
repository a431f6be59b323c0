/* Loads the machine code of an engine by the system's loader, from memory or from a temporary file. */
#define _GNU_SOURCE
#include "code.h"
#include "export.h"

#if defined(__linux__)
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

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

/* A file in memory has no name, and the loader treats two libraries of one path as one. So each is opened by another
 * form of its path: the bits of a serial number choose between "//" and "/./". */
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
    close(file);   /* before loading: not every system executes a file open for writing */
    if (written)
        code = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    unlink(path);
    return code;
}

/* Returns the handle of a shared object given as bytes; NULL with a reason in `error`. With a directory, loads from a
 * temporary file in it. */
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

bool code_is_sound(const void *bytes, size_t size, reason *why) {
    const Elf64_Ehdr *h = bytes;
    const char *const damaged = "its machine code is no whole shared object for this machine";
    if (size < sizeof *h || memcmp(h->e_ident, ELFMAG "\2\1\1", 7) || h->e_type != ET_DYN
#if defined(__x86_64__)
        || h->e_machine != EM_X86_64
#elif defined(__aarch64__)
        || h->e_machine != EM_AARCH64
#elif defined(__riscv)
        || h->e_machine != EM_RISCV
#endif
        || h->e_phentsize != sizeof(Elf64_Phdr) || !h->e_phnum || h->e_phoff % 8 || h->e_phoff > size
        || h->e_phnum * sizeof(Elf64_Phdr) > size - h->e_phoff)
        return refuse(why, "%s", damaged);
    const Elf64_Phdr *p = (const void *)((const char *)bytes + h->e_phoff);
    for (; p < (const Elf64_Phdr *)((const char *)bytes + h->e_phoff) + h->e_phnum; p++)
        if ((p->p_type == PT_LOAD || p->p_type == PT_DYNAMIC)
            && (p->p_offset > size || p->p_filesz > size - p->p_offset || p->p_filesz > p->p_memsz
                || p->p_memsz > UINT64_C(1) << 32))
            return refuse(why, "%s: a segment lies beyond its end; build it again", damaged);
    return true;
}

void *code_load(const void *bytes, size_t size, reason *why) {
    char first[128] = "", then[128] = "";
    void *code = pelton_code_load(bytes, size, NULL, first, sizeof first);
    const char *folder = getenv("TMPDIR");
    if (!code)
        code = pelton_code_load(bytes, size, folder && *folder ? folder : "/tmp", then, sizeof then);
    if (!code)
        refuse(why, "its machine code cannot be loaded: %s; %s", first, then);
    return code;
}

void *code_symbol(void *code, const char *name) { return dlsym(code, name); }
void code_unload(void *code) { dlclose(code); }

EXPORT void *pelton_code_symbol(void *code, const char *name) { return dlsym(code, name); }
EXPORT void pelton_code_unload(void *code) { dlclose(code); }

#else /* engine files are made for Linux; engines linked into a program have nothing to load */
bool code_is_sound(const void *bytes, size_t size, reason *why) {
    (void)bytes, (void)size;
    return refuse(why, "its machine code is loaded on Linux alone; link the engine into the program: `pelton export`");
}

void *code_load(const void *bytes, size_t size, reason *why) {
    code_is_sound(bytes, size, why);
    return NULL;
}

void *code_symbol(void *code, const char *name) {
    (void)code, (void)name;
    return NULL;
}

void code_unload(void *code) { (void)code; }
#endif
