"""Callers' arrays: checks them against ports, copies those that only a copy makes fit, and draws random ones."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from pelton.engine.plan import Port, numpy_dtype
from pelton.errors import EngineError, InputError, near

from pelton.system import share

from . import dlpack

# a port, and the facts that every run checks: its name, dtype and shape
PortCheck = tuple[Port, str, np.dtype, tuple[int, ...]]


class _BorrowedMemory:
    """Exposes memory of another library to numpy, whose arrays keep this object and thus its owner alive."""

    def __init__(self, borrowed: dlpack.BorrowedArray, dtype: np.dtype):
        strides = None if borrowed.strides is None else tuple(s * dtype.itemsize for s in borrowed.strides)
        self.__array_interface__ = {
            "shape": borrowed.shape,
            "typestr": dtype.str,
            "data": (borrowed.address, not borrowed.writable),
            "strides": strides,
            "version": 3,
        }
        self.keeper = borrowed.keeper


def to_numpy(value: Any, what: str) -> Any:
    """Converts an array of another library to numpy: over the same memory if DLPack reports CPU memory, else by its
    `__array__`. Returns other values unchanged. Raises InputError if the library refuses, or for memory of a device."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value
    if (array := borrow(value, what)) is not None:
        return array
    if hasattr(value, "__array__"):
        try:
            return np.asarray(value)
        except dlpack.REFUSALS as e:
            raise InputError(f"{what} cannot become an array in the memory of the CPU: {e}") from None
    if kind := dlpack.device_of(value, what)[0]:
        raise InputError(f"{what} is on a device of DLPack type {kind}; copy it to CPU memory")
    return value


def borrow(value: Any, what: str) -> np.ndarray | None:
    """Returns a numpy array over another library's array; None if DLPack does not report CPU memory."""
    if dlpack.device_of(value, what)[0] not in (dlpack.CPU, dlpack.CUDA_HOST):
        return None
    borrowed = dlpack.import_array(value, what)
    try:
        dtype = numpy_dtype(borrowed.dtype)
    except EngineError as e:
        raise InputError(f"{what}: {e}") from None
    if 0 in borrowed.shape:
        return np.empty(borrowed.shape, dtype)
    if dtype.isbuiltin == 1:
        return np.asarray(_BorrowedMemory(borrowed, dtype))
    # types of ml_dtypes, which the interface cannot describe
    return np.asarray(_BorrowedMemory(borrowed, np.dtype(f"u{dtype.itemsize}"))).view(dtype)


def inputs_to_numpy(inputs: Any) -> Any:
    """Returns the inputs by name, with arrays of other libraries as numpy arrays (see `to_numpy`)."""
    if (type(inputs) is dict or isinstance(inputs, Mapping)) and {*map(type, inputs.values())} != {np.ndarray}:
        return {name: to_numpy(value, f"input {name!r}") for name, value in inputs.items()}
    return inputs


def out_array(port: Port, given: Any) -> np.ndarray:
    """Returns the `out` array of an output as a numpy array over its memory, of the port's dtype and shape; raises
    InputError if results cannot be written straight into it."""
    array = given if isinstance(given, (np.ndarray, np.generic)) else borrow(given, f"out[{port.name!r}]")
    if type(array) is not np.ndarray or array.dtype != port.numpy_dtype or array.shape != port.shape:
        refuse_out(port, given if array is None else array)
    return array


def named_inputs(ports: Sequence[Port], arrays: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Maps the arguments of a call to inputs by name; raises InputError for too many, too few or duplicates."""
    if len(arrays) > len(ports) or (len(arrays) < len(ports) and not named):
        raise InputError(
            f"expected {len(ports)} arrays ({', '.join(f'{p.name}: {p}' for p in ports)}), got {len(arrays)}"
        )
    inputs = dict(zip((p.name for p in ports), arrays))
    for name, array in named.items():
        if name in inputs:
            raise InputError(f"input {name!r} is passed twice, in order and by name")
        inputs[name] = array
    return inputs


def fit(port: Port, given: Any) -> np.ndarray:
    """Returns `given` as an array of the port's type, shape and native byte order, contiguous and aligned: itself if it
    fits, else a copy of equal values.

    Raises InputError, with the remedy, if a copy does not suffice.
    """
    what = f"input {port.name!r} needs {port}"
    dtype = port.numpy_dtype
    if isinstance(given, np.generic):
        given = np.asarray(given)  # a numpy scalar knows its type
    if not isinstance(given, np.ndarray):
        raise InputError(
            f"{what} as a numpy array, got {_kind(given)}; np.asarray(value, dtype=np.{dtype.name}) makes one"
        )
    if isinstance(given, np.ma.MaskedArray):
        raise InputError(
            f"{what}, got a masked array, whose mask would be lost; fill it with {port.name}.filled(value)"
        )
    if port.dtype == "string":
        return _strings(given, port, what)
    if given.dtype.hasobject:
        raise InputError(
            f"{what} (numpy {dtype.name}), got an array of Python objects, shape {list(given.shape)}; make an"
            f" array of numbers with np.asarray(value.tolist(), dtype=np.{dtype.name})"
        )
    if given.dtype.newbyteorder("=") != dtype:
        raise InputError(
            f"{what} (numpy {dtype.name}), got {given.dtype.name}; convert it with .astype(np.{dtype.name})"
        )
    check_shape(port, given.shape, what)
    if type(given) is np.ndarray and given.dtype == dtype and given.flags.c_contiguous and given.flags.aligned:
        return given
    return np.array(given, dtype=dtype, order="C", copy=True, subok=False)


def check_indices(port: Port, given: np.ndarray) -> None:
    """Raises InputError for an index outside its table."""
    allowed = port.indices
    if allowed is not None and given.size and not allowed.low <= given.min() <= given.max() <= allowed.high:
        place = np.argwhere((given < allowed.low) | (given > allowed.high))[0].tolist()
        raise InputError(
            f"input {port.name!r} has {given[tuple(place)]} at {place}, but indices of layer {allowed.layer!r}"
            f" must be from {allowed.low} to {allowed.high}"
        )


def _strings(given: np.ndarray, port: Port, what: str) -> np.ndarray:
    """Converts strings to an array of str objects: numpy's string arrays are copied, arrays of objects checked."""
    if given.dtype.kind == "S":
        raise InputError(f"{what}, got bytes; decode them with np.char.decode(value, 'utf-8')")
    if given.dtype.kind not in "OUT":
        raise InputError(f"{what}, got {given.dtype.name}; make strings of it with .astype(str)")
    check_shape(port, given.shape, what)
    array = np.asarray(given, object, order="C")
    wrong = next((v for v in array.flat if not isinstance(v, str)), "")
    if not isinstance(wrong, str):
        raise InputError(
            f"{what}, got an array of objects that holds {_kind(wrong)}, {wrong!r:.50}; every element must be a str"
        )
    return array


def random_inputs(ports: Sequence[Port], seed: int = 0) -> dict[str, np.ndarray]:
    """Draws arrays by name for ports of static shapes: floats from a normal distribution; integers, bools and strings
    are 0 or 1 (valid indices for most tables). Raises InputError if there is not enough memory."""
    # drawn in 64 bits, then converted
    need, have = 16 * sum(math.prod(max(d, 1) for d in p.numbers) for p in ports), share.memory()
    if need > have:
        raise InputError(
            f"inputs of these sizes take {need / 1e9:.1f} GB to make up, this process may use {have / 1e9:.1f} GB;"
            " smaller ones are needed: " + ", ".join(f"{p.name} {p}" for p in ports)
        )
    rng = np.random.default_rng(seed)

    def draw(port: Port) -> np.ndarray:
        if port.dtype == "string":
            return rng.integers(0, 2, port.numbers).astype(str)
        whole, below = port.numpy_dtype.kind in "iub", 2 if port.indices is None else min(2, port.indices.high + 1)
        return (rng.integers(0, below, port.numbers) if whole else rng.standard_normal(port.numbers)).astype(
            port.numpy_dtype
        )

    return {p.name: draw(p) for p in ports}


def port_checks(ports: Sequence[Port]) -> list[PortCheck]:
    """Returns each port with the facts that every run checks."""
    return [(p, p.name, p.numpy_dtype, p.numbers) for p in ports]


def check_shape(port: Port, shape: tuple[int, ...], what: str) -> None:
    if shape == port.shape:
        return
    advice = ""
    if len(shape) == len(port.shape):
        axis = next(i for i, (a, b) in enumerate(zip(shape, port.shape)) if a != b)
        named = port.dims[axis] if port.dims else None
        detail = (
            f"shape {list(shape)}: axis {axis}"
            + (f" ({named})" if named else "")
            + f" has {shape[axis]} instead of {port.shape[axis]}"
        )
        if sorted(shape) == sorted(port.shape):
            advice = "; are the axes in another order (see .transpose)?"
    else:
        detail = f"{len(shape)} dimensions instead of {len(port.shape)}: {list(shape)}"
        if port.shape[:1] == (1,) and shape == port.shape[1:]:
            advice = "; add the first axis with [None]"
    raise InputError(f"{what}, got {detail}{advice}")


def check_out(ports: Sequence[Port], out: Any) -> None:
    """Raises InputError for an `out` that is not a mapping from names of outputs."""
    if not isinstance(out, Mapping):
        raise InputError(f"out needs a mapping from output names to arrays, got {_kind(out)}")
    check_names("output", ports, out, all_of_them=False)


def refuse_out(port: Port, given: Any) -> NoReturn:
    """Raises InputError with the reason why results cannot be written straight into `given`."""
    what = f"out[{port.name!r}] needs {port}"
    if type(given) is not np.ndarray:
        raise InputError(f"{what} as a numpy array, got {_kind(given)}")
    if given.dtype != port.numpy_dtype:
        swapped = " in the other byte order" if given.dtype.newbyteorder("=") == port.numpy_dtype else ""
        raise InputError(
            f"{what} (numpy {port.numpy_dtype.name}), got {given.dtype.name}{swapped}; results are not converted"
        )
    check_shape(port, given.shape, what)
    flags = (
        ("writeable", "that can be written"),
        ("c_contiguous", "contiguous in C order"),
        ("aligned", "aligned to its elements"),
    )
    lacks = (
        next(text for flag, text in flags if not getattr(given.flags, flag))
        if not (given.flags.writeable and given.flags.c_contiguous and given.flags.aligned)
        else "that is no view of others' elements"
    )
    raise InputError(f"{what} {lacks}, got one that is not; leave it out, or create it with np.empty(shape, dtype)")


def check_no_overlap(
    inputs: Sequence[Port], outputs: Sequence[Port], spans: Sequence[tuple[int, int]], given: Collection[str]
) -> None:
    """Raises InputError if an output in `given` shares memory with another port, except for the input that it may
    share. `spans`: begin and end address of each port's array, inputs first."""
    ports, count, last = (*inputs, *outputs), len(inputs), list[int]()  # last: spans that end behind the next begin
    for one in sorted((i for i, (start, end) in enumerate(spans) if start < end), key=lambda i: spans[i][0]):
        last = [i for i in last if spans[i][1] > spans[one][0]]
        for other in last:
            first, second = sorted((one, other))
            if first < count:  # an output is named first
                first, second = second, first
            if first < count or not {ports[first].name, second >= count and ports[second].name} & set(given):
                continue
            if second < count and ports[first].shares == ports[second].name and spans[one] == spans[other]:
                continue
            names = [f"input {p.name!r}" for p in inputs] + [f"out[{p.name!r}]" for p in outputs]
            raise InputError(
                f"{names[first]} shares memory with {names[second]}; a run reads inputs while it writes outputs:"
                " use separate memory"
            )
        last.append(one)


def check_names(kind: str, ports: Sequence[Port], given: Mapping[str, Any], *, all_of_them: bool) -> None:
    """Raises InputError for unknown names and for missing ports."""
    has = f"the engine's {kind}s are " + (", ".join(f"{p.name!r} {p}" for p in ports) or "none")
    unknown = [n for n in given if n not in {p.name for p in ports}]
    if unknown:
        raise InputError(f"there is no {kind} {unknown[0]!r}{near(unknown[0], [p.name for p in ports])}; {has}")
    missing = [p.name for p in ports if p.name not in given]
    if missing and all_of_them:
        raise InputError(f"{kind} {missing[0]!r} is missing; {has}")


def refuse_mapping(ports: Sequence[Port], given: Any) -> NoReturn:
    example = ports[0].name if ports else "x"
    raise InputError(
        f"run needs a mapping from input names to arrays, like {{{example!r}: array}}, got {_kind(given)}; arrays in"
        " order go to engine(array, …)"
    )


def check_shapes(ports: Sequence[Port], given: Any) -> None:
    """Raises InputError for shapes that are not a mapping from the names of all inputs."""
    if not isinstance(given, Mapping):
        example = ports[0].name if ports else "x"
        raise InputError(
            f"shapes need a mapping from input names to sizes, like {{{example!r}: (1, 3)}}, got {_kind(given)}"
        )
    check_names("input", ports, given, all_of_them=True)


def _kind(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
