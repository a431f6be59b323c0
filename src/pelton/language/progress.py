"""One request as it runs: its tokens become text, and it finds out when the answer is over."""

from __future__ import annotations

import time

import numpy as np

from pelton.errors import InputError

from .generation import Answer, GenerationRequest, AnswerPiece, TokenLogprob, Usage
from .grammar import Grammar
from .lookup import TokenLookup
from .places import SequencePlace
from .sampling import Sampler, log_probabilities
from .source_encoder import EncoderInput
from .stops import StopFilter
from .tokens import Tokens

DRAFT = 3  # tokens of a draft


class Progress:
    """A request that waits or runs. prompt: its tokens. pending: the last token, which no run has seen yet. reach: the
    tokens of the next draft, more than DRAFT once all of one were right. source: what an encoder reads, if there is
    one."""

    def __init__(
        self,
        request: GenerationRequest,
        prompt: list[int],
        tokens: Tokens,
        vocabulary: int,
        grammar: Grammar | None,
        source: EncoderInput | None = None,
    ):
        self.request, self.prompt, self.grammar, self.source = request, prompt, grammar, source
        self.answer = Answer()
        self.place: SequencePlace | None = None
        self.pending = -1
        self.output: list[int] = []
        self.drafted = self.accepted = self.cached = 0
        special = {i: text for i in tokens.special if request.stop and (text := tokens.token(i))}
        whole = {i for i, text in special.items() if text in request.stop}
        self._ends = frozenset(() if request.ignore_eos else tokens.eos) | {*request.stop_tokens} | whole
        self._sampler = Sampler(request.sampling, prompt, vocabulary)
        self._allowed = _allowed(request.suppress, vocabulary)
        self._allowed_first = _allowed((*request.suppress, *request.suppress_first), vocabulary)
        self._stream, self._stops = tokens.stream(), StopFilter(request.stop, special)
        self._held: list[int] = []  # tokens whose text is not out
        self._logprobs: list[TokenLogprob] = []
        self.reach = DRAFT
        self._lookup: TokenLookup | None = None
        self._began, self._first = time.monotonic(), 0.0

    def choose(self, logits: np.ndarray) -> int:
        """Returns the next token behind these logits, [vocabulary], and remembers its log probability."""
        allowed = self._allowed if self.output else self._allowed_first
        if self.grammar is not None:
            fits = self.grammar.allowed(len(logits), self._ends)
            allowed = fits if allowed is None else fits & allowed
        token = self._sampler.choose(logits, allowed)
        if self.request.logprobs is not None:
            values, best = log_probabilities(logits, [token], self.request.logprobs)
            self._logprobs.append(TokenLogprob(token, values[0], tuple(zip(best, values[1:]))))
        return token

    def add(self, token: int, room: int) -> bool:
        """Adds a token to the answer; returns True if it is the last one, and ends the answer.

        room: tokens for which the sequence has room, this one included.
        """
        self.output.append(token)
        self.pending = token
        self._held.append(token)
        self._first = self._first or time.monotonic()
        if token in self._ends:
            return self._end("stop")
        self._sampler.add(token)
        if self.grammar is not None:
            self.grammar.add(token)
        self._put(self._stops.push(self._stream.push(token), token))
        if self._stops.stopped:
            return self._end("stop")
        if self.grammar is not None and self.grammar.complete():
            return self._end("stop")
        if len(self.output) == self.request.max_tokens or room <= 1:
            return self._end("length")
        return False

    def draft(self, most: int) -> list[int]:
        """Returns tokens that may follow the answer so far, at most so many."""
        if self._lookup is None:
            self._lookup = TokenLookup(self.prompt)
        for token in self.output[len(self._lookup) - len(self.prompt) :]:
            self._lookup.add(token)
        if self.request.max_tokens is not None:
            most = min(most, self.request.max_tokens - len(self.output) - 1)
        return self._lookup.draft(most)

    def _put(self, text: str) -> None:
        if text:
            self.answer.put(AnswerPiece(text, tuple(self._held), tuple(self._logprobs)))
            self._held, self._logprobs = [], []

    def _end(self, reason: str) -> bool:
        if not self._stops.stopped:
            rest = self._stops.push(self._stream.finish())
            rest = rest if self._stops.stopped else rest + self._stops.finish()
            if rest or self._held:
                self.answer.put(AnswerPiece(rest, tuple(self._held), tuple(self._logprobs)))
        elif self._held:
            self.answer.put(AnswerPiece("", tuple(self._held), tuple(self._logprobs)))
        if self._stops.stopped:
            reason = "stop"
        self.answer.close(reason, self.usage())
        return True

    def cancel(self) -> None:
        """Ends the answer with the text so far."""
        try:
            self._end("cancelled")
        except BaseException as e:
            self.fail(e)

    def fail(self, error: BaseException) -> None:
        """Ends the answer with an error. A panic of a library is no Exception, which those who read answers expect."""
        if not isinstance(error, Exception):
            panic, error = error, RuntimeError(f"a library failed: {error}")
            error.__cause__ = panic
        self.answer.close("error", self.usage(), error)

    def usage(self) -> Usage:
        now = time.monotonic()
        return Usage(
            (self.source.tokens if self.source is not None else 0) or len(self.prompt),
            self.cached,
            len(self.output),
            (self._first or now) - self._began,
            now - self._began,
            self.drafted,
            self.accepted,
        )


def _allowed(suppress: tuple[int, ...], vocabulary: int) -> np.ndarray | None:
    """Returns the tokens that an answer may have, bool [vocabulary]; None for all. Raises InputError for others."""
    if not suppress:
        return None
    wrong = next((t for t in suppress if not 0 <= t < vocabulary), None)
    if wrong is not None:
        raise InputError(f"tokens of this model are 0 to {vocabulary - 1}, got {wrong} among those to suppress")
    out = np.ones(vocabulary, bool)
    out[list(suppress)] = False
    return out
