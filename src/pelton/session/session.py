"""A model behind ONNX Runtime's interface: built when it is first met, found again on disk from then on."""
from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from pelton.cache import opened
from pelton.engine import sizes
from pelton.engine.engine import numpy_dtype
from pelton.engine.forks import survives_fork
from pelton.errors import InputError, ModelAbsent, ModelError
from pelton.runtime import Engine
from pelton.runtime.arrays import fit
from pelton.runtime.forms import entries

from . import read, settings
from .settings import RunOptions, SessionOptions, log
from .shelf import Shelf, key_of
from .signature import ModelMetadata, NodeArg, Signature, check_fed
from .values import IOBinding, OrtValue

Shapes = Mapping[str, tuple[int, ...]]


class InferenceSession:
    """onnxruntime.InferenceSession for a model in a file or in bytes.

    A model whose sizes are all known is built here; one with open sizes when the first arrays are fed, tuned for their sizes and good for all others. Engines
    are kept in the cache directory, so that the next session of the same model loads in milliseconds. Raises ModelError for what is wrong with the model,
    InputError (a ValueError) for arrays, names and options that do not fit, BuildError and EngineError for the rest; all are RuntimeErrors.
    """

    def __init__(self, path_or_bytes: str | os.PathLike[str] | bytes, sess_options: SessionOptions | None = None,
                 providers: Sequence[Any] | None = None, provider_options: Sequence[Mapping[str, Any]] | None = None, **_: Any):
        if not isinstance(path_or_bytes, (str, os.PathLike, bytes, bytearray, memoryview)):
            raise TypeError(f"a session needs the path of a model or its bytes, got {type(path_or_bytes).__name__}")
        self._model = Path(path_or_bytes) if isinstance(path_or_bytes, (str, os.PathLike)) else bytes(path_or_bytes)
        self._settings = sess_options or SessionOptions()
        self._settings.tell()
        settings.chosen(providers)
        self._options = self._settings.build_options(os.environ)
        self._shelf = Shelf(opened(self._options))
        self._unlock()
        survives_fork(self)
        self._engine: Engine | None = None                       # for all sizes that the model leaves open
        self._others: dict[tuple, Engine] = {}                   # shapes → the engine that runs them, where the one for all does not
        self._empty: dict[tuple, Engine] = {}                    # names of sizes that are 0 → the engine for all others
        try:
            self._digests = self._digest()
        except FileNotFoundError as e:
            raise ModelAbsent(f"{path_or_bytes!s:.200} cannot be read: {e.strerror}", e.filename) from None
        except OSError as e:
            raise ModelError(f"{path_or_bytes!s:.200} cannot be read: {e.strerror or e}") from None
        self._key = key_of(self._digests, self._settings.sizes, self._options)
        self._signature = self._known_signature()
        self._names = {a.name for a in self._signature.inputs}
        self._engine = self._shelf.engine(self._key)
        if self._engine is None and not self._signature.open:
            self._engine = self._made()

    def _unlock(self) -> None:
        """No engine is being built: builds of other threads end with a fork, as far as the child is concerned."""
        self._lock = threading.Lock()

    # --- what the model is

    def get_inputs(self) -> list[NodeArg]:
        return [*self._signature.inputs]

    def get_outputs(self) -> list[NodeArg]:
        return [*self._signature.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Inputs that have a value in the model. Engines keep it as a constant: feeding another is refused."""
        return [*self._signature.overridable]

    def get_modelmeta(self) -> ModelMetadata:
        return self._signature.metadata

    def get_session_options(self) -> SessionOptions:
        return self._settings

    def get_providers(self) -> list[str]:
        return settings.get_available_providers()

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {name: {} for name in self.get_providers()}

    def set_providers(self, providers: Sequence[Any] | None = None, provider_options: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Warns of those that there are not; nothing else changes."""
        settings.chosen(providers)

    def disable_fallback(self) -> None:
        """Nothing to do: there is one provider."""

    def enable_fallback(self) -> None:
        """Nothing to do: there is one provider."""

    def end_profiling(self) -> str:
        """"": nothing is written (`pelton bench MODEL --layers` shows what every step takes)."""
        return ""

    # --- runs

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None) -> list[np.ndarray]:
        """The outputs of those names, of all where there are none. Lists become arrays of the input's type; arrays have to have it."""
        names = self._wanted(output_names)
        found = self._run(self._fed(input_feed), None)
        return [found[name] for name in names]

    def run_async(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], callback: Callable[[list[np.ndarray], Any, str], None],
                  user_data: Any, run_options: RunOptions | None = None) -> None:
        """The same in a thread of its own, which calls back with the outputs and an empty text, or with none and what went wrong."""
        def work() -> None:
            try:
                found, wrong = self.run(output_names, input_feed, run_options), ""
            except Exception as e:               # whoever waits for the callback is to hear of it, whatever it is
                found, wrong = [], str(e) or type(e).__name__
            callback(found, user_data, wrong)
        threading.Thread(target=work, name="pelton-session", daemon=True).start()

    def run_with_ort_values(self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, OrtValue],
                            run_options: RunOptions | None = None) -> list[OrtValue]:
        return [OrtValue(a) for a in self.run(output_names, input_dict_ort_values, run_options)]

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Reads the inputs that are bound and writes the outputs that are bound."""
        if iobinding.session is not self:
            raise InputError("an IOBinding belongs to the session that made it, this one to another; make one with io_binding()")
        fixed = {name: a for name, a in iobinding.outputs.items() if a is not None}
        found = self._run(self._fed(iobinding.inputs), fixed or None)
        iobinding.results = {name: found[name] for name in iobinding.outputs}

    def _wanted(self, names: Sequence[str] | None) -> Sequence[str]:
        known = [a.name for a in self._signature.outputs]
        unknown = next((name for name in names or () if name not in known), None)
        if unknown is not None:
            raise InputError(f"Invalid output name: {unknown}; the outputs are {', '.join(map(repr, known))}")
        return names or known

    def _fed(self, feed: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
        """What was fed as arrays by name."""
        if not isinstance(feed, Mapping):
            raise InputError(f"inputs are fed as a dict from their names to arrays, got {type(feed).__name__}")
        if feed.keys() != self._names:
            check_fed(self._signature.inputs, self._signature.overridable, feed)
        if all(type(a) is np.ndarray for a in feed.values()):
            return feed
        arrays: dict[str, np.ndarray] = {}
        for a in self._signature.inputs:
            form = a.entries
            arrays.update({a.name: _array(a, feed[a.name])} if form is None else entries(a.name, feed[a.name], form))
        return arrays

    def _run(self, fed: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray] | None) -> dict[str, np.ndarray]:
        engine = self._engine
        if engine is not None:
            try:
                return engine.run(fed, out)
            except InputError:
                if not self._signature.open or _takes(engine, _shapes(fed)):
                    raise
        shapes = _shapes(fed)
        for a in self._signature.ports:
            fit(a.port(shapes[a.name]), fed[a.name])             # says what is wrong, before anything is built for it
        return self._for(shapes).run(fed, out)

    # --- engines

    def _for(self, shapes: Shapes) -> Engine:
        """The engine that runs these shapes, built where there is none yet."""
        key = tuple(sorted(shapes.items()))
        if key in self._others:
            return self._others[key]
        with self._lock:
            empty = self._signature.empty(shapes)
            if self._engine is None and not empty and self._signature.fits_all(shapes):
                self._engine = self._made(usual=shapes)
            if self._engine is not None and _takes(self._engine, shapes):
                return self._engine
            if key not in self._others:
                self._others[key] = (self._without(empty, shapes) if empty else None) or self._made(shapes=shapes)
            return self._others[key]

    def _without(self, empty: Mapping[str, int], shapes: Shapes) -> Engine | None:
        """The engine for all sizes but these, which are 0: a cache before the first token. Nothing where the model cannot be read for that."""
        key = tuple(sorted(empty))
        try:
            if key not in self._empty:
                self._empty[key] = self._made(usual=shapes, sizes=empty)
        except ModelError as e:
            log.info("no engine for all sizes but %s: %s", ", ".join(key), e)
            return None
        return self._empty[key] if _takes(self._empty[key], shapes) else None

    def _made(self, *, shapes: Shapes | None = None, usual: Shapes | None = None, sizes: Mapping[str, int] = MappingProxyType({})) -> Engine:
        """The engine for these shapes, or for all, with these sizes of dimensions, off the shelf or else built."""
        sizes = {**self._settings.sizes, **sizes}
        key = key_of(self._digests, sizes, self._options, shapes)
        with self._shelf.alone(key):
            found = self._shelf.engine(key)
            if found is None:
                found = read.built(read.opened(self._model, sizes), self._options.but(shapes=shapes), usual, self._settings.log_severity_level < 3)
                if not isinstance(self._model, bytes) and self._digest() != self._digests:
                    raise ModelError(f"{self._model} has changed since the session was made; make a new one")
                self._shelf.keep(key, found)
        return found

    def _digest(self) -> list[str]:
        """Of the model's bytes, and of the files that hold its constants, each with where it is said to lie."""
        if isinstance(self._model, bytes):
            from hashlib import sha256
            return [sha256(self._model).hexdigest()]
        model = self._model
        found = [self._shelf.digest(model)]
        for name in self._shelf.details(found[0], lambda: read.external(model)):
            file = model.parent / name
            found += [name, self._shelf.digest(file) if file.is_file() else ""]         # what is missing, the importer reports
        return found

    def _known_signature(self) -> Signature:
        found = self._shelf.signature(self._key)
        if found is None:
            found = read.signature(read.opened(self._model, self._settings.sizes), self._options)
            self._shelf.describe(self._key, found)
        return found


def _array(arg: NodeArg, value: Any) -> Any:
    """A list as an array of the input's type, what an OrtValue holds; everything else as it is."""
    if isinstance(value, OrtValue):
        return value.numpy()
    if not isinstance(value, list):
        return value
    try:
        return np.array(value, numpy_dtype(arg.dtype))
    except (TypeError, ValueError, OverflowError) as e:
        raise InputError(f"input {arg.name!r} needs numbers that make an array of {arg.type}: {e}") from None


def _shapes(fed: Mapping[str, Any]) -> Shapes:
    return {name: np.shape(a) for name, a in fed.items()}


def _takes(engine: Engine, shapes: Shapes) -> bool:
    """Whether an engine is one for arrays of these shapes."""
    if any(len(shapes[p.name]) != len(p.shape) for p in engine.inputs):
        return False
    try:
        return engine.shapes(sizes.solve(engine.plain, shapes)) == shapes
    except InputError:
        return False
