"""Several answers at once: one thread owns the engine and gives each of them a token in turn."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import numpy as np

from pelton.errors import Error, InputError
from pelton.system.forks import survives_fork

from .decoder import Decoder
from .generation import Answer, GenerationRequest
from .grammar import Grammars
from .literal import Part
from .lookup import Speed
from .places import SequencePlace, SequencePlaces, prompt_part
from .progress import DRAFT, Progress
from .sessions import read_session, write_session
from .source_encoder import EncoderInput

CHUNK = 512  # tokens of a prompt in one run
SHARED_CHUNK = 64  # of them while other answers wait for their next token
SETTLING_CHUNK = 32  # of them while no request waits
PAUSE, IDLE = 0.2, 5.0  # seconds without requests, after which finished answers are settled, and the thread ends
CLOSED = "this language model is closed"


class Scheduler:
    """Answers requests with a Decoder, up to `sequences` of them at once; others wait. Any thread may submit.

    An answer is the same, bit for bit, whatever else runs: every run computes each of its sequences as if it were
    alone. Prompts run in parts of 512 tokens, of 64 while other answers go on. Caches of finished answers stay, and
    prompts that begin like them go on from there. capacity: tokens of a sequence, default: the model's context.
    """

    def __init__(self, decoder: Decoder, sequences: int = 4, capacity: int | None = None, *, speculate: bool = True):
        self.decoder = decoder
        self.capacity = capacity or decoder.description.context
        self.places = SequencePlaces(decoder.batch(sequences if decoder.ports.batch else 1, self.capacity))
        self.grammars = Grammars(decoder.tokens, decoder.description.vocabulary)
        self._draft = decoder.description.few - 1 if speculate else 0
        self._speed = Speed()
        self._closed = False
        self._unlock()
        survives_fork(self)

    def _unlock(self) -> None:
        """Forgets all answers: in the child of a fork, the thread has ended."""
        self._coding = threading.Lock()  # encoding sets an attribute of the tokenizer
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._waiting: deque[Progress] = deque()
        self._running: list[Progress] = []
        self._tasks: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        for place in self.places.all:
            place.busy, place.exact, place.target = False, 0, ()

    # --- for callers

    def submit(self, request: GenerationRequest) -> Answer:
        """Begins an answer; returns it at once.

        Raises InputError for a prompt without tokens, with others than the model's, or longer than the cache, and for
        a schema that is wrong.
        """
        source, prompt = self._begin(request)
        grammar = None if request.schema is None else self.grammars.grammar(request.schema)
        d = self.decoder
        progress = Progress(request, prompt, d.tokens, d.description.vocabulary, grammar, source)
        with self._change:
            self._start()
            self._waiting.append(progress)
        return progress.answer

    def _start(self) -> None:
        """Wakes the thread, or starts it."""
        if self._closed:
            raise InputError(CLOSED)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._serve, name="pelton-language", daemon=True)
            self._thread.start()
        self._change.notify()

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Returns the tokens of a text."""
        with self._coding:
            return self.decoder.tokens.encode(text, special)

    def encode_parts(self, parts: Iterable[Part]) -> list[int]:
        """Returns the tokens of a text in parts, without those that the model puts in front of a text."""
        with self._coding:
            return self.decoder.tokens.encode_parts(parts)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes what finished answers left in the caches, see `LanguageModel.save`."""
        self._do(lambda: self._save(path))

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Reads what `save` wrote into places that no answer uses, see `LanguageModel.restore`."""
        self._do(lambda: self._restore(path))

    def close(self) -> None:
        """Cancels all answers and ends the thread."""
        with self._change:
            self._closed = True
            thread = self._thread
            self._change.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _begin(self, request: GenerationRequest) -> tuple[EncoderInput | None, list[int]]:
        """Returns what the encoder reads, None without one, and the tokens of the decoder's prompt."""
        encoder = self.decoder.encoder
        if encoder is None:
            if request.spectrogram is not None:
                raise InputError("this model hears nothing: pass a prompt without audio")
            return None, self._fitting(self._prompt(request))
        if encoder.speech is None:
            if request.spectrogram is not None:
                raise InputError("this model reads text and hears nothing: pass a prompt without audio")
            return encoder.text(self._prompt(request)), [encoder.start]
        if request.spectrogram is None or isinstance(request.prompt, str):
            raise InputError("this model hears and answers no prompts: call LanguageModel.transcribe")
        return encoder.sound(request.spectrogram), self._fitting(self._prompt(request))

    def _prompt(self, request: GenerationRequest) -> list[int]:
        if isinstance(request.prompt, str):
            prompt = self.encode(request.prompt, request.special)
            if not prompt and self.decoder.tokens.bos is not None:
                prompt = [self.decoder.tokens.bos]
        else:
            prompt = list(request.prompt)
        if not prompt:
            raise InputError("the prompt has no tokens; write a text")
        return self.decoder.runner.check(prompt)

    def _fitting(self, prompt: list[int]) -> list[int]:
        if len(prompt) >= self.capacity:
            raise InputError(
                f"the prompt has {len(prompt)} tokens, and the cache has room for {self.capacity}, one of them for the"
                " answer: shorten the prompt, or open the model with a larger context"
            )
        return prompt

    # --- the thread

    def _do(self, task: Callable[[], Any]) -> None:
        """Runs a task in the thread, between two steps; waits for its end."""
        over: Future[Any] = Future()
        with self._change:
            self._start()
            self._tasks.append((task, over))
        over.result()

    def _serve(self) -> None:
        while self._wait():
            try:
                while self._tasks:
                    self._run_task(*self._tasks.popleft())
                self._cancel()
                self._admit()
                self._prefill()
                self._step()
            except BaseException as e:  # panics of libraries, too: no answer may wait for a thread that has ended
                for progress in [*self._running]:
                    self._fail(progress, e)

    def _run_task(self, task: Callable[[], Any], over: Future[Any]) -> None:
        try:
            over.set_result(task())
        except BaseException as e:
            over.set_exception(e)

    def _wait(self) -> bool:
        """Waits for work; returns False if the thread has to end. Settles finished answers meanwhile."""
        pause = PAUSE
        while True:
            with self._change:
                self._change.wait_for(self._has_work, pause)
                if self._closed:
                    self._end()
                    return False
                if self._has_work():
                    return True
                if pause == IDLE:
                    self._thread = None
                    return False
            pause = 0 if self._settle() else IDLE

    def _has_work(self) -> bool:
        return bool(self._closed or self._waiting or self._running or self._tasks)

    def _end(self) -> None:
        for progress in (*self._waiting, *self._running):
            progress.cancel()
        for _, over in self._tasks:
            over.set_exception(InputError(CLOSED))
        self._waiting.clear()
        self._running.clear()
        self._tasks.clear()

    def _settle(self) -> bool:
        """Computes part of finished answers as prompts; returns False if nothing is left."""
        try:
            return self.places.settle(SETTLING_CHUNK)
        except Exception:  # the next prompts compute these tokens
            for place in self.places.all:
                place.target = ()
            return False

    def _save(self, path: str | os.PathLike[str]) -> None:
        self._check_sessions()
        if not self.decoder.runner.positional:
            raise InputError("this model has a state that only goes forward; its sessions cannot be saved")
        while self.places.settle(CHUNK):
            pass
        places = sorted((p for p in self.places.all if p.exact), key=lambda p: p.used)
        write_session(path, self.decoder.description.digest, places)

    def _check_sessions(self) -> None:
        if self.decoder.encoder is not None:
            raise InputError("this model has an encoder, and no answer goes on behind another: it has no sessions")

    def _restore(self, path: str | os.PathLike[str]) -> None:
        self._check_sessions()
        like, most = self.places.all[0].sequence.state.arrays, len(self.places.all)
        d = self.decoder.description
        for tokens, caches in read_session(path, d.digest, like, d.vocabulary, most)[-most:]:
            if not self.places.adopt(tokens, caches):
                break

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
        while self._waiting:
            progress = self._waiting[0]
            try:
                place = self.places.take(progress.prompt, b"" if progress.source is None else progress.source.digest)
            except Exception as e:
                self._waiting.popleft()
                progress.fail(e)
                continue
            if place is None:
                return
            self._waiting.popleft()
            progress.place, progress.cached = place, place.sequence.length
            self._running.append(progress)
            if progress.source is not None:  # one a round, so that other answers go on
                self._read(progress, place, progress.source)
                return

    def _read(self, progress: Progress, place: SequencePlace, source: EncoderInput) -> None:
        """Runs the encoder for an answer, unless its place has the keys and values of this source."""
        if place.digest == source.digest:
            progress.cached = source.tokens
            return
        place.digest = b""
        encoder = self.decoder.encoder
        assert encoder is not None
        try:
            encoder.read(source, place.sequence.state)
        except (Error, MemoryError) as e:
            self._fail(progress, e)
        else:
            place.digest = source.digest

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
            if progress.place is not None:  # the next one waits for this one's first steps
                self._running.remove(progress)
                self._running.append(progress)

    def _step(self) -> None:
        """Runs the latest token of all answers whose prompts are through."""
        each = {p.place.number: p for p in self._running if p.output and p.place is not None}
        if not each or len(each) == 1 and self._step_with_draft(*each.values()):
            return
        began = time.perf_counter()
        try:
            logits = self.places.batch.step({number: p.pending for number, p in each.items()})
        except (Error, MemoryError) as e:
            if len(each) == 1:
                self._fail(next(iter(each.values())), e)
            else:
                self._step_apart(each)
            return
        if len(each) == 1:
            self._speed.single(time.perf_counter() - began)
        for number, progress in each.items():
            self._advance(progress, logits[number])

    def _step_with_draft(self, progress: Progress) -> bool:
        """Runs the latest token with those that may follow it; returns False if there are none, or they do not pay."""
        place = progress.place
        if self._draft < 1 or place is None:
            return False
        sequence = place.sequence
        before, room = sequence.length, self.capacity - sequence.length
        draft = progress.draft(min(progress.reach, self._draft, room - 1))
        if not draft or not self._speed.pays() or sequence.runner.is_long(before + 1 + len(draft)) != sequence.long:
            return False
        began = time.perf_counter()
        try:
            rows = sequence.extend([progress.pending, *draft], all_rows=True)
        except (Error, MemoryError):
            return False  # a row behind a wrong token may be at fault
        seconds = time.perf_counter() - began
        used = 0
        for row, guess in zip(rows, [*draft, None]):
            used += 1
            if not self._advance(progress, row) or progress.pending != guess:
                break
        if sequence.length > before + used:
            sequence.rewind(before + used)
        progress.reach = self._draft if used > len(draft) else DRAFT
        self._speed.drafted(seconds, used)
        progress.drafted, progress.accepted = progress.drafted + len(draft), progress.accepted + used - 1
        return True

    def _step_apart(self, each: dict[int, Progress]) -> None:
        """Runs answers one by one, as one of them fails."""
        for number, progress in each.items():
            assert progress.place is not None
            progress.place.sequence.rewind(len(progress.prompt) + len(progress.output) - 1)
            try:
                logits = self.places.batch.step({number: progress.pending})[number]
            except (Error, MemoryError) as e:
                self._fail(progress, e)
            else:
                self._advance(progress, logits)

    def _advance(self, progress: Progress, logits: np.ndarray) -> bool:
        """Adds the token that follows these logits to an answer; returns False if the answer is over."""
        tokens = len(progress.prompt) + len(progress.output)
        try:
            over = progress.add(progress.choose(logits), self.capacity - tokens)
        except BaseException as e:  # libraries of tokens and grammars panic with those that are no Exception
            self._fail(progress, e)
            return False
        if over:
            self._leave(progress)
        return not over

    def _fail(self, progress: Progress, error: BaseException) -> None:
        progress.fail(error)
        place = progress.place
        self._leave(progress)
        if place is not None:
            place.rewind(0)
            place.target = ()
