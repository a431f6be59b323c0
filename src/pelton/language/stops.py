"""Texts that end an answer: they may lie across pieces, and what may become one is held back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class StopFilter:
    """Passes text on until one of several stops begins.

    special: the special tokens that a stop may have, with their texts, which are found and not passed on.
    stopped: true behind a stop. The stop itself and all behind it are left out.
    """

    def __init__(self, stops: Sequence[str], special: Mapping[int, str] | None = None):
        self.stops = tuple(stops)
        self.special = {i: text for i, text in (special or {}).items() if any(text in stop for stop in stops)}
        self.stopped = False
        self._held, self._hidden = "", ""  # text that may begin a stop, and "1" for each character not to pass on

    def push(self, text: str, token: int = -1) -> str:
        """Adds a token, and the text that it completes; returns what is certain to stand in front of any stop."""
        hidden = self.special.get(token, "")
        if not self.stops or not text + hidden:
            return text
        marks = self._hidden + "0" * len(text) + "1" * len(hidden)
        text, self._held, self._hidden = self._held + text + hidden, "", ""
        places = [at for stop in self.stops if (at := text.find(stop)) >= 0]
        if places:
            self.stopped = True
            return _shown(text[: min(places)], marks)
        certain = len(text) - max(_overlap(text, stop) for stop in self.stops)
        self._held, self._hidden = text[certain:], marks[certain:]
        return _shown(text[:certain], marks)

    def finish(self) -> str:
        """Returns what was held back, as the text has ended."""
        held, marks, self._held, self._hidden = self._held, self._hidden, "", ""
        return _shown(held, marks)


def _shown(text: str, marks: str) -> str:
    return "".join(c for c, mark in zip(text, marks) if mark == "0") if "1" in marks else text


def _overlap(text: str, stop: str) -> int:
    """Returns how many characters at the end of a text are the beginning of a stop."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
