"""`pelton run`: runs an engine once on arrays or pictures, and writes its outputs or prints the likeliest classes."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.errors import InputError, near

from . import arguments, arrays, build, output, parsers, text

if TYPE_CHECKING:
    from pelton.runtime import Engine

EXAMPLES = """examples:
  pelton run model.pelton --input x=input.npy --output y.npy
  pelton run model.pelton --input inputs.npz --output outputs.npz            several inputs and outputs, by their names
  pelton run resnet50.pelton --input x=cat.jpg --top 5                       an engine built with --image and --labels
  pelton run resnet50.pelton --input cat.jpg --image "224x224 rgb" --top 5   the same for an engine built without them

Without --output and --top, prints a line for each output."""
SHOWN = 8  # rows of a batch printed by --top


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "run", help="run an engine once", description="Runs an engine once on arrays or pictures.", epilog=EXAMPLES
    )
    command.add_argument("engine", help="an engine file")
    arguments.add_repeatable(
        command, "--input", "NAME=FILE", ".npy, .npz or a picture; engines with one input need no NAME= (repeatable)"
    )
    arguments.add_repeatable(
        command, "--output", "[NAME=]FILE", ".npy for one output, .npz for all outputs (repeatable)"
    )
    command.add_argument(
        "--top",
        type=parsers.int_in_range(1, 1 << 20, "classes to print"),
        metavar="K",
        help="print the top K classes along the last axis",
    )
    command.add_argument("--image", metavar="HOW", help="preprocessing of pictures (default: that of the engine)")
    arguments.add_threads(command)
    output.add_json(command)
    arguments.add_trust(command)
    return command


def main(args: argparse.Namespace) -> None:
    import pelton

    engine = pelton.load(args.engine, trust=args.trust)
    inputs = arrays.load_inputs(engine, args.input, args.image)
    files = targets(args.output, [p.name for p in engine.outputs])
    outputs = engine.context(threads=args.threads).run(inputs)
    for path, names in files:
        arrays.write(path, {n: outputs[n] for n in names})
    labels = engine.meta.get("labels")
    if args.json:
        top = {} if args.top is None else {"top": best(outputs[engine.outputs[0].name], args.top, labels)}
        output.emit(args, {"engine": args.engine, "outputs": facts(outputs), "files": [f for f, _ in files], **top})
    elif args.top is not None:
        print("\n".join(top_classes(outputs[engine.outputs[0].name], args.top, labels)))
    elif not files and not args.quiet:
        print("\n".join([*describe_outputs(engine, outputs), *build.forms_in_words(engine).values()]))


def targets(given: Sequence[str], names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Returns (path, outputs) for arguments like y.npy, logits=y.npy and all.npz."""
    out = []
    for pair in given:
        name = next((n for n in sorted(names, key=len, reverse=True) if pair.startswith(n + "=")), None)
        path = pair if name is None else pair[len(name) + 1 :]
        meant, equals, _ = path.partition("=")
        if name is None and equals and "/" not in meant:
            raise InputError(
                f"the engine has no output {meant!r}{near(meant, names)}; it has {', '.join(names)} (a file of that"
                f" name is ./{path})"
            )
        if not path.lower().endswith((".npy", ".npz")):
            raise InputError(f"outputs go to .npy or .npz files, got {pair!r}; the outputs are {', '.join(names)}")
        if path.lower().endswith(".npy") and name is None and len(names) > 1:
            raise InputError(
                f"the engine has {len(names)} outputs ({', '.join(names)}): name a file that ends in .npz, or one of"
                f" them, such as --output {names[0]}={path}"
            )
        arrays.check_target(path)
        out.append((path, list(names) if name is None else [name]))
    return out


def best(values: np.ndarray, k: int, labels: Sequence[str] | None) -> list[list[dict[str, Any]]]:
    """Returns the k likeliest classes of every row of the last axis: number, label (or None), probability."""
    rows, _ = classes(values)
    return [
        [{"class": int(c), "label": label(labels, c), "probability": float(row[c])} for c in likeliest(row, k)]
        for row in rows
    ]


def likeliest(row: np.ndarray, k: int) -> np.ndarray:
    """Returns the indices of the k largest, the largest first."""
    return np.argsort(-row, kind="stable")[:k]


def label(labels: Sequence[str] | None, c: int) -> str | None:
    return labels[c] if labels and c < len(labels) else None


def classes(values: np.ndarray) -> tuple[np.ndarray, str]:
    """Returns (probabilities of classes, one row for each item; their origin) of an output with classes along its last
    axis; trailing axes of size 1 are ignored. Raises InputError for other outputs."""
    shape = list(values.shape)
    while len(shape) > 1 and shape[-1] == 1:
        shape.pop()
    if not shape or values.dtype.kind not in "fiu" or not values.size:
        raise InputError(
            f"--top needs an output of numbers with classes along its last axis, got {values.dtype}"
            f" {list(values.shape)}"
        )
    return probabilities(values.reshape(-1, shape[-1]).astype(np.float64))


def top_classes(values: np.ndarray, k: int, labels: Sequence[str] | None) -> list[str]:
    """Formats the same in lines, for the first rows."""
    probable, heading = classes(values)
    lines = [heading]
    if labels and len(labels) != probable.shape[1]:
        lines.append(f"(the engine has {len(labels)} labels for {probable.shape[1]} classes)")
    for r, row in enumerate(probable[:SHOWN]):
        if len(probable) > 1:
            lines.append(f"row {r}:")
        for c in likeliest(row, k):
            lines.append(f"  {row[c]:7.4f}  {label(labels, c) or f'class {c}'}")
    if len(probable) > SHOWN:
        lines.append(f"… and {len(probable) - SHOWN} more rows; --output keeps them all")
    return lines


def probabilities(rows: np.ndarray) -> tuple[np.ndarray, str]:
    """Returns (rows as probabilities, a heading that says how), by softmax unless they are probabilities already."""
    if np.isfinite(rows).all() and (rows >= 0).all() and np.allclose(rows.sum(-1), 1, atol=1e-3):
        return rows, "probabilities (the output):"
    shifted = np.exp(rows - rows.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True), "probabilities (softmax of the output):"


def facts(outputs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns element types and sizes of outputs; for numbers the minimum, the mean and the maximum, too."""
    result = dict[str, dict[str, Any]]()
    for name, value in arrays.split_lists(outputs).items():
        x = np.asarray(value)
        result[name] = {"dtype": str(x.dtype), "shape": list(x.shape)}
        if x.size and x.dtype.kind in "fiu":
            x = x.astype(np.float64)
            result[name].update(min=float(x.min()), mean=float(x.mean()), max=float(x.max()))
    return result


def describe_outputs(engine: Engine, outputs: dict[str, np.ndarray]) -> list[str]:
    """Formats a line on each output."""
    lines = []
    for port in engine.outputs:
        for name, value in arrays.split_lists({port.name: outputs[port.name]}).items():
            x = np.asarray(value)
            line = (
                f"{name}"
                f" {dataclasses.replace(port, shape=x.shape) if name == port.name else f'{x.dtype}{list(x.shape)}'}"
            )
            if x.size and x.dtype.kind in "fiu":
                flat = x.astype(np.float64).ravel()
                line += (
                    f": min {flat.min():.6g}, mean {flat.mean():.6g}, max {flat.max():.6g}; begins"
                    f" {', '.join(f'{v:.6g}' for v in flat[:4])}"
                )
            lines.append(text.shortened(line, 200))
    return lines
