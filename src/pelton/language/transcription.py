"""Transcriptions: a sound in parts, each of which a model of speech answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np

from pelton.errors import InputError

from .generation import Answer, GenerationRequest
from .mel import HOP, log_mel
from .sampling import Sampling
from .scheduler import Scheduler
from .sound import parts_of, samples_of
from .source_encoder import SourceEncoder
from .speech import SpeechRules


@dataclass(frozen=True)
class Listener:
    """A model of speech that hears. sampling, max_tokens: of the answer to each part."""

    scheduler: Scheduler
    encoder: SourceEncoder
    rules: SpeechRules
    sampling: Sampling
    max_tokens: int | None

    def spectrogram(self, samples: np.ndarray) -> np.ndarray:
        return log_mel(samples, self.encoder.mels, self.encoder.frames)

    def detected(self, spectrogram: np.ndarray) -> str:
        """Returns the language of a sound: the most likely one behind the first token of an answer."""
        rules = self.rules
        vocabulary = self.scheduler.decoder.description.vocabulary
        others = tuple({*range(vocabulary)} - {*rules.languages.values()})
        request = GenerationRequest((self.encoder.start,), 1, suppress=others, spectrogram=spectrogram)
        (token,) = self.scheduler.submit(request).tokens
        return next(name for name, id in rules.languages.items() if id == token)

    def prompt(self, language: str | None, task: str | None) -> tuple[int, ...]:
        """Returns the tokens that answers follow. Raises InputError for a language or task that is not known."""
        rules, begin = self.rules, [self.encoder.start]
        if rules.languages and language is not None:
            begin.append(rules.language(language))
            if rules.tasks or task is not None:
                begin.append(rules.task(task or "transcribe"))
        else:
            for name, of in ((language, rules.language), (task, rules.task)):
                if name is not None:
                    of(name)
            begin += rules.begin
        if rules.silent is not None and begin[-1] != rules.silent:
            begin.append(rules.silent)
        return tuple(begin)

    def submit(self, spectrogram: np.ndarray, prompt: tuple[int, ...]) -> Answer:
        """Begins the answer to a part."""
        rules = self.rules
        request = GenerationRequest(
            prompt=prompt,
            max_tokens=self.max_tokens,
            sampling=self.sampling,
            suppress=rules.suppress,
            suppress_first=rules.suppress_first,
            spectrogram=spectrogram,
        )
        return self.scheduler.submit(request)


def listener(scheduler: Scheduler, max_tokens: int | None = None, **sampling: Any) -> Listener:
    """Returns what hears for a scheduler. Raises InputError for a model that hears nothing, and TypeError for options
    that are none."""
    encoder = scheduler.decoder.encoder
    if encoder is None or encoder.speech is None:
        family = scheduler.decoder.description.family
        raise InputError(f"this model, {family!r}, hears nothing: transcribe needs a model of speech, such as Whisper")
    unknown = [name for name in sampling if name not in Sampling.__dataclass_fields__]
    if unknown:
        raise TypeError(f"transcribe has no argument {unknown[0]!r}")
    return Listener(scheduler, encoder, encoder.speech, Sampling(**sampling), max_tokens)


def transcribed(of: Listener, audio: Any, rate: int | None, language: str | None, task: str | None) -> Iterator[str]:
    """Yields "" once the arguments are checked, then texts of a transcription as they arrive."""
    samples = samples_of(audio, rate)
    of.prompt(language, task)
    yield ""
    begun = False
    for answer in answers(of, samples, language, task):
        for piece in answer:
            text = piece.text if begun else piece.text.lstrip()
            if text:
                begun = True
                yield text


def answers(of: Listener, samples: np.ndarray, language: str | None, task: str | None) -> Iterator[Answer]:
    """Yields the answers to all parts of a sound, each before it is over; up to `sequences` of them run at once.

    samples: of `samples_of`. language, task: as for `LanguageModel.transcribe`. Raises as `Listener.prompt`.
    """
    prompt = of.prompt(language, task)
    parts = (of.spectrogram(part) for part in parts_of(samples, of.encoder.frames * HOP))
    first = next(parts)
    if of.rules.languages and language is None:
        prompt = of.prompt(of.detected(first), task)
    yield from _ahead(chain([first], parts), lambda part: of.submit(part, prompt), len(of.scheduler.places.all))


def language_of(of: Listener, audio: Any, rate: int | None) -> str:
    """Returns the language of the first part of a sound. Raises InputError for a model of one language."""
    if not of.rules.languages:
        raise InputError("this model has one language: there is none to detect")
    part = next(parts_of(samples_of(audio, rate), of.encoder.frames * HOP))
    return of.detected(of.spectrogram(part))


def _ahead(parts: Iterator[np.ndarray], submit: Callable[[np.ndarray], Answer], most: int) -> Iterator[Answer]:
    """Yields the answers to all parts in their order; up to `most` of them run at once. Cancels those that are left."""
    waiting = deque(submit(part) for part in islice(parts, most))
    try:
        while waiting:
            yield waiting[0]
            waiting.popleft()
            waiting.extend(submit(part) for part in islice(parts, 1))
    finally:
        for answer in waiting:
            answer.cancel()
