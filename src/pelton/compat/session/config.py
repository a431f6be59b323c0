"""Config entries of sessions: parses the text of each into a build option."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pelton.system.cache import parse_size
from pelton.errors import InputError
from pelton.options import HINTS, Options

ON_MISS = ("build", "fast", "error")
RETUNE = 10.0


@dataclass(frozen=True)
class SessionConfig:
    """Options of builds and sessions. `on_miss`: action for a model without a cached engine: "build" one, build a
    "fast" one without timing kernels, or raise an "error". `progress`: True if builds show a progress bar; None: in a
    terminal or a notebook. `retune`: seconds of runs far from an engine's sizes before the session tunes again in the
    background; 0: never."""

    options: Options
    on_miss: str = "build"
    progress: bool | None = None
    retune: float = RETUNE


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise ValueError(text)
    return seconds


def _flag(text: str) -> bool:
    if text.lower() not in ("0", "1", "false", "true"):
        raise ValueError(text)
    return text.lower() in ("1", "true")


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return read


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _pairs(separator: str) -> Callable[[str], dict[str, str]]:
    def read(text: str) -> dict[str, str]:
        pairs = {}
        for pair in text.split(separator):
            name, equals, value = pair.strip().rpartition("=")
            if not (name and equals and value) or name in pairs:
                raise ValueError(text)
            pairs[name] = value
        return pairs

    return read


def _optimum(text: str) -> dict[str, tuple[int, ...]]:
    return {name: tuple(map(int, sizes.split("x"))) for name, sizes in _pairs(",")(text).items()}


Reader = tuple[Callable[[str], Any], str]

# config entry pelton.NAME, else environment variable PELTON_NAME → (parser, description of valid text)
READERS: Mapping[str, Reader] = {
    "level": (int, "an integer"),
    "budget": (float, "a number of seconds"),
    "hint": (_one_of(*HINTS), f"one of {', '.join(HINTS)}"),
    "strict": (_flag, "0 or 1"),
    "threads": (int, "an integer"),
    "memory": (int, "a number of bytes"),
    "max_packed": (float, "a number such as 1.1"),
    "max_iterations": (int, "an integer"),
    "check": (_flag, "0 or 1"),
    "target": (str, "text"),
    "precision": (str, "text"),
    "calibration": (str, "text"),
    "save_calibration": (str, "text"),
    "precision_of": (_pairs(","), "patterns of layers with their precision, such as head.*=fp32"),
    "max_drop": (float, "a number such as 0.01"),
    "weight_equalization": (_flag, "0 or 1"),
    "bias_correction": (_flag, "0 or 1"),
    "cache_dir": (str, "text"),
    "cache_limit": (parse_size, "a size such as 500MB or 4GB"),
    "timing_cache": (str, "text"),
    "save_tactics": (str, "text"),
    "load_tactics": (str, "text"),
    "cc": (str, "text"),
    "image": (str, "text"),
    "shapes": (_pairs(","), "inputs with their sizes, such as x=1x3x224x224,y=1..8..32x5"),
    "optimum": (_optimum, "inputs with sizes to tune for, such as x=8x128"),
    "values": (_pairs(";"), "inputs with what they always are, such as axes=1,2;k=5"),
    "weights": (str, "text"),
    "detections": (str, "text"),
    "outputs": (_words, "names with commas between them"),
    "accept_conversion": (_flag, "0 or 1"),
    "labels": (_words, "words with commas between them"),
    "progress": (_flag, "0 or 1"),
    "on_miss": (_one_of(*ON_MISS), f"one of {', '.join(ON_MISS)}"),
    "retune": (_seconds, "a number of seconds, 0 for never"),
}

RENAMED = {"optimum": "usual"}  # entry → its former name, which works with a DeprecationWarning


def check_name(key: str) -> None:
    """Raises InputError for an unknown key of the form pelton.NAME."""
    kind, _, name = key.partition(".")
    if kind == "pelton" and name not in (*READERS, *RENAMED.values()):
        raise InputError(
            f"there is no config entry {key!r}; there are {', '.join(f'pelton.{name}' for name in READERS)}"
        )


def read(entries: Mapping[str, str], environment: Mapping[str, str], **more: Any) -> SessionConfig:
    """Parses config entries, and environment variables for missing ones; options in `more` override both. Raises
    InputError, naming the entry, for invalid text."""
    settings: dict[str, Any] = {}
    for name, (reader, expected) in READERS.items():
        key, variable = f"pelton.{name}", f"PELTON_{name.upper()}"
        text = entries.get(key, environment.get(variable))
        if text is None and name in RENAMED:
            old_key, old_variable = f"pelton.{RENAMED[name]}", f"PELTON_{RENAMED[name].upper()}"
            text = entries.get(old_key, environment.get(old_variable))
            if text is not None:
                message = f"{old_key} and {old_variable} are deprecated: write {key} or {variable} instead"
                warnings.warn(message, DeprecationWarning, stacklevel=2)
                key, variable = old_key, old_variable
        if text:
            try:
                settings[name] = reader(text)
            except ValueError:
                raise InputError(f"{key if key in entries else variable} must be {expected}, got {text!r}") from None
    session = {name: settings.pop(name) for name in ("on_miss", "progress", "retune") if name in settings}
    return SessionConfig(Options(**{**settings, **more}), **session)
