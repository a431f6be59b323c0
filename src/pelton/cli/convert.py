"""`pelton convert`: writes a model of any format that Pelton reads as an ONNX, TFLite or StableHLO file."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pelton.errors import InputError, ModelError, Needs

from . import arguments, arrays, output, parsers, text

if TYPE_CHECKING:
    from pelton.exporters.tflite import TFLiteFile
    from pelton.ir.graph import Graph
    from pelton.ir.imported import Imported

# endings of files; others are ONNX
FORMATS = {".tflite": "TFLite", ".stablehlo": "StableHLO", ".mlir": "StableHLO"}
EXAMPLES = """examples:
  pelton convert yolov3.cfg --weights yolov3.weights             writes yolov3.onnx
  pelton convert model.tflite -o model.onnx
  pelton convert model.onnx -o again.onnx --opset 23             the imported program: constants folded, sizes named
  pelton convert model.onnx -o part.onnx --outputs layer3        only the nodes that this tensor needs
  pelton convert model.onnx -o model.tflite                      images become [batch, height, width, channels]
  pelton convert model.onnx -o model.tflite --shapes x=1x3x224x224 --calibration inputs.npz --int8-ports
                                                                 integers only, for accelerators such as the Edge TPU
  pelton convert model.onnx -o model.stablehlo --shapes x=1x3x224x224    for XLA and IREE; .mlir is the same

Operators without an equivalent in the format are errors that name the layers."""

SHOWN = 10  # operators of a report for the Edge TPU
ONNX_ONLY, TFLITE_ONLY = ("opset", "external"), ("layout", "calibration", "calibrator", "int8_ports")


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "convert",
        help="convert a model of any format to ONNX, TFLite or StableHLO",
        epilog=EXAMPLES,
        description="Converts a model of any format to an ONNX, TFLite or StableHLO file, by the end of its name.",
    )
    command.add_argument("model", help="a model in ONNX or another format (`pelton formats`)")
    command.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="file to write: .onnx, .tflite, .stablehlo or .mlir (default: the model's name with .onnx, in the current"
        " folder)",
    )
    arguments.add_weights(command)
    command.add_argument(
        "--opset", type=parsers.int_in_range(1, 999, "opset"), metavar="N", help="opset of the ONNX file, 18 or later"
    )
    command.add_argument(
        "--external", action="store_true", help="store an ONNX file's weights in FILE.data (default: above 2 GB)"
    )
    group = command.add_argument_group("TFLite")
    group.add_argument(
        "--layout",
        choices=("nhwc", "nchw"),
        help="order of axes of images as inputs and outputs: nhwc (default), or nchw to keep the model's",
    )
    group.add_argument(
        "--calibration",
        metavar="PATH",
        help="write a model of 8-bit integers: typical inputs (.npz, or a folder of pictures), or a calibration table",
    )
    group.add_argument(
        "--calibrator",
        choices=("entropy", "minmax", "percentile", "mse"),
        help="the algorithm that computes scales (default: entropy)",
    )
    group.add_argument(
        "--int8-ports", action="store_true", help="with --calibration: inputs and outputs are 8-bit integers, too"
    )
    arguments.add_part(command)
    arguments.add_acceptance(command)
    output.add_json(command)
    return command


def main(args: argparse.Namespace) -> None:
    with Needs("converting models"):
        from pelton import importers  # noqa: F401
    path = Path(args.output or arguments.stem(args.model) + ".onnx")
    kind = FORMATS.get(path.suffix, "ONNX")
    _check_options(args, kind)
    arrays.check_target(str(path))
    if path.exists() and os.path.exists(args.model) and os.path.samefile(path, args.model):
        raise InputError(f"{path} is the model itself; name another file with -o")
    source = _loaded(args, kind)
    {"ONNX": _write_onnx, "StableHLO": _write_stablehlo, "TFLite": _write_tflite}[kind](args, source, path)


def _loaded(args: argparse.Namespace, kind: str) -> Imported:
    from pelton import importers
    from pelton.ir.imported import OnData

    try:
        return importers.load(
            arguments.model_files(args),
            arguments.shapes(args) or None,
            tuple(args.outputs) or None,
            accept_conversion=bool(args.accept_conversion),
        )
    except OnData as e:
        raise ModelError(
            f"{e}; Pelton writes {kind} files of models without such parts: set sizes with --shapes, write a part of"
            " the model with --outputs, or build it (pelton build), which runs these parts in steps"
        ) from None


def _check_options(args: argparse.Namespace, kind: str) -> None:
    for of, suffix, names in (("ONNX", ".onnx", ONNX_ONLY), ("TFLite", ".tflite", TFLITE_ONLY)):
        for name in names if kind != of else ():
            if getattr(args, name, None):
                option = "--" + name.replace("_", "-")
                raise InputError(f"{option} is for {of} files; write one with -o FILE{suffix}, or leave it out")
    for name in ("calibrator", "int8_ports"):
        if getattr(args, name) and not args.calibration:
            raise InputError(f"--{name.replace('_', '-')} needs --calibration, the inputs to choose scales from")


def _write_onnx(args: argparse.Namespace, source: Imported, path: Path) -> None:
    from pelton import exporters

    model = exporters.to_onnx(source.graph, path, opset=args.opset, external=args.external or None)
    version, nodes = next(o.version for o in model.opset_import if not o.domain), len(model.graph.node)
    shown = f"{text.count(nodes, 'node')}, opset {version}"
    _report(args, source, path, {"format": "ONNX", "nodes": nodes, "opset": version}, shown)


def _write_stablehlo(args: argparse.Namespace, source: Imported, path: Path) -> None:
    from pelton import exporters

    operations = exporters.to_stablehlo(source.graph, path).operations
    shown = f"StableHLO, {text.count(operations, 'operation')}"
    _report(args, source, path, {"format": "StableHLO", "operations": operations}, shown)


def _report(args: argparse.Namespace, source: Imported, path: Path, facts: dict[str, Any], shown: str) -> None:
    size = path.stat().st_size
    if args.json:
        output.emit(args, {"file": str(path), **facts, "bytes": size, "conversion": source.info.conversion})
    elif not args.quiet:
        print(f"{path}: {shown}, {text.size(size)}")
        if source.info.conversion:
            print(f"  conversion: {source.info.conversion}")


# --- TFLite


def _write_tflite(args: argparse.Namespace, source: Imported, path: Path) -> None:
    from pelton.exporters import tflite

    graph = _quantized(args, source.graph) if args.calibration else source.graph
    file = tflite.to_tflite(graph, path, layout=args.layout or "nhwc")
    rejections = tflite.edgetpu.rejections(file.operators)
    count = len(file.operators)
    if args.json:
        ports = {"inputs": _ports(file.inputs), "outputs": _ports(file.outputs)}
        listed = {"listed": count - len(rejections), "others": [r.facts() for r in rejections]}
        facts = {"file": str(path), "operators": count, "bytes": len(file.data), **ports, "edgetpu": listed}
        output.emit(args, facts | {"conversion": source.info.conversion})
    elif not args.quiet:
        _print_tflite(path, file, rejections)
        if source.info.conversion:
            print(f"  conversion: {source.info.conversion}")


def _print_tflite(path: Path, file: TFLiteFile, rejections: list[Any]) -> None:
    count = len(file.operators)
    print(f"{path}: {text.count(count, 'operator')}, {text.size(len(file.data))}")
    for kind, side in (("input", file.inputs), ("output", file.outputs)):
        for name, port in _ports(side).items():
            print(f"  {kind} {name}: {port}")
    if not any(t is not None and t.scaling for op in file.operators for t in op.inputs):
        print(f"  Edge TPU: 0 of {text.count(count, 'operator')} are in its list, of 8-bit integers (--calibration)")
        return
    print(f"  Edge TPU: {count - len(rejections)} of {text.count(count, 'operator')} are in its list")
    for r in rejections[:SHOWN]:
        print(f"    {r.operator} ({r.layer}): {r.reason}")
    if len(rejections) > SHOWN:
        print(f"    and {len(rejections) - SHOWN} others; --json has all")


def _ports(side: Any) -> dict[str, str]:
    from pelton.ir.types import TensorType

    return {name: str(TensorType(t.dtype, t.shape)) for name, t in side.items()}


def _quantized(args: argparse.Namespace, graph: Graph) -> Graph:
    """Calibrates a program and quantizes all that TFLite has integers for."""
    from pelton.calibration import calibrate
    from pelton.calibration.calibrators import CALIBRATORS
    from pelton.exporters import tflite
    from pelton.options import Options

    graph = tflite.prepared(graph, integers=True)
    data = CALIBRATORS[args.calibrator](args.calibration) if args.calibrator else args.calibration
    table = calibrate(graph, data, names=tflite.calibrated_values(graph), options=Options())
    ranges = {}
    for name, scale in table.scales.items():
        amax = 127 * float(scale)
        ranges[name] = (max(table.lows.get(name, -amax), -amax), amax)
    return tflite.quantized(graph, ranges, ports=args.int8_ports)
