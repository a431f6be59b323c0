"""Runs an engine step by step and holds each step against its meaning in float64, on what the steps before it really
gave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pelton.engine import sizes
from pelton.engine.model import Slice, Step, Tensor
from pelton.errors import BuildError, InputError
from pelton.ir.evaluate import evaluate, evaluate_node
from pelton.ir.graph import Graph, Node, Value
from pelton.ir.types import DType
from pelton.logs import Logger
from pelton.codegen.template import Kernel, Tactic, Template, templates
from pelton.plan import lower
from pelton.plan.lower import ScheduledTask
from pelton.plan.placed import Placed, Task
from pelton.plan.region import Region
from pelton.runtime import Engine
from pelton.backends.arrays import check_names, random_inputs
from pelton.backends.host import view
from pelton.backends.device import Ready

from . import ties

log = Logger("pelton.build")

FAULT = "this is a fault of Pelton: please report the model, the CPU and this line"


@dataclass(frozen=True, eq=False)
class StepRecord:
    """A step that has run: copies of all that it read and wrote, by the values that they stand for."""

    step: Step
    task: Task
    read: Mapping[Value, np.ndarray]
    wrote: Mapping[Value, np.ndarray]

    @property
    def tactic(self) -> Tactic | None:
        """What the step's kernel was made by; None for host steps, and for steps that do not say it."""
        text = None if self.step.host else self.step.info.get("tactic")
        return None if text is None else Tactic.parse(text)

    @property
    def inexact(self) -> bool:
        """Whether the step's arithmetic differs from the model's in more than the order of sums."""
        tactic = self.tactic
        return tactic is not None and not templates(tactic.isa)[tactic.template].is_exact(tactic)

    @property
    def tolerance(self) -> float:
        """The error of its own that it may have, of the largest value."""
        tactic = self.tactic or Tactic("", "")
        template = templates(tactic.isa)[tactic.template] if tactic.template else Template()
        return template.tolerance(tactic)

    def error(self, want: Mapping[Value, np.ndarray]) -> float:
        """The error of what it wrote: the largest difference, relative to the largest expected value."""
        return max((relative_error(v.type.dtype, a, want[v]) for v, a in self.wrote.items()), default=0.0)

    def own_error(self) -> float:
        """The error against a float64 evaluation on the very inputs that the step had. Where a region rounds to
        integers, either of the two that a number lies between is right, if f32 arithmetic cannot tell (`ties`)."""
        what = self.task.what
        if isinstance(what, Region) and ties.rounds(what.body):
            off = ties.INEXACT if self.inexact else ties.EXACT
            within = ties.bounds(what.body, {v.name: a for v, a in self.read.items()}, off)
            return self.error({v: ties.nearest(self.wrote[v], within[v]) for v in self.wrote})
        if isinstance(what, Region):
            found = evaluate(what.body, {v.name: a for v, a in self.read.items()}, round=False)
            return self.error({v: found[v.name] for v in what.body.outputs})
        if what.op.kind == "foreign":
            return 0.0  # what runs it is all that says what it means
        return self.error(
            dict(zip(what.outputs, evaluate_node(what, tuple(self.read[v] for v in what.inputs), round=False)))
        )


class ExactValues:
    """The values of a graph in float64 for these inputs: made when they are asked for, dropped when nothing is left
    that would read them: no node, no output, and none of those that `take` gets."""

    def __init__(self, graph: Graph, inputs: Mapping[str, np.ndarray], taken: Iterable[Value] = ()):
        self.graph = graph
        self.known: dict[Value, np.ndarray] = {
            **graph.constants,
            **{v: np.asarray(inputs[v.name]) for v in graph.inputs},
        }
        self.readers = Counter(v for n in graph.nodes for v in n.inputs) + Counter(graph.outputs) + Counter(taken)

    def of(self, value: Value) -> np.ndarray:
        if value not in self.known:
            self._make(self.graph.producer[value])
        return self.known[value]

    def take(self, value: Value) -> np.ndarray:
        """The same, once for each time that it was said to be taken."""
        found = self.of(value)
        self._read(value)
        return found

    def _make(self, node: Node) -> None:
        arrays = tuple(map(self.of, node.inputs))
        self.known.update(zip(node.outputs, evaluate_node(node, arrays, round=False)))
        for v in node.inputs:
            self._read(v)

    def _read(self, value: Value) -> None:
        self.readers[value] -= 1
        if not self.readers[value]:
            del self.known[value]


class ExpectedOutputs:
    """What each task should write, in float64. Each is asked for once, in the order in which they run."""

    def __init__(self, placed: Placed, inputs: Mapping[str, np.ndarray]):
        graph = placed.graph
        copies = [
            t.what.body.nodes[0] if isinstance(t.what, Region) else t.what
            for t in placed.tasks
            if t.writes[0] not in graph.producer
        ]
        self.copied: dict[Value, Value] = {n.output: n.inputs[0] for n in copies}
        self.exact = ExactValues(graph.replace(constants=placed.constants), inputs, self.copied.values())

    def by(self, task: Task) -> dict[Value, np.ndarray]:
        return {v: self.exact.take(self.copied[v]) if v in self.copied else self.exact.of(v) for v in task.writes}


def resolve_sizes(
    engine: Engine, placed: Placed, chosen: Sequence[ScheduledTask], inputs: Mapping[str, np.ndarray]
) -> tuple[Placed, list[ScheduledTask]]:
    """What an engine was lowered from, for the sizes of these inputs. InputError where they do not fit."""
    check_names("input", engine.inputs, inputs, all_of_them=True)
    values = sizes.solve(engine.plain, {name: np.shape(a) for name, a in inputs.items()})
    if not values:
        return placed, list(chosen)
    placed, to = placed.sized(values)
    return placed, [
        replace(c, task=t, kernel=c.kernel.sized(values, to) if isinstance(c.kernel, Kernel) else None)
        for c, t in zip(chosen, placed.tasks)
    ]


def run_stepwise(
    engine: Engine, chosen: Sequence[ScheduledTask], inputs: Mapping[str, np.ndarray], see: Callable[[StepRecord], None]
) -> dict[str, np.ndarray]:
    """Outputs by name; `see` is called after every step of the run. `chosen`: as `sized` gives it. InputError for
    inputs that do not fit."""
    order = lower.in_step_order(chosen)
    read: dict[Value, np.ndarray] = {}

    def look(done: int, ready: Ready) -> None:
        steps = ready.plain.steps
        if done:
            step, c = steps[done - 1], order[done - 1]
            see(StepRecord(step, c.task, dict(read), _copies(step, c, c.task.writes, ready)))
        if done < len(steps):
            read.clear()
            read.update(_copies(steps[done], order[done], order[done].task.reads, ready))

    return engine.context(engine.meta.get("threads")).watch(inputs, look)


def copy_outputs(step: Step, ready: Ready) -> dict[str, np.ndarray]:
    """Copies of what a step of an engine has just written, by the names of the values."""
    return {name: _lying(t, ready) for name, t in zip(step.info["writes"], step.outputs, strict=True)}


def _copies(step: Step, chosen: ScheduledTask, values: Sequence[Value], ready: Ready) -> dict[Value, np.ndarray]:
    """Values as they lie in memory now."""
    if chosen.kernel is None:
        node = chosen.task.node
        at = dict(zip((*node.inputs, *node.outputs), (*step.inputs, *step.outputs)))
    else:
        at = {
            x: _tensor(x, s, chosen.task)
            for x, s in zip(chosen.kernel.operands, step.args, strict=True)
            if isinstance(x, Value)
        }
    return {v: _lying(at[v], ready) for v in values}


def _lying(t: Tensor, ready: Ready) -> np.ndarray:
    """A copy of a tensor as it lies in memory now."""
    return np.array(view(t, ready.memory(t.slice.buffer)), order="C")


def _tensor(v: Value, at: Slice, task: Task) -> Tensor:
    return Tensor(at, v.type.dtype.value, v.type.shape, task.layouts[v])


def check_accuracy(
    engine: Engine, placed: Placed, chosen: Sequence[ScheduledTask], seed: int = 0
) -> list[tuple[str, float]]:
    """(layers, error) for every region of an engine on random inputs of the usual sizes; BuildError at the first whose
    error passes the tolerance. Regions that these inputs send to an index that they do not have are left out, with a
    warning."""
    inputs = random_inputs(sizes.at(engine.plain, sizes.optimum_sizes(engine.plain)).inputs, seed)
    found = []

    def see(seen: StepRecord) -> None:
        what = seen.task.what
        if isinstance(what, Region):
            label = "+".join(what.layers) or what.title()
            plugin = any(n.op.instance is not None for n in what.body.nodes)
            try:
                error = seen.own_error()
            except InputError as e:
                log.warning("the kernel of %s is left unchecked: %s (at sizes and inputs made up for this)", label, e)
                return
            except Exception as e:  # whatever a plugin raises
                if not plugin:
                    raise
                raise BuildError(f"the reference of {label} failed, a plugin's: {type(e).__name__}: {e}") from e
            found.append((label, error))
            whose = "it is a plugin's" if plugin else FAULT
            if not error <= seen.tolerance:
                raise BuildError(
                    f"the kernel of {label} ({what.title()}) differs from its reference by {error:.2g} of the largest"
                    f" value; {whose}"
                )

    _, sized = resolve_sizes(engine, placed, chosen, inputs)
    run_stepwise(engine, sized, inputs, see)
    return found


def relative_error(dtype: DType, got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference, relative to the largest expected value. Of integers this holds for bytes, which quantized
    values are; other types differ by 0 or 1."""
    if dtype in (DType.U8, DType.I8):
        off = np.abs(got.astype(np.int32) - want.astype(np.int32)).max(initial=0)
        return float(off / max(np.abs(want.astype(np.int32)).max(initial=0), 1)) if off else 0.0
    if not dtype.is_float and got.dtype.kind != "c":
        return 0.0 if np.array_equal(got, want) else 1.0
    wide = np.float64 if dtype.is_float else np.complex128
    with np.errstate(over="ignore"):
        rounded = want.astype(dtype.numpy)  # what is out of the type's range is infinite in it
    finite = np.isfinite(rounded)
    if not np.array_equal(finite, np.isfinite(got)) or not np.array_equal(
        got[~finite], rounded[~finite], equal_nan=True
    ):
        return float("inf")
    want = want[finite].astype(wide)
    largest = np.abs(got[finite].astype(wide) - want).max(initial=0.0)
    return float(largest / max(np.abs(want).max(initial=0.0), 1e-30)) if largest else 0.0
