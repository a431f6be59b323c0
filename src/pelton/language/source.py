"""A language model before it is built: its files, its numbers, and how to make its network and its tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from pelton.errors import ModelAbsent, ModelError

from .description import DecoderPorts, Description
from .speech import SpeechRules
from .tokens import Tokens

if TYPE_CHECKING:
    from pelton.network import Network


MOST_LAYERS = 10_000


@dataclass(frozen=True)
class DecoderSizes:
    """context: the most tokens of a sequence. prompt: those of a run that the engine is tuned for. sources: the most
    rows of an encoder. round_rows: products with weights of few bits may round rows to 8 bits."""

    context: int
    prompt: int
    sources: int = 0
    round_rows: bool = False


@dataclass(frozen=True)
class EncoderPart:
    """The encoder beside a decoder.

    network: makes its network, whose outputs are keys and values for the decoder. start: the token that answers begin
    with. end: the token behind each text, None without one. usual: tokens of a text and of an answer, unless the caller
    says otherwise. speech: of an encoder of sound, None for texts. rows: that such an encoder makes.
    """

    network: Callable[[DecoderSizes], Network]
    start: int
    usual: int
    end: int | None = None
    speech: SpeechRules | None = None
    rows: int = 0


@dataclass(frozen=True)
class LanguageSource:
    """A model behind a door.

    kind: of the door. files: all that the network depends on. network: makes the network for these sizes, with its
    ports, and notes on what it stores in another form. head: makes what a later start needs instead of reading the
    file, in types of JSON; None if it reads the files again. encoder: of a decoder with an encoder.
    """

    kind: str
    files: tuple[Path, ...]
    description: Description
    tokens: Callable[[], Tokens]
    network: Callable[[DecoderSizes], tuple[Network, DecoderPorts, Sequence[str]]]
    head: Callable[[], dict[str, Any]] | None = None
    encoder: EncoderPart | None = None


@overload
def read_json(path: Path) -> dict[str, Any]: ...
@overload
def read_json(path: Path, kind: type[list[Any]]) -> list[Any]: ...


def read_json(path: Path, kind: type = dict) -> Any:
    """Reads a JSON object, or a list if that is the kind. Raises ModelError for a missing file, and one of no such."""
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelAbsent(f"{path.parent} has no {path.name}", path) from None
    except (OSError, ValueError, RecursionError) as e:
        raise ModelError(f"{path} cannot be read as JSON: {e}") from None
    if not isinstance(data, kind):
        raise ModelError(f"{path} must hold a JSON {'object' if kind is dict else 'list'}")
    return data


class LanguageSettings:
    """A JSON object of a model, whose values are checked as they are read. seen: the names that were read."""

    def __init__(self, values: dict[str, Any], path: Path):
        self.values, self.path, self.seen = values, path, set[str]()

    def value(self, name: str) -> Any:
        """Returns a value of any type, None if it is absent."""
        self.seen.add(name)
        return self.values.get(name)

    def whole(self, name: str, default: int | None = None, most: int = (1 << 31) - 1) -> int:
        """Returns an integer from 1 to `most`. Raises ModelError, naming the file, for others."""
        value = self.value(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ModelError(f"{self.path}: {name} must be an integer from 1 to {most}, got {_shown(value)}")
        return value

    def layers(self, name: str = "num_hidden_layers") -> int:
        """Returns a number of layers; ModelError for one that no model has."""
        return self.whole(name, most=MOST_LAYERS)

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a finite number; ModelError for others."""
        value = self.value(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < float("inf"):
            raise ModelError(f"{self.path}: {name} must be a number, got {_shown(value)}")
        return float(value)

    def numbers(self, name: str, count: int) -> np.ndarray:
        """Returns a list of so many positive numbers; ModelError for others."""
        values = self.value(name)
        if not isinstance(values, list) or len(values) != count:
            raise ModelError(f"{self.path}: {name} must be a list of {count} numbers, got {_shown(values)}")
        if not all(isinstance(v, (int, float)) and 0 < v < float("inf") for v in values):
            raise ModelError(f"{self.path}: {name} must be a list of positive numbers, got {_shown(values)}")
        return np.array(values, np.float64)

    def flag(self, name: str, default: bool = False) -> bool:
        """Returns a truth value; ModelError for others."""
        value = self.value(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise ModelError(f"{self.path}: {name} must be true or false, got {_shown(value)}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Returns a text; ModelError for others."""
        value = self.value(name)
        value = default if value is None else value
        if not isinstance(value, str):
            raise ModelError(f"{self.path}: {name} must be a text, got {_shown(value)}")
        return value

    def part(self, name: str) -> LanguageSettings:
        """Returns an object within; ModelError if there is none."""
        value = self.value(name)
        if not isinstance(value, dict):
            raise ModelError(f"{self.path}: {name} must be an object, got {_shown(value)}")
        return LanguageSettings(value, self.path)

    def unknown(self, harmless: Container[str] = ()) -> list[str]:
        """Returns the names of values that were not read, and mean something."""
        unread = (n for n in self.values if n not in self.seen and n not in harmless)
        return [n for n in unread if self.values[n] not in (None, False, "", [], {})]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
