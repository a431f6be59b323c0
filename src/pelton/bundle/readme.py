"""The files beside the sources of an engine: a program that runs it, a build with CMake, a page."""

from __future__ import annotations

from collections.abc import Sequence

from pelton.engine.plan import SIZES, EnginePlan

from . import tables

HEAD = """#include <stdio.h>
#include <stdlib.h>
#include <time.h>
"""
TIMING = """
static double milliseconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int read_file(const char *path, void *to, size_t size) {
    FILE *f = fopen(path, "rb");
    const int sound = f && fread(to, 1, size, f) == size && fgetc(f) == EOF;
    if (f)
        fclose(f);
    if (!sound)
        fprintf(stderr, "%s must be a file of %zu bytes\\n", path, size);
    return sound;
}

static int write_file(const char *path, const void *from, size_t size) {
    FILE *f = fopen(path, "wb");
    const int sound = f && fwrite(from, 1, size, f) == size && !fclose(f);
    if (!sound)
        fprintf(stderr, "%s cannot be written\\n", path);
    return sound;
}
"""
RUNS = """
#ifndef RUNS
#define RUNS 100
#endif
"""


def fixed_main(plan: EnginePlan, name: str) -> str:
    """Writes a program that runs an engine of fixed sizes on raw arrays in files, or on zeros, and prints its time."""
    ins, outs = tables.names(plan)
    ports = [*zip(plan.inputs, ins), *zip(plan.outputs, outs)]
    arrays = "\n".join(
        f"static _Alignas(64) {tables.C_TYPES[p.dtype]} {n}[{max(p.nbytes // SIZES[p.dtype], 1)}];" for p, n in ports
    )
    usage = " ".join([*(f"{n.upper()}.bin" for n in ins), *(f"{n.upper()}.bin" for n in outs)])
    reads = "".join(f" || !read_file(files[{i}], {n}, {p.nbytes})" for i, (p, n) in enumerate(zip(plan.inputs, ins), 1))
    writes = "".join(
        f" || !write_file(files[{i}], {n}, {p.nbytes})"
        for i, (p, n) in enumerate(zip(plan.outputs, outs), 1 + len(ins))
    )
    return f"""/* Runs {name} on raw arrays in files, or on zeros: main [{usage}] */
{HEAD}
#include "{name}.h"
{RUNS}{TIMING}
{arrays}

int main(int count, char **files) {{
    static double times[RUNS];
    if (count != 1 && count != {1 + len(ports)})
        return fprintf(stderr, "usage: main [{usage}]\\n"), 2;
    if (count > 1 && (0{reads}))
        return 1;
    for (int i = 0; i < RUNS; i++) {{
        const double begin = milliseconds();
        if ({name}_run({", ".join([*ins, *outs])}))
            return fprintf(stderr, "this CPU lacks %s\\n", {name}_lacks()), 1;
        times[i] = milliseconds() - begin;
    }}
    qsort(times, RUNS, sizeof *times, compare);
    printf("%.4f ms (median of %d runs)\\n", times[RUNS / 2], RUNS);
    return count > 1 && (0{writes});
}}
"""


def linked_main(plan: EnginePlan, name: str) -> str:
    """Writes a program that describes an engine and runs it on zeros of its smallest shapes."""
    return f"""/* Describes {name}, runs it on zeros and says how long that takes: main [THREADS] */
{HEAD}#include <string.h>

#include "{name}.h"
{RUNS}{TIMING.split("static int read_file")[0]}
static void describe(const char *what, const pelton_port *p) {{
    printf("%s %s: [", what, p->name);
    for (int d = 0; d < p->rank; d++)
        printf(p->shape[d] == PELTON_DYNAMIC ? "%s?" : "%s%lld", d ? ", " : "", (long long)p->shape[d]);
    puts("]");
}}

int main(int count, char **given) {{
    enum {{ INPUTS = {max(len(plan.inputs), 1)} }};
    static int64_t sizes[INPUTS][PELTON_MAX_RANK];
    static const int64_t *shapes[INPUTS];
    static double times[RUNS];
    pelton_engine *engine = {name}_load();
    pelton_context *context = engine ? pelton_context_new(engine, count > 1 ? atoi(given[1]) : 0) : NULL;
    if (!context)
        return fprintf(stderr, "%s\\n", pelton_error()), 1;
    for (int i = 0; i < pelton_inputs(engine); i++) {{
        const pelton_port *p = pelton_input(engine, i);
        int64_t maximum;
        for (int d = 0; d < p->rank; d++)
            pelton_range(engine, i, d, &sizes[i][d], &maximum);
        shapes[i] = sizes[i];
        describe("input", p);
    }}
    for (int i = 0; i < pelton_outputs(engine); i++)
        describe("output", pelton_output(engine, i));
    if (pelton_set_shapes(context, shapes))
        return fprintf(stderr, "%s\\n", pelton_error()), 1;
    for (int i = 0; i < pelton_inputs(engine); i++)
        memset(pelton_input_data(context, i), 0, pelton_context_input(context, i)->bytes);
    for (int i = 0; i < RUNS; i++) {{
        const double begin = milliseconds();
        if (pelton_run(context, NULL, NULL))
            return fprintf(stderr, "%s\\n", pelton_error()), 1;
        times[i] = milliseconds() - begin;
    }}
    qsort(times, RUNS, sizeof *times, compare);
    printf("%.4f ms (median of %d runs at the least sizes)\\n", times[RUNS / 2], RUNS);
    pelton_context_free(context);
    pelton_engine_free(engine);
    return 0;
}}
"""


def cmake(name: str, sources: Sequence[str], threads: bool) -> str:
    """Writes CMakeLists.txt with the library, and the program of `main.c`."""
    with_threads = (
        f"find_package(Threads REQUIRED)\ntarget_link_libraries({name} PUBLIC Threads::Threads ${{CMAKE_DL_LIBS}})\n"
        if threads
        else ""
    )
    return f"""cmake_minimum_required(VERSION 3.16)
project({name} C ASM)
set(CMAKE_C_STANDARD 11)
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release)
endif()
add_library({name} STATIC {" ".join([f"{name}.c", f"{name}_data.S", *sources])})
target_include_directories({name} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})
set_source_files_properties({name}_data.S PROPERTIES COMPILE_OPTIONS "-I${{CMAKE_CURRENT_SOURCE_DIR}}")
{with_threads}add_executable(main main.c)
target_link_libraries(main {name})
"""


def fixed_readme(plan: EnginePlan, name: str, where: tables.BundleMemory) -> str:
    rows = [("weights", len(where.weights)), ("working memory, static", where.arena + where.scratch)]
    return f"""# {name}

An engine that Pelton made of a network, as C sources: one function, one thread, no library, no allocation.
{_where(plan)}

```sh
cc -O2 -I. main.c {name}.c {name}_data.S cpu.c -o main && ./main
```

`{name}.h` has the function. Its arrays:

{_ports(plan)}

| memory | bytes |
| --- | ---: |
{chr(10).join(f"| {what} | {size:,} |" for what, size in rows)}
"""


def linked_readme(plan: EnginePlan, name: str) -> str:
    return f"""# {name}

An engine that Pelton made of a network, as C sources, with the runtime as source.
{_where(plan)}

```sh
cmake -B build && cmake --build build && build/main
```

`{name}_load()` gives the engine, and `pelton.h` says what can be done with it. Its arrays:

{_ports(plan)}

| memory | bytes |
| --- | ---: |
| weights | {len(plan.constants):,} |
| working memory of a context, at the usual sizes | {plan.arena:,} |
"""


def _where(plan: EnginePlan) -> str:
    """Writes where the sources compile and run."""
    target = plan.target
    features = ", ".join(target.get("features", ())) or "no special features"
    return f"""For {target["arch"]} CPUs with
{features}. The machine code is the same for Linux, Android, macOS, iOS and Windows; compile the sources with
GCC or clang for the system of your choice."""


def _ports(plan: EnginePlan) -> str:
    rows = [("input", p) for p in plan.inputs] + [("output", p) for p in plan.outputs]
    lines = [f"| {what} | `{p.name}` | `{p}` |" for what, p in rows]
    return "\n".join(["| | name | type |", "| --- | --- | --- |", *lines])
