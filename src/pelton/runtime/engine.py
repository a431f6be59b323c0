"""The public engine: a plan with its code loaded and its constants in place, run through contexts."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.backends import backend
from pelton.backends.device import Loaded, Stamped, Workspace
from pelton.backends.plan import Plan
from pelton.engine import file, refit_record, sizes
from pelton.engine import plan as plain_engine
from pelton.engine.plan import Port, Step, DynamicDimension
from pelton.engine.stored import check
from pelton.errors import EngineAbsent, EngineError, Needs

from .context import Context
from .forms import model_outputs, arrays_of_ports

if TYPE_CHECKING:
    from .queue import AsyncQueue, AsyncRun
    from .state import State

BY_PATH = (
    "engines from files are pickled as path and hash: put the same file there, or send the engine with its weights, as"
    " pelton.load(bytes of the file)"
)


def machine(target: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the machine that an engine was built for; a CPU's name only if the build ran on such a machine."""
    if target.get("arch") == "cuda":
        return {"gpu": meta.get("gpu"), "architectures": str(target.get("isa", "")).split(",")}
    return {"cpu": target.get("cpu"), "isa": target.get("isa"), "threads": meta.get("threads")}


class Engine:
    """A network compiled for one kind of machine. Threads may share an engine: each run uses a context of its own.

    An engine starts when it is loaded or first run, and raises EngineError on an unsuitable machine. Before that it can
    be inspected and saved on any machine. The constructor raises EngineError if the plan is inconsistent.
    """

    _started = False
    source: tuple[str, str] | None = None  # absolute path and digest of the file whose content it is
    _queue: AsyncQueue | None = None  # of runs that `run_async` starts

    def __init__(self, plain: plain_engine.EnginePlan):
        check(plain)
        self.source = None  # in the instance, for `refit`
        self.plain = plain
        self.plan = Plan(plain)
        self._backend = backend(plain.target)
        self._code = self._backend.open(self.plan)
        forms = plain.meta.get("forms") or {}
        # inputs and outputs of the model that are not a single port
        self.forms = forms if any(forms.values()) else None
        self._contexts: deque[Context] = deque()  # the idle ones

    @property
    def name(self) -> str:
        return self.plain.name

    @property
    def label(self) -> str:
        """The engine's name in messages: the file that it was loaded from, else its own name."""
        return self.plain.label

    @property
    def constants(self) -> np.ndarray:
        """The bytes of all constants, u8[n]; computed on first use."""
        return self.plan.constants

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Name, element type and shape of each input; dynamic dimensions appear as symbol names."""
        return self.plain.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Name, element type and shape of each output, as for `inputs`."""
        return self.plain.outputs

    @property
    def symbols(self) -> tuple[DynamicDimension, ...]:
        """The dynamic dimensions, with their bounds."""
        return self.plain.symbols

    def shapes(self, values: Mapping[str, int] | None = None) -> dict[str, tuple[int, ...]]:
        """Returns input name → shape, for these values of dynamic dimensions; missing ones have their optimum."""
        return {p.name: p.numbers for p in self.ports(values)}

    def ports(self, values: Mapping[str, int] | None = None) -> tuple[Port, ...]:
        """Returns the inputs with sizes for these values of dynamic dimensions; missing ones have their optimum."""
        return sizes.ports(self.plain, {**sizes.optimum_sizes(self.plain), **(values or {})})

    @property
    def parts(self) -> tuple[Engine, ...]:
        """The engines inside this one: itself, or those that a script runs."""
        return (self,)

    @property
    def steps(self) -> tuple[Step, ...]:
        """Kernel calls, library calls and host steps, in the order of execution."""
        return self.plain.steps

    @property
    def meta(self) -> Mapping[str, Any]:
        """The build record: versions, options, host steps, tactics."""
        return self.plain.meta

    @property
    def provenance(self) -> dict[str, Any]:
        """The origin of the engine, as JSON-compatible data (docs/provenance.md): "pelton" (the version that built it),
        "model" (its files with their SHA-256, and its own "metadata"), "options", "metadata" (the user's), "machine"
        (the machine it was built for). Engines of older versions have "machine" alone."""
        recorded = self.meta.get("provenance")
        made_for = machine(self.plain.target, self.meta)
        return {**(recorded if isinstance(recorded, dict) else {}), "machine": made_for}

    @property
    def refittable(self) -> dict[str, Port]:
        """The weights that `refit` can replace, by their names in the model; empty if the engine was built without
        `refit=True`."""
        return dict(refit_record.of_plan(self.plain).weights) if len(self.plain.refit) else {}

    @property
    def refit_refusals(self) -> dict[str, str]:
        """The constants of the model that `refit` cannot replace, each with the reason."""
        return dict(refit_record.of_plan(self.plain).refused) if len(self.plain.refit) else {}

    def refit(self, weights: Mapping[str, Any]) -> None:
        """Replaces the weights of the engine without a new build, by the names of the model's initializers, for example
        after further training. Results equal, bit for bit, those of an engine built from that model with the same
        tactics.

        weights: arrays by name, of the types and shapes in `refittable`. Missing ones stay as they are.
        Runs in progress keep their weights, and so do all runs of existing contexts and queues; all others, including
        those of `run`, use the new ones. One thread at a time may refit an engine. Requires an engine built with
        `refit=True`, or `strip_weights=True`, which needs all weights the first time. It takes about as long as a build
        without timing, and needs `pip install "pelton[build]"`, but no compiler.

        Raises InputError for names, types and shapes that the engine does not have, and for weights that the build
        joined with missing ones; EngineError if the engine was built without `refit`, or by another version of Pelton,
        or would have another plan with these numbers. The engine is then unchanged.
        """
        with Needs("refitting engines", EngineError):
            from pelton.compiler.refit import refitted  # only this needs the compiler
        fresh = Engine(refitted(self.plain, weights))
        if self._started:
            fresh.start(self.device or 0)
        self.__dict__.update(fresh.__dict__)  # at once, for other threads
        self.__dict__.pop("_queue", None)  # contexts of the existing queue keep the old weights

    def initial_states(self) -> dict[str, np.ndarray]:
        """Returns initial values of the inputs that keep state between runs, by name; empty without state.

        The values for the next run are outputs, named by `state_outputs`.
        """
        states = (self.meta.get("model") or {}).get("states") or {}
        shapes = self.shapes() if states else {}
        types = {p.name: p.numpy_dtype for p in self.inputs}
        return {name: np.full(shapes[name], first, types[name]) for name, (_, first) in states.items()}

    @property
    def state_outputs(self) -> dict[str, str]:
        """Input that keeps state → the output with its values for the next run."""
        states = (self.meta.get("model") or {}).get("states") or {}
        return {name: output for name, (output, _) in states.items()}

    def state(self, /, pairs: Mapping[str, str] | None = None, **sizes: int) -> State:
        """Creates the state of a sequence, or of a batch of them: caches, and other values that runs hand on.

        pairs: inputs, each with the output that is its value in the next run; others are paired by the model's
        declaration, or by names such as `past_conv` and `present_conv`.
        sizes: values of dynamic dimensions by name, such as the capacity of a cache; the others have their optimum.
        Caches that each run makes longer begin empty.
        Raises InputError if the engine keeps no state, has no such input, output, dimension or size, or accepts no
        empty cache.
        """
        from .state import state_of  # imported only for engines with state

        return state_of(self, sizes, pairs)

    @property
    def device(self) -> Any:
        """The device that the engine was started on, as described by its backend; None for the CPU."""
        return self.loaded.device

    def start(self, device: Any = 0) -> Engine:
        """Loads code and constants, unless already loaded, and returns the engine itself.

        device: the number of a GPU, or an object that represents one; ignored by engines for CPUs.
        Raises EngineError, naming the missing feature, if the engine does not run on this machine.
        """
        if not self._started:
            if self.plain.absent:
                raise EngineError(
                    f"engine {self.label!r} was built without weights; add them with `engine.refit(weights)` or"
                    " `pelton refit`"
                )
            self.loaded: Loaded = self._backend.load(self._code, device)
            self.plain = self.loaded.plan.plain
            self._started = True
        return self

    def allocate(self, threads: int | None) -> Workspace:
        """Allocates the working memory of a context; raises InputError for an unsupported number of threads."""
        return self._backend.allocate(self.loaded, threads)

    def context(self, threads: int | None = None) -> Context:
        """Creates a context with memory of its own, for one run at a time; all contexts share the constants.

        threads: 1 to 256; default: those that the engine was built for, at most one per CPU.
        Raises InputError for other numbers and for `threads` of an engine that runs on a GPU, EngineError if the engine
        does not run on this machine or there is not enough memory.
        """
        return Context(self.start(), threads)

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Runs the engine once and returns its outputs by name; may be called from any thread.

        inputs: arrays by name, of the types and shapes of `inputs`. A sequence of the model is a list of arrays, or one
        array for each of its ports ("x[0]", "x[1]", …); an optional without a value is None.
        out: arrays that some or all outputs are written into; the others are allocated.
        Raises InputError for arrays that do not fit (see `Context.run`).
        """
        contexts = self._contexts  # a refit replaces it
        try:
            context = contexts.pop()
        except IndexError:
            context = self.context()
        try:
            outputs = context.run(self._ported(inputs) if self.forms else inputs, out)
        finally:
            contexts.append(context)
        return model_outputs(outputs, self.forms["outputs"]) if self.forms else outputs

    def run_async(self, inputs: Mapping[str, Any], *, share_inputs: bool = False) -> AsyncRun:
        """Starts a run and returns at once; `result()` of the returned run waits for the outputs, `await` does so in a
        coroutine. Such runs execute in order, each with all threads; `pelton.AsyncQueue` runs several at once.

        inputs: as for `run`; arrays in CPU memory are copied, unless share_inputs promises that they do not change
        until the run is over.
        """
        if self._queue is None:
            from .queue import AsyncQueue  # imported only for asynchronous runs

            # the first of concurrent threads creates the queue for all
            self.__dict__.setdefault("_queue", AsyncQueue(self, 1))
        assert self._queue is not None
        return self._queue.run_async(inputs, share_inputs=share_inputs)

    def run_in(self, context: Context, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Runs as `run` does, in a context of this engine, for callers that keep contexts."""
        results = context.run(self._ported(inputs))
        return model_outputs(results, self.forms["outputs"]) if self.forms else results

    def trace(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], list[Stamped]]:
        """Runs the engine like `run` and returns its outputs and its steps, each with its begin and end.

        Times are nanoseconds of `time.monotonic_ns`. No two steps overlap.
        """
        contexts = self._contexts  # a refit replaces it
        try:
            context = contexts.pop()
        except IndexError:
            context = self.context()
        try:
            results, steps = context.trace(self._ported(inputs), out)
            return model_outputs(results, self.forms["outputs"]) if self.forms else results, steps
        finally:
            contexts.append(context)

    def _ported(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Maps inputs of the model to arrays for ports."""
        return arrays_of_ports(inputs, self.forms["inputs"]) if self.forms and isinstance(inputs, Mapping) else inputs

    def __call__(self, /, *arrays: Any, **named: Any) -> Any:
        """Accepts inputs in order, or by name as in `engine(image=x)`; returns the output, or a tuple of several.

        Raises InputError for arrays that are missing, duplicate, or do not fit.
        """
        contexts = self._contexts  # a refit replaces it
        try:
            context = contexts.pop()
        except IndexError:
            context = self.context()
        try:
            return context(*arrays, **named)
        finally:
            contexts.append(context)

    def save(self, path: str | os.PathLike[str], sign: Any = None) -> None:
        """Writes the engine file atomically. Raises EngineError if that fails.

        sign: an Ed25519 private key to sign the file with: the path of a PEM file, its bytes, or a key of the package
        cryptography, which this needs (`pip install "pelton[sign]"`). Without it the file is not signed, even if the
        engine came from a signed file. Raises InputError for an invalid key.
        """
        file.write(self.plain, path, sign)

    def tobytes(self) -> bytes:
        """Returns the content of the engine file; equal engines give equal bytes."""
        return file.to_bytes(self.plain)

    @classmethod
    def _again(cls, data: bytes) -> Engine:
        return cls(file.read(data))  # type: ignore[arg-type]

    @classmethod
    def _from_file(cls, path: str, digest: str) -> Engine:
        try:
            container, where = file.open_engine(path)
        except EngineAbsent:
            raise EngineAbsent(f"there is no engine {path} on this machine; {BY_PATH}", path) from None
        if container.digest != digest:
            raise EngineError(f"the file {path} is not the engine that was sent, but another one; {BY_PATH}")
        engine = cls(file.read_in(container, where))  # type: ignore[arg-type]
        engine.source = path, digest
        return engine

    def __reduce__(self):
        """Pickles path and digest of an engine from a file, else its bytes; the copy starts when it is first run."""
        return (self._again, (self.tobytes(),)) if self.source is None else (self._from_file, self.source)

    def __copy__(self) -> Engine:
        """Returns an engine with the same constants, which starts when it is first run."""
        engine = type(self)(self.plain)
        engine.source = self.source
        return engine

    def __deepcopy__(self, memo: dict[int, Any]) -> Engine:
        return self.__copy__()  # constants never change

    def _repr_html_(self) -> str:
        """Returns the notebook view: inputs, outputs, and the slowest steps; without scripts."""
        from .notebook import summary  # imported only in notebooks

        return summary(self.name, self.inputs, self.outputs, [part.plain for part in self.parts])

    def __repr__(self) -> str:
        def side(ports: tuple[Port, ...]) -> str:
            return ", ".join(f"{p.name}: {p}" for p in ports)

        return f"<pelton.Engine {self.name!r} ({side(self.inputs)}) -> ({side(self.outputs)}), {len(self.steps)} steps>"
