/* run_kernel CODE SYMBOL MEMORY: one run of a kernel under an emulator, without a dynamic loader.
 *
 * MEMORY is a file with all buffers; each lies between two pages without access. From standard input, as 64-bit
 * integers: the number of buffers, and for each its place and size in the file; the number of arguments, and for each
 * its buffer and offset (or -1 and its value); the same pair for the scratch memory; the number of calls, and for each
 * its first tile and the one after its last. */
#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernel.h"

enum { PAGE = 4096 };

static int64_t next(void) {
    int64_t n;
    if (fread(&n, sizeof n, 1, stdin) != 1)
        exit(3);
    return n;
}

static char *pages(size_t size, int access, int flags, int file, int64_t at, char *where) {
    char *p = mmap(where, size, access, flags, file, at);
    if (p == MAP_FAILED)
        exit(4);
    return p;
}

static const char *contents(const char *path) {
    int file = open(path, O_RDONLY);
    struct stat of;
    if (file < 0 || fstat(file, &of))
        exit(5);
    return pages((size_t)of.st_size, PROT_READ, MAP_PRIVATE, file, 0, NULL);
}

/* Maps the segments of a shared object that needs no other, and relocates it. */
static char *load(const char *path) {
    const char *from = contents(path);
    const Elf64_Ehdr *h = (const void *)from;
    const Elf64_Phdr *p = (const void *)(from + h->e_phoff);
    uint64_t size = 0;
    for (int i = 0; i < h->e_phnum; i++)
        if (p[i].p_type == PT_LOAD && p[i].p_vaddr + p[i].p_memsz > size)
            size = p[i].p_vaddr + p[i].p_memsz;
    char *base = pages(size, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, NULL);
    const Elf64_Dyn *dynamic = NULL;
    for (int i = 0; i < h->e_phnum; i++) {
        if (p[i].p_type == PT_LOAD)
            memcpy(base + p[i].p_vaddr, from + p[i].p_offset, p[i].p_filesz);
        if (p[i].p_type == PT_DYNAMIC)
            dynamic = (const void *)(base + p[i].p_vaddr);
    }
    const Elf64_Rela *r = NULL;
    uint64_t bytes = 0;
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        if (dynamic->d_tag == DT_RELA)
            r = (const void *)(base + dynamic->d_un.d_ptr);
        if (dynamic->d_tag == DT_RELASZ)
            bytes = dynamic->d_un.d_val;
    }
    for (; r && bytes; bytes -= sizeof *r, r++) {
        uint32_t type = ELF64_R_TYPE(r->r_info);
        if (type != R_AARCH64_RELATIVE && type != R_RISCV_RELATIVE)
            exit(6);
        uint64_t value = (uint64_t)base + (uint64_t)r->r_addend;
        memcpy(base + r->r_offset, &value, sizeof value);
    }
    __builtin___clear_cache(base, base + size);
    return base;
}

/* A function's address, by its name in the object's section of dynamic symbols. */
static char *find(char *base, const char *path, const char *name) {
    const char *from = contents(path);
    const Elf64_Ehdr *h = (const void *)from;
    const Elf64_Shdr *s = (const void *)(from + h->e_shoff);
    for (int i = 0; i < h->e_shnum; i++) {
        if (s[i].sh_type != SHT_DYNSYM)
            continue;
        const Elf64_Sym *symbols = (const void *)(from + s[i].sh_offset);
        const char *names = from + s[s[i].sh_link].sh_offset;
        for (uint64_t k = 0; k < s[i].sh_size / sizeof *symbols; k++)
            if (!strcmp(names + symbols[k].st_name, name))
                return base + symbols[k].st_value;
    }
    exit(7);
}

int main(int n, char **argument) {
    if (n != 4)
        return 2;
    int file = open(argument[3], O_RDWR);
    char *code = load(argument[1]), *buffers[256];
    int64_t count = next();
    if (file < 0 || count > 256)
        return 8;
    for (int64_t i = 0; i < count; i++) {
        int64_t at = next(), size = next();
        char *room = pages((size_t)size + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, NULL);
        buffers[i] = pages((size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, at, room + PAGE);
    }
    args words[1024];
    count = next();
    if (count > 1024)
        return 8;
    for (int64_t i = 0; i < count; i++) {
        int64_t buffer = next(), value = next();
        words[i].d = value;
        if (buffer >= 0)
            words[i].p = buffers[buffer] + value;
    }
    int64_t buffer = next(), offset = next();
    kernel *run = (kernel *)(void *)find(code, argument[1], argument[2]);
    for (count = next(); count; count--) {
        int64_t begin = next(), end = next();
        run(words, begin, end, buffers[buffer] + offset);
    }
    return 0;
}
