"""Members of a request, each read once with its type and range; what is left over is unknown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..requests import shown
from .faults import OpenAiError


def parsed(body: bytes) -> dict[str, Any]:
    """Parses the body of a request. Raises OpenAiError for what is no object of JSON."""
    try:
        content = json.loads(body.decode(), parse_constant=_no_number)
        if b"\\ud" in body.lower():  # half a character, perhaps
            json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as e:
        raise OpenAiError(f"the body is no JSON: {str(e)[:200]}") from None
    if not isinstance(content, dict):
        raise OpenAiError(f"the body is an object of JSON, got {shown(content)}")
    return content


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def wrong_type(name: str, expected: str, value: Any) -> OpenAiError:
    """Returns the error for a value that is not as expected."""
    return OpenAiError(f"Invalid value for '{name}': expected {expected}, got {shown(value)}", name, "invalid_value")


class Fields:
    """The members of an object. where: in front of names in messages, such as "stream_options.". null is absent.

    All methods raise OpenAiError for a value of another type, or out of range.
    """

    def __init__(self, content: Mapping[str, Any], where: str = ""):
        self._content, self._where = dict(content), where

    def raw(self, name: str) -> Any:
        """Returns a member as it is, None if it is absent."""
        return self._content.pop(name, None)

    def name(self, name: str) -> str:
        return self._where + name

    def text(self, name: str, default: str | None = None) -> str:
        """Returns a text; required without a default."""
        value = self.raw(name)
        if value is None and default is None:
            raise OpenAiError(
                f"Missing required parameter: '{self.name(name)}'", self.name(name), "missing_required_parameter"
            )
        if value is None:
            return default or ""
        if not isinstance(value, str):
            raise wrong_type(self.name(name), "a text", value)
        return value

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise wrong_type(self.name(name), "true or false", value)
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise wrong_type(self.name(name), f"a number from {low:g} to {high:g}", value)
        return float(value)

    def integer(self, name: str, low: int, high: int) -> int | None:
        value = self.raw(name)
        if value is None:
            return None
        if type(value) is not int or not low <= value <= high:
            raise wrong_type(self.name(name), f"an integer from {low} to {high}", value)
        return value

    def object(self, name: str) -> Fields | None:
        """Returns the members of an object."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise wrong_type(self.name(name), "an object", value)
        return Fields(value, f"{self.name(name)}.")

    def choice(self, name: str, values: Sequence[Any], default: Any) -> Any:
        """Returns one of several values."""
        value = self.raw(name)
        if value is None:
            return default
        if not any(type(value) is type(v) and value == v for v in values):
            raise wrong_type(self.name(name), " or ".join(repr(v) for v in values), value)
        return value

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        """Returns a text, or a list of up to `most` of them; none may be empty."""
        value = self.raw(name)
        if value is None:
            return ()
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or len(texts) > most or not all(isinstance(t, str) and t for t in texts):
            raise wrong_type(self.name(name), f"a text, or a list of at most {most} texts that are not empty", value)
        return tuple(texts)

    def token_numbers(self, name: str, most: int) -> tuple[int, ...]:
        """Returns a list of up to `most` tokens."""
        value = self.raw(name)
        if value is None:
            return ()
        if not isinstance(value, list) or len(value) > most or not all(type(t) is int and t >= 0 for t in value):
            raise wrong_type(self.name(name), f"a list of at most {most} tokens", value)
        return tuple(value)

    def bias(self, name: str, most: int, vocabulary: int) -> tuple[tuple[int, float], ...]:
        """Returns pairs of a token and what its logit gets added, from an object whose names are tokens."""
        value = self.raw(name)
        if value is None:
            return ()
        if not isinstance(value, dict) or len(value) > most:
            raise wrong_type(self.name(name), f"an object of at most {most} tokens", value)
        pairs = {}
        for key, number in value.items():
            if not key.isascii() or not key.isdigit() or len(key) > 9 or int(key) >= vocabulary:
                raise wrong_type(self.name(name), f"names that are tokens, 0 to {vocabulary - 1}", key)
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not -100 <= number <= 100:
                raise wrong_type(f"{self.name(name)}.{key}", "a number from -100 to 100", number)
            pairs[int(key)] = float(number)
        return tuple(pairs.items())

    def refuse(self, name: str, why: str, harmless: Sequence[Any] = ()) -> None:
        """Raises OpenAiError if a member that is not supported is there, unless its value asks for nothing."""
        value = self.raw(name)
        if value is not None and not any(type(value) is type(v) and value == v for v in harmless):
            raise OpenAiError(
                f"Unsupported parameter: '{self.name(name)}': {why}", self.name(name), "unsupported_parameter"
            )

    def ignore(self, *names: str) -> None:
        """Drops members that have no effect on answers."""
        for name in names:
            self._content.pop(name, None)

    def close(self) -> None:
        """Raises OpenAiError for a member that has not been read."""
        if self._content:
            name = next(iter(self._content))[:80]
            raise OpenAiError(
                f"Unrecognized request argument supplied: {self.name(name)}", self.name(name), "unknown_parameter"
            )
