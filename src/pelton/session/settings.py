"""Options of sessions and runs, and the functions of the module, under the names that ONNX Runtime has for them."""
from __future__ import annotations

import enum
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pelton.cache import size
from pelton.errors import InputError
from pelton.options import Options

log = logging.getLogger("pelton.session")

PROVIDERS = ("CPUExecutionProvider",)
SEVERITIES = {0: logging.DEBUG, 1: logging.INFO, 2: logging.WARNING, 3: logging.ERROR, 4: logging.CRITICAL}


class GraphOptimizationLevel(enum.IntEnum):
    """Accepted and without effect: an engine is always optimized; how long its kernels are searched for is `pelton.level`."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Accepted and without effect: independent steps of an engine always run side by side."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


def _flag(text: str) -> bool:
    if text.lower() not in ("0", "1", "false", "true"):
        raise ValueError(text)
    return text.lower() in ("1", "true")


# what a session's engine is built with: config entry pelton.NAME, else environment variable PELTON_NAME → how its text is read
ENTRIES: Mapping[str, Callable[[str], Any]] = {"level": int, "budget": float, "strict": _flag, "threads": int, "cache_dir": str, "cache_limit": size}


@dataclass(slots=True, eq=False)
class SessionOptions:
    """What ONNX Runtime's class of that name takes. `intra_op_num_threads` is the number of threads, sizes given by name are fixed, and config entries
    `pelton.level`, `.budget`, `.strict`, `.threads`, `.cache_dir` and `.cache_limit` steer the build; what has no meaning here is accepted, with a warning if
    somebody may wait for its effect."""

    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    execution_mode: int = ExecutionMode.ORT_SEQUENTIAL
    execution_order: int = 0
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

    def add_session_config_entry(self, key: str, value: str) -> None:
        if key.startswith("pelton.") and key.partition(".")[2] not in ENTRIES:
            raise InputError(f"there is no config entry {key!r}; there are {', '.join(f'pelton.{name}' for name in ENTRIES)}")
        self._entries[key] = str(value)

    def get_session_config_entry(self, key: str) -> str:
        if key not in self._entries:
            raise InputError(f"no config entry {key!r} has been added to these session options")
        return self._entries[key]

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """The size of every dimension that the model calls so."""
        self._sizes[name] = int(size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        log.warning("sizes by denotation (%r) are not looked at; add_free_dimension_override_by_name fixes them by their name", denotation)

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        chosen([name])

    def has_providers(self) -> bool:
        return False

    def register_custom_ops_library(self, path: str) -> None:
        raise InputError(f"operators in ONNX Runtime's binary form ({os.path.basename(path)}) cannot be used here; "
                         "put their meaning into the model as functions")

    def add_initializer(self, name: str, value: Any) -> None:
        raise InputError(f"constants cannot be replaced in a session ({name!r}); put the value into the model")

    def add_external_initializers(self, names: Sequence[str], values: Sequence[Any]) -> None:
        raise InputError(f"constants cannot be replaced in a session ({', '.join(names)}); put the values into the model")

    def build_options(self, environment: Mapping[str, str]) -> Options:
        """What engines of such sessions are built with. InputError for what cannot be read."""
        found: dict[str, Any] = {}
        for name, read in ENTRIES.items():
            key, variable = f"pelton.{name}", f"PELTON_{name.upper()}"
            text = self._entries.get(key, environment.get(variable))
            if text:
                try:
                    found[name] = read(text)
                except ValueError:
                    raise InputError(f"{key if key in self._entries else variable} should be a {_KINDS[read]}, got {text!r}") from None
        if self.intra_op_num_threads:
            found["threads"] = int(self.intra_op_num_threads)
        return Options(**found)

    @property
    def sizes(self) -> Mapping[str, int]:
        """The sizes given by name."""
        return self._sizes

    def tell(self) -> None:
        """Warns of what was asked for and will not happen, and listens to the level of logging."""
        if self.log_severity_level in SEVERITIES:
            set_default_logger_severity(self.log_severity_level)
        if self.enable_profiling:
            log.warning("enable_profiling has no effect: `pelton bench MODEL --layers` shows what every step of an engine takes")
        if self.optimized_model_filepath:
            log.warning("optimized_model_filepath has no effect, nothing is written to %s: `pelton build` makes engine files", self.optimized_model_filepath)


_KINDS = {int: "whole number", float: "number of seconds", _flag: "0 or 1", str: "text", size: "size such as 500MB or 4GB"}


@dataclass(slots=True, eq=False)
class RunOptions:
    """Accepted and without effect, but for its own attributes."""

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False
    _entries: dict[str, str] = field(default_factory=dict, init=False)

    def add_run_config_entry(self, key: str, value: str) -> None:
        self._entries[key] = str(value)

    def get_run_config_entry(self, key: str) -> str:
        if key not in self._entries:
            raise InputError(f"no config entry {key!r} has been added to these run options")
        return self._entries[key]


def chosen(providers: Sequence[Any] | None) -> None:
    """Warns of providers that there are not: engines run on the CPU, whatever was asked for."""
    names = [p if isinstance(p, str) else p[0] for p in providers or ()]
    missing = [name for name in names if name not in PROVIDERS]
    if missing:
        log.warning("there is no %s here: the session runs on %s", " or ".join(missing), PROVIDERS[0])


def get_available_providers() -> list[str]:
    return [*PROVIDERS]


def get_all_providers() -> list[str]:
    return [*PROVIDERS]


def get_device() -> str:
    return "CPU"


def set_default_logger_severity(severity: int) -> None:
    """0 verbose, 1 info, 2 warning, 3 error, 4 fatal: what Pelton's loggers let through, in the whole process."""
    if severity not in SEVERITIES:
        raise InputError(f"a log severity is a number from 0 (verbose) to 4 (fatal), got {severity!r}")
    logging.getLogger("pelton").setLevel(SEVERITIES[severity])


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accepted and without effect."""


def set_seed(seed: int) -> None:
    """Accepted and without effect: what is random in a model takes its seed from the model."""


def enable_telemetry_events() -> None:
    """Accepted and without effect: nothing is ever sent anywhere."""


def disable_telemetry_events() -> None:
    """Accepted and without effect: nothing is ever sent anywhere."""
