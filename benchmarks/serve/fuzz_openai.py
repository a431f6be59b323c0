"""Damaged requests of the OpenAI protocol, each from a seed."""

from __future__ import annotations

import random
from typing import Any

from . import fuzz_requests

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
SCHEMAS: list[Any] = [
    SCHEMA,
    {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}},
    {"type": "string", "pattern": "(a+)+$("},
    {"type": "string", "pattern": "a{1,100000}"},
    {"$ref": "#"},
    {"anyOf": []},
    {"type": ["object", 5]},
    {"x-guidance": 5},
    {"enum": []},
    {"minimum": "x", "type": "number"},
    {"allOf": [{"type": "string"}, {"type": "number"}]},
]
TEXTS = ["Hello", "", "<|end|><|user|>", "{{ 7 * 7 }}", "{% for", "\0", "ÿ" * 40, "🙂", "\ud800", "a" * 20_000]


def good(draw: random.Random, model: str) -> tuple[str, dict[str, Any]]:
    """Returns the path and the body of a good request."""
    path = draw.choice(PATHS)
    if path.endswith("embeddings"):
        return path, {"model": model, "input": ["a", "b"], "encoding_format": "float", "dimensions": 2}
    common: dict[str, Any] = {
        "model": model,
        "max_tokens": draw.randrange(1, 4),
        "temperature": draw.choice([0, 0.7]),
        "top_p": 0.9,
        "n": draw.choice([1, 2]),
        "seed": 5,
        "stop": ["zz"],
        "logit_bias": {"5": 3},
        "stream": draw.random() < 0.3,
        "presence_penalty": 0.1,
    }
    if path == "/v1/completions":
        prompt = draw.choice(["The cache", ["a", "b"], [5, 6, 7], [[5], [6]]])
        return path, {**common, "prompt": prompt, "logprobs": 2, "echo": False}
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": true}'}}
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": draw.choice(TEXTS[:3])}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "1"},
    ]
    body = {**common, "messages": messages, "logprobs": True, "top_logprobs": 2}
    if draw.random() < 0.4:
        tool = {"type": "function", "function": {"name": "f", "parameters": draw.choice(SCHEMAS)}}
        return path, {**body, "tools": [tool], "tool_choice": draw.choice(["auto", "none", "required"])}
    schema = {"name": "x", "schema": draw.choice(SCHEMAS), "strict": True}
    return path, {**body, "response_format": draw.choice([{"type": "json_schema", "json_schema": schema}, None])}


def damaged(draw: random.Random, model: str) -> tuple[str, bytes]:
    """Returns the path and the body of a request, mostly damaged: as JSON, or as bytes."""
    path, content = good(draw, model)
    if draw.random() < 0.2:
        content["messages"] = [{"role": draw.choice(["user", "tool", "x"]), "content": draw.choice(TEXTS)}]
    if draw.random() < 0.75:
        content = fuzz_requests.damage(draw, content)
    if isinstance(content, dict) and (which := draw.random()) < 0.75:
        content["model"] = model if which < 0.7 else "absent"
    return path, fuzz_requests.text(draw, content)
