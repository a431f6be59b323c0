"""The files beside an engine's sources: builds with CMake, Zephyr and PlatformIO, and an example for QEMU."""

from __future__ import annotations

import json
from pathlib import Path

from pelton.engine.plan import EnginePlan
from pelton.version import VERSION

from .targets import Core, core_of

QEMU = Path(__file__).parent / "files" / "qemu"


def files(plan: EnginePlan, name: str) -> dict[str, str | bytes]:
    """Returns the files, by their paths in the engine's folder."""
    title, core = core_of(plan.target["isa"])
    has_kernels = bool(plan.steps)
    main = (QEMU / "main.c").read_text("utf-8").replace("NAME_", f"{name.upper()}_").replace("MODEL", name)
    return {
        "CMakeLists.txt": _cmake(name, has_kernels),
        "library.json": _platformio(name, title),
        "platformio_link.py": _platformio_link(name),
        "zephyr/module.yml": f"name: {name}\nbuild:\n  cmake: zephyr\n  kconfig: zephyr/Kconfig\n",
        "zephyr/Kconfig": _kconfig(name, "fp32" in plan.target.get("features", ())),
        "zephyr/CMakeLists.txt": _zephyr(name, has_kernels),
        "qemu/main.c": main,
        "qemu/Makefile": _makefile(name, core, has_kernels),
        **{f"qemu/{file}": (QEMU / file).read_bytes() for file in ("start.c", "semihosting.h", "board.ld")},
    }


def _cmake(name: str, has_kernels: bool) -> str:
    link = f"target_link_libraries({name} PUBLIC ${{CMAKE_CURRENT_LIST_DIR}}/lib{name}_kernels.a)\n"
    return f"""# For add_subdirectory: target_link_libraries(your_program {name}). Flags of the core are your project's.
cmake_minimum_required(VERSION 3.16)
project({name} C)
add_library({name} STATIC {name}.c {name}_weights.c)
target_compile_features({name} PRIVATE c_std_11)
target_include_directories({name} PUBLIC ${{CMAKE_CURRENT_LIST_DIR}})
{link if has_kernels else ""}"""


def _platformio(name: str, title: str) -> str:
    about = {
        "name": name,
        "version": VERSION.partition("+")[0],
        "description": f"An engine for {title}, written by Pelton.",
        "frameworks": "*",
        "platforms": "*",
        "headers": f"{name}.h",
        "build": {"srcFilter": ["+<*.c>", "-<qemu>", "-<zephyr>"], "extraScript": "platformio_link.py"},
    }
    return json.dumps(about, indent=2) + "\n"


def _platformio_link(name: str) -> str:
    return f'''"""Links programs of PlatformIO with the kernels of {name}."""

import os

from SCons.Script import DefaultEnvironment

Import("env")  # noqa: F821
DefaultEnvironment().Append(LIBPATH=[os.path.realpath(".")], LIBS=["{name}_kernels"])
'''


def _kconfig(name: str, uses_fpu: bool) -> str:
    fpu = "    select FPU if CPU_HAS_FPU\n" if uses_fpu else ""
    return f"""config PELTON_{name.upper()}
    bool "The engine {name}"
    default y
{fpu}"""


def _zephyr(name: str, has_kernels: bool) -> str:
    library = f"${{CMAKE_CURRENT_LIST_DIR}}/../lib{name}_kernels.a"
    link = f"    zephyr_library_import({name}_kernels {library})\n" if has_kernels else ""
    return f"""if(CONFIG_PELTON_{name.upper()})
    zephyr_library_named({name})
    zephyr_library_sources(../{name}.c ../{name}_weights.c)
    zephyr_include_directories(..)
{link}endif()
"""


def _makefile(name: str, core: Core, has_kernels: bool) -> str:
    board, places = core.board, []
    for kind, (at, size) in (("FLASH", board.flash), ("RAM", board.ram)):
        places += [f"s/{kind}_AT/{at:#x}/", f"s/{kind}_SIZE/{size:#x}/"]
    library = f" ../lib{name}_kernels.a" if has_kernels else ""
    return f"""# make run: the engine on QEMU's board {board.machine}, on input0.bin … here or on zeros
CC = arm-none-eabi-gcc
FLAGS = {" ".join(core.flags)} -mthumb -O2 -std=c11 -ffreestanding -fno-builtin -I.. -I.
LINK = -nostartfiles -nostdlib -T memory.ld -Wl,--gc-sections -Wl,-z,noexecstack
SOURCES = main.c start.c ../{name}.c ../{name}_weights.c

example.elf: $(SOURCES) ../{name}.h semihosting.h board.ld
\tsed '{"; ".join(places)}' board.ld > memory.ld
\t$(CC) $(FLAGS) $(LINK) $(SOURCES){library} -lgcc -o $@

run: example.elf
\tqemu-system-arm -M {board.machine} -nographic -monitor none -serial none -semihosting -icount shift=0 -kernel $<

.PHONY: run
"""
