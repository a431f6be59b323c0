"""Messages of gRPC and of model configurations, from a compiled schema.

`make serve-schema` compiles `open_inference.proto` to `schema.binpb`. The classes live in a descriptor pool of their
own: any version of protobuf reads it, and the messages of an imported client do not interfere.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

COMPILED = Path(__file__).with_name("schema.binpb")
SERVICE = "inference.GRPCInferenceService"


@functools.cache
def pool() -> Any:
    """Returns the descriptor pool of the schema."""
    files = descriptor_pb2.FileDescriptorSet.FromString(COMPILED.read_bytes())
    descriptors = descriptor_pool.DescriptorPool()
    for file in files.file:
        descriptors.AddSerializedFile(file.SerializeToString())
    return descriptors


@functools.cache
def message(name: str) -> Any:
    """Returns the class of a message, such as `ModelInferRequest`."""
    return message_factory.GetMessageClass(pool().FindMessageTypeByName(f"inference.{name}"))


def methods() -> list[Any]:
    """Returns the descriptors of the service's methods: `name`, `input_type`, `output_type`, `client_streaming`."""
    return list(pool().FindServiceByName(SERVICE).methods)
