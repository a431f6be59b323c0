"""`pelton check`: reports whether a model can be built, all problems, and how each of its operators would run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pelton.errors import Needs
from pelton.targets import MICRO_CONTROLLERS

from . import arguments, check_mcu, flags, output, text

if TYPE_CHECKING:
    from pelton.diagnose.support import Coverage, Operator, Problem

EXAMPLES = """examples:
  pelton check resnet50.onnx                            every problem with its reason, and how each operator would run
  pelton check bert.onnx --shapes input_ids=1x128       the same for known sizes
  pelton check resnet50.onnx --target cuda:sm_90        the same for what a GPU would run
  pelton check resnet50.onnx --no-python                 whether its engine runs in C, without Python
  pelton check resnet50.onnx --json                     for programs
  pelton check net.onnx --target cortex-m4 --ram 256K --flash 1M    does it fit into a micro-controller, layer by layer

Checks time nothing, and compile only for micro-controllers. The exit status is 0 if the model can be built, 1 if not
(with --no-python, also if its engine would need Python; for micro-controllers, also if it does not fit), 2 if it cannot
be read."""
SHOWN = 3  # nodes named in one line
MEANING = (
    ("native", "one op with a kernel"),
    ("decomposed", "several of them"),
    ("host", "a step in numpy, slow"),
    ("constant", "nothing to run"),
)


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "check",
        help="check if a model can be built",
        epilog=EXAMPLES,
        description="Checks if a model can be built: lists all problems, and how each operator would run.",
    )
    command.add_argument("model", help="a model in ONNX or another format (`pelton formats`)")
    output.add_json(command)
    command.add_argument("--strict", action="store_true", help="check for `pelton build --strict`")
    command.add_argument(
        "--no-python", action="store_true", help="fail if parts of the engine would need Python, and list these"
    )
    arguments.add_target(command)
    arguments.add_weights(command)
    arguments.add_memory(command)
    arguments.add_part(command)
    check_mcu.add(command)
    return command


def main(args: argparse.Namespace) -> int:
    check_mcu.check(args)
    with Needs("checking models"):
        from pelton.diagnose.support import diagnose
    precision = None if args.calibration else args.precision  # calibration needs a build, which comes later
    flags = {"target": check_mcu.target(args), "precision": precision, "memory": args.memory}
    flags = {name: value for name, value in flags.items() if value is not None}
    outputs = tuple(args.outputs) or None
    report = diagnose(arguments.model_files(args), arguments.shapes(args) or None, outputs, strict=args.strict, **flags)
    if args.target in MICRO_CONTROLLERS:
        return check_mcu.report(args, report, lines(report))
    if args.json:
        output.emit(args, report.json())
    else:
        print("\n".join(lines(report)))
        if report.ok and args.no_python:
            print("\n".join(python_lines(report)))
    return 1 if not report.ok or (args.no_python and report.needs_python) else 0


def python_lines(found: Coverage) -> list[str]:
    """Returns lines on the parts of the engine that need Python."""
    if not found.needs_python:
        return ["its engine runs without Python: see docs/native.md"]
    return ["its engine needs Python for:", *(f"  {part}" for part in found.needs_python)]


def lines(found: Coverage) -> list[str]:
    """Returns lines for people: the problems, then the operators."""
    if found.ok:
        kinds = [name for name, _ in MEANING]
        rows = [("operator", "nodes", *kinds, "on the host"), *map(row, found.operators)]
        styles = {i: "red" for i, o in enumerate(found.operators, 1) if o.host}
        meaning = ", ".join(f"{name}: {what}" for name, what in MEANING)
        out = [
            f"{found.model} can be built",
            "",
            text.table(rows, "lrrrrrl", indent="  ", styles=styles),
            "",
            f"  {meaning}",
        ]
    else:
        out = [f"{found.model} cannot be built: {text.count(len(found.problems), 'problem')}"]
        for p in found.problems:
            out += ["", *problem(p)]
        counts = [("operator", "nodes"), *((title(o), str(o.nodes)) for o in found.operators)]
        out += ["", text.table(counts, "lr", indent="  ")]
    return [*out, *(f"warning: {flags.translate_options(w)}" for w in found.warnings)]


def problem(p: Problem) -> list[str]:
    """Formats one problem in three lines: place, reason, remedy."""
    where = "the model"
    if p.operator:
        where = f"node {p.node!r}: {p.operator} ({p.domain} {p.opset or '?'}) of {', '.join(p.inputs) or 'nothing'}"
    return [
        f"  {where}",
        f"    {flags.translate_options(p.reason)}",
        f"    → {flags.translate_options(p.advice)}",
    ]


def title(o: Operator) -> str:
    return o.operator if o.domain == "ai.onnx" else f"{o.domain}::{o.operator}"


def row(o: Operator) -> tuple[str, ...]:
    named = ", ".join(o.on_host[:SHOWN]) + (f" and {len(o.on_host) - SHOWN} more" if len(o.on_host) > SHOWN else "")
    return (title(o), *(str(n or "") for n in (o.nodes, o.native, o.decomposed, o.host, o.constant)), named)
