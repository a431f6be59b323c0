"""Requests for text: chat completions and legacy completions, from JSON to requests of the scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pelton.errors import InputError
from pelton.language import GenerationRequest, Sampling

from ..requests import shown
from ..text_model import TextModel
from .faults import OpenAiError
from .fields import Fields, wrong_type
from .messages import read_messages
from .tools import CallFormat, Tools, compact, format_of, grammar, read_tools, without_places

MOST_CHOICES, MOST_STOPS, MOST_PROMPTS, MOST_BIAS = 16, 16, 64, 1024
MOST_TOP, MOST_TOP_LEGACY = 20, 5
LEGACY_TOKENS = 16  # of a legacy completion, by default
SEEDS = (1 << 64) - 1
# members that say who asks, or how the provider is to handle the request, and change no answer
WITHOUT_EFFECT = ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "metadata")
RESERVED = {"self", "messages", "tools", "answer", "documents", "add_generation_prompt"}


@dataclass(frozen=True)
class TextCall:
    """A request for text.

    prompts: tokens of each. requests: of the scheduler, `choices` for each prompt in turn. echo: texts that stand in
    front of the answers. top: log probabilities, None for none. tools, form: for answers with calls of functions.
    """

    model: TextModel
    prompts: tuple[tuple[int, ...], ...]
    requests: tuple[GenerationRequest, ...]
    choices: int
    stream: bool
    with_usage: bool
    top: int | None = None
    echo: tuple[str, ...] = ()
    tools: Tools | None = None
    form: CallFormat | None = None


def read_chat(fields: Fields, model: TextModel) -> TextCall:
    """Reads a request for a chat completion. Raises OpenAiError."""
    messages = read_messages(fields.raw("messages"))
    tools = read_tools(fields)
    schema = _response_schema(fields)
    values = _template_values(fields)
    top = _chat_logprobs(fields)
    most, alternative = (fields.integer(n, 1, SEEDS) for n in ("max_completion_tokens", "max_tokens"))
    for name in ("functions", "function_call"):
        fields.refuse(name, "use 'tools' and 'tool_choice'")
    fields.refuse("audio", "answers are text")
    fields.refuse("modalities", "answers are text", [["text"]])
    fields.refuse("prediction", "it is not supported")
    fields.refuse("web_search_options", "it is not supported")
    fields.refuse("reasoning_effort", "pass what the template knows in 'chat_template_kwargs'")
    fields.refuse("verbosity", "it is not supported", ["medium"])
    text, tokens = model.text, model.text.tokens
    template = tokens.template or model.text.description.template
    form = format_of(template) if tools is not None else None
    if tools is not None and schema is not None:
        raise OpenAiError("'response_format' with 'tools' is not supported", "response_format", "invalid_value")
    forced = grammar(tools, form, tokens) if tools is not None and form is not None and tools.forced else None
    rest = _common(fields, model, most or alternative)
    try:
        ids = text.chat_tokens(*without_places(messages, template, tools), **values)
    except InputError as e:
        raise OpenAiError(str(e), "messages") from None
    request = replace(rest.request, schema=forced or schema, logprobs=top)
    return _call(rest, model, (ids,), request, "messages", top=top, tools=tools, form=form)


def read_completion(fields: Fields, model: TextModel) -> TextCall:
    """Reads a request for a legacy completion. Raises OpenAiError."""
    prompts = _prompts(fields.raw("prompt"), model)
    top = fields.integer("logprobs", 0, MOST_TOP_LEGACY)
    echo = fields.boolean("echo")
    fields.refuse("suffix", "text between two others is not supported", [""])
    best = fields.integer("best_of", 1, MOST_CHOICES)
    if echo and top is not None:
        raise OpenAiError(
            "Unsupported parameter: 'logprobs' with 'echo': tokens of prompts have no log probabilities here",
            "logprobs",
            "unsupported_parameter",
        )
    rest = _common(fields, model, fields.integer("max_tokens", 1, SEEDS) or LEGACY_TOKENS)
    if best not in (None, rest.choices):
        raise OpenAiError(
            "Unsupported parameter: 'best_of' other than 'n': all answers are returned",
            "best_of",
            "unsupported_parameter",
        )
    texts = tuple(model.text.tokens.decode(p) for p in prompts) if echo else ()
    return _call(rest, model, prompts, replace(rest.request, logprobs=top), "prompt", top=top, echo=texts)


def _call(
    rest: _Common,
    model: TextModel,
    prompts: tuple[tuple[int, ...], ...],
    request: GenerationRequest,
    param: str,
    **more: Any,
) -> TextCall:
    """Completes requests: for each prompt as many as there are choices, each with a seed of its own."""
    requests = []
    for prompt in prompts:
        most = _room(model, prompt, request.max_tokens, param)
        for i in range(rest.choices):
            sampling = request.sampling
            if sampling.seed is not None:
                sampling = replace(sampling, seed=sampling.seed + i & SEEDS)
            requests.append(replace(request, prompt=prompt, max_tokens=most, sampling=sampling))
    return TextCall(model, prompts, tuple(requests), rest.choices, rest.stream, rest.with_usage, **more)


def _room(model: TextModel, prompt: tuple[int, ...], wanted: int | None, param: str) -> int:
    """Returns the most tokens of an answer. Raises OpenAiError with all numbers if it does not fit."""
    count, capacity = len(prompt), model.capacity
    if not count:
        raise OpenAiError(f"Invalid value for '{param}': the prompt has no tokens", param, "invalid_value")
    if count >= capacity or wanted is not None and count + wanted > capacity:
        asked = "" if wanted is None or count >= capacity else f" and {wanted} for the completion"
        raise OpenAiError(
            f"This model's maximum context length is {capacity} tokens, but the request has {count} tokens in"
            f" '{param}'{asked}. Reduce the length of '{param}'{' or the completion' if asked else ''}.",
            param,
            "context_length_exceeded",
        )
    if wanted is not None and wanted > model.most_tokens:
        raise OpenAiError(
            f"max_tokens is too large: {wanted}. This server answers with at most {model.most_tokens} tokens.",
            "max_tokens",
            "invalid_value",
        )
    return min(wanted or model.most_tokens, model.most_tokens, capacity - count)


@dataclass(frozen=True)
class _Common:
    request: GenerationRequest
    choices: int
    stream: bool
    with_usage: bool


def _common(fields: Fields, model: TextModel, most: int | None) -> _Common:
    """Reads what both kinds of requests have, and rejects what is left. most: tokens of an answer."""
    choices = fields.integer("n", 1, MOST_CHOICES) or 1
    stream = fields.boolean("stream")
    with_usage = _with_usage(fields, stream)
    seed = fields.integer("seed", -(1 << 63), SEEDS)
    sampling = Sampling(
        temperature=fields.number("temperature", 1.0, 0.0, 2.0),
        top_p=fields.number("top_p", 1.0, 0.0, 1.0),
        top_k=max(fields.integer("top_k", -1, SEEDS) or 0, 0),
        min_p=fields.number("min_p", 0.0, 0.0, 1.0),
        repetition_penalty=fields.number("repetition_penalty", 1.0, 1e-3, 1e3),
        presence_penalty=fields.number("presence_penalty", 0.0, -2.0, 2.0),
        frequency_penalty=fields.number("frequency_penalty", 0.0, -2.0, 2.0),
        seed=None if seed is None else seed & SEEDS,
        logit_bias=fields.bias("logit_bias", MOST_BIAS, model.text.description.vocabulary),
    )
    request = GenerationRequest(
        prompt=(),
        max_tokens=most,
        sampling=sampling,
        stop=fields.texts("stop", MOST_STOPS),
        stop_tokens=fields.token_numbers("stop_token_ids", MOST_STOPS),
        ignore_eos=fields.boolean("ignore_eos"),
    )
    fields.refuse("store", "nothing is stored", [False])
    fields.refuse("service_tier", "there is one tier", ["auto", "default"])
    fields.ignore(*WITHOUT_EFFECT)
    fields.close()
    return _Common(request, choices, stream, with_usage)


def _with_usage(fields: Fields, stream: bool) -> bool:
    options = fields.object("stream_options")
    if options is None:
        return False
    if not stream:
        raise OpenAiError("'stream_options' needs 'stream'", "stream_options", "invalid_value")
    usage = options.boolean("include_usage")
    options.refuse("include_obfuscation", "it is not supported", [False])
    options.close()
    return usage


def _response_schema(fields: Fields) -> Mapping[str, Any] | None:
    """Returns the JSON schema that an answer must match; None for any text."""
    form = fields.object("response_format")
    if form is None:
        return None
    kind = form.choice("type", ("text", "json_object", "json_schema"), None)
    if kind is None:
        raise OpenAiError("Missing required parameter: 'response_format.type'", "response_format.type")
    schema: Mapping[str, Any] | None = None if kind == "text" else {"type": "object"}
    if kind == "json_schema":
        described = form.object("json_schema")
        if described is None:
            raise OpenAiError(
                "Missing required parameter: 'response_format.json_schema'", "response_format.json_schema"
            )
        described.text("name")
        described.text("description", "")
        described.boolean("strict")  # answers always match
        schema = described.raw("schema")
        if not isinstance(schema, dict):
            raise wrong_type("response_format.json_schema.schema", "a JSON schema, an object", schema)
        described.close()
    form.close()
    return None if schema is None else compact(schema)


def _template_values(fields: Fields) -> dict[str, Any]:
    values = fields.raw("chat_template_kwargs")
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(k.isidentifier() and k not in RESERVED for k in values):
        raise wrong_type("chat_template_kwargs", "an object with names for the chat template", values)
    return values


def _chat_logprobs(fields: Fields) -> int | None:
    asked, top = fields.boolean("logprobs"), fields.integer("top_logprobs", 0, MOST_TOP)
    if top is not None and not asked:
        raise OpenAiError("'top_logprobs' needs 'logprobs'", "top_logprobs", "invalid_value")
    return (top or 0) if asked else None


def _prompts(value: Any, model: TextModel) -> tuple[tuple[int, ...], ...]:
    """Returns the tokens of a text, of several, or of lists of tokens."""
    if value is None:
        raise OpenAiError("Missing required parameter: 'prompt'", "prompt", "missing_required_parameter")
    whole = [value] if isinstance(value, str) or _is_tokens(value) else value
    if not isinstance(whole, list) or not 1 <= len(whole) <= MOST_PROMPTS:
        raise wrong_type("prompt", f"a text, tokens, or a list of up to {MOST_PROMPTS} of them", value)
    vocabulary = model.text.description.vocabulary
    prompts = []
    for one in whole:
        if isinstance(one, str):
            prompts.append(encoded(model, one))
        elif _is_tokens(one) and all(t < vocabulary for t in one):
            prompts.append(tuple(one))
        else:
            raise wrong_type("prompt", f"a text, or tokens from 0 to {vocabulary - 1}", shown(one))
    return tuple(prompts)


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(t) is int and t >= 0 for t in value)


def encoded(model: TextModel, text: str) -> tuple[int, ...]:
    """Returns the tokens of a text, the model's first token in front."""
    ids = model.text.scheduler.encode(text)
    bos = model.text.tokens.bos
    return tuple(ids) if ids or bos is None else (bos,)
