"""ONNX files with weights inside, or in a separate file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx

from pelton.errors import InputError
from pelton.ir.types import STRING, DType
from pelton.ops.foreign import CODES
from pelton.system import files

LARGEST = (1 << 31) - (1 << 24)  # bytes of weights that fit into one protobuf message, beside the nodes
SMALL = 1024  # bytes up to which an array stays in the model
ALIGNED = 4096  # bytes: external arrays can be mapped


def put_arrays(model: onnx.ModelProto, arrays: Mapping[str, np.ndarray]) -> None:
    """Adds initializers to a model; raises InputError above 2 GB."""
    if (total := sum(a.nbytes for a in arrays.values())) > LARGEST:
        raise InputError(
            f"{total / 1e9:.1f} GB of weights do not fit into one ONNX model: pass a path, to store weights in a"
            " second file"
        )
    model.graph.initializer.extend(tensor(name, a) for name, a in arrays.items())


def tensor(name: str, array: np.ndarray) -> onnx.TensorProto:
    """Converts an array to an initializer."""
    dtype = DType.of(array)
    if dtype is STRING or dtype.bits < 8 and dtype.size == 1:
        return onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
    return onnx.TensorProto(name=name, data_type=CODES[dtype.value], dims=array.shape, raw_data=_bytes(array))


def _bytes(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False)).tobytes()


def save(
    model: onnx.ModelProto,
    arrays: Mapping[str, np.ndarray],
    path: str | os.PathLike[str],
    external: bool | None = None,
) -> onnx.ModelProto:
    """Writes a model with these initializers to a file, atomically; raises InputError if that fails."""
    path = Path(path)
    if reason := files.rejection(path):
        raise InputError(f"{path} cannot be written: {reason}")
    if external is None:
        external = sum(a.nbytes for a in arrays.values()) > LARGEST
    beside = {k: a for k, a in arrays.items() if external and a.nbytes > SMALL and DType.of(a).bits >= 8}
    put_arrays(model, {k: a for k, a in arrays.items() if k not in beside})
    try:
        if beside:
            weights = path.with_name(path.name + ".data")
            end = 0
            for name, a in beside.items():
                start = end + -end % ALIGNED
                end = start + a.nbytes
                model.graph.initializer.append(_reference(name, a, weights.name, start))
            files.write(weights, _pieces(beside))
        files.write(path, [model.SerializeToString()])
    except OSError as e:
        raise InputError(f"{e.filename or path} cannot be written: {e.strerror}") from None
    return model


def _pieces(arrays: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    end = 0
    for a in arrays.values():
        yield bytes(-end % ALIGNED)
        yield _bytes(a)
        end += -end % ALIGNED + a.nbytes


def _reference(name: str, array: np.ndarray, file: str, start: int) -> onnx.TensorProto:
    proto = onnx.TensorProto(
        name=name,
        data_type=CODES[DType.of(array).value],
        dims=array.shape,
        data_location=onnx.TensorProto.EXTERNAL,
    )
    for key, value in (("location", file), ("offset", start), ("length", array.nbytes)):
        proto.external_data.add(key=key, value=str(value))
    return proto
