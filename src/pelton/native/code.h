/* The machine code of an engine: an ELF shared object, given as bytes. */
#ifndef PELTON_CODE_H
#define PELTON_CODE_H

#include "plan.h"

/* True if the bytes are, by their headers, a complete shared object for this machine. The system's loader trusts the
 * headers: a segment beyond the end would be a crash. The code itself is trusted like a program. */
bool code_is_sound(const void *bytes, size_t size, reason *why);

/* Loads from memory or, if the system forbids that, from a temporary file in $TMPDIR or /tmp. NULL, with the reason. */
void *code_load(const void *bytes, size_t size, reason *why);
void *code_symbol(void *code, const char *name);
void code_unload(void *code);

#endif
