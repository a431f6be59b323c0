"""Compares an engine with its model in float64 on some inputs: its outputs, and the outputs of every step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from pelton import html, importers
from pelton.builder import provenance
from pelton.compiler.accuracy import ExactValues, copy_outputs
from pelton.compiler.compilation import Compilation
from pelton.compiler.stages import run_stages, start
from pelton.errors import Cancelled, InputError
from pelton.importers.cache_types import scale_ports
from pelton.ir import folding
from pelton.ir.imported import Imported, Info, OnData
from pelton.ir.evaluate import evaluate
from pelton.ir.graph import Value
from pelton.options import Options
from pelton.runtime import Engine
from pelton.targets import is_gpu
from pelton.backends.arrays import random_inputs
from pelton.backends.device import Ready

from .differences import Difference, Tally, check_shapes
from .scales import scales

log = logging.getLogger("pelton.compare")

# relative to an output's largest value, by the engine's precision
TOLERANCE = {"fp32": 2e-3, "tf32": 2e-2, "fp16": 2e-2, "bf16": 6e-2, "int8": 1e-1}
# Allowed error of a quantized output, in steps of its scale.
STEPS = 1
# Allowed loss of SQNR in dB of a quantized model's outputs against its own evaluation in f32: twice its noise. No two
# evaluations agree: mobilenet_v2 (random weights, 8 samples) has 23.2 dB here, 23.1 dB node by node in ONNX Runtime,
# and 23.4 dB with the model's values rounded to their types in numpy.
MARGIN = 6.0

Arrays = Mapping[str, np.ndarray]
Runner = Callable[[Arrays], Arrays]  # inputs by name → outputs by name
OURS, MODEL = "the engine", "the model"  # sources of outputs, beside other runtimes


@dataclass(frozen=True)
class OutputDifference(Difference):
    """The difference of an output. `agreement`: the share of rows, along the last axis of more than one element, whose
    largest element is at the right index; None without such rows."""

    agreement: float | None


@dataclass(frozen=True)
class StepDifference(Difference):
    """The difference of a step's output."""

    step: int
    op: str
    tactic: str
    layers: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """An engine compared with its model. `steps`: those that write values of the model, in execution order; `unknown`:
    the number of others; `samples`: the number of runs.

    For quantized models, `rounded` has the outputs of an evaluation that rounds every value to its type, as runtimes
    do: where a quotient is near a tie, that alone decides its integer, and everything after it. `others`: the outputs
    of other runtimes, by their names."""

    outputs: tuple[OutputDifference, ...]
    steps: tuple[StepDifference, ...]
    unknown: int
    tolerance: float
    precision: str
    samples: int = 1
    allowed: int = STEPS
    rounded: tuple[OutputDifference, ...] = ()
    others: Mapping[str, tuple[OutputDifference, ...]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True if all outputs fit."""
        return all(map(self.fits, range(len(self.outputs))))

    def fits(self, index: int) -> bool:
        """True if an output is finite where expected, and its error is within the tolerance; or, if the model is
        quantized, within the allowed steps of its scale, or within the noise of rounding."""
        output = self.outputs[index]
        if output.nonfinite:
            return False
        if output.error <= self.tolerance:
            return True
        if output.quantized is not None and output.quantized.steps < self.allowed + 0.5:
            return True
        if not self.rounded or output.sqnr is None:
            return False
        return output.sqnr >= (self.rounded[index].sqnr or 0.0) - MARGIN

    def worst(self, count: int) -> tuple[StepDifference, ...]:
        """Returns steps that overflow first, then those with the largest errors."""
        return tuple(sorted(self.steps, key=lambda s: (not s.nonfinite, -s.error, s.step))[:count])

    def json(self) -> dict[str, Any]:
        def listed(found: Sequence[Difference]) -> list[dict[str, Any]]:
            return [d.json() for d in found]

        return {
            "ok": self.ok,
            **{name: getattr(self, name) for name in ("unknown", "tolerance", "precision", "samples", "allowed")},
            "outputs": listed(self.outputs),
            "steps": listed(self.steps),
            "rounded": listed(self.rounded),
            "others": {name: listed(found) for name, found in self.others.items()},
        }

    def _repr_html_(self) -> str:
        """Returns HTML for notebooks: the outputs, and the ten steps with the largest errors."""

        def cells(d: Difference) -> tuple[str, ...]:
            sqnr = "" if d.sqnr is None else f"{d.sqnr:.1f}"
            return (f"{d.error:.1e}", f"{d.largest:.4g}", sqnr, f"{d.nonfinite or ''}")

        head = ("off", "largest", "SQNR dB", "infinite or NaN")
        verdict = f"{'within' if self.ok else 'NOT within'} the tolerance of {self.tolerance:g} ({self.precision})"
        outputs = [(o.name, *cells(o)) for o in self.outputs]
        steps = [(f"{s.step}", html.shortened(", ".join(s.layers) or s.op), *cells(s)) for s in self.worst(10)]
        return html.table(("output", *head), outputs, verdict) + html.table(("step", "layers", *head), steps)


def compare(
    model: Any,
    engine: Engine,
    inputs: Arrays | Sequence[Arrays] | None = None,
    *,
    tolerance: float | None = None,
    steps: int = STEPS,
    seed: int = 0,
    values: Mapping[str, Any] | None = None,
    others: Mapping[str, Runner] | None = None,
    progress: Callable[[str, int, int], Any] | None = None,
) -> Comparison:
    """Runs an engine, step by step, beside its model in float64 (seconds to minutes for each sample). For scripts over
    several engines, compares only outputs, and rounds every value of the model to its type.

    inputs: arrays by name, or one such mapping for each sample, all of the same sizes (default: random ones from
    `seed`, of the optimum sizes). tolerance: relative to the largest value of an output (default: by precision, see
    TOLERANCE). steps: allowed error of a quantized output, in steps of its scale. values: inputs that became constants,
    as for `pelton.build`. others: functions that run the model elsewhere, for comparison. Raises InputError if model,
    engine and inputs do not fit each other, ModelError if the model cannot be read.
    """
    if inputs is None:
        inputs = random_inputs([replace(p, shape=engine.shapes()[p.name]) for p in engine.inputs], seed)
    samples = [inputs] if isinstance(inputs, Mapping) else list(inputs)
    if not samples:
        raise InputError("there are no samples to compare on")
    _check_sizes(samples)
    kind = _Watched if engine.parts == (engine,) else _Whole
    watched, tallies = kind(model, engine, samples, values, progress), _Tallies()
    for number, sample in enumerate(samples):
        run = watched.run(number, sample)
        tallies.add(OURS, run.results, run)
        if run.rounded is not None:
            tallies.add(MODEL, run.rounded, run)
        for name, runner in (others or {}).items():
            tallies.add(name, runner(sample), run)
    precision = str(engine.meta.get("precision", "fp32"))
    if tolerance is None:
        tolerance = TOLERANCE.get(precision, TOLERANCE["fp32"])
    return Comparison(
        tallies.outputs(OURS),
        watched.steps(),
        watched.unknown,
        tolerance,
        precision,
        len(samples),
        steps,
        tallies.outputs(MODEL),
        {name: tallies.outputs(name) for name in others or {}},
    )


class _Run(NamedTuple):
    """A run of an engine, and the outputs of the model for the same inputs: `expected`, and `rounded`, with every value
    rounded to its type, if that makes a difference. `outputs` has their types, `scales` those of quantized ones."""

    results: Mapping[str, Any]
    expected: Arrays
    rounded: Arrays | None
    outputs: Sequence[Value]
    scales: Mapping[Value, np.ndarray]


class _Tallies:
    """The differences of outputs over all samples, by source."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Tally]] = {}

    def add(self, who: str, results: Mapping[str, Any], run: _Run) -> None:
        new = {v.name: Tally(v.name, v.type.dtype, run.scales.get(v)) for v in run.outputs}
        for name, tally in self.found.setdefault(who, new).items():
            if name not in results:
                raise InputError(f"{who} has no output {name!r}, but the model has for these inputs")
            got = np.asarray(results[name])
            check_shapes(who, name, got, run.expected[name])
            tally.add(got, run.expected[name])

    def outputs(self, who: str) -> tuple[OutputDifference, ...]:
        tallies = self.found.get(who, {}).values()
        return tuple(OutputDifference(**vars(t.difference()), agreement=t.agreement) for t in tallies)


class _Whole:
    """A script over engines, compared with its model evaluated with the inputs as constants and every value rounded to
    its type: no straight line of steps describes it."""

    unknown = 0

    def __init__(
        self,
        model: Any,
        engine: Engine,
        samples: Sequence[Arrays],
        values: Mapping[str, Any] | None,
        progress: Callable[[str, int, int], Any] | None,
    ):
        self.model, self.engine, self.values, self.progress = model, engine, values or {}, progress
        self.total = len(samples)
        self.options = Options(outputs=tuple(p.name for p in engine.outputs), accept_conversion=True)
        interface = importers.unread(model, values=values, accept_conversion=True).interface({})
        _check_inputs(engine, interface.inputs)
        _warn_of_another(model, interface.info, engine)
        self.context = engine.context(engine.meta.get("threads"))

    def run(self, number: int, inputs: Arrays) -> _Run:
        """Runs one sample."""
        results = dict[str, Any]()
        for name, value in self.context.run(inputs).items():
            is_list = isinstance(value, list)
            results |= {f"{name}[{i}]": a for i, a in enumerate(value)} if is_list else {name: value}
        with folding.of_everything():
            options = self.options.but(values={**self.values, **inputs})
            graph = run_stages(Compilation(options, self.model), "import").imported.graph
        if self.progress is not None and self.progress("check", number + 1, self.total) is False:
            raise Cancelled(f"cancelled in sample {number + 1} of {self.total}")
        return _Run(results, evaluate(graph, {}, round=False), None, graph.outputs, scales(graph))

    def steps(self) -> tuple[StepDifference, ...]:
        """Returns none: the steps differ from run to run."""
        return ()


class _Watched:
    """An engine run step by step, and the differences of its steps' outputs, over all samples."""

    def __init__(
        self,
        model: Any,
        engine: Engine,
        samples: Sequence[Arrays],
        values: Mapping[str, Any] | None,
        progress: Callable[[str, int, int], Any] | None,
    ):
        imported = _imported(model, engine, samples[0], values)
        _warn_of_another(model, imported.info, engine)
        self.model = imported.graph
        self.quantized = any(n.op.stepwise for n in self.model.nodes)
        target = "cuda" if is_gpu(engine.plain.target) else "cpu"
        options = Options(strict=bool(engine.meta.get("strict")), target=target)
        self.engine, self.graph = engine, run_stages(start(imported, options), "optimize").graph
        self.progress, self.total, self.unknown = progress, len(samples) * len(engine.steps), 0
        self.known = {v.name: v for n in self.graph.nodes for v in n.outputs}
        self.scales = scales(self.graph)
        self.taken = [self.known[name] for s in engine.steps for name in s.info["writes"] if name in self.known]
        self.tallies: dict[tuple[int, str], Tally] = {}
        self.context = engine.context(engine.meta.get("threads"))

    def run(self, number: int, inputs: Arrays) -> _Run:
        """Runs one sample."""
        results = self._run(number, inputs)
        expected = evaluate(self.model, inputs, round=False)
        rounded = evaluate(self.model, inputs) if self.quantized else None
        return _Run(results, expected, rounded, self.model.outputs, scales(self.model))

    def _run(self, number: int, inputs: Arrays) -> dict[str, Any]:
        """Runs one sample step by step, and returns its outputs."""
        exact = ExactValues(self.graph, inputs, self.taken)
        self.unknown = 0

        def see(done: int, ready: Ready) -> None:
            if not done:
                return
            seen = number * len(self.engine.steps) + done
            if self.progress is not None and self.progress("check", seen, self.total) is False:
                raise Cancelled(f"cancelled while in step {seen} of {self.total}")
            there = {n: a for n, a in copy_outputs(ready.plain.steps[done - 1], ready).items() if n in self.known}
            self.unknown += not there
            for name, got in there.items():
                value = self.known[name]
                want = exact.take(value)
                if want.shape == got.shape:
                    new = Tally(name, value.type.dtype, self.scales.get(value))
                    self.tallies.setdefault((done - 1, name), new).add(got, want)

        return self.context.watch(inputs, see)

    def steps(self) -> tuple[StepDifference, ...]:
        """Returns the differences, in execution order."""
        differences = []
        for (step, _), tally in self.tallies.items():
            info = self.engine.steps[step].info
            where = {"step": step, "op": info["op"], "tactic": info["tactic"], "layers": tuple(info["layers"])}
            differences.append(StepDifference(**vars(tally.difference()), **where))
        return tuple(differences)


def _check_sizes(samples: Sequence[Arrays]) -> None:
    """Raises InputError unless all samples have arrays of the same sizes."""
    first = {name: np.shape(a) for name, a in samples[0].items()}
    for i, sample in enumerate(samples):
        shapes = {name: np.shape(a) for name, a in sample.items()}
        if shapes != first:
            raise InputError(f"sample {i} has arrays of {shapes}, sample 0 of {first}; compare them one by one")


def _imported(
    model: Any, engine: Engine, inputs: Mapping[str, np.ndarray], values: Mapping[str, Any] | None
) -> Imported:
    """Imports the model for inputs of these sizes, with the outputs of the engine."""
    kv_cache = (engine.provenance.get("options") or {}).get("kv_cache")
    added = scale_ports(p.name for p in (*engine.inputs, *engine.outputs)) if kv_cache == "int8" else set()
    names = [p.name for p in engine.outputs if p.name not in added]
    shapes = {p.name: np.shape(inputs[p.name]) for p in engine.inputs if p.name in inputs and p.name not in added}
    # compare with the model as it was imported, even if it was converted
    options = Options(shapes=shapes, values=values, accept_conversion=True, kv_cache=kv_cache)
    try:
        imported = run_stages(Compilation(options, model), "import").imported
    except OnData:  # an input decides the control flow; the engine has its value
        _check_inputs(engine, importers.unread(model, values=values, accept_conversion=True).interface({}).inputs)
        raise
    except InputError:  # another model: its own inputs make a clearer error than sizes that do not fit
        whole = run_stages(Compilation(options.but(shapes=None, optimum={}), model), "import").imported
        _check_inputs(engine, whole.graph.inputs)
        raise
    if [v.name for v in imported.graph.outputs if v.name not in added] != names:
        imported = run_stages(Compilation(options.but(outputs=tuple(names)), model), "import").imported
    _check_inputs(engine, imported.graph.inputs)
    return imported


def _check_inputs(engine: Engine, inputs: Sequence[Value]) -> None:
    """Raises InputError unless these inputs of a model are those of the engine."""
    takes, has = {v.name: v.type.dtype.value for v in inputs}, {p.name: p.dtype for p in engine.inputs}
    if takes != has:
        raise InputError(
            f"the engine's inputs are {_listed(has)}, the model's {_listed(takes)}; the engine was built from"
            " another model, or with values for inputs: add the same --values"
        )


def _warn_of_another(model: Any, info: Info, engine: Engine) -> None:
    """Warns of another model. The source files of a refitted engine do not identify its weights."""
    if "refitted" not in engine.provenance and provenance.is_of_another(model, info, engine.provenance.get("model")):
        log.warning(
            "engine %r was built from another file than %s: the SHA-256 differ, so errors may come from the model",
            engine.label,
            info.label or "the given model",
        )


def _listed(inputs: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {dtype}" for name, dtype in inputs.items()) or "nothing"
