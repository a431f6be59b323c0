"""Special tokens that stand in messages: there they are characters, as whoever wrote a message is a stranger.

A chat template makes one text of its own special tokens and of the messages. Before, each special token in a message
gives way to a mark; behind the template, the text falls into parts, and those of marks are encoded literally.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pelton.errors import InputError

from .tokens import Tokens

Part = tuple[str, bool]  # a text, and whether its special tokens are characters
PRIVATE = (*range(0xE000, 0xF900), *range(0xF0000, 0xF2000))  # characters without a meaning, for marks


class SpecialTexts:
    """The texts of a model's special tokens, for any number of conversations."""

    def __init__(self, tokens: Tokens):
        texts = {t for id in tokens.special if (t := tokens.token(id))}
        longest_first = sorted(texts, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if texts else None

    def marked(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], Marks]:
        """Returns messages with marks for the special tokens in all of their texts but roles, and these marks."""
        pattern = self._pattern
        if pattern is None or not any(pattern.search(t) for m in messages for t in _texts(m)):
            return [*messages], Marks("", ())
        used = {c for m in messages for t in _texts(m) for c in t}
        mark = next((chr(c) for c in PRIVATE if chr(c) not in used), None)
        if mark is None:
            raise InputError(
                "these messages have special tokens, and every character that could mark them; leave some out"
            )
        found: list[str] = []

        def take(match: re.Match[str]) -> str:
            found.append(match[0])
            return f"{mark}{len(found) - 1}{mark}"

        def change(text: str) -> str:
            return pattern.sub(take, text)

        return [_changed(m, change) for m in messages], Marks(mark, tuple(found))


class Marks:
    """Marks of one conversation. texts: the special token for which each stands, by its number."""

    def __init__(self, mark: str, texts: tuple[str, ...]):
        self.texts = texts
        self._pattern = re.compile(f"{mark}([0-9]{{1,9}}){mark}") if texts else None

    def parts(self, prompt: str) -> list[Part]:
        """Returns the parts of what a template made of marked messages."""
        if self._pattern is None:
            return [(prompt, False)]
        pieces = self._pattern.split(prompt)  # a text, a number, a text, …
        texts = [self.texts[int(p)] if i % 2 and int(p) < len(self.texts) else p for i, p in enumerate(pieces)]
        return [(text, bool(i % 2)) for i, text in enumerate(texts) if text]


def _texts(value: Any, name: str = "") -> Iterable[str]:
    if isinstance(value, str):
        yield from () if name == "role" else (value,)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _texts(part, key)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)


def _changed(value: Any, change: Callable[[str], str], name: str = "") -> Any:
    if isinstance(value, str):
        return value if name == "role" else change(value)
    if isinstance(value, Mapping):
        return {key: _changed(part, change, key) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_changed(part, change) for part in value]
    return value
