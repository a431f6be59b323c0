"""Calls of OpenAI's Python client, unmodified, each judged by what it returns; runs in a venv that has it.

    python cases.py BASE_URL LIMITED_URL METRICS_URL MODEL

LIMITED_URL: a server of one answer at once, none that wait, and the key "secret". Prints a line of JSON for each case:
its group, its name, and what is wrong, "" if nothing is.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
import time
import traceback
import urllib.request
from collections.abc import Callable
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI

USER = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
NOW = {
    "type": "function",
    "function": {
        "name": "now",
        "parameters": {
            "type": "object",
            "properties": {"utc": {"type": "boolean"}},
            "required": ["utc"],
            "additionalProperties": False,
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"capital": {"type": "boolean"}, "size": {"enum": ["small", "large"]}},
    "required": ["capital", "size"],
    "additionalProperties": False,
}
CASES: list[tuple[str, Callable[[Any], None]]] = []


def case(group: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Adds a function to the cases."""

    def add(function: Callable[[Any], None]) -> Callable[[Any], None]:
        CASES.append((group, function))
        return function

    return add


class Servers:
    """The servers, and clients of them."""

    def __init__(self, base: str, limited: str, metrics: str, model: str):
        self.base, self.limited_url, self.metrics_url, self.model = base, limited, metrics, model
        self.client = OpenAI(base_url=base, api_key="none", max_retries=0)
        self.limited = OpenAI(base_url=limited, api_key="secret", max_retries=0)

    def chat(self, **options: Any) -> Any:
        """A chat completion of a few tokens, greedy unless options say otherwise."""
        return self.client.chat.completions.create(
            **{"model": self.model, "messages": USER, "max_tokens": 16, "temperature": 0, **options}
        )

    def complete(self, **options: Any) -> Any:
        return self.client.completions.create(
            **{"model": self.model, "prompt": "The capital of France is", "max_tokens": 16, "temperature": 0, **options}
        )

    def asynchronous(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=self.base, api_key="none", max_retries=0)

    def ended(self, reason: str) -> float:
        """How many answers have ended for a reason."""
        with urllib.request.urlopen(self.metrics_url, timeout=30) as answer:
            text = answer.read().decode()
        rows = re.findall(rf'pelton_answers_total{{.*reason="{reason}".*}} (\S+)', text)
        return sum(map(float, rows))

    def idle(self) -> None:
        """Waits until no answer runs."""
        for _ in range(600):
            with urllib.request.urlopen(self.metrics_url, timeout=30) as answer:
                if re.search(r"pelton_running{.*} 0\.0", answer.read().decode()):
                    return
            time.sleep(0.05)
        raise AssertionError("answers go on")


def text_of(stream: Any) -> str:
    return "".join(c.choices[0].delta.content or "" for c in stream if c.choices)


def expect(kind: type[Exception], call: Callable[[], Any], **attributes: Any) -> Any:
    """Calls a function, which must raise an error of this kind with these attributes."""
    try:
        call()
    except kind as e:
        for name, value in attributes.items():
            assert getattr(e, name) == value, (name, getattr(e, name), value)
        return e
    raise AssertionError(f"no {kind.__name__}")


# --- models


@case("models")
def models_are_listed(s: Servers) -> None:
    assert [m.id for m in s.client.models.list()] == [s.model]


@case("models")
def a_model_is_retrieved(s: Servers) -> None:
    model = s.client.models.retrieve(s.model)
    assert model.object == "model" and model.owned_by == "pelton" and model.created > 1_600_000_000


@case("models")
def an_absent_model_is_not_found(s: Servers) -> None:
    expect(openai.NotFoundError, lambda: s.client.models.retrieve("absent"), code="model_not_found")


# --- chat


@case("chat")
def an_answer_has_all_fields(s: Servers) -> None:
    a = s.chat()
    assert a.object == "chat.completion" and a.model == s.model and a.id and a.system_fingerprint
    assert a.choices[0].message.role == "assistant" and a.choices[0].message.content
    assert a.choices[0].finish_reason in ("stop", "length")


@case("chat")
def greedy_answers_repeat(s: Servers) -> None:
    assert s.chat().choices[0].message.content == s.chat().choices[0].message.content


@case("chat")
def usage_adds_up(s: Servers) -> None:
    u = s.chat(max_tokens=7, extra_body={"ignore_eos": True}).usage
    assert u.completion_tokens == 7 and u.total_tokens == u.prompt_tokens + 7 and u.prompt_tokens > 5


@case("chat")
def cached_tokens_are_counted(s: Servers) -> None:
    messages = [{"role": "user", "content": "Bäume und Wörter, keys and values. " * 10}]
    s.chat(messages=messages)
    u = s.chat(messages=messages).usage
    assert 0 < u.prompt_tokens_details.cached_tokens < u.prompt_tokens


@case("chat")
def max_completion_tokens(s: Servers) -> None:
    a = s.chat(max_tokens=None, max_completion_tokens=3, extra_body={"ignore_eos": True})
    assert a.usage.completion_tokens == 3 and a.choices[0].finish_reason == "length"


@case("chat")
def a_seed_repeats(s: Servers) -> None:
    a, b, c = (s.chat(temperature=1, seed=i).choices[0].message.content for i in (7, 7, 8))
    assert a == b != c


@case("chat")
def several_choices(s: Servers) -> None:
    a = s.chat(n=3, temperature=1, seed=1)
    assert [c.index for c in a.choices] == [0, 1, 2]
    assert len({c.message.content for c in a.choices}) > 1


@case("chat")
def a_stop_ends_an_answer(s: Servers) -> None:
    whole = s.chat(max_tokens=40).choices[0].message.content
    stop = whole[4:6]
    choice = s.chat(max_tokens=40, stop=[stop, "\0\0"]).choices[0]
    assert choice.message.content == whole[: whole.index(stop)] and choice.finish_reason == "stop"


@case("chat")
def temperature_top_p_and_penalties(s: Servers) -> None:
    options = {"temperature": 0.7, "top_p": 0.9, "presence_penalty": 0.5, "frequency_penalty": 0.5, "seed": 3}
    assert s.chat(**options).choices[0].message.content == s.chat(**options).choices[0].message.content


@case("chat")
def extensions_in_the_body(s: Servers) -> None:
    a = s.chat(temperature=1, extra_body={"top_k": 1, "min_p": 0.1, "repetition_penalty": 1.0})
    assert a.choices[0].message.content == s.chat().choices[0].message.content


@case("chat")
def a_bias_decides(s: Servers) -> None:
    first = s.complete(prompt="7", max_tokens=1, logprobs=0, echo=False)
    assert first.choices
    a = s.chat(max_tokens=4, logit_bias={"20": 100}, logprobs=True)
    assert len({t.token for t in a.choices[0].logprobs.content}) == 1


@case("chat")
def log_probabilities(s: Servers) -> None:
    choice = s.chat(logprobs=True, top_logprobs=4).choices[0]
    rows = choice.logprobs.content
    assert rows and all(len(r.top_logprobs) == 4 and r.logprob <= 0 for r in rows)
    assert all(r.top_logprobs[0].logprob >= r.logprob - 1e-9 for r in rows)
    assert b"".join(bytes(r.bytes) for r in rows).decode(errors="replace") == choice.message.content


@case("chat")
def a_conversation_with_parts_and_a_system(s: Servers) -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "that?"}]
    messages = [{"role": "system", "content": "Be short."}, *USER, {"role": "assistant", "content": "Paris"}]
    assert s.chat(messages=[*messages, {"role": "user", "content": parts}]).choices[0].message.content


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
    with s.client.chat.completions.stream(model=s.model, messages=USER, max_tokens=16, temperature=0) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == s.chat().choices[0].message.content


@case("streams")
def the_raw_response_is_of_events(s: Servers) -> None:
    create = s.client.chat.completions.with_raw_response.create
    raw = create(model=s.model, messages=USER, max_tokens=4, stream=True)
    assert raw.headers["content-type"].startswith("text/event-stream") and list(raw.parse())


# --- tools


@case("tools")
def a_required_call(s: Servers) -> None:
    choice = s.chat(tools=[WEATHER, NOW], tool_choice="required", max_tokens=200).choices[0]
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
    options = {"tools": [WEATHER, NOW], "tool_choice": "required", "max_tokens": 200}
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


# --- legacy completions


@case("completions")
def a_text_is_completed(s: Servers) -> None:
    a = s.complete()
    assert a.object == "text_completion" and a.choices[0].text and a.usage.completion_tokens <= 16


@case("completions")
def many_prompts(s: Servers) -> None:
    a = s.complete(prompt=["The capital of France is", "Water is"], n=2)
    assert [c.index for c in a.choices] == [0, 1, 2, 3] and a.choices[0].text == s.complete().choices[0].text


@case("completions")
def prompts_of_tokens(s: Servers) -> None:
    assert s.complete(prompt=[5, 6, 7]).choices[0].text == s.complete(prompt=[[5, 6, 7]]).choices[0].text


@case("completions")
def an_echo(s: Servers) -> None:
    assert s.complete(echo=True).choices[0].text == "The capital of France is" + s.complete().choices[0].text


@case("completions")
def log_probabilities_of_completions(s: Servers) -> None:
    rows = s.complete(logprobs=3, max_tokens=6, extra_body={"ignore_eos": True}).choices[0].logprobs
    assert len(rows.tokens) == len(rows.token_logprobs) == len(rows.top_logprobs) == len(rows.text_offset) > 0


@case("completions")
def a_stream_of_completions(s: Servers) -> None:
    assert "".join(c.choices[0].text for c in s.complete(stream=True)) == s.complete().choices[0].text


# --- errors


@case("errors")
def an_unknown_model(s: Servers) -> None:
    expect(openai.NotFoundError, lambda: s.chat(model="gpt-4o"), code="model_not_found", param="model")


@case("errors")
def a_wrong_type(s: Servers) -> None:
    expect(openai.BadRequestError, lambda: s.chat(temperature="hot"), param="temperature")


@case("errors")
def a_value_out_of_range(s: Servers) -> None:
    expect(openai.BadRequestError, lambda: s.chat(top_p=2), param="top_p", type="invalid_request_error")


@case("errors")
def an_unknown_parameter(s: Servers) -> None:
    call = lambda: s.chat(extra_body={"mystery": 1})  # noqa: E731
    expect(openai.BadRequestError, call, param="mystery", code="unknown_parameter")


@case("errors")
def unsupported_parameters(s: Servers) -> None:
    expect(openai.BadRequestError, lambda: s.chat(store=True), code="unsupported_parameter", param="store")
    expect(openai.BadRequestError, lambda: s.complete(suffix="."), code="unsupported_parameter", param="suffix")


@case("errors")
def a_prompt_beyond_the_context(s: Servers) -> None:
    long = [{"role": "user", "content": "word " * 20_000}]
    e = expect(openai.BadRequestError, lambda: s.chat(messages=long), code="context_length_exceeded", param="messages")
    assert len(re.findall(r"\d+", e.message)) >= 2, e.message


@case("errors")
def a_picture(s: Servers) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    messages = [{"role": "user", "content": [part]}]
    expect(openai.BadRequestError, lambda: s.chat(messages=messages), param="messages[0].content[0].type")


@case("errors")
def embeddings_without_pooling(s: Servers) -> None:
    expect(openai.BadRequestError, lambda: s.client.embeddings.create(model=s.model, input="x"), param="model")


@case("errors")
def a_wrong_key(s: Servers) -> None:
    client = OpenAI(base_url=s.limited_url, api_key="wrong", max_retries=0)
    expect(openai.AuthenticationError, client.models.list, code="invalid_api_key")
    assert s.limited.models.list().data


@case("errors")
def too_many_at_once(s: Servers) -> None:
    create = s.limited.chat.completions.create
    stream = create(model=s.model, messages=USER, max_tokens=400, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    e = expect(openai.RateLimitError, lambda: create(model=s.model, messages=USER, max_tokens=4))
    assert int(e.response.headers["retry-after"]) >= 1
    stream.close()
    patient = OpenAI(base_url=s.limited_url, api_key="secret", max_retries=8)  # it tries again by itself
    assert patient.chat.completions.create(model=s.model, messages=USER, max_tokens=4).choices


# --- clients that go, several at once


@case("cancel")
def a_closed_stream_ends_the_answer(s: Servers) -> None:
    before = s.ended("cancelled")
    stream = s.chat(stream=True, max_tokens=400, temperature=1, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    s.idle()
    assert s.ended("cancelled") == before + 1


@case("cancel")
def a_timeout_ends_the_answer(s: Servers) -> None:
    before = s.ended("cancelled")
    call = s.client.with_options(timeout=0.2).chat.completions.create
    options = {"model": s.model, "messages": USER, "n": 4, "max_tokens": 700, "extra_body": {"ignore_eos": True}}
    expect(openai.APITimeoutError, lambda: call(**options))
    s.idle()
    assert s.ended("cancelled") > before


@case("cancel")
def a_cancelled_task_ends_the_answer(s: Servers) -> None:
    before = s.ended("cancelled")

    async def run() -> None:
        async with s.asynchronous() as client:
            call = client.chat.completions.create(
                model=s.model, messages=USER, n=4, max_tokens=700, extra_body={"ignore_eos": True}
            )
            task = asyncio.ensure_future(call)
            await asyncio.sleep(0.2)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    s.idle()
    assert s.ended("cancelled") > before


@case("at once")
def the_asynchronous_client(s: Servers) -> None:
    async def run() -> tuple[str, str]:
        async with s.asynchronous() as client:
            options: Any = {"model": s.model, "messages": USER, "max_tokens": 16, "temperature": 0}
            whole = await client.chat.completions.create(**options)
            stream = await client.chat.completions.create(**options, stream=True)
            return whole.choices[0].message.content or "", "".join(
                [c.choices[0].delta.content or "" async for c in stream]
            )

    whole, streamed = asyncio.run(run())
    assert whole == streamed == s.chat().choices[0].message.content


@case("at once")
def answers_at_once_are_those_one_by_one(s: Servers) -> None:
    prompts = [f"Number {i} of the questions: what is a cache?" for i in range(12)]

    def options(prompt: str) -> dict[str, Any]:
        messages = [{"role": "user", "content": prompt}]
        return {"model": s.model, "messages": messages, "max_tokens": 24, "temperature": 0}

    alone = [s.client.chat.completions.create(**options(p)).choices[0].message.content for p in prompts]

    async def run() -> list[str | None]:
        async with s.asynchronous() as client:
            answers = await asyncio.gather(*(client.chat.completions.create(**options(p)) for p in prompts))
            return [a.choices[0].message.content for a in answers]

    assert asyncio.run(run()) == alone


@case("at once")
def threads_share_a_client(s: Servers) -> None:
    texts: list[str] = []
    threads = [threading.Thread(target=lambda: texts.append(text_of(s.chat(stream=True)))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 6 and len(set(texts)) == 1


def main() -> None:
    servers = Servers(*sys.argv[1:5])
    for group, function in CASES:
        problem, begun = "", time.monotonic()
        try:
            function(servers)
        except Exception:
            problem = traceback.format_exc()[-1500:]
        row = {"group": group, "name": function.__name__, "problem": problem, "seconds": time.monotonic() - begun}
        print(json.dumps({**row, "version": openai.__version__}), flush=True)


if __name__ == "__main__":
    main()
