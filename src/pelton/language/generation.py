"""A request for an answer, and the answer as it arrives."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pelton.errors import InputError

from .sampling import Sampling

MOST_STOPS, MOST_LOGPROBS = 64, 100


@dataclass(frozen=True)
class GenerationRequest:
    """What to generate.

    prompt: a text, completed as it is, or tokens. special: puts the model's first token in front of a text.
    max_tokens: default, as many as fit behind the prompt. stop: texts that end the answer, which does not have them;
    they may have special tokens. stop_tokens: tokens that end it, beside the model's own. ignore_eos: the model's own
    do not end it.
    schema: what the text must match: a JSON schema as a dictionary, or a text that begins with "regex:" or "lark:".
    logprobs: so many of the most likely tokens with each token, 0 to 100; None: no log probabilities.
    suppress: tokens that the answer has none of; suppress_first: that it does not begin with.
    spectrogram: f32 [mels, frames], what a model of speech hears; the prompt is then the tokens before the answer.
    Beside other encoders, the prompt is what the encoder reads, and nothing precedes the answer but its first token.
    """

    prompt: str | tuple[int, ...]
    max_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    ignore_eos: bool = False
    schema: Mapping[str, Any] | str | None = None
    logprobs: int | None = None
    special: bool = True
    suppress: tuple[int, ...] = ()
    suppress_first: tuple[int, ...] = ()
    spectrogram: np.ndarray | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, (str, tuple)):
            raise InputError(f"a prompt is a text or a tuple of tokens, got {type(self.prompt).__name__}")
        if self.max_tokens is not None:
            _check_count("max_tokens", self.max_tokens, 1, None)
        if self.logprobs is not None:
            _check_count("logprobs", self.logprobs, 0, MOST_LOGPROBS)
        stops = self.stop
        if not isinstance(stops, tuple) or len(stops) > MOST_STOPS or not all(isinstance(s, str) and s for s in stops):
            raise InputError(f"stop is a tuple of at most {MOST_STOPS} texts that are not empty, got {stops!r:.200}")
        for name in ("stop_tokens", "suppress", "suppress_first"):
            ids = getattr(self, name)
            if not isinstance(ids, tuple) or any(isinstance(t, bool) or not isinstance(t, int) for t in ids):
                raise InputError(f"{name} is a tuple of tokens, got {ids!r:.200}")
        if not isinstance(self.schema, (str, Mapping, type(None))):
            raise InputError(f"schema is a dictionary or a text, got {self.schema!r:.200}")


def _check_count(name: str, value: Any, low: int, high: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low or high is not None and value > high:
        bounds = f"from {low} on" if high is None else f"from {low} to {high}"
        raise InputError(f"{name} is an integer {bounds}, got {value!r}")


@dataclass(frozen=True)
class TokenLogprob:
    """A token with its log probability, and the most likely tokens in its place: (token, log probability)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class AnswerPiece:
    """Part of an answer. tokens: those that its text ends; logprobs: of these, if the request asked for them."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Usage:
    """Tokens of an answer. cached: those of the prompt whose keys and values were there. completion: new ones.

    first, seconds: from the request to the first token, and to the end. drafted, accepted: tokens that speculation
    proposed, and those of them that were right.
    """

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    first: float = 0.0
    seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0


class Answer:
    """An answer as it arrives: iterate over its pieces, or wait for its `text`. Any thread may use it, and a coroutine
    may iterate over it with `async for`.

    finish_reason: "stop" (the model's end, a stop, or the end of what a schema describes), "length", "cancelled",
    "error"; None while it runs. Iterating and `text` raise the error of an answer that failed.
    """

    def __init__(self) -> None:
        self._ready = threading.Condition()
        self._pieces: list[AnswerPiece] = []
        self._listeners: list[Callable[[], None]] = []
        self._error: BaseException | None = None
        self._cancelled = False
        self.finish_reason: str | None = None
        self.usage = Usage()

    # --- for readers

    def __iter__(self) -> Iterator[AnswerPiece]:
        at = 0
        while True:
            with self._ready:
                while at == len(self._pieces) and self.finish_reason is None:
                    self._ready.wait()
                new = self._pieces[at:]
            if not new:
                self._raise()
                return
            at += len(new)
            yield from new

    async def __aiter__(self) -> AsyncIterator[AnswerPiece]:
        import asyncio  # takes as long to import as all of this room

        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # the loop is closed
                pass

        with self._ready:
            self._listeners.append(wake)
        try:
            at = 0
            while True:
                event.clear()
                with self._ready:
                    new, over = self._pieces[at:], self.finish_reason is not None
                for piece in new:
                    yield piece
                at += len(new)
                if not new and over:
                    self._raise()
                    return
                if not new:
                    await event.wait()
        finally:
            with self._ready:
                self._listeners.remove(wake)

    def when_over(self, listener: Callable[[Answer], None]) -> None:
        """Calls a function once the answer is over: in the thread of the model, or at once if it is already."""

        def wake() -> None:
            if self.finish_reason is not None:
                listener(self)

        with self._ready:
            if self.finish_reason is None:
                self._listeners.append(wake)
                return
        listener(self)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for the end; returns False if it did not come within `timeout` seconds."""
        with self._ready:
            return self._ready.wait_for(lambda: self.finish_reason is not None, timeout)

    @property
    def text(self) -> str:
        """The whole text; waits for the end."""
        return "".join(piece.text for piece in self)

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens, that at the end included; waits for the end."""
        return tuple(t for piece in self for t in piece.tokens)

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """Those of all tokens; waits for the end."""
        return tuple(t for piece in self for t in piece.logprobs)

    def cancel(self) -> None:
        """Ends the answer before the next token."""
        self._cancelled = True

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    # --- for the scheduler

    def put(self, piece: AnswerPiece) -> None:
        """Adds a piece."""
        with self._ready:
            self._pieces.append(piece)
            self._wake()

    def close(self, reason: str, usage: Usage, error: BaseException | None = None) -> None:
        """Ends the answer."""
        with self._ready:
            self.usage, self._error, self.finish_reason = usage, error, reason
            self._wake()

    def _wake(self) -> None:
        self._ready.notify_all()
        for listener in self._listeners:
            listener()
