"""A language model before it is built: its files, its numbers, and how to make its network and its tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pelton.errors import ModelAbsent, ModelError
from pelton.network import Network

from .description import DecoderPorts, Description
from .tokens import Tokens


@dataclass(frozen=True)
class DecoderSizes:
    """context: the most tokens of a sequence. prompt: those of a run that the engine is tuned for."""

    context: int
    prompt: int


@dataclass(frozen=True)
class LanguageSource:
    """A model behind a door.

    kind: of the door. files: all that the network depends on. network: makes the network for these sizes, with its
    ports, and notes on what it stores in another form.
    """

    kind: str
    files: tuple[Path, ...]
    description: Description
    tokens: Callable[[], Tokens]
    network: Callable[[DecoderSizes], tuple[Network, DecoderPorts, Sequence[str]]]


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object. Raises ModelError for a file that is missing or holds none."""
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelAbsent(f"{path.parent} has no {path.name}", path) from None
    except (OSError, ValueError, RecursionError) as e:
        raise ModelError(f"{path} cannot be read as JSON: {e}") from None
    if not isinstance(data, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return data


class LanguageSettings:
    """A JSON object of a model, whose values are checked as they are read."""

    def __init__(self, values: dict[str, Any], path: Path):
        self.values, self.path = values, path

    def whole(self, name: str, default: int | None = None) -> int:
        """Returns an integer from 1 on. Raises ModelError, naming the file, for others."""
        value = self.values.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 31:
            raise ModelError(f"{self.path}: {name} must be a number from 1 on, got {value!r}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a number; ModelError for others."""
        value = self.values.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ModelError(f"{self.path}: {name} must be a number, got {value!r}")
        return float(value)

    def text(self, name: str, default: str | None = None) -> str:
        """Returns a text; ModelError for others."""
        value = self.values.get(name, default)
        if not isinstance(value, str):
            raise ModelError(f"{self.path}: {name} must be a text, got {value!r}")
        return value

    def part(self, name: str) -> LanguageSettings:
        """Returns an object within; ModelError if there is none."""
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise ModelError(f"{self.path}: {name} must be an object, got {value!r}")
        return LanguageSettings(value, self.path)
