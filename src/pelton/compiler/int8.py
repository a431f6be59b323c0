"""Builds engines in INT8: quantizes layers by calibration, where that measured faster and outputs stay accurate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pelton.logs import Logger
from pelton.engine import sizes
from pelton.engine.model import EnginePlan
from pelton.errors import InputError
from pelton.ir.graph import Graph
from pelton.ir.imported import Imported
from pelton.ir.types import DType
from pelton.metrics import decibels
from pelton.options import Options
from pelton.passes.precision.calibrated import SWITCHES, layers, mean_errors, quantize_layers, scaled_values
from pelton.passes.precision.equalize import Equalized, with_equalized
from pelton.runtime import Engine

from .accuracy_bound import Accuracy, AccuracyBound, Feed, outputs_of_scores
from .compile import BuildResult, compile_graph
from .constant_answers import constant_answers
from .layer_precision import LayerPrecision, choose_by_time, override
from .race import compare_times
from .refinement import Refined, find_equalized, forms, mean_outputs
from .stages import run_stages, start
from .switches import noises, together
from .targets import describe_target, progress_reporter, target_kind

log = Logger("pelton.build")

REFINEMENTS = ("weight_equalization", "bias_correction")  # options


def compile_int8(imported: Imported, options: Options, rest: str = "fp32") -> BuildResult:
    """Returns the fastest engine of a program with layers in INT8 within the required accuracy.

    Other layers have precision `rest`, or all if no such engine is fast and accurate. `meta["int8"]` records the
    decision on each layer and the accuracy. Raises InputError for calibration data that does not fit the model.
    """
    return _Int8Build(imported, options, rest).run()


class _Int8Build:
    """A build that compiles a program several times, with different layers in integers."""

    def __init__(self, imported: Imported, options: Options, rest: str):
        self.options, self.imported = options, imported
        self.plain = without_int8(options, rest)
        # for fast accuracy measurements on this machine's CPU
        self.quick = self.plain.but(
            level=0,
            target="cpu",
            precision="fp32",
            budget=None,
            timing_cache=None,
            check=False,
            progress=None,
            memory=None,
        )
        self.graph: Graph = run_stages(start(imported, self.plain.but(precision="fp32")), "optimize").graph
        self.statistics = self.quick.but(threads=options.threads)
        self.choices = [LayerPrecision(layer) for layer in layers(self.graph)]
        isa = describe_target(options)[0].isa
        # Sums of two products of bytes fit i16 if weights have 7 bits; VNNI and tensor cores sum in i32.
        self.weight_levels = 127 if "vnni" in isa or not options.on_cpu else 64
        self.runs_here = target_kind(options).runs_here(options)
        self.program = Refined(self.graph)
        self.equalized: list[Equalized] = []
        self.tried: list[dict[str, Any]] = []
        self.scales: Mapping[str, float] = {}
        self.lows: Mapping[str, float] = {}
        self.data = ""  # description of the calibration data
        self.bound: AccuracyBound | None = None
        self.accuracy: Accuracy | None = None

    def run(self) -> BuildResult:
        override(self.choices, self.options.precision_of or {})
        first: list[Feed] = []
        held_out = self._calibrate(first)
        if held_out:
            self._bound_accuracy(held_out, first)
        elif refined := [name for name in REFINEMENTS if getattr(self.options, name)]:
            raise InputError(f"{refined[0]} needs inputs to calibrate with, the calibration is a table; leave it out")
        elif self._in_int8():
            log.warning("the accuracy of INT8 was not checked: the calibration table has no inputs to run")
        reference = self._reference()
        result = self._integers(reference)
        if result is not reference and (self.options.level or not self.runs_here):
            feed = held_out[0] if held_out else {}
            tell = progress_reporter(self.options)
            tell("race", 0, 1)
            ratio, how = compare_times(result.engine, reference.engine, feed, self.runs_here)
            tell("race", 1, 1)
            if ratio >= 1:
                for choice in self._in_int8():
                    choice.set_back(f"the engine as a whole took {ratio:.2f} of the time of {self._rest}{how}")
                result = reference
        for choice in self.choices:
            in_what = choice.precision if choice.precision == "int8" else self.plain.precision
            log.info("int8: %s in %s: %s", choice.layer.name, in_what, choice.reason)
        plain = result.engine.plain
        meta = {**plain.meta, "precision": "int8", "int8": self._describe(len(held_out), plain)}
        return replace(result, engine=Engine(replace(plain, meta=meta)))

    def _reference(self) -> BuildResult:
        """Builds the engine without integers. If halves alone break the bound, all layers use FP32."""
        result = self._compile_reference(self.plain)
        if self.plain.precision == "fp32" or self.bound is None or not self.runs_here:
            return result
        if self.bound.holds(accuracy := self.bound.measure(result.engine)):
            return result
        log.warning(
            "%s costs %g of the accuracy, more than max_drop %g allows: FP32 is taken",
            self._rest,
            accuracy.drop,
            self.bound.max_drop,
        )
        self.plain = self.plain.but(precision="fp32")
        return self._compile_reference(self.plain)

    def _integers(self, reference: BuildResult) -> BuildResult:
        """Builds the engine with the layers in integers that are no slower and together accurate enough, else the
        reference. Its accuracy is measured again: fewer layers have other errors, tuned kernels other roundings."""
        result = self._compile_chosen(reference)
        changed = choose_by_time(self.choices, reference.engine, result.engine)
        if changed:
            result = self._compile_chosen(reference)
        if (bound := self.bound) is None:
            return result
        least = 1  # doubled, as quick builds may keep the bound where the engine does not
        while result is not reference and not self._is_accurate(bound, result.engine, changed):
            if not (changed := self._set_back(bound, least)):
                log.warning(
                    "layers that precision_of wants in INT8 cost more of the accuracy than max_drop %g allows; leave"
                    " them out, or give a larger max_drop",
                    bound.max_drop,
                )
                break
            least *= 2
            result = self._compile_chosen(reference)
        return result

    def _is_accurate(self, bound: AccuracyBound, engine: Engine, changed: bool) -> bool:
        """True if the bound holds for the engine. If the engine cannot run here, measures a quick build of the same
        layers if they have changed since the last one."""
        if self.runs_here:
            self.accuracy = bound.measure(engine)
        elif changed:
            return self._holds(bound)
        return self.accuracy is not None and bound.holds(self.accuracy)

    @property
    def _rest(self) -> str:
        return self.plain.precision.upper()

    def _in_int8(self) -> list[LayerPrecision]:
        return [choice for choice in self.choices if choice.precision == "int8"]

    def _quantized(
        self, choices: Sequence[LayerPrecision], program: Refined | None = None, switched: bool = False
    ) -> Graph:
        """Quantizes these layers of the program, or of a form of it."""
        program = program or self.program
        numbers = [i for i, choice in enumerate(self.choices) if any(choice is c for c in choices)]
        graph, chosen = program.with_layers(numbers)
        corrections = {
            layer.node: program.corrections[i] for i, layer in zip(numbers, chosen) if i in program.corrections
        }
        return quantize_layers(graph, chosen, self.scales, self.weight_levels, switched, self.lows, corrections)

    def _compile(
        self, options: Options, choices: Sequence[LayerPrecision] | None = None, program: Refined | None = None
    ) -> BuildResult:
        """Compiles the program with these layers in integers, by default all chosen ones."""
        quantized = self._quantized(self._in_int8() if choices is None else choices, program)
        return compile_graph(replace(self.imported, graph=quantized), options)

    def _compile_chosen(self, reference: BuildResult) -> BuildResult:
        """Compiles the engine with the chosen layers in integers; returns the reference if there are none."""
        return self._compile(self.plain) if self._in_int8() else reference

    def _compile_reference(self, options: Options) -> BuildResult:
        return compile_graph(replace(self.imported, graph=self.graph), options, done="optimize")

    def _calibrate(self, first: list[Feed]) -> list[Feed]:
        """Calibrates the scales of the layers' inputs, equalized and not; returns the held-out part of the data.
        Appends the first batches of the other part to `first`."""
        from pelton import calibration  # a room above: it runs engines

        held_out: list[Feed] = []
        names = scaled_values(choice.layer for choice in self._in_int8())
        if not names:
            log.warning("no layer is to be calibrated: the calibration data was not read")
            return held_out
        data = self.options.calibration
        if not self.options.on_cpu:
            log.info("calibration and accuracy for %s run on the CPU of this machine", self.options.target)
        equalized: list[Equalized] = []

        def refine(feeds: list[Feed]) -> tuple[Graph, list[str]]:
            first.extend(feeds)
            if self.options.weight_equalization is not False:
                chosen = [choice.layer for choice in self._in_int8()]
                equalized.extend(find_equalized(self.graph, chosen, feeds, self.weight_levels, self.statistics))
            return with_equalized(self.graph, equalized), [e.y.name for e in equalized]

        table = calibration.calibrate(
            self.graph, data, names=names, options=self.options, held_out=held_out, refine=refine
        )
        for choice in self._in_int8():
            name = choice.layer.x.name
            if name not in table.scales:
                choice.set_back(table.notes.get(name, f"the calibration table has no scale of {name!r}"))
        self.scales, self.lows, self.data = table.scales, table.lows, table.data
        self.equalized = [e for e in equalized if e.y.name in table.scales]
        if self.options.save_calibration is not None:
            table.of(set(names)).save(self.options.save_calibration)
        return held_out

    def _bound_accuracy(self, held_out: Sequence[Feed], first: Sequence[Feed]) -> None:
        """Refines the layers in integers, then reverts as few of them to FP32 as the bound requires, the most harmful
        first."""
        tell = progress_reporter(self.options)
        tell("accuracy", 0, 1)
        reference = self._compile_reference(self.quick).engine
        scores = outputs_of_scores(self.graph) | {v.name for v in self.graph.outputs[:1] if self.options.labels}
        bound = self.bound = AccuracyBound(reference, held_out, self.options.drop_bound, self.options.metric, scores)
        if self.options.metric is not None:
            bound.warn_of_chance(constant_answers(self.imported, self.quick, bound.kept))
        if self._in_int8():
            self.accuracy = self._refine(bound, first)
        if self.accuracy is not None and not bound.holds(self.accuracy):
            self._set_back(bound)
        tell("accuracy", 1, 1)

    def _set_back(self, bound: AccuracyBound, least: int = 1) -> bool:
        """Reverts as few layers to FP32 as the bound requires, but at least `least`, the most harmful first. False if
        none may revert."""
        order = self._rank(bound)
        fails, holds = least - 1, least  # numbers of reverted layers
        while holds < len(order) and not self._holds(bound, order[:holds]):
            fails, holds = holds, min(2 * holds, len(order))
        while holds - fails > 1:
            middle = (fails + holds) // 2
            if self._holds(bound, order[:middle]):
                holds = middle
            else:
                fails = middle
        self._holds(bound, order[:holds])  # the accuracy of these, not of the last try
        for noise, choice in order[:holds]:
            choice.set_back(f"too much of the accuracy: alone, it makes noise of {noise:.1e} of the outputs")
        if not self._in_int8():
            log.warning(
                "no layer stays in INT8: the accuracy would drop by more than max_drop %g; the engine is one of %s",
                bound.max_drop,
                self._rest,
            )
        return bool(order)

    def _refine(self, bound: AccuracyBound, first: Sequence[Feed]) -> Accuracy:
        """Chooses the allowed form of the program with the least output noise and returns its accuracy."""
        found: list[tuple[Accuracy, Refined]] = []
        equalize, correct = self.options.weight_equalization, self.options.bias_correction
        tried = forms(equalize, correct, len(first))
        for i, (equalized, corrected) in enumerate(tried):
            progress_reporter(self.options)("accuracy", i, len(tried) + 1)
            if equalized and not self.equalized and found:
                continue
            program = Refined(self.graph, self.equalized if equalized else ())
            if corrected:
                program = self._corrected(program, first)
            found.append((bound.measure(self._compile(self.quick, program=program).engine), program))
            self.tried.append(program.describe() | {"sqnr_db": round(decibels(found[-1][0].noise), 2)})
        accuracy, self.program = min(found, key=lambda item: item[0].noise)
        return accuracy

    def _corrected(self, program: Refined, first: Sequence[Feed]) -> Refined:
        """Returns the program with the mean errors of its integer layers on these batches as corrections."""
        numbers = [i for i, choice in enumerate(self.choices) if choice.precision == "int8"]
        graph, chosen = program.with_layers(numbers)
        errors = mean_errors(graph, chosen, self.scales, self.weight_levels, self.lows)
        found = mean_outputs(errors, first, self.statistics)
        return replace(program, corrections={i: error for i, error in zip(numbers, found) if np.isfinite(error).all()})

    def _holds(self, bound: AccuracyBound, back: Sequence[tuple[float, LayerPrecision]] = ()) -> bool:
        """True if the bound holds with these layers reverted; a quick build, unless no layer is left."""
        left = [choice for choice in self._in_int8() if not any(choice is other for _, other in back)]
        if not left:
            self.accuracy = None
            return True
        self.accuracy = bound.measure(self._compile(self.quick, left).engine)
        return bound.holds(self.accuracy)

    def _rank(self, bound: AccuracyBound) -> list[tuple[float, LayerPrecision]]:
        """Ranks layers by the outputs' noise power by signal power with that layer alone in integers, the largest
        first. Layers that the caller fixes in integers are left out, or for "best", which accepts no broken bound,
        last."""
        chosen = self._in_int8()
        graph = self._quantized(chosen, switched=True)
        engine = compile_graph(replace(self.imported, graph=graph), self.quick).engine
        measured = noises(engine, SWITCHES, list(np.eye(len(chosen))), bound.feeds)
        found = [(together(of.values()), choice) for of, choice in zip(measured, chosen)]
        if self.options.precision != "best":
            found = [(noise, choice) for noise, choice in found if not choice.fixed]
        return sorted(found, key=lambda item: (item[1].fixed, -item[0]))

    def _describe(self, held_out: int, plain: EnginePlan) -> dict[str, Any]:
        macs = sum(choice.layer.macs for choice in self.choices)
        return {
            "layers": [choice.describe(self.plain.precision) for choice in self.choices],
            "bytes": round(integer_bytes(plain), 4),
            "macs": round(sum(choice.layer.macs for choice in self._in_int8()) / macs, 4) if macs else 0.0,
            "accuracy": self.accuracy.describe() if self.accuracy is not None and self._in_int8() else {},
            **self.program.describe(),
            "tried": self.tried,
            "held_out": held_out,
            "rest": self.plain.precision,
            "calibrated_on": "cpu" if held_out else "",
            "calibrated_with": self.data,
            "max_drop": self.options.drop_bound,
        }


def integer_bytes(plain: EnginePlan) -> float:
    """Returns the share of integer bytes, 0 to 1, in the outputs of an engine's steps, for its tuned sizes."""
    written: dict[bool, int] = {False: 0, True: 0}
    for step in sizes.at(plain, sizes.optimum_sizes(plain)).steps:
        for t in step.outputs:
            dtype = DType(t.dtype)
            written[dtype in (DType.U8, DType.I8)] += math.prod(map(int, t.shape)) * dtype.numpy.itemsize
    return written[True] / max(sum(written.values()), 1)


def without_int8(options: Options, precision: str) -> Options:
    """Returns the same options for a build in another precision, without data."""
    gone = ("calibration", "save_calibration", "precision_of", "metric", "max_drop", *REFINEMENTS)
    return options.but(precision=precision, **dict.fromkeys(gone))
