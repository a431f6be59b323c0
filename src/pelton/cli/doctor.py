"""`pelton doctor`: Pelton's view of this machine, the working features, and the packages that others need."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from pelton import __version__
from pelton import variables
from pelton.errors import Error, near
from pelton.options import Options
from pelton.system import cache, environments, memory
from pelton.targets import LEVELS, best, lowest

from . import output, text

EXAMPLES = """examples:
  pelton doctor                         the first thing to look at, and to add to bug reports
  pelton doctor --json                  for programs

The exit status is 1 if engines for CPUs cannot run on this machine."""


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
        help="check this machine, and list packages to install",
        epilog=EXAMPLES,
        description="Describes this machine, the features that work on it, and packages to install for others.",
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
    variables that Pelton reads, and unknown PELTON_ variables."""
    return {
        "pelton": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cpu": _or_problem(_cpu),
        "memory": _memory(),
        "compiler": _or_problem(_compiler),
        "gpu": _or_problem(_gpu),
        "uses": [_use(use) for use in USES],
        "frameworks": _frameworks(),
        "cache": _or_problem(_cache),
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(variables.PREFIX)},
        "unknown": variables.unknown(),
    }


def _or_problem(find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns the result, or the reason why it is missing."""
    try:
        return find()
    except Error as e:
        return {"problem": str(e)}


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

    return {"installed": memory.installed(), "limit": memory_limit()}


def _compiler() -> dict[str, Any]:
    from pelton.codegen.c.toolchain import compiler_id

    return {"version": compiler_id()}


def _gpu() -> dict[str, Any]:
    from pelton.backends.cuda.libraries import versions
    from pelton.backends.cuda.machine import describe

    return {**describe(), "libraries": dict(versions())}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _use(use: Use) -> dict[str, Any]:
    packages = {p: _version(p) for p in use.packages}
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


def format_facts(found: Mapping[str, Any]) -> str:
    """Formats the same for people: a block about the machine, the working features, then remedies."""
    cpu, gpu, kept = found["cpu"], found["gpu"], found["cache"]
    rows = [
        ("Pelton", f"{found['pelton']}, Python {found['python']} ({found['executable']})"),
        ("system", found["platform"]),
    ]
    if "model" in cpu:
        caches = ", ".join(f"{name} {text.size(size)}" for name, size in cpu["caches"].items())
        limited = "" if cpu["quota"] is None else f", limited by the control group to {cpu['quota']:g}"
        rows += [
            ("CPU", f"{cpu['model']}: {cpu['cores']:g} for this process{limited}"),
            ("", f"{cpu['isa']}; {caches or 'caches unknown'}"),
            ("builds for", cpu["target"]),
        ]
    limit = found["memory"]["limit"]
    rows += [
        ("memory", text.size(found["memory"]["installed"]) + (f", limited to {text.size(limit)}" if limit else "")),
        ("compiler", found["compiler"].get("version", "none")),
        ("GPU", f"{gpu['model']}, {gpu['isa']}, {text.size(gpu['memory'])}" if "model" in gpu else "none"),
    ]
    if "directory" in kept:
        rows.append(("cache", f"{kept['directory']}: {text.size(kept['bytes'])} of at most {text.size(kept['limit'])}"))
    rows += [
        (name, f"{value}: there is no such variable{near(name, variables.VARIABLES)}")
        if name in found["unknown"]
        else (name, value)
        for name, value in found["environment"].items()
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name.ljust(width)}  {value}".rstrip() for name, value in rows]
    uses = [
        (
            "no " if use["missing"] else "yes",
            use["use"],
            f"{', '.join(use['missing'])} missing: {use['mend']}"
            if use["missing"]
            else ", ".join(f"{p} {v}" for p, v in use["packages"].items()),
        )
        for use in found["uses"]
    ]
    uses += [
        ("yes" if folder else "no ", f"convert models of {name}", folder or f"pelton import-env {name}")
        for name, folder in found["frameworks"].items()
    ]
    lines += ["", text.table(uses, "lll", heading=False)]
    problems = [
        (name, found[name]["problem"]) for name in ("cpu", "compiler", "gpu", "cache") if "problem" in found[name]
    ]
    if problems:
        lines += ["", *(f"{name}: {why}" for name, why in problems)]
    return "\n".join(lines)
