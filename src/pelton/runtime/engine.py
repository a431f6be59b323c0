"""The public engine: a plan with its code loaded and its constants in place, run through contexts."""
from __future__ import annotations

import logging
import os
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from pelton.backends.cpu import load_code
from pelton.backends.cpu.memory import aligned, populate
from pelton.engine import model as plain_engine
from pelton.engine import file, sizes
from pelton.engine.validate import validate
from pelton.engine.constants import Unmade
from pelton.engine.model import Port, Step, Symbol, strings_in
from pelton.engine.shape_plan import Sheet

from .context import Context, Traced
from .forms import gathered, spread
from .host import HostStep
from .machine import check_machine

log = logging.getLogger("pelton.runtime")
LARGEST_TABLE = 1 << 20                                              # bytes; larger ones are weights in integers


class Engine:
    """A network built for a kind of machine. One engine serves many threads: every run takes a context of its own.

    It starts when it is loaded, or first run, with EngineError where this is no such machine; until then it can be looked at and saved anywhere. Raises
    EngineError where the plain engine does not hang together. Plain engines for GPUs become `runtime.cuda.CudaEngine`s.
    """

    _populated = _started = False

    def __new__(cls, plain: Any, *_: Any, **__: Any) -> Engine:
        if cls is Engine and plain.target.get("arch") == "cuda":
            from .cuda import CudaEngine  # is an Engine itself
            return object.__new__(CudaEngine)
        return object.__new__(cls)

    def __init__(self, plain: plain_engine.Engine):
        validate(plain)
        self._set_out(plain)

    def _set_out(self, plain: plain_engine.Engine) -> None:
        """All that does not depend on what runs the kernels."""
        self.plain = plain
        self._constants = None if isinstance(plain.constants, Unmade) else aligned(plain.constants)
        self.texts = {i: strings_in(self.constants[b.offset:b.offset + b.size]) for i, b in enumerate(plain.buffers) if b.kind == "text"}
        # copies, so that no kernel is led astray by a file that is rewritten; constants that are still to be made are in none that was loaded
        self.tables = {i: aligned(bytes(self._constants[b.offset:b.offset + b.size])) for i, b in enumerate(plain.buffers)
                       if b.kind == "table" and b.size <= LARGEST_TABLE} if self._constants is not None else {}
        self.made = [i for i, b in enumerate(plain.buffers) if b.kind in ("strings", "sizes", "iota")]
        self.sheet = Sheet(plain)
        hosted = any(s.host for s in plain.steps)
        self.host = self.host_steps(sizes.at(plain, sizes.usual(plain)), sizes.usual(plain)) if hosted else {}
        if self.host:
            log.warning("engine %r runs %d of its %d steps on the host, by their reference: %s", plain.called, len(self.host), len(plain.steps),
                        ", ".join(plain.steps[i].name for i in self.host))
        forms = plain.meta.get("forms") or {}
        self.forms = forms if any(forms.values()) else None          # inputs and outputs of the model that are no single port
        self._contexts: deque[Context] = deque()                     # those that no run is using

    def populate(self) -> None:
        """Has the weights in memory, unless that has been done: what a context is made for reads all of them."""
        if not self._populated:
            self._populated = True
            populate(self.constants)

    def host_steps(self, plain: plain_engine.Engine, values: Mapping[str, int]) -> dict[int, HostStep]:
        """The steps that the host runs, for these values of the symbols; EngineError where what they need is not installed."""
        return {i: HostStep(s, values) for i, s in enumerate(plain.steps) if s.host}

    @property
    def name(self) -> str:
        return self.plain.name

    @property
    def called(self) -> str:
        """What messages call it: the file that it comes from, else its name."""
        return self.plain.called

    @property
    def constants(self) -> np.ndarray:
        """The bytes of all constants, made now if they were not yet."""
        return self.plain.constants.read() if self._constants is None else self._constants

    @property
    def inputs(self) -> tuple[Port, ...]:
        return self.plain.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        return self.plain.outputs

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """The sizes that the inputs of a run decide, with their bounds."""
        return self.plain.symbols

    def shapes(self, values: Mapping[str, int] | None = None) -> dict[str, tuple[int, ...]]:
        """Input name → shape, for these values of symbols; the usual one, which the engine was tuned for, where a symbol has none."""
        return {p.name: p.shape for p in sizes.ports(self.plain, {**sizes.usual(self.plain), **(values or {})})}

    @property
    def parts(self) -> tuple[Engine, ...]:
        """The engines that it consists of: itself, unless it is a script over others."""
        return (self,)

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.plain.steps

    @property
    def meta(self) -> Mapping[str, Any]:
        return self.plain.meta

    def start(self, device: int = 0) -> Engine:
        """Loads the code, unless that has been done; of engines for GPUs onto the one of that number. EngineError, saying what is missing, where this machine
        is none that the engine is for."""
        if not self._started:
            check_machine(self.called, self.plain.target)
            self.functions = self._load_functions()                  # threads that start it at once load it once each, all the same
            self._started = True
        return self

    def _load_functions(self) -> np.ndarray:
        """The address of each step's kernel; 0 for host steps."""
        addresses = {"": 0}
        if self.plain.code:
            code = load_code(self.plain.code)
            weakref.finalize(self, code.close).atexit = False        # at exit a thread may still be running it
            addresses |= {symbol: code.symbol(symbol) for symbol in {s.symbol: None for s in self.plain.steps} if symbol}
        return np.array([addresses[s.symbol] for s in self.plain.steps], np.int64)

    def context(self, threads: int | None = None) -> Context:
        """A context of its own memory, for one run at a time. `threads`: those the engine was built for, no more than there are CPUs, unless said otherwise."""
        return Context(self.start(), threads)

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Outputs by name, in fresh arrays or those given as `out`. From any thread. InputError for arrays that do not fit.

        What the model has as sequences are lists of arrays, or arrays for their ports ("x[0]", "x[1]", …); an optional without a value is None.
        """
        if self.forms:
            return gathered(self._run(self._ported(inputs), out), self.forms["outputs"])
        return self._run(inputs, out)

    def trace(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], list[Traced]]:
        """As `run`, and all steps that ran, each with when it began and ended, in nanoseconds of `time.monotonic_ns`; no two steps overlap."""
        try:
            context = self._contexts.pop()
        except IndexError:
            context = self.context()
        try:
            results, steps = context.trace(self._ported(inputs), out)
            return gathered(results, self.forms["outputs"]) if self.forms else results, steps
        finally:
            self._contexts.append(context)

    def _ported(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """What was given for the model's inputs as arrays for ports."""
        return spread(inputs, self.forms["inputs"]) if self.forms and isinstance(inputs, Mapping) else inputs

    def _run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None) -> dict[str, np.ndarray]:
        try:
            context = self._contexts.pop()
        except IndexError:
            context = self.context()
        try:
            return context.run(inputs, out)
        finally:
            self._contexts.append(context)

    def __call__(self, /, *arrays: Any, **named: Any) -> Any:
        """Inputs in order, or by name, as `engine(image=x)`; gives the output, or a tuple where there are several."""
        try:
            context = self._contexts.pop()
        except IndexError:
            context = self.context()
        try:
            return context(*arrays, **named)
        finally:
            self._contexts.append(context)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the engine file, whole or not at all."""
        file.write(self.plain, path)

    def tobytes(self) -> bytes:
        """The engine file as bytes; equal engines give equal bytes."""
        return file.to_bytes(self.plain)

    def __reduce__(self):
        return load, (self.tobytes(), False, None)                   # where it comes to, it starts when it is first run

    def __repr__(self) -> str:
        def side(ports: tuple[Port, ...]) -> str:
            return ", ".join(f"{p.name}: {p}" for p in ports)
        return f"<pelton.Engine {self.name!r} ({side(self.inputs)}) -> ({side(self.outputs)}), {len(self.steps)} steps>"


def load(source: str | os.PathLike[str] | bytes, verify: bool = False, device: int | None = 0) -> Engine:
    """The engine in a file (whose weights are mapped, not read) or in bytes, started; those for GPUs on the one with the number `device`. With None it does not
    start yet, so that it can be looked at on machines that do not run it. `verify` checks the weights, too.

    While an engine is in use its file may be replaced (as `save` and `mv` do), but not be written into (as `cp` does): weights would change under a run.

    An engine holds machine code: load only what you would run as a program. Raises EngineError, saying what to do, for what is no engine,
    is damaged, or does not run on this machine.
    """
    plain = file.read(source, verify)
    if isinstance(plain, plain_engine.Engine):
        engine = Engine(plain)
    else:
        from .program import ScriptEngine  # is an Engine itself
        engine = ScriptEngine(plain)
    return engine if device is None else engine.start(device)
