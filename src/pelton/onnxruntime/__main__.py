"""`python -m pelton.onnxruntime script.py …`: runs a program that imports onnxruntime on Pelton."""

from __future__ import annotations

import os
import runpy
import sys

from pelton.onnxruntime import install

USAGE = (
    "usage: python -m pelton.onnxruntime SCRIPT | -m MODULE | -c CODE [ARGUMENT …]\n\nRuns a program with Pelton where"
    " it imports onnxruntime."
)


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    what, *rest = arguments
    if what in ("-m", "-c") and not rest:
        print(f"{what} needs {'the name of a module' if what == '-m' else 'code'} behind it\n{USAGE}", file=sys.stderr)
        return 2
    if what.startswith("-") and what not in ("-m", "-c"):
        print(f"there is no option {what}; Python's own stand before -m pelton.onnxruntime\n{USAGE}", file=sys.stderr)
        return 2
    if what not in ("-m", "-c") and not os.path.exists(what):
        print(f"there is no file {what}", file=sys.stderr)
        return 2
    install()
    if what == "-m":
        sys.argv = [rest[0], *rest[1:]]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif what == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    else:
        sys.argv = [what, *rest]
        sys.path.insert(0, os.path.dirname(os.path.realpath(what)))
        runpy.run_path(what, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
