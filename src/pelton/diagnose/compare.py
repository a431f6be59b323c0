"""Compares an engine with its model in float64 on some inputs: its outputs, and what every step writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from pelton.compiler.accuracy import ExactValues, copy_outputs, relative_error
from pelton.compiler.compilation import Compilation
from pelton.compiler.stages import run_stages, start
from pelton.errors import Cancelled, InputError
from pelton.ir.imported import Imported
from pelton.ir.evaluate import evaluate
from pelton.ir.types import DType
from pelton.options import Options
from pelton.runtime import Engine
from pelton.targets import is_gpu
from pelton.backends.arrays import random_inputs
from pelton.backends.device import Ready

# of the largest value of an output, by the engine's precision
TOLERANCE = {"fp32": 2e-3, "tf32": 2e-2, "fp16": 2e-2, "bf16": 6e-2}


@dataclass(frozen=True)
class Difference:
    """How far a value is from the expected one. `error`: the largest difference among elements that are finite in both,
    relative to the largest expected value; `nonfinite`: how many elements are infinite or NaN and should not be, or the
    other way round; `largest`: the largest expected value."""

    name: str
    dtype: str
    error: float
    nonfinite: int
    largest: float


@dataclass(frozen=True)
class StepDifference(Difference):
    """The difference of a value that a step writes."""

    step: int
    op: str
    tactic: str
    layers: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """An engine beside its model. `steps`: those that write values of the model, in execution order; `unknown`: how
    many others there are."""

    outputs: tuple[Difference, ...]
    steps: tuple[StepDifference, ...]
    unknown: int
    tolerance: float
    precision: str

    @property
    def ok(self) -> bool:
        """Whether no output is further off than the tolerance, or infinite where it should not be."""
        return all(o.error <= self.tolerance and not o.nonfinite for o in self.outputs)

    def worst(self, count: int) -> tuple[StepDifference, ...]:
        """Steps that overflow first, then those furthest off."""
        return tuple(sorted(self.steps, key=lambda s: (not s.nonfinite, -s.error, s.step))[:count])

    def json(self) -> dict[str, Any]:
        outputs, steps = ([_difference_json(d) for d in found] for found in (self.outputs, self.steps))
        return {"ok": self.ok, **asdict(self), "outputs": outputs, "steps": steps}


def _difference_json(difference: Difference) -> dict[str, Any]:
    """The fields under the keys of `pelton compare --json`."""
    keys = {"nonfinite": "lost", "largest": "most"}
    return {keys.get(name, name): value for name, value in asdict(difference).items()}


def compare(
    model: Any,
    engine: Engine,
    inputs: Mapping[str, np.ndarray] | None = None,
    *,
    tolerance: float | None = None,
    seed: int = 0,
    values: Mapping[str, Any] | None = None,
    progress: Callable[[str, int, int], Any] | None = None,
) -> Comparison:
    """Runs an engine once, step by step, beside its model in float64 (seconds to minutes).

    inputs: arrays by name (default: random ones from `seed`, of the optimum sizes). tolerance: relative to the largest
    value of an output (default: by precision, see TOLERANCE). values: inputs that became constants, as for
    `pelton.build`. Raises InputError if model, engine and inputs do not fit each other, ModelError if the model cannot
    be read.
    """
    if engine.parts != (engine,):
        raise InputError(
            f"engine {engine.label!r} is a script over several engines, which are not compared step by step"
        )
    if inputs is None:
        inputs = random_inputs([replace(p, shape=engine.shapes()[p.name]) for p in engine.inputs], seed)
    imported = _imported(model, engine, inputs, values)
    target = "cuda" if is_gpu(engine.plain.target) else "cpu"
    options = Options(strict=bool(engine.meta.get("strict")), target=target)
    graph = run_stages(start(imported, options), "optimize").graph
    known = {v.name: v for n in graph.nodes for v in n.outputs}
    exact = ExactValues(
        graph, inputs, [known[name] for s in engine.steps for name in s.info["writes"] if name in known]
    )
    found, unknown = list[StepDifference](), 0

    def see(done: int, ready: Ready) -> None:
        nonlocal unknown
        if not done:
            return
        if progress is not None and progress("check", done, len(engine.steps)) is False:
            raise Cancelled(f"cancelled while in step {done} of {len(engine.steps)}")
        step = ready.plain.steps[done - 1]
        there = {name: a for name, a in copy_outputs(step, ready).items() if name in known}
        unknown += not there
        for name, got in there.items():
            want, info = exact.take(known[name]), step.info
            if want.shape == got.shape:
                d, layers = _difference(name, got, want, known[name].type.dtype), tuple(info["layers"])
                found.append(
                    StepDifference(**asdict(d), step=done - 1, op=info["op"], tactic=info["tactic"], layers=layers)
                )

    results = engine.context(engine.meta.get("threads")).watch(inputs, see)
    expected = evaluate(imported.graph, inputs, round=False)
    outputs = tuple(
        _difference(v.name, results[v.name], expected[v.name], v.type.dtype) for v in imported.graph.outputs
    )
    precision = str(engine.meta.get("precision", "fp32"))
    if tolerance is None:
        tolerance = TOLERANCE.get(precision, TOLERANCE["fp32"])
    return Comparison(outputs, tuple(found), unknown, tolerance, precision)


def _imported(
    model: Any, engine: Engine, inputs: Mapping[str, np.ndarray], values: Mapping[str, Any] | None
) -> Imported:
    """The model for inputs of these sizes, with the outputs that the engine has."""
    names = [p.name for p in engine.outputs]
    shapes = {p.name: np.shape(inputs[p.name]) for p in engine.inputs if p.name in inputs}
    options = Options(shapes=shapes, values=values)
    imported = run_stages(Compilation(options, model), "import").imported
    if [v.name for v in imported.graph.outputs] != names:
        imported = run_stages(Compilation(options.but(outputs=tuple(names)), model), "import").imported
    takes, has = {v.name: v.type.dtype.value for v in imported.graph.inputs}, {p.name: p.dtype for p in engine.inputs}
    if takes != has:
        raise InputError(
            f"the engine takes {_listed(has)}, the model {_listed(takes)}; the engine was built from another"
            " model, or with values for inputs, which have to be given here, too (--values)"
        )
    return imported


def _listed(inputs: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {dtype}" for name, dtype in inputs.items()) or "nothing"


def _difference(name: str, got: np.ndarray, want: np.ndarray, dtype: DType) -> Difference:
    if not dtype.is_float:
        return Difference(name, str(got.dtype), relative_error(dtype, got, want), 0, 0.0)
    name_of_dtype, got = str(got.dtype), got.astype(np.float64)
    with np.errstate(over="ignore"):
        # what overflows the type in the model may be infinite in the engine
        rounded = want.astype(dtype.numpy).astype(np.float64)
    numbers = np.isfinite(got) & np.isfinite(rounded)
    nonfinite = ~numbers & (got != rounded) & ~(np.isnan(got) & np.isnan(rounded))
    largest = float(np.abs(rounded[np.isfinite(rounded)]).max(initial=0.0))
    off = float(np.abs(got[numbers] - want[numbers]).max(initial=0.0))
    error = off / max(largest, 1e-30) if off else 0.0
    return Difference(name, name_of_dtype, error, int(nonfinite.sum()), largest)
