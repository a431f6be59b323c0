"""Chat templates: messages to a prompt, by Jinja in a sandbox, as templates come with models of strangers.

The environment is that of transformers' apply_chat_template: trimmed blocks, loop controls, `raise_exception`,
`strftime_now`, `tojson`, and blocks of `generation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pelton.errors import InputError, ModelError, Needs

from .literal import Part, SpecialTexts
from .template_limits import LONGEST, TemplateLimit, joined, limited


class ChatTemplate:
    """A chat template of a model. Raises ModelError if it cannot be read."""

    def __init__(self, text: str, names: Mapping[str, str]):
        with Needs("chat templates", InputError, "language"):
            from .sandbox import environment
        if len(text) > LONGEST:
            raise ModelError(f"the chat template has {len(text)} characters, more than {LONGEST}")
        self._names = dict(names)
        try:
            self._template = environment(_functions()).from_string(text)
        except Exception as e:  # of Jinja, and RecursionError
            raise ModelError(f"the model's chat template cannot be read: {_line(e)}") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        answer: bool = True,
        **values: Any,
    ) -> str:
        """Returns the prompt of messages. answer: with the beginning of an answer. values: further names, such as
        enable_thinking.

        Raises InputError for messages that are none, and if the template rejects them or exceeds its limits.
        """
        return self._rendered(_messages(messages), tools, answer, values)

    def parts(
        self,
        special: SpecialTexts,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **values: Any,
    ) -> list[Part]:
        """Returns the prompt of messages as `render` does, in parts: those of special tokens in messages are to be
        encoded literally."""
        marked, marks = special.marked(_messages(messages))
        return marks.parts(self._rendered(marked, tools, True, values))

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        answer: bool,
        values: Mapping[str, Any],
    ) -> str:
        names = {
            **self._names,
            "messages": messages,
            "tools": _tools(tools),
            "documents": None,
            "add_generation_prompt": answer,
            **values,
        }
        try:
            return limited(lambda: joined(self._template.generate(**names)))
        except TemplateLimit as e:
            raise InputError(f"the model's chat template {e}") from None
        except Exception as e:  # of Jinja, and whatever a template's expression raises
            raise InputError(f"the model's chat template rejects these messages: {_line(e)}") from None


def _messages(messages: Any) -> list[Mapping[str, Any]]:
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise InputError(f"a prompt is a text, or a list of messages, got {messages!r:.100}")
    return [_message(m, i) for i, m in enumerate(messages)]


def _tools(tools: Any) -> list[Any] | None:
    if tools is not None and (not isinstance(tools, (list, tuple)) or not all(isinstance(t, Mapping) for t in tools)):
        raise InputError(f"tools is a list of descriptions of functions, each a dictionary, got {tools!r:.100}")
    return list(tools) if tools else None


def _message(message: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Checks a message; returns it with the texts of its parts joined."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InputError(
            f"message {number} is a dictionary with a role and a content, as in"
            f' {{"role": "user", "content": "Hello"}}, got {message!r:.100}'
        )
    content = message.get("content")
    if content is None or isinstance(content, str):
        return {**message, "content": content} if "tool_calls" in message else {**message}
    parts = content if isinstance(content, (list, tuple)) else [content]
    texts = [p.get("text") if isinstance(p, Mapping) and p.get("type") == "text" else None for p in parts]
    if not all(isinstance(t, str) for t in texts):
        raise InputError(f"the content of message {number} is a text, or a list of parts of type text")
    return {**message, "content": "".join(str(t) for t in texts)}


def _functions() -> dict[str, Any]:
    def reject(message: str) -> None:
        raise ValueError(message)

    return {"raise_exception": reject, "strftime_now": lambda form: datetime.now().strftime(form)}


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
