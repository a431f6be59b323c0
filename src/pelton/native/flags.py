"""Compiler flags of the library. `setup.py` and `scripts/native.py` run this file by its path, without the package."""

COMPILE = (
    "-std=gnu2x",
    "-O2",
    "-g0",
    "-Wall",
    "-Wextra",
    "-fno-sanitize=all",
    "-fomit-frame-pointer",
    "-fno-unwind-tables",  # a tenth of the library
    "-fno-asynchronous-unwind-tables",
    "-fvisibility=hidden",
    "-fPIC",
)
LINK = ("-shared", "-Wl,-z,nodelete", "-Wl,-s")  # its threads live as long as the process
