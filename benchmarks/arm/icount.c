/* A plugin of QEMU that counts executed AArch64 instructions by class, between marks of the program:
 * qemu-aarch64 -plugin libicount.so PROGRAM. The system call MARK (marks.h) is a mark. Each writes a line with the
 * instructions since the last one: all, multiply-adds of f32 vectors, dot products of bytes, loads and stores. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "marks.h"

/* The part of qemu-plugin.h (QEMU 7.2, version 1 of the interface) that is used here. */
typedef uint64_t plugin;
struct block;
struct instruction;
typedef void on_block(plugin, struct block *);
typedef void on_call(plugin, unsigned, int64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                     uint64_t);
extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin, on_block *);
extern void qemu_plugin_register_vcpu_syscall_cb(plugin, on_call *);
extern void qemu_plugin_register_vcpu_tb_exec_inline(struct block *, int operation, void *, uint64_t);
extern size_t qemu_plugin_tb_n_insns(const struct block *);
extern struct instruction *qemu_plugin_tb_get_insn(const struct block *, size_t);
extern const void *qemu_plugin_insn_data(const struct instruction *);
#define EXPORTED __attribute__((visibility("default")))
EXPORTED int qemu_plugin_version = 1;
enum { ADD = 0 };

enum { ALL, FMA, DOT, MEMORY, CLASSES };
static uint64_t counts[CLASSES], before[CLASSES];

/* Arm Architecture Reference Manual, C4.1: encodings by class. */
static int class_of(uint32_t word) {
    static const struct {
        uint32_t mask, bits;
        int class;
    } encodings[] = {
        { 0xbfa0fc00, 0x0e20cc00, FMA }, /* FMLA, FMLS, vector */
        { 0xbf80b400, 0x0f801000, FMA }, /* the same by element */
        { 0x9f20fc00, 0x0e009400, DOT }, /* SDOT, UDOT, vector */
        { 0x9f00f400, 0x0f00e000, DOT }, /* the same by element */
        { 0xbfe0fc00, 0x0e809c00, DOT }, /* USDOT, vector */
        { 0xbf40f400, 0x0f00f000, DOT }, /* USDOT, SUDOT, by element */
        { 0xdfe0f400, 0x4e80a400, DOT }, /* SMMLA, UMMLA, USMMLA */
        { 0x0a000000, 0x08000000, MEMORY },
    };
    for (unsigned i = 0; i < sizeof encodings / sizeof *encodings; i++)
        if ((word & encodings[i].mask) == encodings[i].bits)
            return encodings[i].class;
    return ALL;
}

/* A translated block runs as a whole, so it is counted as a whole. */
static void translate(plugin id, struct block *block) {
    uint64_t in_block[CLASSES] = { 0 };
    (void)id;
    in_block[ALL] = qemu_plugin_tb_n_insns(block);
    for (size_t i = 0; i < in_block[ALL]; i++) {
        uint32_t word;
        memcpy(&word, qemu_plugin_insn_data(qemu_plugin_tb_get_insn(block, i)), sizeof word);
        const int class = class_of(word);
        if (class != ALL)
            in_block[class]++;
    }
    for (int c = 0; c < CLASSES; c++)
        if (in_block[c])
            qemu_plugin_register_vcpu_tb_exec_inline(block, ADD, &counts[c], in_block[c]);
}

static void mark(plugin id, unsigned cpu, int64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                 uint64_t f, uint64_t g, uint64_t h) {
    (void)id, (void)cpu, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
    if (number != MARK)
        return;
    for (int i = 0; i < CLASSES; i++)
        fprintf(stderr, "%" PRIu64 "%c", counts[i] - before[i], i < CLASSES - 1 ? ' ' : '\n');
    memcpy(before, counts, sizeof before);
}

struct info;
EXPORTED int qemu_plugin_install(plugin id, const struct info *info, int count, char **given) {
    (void)info, (void)count, (void)given;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
    qemu_plugin_register_vcpu_syscall_cb(id, mark);
    return 0;
}
