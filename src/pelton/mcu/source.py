"""The C sources of an engine for micro-controllers: tables of constants, and weights as numbers."""

from __future__ import annotations

import numpy as np

from pelton.bundle import tables
from pelton.engine.plan import SIZES, EnginePlan, Port

from .memory import ALIGN, StaticMemory

WORDS_IN_LINE = 10


def header(plan: EnginePlan, name: str, memory: StaticMemory, about: str) -> str:
    upper = name.upper()
    sizes = "\n".join(
        f"    {upper}_{c.upper()}_ELEMENTS = {p.nbytes // SIZES[p.dtype]}, /* {tables.comment(str(p))} */"
        for p, c in _named(plan)
    )
    inputs, outputs = tables.names(plan)
    functions = "\n".join(
        [
            *(f"{tables.C_TYPES[p.dtype]} *{name}_input_{c}(void);" for p, c in zip(plan.inputs, inputs)),
            *(f"const {tables.C_TYPES[p.dtype]} *{name}_output_{c}(void);" for p, c in zip(plan.outputs, outputs)),
        ]
    )
    return f"""/* {about} */
#ifndef {upper}_H
#define {upper}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

enum {{
{sizes}
    {upper}_INPUTS = {len(plan.inputs)},
    {upper}_OUTPUTS = {len(plan.outputs)},
    {upper}_ARENA = {memory.arena}, /* bytes of RAM: all that it has besides the stack */
    {upper}_WEIGHTS = {len(memory.weights)} /* bytes of constants */
}};

/* The arrays of the network, dense, in the order of the model's axes. All lie in the arena, where they share memory
 * with each other and with values between: write all inputs before each run, and read the outputs before you write
 * inputs again. */
{functions}

/* The same by number: 0 … {upper}_INPUTS - 1, and 0 … {upper}_OUTPUTS - 1. */
void *{name}_input(int32_t number);
const void *{name}_output(int32_t number);
int32_t {name}_input_bytes(int32_t number);
int32_t {name}_output_bytes(int32_t number);

/* Runs the network once. One run at a time, as its memory is static; not in an interrupt during another run. */
void {name}_run(void);

#ifdef __cplusplus
}}
#endif
#endif
"""


def source(plan: EnginePlan, name: str, memory: StaticMemory) -> str:
    """Writes the tables of an engine and its functions. All tables are constants: a linker puts them into flash."""
    listed = memory.listing(plan)
    steps = "\n".join(
        f"    {{{s.symbol}, words + {first}, {s.tiles * s.phases}, arena + {scratch}}}, /* {tables.comment(s.name)} */"
        for s, first, scratch in zip(plan.steps, listed.firsts, memory.scratch)
    )
    needs = ""
    if "fp32" in plan.target.get("features", ()):
        needs = """
#if defined(__arm__) && !defined(__ARM_FP)
#error "the kernels use the FPU: compile with -mfloat-abi=hard (or softfp) and the -mcpu of README.md"
#endif
"""
    return f"""#include "{name}.h"

#include "pelton_mcu.h"
{needs}
/* Sections of your linker script, as in -DARENA_SECTION='".dtcm"'. */
#ifdef ARENA_SECTION
#define IN_ARENA __attribute__((section(ARENA_SECTION)))
#else
#define IN_ARENA
#endif

{_declared(plan)}extern const uint32_t {name}_weights[];
#define weights ((const char *){name}_weights)

static _Alignas({ALIGN}) IN_ARENA char arena[{max(memory.arena, 1)}];

static const args words[] = {{
{chr(10).join(listed.words) or "    {0},"}
}};

static const mcu_step steps[] = {{
{steps or "    {0},"}
}};

void {name}_run(void) {{
    mcu_run(steps, {len(plan.steps)});
}}

{_functions(plan, name, memory)}
{_by_number(name, "void *", "input", memory.ports[: len(plan.inputs)], plan.inputs)}
{_by_number(name, "const void *", "output", memory.ports[len(plan.inputs) :], plan.outputs)}"""


def _named(plan: EnginePlan) -> list[tuple[Port, str]]:
    inputs, outputs = tables.names(plan)
    return [*zip(plan.inputs, inputs), *zip(plan.outputs, outputs)]


def _declared(plan: EnginePlan) -> str:
    symbols = dict.fromkeys(s.symbol for s in plan.steps)
    return f"extern kernel {', '.join(symbols)};\n" if symbols else ""


def _functions(plan: EnginePlan, name: str, memory: StaticMemory) -> str:
    count = len(plan.inputs)
    lines = []
    for i, ((p, c), at) in enumerate(zip(_named(plan), memory.ports)):
        kind = "input" if i < count else "output"
        result = f"{'' if i < count else 'const '}{tables.C_TYPES[p.dtype]} *"
        lines.append(f"{result}{name}_{kind}_{c}(void) {{\n    return (void *)(arena + {at});\n}}\n")
    return "\n".join(lines)


def _by_number(name: str, result: str, kind: str, offsets, ports) -> str:
    rows = ", ".join(map(str, offsets)) or "0"
    sizes = ", ".join(str(p.nbytes) for p in ports) or "0"
    return f"""{result}{name}_{kind}(int32_t number) {{
    static const int32_t at[] = {{{rows}}};
    return arena + at[number];
}}

int32_t {name}_{kind}_bytes(int32_t number) {{
    static const int32_t sizes[] = {{{sizes}}};
    return sizes[number];
}}
"""


def weights_source(name: str, weights: bytes) -> str:
    """Writes constants as words, which any C compiler reads; little-endian, as all these cores are."""
    words = np.frombuffer(weights + bytes(-len(weights) % 4) or bytes(4), "<u4")
    lines = [
        "    " + ", ".join(f"{int(w):#x}" for w in words[i : i + WORDS_IN_LINE]) + ","
        for i in range(0, len(words), WORDS_IN_LINE)
    ]
    return f"""/* The constants of {name}. */
#include <stdint.h>

/* A section of your linker script, as in -DWEIGHTS_SECTION='".qspi"'. */
#ifdef WEIGHTS_SECTION
#define IN_WEIGHTS __attribute__((section(WEIGHTS_SECTION)))
#else
#define IN_WEIGHTS
#endif

extern const uint32_t {name}_weights[];
_Alignas({ALIGN}) IN_WEIGHTS const uint32_t {name}_weights[] = {{
{chr(10).join(lines)}
}};
"""
