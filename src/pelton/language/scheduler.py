"""Several answers at once: one thread owns the engine and gives each of them a token in turn."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np

from pelton.errors import Error, InputError
from pelton.system.forks import survives_fork

from .decoder import Decoder
from .generation import Answer, GenerationRequest
from .grammar import Grammars
from .places import Place, Places, prompt_part
from .progress import Progress

CHUNK = 512  # tokens of a prompt in one run
SHARED_CHUNK = 64  # of them while other answers wait for their next token
IDLE = 5.0  # seconds without requests, after which the thread ends
CLOSED = "this language model is closed"


class Scheduler:
    """Answers requests with a Decoder, up to `sequences` of them at once; others wait. Any thread may submit.

    An answer is the same, bit for bit, whatever else runs: every run computes each of its sequences as if it were
    alone. Prompts run in parts of 512 tokens, of 64 while other answers go on. Caches of finished answers stay, and
    prompts that begin like them go on from there. capacity: tokens of a sequence, default: the model's context.
    """

    def __init__(self, decoder: Decoder, sequences: int = 4, capacity: int | None = None):
        self.decoder = decoder
        self.capacity = capacity or decoder.description.context
        self.places = Places(decoder.batch(sequences if decoder.ports.batch else 1, self.capacity))
        self.grammars = Grammars(decoder.tokens, decoder.description.vocabulary)
        self._coding = threading.Lock()  # encoding sets an attribute of the tokenizer
        self._thread: threading.Thread | None = None
        self._waiting: deque[Progress] = deque()
        self._running: list[Progress] = []
        self._closed = False
        self._unlock()
        survives_fork(self)

    def _unlock(self) -> None:
        self._coding, self._change = threading.Lock(), threading.Condition()
        self._thread, self._waiting, self._running = None, deque(), []

    # --- for callers

    def submit(self, request: GenerationRequest) -> Answer:
        """Begins an answer; returns it at once.

        Raises InputError for a prompt without tokens, with others than the model's, or longer than the cache, and for
        a schema that is wrong.
        """
        prompt = self._prompt(request)
        grammar = None if request.schema is None else self.grammars.grammar(request.schema)
        d = self.decoder
        progress = Progress(request, prompt, d.tokens, d.description.vocabulary, grammar)
        with self._change:
            if self._closed:
                raise InputError(CLOSED)
            self._waiting.append(progress)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._serve, name="pelton-language", daemon=True)
                self._thread.start()
            self._change.notify()
        return progress.answer

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Returns the tokens of a text."""
        with self._coding:
            return self.decoder.tokens.encode(text, special)

    def close(self) -> None:
        """Cancels all answers and ends the thread."""
        with self._change:
            self._closed = True
            thread = self._thread
            self._change.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _prompt(self, request: GenerationRequest) -> list[int]:
        if isinstance(request.prompt, str):
            prompt = self.encode(request.prompt, request.special)
            if not prompt and self.decoder.tokens.bos is not None:
                prompt = [self.decoder.tokens.bos]
        else:
            prompt = list(request.prompt)
        if not prompt:
            raise InputError("the prompt has no tokens; write a text")
        prompt = self.decoder.runner.check(prompt)
        if len(prompt) >= self.capacity:
            raise InputError(
                f"the prompt has {len(prompt)} tokens, and the cache has room for {self.capacity}, one of them for the"
                " answer: shorten the prompt, or open the model with a larger context"
            )
        return prompt

    # --- the thread

    def _serve(self) -> None:
        while self._wait():
            self._cancel()
            self._admit()
            try:
                self._prefill()
                self._step()
            except BaseException as e:  # an answer must not wait for a thread that has ended
                self._fail_all(e)
                if not isinstance(e, Exception):
                    raise

    def _wait(self) -> bool:
        """Waits for work; returns False if the thread has to end."""
        with self._change:
            if not self._waiting and not self._running and not self._closed:
                self._change.wait(IDLE)
            if self._closed:
                for progress in (*self._waiting, *self._running):
                    progress.cancel()
                self._waiting.clear()
                self._running.clear()
            if self._closed or not self._waiting and not self._running:
                self._thread = None
                return False
            return True

    def _cancel(self) -> None:
        with self._change:
            gone = [p for p in (*self._waiting, *self._running) if p.answer.cancelled]
            self._waiting = deque(p for p in self._waiting if not p.answer.cancelled)
        for progress in gone:
            progress.cancel()
            self._leave(progress)

    def _leave(self, progress: Progress) -> None:
        """Frees the place of an answer that is over."""
        if progress in self._running:
            self._running.remove(progress)
        if progress.place is not None:
            self.places.free(progress.place, [*progress.prompt, *progress.output])
            progress.place = None

    def _admit(self) -> None:
        """Gives places to requests that wait."""
        while self._waiting and (place := self.places.take(self._waiting[0].prompt)) is not None:
            with self._change:
                progress = self._waiting.popleft()
            progress.place, progress.cached = place, place.sequence.length
            self._running.append(progress)

    def _prefill(self) -> None:
        """Runs part of the prompt of the answer that has waited longest for it."""
        progress = next((p for p in self._running if not p.output), None)
        if progress is None or progress.place is None:
            return
        place, shared = progress.place, any(p.output for p in self._running)
        rest = progress.prompt[place.sequence.length :]
        part = rest[: prompt_part(len(rest), SHARED_CHUNK if shared else CHUNK)]
        try:
            logits = place.extend(part)
        except (Error, MemoryError) as e:
            self._fail(progress, e)
            return
        if len(part) == len(rest):
            self._advance(progress, logits)
            # the next one waits behind this one's first steps
            self._running.remove(progress) if progress in self._running else None
            if progress.place is not None:
                self._running.append(progress)

    def _step(self) -> None:
        """Runs the latest token of all answers whose prompts are through."""
        each = {p.place.number: p for p in self._running if p.output and p.place is not None}
        if not each:
            return
        batch = self.places.batch
        try:
            logits = batch.step({number: p.pending for number, p in each.items()})
        except (Error, MemoryError) as e:
            if len(each) == 1:
                self._fail(*each.values(), e)
            else:
                self._step_apart(each)
            return
        for number, progress in each.items():
            self._advance(progress, logits[number])

    def _step_apart(self, each: dict[int, Progress]) -> None:
        """Runs answers one by one, as one of them fails."""
        for number, progress in each.items():
            try:
                logits = self.places.batch.step({number: progress.pending})[number]
            except (Error, MemoryError) as e:
                self._fail(progress, e)
            else:
                self._advance(progress, logits)

    def _advance(self, progress: Progress, logits: np.ndarray) -> None:
        """Adds the token that follows these logits to an answer."""
        assert progress.place is not None
        try:
            over = progress.add(progress.choose(logits), self.capacity - progress.place.sequence.length)
        except (Error, MemoryError) as e:
            self._fail(progress, e)
            return
        if over:
            self._leave(progress)

    def _fail(self, progress: Progress, error: BaseException) -> None:
        progress.fail(error)
        place = progress.place
        self._leave(progress)
        if place is not None:
            place.rewind(0)
            place.target = ()

    def _fail_all(self, error: BaseException) -> None:
        for progress in [*self._running]:
            self._fail(progress, error)

