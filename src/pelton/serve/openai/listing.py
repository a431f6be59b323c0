"""The list of language models, below /v1/models, which TensorFlow Serving's calls share."""

from __future__ import annotations

from typing import Any

from ..server import Server
from ..text_model import TextModel
from .faults import OpenAiError

PATH = "/v1/models"


def listed(server: Server, path: str) -> dict[str, Any] | None:
    """Returns the answer to GET of a path below /v1/models as the OpenAI protocol has it; None if that is a path of
    TensorFlow Serving: of another model, or on a server without language models. Raises OpenAiError for a model that
    does not exist."""
    models = {m.name: m for m in server.table.values() if isinstance(m, TextModel)}
    if not models or not path.startswith(PATH):
        return None
    name = path.removeprefix(PATH).strip("/")
    if not name:
        return {"object": "list", "data": [_shown(m) for _, m in sorted(models.items())]}
    if name in models:
        return _shown(models[name])
    if "/" in name or (name, "") in server.table or name in server.places:
        return None
    raise OpenAiError(f"The model '{name[:200]}' does not exist", "model", "model_not_found", "absent")


def _shown(model: TextModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "pelton",
        "max_model_len": model.capacity,
    }
