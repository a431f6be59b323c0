"""Contexts of scripts: they run the engines of a script and the steps between them on named arrays."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from pelton.logs import Logger
from pelton.backends.arrays import (
    PortCheck,
    inputs_to_numpy,
    check_indices,
    check_no_overlap,
    check_names,
    check_out,
    fit,
    to_numpy,
    port_checks,
    refuse_mapping,
)
from pelton.backends.cpu import describe
from pelton.backends.device import Stamped
from pelton.engine import sizes
from pelton.engine.plan import Port, Step
from pelton.engine.script import (
    Action,
    Block,
    Feed,
    HostAction,
    IfAction,
    LoopAction,
    RunAction,
    ScanAction,
    Script,
)
from pelton.errors import EngineError, InputError
from pelton.system import share
from pelton.system.forks import survives_fork

from .context import ENTERED, Context
from .engine import Engine
from .profile import StepRuns
from .script_steps import between, step_of
from .script_values import StackedRows, address_range, as_output, outside, size_operand, write_output

log = Logger("pelton.runtime")
REMEMBERED = 1024  # number of shapes that an engine in a loop keeps ready
Call = Callable[..., Sequence[Any]]


class PlannedAction(NamedTuple):
    """A step of a block: its runner, its outputs, and the names that nothing reads after it."""

    run: Callable[..., Iterable[Any]]
    action: Action
    outputs: tuple[str, ...]
    dead: tuple[str, ...]


class ScriptOwner(Protocol):
    """The interface of a script's engine that a context needs. Per block, by `id`: `plans`; per action: `calls`, the
    functions of host steps, `feeds`, the sources of its engine's inputs, and `extended`, its engine's outputs that may
    have the memory of an input of the script, with the script's outputs."""

    script: Script
    engines: list[Engine]
    arrays: dict[str, Any]
    plans: dict[int, list[PlannedAction]]
    calls: dict[int, Call]
    feeds: dict[int, list[tuple[str, Feed]]]
    extended: dict[int, list[tuple[str, str]]]
    warned: set[int]
    lent: set[int]

    @property
    def label(self) -> str: ...
    def ports(self, values: Mapping[str, int]) -> tuple[Port, ...]: ...


class Names(dict[str, Any]):
    """Maps names in a block to arrays, lists or None; undefined names are looked up in the enclosing block."""

    __slots__ = ("outer",)

    def __init__(self, outer: Mapping[str, Any]):
        self.outer = outer

    def __missing__(self, name: str) -> Any:
        return self.outer[name]


class ScriptContext(Context):
    """Runs a script: has a context of each engine, and binds names to arrays. Interface and errors of `Context`."""

    def __init__(self, engine: ScriptOwner, threads: int | None = None):
        self.engine = engine
        self.owner = engine
        self._names = {p.name for p in engine.script.inputs}
        self.contexts = [e.context(threads) for e in engine.engines]
        for context in self.contexts:
            context.remembered = REMEMBERED
        self.threads = max((c.threads for c in self.contexts), default=threads or 1)
        self._room = share.memory() // 2
        # while tracing: all that ran, with its steps
        self._traced: list[tuple[Action, Sequence[Stamped]]] | None = None
        self._turns = 0  # of all loops of the run
        self._in_place: dict[str, np.ndarray] = {}  # outputs that the run in progress writes into memory of inputs
        # shapes of the inputs → types and shapes that the inputs must have
        self._ports: dict[tuple[tuple[int, ...], ...], list[PortCheck]] = {}
        # the same if there are no dynamic dimensions
        self._static_checks = None if engine.script.symbols else port_checks(engine.ports({}))
        self._unlock()
        survives_fork(self)

    @property
    def machine(self) -> str:
        return next((c.machine for c in self.contexts), describe()["model"])

    @property
    def stream(self) -> None:
        """None: a script reads the results of its engines, and their runs cannot be enqueued."""

    def synchronize(self) -> None:
        """Does nothing: runs are over when `run` returns."""

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, np.ndarray]:
        """Runs the script; returns outputs by name: new arrays, or those of `out`, which must have their shapes."""
        with self._lock:  # as in `_alone`, in half the time
            if self._busy:
                raise InputError(ENTERED)
            self._busy = True
            try:
                return self._run(inputs, out)
            finally:
                self._busy = False

    def profile(self, inputs: Mapping[str, Any]) -> list[tuple[Step, int]]:
        """Returns every step with the nanoseconds, operations and bytes of all its runs, possibly none; steps between
        the engines exclude the steps inside them."""
        with self._alone():
            inside = [
                [StepRuns(s) for s in sizes.at(e.plain, sizes.optimum_sizes(e.plain)).steps] for e in self.owner.engines
            ]
            outside = {id(a): StepRuns(step_of(a)) for a in between(self.owner.script.main)}
            ran: list[Stamped] = []  # not yet attributed to an enclosing step
            for action, steps in self._trace(inputs, None)[1]:
                if isinstance(action, RunAction):
                    for runs, (step, begin, end) in zip(inside[action.engine], steps):
                        runs.add(step, end - begin)
                    ran += steps
                elif id(action) in outside:  # excludes fallbacks that ran instead of an engine
                    for step, begin, end in steps:
                        own = sum(last - first for _, first, last in ran if first >= begin)
                        ran = [*(s for s in ran if s[1] < begin), (step, begin, end)]
                        outside[id(action)].add(step, end - begin - own)
            return [runs.all() for runs in (*itertools.chain(*inside), *outside.values())]

    def trace(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], list[Stamped]]:
        """Returns outputs by name, and every executed step; steps between the engines include the steps inside them."""
        with self._alone():
            results, records = self._trace(inputs, out)
            return results, [t for _, steps in records for t in steps]

    def trace_engines(self, inputs: Mapping[str, Any]) -> list[tuple[Any, Sequence[Stamped]]]:
        with self._alone():
            return [
                (self.owner.engines[action.engine] if isinstance(action, RunAction) else None, steps)
                for action, steps in self._trace(inputs, None)[1]
            ]

    def _trace(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None
    ) -> tuple[dict[str, np.ndarray], list[tuple[Action, Sequence[Stamped]]]]:
        """Returns outputs by name, and all that ran with its steps, in the order of completion."""
        self._traced = []
        try:
            return self._run(inputs, out), self._traced
        finally:
            self._traced = None

    def warmup(self) -> None:
        """Runs each engine once on zeros of its optimum shapes; not the script, which zeros may loop forever."""
        with self._alone():
            for context in self.contexts:
                context.warmup()

    def prepare(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Does nothing: the shapes of the engines' inputs depend on the data."""

    def output_shapes(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
        raise InputError(
            "a script learns the shapes of its outputs from the data; run it, and read those of the results"
        )

    def watch(self, inputs: Mapping[str, Any], see: Callable[..., None]) -> dict[str, np.ndarray]:
        raise InputError("a script has no memory to watch; watch the runs of its engines")

    def _run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None) -> dict[str, np.ndarray]:
        script = self.owner.script
        if type(inputs) is not dict and not isinstance(inputs, Mapping):
            refuse_mapping(script.inputs, inputs)
        if inputs.keys() != self._names:
            check_names("input", script.inputs, inputs, all_of_them=True)
        if out is not None:
            check_out(script.outputs, out)
        inputs = inputs_to_numpy(inputs)
        names = Names(self.owner.arrays)
        for port, name, dtype, shape in self._static_checks or self._for_shapes(inputs):
            array = inputs[name]
            if (
                type(array) is not np.ndarray
                or array.dtype != dtype
                or array.shape != shape
                or dtype.hasobject
                or not (array.flags.c_contiguous and array.flags.aligned)
            ):
                array = fit(port, array)
            check_indices(port, array)
            names[name] = array
        self._in_place = {}
        if out:
            places = [to_numpy(out.get(p.name), f"out[{p.name!r}]") for p in script.outputs]
            spans = [address_range(a) for a in (*(names[p.name] for p in script.inputs), *places)]
            check_no_overlap(script.inputs, script.outputs, spans, out)
            for port, place in zip(script.outputs, places):
                if port.shares is not None and address_range(place) == address_range(names[port.shares]):
                    self._in_place[port.name] = place
        self._turns = 0
        lent = self.owner.lent.union(map(id, names.values()))
        values = self._block(script.main, names)
        results: dict[str, Any] = {}
        written = {p.name for p, v in zip(script.outputs, values) if v is self._in_place.get(p.name, self)}
        for port, value in zip(script.outputs, values):
            results[port.name] = value if port.name in written else as_output(port, value, id(value) in lent)
            lent.add(id(value))  # a value with two names is two arrays
        # after all are computed: their sources may share memory with `out`
        for port in script.outputs:
            if out and port.name in out:
                value, place = results[port.name], out[port.name]
                results[port.name] = place if port.name in written else write_output(port, value, place)
        return results

    def _for_shapes(self, inputs: Mapping[str, Any]) -> list[PortCheck]:
        """Returns the types and shapes that the inputs must have, given their shapes."""
        script = self.owner.script
        shapes = {p.name: np.shape(inputs[p.name]) for p in script.inputs}
        key = tuple(shapes.values())
        if key not in self._ports:
            for port in script.inputs:
                if len(shapes[port.name]) != len(port.shape):
                    fit(port, inputs[port.name])  # raises InputError with the reason
            if len(self._ports) >= REMEMBERED:
                self._ports.clear()
            self._ports[key] = port_checks(self.owner.ports(sizes.solve(script, shapes)))
        return self._ports[key]

    def _block(self, block: Block, names: Names) -> list[Any]:
        traced = self._traced
        for run, action, outputs, dead in self.owner.plans[id(block)]:
            if traced is None or type(action) is RunAction:
                names.update(zip(outputs, run(self, action, names)))  # nothing reads an output without a name
            else:
                begin = time.monotonic_ns()
                names.update(zip(outputs, run(self, action, names)))
                traced.append((action, [(step_of(action), begin, time.monotonic_ns())]))
            for name in dead:
                names.pop(name, None)
        return [*map(names.__getitem__, block.outputs)]

    def _engine(self, action: RunAction, names: Names) -> Iterable[Any]:
        context = self.contexts[action.engine]
        ready = context._latest
        try:
            feeds = {}
            for name, f in self.owner.feeds[id(action)]:
                value = names[f.name]
                feeds[name] = value if f.source == "array" else size_operand(f, value)
            places = self._places_of(action) if self._in_place else None
            if self._traced is None:
                # only this thread runs this context
                outputs = None
                if places is None and ready is not None and ready.call is not None:
                    outputs = ready.call(feeds)
                return (context.run(feeds, places) if outputs is None else outputs).values()
            results, steps = context.trace(feeds, places)
        except InputError as e:
            refusal = outside(e, self.owner.feeds[id(action)])
            if action.otherwise is None:
                raise refusal from None
            level = logging.DEBUG if action.engine in self.owner.warned else logging.WARNING
            self.owner.warned.add(action.engine)
            log.log(
                level,
                "the data makes sizes that engine %d of %r does not take (%s): for them its %d layers run on the host,"
                " in numpy",
                action.engine,
                self.owner.label,
                refusal,
                len(action.otherwise.steps),
            )
            return self._block(action.otherwise, Names(names))
        self._traced.append((action, steps))
        return results.values()

    def _places_of(self, action: RunAction) -> dict[str, np.ndarray] | None:
        """Returns the arrays of an engine's outputs that this run writes in place, if there are any."""
        extended = self.owner.extended.get(id(action), ())
        return {of: self._in_place[name] for of, name in extended if name in self._in_place} or None

    def _host(self, action: HostAction, names: Names) -> Iterable[Any]:
        arguments = [names[name] if name else None for name in action.inputs]
        if action.call == "list":
            return [arguments]
        if action.call == "none":
            return [None]
        results = self.owner.calls[id(action)](*arguments)
        if len(results) < len(action.outputs):
            raise EngineError(f"step {action.name!r} returned {len(results)} results, expected {len(action.outputs)}")
        return [v if v is None or isinstance(v, (list, dict)) else np.asarray(v) for v in results]

    def _if(self, action: IfAction, names: Names) -> Sequence[Any]:
        condition = names[action.condition]
        holds = condition.item() if condition.size == 1 else condition.all()
        return self._block(action.then if holds else action.other, Names(names))

    def _loop(self, action: LoopAction, names: Names) -> Sequence[Any]:
        trips = int(names[action.trips].reshape(-1)[0]) if action.trips else None
        go = bool(np.all(names[action.condition])) if action.condition else True
        carried, most = [names[name] for name in action.carried], self.owner.script.iterations
        rows = StackedRows(len(action.stacked), self._room)
        i = 0
        while go and (trips is None or i < trips):
            if self._turns >= most:
                raise EngineError(
                    f"the loops of {self.owner.label!r} exceeded {most} iterations, at the loop that computes"
                    f" {', '.join(action.outputs)}; to allow more, build with a larger max_iterations="
                )
            self._turns += 1
            inner = Names(names)
            inner.update(zip(action.body.inputs, (np.array(i, np.int64), np.array(go), *carried)))
            condition, *values = self._block(action.body, inner)
            go, carried = bool(np.all(condition)), values[: len(carried)]
            rows.add(values[len(carried) :])
            i += 1
        return (*carried, *(rows.stack(k, 0, False, *kind) for k, kind in enumerate(action.stacked)))

    def _scan(self, action: ScanAction, names: Names) -> Sequence[Any]:
        carried, scanned = [names[name] for name in action.carried], [names[name] for name in action.scanned]
        if any(axis >= x.ndim for x, axis in zip(scanned, action.axes)):
            raise EngineError(f"a scan along axes {list(action.axes)} got arrays of {[x.ndim for x in scanned]} axes")
        lengths = {x.shape[axis] for x, axis in zip(scanned, action.axes)}
        if len(lengths) > 1:
            raise InputError(
                f"a scan needs inputs of one length, got {' and '.join(map(str, sorted(lengths)))} for"
                f" {', '.join(action.scanned)}"
            )
        rows, (length,) = StackedRows(len(action.stacked), self._room), lengths
        for i in range(length):
            at = [
                x[(slice(None),) * axis + (length - 1 - i if back else i,)]
                for x, axis, back in zip(scanned, action.axes, action.back)
            ]
            inner = Names(names)
            inner.update(zip(action.body.inputs, (*carried, *map(np.asarray, at))))
            values = self._block(action.body, inner)
            carried = values[: len(carried)]
            rows.add(values[len(carried) :])
        kinds = zip(action.into, action.reversed, action.stacked)
        return (*carried, *(rows.stack(k, into, back, *kind) for k, (into, back, kind) in enumerate(kinds)))


# type of a step → the method that runs it on the step and the names, and returns the values of its outputs
RUNNERS: dict[type, Callable[..., Iterable[Any]]] = {
    RunAction: ScriptContext._engine,
    HostAction: ScriptContext._host,
    IfAction: ScriptContext._if,
    LoopAction: ScriptContext._loop,
    ScanAction: ScriptContext._scan,
}
