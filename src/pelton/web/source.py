"""The C source of an engine for WebAssembly: tables with the addresses of all memory, which is static, or a plan."""

from __future__ import annotations

from pelton.bundle import tables
from pelton.engine.constants import length
from pelton.engine.plan import EnginePlan

MOST_THREADS = 16
STACK = 1 << 18  # bytes for each thread


def fixed_source(plan: EnginePlan, weights: tables.BundleMemory, threads: int) -> str:
    """Writes the tables of an engine of known sizes for `files/runtime.c`. threads: the most that may share the
    memory."""
    ports = [*plan.inputs, *plan.outputs]
    bases = [(f"port{at}", 0) if not base else (base.removeprefix(f"{NAME}_"), at) for base, at in weights.bases]
    listed = tables.listing(plan, tables.BundleMemory(weights.weights, bases, weights.arena, weights.scratch))
    symbols = dict.fromkeys(s.symbol for s in plan.steps)
    steps = "\n".join(
        f"    {{{s.symbol}, {first}, {s.tiles}, {s.phases}}}, /* {tables.comment(s.name)} */"
        for s, first in zip(plan.steps, listed.firsts)
    )
    memory = "\n".join(
        f"static _Alignas(64) char {name}[{size}];"
        for name, size in [("memory", weights.arena), *((f"port{i}", p.nbytes) for i, p in enumerate(ports))]
        if size
    )
    return f"""#include "web.h"

kernel {", ".join(symbols)};

_Alignas(64) char weights[{max(len(weights.weights), 1)}];
_Alignas(64) char scratch[{max(weights.scratch, 1) * max(threads, 1)}];
{memory}

char *const ports[] = {{{", ".join(f"port{i}" for i in range(len(ports)))}}};

const args words[] = {{
{chr(10).join(listed.words)}
}};

const step steps[] = {{
{steps}
}};

const int32_t step_count = {len(plan.steps)};
"""


def dynamic_source(plan: EnginePlan, rows: bytes) -> str:
    """Writes the plan of an engine with dynamic dimensions for `files/dynamic.c`. rows: its tables, as in files."""
    symbols = [s.symbol for s in plan.steps]
    size = length(plan.constants)
    lines = (", ".join(map(str, rows[at : at + LINE])) for at in range(0, len(rows), LINE))
    declared = f"kernel {', '.join(dict.fromkeys(symbols))};" if symbols else ""
    return f"""#include "web.h"

{declared}

_Alignas(64) char weights[{max(size, 1)}];

_Alignas(8) const char plan_rows[] = {{
    {f",{chr(10)}    ".join(lines)}
}};

kernel *const kernels[] = {{{", ".join(symbols) or "0"}}};

const int32_t plan_bytes = {len(rows)}, weight_bytes = {size};
"""


LINE = 32  # bytes in a line of C
NAME = "engine"  # of the memory that `tables.memory` lays out
