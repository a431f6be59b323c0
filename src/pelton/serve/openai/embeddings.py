"""Embeddings: vectors of texts, of models that have a pooling."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from pelton.language import SentenceEncoder

from ..text_model import TextModel
from .calls import WITHOUT_EFFECT
from .faults import OpenAiError
from .fields import Fields, wrong_type

MOST_INPUTS = 2048


def embeddings(fields: Fields, model: TextModel) -> dict[str, Any]:
    """Answers a request for embeddings. Raises OpenAiError, also for a model that has none."""
    encoder = model.text.model
    if not isinstance(encoder, SentenceEncoder):
        raise OpenAiError(
            f"model {model.name!r} makes text and no embeddings; use a sentence encoder",
            "model",
            "unsupported_model",
        )
    inputs = _inputs(fields.raw("input"), model)
    packed = fields.choice("encoding_format", ("float", "base64"), "float") == "base64"
    size = fields.integer("dimensions", 1, 1 << 20)
    fields.ignore(*WITHOUT_EFFECT)
    fields.close()
    ids = [encoder.tokens.encode(one) if isinstance(one, str) else one for one in inputs]
    for i, row in enumerate(ids):
        if len(row) > model.capacity:
            raise OpenAiError(
                f"This model's maximum context length is {model.capacity} tokens, but input {i} has {len(row)}.",
                "input",
                "context_length_exceeded",
            )
    texts = [one for one in inputs if isinstance(one, str)]
    encoded = iter(encoder.encode(texts))  # with what the model puts in front of texts
    ids = [next(encoded) if isinstance(one, str) else one for one in inputs]
    vectors = encoder.embed_tokens(ids)
    if size is not None:
        vectors = _shortened(vectors, size)
    data = [
        {"object": "embedding", "index": i, "embedding": _packed(v) if packed else v.tolist()}
        for i, v in enumerate(vectors)
    ]
    count = sum(map(len, ids))
    usage = {"prompt_tokens": count, "total_tokens": count}
    return {"object": "list", "data": data, "model": model.name, "usage": usage}


def _inputs(value: Any, model: TextModel) -> list[str | list[int]]:
    """Returns the texts of a request, some of which may be tokens."""
    tokens = isinstance(value, list) and bool(value) and all(type(t) is int for t in value)
    whole = [value] if isinstance(value, str) or tokens else value
    if not isinstance(whole, list) or not 1 <= len(whole) <= MOST_INPUTS:
        raise wrong_type("input", f"a text, tokens, or a list of up to {MOST_INPUTS} of them", value)
    vocabulary = model.text.description.vocabulary
    for one in whole:
        listed = isinstance(one, list) and one and all(type(t) is int and 0 <= t < vocabulary for t in one)
        if not listed and not (isinstance(one, str) and one):
            raise wrong_type("input", f"a text that is not empty, or tokens from 0 to {vocabulary - 1}", one)
    return whole


def _shortened(vectors: np.ndarray, size: int) -> np.ndarray:
    """Returns the first numbers of vectors, of length 1 again."""
    if size > vectors.shape[1]:
        raise wrong_type("dimensions", f"an integer from 1 to {vectors.shape[1]}", size)
    part = vectors[:, :size]
    norms = np.linalg.norm(part, axis=1, keepdims=True)
    return part / np.where(norms > 0, norms, 1)


def _packed(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
