"""Texts that end an answer: they may lie across pieces, and what may become one is held back."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Passes text on until one of several stops begins.

    stopped: true behind a stop. The stop itself and all behind it are left out.
    """

    def __init__(self, stops: Sequence[str]):
        self.stops = tuple(stops)
        self.stopped = False
        self._held = ""

    def push(self, text: str) -> str:
        """Adds text; returns what is certain to stand in front of any stop."""
        if not self.stops or not text:
            return text
        text, self._held = self._held + text, ""
        places = [at for stop in self.stops if (at := text.find(stop)) >= 0]
        if places:
            self.stopped = True
            return text[: min(places)]
        held = max(_overlap(text, stop) for stop in self.stops)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """Returns what was held back, as the text has ended."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Returns how many characters at the end of a text are the beginning of a stop."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
