"""Builds engines in INT8: quantizes layers by calibration, where that measured faster and outputs stay accurate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pelton.calibration.collect import calibrate
from pelton.compiler.compile import BuildResult
from pelton.compiler.stages import run_stages, start
from pelton.compiler.targets import describe_target, progress_reporter
from pelton.engine import sizes
from pelton.engine.plan import EnginePlan
from pelton.errors import InputError
from pelton.ir.graph import Graph
from pelton.ir.imported import Imported
from pelton.ir.types import DType
from pelton.logs import Logger
from pelton.metrics import decibels
from pelton.options import Options
from pelton.passes.precision.calibrated import layers, scaled_values
from pelton.passes.precision.equalize import Equalized, with_equalized
from pelton.runtime import Engine

from .accuracy_bound import AccuracyBound, Feed, outputs_of_scores
from .candidate import Int8Candidate, Int8Compiler
from .constant_answers import constant_answers
from .layer_precision import LayerPrecision, choose_by_time, override
from .race import compare_times
from .refinement import Refined, find_equalized
from .search import refine, revert

log = Logger("pelton.build")

REFINEMENTS = ("weight_equalization", "bias_correction")  # options


def compile_int8(imported: Imported, options: Options, rest: str = "fp32") -> BuildResult:
    """Returns the fastest engine of a program with layers in INT8 within the required accuracy.

    Other layers have precision `rest`, or all if no such engine is fast and accurate. `meta["int8"]` records the
    decision on each layer and the accuracy. Raises InputError for calibration data that does not fit the model.
    """
    compiler = _compiler(imported, options, rest)
    choices = override([LayerPrecision(layer) for layer in layers(compiler.graph)], options.precision_of or {})
    data, candidate = _calibrate(compiler, Int8Candidate(Refined(compiler.graph), choices))
    compiler = replace(compiler, scales=data.scales, lows=data.lows)
    bound: AccuracyBound | None = None
    forms: list[Int8Candidate] = []
    tell = progress_reporter(options)
    if data.held_out:
        tell("accuracy", 0, 1)
        bound = _accuracy_bound(compiler, data.held_out)
        if candidate.quantized:
            forms = refine(compiler, bound, candidate, data.equalized, data.first)
            candidate = min(forms, key=lambda form: form.noise)
        if not candidate.is_within(bound):
            candidate = revert(compiler, bound, candidate) or candidate
        tell("accuracy", 1, 1)
    elif refined := [name for name in REFINEMENTS if getattr(options, name)]:
        raise InputError(f"{refined[0]} needs inputs to calibrate with, the calibration is a table; leave it out")
    elif candidate.quantized:
        log.warning("the accuracy of INT8 was not checked: the calibration table has no inputs to run")
    compiler, reference = _compile_reference(compiler, bound)
    candidate, result = _compile_fastest(compiler, bound, candidate, reference)
    if result is not reference and (options.level or not compiler.runs_here):
        tell("race", 0, 1)
        feed = data.held_out[0] if data.held_out else {}
        ratio, how = compare_times(result.engine, reference.engine, feed, compiler.runs_here)
        tell("race", 1, 1)
        if ratio >= 1:
            why = f"the whole engine took {ratio:.2f} of the time of {compiler.rest}{how}"
            candidate, result = candidate.reverted(dict.fromkeys(candidate.quantized, why)), reference
    for choice in candidate.layers:
        in_what = choice.precision if choice.precision == "int8" else compiler.plain.precision
        log.info("int8: %s in %s: %s", choice.layer.name, in_what, choice.reason)
    plain = result.engine.plain
    meta = {**plain.meta, "precision": "int8", "int8": _report(compiler, candidate, forms, data, plain)}
    return replace(result, engine=Engine(replace(plain, meta=meta)))


def without_int8(options: Options, precision: str) -> Options:
    """Returns the same options for a build in another precision, without data."""
    gone = ("calibration", "save_calibration", "precision_of", "metric", "max_drop", *REFINEMENTS)
    return options.but(precision=precision, **dict.fromkeys(gone))


def _compiler(imported: Imported, options: Options, rest: str) -> Int8Compiler:
    plain = without_int8(options, rest)
    quick = plain.but(
        level=0, target="cpu", precision="fp32", budget=None, timing_cache=None, check=False, progress=None, memory=None
    )
    graph = run_stages(start(imported, plain.but(precision="fp32")), "optimize").graph
    target, _ = describe_target(options)
    # Sums of two products of u8 and i8 fit i16 if weights have 7 bits; others fit, or are in i32.
    weight_levels = 64 if options.on_cpu and (target.level.dot, target.level.factor) == ("pairs", "u8") else 127
    return Int8Compiler(options, imported, graph, plain, quick, weight_levels)


@dataclass(frozen=True)
class _Calibrated:
    """Results of calibration.

    scales, lows: by tensor. equalized: tensors that may be equalized, with scales of their own. held_out: batches that
    did not count. first: the first of those that did. description: of the data.
    """

    scales: Mapping[str, Any] = field(default_factory=dict)
    lows: Mapping[str, float] = field(default_factory=dict)
    equalized: Sequence[Equalized] = ()
    held_out: Sequence[Feed] = ()
    first: Sequence[Feed] = ()
    description: str = ""


def _calibrate(compiler: Int8Compiler, candidate: Int8Candidate) -> tuple[_Calibrated, Int8Candidate]:
    """Calibrates the inputs of the candidate's layers, equalized and not; layers without a scale revert."""
    options = compiler.options
    chosen = [candidate.layers[i].layer for i in candidate.quantized]
    names = scaled_values(chosen)
    if not names:
        log.warning("no layer is to be calibrated: the calibration data was not read")
        return _Calibrated(), candidate
    if not options.on_cpu:
        log.info("calibration and accuracy for %s run on the CPU of this machine", options.target)
    held_out: list[dict[str, np.ndarray]] = []
    first: list[dict[str, np.ndarray]] = []
    equalized: list[Equalized] = []

    def equalize(feeds: list[dict[str, np.ndarray]]) -> tuple[Graph, list[str]]:
        first.extend(feeds)
        if options.weight_equalization is not False:
            tensors = find_equalized(compiler.graph, chosen, feeds, compiler.weight_levels, compiler.statistics)
            equalized.extend(tensors)
        return with_equalized(compiler.graph, equalized), [e.y.name for e in equalized]

    table = calibrate(
        compiler.graph, options.calibration, names=names, options=options, held_out=held_out, refine=equalize
    )
    if options.save_calibration is not None:
        table.of(set(names)).save(options.save_calibration)
    inputs = {i: candidate.layers[i].layer.x.name for i in candidate.quantized}
    unscaled = {
        i: table.notes.get(name, f"the calibration table has no scale of {name!r}")
        for i, name in inputs.items()
        if name not in table.scales
    }
    scaled = [e for e in equalized if e.y.name in table.scales]
    data = _Calibrated(table.scales, table.lows, scaled, held_out, first, table.data)
    return data, candidate.reverted(unscaled)


def _accuracy_bound(compiler: Int8Compiler, held_out: Sequence[Feed]) -> AccuracyBound:
    """Returns the caller's bound, over these batches; warns of a metric that engines with a constant answer meet."""
    options = compiler.options
    scores = outputs_of_scores(compiler.graph) | {v.name for v in compiler.graph.outputs[:1] if options.labels}
    reference = compiler.compile_plain(compiler.quick).engine
    bound = AccuracyBound(reference, held_out, options.drop_bound, options.metric, scores)
    if options.metric is not None:
        bound.warn_of_chance(constant_answers(compiler.imported, compiler.quick, bound.kept))
    return bound


def _compile_reference(compiler: Int8Compiler, bound: AccuracyBound | None) -> tuple[Int8Compiler, BuildResult]:
    """Compiles the engine without integers. If halves alone break the bound, all layers use FP32."""
    result = compiler.compile_plain(compiler.plain)
    if compiler.plain.precision == "fp32" or bound is None or not compiler.runs_here:
        return compiler, result
    if bound.holds(accuracy := bound.measure(result.engine)):
        return compiler, result
    log.warning(
        "%s costs %g of the accuracy, more than max_drop %g allows: FP32 is taken",
        compiler.rest,
        accuracy.drop,
        bound.max_drop,
    )
    compiler = replace(compiler, plain=compiler.plain.but(precision="fp32"))
    return compiler, compiler.compile_plain(compiler.plain)


def _compile_fastest(
    compiler: Int8Compiler, bound: AccuracyBound | None, candidate: Int8Candidate, reference: BuildResult
) -> tuple[Int8Candidate, BuildResult]:
    """Compiles the candidate without the layers that are slower in integers, and without further ones until the engine
    is within the bound, as fewer layers have other errors and tuned kernels other roundings. Returns the reference if
    no layer is left."""

    def compiled(candidate: Int8Candidate) -> BuildResult:
        return compiler.compile(candidate, compiler.plain) if candidate.quantized else reference

    result = compiled(candidate)
    timed = replace(candidate, layers=choose_by_time(candidate.layers, reference.engine, result.engine))
    if timed.quantized != candidate.quantized:
        result, timed = compiled(timed), replace(timed, accuracy=None)
    candidate = timed
    if bound is None:
        return candidate, result
    least = 1  # doubled, as quick builds may keep the bound where the engine does not
    while result is not reference:
        candidate = _measured(compiler, bound, candidate, result.engine)
        if candidate.is_within(bound):
            break
        left = revert(compiler, bound, candidate, least)
        if left is None:
            log.warning(
                "layers that precision_of sets to INT8 lose more accuracy than max_drop %g allows; leave them"
                " out, or set a larger max_drop",
                bound.max_drop,
            )
            break
        least *= 2
        candidate, result = left, compiled(left)
    return candidate, result


def _measured(compiler: Int8Compiler, bound: AccuracyBound, candidate: Int8Candidate, engine: Engine) -> Int8Candidate:
    """Returns the candidate with the accuracy of its engine, or of a quick build if the engine cannot run here."""
    if compiler.runs_here:
        return replace(candidate, accuracy=bound.measure(engine))
    return candidate if candidate.accuracy is not None else compiler.measure(candidate, bound)


def _report(
    compiler: Int8Compiler,
    candidate: Int8Candidate,
    forms: Sequence[Int8Candidate],
    data: _Calibrated,
    plain: EnginePlan,
) -> dict[str, Any]:
    """Describes the candidate of an engine, and all measured forms, as plain data."""
    macs = sum(choice.layer.macs for choice in candidate.layers)
    in_int8 = sum(candidate.layers[i].layer.macs for i in candidate.quantized)
    return {
        "layers": [choice.describe(compiler.plain.precision) for choice in candidate.layers],
        "bytes": round(integer_bytes(plain), 4),
        "macs": round(in_int8 / macs, 4) if macs else 0.0,
        "accuracy": candidate.accuracy.describe() if candidate.accuracy is not None and candidate.quantized else {},
        **candidate.program.describe(),
        "tried": [form.program.describe() | {"sqnr_db": round(decibels(form.noise), 2)} for form in forms],
        "held_out": len(data.held_out),
        "rest": compiler.plain.precision,
        "calibrated_on": "cpu" if data.held_out else "",
        "calibrated_with": data.description,
        "max_drop": compiler.options.drop_bound,
    }


def integer_bytes(plain: EnginePlan) -> float:
    """Returns the share of integer bytes, 0 to 1, in the outputs of an engine's steps, for its tuned sizes."""
    written: dict[bool, int] = {False: 0, True: 0}
    for step in sizes.at(plain, sizes.optimum_sizes(plain)).steps:
        for t in step.outputs:
            dtype = DType(t.dtype)
            written[dtype in (DType.U8, DType.I8)] += math.prod(map(int, t.shape)) * dtype.numpy.itemsize
    return written[True] / max(sum(written.values()), 1)
