"""The encoder beside a decoder: reads a text or a spectrogram once, for all tokens of the answer."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pelton.errors import InputError, ModelError
from pelton.runtime import Context, Engine
from pelton.runtime.state import State
from pelton.system.forks import survives_fork

from .description import DecoderPorts
from .speech import SpeechRules

SOURCE = "source"  # the input


@dataclass(frozen=True)
class EncoderInput:
    """What an encoder reads. array: ids, i64 [1, tokens], or a spectrogram, f32 [1, mels, frames]. digest: of it."""

    array: np.ndarray
    digest: bytes

    @property
    def tokens(self) -> int:
        """The tokens of a text; 0 for a spectrogram."""
        return self.array.shape[1] if self.array.ndim == 2 else 0


class SourceEncoder:
    """The encoder of a `Decoder`, whose `encoder` it is. Runs share one context, one at a time, from any thread.

    context: the most tokens of a text. vocabulary: of it. start: the token that answers begin with. end: the token
    behind each text, None without one. speech: of an encoder of sound, None for texts. mels, frames: of a spectrogram,
    which it reads in place of a text; 0 for texts.
    """

    def __init__(
        self,
        engine: Engine,
        ports: DecoderPorts,
        context: int,
        vocabulary: int,
        start: int,
        end: int | None = None,
        speech: SpeechRules | None = None,
        threads: int | None = None,
    ):
        self.engine, self.ports, self.threads = engine, ports, threads
        self.context, self.vocabulary, self.start, self.end = context, vocabulary, start, end
        self.speech = speech
        shape = engine.inputs[0].shape
        self.mels, self.frames = (int(shape[1]), int(shape[2])) if len(shape) == 3 else (0, 0)
        self._context: Context | None = None
        self._unlock()
        survives_fork(self)

    def _unlock(self) -> None:
        self._lock = threading.Lock()

    def text(self, ids: Sequence[int]) -> EncoderInput:
        """Returns the source of a text's tokens. Raises InputError without tokens, for ids that are none, and for too
        many."""
        ids = [int(i) for i in ids]
        if self.end is not None and ids[-1:] != [self.end]:
            ids.append(self.end)
        wrong = next((i for i in ids if not 0 <= i < self.vocabulary), None)
        if wrong is not None:
            raise InputError(f"tokens of this model are 0 to {self.vocabulary - 1}, got {wrong}")
        if not ids:
            raise InputError("the prompt has no tokens; write a text")
        if len(ids) > self.context:
            raise InputError(
                f"the prompt has {len(ids)} tokens, and the encoder reads {self.context} at most: shorten the prompt,"
                " or open the model with a larger context"
            )
        return _source(np.array([ids], np.int64))

    def sound(self, spectrogram: np.ndarray) -> EncoderInput:
        """Returns the source of a spectrogram, f32 [mels, frames]. Raises InputError for other shapes and types, and
        for numbers that are not finite."""
        shape = (self.mels, self.frames)
        if not isinstance(spectrogram, np.ndarray) or spectrogram.shape != shape or spectrogram.dtype != np.float32:
            got = getattr(spectrogram, "dtype", type(spectrogram).__name__), list(np.shape(spectrogram))
            raise InputError(f"a spectrogram of this model is float32{list(shape)}, got {got[0]}{got[1]}")
        if not np.isfinite(spectrogram).all():
            raise InputError("the spectrogram has numbers that are not finite")
        return _source(np.ascontiguousarray(spectrogram[None]))

    def read(self, source: EncoderInput, state: State) -> None:
        """Writes the keys and values of a source into the state of one sequence of the decoder.

        Raises ModelError for numbers that are not finite.
        """
        with self._lock:
            if self._context is None:
                self._context = self.engine.context(self.threads)
            outputs = self._context.run({SOURCE: source.array})
        if not all(np.isfinite(outputs[name]).all() for name in self.ports.crosses):
            raise ModelError("the encoder computed numbers that are not finite; its file is damaged")
        for name in self.ports.crosses:
            rows = outputs[name]
            state.arrays[name][:, :, : rows.shape[2]] = rows
        if self.ports.source_lengths is not None:
            state.arrays[self.ports.source_lengths][:] = source.array.shape[1]


def _source(array: np.ndarray) -> EncoderInput:
    return EncoderInput(array, hashlib.sha256(array.tobytes()).digest())
