"""Reads ONNX files as ModelProto and TensorProto as arrays, with all sizes and paths checked."""

from __future__ import annotations

import math
import mmap
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from pelton.errors import FormatError, ModelAbsent, ModelError
from pelton.importers import signs
from pelton.importers.registry import FORMATS
from pelton.ir.imported import Metadata
from pelton.ir.types import DType
from pelton.ops.foreign import DTYPES

from .names import names_in

LONGEST = 1 << 14  # characters of a name, as messages and engines repeat names
# bytes of a sparse tensor with its zeros, protobuf's limit for a dense one
LARGEST = 1 << 31
# bits per element of packed types, which onnx unpacks
PACKED = {DType.I4: 4, DType.U4: 4, DType.F4E2M1FN: 4, DType.I2: 2, DType.U2: 2, DType.F6E2M3FN: 6, DType.F6E3M2FN: 6}


@dataclass(frozen=True)
class Source:
    """A parsed model and its origin: `path` is None for bytes and objects; `opset` is the one before conversion;
    `files` are all that were read so far, in order: its own, then external data; `conversion` compares it with the
    model of another framework that it was converted from."""

    model: onnx.ModelProto
    path: Path | None
    opset: int | None = None
    files: dict[str, None] = field(default_factory=dict)
    conversion: str = ""

    @property
    def name(self) -> str:
        """Name of the model in messages."""
        return self.path.name if self.path else "the given model"


def read(source: str | os.PathLike | bytes | onnx.ModelProto | Source) -> Source:
    """Reads a model; raises ModelError if there is none. External data stays on disk until `array_of` reads it."""
    if isinstance(source, Source):
        return source
    if isinstance(source, onnx.ModelProto):
        return Source(source, None)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return Source(parse(bytes(source), "the given bytes"), None)
    if not isinstance(source, (str, os.PathLike)):
        raise ModelError(
            "expected the path of an ONNX model, its bytes or a ModelProto, or a model of another format (`pelton"
            f" formats`), got {type(source).__name__}"
        )
    path = Path(source)
    signs.refuse_others(path)
    try:
        if path.is_file() and path.stat().st_size >= 2**31:
            raise ModelError(
                f"{path} is larger than 2 GiB, the maximum of protobuf; store weights in a second file:"
                " onnx.save(model, path, save_as_external_data=True)"
            )
        data = _map_file(path)
    except FileNotFoundError:
        raise ModelAbsent(f"there is no file {path}", path) from None
    except OSError as e:
        raise ModelError(f"{path} cannot be read: {e.strerror}") from None
    return Source(parse(data, str(path)), path, files={str(path): None})


def _map_file(path: Path) -> bytes | memoryview:
    """Returns the bytes of a file, mapped if possible to keep them out of memory beside the parsed model."""
    with path.open("rb") as f:
        kind = os.fstat(f.fileno())
        return (
            memoryview(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ))
            if stat.S_ISREG(kind.st_mode) and kind.st_size
            else f.read()
        )


def parse(data: bytes | memoryview, name: str) -> onnx.ModelProto:
    """Parses the bytes of a file, called `name` in messages; raises ModelError if they are no model."""
    begin = bytes(data[:128])
    looks = " (it is empty)" if not begin else ""
    other = next((f for f in FORMATS if not f.about.covers and f.recognizes(bytes(data[: signs.HEAD]))), None)
    if other is not None:
        looks = f" (it looks like a model of {other.name}; {other.about.export})"
    elif begin[:4] == b"PK\x03\x04":
        looks = " (it looks like a zip archive or a PyTorch checkpoint: export the model to ONNX first)"
    elif begin and begin.isascii() and begin[:1].decode("latin-1").isprintable():
        looks = f" (it looks like text: {begin[:40].decode('ascii', 'replace')!r})"
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError:
        raise FormatError(
            f"{name} is no valid ONNX model: it is truncated, damaged or of another format{looks}; `pelton"
            " formats` lists supported formats"
        ) from None
    longest = 0
    for word in (word for graph in (model.graph, *model.functions) for word in names_in(graph)):
        if not isinstance(word, str):
            raise ModelError(f"{name} is damaged: it has names that are not UTF-8")
        longest = max(longest, len(word))
    if longest > LONGEST:
        raise ModelError(f"{name} has a name of {longest} characters; at most {LONGEST} are supported, shorten it")
    if not model.HasField("graph") or not model.ir_version:
        raise FormatError(f"{name} is no ONNX model: it has no graph or no version{looks}")
    return model


def metadata_of(model: onnx.ModelProto) -> Metadata:
    """Returns a model's metadata."""

    def text(value: str | bytes) -> str:
        # protobuf returns texts that are not UTF-8 as bytes
        return value if isinstance(value, str) else value.decode(errors="replace")

    return Metadata(
        text(model.producer_name),
        text(model.producer_version),
        text(model.domain),
        text(model.doc_string),
        model.model_version,
        text(model.graph.name),
        text(model.graph.doc_string),
        {text(p.key): text(p.value) for p in model.metadata_props},
    )


def array_of(tensor: onnx.TensorProto, source: Source) -> np.ndarray:
    """Returns the elements of a tensor; large external data stays memory-mapped.

    Raises ModelError if they are missing, too few, or of an unknown type.
    """
    where = f"tensor {tensor.name!r}, {source.name}"
    dtype = DTYPES.get(tensor.data_type)
    if dtype is None:
        known = tensor.data_type in onnx.TensorProto.DataType.values()
        name = onnx.TensorProto.DataType.Name(tensor.data_type) if known else str(tensor.data_type)
        raise ModelError(f"element type {name} is not supported ({where})")
    if any(d < 0 for d in tensor.dims):
        raise ModelError(f"a constant needs sizes of at least 0, got {list(tensor.dims)} ({where})")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return _external(tensor, dtype, source, where)
    # numpy bounds the bytes of an array, and ignores empty axes therein
    if math.prod(max(d, 1) for d in tensor.dims) >= 1 << 60:
        raise ModelError(f"a constant of shape {list(tensor.dims)} is larger than arrays can be ({where})")
    try:
        array = onnx.numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError, UnicodeDecodeError) as e:
        raise ModelError(
            f"the data of a constant of shape {list(tensor.dims)} and type {dtype.value} is damaged: {e} ({where})"
        ) from None
    return array.astype(dtype.numpy, copy=False)


_mapped = WeakValueDictionary[tuple[int, ...], mmap.mmap]()  # version of a file → its mapping


class ExternalFileError(ModelError):
    """A fault of an external file as a whole: one problem, however many tensors it holds."""

    def __init__(self, file: str, text: str):
        super().__init__(text)
        self.file = file


def _external(tensor: onnx.TensorProto, dtype: DType, source: Source, where: str) -> np.ndarray:
    entry = {e.key: e.value for e in tensor.external_data}
    location = entry.get("location", "")
    try:
        offset, length = int(entry.get("offset", 0)), int(entry["length"]) if "length" in entry else None
    except ValueError:
        raise ModelError(f"external data needs integers as offset and length, got {entry} ({where})") from None
    if source.path is None:
        raise ExternalFileError(
            location,
            f"the data is in an external file, {location!r}, but the model has no path; pass the path of the model"
            f" ({where})",
        )
    if dtype is DType.STRING:
        raise ModelError(f"strings cannot be in an external file ({where})")
    file = _locate_external(location, source.path, where)
    source.files[str(file)] = None
    count = math.prod(tensor.dims)
    needed = -(-count * PACKED[dtype] // 8) if dtype in PACKED else count * dtype.size
    if length is not None and length != needed:
        raise ModelError(
            f"{list(tensor.dims)} of {dtype.value} need {needed} bytes, but the model has {length} ({where})"
        )
    signs.refuse_others(file)
    about = file.stat()
    size = about.st_size
    if offset < 0 or offset + needed > size:
        raise ExternalFileError(
            location,
            f"external file {location!r} is too short: {needed} bytes at {offset} are needed, it has {size}; copy it"
            f" again ({where})",
        )
    try:
        if not needed:
            return np.zeros(tuple(tensor.dims), dtype.numpy)
        raw = np.frombuffer(_map(file, (about.st_dev, about.st_ino, about.st_mtime_ns, size)), np.uint8, needed, offset)
        if dtype in PACKED:
            return onnx.numpy_helper.to_array(
                onnx.TensorProto(dims=tensor.dims, data_type=tensor.data_type, raw_data=raw.tobytes())
            ).astype(dtype.numpy)
        return np.require(np.asarray(raw).view(dtype.numpy).reshape(tuple(tensor.dims)), requirements="A")
    except ValueError as e:
        # more axes than numpy has, or sizes beyond its integers beside one of 0
        raise ModelError(f"a constant of shape {list(tensor.dims)} cannot be held: {e} ({where})") from None


def _map(file: Path, version: tuple[int, ...]) -> mmap.mmap:
    """Maps a file, once for all models in use that read this version of it."""
    mapped = _mapped.get(version)
    if mapped is None:
        with open(file, "rb") as f:
            mapped = _mapped[version] = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    return mapped


def _locate_external(location: str, model: Path, where: str) -> Path:
    """Returns the external file, if it is in the model's folder (or, through links, in that of the model's link
    target)."""
    if not location:
        raise ModelError(f"external data without a location ({where})")
    if os.path.isabs(location) or "\0" in location or ".." in Path(location.replace("\\", "/")).parts:
        raise ExternalFileError(
            location,
            f"external data must be in the folder of the model, but its location is {location!r}; refused ({where})",
        )
    file = (model.parent / location).resolve()
    if not any(file.is_relative_to(folder) for folder in (model.parent.resolve(), model.resolve().parent)):
        raise ExternalFileError(
            location,
            f"external data must be in the folder of the model, but {location!r} leads to {file}; refused ({where})",
        )
    if not file.is_file():
        raise ExternalFileError(
            location,
            f"external file {location!r} is missing; it must be next to the model, in {model.parent} ({where})",
        )
    return file


def dense(sparse: onnx.SparseTensorProto, source: Source) -> np.ndarray:
    """Returns a sparse tensor with its zeros. `indices` are linear [n] or coordinates [n, rank]."""
    name = sparse.values.name
    where = f"sparse tensor {name!r}, {source.name}"
    values, indices = array_of(sparse.values, source), array_of(sparse.indices, source)
    shape = tuple(sparse.dims)
    if (
        any(d < 0 for d in shape)
        or values.ndim != 1
        or indices.shape not in {(values.size,), (values.size, len(shape))}
        or indices.dtype != np.int64
    ):
        raise ModelError(
            f"n values of a tensor of shape {list(shape)} need i64 indices [n] or [n, rank], "
            f"got values {list(values.shape)} and indices {list(indices.shape)} ({where})"
        )
    if math.prod(shape) * values.dtype.itemsize > LARGEST:
        raise ModelError(
            f"a sparse tensor may have at most {LARGEST} bytes with its zeros, {list(shape)} of {values.dtype} has"
            f" more ({where})"
        )
    try:
        out = np.zeros(shape, values.dtype)
        at = np.unravel_index(indices, shape) if indices.ndim == 1 else tuple(indices.T)
        if indices.size and indices.min() < 0:
            raise IndexError("negative index")
        out[at] = values
    except (IndexError, ValueError, MemoryError):
        raise ModelError(f"indices must be within shape {list(shape)}, which must fit into memory ({where})") from None
    return out
