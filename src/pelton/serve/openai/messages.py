"""Messages of a chat request, checked, as chat templates read them."""

from __future__ import annotations

import json
from typing import Any

from ..requests import shown
from .faults import OpenAiError
from .fields import wrong_type

ROLES = ("system", "developer", "user", "assistant", "tool")
MOST = 4096
MEMBERS = ("role", "content", "name", "tool_calls", "tool_call_id", "refusal", "reasoning_content")


def read_messages(value: Any) -> list[dict[str, Any]]:
    """Returns messages with their contents as texts, and arguments of calls as objects. Raises OpenAiError, which
    names the place, for what is none."""
    if not isinstance(value, list) or not value or len(value) > MOST:
        raise wrong_type("messages", f"a list of 1 to {MOST} messages", value)
    return [_message(m, f"messages[{i}]") for i, m in enumerate(value)]


def _message(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong_type(where, "an object with a role and a content", value)
    role = value.get("role")
    if role not in ROLES:
        raise wrong_type(f"{where}.role", " or ".join(map(repr, ROLES)), role)
    for name, content in value.items():
        if name not in MEMBERS and content is not None:
            raise OpenAiError(
                f"Unsupported parameter: '{where}.{name[:80]}'", f"{where}.{name[:80]}", "unsupported_parameter"
            )
    calls = value.get("tool_calls")
    out: dict[str, Any] = {"role": "system" if role == "developer" else role}
    if value.get("content") is not None:
        out["content"] = _text(value["content"], f"{where}.content")
    elif role == "assistant" and calls:
        out["content"] = ""
    else:
        raise wrong_type(f"{where}.content", "a text", None)
    for name in ("name", "tool_call_id", "reasoning_content"):
        if value.get(name) is not None:
            if not isinstance(value[name], str):
                raise wrong_type(f"{where}.{name}", "a text", value[name])
            out[name] = value[name]
    if calls:
        if role != "assistant" or not isinstance(calls, list):
            raise wrong_type(f"{where}.tool_calls", "a list, of a message of the assistant", calls)
        out["tool_calls"] = [_call(c, f"{where}.tool_calls[{i}]") for i, c in enumerate(calls)]
    return out


def _text(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong_type(where, "a text, or a list of parts of type text", value)
    texts = []
    for i, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "refusal"):
            raise OpenAiError(
                f"Unsupported value: '{where}[{i}]' is a part of type {shown(kind)}; this model takes text alone",
                f"{where}[{i}].type",
                "unsupported_value",
            )
        text = part.get(kind)
        if not isinstance(text, str):
            raise wrong_type(f"{where}[{i}].{kind}", "a text", text)
        texts.append(text)
    return "".join(texts)


def _call(value: Any, where: str) -> dict[str, Any]:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or value.get("type", "function") != "function":
        raise wrong_type(where, "a call of a function", value)
    name, arguments, id = function.get("name"), function.get("arguments", "{}"), value.get("id", "")
    if not isinstance(name, str) or not isinstance(id, str):
        raise wrong_type(f"{where}.function.name", "a text, as is the id of the call", name)
    try:
        content = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise wrong_type(f"{where}.function.arguments", "a text with an object of JSON", arguments)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": content}}
