"""`pelton import-env`: creates, shows and removes the virtual environments that convert models of other frameworks."""

from __future__ import annotations

import argparse
import time
from typing import Any

from pelton import progress
from pelton.errors import InputError
from pelton.system import environments

from . import output, text

EXAMPLES = """examples:
  pelton import-env                     lists environments
  pelton import-env tensorflow          creates the one for .keras, .h5, .pb and SavedModels
  $(pelton import-env jax -q) export.py runs a script in the environment of JAX
  pelton import-env paddle --remove     removes an environment

Frameworks need conflicting versions of packages. Each environment is in the cache directory (~/.cache/pelton, or
PELTON_CACHE_DIR) and takes 1 to 2 GB; pip installs its packages, with the user's settings. Builds use it automatically;
without it, they use the packages installed next to Pelton. Prints the environment's Python."""


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "import-env",
        help="install converters for TensorFlow, JAX and PaddlePaddle",
        epilog=EXAMPLES,
        description="Creates a virtual environment that converts models of a framework to ONNX.",
    )
    command.add_argument("name", nargs="?", metavar="tensorflow|jax|paddle", help="the framework")
    command.add_argument("--remove", action="store_true", help="remove the environment")
    output.add_json(command)
    return command


def main(args: argparse.Namespace) -> None:
    if args.name is None:
        if args.remove:
            raise InputError(f"--remove needs the name of an environment: {', '.join(environments.ENVIRONMENTS)}")
        if args.json:
            output.emit(args, {"environments": {n: facts(n) for n in environments.ENVIRONMENTS}})
            return
        rows = [(n, state(n), " ".join(e.requirements)) for n, e in environments.ENVIRONMENTS.items()]
        print(text.table([("framework", "Python", "packages"), *rows], "lll"))
        return
    if args.remove:
        gone = environments.remove(args.name)
        if args.json:
            output.emit(args, {"name": args.name, "folder": str(environments.folder(args.name)), "removed": gone})
        elif not args.quiet:
            print(f"{environments.folder(args.name)}: {'removed' if gone else 'there was none'}")
        return
    start = time.monotonic()
    before = environments.made(args.name)
    with progress.show_progress(not args.quiet) as tell:
        interpreter = environments.make(args.name, tell)
    seconds = time.monotonic() - start
    if args.json:
        output.emit(args, {"name": args.name, "python": interpreter.path, "made": before is None, "seconds": seconds})
        return
    if not args.quiet and before is None:
        size = sum(f.lstat().st_size for f in environments.folder(args.name).rglob("*") if f.is_file())
        print(f"made in {seconds:.0f} s, {text.size(size)}:")
    print(interpreter.path)


def facts(name: str) -> dict[str, Any]:
    """Returns the Python that converts models of a framework, None if there is none; True if it is the running one; and
    the pip requirements."""
    interpreter = environments.find(name)
    return {
        "python": interpreter and interpreter.path,
        "own": interpreter is not None and interpreter.own,
        "requirements": list(environments.ENVIRONMENTS[name].requirements),
    }


def state(name: str) -> str:
    """Describes the Python that converts models of a framework."""
    interpreter = environments.find(name)
    if interpreter is None:
        return "none yet"
    return "this one" if interpreter.own else interpreter.path
