"""`pelton convert`: writes a model of any format that Pelton reads as an ONNX or a StableHLO file."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from pelton.errors import InputError, Needs

from . import arguments, arrays, output, text

STABLEHLO = (".stablehlo", ".mlir")  # endings of files in MLIR
EXAMPLES = """examples:
  pelton convert yolov3.cfg --weights yolov3.weights             writes yolov3.onnx
  pelton convert model.tflite -o model.onnx
  pelton convert model.onnx -o again.onnx --opset 23             the imported program: constants folded, sizes named
  pelton convert model.onnx -o part.onnx --outputs layer3        only the nodes that this tensor needs
  pelton convert model.onnx -o model.stablehlo --shapes x=1x3x224x224    for XLA and IREE; .mlir is the same

Operators without an equivalent in ONNX or StableHLO are errors that name the layer."""


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "convert",
        help="convert a model of any format to ONNX or StableHLO",
        epilog=EXAMPLES,
        description="Converts a model of any format to an ONNX file, or to StableHLO, which TPUs and IREE run.",
    )
    command.add_argument("model", help="a model in ONNX or another format (`pelton formats`)")
    command.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="file to write: StableHLO if it ends in .stablehlo or .mlir, else ONNX (default: the model's name with"
        " .onnx, in the current folder)",
    )
    arguments.add_weights(command)
    command.add_argument(
        "--opset", type=arguments.int_in_range(1, 999, "opset"), metavar="N", help="opset of the ONNX file, 18 or later"
    )
    command.add_argument(
        "--external", action="store_true", help="store an ONNX file's weights in FILE.data (default: above 2 GB)"
    )
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
    stablehlo = path.suffix in STABLEHLO
    for option, given in (("--opset", args.opset), ("--external", args.external)):
        if stablehlo and given:
            raise InputError(f"{option} is for ONNX files; {path} is written as StableHLO")
    source = importers.load(
        arguments.model_files(args),
        arguments.shapes(args) or None,
        tuple(args.outputs) or None,
        accept_conversion=bool(args.accept_conversion),
    )
    if stablehlo:
        module = exporters.to_stablehlo(source.graph, path)
        facts: dict[str, Any] = {"format": "StableHLO", "operations": module.operations}
        shown = f"StableHLO, {text.count(module.operations, 'operation')}"
    else:
        model = exporters.to_onnx(source.graph, path, opset=args.opset, external=args.external or None)
        version = next(o.version for o in model.opset_import if not o.domain)
        facts = {"format": "ONNX", "nodes": len(model.graph.node), "opset": version}
        shown = f"{text.count(len(model.graph.node), 'node')}, opset {version}"
    size = path.stat().st_size
    if args.json:
        output.emit(args, {"file": str(path), **facts, "bytes": size, "conversion": source.info.conversion})
    elif not args.quiet:
        print(f"{path}: {shown}, {text.size(size)}")
        if source.info.conversion:
            print(f"  conversion: {source.info.conversion}")
