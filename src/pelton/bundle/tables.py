"""The C sources of an engine: tables with constant addresses for fixed sizes, or its plan for the whole runtime."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from pelton.engine.constants import ALIGN, bytes_of
from pelton.engine.plan import SIZES, EnginePlan, Port, Step, numpy_dtype
from pelton.errors import InputError
from pelton.record import record
from pelton.targets import is_gpu

# element type → its C type; halves as their bits
C_TYPES = {
    **{"f64": "double", "f32": "float", "f16": "uint16_t", "bf16": "uint16_t", "bool": "uint8_t"},
    **{f"{sign}{bits}": f"{'u' * (sign == 'u')}int{bits}_t" for sign in "iu" for bits in (8, 16, 32, 64)},
}
PAGE = 4096


def identifier(text: str, otherwise: str) -> str:
    """Makes a C identifier that resembles a text."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")
    return name if re.match(r"[A-Za-z_]", name) and name not in KEYWORDS else f"{otherwise}_{name}".rstrip("_")


KEYWORDS = set(
    "auto bool break case char const constexpr continue default do double else enum extern false float for goto if"
    " inline int long nullptr register restrict return short signed sizeof static struct switch thread_local true"
    " typedef typeof union unsigned void volatile while class new delete template this private public namespace"
    " operator try catch throw using virtual friend and or not xor main in out".split()
)


def names(plan: EnginePlan) -> tuple[list[str], list[str]]:
    """Returns distinct C identifiers for inputs and outputs."""
    taken: set[str] = set()

    def fresh(port: Port, otherwise: str) -> str:
        name = first = identifier(port.name, otherwise)
        count = 1
        while name in taken:
            count += 1
            name = f"{first}_{count}"
        taken.add(name)
        return name

    return [fresh(p, "input") for p in plan.inputs], [fresh(p, "output") for p in plan.outputs]


def refuse_what_needs_python(plan: EnginePlan) -> None:
    """Raises InputError for engines that cannot be linked into a program."""
    if is_gpu(plan.target):
        raise InputError("engines for GPUs cannot be exported, only those for CPUs; build it with --target cpu")
    for i, s in enumerate(plan.steps):
        if s.host:
            raise InputError(
                f"step {i}, {s.name}, runs in Python, so the engine cannot be exported; `pelton check --no-python`"
                " lists such steps before a build"
            )
    for p in (*plan.inputs, *plan.outputs):
        if p.dtype not in C_TYPES:
            raise InputError(f"{p.name!r} is of {p.dtype}, which has no C type, so the engine cannot be exported")


@record(frozen=True)
class BundleMemory:
    """The addresses of all memory in a program. `weights`: constants and other results of the build, in bytes; `bases`:
    per buffer a C array and an offset in it, or "" and the port. Sizes in bytes."""

    weights: bytes
    bases: Sequence[tuple[str, int]]
    arena: int
    scratch: int


def memory(plan: EnginePlan, name: str) -> BundleMemory:
    """Lays out the memory of an engine of known sizes."""
    data, bases = bytearray(bytes_of(plan.constants)), []
    for b in plan.buffers:
        if b.kind == "arena":
            bases.append((f"{name}_memory", b.offset))
        elif b.kind in ("constant", "table"):
            bases.append((f"{name}_weights", b.offset))
        elif b.kind in ("input", "output"):
            bases.append(("", b.offset + len(plan.inputs) * (b.kind == "output")))
        else:
            made = np.array(b.values, np.int64) if b.kind == "sizes" else np.arange(b.size // SIZES[b.dtype])
            data += bytes(-len(data) % ALIGN)
            bases.append((f"{name}_weights", len(data)))
            data += made.astype(numpy_dtype(b.dtype)).tobytes()
    scratch = max((s.scratch for s in plan.steps), default=0)
    return BundleMemory(bytes(data), bases, -(-plan.arena // PAGE) * PAGE, -(-scratch // PAGE) * PAGE)


def kernels(steps: Sequence[Step], symbols: Mapping[str, int], name: str) -> dict[str, str]:
    """Maps symbols of the engine to their addresses in the program, as C, for all that the steps use."""
    return {s.symbol: f"(kernel *)(void *)({name}_code + {symbols[s.symbol]})" for s in steps}


def data_source(name: str, has_plan: bool = False) -> str:
    """Writes assembly with the code and the weights, and the plan if needed, for GNU as and clang, and for ELF, Mach-O
    (iOS, macOS) and COFF (Windows)."""

    def piece(kind: str) -> str:
        symbol = f"SYMBOL({name}_{kind})"
        lines = (f".balign {PAGE}", f".globl {symbol}", f"HIDE({symbol})", f'.incbin "{name}_{kind}.bin"')
        return "    {}\n    {}\n    {}\n".format(*lines) + f"{symbol}:\n    {lines[-1]}\n"

    data = "".join(map(piece, ("weights", "plan") if has_plan else ("weights",)))
    return f"""/* The machine code and the weights of {name}. */
#if defined(__APPLE__)
#define SYMBOL(name) _##name
#define HIDE(symbol) .private_extern symbol
#define DATA .section __TEXT,__const
#define CODE .section __TEXT,__text,regular,pure_instructions
#elif defined(_WIN32)
#define SYMBOL(name) name
#define HIDE(symbol)
#define DATA .section .rdata,"dr"
#define CODE .section .text,"xr"
#else
#define SYMBOL(name) name
#define HIDE(symbol) .hidden symbol
#define DATA .section .rodata.{name},"a",%progbits
#define CODE .section .text.{name},"ax",%progbits
    .section .note.GNU-stack,"",%progbits
#endif
    DATA
{data}    CODE
{piece("code")}"""


@record(frozen=True)
class Listing:
    """The steps of an engine of known sizes, as lines of C: the arguments of all kernels one after the other; for each
    step the first of its own; and for each argument in a port (argument, port, offset)."""

    words: Sequence[str]
    firsts: Sequence[int]
    patches: Sequence[tuple[int, int, int]]


def listing(plan: EnginePlan, of: BundleMemory) -> Listing:
    words: list[str] = []
    firsts: list[int] = []
    patches: list[tuple[int, int, int]] = []
    for s in plan.steps:
        firsts.append(len(words))
        for a in s.args:
            base, at = of.bases[a.buffer]
            if not base:
                patches.append((len(words), at, a.offset))
            words.append(f"    {{.p = (void *)({base} + {at + a.offset})}}," if base else "    {0},")
        words += [f"    {{.d = {d}}}," for d in s.dims]
    return Listing(words, firsts, patches)


def fixed_source(plan: EnginePlan, name: str, of: BundleMemory, used: Mapping[str, str]) -> str:
    """Writes the C source of an engine of known sizes, which runs by `bundle.h`."""
    listed = listing(plan, of)
    steps = [
        f"    {{{used[s.symbol]}, {first}, {s.tiles * s.phases}}}, /* {comment(s.name)} */"
        for s, first in zip(plan.steps, listed.firsts)
    ]
    patches = [f"    {{{word}, {port}, {offset}}}," for word, port, offset in listed.patches]
    ins, outs = names(plan)
    ports = ", ".join(f"(char *){n}" for n in (*ins, *outs))
    features = ", ".join(f'"{f}"' for f in plan.target.get("features", ()))
    arena = f"static _Alignas({PAGE}) char {name}_memory[{of.arena}];\n" if of.arena else ""
    return f"""#include "{name}.h"

#include "bundle.h"
#include "cpu.h"

extern HIDDEN const char {name}_code[], {name}_weights[];

{arena}static _Alignas({PAGE}) char scratch[{max(of.scratch, PAGE)}];

static args words[] = {{
{chr(10).join(listed.words)}
}};

static const bundle_patch patches[] = {{
{chr(10).join(patches)}
}};

static const bundle_step steps[] = {{
{chr(10).join(steps)}
}};

static const char *const features[] = {{{features}}};

const char *{name}_lacks(void) {{
    for (unsigned i = 0; i < sizeof features / sizeof *features; i++)
        if (!cpu_has(features[i]))
            return features[i];
    return 0;
}}

int {name}_run({arguments(plan)}) {{
    static int is_checked;
    if (!is_checked && {name}_lacks())
        return -1;
    is_checked = 1;
    char *const ports[] = {{{ports}}};
    bundle_run(steps, {len(steps)}, words, patches, {len(patches)}, ports, scratch);
    return 0;
}}
"""


def arguments(plan: EnginePlan) -> str:
    """Writes the parameters of a run: inputs, then outputs."""
    ins, outs = names(plan)
    taken = [f"const {C_TYPES[p.dtype]} *{n}" for p, n in zip(plan.inputs, ins)]
    outputs = [f"{C_TYPES[p.dtype]} *{n}" for p, n in zip(plan.outputs, outs)]
    return ", ".join([*taken, *outputs]) or "void"


def fixed_header(plan: EnginePlan, name: str, about: str) -> str:
    ins, outs = names(plan)
    ports = [*zip(plan.inputs, ins), *zip(plan.outputs, outs)]
    sizes = "\n".join(
        f"    {name.upper()}_{n.upper()}_ELEMENTS = {p.nbytes // SIZES[p.dtype]}, /* {comment(str(p))} */"
        for p, n in ports
    )
    return f"""/* {about} */
#ifndef {name.upper()}_H
#define {name.upper()}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

enum {{
{sizes}
}};

/* Runs the network once. Arrays are dense, aligned to their types, and no output overlaps another array. One run at a
 * time: its memory is static. 0; -1, without a run, on a CPU that lacks what the code needs. */
int {name}_run({arguments(plan)});

/* The feature that this CPU lacks; NULL where it lacks none. */
const char *{name}_lacks(void);

#ifdef __cplusplus
}}
#endif
#endif
"""


def linked_source(name: str, steps: Sequence[Step], used: Mapping[str, str], sizes: Mapping[str, int]) -> str:
    """Writes the C source of an engine for the whole runtime. sizes: bytes of its `plan` and its `weights`."""
    of_steps = "\n".join(f"    (void *)({used[s.symbol]}), /* {comment(s.name)} */" for s in steps)
    return f"""#include "{name}.h"

#include "kernel.h"

extern HIDDEN const char {name}_code[], {name}_plan[], {name}_weights[];

static void *const kernels[] = {{
{of_steps}
}};

pelton_engine *{name}_load(void) {{
    return pelton_load_linked(&(pelton_linked){{
        .plan = {name}_plan, .plan_size = {sizes["plan"]}, .constants = {name}_weights,
        .constants_size = {sizes["weights"]}, .kernels = kernels}});
}}
"""


def linked_header(name: str, about: str) -> str:
    return f"""/* {about} */
#ifndef {name.upper()}_H
#define {name.upper()}_H

#include "pelton.h"

#ifdef __cplusplus
extern "C" {{
#endif

/* The engine, of which `pelton_context_new` makes contexts. NULL where it cannot run: pelton_error() says why. */
pelton_engine *{name}_load(void);

#ifdef __cplusplus
}}
#endif
#endif
"""


def comment(text: str) -> str:
    """Escapes a text for a C comment."""
    return text.replace("*/", "* /").replace("\n", " ").replace("\\", "/")[:100]
