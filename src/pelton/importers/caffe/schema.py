"""The messages of Caffe's files: `caffe.proto` with the fields that forks add, from a compiled schema.

`make caffe-schema` compiles the .proto files here to `schema.binpb`. Classes are created from it when a model is read,
in a pool of their own: any version of protobuf reads it, and a `caffe_pb2` of the program does not interfere.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

COMPILED = Path(__file__).with_name("schema.binpb")
OF_ALL = ("python_param", "transform_param", "loss_param")  # parameters that do not affect a layer's function
Message = Any  # classes created at run time have no type to check


@functools.cache
def message_class(name: str) -> Message:
    """Returns the class of a message, such as `NetParameter`, or `weights.NetParameter`, its part for weights."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"caffe.{name}"))


def parameters(layer: Message) -> tuple[dict[str, Any], list[Message | None]]:
    """Returns the fields that a layer sets in its own parameters (`pooling_param`, …), nested messages included, with
    enumeration values by name; and its fillers, in the order of the schema."""
    fields: dict[str, Any] = {}
    fillers: list[Message | None] = []

    def read(message: Message) -> None:
        for field, value in message.ListFields():
            several = hasattr(value, "append")
            if field.message_type is not None and not several:
                fillers.append(value) if field.message_type.name == "FillerParameter" else read(value)
            elif field.enum_type is not None:
                names = field.enum_type.values_by_number
                fields[field.name] = tuple(names[v].name for v in value) if several else names[value].name
            else:
                fields[field.name] = tuple(value) if several else value

    for field, value in layer.ListFields():
        if field.message_type is not None and field.name.endswith("_param") and field.name not in OF_ALL:
            read(value)
    return fields, fillers


def enum_name(message: Message, enum: str, number: int) -> str:
    """Returns the name of a value of a message's enumeration."""
    return str(message.DESCRIPTOR.enum_types_by_name[enum].values_by_number[number].name)


@functools.cache
def _pool() -> Message:
    files = {f.name: f for f in descriptor_pb2.FileDescriptorSet.FromString(COMPILED.read_bytes()).file}
    caffe, forks = files["caffe.proto"], files["forks.proto"]
    known = {m.name: m for m in caffe.message_type}
    for message in forks.message_type:
        _rename(message)
        if message.name in known:
            known[message.name].field.extend(message.field)
            enums = {e.name: e for e in known[message.name].enum_type}
            for enum in message.enum_type:
                enums[enum.name].value.extend(enum.value)
        else:
            caffe.message_type.append(message)
    pool = descriptor_pool.DescriptorPool()
    for file in (caffe, files["weights.proto"]):
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def _rename(message: Message) -> None:
    """Moves the names in a fork's message into the package of caffe.proto."""
    for field in message.field:
        if field.type_name:
            field.type_name = field.type_name.replace(".caffe.forks.", ".caffe.")
    for inner in message.nested_type:
        _rename(inner)
