"""Virtual environments, one for each framework, as their packages need different versions of the same ones."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pelton.errors import BuildError, InputError, near
from pelton.progress import Progress
from pelton.system import cache, files

PART, VERSIONS = "environments", "versions.json"  # the latter is written last and marks a complete environment
SHOWN = 20  # lines of pip's output in an error


@dataclass(frozen=True)
class Environment:
    """Packages that convert models of a framework to ONNX: pip requirements, required modules, and the oldest supported
    Python."""

    requirements: tuple[str, ...]
    modules: tuple[str, ...]
    python: tuple[int, int] = (3, 10)


@dataclass(frozen=True)
class Interpreter:
    """A Python with the packages of an environment. `versions` identifies theirs."""

    path: str
    versions: str
    own: bool = False  # True if it is the running interpreter


ENVIRONMENTS = {
    "tensorflow": Environment(
        ("tensorflow-cpu==2.21.*", "keras>=3.12", "tf2onnx==1.17.*", "onnx"), ("tensorflow", "keras", "tf2onnx")
    ),
    "jax": Environment(("jax2onnx>=0.17", "flax"), ("jax", "jax2onnx"), python=(3, 11)),
    "paddle": Environment(
        ("paddlepaddle==3.3.*", "paddle2onnx==2.1.*", "packaging", "setuptools"), ("paddle", "paddle2onnx")
    ),
}


def folder(name: str) -> Path:
    """Returns the folder of a framework's environment. Raises InputError for unknown names, or without a home."""
    if name not in ENVIRONMENTS:
        raise InputError(
            f"there is no environment of {name!r}{near(name, ENVIRONMENTS)}; there are {', '.join(ENVIRONMENTS)}"
        )
    home = cache.directory()
    if home is None:
        raise InputError("there is no cache directory, as this user has no home; name one with PELTON_CACHE_DIR")
    return Path(os.path.abspath(home), PART, name)


def made(name: str) -> Interpreter | None:
    """Returns the interpreter of an environment that exists and still runs; None if there is none."""
    if cache.directory() is None:
        return None
    home = folder(name)
    python = home / "bin" / "python"
    try:
        versions = (home / VERSIONS).read_bytes()
    except OSError:
        return None
    return Interpreter(str(python), hashlib.sha256(versions).hexdigest()) if os.access(python, os.X_OK) else None


def find(name: str) -> Interpreter | None:
    """Returns the interpreter that converts models of a framework: that of its environment if it exists, else this one
    if it has the packages; None if neither has."""
    if (interpreter := made(name)) is not None:
        return interpreter
    if any(importlib.util.find_spec(module) is None for module in ENVIRONMENTS[name].modules):
        return None
    versions = sorted({f"{d.name}=={d.version}" for d in metadata.distributions()})
    return Interpreter(sys.executable, hashlib.sha256("\n".join(versions).encode()).hexdigest(), own=True)


def make(name: str, progress: Progress) -> Interpreter:
    """Creates the environment of a framework if it is missing; waits for another process that is creating it.

    progress: called with ("environment", packages so far, 0). Raises BuildError with pip's output if that fails.
    """
    home, wanted = folder(name), ENVIRONMENTS[name]
    if sys.version_info < wanted.python:
        version = ".".join(map(str, wanted.python))
        raise BuildError(
            f"the packages for {name} need Python {version} or newer, this is {sys.version.split()[0]}: run"
            f" `python{version} -m pelton import-env {name}` with Pelton installed there"
        )
    try:
        home.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as e:
        raise BuildError(f"{home.parent} cannot be made ({e.strerror}): set PELTON_CACHE_DIR to another one") from None
    with files.alone(home.parent / f"{name}.lock"):
        if (interpreter := made(name)) is not None:
            return interpreter
        try:
            _install(home, wanted.requirements, progress)
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise
    interpreter = made(name)
    assert interpreter is not None
    return interpreter


def remove(name: str) -> bool:
    """Removes the environment of a framework; returns True if there was one."""
    home = folder(name)
    was_there = home.is_dir()
    if was_there:
        with files.alone(home.parent / f"{name}.lock"):
            shutil.rmtree(home)
    return was_there


def _install(home: Path, requirements: Sequence[str], progress: Progress) -> None:
    progress("environment", 0, 0)
    shutil.rmtree(home, ignore_errors=True)  # an incomplete one
    python = str(home / "bin" / "python")
    for _ in _lines([sys.executable, "-m", "venv", str(home)]):
        pass
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    packages = 0
    for line in _lines([*pip, "install", "--progress-bar", "off", *requirements]):
        packages += line.startswith("Collecting ")
        progress("environment", packages, 0)
    listed = json.loads("".join(_lines([*pip, "list", "--format", "json"], errors=subprocess.DEVNULL)))
    versions = json.dumps({p["name"]: p["version"] for p in listed}, indent=1)
    files.write(home / VERSIONS, [versions.encode()])


def _lines(command: Sequence[str], errors: int = subprocess.STDOUT) -> Iterator[str]:
    """Yields the output of a command line by line; raises BuildError with its end if it fails."""
    last: list[str] = []
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET")}
    with running(command, stdout=subprocess.PIPE, stderr=errors, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            text = line.decode(errors="replace")
            last = [*last[-SHOWN:], text]
            yield text
        status = process.wait()
    if status:
        output = "".join(last[-SHOWN:])
        raise BuildError(f"`{' '.join(command)}` failed with status {status}:\n{output.rstrip()}")


@contextmanager
def running(command: Sequence[str], **options) -> Iterator[subprocess.Popen]:
    """Context manager: a process in its own group, killed with its children however the block ends."""
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **options)
    except OSError as e:
        raise BuildError(f"{command[0]} cannot be run: {e.strerror}; make room, or remove the environment") from None
    try:
        yield process
    finally:
        try:
            os.killpg(process.pid, 9)
        except (ProcessLookupError, PermissionError):
            pass
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
