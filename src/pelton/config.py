"""Finds the native library: `python -m pelton.config` prints the flags that C and C++ compilers need.

cc program.c $(python -m pelton.config --cflags --libs)
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native")


def main(given: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m pelton.config", description=__doc__.splitlines()[0])
    parser.add_argument("--cflags", action="store_true", help="where pelton.h and pelton.hpp are, as -I")
    parser.add_argument("--libs", action="store_true", help="the library, as -L, -l and where programs find it")
    parser.add_argument("--folder", action="store_true", help="the folder with all of it")
    args = parser.parse_args(given)
    flags = {
        "cflags": f"-I{FOLDER}",
        "libs": f"-L{FOLDER} -lpelton -Wl,-rpath,{FOLDER}",
        "folder": FOLDER,
    }
    asked = [text for option, text in flags.items() if getattr(args, option)]
    print(" ".join(asked) or parser.format_help())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
