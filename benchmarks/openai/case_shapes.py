"""Cases of streams, tools and schemas."""

from __future__ import annotations

import json

import openai
from case_servers import NOW, SCHEMA, USER, WEATHER, Servers, case, expect, text_of


# --- streams


@case("streams")
def a_stream_is_the_whole_answer(s: Servers) -> None:
    assert text_of(s.chat(stream=True)) == s.chat().choices[0].message.content


@case("streams")
def the_role_is_first_and_the_reason_last(s: Servers) -> None:
    chunks = list(s.chat(stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")
    assert len({c.id for c in chunks}) == 1 and chunks[0].object == "chat.completion.chunk"


@case("streams")
def usage_comes_last(s: Servers) -> None:
    *chunks, last = s.chat(stream=True, stream_options={"include_usage": True})
    assert all(c.usage is None for c in chunks) and last.choices == []
    assert last.usage.total_tokens == s.chat().usage.total_tokens


@case("streams")
def several_choices_in_a_stream(s: Servers) -> None:
    options = {"n": 2, "temperature": 1, "seed": 5}
    texts = ["", ""]
    for chunk in s.chat(stream=True, **options):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [c.message.content for c in s.chat(**options).choices]


@case("streams")
def log_probabilities_in_a_stream(s: Servers) -> None:
    rows = [
        t for c in s.chat(stream=True, logprobs=True) if c.choices[0].logprobs for t in c.choices[0].logprobs.content
    ]
    assert rows == s.chat(logprobs=True).choices[0].logprobs.content


@case("streams")
def the_helper_of_streams(s: Servers) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": SCHEMA}}
    options = {"model": s.model, "messages": USER, "max_tokens": 80, "temperature": 0, "response_format": form}
    with s.client.chat.completions.stream(**options) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == s.chat(**options).choices[0].message.content


@case("streams")
def the_raw_response_is_of_events(s: Servers) -> None:
    create = s.client.chat.completions.with_raw_response.create
    raw = create(model=s.model, messages=USER, max_tokens=4, stream=True)
    assert raw.headers["content-type"].startswith("text/event-stream") and list(raw.parse())


# --- tools


@case("tools")
def a_required_call(s: Servers) -> None:
    choice = s.chat(tools=[WEATHER, NOW], tool_choice="required", max_tokens=400).choices[0]
    assert choice.finish_reason == "tool_calls", choice
    for call in choice.message.tool_calls:
        arguments = json.loads(call.function.arguments)
        assert call.id and call.type == "function"
        assert arguments.keys() == {{"get_weather": "city", "now": "utc"}[call.function.name]}


@case("tools")
def a_named_call(s: Servers) -> None:
    named = {"type": "function", "function": {"name": "now"}}
    choice = s.chat(tools=[WEATHER, NOW], tool_choice=named, max_tokens=200).choices[0]
    (call,) = choice.message.tool_calls
    assert call.function.name == "now" and isinstance(json.loads(call.function.arguments)["utc"], bool)
    assert choice.finish_reason == "stop"


@case("tools")
def a_single_call(s: Servers) -> None:
    options = {"tools": [WEATHER, NOW], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 200}
    assert len(s.chat(**options, temperature=1, seed=2).choices[0].message.tool_calls) == 1


@case("tools")
def calls_in_a_stream(s: Servers) -> None:
    options = {"tools": [WEATHER, NOW], "tool_choice": "required", "max_tokens": 400}
    names, arguments, reasons = {}, {}, set()
    for chunk in s.chat(stream=True, **options):
        for part in chunk.choices[0].delta.tool_calls or ():
            names[part.index] = part.function.name or names[part.index]
            arguments[part.index] = arguments.get(part.index, "") + (part.function.arguments or "")
        reasons.add(chunk.choices[0].finish_reason)
    whole = s.chat(**options).choices[0].message.tool_calls
    assert [names[i] for i in sorted(names)] == [c.function.name for c in whole]
    assert [arguments[i] for i in sorted(names)] == [c.function.arguments for c in whole] and "tool_calls" in reasons


@case("tools")
def a_free_choice_and_none(s: Servers) -> None:
    assert s.chat(tools=[WEATHER]).choices[0].finish_reason in ("stop", "length", "tool_calls")
    assert s.chat(tools=[WEATHER], tool_choice="none").choices[0].message.tool_calls is None


@case("tools")
def results_go_back(s: Servers) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    message = s.chat(tools=[WEATHER], tool_choice=named, max_tokens=200).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Rain"}
    assert s.chat(tools=[WEATHER], messages=[*USER, message, result]).choices[0].finish_reason


# --- schemas


@case("schemas")
def an_object_of_json(s: Servers) -> None:
    choice = s.chat(response_format={"type": "json_object"}, max_tokens=120, temperature=1, seed=4).choices[0]
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)
    assert choice.message.content.startswith("{")


@case("schemas")
def a_strict_schema(s: Servers) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": SCHEMA}}
    for seed in range(3):
        choice = s.chat(response_format=form, max_tokens=80, temperature=1, seed=seed).choices[0]
        value = json.loads(choice.message.content)
        assert choice.finish_reason == "stop" and isinstance(value["capital"], bool)
        assert value["size"] in ("small", "large") and len(value) == 2


@case("schemas")
def a_class_of_pydantic(s: Servers) -> None:
    from pydantic import BaseModel

    class City(BaseModel):
        capital: bool
        letter: bool

    answer = s.client.chat.completions.parse(
        model=s.model, messages=USER, response_format=City, max_tokens=80, temperature=0
    )
    assert isinstance(answer.choices[0].message.parsed, City)


@case("schemas")
def a_wrong_schema(s: Servers) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no such type"}}}
    expect(openai.BadRequestError, lambda: s.chat(response_format=form))
