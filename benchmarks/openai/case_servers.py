"""What cases share: the servers, questions, functions, and the list of cases."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable
from typing import Any

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
