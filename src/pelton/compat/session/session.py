"""InferenceSession: a model behind ONNX Runtime's interface, built on first use, then cached on disk."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pelton.backends.arrays import fit
from pelton.engine import sizes
from pelton.engine.plan import numpy_dtype
from pelton.errors import InputError
from pelton.logs import at_level
from pelton.runtime import Engine
from pelton.runtime.forms import map_arrays
from pelton.runtime.in_process import InProcess

from .devices import OrtMemoryInfo
from .model_engines import ModelEngines, shapes_of
from .profile import Profile
from .providers import CPU, CUDA, ProviderChoice, choose
from .settings import RunOptions, SessionOptions, check_run, log
from .signature import ModelMetadata, NodeArg, check_feed_names
from .tuning import described
from .values import IOBinding, OrtValue


class InferenceSession(InProcess):
    """onnxruntime.InferenceSession for a model in a file or in bytes.

    A model of fixed sizes is built here. A model with dynamic dimensions is built at its first run, tuned for the sizes
    of that run, and valid for all others that the model allows. If one build cannot cover several sizes, the session
    uses several engines and keeps the most recently used ones in memory. The engine cache keeps them on disk: the next
    session of the same model loads in milliseconds. Files and bytes of `pelton build` are accepted too, and never
    rebuilt. Raises ModelError for faults of the model, InputError (a ValueError) for arrays, names and options that do
    not fit, BuildError and EngineError for the rest; all are RuntimeErrors.
    """

    def __repr__(self) -> str:
        model = os.fspath(self._model) if isinstance(self._model, Path) else f"{len(self._model)} bytes"
        return f"<pelton.InferenceSession of {model}>"

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **_: Any,
    ):
        if not isinstance(path_or_bytes, (str, os.PathLike, bytes, bytearray, memoryview)):
            raise TypeError(f"a session needs the path of a model or its bytes, got {type(path_or_bytes).__name__}")
        self._model = Path(path_or_bytes) if isinstance(path_or_bytes, (str, os.PathLike)) else bytes(path_or_bytes)
        self._settings = sess_options or SessionOptions()
        self._log_level = self._settings.log_level
        with at_level(self._log_level):
            self._settings.check()
            self._profile = Profile(self._settings.profile_file_prefix) if self._settings.enable_profiling else None
            if providers is None and self._settings.has_providers():
                providers = self._settings.providers
            self._initialize(choose(providers, provider_options))

    def _initialize(self, choice: ProviderChoice) -> None:
        """Sets the state that depends on the device."""
        begin = time.monotonic_ns()
        self._choice, self._engines = choice, ModelEngines(self._model, self._settings, choice)
        self._signature = self._engines.signature
        self._names = {a.name for a in self._signature.inputs}
        self._output_names = [a.name for a in self._signature.outputs]
        self._only_tensors = not any(a.sequence or a.optional or a.dtype == "string" for a in self._signature.ports)
        # the engine of the last run: one usually serves all sizes
        self._engine = self._engines.first()
        self._tuner = self._engines.tuner()
        on_cpu = self._engines.on_cpu
        if on_cpu != (choice.target == "cpu"):  # a config entry or a prebuilt engine overrides the providers
            self._choice = replace(choice, options={CPU: {}} if on_cpu else {CUDA: {}, CPU: {}})
        if self._profile is not None:
            self._profile.add("session_initialization", "Session", begin, time.monotonic_ns(), {})
        log.debug("session of %s on %s", self._engines.name, ", ".join(self._choice.names))

    # --- the model

    def get_inputs(self) -> list[NodeArg]:
        return [*self._signature.inputs]

    def get_outputs(self) -> list[NodeArg]:
        return [*self._signature.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Returns the inputs with a value in the model: engine constants. Feeding another value raises InputError."""
        return [*self._signature.overridable]

    def get_modelmeta(self) -> ModelMetadata:
        return self._signature.metadata

    def get_session_options(self) -> SessionOptions:
        return self._settings

    def get_providers(self) -> list[str]:
        """Returns the session's providers; it runs on the first."""
        return self._choice.names

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {name: dict(options) for name, options in self._choice.options.items()}

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Sets up the session again for these providers."""
        with at_level(self._log_level):
            self._initialize(choose(providers, provider_options, strictly=True))

    def disable_fallback(self) -> None:
        """Accepted and ignored: there is one provider."""

    def enable_fallback(self) -> None:
        """Accepted and ignored: there is one provider."""

    def get_profiling_start_time_ns(self) -> int:
        """Returns the start of tracing in nanoseconds of `time.monotonic_ns`; 0 without a trace."""
        return self._profile.start if self._profile is not None else 0

    def end_profiling(self) -> str:
        """Writes the trace (`enable_profiling`) and returns the name of its file for ui.perfetto.dev or
        chrome://tracing; "" without a trace. Later runs are not traced."""
        profile, self._profile = self._profile, None
        if profile is None:
            return ""
        for t in () if self._tuner is None else self._tuner.tunings():
            profile.add("background_tuning", "Session", t.begin, t.end, described(t))
        return profile.write()

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        return [OrtMemoryInfo("Cpu")] * len(self._signature.inputs)

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        return [OrtMemoryInfo("Cpu")] * len(self._signature.outputs)

    def get_input_epdevices(self) -> list[None]:
        """Returns None for each input: Pelton has no devices in ONNX Runtime's sense."""
        return [None] * len(self._signature.inputs)

    def get_provider_graph_assignment_info(self) -> list[Any]:
        raise InputError(
            "nodes are compiled together, not assigned to providers; see `pelton explain` and `pelton inspect`"
        )

    def get_tuning_results(self) -> list[dict[str, Any]]:
        """Returns an empty list: kernel times are in the cache directory, or in the file `pelton.timing_cache`."""
        return []

    def set_tuning_results(self, results: Sequence[Mapping[str, Any]], *, error_on_invalid: bool = False) -> None:
        """Ignores results of ONNX Runtime's kernels with a warning; raises InputError if `error_on_invalid`."""
        if results and error_on_invalid:
            raise InputError(
                "tuning results are for ONNX Runtime's kernels; for times of Pelton's kernels, use the config"
                " entry pelton.timing_cache"
            )
        if results:
            with at_level(self._log_level):
                log.warning("tuning results of ONNX Runtime's kernels have no effect")

    def background_tuning(self, wait: float = 0.0) -> list[dict[str, Any]]:
        """Returns the background tunings (docs/tuning.md): their "shapes", "outcome" ("running", "kept", "no faster",
        or the error), "gain" (speedup) and "seconds". Waits at most `wait` seconds for the one in progress. Pelton's
        own: ONNX Runtime has no such method."""
        return [] if self._tuner is None else [described(t) for t in self._tuner.tunings(wait)]

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Accepted and ignored."""

    # --- runs

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> list[np.ndarray]:
        """Runs the model and returns the outputs of these names, or all if None. Lists become arrays of the input's
        type; arrays must have that type."""
        names = self._output_names if output_names is None else self._requested_outputs(output_names)
        if run_options is not None:
            check_run(run_options)
        outputs = self._run(self._input_arrays(input_feed), None)
        return [*map(outputs.__getitem__, names)]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[np.ndarray], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Runs the model in a thread, which calls `callback(outputs, user_data, error)`: `error` is "" on success, else
        a message with empty `outputs`."""

        def work() -> None:
            try:
                outputs, error = self.run(output_names, input_feed, run_options), ""
            except Exception as e:  # the callback reports all errors
                outputs, error = [], str(e) or type(e).__name__
            callback(outputs, user_data, error)

        threading.Thread(target=work, name="pelton-session", daemon=True).start()

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        return [OrtValue(a) for a in self.run(output_names, input_dict_ort_values, run_options)]

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Reads the bound inputs and writes the bound outputs."""
        if iobinding.session is not self:
            raise InputError(
                "an IOBinding belongs to the session that made it, this one to another; make one with io_binding()"
            )
        check_run(run_options)
        if not iobinding.outputs:
            raise InputError("At least one output must be requested: bind one with bind_output or bind_ortvalue_output")
        fixed = {name: a for name, a in iobinding.outputs.items() if a is not None}
        outputs = self._run(self._input_arrays(iobinding.inputs), fixed or None)
        iobinding.results = {name: outputs[name] for name in iobinding.outputs}

    def _requested_outputs(self, names: Sequence[str]) -> Sequence[str]:
        if isinstance(names, str):
            raise InputError(f"outputs are asked for as a list of names, got {names!r}; write [{names!r}]")
        unknown = next((name for name in names if name not in self._output_names), None)
        if unknown is not None:
            raise InputError(
                f"Invalid output name: {unknown}; the outputs are {', '.join(map(repr, self._output_names))}"
            )
        return names or self._output_names

    def _input_arrays(self, feed: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
        """Returns the engine's inputs: arrays by name."""
        if type(feed) is not dict and not isinstance(feed, Mapping):
            raise InputError(f"inputs are fed as a dict from their names to arrays, got {type(feed).__name__}")
        if feed.keys() != self._names:
            check_feed_names(self._signature.inputs, self._signature.overridable, feed)
        if self._only_tensors and {*map(type, feed.values())} == {np.ndarray}:
            return feed
        arrays: dict[str, Any] = {}
        for a in self._signature.inputs:
            form, value = a.entries, feed.get(a.name)
            if isinstance(value, OrtValue):
                value = value._value
            if form is not None:
                arrays.update(map_arrays(a.name, value, form))
            elif a.optional and value is None:
                arrays[a.name] = None
            elif not a.sequence:
                arrays[a.name] = _array(a, value)
            elif not isinstance(value, list):
                raise InputError(f"input {a.name!r} is {a.type}, a list of arrays; got {type(value).__name__}")
            else:  # the engine for this length has one port per array
                arrays.update({f"{a.name}[{i}]": _array(a, v) for i, v in enumerate(value)} if value else {a.name: []})
        return arrays

    def _run(self, fed: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray] | None) -> dict[str, np.ndarray]:
        if self._log_level is None:
            return self._run_logged(fed, out)
        with at_level(self._log_level):
            return self._run_logged(fed, out)

    def _run_logged(self, fed: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray] | None) -> dict[str, np.ndarray]:
        engine = self._engine
        if engine is not None:
            try:
                return self._call(engine, fed, out)
            except InputError:
                if (
                    engine is self._engines.prebuilt
                    or not self._signature.is_dynamic
                    or sizes.accepts(engine.plain, shapes_of(fed))
                ):
                    raise
        shapes = shapes_of(fed)
        by_name = {a.name: a for a in self._signature.ports}
        for name, array in fed.items():  # reports wrong inputs before an engine is built for them
            a = by_name.get(name) or by_name[name.rpartition("[")[0]]
            if array is not None and not isinstance(array, list):
                fit(replace(a.port(shapes[name]), name=name), array)
        self._engine = engine = self._engines.for_shapes(shapes)
        return self._call(engine, fed, out)

    def _call(
        self, engine: Engine, fed: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray] | None
    ) -> dict[str, np.ndarray]:
        """Runs an engine, or a background-tuned one for such sizes."""
        run = Engine.run if self._profile is None else self._run_profiled
        return run(engine, fed, out) if self._tuner is None else self._tuner.run(run, engine, fed, out)

    def _run_profiled(
        self, engine: Engine, fed: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray] | None
    ) -> dict[str, np.ndarray]:
        """Runs this engine with a trace, unless profiling has just ended."""
        profile = self._profile
        if profile is None:
            return engine.run(fed, out)
        begin = time.monotonic_ns()
        outputs, steps = engine.trace(fed, out)
        profile.add_run(begin, time.monotonic_ns(), steps, fed, outputs, self._choice.names[0])
        return outputs


def _array(arg: NodeArg, value: Any) -> Any:
    """Converts lists to arrays of the input's type, bytes to strings for an input of strings; nothing else."""
    if (
        isinstance(value, np.ndarray)
        and value.dtype.kind in "SV"
        and value.dtype.fields is None
        and arg.dtype == "string"
    ):
        return _texts(arg, value)
    if not isinstance(value, list):
        return value
    try:
        return np.array(value, numpy_dtype(arg.dtype))
    except (TypeError, ValueError, OverflowError) as e:
        raise InputError(f"input {arg.name!r} needs numbers that make an array of {arg.type}: {e}") from None


def _texts(arg: NodeArg, value: np.ndarray) -> np.ndarray:
    """Decodes bytes as UTF-8; for numpy's void type all of them, trailing zeros included."""
    texts = np.empty(value.shape, object)
    for at, v in np.ndenumerate(value):
        try:
            texts[at] = bytes(v).decode()
        except UnicodeDecodeError as e:
            raise InputError(
                f"input {arg.name!r} needs texts, got bytes that are no UTF-8, {bytes(v)!r:.50}: {e.reason}"
            ) from None
    return texts
