"""Converts models of other frameworks to ONNX, once per model, in a child process that has these frameworks, and
compares the result with the framework's."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import stat
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.logs import Logger
from pelton.errors import InputError, ModelAbsent, ModelError, Needs
from pelton.options import Options
from pelton.system import cache
from pelton.system.environments import Interpreter, find, running
from pelton.system.temporary import temporary_folder
from pelton.version import VERSION

if TYPE_CHECKING:
    from pelton.importers.conversions import NoReference, Reference
    from pelton.importers.onnx.file import Source

log = Logger("pelton.importers")

CHILDREN = Path(__file__).parent / "children"
PART = "imports"  # of the cache
TIMEOUT = 1800.0  # seconds, unless PELTON_IMPORT_TIMEOUT is set
TAIL = 1 << 14  # bytes read of a converter's output,
SHOWN = 25  # and lines of them in an error
REFUSED = 3  # exit status of a child whose last line is a message for users
LARGEST = (1 << 31) - 1  # bytes that protobuf reads
REFERENCE = "reference.npz"  # the scripts' results of framework runs (children/framework_run.py)


def convert(
    framework: str, child: str, model: Any, *more: Any, options: Sequence[str] = (), accept: bool = False
) -> Source:
    """Returns the ONNX model that the script `children/<child>` makes of a model: a path or bytes. more: its further
    files. options: further arguments of the script. accept: accept a result that differs from the framework's.

    Raises ModelError, with the converter's output, if it fails, takes longer than PELTON_IMPORT_TIMEOUT seconds, lacks
    packages, or makes a mistake.
    """
    with Needs("reading converted models"):  # listing formats works without the package onnx
        from pelton.importers.conversions import EQUAL, compared
        from pelton.importers.onnx.file import Source, parse

    model = bytes(model) if isinstance(model, (bytearray, memoryview)) else model
    script, parts = CHILDREN / child, (model, *more)
    name = "the given model" if isinstance(model, bytes) else os.fsdecode(model)
    python = find(framework)
    if python is None:
        raise ModelError(
            f"{name}: converting it needs packages that are not installed: `pelton import-env {framework}` puts them"
            " into a virtual environment of their own, which Pelton then uses by itself"
        )
    kept = cache.open_cache(Options())
    key = _key([*sorted(CHILDREN.glob("*.py")), *parts], [python.versions, *options])
    data, runs = kept.read(PART, f"{key}.onnx"), kept.read(PART, f"{key}.npz")
    if data is None or runs is None:
        log.info("%s is converted to ONNX by %s with %s", name, child, python.path)
        with temporary_folder() as folder:
            paths = [_as_path(part, Path(folder), i) for i, part in enumerate(parts)]
            data = _run(python, script, [*paths, *options], Path(folder), name)
            written = Path(folder) / REFERENCE
            runs = written.read_bytes() if written.is_file() else b""
        kept.store(PART, f"{key}.onnx", data)
        kept.store(PART, f"{key}.npz", runs)
        kept.settle()
    read_from = {os.fsdecode(part): None for part in parts if not isinstance(part, bytes)}
    path = None if isinstance(model, bytes) else Path(name)
    source = Source(parse(data, f"{name}, converted to ONNX,"), path, files=read_from)
    note = kept.read(PART, f"{key}-{VERSION}.txt")
    if note is not None:
        return replace(source, conversion=note.decode())
    source = compared(source, _reference(framework, runs), accept)
    if source.conversion.startswith(EQUAL):
        kept.store(PART, f"{key}-{VERSION}.txt", source.conversion.encode())
    return source


def _reference(framework: str, runs: bytes) -> Reference | NoReference:
    """Reads a framework's results from the file that its script wrote."""
    from pelton.importers.conversions import NoReference, Reference

    if not runs:
        return NoReference(framework, "its script wrote no runs")
    with np.load(io.BytesIO(runs)) as file:
        arrays = {name: file[name] for name in file.files}
    version, reason = str(arrays["version"]), str(arrays["reason"])
    if reason:
        return NoReference(version, reason)
    inputs = {name.removeprefix("input "): a for name, a in arrays.items() if name.startswith("input ")}
    first, again = ([arrays[f"run {number} output {i}"] for i in range(int(arrays["outputs"]))] for number in range(2))
    return Reference(version, inputs, first, lambda: again, where="random inputs")


def _as_path(part: Any, folder: Path, index: int) -> str:
    """Returns the absolute path of a part; bytes are written to a file."""
    if not isinstance(part, bytes):
        return os.path.abspath(os.fsdecode(part))
    path = folder / f"given{index}"
    path.write_bytes(part)
    return str(path)


def _run(python: Interpreter, script: Path, given: Sequence[str], folder: Path, name: str) -> bytes:
    """Runs the script with these arguments behind its target, and returns its result."""
    target, log_path = folder / "converted.onnx", folder / "said.txt"
    work = folder / "work"
    work.mkdir()
    command = [python.path, str(script), str(target), *given]
    limit = timeout()
    with log_path.open("wb") as log_file:
        with running(
            command, stdout=log_file, stderr=subprocess.STDOUT, cwd=work, env=_environment(python, work)
        ) as process:
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                raise ModelError(
                    f"{name}: the conversion exceeded {limit:g} s; set PELTON_IMPORT_TIMEOUT=SECONDS{_quote(log_path)}"
                ) from None
    if status == REFUSED:
        raise ModelError(f"{name}: {_last_lines(log_path)[-1]}")
    if status < 0:
        why = f"was killed by {signal.Signals(-status).name}, as systems do that are out of memory"
        raise ModelError(f"{name}: its conversion to ONNX {why}{_quote(log_path)}")
    if status or not target.is_file():
        raise ModelError(f"{name}: it could not be converted to ONNX (status {status}){_quote(log_path)}")
    if target.stat().st_size > LARGEST:
        raise ModelError(f"{name}: the ONNX model is larger than 2 GiB, the maximum of one file; split the model")
    return target.read_bytes()


def _environment(python: Interpreter, work: Path) -> dict[str, str]:
    """Returns a child's environment: no GPU, temporary files in its folder; Python paths only for this very Python."""
    own = {} if python.own else {"PYTHONPATH", "PYTHONHOME"}
    return {
        **{name: value for name, value in os.environ.items() if name not in own},
        "CUDA_VISIBLE_DEVICES": "-1",
        "KERAS_BACKEND": "tensorflow",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_ENABLE_ONEDNN_OPTS": "0",  # which prints this on stderr
        "TMPDIR": str(work),
    }


def timeout() -> float:
    """Returns the time limit of a conversion in seconds; InputError unless it is a number above 0."""
    text = os.environ.get("PELTON_IMPORT_TIMEOUT") or str(TIMEOUT)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e7:
        raise InputError(f"PELTON_IMPORT_TIMEOUT must be a number of seconds above 0, got {text!r}")
    return seconds


def _last_lines(said: Path) -> list[str]:
    with said.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
        lines = file.read().decode(errors="replace").splitlines()
    return [line for line in lines if line.strip()][-SHOWN:] or ["it said nothing"]


def _quote(said: Path) -> str:
    return ":\n" + "\n".join(f"  {line}" for line in _last_lines(said))


def _key(parts: Sequence[Any], words: Sequence[str]) -> str:
    """Identifies a conversion by the contents of all files, the script's included, and by words, such as package
    versions."""
    digest = hashlib.sha256(repr(list(words)).encode(errors="surrogateescape"))
    for part in parts:
        for name, data in [("", part)] if isinstance(part, bytes) else _contents(Path(os.fsdecode(part))):
            inner = hashlib.sha256()
            for chunk in [data] if isinstance(data, bytes) else _chunks(data):
                inner.update(chunk)
            digest.update(f"{name}\0{inner.hexdigest()}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _contents(path: Path) -> Iterator[tuple[str, Path]]:
    """Yields (name, path) of a file, or of every file of a folder; raises ModelError for anything else."""
    if not path.is_dir():
        yield "", _regular(path)
        return
    for folder, inner, names in os.walk(path):
        for name in inner:
            if os.path.islink(os.path.join(folder, name)):
                raise ModelError(f"{path}: {os.path.join(folder, name)} is a link to a folder; copy the folder there")
        inner.sort()
        for name in sorted(names):
            file = Path(folder, name)
            yield str(file.relative_to(path)), _regular(file)


def _regular(path: Path) -> Path:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ModelError(f"{path} is neither a file nor a folder, as a model must be")
    except FileNotFoundError:
        raise ModelAbsent(f"there is no file {path}", path) from None
    except OSError as e:
        raise ModelError(f"{path} cannot be read: {e.strerror}") from None
    return path


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while chunk := file.read(1 << 22):
                yield chunk
    except OSError as e:
        raise ModelError(f"{path} cannot be read: {e.strerror}") from None
