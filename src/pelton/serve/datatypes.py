"""Element types of the protocols: names, numpy's types, raw bytes and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .requests import RequestError, shown

# Open Inference Protocol's name → Pelton's name of the element type, size in bytes
DATATYPES = {
    "BOOL": ("bool", 1),
    "UINT8": ("u8", 1),
    "UINT16": ("u16", 2),
    "UINT32": ("u32", 4),
    "UINT64": ("u64", 8),
    "INT8": ("i8", 1),
    "INT16": ("i16", 2),
    "INT32": ("i32", 4),
    "INT64": ("i64", 8),
    "FP16": ("f16", 2),
    "BF16": ("bf16", 2),
    "FP32": ("f32", 4),
    "FP64": ("f64", 8),
    "BYTES": ("string", 0),
}
NAMES = {pelton: name for name, (pelton, _) in DATATYPES.items()}
NUMPY = {
    name: np.dtype({"bool": "?", "string": "O", "bf16": "<u2"}.get(pelton, "<" + pelton[0] + str(size)))
    for name, (pelton, size) in DATATYPES.items()
}
OF_NUMPY = {dtype: name for name, dtype in NUMPY.items() if name != "BF16"}
MOST = (1 << 63) - 1  # elements and bytes that a tensor may claim to have
KINDS = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}  # kind of the tensor → kinds of the JSON numbers that fit


def elements(shape: Any, name: str) -> int:
    """Returns the number of elements of a shape from a request. Raises RequestError if it is no shape."""
    count = 1
    if type(shape) is not list:
        raise RequestError(f"shape of input {name!r} is a list of sizes, got {shown(shape)}")
    for size in shape:
        if type(size) is not int or size < 0:
            raise RequestError(f"shape of input {name!r} has sizes of 0 and more, got {shown(size)}")
        count *= size
    if count > MOST:
        raise RequestError(f"shape of input {name!r} causes total element count to exceed maximum size of {MOST}")
    return count


def numpy_type(datatype: Any, name: str) -> np.dtype:
    """Returns numpy's type for a datatype of the protocol; BF16 is u16."""
    dtype = NUMPY.get(datatype) if isinstance(datatype, str) else None
    if dtype is None:
        raise RequestError(f"datatype of input {name!r} is one of {', '.join(NUMPY)}, got {shown(datatype)}")
    return dtype


def from_raw(raw: Any, datatype: str, shape: Sequence[int], count: int, name: str) -> np.ndarray:
    """Reads a tensor of `count` elements from its bytes (little endian, row-major); numbers are not copied."""
    dtype = numpy_type(datatype, name)
    if datatype == "BYTES":
        return strings_from_raw(raw, count, name).reshape(shape)
    size = count * dtype.itemsize
    if size > MOST:
        raise RequestError(f"byte size overflow for input {name!r}: {count} elements of {datatype}")
    if size != len(raw):
        raise RequestError(
            f"input {name!r} of shape {list(shape)} and datatype {datatype} has {size} bytes, got {len(raw)}"
        )
    if datatype == "BOOL" and count and np.frombuffer(raw, np.uint8).max() > 1:
        raise RequestError(f"input {name!r} of datatype BOOL has bytes of 0 and 1 alone")
    return np.frombuffer(raw, dtype).reshape(shape)


def strings_from_raw(raw: Any, count: int, name: str) -> np.ndarray:
    """Reads BYTES elements: each has its length in front, 4 bytes, little endian."""
    view, at, end = memoryview(raw), 0, len(raw)
    if count * 4 > end:
        raise RequestError(f"input {name!r} has {count} elements of BYTES, of at least 4 bytes each, in {end} bytes")
    array = np.empty(count, object)
    for i in range(count):
        begin = at + 4
        at = begin + int.from_bytes(view[at:begin], "little")
        if begin > end or at > end:
            raise RequestError(f"element {i} of input {name!r} ends after the {end} bytes of the tensor")
        array[i] = str(view[begin:at], "utf-8", "surrogateescape")
    if at != end:
        raise RequestError(f"input {name!r} has {count} elements of BYTES and {end - at} bytes after them")
    return array


def strings(array: np.ndarray) -> list[bytes]:
    """Returns the elements of a tensor of strings as bytes."""
    return [v if isinstance(v, bytes) else str(v).encode("utf-8", "surrogateescape") for v in array.reshape(-1)]


def to_raw(array: np.ndarray) -> Any:
    """Returns the bytes of a tensor, without a copy if it is contiguous."""
    if array.dtype.kind == "O":
        return b"".join(len(v).to_bytes(4, "little") + v for v in strings(array))
    if not array.size:
        return b""
    if not array.flags.c_contiguous:
        return array.tobytes()
    numbers = array.view(np.uint16) if array.dtype.kind == "V" else array
    return numbers.data.cast("B")


def from_json(
    data: Any, datatype: str, shape: Sequence[int], count: int, name: str, booleans: bool = True
) -> np.ndarray:
    """Reads a tensor from JSON: a flat or nested list in row-major order. Numbers that the type cannot hold are
    rejected, never rounded to integers or wrapped. booleans: False if there are none in the whole request."""
    dtype = numpy_type(datatype, name)
    if datatype == "BF16":
        raise RequestError(f"input {name!r}: BF16 has no JSON form; send it as binary data")
    if dtype.itemsize and count > MOST // dtype.itemsize:
        raise RequestError(f"byte size overflow for input {name!r}: {count} elements of {datatype}")
    if datatype == "BYTES":
        flat = flat_strings(data, name)
    else:
        flat = numbers(data, dtype, datatype, name, booleans)
    if flat.size != count:
        raise RequestError(f"input {name!r} of shape {list(shape)} has {count} elements, got {flat.size}")
    return flat.reshape(shape)


def numbers(data: Any, dtype: np.dtype, datatype: str, name: str, booleans: bool = True) -> np.ndarray:
    """Reads numbers from nested lists of JSON, of any consistent shape."""
    try:
        natural = np.asarray(data)
    except (ValueError, OverflowError) as e:  # ragged
        raise RequestError(f"data of input {name!r} is no tensor: {e}") from None
    if not natural.size:
        return np.zeros(natural.shape, dtype)
    if natural.dtype.kind == "f" and dtype.kind == "u" and _whole(data):  # numpy has no type for 1 beside 2^63
        natural = np.array(data, object)
        natural = natural.astype(dtype) if 0 <= natural.min() and natural.max() <= np.iinfo(dtype).max else natural
    if natural.dtype.kind not in KINDS[dtype.kind] or (booleans and dtype.kind != "b" and _has_booleans(data)):
        raise RequestError(f"data of input {name!r} does not fit {datatype}: it holds {_kind_of(natural)}")
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if int(natural.min()) < limits.min or int(natural.max()) > limits.max:
            raise RequestError(f"data of input {name!r} exceeds {datatype}, {limits.min} to {limits.max}")
    try:
        with np.errstate(over="raise"):
            return natural.astype(dtype, copy=False)
    except FloatingPointError:
        raise RequestError(f"data of input {name!r} exceeds the range of {datatype}") from None


def _leaves(data: Any) -> Iterator[Any]:
    """Yields the values in nested lists."""
    pending = [data]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending.extend(value)
        else:
            yield value


def _whole(data: Any) -> bool:
    return all(type(value) is int for value in _leaves(data))


def _has_booleans(data: Any) -> bool:
    """Returns True if there is a boolean among the values, which numpy takes for 0 or 1."""
    return any(value is True or value is False for value in _leaves(data))


def _kind_of(array: np.ndarray) -> str:
    names = {"b": "booleans", "i": "integers", "u": "integers", "f": "fractions or integers above 2^63"}
    return names.get(array.dtype.kind, "values that are not all numbers, or not all booleans")


def flat_strings(data: Any, name: str) -> np.ndarray:
    """Reads texts from nested lists of JSON."""
    flat: list[str] = []
    pending = [data]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending.extend(reversed(value))
        elif isinstance(value, str):
            flat.append(value)
        else:
            raise RequestError(f"data of input {name!r} of datatype BYTES are texts, got {shown(value)}")
    array = np.empty(len(flat), object)
    array[:] = flat
    return array


def to_json(array: np.ndarray, name: str) -> list[Any]:
    """Returns the elements of a tensor for JSON, in row-major order."""
    if array.dtype.kind == "O":
        try:
            return [v.decode() for v in strings(array)]
        except UnicodeDecodeError:
            raise RequestError(f"output {name!r} holds bytes that are no UTF-8; request it as binary data") from None
    if array.dtype.kind == "V":
        raise RequestError(f"output {name!r}: BF16 has no JSON form; request it as binary data")
    return array.reshape(-1).tolist()


def datatype_of(array: np.ndarray) -> str:
    """Returns the protocol's name of an array's element type."""
    return "BF16" if array.dtype.kind == "V" else OF_NUMPY[array.dtype]


def classified(array: np.ndarray, count: int, labels: Sequence[str], batched: bool) -> np.ndarray:
    """Returns the `count` highest values of each row as texts "value:index" or "value:index:label" (extension
    "classification"), highest first. batched: the first axis counts rows."""
    if array.dtype.kind not in "fiu":
        raise RequestError("a classification needs an output of numbers")
    rows = array.reshape(array.shape[0] if batched and array.ndim else 1, -1)
    count = min(count, rows.shape[1])
    best = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :count]
    texts = np.empty(best.shape, object)
    for row in range(len(best)):
        for rank, index in enumerate(best[row]):
            value = rows[row, index]
            number = f"{float(value):f}" if array.dtype.kind == "f" else str(int(value))
            texts[row, rank] = f"{number}:{index}" + (f":{labels[index]}" if index < len(labels) else "")
    return texts if batched else texts.reshape(math.prod(texts.shape))
