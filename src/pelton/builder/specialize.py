"""Specializes models at run time: builds engines for shapes, and for input values that determine the program."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from pelton.backends.cpu.check import check_runs_here
from pelton.compiler.compilation import Compilation
from pelton.compiler.stages import run_stages
from pelton.errors import InputError, ModelError
from pelton.importers.onnx.file import array_of, read
from pelton.ir.imported import Imported, OnData
from pelton.options import Options
from pelton.runtime import Engine

from .build import build_program, build_script, with_recorded_threads

MAX_ENGINES = 64  # kept at a time
# values of one input with an engine of their own, if one engine for all values is possible, too
MAX_SPECIALIZED = 16
MAX_CONSTANT = 1024  # elements of an input that may determine the program
MAX_REFUSED = 256  # remembered inputs without an engine


class Fitted:
    """Builds an engine for inputs that no existing engine fits.

    First, only shapes are fixed. If importing depends on the value of an input (axes, a condition, a count), it becomes
    a constant of the engine, provided that the model cannot be imported otherwise or that this avoids steps of the onnx
    package. A value given for an initializer replaces it.
    """

    def __init__(self, model: str | os.PathLike | bytes | onnx.ModelProto, options: Options | None = None):
        self._source = model
        self._found = read(model)
        self._graph = self._found.model.graph
        self._options = with_recorded_threads(options or Options())
        check_runs_here(self._options.target, "running a model")
        self._stored = {t.name: t for t in self._graph.initializer}
        self._engines: OrderedDict[tuple, tuple[Engine, frozenset[str]]] = OrderedDict()
        # shapes → inputs whose values their engines depend on
        self._deciding: dict[tuple, frozenset[str]] = {}
        self._varied: Counter[tuple] = Counter()  # shapes → number of specialized engines
        self._refused: OrderedDict[tuple, str] = OrderedDict()  # inputs without an engine → the reason
        self.names = tuple(i.name for i in self._graph.input)
        self.outputs = tuple(o.name for o in self._graph.output)

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engines in the cache."""
        return tuple(engine for engine, _ in self._engines.values())

    @property
    def required(self) -> tuple[str, ...]:
        """The inputs that have no initializer."""
        return tuple(n for n in self.names if n not in self._stored)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns outputs by name, from arrays, lists of arrays (sequences) and None (optionals without a value)."""
        unknown = [n for n in inputs if n not in self.names]
        if unknown:
            raise InputError(
                f"there is no input {unknown[0]!r}; the model's are {', '.join(map(repr, self.names)) or 'none'}"
            )
        replaced = frozenset(
            n
            for n, a in inputs.items()
            if n in self._stored and not np.array_equal(array_of(self._stored[n], self._found), a)
        )
        feeds = {n: a for n, a in inputs.items() if n in replaced or n not in self._stored}
        engine, constant = self._engine(feeds, replaced)
        return engine.run({n: a for n, a in feeds.items() if n not in constant})

    def _engine(self, given: Mapping[str, Any], replaced: frozenset[str]) -> tuple[Engine, frozenset[str]]:
        """Returns the engine for these inputs, and the inputs that are constants in it."""
        shapes = tuple(sorted((n, _shape(a)) for n, a in given.items()))

        def key(names: frozenset[str]) -> tuple:
            return shapes, tuple((n, _digest(given[n])) for n in sorted(names))

        deciding = self._deciding.get(shapes, frozenset())
        slot = next((k for names in (deciding | replaced, replaced) if (k := key(names)) in self._engines), None)
        if slot is None:  # neither for these values nor for all
            engine, constant = self._built(given, shapes, replaced)
            self._varied[shapes] += 1
            self._deciding[shapes] = deciding = deciding | (constant - replaced)
            slot = key(deciding | replaced if constant - replaced else replaced)
            self._engines[slot] = engine, constant
            if len(self._engines) > MAX_ENGINES:
                self._engines.popitem(last=False)
        self._engines.move_to_end(slot)
        return self._engines[slot]

    def _built(
        self, given: Mapping[str, Any], shapes: tuple, replaced: frozenset[str]
    ) -> tuple[Engine, frozenset[str]]:
        """Builds like `_build`, but raises InputError if a model that already has engines fails for these inputs.
        Failures are not retried."""
        asked = shapes, tuple((n, _digest(a)) for n, a in sorted(given.items()) if n in replaced or _may_decide(a))
        if asked not in self._refused:
            try:
                return self._build(given, replaced, self._varied[shapes] < MAX_SPECIALIZED)
            except ModelError as e:
                if not self._engines:
                    raise
                self._refused[asked] = str(e)
                if len(self._refused) > MAX_REFUSED:
                    self._refused.popitem(last=False)
        text = ", ".join(f"{n} {list(shape) if isinstance(shape, tuple) else shape}" for n, shape in shapes)
        raise InputError(f"the model cannot have inputs of {text} with these values: {self._refused[asked]}")

    def _build(
        self, given: Mapping[str, Any], replaced: frozenset[str], special: bool
    ) -> tuple[Engine, frozenset[str]]:
        """Builds an engine for these inputs; returns it and the inputs that became constants.

        Minimizes steps of the onnx package first, then constants. It is a script if no values of inputs make the
        program a straight line. `special`: also fixes values that merely avoid such steps, or a script.
        """
        shapes = dict(self._options.shapes or {})
        known = {**(self._options.values or {}), **{n: given[n] for n in replaced}}
        for name, a in given.items():
            if isinstance(a, np.ndarray):
                shapes[name] = a.shape
            elif isinstance(a, (list, tuple)):
                shapes.update({name: ()} if not a else {f"{name}[{k}]": np.shape(item) for k, item in enumerate(a)})
            elif a is None:
                known[name] = None
        best: tuple[Imported, frozenset[str]] | None = None
        while True:
            fixed = {n: s for n, s in shapes.items() if n not in known}
            constant = frozenset(n for n in known if n in given and given[n] is not None)
            reason: ModelError | None = None
            try:
                options = self._options.but(shapes=fixed, values=known, optimum=None)
                imported = run_stages(Compilation(options, self._source), "import").imported
                wanted: tuple[str, ...] = imported.info.wanted if special else ()
                if best is None or len(imported.info.foreign) < len(best[0].info.foreign):
                    best = imported, constant
            except ModelError as e:
                reason, wanted = e, e.values if special or not isinstance(e, OnData) else ()
            new = _small_values(wanted, given, known)
            if new:
                known.update(new)
            elif best is not None:
                return build_program(best[0], self._options).engine, best[1]
            elif isinstance(reason, OnData):
                return build_script(self._source, self._options.but(shapes=fixed, values=known), reason), constant
            else:
                assert reason is not None
                raise reason


def _small_values(wanted: tuple[str, ...], given: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the values that importing requires, if they are unknown and small."""
    return {n: given[n] for n in wanted if n not in known and n in given and _may_decide(given[n])}


def _may_decide(a: Any) -> bool:
    """True for arrays that may become constants: small, and of a rank that can determine a program."""
    return isinstance(a, np.ndarray) and a.size <= MAX_CONSTANT and a.ndim <= 1


def _shape(given: Any) -> Any:
    if isinstance(given, (list, tuple)):
        return tuple(map(_shape, given))
    return np.shape(given) if isinstance(given, np.ndarray) else str(type(given))


def _digest(given: Any) -> bytes:
    array = np.asarray(given)
    return hashlib.blake2b(array.tobytes() + str(array.dtype).encode()).digest()
