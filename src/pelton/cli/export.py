"""`pelton export`: writes an engine as C sources for linking into programs, for browsers or for micro-controllers."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pelton.errors import InputError
from pelton.system import heads
from pelton.targets import MICRO_CONTROLLERS

from . import arguments, build, export_mcu, export_web, output, text

if TYPE_CHECKING:
    from pelton.mcu import Footprint
    from pelton.runtime import Engine

EXAMPLES = """examples:
  pelton export resnet50.onnx -o resnet50/ --shapes x=1x3x224x224   one function, without a library
  pelton export resnet50.pelton -o resnet50/ --shapes x=8x3x224x224 an engine of any batch, for this one
  pelton export resnet50.pelton -o resnet50/                        an engine of any batch, with the runtime as source
  pelton export resnet50.pelton -o resnet50/ --threads 4            the same, where sizes are known
  pelton export resnet50.onnx -o web/ --shapes x=1x3x224x224 --target wasm
                                                                    a package for browsers and node
  pelton export resnet50.onnx -o web/ --shapes x=1..1..8x3x224x224 --target wasm
                                                                    the same, for one to eight pictures
  pelton export model.onnx -o net/ --target cortex-m4               for a micro-controller: no allocation, no library

Engines for micro-controllers (cortex-m4, cortex-m7, cortex-m33, cortex-m55, thumb-generic) are folders with a library
of kernels, sources and an example; the command prints their flash and RAM, and --precision int8 makes them small.
A package for browsers has modules of WebAssembly, weights, JavaScript, its types and a page: see its README.md. Else
the folder contains a header, sources, weights, a main.c, a CMakeLists.txt and a README.md, and is complete. Its outputs
equal the engine's bit for bit. C programs can also load engine files: see docs/native.md."""


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "export",
        help="write an engine for C programs, browsers or micro-controllers",
        description="Writes an engine for CPUs as C sources, to link into programs, as a package for browsers, or for a"
        " micro-controller.",
        epilog=EXAMPLES,
    )
    command.add_argument("model", help="an engine file, or a model to build")
    command.add_argument(
        "-o", "--output", metavar="FOLDER", help="folder to write (default: the model's name, in the current folder)"
    )
    command.add_argument("--name", help="name of functions and files (default: that of the engine)")
    arguments.add_threads(command)
    output.add_json(command)
    arguments.add_trust(command)
    arguments.add_build(command)
    return command


def main(args: argparse.Namespace) -> None:
    from pelton import bundle

    folder = args.output or arguments.stem(args.model)
    if args.target == export_web.WASM:
        name = args.name or bundle.identifier(os.path.basename(os.path.abspath(folder)), "engine")
        options = {"threads": export_web.THREADS, **arguments.build_options(args)}
        _report(
            args, folder, name, f"{name}.mjs", export_web.export(args.model, folder, name, options, quiet=args.quiet)
        )
        return
    if args.target in MICRO_CONTROLLERS:
        options = arguments.build_options(args)
        engine, is_built = export_mcu.build_for(args.target, args.model, options, quiet=args.quiet), True
    else:
        engine, is_built = _load_or_build(args)
    if engine.plain.target.get("isa") in MICRO_CONTROLLERS.values():
        name = args.name or bundle.identifier(os.path.basename(os.path.abspath(folder)), "engine")
        exported = export_mcu.export(engine, args.model, folder, name)
        _report(args, folder, name, f"{name}.h", list(exported.files), exported.footprint)
        return
    if engine.meta.get("profiles"):
        raise InputError(
            f"{args.model} has profiles, and sources are of one engine; build it without them, or load the engine with"
            " libpelton"
        )
    if len(engine.parts) != 1 or engine.parts[0] is not engine:
        raise InputError(
            f"{args.model} has data-dependent control flow, which runs in Python, so it cannot be exported;"
            " `pelton check` lists it"
        )
    plan = engine.plain
    if args.shapes and not is_built:
        plan = bundle.at_shapes(plan, {name: _sizes(name, spec) for name, spec in arguments.shapes(args).items()})
    name = args.name or bundle.identifier(os.path.basename(os.path.abspath(folder)), "engine")
    _report(args, folder, name, f"{name}.h", bundle.write(plan, folder, name, args.threads or 1))


def _report(
    args: argparse.Namespace,
    folder: str,
    name: str,
    interface: str,
    files: list[Path],
    footprint: Footprint | None = None,
) -> None:
    facts: dict[str, Any] = {"folder": folder, "name": name, "files": [f.name for f in files]}
    facts["bytes"] = sum(f.stat().st_size for f in files)
    if footprint is not None:
        facts["footprint"] = footprint.json()
    if args.json:
        output.emit(args, facts)
    elif not args.quiet:
        print(f"{folder}: {text.count(len(files), 'file')}, {text.size(facts['bytes'])}; {interface} has its functions")
        if footprint is not None:
            print(export_mcu.table(footprint))


def _sizes(name: str, given: str) -> tuple[int, ...]:
    """Returns the sizes that --shapes sets for an input."""
    try:
        return tuple(map(int, given.split("x")))
    except ValueError:
        raise InputError(f"--shapes {name}={given}: an engine is exported for one size of each axis") from None


def _load_or_build(args: argparse.Namespace) -> tuple[Engine, bool]:
    """Loads the engine in a file, or builds one from the model in it: (engine, True if built)."""
    import pelton

    try:
        with open(args.model, "rb") as f:
            is_engine = f.read(len(heads.ENGINE)) == heads.ENGINE
    except OSError:  # a folder, or nothing; importers report it better
        is_engine = False
    if is_engine or args.model.endswith(".pelton"):
        return pelton.load(args.model, device=None, trust=args.trust), False
    options = {"threads": 1, **arguments.build_options(args)}
    return build.build_engine(args.model, options, quiet=args.quiet), True
