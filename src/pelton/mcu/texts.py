"""The README of an engine for micro-controllers."""

from __future__ import annotations

from pelton.bundle import tables
from pelton.engine.plan import EnginePlan

from .footprint import Footprint
from .targets import core_of


def readme(plan: EnginePlan, name: str, of: Footprint) -> str:
    title, core = core_of(plan.target["isa"])
    inputs, outputs = tables.names(plan)
    ports = [
        *(f"| `{name}_input_{c}()` | `{p.name}` | `{p}` |" for p, c in zip(plan.inputs, inputs)),
        *(f"| `{name}_output_{c}()` | `{p.name}` | `{p}` |" for p, c in zip(plan.outputs, outputs)),
    ]
    rows = [
        ("machine code of kernels", of.kernels),
        ("tables and functions", of.tables),
        ("weights", of.weights),
        ("**flash**", of.flash),
        ("**RAM**: the arena, with inputs and outputs", of.ram),
    ]
    upper = name.upper()
    fpu = (
        " Enable the FPU before the first run (CPACR; vendors' start-up code does)."
        if "fp32" in plan.target.get("features", ())
        else ""
    )
    return f"""# {name}

An engine that Pelton made of a network for {title}: C sources, and a library with the machine code of its kernels.
It allocates nothing, opens no file and prints nothing.

```c
#include "{name}.h"

{_example(plan, name)}
```

| function | array | type |
| --- | --- | --- |
{chr(10).join(ports)}

Arrays are dense, in the order of the model's axes. They lie in the engine's arena and share its memory: write all
inputs before each run, and read the outputs before you write inputs again.

| memory | bytes |
| --- | ---: |
{chr(10).join(f"| {what} | {size:,} |" for what, size in rows)}

Sizes are those of the objects that Pelton compiled at -Os. The stack comes on top: paint it, as `qemu/start.c` does,
and run once.

## In a program

Compile `{name}.c` and `{name}_weights.c` with `{" ".join(core.flags)}`, and link with `lib{name}_kernels.a` and
`--gc-sections`. The program needs {_needs(of)}.{fpu}
A run sets FPSCR to flush subnormal numbers and to round to nearest, and restores it.

- `-DARENA_SECTION='".dtcm"'` puts the arena into a section of your linker script, such as tightly coupled memory. The
  section must be zeroed or left alone at start-up; the engine does not need it initialized.
- `-DWEIGHTS_SECTION='".qspi"'` does so for the weights, which are constant.
- Several engines may be in one program. Each has an arena of its own.

`CMakeLists.txt` is for `add_subdirectory`, the folder `zephyr` makes this one a module of Zephyr
(`ZEPHYR_EXTRA_MODULES`), `library.json` a library of PlatformIO. The last two are untried.

## On an emulated board

```sh
make -C qemu run
```

compiles an example with `arm-none-eabi-gcc` and runs it on QEMU's `{core.board.machine}`. It reads `input0.bin` … in
`qemu/` by semihosting, writes `output0.bin` … and prints the ticks of a run, each of {core.board.tick:g} instructions,
and the depth of the stack. Instructions are not cycles. `{upper}_ARENA` and `{upper}_WEIGHTS` are in `{name}.h`.
"""


def _example(plan: EnginePlan, name: str) -> str:
    inputs, outputs = tables.names(plan)
    types = tables.C_TYPES
    return "\n".join(
        [
            *(f"{types[p.dtype]} *{c} = {name}_input_{c}(); /* fill it */" for p, c in zip(plan.inputs, inputs)),
            f"{name}_run();",
            *(f"const {types[p.dtype]} *{c} = {name}_output_{c}();" for p, c in zip(plan.outputs, outputs)),
        ]
    )


def _needs(of: Footprint) -> str:
    if not of.needs:
        return "nothing else, not even a C library"
    return f"{', '.join(f'`{f}`' for f in of.needs)}, which C libraries and compilers have"
