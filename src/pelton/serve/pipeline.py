"""Pipelines: models made of steps, each a model of the server or a Python function, that exchange tensors by name.

    models/NAME/pipeline.yaml, or `ensemble_scheduling` of a config.pbtxt as Triton reads it

    inputs:  [{name: image, datatype: UINT8, shape: [-1, -1, 3]}]
    outputs: [{name: scores, datatype: FP32, shape: [-1, 1000]}]
    steps:
      - {python: steps.py:resize, inputs: {image: image}, outputs: {pixels: x}, seconds: 5}
      - {model: resnet50, version: 1, inputs: {x: x}, outputs: {y: scores}}

The left name of each pair is the step's own, the right one the pipeline's.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pelton.engine.plan import Port
from pelton.errors import InputError

from . import datatypes
from . import settings as configuration
from .model import Outputs, ServedModel, fault_of
from .pipeline_files import FILE, PipelineParts, PipelineStep, read_config, read_yaml
from .python_step import PythonStep
from .requests import InferRequest, RequestError
from .settings import ModelSettings
from .statistics import Statistics

if TYPE_CHECKING:
    from .options import ServeOptions
    from .repository import Place

THREADS = 64  # requests under way at once: they wait for the queues of models


class ModelTable(Protocol):
    """The interface of a server that a pipeline needs."""

    options: ServeOptions
    table: dict[tuple[str, str], ServedModel]
    traces: Any

    def begin(self, request: InferRequest, arrived: int) -> Any: ...


class PipelineRun(Future[Outputs]):
    """A request of a pipeline under way, with the times that the statistics take."""

    queued_ns = started_ns = ended_ns = 0


def is_pipeline(place: Place, settings: ModelSettings) -> bool:
    """Returns True if the model's folder describes a pipeline."""
    written = place.folder is not None and (place.folder / FILE).is_file()
    return written or bool(settings.config.ensemble_scheduling.step)


def named_models(place: Place, settings: ModelSettings) -> list[str]:
    """Returns the models that the steps of a pipeline name, each once; none for any other model. Raises InputError for
    a description that cannot be read."""
    return _models(_described(place, settings)[2]) if is_pipeline(place, settings) else []


def _described(place: Place, settings: ModelSettings) -> PipelineParts:
    assert place.folder is not None
    file = place.folder / FILE
    return read_yaml(file) if file.is_file() else read_config(settings.config)


def _models(steps: Sequence[PipelineStep]) -> list[str]:
    return list(dict.fromkeys(step.model for step in steps if step.model))


class Pipeline(ServedModel):
    """A pipeline as a served model. Raises InputError for steps that do not fit together, and for models that are
    loaded and do not fit."""

    kind = how = "pipeline"

    def __init__(self, server: ModelTable, place: Place, settings: ModelSettings):
        self.name, self.settings, self.server = place.name, settings, server
        self.version = max(place.versions, key=int, default="1")
        assert place.folder is not None
        self.folder: Path = place.folder
        self.statistics, self.closed = Statistics(), False
        self.sequences = self.queue = self.engine = self.axis = None  # type: ignore[assignment]
        self.inline = False
        inputs, outputs, self.steps = _described(place, settings)
        self.models = _models(self.steps)
        self.inputs, self.outputs = {p.name: p for p in inputs}, {p.name: p for p in outputs}
        if not (self.inputs and self.outputs and self.steps):
            raise InputError(f"pipeline {self.name!r} has inputs, outputs and steps, each at least one")
        self.waves = _ordered(self.name, self.steps, self.inputs, self.outputs)
        self._bf16 = {p.name for p in inputs if p.dtype == "bf16"}
        self._types = {p.name: p.numpy_dtype for p in inputs}
        self.batched = settings.config.max_batch_size > 0
        self.config = self._config()
        self._resolved: tuple[Any, str] = (None, "")
        refusal = self._refusal()
        if refusal.startswith("step"):
            raise InputError(f"pipeline {self.name!r}: {refusal}")
        self._processes = self._start_processes()
        self._pool = ThreadPoolExecutor(THREADS, f"pelton-{self.name}")
        self._waiting = 0

    def _config(self) -> Any:
        config = configuration.message("ModelConfig")()
        config.CopyFrom(self.settings.config)
        config.name, config.platform = self.name, "ensemble"
        del config.input[:], config.output[:], config.ensemble_scheduling.step[:]
        for kind, ports in (("input", self.inputs), ("output", self.outputs)):
            for port in ports.values():
                tensor = getattr(config, kind).add()
                tensor.name = port.name
                enum = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_name
                tensor.data_type = enum["TYPE_" + datatypes.NAMES[port.dtype].replace("BYTES", "STRING")].number
                tensor.dims.extend(_sizes(port)[int(self.batched) :])
        for step in self.steps:
            written = config.ensemble_scheduling.step.add()
            written.model_name, written.model_version = step.model or step.python, int(step.version or -1)
            written.input_map.update(step.inputs)
            written.output_map.update(step.outputs)
        return config

    def _start_processes(self) -> dict[tuple[str, float], PythonStep]:
        processes: dict[tuple[str, float], PythonStep] = {}
        try:
            for step in self.steps:
                if step.python and (step.python, step.seconds) not in processes:
                    if self.server.options.trust:
                        raise InputError(f"{step} is no signed engine, and only these are trusted")
                    file, _, function = step.python.rpartition(":")
                    path = self.folder / file
                    if path.resolve().parent != self.folder.resolve() or not path.is_file():
                        raise InputError(f"{step} of pipeline {self.name!r} is FILE.py:FUNCTION, a file beside {FILE}")
                    processes[step.python, step.seconds] = PythonStep(path, function, step.seconds)
        except BaseException:
            for process in processes.values():
                process.close()
            raise
        return processes

    # availability

    @property
    def reason(self) -> str:  # type: ignore[override]
        """The reason why the pipeline cannot run at present: a model of it is absent, or no longer fits."""
        table = self.server.table
        if self._resolved[0] is not table:
            self._resolved = (table, self._refusal())
        return self._resolved[1]

    def _refusal(self) -> str:
        """Returns why the loaded models do not fit; a text that begins with "step" for one that can never run."""
        types: dict[str, Port] = dict(self.inputs)
        for step in (s for wave in self.waves for s in wave if s.model):
            if self._returns(step.model, set()):
                return f"step {step} leads back to this pipeline"
            model = self.server.table.get((step.model, step.version))
            if model is None:
                return f"pipeline {self.name!r} needs {step} version {step.version or 'latest'}, which is not available"
            if model.reason:
                return f"pipeline {self.name!r} needs {step}, but {model.reason}"
            for kind, own, ports in (("input", step.inputs, model.inputs), ("output", step.outputs, model.outputs)):
                for name in own:
                    if name not in ports:
                        return f"step {step} has no {kind} {name!r}: it has {', '.join(map(repr, ports))}"
            for name in model.inputs:
                if name not in step.inputs:
                    return f"step {step} needs input {name!r}; map it to a tensor of the pipeline"
            for name, tensor in step.inputs.items():
                if tensor in types and (problem := _mismatch(types[tensor], model.inputs[name])):
                    return f"step {step} input {name!r} from tensor {tensor!r}: {problem}"
            types.update({tensor: model.outputs[name] for name, tensor in step.outputs.items()})
        for name, port in self.outputs.items():
            if name in types and (problem := _mismatch(types[name], port)):
                return f"step results: output {name!r}: {problem}"
        return ""

    def _returns(self, name: str, seen: set[str]) -> bool:
        """Returns True if a model, or a pipeline of it, is this pipeline."""
        if name == self.name:
            return True
        model = self.server.table.get((name, ""))
        if name in seen or not isinstance(model, Pipeline):
            return False
        seen.add(name)
        return any(self._returns(inner, seen) for inner in model.models)

    # requests

    def begin(self, request: InferRequest, arrived: int) -> PipelineRun:  # type: ignore[override]
        """Starts a request. Raises RequestError for inputs that do not fit, and if too many requests wait."""
        tensors = self.arrays(request)
        for name, array in tensors.items():
            sizes = _sizes(self.inputs[name])
            if array.ndim != len(sizes) or any(d not in (-1, n) for d, n in zip(sizes, array.shape)):
                raise RequestError(f"input {name!r} of model {self.name!r} has shape {sizes}, got {list(array.shape)}")
        if self._waiting >= self.server.options.bound:
            raise RequestError(f"{self._waiting} requests wait for pipeline {self.name!r}", "full", 1.0)
        run = PipelineRun()
        run.queued_ns = time.monotonic_ns()
        try:
            self._waiting += 1
            if self.server.traces is None:
                self._pool.submit(self._work, run, dict(tensors), request)
            else:  # spans of the models are below that of the request
                self._pool.submit(contextvars.copy_context().run, self._work, run, dict(tensors), request)
        except RuntimeError:  # shut down
            self._waiting -= 1
            raise RequestError(f"model {self.name!r} was unloaded", "closed") from None
        return run

    def _work(self, run: PipelineRun, tensors: dict[str, Any], request: InferRequest) -> None:
        self._waiting -= 1
        if not run.set_running_or_notify_cancel():
            return
        run.started_ns = time.monotonic_ns()
        try:
            for wave in self.waves:
                started = [(step, self._begin(step, tensors, request)) for step in wave]
                for step, result in started:
                    outputs = result if isinstance(result, dict) else result.finish(_by_name)
                    for name, tensor in step.outputs.items():
                        if name not in outputs:
                            raise RequestError(f"{step} of pipeline {self.name!r} returns no {name!r}", "internal")
                        tensors[tensor] = outputs[name]
            outputs = {name: self._checked(tensors[name], port) for name, port in self.outputs.items()}
        except BaseException as e:
            run.ended_ns = time.monotonic_ns()
            run.set_exception(fault_of(e))
            return
        run.ended_ns = time.monotonic_ns()
        self.statistics.executed(1, run.ended_ns - run.started_ns)
        run.set_result(outputs)

    def _begin(self, step: PipelineStep, tensors: Mapping[str, Any], request: InferRequest) -> Any:
        inputs = {name: tensors[tensor] for name, tensor in step.inputs.items()}
        if not step.model:
            return self._processes[step.python, step.seconds].run(inputs)
        inner = InferRequest(step.model, step.version, inputs, parameters=request.parameters)
        return self.server.begin(inner, time.monotonic_ns())

    def _checked(self, array: np.ndarray, port: Port) -> np.ndarray:
        sizes = _sizes(port)
        fits = array.ndim == len(sizes) and all(d in (-1, n) for d, n in zip(sizes, array.shape))
        if array.dtype != port.numpy_dtype or not fits:
            raise RequestError(
                f"output {port.name!r} of pipeline {self.name!r} is {datatypes.NAMES[port.dtype]} of shape {sizes}, its"
                f" step returned {array.dtype} of shape {list(array.shape)}",
                "internal",
            )
        return array

    def waiting(self) -> int:
        """Returns the number of requests that have not begun."""
        return self._waiting

    def rows(self, inputs: Mapping[str, Any]) -> int:
        """Returns the number of rows of a request: the first size of its inputs if these are batches."""
        return next((len(a) for a in inputs.values()), 1) if self.batched else 1

    def close(self) -> None:
        """Waits for the requests under way, and ends the processes."""
        self.closed = True
        self._pool.shutdown()
        for process in self._processes.values():
            process.close()

    @property
    def blocking(self) -> bool:
        return False


def _by_name(version: str, answers: Sequence[tuple[Any, np.ndarray]]) -> Outputs:
    return {asked.name: array for asked, array in answers}


def _sizes(port: Port) -> list[int]:
    return [d if isinstance(d, int) else -1 for d in port.shape]


def _mismatch(source: Port, target: Port) -> str:
    """Returns why a tensor cannot be another; "" if it can."""
    if source.dtype != target.dtype:
        return f"it is {datatypes.NAMES[source.dtype]}, expected {datatypes.NAMES[target.dtype]}"
    a, b = _sizes(source), _sizes(target)
    if len(a) != len(b) or any(m != n and -1 not in (m, n) for m, n in zip(a, b)):
        return f"its shape is {a}, expected {b}"
    return ""


def _ordered(name: str, steps: Sequence[PipelineStep], inputs: Any, outputs: Any) -> list[list[PipelineStep]]:
    """Returns the steps in waves: those of a wave need only tensors of earlier ones. Raises InputError for cycles, and
    for tensors that no step makes, or that two make."""
    made = set(inputs)
    for step in steps:
        for tensor in step.outputs.values():
            if tensor in made:
                raise InputError(f"pipeline {name!r}: tensor {tensor!r} is made twice, the second time by {step}")
            made.add(tensor)
    for step in steps:
        for tensor in step.inputs.values():
            if tensor not in made:
                raise InputError(f"pipeline {name!r}: {step} reads tensor {tensor!r}, which no step makes")
    for tensor in outputs:
        if tensor not in made:
            raise InputError(f"pipeline {name!r}: no step makes its output {tensor!r}")
    ready, rest, waves = set(inputs), list(steps), []
    while rest:
        wave = [s for s in rest if ready.issuperset(s.inputs.values())]
        if not wave:
            raise InputError(f"pipeline {name!r}: {', '.join(map(str, rest))} wait for each other in a cycle")
        rest = [s for s in rest if s not in wave]
        ready.update(tensor for step in wave for tensor in step.outputs.values())
        waves.append(wave)
    return waves
