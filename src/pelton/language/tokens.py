"""Text to tokens and back, piece by piece as tokens arrive."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from pelton.errors import InputError

INCOMPLETE = "\ufffd"  # what the end of a text decodes to while a character lacks bytes
FENCE = "\U000ffffd pelton \U000ffffd"  # a token that no text has
LONGEST = 16  # characters in a row that may yet become others


class Coder(Protocol):
    """What `Tokens` needs of a tokenizer's library."""

    def encode(self, text: str, special: bool, literal: bool) -> list[int]: ...

    def encode_parts(self, parts: Iterable[tuple[str, bool]]) -> list[int]: ...

    def decode(self, ids: Sequence[int], special: bool) -> str: ...

    def id(self, token: str) -> int | None: ...

    def token(self, id: int) -> str | None: ...

    def __len__(self) -> int: ...


class LibraryCoder:
    """A `tokenizers.Tokenizer`."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self._lock = threading.Lock()  # what special tokens are is a property of the tokenizer, not of a call

    def encode(self, text: str, special: bool, literal: bool) -> list[int]:
        return self._encoding(text, special, literal).ids

    def _encoding(self, text: str, special: bool, literal: bool) -> Any:
        with self._lock:
            if self.tokenizer.encode_special_tokens != literal:
                self.tokenizer.encode_special_tokens = literal
            return self.tokenizer.encode(text, add_special_tokens=special)

    def encode_parts(self, parts: Iterable[tuple[str, bool]]) -> list[int]:
        parts = [*parts]
        if not any(literal for _, literal in parts):
            return [id for text, _ in parts for id in self.encode(text, False, False)]
        text, ids, begin = "".join(text for text, _ in parts), list[int](), 0
        for id, at, end in [*self._special_places(text, parts), (None, len(text), len(text))]:
            ids += self._encode_run(text[begin:at], begin == 0)
            ids += [] if id is None else [id]
            begin = end
        return ids

    def _special_places(self, text: str, parts: Sequence[tuple[str, bool]]) -> list[tuple[int, int, int]]:
        """Returns (id, begin, end) of the special tokens outside of literal parts."""
        found, at, hidden = self._encoding(text, False, False), 0, list[tuple[int, int]]()
        for part, literal in parts:
            hidden += [(at, at + len(part))] if literal else []
            at += len(part)
        special = {id for id, token in self.tokenizer.get_added_tokens_decoder().items() if token.special}
        places = [(id, *at) for id, at in zip(found.ids, found.offsets) if id in special]
        return [(id, a, b) for id, a, b in places if not any(a < end and begin < b for begin, end in hidden)]

    def _encode_run(self, text: str, first: bool) -> list[int]:
        """Returns the tokens of a text between special tokens, whose own special tokens are characters. Behind another
        token, tokenizers that begin a text with a space do not all begin this one so."""
        if first or not text:
            return self.encode(text, False, True)
        return self._behind.encode(FENCE + text, add_special_tokens=False).ids[1:]

    @cached_property
    def _behind(self) -> Any:
        """The same tokenizer with one more token, which is not special."""
        from tokenizers import AddedToken, Tokenizer

        other = Tokenizer.from_str(self.tokenizer.to_str())
        other.add_tokens([AddedToken(FENCE, special=False, normalized=False)])
        other.encode_special_tokens = True
        return other

    def decode(self, ids: Sequence[int], special: bool) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=not special)

    def id(self, token: str) -> int | None:
        return self.tokenizer.token_to_id(token)

    def token(self, id: int) -> str | None:
        return self.tokenizer.id_to_token(id)

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size(with_added_tokens=True)


@dataclass(frozen=True)
class Tokens:
    """The tokens of a model.

    coder: the library that makes them. bos: the token that begins a text, if there is one. eos: those that end an
    answer. special: ids that are no text. template: the chat template, in Jinja; "" without one. names: such as
    {"bos_token": "<s>"}, for the template.
    """

    coder: Coder
    bos: int | None
    eos: tuple[int, ...]
    special: frozenset[int]
    template: str
    names: dict[str, str]

    def encode(self, text: str, special: bool = True, *, literal: bool = False) -> list[int]:
        """Returns the tokens of a text.

        special: adds those that the model puts in front of a text, and behind it. literal: special tokens in the text,
        such as "<|im_end|>", are its characters: for text of strangers. Raises InputError for half a character.
        """
        return self.coder.encode(_checked(text), special, literal)

    def encode_parts(self, parts: Iterable[tuple[str, bool]]) -> list[int]:
        """Returns the tokens of one text in parts, each with true if its special tokens are characters; without those
        that the model puts around a text. Raises InputError for half a character."""
        return self.coder.encode_parts([(_checked(text), literal) for text, literal in parts])

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """Returns the text of tokens; special: with the special ones."""
        return self.coder.decode([int(i) for i in ids], special)

    def id(self, token: str) -> int | None:
        """Returns the id of a token, None if there is no such token."""
        return self.coder.id(token)

    def token(self, id: int) -> str | None:
        """Returns a token as the vocabulary has it; None if there is no such id."""
        return self.coder.token(int(id))

    def stream(self, special: bool = False) -> TokenStream:
        """Returns a decoder of tokens that arrive one by one."""
        return TokenStream(self, special)

    def __len__(self) -> int:
        return len(self.coder)


def _checked(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise InputError(
            f"the text has half a character at {e.start}, U+{ord(text[e.start]):04X}: it is no Unicode; decode its"
            " bytes as UTF-8, with errors='replace' where they are damaged"
        ) from None
    return text


class TokenStream:
    """Decodes tokens as they arrive; never emits part of a character. What it emits is `Tokens.decode` of them all."""

    def __init__(self, tokens: Tokens, special: bool = False):
        self._tokens, self._special = tokens, special
        self._ids: list[int] = []  # those that later ones may join with
        self._before = 0  # of these, which earlier ones may have joined with
        self._sent = 0  # characters of their text that are out

    def push(self, id: int) -> str:
        """Adds a token; returns the text that is now certain, which may be ""."""
        id = int(id)
        if id in self._tokens.special and not self._special:
            return ""
        self._ids.append(id)
        text = self._tokens.decode(self._ids, self._special)
        certain = text.rstrip(INCOMPLETE)
        if len(text) - len(certain) > LONGEST:  # these are no characters
            certain = text
        piece = certain[self._sent :]
        self._sent = max(self._sent, len(certain))
        if piece and certain == text:
            self._ids, self._before = self._ids[self._before :], len(self._ids) - self._before
            self._sent = len(self._tokens.decode(self._ids, self._special))
        return piece

    def finish(self) -> str:
        """Returns the rest of the text, with U+FFFD for a character that lacks bytes; the stream begins anew."""
        rest = self._tokens.decode(self._ids, self._special)[self._sent :]
        self._ids, self._before, self._sent = [], 0, 0
        return rest
