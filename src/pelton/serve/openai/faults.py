"""Rejections in the form of the OpenAI protocol: `{"error": {message, type, param, code}}`.

Source: OpenAI's API reference, "Error codes", and what its Python client reads of them.
"""

from __future__ import annotations

from typing import Any

from ..requests import RequestError

# fault → status of HTTP, type, code; others have status 400
KINDS = {
    "unauthenticated": (401, "invalid_request_error", "invalid_api_key"),
    "absent": (404, "invalid_request_error", "not_found"),
    "method": (405, "invalid_request_error", "method_not_allowed"),
    "large": (413, "invalid_request_error", "request_too_large"),
    "encoding": (415, "invalid_request_error", "unsupported_encoding"),
    "full": (429, "rate_limit_error", "rate_limit_exceeded"),
    "internal": (500, "server_error", "internal_error"),
    "unavailable": (503, "server_error", "unavailable"),
    "closed": (503, "server_error", "unavailable"),
    "late": (504, "server_error", "timeout"),
}
PATHS = (CHAT, COMPLETIONS, EMBEDDINGS) = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
INVALID = (400, "invalid_request_error", None)


class OpenAiError(RequestError):
    """A rejection that names a parameter. code: for programs, None for that of the fault."""

    def __init__(
        self,
        text: str,
        param: str | None = None,
        code: str | None = None,
        fault: str = "invalid",
        retry_after: float | None = None,
    ):
        super().__init__(text, fault, retry_after)
        self.param, self.reason = param, code


def status_of(error: RequestError) -> int:
    """Returns the status of HTTP that clients of the protocol expect."""
    return KINDS.get(error.fault, INVALID)[0]


def body_of(error: RequestError) -> dict[str, Any]:
    """Returns a rejection as the protocol's JSON."""
    _, kind, code = KINDS.get(error.fault, INVALID)
    param = getattr(error, "param", None)
    return {
        "error": {"message": str(error), "type": kind, "param": param, "code": getattr(error, "reason", None) or code}
    }
