"""`pelton compare`: difference of an engine from its model in float64, by output and by step, and its overflows."""

from __future__ import annotations

import argparse
import secrets
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np

from pelton import progress
from pelton.errors import EngineError, InputError, Needs

from . import arguments, arrays, output, parsers, peers, text

if TYPE_CHECKING:
    from pelton.diagnose.compare import Comparison, OutputDifference, StepDifference
    from pelton.diagnose.differences import Difference, InScales
    from pelton.runtime import Engine

# columns of quantized values: the scale, the maximum number of steps of it, shares of elements
HEAD = ("scale", "steps", "by one", "by more")

EXAMPLES = """examples:
  pelton compare resnet50.onnx resnet50.pelton                       on random inputs, others every time
  pelton compare resnet50.onnx resnet50.pelton --input x=cat.npy     on these
  pelton compare resnet50.onnx resnet50.pelton --tolerance 0.01      accepts errors of outputs up to 1 %
  pelton compare resnet50.onnx resnet50.pelton --top 5 --json
  pelton compare net.qdq.onnx net.pelton --data pictures.npz --with onnxruntime --peers-python ~/peers/bin/python

Errors are relative to the largest value of the output. SQNR, in dB, is 10·log10 of signal power by noise power.
Agreement is the share of rows (along the last axis of more than one element) with their largest element in the same
position. The engine runs step by step; evaluating the model in float64 takes seconds to minutes for each sample.

Errors of quantized tensors are also given in steps of their scale. A quotient between two integers may round to either
in f32, and later values then differ by other samples of the same noise. So for quantized models, the model's own noise,
with every value rounded to its type, is shown as well. The exit status is 0 if each output is within the tolerance, or
if quantized outputs are within --steps, or if outputs of a quantized model have at most twice the model's own noise (6
dB); 1 if not, or if an output has infinite elements that the model's has not; 2 if nothing can be compared. `pelton
explain MODEL --error` builds an engine and also shows the error that each step adds."""


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "compare",
        help="compare an engine with its model, step by step",
        epilog=EXAMPLES,
        description="Compares an engine with its model in float64: outputs, and the results of each step.",
    )
    command.add_argument("model", help="the engine's model")
    command.add_argument("engine", help="an engine file, for CPUs or GPUs")
    arguments.add_inputs(command)
    command.add_argument(
        "--data",
        metavar="FILE",
        help="an .npz file with an array per input, samples along the first axis; all are compared",
    )
    command.add_argument(
        "--with",
        dest="others",
        action="append",
        default=[],
        choices=peers.RUNNERS,
        help="also compare this runtime's outputs of the model (repeatable)",
    )
    command.add_argument("--peers-python", metavar="PYTHON", help="a Python with this runtime (default: this one)")
    arguments.add_repeatable(
        command, "--shapes", "NAME=SIZES", "sizes of random inputs of engines with dynamic dimensions"
    )
    arguments.add_weights(command)
    arguments.add_repeatable(command, "--values", "NAME=NUMBERS", "the --values of `pelton build`")
    command.add_argument(
        "--seed",
        type=parsers.int_in_range(0, 1 << 32, "a seed"),
        metavar="N",
        help="seed of random inputs (default: a new one each time)",
    )
    command.add_argument(
        "--tolerance",
        type=parsers.positive,
        metavar="T",
        help=(
            "maximum error of an output, relative to its largest value (default: 2e-3 for fp32, 2e-2 for tf32 and"
            " fp16, 6e-2 for bf16, 0.1 for int8)"
        ),
    )
    command.add_argument(
        "--steps",
        type=parsers.int_in_range(0, 255, "steps"),
        default=1,
        metavar="N",
        help="maximum error of quantized outputs, in steps of their scale (default 1)",
    )
    command.add_argument(
        "--top",
        type=parsers.int_in_range(1, 1 << 20, "steps"),
        default=10,
        metavar="N",
        help="list the N steps with the largest errors (default 10)",
    )
    output.add_json(command)
    arguments.add_trust(command)
    return command


def main(args: argparse.Namespace) -> int:
    import pelton

    with Needs("comparing with models"):
        from pelton.diagnose.compare import compare
    if args.input and args.data:
        raise InputError("--input is one set of inputs, --data several; use only one of them")
    if (args.input or args.data) and (args.shapes or args.seed is not None):
        raise InputError("--shapes and --seed are for random inputs; with --input or --data leave them out")
    if args.peers_python and not args.others:
        raise InputError(f"--peers-python is an option of --with; add --with {peers.RUNNERS[0]}")
    engine = pelton.load(args.engine, trust=args.trust)
    seed = None
    if args.data:
        feeds = arrays.load_data(engine, args.data)
    elif args.input:
        feeds = [arrays.load_inputs(engine, args.input)]
    else:
        seed = secrets.randbits(32) if args.seed is None else args.seed
        feeds = [arrays.draw_inputs(engine, arguments.shapes(args), seed)]
    values = parsers.parse_pairs(args.values, "--values", "axes=1,2") or None
    with ExitStack() as stack:
        others = start_others(stack, args, engine, feeds[0])
        # InputError means a model that does not fit the engine
        stack.enter_context(arrays.sizes_in_errors(engine, feeds[0], seed is not None, of=(EngineError,)))
        tell = stack.enter_context(progress.show_progress(not args.quiet))
        comparison = compare(
            arguments.model_files(args),
            engine,
            feeds,
            tolerance=args.tolerance,
            steps=args.steps,
            values=values,
            others=others,
            progress=tell,
        )
    if args.json:
        shapes = {n: list(np.shape(a)) for n, a in feeds[0].items()}
        output.emit(args, {**comparison.json(), "inputs": shapes, "seed": seed})
    elif not args.quiet:
        print(
            f"{args.engine} compared with {args.model} in float64, on "
            + (f"{text.count(len(feeds), 'sample')} of " if args.data else "")
            + arrays.sizes_in_words(feeds[0])
            + ("" if seed is None else f", seed {seed}")
        )
        print("\n".join(lines(comparison, args.top)))
        if engine.parts != (engine,):
            kind = "has profiles:" if engine.meta.get("profiles") else "is a script over"
            print(f"steps are not compared: the engine {kind} {text.count(len(engine.parts), 'engine')}")
    return 0 if comparison.ok else 1


def start_others(
    stack: ExitStack, args: argparse.Namespace, engine: Engine, feeds: Mapping[str, np.ndarray]
) -> dict[str, peers.PeerRunner]:
    """Starts the other runtimes, with their versions, in processes that end with the stack."""
    runners: dict[str, peers.PeerRunner] = {}
    folder = stack.enter_context(tempfile.TemporaryDirectory()) if args.others else ""
    model = peers.onnx_file(args.model, arguments.model_files(args), folder) if args.others else ""
    for name in dict.fromkeys(args.others):
        runner = peers.PeerRunner(
            name,
            model,
            feeds,
            [p.name for p in engine.outputs],
            threads=engine.meta.get("threads") or 1,
            folder=folder,
            python=args.peers_python,
        )
        stack.callback(runner.end)
        runners[f"{name} {runner.version}".strip()] = runner
    return runners


def lines(found: Comparison, top: int) -> list[str]:
    out: list[str] = []
    for i, o in enumerate(found.outputs):
        largest = f", {o.largest:.4g}" if o.largest else ""
        line = f"output {o.name}: {o.error:.1e} of its largest value{largest}{format_nonfinite(o)}"
        rows = [("the engine", o), *((name, of[i]) for name, of in found.others.items())]
        rows += [("the model, rounded to its types", found.rounded[i])] if found.rounded else []
        if len(rows) == 1:
            out.append(
                line
                + (f"; SQNR {format_decibels(o.sqnr)} dB" if o.sqnr is not None else "")
                + ("" if o.agreement is None else f", agreement {100 * o.agreement:.2f} %")
            )
            continue
        cells = [("", "SQNR dB", "agrees", *(HEAD if o.quantized else ())), *(output_row(*r) for r in rows)]
        out += [line, text.table(cells, "l" + "r" * (len(cells[0]) - 1), indent="  ")]
    out.append(format_verdict(found))
    over = sum(s.nonfinite > 0 for s in found.steps)
    if over:
        out.append(
            f"{text.count(over, 'step')} of {len(found.steps)} with infinite or NaN elements where the model has none"
        )
    if found.steps:
        worst, scaled = found.worst(top), any(s.quantized for s in found.steps)
        head = ("step", "off", "largest", "lost", "SQNR dB", *(HEAD if scaled else ()), "in", "tactic", "what")
        out += [
            "",
            f"the worst of {text.count(len(found.steps), 'step')}, relative to the largest value, errors of earlier"
            " steps included" + (f" ({found.unknown} write no value of the model)" if found.unknown else "") + ":",
            text.table([head, *(row(s, scaled) for s in worst)], "r" * (len(head) - 3) + "lll"),
        ]
    return out


def format_verdict(found: Comparison) -> str:
    more = f", or {text.count(found.allowed, 'step')}, or the noise of rounding" if found.rounded else ""
    return f"{'within' if found.ok else 'NOT within'} the tolerance of {found.tolerance:g} ({found.precision}){more}"


def output_row(who: str, o: OutputDifference) -> tuple[str, ...]:
    agreement = "" if o.agreement is None else f"{100 * o.agreement:.2f} %"
    return (who, format_decibels(o.sqnr), agreement, *(format_quantized(o.quantized) if o.quantized else ()))


def format_decibels(sqnr: float | None) -> str:
    if sqnr is None:
        return ""
    return f"{sqnr:.1f}"


def format_quantized(found: InScales) -> tuple[str, ...]:
    """Formats the cells under HEAD."""
    return (f"{found.scale:.3g}", f"{found.steps:.0f}", f"{100 * found.one:.3g} %", f"{100 * found.more:.3g} %")


def format_nonfinite(of: Difference) -> str:
    return f", {text.count(of.nonfinite, 'element')} infinite or NaN" if of.nonfinite else ""


def row(s: StepDifference, scaled: bool) -> tuple[str, ...]:
    quantized = format_quantized(s.quantized) if s.quantized else ("",) * len(HEAD)
    return (
        f"{s.step}",
        f"{s.error:.1e}",
        f"{s.largest:.4g}" if s.largest else "",
        f"{s.nonfinite}" if s.nonfinite else "",
        format_decibels(s.sqnr),
        *(quantized if scaled else ()),
        s.dtype,
        text.shortened(s.tactic.partition("@")[0], 40),
        text.shortened("+".join(s.layers) or s.op, 60),
    )
