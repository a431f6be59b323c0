"""A sentence encoder: texts in, embeddings out."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pelton.errors import InputError, ModelError
from pelton.logs import Logger
from pelton.runtime import Context, Engine

from .description import Description
from .tokens import Tokens

log = Logger("pelton.language")

IDS, LENGTHS, EMBEDDINGS = "input_ids", "lengths", "embeddings"
TEXTS = 256  # the most in one run


@dataclass(frozen=True)
class TextRules:
    """What happens to texts and embeddings. lower: texts become lower case. normalize: embeddings get a length of 1.
    prompts: texts in front of others, by name. prompt: the name of that one which is used by default; "" for none."""

    lower: bool = False
    normalize: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    prompt: str = ""


class SentenceEncoder:
    """A sentence encoder, ready to run; `open_encoder` creates it, and `LanguageModel.embed` uses it.

    Runs share one context, one at a time, from any thread.
    """

    def __init__(
        self, engine: Engine, tokens: Tokens, description: Description, rules: TextRules, threads: int | None = None
    ):
        self.engine, self.tokens, self.description, self.rules = engine, tokens, description, rules
        self.threads = threads
        self._lock = threading.Lock()
        self._context: Context | None = None

    def embed(
        self, texts: str | Sequence[str], *, normalize: bool | None = None, batch: int = 32, prompt: str | None = None
    ) -> np.ndarray:
        """Returns the embeddings of texts, f32 [texts, width]; see `LanguageModel.embed`."""
        texts = [texts] if isinstance(texts, str) else texts
        if isinstance(texts, (bytes, Mapping)) or not isinstance(texts, Iterable):
            raise InputError(f"embed expects a text or a list of texts, got {texts!r:.100}")
        listed = list(texts)
        wrong = [t for t in listed if not isinstance(t, str)]
        if wrong:
            raise InputError(f"embed expects a text or a list of texts, got {wrong[0]!r:.100} among them")
        return self.embed_tokens(self.encode(listed, prompt), normalize=normalize, batch=batch)

    def encode(self, texts: Sequence[str], prompt: str | None = None) -> list[list[int]]:
        """Returns the tokens of texts, cut to those that the model takes; a warning has the number of cut texts."""
        rules = self.rules
        name = rules.prompt if prompt is None else prompt
        if name and name not in rules.prompts:
            known = ", ".join(repr(n) for n in rules.prompts) or "none"
            raise InputError(f"this model has no prompt {name!r}; it has {known}")
        most, cut, out = self.description.context, 0, []
        for text in texts:
            text = rules.prompts.get(name, "") + text
            text = text.lower() if rules.lower else text
            ids = self.tokens.encode(text)
            if len(ids) > most:
                ids, cut = self._shortened(ids, text, most), cut + 1
            out.append(ids)
        if cut:
            log.warning("%d of %d texts are longer than the %d tokens of this model, and were cut", cut, len(out), most)
        return out

    def _shortened(self, ids: list[int], text: str, most: int) -> list[int]:
        """Returns the begin of a text, with the tokens that the model puts in front of it and behind it."""
        plain = self.tokens.encode(text, special=False)
        extra = len(ids) - len(plain)
        front = next((i for i in range(extra + 1) if ids[i : i + len(plain)] == plain), 0)
        behind = ids[front + len(plain) :]
        if extra >= most:
            raise InputError(f"texts of {most} tokens have no room beside the {extra} that the model adds")
        return ids[:front] + plain[: most - extra] + behind

    def embed_tokens(
        self, ids: Sequence[Sequence[int]], *, normalize: bool | None = None, batch: int = 32
    ) -> np.ndarray:
        """Returns the embeddings of texts that are tokens, f32 [texts, width]. Texts of similar length run together.

        Raises InputError for texts of no token or of too many, and for ids that are none.
        """
        if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= TEXTS:
            raise InputError(f"batch is a number of texts from 1 to {TEXTS}, got {batch!r}")
        most, vocabulary = self.description.context, self.description.vocabulary
        for row in ids:
            if not 1 <= len(row) <= most:
                raise InputError(f"texts of this model have 1 to {most} tokens, got {len(row)}")
            wrong = next((i for i in row if not 0 <= i < vocabulary), None)
            if wrong is not None:
                raise InputError(f"tokens of this model are 0 to {vocabulary - 1}, got {wrong}")
        out = np.empty((len(ids), self.width), np.float32)
        order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
        for at in range(0, len(order), batch):
            group = order[at : at + batch]
            out[group] = self._run([ids[i] for i in group])
        if not np.isfinite(out).all():
            raise ModelError("the model computed embeddings that are not finite; its file is damaged")
        if self.rules.normalize if normalize is None else normalize:
            out /= np.maximum(np.linalg.norm(out.astype(np.float64), axis=1, keepdims=True), 1e-12)
        return out

    @property
    def width(self) -> int:
        """The numbers of an embedding."""
        return int(self.engine.outputs[0].shape[1])

    def _run(self, ids: Sequence[Sequence[int]]) -> np.ndarray:
        lengths = np.array([len(row) for row in ids], np.int64)
        padded = np.zeros((len(ids), int(lengths.max())), np.int64)
        for row, of in zip(padded, ids):
            row[: len(of)] = of
        with self._lock:
            if self._context is None:
                self._context = self.engine.context(self.threads)
            return self._context.run({IDS: padded, LENGTHS: lengths})[EMBEDDINGS]

    def __repr__(self) -> str:
        d = self.description
        return (
            f"<pelton.language.SentenceEncoder {d.family}, {d.layers} layers, width {self.width}, {d.context} tokens>"
        )
