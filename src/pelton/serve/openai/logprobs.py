"""Log probabilities of tokens, with their texts and bytes, as both kinds of completions have them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pelton.language import TokenLogprob, Tokens

BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
LEAST = -9999.0  # of a token that cannot come, for which JSON has no number


def _alphabet() -> dict[str, int]:
    """Returns the characters that stand for bytes in vocabularies of GPT-2's kind."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}


ALPHABET = _alphabet()


def token_bytes(tokens: Tokens, id: int) -> bytes:
    """Returns the bytes that a token adds to a text."""
    name = tokens.token(id) or ""
    if match := BYTE.fullmatch(name):
        return bytes([int(match[1], 16)])
    if id in tokens.special:
        return name.encode()
    before = tokens.decode([id])  # decoders strip a space in front of a text
    text = tokens.decode([id, id]).removeprefix(before)
    if "\ufffd" not in text:
        return text.encode()
    if all(c in ALPHABET for c in name):
        return bytes(ALPHABET[c] for c in name)
    return text.encode()


class LogprobWriter:
    """Writes log probabilities of a model's answers. ends: tokens that end an answer and have no text."""

    def __init__(self, tokens: Tokens, ends: frozenset[int]):
        self._tokens, self._ends = tokens, ends
        self._bytes: dict[int, bytes] = {}

    def bytes_of(self, id: int) -> bytes:
        if id not in self._bytes:
            self._bytes[id] = token_bytes(self._tokens, id)
        return self._bytes[id]

    def text_of(self, id: int) -> str:
        return self.bytes_of(id).decode(errors="replace")

    def _shown(self, logprobs: Sequence[TokenLogprob]) -> list[TokenLogprob]:
        return [t for t in logprobs if t.token not in self._ends]

    def chat(self, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        """Returns the tokens of a chat completion, each with the most likely ones in its place."""
        return [
            {**self._one(t.token, t.logprob), "top_logprobs": [self._one(i, p) for i, p in t.top]}
            for t in self._shown(logprobs)
        ]

    def _one(self, id: int, logprob: float) -> dict[str, Any]:
        data = self.bytes_of(id)
        return {"token": self.text_of(id), "logprob": max(logprob, LEAST), "bytes": list(data)}

    def legacy(self, logprobs: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
        """Returns the tokens of a legacy completion. offset: characters in front of the first one."""
        out: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for t in self._shown(logprobs):
            text = self.text_of(t.token)
            out["tokens"].append(text)
            out["token_logprobs"].append(max(t.logprob, LEAST))
            out["top_logprobs"].append({self.text_of(i): max(p, LEAST) for i, p in t.top})
            out["text_offset"].append(offset)
            offset += len(text)
        return out
