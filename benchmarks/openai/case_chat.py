"""Cases of models and of whole chat completions."""

from __future__ import annotations

import openai
from case_servers import USER, Servers, case, expect


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
