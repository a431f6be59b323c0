"""Files of torch, recognized by content without torch, and read without running code from pickles."""

from __future__ import annotations

import contextlib
import os
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pelton.errors import FormatError, ModelAbsent, ModelError, Needs

Kind = Literal["exported", "script", "pickle", "truncated"]

ZIP, PICKLE = b"PK\x03\x04", b"\x80"  # first bytes of archives, and of pickles of protocol 2 and newer
OBJECTS = ("custom_obj", "opaque_obj")  # prefixes of pickled constants in an exported program
ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # torch.load's environment variable
ENDINGS = (".pt", ".pth", ".pt2", ".ts", ".jit")


def kind_of(source: Any) -> Kind | None:
    """Returns the kind of a file: an exported program, TorchScript, a checkpoint, or a truncated archive, which may be
    any of these; None if torch did not write it."""
    if not isinstance(source, (str, os.PathLike)):
        return None
    path = Path(os.fsdecode(source))
    try:
        with path.open("rb") as f:
            begin = f.read(4)
    except OSError:
        return None
    named = path.suffix in ENDINGS
    if begin == ZIP:
        try:
            with zipfile.ZipFile(path) as archive:
                whole = any(entry.header_offset == 0 for entry in archive.infolist())  # not nested in another archive
                kind = _kind_of_archive(archive.namelist()) if whole else "truncated"
                return kind if whole or named else None
        except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
            return "truncated" if named else None
    return "pickle" if named and begin[:1] == PICKLE else None


def _kind_of_archive(names: list[str]) -> Kind | None:
    """Classifies an archive: it has one folder, with models/ in an exported program, or code/ in TorchScript."""
    inner = {name.partition("/")[2] for name in names}
    if "archive_format" in inner and any(name.startswith("models/") for name in inner):
        return "exported"
    if {"serialized_exported_program.json", "version"} <= {*inner, *names}:  # before torch 2.8
        return "exported"
    if "constants.pkl" in inner and any(name.startswith("code/") for name in inner):
        return "script"
    return "pickle" if "data.pkl" in inner else None


def read(path: Path) -> Any:
    """Reads the ExportedProgram or the ScriptModule in a file. Raises ModelError for a checkpoint, which holds no
    program; it is never unpickled."""
    if not path.is_file():
        raise ModelAbsent(f"there is no file {path}", path)
    kind = kind_of(path)
    if kind == "truncated":
        raise FormatError(
            f"{path} is truncated or damaged: it begins as an archive of PyTorch, and the end of the archive is"
            " missing; copy it again, or save the model again"
        )
    if kind == "pickle":
        raise FormatError(
            f"{path} must be a model of PyTorch that holds its program (torch.export.save, torch.jit.save), but is"
            " a pickle: a checkpoint of tensors or of Python objects, which may run any code when it is read, so"
            " it is not; of tensors, make the module, give it them by module.load_state_dict(torch.load(path,"
            " weights_only=True)), and call pelton.build(module, example_inputs=...); of a whole module, load it"
            " in the program that it belongs to, and save it by torch.export.save(torch.export.export(module,"
            " args), path)"
        )
    with Needs(f"reading {path.name}, a file of PyTorch,", extra="torch"):
        import torch
        import torch.export
    try:
        if kind == "script":
            return torch.jit.load(str(path), map_location="cpu")
        _refuse_objects(path)
        with _tensors_only():
            return torch.export.load(str(path))
    except ModelError:
        raise
    except Exception as e:  # torch raises no class of its own here
        what = "an exported program" if kind == "exported" else "a TorchScript file"
        raise ModelError(
            f"{path} must be {what} of PyTorch, but torch {torch.__version__} cannot read it; save it again with"
            f" this version: {first_line(e)}"
        ) from e


def _refuse_objects(path: Path) -> None:
    """Raises ModelError for an exported program with Python objects among its constants, which torch would unpickle."""
    with zipfile.ZipFile(path) as archive:
        objects = [name for name in archive.namelist() if name.rpartition("/")[2].startswith(OBJECTS)]
    if objects:
        raise ModelError(
            f"{path} has Python objects among its constants ({objects[0]}), pickles that may run any code when they are"
            " read; export the module without them, and with tensors alone"
        )


@contextlib.contextmanager
def _tensors_only() -> Iterator[None]:
    """Restricts torch.load to pickles of tensors (`weights_only`), whatever its callers in torch request."""
    before = os.environ.get(ONLY)
    os.environ[ONLY] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[ONLY]
        else:
            os.environ[ONLY] = before


def first_line(e: BaseException) -> str:
    """Returns the first line of an exception, for messages."""
    lines = [line.strip() for line in str(e).splitlines() if line.strip()]
    return f"{type(e).__name__}: {textwrap.shorten(lines[0], 300, placeholder=' …')}" if lines else type(e).__name__
