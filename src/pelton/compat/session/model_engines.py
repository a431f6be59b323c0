"""Finds the engine of a model for given shapes: in memory, in the engine cache, or by building it."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pelton.logs import Logger
from pelton import progress
from pelton.engine import sizes
from pelton.variables import warn_of_unknown
from pelton.errors import BuildError, Cancelled, FormatError, ModelAbsent, ModelError
from pelton.options import Options
from pelton.runtime import Engine
from pelton.system.cache import open_cache
from pelton.system.forks import survives_fork
from pelton.targets import is_gpu

from . import estimate, model as models
from .allowance import Allowance
from .changes import files_on_disk
from .engine_cache import EngineCache, engine_in, key_of
from .limits import Limits
from .pool import EnginePool, Shapes, accepted_sizes, format_shapes, may_accept
from .providers import ProviderChoice
from .settings import SessionOptions
from .signature import Signature, of_engine
from .tuning import Request, Tuner, can_start

log = Logger("pelton.session")


class ModelEngines:
    """The engines of one model, in a file or in bytes, for one provider and one set of options. Thread-safe.

    `prebuilt`: the engine itself, where the file or the bytes hold one instead of a model; it is never built again.
    """

    def __init__(self, model: Path | bytes, settings: SessionOptions, choice: ProviderChoice):
        warn_of_unknown()
        self._model, self._settings, self._device = model, settings, choice.device
        self._config = settings.read(os.environ, choice)
        self._options = self._config.options
        self._cache = EngineCache(open_cache(self._options), choice.device)
        self.pool = EnginePool()
        self._allowance = Allowance()
        self._unlock()
        survives_fork(self)
        try:
            self.prebuilt = engine_in(model, choice.device)
            self._digests = self._digest() if self.prebuilt is None else []
        except FileNotFoundError as e:
            raise ModelAbsent(f"{self.name:.200} cannot be read: {e.strerror}", e.filename) from None
        except OSError as e:
            raise ModelError(f"{self.name:.200} cannot be read: {e.strerror or e}") from None
        self.signature = self._read_signature() if self.prebuilt is None else of_engine(self.prebuilt)
        self.limits = Limits(self.signature.limits)

    def _unlock(self) -> None:
        """Resets the state of builds: after a fork, the child has none of the builds of other threads."""
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """Name of the model in messages."""
        return str(self._model) if isinstance(self._model, Path) else "the given model"

    @property
    def on_cpu(self) -> bool:
        """True if the engines run on the CPU."""
        return self._options.on_cpu if self.prebuilt is None else not is_gpu(self.prebuilt.plain.target)

    def first(self) -> Engine | None:
        """Returns the engine before any run: prebuilt, cached, or built if all sizes are known; else None."""
        engine = self.prebuilt or self._cached(None)
        if engine is None and not self.signature.is_dynamic:
            engine = self._build({a.name: a.fixed for a in self.signature.ports})
        return engine

    def for_shapes(self, shapes: Shapes) -> Engine:
        """Returns the engine that runs inputs of these shapes, built if missing. Raises InputError for impossible
        shapes: known limits are checked before any planning, and each shape is tried once."""
        engine = self.pool.find(shapes)
        if engine is None:
            self.limits.check(shapes)
            with self._lock:  # another thread may have built it, or failed to, meanwhile
                engine = self.pool.find(shapes)
                if engine is None:
                    self.limits.check(shapes)
                    engine = self._cached(shapes) or self._build(shapes)
        return engine

    def tuner(self) -> Tuner | None:
        """Creates the background tuner; None if the session may not tune, such as with options that fix its engine."""
        o, config = self._options, self._config
        promised = o.strict or o.precision != "fp32" or o.load_tactics or o.save_tactics or o.optimum or o.check
        if (
            promised
            or self.prebuilt is not None
            or not self.signature.is_dynamic
            or any(a.sequence or a.optional for a in self.signature.ports)
            or not (config.retune > 0 and o.level and o.on_cpu and config.on_miss == "build")
            or self._settings.use_deterministic_compute
            or not can_start()
        ):
            return None
        model = self._model.absolute() if isinstance(self._model, Path) else self._model

        def request(shapes: Shapes) -> Request:
            key = self._key(o, shapes)
            return Request(model, self._settings.sizes, self._settings.changes, o, shapes, key)

        return Tuner(config.retune, self.pool.max_bytes, request)

    def _cached(self, shapes: Shapes | None) -> Engine | None:
        """Returns a cached engine that accepts these shapes; the latest one if shapes are unspecified."""
        for options in self._acceptable:
            own = None if shapes is None else self._key(options, shapes)
            engine = None if own is None else self._cache.engine(own)
            for key, accepted in self._cache.engines_of(self._key(options)) if engine is None else ():
                candidate = self._cache.engine(key) if shapes is None or may_accept(accepted, shapes) else None
                if candidate is not None and (shapes is None or sizes.accepts(candidate.plain, shapes)):
                    engine = candidate
                    break
            if engine is not None:
                self.pool.add(engine, shapes)
                return engine
        return None

    def _build(self, shapes: Shapes) -> Engine:
        """Returns the engine for these shapes: from the cache if another process has built it meanwhile, else built and
        cached. Raises BuildError if the config forbids building."""
        options = self._affordable(self._acceptable[-1], shapes)
        with self._cache.lock(self._key(options)):
            engine = self._cached(shapes)
            if engine is not None:
                return engine
            if self._config.on_miss == "error":
                raise BuildError(
                    f"no engine of {self.name} for inputs of {format_shapes(shapes)} is in"
                    f" {self._cache.folder or 'a cache directory'}, and pelton.on_miss=error forbids building one;"
                    " build it beforehand with a session and a run on this kind of machine without that entry, or"
                    " with `pelton build`, and pass the file as the model"
                )
            begin = time.monotonic()
            engine = self._compile(shapes, options)
            if options.level and len(self.pool):  # the session always needs its first engine
                self._allowance.spend(time.monotonic() - begin)
            for part in engine.parts:
                part.start(self._device)
            if not isinstance(self._model, bytes) and self._digest() != self._digests:
                raise ModelError(f"{self._model} has changed since the session was made; make a new one")
            key = self._key(options, shapes)
            self._cache.put(key, engine)
            self._cache.register(self._key(options), key, accepted_sizes(engine))
            self.pool.add(engine, shapes)
            log.info(
                "built for %s, the engine accepts %s; the session has %d",
                format_shapes(shapes),
                format_shapes({p.name: p.shape for p in engine.inputs}),
                len(self.pool),
            )
        return engine

    def _affordable(self, options: Options, shapes: Shapes) -> Options:
        """Returns the options, without timing if engines for new shapes have used up their share of the time."""
        if not options.level or options.load_tactics is not None or not self._allowance.is_spent:
            return options
        log.warning(
            "the engine for %s is built without timing kernels, as builds for new shapes have used %.0f of %.0f"
            " s; set ranges with pelton.shapes, pad inputs to fewer sizes, or build engines beforehand",
            format_shapes(shapes),
            self._allowance.seconds,
            self._allowance.period,
        )
        return options.but(level=0)

    def _compile(self, shapes: Shapes, options: Options) -> Engine:
        """Builds an engine for these shapes and for as many others as the model allows."""
        absent = [a.name for a in self.signature.inputs if a.optional and not {a.name, f"{a.name}[0]"} & shapes.keys()]
        options = options.but(values={**(options.values or {}), **dict.fromkeys(absent)} or None)

        def build(fixed: Shapes | None, optimum: Shapes | None) -> Engine:
            source = models.load_model(self._model, self._settings.sizes, self._settings.changes)
            with estimate.announce(self._cache, self.name, source.model, options):
                settings = options if fixed is None else options.but(shapes=fixed)
                return models.build_engine(source, settings, options.optimum or optimum, self._shows_progress)

        if not self.signature.is_dynamic:
            return build(None, None)
        reason: object = "it accepts others"
        try:
            engine = build(None, shapes)
            if sizes.accepts(engine.plain, shapes):
                return engine
        except Cancelled:
            raise
        except ModelError as e:
            self.limits.extend(models.requirements(e))
            if self.limits.readable or len(self.pool):
                self.limits.check(shapes)
            reason = e
        except BuildError as e:
            reason = e
        log.info("no engine for %s and other sizes (%s): building one for these alone", format_shapes(shapes), reason)
        try:
            return build(shapes, None)
        except ModelError as e:
            if isinstance(e, (FormatError, ModelAbsent)) or not (self.limits.readable or len(self.pool)):
                raise
            raise self.limits.learn(shapes, e) from e

    @property
    def _acceptable(self) -> tuple[Options, ...]:
        """Options of engines that this session accepts, best first; it builds with the last."""
        if self._config.on_miss == "fast" and self._options.level:
            return self._options, self._options.but(level=0)
        return (self._options,)

    @property
    def _shows_progress(self) -> bool:
        if self._config.progress is not None:
            return self._config.progress
        return self._settings.log_severity_level < 3 and progress.is_visible()

    def _key(self, options: Options, shapes: Shapes | None = None) -> str:
        return key_of(self._digests, self._settings.sizes, options, shapes, self._device)

    def _digest(self) -> list[str]:
        """Returns digests of the model, of the session's changes, and of each external data file after its name."""
        changes = self._settings.changes
        if isinstance(self._model, bytes):
            return [hashlib.sha256(self._model).hexdigest(), *changes.digests()]
        model = self._model
        digests = [self._cache.digest(model), *changes.digests()]
        external = self._cache.details(digests[0], lambda: models.external_files(model))
        for name in files_on_disk(external, changes.files):
            file = model.parent / name
            # the importer reports missing files
            digests += [name, self._cache.digest(file) if file.is_file() else ""]
        return digests

    def _read_signature(self) -> Signature:
        key = self._key(self._options)
        signature = self._cache.signature(key)
        if signature is None:
            source = models.load_model(self._model, self._settings.sizes, self._settings.changes)
            signature = models.read_signature(source, self._options)
            self._cache.put_signature(key, signature)
        return signature


def shapes_of(fed: Mapping[str, Any]) -> Shapes:
    """Returns the shapes of arrays by name: () for an empty sequence, nothing for an optional input without a value."""
    return {name: () if isinstance(a, list) else np.shape(a) for name, a in fed.items() if a is not None}
