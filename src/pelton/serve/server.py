"""The server without its protocols: the table of loaded models, requests, and control of the repository."""

from __future__ import annotations

import ctypes
import gc
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from pelton.errors import Error, InputError
from pelton.runtime.async_run import AsyncRun
from pelton.version import VERSION

from . import loading, repository
from . import settings as configuration
from .model import Outputs, ServedModel, fault_of
from .options import ServeOptions
from .pipeline import Pipeline, is_pipeline, named_models
from .regions import Regions
from .repository import Place
from .requests import InferRequest, RequestError
from .responses import ResponseCache
from .settings import ModelSettings

log = logging.getLogger("pelton.serve")

EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
POLLED = (
    "explicit model load / unload is not allowed if polling is enabled; start the server with --model-control explicit"
)
Table = dict[tuple[str, str], ServedModel]


class Server:
    """Models of repositories, loaded and ready to answer. Threads may share it; `start` loads the models."""

    def __init__(self, options: ServeOptions):
        self.options = options
        self.regions = Regions(options.workers == 1)
        self.cache = ResponseCache(options.cache) if options.cache else None
        self.traces: Any = None  # telemetry.Traces, if requests are traced
        # (name, version) → model, and (name, "") → its latest version; replaced as a whole
        self.table: Table = {}
        self.places: dict[str, Place] = {}
        self.reasons: dict[str, str] = {}  # model that failed to load → why
        self.draining = False
        self.loaded = False
        self.started = time.time()
        self._failed: dict[str, Any] = {}  # model → the stamp that failed
        self._asked: set[str] = set()  # models that clients loaded, not those that came with a pipeline
        self._control = threading.Lock()
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None

    # life

    def start(self) -> None:
        """Loads the models, and watches the folders if `control` is "poll". Raises Error if a model named by the
        caller, or one of the only file, cannot be loaded; others are reported as unavailable."""
        self.places = repository.scan(self.options.models)
        if self.options.control == "explicit":
            names = list(self.places) if "*" in self.options.startup else list(self.options.startup)
            for name in names:
                if (name, "") not in self.table:  # an earlier pipeline may have brought it
                    self.load(name)
                self._asked.add(name)
        else:
            for name in self.places:
                self._try(name)
        self.loaded = True
        if self.options.control == "poll":
            self._watcher = threading.Thread(target=self._watch, name="pelton-watch", daemon=True)
            self._watcher.start()

    def close(self) -> None:
        """Ends watching, waits for all runs, and gives all models back."""
        self._stop.set()
        if self._watcher is not None:
            self._watcher.join()
        with self._control:
            models, self.table = set(self.table.values()), {}
        for model in models:
            model.close()

    def ready(self) -> bool:
        """Returns True if all models that should be there are, and the server is not about to stop."""
        return self.loaded and not self.draining and not self._failed

    def _watch(self) -> None:
        problem = ""
        while not self._stop.wait(self.options.poll):
            try:
                self.poll()
                problem = ""
            except (Error, OSError) as e:  # the folder may be unreadable for a while
                if str(e) != problem:
                    log.error("looking at the repository failed, and the models stay as they are: %s", e)
                problem = str(e)
            except Exception:
                log.exception("looking at the repository failed; the models stay as they are")

    def poll(self) -> None:
        """Loads new and changed models and unloads removed ones, as the folders are now."""
        places = repository.scan(self.options.models)
        for name in [n for n in self.places if n not in places]:
            self.places.pop(name)
            self._unload(name)
            self._failed.pop(name, None)
            self.reasons.pop(name, None)
        for name, place in places.items():
            known = self.places.get(name)
            if (known is None or known.stamp != place.stamp) and self._failed.get(name) != place.stamp:
                self.places[name] = place
                self._try(name)

    def _try(self, name: str) -> None:
        """Loads a model; failures are reported by the index and in the log, and a loaded model stays."""
        try:
            self._load(self.places[name])
        except (Error, OSError) as e:
            self.reasons[name] = str(e)
            self._failed[name] = self.places[name].stamp
            log.error("model %r is not loaded: %s", name, e)

    # control of models

    def load(self, name: str, config: str | None = None) -> None:
        """Loads a model of the repository, or its present files again; for a pipeline, first those of its models that
        are not loaded or have changed. config: a configuration as JSON, in place of the file's. Raises RequestError
        unless `control` is "explicit", and for models that cannot be loaded."""
        if self.options.control != "explicit":
            raise RequestError(POLLED, "unavailable")
        try:
            places = repository.scan(self.options.models)
        except Error as e:
            raise RequestError(f"failed to load '{name[:200]}': {e}") from None
        self._load_with_models(name, places, config, set())
        self._asked.add(name)

    def _load_with_models(self, name: str, places: dict[str, Place], config: str | None, seen: set[str]) -> None:
        """Loads a model after those that it names. seen: the models on the way to it; empty for one that is loaded in
        any case."""
        if name not in places:
            raise RequestError(f"failed to load '{name[:200]}', failed to poll from model repository", "invalid")
        place, known, first = places[name], self.places.get(name), not seen
        seen.add(name)
        try:
            for inner in named_models(place, self._settings(place, config)):
                if inner not in seen:
                    self._load_with_models(inner, places, None, seen)
            if first or (name, "") not in self.table or known is None or known.stamp != place.stamp:
                self.places[name] = place
                self._load(place, config)
        except (Error, OSError) as e:
            self.reasons[name], self._failed[name] = str(e), place.stamp
            raise RequestError(f"failed to load '{name}': {e}", "invalid") from None

    def unload(self, name: str, dependents: bool = False) -> None:
        """Unloads a model. Raises RequestError unless `control` is "explicit"; unknown models are ignored.

        dependents: with a pipeline, also its models, except those that a client loaded, or another pipeline names.
        """
        if self.options.control != "explicit":
            raise RequestError(POLLED, "unavailable")
        model = self.table.get((name, ""))
        self._unload(name)
        self._asked.discard(name)
        if dependents and isinstance(model, Pipeline):
            others = {inner for m in set(self.table.values()) if isinstance(m, Pipeline) for inner in m.models}
            for inner in model.models:
                if (inner, "") in self.table and inner not in self._asked | others:
                    self.unload(inner, dependents)

    def _load(self, place: Place, config: str | None = None) -> None:
        """Loads the versions of a model, replaces those in the table, and gives these back once their runs are over."""
        with self._control:
            settings = self._settings(place, config)
            if settings.ignored:
                log.warning("model %r: no effect of %s", place.name, ", ".join(settings.ignored))
            fresh = self._fresh(place, settings)
            table = {key: m for key, m in self.table.items() if key[0] != place.name}
            table.update({(place.name, m.version): m for m in fresh})
            table[place.name, ""] = fresh[-1]
            self._replace(place.name, table)
            self.reasons.pop(place.name, None)
            self._failed.pop(place.name, None)
            log.info("model %r is ready: versions %s", place.name, ", ".join(m.version for m in fresh))

    def _fresh(self, place: Place, settings: ModelSettings) -> list[ServedModel]:
        """Returns the loaded versions of a model, in ascending order. Raises Error for one that cannot be loaded."""
        if is_pipeline(place, settings):
            return [Pipeline(self, place, settings)]
        versions = configuration.selected(settings.config, list(place.versions))
        if not versions:
            raise InputError(f"model {place.name!r} has no version that its version_policy selects")
        return [loading.load(place.name, v, place.versions[v], settings, self.options) for v in versions]

    def _settings(self, place: Place, config: str | None) -> ModelSettings:
        settings = configuration.read(place.folder, place.name)
        return settings if config is None else replace(settings, config=configuration.from_json(config, place.name))

    def _unload(self, name: str) -> None:
        with self._control:
            self._replace(name, {key: m for key, m in self.table.items() if key[0] != name})
            self.reasons[name] = "unloaded"
        log.info("model %r is unloaded", name)

    def _replace(self, name: str, table: Table) -> None:
        """Puts a new table in place, and closes the models of one name that it no longer has."""
        gone = {m for key, m in self.table.items() if key[0] == name} - set(table.values())
        self.table = table
        if gone:
            threading.Thread(target=_give_back, args=(gone,), name="pelton-unload", daemon=True).start()

    def index(self) -> list[dict[str, Any]]:
        """Returns the models of the repository with their states, as the protocol has them."""
        rows = []
        for name in sorted({*self.places, *self.reasons, *(key[0] for key in self.table)}):
            versions = sorted({key[1] for key in self.table if key[0] == name and key[1]}, key=int)
            for version in versions:
                reason = self.table[name, version].reason
                state = "UNAVAILABLE" if reason else "READY"
                rows.append({"name": name, "version": version, "state": state, "reason": reason})
            if not versions:
                reason = self.reasons.get(name, "")
                row: dict[str, Any] = {"name": name}
                rows.append({**row, "state": "UNAVAILABLE", "reason": reason} if reason else row)
        return rows

    # requests

    def model(self, name: str, version: str = "") -> ServedModel:
        """Returns a loaded model. Raises RequestError if there is none of that name and version."""
        model = self.table.get((name, version))
        if model is None:
            self._refuse(name, version)
        elif model.reason:
            raise RequestError(model.reason, "unavailable")
        return model  # type: ignore[return-value]

    def _refuse(self, name: str, version: str) -> None:
        name = name[:200]
        if (name, "") in self.table:
            raise RequestError(f"Request for unknown model: '{name}' version {version[:40]} is not found", "absent")
        if name in self.places:
            raise RequestError(f"Request for unknown model: '{name}' has no available versions", "absent")
        raise RequestError(f"Request for unknown model: '{name}' is not found", "absent")

    def versions(self, name: str) -> list[str]:
        """Returns the loaded versions of a model, in ascending order."""
        return sorted((key[1] for key in self.table if key[0] == name and key[1]), key=int)

    def statistics(self, name: str = "", version: str = "") -> list[dict[str, Any]]:
        """Returns the statistics of all loaded models, of a model's versions, or of one version. Raises RequestError
        for an unknown one."""
        if name and version:
            models = [self.model(name, version)]
        else:
            if name:
                self.model(name)
            models = [m for (n, v), m in sorted(self.table.items()) if v and name in ("", n)]
        return [m.statistics.report(m.name, m.version) for m in models]

    def begin(self, request: InferRequest, arrived: int) -> Running:
        """Starts a request. Raises RequestError if it is rejected."""
        while True:
            model = self.model(request.model, request.version)
            running = Running(self, model, request, arrived)
            try:
                running.start()
            except RequestError as e:
                if e.fault == "closed" and self.table.get((request.model, request.version)) is not model:
                    continue  # replaced meanwhile
                model.statistics.failed(e.fault, time.monotonic_ns() - arrived)
                if self.traces is not None:
                    self.traces.refused(model, e.fault)
                raise
            return running

    def metadata(self) -> dict[str, Any]:
        """Returns the server's metadata as the protocol has it."""
        return {"name": self.options.name, "version": VERSION, "extensions": list(EXTENSIONS)}


class Running:
    """A request under way: `future` is its run, None if its outputs are there at once."""

    cached = False  # True if they are those of an equal request

    def __init__(self, server: Server, model: ServedModel, request: InferRequest, arrived: int):
        self.server, self.model, self.request, self.arrived = server, model, request, arrived
        self.begun = time.monotonic_ns()
        self.outputs: Outputs | None = None
        self.future: Any = None
        self._key: bytes | None = None

    def start(self) -> None:
        """Runs the model, starts its run, or takes the outputs of an equal request from the cache."""
        cache = self.server.cache
        if cache is not None and self.model.config.response_cache.enable and self.model.sequences is None:
            start = time.monotonic_ns()
            self._key = cache.key(self.model, self.request.inputs)
            self.outputs = cache.get(self._key)
            self.model.statistics.cached(self.outputs is not None, time.monotonic_ns() - start)
            if self.outputs is not None:
                self._key, self.cached = None, True
                return
        outcome = self.model.begin(self.request, self.arrived)
        if isinstance(outcome, dict):
            self.outputs = outcome
        else:
            self.future = outcome

    def finish(self, write: Callable[..., Any]) -> Any:
        """Returns `write(version, answers)` of a finished run, and counts the request. Raises RequestError."""
        ended = time.monotonic_ns()
        model, statistics = self.model, self.model.statistics
        try:
            outputs = self.outputs if self.future is None else self._result()
            assert outputs is not None
            if self._key is not None and self.server.cache is not None:
                self.server.cache.put(self._key, outputs)
            written = write(model.version, model.answers(self.request, outputs, self.server.regions.write))
        except RequestError as e:
            statistics.failed(e.fault, ended - self.arrived)
            if self.server.traces is not None:
                self.server.traces.record(self, ended, time.monotonic_ns(), e.fault)
            raise
        now = time.monotonic_ns()
        run = self.future
        if run is None:
            queue, running = 0, ended - self.begun
        else:
            queue, running = run.started_ns - run.queued_ns, run.ended_ns - run.started_ns
        rows = model.rows(self.request.inputs)
        if isinstance(run, AsyncRun):
            shared = run.batch_rows > 1  # with other requests, or the rows of this one
            statistics.executed(run.rows if shared else rows, running, run.batch_rows if shared else rows)
        elif model.sequences is not None:
            statistics.executed(rows, running)
        statistics.succeeded(rows, now - self.arrived, queue, self.begun - self.arrived, running, now - ended)
        if self.server.traces is not None:
            self.server.traces.record(self, ended, now)
        return written

    def _result(self) -> Outputs:
        try:
            result: Outputs = self.future.result()
            return result
        except BaseException as e:
            raise fault_of(e) from None


def _give_back(models: Iterable[ServedModel]) -> None:
    """Closes models that no request finds any more, and returns their memory to the system."""
    for model in models:
        model.close()
    del models, model
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
