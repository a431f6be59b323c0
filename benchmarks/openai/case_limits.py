"""Cases of legacy completions, errors, clients that go, and several at once."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import openai
from openai import OpenAI
from case_servers import USER, Servers, case, expect, text_of


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
