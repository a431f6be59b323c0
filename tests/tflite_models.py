"""Writes TFLite files for tests: tables by the importer's schema."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from pelton.importers.tflite.flatbuffer import SCALARS
from pelton.importers.tflite.schema import CUSTOM, DTYPES, OPERATORS, OPTIONS, OPTIONS2, SCHEMA

CODES = {d.value: code for code, d in DTYPES.items() if d is not None} | {"resource": 13, "string": 5, "c64": 8}
NUMBERS = {kind: ("options", number) for number, kind in OPTIONS.items()}
NUMBERS |= {kind: ("options2", number) for number, kind in OPTIONS2.items()}
VECTORS = {"Int32Vector": 1, "Uint16Vector": 2, "Uint8Vector": 3}


class _Writer:
    """Tables one behind the other, each in front of what it points to; everything at multiples of 16 bytes."""

    def __init__(self) -> None:
        self.data = bytearray(b"\0\0\0\0TFL3")

    def align(self) -> int:
        self.data += bytes(-len(self.data) % 16)
        return len(self.data)

    def table(self, kind: str, values: dict[str, Any]) -> int:
        fields, start = SCHEMA[kind], self.align()
        count = 1 + max((fields[name][0] for name in values), default=-1)
        places = {name: 8 * (i + 1) for i, name in enumerate(values)}
        slots = [0] * count
        for name, place in places.items():
            slots[fields[name][0]] = place
        size = 8 * (len(values) + 1)
        self.data += struct.pack(f"<HH{count}H", 4 + 2 * count, size, *slots)
        at = self.align()
        self.data += struct.pack("<i", at - start) + bytes(size - 4)
        for name, value in values.items():
            of, place = fields[name][1], at + places[name]
            if of in SCALARS:
                self.data[place : place + struct.calcsize(SCALARS[of])] = struct.pack("<" + SCALARS[of], value)
            else:
                target = self.table(*value) if of == "union" else self.thing(of, value)
                struct.pack_into("<I", self.data, place, target - place)
        return at

    def thing(self, of: str, value: Any) -> int:
        """A text, a vector or a table; where it begins."""
        if of == "string":
            text, at = value.encode(), self.align()
            self.data += struct.pack("<I", len(text)) + text + b"\0"
            return at
        if not of.startswith("["):
            return self.table(of, value)
        element = of[1:-1]
        if element in SCALARS:
            array = np.ascontiguousarray(value, "<" + SCALARS[element])
            at = self.align() + 12  # elements begin at a multiple of 16
            self.data += bytes(12) + struct.pack("<I", array.size) + array.tobytes()
            return at
        at = self.align()
        self.data += struct.pack("<I", len(value)) + bytes(4 * len(value))
        for i, part in enumerate(value):
            place = at + 4 + 4 * i
            struct.pack_into("<I", self.data, place, self.table(element, part) - place)
        return at


def written(model: dict[str, Any]) -> bytes:
    """The file of a `Model` table."""
    writer = _Writer()
    root = writer.table("Model", model)
    struct.pack_into("<I", writer.data, 0, root)
    return bytes(writer.data)


class Subgraph:
    """A subgraph under construction; tensors are numbers."""

    def __init__(self, model: ModelWriter, name: str):
        self.model, self.name = model, name
        self.tensors: list[dict[str, Any]] = []
        self.operators: list[dict[str, Any]] = []
        self.inputs: list[int] = []
        self.outputs: list[int] = []

    def tensor(
        self,
        shape: Any,
        dtype: str = "f32",
        data: Any = None,
        scale: Any = None,
        zero: Any = 0,
        axis: int = 0,
        signature: Any = None,
        name: str = "",
        **more: Any,
    ) -> int:
        found = dict(shape=shape, type=CODES[dtype], name=name or f"t{len(self.tensors)}")
        found["buffer"] = 0 if data is None else self.model.buffer(data)
        if scale is not None:
            scales = np.atleast_1d(np.asarray(scale, np.float32))
            zeros = np.broadcast_to(np.asarray(zero, np.int64), scales.shape)
            found["quantization"] = dict(scale=scales, zero_point=zeros, axis=axis)
        if signature is not None:
            found["shape_signature"] = signature
        self.tensors.append({**found, **more})
        return len(self.tensors) - 1

    def constant(self, array: Any, **more: Any) -> int:
        array = np.asarray(array)
        names = {"float32": "f32", "float16": "f16", "int32": "i32", "int64": "i64", "int8": "i8", "uint8": "u8"}
        names |= {"int16": "i16", "bool": "bool"}
        return self.tensor(array.shape, names[array.dtype.name], array, **more)

    def input(self, *args: Any, **more: Any) -> int:
        self.inputs.append(self.tensor(*args, **more))
        return self.inputs[-1]

    def output(self, *args: Any, **more: Any) -> int:
        self.outputs.append(self.tensor(*args, **more))
        return self.outputs[-1]

    def op(self, name: str, inputs: Any, outputs: Any, kind: str = "", custom: bytes | None = None, **options) -> None:
        code = self.model.code(name, custom is not None, options.pop("version", 1))
        found: dict[str, Any] = dict(code=code, inputs=list(inputs), outputs=list(outputs))
        if kind:
            union, number = NUMBERS[kind]
            found |= {f"{union}_type": number, union: (kind, options)}
        if custom:
            found["custom_options"] = np.frombuffer(custom, np.uint8)
        self.operators.append(found)

    def table(self) -> dict[str, Any]:
        return {k: getattr(self, k) for k in ("tensors", "inputs", "outputs", "operators", "name")}


class ModelWriter:
    """A model under construction."""

    def __init__(self) -> None:
        self.buffers: list[dict[str, Any]] = [{}]
        self.codes: list[dict[str, Any]] = []
        self.subgraphs: list[Subgraph] = []
        self.signatures: list[dict[str, Any]] = []
        self.main = self.subgraph("main")

    def subgraph(self, name: str) -> Subgraph:
        self.subgraphs.append(Subgraph(self, name))
        return self.subgraphs[-1]

    def buffer(self, data: Any) -> int:
        self.buffers.append(dict(data=np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)))
        return len(self.buffers) - 1

    def code(self, name: str, custom: bool, version: int) -> int:
        number = CUSTOM if custom else OPERATORS.index(name)
        found = dict(code=number, old_code=min(number, 127), version=version)
        found |= dict(custom_code=name) if custom else {}
        if found not in self.codes:
            self.codes.append(found)
        return self.codes.index(found)

    def signature(self, key: str, subgraph: int, inputs: dict[str, int], outputs: dict[str, int]) -> None:
        sides = ([dict(name=k, tensor=v) for k, v in side.items()] for side in (inputs, outputs))
        self.signatures.append(dict(zip(("inputs", "outputs"), sides), key=key, subgraph=subgraph))

    def table(self) -> dict[str, Any]:
        found = dict(version=3, codes=self.codes, subgraphs=[s.table() for s in self.subgraphs], buffers=self.buffers)
        return {**found, **(dict(signatures=self.signatures) if self.signatures else {})}

    def bytes(self) -> bytes:
        return written(self.table())
