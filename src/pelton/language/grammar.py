"""Constrained answers: JSON schemas, regular expressions and grammars of Lark, by the library llguidance."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pelton.errors import InputError, Needs

from .tokens import LibraryCoder, Tokens

KINDS = ("regex:", "lark:")


class Grammars:
    """Makes grammars for the tokens of a model; the library learns the tokens once."""

    def __init__(self, tokens: Tokens, vocabulary: int):
        self._tokens, self._vocabulary = tokens, vocabulary
        self._lock = threading.Lock()
        self._library: Any = None

    def grammar(self, schema: Mapping[str, Any] | str) -> Grammar:
        """Returns the grammar of a schema, see `GenerationRequest.schema`. Raises InputError for one that is wrong."""
        with Needs("constrained answers", InputError, "language"):
            from llguidance import LLMatcher, LLParserLimits
        with self._lock:
            self._library = self._library or self._learn()
        try:
            if isinstance(schema, Mapping):
                text = LLMatcher.grammar_from_json_schema(json.dumps(dict(schema)))
            elif schema.startswith("regex:"):
                text = LLMatcher.grammar_from_regex(schema.removeprefix("regex:"))
            elif schema.startswith("lark:"):
                text = LLMatcher.grammar_from_lark(schema.removeprefix("lark:"))
            else:
                raise InputError(f"schema is a dictionary, or a text that begins with {' or '.join(KINDS)}")
        except (ValueError, TypeError) as e:
            if isinstance(e, InputError):
                raise
            raise InputError(f"schema cannot be read: {e}") from None
        matcher = LLMatcher(self._library, text, log_level=0, limits=LLParserLimits(verbose_errors=False))
        if matcher.is_error():
            raise InputError(f"schema cannot be read: {_line(matcher.get_error())}")
        return Grammar(matcher)

    def _learn(self) -> Any:
        from llguidance import LLTokenizer

        coder = self._tokens.coder
        if not isinstance(coder, LibraryCoder):
            raise InputError("answers of this model cannot be constrained: its tokenizer is of another library")
        ends = list(self._tokens.eos)
        if not ends:
            raise InputError("answers of this model cannot be constrained: it has no token that ends a text")
        text = coder.tokenizer.to_str()
        return LLTokenizer(text, n_vocab=max(self._vocabulary, len(self._tokens)), eos_token=ends)


class Grammar:
    """The grammar of one answer, and how far the answer is in it."""

    def __init__(self, matcher: Any):
        self._matcher = matcher

    def allowed(self, vocabulary: int, ends: Iterable[int]) -> np.ndarray:
        """Returns the tokens that may come next, bool [vocabulary]."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        return np.unpackbits(mask, bitorder="little", count=max(vocabulary, 8 * len(mask)))[:vocabulary].view(bool)

    def add(self, token: int) -> None:
        """Goes on by a token of the answer. Raises InputError if the grammar is too complex to go on."""
        if not self._matcher.consume_token(token):
            raise InputError(f"schema is too complex: the answer cannot go on, {_line(self._matcher.get_error())}")

    def complete(self) -> bool:
        """Returns True if nothing may follow."""
        return bool(self._matcher.is_stopped())


def _line(text: str) -> str:
    return " ".join(text.replace("<non-verbose/>", "").split())[:300]
