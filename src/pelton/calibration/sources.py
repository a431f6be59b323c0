"""Sources of calibration data: a table, or a stream of arrays by name from a dict, a file, pictures, an iterator or a
calibrator."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pelton.logs import Logger
from pelton import preprocessing
from pelton.backends.arrays import to_numpy
from pelton.errors import InputAbsent, InputError
from pelton.ir import dims
from pelton.ir.graph import Graph, Value, optimum_sizes

from .algorithms import Algorithm
from .calibrators import DataCalibrator, IInt8Calibrator, algorithm_of
from .pointers import read_memory
from .table import MAGIC, CalibrationTable

log = Logger("pelton.build")

EXPECTED = (
    "calibration must be a dict of arrays, the path of an .npz file, a folder of pictures or a calibration table,"
    " an iterable of batches (dicts of arrays), a calibrator, or a CalibrationTable"
)


@dataclass(frozen=True)
class CalibrationSource:
    """A stream of arrays by name of input. `samples`: True if first axes count samples even if a whole array would be
    one batch; `items`, `rows`: the total numbers of items and rows, if known; `unit`: the name of one."""

    stream: Iterator[Mapping[str, Any]]
    samples: bool = False
    items: int | None = None
    rows: int | None = None
    unit: str = "sample"


def find_table(data: Any) -> CalibrationTable | None:
    """Returns the table that the data is, names by path, or has in its cache; None if it requires calibration.

    Raises InputError for tables that cannot be read. A cache of another algorithm is None, as in TensorRT.
    """
    if isinstance(data, CalibrationTable):
        return data
    if isinstance(data, IInt8Calibrator):
        cache = data.read_calibration_cache()
        if cache is None or not len(cache):
            return None
        where = f"the result of read_calibration_cache of {type(data).__name__}"
        table = CalibrationTable.from_bytes(cache, where)
        title = algorithm_of(data).title
        if table.algorithm == title:
            return table
        log.warning("%s is of %s, not of %s: it is not used", where, table.algorithm, title)
        return None
    if isinstance(data, (str, os.PathLike)) and not os.path.isdir(data) and _first_bytes(data) == MAGIC:
        return CalibrationTable.load(data)
    return None


def find_algorithm(data: Any, default: Algorithm) -> Algorithm:
    """Returns the algorithm of a calibrator; the default one of other data."""
    return algorithm_of(data) if isinstance(data, (IInt8Calibrator, DataCalibrator)) else default


def open_source(data: Any, graph: Graph, image: str | Path | None) -> CalibrationSource:
    """Opens the stream of a graph's inputs from data other than tables; image: preprocessing. InputError."""
    if isinstance(data, DataCalibrator):
        data = data.data
    if isinstance(data, IInt8Calibrator):
        return CalibrationSource(_batches(data, graph))
    if isinstance(data, Mapping):
        return CalibrationSource(iter([_named(data, graph)]), samples=True, items=1)
    if isinstance(data, np.ndarray) or hasattr(data, "__dlpack__"):
        return CalibrationSource(iter([_named(data, graph)]), samples=True, items=1)
    if isinstance(data, (str, os.PathLike)):
        if os.path.isdir(data):
            return _pictures(data, graph, image)
        return CalibrationSource(iter([_named(_read(data), graph)]), samples=True, items=1)
    if isinstance(data, Iterable):
        count = len(data) if isinstance(data, Sized) else None
        return CalibrationSource((_named(item, graph) for item in data), items=count)
    called = "; it is a function: call it and pass its result" if callable(data) else ""
    raise InputError(f"{EXPECTED}; got {type(data).__name__}{called}")


def _named(item: Any, graph: Graph) -> Mapping[str, Any]:
    """Returns arrays by name from a batch: a mapping, arrays in the order of the inputs, or one array."""
    names = [v.name for v in graph.inputs]
    if isinstance(item, Mapping):
        # np.savez(path, array)
        return {names[0]: item["arr_0"]} if list(item) == ["arr_0"] != names and len(names) == 1 else item
    if isinstance(item, (tuple, list)):
        if len(item) == len(names):
            return dict(zip(names, item))
        raise InputError(
            f"a calibration batch has {len(item)} arrays, but the model has {len(names)} inputs"
            f" ({', '.join(names)}); pass dicts from names to arrays, without labels"
        )
    if len(names) == 1:
        return {names[0]: item}
    raise InputError(
        f"a calibration batch is {type(item).__name__}, but the model has {len(names)} inputs"
        f" ({', '.join(names)}); pass dicts from names to arrays"
    )


def _first_bytes(path: str | os.PathLike[str]) -> bytes:
    try:
        with open(path, "rb") as f:
            return f.read(len(MAGIC))
    except FileNotFoundError as e:
        raise InputAbsent(f"the calibration data {os.fspath(path)} cannot be read: {e.strerror}", path) from None
    except OSError as e:
        raise InputError(f"the calibration data {os.fspath(path)} cannot be read: {e.strerror or e}") from None


def _read(path: str | os.PathLike[str]) -> Any:
    """Reads the arrays of an .npz file, or the one of an .npy file."""
    what = f"the calibration data {os.fspath(path)}"
    _first_bytes(path)  # raises if it cannot be read
    try:
        data = np.load(path, allow_pickle=False)
        if isinstance(data, np.ndarray):
            return data
        with data:
            return dict(data)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, NotImplementedError, MemoryError) as e:
        raise InputError(
            f"{what} is neither a calibration table nor an .npz file of numbers ({type(e).__name__}: {e}); {EXPECTED}"
        ) from None


def _pictures(folder: str | os.PathLike[str], graph: Graph, image: str | Path | None) -> CalibrationSource:
    """Opens the pictures in a folder and below it, in the order of their paths."""
    if image is None:
        raise InputError(
            f"calibrating with the pictures of {os.fspath(folder)} needs their preprocessing, image=;"
            f" {preprocessing.EXAMPLES}"
        )
    if len(graph.inputs) != 1:
        raise InputError(f"pictures are data for models with one input, this one has {len(graph.inputs)}")
    paths = sorted(
        os.path.join(where, name)
        for where, _, names in os.walk(folder)
        for name in names
        if preprocessing.is_picture(name)
    )
    if not paths:
        raise InputError(
            f"the folder {os.fspath(folder)} has no pictures; expected files that end in"
            f" {', '.join(preprocessing.SUFFIXES)}"
        )
    (value,), prepare = graph.inputs, preprocessing.parse(image)
    make = _array_maker(value, prepare)
    stream, count = ({value.name: make(p)} for p in paths), len(paths)
    return CalibrationSource(stream, samples=True, items=count, rows=count, unit="picture")


def _array_maker(value: Value, prepare: preprocessing.Preprocessing) -> Callable[[str], np.ndarray]:
    shape, dtype = value.type.shape, value.type.dtype.numpy
    prepare.axis(shape)  # raises before the first picture is read
    return lambda path: prepare.array(path, shape, dtype)


def _batches(calibrator: IInt8Calibrator, graph: Graph) -> Iterator[Mapping[str, Any]]:
    """Yields copies of a calibrator's batches: many calibrators write the next one into the same memory."""
    who, names = f"the calibrator {type(calibrator).__name__}", [v.name for v in graph.inputs]
    size = calibrator.get_batch_size()
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
        raise InputError(f"get_batch_size of {who} returned {size!r}, expected an integer above 0")
    while (batch := calibrator.get_batch(list(names))) is not None:
        if isinstance(batch, (list, tuple)) and not batch:
            return
        if isinstance(batch, (list, tuple)) and len(batch) != len(names):
            raise InputError(
                f"get_batch of {who} returned {len(batch)} arrays or addresses for {len(names)} inputs"
                f" ({', '.join(names)}); return one per input, in this order"
            )
        values = {v.name: v for v in graph.inputs}
        arrays = {}
        for name, x in _named(batch, graph).items():
            what = f"input {name!r} in get_batch of {who}"
            if isinstance(x, (int, np.integer)) and not isinstance(x, bool) and name in values:
                arrays[name] = _at_address(int(x), values[name], int(size), what, graph)
            else:
                arrays[name] = np.array(host_array(x, what))
        yield arrays


def _at_address(address: int, value: Value, size: int, what: str, graph: Graph) -> np.ndarray:
    """Reads a batch of so many samples from memory; other dynamic sizes are the optimum."""
    optimum = optimum_sizes(graph)
    shape = [int(dims.at(d, optimum)) for d in value.type.shape]
    if shape:
        first = value.type.shape[0]
        if isinstance(first, int) and size % first:
            raise InputError(
                f"get_batch_size returned {size} samples, but {what} has {first} along the first axis"
                f" ({value.type}); the memory at an address must hold get_batch_size samples, in full batches of"
                " the model"
            )
        shape[0] = size
    dtype = value.type.dtype.numpy
    return read_memory(address, int(np.prod(shape)) * dtype.itemsize, what).view(dtype).reshape(shape)


def host_array(value: Any, what: str) -> np.ndarray:
    """Converts an array of numpy or another library to numpy's; InputError for arrays on GPUs and for other objects."""
    if hasattr(value, "__cuda_array_interface__"):
        raise InputError(
            f"{what} is on a GPU; calibration runs on the CPU: copy it there, as with .cpu() (torch) or cupy.asnumpy"
        )
    array = to_numpy(value, what)
    if isinstance(array, np.generic):
        return np.asarray(array)
    if not isinstance(array, np.ndarray):
        raise InputError(f"{what} must be a numpy array, got {type(value).__name__}; convert it with np.asarray(value)")
    return array
