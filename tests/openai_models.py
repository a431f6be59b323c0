"""Servers of a small language model, and what tests of the OpenAI protocol send to them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serve_rest import Client, serving

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
MESSAGES = [{"role": "user", "content": "A sequence keeps its keys"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
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


class TextClient:
    """A client of a served language model, "tiny"."""

    def __init__(self, client: Client):
        self.client, self.server, self.model = client, client.server, client.server.table["tiny", ""]

    def post(self, path: str, **body: Any) -> Any:
        """Returns the response to a request."""
        return self.client.post(path, json.dumps({"model": "tiny", **body}))

    def good(self, path: str, **body: Any) -> Any:
        """Returns the JSON of an answer, which must be good."""
        response = self.post(path, **body)
        assert response.status_code == 200, response.text
        return response.json()

    def chat(self, **body: Any) -> Any:
        """Returns the JSON of a greedy chat completion of a few tokens."""
        return self.good(CHAT, **{"messages": MESSAGES, "max_tokens": 12, "temperature": 0, **body})

    def events(self, path: str, **body: Any) -> list[Any]:
        """Returns the chunks of a stream, whose form must be right."""
        response = self.post(path, **{"max_tokens": 12, "temperature": 0, **body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        parts = response.text.split("\n\n")
        assert parts[-2:] == ["data: [DONE]", ""], parts[-2:]
        assert all(p.startswith("data: {") and "\n" not in p for p in parts[:-2])
        return [json.loads(p.removeprefix("data: ")) for p in parts[:-2]]


@contextlib.contextmanager
def text_serving(root: Path, **options: Any) -> Iterator[TextClient]:
    """Yields a client of a server of a language model in a folder named tiny."""
    pytest.importorskip("tokenizers", reason="language models need the package tokenizers")
    with serving(root, **{"sequences": 3, **options}) as client:
        yield TextClient(client)
