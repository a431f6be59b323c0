"""Calls of functions: how models of several families write them, as grammars for answers and as texts to parse.

    Hermes, Qwen   <tool_call>\\n{"name": "f", "arguments": {…}}\\n</tool_call>, one or several
    Llama 3        {"name": "f", "parameters": {…}}; {…}
    Mistral        [TOOL_CALLS] [{"name": "f", "arguments": {…}}, …]

The chat template of a model shows which of them it was trained for.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pelton.language import Tokens

from .faults import OpenAiError
from .fields import Fields, wrong_type

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
MOST_TOOLS, MOST_CALLS = 128, 8
REFERENCE = (
    'You can call functions. They are described in JSON:\n{tools}\nTo call one, answer with\n<tool_call>\n{{"name":'
    ' "its name", "arguments": {{its arguments}}}}\n</tool_call>\nand nothing else; its result comes in a'
    " <tool_response>."
)


@dataclass(frozen=True)
class CallFormat:
    """How a model writes calls. begin, end: texts around them; "" for none. arguments: name of that member. listed:
    calls are a list of JSON; else, with `end`, each call is between begin and end. separator: between calls."""

    name: str
    begin: str
    end: str
    arguments: str
    separator: str
    listed: bool = False


HERMES = CallFormat("hermes", "<tool_call>", "</tool_call>", "arguments", "\n")
LLAMA = CallFormat("llama", "<|python_tag|>", "", "parameters", "; ")
MISTRAL = CallFormat("mistral", "[TOOL_CALLS]", "", "arguments", ", ", listed=True)


def format_of(template: str) -> CallFormat:
    """Returns the format that a chat template teaches; that of Hermes for one that has none."""
    if HERMES.begin in template:
        return HERMES
    if MISTRAL.begin in template:
        return MISTRAL
    if LLAMA.begin in template or '"parameters"' in template and "tools" in template:
        return LLAMA
    return HERMES


@dataclass(frozen=True)
class Tools:
    """The functions of a request.

    described: as the request has them, for the template. parameters: name → JSON schema of its arguments. forced: those
    that the answer has to call, () for a free choice. single: at most one call. named: the request names the function.
    """

    described: tuple[Mapping[str, Any], ...]
    parameters: Mapping[str, Mapping[str, Any]]
    forced: tuple[str, ...] = ()
    single: bool = False
    named: bool = False


def read_tools(fields: Fields) -> Tools | None:
    """Reads tools, tool_choice and parallel_tool_calls; None if the answer cannot have calls."""
    described, choice = fields.raw("tools"), fields.raw("tool_choice")
    single = not fields.boolean("parallel_tool_calls", True)
    if described is not None and (not isinstance(described, list) or len(described) > MOST_TOOLS):
        raise wrong_type("tools", f"a list of at most {MOST_TOOLS} tools", described)
    parameters: dict[str, Mapping[str, Any]] = {}
    for i, tool in enumerate(described or ()):
        name, schema = _tool(tool, f"tools[{i}]")
        if name in parameters:
            raise OpenAiError(f"Invalid value for 'tools[{i}]': {name!r} is there twice", f"tools[{i}]")
        parameters[name] = schema
    if not parameters:
        if choice not in (None, "none", "auto"):
            raise OpenAiError("'tool_choice' needs 'tools'", "tool_choice", "invalid_value")
        return None
    if choice == "none":
        return None
    tools = tuple(described or ())
    if choice in (None, "auto"):
        return Tools(tools, parameters, (), single)
    if choice == "required":
        return Tools(tools, parameters, tuple(parameters), single)
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    wanted = function.get("name") if isinstance(function, dict) else None
    if not isinstance(wanted, str) or wanted not in parameters:
        raise wrong_type("tool_choice", "'none', 'auto', 'required', or a function of tools by its name", choice)
    return Tools(tools, parameters, (wanted,), True, named=True)


def _tool(tool: Any, where: str) -> tuple[str, Mapping[str, Any]]:
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    if not isinstance(function, dict):
        raise wrong_type(where, "an object of type 'function' with a function", tool)
    name, schema = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise wrong_type(f"{where}.function.name", "1 to 64 of the characters a-z, A-Z, 0-9, _ and -", name)
    if schema is not None and not isinstance(schema, dict):
        raise wrong_type(f"{where}.function.parameters", "a JSON schema, an object", schema)
    if not isinstance(function.get("description", ""), (str, type(None))):
        raise wrong_type(f"{where}.function.description", "a text", function["description"])
    return name, schema or {"type": "object", "properties": {}}


def compact(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a JSON schema whose texts are on one line: a weak model may write spaces without end otherwise."""
    return {**schema, "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}


def grammar(tools: Tools, form: CallFormat, tokens: Tokens) -> str:
    """Returns the grammar, in Lark, of an answer that is made of calls."""

    def literal(text: str) -> str:
        id = tokens.id(text)
        return f"<[{id}]>" if id is not None and id in tokens.special else json.dumps(text)

    more = "" if tools.single else f" ({json.dumps(form.separator)} call){{0,{MOST_CALLS - 1}}}"
    if form.listed:
        lines = [f'start: {literal(form.begin)} "[" call{more} "]"', "call: object"]
    elif form.end:
        lines = [f"start: call{more}", f'call: {literal(form.begin)} "\\n" object "\\n" {literal(form.end)}']
    else:
        lines = [f"start: call{more}", "call: object"]
    lines.append("object: " + " | ".join(f"object_{i}" for i in range(len(tools.forced))))
    for i, name in enumerate(tools.forced):
        head = f'{{"name": "{name}", "{form.arguments}": '
        lines.append(f'object_{i}: {json.dumps(head)} arguments_{i} "}}"')
        lines.append(f"arguments_{i}: %json {json.dumps(compact(tools.parameters[name]))}")
    return "lark:" + "\n".join(lines)


def without_places(
    messages: Sequence[Mapping[str, Any]], template: str, tools: Tools | None
) -> tuple[list[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None]:
    """Returns messages and tools for a template. One that has no place for tools gets them in a message of the system,
    and earlier calls with their results as texts of Hermes."""
    out = list(messages)
    if "tool_calls" not in template:
        out = [_as_text(m) for m in out]
    if tools is None:
        return out, None
    if "tools" in template:
        return out, tools.described
    text = REFERENCE.format(tools="\n".join(json.dumps(t, ensure_ascii=False) for t in tools.described))
    if out and out[0]["role"] == "system":
        out[0] = {**out[0], "content": f"{out[0]['content']}\n\n{text}"}
        return out, None
    return [{"role": "system", "content": text}, *out], None


def _as_text(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    calls = [c["function"] for c in message["tool_calls"]]
    texts = [f"<tool_call>\n{json.dumps(c, ensure_ascii=False)}\n</tool_call>" for c in calls]
    return {"role": "assistant", "content": "\n".join(filter(None, (message["content"], *texts)))}


@dataclass(frozen=True)
class ToolCall:
    """A call of a function. arguments: JSON."""

    name: str
    arguments: str
    id: str


@dataclass
class CallParser:
    """Finds calls in an answer as it arrives. names: the functions that there are. forced: the answer is made of calls
    alone, so that a text at its end is a call that was cut off, which is dropped."""

    form: CallFormat
    names: frozenset[str]
    single: bool = False
    forced: bool = False
    calls: int = 0
    _held: str = ""
    _inside: bool = False  # behind a `begin`
    _bare: bool | None = None  # the answer begins with JSON; None while this is open

    def push(self, text: str) -> list[str | ToolCall]:
        """Adds text; returns texts and calls that are certain, in their order."""
        self._held += text
        if self._bare is None and not self._decide():
            return []
        if self._bare:
            return []  # all of it is JSON, until the end shows otherwise
        out: list[str | ToolCall] = []
        while True:
            mark = self.form.end if self._inside else self.form.begin
            at = self._held.find(mark) if mark else -1
            if at < 0:
                break
            part, self._held = self._held[:at], self._held[at + len(mark) :]
            out += self._calls(part, f"{self.form.begin}{part}{mark}") if self._inside else [part]
            self._inside = not self._inside
        if not self._inside:
            keep = _overlap(self._held, self.form.begin)
            out.append(self._held[: len(self._held) - keep])
            self._held = self._held[len(self._held) - keep :]
        return self._tidy(out)

    def finish(self) -> list[str | ToolCall]:
        """Returns what is left at the end of the answer."""
        rest, self._held = self._held, ""
        parts: list[str | ToolCall] = [rest]
        if rest and (self._inside or self._bare):
            parts = self._calls(rest, (self.form.begin if self._inside else "") + rest)
        return self._tidy([p for p in parts if isinstance(p, ToolCall)] if self.forced else parts)

    def _decide(self) -> bool:
        """Finds out whether the answer begins with JSON; returns False while this is open."""
        start = self._held.lstrip()
        if not start:
            return False
        self._bare = start[0] == ("[" if self.form.listed else "{") and not start.startswith(self.form.begin)
        if self.form.begin.startswith(start) and start != self.form.begin:
            self._bare = None
            return False
        return True

    def _calls(self, text: str, written: str) -> list[str | ToolCall]:
        """Returns the calls in a text, or the text as it was written if it has none."""
        try:
            values = _objects(text)
            found = [self._call(v) for v in values]
        except (ValueError, RecursionError, TypeError, KeyError):
            return [written]
        if self.single:
            found = found[: max(0, 1 - self.calls)]
        self.calls += len(found)
        return list(found)

    def _call(self, value: Any) -> ToolCall:
        name = value["name"]
        arguments = value.get("arguments", value.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = json.loads(arguments or "{}")
        if name not in self.names or not isinstance(arguments, dict):
            raise ValueError("no call of these functions")
        # templates of Mistral take ids of nine characters alone
        id = uuid.uuid4().hex[:9] if self.form is MISTRAL else f"call_{uuid.uuid4().hex[:24]}"
        return ToolCall(name, json.dumps(arguments, ensure_ascii=False), id)

    def _tidy(self, parts: list[str | ToolCall]) -> list[str | ToolCall]:
        """Drops empty texts, and spaces between calls."""
        out: list[str | ToolCall] = []
        for part in parts:
            if isinstance(part, str) and (not part or self.calls and not part.strip()):
                continue
            out.append(part)
        return out


def _objects(text: str) -> list[Any]:
    """Returns the values of JSON in a text: one, a list of them, or several with ; or a line break between."""
    decoder, out, at = json.JSONDecoder(), [], 0
    text = text.strip()
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        out += value if isinstance(value, list) else [value]
        while at < len(text) and text[at] in "; \n\t,":
            at += 1
    if not out:
        raise ValueError("no JSON")
    return out


def _overlap(text: str, mark: str) -> int:
    """Returns how many characters at the end of a text are the beginning of a mark."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)
