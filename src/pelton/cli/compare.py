"""`pelton compare`: how far an engine is from its model in float64, by output and by step, and where it overflows."""

from __future__ import annotations

import argparse
import json
import secrets
from typing import TYPE_CHECKING

from pelton import progress
from pelton.errors import InputError, Needs

from . import arguments, arrays, text

if TYPE_CHECKING:
    from pelton.diagnose.compare import Difference, StepDifference, Comparison

EXAMPLES = """examples:
  pelton compare resnet50.onnx resnet50.pelton                       on random inputs, others every time
  pelton compare resnet50.onnx resnet50.pelton --input x=cat.npy     on these
  pelton compare resnet50.onnx resnet50.pelton --tolerance 0.01      accepts errors of outputs up to 1 %
  pelton compare resnet50.onnx resnet50.pelton --top 5 --json

Errors are relative to the largest value of the output. The engine runs once, step by step; the model is evaluated in
float64, which takes seconds to minutes. The exit status is 0 if all outputs are within the tolerance, 1 if one is not
or has infinite elements that the model does not have, 2 if nothing can be compared. `pelton explain MODEL --error`
builds an engine and also shows the error that each step adds by itself."""


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "compare",
        help="say how far an engine is from its model, output by output and step by step",
        epilog=EXAMPLES,
        description="Compares an engine with its model in float64: outputs, and what every step writes.",
    )
    command.add_argument("model", help="the ONNX file that the engine was built from")
    command.add_argument("engine", help="an engine file, for CPUs or GPUs")
    command.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="what to run on, as for `pelton run` (default: random)",
    )
    command.add_argument(
        "--shapes",
        action="append",
        default=[],
        metavar="NAME=SIZES",
        help="sizes of random inputs, for engines with dynamic dimensions",
    )
    command.add_argument(
        "--values",
        action="append",
        default=[],
        metavar="NAME=NUMBERS",
        help="the same --values as for `pelton build`",
    )
    command.add_argument(
        "--seed",
        type=arguments.int_in_range(0, 1 << 32, "a seed"),
        metavar="N",
        help="of random inputs (default: another every time)",
    )
    command.add_argument(
        "--tolerance",
        type=arguments.positive,
        metavar="T",
        help=(
            "largest difference of an output, relative to its largest value (default: 2e-3 for fp32, 2e-2 for tf32"
            " and fp16, 6e-2 for bf16)"
        ),
    )
    command.add_argument(
        "--top",
        type=arguments.int_in_range(1, 1 << 20, "steps"),
        default=10,
        metavar="N",
        help="show the N worst steps (default 10)",
    )
    command.add_argument("--json", action="store_true", help="everything as JSON")
    return command


def main(args: argparse.Namespace) -> int:
    import pelton

    with Needs("comparing with models"):
        from pelton.diagnose.compare import compare
    if args.input and (args.shapes or args.seed is not None):
        raise InputError("--shapes and --seed are for random inputs; with --input leave them out")
    engine = pelton.load(args.engine)
    seed = secrets.randbits(32) if args.seed is None else args.seed
    feeds = (
        arrays.load_inputs(engine, args.input)
        if args.input
        else arrays.draw_inputs(engine, arguments.shapes(args), seed)
    )
    values = arguments.parse_pairs(args.values, "--values", "axes=1,2") or None
    with progress.show_progress(not (args.quiet or args.json)) as tell:
        found = compare(args.model, engine, feeds, tolerance=args.tolerance, values=values, progress=tell)
    if args.json:
        print(
            json.dumps(
                {
                    **found.json(),
                    "inputs": {n: list(a.shape) for n, a in feeds.items()},
                    "seed": None if args.input else seed,
                },
                indent=1,
            )
        )
    elif not args.quiet:
        print(
            f"{args.engine} beside {args.model} in float64, on "
            + ", ".join(f"{n} {'x'.join(map(str, a.shape))}" for n, a in feeds.items())
            + ("" if args.input else f", seed {seed}")
        )
        print("\n".join(lines(found, args.top)))
    return 0 if found.ok else 1


def lines(found: Comparison, top: int) -> list[str]:
    out = [
        f"output {o.name}: {o.error:.1e} of its largest value, {o.largest:.4g}{format_nonfinite(o)}"
        for o in found.outputs
    ]
    out.append(f"{'within' if found.ok else 'NOT within'} the tolerance of {found.tolerance:g} ({found.precision})")
    over = sum(s.nonfinite > 0 for s in found.steps)
    if over:
        out.append(
            f"{text.count(over, 'step')} of {len(found.steps)} with infinite or NaN elements where the model has none"
        )
    if found.steps:
        out += [
            "",
            f"the worst of {text.count(len(found.steps), 'step')}, relative to the largest value, errors of earlier"
            " steps included" + (f" ({found.unknown} write no value of the model)" if found.unknown else "") + ":",
            text.table(
                [("step", "off", "largest", "lost", "in", "tactic", "what"), *map(row, found.worst(top))], "rrrrlll"
            ),
        ]
    return out


def format_nonfinite(of: Difference) -> str:
    return f", {text.count(of.nonfinite, 'element')} infinite or NaN" if of.nonfinite else ""


def row(s: StepDifference) -> tuple[str, ...]:
    return (
        f"{s.step}",
        f"{s.error:.1e}",
        f"{s.largest:.4g}",
        f"{s.nonfinite}" if s.nonfinite else "",
        s.dtype,
        text.shortened(s.tactic.partition("@")[0], 40),
        text.shortened("+".join(s.layers) or s.op, 60),
    )
