"""Inference requests and their faults, the same for all protocols."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pelton.errors import Error

# fault → status of HTTP, name of gRPC's status
STATUSES = {
    "invalid": (400, "INVALID_ARGUMENT"),
    "unauthenticated": (401, "UNAUTHENTICATED"),
    "absent": (404, "NOT_FOUND"),
    "method": (405, "UNIMPLEMENTED"),
    "exists": (409, "ALREADY_EXISTS"),
    "large": (413, "RESOURCE_EXHAUSTED"),
    "encoding": (415, "INVALID_ARGUMENT"),
    "unsupported": (501, "UNIMPLEMENTED"),
    "full": (503, "RESOURCE_EXHAUSTED"),
    "late": (504, "DEADLINE_EXCEEDED"),
    "unavailable": (503, "UNAVAILABLE"),
    "closed": (503, "UNAVAILABLE"),  # the model was unloaded after the request found it
    "internal": (500, "INTERNAL"),
}
Parameters = Mapping[str, Any]
NONE: dict[str, Any] = {}
TEXT = reprlib.Repr()
TEXT.maxstring = TEXT.maxother = 80


class RequestError(Error):
    """A rejected request. fault: a key of STATUSES. retry_after: seconds after which the client may try again."""

    def __init__(self, text: str, fault: str = "invalid", retry_after: float | None = None):
        super().__init__(text)
        self.fault, self.retry_after = fault, retry_after

    @property
    def status(self) -> int:
        """The status of HTTP."""
        return STATUSES[self.fault][0]

    @property
    def code(self) -> str:
        """The name of gRPC's status."""
        return STATUSES[self.fault][1]


class Disconnect(Exception):
    """The client has gone."""


@dataclass(slots=True)
class OutputRequest:
    """A requested output. binary: as raw bytes after the JSON. classes: number of the highest values to return as text
    instead of the tensor, 0 for the tensor. region: place in shared memory to write it to."""

    name: str
    binary: bool = False
    classes: int = 0
    region: tuple[str, int, int] | None = None  # name, offset, bytes


@dataclass(slots=True)
class InferRequest:
    """A request to run a model. version: "" for the latest. outputs: None for all, as `binary` says."""

    model: str
    version: str
    inputs: dict[str, np.ndarray]
    outputs: list[OutputRequest] | None = None
    id: str = ""
    parameters: Parameters = field(default_factory=dict)
    binary: bool = False


def shown(value: Any, most: int = 80) -> str:
    """Returns a value of JSON for a message, as text of about `most` characters: it may be nested as deeply, and be as
    large, as a client likes."""
    return repr((value if isinstance(value, str) else TEXT.repr(value))[:most])


def integer(value: Any, what: str, minimum: int = 0, maximum: int = (1 << 63) - 1) -> int:
    """Returns `value` if it is an integer in the range. Raises RequestError otherwise."""
    if type(value) is not int or not minimum <= value <= maximum:
        raise RequestError(f"{what} is an integer from {minimum} to {maximum}, got {shown(value)}")
    return value


def distinct(outputs: list[OutputRequest]) -> list[OutputRequest] | None:
    """Returns requested outputs, None for an empty list. Raises RequestError if one is requested twice."""
    names = set()
    for output in outputs:
        if output.name in names:
            raise RequestError(f"output '{output.name[:200]}' already exists in request: request it once")
        names.add(output.name)
    return outputs or None


def requested(name: Any, parameters: Any, binary: bool) -> OutputRequest:
    """Reads a requested output and its parameters; `binary` is the request's default."""
    if not isinstance(name, str) or not isinstance(parameters, Mapping):
        raise RequestError("a requested output has a name, a text, and may have parameters, an object")
    output = OutputRequest(name, parameters.get("binary_data", binary) is True)
    if "classification" in parameters:
        output.classes = integer(parameters["classification"], f"classification of output {name!r}", 0, 1 << 20)
    output.region = region(parameters, f"output {name!r}")
    return output


def region(parameters: Parameters, what: str) -> tuple[str, int, int] | None:
    """Reads a place in shared memory from the parameters of a tensor; None without one."""
    name = parameters.get("shared_memory_region")
    if name is None:
        return None
    if not isinstance(name, str):
        raise RequestError(f"shared_memory_region of {what} is a text, got {shown(name)}")
    size = integer(parameters.get("shared_memory_byte_size"), f"shared_memory_byte_size of {what}")
    offset = integer(parameters.get("shared_memory_offset", 0), f"shared_memory_offset of {what}")
    return name, offset, size
