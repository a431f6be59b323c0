"""`pelton convert`: writes a model of any format that Pelton reads as an ONNX file."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pelton.errors import InputError, Needs

from . import arguments, arrays, output, parsers, text

EXAMPLES = """examples:
  pelton convert yolov3.cfg --weights yolov3.weights             writes yolov3.onnx
  pelton convert model.tflite -o model.onnx
  pelton convert model.onnx -o again.onnx --opset 23             the imported program: constants folded, sizes named
  pelton convert model.onnx -o part.onnx --outputs layer3        only the nodes that this tensor needs

Operators without an equivalent in ONNX are errors that name the layer."""


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "convert",
        help="convert a model of any format to ONNX",
        epilog=EXAMPLES,
        description="Converts a model of any format to an ONNX file.",
    )
    command.add_argument("model", help="a model in ONNX or another format (`pelton formats`)")
    command.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="ONNX file to write (default: the model's name with .onnx, in the current folder)",
    )
    arguments.add_weights(command)
    command.add_argument(
        "--opset", type=parsers.int_in_range(1, 999, "opset"), metavar="N", help="opset of the ONNX file, 18 or later"
    )
    command.add_argument("--external", action="store_true", help="store weights in FILE.data (default: above 2 GB)")
    arguments.add_part(command)
    arguments.add_acceptance(command)
    output.add_json(command)
    return command


def main(args: argparse.Namespace) -> None:
    with Needs("converting models"):
        from pelton import exporters, importers
    target = args.output or arguments.stem(args.model) + ".onnx"
    arrays.check_target(target)
    path = Path(target)
    if path.exists() and os.path.exists(args.model) and os.path.samefile(path, args.model):
        raise InputError(f"{path} is the model itself; name another file with -o")
    source = importers.load(
        arguments.model_files(args),
        arguments.shapes(args) or None,
        tuple(args.outputs) or None,
        accept_conversion=bool(args.accept_conversion),
    )
    model = exporters.to_onnx(source.graph, path, opset=args.opset, external=args.external or None)
    version, size = next(o.version for o in model.opset_import if not o.domain), path.stat().st_size
    if args.json:
        facts = {"file": str(path), "nodes": len(model.graph.node), "opset": version, "bytes": size}
        output.emit(args, facts | {"conversion": source.info.conversion})
    elif not args.quiet:
        print(f"{path}: {text.count(len(model.graph.node), 'node')}, opset {version}, {text.size(size)}")
        if source.info.conversion:
            print(f"  conversion: {source.info.conversion}")
