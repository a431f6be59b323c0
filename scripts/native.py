"""Builds the C library for programs without Python: shared and static, for glibc and for musl.

    python scripts/native.py FOLDER

FOLDER/glibc and FOLDER/musl then each have include/, lib/libpelton.so, lib/libpelton.a, lib/pkgconfig/pelton.pc and
lib/cmake/pelton/peltonConfig.cmake.
"""

from __future__ import annotations

import platform
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NATIVE = ROOT / "src" / "pelton" / "native"
FOR_PYTHON = ("ports.c",)
HEADERS = ("pelton.h", "pelton.hpp")
TARGETS = {"glibc": "linux-gnu.2.17", "musl": "linux-musl"}

PKGCONFIG = """prefix=${{pcfiledir}}/../..
Name: pelton
Description: Runs engines that Pelton built
Version: {version}
Cflags: -I${{prefix}}/include
Libs: -L${{prefix}}/lib -lpelton
Libs.private: -lpthread -ldl
"""
CMAKE = """find_package(Threads REQUIRED)
get_filename_component(PELTON_PREFIX "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
foreach(kind SHARED STATIC)
    string(TOLOWER ${kind} name)
    set(suffix_SHARED so)
    set(suffix_STATIC a)
    if(NOT TARGET pelton::${name})
        add_library(pelton::${name} ${kind} IMPORTED)
        set_target_properties(pelton::${name} PROPERTIES
            IMPORTED_LOCATION "${PELTON_PREFIX}/lib/libpelton.${suffix_${kind}}"
            INTERFACE_INCLUDE_DIRECTORIES "${PELTON_PREFIX}/include")
    endif()
endforeach()
set_target_properties(pelton::static PROPERTIES INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS}")
"""


def main(folder: Path) -> None:
    flags, version = (runpy.run_path(str(ROOT / "src" / "pelton" / p)) for p in ("native/flags.py", "version.py"))
    compiling = [*flags["COMPILE"]]
    sources = [p for p in sorted(NATIVE.glob("*.c")) if p.name not in FOR_PYTHON]
    zig = [sys.executable, "-m", "ziglang"]
    for name, system in TARGETS.items():
        target = ["-target", f"{platform.machine()}-{system}"]
        include, lib = folder / name / "include", folder / name / "lib"
        for made in (include, lib / "pkgconfig", lib / "cmake" / "pelton"):
            made.mkdir(parents=True, exist_ok=True)
        for header in HEADERS:
            shutil.copy(NATIVE / header, include)
        (lib / "pkgconfig" / "pelton.pc").write_text(PKGCONFIG.format(version=version["VERSION"]))
        (lib / "cmake" / "pelton" / "peltonConfig.cmake").write_text(CMAKE)
        shared = [*zig, "cc", *target, *compiling, *flags["LINK"], *map(str, sources), "-o", str(lib / "libpelton.so")]
        subprocess.run([*shared, "-Wl,-soname,libpelton.so.1", "-lpthread", "-ldl"], check=True)
        with tempfile.TemporaryDirectory() as objects:
            subprocess.run([*zig, "cc", *target, *compiling, "-c", *map(str, sources)], cwd=objects, check=True)
            made = sorted(map(str, Path(objects).glob("*.o")))
            (lib / "libpelton.a").unlink(missing_ok=True)
            subprocess.run([*zig, "ar", "rcsD", str(lib / "libpelton.a"), *made], check=True)
        print(f"{name}: libpelton.so {(lib / 'libpelton.so').stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
