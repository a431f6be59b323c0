"""`pelton view`: writes an engine, or two side by side, as one HTML page."""

from __future__ import annotations

import argparse
import os
import webbrowser
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pelton.errors import InputError

from . import arguments, arrays, layers, output, text

if TYPE_CHECKING:
    from pelton.explorer.data import Described
    from pelton.runtime import Engine

    from .roofline import Roof

EXAMPLES = """examples:
  pelton view model.pelton                            writes model.html: steps, times as tuned, memory, precision
  pelton view model.pelton --time --open              times every step here first, then opens the page in a browser
  pelton view fp32.pelton int8.pelton -o both.html    two engines side by side, aligned by the layers of the model
  pelton view bert.pelton --time --shapes ids=1x384   an engine with dynamic dimensions, at these sizes

The page is a single file and fetches nothing. It shows names of layers, inputs and outputs, and build options, but no
weights."""


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "view",
        help="show an engine as an HTML page: graph, times, memory, roofline",
        description="Writes one HTML page of an engine, or of two engines side by side.",
        epilog=EXAMPLES,
    )
    command.add_argument("engine", help="an engine file")
    command.add_argument("other", nargs="?", help="another engine to compare with")
    command.add_argument("-o", "--output", metavar="FILE", help="page to write (default: ENGINE.html)")
    command.add_argument("--time", action="store_true", help="time every step on this machine, and measure its peak")
    command.add_argument("--open", action="store_true", help="open the page in a browser")
    arguments.add_sizes(command)
    arguments.add_threads(command)
    output.add_json(command)
    arguments.add_trust(command)
    return command


def main(args: argparse.Namespace) -> None:
    if args.threads is not None and not args.time:
        raise InputError("--threads is for timing steps; add --time")
    paths = [args.engine, *([args.other] if args.other else [])]
    target = args.output or os.path.splitext(args.engine)[0] + ".html"
    if any(os.path.exists(target) and os.path.exists(p) and os.path.samefile(target, p) for p in paths):
        raise InputError(f"{target} is the engine itself; name another file with -o")
    arrays.check_target(target)
    contents = write(args, paths, target)
    output.emit(args, {"file": target, "bytes": os.path.getsize(target), "engines": paths})
    if not args.quiet:
        print(f"{target}: {text.size(os.path.getsize(target))}, opens in any browser")
        if len({d.source for d in contents} | {None}) != 2 and len(contents) == 2:
            kinds = "; ".join(f"{path}: {_sources(d)}" for path, d in zip(paths, contents))
            print(f"times cannot be compared, as they are of different kinds ({kinds}); measure both with --time")
    if args.open and not webbrowser.open(Path(target).resolve().as_uri()):
        raise InputError(f"there is no browser to open {target} with; open it elsewhere, it is one file")


def _sources(of: Described) -> str:
    """Describes the origin of an engine's times."""
    return ", ".join(f"{count} {name}" for name, count in Counter(t.source for t in of.times).most_common())


def write(args: argparse.Namespace, paths: list[str], target: str) -> list[Described]:
    """Writes the page of the engines in these files; returns the content shown of each."""
    import pelton
    from pelton.explorer.page import page

    contents: list[Described] = []
    roof: Roof | None = None
    for path in paths:
        # engines that do not run are shown on any machine
        engine = pelton.load(path, device=0 if args.time else None, trust=args.trust)
        described, peak = describe(engine, args)
        contents.append(described)
        roof = peak if roof is None or peak is None else roof.best(peak)
    facts = {"version": pelton.__version__, "peak": roof and {"gflops": roof.gflops, "gbytes": roof.gbytes}}
    arrays.replace(target, [page(contents, facts).encode()])
    return contents


def describe(engine: Engine, args: argparse.Namespace) -> tuple[Described, Roof | None]:
    """Describes an engine at the requested sizes, with measured times if requested; and the machine's peak."""
    from pelton.engine.sizes import solve
    from pelton.explorer.data import Described
    from pelton.runtime.script_engine import steps_between

    sizes: Mapping[str, int] = solve(engine.plain, arrays.resolve_shapes(engine, arguments.shapes(args)))
    if not args.time:
        return Described(engine.plain, steps_between(engine), sizes), None
    feeds = arrays.draw_inputs(engine, arguments.shapes(args))
    steps, _, roof = layers.measure_beside_roof(engine, engine.context(threads=args.threads), feeds)
    times, work = [s["ns"] for s in steps], [(s["flops"], s["bytes"]) for s in steps]
    return Described(engine.plain, steps_between(engine), sizes, times, work), roof
