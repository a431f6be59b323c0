"""Changes by session options to a model before its build: sizes by axis denotation, and constants."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.logs import Logger
from pelton.errors import ModelError

if TYPE_CHECKING:
    import onnx

log = Logger("pelton.session")


@dataclass
class Changes:
    """`denoted`: denotation of an axis → its size. `constants`: name of an initializer → the array in its place.
    `files`: name of a file of external data → its bytes."""

    denoted: dict[str, int] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def digests(self) -> list[str]:
        """Returns digests of all changes, part of an engine's key."""

        def digest(data: Any) -> str:
            return hashlib.sha256(data).hexdigest()

        return [
            *(f"{name}={size}" for name, size in sorted(self.denoted.items())),
            *(f"{name}: {a.dtype.str}{[*a.shape]} {digest(_bytes(a))}" for name, a in sorted(self.constants.items())),
            *(f"{name} {digest(data)}" for name, data in sorted(self.files.items())),
        ]

    def apply(self, model: onnx.ModelProto) -> None:
        """Applies the changes to a model. Raises ModelError for arrays that ONNX cannot hold and data out of bounds."""
        for value in (*model.graph.input, *model.graph.output, *model.graph.value_info) if self.denoted else ():
            for d in value.type.tensor_type.shape.dim:
                if d.denotation in self.denoted:
                    d.dim_value = self.denoted[d.denotation]
        for t in model.graph.initializer if self.files else ():
            self._read(t)
        if self.constants:
            self._replace(model.graph)

    def _replace(self, graph: onnx.GraphProto) -> None:
        from onnx import numpy_helper

        missing = self.constants.keys() - {t.name for t in graph.initializer}
        if missing:
            log.warning(
                "add_initializer ignores %s: the model has no such initializers",
                ", ".join(map(repr, sorted(missing))),
            )
        declared = {v.name: v.type.tensor_type for v in (*graph.input, *graph.value_info)}
        for t in graph.initializer:
            if t.name in self.constants:
                try:
                    t.CopyFrom(numpy_helper.from_array(self.constants[t.name], t.name))
                except (TypeError, ValueError, NotImplementedError) as e:
                    raise ModelError(
                        f"add_initializer: the array for {t.name!r} cannot be a tensor of ONNX: {e}"
                    ) from None
                # an initializer that is also an input: its declared shape is obsolete
                if t.name in declared:
                    declared[t.name].ClearField("shape")
                    for size in t.dims:
                        declared[t.name].shape.dim.add(dim_value=size)

    def _read(self, tensor: onnx.TensorProto) -> None:
        """Reads the data of a tensor from an in-memory file."""
        entry = {e.key: e.value for e in tensor.external_data}
        data = self.files.get(entry.get("location", "")) if tensor.data_location == 1 else None
        if data is None:
            return
        try:
            offset = int(entry.get("offset", 0))
            length = int(entry.get("length", len(data) - offset))
        except ValueError:
            raise ModelError(
                f"tensor {tensor.name!r} has its data at {entry.get('offset')!r}, {entry.get('length')!r} bytes of it,"
                f" of {entry['location']}: these are not numbers"
            ) from None
        if not 0 <= offset <= offset + length <= len(data):
            raise ModelError(
                f"tensor {tensor.name!r} has its data at bytes {offset} to {offset + length} of"
                f" {entry['location']}, a file of {len(data)}"
            )
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
        tensor.raw_data = data[offset : offset + length]


def _bytes(array: np.ndarray) -> Any:
    """Returns the bytes to digest for an array: its elements, or the representation of its strings."""
    return repr(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes()


def files_on_disk(names: list[str], files: Mapping[str, bytes]) -> list[str]:
    """Returns the external data files on disk: those without a replacement."""
    return [name for name in names if name not in files]
