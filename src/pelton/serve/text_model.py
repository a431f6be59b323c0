"""A served language model: its answers at once and those that wait, its limits, and its statistics."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pelton.errors import InputError
from pelton.language import Answer, Decoder, GenerationRequest, LanguageModel

from . import settings as configuration
from .model import ServedModel, fault_of
from .options import ServeOptions
from .requests import InferRequest, RequestError
from .settings import ModelSettings
from .text_statistics import TextStatistics

NO_TENSORS = (
    "is a language model, which has no tensors: POST to /v1/chat/completions, /v1/completions or /v1/embeddings"
)


class TextModel(ServedModel):
    """One version of a language model. path: see `pelton.LanguageModel`.

    capacity: tokens of a prompt with its answer. most_tokens: of an answer. seconds: until an answer has to be over.
    Raises Error for a model that cannot be opened, InputError for settings that are wrong.
    """

    kind = "language model"

    def __init__(self, name: str, version: str, path: Path, settings: ModelSettings, options: ServeOptions):
        self.name, self.version, self.settings, self.options = name, version, settings, options
        self.statistics: TextStatistics = TextStatistics()
        self.closed = self.inline = self.batched = False
        self.sequences = self.queue = self.engine = self.axis = None  # type: ignore[assignment]
        self.replicas, self.inputs, self.outputs = {}, {}, {}
        self.config = configuration.message("ModelConfig")()
        self.config.CopyFrom(settings.config)
        self.config.name, self.config.platform, self.config.backend = name, "pelton_language", "pelton"
        self.places = self._number("sequences", options.sequences, 1, 64)
        self.most_waiting = self._number("waiting", options.waiting, 0, 1 << 20)
        self.seconds = float(self._number("seconds", int(options.answer_seconds), 1, 1 << 31))
        context = self._number("context", options.context or 0, 0, 1 << 31) or None
        self.text = LanguageModel(
            path,
            threads=self._number("threads", options.threads or 0, 0, 256) or None,
            cache=settings.parameters.get("cache", options.kv_cache),
            context=context,
            sequences=self.places,
            level=self._number("level", 0, 0, 4),
            precision=settings.parameters.get("precision", "fp32"),
        )
        writes = isinstance(self.text.model, Decoder)
        self.capacity = self.text.scheduler.capacity if writes else self.text.description.context
        self.most_tokens = min(
            self._number("max_tokens", options.max_tokens or 0, 0, 1 << 31) or 1 << 31, self.capacity
        )
        self.created = int(time.time())
        self._change = threading.Condition()
        self._active = 0  # answers that run or wait

    def _number(self, name: str, default: int, low: int, high: int) -> int:
        text = self.settings.parameters.get(name)
        if text is None:
            return default
        if not text.isdigit() or not low <= int(text) <= high:
            raise InputError(f"parameter {name} of model {self.name!r} is a number from {low} to {high}, got {text!r}")
        return int(text)

    def submit(self, requests: Sequence[GenerationRequest]) -> list[Answer]:
        """Begins answers, all or none. Raises RequestError if too many wait, or for a request that is rejected."""
        with self._change:
            if self.closed:
                raise RequestError(f"model {self.name!r} was unloaded", "closed")
            if self._active + len(requests) > self.places + self.most_waiting:
                raise RequestError(
                    f"model {self.name!r} has {self._active} answers that run or wait, and takes"
                    f" {self.places} at once with {self.most_waiting} that wait; try again later",
                    "full",
                    self.statistics.seconds() * max(1.0, self._active / self.places),
                )
            self._active += len(requests)
        answers: list[Answer] = []
        try:
            for request in requests:
                answers.append(self.text.submit(request))
        except BaseException as e:
            for answer in answers:
                answer.cancel()
            with self._change:
                self._active -= len(requests) - len(answers)
                self._change.notify_all()
            raise fault_of(e) from None
        finally:
            for answer in answers:
                answer.when_over(self._over)
        return answers

    def _over(self, answer: Answer) -> None:
        self.statistics.answered(answer.usage, answer.finish_reason or "error")
        with self._change:
            self._active -= 1
            self._change.notify_all()

    def waiting(self) -> int:
        """Returns the number of answers that wait for a place."""
        return max(0, self._active - self.places)

    def running(self) -> int:
        """Returns the number of answers that have a place."""
        return min(self._active, self.places)

    @property
    def how(self) -> str:
        """The way in which the model runs, for people."""
        if not isinstance(self.text.model, Decoder):
            return f"sentence encoder, texts of up to {self.capacity} tokens"
        return f"language model, {self.places} answers at once, {self.capacity} tokens each"

    def begin(self, request: InferRequest, arrived: int) -> Any:
        """Raises RequestError: a language model has no tensors."""
        raise RequestError(f"model {self.name!r} {NO_TENSORS}", "unsupported")

    def close(self) -> None:
        """Waits for the answers under way, as long as the server drains, cancels the others, and ends the model."""
        with self._change:
            self.closed = True
            self._change.wait_for(lambda: not self._active, self.options.drain)
        self.text.close()
