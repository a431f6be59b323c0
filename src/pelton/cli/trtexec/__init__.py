"""`pelton trtexec`: builds and times a model with the flags, output and files of NVIDIA's trtexec 10."""

from __future__ import annotations

import argparse
import logging
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from pelton import __version__
from pelton.backends.cpu import describe

from pelton.engine.plan import UNBOUNDED
from pelton.errors import Error, InputError
from pelton.options import Options
from pelton.system.temporary import temporary_folder

from .. import arguments, arrays, build
from . import flags
from .options import Sizes, build_options, check_formats, check_obeyed
from .reports import Log, as_json, layer_lines, layers
from .runs import infer, time_loading

if TYPE_CHECKING:
    from pelton.runtime import Engine

EXAMPLES = """examples:
  pelton trtexec --onnx=resnet50.onnx --saveEngine=resnet50.pelton
  pelton trtexec --onnx=bert.onnx --minShapes=ids:1x16 --optShapes=ids:1x128 --maxShapes=ids:8x512
  pelton trtexec --loadEngine=resnet50.pelton --dumpProfile --exportTimes=times.json --infStreams=2
  pelton trtexec --onnx=resnet50.onnx --int8 --calib=table.cache --target=cuda

Of trtexec's other flags, those that mean nothing here are ignored with a warning, those that would change results are
refused; docs/trtexec.md lists all. The exit status is 0 or 1, as that of trtexec."""
FAILED = 1
ENGINE, MODEL = "--loadEngine", "--onnx"
# options of the library → flags, in messages
OPTIONS = {
    "shapes": "--shapes",
    "calibration": "--calib",
    "image": "--image",
    "timing_cache": "--timingCacheFile",
    "level": "--builderOptimizationLevel",
    "precision_of": "--layerPrecisions",
}


def add(commands) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "trtexec",
        help="build and time a model with trtexec's flags",
        description="Builds and times a model as NVIDIA's trtexec 10 does, for scripts that call it.",
        epilog=EXAMPLES,
    )
    flags.add(command)
    own = command.add_argument_group("of Pelton")
    own.add_argument("--target", metavar="WHAT", help="as for `pelton build`: cpu (default), cuda, cuda:sm_90, …")
    own.add_argument(
        "--image", metavar="HOW", help="as for `pelton build`: how pictures are prepared, those of --calib, too"
    )
    arguments.add_trust(own)

    def error(message: str) -> NoReturn:
        words = command.get_default("parser").words[1:]
        _report("RUNNING", words)
        Log(False, False).error(message.replace("unrecognized arguments:", "Unknown option:"))
        _report("FAILED", words)
        raise SystemExit(FAILED)

    command.set_defaults(given=(), explain=command.print_help)
    command.error = error  # trtexec's form and status
    return command


def main(args: argparse.Namespace) -> int:
    log = Log(bool(args.verbose), args.quiet)
    words = args.parser.words[1:]
    _report("RUNNING", words)
    try:
        with ExitStack() as after:
            after.enter_context(_heard(log))
            if words:
                _look_through(args.given, log)
                _run(args, log, after)
            else:
                args.explain()
    except Error as e:
        log.error(as_flags(str(e)))
        _report("FAILED", words)
        return FAILED
    except KeyboardInterrupt:
        _report("FAILED", words)
        raise
    _report("PASSED", words)
    return 0


class _Heard(logging.Handler):
    """Prints log records of compiler and runtime as trtexec prints TensorRT's."""

    def __init__(self, log: Log):
        super().__init__()
        self.to = log

    def emit(self, record: logging.LogRecord) -> None:
        (self.to.warning if record.levelno >= logging.WARNING else self.to.verbose)(as_flags(self.format(record)))


@contextmanager
def _heard(log: Log) -> Iterator[None]:
    """Context manager that sends the library's log to this one alone."""
    logger = logging.getLogger("pelton")
    before, logger.handlers = logger.handlers, [_Heard(log)]
    try:
        yield
    finally:
        logger.handlers = before


def as_flags(message: str) -> str:
    """Rewrites a message of the library with flags in place of options."""
    names = "|".join(OPTIONS)
    message = re.sub(rf"\b({names})=(?![\w(])|^({names})(?= names | is )", lambda m: OPTIONS[m[1] or m[2]], message)
    # --shapes has no ranges
    ranges = r"(\branges?\b)(?: like 1\.\.8\.\.32)?((?: that decide it)?),? with --shapes"
    return re.sub(ranges, r"\1\2 by --minShapes, --optShapes and --maxShapes", message)


def _report(result: str, words: Sequence[str] = ()) -> None:
    command = " ".join(["pelton trtexec", *map(shlex.quote, words)])
    print(f"&&&& {result} TensorRT.trtexec [Pelton v{__version__}] # {command}", flush=True)


def _look_through(given: Sequence[tuple[flags.Flag, str]], log: Log) -> None:
    """Warns of flags without effect, each once; raises InputError for rejected ones."""
    for flag, value in given:
        if value not in flag.fine and flag.becomes == flags.REFUSED:
            raise InputError(f"{flag.name}{'=' + value if value else ''} cannot be honoured: {flag.here}")
        if value not in flag.fine and flag.becomes == flags.IGNORED:
            log.warning(f"{flag.name} is ignored: {flag.here}")


def _run(args: argparse.Namespace, log: Log, after: ExitStack) -> None:
    model, built = args.onnx, args.loadEngine is None
    if built and model is None:
        raise InputError(f"set a model to build, {MODEL}=FILE, or an engine to run, {ENGINE}=FILE")
    if not built and model is not None:
        log.warning(f"{MODEL} is ignored: the engine is loaded")
    if not built and args.saveEngine:
        raise InputError(f"--saveEngine and {ENGINE} exclude each other: an engine that is loaded is saved already")
    if built and args.trust:
        raise InputError(f"--trust is for signed engines, {ENGINE}, but {model} is a model; leave it out")
    if args.noBuilderCache and args.timingCacheFile:
        log.warning("--timingCacheFile is ignored: --noBuilderCache keeps no times")
        args.timingCacheFile = None
    if args.profilingVerbosity not in (None, "layer_names_only", "detailed", "none", "default", "verbose"):
        raise InputError(f"--profilingVerbosity is layer_names_only, detailed or none, got {args.profilingVerbosity!r}")
    exported = (args.exportTimes, args.exportOutput, args.exportProfile, args.exportLayerInfo)
    for path in (args.saveEngine, args.timingCacheFile, *exported):
        if path is not None:
            arrays.check_target(path)
    shapes = Sizes(args, log)
    log.info(f"Pelton version: {__version__}")
    stops = bool(args.skipInference or args.buildOnly)
    if built:
        options = build_options(args, log, model) | shapes.options(model)
        if args.noBuilderCache:
            options["timing_cache"] = os.path.join(after.enter_context(temporary_folder()), "times.json")
        _show(log, args, model, options)
        engine = _build(args, log, model, options, None if stops else "trtexec")
    else:
        _show(log, args, None, {})
        engine = _load(args, log, stops)
    check_formats(args, engine)
    verbosity = {"verbose": "detailed", "default": None}.get(args.profilingVerbosity, args.profilingVerbosity)
    layer_info = layers(engine, verbosity or "layer_names_only")
    if args.dumpLayerInfo:
        log.info("Layer Information:\n" + "\n".join(layer_lines(layer_info)))
    if args.exportLayerInfo:
        arrays.replace(args.exportLayerInfo, [as_json(layer_info)])
    if args.dumpOptimizationProfile:
        log.info("Optimization Profile Information:\n" + "\n".join(profile_lines(engine)))
    if stops:
        log.info("Skipped inference phase since --skipInference is added.")
    elif args.timeDeserialize:
        time_loading(args, log, engine)
    else:
        infer(args, log, engine, shapes)


# ---- parts of a run


def _build(args: argparse.Namespace, log: Log, model: str, options: dict[str, Any], runs: str | None) -> Engine:
    start = time.monotonic()
    engine = build.build_engine(model, options, quiet=args.quiet, runs=runs)
    check_obeyed(args, log, engine)
    log.info(f"Engine built in {time.monotonic() - start:g} sec.")
    if args.saveEngine:
        engine.save(args.saveEngine)
        log.info(f"Created engine with size: {os.path.getsize(args.saveEngine) / 2**20:g} MiB")
    _say_device(args, log, engine)
    return engine


def _load(args: argparse.Namespace, log: Log, stops: bool) -> Engine:
    import pelton

    start = time.monotonic()
    engine = pelton.load(args.loadEngine, device=None if stops else args.device or 0, trust=args.trust)
    log.info(f"Engine loaded in {time.monotonic() - start:g} sec.")
    log.info(f"Loaded engine with size: {os.path.getsize(args.loadEngine) / 2**20:g} MiB")
    _say_device(args, log, engine)
    return engine


def _say_device(args: argparse.Namespace, log: Log, engine: Engine) -> None:
    on_gpu, target = build.on_gpu(engine), engine.plain.target
    if args.device and not on_gpu:
        log.warning("--device is ignored: the engine is for CPUs")
    log.info("=== Device Information ===")
    log.info(f"Selected Device: {target.get('isa') if on_gpu else describe()['model']}")
    log.info(f"Selected Device ID: {(args.device or 0) if on_gpu else 0}")


def profile_lines(engine: Engine) -> Iterator[str]:
    """Yields the possible sizes of inputs, for --dumpOptimizationProfile."""
    bounds = [{s.name: getattr(s, k) for s in engine.symbols} for k in ("minimum", "optimum", "maximum")]
    profiles = [engine.shapes(values) for values in bounds]
    for port in engine.inputs:
        low, best, high = (
            "x".join("any" if size >= UNBOUNDED else str(size) for size in shapes[port.name]) or "scalar"
            for shapes in profiles
        )
        yield f"Model input {port.name} (profile 0): min={low}, opt={best}, max={high}"


def _show(log: Log, args: argparse.Namespace, model: str | None, options: Mapping[str, Any]) -> None:
    """Prints the options of this run, in trtexec's form."""
    log.info("=== Model Options ===")
    log.info(f"Format: {'ONNX' if str(model).endswith('.onnx') else '*'}\nModel: {model or ''}")
    if model is not None:
        log.info("=== Build Options ===")
        log.info(f"Target: {options.get('target', Options.target)}")
        log.info(f"Precision: {options.get('precision', 'fp32').upper()}")
        log.info(f"LayerPrecisions: {args.layerPrecisions or ''}")
        log.info(f"Calibration: {options.get('calibration', '')}")
        log.info(f"Skip inference: {_enabled(args.skipInference or args.buildOnly)}")
        log.info(f"Save engine: {args.saveEngine or ''}")
        log.info(f"timingCacheFile: {args.timingCacheFile or ''}")
        log.info(f"BuilderOptimizationLevel: {options.get('level', Options.level)}")
        for name, sizes in options.get("shapes", {}).items():
            log.info(f"Input build shape (profile 0): {name}={sizes}")
    else:
        log.info(f"Load engine: {args.loadEngine}")
    log.info("=== Inference Options ===")
    log.info(f"Iterations: {args.iterations}")
    log.info(f"Duration: {args.duration:g}s (+ {args.warmUp:g}ms warm up)")
    log.info(f"Idle time: {args.idleTime:g}ms")
    log.info(f"Inference Streams: {args.streams or args.infStreams}")
    log.info("=== Reporting Options ===")
    log.info(f"Verbose: {_enabled(args.verbose)}")
    log.info(f"Averages: {args.avgRuns} inferences")
    log.info(f"Percentiles: {flags.written(args.percentile)}")
    log.info(f"Dump output: {_enabled(args.dumpOutput)}")
    log.info(f"Profile: {_enabled(args.dumpProfile)}")
    for what in ("times", "output", "profile"):
        named = getattr(args, f"export{what.capitalize()}") or ""
        log.info(f"Export {'timing' if what == 'times' else what} to JSON file: {named}")


def _enabled(what: object) -> str:
    return "Enabled" if what else "Disabled"
