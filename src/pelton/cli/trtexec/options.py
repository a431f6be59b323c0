"""Translates trtexec's flags of a build to options of `pelton.build`."""

from __future__ import annotations

import argparse
import fnmatch
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pelton.errors import InputError, Needs, near

from .reports import Log

if TYPE_CHECKING:
    from pelton.ir.graph import Graph
    from pelton.runtime import Engine

PRECISIONS = ("fp16", "bf16", "int8")
TYPES = {"fp32": "f32", "fp16": "f16", "bf16": "bf16", "int32": "i32", "int64": "i64", "int8": "i8", "uint8": "u8"}
TYPES |= {"bool": "bool"}
PROFILE = ("optShapes", "maxShapes", "minShapes")  # substitutes for missing ones, the first before others
Shapes = dict[str, tuple[int, ...]]


# ---- sizes


class Sizes:
    """The sizes from flags: to build for, and to run with. Raises InputError for invalid lists of sizes."""

    def __init__(self, args: argparse.Namespace, log: Log):
        shapes = {k: read_shapes(k, getattr(args, k)) for k in (*PROFILE, "shapes")}
        self.best, self.shapes = shapes["optShapes"], shapes["shapes"]
        first = next((k for k in PROFILE if shapes[k]), None)
        self.profile = [shapes[k] or (shapes[first] if first else {}) for k in ("minShapes", "optShapes", "maxShapes")]
        for k in PROFILE:
            if first and not shapes[k]:
                log.warning(f"{first} is being broadcasted to {k}")

    def run(self, names: Sequence[str], files: Mapping[str, tuple[int, ...]] = MappingProxyType({})) -> Shapes:
        """Returns input → sizes to run with, of an engine with these inputs. files: those of arrays in files, for
        inputs that --shapes leaves out."""
        return spread(self.best, names) | dict(files) | spread(self.shapes, names)

    def options(self, model: str) -> dict[str, Any]:
        """Returns the option `shapes` of a build."""
        shapes = [*self.profile, self.shapes]
        if any("*" in name for of in shapes for name in of):
            names = [v.name for v in read(model).inputs]
            shapes = [spread(of, names) for of in shapes]
        lows, bests, highs = ({**shapes[-1], **of} for of in shapes[:-1])
        specs = {}
        for name, best in {**lows, **highs, **bests}.items():
            low, high = lows.get(name, best), highs.get(name, best)
            if not len(low) == len(best) == len(high) or not all(a <= b <= c for a, b, c in zip(low, best, high)):
                raise InputError(
                    f"input {name!r} has minimum {written(low)}, optimum {written(best)} and maximum"
                    f" {written(high)}: --minShapes, --optShapes and --maxShapes must have equal ranks and"
                    " ascending sizes"
                )
            ranges = (str(b) if a == c else f"{a}..{b}..{c}" for a, b, c in zip(low, best, high))
            if best:
                specs[name] = "x".join(ranges)
        return {"shapes": specs} if specs else {}


def read_pairs(flag: str, text: str | None, example: str) -> Iterator[tuple[str, str]]:
    """Yields the pairs of x:1,'y:0':2, in which names may be quoted."""
    for pair in (text or "").split(",") if text else ():
        quoted = re.fullmatch(r"'([^']+)':(.*)", pair.strip())
        name, colon, value = (quoted[1], ":", quoted[2]) if quoted else pair.strip().rpartition(":")
        if not name or not colon or "'" in name:
            raise InputError(f"{flag} is written {example}, got {text!r}")
        yield name, value


def read_shapes(flag: str, text: str | None) -> Shapes:
    shapes: Shapes = {}
    for name, sizes in read_pairs(f"--{flag}", text, "x:1x3x224x224,y:1x8"):
        dims = [] if sizes in ("", "scalar") else sizes.split("x")
        if name in shapes or not all(d.isdecimal() and len(d) < 19 for d in dims):
            raise InputError(f"--{flag} needs sizes for each input, such as x:1x3x224x224 or x:scalar, got {text!r}")
        shapes[name] = tuple(map(int, dims))
    return shapes


def read(model: str) -> Graph:
    """Reads the program of a model ahead of the build, which logs its warnings."""
    logger = logging.getLogger("pelton")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with Needs("building engines"):
            from pelton import importers

            return importers.load(model).graph
    finally:
        logger.setLevel(level)


def spread(of: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Replaces patterns by the names of inputs; a name overrides a pattern that it matches."""
    patterns = {p: v for p, v in of.items() if "*" in p}
    matches = {n: v for p, v in patterns.items() for n in fnmatch.filter(names, p.replace("[", "[[]"))}
    return {**matches, **{n: v for n, v in of.items() if n not in patterns}}


def written(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes)) or "scalar"


# ---- building and loading


def build_options(args: argparse.Namespace, log: Log, model: str) -> dict[str, Any]:
    """Returns the options of `pelton.build` for the flags, sizes left out."""
    options: dict[str, Any] = {"target": args.target} if args.target else {}
    if args.builderOptimizationLevel >= 0:
        options["level"] = args.builderOptimizationLevel
    if type(args.threads) is int:
        options["threads"] = args.threads
    if args.refit:
        options["refit"] = True
    if args.stripWeights or args.weightless:
        options["strip_weights"] = True
    if args.timingCacheFile:
        options["timing_cache"] = args.timingCacheFile
    if args.image is not None:
        options["image"] = args.image
    options |= precision(args, log, model)
    return options | layer_precisions(args, log, options.get("precision", "fp32"))


def precision(args: argparse.Namespace, log: Log, model: str) -> dict[str, Any]:
    """Returns precision and calibration. Raises InputError for int8 without scales."""
    asked = [p for p in PRECISIONS if getattr(args, p)]
    if args.stronglyTyped:
        for name in (*asked, *(["best"] if args.best else [])):
            log.warning(f"--{name} is ignored: the network is strongly typed")
        asked, args.best = [], None
    if "int8" in asked and args.calib is None:
        if not any(node.op.dequantizes for node in read(model).nodes):
            raise InputError(
                "--int8 needs scales: trtexec would invent them, and outputs would be wrong. Set --calib=FILE, a"
                " table or samples (.npz), or use --best, which chooses without int8"
            )
        log.info("The model is quantized: --int8 changes nothing, its integers are kept")
        asked.remove("int8")
    chosen = "best" if args.best or len(asked) > 1 else (*asked, "fp32")[0]
    if chosen == "fp32" and args.target and args.target.startswith("cuda") and not (args.noTF32 or args.stronglyTyped):
        log.info("TF32 is enabled by default. Add --noTF32 flag to further improve accuracy.")
        chosen = "tf32"
    calibrated = args.calib is not None and chosen in ("int8", "best")
    if args.calib is not None and not calibrated:
        log.warning("--calib is ignored: no integers are asked for (--int8 or --best)")
    if args.best and not calibrated:
        log.warning("--best is without int8: scales for it come from --calib=FILE")
    return {"precision": chosen} | ({"calibration": args.calib} if calibrated else {})


def layer_precisions(args: argparse.Namespace, log: Log, chosen: str) -> dict[str, Any]:
    """Returns the option `precision_of`. Raises InputError for impossible precisions that must be obeyed."""
    how = args.precisionConstraints or "none"
    if how not in ("none", "prefer", "obey"):
        raise InputError(
            f"--precisionConstraints is none, prefer or obey, got {how!r}{near(how, ('none', 'prefer', 'obey'))}"
        )
    asked = dict(read_pairs("--layerPrecisions", args.layerPrecisions, "head*:fp32,conv1:int8"))
    if how == "none":
        if asked:
            log.warning('--layerPrecisions has no effect when --precisionConstraints is "none"')
        return {}
    possible = ("fp32", "int8") if chosen == "best" else ("fp32", chosen)
    for name, kind in list(asked.items()):
        if kind not in possible:
            why = (
                f"--layerPrecisions={name}:{kind} is not possible: layers of this build are in"
                f" {' or '.join(dict.fromkeys(possible))}"
            )
            if how == "obey":
                raise InputError(why)
            log.warning(why)
            del asked[name]
    return {"precision_of": asked} if asked and chosen not in ("fp32", "tf32") else {}


def check_obeyed(args: argparse.Namespace, log: Log, engine: Engine) -> None:
    """Raises InputError if no kernel could read the weights of a layer in the type of --layerPrecisions, and that must
    be obeyed; otherwise warns."""
    from pelton.compiler.half_weights import UNREAD

    rows = [row for part in engine.parts for row in part.meta.get("half") or ()]
    for row in rows:
        if row["reason"] == UNREAD:
            why = f"--layerPrecisions is not possible for {row['layer']}, which remains in {row['weights']}: {UNREAD}"
            if args.precisionConstraints == "obey":
                raise InputError(f"{why}; leave the layer out, or set --precisionConstraints=prefer")
            log.warning(why)


def check_formats(args: argparse.Namespace, engine: Engine) -> None:
    """Raises InputError unless --inputIOFormats and --outputIOFormats match the engine."""
    for flag, ports in (("inputIOFormats", engine.inputs), ("outputIOFormats", engine.outputs)):
        formats = (getattr(args, flag) or "").split(",") if getattr(args, flag) else []
        if formats and len(formats) not in (1, len(ports)):
            raise InputError(f"--{flag} has {len(formats)} formats, expected 1 or {len(ports)}, one for each")
        for port, asked in zip(ports, formats * len(ports) if len(formats) == 1 else formats):
            kind, _, layouts = asked.partition(":")
            if TYPES.get(kind) != port.dtype or (layouts and "chw" not in layouts.split("+")):
                raise InputError(
                    f"--{flag}={asked} cannot be honoured: {port.name} is {port}, in the order of the model (chw);"
                    " change the model's type, or leave the flag out"
                )
