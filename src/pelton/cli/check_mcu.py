"""`pelton check --target cortex-m4`: does a model fit into a micro-controller?"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from pelton.errors import InputError, Needs
from pelton.targets import MICRO_CONTROLLERS

from . import arguments, output, parsers, text
from .export_mcu import build_for, table

if TYPE_CHECKING:
    from pelton.diagnose.support import Coverage
    from pelton.mcu import Budget


def add(command: argparse.ArgumentParser) -> None:
    """Adds the options of micro-controllers."""
    group = command.add_argument_group(f"micro-controllers (--target {', '.join(MICRO_CONTROLLERS)})")
    for flag, what in (("--ram", "RAM for the engine's arena, without the stack"), ("--flash", "flash for the engine")):
        group.add_argument(
            flag, type=parsers.binary_size, metavar="SIZE", help=f"{what}, such as 256K or 1M (multiples of 1024 bytes)"
        )
    group.add_argument(
        "--calibration", metavar="PATH", help="with --precision int8: typical inputs, as for `pelton build`"
    )


def target(args: argparse.Namespace) -> str | None:
    """Returns the target by the name that builds know it by."""
    return f"cpu:{MICRO_CONTROLLERS[args.target]}" if args.target in MICRO_CONTROLLERS else args.target


def check(args: argparse.Namespace) -> None:
    """Raises InputError for options of micro-controllers with another target."""
    given = [f"--{name}" for name in ("ram", "flash", "calibration") if getattr(args, name) is not None]
    if given and args.target not in MICRO_CONTROLLERS:
        raise InputError(
            f"{' and '.join(given)}: only for micro-controllers; add --target and one of {', '.join(MICRO_CONTROLLERS)}"
        )


def report(args: argparse.Namespace, coverage: Coverage, coverage_lines: list[str]) -> int:
    """Prints whether a model can be built and fits; returns the exit status."""
    facts: dict[str, Any] = coverage.json()
    if not coverage.ok or coverage.needs_python:
        reasons = [f"a micro-controller has no Python for {part}" for part in coverage.needs_python]
        output.emit(args, facts) if args.json else print("\n".join([*coverage_lines, *reasons]))
        return 1
    engine = build_for(args.target, args.model, _options(args), quiet=args.quiet or args.json)
    with Needs("building engines"):
        from pelton import mcu
    of = mcu.budget(engine.plain, args.ram, args.flash)
    output.emit(args, {**facts, "budget": of.json()}) if args.json else print("\n".join(lines(of, coverage.model)))
    return 0 if of.fits else 1


def _options(args: argparse.Namespace) -> dict[str, Any]:
    fields = {
        "shapes": arguments.shapes(args) or None,
        "outputs": tuple(args.outputs) or None,
        "weights": args.weights,
        "strict": args.strict or None,
        "precision": args.precision,
        "calibration": args.calibration,
    }
    return {name: value for name, value in fields.items() if value is not None}


def lines(of: Budget, model: str) -> list[str]:
    """Returns lines for people: the sizes, all layers, the limits that are exceeded, and what would help."""
    rows = [("", "layer", "RAM", "scratch", "weights", "code")]
    rows += [
        (str(i), x.name, f"{x.live:,}", f"{x.scratch:,}" if x.scratch else "", f"{x.weights:,}", f"{x.code:,}")
        for i, x in enumerate(of.layers)
    ]
    verdict = f"{model} fits into {of.core}" if of.fits else f"{model} does not fit into {of.core}"
    if of.ram is None and of.flash is None:
        verdict = f"{model} on {of.core}"
    styles = {of.peak + 1: "red"} if of.over else {}
    out = [verdict, table(of.footprint), "", text.table(rows, "rlrrrr", indent="  ", styles=styles), ""]
    out.append("  bytes; RAM: live while the layer runs; weights and code: of the first layer that needs them")
    if of.layers:
        out.append(f"  layer {of.peak} takes the most RAM: {of.layers[of.peak].name}")
    out += [f"{line}" for line in of.over]
    return [*out, *(f"  → {line}" for line in of.advice)]
