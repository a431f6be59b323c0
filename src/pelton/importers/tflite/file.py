"""Reads TFLite files: subgraphs with their tensors and operators, constants as arrays, signatures."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pelton.errors import FormatError, ModelAbsent, ModelError
from pelton.ir.types import DType

from .flatbuffer import Table, root
from .schema import CUSTOM, DETAILS, DTYPES, IDENTIFIER, OPERATORS, OPTIONS, OPTIONS2, SCHEMA, TYPE_NAMES
from .sparse import densified

MAX_RANK = 8
BLOCKWISE = 2  # of DETAILS


@dataclass(frozen=True)
class Quantization:
    """Quantization parameters: real numbers are (integer − zero) · scale. One scale and zero point, or one for each
    axis element, or for each `block` of them; blocks' scales have as many axes as the tensor."""

    scale: np.ndarray  # f32[n]
    zero: np.ndarray  # i64[n]
    axis: int
    block: int = 0

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Quantization)
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero, other.zero)
            and (self.scale.size == 1 or (self.axis, self.block) == (other.axis, other.block))
        )


@dataclass(frozen=True, eq=False)
class TensorSpec:
    """A tensor in a file. `signature` has −1 for dynamic dimensions; dtype is None for handles and texts."""

    name: str
    code: int
    shape: tuple[int, ...]
    signature: tuple[int, ...]
    data: np.ndarray | None
    quantization: Quantization | None
    is_variable: bool

    @property
    def dtype(self) -> DType | None:
        return DTYPES.get(self.code)

    def __str__(self) -> str:
        kind = self.dtype.value if self.dtype else TYPE_NAMES.get(self.code, f"type {self.code}")
        return f"{self.name!r}: {kind}{list(self.shape)}"


@dataclass(frozen=True)
class OperatorOptions:
    """Options of a builtin operator: numbers, arrays and texts by name, and the schema's name for them."""

    kind: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class OperatorSpec:
    """An operator of a subgraph: indices of its tensors, −1 for absent ones."""

    name: str
    custom: bool
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: OperatorOptions | None
    custom_options: bytes


@dataclass(frozen=True)
class SubgraphSpec:
    name: str
    tensors: tuple[TensorSpec, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[OperatorSpec, ...]


@dataclass(frozen=True)
class SignatureSpec:
    """Names of the inputs and outputs of a subgraph: tensor → name."""

    key: str
    subgraph: int
    inputs: Mapping[int, str]
    outputs: Mapping[int, str]


@dataclass
class ModelSpec:
    """A TFLite file, whose subgraphs are read on demand."""

    data: memoryview
    name: str
    _read: dict[int, SubgraphSpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root = root(self.data, IDENTIFIER, "Model", SCHEMA)
        self._tables = self.root.get("subgraphs")
        self._buffers = self.root.get("buffers")
        if self.root.get("version") != 3:
            raise FormatError(f"{self.name}: expected version 3 of the schema, got {self.root.get('version')}")
        if not self._tables:
            raise FormatError(f"{self.name}: the file has no subgraph")

    @property
    def title(self) -> str:
        """Name of its program."""
        return self.name.rpartition(".")[0] or "tflite"

    def where(self, number: int, node: OperatorSpec, subgraph: SubgraphSpec) -> str:
        """Locates an operator for messages."""
        return f"operator {number}, {node.name}, of {subgraph.name!r} of {self.name}"

    @property
    def keeps_state(self) -> bool:
        """True if operators have variables, or tensors that persist between runs."""
        parts = (self.subgraph(i) for i in range(len(self._tables)))
        return any(name == "VAR_HANDLE" for name, *_ in self.codes) or any(
            t.is_variable for s in parts for t in s.tensors
        )

    @cached_property
    def codes(self) -> list[tuple[str, bool, int]]:
        """Name, True if it is a custom operator, and version of each operator code."""
        codes = []
        for table in self.root.get("codes"):
            code = max(table.get("code"), table.get("old_code"))
            if not 0 <= code < len(OPERATORS):
                raise ModelError(f"{self.name}: there is no builtin operator {code}")
            custom = code == CUSTOM
            codes.append((table.get("custom_code") if custom else OPERATORS[code], custom, table.get("version")))
        return codes

    @cached_property
    def signatures(self) -> tuple[SignatureSpec, ...]:
        return tuple(
            SignatureSpec(
                t.get("key"),
                t.get("subgraph"),
                *({m.get("tensor"): m.get("name") for m in t.get(side)} for side in ("inputs", "outputs")),
            )
            for t in self.root.get("signatures")
        )

    def subgraph(self, number: int) -> SubgraphSpec:
        if not 0 <= number < len(self._tables):
            raise FormatError(f"{self.name}: there is no subgraph {number}; the file has {len(self._tables)}")
        if number not in self._read:
            self._read[number] = self._subgraph(self._tables[number], number)
        return self._read[number]

    def _subgraph(self, table: Table, number: int) -> SubgraphSpec:
        tables = table.get("tensors")
        tensors = tuple(self._tensor(t, i, tables) for i, t in enumerate(tables))
        inputs, outputs = (self._numbers(table, side, len(tensors)) for side in ("inputs", "outputs"))
        operators = tuple(self._operator(t, len(tensors)) for t in table.get("operators"))
        return SubgraphSpec(table.get("name") or f"subgraph {number}", tensors, inputs, outputs, operators)

    def _numbers(self, table: Table, side: str, count: int) -> tuple[int, ...]:
        ids = tuple(map(int, table.get(side)))
        if any(not -1 <= i < count for i in ids):
            raise FormatError(f"{self.name}: a {table.kind} names a tensor that is none of {count}: {list(ids)[:8]}")
        return ids

    def _operator(self, table: Table, count: int) -> OperatorSpec:
        code = table.get("code")
        if code >= len(self.codes):
            raise FormatError(f"{self.name}: an operator has the code {code}; the file has {len(self.codes)}")
        name, custom, version = self.codes[code]
        options = None
        for union, kinds in (("options", OPTIONS), ("options2", OPTIONS2)):
            kind = kinds.get(table.get(f"{union}_type"))
            options = options if kind is None else _options(table.union(union, kind))
        custom_options = bytes(table.get("custom_options"))
        if custom and table.get("large_size"):
            custom_options = bytes(self._outside(table.get("large_offset"), table.get("large_size")))
        inputs, outputs = (self._numbers(table, side, count) for side in ("inputs", "outputs"))
        return OperatorSpec(name, custom, version, inputs, outputs, options, custom_options)

    def _outside(self, offset: int, size: int) -> memoryview:
        """Returns bytes behind the tables, where files of more than 2 GiB store them."""
        if offset + size > len(self.data):
            raise FormatError(
                f"{self.name}: a buffer reaches to byte {offset + size} of a file of {len(self.data)} bytes; it is cut"
                " off or damaged"
            )
        return self.data[offset : offset + size]

    def _tensor(self, table: Table, number: int, tables: Sequence[Table]) -> TensorSpec:
        name = table.get("name") or f"tensor{number}"
        shape = tuple(map(int, table.get("shape")))
        where = f"{self.name}: tensor {name!r}"
        if len(shape) > MAX_RANK or any(d < 0 for d in shape):
            raise FormatError(f"{where} has the shape {list(shape)[:12]}; expected up to {MAX_RANK} sizes from 0 on")
        signature = tuple(map(int, table.get("shape_signature"))) or shape
        if len(signature) != len(shape) or any(s not in (-1, d) for s, d in zip(signature, shape)):
            signature = shape
        code = table.get("type")
        quantization = self._quantization(table.get("quantization"), shape, tables, where)
        data = self._constant(table, shape, DTYPES.get(code), where)
        return TensorSpec(name, code, shape, signature, data, quantization, bool(table.get("is_variable")))

    def _quantization(
        self, table: Table | None, shape: tuple[int, ...], tables: Sequence[Table], where: str
    ) -> Quantization | None:
        kind = table.get("details_type") if table is not None else 0
        if table is None or not kind:
            return _quantization(table, shape, where)
        if kind != BLOCKWISE:
            raise ModelError(f"{where} is quantized by a {DETAILS.get(kind, kind)}, which is not supported")
        details = table.union("details", DETAILS[kind])
        if details is None:
            raise FormatError(f"{where} lacks the parameters of its {DETAILS[kind]}")
        scale = self._parameters(details.get("scales"), tables, where)
        zero = None if details.get("zero_points") < 0 else self._parameters(details.get("zero_points"), tables, where)
        return _blockwise(scale, zero, details.get("block_size"), shape, where)

    def _parameters(self, number: int, tables: Sequence[Table], where: str) -> np.ndarray:
        """Returns the constant that holds another tensor's scales or zero points."""
        if not 0 <= number < len(tables):
            raise FormatError(f"{where} has its scales in tensor {number}; there are {len(tables)}")
        shape, dtype = tuple(map(int, tables[number].get("shape"))), DTYPES.get(tables[number].get("type"))
        array = self._constant(tables[number], shape, dtype, where) if min(shape, default=0) >= 0 else None
        if array is None:
            raise ModelError(f"{where} has its scales in tensor {number}, which is no constant")
        return array

    def _constant(self, table: Table, shape: tuple[int, ...], dtype: DType | None, where: str) -> np.ndarray | None:
        number = table.get("buffer")
        if number >= len(self._buffers):
            raise FormatError(f"{where} is in buffer {number}; the file has {len(self._buffers)}")
        buffer = self._buffers[number]
        offset, size = buffer.get("offset"), buffer.get("size")
        stored = np.frombuffer(self._outside(offset, size), np.uint8) if offset > 1 else buffer.get("data")
        if not stored.size or dtype is None:
            return None
        sparsity = table.get("sparsity")
        if sparsity is not None:
            values = _typed(stored, stored.size // dtype.size, dtype, where)
            return densified(sparsity, values, shape, len(self.data), where)
        return _typed(stored, math.prod(shape), dtype, where).reshape(shape)


def _options(table: Table | None) -> OperatorOptions | None:
    return (
        None if table is None else OperatorOptions(table.kind, {k: table.get(k) for k in table.file.schema[table.kind]})
    )


_BITS = {DType.I4: 4, DType.U4: 4, DType.I2: 2}


def _typed(stored: np.ndarray, count: int, dtype: DType, where: str) -> np.ndarray:
    """Unpacks bytes to elements; narrow ones share a byte, the first in its lowest bits."""
    bits = _BITS.get(dtype, 8)
    each = 8 // bits
    needed = -(-count // each) if each > 1 else count * dtype.size
    if stored.size != needed:
        raise FormatError(f"{where} has {count} elements, {needed} bytes; its buffer has {stored.size}")
    if each > 1:  # moved to the highest bits, from where a shift repeats the sign
        highest = np.stack([stored << (8 - bits * (i + 1)) for i in range(each)], 1).reshape(-1)[:count]
        return (highest.view(np.uint8 if dtype is DType.U4 else np.int8) >> (8 - bits)).astype(dtype.numpy)
    if dtype is DType.BOOL:
        return stored != 0
    return stored.view(np.dtype(dtype.numpy).newbyteorder("<")) if dtype is not DType.BF16 else stored.view(dtype.numpy)


def _quantization(table: Table | None, shape: tuple[int, ...], where: str) -> Quantization | None:
    scale = np.zeros(0) if table is None else table.get("scale")
    if table is None or not scale.size:
        return None
    zero, axis = table.get("zero_point"), table.get("axis") if len(shape) != 1 else 0  # converters name any for a bias
    zero = np.zeros(scale.size, np.int64) if not zero.size else zero
    if zero.size != scale.size:
        zero = np.full(scale.size, zero[0])
    if not np.isfinite(scale).all() or (scale.size > 1 and not (0 <= axis < len(shape) and shape[axis] == scale.size)):
        raise ModelError(f"{where} of shape {list(shape)} has {scale.size} scales along axis {axis}: {scale[:4]}…")
    return Quantization(scale, zero, axis)


def _blockwise(
    scale: np.ndarray, zero: np.ndarray | None, block: int, shape: tuple[int, ...], where: str
) -> Quantization:
    """Returns a scale for each block of elements along the one axis with several in a block."""
    axes = [a for a, (d, n) in enumerate(zip(shape, scale.shape)) if d != n] or [len(shape) - 1]
    whole = len(shape) == scale.ndim > 0 and block > 0 and len(axes) == 1
    if not whole or scale.dtype.kind != "f" or shape[axes[0]] != block * scale.shape[axes[0]]:
        raise FormatError(
            f"{where} of shape {list(shape)} needs a scale for each block of {block} elements along one axis, got"
            f" {scale.dtype} scales of shape {list(scale.shape)}"
        )
    if zero is not None and (zero.shape != scale.shape or zero.dtype.kind not in "iu"):
        raise FormatError(
            f"{where} needs a zero point for each of {list(scale.shape)} scales, got {zero.dtype}{list(zero.shape)}"
        )
    if not np.isfinite(scale).all() or (scale < 0).any():
        raise FormatError(f"{where} needs scales of 0 and more, got {scale.min()} to {scale.max()}")
    zero_points = np.zeros(scale.shape, np.int64) if zero is None else zero.astype(np.int64)
    return Quantization(scale.astype(np.float32), zero_points, axes[0], block)


def name_of(source: Any) -> str:
    """Returns the name of a file, given by its path or its bytes, in messages."""
    return "the given bytes" if isinstance(source, (bytes, bytearray, memoryview)) else Path(os.fspath(source)).name


def opened(source: Any) -> ModelSpec:
    """Opens a file by its path or its bytes; raises FormatError if it is not one."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return ModelSpec(memoryview(source).cast("B"), name_of(source))
    path = Path(os.fspath(source))
    try:
        return ModelSpec(memoryview(path.read_bytes()), name_of(source))
    except FileNotFoundError:
        raise ModelAbsent(f"there is no file {path}", path) from None
    except OSError as e:
        raise FormatError(f"cannot read {path}: {e}") from None
