"""`pelton build`: builds an engine file from a model, and summarizes it in a few lines."""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pelton import progress
from pelton.engine import signature
from pelton.errors import Needs
from pelton.options import Options
from pelton.targets import is_gpu

from . import arguments, arrays, output, parsers, text

if TYPE_CHECKING:
    from pelton.runtime import Engine

EXAMPLES = """examples:
  pelton build resnet50.onnx                                    writes resnet50.pelton
  pelton build resnet50.onnx --level 0                          no timing: takes seconds
  pelton build bert.onnx -o bert.pelton --shapes input_ids=1x128,attention_mask=1x128
  pelton build resnet50.onnx --timing-cache times.json          a bit-equal engine from the same times
  pelton build resnet50.onnx --image "224x224 mean=0.485,0.456,0.406 std=0.229,0.224,0.225 rgb" --labels imagenet.txt
                                                                then: pelton run resnet50.pelton --input cat.jpg --top 5

Engines are built for one kind of machine and one number of threads. They contain machine code: run only trusted
engines."""

SHOWN = 6  # names or kinds of host steps
CONTROL = ("if", "loop", "scan")  # steps of scripts that run others


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "build",
        help="build an engine file from a model",
        epilog=EXAMPLES,
        description="Builds an engine file from a model in ONNX or another format (`pelton formats`).",
    )
    command.add_argument("model", help="a model in ONNX or another format (`pelton formats`)")
    command.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="engine file to write (default: the model's name with .pelton, in the current folder)",
    )
    arguments.add_threads(command)
    arguments.add_hint(command)
    arguments.add_build(command)
    command.add_argument(
        "--check",
        action="store_true",
        help="run the engine once on random inputs, and fail if a kernel's outputs are wrong in float64 (CPUs)",
    )
    pictures = command.add_argument_group("image inputs (stored in the engine, used by `pelton run`)")
    pictures.add_argument(
        "--image",
        metavar="HOW",
        help='preprocessing of pictures: "HEIGHTxWIDTH [crop=F|shorter=N|stretch|letterbox[=R,G,B]] [bicubic|…]'
        " [mean=R,G,B] [std=R,G,B] [scale=F] [rgb|bgr|gray]\", or Hugging Face's preprocessor_config.json",
    )
    pictures.add_argument("--labels", metavar="FILE", help="class names, one per line")
    kept = command.add_argument_group("contents of the engine file")
    arguments.add_repeatable(
        kept, "--metadata", "NAME=TEXT", "a text to store in the engine, shown by `pelton inspect` (repeatable)"
    )
    kept.add_argument(
        "--refit",
        action="store_true",
        default=None,
        help="make the engine refittable with other weights (see `pelton refit`)",
    )
    kept.add_argument(
        "--strip-weights",
        action="store_true",
        default=None,
        help="omit all refittable weights: `pelton refit` adds them to the small file",
    )
    kept.add_argument(
        "--sign", metavar="KEY", help="sign the engine with this Ed25519 private key (PEM; see `pelton sign`)"
    )
    output.add_json(command)
    return command


def main(args: argparse.Namespace) -> None:
    options = arguments.build_options(args)
    if args.check:
        options["check"] = True
    if args.hint is not None:
        options["hint"] = args.hint
    if args.image is not None:
        from pelton import preprocessing as pictures

        options["image"] = pictures.describe(args.image)
    if args.labels is not None:
        from pelton import preprocessing as pictures

        options["labels"] = pictures.read_labels(args.labels)
    for name in ("refit", "strip_weights"):
        if getattr(args, name):
            options[name] = True
    if args.metadata:
        options["metadata"] = parsers.parse_metadata(args.metadata)
    target = args.output or arguments.stem(args.model) + ".pelton"
    arrays.check_target(target)
    if args.sign:
        signature.private_key(args.sign)  # rejects an invalid key before the build
    start = time.monotonic()
    engine = build_engine(args.model, options, quiet=args.quiet)
    engine.save(target, sign=args.sign)
    size, seconds = os.path.getsize(target), time.monotonic() - start
    if args.json:
        output.emit(args, {"file": target, "bytes": size, "seconds": seconds, **facts(engine)})
    elif not args.quiet:
        print(f"{target}: {text.size(size)}, built in {seconds:.1f} s")
        print(summary(engine, every=args.verbose > 0))


def build_engine(model: str | bytes, options: dict[str, Any], *, quiet: bool, runs: str | None = None) -> Engine:
    """Builds the engine of a model and shows progress. Raises BuildError if packages for building are missing. `runs`:
    the command that will run the engine; targets that do not run here are then rejected before the build."""
    import pelton

    if runs is not None:
        from pelton.backends.cpu.check import check_runs_here

        check_runs_here(options.get("target", Options.target), runs)
    stages = progress.course(options.get("level", Options.level), options.get("calibration") is not None)
    with progress.show_progress(not quiet, stages) as tell, Needs("building engines"):
        return pelton.build(model, **options, progress=tell)


def summary(engine: Engine, every: bool = False) -> str:
    """Describes an engine as a table; `every`: with all host steps."""
    return table(described(engine, every))


def table(of: list[tuple[str, str]]) -> str:
    return text.table([(f"{name}:" if name else "", value) for name, value in of], "ll", indent="  ", heading=False)


def facts(engine: Engine) -> dict[str, Any]:
    """Describes an engine as plain data. fused: steps for several layers; tactics: number of different ones; timed:
    number of timed candidates; recorded: True if tactics were loaded; weights: bytes in the model and as packed, and
    the nanoseconds that packing saves."""
    meta = engine.meta
    kernels = [s for s in engine.steps if not s.host]
    return {
        "name": engine.name,
        "inputs": [dataclasses.asdict(p) for p in engine.inputs],
        "outputs": [dataclasses.asdict(p) for p in engine.outputs],
        "layers": len({layer for s in engine.steps for layer in s.info.get("layers") or () if layer}),
        "steps": len(engine.steps),
        "fused": sum(len(s.info.get("layers") or ()) > 1 for s in kernels),
        "tactics": len({s.info.get("tactic") for s in kernels}),
        "timed": sum(len(s.info.get("times_ns") or {}) for s in kernels),
        "copies": list(meta.get("copies") or ()),
        "host_steps": list(meta.get("host_steps") or ()),
        "weights": {name: (meta.get("weights") or {}).get(name, 0) for name in ("own", "packed", "saved_ns")},
        "checked": [{"kernel": name, "error": error} for name, error in meta.get("checked") or ()],
        "target": dict(engine.plain.target),
        "recorded": bool(meta.get("recorded")),
        **{name: meta.get(name) for name in ("precision", "level", "threads")},
    }


def described(engine: Engine, every: bool = False) -> list[tuple[str, str]]:
    """Describes an engine for people, as (title, text); `every`: with all host steps."""
    of = facts(engine)
    layers, fused, copies = of["layers"], of["fused"], of["copies"]
    known = ((engine.meta.get("model") or {}).get("values") or {}).items()
    return [
        ("inputs", ports(engine.inputs)),
        ("outputs", ports(engine.outputs)),
        *(("", of) for of in forms_in_words(engine).values()),
        *([("always", "; ".join(f"{name}: {value}" for name, value in known))] if known else []),
        *([("profiles", profiles(engine.meta["profiles"]))] if engine.meta.get("profiles") else []),
        ("steps", f"{text.count(layers, 'layer')} → {text.count(len(engine.steps), 'step')}, {fused} of them fused"),
        ("tactics", f"{of['tactics']} different, {origin(of)}"),
        (
            "copies",
            (f"{len(copies)} between layouts (reasons: `pelton explain`)" if copies else "none between layouts"),
        ),
        ("host steps", host_steps(engine, of["host_steps"], every)),
        *([("streams", streams(engine.meta["streams"]))] if engine.meta.get("streams") else []),
        *([("int8", precisions(engine.meta["int8"]))] if engine.meta.get("int8") else []),
        *([("best", best(engine.meta))] if engine.meta.get("best") else []),
        *([("rounding", roundings)] if (roundings := steps_with(engine, "rounding")) else []),
        *([("sparsity", skipped)] if (skipped := steps_with(engine, "sparsity")) else []),
        ("weights", weights(engine.meta.get("weights") or {})),
        *([("refit", refitting(engine))] if engine.refittable or engine.refit_refusals else []),
        *([("conversion", conversion)] if (conversion := (engine.meta.get("model") or {}).get("conversion")) else []),
        *([("checked", checked)] if (checked := format_checked(engine.meta.get("checked") or ())) else []),
        ("made for", format_target(engine)),
    ]


def origin(of: Mapping[str, Any]) -> str:
    """Describes the origin of an engine's tactics."""
    if of["recorded"]:
        return "replayed, none timed"
    return f"from {of['timed']} timed" if of["timed"] else "estimated, none timed"


def host_steps(engine: Engine, names: Sequence[str], every: bool) -> str:
    """Describes the steps without a kernel: by name if few or `every`, else the number of each kind; and the Python
    steps around engines."""
    around = Counter(s.host for s in engine.steps if s.host in CONTROL)
    loops = "".join(f"; Python runs {text.count(n, kind)}" for kind, n in sorted(around.items()))
    if not names:
        return f"none: every layer has a kernel{loops}"
    what = ", ".join(names)
    if len(names) > SHOWN and not every:
        ops = {s.info["name"]: s.info["op"] for part in engine.parts for s in part.steps if s.host}
        # a script names the steps between its engines by their operators: "onnx::Shape (node 'a')"
        kinds = Counter(ops.get(name) or name.partition(" (")[0] for name in names).most_common()
        rest = sum(n for _, n in kinds[SHOWN:])
        what = ", ".join(f"{n} {kind}" for kind, n in kinds[:SHOWN])
        what += (f" and {text.count(rest, 'other')}" if rest else "") + "; -v lists all"
    return f"{len(names)} without a kernel, in numpy: {what}{loops}"


def profiles(of: Mapping[str, Mapping[str, str]]) -> str:
    """Describes the profiles of an engine by the inputs in which they differ."""
    return "; ".join(f"{name} ({', '.join(map(' '.join, sizes.items()))})" for name, sizes in of.items())


def streams(of: Mapping[str, int]) -> str:
    """Describes the number of concurrent runs that an engine was built for."""
    count, each = text.count(of["streams"], "run"), text.count(of["threads"], "thread")
    return f"{count} at once, {each} each, for most inputs a second (pelton.AsyncQueue)"


def best(meta: Mapping[str, Any]) -> str:
    """Describes the fastest precision, and the reason."""
    return f"{meta['precision']} ({', '.join(f'{name}: {why}' for name, why in meta['best'].items())})"


def steps_with(engine: Engine, kind: str) -> str:
    """Describes the steps that round operands ("rounding"), or skip weights ("sparsity")."""
    found = Counter(s.info[kind] for part in engine.parts for s in part.steps if s.info.get(kind))
    return "; ".join(f"{text.count(n, 'step')} with {what}" for what, n in found.most_common())


def weights(of: Mapping[str, float]) -> str:
    """Describes the growth of weights by packing, and the time it saves."""
    own, packed, saved = (of.get(name, 0) for name in ("own", "packed", "saved_ns"))
    if not own:
        return "none"
    if packed <= own:
        return text.size(int(packed))
    paid = f"; saves {text.duration(saved)} a run" if saved else ""
    return f"{text.size(int(packed))}, {packed / own:.2f}× the model's {text.size(int(own))}{paid}"


def refitting(engine: Engine) -> str:
    """Describes the replaceable weights, and their presence."""
    can, cannot = len(engine.refittable), len(engine.refit_refusals)
    known = f"{can} of {text.count(can + cannot, 'constant')} of the model can be replaced"
    return known + ("; the weights are left out: `pelton refit` brings them" if engine.plain.absent else "")


REFINED = {"weight_equalization": "equalized weights", "bias_correction": "corrected biases"}


def precisions(of: Mapping[str, Any]) -> str:
    """Describes the integer share of an INT8 build, and its accuracy."""
    layers, accuracy = of["layers"], of["accuracy"]
    count = sum(layer["precision"] == "int8" for layer in layers)
    parts = [f"{count} of {text.count(len(layers), 'layer')} with {of['macs']:.1%} of the multiplications"]
    parts.append(f"{of['bytes']:.0%} of the bytes between steps are integers")
    if "sqnr_db" in accuracy:
        parts.append(f"SQNR {accuracy['sqnr_db']:.1f} dB")
    if names := [what for name, what in REFINED.items() if of.get(name)]:
        parts.append(" and ".join(names))
    if "agreement" in accuracy:
        parts.append(f"{accuracy['agreement']:.1%} of the answers as in fp32")
    if "metric" in accuracy:
        before, after, bound = accuracy["metric_fp32"], accuracy["metric"], of["max_drop"]
        parts.append(f"metric {before:.6g} in fp32, {after:.6g} in int8, {before - bound:.6g} allowed")
    if data := of.get("calibrated_with"):
        parts.insert(1, f"calibrated with {data}")
    return ", ".join(parts if count else parts[: 1 + bool(data)])


def format_checked(of: Sequence[tuple[str, float]]) -> str:
    """Describes the result of `--check`."""
    if not of:
        return ""
    return (
        f"{text.count(len(of), 'kernel')}, off by {max(error for _, error in of):.1e} of their largest values at most"
    )


def ports(of) -> str:
    return ", ".join(f"{p.name} {p}" for p in of)


KEYS = 4  # maximum keys of maps in the output


def forms_in_words(engine: Engine) -> dict[str, str]:
    """Describes inputs and outputs that are not a single array in the model: name → its form in `Engine.run`."""
    forms, lines = getattr(engine, "forms", None) or {}, dict[str, str]()
    for name, form in forms.get("inputs", {}).items():
        if isinstance(form, dict):
            lines[name] = f"{form['keys']} and {form['values']} are the map {name}: a dict in Python"
    for name, form in forms.get("outputs", {}).items():
        if isinstance(form, dict):
            keys = ", ".join(map(str, form["keys"][:KEYS])) + (", …" if len(form["keys"]) > KEYS else "")
            lines[name] = f"the rows of {form['rows']} are maps of {keys}; Python gets a list of dicts {name}"
    return lines


def on_gpu(engine: Engine) -> bool:
    return is_gpu(engine.plain.target)


def format_target(engine: Engine) -> str:
    """Describes the machine, threads and effort that an engine was tuned for."""
    target, meta = engine.plain.target, engine.meta
    if on_gpu(engine):
        tuned = f"tactics timed on {meta['gpu']}" if meta.get("gpu") else "tactics guessed (`pelton tune` times them)"
        return (
            f"NVIDIA GPUs, {target.get('isa')}, {meta.get('precision', 'fp32')}, level {meta.get('level', '?')},"
            f" {tuned}"
        )
    # an engine without kernels has no number of threads
    threads = f"{text.count(meta['threads'], 'thread')}, " if meta.get("threads") else ""
    return (
        f"{target.get('isa', 'any CPU')} ({target.get('cpu', 'guessed for all such CPUs')}), {threads}"
        f"{meta.get('precision', 'fp32')}, level {meta.get('level', '?')}{', strict' if meta.get('strict') else ''}"
    )
