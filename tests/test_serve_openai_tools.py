"""Calls of functions and answers in JSON over the OpenAI protocol: formats, grammars, templates, streams."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from benchmarks.openai.models import TEMPLATE
from language_models import write_model
from openai_models import CHAT, MESSAGES, NOW, WEATHER, text_serving

from pelton.language.grammar import Grammars
from pelton.serve.openai.fields import Fields
from pelton.serve.openai.tools import (
    HERMES,
    LLAMA,
    MISTRAL,
    CallParser,
    ToolCall,
    format_of,
    grammar,
    read_tools,
    without_places,
)

FORMATS = [HERMES, LLAMA, MISTRAL]
NAMES = frozenset(("get_weather", "now"))
WRITTEN = {
    HERMES: [
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {"utc": true}}\n</tool_call>',
        'I look.<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Rome\\"}"}</tool_call>'
        '<tool_call>{"name": "now", "parameters": {"utc": true}}',
    ],
    LLAMA: [
        '{"name": "get_weather", "parameters": {"city": "Rome"}}; {"name": "now", "parameters": {"utc": true}}',
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Rome"}}\n'
        '{"name": "now", "parameters": {"utc": true}}',
    ],
    MISTRAL: [
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Rome"}}, '
        '{"name": "now", "arguments": {"utc": true}}]',
        ' [{"name": "get_weather", "arguments": {"city": "Rome"}}, {"name": "now", "arguments": {"utc": true}}]',
    ],
}


def parse(form, pieces, single=False):
    parser = CallParser(form, NAMES, single)
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
    return [p for p in parts if isinstance(p, ToolCall)], "".join(p for p in parts if isinstance(p, str))


@pytest.mark.parametrize(
    ["form", "text"], [(f, t) for f in FORMATS for t in WRITTEN[f]], ids=lambda v: getattr(v, "name", "")
)
def test_calls_are_parsed_however_they_arrive(form, text):
    draw = random.Random(len(text))
    cuts = [sorted(draw.sample(range(1, len(text)), 5)) for _ in range(20)]
    ways = [[text], list(text), *([text[a:b] for a, b in zip([0, *c], [*c, len(text)])] for c in cuts)]
    for pieces in ways:
        calls, rest = parse(form, pieces)
        assert [(c.name, json.loads(c.arguments)) for c in calls] == [
            ("get_weather", {"city": "Rome"}),
            ("now", {"utc": True}),
        ], pieces
        assert rest == ("I look." if text.startswith("I look") else ""), pieces
        assert len({c.id for c in calls}) == 2 and all((len(c.id) == 9) == (form is MISTRAL) for c in calls)
    assert len(parse(form, [text], single=True)[0]) == 1


@pytest.mark.parametrize(
    ["form", "text"],
    [
        (HERMES, "2 < 3 <tool_cal and more"),
        (HERMES, '<tool_call>{"name": "absent", "arguments": {}}</tool_call> so'),
        (HERMES, "<tool_call>{no JSON}</tool_call>"),
        (HERMES, '<tool_call>{"name": "now", "arg'),
        (LLAMA, '{"a": 5} is JSON'),
        (LLAMA, '{"name": "now", "parameters": 5}'),
        (LLAMA, "Hello {"),
        (MISTRAL, "[1, 2]"),
        (MISTRAL, "[TOOL_CALLS] nothing"),
        (MISTRAL, "Hello"),
        (LLAMA, "{" * 5000),
    ],
    ids=lambda v: getattr(v, "name", ""),
)
def test_text_that_is_no_call_stays_text(form, text):
    for pieces in ([text], list(text)):
        calls, rest = parse(form, pieces)
        assert not calls and rest in (text, text.replace("[TOOL_CALLS]", ""))


def test_a_forced_call_that_is_cut_off_is_dropped():
    text = WRITTEN[HERMES][0][:-30]
    parser = CallParser(HERMES, NAMES, forced=True)
    (call,) = [*parser.push(text), *parser.finish()]
    assert call.name == "get_weather"


def test_text_is_passed_on_as_it_comes():
    parser = CallParser(HERMES, NAMES)
    assert parser.push("Hello ") == ["Hello "] and parser.push("a <too") == ["a "]
    assert parser.push("th>") == ["<tooth>"] and not parser.push('<tool_call>{"name"')
    (call,) = parser.push(': "now", "arguments": {}}</tool_call>')
    assert call.arguments == "{}"


def test_templates_show_their_format():
    assert format_of(TEMPLATE) is HERMES and format_of("{{ messages }}") is HERMES
    assert format_of("[TOOL_CALLS]{{ tools }}") is MISTRAL
    assert format_of("{% if tools %}<|python_tag|>{% endif %}") is LLAMA


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("tools") / "tiny", TEMPLATE)


@pytest.fixture(scope="module")
def client(root):
    with text_serving(root) as client:
        yield client


@pytest.mark.parametrize("form", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("choice", ["required", "named"])
def test_grammars_make_calls_alone(client, form, choice):
    """A walk of random tokens within the grammar is a call of a function, with arguments of its schema."""
    pytest.importorskip("llguidance", reason="constrained answers need the package llguidance")
    tokens, size = client.model.text.tokens, client.model.text.description.vocabulary
    asked = {"type": "function", "function": {"name": "now"}} if choice == "named" else choice
    tools = read_tools(Fields({"tools": [WEATHER, NOW], "tool_choice": asked}))
    library = Grammars(tokens, size)
    for seed in range(4):
        rng, walk, out = np.random.default_rng(seed), library.grammar(grammar(tools, form, tokens)), []
        ends = frozenset(tokens.eos)
        while not walk.complete() and len(out) < 2000:
            token = int(rng.choice(np.flatnonzero(walk.allowed(size, ends))))
            if token in ends:
                break
            walk.add(token)
            out.append(token)
        calls, rest = parse(form, [tokens.decode(out)])
        assert not rest and 1 <= len(calls) <= (1 if choice == "named" else 8), tokens.decode(out)
        for call in calls:
            arguments = json.loads(call.arguments)
            assert call.name in tools.forced
            assert arguments in ({"city": "Paris"}, {"city": "Rome"}, {"utc": True}, {"utc": False})


def test_calls_are_answers(client):
    pytest.importorskip("llguidance", reason="constrained answers need the package llguidance")
    body = {"tools": [WEATHER, NOW], "tool_choice": "required", "max_tokens": 300}
    answer = client.chat(**body)
    (choice,) = answer["choices"]
    calls = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert all(c["type"] == "function" and c["function"]["name"] in NAMES for c in calls)
    chunks = client.events(CHAT, messages=MESSAGES, **body)
    streamed = [c for chunk in chunks for c in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert [c["function"] for c in streamed] == [c["function"] for c in calls]
    assert [c["index"] for c in streamed] == list(range(len(calls)))
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    named = {"type": "function", "function": {"name": "now"}}
    (choice,) = client.chat(**{**body, "tool_choice": named})["choices"]
    assert choice["finish_reason"] == "stop" and choice["message"]["tool_calls"][0]["function"]["name"] == "now"
    # the call and its result go into the next prompt
    result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "Rain"}
    again = client.chat(messages=[*MESSAGES, {"role": "assistant", "tool_calls": calls}, result], tools=[WEATHER])
    assert again["usage"]["prompt_tokens"] > client.chat(tools=[WEATHER])["usage"]["prompt_tokens"] + 20


def test_tools_go_to_the_template_unless_the_choice_is_none(client):
    plain = client.chat()
    assert client.chat(tools=[WEATHER], tool_choice="none")["choices"] == plain["choices"]
    assert client.chat(tools=[WEATHER])["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"] + 50
    both = client.post(CHAT, messages=MESSAGES, max_tokens=4, tools=[WEATHER], response_format={"type": "json_object"})
    assert both.status_code == 400 and both.json()["error"]["param"] == "response_format"


def test_templates_without_a_place_for_tools_get_a_system_message():
    tools = read_tools(Fields({"tools": [WEATHER]}))
    messages, rest = without_places(MESSAGES, "{{ messages }}", tools)
    assert rest is None and messages[0]["role"] == "system" and "get_weather" in messages[0]["content"]
    system = {"role": "system", "content": "Be short."}
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": {"utc": True}}}
    history = [system, *MESSAGES, {"role": "assistant", "content": "", "tool_calls": [call]}]
    history.append({"role": "tool", "content": "5 o'clock", "tool_call_id": "1"})
    messages, _ = without_places(history, "{{ messages }}", tools)
    assert len(messages) == 4 and messages[0]["content"].startswith("Be short.\n\n")
    (again,), text = parse(HERMES, [messages[2]["content"]])
    assert (again.name, again.arguments, text) == ("now", '{"utc": true}', "") and "5 o'clock" in messages[3]["content"]
    assert without_places(history, TEMPLATE, tools) == (history, (WEATHER,))


def test_answers_in_json_match_their_schema(client):
    pytest.importorskip("llguidance", reason="constrained answers need the package llguidance")
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    values = []
    for seed in range(6):
        (choice,) = client.chat(response_format=form, max_tokens=200, temperature=1, seed=seed)["choices"]
        assert choice["finish_reason"] == "stop"
        values.append(json.loads(choice["message"]["content"]))
    assert all(isinstance(v["a"], bool) and set(v["b"]) <= {1, 2} and len(v) == 2 for v in values)
    text = client.chat(response_format={"type": "text"})["choices"]
    assert text == client.chat()["choices"]
    (choice,) = client.chat(response_format={"type": "json_object"}, max_tokens=20)["choices"]
    assert choice["message"]["content"].startswith("{")
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no such type"}}}
    refused = client.post(CHAT, messages=MESSAGES, max_tokens=4, response_format=wrong)
    assert refused.status_code == 400 and "schema" in refused.json()["error"]["message"]
