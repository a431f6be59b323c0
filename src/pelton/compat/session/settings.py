"""SessionOptions, RunOptions and the module functions of ONNX Runtime."""

from __future__ import annotations

import enum
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pelton.logs import Logger
from pelton import __version__
from pelton.errors import Error, InputError

from . import config, providers
from .changes import Changes
from .config import SessionConfig
from .providers import ProviderChoice
from .values import OrtValue

log = Logger("pelton.session")

SEVERITIES = {0: logging.DEBUG, 1: logging.INFO, 2: logging.WARNING, 3: logging.ERROR, 4: logging.CRITICAL}


class GraphOptimizationLevel(enum.IntEnum):
    """Accepted and ignored: an engine is always optimized; `pelton.level` sets the effort of the kernel search."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionOrder(enum.IntEnum):
    """Accepted and ignored: the build orders an engine's steps."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class ExecutionMode(enum.IntEnum):
    """Accepted and ignored: independent steps of an engine always run in parallel."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class _Typed:
    """A dataclass whose fields accept the types of their defaults; TypeError for others, as in ONNX Runtime."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    if not TYPE_CHECKING:  # else type checkers would accept any name

        def __setattr__(self, name: str, value: Any) -> None:
            known = self.__dataclass_fields__.get(name)
            super().__setattr__(name, value if known is None else _fit(name, known.default, value))


def _fit(name: str, default: Any, value: Any) -> Any:
    """Converts the value of an option to the type of its default."""
    if isinstance(default, enum.IntEnum):
        kind = type(default).__name__
        fits, expected = isinstance(value, type(default)), f"of {kind}, such as {kind}.{default.name}"
    elif isinstance(default, bool):
        fits, expected = hasattr(type(value), "__bool__"), "True or False"
    elif isinstance(default, int):
        fits, expected = hasattr(type(value), "__index__"), "an integer"
    else:
        fits, expected = isinstance(value, str) or not isinstance(default, str), "a text"
    if not fits:
        raise TypeError(f"{name} is {expected}, got {value!r:.100}")
    return type(default)(value) if isinstance(default, int) else value


@dataclass(slots=True, eq=False)
class SessionOptions(_Typed):
    """ONNX Runtime's session options. `intra_op_num_threads`, free dimensions, replaced initializers,
    `enable_profiling` and the config entries of `config.READERS` (`pelton.level`, …) have an effect; all others are
    accepted, with a warning for those whose effect users may rely on."""

    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    execution_mode: int = ExecutionMode.ORT_SEQUENTIAL
    execution_order: int = ExecutionOrder.DEFAULT
    graph_optimization_level: int = GraphOptimizationLevel.ORT_ENABLE_ALL
    inter_op_num_threads: int = 0
    intra_op_num_threads: int = 0
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    profile_file_prefix: str = "onnxruntime_profile_"
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True
    _entries: dict[str, str] = field(default_factory=dict, init=False)
    _sizes: dict[str, int] = field(default_factory=dict, init=False)
    _changes: Changes = field(default_factory=Changes, init=False)
    _providers: list[tuple[str, dict[str, str]]] = field(default_factory=list, init=False)

    def add_session_config_entry(self, key: str, value: str) -> None:
        config.check_name(key)
        self._entries[key] = str(value)

    def get_session_config_entry(self, key: str) -> str:
        if key not in self._entries:
            raise InputError(f"SessionOptions does not have configuration with key: {key}")
        return self._entries[key]

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fixes the size of every dimension of that name."""
        self._sizes[name] = int(size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Fixes the size of every dimension of that denotation (DATA_BATCH, …)."""
        self._changes.denoted[denotation] = int(size)

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        """Adds a provider for sessions without providers of their own."""
        self._providers.append((name, dict(options)))

    def has_providers(self) -> bool:
        return bool(self._providers)

    def register_custom_ops_library(self, path: str) -> None:
        raise InputError(
            f"operators in ONNX Runtime's binary form ({os.path.basename(path)}) cannot be used here; "
            "put their meaning into the model as functions"
        )

    def add_initializer(self, name: str, ort_value: OrtValue) -> None:
        """Replaces the model's initializer of that name. The array is read when a session is created."""
        if not isinstance(ort_value, OrtValue):
            raise InputError(
                f"an initializer must be an OrtValue, got {type(ort_value).__name__}; convert it with"
                " OrtValue.ortvalue_from_numpy"
            )
        self._changes.constants[name] = ort_value.numpy()

    def add_external_initializers(self, names: Sequence[str], ort_values: Sequence[OrtValue]) -> None:
        """Replaces several initializers, whose data may be in external files."""
        if len(names) != len(ort_values):
            raise InputError(
                f"expected as many arrays as names of initializers, got {len(ort_values)} for {len(names)}"
            )
        for name, value in zip(names, ort_values):
            self.add_initializer(name, value)

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[int]
    ) -> None:
        """Sets the contents of external data files, by their names in the model."""
        if not len(names) == len(buffers) == len(lengths):
            raise InputError(
                f"expected as many bytes and lengths as names of files, got {len(buffers)} and {len(lengths)} for"
                f" {len(names)}"
            )
        for name, buffer, length in zip(names, buffers, lengths):
            self._changes.files[name] = bytes(memoryview(buffer).cast("B")[:length])

    @property
    def changes(self) -> Changes:
        """The changes to the model."""
        return self._changes

    @property
    def providers(self) -> list[tuple[str, dict[str, str]]]:
        """Added providers, for sessions without providers of their own."""
        return self._providers

    def read(self, environment: Mapping[str, str], choice: ProviderChoice | None = None) -> SessionConfig:
        """Returns a session's config, for the target of the chosen provider unless an entry names another. Raises
        InputError for invalid entries."""
        more: dict[str, Any] = {}
        if choice is not None and choice.target != "cpu" and "pelton.target" not in self._entries:
            more = {"target": choice.target, "threads": None}
            if choice.precision:
                more["precision"] = choice.precision
        elif self.intra_op_num_threads > 0:  # others select the default
            more = {"threads": self.intra_op_num_threads}
        return config.read(self._entries, environment, **more)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Sizes by name."""
        return self._sizes

    @property
    def log_level(self) -> int | None:
        """Least level that a session logs, a number of `logging`; None for the level of the process."""
        return SEVERITIES.get(self.log_severity_level)

    def check(self) -> None:
        """Raises InputError for an unknown severity; warns of options without effect that users may rely on."""
        if self.log_severity_level != -1:
            check_severity(self.log_severity_level, "log_severity_level is")
        if self.optimized_model_filepath:
            log.warning(
                "optimized_model_filepath has no effect, nothing is written to %s: `pelton build` makes engine files",
                self.optimized_model_filepath,
            )


@dataclass(slots=True, eq=False)
class RunOptions(_Typed):
    """Options of a run: `terminate` is checked when it begins; all others are accepted and ignored."""

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False
    _entries: dict[str, str] = field(default_factory=dict, init=False)

    def add_active_adapter(self, adapter: Any) -> None:
        raise InputError(
            "adapters (LoRA) change constants, but engines have fixed ones; replace them with"
            " SessionOptions.add_initializer"
        )

    def add_run_config_entry(self, key: str, value: str) -> None:
        self._entries[key] = str(value)

    def get_run_config_entry(self, key: str) -> str:
        if key not in self._entries:
            raise InputError(f"RunOptions does not have configuration with key: {key}")
        return self._entries[key]


def check_run(options: RunOptions | None) -> None:
    """Raises Error if the run is to be terminated, InputError if `options` are not RunOptions."""
    if options is not None and not isinstance(options, RunOptions):
        raise InputError(f"options of a run are RunOptions, got {type(options).__name__}")
    if options is not None and options.terminate:
        raise Error("Exiting due to terminate flag being set to true.")


def get_available_providers() -> list[str]:
    return providers.available()


def get_all_providers() -> list[str]:
    """Returns the providers of Pelton's targets, best first."""
    return [providers.CUDA, providers.CPU]


def get_device() -> str:
    return "GPU" if providers.CUDA in providers.available() else "CPU"


def get_version_string() -> str:
    return __version__


def get_build_info() -> str:
    return f"Pelton Build Info: version={__version__}, interface=ONNX Runtime's"


def check_severity(severity: int, what: str) -> None:
    if severity not in SEVERITIES:
        raise InputError(f"{what} a number from 0 (verbose) to 4 (fatal), got {severity!r}")


def set_default_logger_severity(severity: int) -> None:
    """Sets the level of Pelton's loggers in this process: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal."""
    check_severity(severity, "a log severity is")
    logging.getLogger("pelton").setLevel(SEVERITIES[severity])


class _Callback(logging.Handler):
    """Passes log records to a function; `logging` reports its errors instead of raising them in the caller."""

    def __init__(self, callback: Callable[[int, str, str, str, str], None], severity: int):
        super().__init__(SEVERITIES[severity])
        self.callback = callback

    def emit(self, record: logging.LogRecord) -> None:
        try:
            severity = max((s for s, level in SEVERITIES.items() if level <= record.levelno), default=0)
            self.callback(
                severity, record.name, "", f"{record.filename}:{record.lineno} {record.funcName}", record.getMessage()
            )
        except Exception:  # any exception of the caller's function
            self.handleError(record)


def set_default_logger_callback(callback: Callable[[int, str, str, str, str], None] | None, severity: int = 2) -> None:
    """Sends log messages of at least `severity` to `callback(severity, category, logid, code_location, message)`
    instead of the console; None restores the console."""
    if callback is not None and not callable(callback):
        raise InputError(f"a callback of the log is a function or None, got {type(callback).__name__}")
    if callback is not None:
        set_default_logger_severity(severity)
    logger = logging.getLogger("pelton")
    for handler in [h for h in logger.handlers if isinstance(h, _Callback)]:
        logger.removeHandler(handler)
    if callback is not None:
        logger.addHandler(_Callback(callback, severity))
    logger.propagate = callback is None


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accepted and ignored."""


def set_seed(seed: int) -> None:
    """Accepted and ignored: random operators take their seed from the model."""


def enable_telemetry_events() -> None:
    """Accepted and ignored: Pelton sends no telemetry."""


def disable_telemetry_events() -> None:
    """Accepted and ignored: Pelton sends no telemetry."""
