"""Answers as JSON: whole ones, and the chunks of streams."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from pelton.language import Answer, AnswerPiece, TokenLogprob

from .calls import TextCall
from .logprobs import LogprobWriter
from .tools import CallParser, ToolCall


class AnswerWriter:
    """Writes the answers of a request for a legacy completion, piece by piece or whole. Subclasses: other kinds."""

    prefix, object, chunk_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, call: TextCall):
        self.call = call
        self.head = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": call.model.name,
            "system_fingerprint": f"fp_{call.model.text.description.digest[:12]}",
        }
        ends = frozenset(call.model.text.tokens.eos) | frozenset(call.requests[0].stop_tokens)
        self.logprobs = LogprobWriter(call.model.text.tokens, ends)
        self.offsets = [0] * len(call.requests)  # characters of each answer that are out

    # --- streams

    def start(self) -> Iterator[dict[str, Any]]:
        """Yields the chunks that come first."""
        for i in range(len(self.call.requests) if self.call.echo else 0):
            text = self.call.echo[i // self.call.choices]
            self.offsets[i] += len(text)
            yield self._chunk({"index": i, "text": text, "logprobs": None, "finish_reason": None})

    def piece(self, index: int, piece: AnswerPiece) -> Iterator[dict[str, Any]]:
        """Yields the chunks of a piece of an answer."""
        if piece.text or piece.logprobs:
            logprobs = self._legacy(index, piece.logprobs)
            self.offsets[index] += len(piece.text)
            yield self._chunk({"index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": None})

    def end(self, index: int, answer: Answer) -> Iterator[dict[str, Any]]:
        """Yields the last chunks of an answer."""
        yield self._chunk({"index": index, "text": "", "logprobs": None, "finish_reason": answer.finish_reason})

    def last(self, answers: Sequence[Answer]) -> dict[str, Any] | None:
        """Returns the chunk behind all answers, None for none."""
        if not self.call.with_usage:
            return None
        return {**self._head(self.chunk_object), "choices": [], "usage": self._usage(answers)}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self._head(self.chunk_object), "choices": [choice]}
        return {**chunk, "usage": None} if self.call.with_usage else chunk

    def _head(self, object: str) -> dict[str, Any]:
        return {"id": self.head["id"], "object": object, **{k: v for k, v in self.head.items() if k != "id"}}

    def _legacy(self, index: int, logprobs: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        return None if self.call.top is None else self.logprobs.legacy(logprobs, self.offsets[index])

    # --- whole answers

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Returns the answer to a request, all of whose answers are over."""
        choices = [self._choice(i, answer) for i, answer in enumerate(answers)]
        return {**self._head(self.object), "choices": choices, "usage": self._usage(answers)}

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        echo = self.call.echo[index // self.call.choices] if self.call.echo else ""
        logprobs = self._legacy(index, answer.logprobs)
        reason = answer.finish_reason
        return {"index": index, "text": echo + answer.text, "logprobs": logprobs, "finish_reason": reason}

    def _usage(self, answers: Sequence[Answer]) -> dict[str, Any]:
        firsts = [a.usage for a in answers[:: self.call.choices]]  # choices share their prompt
        prompt, completion = sum(u.prompt for u in firsts), sum(a.usage.completion for a in answers)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(u.cached for u in firsts), "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }


class ChatWriter(AnswerWriter):
    """Writes the answers of a request for a chat completion."""

    prefix, object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, call: TextCall):
        super().__init__(call)
        self.parsers = [self._parser() for _ in call.requests]

    def _parser(self) -> CallParser | None:
        tools, form = self.call.tools, self.call.form
        if tools is None or form is None:
            return None
        return CallParser(form, frozenset(tools.parameters), tools.single, bool(tools.forced))

    def start(self) -> Iterator[dict[str, Any]]:
        for i in range(len(self.call.requests)):
            yield self._delta(i, {"role": "assistant", "content": "", "refusal": None})

    def piece(self, index: int, piece: AnswerPiece) -> Iterator[dict[str, Any]]:
        parser = self.parsers[index]
        first = parser.calls if parser is not None else 0
        parts: list[str | ToolCall] = [piece.text] if parser is None else parser.push(piece.text)
        deltas = list(self._deltas(parts, first))
        if piece.logprobs and not deltas:
            deltas = [{}]
        for i, delta in enumerate(deltas):
            yield self._delta(index, delta, logprobs=piece.logprobs if i == 0 else ())

    def end(self, index: int, answer: Answer) -> Iterator[dict[str, Any]]:
        parser = self.parsers[index]
        if parser is not None:
            first = parser.calls
            for delta in self._deltas(parser.finish(), first):
                yield self._delta(index, delta)
        yield self._delta(index, {}, self._reason(answer, parser))

    def _deltas(self, parts: Sequence[str | ToolCall], first: int) -> Iterator[dict[str, Any]]:
        """Yields the deltas of texts and calls. first: number of the next call."""
        for part in parts:
            if isinstance(part, ToolCall):
                yield {"tool_calls": [{"index": first, **_shown(part)}]}
                first += 1
            elif part:
                yield {"content": part}

    def _delta(
        self, index: int, delta: dict[str, Any], reason: str | None = None, logprobs: Sequence[TokenLogprob] = ()
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        if logprobs:
            choice["logprobs"] = {"content": self.logprobs.chat(logprobs), "refusal": None}
        return self._chunk(choice)

    def _reason(self, answer: Answer, parser: CallParser | None) -> str | None:
        """Returns why an answer ended; an answer that had to call one function has the reason "stop", as OpenAI's."""
        tools = self.call.tools
        if answer.finish_reason == "stop" and parser is not None and parser.calls:
            return "stop" if tools is not None and tools.named else "tool_calls"
        return answer.finish_reason

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        parser = self._parser()
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        parts: list[str | ToolCall] = [answer.text]
        if parser is not None:
            parts = [*parser.push(answer.text), *parser.finish()]
        calls = [_shown(p) for p in parts if isinstance(p, ToolCall)]
        content = "".join(p for p in parts if isinstance(p, str))
        message["content"] = content if content or not calls else None
        if calls:
            message["tool_calls"] = calls
        logprobs = None
        if self.call.top is not None:
            logprobs = {"content": self.logprobs.chat(answer.logprobs), "refusal": None}
        reason = self._reason(answer, parser)
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}


def _shown(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
