"""`pelton doctor`: this machine as Pelton sees it, the working features, the missing packages, and commands that mend
what is wrong or slow."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pelton import __version__
from pelton import variables
from pelton.errors import Error
from pelton.options import Options
from pelton.system import cache, environments, memory
from pelton.system.probes.tree import FileTree
from pelton.targets import LEVELS, best, lowest

from .. import output
from . import fits, machine
from .advice import Advice
from .page import format_facts

EXAMPLES = """examples:
  pelton doctor                         the first thing to look at, and to add to bug reports
  pelton doctor --json                  for programs

It reads files of the system and measures the memory for 0.3 s. It starts no network connection and changes nothing.
The exit status is 1 if engines for CPUs cannot run on this machine."""

# The extras of Pelton whose packages are checked against its own requirements.
EXTRAS = ("build", "cuda", "torch", "image", "sign", "serve")


@dataclass(frozen=True)
class Use:
    """A use of Pelton. packages: names of distributions. mend: the command that makes it work."""

    what: str
    packages: Sequence[str]
    mend: str


USES = (
    Use("run engines", ("numpy",), 'pip install "pelton"'),
    Use("build engines", ("onnx", "protobuf", "ml_dtypes", "ziglang"), 'pip install "pelton[build]"'),
    Use("show progress, and help in colours", ("rich", "rich-argparse"), 'pip install "pelton[build]"'),
    Use("complete commands in shells", ("shtab",), 'pip install "pelton[build]"'),
    Use("run engines on NVIDIA GPUs", ("cuda-bindings",), 'pip install "pelton[cuda]"'),
    Use("build engines for NVIDIA GPUs", ("triton",), 'pip install "pelton[build,cuda]"'),
    Use("take torch modules", ("torch", "onnxscript"), 'pip install "pelton[torch]"'),
    Use("read pictures", ("pillow",), 'pip install "pelton[image]"'),
    Use("sign engines, and check signatures", ("cryptography",), 'pip install "pelton[sign]"'),
    Use("compare with ONNX Runtime", ("onnxruntime",), "pip install onnxruntime"),
)


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "doctor",
        help="check this machine, and list what to mend or install",
        epilog=EXAMPLES,
        description="Describes this machine (CPU, memory, GPU, containers), the features that work on it, and the "
        "commands that mend what is wrong or slow.",
    )
    output.add_json(command)
    return command


def main(args: argparse.Namespace) -> int:
    report = facts()
    if args.json:
        output.emit(args, report)
    else:
        print(format_facts(report))
    return 1 if "problem" in report["cpu"] else 0


def facts() -> dict[str, Any]:
    """Returns versions, the CPU, memory in bytes, GPUs, uses with their packages and missing parts, caches, the
    variables that Pelton reads, unknown PELTON_ variables, the machine (`machine.plain`), and advice."""
    cpu, advice = _or_problem(_cpu), list[Advice]()
    found = {
        "pelton": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cpu": cpu,
        "memory": _memory(),
        "compiler": _or_problem(_compiler),
        "gpu": _or_problem(_gpu),
        "uses": [_use(use) for use in USES],
        "frameworks": _frameworks(),
        "cache": _or_problem(_cache),
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(variables.PREFIX)},
        "unknown": variables.unknown(),
    }
    found["machine"] = _or_problem(lambda: _machine(cpu.get("caches", {}), advice))
    advice += _or_problem(_versions).get("advice", [])
    return {**found, "advice": [asdict(item) for item in advice]}


def _machine(caches: dict[str, int], advice: list[Advice]) -> dict[str, Any]:
    """Returns the facts of the probes; adds what follows from them to the advice."""
    known = machine.read(FileTree(), caches)
    advice += machine.advise(known)
    return machine.plain(known)


def _versions() -> dict[str, Any]:
    packages = ["pelton", *(package for use in USES for package in use.packages)]
    return {"advice": fits.packages(packages, {"pelton": EXTRAS})}


def _or_problem(find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns the result, or the reason why it is missing: a report with gaps beats none."""
    try:
        return find()
    except Error as e:
        return {"problem": str(e)}
    except Exception as e:
        return {"problem": f"{type(e).__name__}: {e}"}


def _cpu() -> dict[str, Any]:
    """Returns the fields of `backends.cpu.describe`; `cores` is the number this process may use, `quota` its control
    groups' limit, None for all. target: the default target of builds here."""
    from pelton.backends.cpu import describe
    from pelton.system.share import quota

    known = describe()
    allowed = quota()
    cpu = {
        **{key: known[key] for key in ("model", "isa", "caches", "cores")},
        "features": list(known["features"]),
        "quota": allowed if allowed < float("inf") else None,
        "target": f"cpu:{best(known)}",
    }
    level = lowest(known["arch"])
    if lacking := sorted(set(LEVELS[level]) - set(known["features"])):
        cpu["problem"] = f"engines need a CPU of level {level}; this one lacks {', '.join(lacking)}"
    return cpu


def _memory() -> dict[str, Any]:
    from pelton.system.share import memory_limit

    try:
        installed = memory.installed()
    except (AttributeError, ValueError, OSError):  # another system than Linux
        return {"installed": None, "limit": None}
    return {"installed": installed, "limit": memory_limit()}


def _compiler() -> dict[str, Any]:
    from pelton.codegen.c.toolchain import compiler_id

    return {"version": compiler_id()}


def _gpu() -> dict[str, Any]:
    from pelton.backends.cuda.libraries import versions
    from pelton.backends.cuda.machine import describe

    return {**describe(), "libraries": dict(versions())}


def _use(use: Use) -> dict[str, Any]:
    packages = {p: fits.installed(p) for p in use.packages}
    missing = [p for p, version in packages.items() if version is None]
    return {"use": use.what, "packages": packages, "missing": missing, "mend": use.mend if missing else None}


def _frameworks() -> dict[str, str | None]:
    """Returns the interpreters of environments that convert models of frameworks, by name: None if `pelton import-env`
    has not created one."""
    interpreters = {name: environments.made(name) for name in environments.ENVIRONMENTS}
    return {name: None if interpreter is None else interpreter.path for name, interpreter in interpreters.items()}


def _cache() -> dict[str, Any]:
    store = cache.open_cache(Options())
    if (problem := store.problem()) is not None:
        return {"problem": problem}
    return {"directory": str(store.home), "limit": store.limit, "bytes": sum(e.size for e in store.entries())}
