/* The public interface: engines. See pelton.h. */
#define _GNU_SOURCE
#include "engine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "chain.h"
#include "code.h"
#include "cpu.h"
#include "sha256.h"

enum { LARGEST_TABLE = 1 << 20 };

_Thread_local reason last;

static struct { void (*call)(void *user, const char *text); void *user; } logger;
static struct { int (*call)(void *user, const void *file, size_t size); void *user; } checker;

void pelton_set_log(void (*log)(void *user, const char *text), void *user) {
    logger.call = log;
    logger.user = user;
}

void pelton_set_check(int (*check)(void *user, const void *file, size_t size), void *user) {
    checker.call = check;
    checker.user = user;
}

int pelton_abi(void) { return PELTON_ABI; }
const char *pelton_error(void) { return last.text; }

int fail(const char *what) {
    refuse(&last, "%s", what);
    return -1;
}

static bool is_other(const char *wanted, const char *here) { return *wanted && strcmp(wanted, here); }

/* Code that is linked into a program runs on any system. */
static bool check_machine(const plan *p, bool is_linked, reason *why) {
    const plan_head *h = p->head;
    if ((!is_linked && is_other(p->text + h->os, OS)) || is_other(p->text + h->arch, ARCHITECTURE))
        return refuse(why, "it is for %s on %s, this is %s on %s", p->text + h->os, p->text + h->arch, OS,
                      ARCHITECTURE);
    for (int32_t i = 0; i < h->features; i++)
        if (!cpu_has(p->text + p->features[i]))
            return refuse(why, "it needs a CPU with %s (level %s), which this one lacks", p->text + p->features[i],
                          p->text + h->isa);
    return true;
}

/* Copies tables: rewriting the file then cannot send kernels out of bounds; larger tables are weights in integers. */
static bool copy_tables(pelton_engine *e, reason *why) {
    const plan *p = e->plan;
    for (int32_t i = 0; i < p->head->buffers; i++) {
        const size_t size = (size_t)p->cells[i]; /* tables have no formula */
        if (p->buffers[i].kind != TABLE || size > LARGEST_TABLE)
            continue;
        if (!(e->tables[i] = memory_take(size)))
            return refuse(why, "there is no memory for its tables");
        memcpy(e->tables[i], e->constants + p->buffers[i].offset, size);
    }
    return true;
}

static bool check_tables(const pelton_engine *e, reason *why) {
    const plan *p = e->plan;
    sha256 s;
    sha256_start(&s);
    for (int32_t i = 0; i < p->head->buffers; i++)
        if (p->buffers[i].kind == TABLE)
            sha256_add(&s, e->tables[i] ? e->tables[i] : e->constants + p->buffers[i].offset, (size_t)p->cells[i]);
    uint8_t hash[32];
    sha256_end(&s, hash);
    return !memcmp(hash, p->head->tables, sizeof hash)
        || refuse(why, "it is altered in the constants it uses for addressing");
}

/* `linked`: the kernels of all steps and alternatives, if linked into the program. */
static bool find_kernels(pelton_engine *e, const void *code, size_t size, void *const *linked, reason *why) {
    const plan *p = e->plan;
    if (linked) {
        memcpy(e->kernels, linked, sizeof *e->kernels * (size_t)p->all);
        return true;
    }
    for (int32_t i = 0; i < p->all; i++) {
        const char *symbol = p->text + p->steps[i].symbol;
        if (!*symbol)
            continue;
        if (!e->code && (!code_is_sound(code, size, why) || !(e->code = code_load(code, size, why))))
            return false;
        if (!(e->kernels[i] = (kernel *)code_symbol(e->code, symbol)))
            return refuse(why, "its machine code has no kernel '%s'; it is damaged, build it again", symbol);
    }
    return true;
}

/* Loads the parts of an engine besides its plan and its constants. */
static bool start(pelton_engine *e, const void *code, size_t size, void *const *linked, reason *why) {
    const plan_head *h = e->plan->head;
    e->buffers = h->buffers;
    if ((uintptr_t)e->constants % LINE_BYTES) {
        e->own = memory_take((size_t)e->plan->constants);
        e->constants = e->own ? memcpy(e->own, e->constants, (size_t)e->plan->constants) : NULL;
    }
    e->tables = memory_zeros((size_t)h->buffers, sizeof *e->tables);
    e->kernels = memory_zeros((size_t)e->plan->all, sizeof *e->kernels);
    e->chosen = memory_take((size_t)h->steps * sizeof *e->chosen);
    if (!e->constants || !e->tables || !e->kernels || !e->chosen)
        return refuse(why, "there is no memory for it");
    for (int32_t i = 0; i < h->steps; i++)
        e->chosen[i] = i;
    return check_machine(e->plan, linked, why) && copy_tables(e, why) && find_kernels(e, code, size, linked, why);
}

pelton_engine *pelton_engine_of(const plan *p, const void *code, size_t size, const char *constants, reason *why) {
    pelton_engine *e = memory_zeros(1, sizeof *e);
    if (!e) {
        refuse(why, "there is no memory for it");
        return NULL;
    }
    e->users = 1;
    e->plan = p;
    e->constants = constants;
    if (start(e, code, size, NULL, why))
        return e;
    pelton_engine_free(e);
    return NULL;
}

void describe(const plan *p, const int64_t *cells, pelton_port *out) {
    for (int32_t i = 0; i < p->head->inputs + p->head->outputs; i++) {
        const port_row *t = &p->ports[i];
        out[i] = (pelton_port){.name = p->text + t->name, .rank = t->rank, .bytes = (size_t)dtype_bytes(t->dtype),
                               .dtype = t->dtype < OTHER ? (pelton_dtype)t->dtype : PELTON_OTHER};
        bool is_dynamic = false;
        for (int32_t d = 0; d < t->rank; d++) {
            const bool given = cells || plan_value(p, t->shape + d) < 0;
            out[i].shape[d] = given ? (cells ? cells : p->cells)[t->shape + d] : PELTON_DYNAMIC;
            out[i].bytes *= given ? (size_t)out[i].shape[d] : 1;
            is_dynamic |= !given;
        }
        if (is_dynamic)
            out[i].bytes = 0;
    }
}

/* Rejects plans with parts that only Python can run. */
static bool check_for_c(const plan *p, reason *why) {
    for (int32_t i = 0; i < p->head->inputs + p->head->outputs; i++)
        if (p->ports[i].rank > PELTON_MAX_RANK || p->ports[i].dtype == STRING)
            return refuse(why, "%s is of strings or of more than %d axes", p->text + p->ports[i].name,
                          (int64_t)PELTON_MAX_RANK);
    for (int32_t i = 0; i < p->head->steps; i++)
        if (p->text[p->steps[i].host])
            return refuse(why, "step %d, %s, runs in Python (%s)", (int64_t)i, p->text + p->steps[i].name,
                          p->text + p->steps[i].host);
    return true;
}

static bool describe_engine(pelton_engine *e, reason *why) {
    const plan_head *h = e->plan->head;
    e->ports = memory_zeros((size_t)h->inputs + h->outputs, sizeof *e->ports);
    if (!e->ports)
        return refuse(why, "there is no memory for it");
    describe(e->plan, NULL, e->ports);
    return true;
}

/* Opens an engine with constants in its file, or lent by another one. */
static bool open_engine(pelton_engine *e, const void *bytes, size_t size, const pelton_engine *lender, reason *why) {
    if (!file_open(&e->file, bytes, size, why))
        return false;
    const section_row *tables = file_section(&e->file, "plan"), *code = file_section(&e->file, "code"),
                      *constants = file_section(&e->file, "constants"), *chain = file_section(&e->file, "chain");
    if (!tables || !constants || (!code && !chain))
        return refuse(why, "%s", file_section(&e->file, "script") ? "it is a script over engines, which Python runs"
                                 : file_section(&e->file, "present") ? "it was built without its weights; refit it"
                                 : "it has no plan, code or constants");
    const size_t code_size = code ? code->size : 0;
    void *machine_code = memory_take(code_size);
    e->tables_of_plan = memory_take(tables->size);
    if (!machine_code || !e->tables_of_plan) {
        memory_give(machine_code);
        return refuse(why, "there is no memory for it");
    }
    if (code)
        memcpy(machine_code, e->file.bytes + code->offset, code->size);
    memcpy(e->tables_of_plan, e->file.bytes + tables->offset, tables->size);
    e->constants = lender ? lender->constants : (const char *)e->file.bytes + constants->offset;
    const int64_t constants_size = lender ? lender->plan->constants : (int64_t)constants->size;
    bool sound = file_verify(tables, e->tables_of_plan) || refuse(why, "it is altered in its plan");
    sound = sound && (!code || file_verify(code, machine_code) || refuse(why, "it is altered in its code"));
    sound = sound && plan_open(&e->own_plan, e->tables_of_plan, tables->size, constants_size, why);
    const plan *p = e->plan = &e->own_plan;
    sound = sound && check_for_c(p, why) && start(e, machine_code, code_size, NULL, why) && check_tables(e, why);
    memory_give(machine_code);
    if (sound && chain)
        sound = (e->chain = chain_open(e, chain, why)) != NULL;
    return sound && describe_engine(e, why);
}

pelton_engine *engine_within(const pelton_engine *e, const section_row *s, reason *why) {
    pelton_engine *part = memory_zeros(1, sizeof *part);
    if (!part) {
        refuse(why, "there is no memory for it");
        return NULL;
    }
    part->users = 1;
    if (open_engine(part, e->file.bytes + s->offset, s->size, e, why))
        return part;
    pelton_engine_free(part);
    return NULL;
}

/* Passes the file to the program's check, in private memory. */
static bool pass_check(pelton_engine *e, const void **bytes, size_t size, reason *why) {
    if (!checker.call)
        return true;
    if (!e->copy && !(e->copy = memory_take(size)))
        return refuse(why, "there is no memory for it");
    if (*bytes != e->copy)
        *bytes = memcpy(e->copy, *bytes, size);
    return !checker.call(checker.user, *bytes, size) || refuse(why, "the check of this program refuses it");
}

static void say_if_tuned_elsewhere(const pelton_engine *e, const char *what) {
    const char *tuned = e->plan->text + e->plan->head->cpu;
    char here[64];
    reason text;
    pelton_cpu_model(here);
    if (!logger.call || !*tuned || !strcmp(tuned, here))
        return;
    refuse(&text, "%s was tuned on %s, this is %s: it runs, a build on this machine may be faster", what, tuned, here);
    logger.call(logger.user, text.text);
}

static pelton_engine *opened(pelton_engine *e, const void *bytes, size_t size, const char *what) {
    reason why = {{0}};
    e->users = 1;
    if (pass_check(e, &bytes, size, &why) && open_engine(e, bytes, size, NULL, &why)) {
        say_if_tuned_elsewhere(e, what);
        return e;
    }
    refuse(&last, "%s cannot be run: %s", what, why.text);
    pelton_engine_free(e);
    return NULL;
}

pelton_engine *pelton_load_memory(const void *data, size_t size) {
    pelton_engine *e = data ? memory_zeros(1, sizeof *e) : NULL;
    if (!e) {
        fail(data ? "there is no memory for an engine" : "an engine is to be loaded from NULL");
        return NULL;
    }
    if ((uintptr_t)data % 8 == 0)
        return opened(e, data, size, "the engine");
    if (!(e->copy = memory_take(size))) {
        memory_give(e);
        fail("there is no memory for an engine");
        return NULL;
    }
    return opened(e, memcpy(e->copy, data, size), size, "the engine");
}

pelton_engine *pelton_load_linked(const pelton_linked *l) {
    pelton_engine *e = memory_zeros(1, sizeof *e);
    reason why = {{0}};
    if (!e) {
        fail("there is no memory for an engine");
        return NULL;
    }
    e->users = 1;
    e->plan = &e->own_plan;
    e->constants = l->constants;
    if (plan_open(&e->own_plan, l->plan, l->plan_size, (int64_t)l->constants_size, &why) && check_for_c(e->plan, &why)
        && start(e, NULL, 0, l->kernels, &why) && describe_engine(e, &why)) {
        say_if_tuned_elsewhere(e, "the engine");
        return e;
    }
    refuse(&last, "the engine cannot be run: %s", why.text);
    pelton_engine_free(e);
    return NULL;
}

pelton_engine *pelton_load(const char *path) {
    if (!path) {
        fail("an engine is to be loaded from NULL");
        return NULL;
    }
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat found;
    if (file < 0 || fstat(file, &found)) {
        refuse(&last, "the engine %s cannot be read: %s", path, strerror(errno));
        if (file >= 0)
            close(file);
        return NULL;
    }
    pelton_engine *e = memory_zeros(1, sizeof *e);
    const size_t size = S_ISREG(found.st_mode) ? (size_t)found.st_size : 0;
    if (e && size) {
        e->map = mmap(NULL, size, PROT_READ, MAP_PRIVATE, file, 0);
        e->mapped = size;
    }
    close(file);
    if (!e || !size || e->map == MAP_FAILED) {
        refuse(&last, "the engine %s cannot be read: %s", path, !size ? "it is empty or not a file" : "no memory");
        memory_give(e);
        return NULL;
    }
    return opened(e, e->map, size, path);
}

pelton_engine *engine_shared(pelton_engine *e) {
    atomic_fetch_add(&e->users, 1);
    return e;
}

void pelton_engine_free(pelton_engine *e) {
    if (!e || atomic_fetch_sub(&e->users, 1) > 1)
        return;
    chain_close(e->chain);
    if (e->code)
        code_unload(e->code);
    for (int32_t i = 0; e->tables && i < e->buffers; i++)
        memory_give(e->tables[i]);
    plan_close(&e->own_plan);
    memory_give(e->tables);
    memory_give(e->kernels);
    memory_give(e->chosen);
    memory_give(e->ports);
    memory_give(e->own);
    memory_give(e->copy);
    memory_give(e->tables_of_plan);
    if (e->map)
        munmap(e->map, e->mapped);
    memory_give(e);
}

int pelton_verify(const pelton_engine *e) {
    if (!e->file.bytes)
        return 0; /* it is linked into the program */
    const section_row *constants = file_section(&e->file, "constants");
    const bool sound = file_verify(constants, e->file.bytes + constants->offset);
    return sound ? 0 : fail("the engine is altered in its constants");
}

const char *pelton_name(const pelton_engine *e) { return e->plan->text + e->plan->head->name; }

const char *pelton_metadata(const pelton_engine *e, size_t *size) {
    const section_row *meta = e->file.bytes ? file_section(&e->file, "meta") : NULL;
    *size = meta ? meta->size : 0;
    return meta ? (const char *)e->file.bytes + meta->offset : "";
}

int pelton_inputs(const pelton_engine *e) { return e->plan->head->inputs; }
int pelton_outputs(const pelton_engine *e) { return e->plan->head->outputs; }

const pelton_port *pelton_input(const pelton_engine *e, int i) {
    return i >= 0 && i < pelton_inputs(e) ? &e->ports[i] : NULL;
}

const pelton_port *pelton_output(const pelton_engine *e, int i) {
    return i >= 0 && i < pelton_outputs(e) ? &e->ports[pelton_inputs(e) + i] : NULL;
}

int pelton_range(const pelton_engine *e, int input, int axis, int64_t *minimum, int64_t *maximum) {
    const pelton_port *port = pelton_input(e, input);
    if (!port || axis < 0 || axis >= port->rank)
        return fail("there is no such input or axis");
    plan_range(e->plan, e->plan->ports[input].shape + axis, minimum, maximum);
    return 0;
}

int pelton_steps(const pelton_engine *e) { return e->plan->head->steps; }

const char *pelton_step(const pelton_engine *e, int i) {
    return i >= 0 && i < pelton_steps(e) ? e->plan->text + e->plan->steps[i].name : NULL;
}
