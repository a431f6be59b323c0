"""Reads arrays from files and pictures, draws random ones for timing, and writes arrays to files."""

from __future__ import annotations

import dataclasses
import io
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton import preprocessing
from pelton.system import files
from pelton.errors import EngineError, Error, InputError, near

from . import text

if TYPE_CHECKING:
    from pelton.runtime import Engine


UNNAMED = "arr_0"  # numpy.savez's name for an unnamed array


def load_inputs(engine: Engine, pairs: Sequence[str], image: str | None = None) -> dict[str, np.ndarray]:
    """Loads input name → array for arguments like x=cat.npy, x=cat.jpg, all.npz, or only a file if the engine has one
    input.

    Pictures for one input become a batch; unnamed ones are for the only input that they fit. Missing states have their
    initial values. Raises InputError for inputs that are missing, unknown or unreadable.
    """
    names = [p.name for p in engine.inputs]
    how = image or engine.meta.get("image")
    arrays: dict[str, np.ndarray] = {}
    pictures: dict[str, list[str]] = {}
    shapes = {p.name: p.shape for p in engine.inputs}
    for pair in pairs:
        name, path = _split(pair, names)
        if not path:
            raise InputError(f"--input {pair} names no file; write NAME=FILE, such as {name}={name}.npy")
        if name is None and preprocessing.is_picture(path):
            name = _only(path, names if how is None else preprocessing.parse(how).fitting(shapes))
        if name is None:
            arrays.update(_load_all(path, names))
        elif preprocessing.is_picture(path):
            pictures.setdefault(name, []).append(path)
        elif name in arrays:
            raise InputError(f"input {name!r} is set twice")
        else:
            arrays[name] = load(path)
    for port in engine.inputs:
        if port.name in pictures:
            arrays[port.name] = _batch(port, pictures[port.name], how)
    arrays = {**engine.initial_states(), **arrays}
    missing = [f"{p.name} {p}" for p in engine.inputs if p.name not in arrays]
    if missing:
        raise InputError(f"the engine needs {', '.join(missing)}: add --input NAME=FILE (.npy, .npz or a picture)")
    return arrays


def _split(pair: str, names: Sequence[str]) -> tuple[str | None, str]:
    """Splits (input, path); input is None for unnamed pictures, and for an .npz file, which names its arrays."""
    for name in sorted(names, key=len, reverse=True):
        if pair.startswith(name + "="):
            return name, pair[len(name) + 1 :]
    if not os.path.exists(pair) and "=" in pair:
        raise InputError(
            f"the engine has no input {(name := pair.partition('=')[0])!r}{near(name, names)}; it has"
            f" {', '.join(names)}"
        )
    if pair.lower().endswith(".npz") or preprocessing.is_picture(pair):
        return None, pair
    return _only(pair, names), pair


def _only(path: str, names: Sequence[str]) -> str:
    """Returns the only input that a file may be for."""
    if len(names) != 1:
        raise InputError(
            f"{path!r} may be any of the inputs {', '.join(names)}; write --input {names[0]}={path}"
            if names
            else "the engine has no inputs"
        )
    return names[0]


def _batch(port, paths: Sequence[str], how: str | None) -> np.ndarray:
    if how is None:
        raise InputError(
            f"the engine has no preprocessing for pictures as input {port.name} {port}; add --image,"
            f" {preprocessing.EXAMPLES}"
        )
    picture = preprocessing.parse(how)
    picture.fitting({port.name: port.shape})
    arrays = [picture.array(path, port.shape, port.numpy_dtype) for path in paths]
    if len(arrays) != port.shape[0] and isinstance(port.shape[0], int):
        raise InputError(
            f"input {port.name} needs {port.shape[0]} pictures per run, got {len(arrays)}; repeat --input"
            f" {port.name}=FILE"
        )
    return np.concatenate(arrays)


def load(path: str) -> np.ndarray:
    """Loads the array in an .npy file, or the only one in an .npz file."""
    content = _read(path)
    if isinstance(content, np.ndarray):
        return content
    if len(content) != 1:
        raise InputError(
            f"{path} has {len(content)} arrays ({', '.join(content)}); omit the name of the input, or use a file with"
            " one array"
        )
    return next(iter(content.values()))


def _load_all(path: str, names: Sequence[str]) -> dict[str, np.ndarray]:
    content = _read(path)
    if isinstance(content, np.ndarray):
        return {_only(path, names): content}
    if [*content] == [UNNAMED] and len(names) == 1:
        return {names[0]: content[UNNAMED]}
    unknown = [k for k in content if k not in names]
    if unknown:
        raise InputError(
            f"{path} has arrays {', '.join(content)}{near(unknown[0], names)}; the inputs are {', '.join(names)}"
        )
    return dict(content)


def _read(path: str) -> np.ndarray | dict[str, np.ndarray]:
    try:
        content = np.load(path, allow_pickle=False)
        return content if isinstance(content, np.ndarray) else {k: content[k] for k in content.files}
    except (
        OSError,
        ValueError,
        EOFError,
        MemoryError,
        RuntimeError,
        SyntaxError,
        tokenize.TokenError,
        zipfile.BadZipFile,
        zlib.error,
    ) as e:
        raise InputError(
            f"{path} cannot be read as an array: {getattr(e, 'strerror', None) or e}; expected a file of numpy.save or"
            f" numpy.savez (pictures end in {', '.join(preprocessing.SUFFIXES[:3])} …)"
        ) from None


def load_data(engine: Engine, path: str) -> list[dict[str, np.ndarray]]:
    """Loads the samples in an .npz file, one set of inputs for each (`pelton.diagnose.samples.split`); an .npy file is
    one array for the only input. Raises InputError for unreadable files and arrays that do not fit."""
    from pelton.diagnose import samples

    content, names = _read(path), [p.name for p in engine.inputs]
    if isinstance(content, np.ndarray):
        if len(names) != 1:
            raise InputError(
                f"{path} holds an array without a name, the inputs are {', '.join(names) or 'none'}; save them by name"
                " with numpy.savez"
            )
        content = {names[0]: content}
    return samples.split(engine.inputs, content, engine.shapes(), path)


def draw_inputs(
    engine: Engine, given: Mapping[str, str] = MappingProxyType({}), seed: int = 0
) -> dict[str, np.ndarray]:
    """Draws random inputs of an engine (`pelton.backends.arrays.random_inputs`).

    given: sizes of inputs as on the command line, such as {"x": "1x3x224x224"}; unspecified dynamic dimensions have
    their optimum sizes. Raises InputError for sizes that the engine rejects, and if memory does not suffice.
    """
    from pelton.backends.arrays import random_inputs

    shapes = resolve_shapes(engine, given)
    return random_inputs([dataclasses.replace(p, shape=shapes[p.name]) for p in engine.inputs], seed)


def sizes_in_words(arrays: Mapping[str, Any]) -> str:
    """Formats the sizes of arrays, for people: "x 1x3x224x224, rate scalar"."""
    return ", ".join(f"{name} {text.sizes(np.shape(a))}" for name, a in arrays.items())


@contextmanager
def sizes_in_errors(
    engine: Engine, feeds: Mapping[str, Any], drawn: bool, of: tuple[type[Error], ...] = (EngineError, InputError)
) -> Iterator[None]:
    """Context manager for runs on these inputs: if they were drawn, errors (those `of` these kinds) name their sizes
    and the options that set others."""
    try:
        yield
    except of as e:
        if not drawn:
            raise
        raise type(e)(
            f"{e}; this was a run on random inputs (whole numbers are 0 or 1) {sizes_in_words(feeds)}: "
            + ("--shapes sets other sizes, " if engine.symbols else "")
            + "--input sets arrays"
        ) from e


def resolve_shapes(engine: Engine, given: Mapping[str, str] = MappingProxyType({})) -> dict[str, tuple[int, ...]]:
    """Returns input → shape, with the sizes of the command line, else the optimum. Raises InputError for sizes that the
    engine rejects."""
    from pelton.engine.sizes import solve

    requested = _shapes(engine, given)
    shapes = engine.shapes(solve(engine.plain, {**engine.shapes(), **requested}))
    for p in engine.inputs:
        if requested.get(p.name, shapes[p.name]) != shapes[p.name]:
            raise InputError(
                f"--shapes sets input {p.name} to {given[p.name]}, expected {text.sizes(shapes[p.name])} ({p})"
            )
    return shapes


def _shapes(engine: Engine, given: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """Returns input → shape of those on the command line. Raises InputError for unknown inputs and other ranks."""
    shapes: dict[str, tuple[int, ...]] = {}
    ports = {p.name: p for p in engine.inputs}
    for name, spec in given.items():
        if name not in ports:
            raise InputError(f"the engine has no input {name!r}{near(name, ports)}; it has {', '.join(ports)}")
        sizes = spec.split("x")
        if len(sizes) != len(ports[name].shape) or not all(s.isdecimal() and len(s) < 19 for s in sizes):
            raise InputError(
                f"input {name} is {ports[name]}; --shapes needs sizes such as {text.sizes(engine.shapes()[name])},"
                f" got {spec!r}"
            )
        shapes[name] = tuple(map(int, sizes))
    return shapes


def check_target(path: str) -> None:
    """Raises InputError unless a file can be written at a path: its folder exists and is writable, and only a file
    would be replaced."""
    if path == "-":
        raise InputError("outputs are written to files, not to stdout; for a file named -, write ./-")
    reason = files.rejection(path)
    if reason is not None:
        raise InputError(f"{path} cannot be written: {reason}")


def split_lists(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arrays with each element of a list under its own name: `name[0]`, `name[1]`, …"""
    result: dict[str, Any] = {}
    for name, value in arrays.items():
        is_list = isinstance(value, list) and all(isinstance(a, np.ndarray) for a in value)
        result |= {f"{name}[{i}]": a for i, a in enumerate(value)} if is_list else {name: value}
    return result


def write(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays atomically: all to an .npz file, a single one to any other. Raises InputError if it cannot."""
    check_target(path)
    arrays = split_lists(arrays)
    if not path.lower().endswith(".npz") and len(arrays) != 1:
        raise InputError(
            f"the engine has {len(arrays)} outputs ({', '.join(arrays)}): name a file that ends in .npz, or one of them"
            f" with --output NAME={path}"
        )
    savable: Any = {
        k: np.asarray(v, str) if np.asarray(v).dtype.hasobject else np.asarray(v) for k, v in arrays.items()
    }
    buffer = io.BytesIO()
    if path.lower().endswith(".npz"):
        np.savez(buffer, **savable)
    else:
        np.save(buffer, next(iter(savable.values())))
    replace(path, [buffer.getbuffer()])


def replace(path: str, pieces: Iterable[Any]) -> None:
    """Writes bytes to a file atomically. Raises InputError if it cannot."""
    try:
        files.write(path, pieces)
    except OSError as e:
        raise InputError(f"{path} cannot be written: {e.strerror or e}") from None
