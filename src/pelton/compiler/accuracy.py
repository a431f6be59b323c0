"""Runs an engine step by step and compares each step with a float64 evaluation on the step's actual inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pelton.engine import sizes
from pelton.engine.plan import Slice, Step, Tensor
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
    """A completed step, with copies of all values that it read and wrote."""

    step: Step
    task: Task
    read: Mapping[Value, np.ndarray]
    wrote: Mapping[Value, np.ndarray]

    @property
    def tactic(self) -> Tactic | None:
        """The tactic of the step's kernel; None for host steps and for steps without a record of it."""
        text = None if self.step.host else self.step.info.get("tactic")
        return None if text is None else Tactic.parse(text)

    @property
    def inexact(self) -> bool:
        """True if the step's arithmetic differs from the model's in more than the order of sums."""
        tactic = self.tactic
        return tactic is not None and not templates(tactic.isa)[tactic.template].is_exact(tactic)

    @property
    def tolerance(self) -> float:
        """The step's allowed own error, relative to the largest value."""
        tactic = self.tactic or Tactic("", "")
        template = templates(tactic.isa)[tactic.template] if tactic.template else Template()
        return template.tolerance(tactic)

    def error(self, want: Mapping[Value, np.ndarray]) -> float:
        """Returns the error of the outputs: the largest difference, relative to the largest expected value."""
        return max((relative_error(v.type.dtype, a, want[v]) for v, a in self.wrote.items()), default=0.0)

    def own_error(self) -> float:
        """Returns the error against a float64 evaluation on the step's actual inputs. Where a region rounds to integers
        and f32 arithmetic cannot decide, both neighbors of a number are right (`ties`)."""
        what = self.task.what
        if isinstance(what, Region) and ties.rounds(what.body):
            off = ties.INEXACT if self.inexact else ties.EXACT
            within = ties.bounds(what.body, {v.name: a for v, a in self.read.items()}, off)
            return self.error({v: ties.nearest(self.wrote[v], within[v]) for v in self.wrote})
        if isinstance(what, Region):
            reference = evaluate(what.body, {v.name: a for v, a in self.read.items()}, round=False)
            return self.error({v: reference[v.name] for v in what.body.outputs})
        if what.op.kind == "foreign":
            return 0.0  # a foreign op is its own reference
        return self.error(
            dict(zip(what.outputs, evaluate_node(what, tuple(self.read[v] for v in what.inputs), round=False)))
        )


class ExactValues:
    """Float64 values of a graph for given inputs. They are computed on demand and dropped after their last reader: a
    node, an output or a call of `take`."""

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
        """Returns the value for one of the announced readers in `taken`."""
        array = self.of(value)
        self._read(value)
        return array

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
    """Expected outputs of each task in float64. Each may be requested once, in the order of execution."""

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
    """Resolves the placement and schedule of an engine for the sizes of these inputs. InputError if they do not fit."""
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
    """Runs an engine and returns its outputs by name; `see` is called after every step. `chosen`: from `resolve_sizes`.
    InputError for inputs that do not fit."""
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
    """Copies the outputs of a step that has just run, by the names of the values."""
    return {name: _lying(t, ready) for name, t in zip(step.info["writes"], step.outputs, strict=True)}


def _copies(step: Step, chosen: ScheduledTask, values: Sequence[Value], ready: Ready) -> dict[Value, np.ndarray]:
    """Copies the current contents of values."""
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
    """Copies the current contents of a tensor."""
    return np.array(view(t, ready.memory(t.slice.buffer)), order="C")


def _tensor(v: Value, at: Slice, task: Task) -> Tensor:
    return Tensor(at, v.type.dtype.value, v.type.shape, task.layouts[v])


def check_accuracy(
    engine: Engine, placed: Placed, chosen: Sequence[ScheduledTask], seed: int = 0
) -> list[tuple[str, float]]:
    """Returns (layers, error) for every region of an engine on random inputs of the usual sizes; BuildError at the
    first error above the tolerance. Logs a warning and skips regions that these inputs send out of an index's range."""
    inputs = random_inputs(sizes.at(engine.plain, sizes.optimum_sizes(engine.plain)).inputs, seed)
    errors = []

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
            errors.append((label, error))
            whose = "it is a plugin's" if plugin else FAULT
            if not error <= seen.tolerance:
                raise BuildError(
                    f"the kernel of {label} ({what.title()}) differs from its reference by {error:.2g} of the largest"
                    f" value; {whose}"
                )

    _, sized = resolve_sizes(engine, placed, chosen, inputs)
    run_stepwise(engine, sized, inputs, see)
    return errors


def relative_error(dtype: DType, got: np.ndarray, want: np.ndarray) -> float:
    """Returns the largest difference, relative to the largest expected value, for floats and for bytes, which hold
    quantized values; other types differ by 0 or 1."""
    if dtype in (DType.U8, DType.I8):
        off = np.abs(got.astype(np.int32) - want.astype(np.int32)).max(initial=0)
        return float(off / max(np.abs(want.astype(np.int32)).max(initial=0), 1)) if off else 0.0
    if not dtype.is_float and got.dtype.kind != "c":
        return 0.0 if np.array_equal(got, want) else 1.0
    wide = np.float64 if dtype.is_float else np.complex128
    with np.errstate(over="ignore"):
        rounded = want.astype(dtype.numpy)  # values out of the type's range become infinite
    finite = np.isfinite(rounded)
    if not np.array_equal(finite, np.isfinite(got)) or not np.array_equal(
        got[~finite], rounded[~finite], equal_nan=True
    ):
        return float("inf")
    want = want[finite].astype(wide)
    largest = np.abs(got[finite].astype(wide) - want).max(initial=0.0)
    return float(largest / max(np.abs(want).max(initial=0.0), 1e-30)) if largest else 0.0
