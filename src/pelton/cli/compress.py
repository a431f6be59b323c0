"""`pelton compress`: writes a trained model with weights of 4 or 8 bits."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pelton import progress
from pelton.errors import InputError
from pelton.system import files

from . import arguments, arrays, output, parsers, text

EXAMPLES = """examples:
  pelton compress model.onnx -o small.onnx --data samples.npz --max-drop 0.05   weights of 4 bits, within a bound
  pelton compress model.onnx -o small.pelton --weights int8                     an engine, without data
  pelton compress model.onnx -o small.onnx --data samples.npz --head float --keep "decoder.0.*"
  pelton compress model.onnx -o sparse.onnx --weights float --sparsity 2:4 --data samples.npz

The ONNX file has DequantizeLinear in front of products, of opset 21, which other runtimes read, too. docs/compress.md
describes the methods and the report."""

SETTINGS = (
    *("to", "weights", "block", "zero_points", "method", "data", "max_drop", "head", "embedding", "keep"),
    *("sparsity", "cluster", "perplexity", "threads"),
)
COURSE: progress.Course = (("import", 0.05), ("calibrate", 0.7), ("accuracy", 0.2))


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "compress",
        help="compress a model's weights to few bits",
        epilog=EXAMPLES,
        description="Compresses the weights of a trained FP32 model to 4 or 8 bits, within a bound on its accuracy.",
    )
    command.add_argument("model", help="a model in ONNX or another format (`pelton formats`)")
    command.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="file to write, .onnx or .pelton (default: the model's name with .small.onnx, in the current folder)",
    )
    command.add_argument("--to", choices=("onnx", "engine"), help="what to write (default: by the name of the file)")
    _add_weights(command.add_argument_group("weights"))
    _add_accuracy(command.add_argument_group("accuracy"))
    arguments.add_repeatable(command, "--shapes", "NAME=SIZES", arguments.SHAPE_HELP)
    arguments.add_threads(command)
    command.add_argument(
        "--level", type=parsers.int_in_range(0, 5, "level"), metavar="N", help="engines: tuning effort, 0 to 5"
    )
    command.add_argument("--target", metavar="WHAT", help="engines: the target, as for `pelton build`")
    command.add_argument("--report", metavar="FILE", help="also write the report as a JSON file")
    output.add_json(command)
    return command


def _add_weights(group: argparse._ArgumentGroup) -> None:
    types = ("int4", "int8", "float")
    group.add_argument(
        "--weights", choices=types, default="int4", help="type of weights (default int4); float: only zeros or clusters"
    )
    group.add_argument(
        "--block", type=int, choices=(16, 32, 64, 128), default=32, help="weights that share a scale (default 32)"
    )
    group.add_argument("--zero-points", action="store_true", help="a zero point for each block (default: symmetric)")
    group.add_argument(
        "--method",
        choices=("auto", "nearest", "clip", "gptq"),
        default="auto",
        help="auto (default): the one of least error for each layer",
    )
    group.add_argument("--head", choices=types, help="type of the last product (default int8, or float as --weights)")
    group.add_argument("--embedding", choices=types, help="type of tables for lookups (default as for --head)")
    arguments.add_repeatable(group, "--keep", "NAME", 'layers to keep in float, as in "decoder.*" (repeatable)')
    group.add_argument(
        "--sparsity", metavar="X", help="share of weights that become 0, such as 0.8, or 2:4 for 2 of 4 that stay"
    )
    group.add_argument(
        "--cluster",
        type=parsers.int_in_range(2, 256, "values"),
        metavar="N",
        help="with --weights float: number of values that the weights of a layer share",
    )


def _add_accuracy(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--data", metavar="FILE", help="typical inputs (.npz): better rounding, and a measured accuracy")
    group.add_argument(
        "--max-drop",
        type=parsers.positive,
        metavar="X",
        help="maximum share of samples with another answer; layers get 8 bits, then stay float, until it holds"
        " (default: unbounded)",
    )
    group.add_argument(
        "--perplexity", action="store_true", help="also measure the perplexity of the next tokens of the input"
    )


def main(args: argparse.Namespace) -> None:
    import pelton

    target = args.output or f"{arguments.stem(args.model)}.small.{'pelton' if args.to == 'engine' else 'onnx'}"
    for path in filter(None, (target, args.report)):
        arrays.check_target(path)
        if os.path.exists(path) and os.path.exists(args.model) and os.path.samefile(path, args.model):
            raise InputError(f"{path} is the model itself; name another file with -o")
    build = {"level": args.level, "target": args.target}
    with progress.show_progress(not args.quiet, COURSE) as tell:
        compressed = pelton.compress(
            args.model,
            target,
            shapes=arguments.shapes(args) or None,
            progress=tell,
            **{name: getattr(args, name) for name in SETTINGS},
            **{name: value for name, value in build.items() if value is not None},
        )
    size = Path(target).stat().st_size
    facts = {"file": target, "bytes": size, **compressed.report}
    if args.report:
        _write_report(args.report, {"pelton": pelton.__version__, **facts})
    if args.json:
        output.emit(args, facts)
    elif not args.quiet:
        print("\n".join(lines(facts)))


def _write_report(path: str, facts: Mapping[str, Any]) -> None:
    try:
        files.write(path, [json.dumps(output.plain(facts), indent=1).encode() + b"\n"])
    except OSError as e:
        raise InputError(f"{path} cannot be written: {e.strerror}") from None


def lines(facts: Mapping[str, Any]) -> list[str]:
    """Formats a report for people: the file, its layers, the kept weights, the accuracy."""
    before, after = facts["bytes_before"], facts["bytes_after"]
    rows: list[tuple[str, ...]] = [("layer", "rows", "method", "bits", "block", "error", "before", "after")]
    rows += [_row(layer) for layer in facts["layers"]]
    out = [
        f"{facts['file']}: {text.size(facts['bytes'])}, weights of {text.size(before)} in {text.size(after)}",
        "",
        text.table(rows, "lllrrrrr", indent="  "),
    ]
    if kept := facts["kept"]:
        out += ["", "  kept as they are:"]
        out += [f"    {k['name']} {text.sizes(k['shape'])}, {text.size(k['bytes'])}: {k['reason']}" for k in kept]
    return [*out, *(["", f"  accuracy: {accuracy(facts)}"] if facts["accuracy"] else [])]


def _row(layer: Mapping[str, Any]) -> tuple[str, ...]:
    error = "" if layer["error"] is None else f"{layer['error']:.1e}"
    return (
        layer["name"],
        text.sizes(layer["shape"]),
        layer["method"],
        str(layer["bits"]),
        str(layer["block"] or ""),
        error,
        text.size(layer["bytes_before"]),
        text.size(layer["bytes_after"]),
    )


def accuracy(facts: Mapping[str, Any]) -> str:
    """Describes the accuracy on held-out data."""
    of: Mapping[str, Any] = facts["accuracy"]
    limit = "" if of["max_drop"] is None else f" of {of['max_drop']:g} allowed"
    parts: Sequence[str] = [
        f"drop {of['drop']:.4g}{limit}",
        *([f"{of['agreement']:.1%} of the answers as before"] if "agreement" in of else []),
        *([f"KL divergence {of['kl']:.3g} nats"] if "kl" in of else []),
        *([f"SQNR {of['sqnr_db']:.1f} dB"] if "sqnr_db" in of else []),
        *([f"perplexity {of['perplexity_fp32']:.5g} before, {of['perplexity']:.5g} now"] if "perplexity" in of else []),
    ]
    return ", ".join(parts)
