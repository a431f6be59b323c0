"""Arguments shared by several commands, and the options built from them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from pelton.errors import InputError
from pelton.options import HINTS, KV_CACHES, PRECISIONS, Options

from . import parsers

SHAPE_HELP = (
    "sizes of an input, such as x=1x3x224x224, or of a named dimension, such as batch=4; a dynamic dimension is"
    " MIN..OPTIMUM..MAX, as in x=1..8..32x3x224x224 (repeatable, or separated by commas)"
)


def add_repeatable(command: argparse._ActionsContainer, flag: str, metavar: str, help: str) -> None:
    """Adds an option that may be repeated; its value is the list of its values."""
    command.add_argument(flag, action="append", default=[], metavar=metavar, help=help)


def add_inputs(command: argparse._ActionsContainer) -> None:
    add_repeatable(command, "--input", "NAME=FILE", "inputs, as for `pelton run` (default: random)")


def add_warmup(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--warmup", type=parsers.seconds, default=0.5, metavar="S", help="seconds of warm-up (default 0.5)"
    )


def add_overwriting(command: argparse.ArgumentParser) -> None:
    command.add_argument("-o", "--output", metavar="FILE", help="file to write (default: overwrite the engine)")


def add_part(command: argparse.ArgumentParser) -> None:
    """Adds the options of commands that read a part of a model, or all of it."""
    add_repeatable(command, "--shapes", "NAME=SIZES", SHAPE_HELP)
    add_repeatable(command, "--outputs", "NAME", "only the nodes that these tensors need (repeatable)")


def add_threads(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--threads",
        type=parsers.int_in_range(1, 256, "threads"),
        metavar="N",
        help="number of threads (default: all CPUs available to this process)",
    )


def add_hint(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--hint",
        choices=HINTS,
        help="latency (default): tune for consecutive runs on all threads; throughput: tune for parallel runs, one"
        " thread each, and store the fastest number of streams",
    )


def add_sizes(command: argparse.ArgumentParser) -> None:
    add_repeatable(
        command,
        "--shapes",
        "NAME=SIZES",
        "sizes of inputs of engines with dynamic dimensions (default: the tuned sizes)",
    )


def add_trust(command: argparse._ActionsContainer) -> None:
    command.add_argument(
        "--trust",
        action="append",
        metavar="FILE",
        help="reject engines without a valid signature by this public key (PEM; repeatable)",
    )


def add_target(command: Any) -> None:
    """Adds the options of the target."""
    command.add_argument(
        "--target",
        metavar="WHAT",
        help=(
            '"cpu" (default): this CPU; "cpu:x86_64_v3": any CPU with AVX2; "cuda": this GPU; "cuda:sm_80,sm_90":'
            " these architectures"
        ),
    )
    command.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="type of values between layers and of products; CPUs: fp32, fp16 and bf16 (weights only), int8 (needs"
        " --calibration); best: the fastest of these, int8 only with --calibration",
    )


def add_build(command: argparse.ArgumentParser) -> None:
    """Adds the options of a build."""
    group = command.add_argument_group("build options")
    group.add_argument(
        "--level",
        type=parsers.int_in_range(0, 5, "level"),
        metavar="N",
        help="tuning effort: 0 times nothing (seconds); 1–2: few candidates; 3: default; 4: many; 5: all",
    )
    add_target(group)
    _add_calibration(group)
    group.add_argument(
        "--budget", type=parsers.seconds, metavar="S", help="seconds for timing kernels; then a cost model chooses"
    )
    group.add_argument(
        "--kv-cache", choices=KV_CACHES, help="type of the caches that a decoder extends (default: that of the model)"
    )
    group.add_argument(
        "--strict",
        action="store_true",
        default=None,
        help="keep the model's arithmetic, except for the order of sums (no Winograd, no fp16 weights)",
    )
    add_weights(group)
    _add_sizes(group)
    _add_program(group)
    add_acceptance(group)
    add_memory(group)
    group.add_argument(
        "--max-packed",
        type=parsers.positive,
        metavar="RATIO",
        help="maximum bytes of packed weights, relative to the model's own (default: 2, and 1.1 for WebAssembly)",
    )
    group.add_argument(
        "--max-iterations",
        type=parsers.int_in_range(0, 1 << 40, "iterations"),
        metavar="N",
        help=(f"maximum total iterations of data-dependent loops in a run (default {Options.max_iterations})"),
    )
    _add_files(group)


def _add_calibration(group: argparse._ActionsContainer) -> None:
    """Adds the options of INT8."""
    group.add_argument(
        "--calibration",
        metavar="PATH",
        help="int8: typical inputs (.npz, or a folder of pictures, see --image), or a calibration table",
    )
    group.add_argument(
        "--calibrator",
        choices=("entropy", "minmax", "percentile", "mse"),
        help="int8: the algorithm that computes scales (mse: least mean squared error)",
    )
    group.add_argument(
        "--save-calibration",
        metavar="FILE",
        help="int8: write the calibration table, for --calibration in later builds",
    )
    add_repeatable(
        group,
        "--precision-of",
        "LAYERS=fp32",
        'int8, and on CPUs fp16 and bf16: layers to keep in fp32, as in "head.*=fp32" (repeatable)',
    )
    group.add_argument(
        "--max-drop",
        type=parsers.positive,
        metavar="X",
        help="int8: maximum share of samples with another answer (default 0.01); layers revert to fp32 until it holds",
    )
    for flag, what in (
        ("--weight-equalization", "scale channels in the weights that read them"),
        ("--bias-correction", "correct biases by the mean error of each layer"),
    ):
        group.add_argument(
            flag,
            action=argparse.BooleanOptionalAction,
            help=f"int8: {what}, or do not (default: if noise on held-out data is lower)",
        )


def _add_program(group: argparse._ActionsContainer) -> None:
    """Adds the options that change what the engine computes or returns."""
    group.add_argument(
        "--values",
        action="append",
        default=[],
        metavar="NAME=NUMBERS",
        help=(
            "make inputs constants of the engine, if their values determine the program: axes=1,2, k=5, mask=true;"
            " none for an absent optional (repeatable)"
        ),
    )
    add_repeatable(
        group, "--outputs", "NAME", "return these tensors, inner ones too, instead of the model's outputs (repeatable)"
    )
    group.add_argument(
        "--detections",
        metavar="HOW",
        help='Darknet\'s YOLO: return the best boxes only, as in "score=0.25,iou=0.45,keep=100"',
    )
    group.add_argument(
        "--cache-capacity",
        type=parsers.int_in_range(1, 1 << 31, "positions"),
        metavar="N",
        help="give growing caches of a decoder N positions, which runs extend in place",
    )


def _add_files(group: argparse._ActionsContainer) -> None:
    """Adds the files that a build reads and writes besides model and engine."""
    group.add_argument(
        "--timing-cache", metavar="FILE", help="store kernel times in this file; the same times give a bit-equal engine"
    )
    group.add_argument(
        "--save-tactics", metavar="FILE", help="record the build's decisions: chains, layouts and tactics"
    )
    group.add_argument(
        "--load-tactics",
        metavar="FILE",
        help="repeat recorded decisions, for the recorded threads, without timing; fail if a region is not recorded",
    )
    group.add_argument(
        "--cache-dir",
        metavar="DIR",
        help="cache of compiled kernels and times (default: PELTON_CACHE_DIR, else ~/.cache/pelton)",
    )


def add_acceptance(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--accept-conversion",
        action="store_true",
        default=None,
        help="accept a model whose conversion to ONNX differs from its own framework",
    )


def add_weights(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--weights", metavar="FILE", help="the weights file of a model in two files (default: the file next to it)"
    )


def model_files(args: argparse.Namespace) -> Any:
    """Returns the model of a command with the file of --weights, in the form for importers."""
    from pelton.importers import ModelFiles

    return ModelFiles(args.model, args.weights) if args.weights else args.model


def stem(model: str) -> str:
    """Returns the name of a model's file without its suffix, or of its folder, as the stem of output files."""
    name = os.path.basename(os.path.abspath(model))
    return name if os.path.isdir(model) else os.path.splitext(name)[0]


def add_memory(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--memory",
        type=parsers.memory,
        metavar="SIZE",
        help="reject models that need more memory for a run, weights included, such as 512MB; without a unit, gigabytes"
        " (default: the memory of this machine)",
    )


def _add_sizes(group: argparse._ActionsContainer) -> None:
    """Adds the options for sizes of inputs."""
    add_repeatable(group, "--shapes", "NAME=SIZES", SHAPE_HELP)
    group.add_argument(
        "--profile",
        dest="profiles",
        action="append",
        default=[],
        metavar="PROFILE:NAME=SIZES",
        help="tune the engine for these sizes, too, as in one:batch=1; a run uses the first profile that accepts its"
        " shapes (repeatable)",
    )


def shapes(args: argparse.Namespace) -> dict[str, str]:
    """Returns input name → its sizes as given."""
    return parsers.parse_pairs(
        (pair for pairs in args.shapes for pair in pairs.split(",")), "--shapes", "x=1x3x224x224"
    )


def _profiles(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """Returns profile name → names and their sizes as given."""
    profiles: dict[str, dict[str, str]] = {}
    for text in texts:
        name, colon, sizes = text.partition(":")
        if not colon or not name:
            raise InputError(f"--profile is a name, a colon and sizes, such as one:batch=1, got {text!r}")
        profiles.setdefault(name, {}).update(parsers.parse_pairs(sizes.split(","), "--profile", "one:batch=1"))
    return profiles


def build_options(args: argparse.Namespace) -> dict:
    """Returns the fields of pelton.Options set by options of `add_build` and `add_threads`."""
    fields = {
        "level": args.level,
        "budget": args.budget,
        "strict": args.strict,
        "shapes": shapes(args) or None,
        "profiles": _profiles(args.profiles) or None,
        "values": parsers.parse_pairs(args.values, "--values", "axes=1,2") or None,
        "weights": args.weights,
        "outputs": tuple(args.outputs) or None,
        "detections": args.detections,
        "accept_conversion": args.accept_conversion,
        "cache_capacity": args.cache_capacity,
        "timing_cache": args.timing_cache,
        "save_tactics": args.save_tactics,
        "load_tactics": args.load_tactics,
        "cache_dir": args.cache_dir,
        "threads": args.threads,
        "max_iterations": args.max_iterations,
        "memory": args.memory,
        "max_packed": args.max_packed,
        "target": args.target,
        "precision": args.precision,
        "kv_cache": args.kv_cache,
        "calibration": _calibration(args),
        "save_calibration": args.save_calibration,
        "precision_of": parsers.parse_pairs(args.precision_of, "--precision-of", "head.*=fp32") or None,
        "max_drop": args.max_drop,
        "weight_equalization": args.weight_equalization,
        "bias_correction": args.bias_correction,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _calibration(args: argparse.Namespace) -> Any:
    """Returns the calibration data, with its calibrator if one is named."""
    if args.calibrator is None:
        return args.calibration
    if args.calibration is None:
        raise InputError(f"--calibrator {args.calibrator} needs --calibration, the inputs to choose scales from")
    from pelton.calibration.calibrators import CALIBRATORS

    return CALIBRATORS[args.calibrator](args.calibration)
